/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device allocator as its own files see it: the heap (decisions) and what stands between it and the driver.
 *
 *   device.c       public calls, handed to the backend (backend.h); create, destroy
 *   settings.c     settings and limits
 *   allocator.c    calls of the native backend, the ladder of an allocation
 *   driver.c       driver calls for plain segments, and giving back
 *   expandable.c   driver calls for expandable segments
 *   finish.c       whether the work is over that may use memory that goes back
 *   slow_path.c        who grows and gives back beside whom, and when memory is out
 *   uses.c         uses by other streams: deferral during captures, runtime/retire
 *   private_pool.c captures into private pools
 *   checkpoint.c   state of a private pool, stored and set
 *   peer.c         questions about memory, access by other devices
 *   ipc.c          sharing driver allocations with other processes
 *   shared.c       sharing memory of expandable segments
 *   callbacks.c    reclaimers, observers of failures, trackers
 *   history.c      recording of events and contexts (history.h)
 *   history_api.c  history as the program sees it
 *   trackers.c     telling trackers
 *   snapshot.c     copies of segments and blocks
 *   report.c       statistics
 *   oom.c          report of an allocation that found no memory
 *   check.c        recount of the invariants
 *
 * Note [Calls without the lock]. No driver call is made under a lade lock: the driver may wait, take locks of its own,
 * or call back. So every step that needs the driver
 *   1. detaches what it is about: free blocks leave their set and become BUSY, budget is taken (`growing_bytes`);
 *   2. releases the lock, calls, takes the lock again;
 *   3. commits: the gauges move only now, so a failed call has nothing to take back but the detachment.
 * Meanwhile other threads allocate and free; they see BUSY blocks as neighbours that do not merge. What was read before
 * step 2 is not trusted after it. A thread that runs out of memory while another one has some in a driver call waits for
 * that one and tries again (`returns`; slow_path.c), so that no request fails for memory that was on its way.
 *
 * Locks: `lock` (LADEI_RANK_DEVICE) guards all fields that are not said to be constant or atomic.
 */
#ifndef LADE_DEVICE_STATE_ALLOCATOR_H
#define LADE_DEVICE_STATE_ALLOCATOR_H

#include <stdatomic.h>

#include "base/lock.h"
#include "device/heap/heap.h"
#include "device/observe/history.h"
#include "lade/device.h"
#include "runtime/ops.h"
#include "runtime/retire.h"

enum { LADEI_DEVICE_PEERS_MAX = 64, LADEI_DEVICE_CALLBACKS_MAX = 16 };

/* Callbacks of one kind, in order of adding. Function pointers are kept as the general kind and called as what they
 * were added as. */
typedef struct ladei_device_callback {
  void (*function)(void);
  void *user;
} ladei_device_callback;

typedef struct ladei_device_callbacks {
  ladei_device_callback list[LADEI_DEVICE_CALLBACKS_MAX];
  size_t count;
} ladei_device_callbacks;

typedef struct ladei_device_capture {
  struct ladei_device_capture *next;
  ladei_device_private_pool *pool;
  size_t stream_count; /* 0: every stream */
  uint64_t stream_keys[];
} ladei_device_capture;

typedef struct ladei_device_ipc_mapping ladei_device_ipc_mapping;       /* ipc.c */
typedef struct ladei_device_shared_mapping ladei_device_shared_mapping; /* shared.c */

struct lade_device_allocator {
  /* Constant. */
  const struct ladei_device_backend *backend;
  void *backend_state; /* the backend's own; NULL for the native one */
  lade_runtime *runtime;
  ladei_retire *retire; /* NULL where a backend waits for nothing itself */
  int device;
  uint64_t total_bytes; /* of the device */

  ladei_lock lock;
  ladei_device_heap heap;

  uint64_t max_bytes; /* cap of the options; UINT64_MAX: none */
  bool fraction_set;
  uint64_t fraction_bytes; /* limit on reserved bytes, if fraction_set */
  uint64_t growing_bytes;  /* driver allocations in flight */
  uint64_t held_bytes;     /* that the driver refused to take back (expandable.c, E2) */

