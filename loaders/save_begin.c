/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves that go on by themselves.
 *
 *   begin            checks, files, transfers submitted     the caller's thread
 *   STAGING          host tensors written, copies awaited   a thread of the save; on virtual time the calls that wait
 *   STAGED           files completed and named              the same
 *   ENDING           nothing is begun on the tickets any more; calls on them end, then they are released
 *   ENDED            the outcome is known                   -
 *
 * The transfers go through a pipeline of the save's own for each target, whose blocks are the stage: a ring copies as long as it has
 * blocks, so copies run ahead of the writes by options.stage_bytes, and in step with them from then on. The blocks come from the
 * pool of the target's pipeline, and are in its cache for the next save.
 *
 * I1  The state only grows. It changes under the lock, by one thread alone.
 * I2  Before ENDING the tickets stay as they are: other threads may wait for them, counted in `calls`, and cancel them.
 * I3  From ENDED on nothing of the caller's is used, and no ticket, file or pipeline is left. A pipeline that cannot be destroyed
 *     is tried again by lade_save_destroy().
 * I4  What the caller lends is copied by begin, or not used after it: path, tensors, targets. Names, shapes and metadata are in
 *     the files by then.
 * Locks: save->lock guards state, calls and outcome. No call of a pipeline is made under it.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/size.h"
#include "base/thread.h"
#include "loaders/save.h"
#include "pipeline/state/state.h"
#include "sources/url.h"

/* The length of a copy, and of a block of the stage. A stage has two blocks at least. */
enum { STAGE_CHUNK = 8 << 20, STAGE_CHUNK_MOST = 16 << 20, STAGE_CHUNK_LEAST = 4096, STAGE_BLOCKS_MOST = 1024 };
enum { TRANSFERS_MOST = 1 << 20 };

typedef enum save_state { STAGING, STAGED, ENDING, ENDED } save_state;

struct lade_save {
  ladei_loader_save work; /* of the thread that works: I1 */
  ladei_process owner;
  lade_load_target *targets; /* with pipelines of its own; NULL: not made */
  lade_tensor *tensors;
  char *path;
  lade_runtime *runtime; /* NULL: no target */
  bool waits_work;       /* virtual time: no thread */
  pthread_t thread;
  ladei_lock lock;
  ladei_condition changed;
  save_state state;
  unsigned calls;
  lade_error outcome;
};

static const char call[] = "lade_safetensors_save_begin";

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory"); }

/* --- the stage ---------------------------------------------------------------------------------------------------- */

/* A target's part of the stage, at most: as the caller says, or half of the pool's cap. */
static lade_status stage_most(const ladei_loader_save *work, lade_pinned_pool *pool, uint64_t *out_bytes) {
  lade_pinned_options settings;
  lade_pinned_options_init(&settings);
  lade_status status = lade_pinned_settings_get(pool, &settings);
  *out_bytes =
      (work->options.stage_bytes != 0 ? work->options.stage_bytes : settings.max_bytes / 2) / work->target_count;
  return status;
}

/* Of a pipeline with a block for each chunk, if `most` bytes are enough: the last chunk of a transfer is a short one. */
static lade_pipeline_options stage_options(const ladei_loader_save *work, const lade_pipeline *like, uint64_t most) {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  uint64_t bytes = work->device_bytes < most ? work->device_bytes : most, chunk = STAGE_CHUNK_LEAST;
  while (chunk < STAGE_CHUNK && 4 * chunk <= bytes) chunk *= 2;
  if (bytes / chunk + work->shard_count >= STAGE_BLOCKS_MOST) chunk = STAGE_CHUNK_MOST;
  uint64_t blocks = ladei_size_min((size_t)(most / chunk), (size_t)(bytes / chunk + 1 + work->shard_count));
  options.device = like->options.device;
  options.chunk_bytes = chunk;
  options.depth = blocks < 2 ? 2 : blocks < STAGE_BLOCKS_MOST ? (uint32_t)blocks : STAGE_BLOCKS_MOST;
  options.max_transfers = TRANSFERS_MOST;
  options.storage = like->options.storage == LADE_STORAGE_CUFILE ? LADE_STORAGE_AUTO : like->options.storage;
  options.storage_latency_ns = like->options.storage_latency_ns;
  options.storage_bytes_per_s = like->options.storage_bytes_per_s;
  options.storage_total_bytes_per_s = like->options.storage_total_bytes_per_s;
  options.local_ranks = like->options.local_ranks;
  options.url_connect_ms = like->options.url_connect_ms;
  options.url_stall_s = like->options.url_stall_s;
  options.url_attempts = like->options.url_attempts;
  options.url_requests = like->options.url_requests;
  return options;
}

