/* SPDX-License-Identifier: Apache-2.0 */
/* Ledger; model and invariants in ledger.h. */
#include "device/backends/ledger.h"

#include <assert.h>
#include <utlist.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/native/give_back.h"
#include "device/native/slow_path.h"
#include "device/observe/callbacks.h"
#include "device/observe/oom.h"
#include "device/state/checks.h"

static ladei_device_ledger *ledger_of(lade_device_allocator *allocator) { return allocator->backend_state; }

static ladei_device_record *record_of(ladei_order_node *node) {
  return LADEI_ORDER_RECORD(node, ladei_device_record, order);
}

static ladei_device_record *record_of_ticket(ladei_retire_ticket *ticket) {
  return (ladei_device_record *)(void *)((char *)ticket - offsetof(ladei_device_record, ticket));
}

/* ---- Nested calls ------------------------------------------------------------------------------------------------ */

/*
 * Note [Nested calls]. The source of the pluggable backend is the program's, as its reclaimers are. One that calls the
 * allocator it serves, in the same thread, does so inside of a request or a free that others may be waiting for. So it
 * waits for no other thread: the ledger's list names the calls that are under way, with their threads. Memory goes back
 * inside of a poll of runtime/retire, too, for which a call that waits for all uses waits: so a flush nested in that
 * waits for the device, and polls; and no stream is retired there.
 */
struct ladei_device_nested_call {
  ladei_device_nested_call *next, *prev;
  uint64_t thread;
  uint64_t returns; /* of memory, by this thread since the begin */
  bool nested;      /* in another one of the same thread */
  bool gives;       /* the source gets memory back */
};

/* The lock is held for these three. */
static void nested_call_begin(lade_device_allocator *allocator, ladei_device_nested_call *call, bool gives) {
  ladei_device_ledger *ledger = ledger_of(allocator);
  ladei_lock_assert_held(&allocator->lock);
  *call = (ladei_device_nested_call){.thread = ladei_thread_number(), .gives = gives};
  for (const ladei_device_nested_call *other = ledger->calls; other != NULL; other = other->next)
    if (other->thread == call->thread) call->nested = true;
  DL_APPEND(ledger->calls, call);
}

static void nested_call_end(lade_device_allocator *allocator, ladei_device_nested_call *call) {
  ladei_lock_assert_held(&allocator->lock);
  DL_DELETE(ledger_of(allocator)->calls, call);
}

/* This thread has given memory back, which its own outer calls know. */
static void nested_calls_return(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  for (ladei_device_nested_call *call = ledger_of(allocator)->calls; call != NULL; call = call->next)
    if (call->thread == ladei_thread_number()) call->returns++;
}

/* Whether this thread is inside of a give. */
static bool nested_in_give(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_nested_call *call = ledger_of(allocator)->calls;
  while (call != NULL && !(call->gives && call->thread == ladei_thread_number())) call = call->next;
  ladei_lock_release(&allocator->lock);
  return call != NULL;
}

/* ---- Records: lock held ------------------------------------------------------------------------------------------ */

/* Whether a record may go from one state to another: the steps drawn in ledger.h. */
static bool record_state_follows(ladei_device_record_state from, ladei_device_record_state to) {
  switch (from) {
  case LADEI_DEVICE_RECORD_NEW: return to == LADEI_DEVICE_RECORD_LIVE;
  case LADEI_DEVICE_RECORD_LIVE: return to == LADEI_DEVICE_RECORD_FREED;
  case LADEI_DEVICE_RECORD_FREED:
  case LADEI_DEVICE_RECORD_REFUSED: return to == LADEI_DEVICE_RECORD_GIVING;
  case LADEI_DEVICE_RECORD_GIVING: return to == LADEI_DEVICE_RECORD_REFUSED;
  }
  return false;
}

/* The only way from one state to another. */
static void record_state_set(lade_device_allocator *allocator, ladei_device_record *record,
                             ladei_device_record_state state) {
  ladei_lock_assert_held(&allocator->lock);
  assert(record_state_follows(record->state, state));
  (void)record_state_follows;
  record->state = state;
}

/* The record that an address lies in, any state; NULL if in none. */
static ladei_device_record *record_find(lade_device_allocator *allocator, uint64_t address) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_order_key key = {{address, 0, 0}};
  ladei_device_record *record = record_of(ladei_ordered_set_at_most(&ledger_of(allocator)->by_address, key));
  return record != NULL && address - record->address < record->bytes ? record : NULL;
}