  uint64_t returns_in_flight; /* threads that are giving memory back */
  uint64_t returns;           /* that have done so; tells a waiter that it is worth another try */
  uint64_t unmappings;        /* of those that give back, who unmap (expandable.c, E3) */
  uint64_t mappings;          /* of expandable segments, so far */
  ladei_condition returned;   /* for everything that one thread waits for another one here: also grants and climbs */

  /* slow_path.c */
  uint64_t climbers; /* threads below the cache: growing or giving back */
  uint64_t climbs;   /* begun so far */
  bool alone;        /* one climbs for the last time; the others wait */

  /* Devices that may use the memory. Appended under the lock, never changed: the first peer_count may be read by all. */
  int peers[LADEI_DEVICE_PEERS_MAX];
  atomic_size_t peer_count;
  atomic_size_t expandable_count; /* expandable segments; written under the lock */

  ladei_device_ipc_mapping *ipc_mappings; /* memory of other processes, open here */
  ladei_condition ipc_changed;            /* an entry of them is no longer busy */
  ladei_device_shared_mapping *shared_mappings;
  atomic_size_t import_count; /* entries of both; written under the lock */

  ladei_device_callbacks reclaimers;
  ladei_device_callbacks oom_observers;
  ladei_device_callbacks trackers;

  ladei_device_history history;
  atomic_bool watched; /* heap.listener is set; written under the lock */

  /* For the recounts of builds without NDEBUG (device.c). */
  atomic_size_t calls_since_recount;
  atomic_size_t calls_per_recount;

  ladei_device_capture *captures;   /* under way, in order of arrival */
  atomic_size_t capture_count;      /* their number; written under the lock */
  atomic_bool reference;            /* heap.settings.reference; written under the lock */
  ladei_device_block_list deferred; /* DEFERRED blocks, in order of their free */
  atomic_size_t deferred_count;     /* their number; written under the lock */
};

/* One allocation on its way through the ladder. */
typedef struct ladei_device_request {
  size_t requested;
  size_t rounded;
  size_t segment_bytes;
  ladei_stream stream;
  uint64_t stream_key;
  ladei_device_block_pool *pool;
  lade_device_pool_id pool_id; /* of a private pool, after a failure */
  uint64_t kept_bytes;         /* that captures kept from going back on its way through the ladder */
} ladei_device_request;

/* Key of a stream in ordered sets: the legacy stream first, others by age. */
static inline uint64_t ladei_device_stream_key(const ladei_stream *stream) {
  return stream->kind == LADEI_STREAM_LEGACY ? 0 : stream->id;
}

/* Whether a status says that memory ran out, so that giving some back may help. */
static inline bool ladei_device_is_exhausted(lade_status status) {
  return status == LADE_ERR_OUT_OF_DEVICE_MEMORY || status == LADE_ERR_LIMIT;
}

/* ---- device.c --------------------------------------------------------------------------------------------------- */

/* As the public call. events_only: never ask a stream whether it is done instead of recording an event; for replays, in
 * which only events are held back. */
lade_status ladei_device_allocator_create(lade_runtime *runtime, int device, const lade_device_options *options,
                                          bool events_only, lade_device_allocator **out);

/* NULL, or a child of the process that made it: the error. */
lade_status ladei_device_null(void); /* the error itself */
static inline lade_status ladei_device_check_call(const lade_device_allocator *allocator) {
  return allocator == NULL ? ladei_device_null() : ladei_runtime_check_process(allocator->runtime);
}

/* The error for a stream of another device. */
lade_status ladei_device_stream_elsewhere(const lade_device_allocator *allocator, int device);
/* Resolves a stream to allocate on: one of the allocator's device, else LADE_ERR_INVALID_ARGUMENT. No lock held. */
static inline lade_status ladei_device_stream_resolve(lade_device_allocator *allocator, lade_stream stream,
                                                      ladei_stream *out) {
  ladei_lock_assert_none_held();
  lade_status status = allocator->runtime->ops->stream_resolve(allocator->runtime->self, stream, out);
  if (status != LADE_OK || out->device == allocator->device) return status;
  return ladei_device_stream_elsewhere(allocator, out->device);
}

