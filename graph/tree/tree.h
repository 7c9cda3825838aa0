/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph tree as the files of graph/tree see it, and one run in progress.
 *
 *   owner.c    the thread that owns the tree; effects delayed until it leaves
 *   life.c     creation, destruction, functions, steps
 *   buffers.c  buffers: any thread
 *   call.c     checks of a call
 *   run.c      a run: decides (core/), ends a path, acts, commits
 *   body.c     a body's context, and the fate of its memory
 *   record.c   recordings: capture, checkpoint, roll-back
 *   order.c    streams: waits of a run, forks and joins
 *   pool.c     the private pool: routes, restores, its blocks
 *   report.c   state, counters, dumps, checks
 *   memory.c   reserve, trim
 *
 * Ownership. A thread that runs a function, or changes the tree otherwise, is its *owner*: `owned` is set, others wait.
 * Only the owner calls driver, allocator and bodies, with no lock held, and changes the core. It changes under the lock
 * the fields that other threads read meanwhile (slots, and whether their storages are lost). A release or retain by
 * another thread is noted in its slot, and the owner applies it when it leaves; if there is no owner, the thread itself
 * becomes the owner for that.
 *
 * T1  Without an owner no slot has anything queued, nor takes.
 * T2  In NONE and EXECUTION no block of the pool is handed out; otherwise exactly those of the path's alive storages.
 * T3  State, path, lists and handles change when nothing can fail any more. Earlier steps can be undone (record.c), or
 *     are documented to remain when a run fails (lade_graph_tree_run).
 * T4  Work on a stream is ordered after everything that ran before (order.c).
 * Locks: tree->lock (LADEI_RANK_TREE) guards the fields named above; no driver or allocator call or callback under it.
 */
#ifndef LADE_GRAPH_TREE_TREE_H
#define LADE_GRAPH_TREE_TREE_H

#include "base/lock.h"
#include "base/sort_keys.h"
#include "graph/core/core.h"
#include "lade/copy.h"
#include "runtime/event_pool.h"
#include "runtime/ops.h"

/* The known segments of the pool, by address. */
typedef struct ladei_tree_segments {
  lade_device_range *list;
  size_t count;
} ladei_tree_segments;

/* An output before the commit. */
typedef struct ladei_tree_out {
  uint32_t kind;    /* lade_graph_output_kind */
  uint32_t source;  /* as in ladei_tree_node_output */
  uint64_t address; /* or the number */
  uint64_t bytes;
  uint64_t block;
  uint64_t block_bytes;
  ladei_tree_position position;
  ladei_tree_storage *storage; /* NULL: none */
  bool counted;                /* the output has a count and a reference of the storage */
  /* The body's naming. */
  uint32_t named; /* ladei_tree_named */
  uint32_t index; /* of the local or the input */
} ladei_tree_out;

/* Whether its memory goes into the path's row. */
static inline bool ladei_tree_out_in_row(const ladei_tree_out *out) {
  return out->kind == LADE_GRAPH_OUTPUT_NEW || out->kind == LADE_GRAPH_OUTPUT_SAME ||
         out->kind == LADE_GRAPH_OUTPUT_PRIOR;
}

typedef enum ladei_tree_named {
  LADEI_TREE_NAMED_NOT,
  LADEI_TREE_NAMED_LOCAL,
  LADEI_TREE_NAMED_INPUT,
  LADEI_TREE_NAMED_OLDER,
  LADEI_TREE_NAMED_OUTSIDE,
  LADEI_TREE_NAMED_INTEGER,
} ladei_tree_named;

/* The driver's objects of a recording. Made before them, to keep those that the driver refuses to take back. */
typedef struct ladei_tree_native {
  struct ladei_tree_native *next; /* of the refused ones */
  ladei_graph graph;              /* NULL: gone; so is the next */
  ladei_graph_exec exec;
} ladei_tree_native;

typedef struct ladei_tree_lost_slot {
  ladei_tree_slot *slot;
  ladei_tree_end how;
  lade_graph_lost lost;
  uint64_t serial;
} ladei_tree_lost_slot;

