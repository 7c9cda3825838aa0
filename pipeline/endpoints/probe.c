/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timing copies of a direction, by device events before and after one of them: the first ones, and one now and then.
 *
 *   off                          chunks are not chosen by lade, or the driver refused
 *   idle --COPY: record--> busy --recorded--> pending --POLL: both events done--> busy --> idle
 *
 * I1  The thread that moves the state away from idle or pending owns the events until it moves it back.
 * I2  A copy is measured only if it has at least half of the length that the known rate asks for: a short one measures
 *     its start, and the events, more than the link. So the result makes longer copies, and these are measured next.
 *     Copies that avoid the link (within a device, from peers) are not counted: they can only make it seem slower.
 * I3  The known rate of a link only grows, and is known to all pipelines of the runtime that copy over it.
 *     Streams of one side take turns; while a measurement is due they do not overlap (ladei_pipe_probe_is_due).
 * I4  A failure here fails nothing else: the direction goes on with the chunks it has.
 * Locks: none; the state is atomic. Called by the threads that execute COPY and POLL.
 */
#include "pipeline/endpoints/probe.h"

#include "base/error.h"

enum { PROBE_OFF = 0, PROBE_IDLE, PROBE_PENDING, PROBE_BUSY };

/* Measurements without a break since the last gain: several, since one that shared its engine is too slow. Then one per
 * REST copies: others' use of the link may be over. */
enum { PROBES = 8, REST = 64 };

/* Shorter copies measure their start more than the link. */
enum { LEAST_BYTES = 256 << 10 };

static bool state_move(ladei_pipe_probe *probe, int from, int to) {
  return atomic_compare_exchange_strong_explicit(&probe->state, &from, to, memory_order_acquire, memory_order_relaxed);
}

static void state_set(ladei_pipe_probe *probe, int state) {
  atomic_store_explicit(&probe->state, state, memory_order_release);
}

lade_status ladei_pipe_probe_create(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe) {
  lade_status status = runtime->ops->event_create(runtime->self, stream->context, LADEI_EVENT_TIMING, &probe->begin);
  if (status == LADE_OK)
    status = runtime->ops->event_create(runtime->self, stream->context, LADEI_EVENT_TIMING, &probe->end);
  if (status == LADE_OK) {
    probe->left = PROBES;
    atomic_init(&probe->let, 0);
    state_set(probe, PROBE_IDLE);
  }
  return status;
}

lade_status ladei_pipe_probe_destroy(const lade_runtime *runtime, ladei_pipe_probe *probe) {
  lade_event *events[] = {&probe->begin, &probe->end};
  for (size_t i = 0; i < 2; i++) {
    if (*events[i] != NULL) {
      LADEI_TRY(runtime->ops->event_destroy(runtime->self, *events[i]));
      *events[i] = NULL;
    }
  }
  return LADE_OK;
}

/* Long enough to be measured, and its turn. */
static bool copy_counts(ladei_pipe_probe *probe, size_t bytes) {
  size_t known = atomic_load_explicit(&probe->link->chunk_bytes, memory_order_relaxed);
  if (bytes < LEAST_BYTES || bytes < known / 2) return false;
  unsigned let = atomic_load_explicit(&probe->let, memory_order_relaxed);
  if (let == 0) return true;
  atomic_store_explicit(&probe->let, let - 1, memory_order_relaxed); /* two at once count as one */
  return let == 1;
}

bool ladei_pipe_probe_begin(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe,
                            size_t bytes) {
  lade_error before;
  if (atomic_load_explicit(&probe->state, memory_order_relaxed) != PROBE_IDLE || !copy_counts(probe, bytes) ||
      !state_move(probe, PROBE_IDLE, PROBE_BUSY))
    return false;
  ladei_error_save(&before);
  bool begun = runtime->ops->event_record(runtime->self, probe->begin, stream) == LADE_OK;
  if (!begun) {
    ladei_error_restore(&before);
    state_set(probe, PROBE_OFF);
  }
  return begun;
}

bool ladei_pipe_probe_is_due(ladei_pipe_probe *probe) {
  return atomic_load_explicit(&probe->state, memory_order_relaxed) != PROBE_OFF &&
         atomic_load_explicit(&probe->let, memory_order_relaxed) <= 1;
}

void ladei_pipe_probe_end(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe,
                          size_t bytes) {
  lade_error before;
  ladei_error_save(&before);
  probe->bytes = bytes;
  bool recorded = bytes > 0 && runtime->ops->event_record(runtime->self, probe->end, stream) == LADE_OK;
  ladei_error_restore(&before);
  state_set(probe, recorded ? PROBE_PENDING : bytes > 0 ? PROBE_OFF : PROBE_IDLE);
}

/* Keeps the result of a measurement if it is more than the known one. */
static void chunk_learn(ladei_pipe_probe *probe, size_t chunk) {
  size_t known = atomic_load_explicit(&probe->link->chunk_bytes, memory_order_relaxed);
  while (chunk > known) {
    if (!atomic_compare_exchange_weak_explicit(&probe->link->chunk_bytes, &known, chunk, memory_order_relaxed,
                                               memory_order_relaxed))
      continue;
    probe->left = PROBES + 1; /* longer copies come */
    break;
  }
  if (probe->left > 0) probe->left--;
  atomic_store_explicit(&probe->let, probe->left > 0 ? 0 : REST, memory_order_relaxed);
}

void ladei_pipe_probe_read(const lade_runtime *runtime, ladei_pipe_probe *probe) {
  lade_error before;
  uint64_t ns;
  if (!state_move(probe, PROBE_PENDING, PROBE_BUSY)) return;
  ladei_error_save(&before);
  lade_status status = runtime->ops->event_query(runtime->self, probe->end);
  if (status == LADE_OK) status = runtime->ops->event_elapsed_ns(runtime->self, probe->begin, probe->end, &ns);
  if (status == LADE_OK) chunk_learn(probe, ladei_pipe_chunk_for_link(probe->bytes, ns));
  ladei_error_restore(&before);
  if (status == LADE_NOT_READY)
    state_set(probe, PROBE_PENDING);
  else
    state_set(probe, status == LADE_OK ? PROBE_IDLE : PROBE_OFF);
}
