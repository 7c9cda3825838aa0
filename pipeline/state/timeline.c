/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/state/timeline.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"

/* Threads that have a number; those that come later share the last one. A pipeline has fewer, callers aside. */
enum { THREADS_MOST = 1024 };

struct ladei_pipe_timeline {
  uint64_t size;  /* events that there is room for */
  uint64_t added; /* since creation; number n lies at n % size */
  lade_timeline_event *events;
  uint64_t *copied_ns[2]; /* by direction and slot: since when its copies have been queued */
  uint32_t thread_count;
  pthread_t threads[THREADS_MOST];
};

_Static_assert((int)LADE_TIMELINE_ACQUIRE == (int)LADEI_PIPE_ORDER_ACQUIRE &&
                   (int)LADE_TIMELINE_READ == (int)LADEI_PIPE_ORDER_READ &&
                   (int)LADE_TIMELINE_DEPENDENCY == (int)LADEI_PIPE_ORDER_DEPENDENCY &&
                   (int)LADE_TIMELINE_COPY == (int)LADEI_PIPE_ORDER_COPY &&
                   (int)LADE_TIMELINE_RECORD == (int)LADEI_PIPE_ORDER_RECORD &&
                   (int)LADE_TIMELINE_POLL == (int)LADEI_PIPE_ORDER_POLL &&
                   (int)LADE_TIMELINE_WRITE == (int)LADEI_PIPE_ORDER_WRITE &&
                   (int)LADE_TIMELINE_RELEASE == (int)LADEI_PIPE_ORDER_RELEASE &&
                   (int)LADE_TIMELINE_FINISH == (int)LADEI_PIPE_ORDER_FINISH,
               "events of orders have their numbers");

/* The events lie in a mapping: pages that no event reached cost nothing. */
static size_t events_bytes(const ladei_pipe_timeline *timeline) {
  return (size_t)timeline->size * sizeof timeline->events[0];
}

void ladei_pipe_timeline_destroy(ladei_pipe_timeline *timeline) {
  if (timeline == NULL) return;
  if (timeline->events != NULL) munmap(timeline->events, events_bytes(timeline));
  free(timeline->copied_ns[0]);
  free(timeline->copied_ns[1]);
  free(timeline);
}

lade_status ladei_pipe_timeline_create(uint64_t events, unsigned depth, ladei_pipe_timeline **out) {
  ladei_pipe_timeline *timeline = calloc(1, sizeof *timeline);
  if (timeline != NULL) {
    timeline->size = events;
    void *mapping = mmap(NULL, events_bytes(timeline), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    timeline->events = mapping == MAP_FAILED ? NULL : mapping;
    timeline->copied_ns[0] = calloc(depth, sizeof(uint64_t));
    timeline->copied_ns[1] = calloc(depth, sizeof(uint64_t));
  }
  if (timeline == NULL || timeline->events == NULL || timeline->copied_ns[0] == NULL ||
      timeline->copied_ns[1] == NULL) {
    ladei_pipe_timeline_destroy(timeline);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a timeline of %llu events",
                       (unsigned long long)events);
  }
  *out = timeline;
  return LADE_OK;
}

static uint32_t thread_number(ladei_pipe_timeline *timeline) {
  pthread_t self = pthread_self();
  uint32_t i = 0;
  while (i < timeline->thread_count && !pthread_equal(timeline->threads[i], self)) i++;
  if (i == timeline->thread_count && i < THREADS_MOST) timeline->threads[timeline->thread_count++] = self;
  return i < THREADS_MOST ? i + 1 : THREADS_MOST;
}

static void event_add(ladei_pipe_timeline *timeline, const lade_timeline_event *event) {
  timeline->events[timeline->added++ % timeline->size] = *event;
}

void ladei_pipe_timeline_add(ladei_pipe_timeline *timeline, lade_timeline_kind kind, uint64_t begin_ns,
                             uint64_t end_ns) {
  event_add(timeline,
            &(lade_timeline_event){
                .begin_ns = begin_ns, .end_ns = end_ns, .kind = (uint32_t)kind, .thread = thread_number(timeline)});
}

static uint64_t *copied_ns_of(ladei_pipe_timeline *timeline, const ladei_pipe_slot *slot) {
  unsigned side = slot->ring->direction == LADE_TO_DEVICE ? 0 : 1;
  return &timeline->copied_ns[side][slot - slot->ring->slots];
}

static void chunk_set(lade_timeline_event *event, const ladei_pipe_slot *slot) {
  if (slot == NULL || slot->transfer == NULL) return;
  event->transfer = slot->transfer->number + 1;
  event->offset = slot->offset;
  event->bytes = slot->bytes;
}

static void flights_add(ladei_pipe_timeline *timeline, const ladei_pipe_batch *batch, uint64_t end_ns) {
  const ladei_pipe_slot *slot;
  TAILQ_FOREACH (slot, &batch->slots, link) {
    lade_timeline_event event = {.begin_ns = *copied_ns_of(timeline, slot),
                                 .end_ns = end_ns,
                                 .kind = LADE_TIMELINE_FLIGHT,
                                 .direction = (int32_t)slot->ring->direction};
    chunk_set(&event, slot);
    event_add(timeline, &event);
  }
}

/* Of a chunk whose copies were queued together with those of the event's: that has all of the time. */
static void joined_add(ladei_pipe_timeline *timeline, lade_timeline_event event, const ladei_pipe_slot *slot) {
  event.begin_ns = event.end_ns;
  chunk_set(&event, slot);
  event_add(timeline, &event);
}

void ladei_pipe_timeline_add_order(ladei_pipe_timeline *timeline, const ladei_pipe_order *order, lade_status status,
                                   uint64_t begin_ns, uint64_t end_ns) {
  lade_timeline_event event = {.begin_ns = begin_ns,
                               .end_ns = end_ns,
                               .kind = (uint32_t)order->kind,
                               .thread = thread_number(timeline),
                               .direction = (int32_t)order->ring->direction,
                               .status = (int32_t)status};
  chunk_set(&event, order->slot);
  if (event.transfer == 0 && order->transfer != NULL) event.transfer = order->transfer->number + 1;
  event_add(timeline, &event);
  const ladei_pipe_slot *copied = order->kind == LADEI_PIPE_ORDER_COPY ? order->slot : NULL;
  for (const ladei_pipe_slot *slot = copied; slot != NULL; slot = slot->joined) {
    *copied_ns_of(timeline, slot) = end_ns;
    if (slot != copied) joined_add(timeline, event, slot);
  }
  if (order->kind == LADEI_PIPE_ORDER_POLL && status == LADE_OK) flights_add(timeline, order->batch, end_ns);
}

size_t ladei_pipe_timeline_copy(const ladei_pipe_timeline *timeline, lade_timeline_event *out, size_t capacity,
                                uint64_t *out_lost) {
  uint64_t kept = timeline->added < timeline->size ? timeline->added : timeline->size;
  size_t count = kept < capacity ? (size_t)kept : capacity;
  for (size_t i = 0; i < count; i++) out[i] = timeline->events[(timeline->added - count + i) % timeline->size];
  *out_lost = timeline->added - count;
  return count;
}