/* To objects: save_remote.c has blocks of its own. */
static bool is_remote(const ladei_loader_save *work) { return ladei_source_url_is(work->path); }

static lade_status pipelines_create(lade_save *save) {
  ladei_loader_save *work = &save->work;
  lade_status status = LADE_OK;
  if (work->target_count == 0) return LADE_OK;
  save->targets = calloc(work->target_count, sizeof *save->targets);
  if (save->targets == NULL) return memory_error();
  for (uint64_t i = 0; i < work->target_count && status == LADE_OK; i++) {
    const lade_pipeline *like = work->targets[i].pipeline;
    uint64_t most = 0;
    status = stage_most(work, like->pool, &most);
    if (is_remote(work) && most > 2 * (uint64_t)STAGE_CHUNK) most = 2 * (uint64_t)STAGE_CHUNK;
    lade_pipeline_options options = stage_options(work, like, most);
    if (status == LADE_OK)
      status = lade_pipeline_create(like->runtime, like->pool, &options, &save->targets[i].pipeline);
    save->targets[i].stream = work->targets[i].stream;
  }
  return status;
}

/* The first error; what failed stays for another try. */
static lade_status pipelines_destroy(lade_save *save) {
  lade_status status = LADE_OK;
  for (uint64_t i = 0; save->targets != NULL && i < save->work.target_count; i++) {
    lade_status destroyed = lade_pipeline_destroy(save->targets[i].pipeline, true);
    if (destroyed == LADE_OK) save->targets[i].pipeline = NULL;
    status = status == LADE_OK ? destroyed : status;
  }
  return status;
}

/* --- the work ----------------------------------------------------------------------------------------------------- */

static void state_set(lade_save *save, save_state state) {
  ladei_lock_assert_held(&save->lock);
  assert(state > save->state && "I1");
  save->state = state;
  ladei_condition_broadcast(&save->changed);
}

/* With the lock, which is released meanwhile. */
static void work_end(lade_save *save, lade_status status) {
  ladei_lock_assert_held(&save->lock);
  state_set(save, ENDING);
  while (save->calls > 0) ladei_condition_wait(&save->changed, &save->lock); /* I2 */
  ladei_lock_release(&save->lock);
  if (status != LADE_OK) ladei_error_save(&save->outcome);
  save->outcome.status = status;
  ladei_loader_save_dispose(&save->work, status == LADE_OK);
  (void)pipelines_destroy(save);
  ladei_lock_acquire(&save->lock);
  state_set(save, ENDED);
}

/* Both are given the lock, which is released meanwhile, by the thread that works. LADE_ERR_TIMEOUT, with a limit or on virtual
 * time: nothing has changed. */
static lade_status stage(lade_save *save, uint64_t timeout_ns) {
  ladei_lock_assert_held(&save->lock);
  ladei_lock_release(&save->lock);
  lade_status status = ladei_loader_save_stage(&save->work, timeout_ns);
  ladei_lock_acquire(&save->lock);
  if (status == LADE_OK)
    state_set(save, STAGED);
  else if (status != LADE_ERR_TIMEOUT)
    work_end(save, status);
  return status;
}

static lade_status commit(lade_save *save, uint64_t timeout_ns) {
  ladei_lock_assert_held(&save->lock);
  ladei_lock_release(&save->lock);
  const ladei_loader_ticket_list *tickets = &save->work.tickets;
  lade_status status =
      save->waits_work ? ladei_loader_ticket_list_wait(tickets, 0, tickets->count, save->runtime, timeout_ns) : LADE_OK;
  if (status == LADE_OK) status = ladei_loader_save_commit(&save->work);
  ladei_lock_acquire(&save->lock);
  if (status != LADE_ERR_TIMEOUT) work_end(save, status);
  return status;
}

static void *thread_main(void *argument) {
  lade_save *save = argument;
  ladei_lock_acquire(&save->lock);
  if (stage(save, LADE_WAIT_FOREVER) == LADE_OK) (void)commit(save, LADE_WAIT_FOREVER);
  assert(save->state == ENDED);
  ladei_lock_release(&save->lock);
  return NULL;
}

/* --- beginning ---------------------------------------------------------------------------------------------------- */

