/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the plug-in for MPI. */
#ifndef LADE_GROUP_MPI_OPEN_PLUGIN_H
#define LADE_GROUP_MPI_OPEN_PLUGIN_H

#include <stdbool.h>

#include "group/mpi/plugin.h"
#include "lade/status.h"

/*
 * `path` NULL: the library's folder, then the places of the dynamic linker. MPI runs afterwards. LADE_ERR_UNSUPPORTED:
 * there is no plug-in, it is of another version, or MPI does not run and may not be started.
 */
lade_status ladei_mpi_plugin_open(const char *path, bool may_initialize, const ladei_mpi_plugin **out);

#endif /* LADE_GROUP_MPI_OPEN_PLUGIN_H */