lade_status ladei_device_ledger_lookup(lade_device_allocator *allocator, const void *pointer, bool exact,
                                       const char *call, ladei_device_record **out) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  ladei_device_record *record = record_find(allocator, address);
  if (record == NULL) return ladei_device_pointer_foreign(allocator, call, pointer);

  if (record->state != LADEI_DEVICE_RECORD_LIVE) return ladei_device_pointer_freed(allocator, call, pointer);

  if (exact && record->address != address)
    return ladei_device_pointer_interior(allocator, call, pointer, address - record->address);

  *out = record;
  return LADE_OK;
}

/* Whether any record has a byte of the range. */
static bool range_taken(lade_device_allocator *allocator, uint64_t address, size_t bytes) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_order_key last = {{address + (bytes - 1), 0, 0}};
  const ladei_device_record *record = record_of(ladei_ordered_set_at_most(&ledger_of(allocator)->by_address, last));
  return record != NULL && record->address + record->bytes > address;
}

static void record_insert(lade_device_allocator *allocator, ladei_device_record *record) {
  ladei_lock_assert_held(&allocator->lock);
  record->order.key = (ladei_order_key){{record->address, 0, 0}};
  ladei_ordered_set_insert(&ledger_of(allocator)->by_address, &record->order);
}

/* The memory is handed out. */
static void record_enter(lade_device_allocator *allocator, ladei_device_record *record) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_counters *counters = &allocator->heap.counters;
  record_state_set(allocator, record, LADEI_DEVICE_RECORD_LIVE);
  record->stream_retired = record->stream_noted = false;
  record_insert(allocator, record);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ALLOCATION, false, 1);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ALLOCATED_BYTES, false, record->bytes);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ACTIVE, false, 1);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_ACTIVE_BYTES, false, record->bytes);
  ladei_device_gauges_raise(counters, LADEI_DEVICE_REQUESTED_BYTES, false, record->bytes);
  counters->device_allocs++;
}

/* The source has it back. */
static void record_leave(lade_device_allocator *allocator, ladei_device_record *record) {
  ladei_lock_assert_held(&allocator->lock);
  assert(record->state == LADEI_DEVICE_RECORD_GIVING);
  ladei_device_counters *counters = &allocator->heap.counters;
  ladei_device_gauges_lower(counters, LADEI_DEVICE_ACTIVE, false, 1);
  ladei_device_gauges_lower(counters, LADEI_DEVICE_ACTIVE_BYTES, false, record->bytes);
  ladei_device_gauges_lower(counters, LADEI_DEVICE_REQUESTED_BYTES, false, record->bytes);
  counters->device_frees++;
  ladei_retire_forget(allocator->retire, &record->ticket);
  ladei_slab_free(&ledger_of(allocator)->records, record);
}

static void refused_append(lade_device_allocator *allocator, ladei_device_record *record) {
  ladei_device_ledger *ledger = ledger_of(allocator);
  record_state_set(allocator, record, LADEI_DEVICE_RECORD_REFUSED);
  record->next_refused = NULL;
  *ledger->refused_end = record;
  ledger->refused_end = &record->next_refused;
  atomic_fetch_add_explicit(&ledger->refused_count, 1, memory_order_relaxed);
}

/* ---- Giving back: no lock held ----------------------------------------------------------------------------------- */

/* Between the two, memory of records that this thread offers is on its way: a thread that finds none waits for it.
 * begin: lock held; end: not. */
static void return_begin(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->returns.in_flight++;
}

static void return_end(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  allocator->returns.in_flight--;
  ladei_condition_broadcast(&allocator->returns.changed);
  ladei_lock_release(&allocator->lock);
}

/* Lock held. A refusal that repeats is one line. */
static void refusal_log(const lade_device_allocator *allocator, const ladei_device_record *record, lade_status status) {
  if (status != LADE_NOT_READY)
    ladei_log_later(LADE_LOG_ERROR,
                    "device allocator %p: backend %s does not take back %zu bytes at 0x%llx, which are offered again "
                    "later: %s",
                    (const void *)allocator, allocator->backend->name, record->bytes,
                    (unsigned long long)record->address, lade_last_error()->text);
}