/* Failures that ladei_tree_fail_next() causes, for tests. */
typedef enum ladei_tree_fault {
  LADEI_TREE_FAULT_CALLBACK = 1 << 0, /* at the end of the body: LADE_ERR_CALLBACK */
  LADEI_TREE_FAULT_INSTANTIATE = 1 << 1,
  LADEI_TREE_FAULT_CHECKPOINT_GET = 1 << 2, /* the recording becomes a warm-up */
  LADEI_TREE_FAULT_CHECKPOINT_SET = 1 << 3, /* the run becomes an eager one */
  LADEI_TREE_FAULT_COPY = 1 << 4,           /* of inputs into the pool */
  LADEI_TREE_FAULT_LAUNCH = 1 << 5          /* the driver's: LADE_ERR_DRIVER */
} ladei_tree_fault;

struct lade_graph_tree {
  /* Constant. */
  lade_runtime *runtime;
  lade_device_allocator *allocator, *outside;
  int device;
  lade_device_pool_id pool;
  struct ladei_device_private_pool *memory; /* the same */
  ladei_stream stream;
  ladei_event_pool *events;
  lade_graph_hook before, after;
  void *hook_user;

  ladei_lock lock;
  ladei_condition left; /* the owner has left, or a buffer has ended */
  bool owned;
  uint64_t owner; /* thread */
  ladei_tree_slot *queue, **queue_end;
  _Atomic(uint32_t)
      releasing; /* threads in lade_graph_buffer_release(): a destruction waits for their last access to the tree */

  /* The owner's. */
  ladei_tree_core core;
  ladei_tree_path ending; /* a path that has left the core; its end may still be undone */
  lade_graph_function *functions;
  ladei_tree_segments segments;
  uint64_t foreign_segments;   /* of the pool, for other streams than the tree's */
  ladei_tree_storage *garbage; /* storages without counts; their blocks are to be freed */
  ladei_tree_native *refused;  /* offered to the driver again by each recording and the destruction */
  uint32_t faults;             /* for the next run */
  lade_graph_log log;
  void *log_user;
  lade_graph_log_level log_level;
  lade_graph_tree_stats stats;
  uint64_t metadata_bytes, alone_bytes, checkpoint_blocks; /* of listed recordings */

  /* order.c */
  ladei_stream last;         /* of the last run; context 0: none */
  ladei_event *last_event;   /* covers it, if the stream cannot be used later */
  ladei_event *own_event;    /* the same for the run under way */
  ladei_event *gates;        /* of streams that cannot be used later. Guard: lock, as for the fields of `noted` */
  ladei_event *gates_waited; /* those that the run under way waits for; the owner's */
  ladei_stream *noted;
  size_t noted_count, noted_capacity;
  size_t noted_waited; /* this many of the first are for the run under way */
  uint64_t notes;      /* number so far, repeated notes of a stream included */

  /* Room for a call of any function. */
  size_t input_room, output_room;
  ladei_sort_key *order; /* of the inputs of functions that write to some */
  size_t order_room;
  ladei_tree_input *inputs;
  lade_copy_piece *copies; /* of inputs */
  uint32_t *classes, *carried, *kinds;
  void **carried_blocks;
  ladei_tree_out *outs;
  lade_graph_value *values;
  ladei_tree_lost_slot *lost;
  size_t lost_count, lost_room;
  lade_graph_lost *lost_list;
};

/* One run. */
typedef struct ladei_tree_run {
  lade_graph_tree *tree;
  lade_graph_function *function;
  ladei_tree_call call;
  ladei_tree_plan plan;
  ladei_stream stream;  /* the caller's */
  bool is_ordered;      /* the stream waits for all earlier work */
  bool has_carried;     /* tree->carried_blocks belong to the run */
  bool end_open;        /* the path has left the core, and its end can be undone */
  lade_graph_state was; /* before the run */
  bool was_pending;
  bool did_restore;
  lade_device_checkpoint *before; /* of the pool, for a roll-back */
  int64_t evicted;
  uint32_t reason; /* of an eager run */
  uint32_t faults;
  lade_graph_value *outputs;
  size_t out_count;
} ladei_tree_run;

