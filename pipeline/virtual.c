/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver for virtual time: the core runs inside the calls of the program, and reads take time by a model of storage.
 *
 *   a READ or WRITE order: a simulated reader takes it, a timer ends it:   latency + bytes / rate   later
 *   every other order: executed at once
 *   wait: does all that can be done now, then moves the clock to the next thing that happens
 *
 * I1  At most `readers` host orders are under way; each has a timer.
 * I2  One pump runs at a time. Ops called by it may move the clock (soft.h: costs) and so fire timers, whose pumps only
 *     ask the outer one to go round again.
 * I3  Bytes are read when the timer fires, so that a source changed too early shows.
 * Locks: the pipeline's, as everywhere. `sim` belongs to one thread at a time.
 */
#include <stdlib.h>

#include "base/error.h"
#include "pipeline/internal.h"

typedef struct virtual_state virtual_state;

/* One simulated reader. */
typedef struct virtual_reader {
  virtual_state *state;
  struct virtual_reader *next; /* in the list of the idle ones */
  ladei_order order;
} virtual_reader;

struct virtual_state {
  lade_pipeline *pipeline;
  virtual_reader *idle;
  bool pumping;
  bool again; /* a timer fired inside a pump */
  virtual_reader readers[];
};

static void pump(lade_pipeline *pipeline);

/* Timer: the order's time is over. */
static void reader_end(void *user) {
  virtual_reader *reader = user;
  virtual_state *state = reader->state;
  ladei_order order = reader->order;
  reader->next = state->idle;
  state->idle = reader;
  ladei_lock_acquire(&state->pipeline->lock);
  ladei_execute_locked(state->pipeline, &order);
  ladei_lock_release(&state->pipeline->lock);
  pump(state->pipeline);
}

static uint64_t host_ns(const lade_pipeline_options *options, size_t bytes) {
  /* Below 2^60 bytes: exact in 128 bits, rounded up. */
  unsigned __int128 scaled = (unsigned __int128)bytes * 1000000000u + options->storage_bytes_per_s - 1;
  return options->storage_latency_ns + (uint64_t)(scaled / options->storage_bytes_per_s);
}

/* Gives a host order to an idle reader. Called with the lock, which is released meanwhile. */
static void reader_begin(virtual_state *state, const ladei_order *order) {
  lade_pipeline *pipeline = state->pipeline;
  const lade_runtime *runtime = pipeline->runtime;
  virtual_reader *reader = state->idle;
  state->idle = reader->next;
  reader->order = *order;
  ladei_lock_release(&pipeline->lock);
  uint64_t end_ns = runtime->ops->now_ns(runtime->self) + host_ns(&pipeline->options, order->slot->bytes);
  lade_status status = runtime->ops->timer_add(runtime->self, end_ns, reader_end, reader);
  ladei_lock_acquire(&pipeline->lock);
  if (status != LADE_OK) {
    reader->next = state->idle;
    state->idle = reader;
    ladei_complete_locked(pipeline, order, status, lade_last_error());
  }
}

/* Takes orders until there are none. */
static void pump_round(lade_pipeline *pipeline) {
  virtual_state *state = pipeline->driver_state;
  ladei_order order;
  ladei_lock_acquire(&pipeline->lock);
  ladei_core_poll_wake(&pipeline->core);
  while (ladei_core_next(&pipeline->core, state->idle != NULL ? LADEI_ALLOW_HOST : 0, &order)) {
    if (ladei_order_is_host(&order)) {
      reader_begin(state, &order);
    } else {
      ladei_execute_locked(pipeline, &order);
    }
  }
  ladei_lock_release(&pipeline->lock);
}

static void pump(lade_pipeline *pipeline) {
  virtual_state *state = pipeline->driver_state;
  state->again = true;
  if (state->pumping) {
    return;
  }
  state->pumping = true;
  while (state->again) {
    state->again = false;
    pump_round(pipeline);
  }
  state->pumping = false;
}

static void deadline_reached(void *user) { (void)user; }

static lade_status virtual_wait(lade_pipeline *pipeline, uint64_t deadline_ns) {
  const lade_runtime *runtime = pipeline->runtime;
  lade_status status = LADE_OK;
  uint64_t finished = pipeline->core.counters.transfers_completed + pipeline->core.counters.transfers_failed;
  ladei_lock_release(&pipeline->lock);
  pump(pipeline);
  ladei_lock_acquire(&pipeline->lock);
  bool changed = finished != pipeline->core.counters.transfers_completed + pipeline->core.counters.transfers_failed;
  ladei_lock_release(&pipeline->lock);
  uint64_t now_ns = runtime->ops->now_ns(runtime->self);
  if (now_ns >= deadline_ns && !changed) {
    status = LADE_ERR_TIMEOUT;
  } else if (!changed) {
    if (deadline_ns != UINT64_MAX) {
      /* So that a step does not pass the deadline. */
      (void)runtime->ops->timer_add(runtime->self, deadline_ns, deadline_reached, NULL);
    }
    status = runtime->ops->step(runtime->self);
    if (status == LADE_OK) {
      pump(pipeline);
    } else if (status == LADE_NOT_READY) {
      status = LADE_ERR_TIMEOUT;
    }
  }
  ladei_lock_acquire(&pipeline->lock);
  return status;
}

static lade_status virtual_start(lade_pipeline *pipeline) {
  size_t count = pipeline->options.readers;
  virtual_state *state = calloc(1, sizeof *state + count * sizeof state->readers[0]);
  if (state == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu simulated readers", count);
  }
  state->pipeline = pipeline;
  for (size_t i = 0; i < count; i++) {
    state->readers[i].state = state;
    state->readers[i].next = state->idle;
    state->idle = &state->readers[i];
  }
  pipeline->driver_state = state;
  return LADE_OK;
}

static void virtual_stop(lade_pipeline *pipeline) {
  free(pipeline->driver_state);
  pipeline->driver_state = NULL;
}

const ladei_pipeline_driver ladei_driver_virtual = {
    .start = virtual_start,
    .stop = virtual_stop,
    .kick = pump,
    .advance = pump,
    .wait = virtual_wait,
};
