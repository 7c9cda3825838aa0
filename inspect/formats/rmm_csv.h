/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the log that RMM's logging resource adaptor writes, as the events of one device:
 *
 *   Thread,Time,Action,Pointer,Size,Stream
 *   4711,10:00:00.000001,allocate,0x7f00,1024,0x0
 */
#ifndef LADE_INSPECT_FORMATS_RMM_CSV_H
#define LADE_INSPECT_FORMATS_RMM_CSV_H

#include "lade/inspect.h"

/* Every log begins with it. */
extern const char ladei_rmm_csv_header[];

/* `name` is for messages. Errors: as lade_snapshot_read(), with the line. */
lade_status ladei_inspect_read_rmm_csv(const void *data, size_t bytes, const char *name, lade_snapshot **out);

#endif /* LADE_INSPECT_FORMATS_RMM_CSV_H */
