/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver for virtual time: the core runs inside the calls of the program, and reads take time by a model of storage.
 *
 *   a READ or WRITE order: goes to the reader of its direction that is ready first, a timer ends it:
 *
 *     order    |-- latency --|                               the latency of a request passes while its reader is still
 *     reader   |--- bytes of the one before ---|-- bytes --| busy with those before
 *     storage  |---- bytes of other readers' requests -|---|  where all readers together have a rate, too
 *
 *   every other order: executed at once
 *   wait: does all that can be done now, then moves the clock to the next thing that happens
 *
 * I1  Each host order under way has a flight and a timer: at most one per slot.
 * I2  One pump runs at a time. Ops called by it may move the clock (soft.h: costs) and so fire timers, whose pumps only
 *     ask the outer one to go round again.
 * I3  Bytes are read when the timer fires, so that a source changed too early shows.
 * Locks: the pipeline's, as everywhere. `sim` belongs to one thread at a time.
 */
#include <stdlib.h>

#include "base/error.h"
#include "pipeline/drivers/drivers.h"
#include "pipeline/drivers/execute.h"

typedef struct virtual_state virtual_state;

/* A host order under way. */
typedef struct virtual_flight {
  virtual_state *state;
  struct virtual_flight *next; /* in the list of the idle ones */
  ladei_pipe_order order;
  uint64_t begun_ns; /* for a timeline */
} virtual_flight;

/* The storage as transfers of one direction see it: until when it is busy. */
typedef struct virtual_storage {
  uint64_t *readers_ns; /* each reader */
  uint64_t all_ns;      /* all of them together */
} virtual_storage;

struct virtual_state {
  lade_pipeline *pipeline;
  virtual_storage storages[2]; /* to the device, to the host */
  virtual_flight *idle;
  uint64_t armed_ns; /* latest deadline that has a timer */
  bool pumping;
  bool again; /* a timer fired inside a pump */
  virtual_flight flights[];
};

static void pump(lade_pipeline *pipeline);

/* Timer: the order's time is over. */
static void flight_end(void *user) {
  virtual_flight *flight = user;
  virtual_state *state = flight->state;
  ladei_pipe_order order = flight->order;
  uint64_t begun_ns = flight->begun_ns;
  flight->next = state->idle;
  state->idle = flight;
  ladei_lock_acquire(&state->pipeline->lock);
  ladei_pipe_execute_since_locked(state->pipeline, &order, begun_ns);
  ladei_lock_release(&state->pipeline->lock);
  pump(state->pipeline);
}

static uint64_t bytes_ns(size_t bytes, uint64_t bytes_per_s) {
  /* Below 2^60 bytes: exact in 128 bits, rounded up. */
  unsigned __int128 scaled = (unsigned __int128)bytes * 1000000000u + bytes_per_s - 1;
  return (uint64_t)(scaled / bytes_per_s);
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* When a request that begins now is over. */
static uint64_t storage_end_ns(virtual_storage *storage, const lade_pipeline_options *options, size_t bytes,
                               uint64_t now_ns) {
  uint64_t first_ns = now_ns + options->storage_latency_ns;
  uint64_t *reader = &storage->readers_ns[0];
  for (uint32_t i = 1; i < options->readers; i++)
    reader = storage->readers_ns[i] < *reader ? &storage->readers_ns[i] : reader;
  uint64_t end_ns = later(first_ns, *reader) + bytes_ns(bytes, options->storage_bytes_per_s);
  if (options->storage_total_bytes_per_s != 0) {
    storage->all_ns = later(first_ns, storage->all_ns) + bytes_ns(bytes, options->storage_total_bytes_per_s);
    end_ns = later(end_ns, storage->all_ns);
  }
  *reader = end_ns;
  return end_ns;
}

/* Lets storage begin a host order. Called with the lock, which is released meanwhile. */
static void flight_begin(virtual_state *state, const ladei_pipe_order *order) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  const lade_runtime *runtime = pipeline->runtime;
  virtual_flight *flight = state->idle;
  state->idle = flight->next;
  flight->order = *order;
  flight->begun_ns = ladei_pipe_timeline_now(pipeline);
  ladei_lock_release(&pipeline->lock);
  uint64_t end_ns = storage_end_ns(&state->storages[order->ring->direction == LADE_TO_DEVICE ? 0 : 1],
                                   &pipeline->options, order->slot->bytes, runtime->ops->now_ns(runtime->self));
  lade_status status = runtime->ops->timer_add(runtime->self, end_ns, flight_end, flight);
  ladei_lock_acquire(&pipeline->lock);
  if (status != LADE_OK) {
    flight->next = state->idle;
    state->idle = flight;
    ladei_pipe_complete_locked(pipeline, order, status, lade_last_error());
  }
}

