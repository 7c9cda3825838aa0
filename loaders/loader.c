/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loader: a few slots, each with device memory, through which the batches go in order.
 *
 *                 next, return, create            next                    next                      return
 *   EMPTY, PLANNED ------------> FILLING -> STAGED ------> WAITING -> OUT ---------> RETURNING -> FILLING ...
 *                                   |                         |                          |
 *                plan is over, or   |   the transfer failed   |   the use could not      |
 *                failed: EMPTY      |   PLANNED               |   be recorded            |
 *                submit failed:     |   the wait failed       |   OUT                    |
 *                PLANNED          <-'   STAGED              <-'                        <-'
 *
 * FILLING plans a batch (unless it is planned) and submits its transfer; with skip_unreadable it also leaves out
 * unreadable records. WAITING lets the consumer's stream wait for the transfer. RETURNING records that stream, after
 * whose work the next transfer into the slot runs. These three are *busy*: a thread works on the slot without the lock.
 *
 * The next batch of a slot is read while the consumer's stream still works on the one before; only its copies wait, for
 * an event that the pipeline records on that stream when the batch comes back.
 *
 * Device memory comes from the allocator, on the stream that the options name, whose work so far a transfer into a new
 * block waits for; or on one of the loader's own, on which nothing ever runs. A slot keeps its block as long as its
 * batches fit and arrive. A failed transfer may have waited for no stream, whose work still uses the block then, and
 * the stream may be gone when the batch is tried again: so the block goes back to the allocator, which knows its
 * streams.
 *
 * I1  The slots that are not EMPTY hold batches next_number .. cursor.batches - 1, each once, and those that are OUT.
 * I2  One thread works on a busy slot, without the lock; other threads look only at its state and its batch's number
 *     and count. So these three change only with the lock held.
 * I3  A slot that is EMPTY or PLANNED has no ticket, one that is STAGED or OUT has one.
 * I4  Slots go from state to state as slot_may_become says; slot_set alone changes them.
 * Locks: loader->lock guards states, numbers, cursor, next_number, counters and skips. No call of pipeline, allocator
 * or runtime is made under it. A child of fork() takes it never: a thread of the parent may have held it.
 */
#include "loaders/loader.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"

static uint64_t now_ns(const lade_loader *loader) { return lade_runtime_now_ns(loader->runtime); }

static ladei_loader_slot *slots_end(lade_loader *loader) { return loader->slots + loader->plan.options.prefetch; }

static bool is_busy(ladei_loader_slot_state state) {
  return state == LADEI_LOADER_SLOT_FILLING || state == LADEI_LOADER_SLOT_WAITING ||
         state == LADEI_LOADER_SLOT_RETURNING;
}

/* I4. */
static inline __attribute__((unused)) bool slot_may_become(ladei_loader_slot_state from, ladei_loader_slot_state to) {
#define SLOT_BIT(name) (1u << LADEI_LOADER_SLOT_##name)
  static const unsigned next[] = {
      [LADEI_LOADER_SLOT_EMPTY] = SLOT_BIT(FILLING),
      [LADEI_LOADER_SLOT_PLANNED] = SLOT_BIT(FILLING),
      [LADEI_LOADER_SLOT_FILLING] = SLOT_BIT(EMPTY) | SLOT_BIT(PLANNED) | SLOT_BIT(STAGED),
      [LADEI_LOADER_SLOT_STAGED] = SLOT_BIT(WAITING) | SLOT_BIT(PLANNED), /* the latter: destroyed */
      [LADEI_LOADER_SLOT_WAITING] = SLOT_BIT(OUT) | SLOT_BIT(STAGED) | SLOT_BIT(PLANNED),
      [LADEI_LOADER_SLOT_OUT] = SLOT_BIT(RETURNING),
      [LADEI_LOADER_SLOT_RETURNING] = SLOT_BIT(FILLING) | SLOT_BIT(OUT),
  };
#undef SLOT_BIT
  return (next[from] >> to & 1u) != 0;
}

/* I3, of a slot that comes into a state. */
static bool slot_ticket_fits(const ladei_loader_slot *s, ladei_loader_slot_state state) {
  return is_busy(state) || (s->ticket != NULL) == (state == LADEI_LOADER_SLOT_STAGED || state == LADEI_LOADER_SLOT_OUT);
}

