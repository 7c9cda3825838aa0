# SPDX-License-Identifier: Apache-2.0
#
# To be sourced: ranks on this machine, whatever it has of processors, and whoever runs it.

# mpi_run RANKS PROGRAM ARGUMENT...    a job that hangs ends with status 124
mpi_run() {
  mpi_ranks=$1
  shift
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_vader_single_copy_mechanism=none \
    OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
    timeout -k 5 120 "$mpi_launcher" $mpi_as_root -n "$mpi_ranks" "$@"
}

mpi_launcher=${MPIRUN:-mpirun} # MPIRUN: of another MPI than the system's own
# Open MPI refuses root, who is all there is in a container; MPICH knows no such option.
mpi_as_root=
if [ "$(id -u)" -eq 0 ] && "$mpi_launcher" --version 2>/dev/null | grep -q 'Open MPI'; then mpi_as_root=--allow-run-as-root; fi