/* A copy of `count` elements; *failed without memory. NULL stays NULL. */
static void *copy_of(const void *list, uint64_t count, size_t bytes, bool *failed) {
  size_t all;
  if (list == NULL || count == 0) return NULL;
  void *copy = ladei_size_mul(count, bytes, &all) ? malloc(all) : NULL;
  if (copy != NULL) memcpy(copy, list, all);
  *failed = *failed || copy == NULL;
  return copy;
}

/* I4 */
static lade_status inputs_copy(lade_save *save, const ladei_loader_save *given) {
  bool failed = false;
  save->path = copy_of(given->path, given->path != NULL ? strlen(given->path) + 1 : 0, 1, &failed);
  save->tensors = copy_of(given->tensors, given->tensor_count, sizeof *save->tensors, &failed);
  save->work = *given;
  save->work.path = save->path;
  save->work.tensors = save->tensors;
  return failed ? memory_error() : LADE_OK;
}

static lade_status work_begin(lade_save *save) {
  ladei_loader_save *work = &save->work;
  lade_status status = pipelines_create(save);
  work->targets = save->targets; /* with the save's own pipelines from here on */
  save->runtime = work->target_count > 0 && status == LADE_OK ? save->targets[0].pipeline->runtime : NULL;
  save->waits_work = save->runtime != NULL && save->runtime->ops->step != NULL;
  if (status == LADE_OK) status = ladei_loader_save_begin(work);
  if (status != LADE_OK || save->waits_work) return status;
  int code = ladei_thread_start(&save->thread, thread_main, save);
  return code == 0 ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, code, "save: no thread can be started");
}

static void save_free(lade_save *save) {
  ladei_condition_destroy(&save->changed);
  ladei_process_release(&save->owner);
  free(save->targets);
  free(save->tensors);
  free(save->path);
  free(save);
}

static void begin_undo(lade_save *save) {
  lade_error error;
  ladei_error_save(&error);
  ladei_loader_save_dispose(&save->work, false);
  (void)pipelines_destroy(save);
  save_free(save);
  ladei_error_restore(&error);
}

static lade_status save_begin(const ladei_loader_save *given, const lade_save_options *options, lade_save **out) {
  lade_save *save = calloc(1, sizeof *save);
  if (save == NULL) return memory_error();
  ladei_lock_init(&save->lock, LADEI_RANK_LOADER);
  ladei_condition_init(&save->changed);
  ladei_process_take(&save->owner);
  lade_status status = inputs_copy(save, given);
  if (status == LADE_OK) status = ladei_loader_save_plan(&save->work, options);
  if (status == LADE_OK) status = work_begin(save);
  if (status == LADE_OK)
    *out = save;
  else
    begin_undo(save);
  return status;
}