/* ---- owner.c ----------------------------------------------------------------------------------------------------- */

/* Makes the caller the owner. LADE_ERR_BUSY in a callback of the tree; in one of another tree, if this tree is
 * owned. */
lade_status ladei_tree_enter(lade_graph_tree *tree, const char *call);
/* The same for a run: not from within a run of another tree either. */
lade_status ladei_tree_enter_run(lade_graph_tree *tree, const char *call);
/* For reads: also from within a callback; then *out_inside is set, and the caller does not leave. */
lade_status ladei_tree_enter_reading(lade_graph_tree *tree, const char *call, bool *out_inside);
/* Makes the caller the owner of a tree that has none. With the lock. */
void ladei_tree_own_locked(lade_graph_tree *tree);
/* Whether its pool is suspended, by whatever call. No lock held. */
bool ladei_tree_suspended(const lade_graph_tree *tree);
/* Until the end the pool cannot be suspended. LADE_ERR_BUSY, without an end, if it is suspended. No lock held. */
lade_status ladei_tree_awake_begin(const lade_graph_tree *tree, const char *call);
void ladei_tree_awake_end(const lade_graph_tree *tree);
/* As the owner, with the lock, which is released in between: applies queued counts, frees memory without counts. */
void ladei_tree_settle_locked(lade_graph_tree *tree);
/* The same, then gives up the tree. */
void ladei_tree_leave(lade_graph_tree *tree);
void ladei_tree_leave_locked(lade_graph_tree *tree); /* with the lock, which is released */
/* The owner frees the block of a storage without counts, if it has one, when it leaves. With the lock. */
void ladei_tree_garbage_add(lade_graph_tree *tree, ladei_tree_storage *storage);

/* ---- life.c ------------------------------------------------------------------------------------------------------ */

/* Destroys a recording that is in no list or path and has no children; then each parent for which that is true now. */
void ladei_tree_node_forget(lade_graph_tree *tree, ladei_tree_node *node);
void ladei_tree_node_evict(lade_graph_tree *tree, ladei_tree_node *node);
/* Gives all of it back to the driver, now or later; also in the code of a program's capture. NULL does nothing. */
void ladei_tree_native_drop(lade_graph_tree *tree, ladei_tree_native *native);
/* Offers the refused objects to the driver again. Returns the first refusal. */
lade_status ladei_tree_refused_drop(lade_graph_tree *tree);
void ladei_tree_function_forget(lade_graph_function *function);
/* Drops a path that has left the core. */
void ladei_tree_ending_clear(lade_graph_tree *tree);
static inline const lade_runtime_ops *ladei_tree_ops(const lade_graph_tree *tree) { return tree->runtime->ops; }

/* ---- call.c ------------------------------------------------------------------------------------------------------ */

/* Reads the inputs into tree->inputs and counts takes; on failure nothing is left. `instance` comes later. */
lade_status ladei_tree_call_read(lade_graph_tree *tree, lade_graph_function *function, const lade_graph_call *call,
                                 ladei_tree_call *out);
void ladei_tree_call_reset(lade_graph_tree *tree, const ladei_tree_call *call);
/* LADE_ERR_OVERWRITTEN or LADE_ERR_FOREIGN_POINTER, with a text. */
lade_status ladei_tree_buffer_error(const lade_graph_tree *tree, const char *call, lade_graph_buffer buffer,
                                    ladei_tree_found found, const ladei_tree_slot *slot, bool known);
/* The instance of a key, made if there is none. */
lade_status ladei_tree_instance_get(lade_graph_function *function, const lade_graph_call *call,
                                    ladei_tree_instance **out);

/* ---- body.c ------------------------------------------------------------------------------------------------------ */

/* A block of the run that outputs lie in. */
typedef struct ladei_tree_owned {
  ladei_tree_storage *storage; /* NULL: none has it yet */
  uint32_t output;             /* the last one so far */
} ladei_tree_owned;