static lade_status slot_wrong(const ladei_loader_slot *s, const char *what) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "loader: the slot of batch %llu, in state %d: %s",
                     (unsigned long long)s->batch.number, (int)s->state, what);
}

/* One slot. Adds the batch to come that it holds to `*held`, by its number from next_number on. */
static lade_status slot_check(const lade_loader *loader, const ladei_loader_slot *s, uint64_t *held) {
  bool is_out = s->state == LADEI_LOADER_SLOT_OUT || s->state == LADEI_LOADER_SLOT_RETURNING;
  bool has_batch = s->state != LADEI_LOADER_SLOT_EMPTY && s->batch.count > 0;
  bool to_come = has_batch && s->batch.number >= loader->next_number;
  if (!slot_ticket_fits(s, s->state)) return slot_wrong(s, "I3: it has a ticket, or has none, against its state");
  if (!is_busy(s->state) && s->capacity > 0 && s->memory == NULL) return slot_wrong(s, "it has bytes without memory");
  if (!is_busy(s->state) && s->ticket != NULL && s->capacity < s->batch.bytes)
    return slot_wrong(s, "its batch is longer than its memory");
  if (is_out && to_come) return slot_wrong(s, "I1: it is handed out before its turn");
  if (has_batch && !to_come && !is_out && s->state != LADEI_LOADER_SLOT_FILLING)
    return slot_wrong(s, "I1: its batch was passed over");
  if (!to_come) return LADE_OK;
  uint64_t place = s->batch.number - loader->next_number;
  if (s->batch.number >= loader->cursor.batches || place >= 64)
    return slot_wrong(s, "I1: its batch is not planned yet");
  if ((*held >> place & 1) != 0) return slot_wrong(s, "I1: another slot has the same batch");
  *held |= (uint64_t)1 << place;
  return LADE_OK;
}

lade_status ladei_loader_slots_check(lade_loader *loader) {
  uint64_t held = 0;
  bool filling = false; /* a batch being planned is in no slot for a moment */
  ladei_lock_assert_held(&loader->lock);
  for (const ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++) {
    filling = filling || s->state == LADEI_LOADER_SLOT_FILLING;
    LADEI_TRY(slot_check(loader, s, &held));
  }
  uint64_t wanted = loader->cursor.batches - loader->next_number, count = (uint64_t)__builtin_popcountll(held);
  if (filling || count == wanted) return LADE_OK;
  return ladei_error(LADE_ERR_INTERNAL, 0, "loader: I1: slots hold %llu batches to come; expected %llu",
                     (unsigned long long)count, (unsigned long long)wanted);
}

/* Called with the lock. */
static void slot_set(lade_loader *loader, ladei_loader_slot *s, ladei_loader_slot_state state) {
  ladei_lock_assert_held(&loader->lock);
  assert(slot_may_become(s->state, state) && "I4");
  assert(slot_ticket_fits(s, state) && "I3");
  s->state = state;
#ifndef NDEBUG
  if (ladei_loader_slots_check(loader) != LADE_OK) ladei_error_stop();
#endif
  ladei_condition_broadcast(&loader->changed);
}

static void slot_change(lade_loader *loader, ladei_loader_slot *s, ladei_loader_slot_state state) {
  ladei_lock_acquire(&loader->lock);
  slot_set(loader, s, state);
  ladei_lock_release(&loader->lock);
}

/* --- staging a batch ---------------------------------------------------------------------------------------------- */

static lade_status memory_free(lade_loader *loader, ladei_loader_slot *s) {
  ladei_lock_assert_none_held();
  lade_status status = s->memory != NULL ? lade_device_free(loader->allocator, s->memory) : LADE_OK;
  if (status == LADE_OK) {
    s->memory = NULL;
    s->capacity = 0;
  }
  return status;
}

/* After a failure, whose error stays. A block that cannot be given back now is before it is used again. */
static void memory_drop(lade_loader *loader, ladei_loader_slot *s) {
  LADEI_ASIDE((void)memory_free(loader, s));
  s->capacity = 0;
}

/* An eighth more than asked, so that batches of about one size keep their block. */
static lade_status memory_fit(lade_loader *loader, ladei_loader_slot *s, bool *out_fresh) {
  assert(is_busy(s->state) && s->batch.count > 0); /* I2: this thread's */
  size_t bytes = s->batch.bytes + s->batch.bytes / 8;
  *out_fresh = s->batch.bytes > s->capacity;
  if (!*out_fresh) return LADE_OK;
  lade_status status = memory_free(loader, s);
  if (status == LADE_OK) status = lade_device_alloc(loader->allocator, bytes, loader->stream, &s->memory);
  s->capacity = status == LADE_OK ? bytes : s->capacity;
  return status;
}