/* ---- allocator.c ------------------------------------------------------------------------------------------------ */

/* The block handed out that `pointer` lies in (starts, if `exact`), or what is wrong with the pointer. Lock held. */
lade_status ladei_device_block_lookup(lade_device_allocator *allocator, const void *pointer, bool exact,
                                      const char *call, ladei_device_block **out);

/* ---- driver.c ---------------------------------------------------------------------------------------------------- */

/* All of them: lock held at call and return, released in between. */

/* Whether `bytes` more may be reserved: LADE_OK, LADE_ERR_OUT_OF_DEVICE_MEMORY (fraction), LADE_ERR_LIMIT (options). */
lade_status ladei_device_driver_budget(lade_device_allocator *allocator, size_t bytes);

/* A new plain segment for the request; its block is BUSY. There is room for one more block after success. */
lade_status ladei_device_driver_segment_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                              ladei_device_block **out);

/*
 * Gives back the blocks of a list: plain segments by a free, granules of expandable ones by unmapping. What the driver
 * refuses becomes free again, and so does what would break a capture (finish.c), which is counted. Returned after all were
 * tried: the first refusal; LADE_ERR_CAPTURE where captures kept something, `kept_bytes` of the list, and nothing else
 * was refused.
 */
lade_status ladei_device_driver_give_back(lade_device_allocator *allocator, ladei_device_block_list *leaving);

/* Gives back the expandable segments among those marked `emptied` of which nothing is mapped. */
lade_status ladei_device_driver_release_emptied(lade_device_allocator *allocator);

/* Waits until no thread gives a peer access, so that memory may be unmapped (expandable.c, E3). What is to be unmapped
 * is then picked and given back without releasing the lock before. */
void ladei_device_driver_await_grants(lade_device_allocator *allocator);

/* Waits until no other thread is giving memory back, so that all segments can be seen. */
void ladei_device_driver_await_idle(lade_device_allocator *allocator);
/* The same; true if any has since `seen` (of allocator->returns) was read. */
bool ladei_device_driver_await_returns(lade_device_allocator *allocator, uint64_t seen);

/* Relaxed capture mode around driver calls that a capture of the thread would refuse. */
ladei_capture_mode ladei_device_driver_relax(const lade_device_allocator *allocator);
void ladei_device_driver_unrelax(const lade_device_allocator *allocator, ladei_capture_mode mode);

/* ---- finish.c ---------------------------------------------------------------------------------------------------- */

/*
 * Returns when the work is over that may use free memory of the segment: LADE_OK, also where the device is lost.
 * LADE_ERR_CAPTURE: it stays, as a capture forbids asking. Else why it is not known. `wait`: waits for the stream also where
 * it is idle. No lock held.
 */
lade_status ladei_device_segment_finish(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                        bool wait);
/* In the thread that the segment is got for: what finishing its own stream's work will need. No lock held. */
void ladei_device_segment_legacy_resolve(lade_device_allocator *allocator, ladei_device_heap_segment *segment);

/* An event after all work of a stream, in no segment. LADE_ERR_CAPTURE while the stream captures. No lock held. */
lade_status ladei_device_last_event_make(lade_device_allocator *allocator, const ladei_stream *stream,
                                         ladei_device_last_event **out);
/* Destroys a list. No lock held. */
void ladei_device_last_event_destroy(lade_device_allocator *allocator, ladei_device_last_event *list);
/* Destroys those that no segment refers to any more. No lock held. */
void ladei_device_last_events_drop(lade_device_allocator *allocator);

/* ---- slow_path.c ----------------------------------------------------------------------------------------------------- */

/* What a thread saw at the begin of its climb. */
typedef struct ladei_device_slow_path {
  bool beside; /* others were at it */
  uint64_t climbs;
} ladei_device_slow_path;

/* Around the part of a call that grows or gives back. Lock held; begin may wait. end: whether others did the same at
 * any moment in between, so that what was found missing may be there. */