lade_status lade_safetensors_save_begin(const char *path, const lade_load_target *targets, uint64_t target_count,
                                        const lade_tensor *tensors, uint64_t tensor_count,
                                        const lade_save_options *options, lade_save **out) {
  if (out == NULL) return ladei_error_null(call, "out");
  ladei_loader_save given = {.call = call,
                             .path = path,
                             .targets = targets,
                             .target_count = target_count,
                             .tensors = tensors,
                             .tensor_count = tensor_count,
                             .stages = true,
                             .folder = -1};
  return LADEI_UNCANCELLED(save_begin(&given, options, out));
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static lade_status save_check(const lade_save *save, const char *of) {
  if (save == NULL) return ladei_error_null(of, "save");
  return ladei_process_is_own(&save->owner) ? LADE_OK
                                            : ladei_error(LADE_ERR_FORKED, 0, "%s: the save belongs to the parent", of);
}

static bool is_reached(const lade_save *save, lade_save_mark mark) {
  return save->state == ENDED || (save->state == STAGED && mark == LADE_SAVE_STAGED);
}

static lade_status outcome_of(const lade_save *save) {
  if (save->state == ENDED && save->outcome.status != LADE_OK) ladei_error_restore(&save->outcome);
  return save->state == ENDED ? save->outcome.status : LADE_OK;
}

static uint64_t now_ns(const lade_save *save) {
  return save->waits_work ? lade_runtime_now_ns(save->runtime) : ladei_clock_ns(CLOCK_MONOTONIC);
}

/* Lets some time pass, or works; `left_ns` at most. */
static lade_status wait_once(lade_save *save, uint64_t left_ns) {
  if (save->waits_work) return save->state == STAGING ? stage(save, left_ns) : commit(save, left_ns);
  if (left_ns == LADE_WAIT_FOREVER)
    ladei_condition_wait(&save->changed, &save->lock);
  else
    (void)ladei_condition_wait_for(&save->changed, &save->lock, left_ns);
  return LADE_OK;
}

static void save_wait_locked(lade_save *save, lade_save_mark mark, uint64_t timeout_ns) {
  ladei_lock_assert_held(&save->lock);
  uint64_t begun_ns = now_ns(save), spent_ns = 0;
  lade_status status = LADE_OK;
  while (!is_reached(save, mark) && status != LADE_ERR_TIMEOUT && spent_ns < timeout_ns) {
    status = wait_once(save, timeout_ns == LADE_WAIT_FOREVER ? timeout_ns : timeout_ns - spent_ns);
    spent_ns = now_ns(save) - begun_ns;
  }
}

lade_status lade_save_wait(lade_save *save, lade_save_mark mark, uint64_t timeout_ns) {
  LADEI_TRY(save_check(save, "lade_save_wait"));
  if (mark != LADE_SAVE_STAGED && mark != LADE_SAVE_DURABLE)
    return ladei_error_argument("lade_save_wait", "mark", "a lade_save_mark", "%d", (int)mark);
  int cancellation = ladei_cancellation_hold();
  ladei_lock_acquire(&save->lock);
  save_wait_locked(save, mark, timeout_ns);
  lade_status status =
      is_reached(save, mark)
          ? outcome_of(save)
          : ladei_error(LADE_ERR_TIMEOUT, 0, "save of %llu bytes: not %s in the time to wait",
                        (unsigned long long)save->work.bytes, mark == LADE_SAVE_STAGED ? "staged" : "durable");
  ladei_lock_release(&save->lock);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* Calls `each` for the tickets, unless the save has ended; its first error. */
static lade_status tickets_each(lade_save *save, lade_status (*each)(lade_stream stream, lade_ticket *ticket),
                                lade_stream stream) {
  ladei_lock_acquire(&save->lock);
  while (save->state == ENDING) ladei_condition_wait(&save->changed, &save->lock);
  bool ended = save->state == ENDED;
  lade_status status = outcome_of(save);
  save->calls += ended ? 0 : 1;
  ladei_lock_release(&save->lock);
  if (ended) return status;
  for (size_t i = 0; i < save->work.tickets.count && status == LADE_OK; i++)
    status = each(stream, save->work.tickets.tickets[i]);
  ladei_lock_acquire(&save->lock);
  if (--save->calls == 0) ladei_condition_broadcast(&save->changed); /* I2 */
  ladei_lock_release(&save->lock);
  return status;
}

lade_status lade_stream_wait_save(lade_stream stream, lade_save *save) {
  LADEI_TRY(save_check(save, "lade_stream_wait_save"));
  if (!is_remote(&save->work)) return tickets_each(save, lade_stream_wait_ticket, stream);
  return lade_save_wait(save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER); /* the copies are begun one after the other */
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

static lade_status ticket_cancel(lade_stream stream, lade_ticket *ticket) {
  (void)stream;
  return lade_ticket_cancel(ticket);
}

/* Waits for the end, as a call or for the thread. LADE_ERR_TIMEOUT: it cannot come ("sim"). */
static lade_status end_wait(lade_save *save) {
  ladei_lock_acquire(&save->lock);
  save_wait_locked(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER);
  bool ended = save->state == ENDED;
  ladei_lock_release(&save->lock);
  return ended ? LADE_OK : ladei_error(LADE_ERR_TIMEOUT, 0, "save: its transfers can never end");
}

static lade_status save_destroy(lade_save *save, bool cancel) {
  if (cancel) {
    atomic_store_explicit(&save->work.cancelled, true, memory_order_relaxed);
    (void)tickets_each(save, ticket_cancel, NULL);
  }
  lade_status status = end_wait(save);
  if (status == LADE_OK) status = pipelines_destroy(save); /* I3 */
  if (status != LADE_OK) return status;
  if (!save->waits_work) pthread_join(save->thread, NULL);
  save_free(save);
  return LADE_OK;
}

lade_status lade_save_destroy(lade_save *save, bool cancel) {
  if (save == NULL) return LADE_OK;
  LADEI_TRY(save_check(save, "lade_save_destroy"));
  return LADEI_UNCANCELLED(save_destroy(save, cancel));
}
