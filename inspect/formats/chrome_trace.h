/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chrome's trace events, which Perfetto and chrome://tracing show. A part is a process, a stream a thread of it:
 *
 *   counters   "memory" {allocated, active, reserved}: bytes after each event that changes them
 *   blocks     asynchronous spans from alloc to free completed, named by size; free requested is an instant within
 *   notes      instants, with their text
 */
#ifndef LADE_INSPECT_FORMATS_CHROME_TRACE_H
#define LADE_INSPECT_FORMATS_CHROME_TRACE_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_chrome_trace(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                             ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_CHROME_TRACE_H */
