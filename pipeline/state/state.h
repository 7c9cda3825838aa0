/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of pipeline/: the pipeline, its tickets, its driver. Folders use only those to their left:
 *
 *   core        storage       state         endpoints                 drivers                  api
 *   what to do  how bytes of  objects,      checking, opening,        doing what the core      the public calls
 *   next        files move    pieces,       reading, writing,         says: threads, or
 *                             timeline      copying, checksums        virtual time on "sim"
 */
#ifndef LADE_PIPELINE_STATE_STATE_H
#define LADE_PIPELINE_STATE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/lock.h"

#include "base/living.h"
#include "host/parts/ring_share.h"
#include "host/source/topology.h"
#include "lade/pipeline.h"
#include "pipeline/core/adapt.h"
#include "pipeline/core/core.h"
#include "pipeline/state/pieces.h"
#include "pipeline/state/timeline.h"
#include "pipeline/storage/storage.h"
#include "runtime/event_pool.h"
#include "runtime/ops.h"
#include "runtime/unified.h"

typedef struct ladei_pipe_driver ladei_pipe_driver;

/* Times copies of one direction; see endpoints/probe.c. */
typedef struct ladei_pipe_probe {
  atomic_int state;
  ladei_link *link; /* its measurements */
  lade_event begin;
  lade_event end;
  size_t bytes;          /* of the copy between them */
  unsigned left;         /* measurements to come, one right after the other */
  _Atomic(unsigned) let; /* ... and after those: long copies left to pass before the next one */
} ladei_pipe_probe;

/* The device's stream and events of a copy stream of the core. */
typedef struct ladei_pipe_stream {
  ladei_stream stream;
  bool live;                               /* the stream exists */
  ladei_event *events[LADEI_PIPE_BATCHES]; /* of its batches; NULL until first needed */
} ladei_pipe_stream;

/* Resources of the copies of one direction. */
typedef struct ladei_pipe_side {
  ladei_pipe_stream copy_streams[LADEI_PIPE_COPY_STREAMS];
  ladei_pipe_probe probe;
  ladei_pipe_window window;      /* host orders at once; guarded by the pipeline's lock */
  ladei_link own_link;           /* where the runtime has none for the device */
  bool copies;                   /* counted among the link's copiers; guarded by the lock */
  unsigned others;               /* unfinished transfers that are not caller-run; guarded by the lock */
  ladei_pinned_ring_share share; /* blocks of the ring, as others on the pool see them */
} ladei_pipe_side;

struct lade_pipeline {
  lade_runtime *runtime;
  ladei_process owner; /* for tickets, which may outlive the runtime */
  lade_pinned_pool *pool;
  ladei_pinned_ring_shares *ring_shares; /* the pool's */
  ladei_pinned_ring_listener listener;   /* among them while the driver runs */
  ladei_living living;                   /* base/living: its own */
  ladei_event_pool *events;
  const ladei_pipe_driver *driver;
  void *driver_state;             /* the driver's own */
  lade_pipeline_options options;  /* with all choices made; max_transfers, readers, depth, chunk_bytes not 0 */
  ladei_unified unified;          /* of the device */
  uint64_t register_chunk_bytes;  /* of the pool; 0: its blocks lie in one registration each */
  bool chunk_chosen;              /* by lade: small transfers get smaller chunks, ... */
  bool chunk_adapts;              /* ... and the first and last chunks are short; blocks grow to the link's length */
  bool depth_chosen;              /* by lade: blocks stay in step with the window */
  bool readers_chosen;            /* by lade: fewer write a file where more are not faster */
  unsigned threads;               /* for drivers that have any */
  int devices;                    /* of the runtime */
  const ladei_topology *topology; /* the pool's; NULL: threads are not bound */
  int numa_node;                  /* of the device; -1: unknown */
  ladei_pipe_side sides[2];       /* to the device, to the host */
  ladei_pipe_storage storage;     /* of files; has its own locks */
  atomic_bool no_batch;           /* the driver has no batched copies: do not ask again */

  ladei_lock lock;         /* guards all below */
  ladei_condition changed; /* a transfer advanced; for callers that wait */
  ladei_pipe_core core;
  ladei_pipe_writers_table writers;
  ladei_pipe_timeline *timeline;  /* NULL: not wanted; the pointer is constant */
  unsigned submitting;            /* calls of submit that have their place among max_transfers, but no transfer yet */
  unsigned prefix_waiters;        /* calls that wait for the first bytes of a transfer */
  unsigned callbacks_stalled;     /* calls of the caller's that have taken 50 ms until now, ... */
  uint64_t callbacks_stalled_sum; /* ... and all that ever have */
  unsigned calls;                 /* on tickets, under way: destroy lets them come to their end */
  bool stopping;                  /* destroy drains it */
  bool closed;                    /* no submit any more: destroy cancels, or has ended the driver */
  uint64_t changes_since_recount; /* in builds without NDEBUG: see core_recount in drivers/execute.c */
  uint64_t changes_per_recount;
  unsigned references; /* 1 until destroyed, and one per ticket that is unreleased or unfinished */
};