/* Offers a FREED or REFUSED record, which no other thread offers, to the source. */
static lade_status record_give(lade_device_allocator *allocator, ladei_device_record *record, bool idle) {
  ladei_device_ledger *ledger = ledger_of(allocator);
  ladei_lock_acquire(&allocator->lock);
  bool again = record->state == LADEI_DEVICE_RECORD_REFUSED;
  record_state_set(allocator, record, LADEI_DEVICE_RECORD_GIVING);
  ladei_ordered_set_remove(&ledger->by_address, &record->order);
  record->order.key = (ladei_order_key){{(uint64_t)(uintptr_t)record, 0, 0}};
  ladei_ordered_set_insert(&ledger->giving, &record->order);
  ladei_stream stream = record->stream;
  bool retired = record->stream_retired;
  idle = idle || record->stream_noted;
  allocator->returns.in_flight++;
  ladei_device_nested_call call;
  nested_call_begin(allocator, &call, true);
  ladei_lock_release(&allocator->lock);
  void *pointer = (void *)(uintptr_t)record->address;
  lade_status status = ledger->source->give(allocator, pointer, record->bytes, retired ? NULL : &stream, idle);
  ladei_lock_acquire(&allocator->lock);
  nested_call_end(allocator, &call);
  allocator->returns.in_flight--;
  ladei_ordered_set_remove(&ledger->giving, &record->order);
  if (status == LADE_OK) {
    record_leave(allocator, record);
    allocator->returns.count++;
    nested_calls_return(allocator);
  } else {
    if (!again) refusal_log(allocator, record, status);
    record_insert(allocator, record);
    refused_append(allocator, record);
  }
  ladei_condition_broadcast(&allocator->returns.changed);
  ladei_lock_release(&allocator->lock);
  return status;
}

/* Offers what was refused once more; returns the first refusal. */
static lade_status refused_retry(lade_device_allocator *allocator, bool idle, uint64_t *out_given) {
  ladei_device_ledger *ledger = ledger_of(allocator);
  if (atomic_load_explicit(&ledger->refused_count, memory_order_relaxed) == 0) return LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_record *record = ledger->refused;
  ledger->refused = NULL;
  ledger->refused_end = &ledger->refused;
  atomic_store_explicit(&ledger->refused_count, 0, memory_order_relaxed);
  return_begin(allocator);
  ladei_lock_release(&allocator->lock);
  lade_status result = LADE_OK;
  lade_error error;
  ladei_device_record *next;
  for (; record != NULL; record = next) {
    next = record->next_refused;
    lade_status status = record_give(allocator, record, idle);
    *out_given += status == LADE_OK;
    if (status == LADE_OK || result != LADE_OK) continue;
    result = status;
    ladei_error_save(&error);
  }
  return_end(allocator);
  if (result != LADE_OK) ladei_error_restore(&error);
  return result;
}

static void uses_done(void *owner, ladei_retire_ticket *list) {
  lade_device_allocator *allocator = owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;)
    (void)record_give(allocator, record_of_ticket(ticket), false); /* a refusal is tried again */
}

/* Gives back all that needs no wait. Only a lost device or a forked child is an error of the caller's call. */
static lade_status uses_process(lade_device_allocator *allocator, unsigned flags, uint64_t *out_given) {
  lade_error before;
  ladei_error_save(&before);
  uint64_t done = 0;
  lade_status status = ladei_retire_poll(allocator->retire, flags, &done);
  *out_given += done;
  if (status == LADE_ERR_DEVICE_LOST || status == LADE_ERR_FORKED) return status;
  (void)refused_retry(allocator, false, out_given);
  ladei_error_restore(&before);
  return LADE_OK;
}

static lade_status device_wait(lade_device_allocator *allocator) {
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = allocator->runtime->ops->device_synchronize(allocator->runtime->self, allocator->device);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status == LADE_ERR_DEVICE_LOST ? LADE_OK : status; /* nothing runs on it any more */
}

/* The same from within a give. Only a lost device or a forked child is an error of the poll. */
static lade_status flush_nested(lade_device_allocator *allocator) {
  uint64_t given = 0;
  lade_status status = device_wait(allocator);
  if (status == LADE_OK) status = uses_process(allocator, LADEI_POLL_CLOSE, &given);
  return status == LADE_OK ? refused_retry(allocator, true, &given) : status;
}

