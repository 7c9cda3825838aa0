/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second implementation of the replay's rules, as plain as possible: sorted arrays, linear searches, every rule
 * written down from its description. Shares no code with device/ or tools/replay but the types of operations and reports.
 */
#ifndef LADE_TESTS_TOOLS_REPLAY_MODEL_H
#define LADE_TESTS_TOOLS_REPLAY_MODEL_H

#include "tools/replay/report.h"
#include "tools/replay/trace.h"

typedef struct model_settings {
  bool newer; /* version 2 of the format: as PyTorch 2.11 */
  uint64_t capacity;
  uint64_t max_split; /* bytes; UINT64_MAX: unlimited */
  double threshold;   /* 0: off */
  bool expandable;
  uint64_t divisions[16];
} model_settings;

typedef struct model model;

model *model_create(const model_settings *settings);
void model_destroy(model *m);

/* Whether the operation is allowed; a refused one changes nothing. Pinned operations are no part of the model. */
bool model_step(model *m, const trace_op *op);

/* What a snapshot reports now; valid until the next call on the model. Does not clear the list of failed IDs. */
const report_entry *model_report(model *m);
/* Clears it, as a snapshot does. */
void model_snapshot_done(model *m);

#endif /* LADE_TESTS_TOOLS_REPLAY_MODEL_H */
