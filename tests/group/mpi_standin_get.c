/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the stand-in's controls in the plug-in that lade opens, too. */
#include <dlfcn.h>
#include <stddef.h>

#include "tests/group/mpi_standin.h"

mpi_standin *mpi_standin_get(void) {
  void *library = dlopen(MPI_STANDIN, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  return library != NULL ? dlsym(library, "lade_mpi_standin") : NULL;
}