/* Takes orders until there are none. */
static void pump_round(lade_pipeline *pipeline) {
  virtual_state *state = pipeline->driver_state;
  ladei_pipe_order order;
  ladei_lock_acquire(&pipeline->lock);
  ladei_pipe_core_poll_wake(&pipeline->core);
  while (ladei_pipe_order_take_locked(pipeline, &order))
    if (ladei_pipe_order_is_host(&order))
      flight_begin(state, &order);
    else
      ladei_pipe_execute_locked(pipeline, &order);
  ladei_lock_release(&pipeline->lock);
}

static void pump(lade_pipeline *pipeline) {
  ladei_lock_assert_none_held();
  virtual_state *state = pipeline->driver_state;
  state->again = true;
  if (state->pumping) return;
  state->pumping = true;
  while (state->again) {
    state->again = false;
    pump_round(pipeline);
  }
  state->pumping = false;
}

static void deadline_reached(void *user) { (void)user; }

/* So that a step does not pass the deadline: once for each, however many steps it takes. */
static void deadline_arm(virtual_state *state, uint64_t deadline_ns) {
  const lade_runtime *runtime = state->pipeline->runtime;
  if (deadline_ns != UINT64_MAX && deadline_ns != state->armed_ns &&
      runtime->ops->timer_add(runtime->self, deadline_ns, deadline_reached, NULL) == LADE_OK)
    state->armed_ns = deadline_ns;
}

/* Whatever it is for: all orders come from one schedule. */
static void virtual_kick(lade_pipeline *pipeline, ladei_pipe_ring *ring) {
  (void)ring;
  pump(pipeline);
}

static lade_status virtual_wait(lade_pipeline *pipeline, ladei_pipe_waiting *waiting) {
  ladei_lock_assert_held(&pipeline->lock);
  const uint64_t deadline_ns = waiting->deadline_ns;
  const lade_runtime *runtime = pipeline->runtime;
  lade_status status = LADE_OK;
  uint64_t finished = pipeline->core.counters.transfers_completed + pipeline->core.counters.transfers_failed;
  ladei_lock_release(&pipeline->lock);
  pump(pipeline);
  ladei_lock_acquire(&pipeline->lock);
  if (ladei_pipe_core_awaits_block(&pipeline->core.rings[0]) ||
      ladei_pipe_core_awaits_block(&pipeline->core.rings[1])) {
    ladei_lock_release(&pipeline->lock);
    /* the pipelines that hold the blocks advance only in a call */
    ladei_pinned_ring_listeners_wake(pipeline->ring_shares);
    ladei_lock_acquire(&pipeline->lock);
  }
  bool changed = finished != pipeline->core.counters.transfers_completed + pipeline->core.counters.transfers_failed;
  ladei_lock_release(&pipeline->lock);
  uint64_t now_ns = runtime->ops->now_ns(runtime->self);
  if (now_ns >= deadline_ns && !changed) {
    status = LADE_ERR_TIMEOUT;
  } else if (!changed) {
    deadline_arm(pipeline->driver_state, deadline_ns);
    status = runtime->ops->step(runtime->self);
    if (status == LADE_OK)
      pump(pipeline);
    else if (status == LADE_NOT_READY)
      status = LADE_ERR_TIMEOUT;
  }
  ladei_lock_acquire(&pipeline->lock);
  return status;
}

static void virtual_stop(lade_pipeline *pipeline) {
  virtual_state *state = pipeline->driver_state;
  free(state->storages[0].readers_ns);
  free(state->storages[1].readers_ns);
  free(state);
  pipeline->driver_state = NULL;
}

static lade_status virtual_start(lade_pipeline *pipeline) {
  size_t flights = 2 * (size_t)pipeline->options.depth;
  size_t readers = pipeline->options.readers;
  virtual_state *state = calloc(1, sizeof *state + flights * sizeof state->flights[0]);
  if (state != NULL) {
    pipeline->driver_state = state;
    state->storages[0].readers_ns = calloc(readers, sizeof(uint64_t));
    state->storages[1].readers_ns = calloc(readers, sizeof(uint64_t));
  }
  if (state == NULL || state->storages[0].readers_ns == NULL || state->storages[1].readers_ns == NULL) {
    if (state != NULL) virtual_stop(pipeline);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu simulated readers", readers);
  }
  state->pipeline = pipeline;
  for (size_t i = 0; i < flights; i++) {
    state->flights[i].state = state;
    state->flights[i].next = state->idle;
    state->idle = &state->flights[i];
  }
  return LADE_OK;
}

/* A simulated reader has up to four requests under way, as the kernel would take them. */
const ladei_pipe_driver ladei_pipe_driver_virtual = {
    .queue = 4,
    .start = virtual_start,
    .stop = virtual_stop,
    .kick = virtual_kick,
    .advance = virtual_kick,
    .wait = virtual_wait,
};
