/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: runs the operations of a trace on lade's allocators over the replay device.
 *
 *   replay *r = replay_create(&settings);
 *   result = replay_run(r, reader);           // READ_END; READ_BAD, READ_FAILED: trace_error(reader)
 *   replay_destroy(r);
 *
 * Each snapshot goes to settings.snapshot as a report_entry, valid during the call.
 */
#ifndef LADE_TOOLS_REPLAY_REPLAY_H
#define LADE_TOOLS_REPLAY_REPLAY_H

#include <stdbool.h>

#include "tools/replay/report.h"
#include "tools/replay/trace.h"

typedef struct replay replay;

typedef struct replay_settings {
  const char *conf; /* merged over the trace's conf, lade's own keys allowed; NULL: none */
  void (*snapshot)(void *user, const report_entry *entry); /* NULL: none */
  bool totals_only; /* a snapshot has no segments and blocks except for their number */
  /* After each operation: values at that moment. NULL: none. */
  void (*sample)(void *user, const lade_device_stats *stats);
  void *user;
} replay_settings;

/* Whether settings.conf may be `conf`; the error record names the mistake in it. */
lade_status replay_conf_check(const char *conf);

/* Copies the settings, not their texts. NULL when there is no memory. */
replay *replay_create(const replay_settings *settings);

read_result replay_run(replay *r, trace_reader *reader);
/* One operation or declaration of it. */
read_result replay_step(replay *r, trace_reader *reader, const trace_op *op);

void replay_destroy(replay *r);

#endif /* LADE_TOOLS_REPLAY_REPLAY_H */
