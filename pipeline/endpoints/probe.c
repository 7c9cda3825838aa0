/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timing the first copies of a direction, by events of the device before and after one of them.
 *
 *   off                          chunks are not chosen by lade, or enough was measured, or the driver refused
 *   idle --COPY: record--> busy --recorded--> pending --POLL: both events done--> busy --> idle
 *
 * I1  Who moves the state away from idle or pending owns the events until it moves it back.
 * I2  What fails here fails nothing else: the direction goes on with the chunks it has.
 * Locks: none; the state is atomic. Called by the threads that execute COPY and POLL.
 */
#include "pipeline/endpoints/probe.h"

#include "base/error.h"

enum { PROBE_OFF = 0, PROBE_IDLE, PROBE_PENDING, PROBE_BUSY };

/* Measurements of a direction: some, since one that shared its engine comes out too slow. */
enum { PROBES = 8 };

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
    state_set(probe, PROBE_IDLE);
  }
  return status;
}

lade_status ladei_pipe_probe_destroy(const lade_runtime *runtime, ladei_pipe_probe *probe) {
  lade_event *events[] = {&probe->begin, &probe->end};
  for (size_t i = 0; i < 2; i++) {
    if (*events[i] != NULL) {
      lade_status status = runtime->ops->event_destroy(runtime->self, *events[i]);
      if (status != LADE_OK) return status;
      *events[i] = NULL;
    }
  }
  return LADE_OK;
}

bool ladei_pipe_probe_begin(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe,
                            size_t bytes) {
  lade_error before;
  if (bytes < LEAST_BYTES || !state_move(probe, PROBE_IDLE, PROBE_BUSY)) return false;
  ladei_error_save(&before);
  probe->bytes = bytes;
  bool begun = runtime->ops->event_record(runtime->self, probe->begin, stream) == LADE_OK;
  if (!begun) {
    ladei_error_restore(&before);
    state_set(probe, PROBE_OFF);
  }
  return begun;
}

void ladei_pipe_probe_end(const lade_runtime *runtime, const ladei_stream *stream, ladei_pipe_probe *probe,
                          bool copied) {
  lade_error before;
  ladei_error_save(&before);
  bool recorded = copied && runtime->ops->event_record(runtime->self, probe->end, stream) == LADE_OK;
  ladei_error_restore(&before);
  state_set(probe, recorded ? PROBE_PENDING : PROBE_OFF);
}

void ladei_pipe_probe_read(const lade_runtime *runtime, ladei_pipe_probe *probe) {
  lade_error before;
  uint64_t ns;
  if (!state_move(probe, PROBE_PENDING, PROBE_BUSY)) return;
  ladei_error_save(&before);
  lade_status status = runtime->ops->event_query(runtime->self, probe->end);
  if (status == LADE_OK) status = runtime->ops->event_elapsed_ns(runtime->self, probe->begin, probe->end, &ns);
  if (status == LADE_OK) {
    size_t chunk = ladei_pipe_chunk_for_link(probe->bytes, ns);
    if (chunk > atomic_load_explicit(&probe->chunk_bytes, memory_order_relaxed))
      atomic_store_explicit(&probe->chunk_bytes, chunk, memory_order_relaxed);
    probe->left--;
  }
  ladei_error_restore(&before);
  if (status == LADE_NOT_READY)
    state_set(probe, PROBE_PENDING);
  else
    state_set(probe, status == LADE_OK && probe->left > 0 ? PROBE_IDLE : PROBE_OFF);
}