/* Submits the batch of a slot. `after`: the stream that the block's last user worked on; NULL: none did. */
static lade_status batch_submit(lade_loader *loader, ladei_loader_slot *s, const lade_stream *after) {
  ladei_lock_assert_none_held();
  lade_transfer transfer;
  lade_piece *pieces;
  bool fresh;
  assert(s->state == LADEI_LOADER_SLOT_FILLING && s->ticket == NULL);
  LADEI_TRY(memory_fit(loader, s, &fresh));
  if (fresh) after = loader->own_stream ? NULL : &loader->stream;
  lade_transfer_init(&transfer);
  LADEI_TRY(ladei_loader_plan_pieces(&loader->plan, &s->batch, &pieces, &transfer.piece_count));
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.device_memory = s->memory;
  if (after != NULL) {
    transfer.after_stream = 1;
    transfer.stream = *after;
  }
  lade_status status = lade_pipeline_submit(loader->pipeline, &transfer, &s->ticket);
  free(pieces);
  return status;
}

/* Submits the batch of a slot that is FILLING: STAGED. On failure it is PLANNED, and without memory. */
static lade_status slot_stage(lade_loader *loader, ladei_loader_slot *s, const lade_stream *after) {
  lade_status status = batch_submit(loader, s, after);
  if (status != LADE_OK) memory_drop(loader, s);
  slot_change(loader, s, status == LADE_OK ? LADEI_LOADER_SLOT_STAGED : LADEI_LOADER_SLOT_PLANNED);
  return status;
}

/* Plans the next batch into a slot that is FILLING. `*out_planned` false: the last epoch is over. */
static lade_status slot_plan(lade_loader *loader, ladei_loader_slot *s, bool *out_planned) {
  ladei_lock_acquire(&loader->lock);
  assert(s->state == LADEI_LOADER_SLOT_FILLING && s->ticket == NULL);
  lade_status status = ladei_loader_plan_next(&loader->plan, &loader->cursor, &s->batch);
  *out_planned = status == LADE_OK && s->batch.count > 0;
  if (!*out_planned) slot_set(loader, s, LADEI_LOADER_SLOT_EMPTY);
  ladei_lock_release(&loader->lock);
  return status;
}

/* Plans and stages a slot that is FILLING. */
static lade_status slot_refill(lade_loader *loader, ladei_loader_slot *s, const lade_stream *after) {
  bool planned;
  lade_status status = slot_plan(loader, s, &planned);
  return status == LADE_OK && planned ? slot_stage(loader, s, after) : status;
}

static lade_status number_error(lade_status status, const ladei_loader_slot *s) {
  return ladei_error_prefix(status, "batch %llu of epoch %llu: ", (unsigned long long)s->batch.number,
                            (unsigned long long)s->batch.epoch);
}

/* --- handing out -------------------------------------------------------------------------------------------------- */

/* The slot of the batch to hand out next; NULL if it is in none. Called with the lock. */
static ladei_loader_slot *slot_next(lade_loader *loader) {
  ladei_lock_assert_held(&loader->lock);
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++)
    if (s->state != LADEI_LOADER_SLOT_EMPTY && s->state != LADEI_LOADER_SLOT_OUT && s->batch.count > 0 &&
        s->batch.number == loader->next_number)
      return s;
  return NULL;
}

static ladei_loader_slot *slot_find(lade_loader *loader, ladei_loader_slot_state state) {
  ladei_lock_assert_held(&loader->lock);
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++)
    if (s->state == state) return s;
  return NULL;
}

/* The consumer has had all batches for too long. Called with the lock. */
static lade_status return_error(lade_loader *loader) {
  ladei_lock_assert_held(&loader->lock);
  const ladei_loader_slot *oldest = NULL;
  unsigned count = 0;
  for (const ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++) {
    if (s->state != LADEI_LOADER_SLOT_OUT) continue;
    oldest = oldest == NULL || s->batch.number < oldest->batch.number ? s : oldest;
    count++;
  }
  if (oldest == NULL) {
    return ladei_error(LADE_ERR_TIMEOUT, 0, "loader: batch %llu is not begun yet",
                       (unsigned long long)loader->next_number);
  }
  return ladei_error(LADE_ERR_TIMEOUT, 0,
                     "loader: batch %llu of epoch %llu, handed out %llu ms ago, was not returned; %u of %u are out",
                     (unsigned long long)oldest->batch.number, (unsigned long long)oldest->batch.epoch,
                     (unsigned long long)((now_ns(loader) - oldest->out_since_ns) / 1000000), count,
                     (unsigned)loader->plan.options.prefetch);
}