lade_status ladei_device_ledger_flush(lade_device_allocator *allocator) {
  uint64_t given = 0;
  if (nested_in_give(allocator)) return flush_nested(allocator);
  lade_status waited = ladei_retire_synchronize(allocator->retire);
  if (waited == LADE_NOT_READY) waited = LADE_OK; /* held by graphs, or freed by other threads meanwhile */
  lade_error error;
  if (waited != LADE_OK) ladei_error_save(&error);
  lade_status status = device_wait(allocator);
  if (status == LADE_OK) status = refused_retry(allocator, true, &given);
  if (waited == LADE_OK) return status;
  ladei_error_restore(&error);
  return waited;
}

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

static lade_status budget_check(const lade_device_allocator *allocator, size_t bytes) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t used = ladei_device_gauges_current(&allocator->heap.counters, LADEI_DEVICE_ACTIVE_BYTES) +
                  allocator->limits.growing_bytes;
  if (used + bytes > ladei_device_fraction_limit(allocator))
    return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "the memory fraction is used up");
  if (used + bytes > allocator->limits.max_bytes)
    return ladei_error(LADE_ERR_LIMIT, 0, "the options' max_bytes are used up");
  return LADE_OK;
}

/* Budget and a record for `bytes`. Lock held. */
static lade_status record_begin(lade_device_allocator *allocator, size_t bytes, ladei_device_record **out) {
  ladei_lock_assert_held(&allocator->lock);
  LADEI_TRY(budget_check(allocator, bytes));
  *out = ladei_slab_alloc(&ledger_of(allocator)->records);
  if (*out == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for the record of a block");
  (*out)->state = LADEI_DEVICE_RECORD_NEW;
  allocator->limits.growing_bytes += bytes;
  return LADE_OK;
}

/* The source has answered. Lock held. */
static lade_status record_end(lade_device_allocator *allocator, ladei_device_record *record, lade_status status,
                              void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_ledger *ledger = ledger_of(allocator);
  allocator->limits.growing_bytes -= record->bytes;
  if (status == LADE_OK && range_taken(allocator, (uint64_t)(uintptr_t)pointer, record->bytes)) {
    status = ladei_error(LADE_ERR_INTERNAL, 0, "device allocator: the backend %s gave %p, which is handed out already",
                         allocator->backend->name, pointer);
  }
  if (status == LADE_OK) {
    record->address = (uint64_t)(uintptr_t)pointer;
    record_enter(allocator, record);
  } else {
    ladei_slab_free(&ledger->records, record);
  }
  return status;
}

static lade_status request_take(lade_device_allocator *allocator, size_t bytes, const ladei_stream *stream,
                                void **out) {
  ladei_device_record *record = NULL;
  void *pointer = NULL;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = record_begin(allocator, bytes, &record);
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) return status;
  record->bytes = bytes;
  record->stream = *stream;
  status = ledger_of(allocator)->source->take(allocator, bytes, stream, &pointer);
  ladei_lock_acquire(&allocator->lock);
  status = record_end(allocator, record, status, pointer);
  ladei_lock_release(&allocator->lock);
  if (status == LADE_OK) *out = pointer;
  return status;
}

static bool reclaim(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  bool freed = ladei_device_callbacks_reclaim(allocator);
  ladei_lock_release(&allocator->lock);
  return freed;
}

/* A request on its slow path (slow_path.c): all that may find memory missing for a while only. */
typedef struct ledger_request {
  size_t bytes;
  const ladei_stream *stream;
  ladei_device_nested_call call; /* the request itself, for what is nested in it */
  void **out;
} ledger_request;

/* Whether memory has come back, by other calls than those of this request, since it was asked the last time. */
static bool returns_seen(lade_device_allocator *allocator, const ledger_request *request, uint64_t *seen) {
  uint64_t now = allocator->returns.count - request->call.returns;
  bool more = now != *seen;
  *seen = now;
  return more;
}

/* `step` beside others; *out_beside: others took or gave meanwhile. A step that is nested in a slow path belongs to
 * it. */
static lade_status request_slow_path(lade_device_allocator *allocator, ledger_request *request,
                                     lade_status (*step)(lade_device_allocator *allocator, ledger_request *request),
                                     bool *out_beside) {
  ladei_device_slow_path entry;
  uint64_t seen = 0;
  bool nested = request->call.nested;
  ladei_lock_acquire(&allocator->lock);
  if (!nested) ladei_device_slow_path_begin(allocator, &entry);
  bool beside = allocator->returns.in_flight > 0;
  (void)returns_seen(allocator, request, &seen);
  ladei_lock_release(&allocator->lock);
  lade_status status = step(allocator, request);
  ladei_lock_acquire(&allocator->lock);
  if (!nested && ladei_device_slow_path_end(allocator, &entry)) beside = true;
  if (returns_seen(allocator, request, &seen) || allocator->returns.in_flight > 0) beside = true;
  ladei_lock_release(&allocator->lock);
  *out_beside = beside && !nested;
  return status;
}