typedef struct ladei_tree_local {
  uint64_t address, bytes;
  ladei_tree_owned owned;
  bool freed;
  bool is_output;
  bool adopted; /* from lade_device_alloc() */
  bool lent;    /* ... and the body's free of it is awaited */
} ladei_tree_local;

typedef struct ladei_tree_body_input {
  uint64_t address;       /* the body's address of it */
  uint64_t block;         /* recordings: the pool's block of a copied input; 0: none, or freed */
  ladei_tree_owned owned; /* the copy */
  bool dropped, is_output;
  bool given_up; /* its take is done */
} ladei_tree_body_input;

typedef struct ladei_tree_pool_use {
  uint64_t served, bytes;
} ladei_tree_pool_use;

typedef struct ladei_tree_context {
  lade_graph_context shown; /* first: the body's calls come back with its address */
  ladei_tree_run *run;
  ladei_tree_local *locals;
  size_t local_count, local_capacity;
  uint32_t *table; /* by address: index + 1 */
  size_t table_count;
  ladei_tree_body_input *inputs;
  size_t input_count;         /* 0: there was no memory for them */
  ladei_sort_key *by_address; /* of the inputs, after a search among many: body.c, input_find() */
  ladei_sort_key *older;      /* of the path's memories, after a search among many: body.c, older_order() */
  size_t older_count;
  ladei_tree_pool_use pool_use; /* of a recording: between the capture's begin and end */
  lade_device_range *ranges;    /* of the pool: those handed out so far */
  size_t range_count, range_capacity;
} ladei_tree_context;

lade_status ladei_tree_context_open(ladei_tree_context *context, ladei_tree_run *run, lade_graph_stage stage,
                                    lade_stream stream);
void ladei_tree_context_close(ladei_tree_context *context);
/* Recordings: memory of the pool for the copied inputs. */
lade_status ladei_tree_context_inputs(ladei_tree_context *context);
/* Hooks and body; LADE_ERR_CALLBACK also for outputs that were not named. */
lade_status ladei_tree_context_call(ladei_tree_context *context);
/* Frees blocks in the pool that are not known (B1 in body.c); LADE_ERR_CALLBACK lists them. */
lade_status ladei_tree_context_leftovers(ladei_tree_context *context);
/* Gives outputs their kinds and counts, frees and gives up everything else. Cannot fail. */
void ladei_tree_context_settle(ladei_tree_context *context);
/* Frees what the body has allocated and not freed. */
void ladei_tree_context_free_locals(ladei_tree_context *context);
/* Drops the counts of outputs. */
void ladei_tree_outs_drop(ladei_tree_run *run);
/* Restores takes that were given up. */
void ladei_tree_context_takes_return(ladei_tree_context *context);
void ladei_tree_give_up(ladei_tree_run *run, size_t input, bool free_block);

/* ---- run.c, record.c --------------------------------------------------------------------------------------------- */

/* Makes the end of the path that has left final: its memory is lost. */
void ladei_tree_end_commit(ladei_tree_run *run);
/* Makes handles of the outputs, and the node the current one. Cannot fail. */
void ladei_tree_commit(ladei_tree_run *run, ladei_tree_node *node, lade_graph_state state);
/* Copies inputs to the node's addresses of them. */
lade_status ladei_tree_copy_inputs(ladei_tree_run *run, const ladei_tree_node *node);
lade_status ladei_tree_launch(ladei_tree_run *run, const ladei_tree_node *node);
/* Begins the path's end: carries inputs, frees blocks, takes it out of the core. On failure nothing has changed. */
lade_status ladei_tree_path_end(ladei_tree_run *run);
/* Brings the pool to its state after the current node. On failure nothing has changed. */
lade_status ladei_tree_restore(ladei_tree_run *run);
lade_status ladei_tree_record(ladei_tree_run *run);
lade_status ladei_tree_eager(ladei_tree_run *run, uint32_t reason);

/* ---- order.c ----------------------------------------------------------------------------------------------------- */