/* Waits for another thread to change a slot. Called with the lock. */
static lade_status change_wait(lade_loader *loader, uint64_t deadline_ns) {
  ladei_lock_assert_held(&loader->lock);
  bool is_virtual = loader->runtime->ops->step != NULL; /* one thread: no other could change anything */
  uint64_t now = now_ns(loader);
  if (is_virtual || now >= deadline_ns) return return_error(loader);
  (void)ladei_condition_wait_for(&loader->changed, &loader->lock, deadline_ns - now);
  return LADE_OK;
}

static uint64_t deadline_after(uint64_t now, uint64_t timeout_ns) {
  return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/*
 * The slot of the next batch, WAITING; NULL: the last epoch is over.
 * A slot that was emptied by a failure of planning is planned here again.
 */
static lade_status slot_take(lade_loader *loader, uint64_t timeout_ns, ladei_loader_slot **out) {
  uint64_t limit_ns = ladei_size_min(timeout_ns, loader->plan.options.return_timeout_ns);
  uint64_t deadline_ns = deadline_after(now_ns(loader), limit_ns);
  lade_status status = LADE_OK;
  ladei_lock_acquire(&loader->lock);
  while (status == LADE_OK) {
    ladei_loader_slot *s = slot_next(loader);
    bool plan = s == NULL && !loader->cursor.over && (s = slot_find(loader, LADEI_LOADER_SLOT_EMPTY)) != NULL;
    if (s == NULL && loader->cursor.over && loader->next_number == loader->cursor.batches) {
      *out = NULL;
      break;
    }
    if (s == NULL || is_busy(s->state)) {
      status = change_wait(loader, deadline_ns);
      continue;
    }
    if (s->state == LADEI_LOADER_SLOT_STAGED) {
      slot_set(loader, s, LADEI_LOADER_SLOT_WAITING);
      *out = s;
      break;
    }
    slot_set(loader, s, LADEI_LOADER_SLOT_FILLING);
    ladei_lock_release(&loader->lock);
    status = plan ? slot_refill(loader, s, NULL) : slot_stage(loader, s, NULL);
    ladei_lock_acquire(&loader->lock);
  }
  ladei_lock_release(&loader->lock);
  return status;
}

/* Lets the stream wait for the batch of a WAITING slot. A failed transfer makes it PLANNED, other failures STAGED. */
static lade_status slot_wait(lade_loader *loader, ladei_loader_slot *s, lade_stream stream, uint64_t timeout_ns) {
  lade_status status = timeout_ns == LADE_WAIT_FOREVER ? LADE_OK : lade_ticket_wait(s->ticket, timeout_ns);
  if (status == LADE_OK) status = lade_stream_wait_ticket(stream, s->ticket);
  if (status == LADE_OK) return LADE_OK;
  /* Whose fault was it, the transfer's or the stream's? What takes long goes on. */
  lade_error error;
  ladei_error_save(&error);
  bool passing = status == LADE_ERR_TIMEOUT || status == LADE_ERR_FORKED;
  bool failed = !passing && lade_ticket_wait(s->ticket, LADE_WAIT_FOREVER) != LADE_OK;
  if (failed) {
    lade_ticket_release(s->ticket);
    s->ticket = NULL;
    memory_drop(loader, s);
  }
  ladei_error_restore(&error);
  number_error(status, s);
  slot_change(loader, s, failed ? LADEI_LOADER_SLOT_PLANNED : LADEI_LOADER_SLOT_STAGED);
  return status;
}

/* --- records that cannot be read ---------------------------------------------------------------------------------- */

/* The slot of the next batch, which could not be staged or read, FILLING; NULL: another thread is at it, or was. */
static ladei_loader_slot *slot_take_failed(lade_loader *loader) {
  ladei_lock_acquire(&loader->lock);
  ladei_loader_slot *s = slot_next(loader);
  s = s != NULL && s->state == LADEI_LOADER_SLOT_PLANNED ? s : NULL;
  if (s != NULL) slot_set(loader, s, LADEI_LOADER_SLOT_FILLING);
  ladei_lock_release(&loader->lock);
  return s;
}

static bool is_unreadable(lade_status status) { return status == LADE_ERR_IO || status == LADE_ERR_TRUNCATED; }

/* Counts a record that is left out; its error is this thread's last. */
static void skip_note(lade_loader *loader, uint64_t record) {
  ladei_lock_acquire(&loader->lock);
  loader->counters.skipped_records++;
  ladei_loader_skips_add(&loader->skips, record, lade_last_error()->text);
  ladei_lock_release(&loader->lock);
}

/* Takes the lock, since other threads read the batch's count (I2). */
static void batch_leave_out(lade_loader *loader, ladei_loader_slot *s, const bool *left_out) {
  ladei_lock_acquire(&loader->lock);
  ladei_loader_batch_leave_out(&loader->plan, &s->batch, left_out);
  ladei_lock_release(&loader->lock);
}

/* Reads the records of a FILLING slot's batch one by one, and leaves out those that cannot be read. Ends at an error
 * that is not the records'. */
static lade_status batch_prune(lade_loader *loader, ladei_loader_slot *s, uint64_t *out_count) {
  bool *bad = calloc(s->batch.count, sizeof *bad);
  lade_status status = bad != NULL ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "loader: no memory");
  for (uint64_t i = 0; status == LADE_OK && i < s->batch.count; i++) {
    status = ladei_loader_record_probe(loader->plan.index, s->batch.records[i], &bad[i]);
    if (!bad[i]) continue;
    skip_note(loader, s->batch.records[i]);
    ++*out_count;
    status = LADE_OK;
  }
  if (*out_count > 0) batch_leave_out(loader, s, bad);
  free(bad);
  return status;
}