static lade_status step_take(lade_device_allocator *allocator, ledger_request *request) {
  return request_take(allocator, request->bytes, request->stream, request->out);
}

/* Everything that is freed is waited for and given back. */
static lade_status step_flush(lade_device_allocator *allocator, ledger_request *request) {
  lade_status flushed = allocator->backend->empty_cache(allocator);
  if (flushed == LADE_ERR_DEVICE_LOST) return flushed;
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.counters.alloc_retries++;
  ladei_log_later(LADE_LOG_DEBUG, "device allocator %p: %zu bytes: no memory, the cache was given back",
                  (void *)allocator, request->bytes);
  ladei_lock_release(&allocator->lock);
  return request_take(allocator, request->bytes, request->stream, request->out);
}

/* While no other thread takes, and as often as one still gives. */
static lade_status request_alone(lade_device_allocator *allocator, ledger_request *request) {
  lade_status status;
  uint64_t seen = 0;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_slow_path_begin_alone(allocator);
  bool again;
  do {
    (void)returns_seen(allocator, request, &seen);
    ladei_lock_release(&allocator->lock);
    status = step_flush(allocator, request);
    ladei_lock_acquire(&allocator->lock);
    ladei_device_await_idle(allocator);
    again = ladei_device_is_exhausted(status) && returns_seen(allocator, request, &seen);
  } while (again);
  ladei_device_slow_path_end_alone(allocator);
  ladei_lock_release(&allocator->lock);
  return status;
}

/* Memory ran out: what is finished goes back, and the program's reclaimers are asked, outside of the slow path; then
 * everything is waited for; then again, alone, after other threads moved memory meanwhile. */
static lade_status request_retry(lade_device_allocator *allocator, ledger_request *request, lade_status status) {
  uint64_t given = 0;
  bool beside = false;
  lade_status processed = uses_process(allocator, LADEI_POLL_CLOSE, &given);
  if (processed != LADE_OK) return processed;
  bool reclaimed = reclaim(allocator);
  if (given > 0 || reclaimed) status = request_slow_path(allocator, request, step_take, &beside);
  if (ladei_device_is_exhausted(status)) status = request_slow_path(allocator, request, step_flush, &beside);
  if (ladei_device_is_exhausted(status) && beside) status = request_alone(allocator, request);
  return status;
}

static lade_status request_refused(lade_device_allocator *allocator, size_t bytes, lade_status status) {
  ladei_device_request request = {.requested = bytes, .rounded = bytes, .segment_bytes = bytes};
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.counters.ooms++;
  ladei_lock_release(&allocator->lock);
  return ladei_device_report_exhausted(allocator, &request, status);
}

static lade_status request_serve(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  ladei_stream resolved;
  lade_status status = ladei_device_stream_resolve(allocator, stream, &resolved);
  uint64_t given = 0;
  /* Every request may make the source grow, so batches are closed as by a search that misses in the native backend. */
  if (status == LADE_OK) status = uses_process(allocator, LADEI_POLL_CLOSE, &given);
  if (status != LADE_OK) return status;
  bool beside;
  lade_error before;
  ladei_error_save(&before);
  ledger_request request = {.bytes = bytes, .stream = &resolved, .out = out};
  ladei_lock_acquire(&allocator->lock);
  nested_call_begin(allocator, &request.call, false);
  ladei_lock_release(&allocator->lock);
  status = request_slow_path(allocator, &request, step_take, &beside);
  if (ladei_device_is_exhausted(status)) status = request_retry(allocator, &request, status);
  ladei_lock_acquire(&allocator->lock);
  nested_call_end(allocator, &request.call);
  ladei_lock_release(&allocator->lock);
  if (status == LADE_OK) ladei_error_restore(&before);
  return ladei_device_is_exhausted(status) ? request_refused(allocator, bytes, status) : status;
}

lade_status ladei_device_ledger_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = request_serve(allocator, bytes, stream, out);
  ladei_log_flush();
  ladei_cancellation_resume(cancellation);
  return status;
}

/* ---- Free, record ------------------------------------------------------------------------------------------------ */

