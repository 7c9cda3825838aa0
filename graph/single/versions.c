/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of single graphs: candidates, and spent ones.
 *
 * Locks: none; the thread that has the graph's turn.
 */
#include "graph/single/versions.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/for_graphs.h"
#include "lade/graph.h"

lade_status ladei_graph_no_memory(const char *call, size_t bytes) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", call, bytes);
}

/* ---- The end of versions ----------------------------------------------------------------------------------------- */

/* Gives the rest of it back to the driver: NULL fields are gone. Returns the first refusal. */
static lade_status version_destroy(lade_device_allocator *allocator, ladei_graph_version *version) {
  const lade_runtime *runtime = allocator->runtime;
  lade_status status = LADE_OK;
  ladei_lock_assert_none_held();
  if (version->exec != NULL) {
    ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
    status = runtime->ops->graph_exec_destroy(runtime->self, version->exec);
    ladei_capture_mode_restore(allocator->runtime, mode);
    if (status == LADE_OK) version->exec = NULL;
  }
  if (version->native != NULL) {
    lade_status native = runtime->ops->graph_destroy(runtime->self, version->native);
    if (native == LADE_OK) version->native = NULL;
    if (status == LADE_OK) status = native;
  }
  return status;
}

void ladei_graph_version_free(lade_device_allocator *allocator, ladei_graph_version *version) {
  if (version == NULL) return;
  ladei_device_pool_leave(allocator, version->memory);
  free(version);
}

static bool version_is_gone(const ladei_graph_version *version) {
  return version->exec == NULL && version->native == NULL;
}

lade_status ladei_graph_spent_destroy(lade_device_allocator *allocator, ladei_graph_version **spent, bool finished) {
  lade_status result = LADE_OK;
  for (ladei_graph_version **link = spent, *version; (version = *link) != NULL;) {
    lade_status status = version_destroy(allocator, version);
    if (result == LADE_OK) result = status;
    if (version_is_gone(version) && version->hold != NULL && finished && !version->lent) {
      ladei_graph_hold_cancel(version->hold);
      version->hold = NULL;
    }
    bool over = version->hold == NULL || ladei_graph_hold_over(version->hold);
    if (!version_is_gone(version) || !over) {
      link = &version->next;
      continue;
    }
    *link = version->next;
    assert(version->exec == NULL && version->native == NULL); /* the driver has all of it */
    ladei_graph_hold_drop(version->hold);
    ladei_graph_version_free(allocator, version);
  }
  return result;
}

void ladei_graph_spent_forget(lade_device_allocator *allocator, ladei_graph_version **spent) {
  for (ladei_graph_version *version; (version = *spent) != NULL;) {
    *spent = version->next;
    assert(version_is_gone(version));
    ladei_graph_hold_drop(version->hold);
    ladei_graph_version_free(allocator, version);
  }
}

/* ---- Candidates -------------------------------------------------------------------------------------------------- */

lade_status ladei_graph_candidate_make(lade_device_allocator *allocator, const char *call, ladei_graph native,
                                       ladei_graph_session *session, lade_device_pool_id pool,
                                       ladei_graph_candidate *out) {
  bool has_pool = pool.first != 0 || pool.second != 0;
  *out = (ladei_graph_candidate){
      .version = calloc(1, sizeof(ladei_graph_version)), .native = native, .session = session, .has_use = has_pool};
  if (out->version == NULL) return ladei_graph_no_memory(call, sizeof(ladei_graph_version));
  out->version->native = session != NULL ? native : NULL;
  out->version->pool = pool;
  if (has_pool) out->version->memory = ladei_device_pool_visit(allocator, pool);
  lade_status status = allocator->runtime->ops->graph_counts(allocator->runtime->self, native, &out->version->counts);
  if (status != LADE_OK || !has_pool) return status;
  status = ladei_graph_hold_tie(allocator, pool, native, &out->version->hold);
  if (status == LADE_OK) out->has_use = false;
  return status;
}

lade_status ladei_graph_candidate_instantiate(lade_device_allocator *allocator, uint32_t graph_flags,
                                              ladei_graph_candidate *candidate) {
  const lade_runtime *runtime = allocator->runtime;
  unsigned flags = 0;
  ladei_lock_assert_none_held();
  if ((graph_flags & LADE_GRAPH_DEVICE_LAUNCH) != 0) flags |= LADEI_GRAPH_DEVICE_LAUNCH;
  if ((graph_flags & LADE_GRAPH_AUTO_FREE) != 0) flags |= LADEI_GRAPH_AUTO_FREE;
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status =
      runtime->ops->graph_instantiate_with(runtime->self, candidate->native, flags, NULL, &candidate->version->exec);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status;
}

bool ladei_graph_candidate_discard(lade_device_allocator *allocator, ladei_graph_candidate *candidate) {
  const lade_runtime *runtime = allocator->runtime;
  lade_error first;
  ladei_error_save(&first);
  ladei_graph_version *version = candidate->version;
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  if (version != NULL && version->exec != NULL) (void)runtime->ops->graph_exec_destroy(runtime->self, version->exec);
  ladei_capture_mode_restore(allocator->runtime, mode);
  if (candidate->session != NULL) ladei_graph_session_graph_drop(candidate->session, candidate->native);
  if (version != NULL) ladei_graph_hold_cancel(version->hold);
  ladei_graph_version_free(allocator, version);
  ladei_error_restore(&first);
  return candidate->has_use;
}