/* Goes on after the batch of a FILLING slot, of which nothing is left. */
static void batch_pass(lade_loader *loader, ladei_loader_slot *s) {
  ladei_lock_acquire(&loader->lock);
  assert(s->state == LADEI_LOADER_SLOT_FILLING && s->batch.number == loader->next_number);
  loader->counters.skipped_batches++;
  loader->next_number = s->batch.number + 1;
  loader->state_epoch = s->batch.epoch;
  loader->state_position = s->batch.end_position;
  ladei_lock_release(&loader->lock);
  (void)slot_refill(loader, s, NULL); /* slot_take() meets its failure again */
}

/* Such errors during one call. */
typedef struct skipping {
  unsigned tries;  /* of a batch whose records can all be read */
  uint64_t passed; /* records in batches of which nothing was left */
} skipping;

/*
 * After such an error: whether to try the next batch again. Once even if all of its records can be read, since the
 * failure may be over. Not if as many records as an endless epoch has were passed over: none is left to find.
 */
static bool batch_retry(lade_loader *loader, skipping *so_far) {
  uint64_t left_out = 0;
  ladei_loader_slot *s = slot_take_failed(loader);
  if (s == NULL) return true;
  lade_status status = batch_prune(loader, s, &left_out);
  if (s->batch.count == 0) {
    so_far->passed += left_out;
    batch_pass(loader, s);
  } else {
    slot_change(loader, s, LADEI_LOADER_SLOT_PLANNED);
  }
  so_far->tries = left_out > 0 ? 0 : so_far->tries + 1;
  bool nothing = loader->plan.options.epochs == 0 && so_far->passed >= loader->plan.share;
  return status == LADE_OK && so_far->tries < 2 && !nothing;
}

/* --- handing out, the call ---------------------------------------------------------------------------------------- */

/* The next batch's slot, WAITING, its bytes under way and the stream waiting for them; NULL: the last epoch is over. */
static lade_status slot_make_ready(lade_loader *loader, lade_stream stream, uint64_t timeout_ns,
                                   ladei_loader_slot **out) {
  const uint64_t deadline_ns = deadline_after(now_ns(loader), timeout_ns);
  skipping so_far = {0};
  for (;;) {
    lade_status status = slot_take(loader, timeout_ns, out);
    if (status == LADE_OK && *out != NULL) status = slot_wait(loader, *out, stream, timeout_ns);
    if (!is_unreadable(status) || !loader->plan.options.skip_unreadable) return status;
    lade_error error;
    ladei_error_save(&error);
    bool again = batch_retry(loader, &so_far);
    ladei_error_restore(&error);
    if (!again) return status;
    if (timeout_ns == LADE_WAIT_FOREVER) continue;
    const uint64_t now = now_ns(loader);
    if (now >= deadline_ns) {
      return ladei_error(LADE_ERR_TIMEOUT, 0, "loader: no record that can be read was found in time; the last one: %s",
                         error.text);
    }
    timeout_ns = deadline_ns - now;
  }
}

