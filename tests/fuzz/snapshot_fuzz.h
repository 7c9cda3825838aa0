/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every file of a snapshot: it is refused with a reason, or its tables hold together and are written and read again
 * as the same. */
#ifndef LADE_TESTS_FUZZ_SNAPSHOT_FUZZ_H
#define LADE_TESTS_FUZZ_SNAPSHOT_FUZZ_H

#include "lade/inspect.h"

typedef lade_status (*snapshot_fuzz_reader)(const void *data, size_t bytes, const char *name, lade_snapshot **out);

void snapshot_fuzz_file(snapshot_fuzz_reader reader, const void *data, size_t bytes);

#endif /* LADE_TESTS_FUZZ_SNAPSHOT_FUZZ_H */