void ladei_device_slow_path_begin(lade_device_allocator *allocator, ladei_device_slow_path *out);
bool ladei_device_slow_path_end(lade_device_allocator *allocator, const ladei_device_slow_path *climb);
/* The same with nobody else at it: begin waits for all that are. */
void ladei_device_slow_path_begin_alone(lade_device_allocator *allocator);
void ladei_device_slow_path_end_alone(lade_device_allocator *allocator);

/* ---- expandable.c ------------------------------------------------------------------------------------------------ */

/* A block of at least request->rounded bytes in an expandable segment, mapping what is missing; BUSY. Lock as above.
 * There is room for one more block after success. */
lade_status ladei_device_expandable_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                          ladei_device_block **out);

/* Unmaps a BUSY block of whole granules, without the lock. *out_gone is false if it stayed as it was. */
lade_status ladei_device_expandable_unmap(lade_device_allocator *allocator, const ladei_device_block *block,
                                          bool *out_gone);

/* Commits it, with the lock, if it is gone: a hole. */
void ladei_device_expandable_unmapped(lade_device_allocator *allocator, ladei_device_block *block);

/* Offers what the driver refused once more (E2). Lock as above; nobody gives a peer access. The first refusal. */
lade_status ladei_device_expandable_retry(lade_device_allocator *allocator);
/* The bytes of a HOLE, or BUSY hole of the caller's, that the driver has not taken back. */
uint64_t ladei_device_expandable_held(const ladei_device_block *block);

/* Gives back the addresses of a segment whose BUSY hole covers all of it. Lock as above. */
lade_status ladei_device_expandable_release(lade_device_allocator *allocator, ladei_device_heap_segment *segment);

/* Gives a device access to everything mapped in expandable segments, then calls `append` under the same hold of the lock
 * that found nothing left to do. On failure it was not called. No lock held. */
lade_status ladei_device_expandable_grant(lade_device_allocator *allocator, int peer,
                                          lade_status (*append)(lade_device_allocator *allocator, int peer));

/* ---- uses.c ------------------------------------------------------------------------------------------------------ */

/* For ladei_retire_options. */
void ladei_device_uses_done(void *owner, ladei_retire_ticket *list);
uint64_t ladei_device_uses_order(void *owner, const ladei_stream *stream);

/* Hands a block that has just become PENDING to the retire object. No lock held. */
void ladei_device_uses_add(lade_device_allocator *allocator, ladei_device_block *block);

/* Frees deferred during captures that are over get their events; then polls. No lock held. `flags` as
 * ladei_retire_poll. With LADE_DEVICE_REFERENCE it does nothing while a capture is under way. */
lade_status ladei_device_uses_process(lade_device_allocator *allocator, unsigned flags, uint64_t *out_done);
/* Whether it could find anything. */
static inline bool ladei_device_uses_waiting(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->heap.waiting_count, memory_order_relaxed) != 0;
}
/* Whether a block that is freed with uses must wait for the end of a capture, DEFERRED. Lock held. */
bool ladei_device_uses_deferrable(lade_device_allocator *allocator, ladei_device_block *block);
/* How to note the use of a block handed out: flags of ladei_retire_note. No lock held. */
unsigned ladei_device_uses_flags(const lade_device_allocator *allocator, const ladei_device_block *block,
                                 const ladei_stream *use);
/* The first half of ladei_device_uses_process. No lock held. */
void ladei_device_uses_settle_deferred(lade_device_allocator *allocator);

/* ---- private_pool.c ---------------------------------------------------------------------------------------------- */

/* NULL if there is none. Lock held. */
ladei_device_private_pool *ladei_device_private_pool_find(const ladei_device_heap *heap, lade_device_pool_id id);
/* Error record that names call and pool; returns `status`. */
lade_status ladei_device_private_pool_error(const lade_device_allocator *allocator, lade_status status,
                                            const char *call, lade_device_pool_id id, const char *what);

/* ---- callbacks.c ------------------------------------------------------------------------------------------------ */