static lade_batch batch_describe(const lade_loader *loader, const ladei_loader_slot *s) {
  const ladei_loader_batch_plan *plan = &s->batch;
  const uint64_t ranges = loader->plan.index->field_count * plan->count;
  uint64_t *device_tables = (uint64_t *)(void *)((char *)s->memory + plan->table_offset);
  return (lade_batch){
      .struct_size = sizeof(lade_batch),
      .number = plan->number,
      .epoch = plan->epoch,
      .count = plan->count,
      .field_count = loader->plan.index->field_count,
      .memory = s->memory,
      .bytes = plan->bytes,
      .offsets = ladei_loader_batch_offsets(plan),
      .lengths = ladei_loader_batch_lengths(&loader->plan, plan),
      .records = plan->records,
      .device_offsets = device_tables,
      .device_lengths = device_tables + ranges,
      .ticket = s->ticket,
  };
}

lade_status lade_loader_next(lade_loader *loader, lade_stream stream, uint64_t timeout_ns, lade_batch *batch) {
  ladei_loader_slot *s = NULL;
  lade_batch own = {.struct_size = sizeof own};
  if (loader == NULL) return ladei_error_null("lade_loader_next", "loader");
  if (batch == NULL) return ladei_error_null("lade_loader_next", "batch");
  if (batch->struct_size < sizeof(size_t)) {
    return ladei_error_argument("lade_loader_next", "batch.struct_size", "what lade_batch_init sets", "%zu",
                                batch->struct_size);
  }
  LADEI_TRY(ladei_runtime_check_process(loader->runtime));
  LADEI_TRY(LADEI_UNCANCELLED(slot_make_ready(loader, stream, timeout_ns, &s)));
  if (s != NULL) {
    own = batch_describe(loader, s);
    ladei_lock_acquire(&loader->lock);
    assert(s->state == LADEI_LOADER_SLOT_WAITING && s->batch.number == loader->next_number); /* in order */
    loader->next_number = s->batch.number + 1;
    loader->state_epoch = s->batch.epoch;
    loader->state_position = s->batch.end_position;
    loader->counters.batches++;
    loader->counters.records += s->batch.count;
    s->out_since_ns = now_ns(loader);
    slot_set(loader, s, LADEI_LOADER_SLOT_OUT);
    ladei_lock_release(&loader->lock);
  }
  return ladei_stats_write("lade_batch", &own, sizeof own, batch);
}

/* --- taking back -------------------------------------------------------------------------------------------------- */

/* The slot of a batch that is OUT, RETURNING. */
static lade_status slot_take_back(lade_loader *loader, uint64_t number, ladei_loader_slot **out) {
  bool found = false;
  ladei_lock_acquire(&loader->lock);
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++) {
    if (s->state == LADEI_LOADER_SLOT_OUT && s->batch.number == number) {
      slot_set(loader, s, LADEI_LOADER_SLOT_RETURNING);
      *out = s;
      found = true;
    }
  }
  ladei_lock_release(&loader->lock);
  return found ? LADE_OK
               : ladei_error_argument("lade_loader_return", "batch.number", "a batch that is handed out", "%llu",
                                      (unsigned long long)number);
}

static lade_status batch_return(lade_loader *loader, uint64_t number, lade_stream stream) {
  ladei_loader_slot *s = NULL;
  LADEI_TRY(slot_take_back(loader, number, &s));
  lade_status status = lade_device_record_stream(loader->allocator, s->memory, stream);
  if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST) { /* on a lost device no work uses it any more */
    slot_change(loader, s, LADEI_LOADER_SLOT_OUT);
    return status;
  }
  /* Its reads were over when it was handed out, and its copies come before any the slot will have. Only their outcome
   * is still unknown. */
  lade_status outcome = lade_ticket_wait(s->ticket, LADE_WAIT_FOREVER);
  if (outcome != LADE_OK) number_error(outcome, s);
  lade_error error;
  ladei_error_save(&error);
  lade_ticket_release(s->ticket);
  s->ticket = NULL;
  slot_change(loader, s, LADEI_LOADER_SLOT_FILLING);
  (void)slot_refill(loader, s, &stream); /* lade_loader_next() meets its failure again */
  ladei_error_restore(&error);
  return outcome;
}