/* One transfer. Freed when it is finished and released. */
struct lade_ticket {
  ladei_pipe_core_transfer transfer; /* guarded by the pipeline's lock */
  lade_pipeline *pipeline;
  bool to_device;
  bool released;           /* guarded by the pipeline's lock */
  bool caller_run;         /* calls do its work where they can; guarded by the pipeline's lock */
  ladei_event *dependency; /* recorded on the caller's stream, or NULL */
  int32_t checksum;        /* lade_checksum */
  uint64_t checksum_bytes;
  uint64_t *checksums; /* the caller's */
  lade_completion on_complete;
  void *on_complete_user;
  bool completes_in_calls;            /* calls may run on_complete, or there is none */
  ladei_pipe_pieces pieces;           /* constant */
  ladei_pipe_storage_file *files;     /* of the pieces, each once; constant until FINISH */
  ladei_pipe_write_place write_place; /* through the page cache; files 0: it writes no files there. Constant */
  bool straight; /* the host half moves bytes to and from the device: no copies. By cuFile, or ... */
  bool written;  /* ... into memory of the device that the host writes (runtime/unified.h) */
};

static inline lade_ticket *ladei_pipe_ticket_of(ladei_pipe_core_transfer *transfer) {
  /* The transfer is the first member. */
  return (lade_ticket *)(void *)transfer;
}

/* A call that waits. */
typedef struct ladei_pipe_waiting {
  uint64_t deadline_ns;
  ladei_pipe_ring *ring; /* where the awaited happens; NULL: in both */
  uint64_t since_ns;     /* the driver's own: since when it has done nothing useful; 0: it has */
} ladei_pipe_waiting;

/* Runs the core: takes orders, executes and completes them. */
struct ladei_pipe_driver {
  unsigned queue; /* host orders of one direction that it can have under way for each reader */
  bool threads;   /* executes orders on threads of its own, each of which a READ or WRITE keeps until it is over */
  lade_status (*start)(lade_pipeline *pipeline);
  /* The core is idle and pipeline->stopping is set. */
  void (*stop)(lade_pipeline *pipeline);
  /* There may be new orders. `ring`: those of a caller-run transfer there, just submitted; or NULL. Called without the
   * lock. */
  void (*kick)(lade_pipeline *pipeline, ladei_pipe_ring *ring);
  /* Makes all progress possible in the ring without time passing. Called without the lock. */
  void (*advance)(lade_pipeline *pipeline, ladei_pipe_ring *ring);
  /* Called with the lock, which is released meanwhile: lets some time pass. LADE_OK: look again. LADE_ERR_TIMEOUT: the
   * clock reached the deadline, or (virtual time) nothing can ever happen. Other errors: the clock cannot be moved. */
  lade_status (*wait)(lade_pipeline *pipeline, ladei_pipe_waiting *waiting);
};

/*
 * Note [Cancelled threads]
 * A thread may be cancelled (pthread_cancel) in a call. Opening and closing files, reads and writes, and steps inside
 * drivers are cancellation points: ended there, a call would keep its place among max_transfers, its ticket, or an
 * order that is never completed. So calls that reach such points hold cancellation off; waits are no such points. It
 * takes effect at the first cancellation point after the call. See base/cancellation.h.
 */

/* Finished and released. */
void ladei_pipe_ticket_free(lade_ticket *ticket);
/* Drops one reference and the lock. */
void ladei_pipe_unref_unlock(lade_pipeline *pipeline);

/* The time if there is a timeline, otherwise 0. */
static inline uint64_t ladei_pipe_timeline_now(const lade_pipeline *pipeline) {
  return pipeline->timeline != NULL ? pipeline->runtime->ops->now_ns(pipeline->runtime->self) : 0;
}

/* The time of the runtime's clock when that long will have passed. */
static inline uint64_t ladei_pipe_deadline_after(const lade_pipeline *pipeline, uint64_t timeout_ns) {
  uint64_t now = pipeline->runtime->ops->now_ns(pipeline->runtime->self);
  return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

static inline ladei_pipe_side *ladei_pipe_side_of(lade_pipeline *pipeline, const ladei_pipe_ring *ring) {
  return &pipeline->sides[ring->direction == LADE_TO_DEVICE ? 0 : 1];
}

static inline ladei_pipe_stream *ladei_pipe_stream_of(lade_pipeline *pipeline,
                                                      const ladei_pipe_copy_stream *copy_stream) {
  return &ladei_pipe_side_of(pipeline, copy_stream->ring)->copy_streams[copy_stream->index];
}

#endif /* LADE_PIPELINE_STATE_STATE_H */