/* Runs all reclaimers; whether any freed something. Lock held at call and return, released in between. */
bool ladei_device_callbacks_reclaim(lade_device_allocator *allocator);
/* Tells all observers. No lock held. */
void ladei_device_callbacks_tell_oom(lade_device_allocator *allocator, const lade_device_oom *oom);

/* ---- history.c, history_api.c, trackers.c ------------------------------------------------------------------------- */

/* Whether there is history or a tracker. */
static inline bool ladei_device_history_watched(const lade_device_allocator *allocator) {
  return atomic_load_explicit(&allocator->watched, memory_order_relaxed);
}
/* Takes the allocator's lock; reads the clock before, so that what follows has a time. */
static inline void ladei_device_history_lock(lade_device_allocator *allocator) {
  uint64_t now_ns = 0;
  if (ladei_device_history_watched(allocator)) now_ns = allocator->runtime->ops->now_ns(allocator->runtime->self);
  ladei_lock_acquire(&allocator->lock);
  if (now_ns > allocator->history.now_ns) allocator->history.now_ns = now_ns;
}

/*
 * A call of the program begins and ends, for calls that found somebody listening. No lock held. The first captures a
 * context where that is wanted from `level` on; the second tells trackers, and keeps the thread's error record.
 */
enum { LADEI_DEVICE_CONTEXT_NOT_WANTED = LADE_CONTEXT_ALL + 1 }; /* a level that is never reached */
void ladei_device_history_begin(lade_device_allocator *allocator, unsigned level, ladei_device_operation *op);
void ladei_device_history_end(lade_device_allocator *allocator, ladei_device_operation *op);

/* After a change of what is listened to: H4. Lock held. */
void ladei_device_history_watch(lade_device_allocator *allocator);
/* The last events go to the trackers, memory and contexts are released. Excludes every other call. No lock held. */
void ladei_device_history_destroy(lade_device_allocator *allocator);

/* Copies the ring's events before the one numbered `end`. No lock held. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_device_history_copy_take(lade_device_allocator *allocator, uint64_t end,
                                           ladei_device_history_copy *out);
/* Replaces the record of a context by what the program captured. */
void ladei_device_history_event_show(lade_device_event *event);

/* Note [Contexts] in history.h. The first under the lock, the second without it. */
void ladei_device_context_drop(ladei_device_history *history, ladei_device_context *context);
void ladei_device_context_bury(ladei_device_context *dead);

void ladei_device_trackers_queue(ladei_device_history *history, const lade_device_event *event,
                                 const lade_device_event_totals *totals);
/* Tells trackers what is queued, unless another thread does. Lock held at call and return, released in between. */
void ladei_device_trackers_tell(lade_device_allocator *allocator);

/* ---- report.c ---------------------------------------------------------------------------------------------------- */

/* Fills in what runtime/retire counts, if the backend uses it, and struct_size. No lock held. */
void ladei_device_report_retire_counters(lade_device_allocator *allocator, lade_device_stats *stats);

/* ---- ipc.c, shared.c --------------------------------------------------------------------------------------------- */

/* Whether the address lies in memory of another process that is open here. Lock held. */
bool ladei_device_ipc_has(const lade_device_allocator *allocator, const void *pointer);
bool ladei_device_shared_has(const lade_device_allocator *allocator, const void *pointer);

/* ---- shared.c ---------------------------------------------------------------------------------------------------- */

/* For destroy, which excludes other calls: whether the program has memory of other processes open; what failed opens and
 * clean-ups left behind goes back. */
bool ladei_device_shared_open(const lade_device_allocator *allocator);
lade_status ladei_device_shared_finish(lade_device_allocator *allocator);

/* ---- oom.c ------------------------------------------------------------------------------------------------------- */

/* The error of a request that no step of the ladder could serve; `status` is what the last one said, with its words in
 * the thread's error record. No lock held. */
lade_status ladei_device_report_exhausted(lade_device_allocator *allocator, const ladei_device_request *request,
                                          lade_status status);

/* Recounts the backend's invariants (heap.h, ledger.h); LADE_ERR_INTERNAL names the one broken. For tests; no call in
 * flight. */
lade_status ladei_device_allocator_check(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_STATE_ALLOCATOR_H */