static lade_status block_free(lade_device_allocator *allocator, void *pointer) {
  ladei_device_record *record = NULL;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_ledger_lookup(allocator, pointer, true, "lade_device_free", &record);
  if (status == LADE_OK) {
    record_state_set(allocator, record, LADEI_DEVICE_RECORD_FREED);
    ladei_device_gauges_lower(&allocator->heap.counters, LADEI_DEVICE_ALLOCATION, false, 1);
    ladei_device_gauges_lower(&allocator->heap.counters, LADEI_DEVICE_ALLOCATED_BYTES, false, record->bytes);
    return_begin(allocator);
  }
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) return status;
  if (!ladei_retire_ticket_noted(&record->ticket) || !ladei_retire_add(allocator->retire, &record->ticket, false))
    LADEI_ASIDE((void)record_give(allocator, record, false)); /* a refusal is tried again */
  return_end(allocator);
  return LADE_OK;
}

lade_status ladei_device_ledger_free(lade_device_allocator *allocator, void *pointer) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = block_free(allocator, pointer);
  ladei_log_flush();
  ladei_cancellation_resume(cancellation);
  return status;
}

static bool streams_equal(const ladei_stream *a, const ladei_stream *b) {
  return a->context == b->context && a->id == b->id;
}

lade_status ladei_device_ledger_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream) {
  ladei_stream use;
  LADEI_TRY(allocator->runtime->ops->stream_resolve(allocator->runtime->self, stream, &use));
  ladei_device_record *record = NULL;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_ledger_lookup(allocator, pointer, false, "lade_device_record_stream", &record);
  bool own = status == LADE_OK && streams_equal(&record->stream, &use);
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK || own) return status;
  return ladei_retire_note_resolved(allocator->retire, &record->ticket, &use, 0);
}

/*
 * Notes the stream's own uses of its live blocks, so that they are waited for like those of other streams. Under one
 * hold of the lock: a free sees a mark and its note, or neither. Such a note makes no driver call.
 */
static lade_status own_uses_note(lade_device_allocator *allocator, const ladei_stream *stream) {
  ladei_lock_assert_held(&allocator->lock);
  assert(stream->kind == LADEI_STREAM_ORDINARY);
  ladei_order_node *node = ladei_ordered_set_first(&ledger_of(allocator)->by_address);
  for (; node != NULL; node = ladei_order_next(node)) {
    ladei_device_record *record = record_of(node);
    if (record->state != LADEI_DEVICE_RECORD_LIVE || record->stream_noted || !streams_equal(&record->stream, stream))
      continue;
    LADEI_TRY(ladei_retire_note_resolved(allocator->retire, &record->ticket, stream, LADEI_NOTE_PLAIN));
    record->stream_noted = true;
  }
  return LADE_OK;
}

/* Marks the stream's records of a set; how many there are. Lock held. */
static size_t records_mark(const lade_device_allocator *allocator, const ladei_ordered_set *set,
                           const ladei_stream *stream) {
  ladei_lock_assert_held(&allocator->lock);
  size_t count = 0;
  for (ladei_order_node *node = ladei_ordered_set_first(set); node != NULL; node = ladei_order_next(node)) {
    ladei_device_record *record = record_of(node);
    if (!streams_equal(&record->stream, stream)) continue;
    record->stream_retired = true;
    count++;
  }
  return count;
}

lade_status ladei_device_ledger_stream_retire(lade_device_allocator *allocator, lade_stream stream) {
  ladei_stream resolved;
  if (nested_in_give(allocator))
    return ladei_error(LADE_ERR_BUSY, 0,
                       "lade_device_stream_retire: called by a free of backend %s, which it waits for",
                       allocator->backend->name);
  LADEI_TRY(allocator->runtime->ops->stream_resolve(allocator->runtime->self, stream, &resolved));
  if (resolved.kind != LADEI_STREAM_ORDINARY) return ladei_retire_stream_retire(allocator->retire, stream);
  ladei_lock_acquire(&allocator->lock);
  lade_status status = own_uses_note(allocator, &resolved);
  ladei_lock_release(&allocator->lock);
  if (status == LADE_OK) status = ladei_retire_stream_retire(allocator->retire, stream);
  if (status != LADE_OK) return status;
  ladei_lock_acquire(&allocator->lock);
  (void)records_mark(allocator, &ledger_of(allocator)->by_address, &resolved);
  while (records_mark(allocator, &ledger_of(allocator)->giving, &resolved) > 0) /* L4 */
    ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
  ladei_lock_release(&allocator->lock);
  return LADE_OK;
}

