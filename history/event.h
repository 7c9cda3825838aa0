/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One event of either cache, in a ring and in a copy of one.
 *
 * Rings hold `ticks`, a context record and a thread's tags, both counted; the device is the ring's. The public event is
 * made from these when it is read. lade_device_event has the same size, so that a copy is converted in place.
 */
#ifndef LADE_HISTORY_EVENT_H
#define LADE_HISTORY_EVENT_H

#include "history/contexts.h"
#include "history/threads.h"
#include "lade/device.h"

typedef union ladei_history_event {
  struct {
    uint64_t order; /* device: number of the event. Pinned: sort key of events; later their number, too */
    uint64_t ticks; /* clock.h */
    uint64_t address;
    uint64_t bytes;
    lade_stream stream;
    lade_device_pool_id pool;
    ladei_history_context *context; /* or the text of a note; counted. NULL: none */
    ladei_history_tags *tags;       /* counted; NULL: none */
    uint64_t what;                  /* action, pool of its segment, size of its block; read by the functions below */
  };
  lade_device_event shown;
} ladei_history_event;

_Static_assert(sizeof(ladei_history_event) == sizeof(lade_device_event), "an event is shown in place");

/*
 *   what:  | block_bytes 63..8 | SMALL 7 | LARGE 6 | lade_device_action 5..0 |
 *
 * block_bytes: includes rounding; 0: no block. SMALL, LARGE: pool of a segment.
 */
enum { LADEI_HISTORY_ACTION_MASK = 63, LADEI_HISTORY_LARGE = 64, LADEI_HISTORY_SMALL = 128 };

static inline uint64_t ladei_history_what_block(lade_device_action action, uint64_t block_bytes) {
  return (uint64_t)action | block_bytes << 8;
}
static inline uint64_t ladei_history_what_segment(lade_device_action action, bool is_large) {
  return (uint64_t)action | (is_large ? LADEI_HISTORY_LARGE : LADEI_HISTORY_SMALL);
}
static inline uint32_t ladei_history_what_action(uint64_t what) { return (uint32_t)what & LADEI_HISTORY_ACTION_MASK; }
static inline uint64_t ladei_history_what_block_bytes(uint64_t what) { return what >> 8; }

/* The text of a note; NULL: the event is no note. */
static inline const char *ladei_history_event_text(const ladei_history_event *event) {
  return event->context != NULL && event->context->is_label ? event->context->label : NULL;
}
/* The context that the program captured; NULL: none. */
static inline void *ladei_history_event_context(const ladei_history_event *event) {
  return event->context != NULL ? event->context->handle : NULL;
}

#endif /* LADE_HISTORY_EVENT_H */
