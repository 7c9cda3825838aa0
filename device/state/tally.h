/* SPDX-License-Identifier: Apache-2.0 */
/* Tallies of what the code of a capture allocates and frees; model in tally.c. */
#ifndef LADE_DEVICE_STATE_TALLY_H
#define LADE_DEVICE_STATE_TALLY_H

#include "base/ordered_set.h"
#include "device/state/allocator.h"

/* The caller's, from begin to end. */
struct ladei_device_tally {
  struct ladei_device_tally *next;
  lade_device_pool_id pool;
  uint64_t thread;          /* whose calls are judged: ladei_thread_number() */
  ladei_ordered_set blocks; /* allocated and not freed since begin */
  bool refused;
  lade_error refusal; /* of the first call that was refused */
};

/* Between a pool's begin and end: tallies what comes from the pool, and judges the calling thread. No lock held. */
void ladei_device_tally_begin(lade_device_allocator *allocator, ladei_device_tally *tally, lade_device_pool_id pool);
/* The blocks stay as they are. No lock held. */
void ladei_device_tally_end(lade_device_allocator *allocator, ladei_device_tally *tally);

/* Frees what is left in it, for a capture that failed. Leaves the error record alone. No lock held. */
void ladei_device_tally_free_all(lade_device_allocator *allocator, ladei_device_tally *tally);

static inline bool ladei_device_tally_any(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->tallies.count, memory_order_relaxed) > 0;
}

/* Whether the calling thread runs the code of a capture that has one. No lock held. */
bool ladei_device_tally_judges(lade_device_allocator *allocator);

/* For the public calls, where there is any tally. */
typedef struct ladei_device_tally_entry ladei_device_tally_entry;
/* Before an allocation, so that what follows it cannot fail. */
lade_status ladei_device_tally_prepare(const char *call, ladei_device_tally_entry **out);
/* After it; the entry is taken. Refused, the memory is free again. */
lade_status ladei_device_tally_allocated(lade_device_allocator *allocator, ladei_device_tally_entry *entry,
                                         void *pointer, lade_stream stream);
/* An entry that was not needed; NULL does nothing. */
void ladei_device_tally_discard(ladei_device_tally_entry *entry);
/* Before a free: whether the calling thread may; not `judged`, it may. */
lade_status ladei_device_tally_take(lade_device_allocator *allocator, void *pointer, bool judged,
                                    ladei_device_tally_entry **out);
/* After one that failed. */
void ladei_device_tally_put_back(lade_device_allocator *allocator, ladei_device_tally_entry *entry);

#endif /* LADE_DEVICE_STATE_TALLY_H */