void ladei_device_ledger_stats_complete(lade_device_stats *stats) {
  lade_device_gauges *const gauges[] = {&stats->allocation, &stats->allocated_bytes, &stats->active,
                                        &stats->active_bytes, &stats->requested_bytes};
  for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++)
    gauges[i]->small_pool = gauges[i]->large_pool = (lade_device_gauge){0, 0, 0, 0};
}

/* ---- Open, close, check ------------------------------------------------------------------------------------------ */

lade_status ladei_device_ledger_open(lade_device_allocator *allocator, const ladei_device_ledger_source *source,
                                     uint32_t event_batch) {
  ladei_device_ledger *ledger = ledger_of(allocator);
  ledger->source = source;
  ladei_slab_init(&ledger->records, sizeof(ladei_device_record));
  ledger->refused_end = &ledger->refused;
  ladei_retire_options retire = {.owner = allocator, .done = uses_done, .event_batch = event_batch};
  return ladei_retire_create(allocator->runtime, &retire, &allocator->retire);
}

lade_status ladei_device_ledger_close(lade_device_allocator *allocator, bool wait) {
  ladei_device_ledger *ledger = ledger_of(allocator);
  if (allocator->retire == NULL) return LADE_OK; /* closed by an earlier call, which failed later on */
  uint64_t given = 0;
  lade_status status = wait ? ladei_device_ledger_flush(allocator) : uses_process(allocator, LADEI_POLL_CLOSE, &given);
  if (status == LADE_ERR_DEVICE_LOST) status = refused_retry(allocator, true, &given);
  if (ladei_device_active_count(allocator) > 0)
    return status != LADE_OK ? status : ladei_device_check_active(allocator);
  status = ladei_retire_destroy(allocator->retire, wait);
  if (status != LADE_OK) return status;
  allocator->retire = NULL;
  ladei_slab_destroy(&ledger->records);
  return LADE_OK;
}

static const char *ledger_recount(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_ledger *ledger = ledger_of(allocator);
  const ladei_device_counters *counters = &allocator->heap.counters;
  uint64_t live = 0, live_bytes = 0, active_bytes = 0, end = 0;
  size_t refused = 0;
  if (!ladei_ordered_set_check(&ledger->by_address)) return "L1 order of records";
  for (ladei_order_node *node = ladei_ordered_set_first(&ledger->by_address); node != NULL;
       node = ladei_order_next(node)) {
    const ladei_device_record *record = record_of(node);
    if (record->address < end) return "L1 ranges do not overlap";
    end = record->address + record->bytes;
    active_bytes += record->bytes;
    if (record->state != LADEI_DEVICE_RECORD_LIVE) continue;
    live++;
    live_bytes += record->bytes;
  }
  for (ladei_order_node *node = ladei_ordered_set_first(&ledger->giving); node != NULL; node = ladei_order_next(node))
    active_bytes += record_of(node)->bytes;
  for (const ladei_device_record *record = ledger->refused; record != NULL; record = record->next_refused) {
    if (record->state != LADEI_DEVICE_RECORD_REFUSED) return "L3 state of a refused record";
    refused++;
  }
  if (refused != atomic_load(&ledger->refused_count)) return "L3 number of refused records";
  if (ladei_device_gauges_current(counters, LADEI_DEVICE_ALLOCATION) != live ||
      ladei_device_gauges_current(counters, LADEI_DEVICE_ALLOCATED_BYTES) != live_bytes)
    return "L2 allocation";
  if (ladei_device_gauges_current(counters, LADEI_DEVICE_ACTIVE) != ledger->by_address.count + ledger->giving.count ||
      ladei_device_gauges_current(counters, LADEI_DEVICE_ACTIVE_BYTES) != active_bytes ||
      ladei_device_gauges_current(counters, LADEI_DEVICE_REQUESTED_BYTES) != active_bytes)
    return "L2 active";
  return NULL;
}

lade_status ladei_device_ledger_check(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  const char *broken = ledger_recount(allocator);
  ladei_lock_release(&allocator->lock);
  if (broken == NULL) return LADE_OK;
  return ladei_error(LADE_ERR_INTERNAL, 0, "device allocator of device %d: broken invariant %s", allocator->device,
                     broken);
}