/* Makes the stream wait for all earlier work of the tree. */
lade_status ladei_tree_order_before(lade_graph_tree *tree, const ladei_stream *stream);
/* Forgets that work afterwards: the stream covers it. */
void ladei_tree_order_commit(lade_graph_tree *tree, const ladei_stream *stream);
/* Makes `to` wait for the work queued on `from`. */
lade_status ladei_tree_order_between(lade_graph_tree *tree, const ladei_stream *from, const ladei_stream *to);
/* The next run will wait for the work that is queued on the stream by then. Any thread. */
lade_status ladei_tree_order_note(lade_graph_tree *tree, const ladei_stream *stream);
void ladei_tree_order_forget(lade_graph_tree *tree);

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */

/* Takes the pool for the tree alone, since blocks found in it after a body are freed. It must be empty: otherwise
 * LADE_ERR_INVALID_ARGUMENT names its use. */
lade_status ladei_tree_pool_own(lade_graph_tree *tree);
void ladei_tree_pool_disown(lade_graph_tree *tree);
/* Between enter and leave this thread's calls on the pool count as the tree's own; other calls are refused. No body or
 * callback in between, and no nesting. */
void ladei_tree_pool_enter(lade_graph_tree *tree);
void ladei_tree_pool_leave(lade_graph_tree *tree);

typedef struct ladei_tree_routes {
  uint64_t scopes[2];
  size_t scope_count;
  bool capture;
} ladei_tree_routes;

/* Routes allocations of the tree's stream and of the thread to the pool. */
lade_status ladei_tree_routes_begin(lade_graph_tree *tree, bool capture, ladei_tree_routes *out);
void ladei_tree_routes_end(lade_graph_tree *tree, ladei_tree_routes *routes);

/* The blocks of the pool that are handed out, by ascending address. */
typedef struct ladei_tree_blocks {
  lade_device_range *list;
  size_t count;
} ladei_tree_blocks;
/* Reads them, and the tree's list of segments. Caller frees out->list. */
lade_status ladei_tree_pool_read(lade_graph_tree *tree, ladei_tree_blocks *out);
/* The most bytes that the pool held from the driver. */
uint64_t ladei_tree_pool_peak(lade_graph_tree *tree);
/* Between them: the requests routed to the pool, and the most bytes handed out from it beyond those at the begin. */
void ladei_tree_pool_use_begin(lade_graph_tree *tree, ladei_tree_pool_use *use);
void ladei_tree_pool_use_end(lade_graph_tree *tree, ladei_tree_pool_use *use);
/* Whether a byte of the range lies in the pool. */
bool ladei_tree_pool_has(const lade_graph_tree *tree, uint64_t address, uint64_t bytes);
/* The block that the allocator has handed out at the address; false: none is known. */
bool ladei_tree_block_at(lade_device_allocator *allocator, uint64_t address, lade_device_range *out);
/* The pool's block that is handed out at the address; false: none. */
bool ladei_tree_pool_block(const lade_graph_tree *tree, uint64_t address, lade_device_range *out);
/* Brings the pool to a checkpoint: alive storages of the path get their blocks, other blocks are freed. */
lade_status ladei_tree_pool_restore(lade_graph_tree *tree, const lade_device_checkpoint *checkpoint);
/* Frees the blocks of the path's storages, by position. */
void ladei_tree_path_free_blocks(lade_graph_tree *tree, ladei_tree_path *path);
void ladei_tree_block_free(lade_graph_tree *tree, uint64_t address);
/* Checks T2, and the core's invariants. */
lade_status ladei_tree_check(lade_graph_tree *tree);

/* Checks T2 and the core's invariants, as a call of its own: for tests. Builds without NDEBUG do so after each run. LADE_ERR_INTERNAL
 * names the fault; LADE_ERR_BUSY, LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_tree_verify(lade_graph_tree *tree);

/* Lets the next run fail, so that tests see what it leaves. Faults (ladei_tree_fault) of several calls add up. They are forgotten at
 * that run's end, whether it came to them or not. */
lade_status ladei_tree_fail_next(lade_graph_tree *tree, uint32_t faults);

#endif /* LADE_GRAPH_TREE_TREE_H */
