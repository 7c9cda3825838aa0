/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in pickles. */
#ifndef LADE_TOOLS_COMMON_PICKLE_H
#define LADE_TOOLS_COMMON_PICKLE_H

#include <stdbool.h>

#include "lade/inspect.h"

/* Whether a file begins as a pickle does; false for one that cannot be read, and for a pipe, whose bytes would be gone. */
bool pickle_is_one(const char *path);

/*
 * Reads a snapshot out of a pickle. Errors: LADE_ERR_INVALID_ARGUMENT for one that is none, LADE_ERR_LIMIT for one that
 * takes too much memory, LADE_ERR_UNSUPPORTED where python3 is missing, LADE_ERR_IO.
 */
lade_status pickle_open(const char *path, lade_snapshot **out);

#endif /* LADE_TOOLS_COMMON_PICKLE_H */
