/* SPDX-License-Identifier: Apache-2.0 */
/* A ledger from outside. */
#ifndef LADE_HOST_BUDGET_LEDGER_SURVEY_H
#define LADE_HOST_BUDGET_LEDGER_SURVEY_H

#include "host/budget/ledger_calls.h"
#include "host/budget/ledger_rules.h"
#include "lade/status.h"

typedef struct ladei_ledger_row {
  ladei_ledger_slot slot; /* taken */
  uint32_t index;
  bool sound;
  bool has_owner; /* its lock is held */
  bool is_orphan; /* its lock is held, by a child of its process, which has ended itself; where that can be told */
} ladei_ledger_row;

typedef struct ladei_ledger_survey {
  ladei_ledger_header header;
  ladei_ledger_row *rows; /* released by ladei_ledger_survey_release */
  size_t count;
  ladei_ledger_answer answer; /* of slots with an owner; all 0: none has */
  bool busy;                  /* a process holds the file lock for longer than others wait: read without it */
  size_t released;            /* slots that were released */
  uint64_t released_bytes;
} ladei_ledger_survey;

/*
 * Reads a ledger, and with `release_dead` frees slots that have no owner. LADE_NOT_READY: there is no such file.
 * LADE_ERR_IO: it cannot be opened or read; LADE_ERR_INVALID_ARGUMENT: it is no ledger that pools would take.
 * LADE_ERR_BUSY: nothing can be released now.
 */
lade_status ladei_ledger_survey_take(const char *path, bool release_dead, const ladei_ledger_calls *calls,
                                     ladei_ledger_survey *out);
void ladei_ledger_survey_release(ladei_ledger_survey *survey);

#endif /* LADE_HOST_BUDGET_LEDGER_SURVEY_H */