lade_status lade_loader_return(lade_loader *loader, const lade_batch *batch, lade_stream stream) {
  if (loader == NULL) return ladei_error_null("lade_loader_return", "loader");
  if (batch == NULL) return ladei_error_null("lade_loader_return", "batch");
  if (batch->struct_size < offsetof(lade_batch, epoch)) {
    return ladei_error_argument("lade_loader_return", "batch.struct_size", "what lade_batch_init sets", "%zu",
                                batch->struct_size);
  }
  LADEI_TRY(ladei_runtime_check_process(loader->runtime));
  return LADEI_UNCANCELLED(batch_return(loader, batch->number, stream));
}

lade_status lade_loader_stats_get(lade_loader *loader, lade_loader_stats *stats) {
  if (loader == NULL) return ladei_error_null("lade_loader_stats_get", "loader");
  if (stats == NULL) return ladei_error_null("lade_loader_stats_get", "stats");
  LADEI_TRY(ladei_runtime_check_process(loader->runtime));
  ladei_lock_acquire(&loader->lock);
  lade_loader_stats own = loader->counters;
  own.skips_listed = loader->skips.count;
  ladei_lock_release(&loader->lock);
  own.struct_size = sizeof own;
  return ladei_stats_write("lade_loader_stats", &own, sizeof own, stats);
}

lade_status lade_loader_skip_get(lade_loader *loader, uint64_t index, lade_loader_skip *skip) {
  lade_loader_skip own = {.struct_size = sizeof own};
  if (loader == NULL) return ladei_error_null("lade_loader_skip_get", "loader");
  if (skip == NULL) return ladei_error_null("lade_loader_skip_get", "skip");
  LADEI_TRY(ladei_runtime_check_process(loader->runtime));
  ladei_lock_acquire(&loader->lock);
  size_t count = loader->skips.count;
  if (index < count) {
    const ladei_loader_skip *of = &loader->skips.list[index];
    own.record = of->record;
    own.count = of->count;
    own.text = of->text != NULL ? of->text : "";
  }
  ladei_lock_release(&loader->lock);
  if (index < count) return ladei_stats_write("lade_loader_skip", &own, sizeof own, skip);
  char expected[64];
  (void)snprintf(expected, sizeof expected, "below %zu, the number of skips", count);
  return ladei_error_argument("lade_loader_skip_get", "index", expected, "%llu", (unsigned long long)index);
}

lade_status lade_loader_state_get(lade_loader *loader, lade_loader_state *state) {
  if (loader == NULL) return ladei_error_null("lade_loader_state_get", "loader");
  if (state == NULL) return ladei_error_null("lade_loader_state_get", "state");
  LADEI_TRY(ladei_runtime_check_process(loader->runtime));
  const lade_loader_options *options = &loader->plan.options;
  lade_loader_state own = {
      .struct_size = sizeof own,
      .seed = options->seed,
      .record_count = loader->plan.index->count,
      .shuffle = options->shuffle,
      .rank = options->rank,
      .world_size = options->world_size,
      .equal_ranks = options->equal_ranks,
      .files = loader->plan.identity.files,
      .files_in_any_order = loader->plan.identity.files_in_any_order,
      .records = loader->plan.identity.records,
  };
  ladei_lock_acquire(&loader->lock);
  own.epoch = loader->state_epoch;
  own.position = loader->state_position;
  own.batches = loader->next_number;
  ladei_lock_release(&loader->lock);
  return ladei_stats_write("lade_loader_state", &own, sizeof own, state);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Ends the transfers, then gives back memory and stream. After a failure it may be called again. */
static lade_status loader_dismantle(lade_loader *loader) {
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++) {
    if (s->ticket == NULL) continue;
    (void)lade_ticket_cancel(s->ticket);
    lade_status status = lade_ticket_wait(s->ticket, LADE_WAIT_FOREVER);
    if (status == LADE_ERR_TIMEOUT || status == LADE_ERR_FORKED) return status;
    lade_ticket_release(s->ticket);
    s->ticket = NULL;
    slot_change(loader, s, LADEI_LOADER_SLOT_PLANNED);
  }
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++) {
    lade_status status = memory_free(loader, s);
    if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST) return status;
  }
  if (loader->own_stream) {
    lade_status status = lade_device_stream_retire(loader->allocator, loader->stream);
    if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST)
      status = lade_stream_destroy(loader->runtime, loader->stream);
    if (status != LADE_OK) return status;
    loader->own_stream = false;
  }
  return LADE_OK;
}

