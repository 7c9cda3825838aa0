/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ledger from outside: the holders, and slots without an owner.
 *
 * S1  Nothing of the file changes unless slots are released, and then with the file lock held.
 * Locks: none of the process's.
 */
#include "host/budget/ledger_survey.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "host/budget/ledger_file.h"
#include "host/budget/ledger_process.h"

/* Its process has ended, though the lock is held: by a child, made without the C library's fork(). */
static bool row_is_orphan(const ladei_ledger_row *row) {
  uint32_t namespace_id = ladei_ledger_namespace();
  if (!row->has_owner || namespace_id == 0 || row->slot.namespace_id != namespace_id) return false;
  if (ladei_ledger_process_is_gone(row->slot.process_id)) return true;
  uint64_t start = ladei_ledger_process_start(row->slot.process_id);
  return start != 0 && row->slot.process_start != 0 && start != row->slot.process_start &&
         ladei_ledger_process_shares_time(row->slot.process_id);
}

static lade_status rows_read(ladei_ledger_file *file, ladei_ledger_survey *out) {
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(file);
  size_t count = ladei_ledger_file_count(file);
  out->header = *ladei_ledger_file_header(file);
  out->rows = calloc(count + 1, sizeof *out->rows);
  if (out->rows == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "ledger: no memory for %zu slots", count);
  for (size_t i = 0; i < count; i++) {
    bool sound = ladei_ledger_slot_is_sound(&slots[i]);
    if (sound && !ladei_ledger_slot_is_taken(&slots[i])) continue;
    ladei_ledger_row *row = &out->rows[out->count++];
    *row = (ladei_ledger_row){.slot = slots[i], .index = (uint32_t)i, .sound = sound};
    row->has_owner = ladei_ledger_slot_has_owner(file, i);
    row->is_orphan = sound && row_is_orphan(row);
  }
  return LADE_OK;
}

/* S1. Rows that are released are taken out. */
static lade_status rows_release(ladei_ledger_file *file, const char *path, ladei_ledger_survey *out) {
  static const ladei_ledger_slot unused;
  ladei_ledger_fault fault = {.text = ""};
  size_t kept = 0;
  for (size_t i = 0; i < out->count; i++) {
    const ladei_ledger_row row = out->rows[i];
    bool dead = !row.has_owner || row.is_orphan;
    if (dead && !ladei_ledger_slot_write(file, path, row.index, &unused, &fault))
      return ladei_error(LADE_ERR_IO, 0, "%s", fault.text);
    if (dead) {
      out->released++;
      out->released_bytes += row.sound ? row.slot.bytes : 0;
    } else {
      out->rows[kept++] = row;
    }
  }
  out->count = kept;
  return LADE_OK;
}

/* By the rows that have an owner, as any of them would decide. */
static lade_status answer_find(ladei_ledger_survey *out) {
  ladei_ledger_slot *living = calloc(out->count + 1, sizeof *living);
  size_t count = 0;
  if (living == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "ledger: no memory for %zu slots", out->count);
  for (size_t i = 0; i < out->count; i++)
    if (out->rows[i].sound && out->rows[i].has_owner) living[count++] = out->rows[i].slot;
  if (count > 0) out->answer = ladei_ledger_decide(living, count, 0);
  free(living);
  return LADE_OK;
}

lade_status ladei_ledger_survey_take(const char *path, bool release_dead, const ladei_ledger_calls *calls,
                                     ladei_ledger_survey *out) {
  ladei_ledger_file file;
  ladei_ledger_fault fault = {.text = ""};
  lade_status status = LADE_OK;
  *out = (ladei_ledger_survey){.rows = NULL};
  ladei_ledger_file_init(&file, calls);
  if (!ladei_ledger_file_open(&file, path, false, &fault))
    return ladei_error(fault.is_absent ? LADE_NOT_READY : LADE_ERR_IO, 0, "%s", fault.text);
  size_t bytes = 0;
  bool locked = ladei_ledger_file_lock(&file, path, LADEI_LEDGER_PATIENCE_NS, &fault);
  out->busy = !locked && fault.timed_out;
  if (!locked && !out->busy) status = ladei_error(LADE_ERR_IO, 0, "%s", fault.text);
  if (status == LADE_OK && file.fd >= 0 && !ladei_ledger_file_is_there(&file, path, &bytes, &fault))
    status = ladei_error(LADE_ERR_IO, 0, "%s", fault.text);
  if (status == LADE_OK && (file.fd < 0 || bytes == 0))
    status = ladei_error(LADE_NOT_READY, 0, "%s %s", path, file.fd < 0 ? "was removed" : "is empty");
  if (status == LADE_OK && !ladei_ledger_file_read(&file, path, bytes, 0, &fault))
    status = ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s", fault.text);
  if (status == LADE_OK) status = rows_read(&file, out);
  if (status == LADE_OK && release_dead && out->busy) status = ladei_error(LADE_ERR_BUSY, 0, "%s", fault.text);
  if (status == LADE_OK && release_dead) status = rows_release(&file, path, out);
  if (status == LADE_OK) status = answer_find(out);
  ladei_ledger_file_close(&file);
  if (status != LADE_OK) ladei_ledger_survey_release(out);
  return status;
}

void ladei_ledger_survey_release(ladei_ledger_survey *survey) {
  free(survey->rows);
  survey->rows = NULL;
  survey->count = 0;
}
