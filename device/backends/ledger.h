/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ledger: what backends share that split no blocks themselves but pass every request on to a source.
 *
 *   source->take --> LIVE --free--> FREED --(streams noted: runtime/retire)--> GIVING: source->give --> gone
 *                                                                              ^  | refused
 *                                                                              +- REFUSED: tried again
 *
 * Each allocation has a record, found by any address inside it: so frees of wrong pointers are distinguished, uses by
 * other streams are waited for before the source gets the memory back, and the counters are kept whatever the source
 * is.
 *
 * L1  by_address holds exactly the LIVE, FREED and REFUSED records; their ranges do not overlap. `giving` holds the
 *     GIVING ones: once the source has the memory, it may hand it out again at any moment.
 * L2  allocation gauges sum LIVE records; active gauges and requested bytes sum all. A ledger has no pools: what the
 *     gauges keep under the large one is shown as the sum alone.
 * L3  `refused` holds exactly the REFUSED records, except those that a thread has taken out to try again.
 * L4  After stream_retire of a block's stream no call names that stream: its give says NULL instead. Gives under way
 *     that name it are waited for.
 * L5  A request is refused only for what it found while no other thread took or gave: takes and gives are slow paths
 *     and returns as in native/slow_path.c. Calls nested in the source's are the exception: they wait for no other
 *     thread (Note [Nested calls]).
 * Locks: the allocator's lock guards all; the source is called without it.
 */
#ifndef LADE_DEVICE_BACKENDS_LEDGER_H
#define LADE_DEVICE_BACKENDS_LEDGER_H

#include "base/ordered_set.h"
#include "base/slab.h"
#include "device/state/backend.h"

typedef enum ladei_device_record_state {
  LADEI_DEVICE_RECORD_NEW,     /* the source is asked for its memory */
  LADEI_DEVICE_RECORD_LIVE,    /* handed out */
  LADEI_DEVICE_RECORD_FREED,   /* its uses are waited for; then it is offered to the source */
  LADEI_DEVICE_RECORD_GIVING,  /* the source is asked to take it */
  LADEI_DEVICE_RECORD_REFUSED, /* the source did not take it */
} ladei_device_record_state;

typedef struct ladei_device_record {
  ladei_slab_head head;
  ladei_order_node order; /* in by_address, or in giving by its own address */
  struct ladei_device_record *next_refused;
  ladei_retire_ticket ticket; /* uses by other streams, and by its own if that was retired before the free */
  uint64_t address;
  size_t bytes;        /* as asked for */
  ladei_stream stream; /* that it was allocated on */
  ladei_device_record_state state;
  bool stream_retired; /* `stream` may be gone */
  bool stream_noted;   /* ... and its uses are in the ticket */
} ladei_device_record;

typedef struct ladei_device_ledger_source {
  /* Memory for a request; LADE_ERR_OUT_OF_DEVICE_MEMORY where there is none. */
  lade_status (*take)(lade_device_allocator *allocator, size_t bytes, const ladei_stream *stream, void **out);
  /*
   * Takes memory back. No stream but `stream`, on which it was allocated, may still use it; nor does that if `idle`.
   * NULL: that stream is gone. LADE_NOT_READY, like any failure: not now, it will be offered again.
   */
  lade_status (*give)(lade_device_allocator *allocator, void *pointer, size_t bytes, const ladei_stream *stream,
                      bool idle);
} ladei_device_ledger_source;

/* First member of a backend's state. */
typedef struct ladei_device_nested_call ladei_device_nested_call;

typedef struct ladei_device_ledger {
  const ladei_device_ledger_source *source;
  ladei_slab records;
  ladei_ordered_set by_address;
  ladei_ordered_set giving;
  ladei_device_record *refused; /* first in, first out */
  ladei_device_record **refused_end;
  atomic_size_t refused_count;     /* their number; written under the lock */
  ladei_device_nested_call *calls; /* under way; ledger.c, Note [Nested calls] */
} ladei_device_ledger;

/* `ledger` is allocator->backend_state. On failure nothing is left. */
lade_status ladei_device_ledger_open(lade_device_allocator *allocator, const ladei_device_ledger_source *source,
                                     uint32_t event_batch);
/* Nothing is LIVE. Gives everything back, waiting or not; then frees the records. */
lade_status ladei_device_ledger_close(lade_device_allocator *allocator, bool wait);

/* For backend tables. */
lade_status ladei_device_ledger_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);
lade_status ladei_device_ledger_free(lade_device_allocator *allocator, void *pointer);
lade_status ladei_device_ledger_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream);
lade_status ladei_device_ledger_stream_retire(lade_device_allocator *allocator, lade_stream stream);

/* Waits for all uses and for the device, and gives back what was freed. The first failure; what is left is tried
 * again. */
lade_status ladei_device_ledger_flush(lade_device_allocator *allocator);

/* Removes the pools from what is shown. */
void ladei_device_ledger_stats_complete(lade_device_stats *stats);

/* The LIVE record that `pointer` lies in (starts, if `exact`), or what is wrong with the pointer. Lock held. */
lade_status ladei_device_ledger_lookup(lade_device_allocator *allocator, const void *pointer, bool exact,
                                       const char *call, ladei_device_record **out);

/* Recounts L1 to L3; LADE_ERR_INTERNAL names the one broken. For tests; no call in flight. */
lade_status ladei_device_ledger_check(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_BACKENDS_LEDGER_H */