static void loader_free(lade_loader *loader) {
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader); s++) ladei_loader_batch_plan_dispose(&s->batch);
  ladei_loader_skips_dispose(&loader->skips);
  ladei_loader_plan_dispose(&loader->plan);
  ladei_condition_destroy(&loader->changed);
  ladei_lock_destroy(&loader->lock);
  free(loader);
}

static lade_status loader_start(lade_loader *loader) {
  lade_status status = LADE_OK;
  loader->stream = loader->plan.options.stream;
  if (loader->stream == NULL) {
    status = lade_stream_create(loader->runtime, loader->pipeline->options.device, &loader->stream);
    loader->own_stream = status == LADE_OK;
  }
  for (ladei_loader_slot *s = loader->slots; s < slots_end(loader) && status == LADE_OK && !loader->cursor.over; s++) {
    slot_change(loader, s, LADEI_LOADER_SLOT_FILLING);
    status = slot_refill(loader, s, NULL);
  }
  return status;
}

static lade_status loader_create(const lade_record_index *index, lade_pipeline *pipeline,
                                 lade_device_allocator *allocator, const lade_loader_options *options,
                                 lade_loader **out) {
  lade_loader *loader = calloc(1, sizeof *loader);
  if (loader == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "loader: no memory");
  loader->pipeline = pipeline;
  loader->allocator = allocator;
  loader->runtime = pipeline->runtime;
  lade_status status = ladei_loader_plan_init(&loader->plan, index, options);
  if (status == LADE_OK) status = ladei_loader_cursor_init(&loader->cursor, &loader->plan, options->resume);
  if (status != LADE_OK) {
    ladei_loader_plan_dispose(&loader->plan);
    free(loader);
    return status;
  }
  ladei_lock_init(&loader->lock, LADEI_RANK_LOADER);
  ladei_condition_init(&loader->changed);
  loader->next_number = loader->cursor.batches;
  loader->state_epoch = loader->cursor.epoch;
  loader->state_position = loader->cursor.position;
  status = loader_start(loader);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    /* A second attempt, since the first failure may have been temporary. After two the rest is lost with the device. */
    bool clean = loader_dismantle(loader) == LADE_OK || loader_dismantle(loader) == LADE_OK;
    if (clean) loader_free(loader);
    ladei_error_restore(&first);
    return status;
  }
  *out = loader;
  return LADE_OK;
}

lade_status lade_loader_create(const lade_record_index *index, lade_pipeline *pipeline,
                               lade_device_allocator *allocator, const lade_loader_options *options,
                               lade_loader **out) {
  lade_loader_options own;
  if (index == NULL) return ladei_error_null("lade_loader_create", "index");
  if (pipeline == NULL) return ladei_error_null("lade_loader_create", "pipeline");
  if (allocator == NULL) return ladei_error_null("lade_loader_create", "allocator");
  if (options == NULL) return ladei_error_null("lade_loader_create", "options");
  if (out == NULL) return ladei_error_null("lade_loader_create", "out");
  lade_status status = ladei_options_read("lade_loader_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_runtime_check_process(pipeline->runtime);
  int cancellation = ladei_cancellation_hold();
  if (status == LADE_OK) status = loader_create(index, pipeline, allocator, &own, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status lade_loader_destroy(lade_loader *loader) {
  if (loader == NULL) return LADE_OK;
  LADEI_TRY(ladei_runtime_check_process(loader->runtime));
  ladei_lock_acquire(&loader->lock);
  const ladei_loader_slot *out = slot_find(loader, LADEI_LOADER_SLOT_OUT);
  ladei_lock_release(&loader->lock);
  if (out != NULL) {
    return ladei_error(LADE_ERR_BUSY, 0, "loader: batch %llu of epoch %llu is handed out",
                       (unsigned long long)out->batch.number, (unsigned long long)out->batch.epoch);
  }
  int cancellation = ladei_cancellation_hold();
  lade_status status = loader_dismantle(loader);
  if (status == LADE_OK) loader_free(loader);
  ladei_cancellation_resume(cancellation);
  return status;
}
