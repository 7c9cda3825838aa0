/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chrome's trace events, which Perfetto and chrome://tracing show. A part is a process:
 *
 *   counters   "memory" {allocated, active, reserved}: bytes after each event that changes them
 *   blocks     two nested asynchronous spans each. The outer one has the stream's name, since viewers put spans of one
 *              name into one lane; the inner ones are "N bytes" (handed out) and "pending", until its memory is free
 *   notes      instants, with their text; out of memory and snapshots too
 *
 * A block that was there before the history begins with it; one that is there at the end has no end.
 *
 * Perfetto shows escaped characters as their escapes: so only the necessary ones are escaped, `<` of templates not.
 *
 * W1  Spans of one id (a block's address, of one process) do not overlap; so an end needs no search for its begin.
 */
#ifndef LADE_INSPECT_FORMATS_CHROME_TRACE_H
#define LADE_INSPECT_FORMATS_CHROME_TRACE_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_chrome_trace(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                             ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_CHROME_TRACE_H */
