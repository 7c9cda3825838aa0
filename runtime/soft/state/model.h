/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Software devices: the model that both clocks share.
 *
 *   stream   head [copy 7] -> [wait for 3 of stream B] -> [fill 9] tail       numbers 1, 2, 3 ... for life
 *                  | at the head, and its stream not held: ready
 *                  v
 *   engine   H2D | D2H | compute | peer | host of a device: first ready, first served, one piece of work at a time
 *                  | its clock says when it is done: virtual time ("sim") or a thread that copies ("cpu")
 *                  v
 *   stream   completed = 7; streams that waited for 7, threads that waited for 7, go on
 *
 * An event is a (stream, number) pair: recording one queues nothing, asking one compares two numbers.
 *
 * I1  Of a stream, only the head is ready or runs. completed <= submitted, both never fall, also when the stream object
 *     serves a later stream.
 * I2  A stream is in the waiters list of the one stream that its head waits for, and nowhere else.
 * I3  A piece of work is in at most one of: its stream's queue, unready; an engine's queue; an engine's hands.
 * I4  The program may know that the work up to `observed` has finished: a query or a wait told it, or a host function.
 * I5  The bytes of a range stay mapped while work that names the range is queued or runs (inflight > 0), also after the
 *     program freed it; such work then has no effect and is counted as a use of freed memory.
 * I6  charged device memory = sum over live ranges, handles and pools of what each was charged.
 *
 * Locks: rt->lock guards everything but the atomics named so. It is the innermost lock: under it nothing is called that
 * waits or runs the program's code. Host functions, destructors of user objects, timers and the copies themselves run
 * without it. On "sim" there is no lock, as one thread at a time owns the runtime.
 */
#ifndef LADE_RUNTIME_SOFT_MODEL_H
#define LADE_RUNTIME_SOFT_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/lock.h"
#include "runtime/ops.h"
#include "runtime/ops_list.h"
#include "runtime/soft/soft.h"
#include "runtime/soft/state/table.h"
#include "runtime/soft/state/tree.h"

typedef enum soft_op {
#define SOFT_OP_ENUMERATOR(name, group) SOFT_OP_##name,
  LADEI_OPS_LIST(SOFT_OP_ENUMERATOR)
#undef SOFT_OP_ENUMERATOR
      SOFT_OP_COUNT
} soft_op;

enum { SOFT_MAX_DEVICES = 64 };

typedef struct soft_runtime soft_runtime;
typedef struct soft_device soft_device;
typedef struct soft_stream soft_stream;
typedef struct soft_event soft_event;
typedef struct soft_node soft_node;
typedef struct soft_exec soft_exec;
typedef struct soft_capture soft_capture;
typedef struct soft_pool soft_pool;
typedef struct soft_vm soft_vm;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef enum soft_range_kind {
  SOFT_RANGE_DEVICE,     /* device_alloc */
  SOFT_RANGE_RESERVED,   /* vm_reserve: addresses; its memory is in rt->mappings */
  SOFT_RANGE_POOL,       /* a block of a driver pool, device or host memory */
  SOFT_RANGE_HOST,       /* host_alloc */
  SOFT_RANGE_REGISTERED, /* host_register: the program's own memory */
} soft_range_kind;

/* Memory or addresses that an op handed out or pinned. */
typedef struct soft_range {
  soft_tree_node node; /* in rt->ranges, by first address, while live */
  size_t bytes;        /* as asked for */
  size_t mapped_bytes; /* to unmap when the range goes; 0: no mapping of its own */
  size_t charged;      /* device memory that it counts for */
  soft_range_kind kind;
  int32_t device;
  bool host;      /* pinned host memory, else device memory */
  bool has_bytes; /* false on an addresses-only device */
  bool live;
  unsigned flags;          /* of host_alloc, host_register */
  uint32_t inflight;       /* queued or running work that names it */
  uint32_t running;        /* running work that names it, "cpu" only */
  uint32_t ipc_opens;      /* ipc_open calls not closed */
  soft_pool *pool;         /* of a POOL range */
  soft_stream *free_owner; /* POOL, freed: usable again when free_owner->completed reaches free_number */
  uint64_t free_number;
  struct soft_range *next; /* pool's free list, or rt->garbage */
} soft_range;

/* Physical memory of vm_create. */
struct soft_vm {
  soft_slot slot;
  int32_t device;
  size_t bytes;
  int file;              /* of its own, which other processes may map; -1: a part of the device's memory file */
  uint64_t inode;        /* of the own file: tells which handle a descriptor is of */
  uint64_t offset;       /* in the file */
  uint32_t references;   /* vm_create and vm_import, less vm_release */
  uint32_t mapped_count; /* places where it is mapped */
};

/* One vm_map: part of a RESERVED range. */
typedef struct soft_mapping {
  soft_tree_node node; /* in rt->mappings, by first address */
  size_t bytes;
  soft_vm *vm;
  uint64_t access; /* bit d: device d may read and write */
} soft_mapping;

struct soft_pool {
  soft_slot slot;
  ladei_pool_properties properties;
  bool is_default;
  bool destroyed; /* blocks are still allocated from it */
  uint64_t access;
  uint64_t release_threshold;
  uint64_t reserved, reserved_high, used, used_high;
  uint32_t used_count;
  soft_range *free_list;
};

/* ---- order of work, for hazard reports --------------------------------------------------------------------------- */

/* Work of `stream` up to `number`. */
typedef struct soft_point {
  soft_stream *stream;
  uint64_t number;
} soft_point;

/* What lies before something, besides its own stream: at most one point per stream. */
typedef struct soft_order {
  soft_point *points;
  uint32_t count, capacity;
} soft_order;

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef enum soft_work_kind {
  SOFT_WORK_EMPTY,  /* nothing; on a stream a number of its own, in a graph a joint */
  SOFT_WORK_COPY,   /* pieces */
  SOFT_WORK_FILL,   /* piece.dst, value */
  SOFT_WORK_WRITE,  /* piece.dst, value */
  SOFT_WORK_HOST,   /* function */
  SOFT_WORK_STAMP,  /* event: note the time */
  SOFT_WORK_WAIT,   /* point */
  SOFT_WORK_CALLER, /* done by the thread that submitted it: caller */
  SOFT_WORK_LAUNCH, /* exec */
} soft_work_kind;

typedef enum soft_engine_kind {
  SOFT_ENGINE_H2D,
  SOFT_ENGINE_D2H,
  SOFT_ENGINE_COMPUTE, /* copies within the device, fills, written values */
  SOFT_ENGINE_PEER,
  SOFT_ENGINE_HOST, /* host functions, destructors, copies from host to host */
  SOFT_ENGINE_COUNT,
} soft_engine_kind;

typedef struct soft_piece {
  void *dst;
  const void *src;
  size_t bytes;
  soft_range *dst_range, *src_range; /* NULL: pageable memory */
  bool dst_tracked, src_tracked;     /* in a graph: lay in a range at the capture, so must lie in one at the launch */
} soft_piece;

typedef struct soft_caller {
  pthread_cond_t cond;
  bool ready;
} soft_caller;

typedef struct soft_work {
  soft_work_kind kind;
  soft_engine_kind engine;
  int32_t device; /* whose engine */
  bool detached;  /* belongs to no stream: runs also on a lost device */
  bool moves;     /* set when it starts: has bytes to touch and all its memory is live */
  bool bound;     /* counted in its ranges' inflight */
  bool runs;      /* counted in its ranges' running */
  uint32_t piece_count;
  soft_piece piece;   /* the only one, or unused */
  soft_piece *pieces; /* owned; NULL where there is only one */
  void *staged;       /* owned: copy of pageable memory, taken at the call */
  union {
    struct {
      uint64_t value;
      unsigned width_bytes;
    };
    struct {
      ladei_host_function function;
      void *user;
    };
    struct {
      soft_event *event;
      uint64_t event_word;
    };
    soft_point point;
    soft_caller *caller;
    soft_exec *exec;
  };
} soft_work;

struct soft_node {
  soft_work work;
  soft_stream *stream;    /* NULL: in a graph, or detached */
  soft_exec *exec;        /* graph that it is a part of */
  uint64_t number;        /* in its stream */
  bool started;           /* ready or running: off its stream's hands */
  soft_node *next;        /* behind it in the stream; in the free list */
  soft_node *engine_next; /* behind it at the engine */
};

typedef struct soft_engine {
  soft_node *head, *tail;
  soft_node *current;
  int32_t device;
  soft_engine_kind kind;
  /* "cpu" only */
  soft_runtime *runtime;
  pthread_t thread;
  bool has_thread;
  bool sleeping;
  bool waking; /* in rt->wake_list */
  bool moving; /* its thread moves bytes, without the lock */
  struct soft_engine *wake_next;
  pthread_cond_t cond;
  _Atomic(uint32_t) queued; /* length of the queue: read without the lock by the spinning engine */
} soft_engine;

/* A thread that waits for a stream, on "cpu". */
typedef struct soft_host_waiter {
  pthread_cond_t cond;
  uint64_t number;
  struct soft_host_waiter *next;
} soft_host_waiter;

struct soft_stream {
  _Atomic(uint64_t) completed;
  _Atomic(uint64_t) submitted;
  _Atomic(uint64_t) observed;
  bool blocking;  /* ordered with the legacy stream */
  bool held;      /* by lade_soft_stream_hold */
  bool destroyed; /* by the program: recycled when idle and observed */
  bool ready;     /* in rt->ready_streams */
  int32_t device;
  ladei_stream_kind kind;
  uint32_t index; /* in rt->streams */
  uint64_t id;
  uint64_t legacy_seen; /* blocking: is ordered after the legacy stream up to here */
  lade_stream handle;
  soft_node *head, *tail;
  soft_order order;         /* what lies before its next work */
  soft_stream *waiters;     /* streams whose head waits for this one */
  soft_stream *waiter_next; /* in the list of the stream that its own head waits for */
  soft_stream *ready_next;
  soft_stream *blocking_previous, *blocking_next; /* device's blocking streams */
  soft_stream *next;                              /* rt->idle_streams */
  soft_host_waiter *host_waiters;
  soft_capture *capture;
  uint32_t *frontier; /* capturing: graph nodes that its next node depends on */
  uint32_t frontier_count, frontier_capacity;
};

typedef struct soft_stream_slot {
  soft_slot slot;
  soft_stream *stream;
} soft_stream_slot;

/* Event word: stream index in the upper 20 bits, number in the lower 44; 0: never recorded. */
enum { SOFT_EVENT_NUMBER_BITS = 44 };
#define SOFT_EVENT_NUMBER_MASK (((uint64_t)1 << SOFT_EVENT_NUMBER_BITS) - 1)
/* Stream index 0 is of no stream; its words, all but 0, say "captured". */
#define SOFT_EVENT_CAPTURED ((uint64_t)1)

struct soft_event {
  soft_slot slot;
  _Atomic(uint64_t) word;
  _Atomic(bool) has_order;
  int32_t device;
  unsigned flags;
  soft_order order; /* what lay before its record, besides the stream itself */
  uint64_t time_ns; /* of word time_word, LADEI_EVENT_TIMING */
  uint64_t time_word;
  uint64_t capture_id; /* captured: where */
  uint32_t *frontier;
  uint32_t frontier_count, frontier_capacity;
};

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

typedef struct soft_user_object {
  soft_slot slot;
  uint32_t references;
  ladei_host_function destroy;
  void *user;
  soft_node *node; /* kept for running the destructor */
} soft_user_object;

typedef struct soft_object_list {
  soft_user_object **objects;
  uint32_t count, capacity;
} soft_object_list;

typedef struct soft_graph_node {
  soft_work work;
  uint32_t *dependencies; /* owned */
  uint32_t dependency_count;
} soft_graph_node;

typedef struct soft_graph {
  soft_slot slot;
  soft_graph_node *nodes; /* a node depends on earlier ones only */
  uint32_t count, capacity;
  soft_object_list objects;
  soft_capture *capture; /* under construction; not owned by the program then */
} soft_graph;

struct soft_capture {
  uint64_t id;
  ladei_capture_mode mode;
  uint64_t thread; /* that began it */
  bool valid;
  soft_stream *origin;
  soft_graph *graph;
  soft_capture *next; /* rt->captures */
};

typedef struct soft_exec_node {
  soft_node node;
  uint32_t dependency_count, pending;
  uint32_t first_dependent, dependent_count; /* in the exec's dependents */
} soft_exec_node;

struct soft_exec {
  soft_slot slot;
  soft_exec_node *nodes;
  uint32_t *dependents;
  uint32_t count;
  uint32_t remaining; /* of the running launch */
  uint32_t launches;  /* queued or running */
  bool destroyed;     /* by the program */
  soft_point last;    /* the latest launch; stream NULL: none */
  soft_node *running; /* the launch under way, a node of a stream */
  soft_object_list objects;
};

/* ---- devices, threads, runtime ----------------------------------------------------------------------------------- */

struct soft_device {
  lade_soft_device description; /* with defaults filled in */
  int32_t ordinal;
  uint64_t context;
  bool active;  /* its context exists */
  bool started; /* its engines are ready */
  bool losing;  /* about to be lost: no work begins to move bytes */
  _Atomic(bool) lost;
  uint64_t lose_at_ns; /* UINT64_MAX: never */
  uint64_t charged;
  uint64_t peers; /* bit d: may use memory of device d */
  int memory_file;
  uint64_t memory_file_end;
  soft_stream *legacy;
  soft_stream *blocking_streams; /* list, the legacy one not in it */
  soft_pool *default_pool;
  soft_engine engines[SOFT_ENGINE_COUNT];
};

/* What the runtime knows of a thread that used thread state. Kept until close. */
typedef struct soft_thread {
  soft_tree_node node; /* by identity */
  int32_t current_device;
  ladei_capture_mode mode;
  soft_stream *streams[SOFT_MAX_DEVICES]; /* its default streams */
} soft_thread;

typedef struct soft_fault {
  soft_op op;
  lade_status status;
  uint64_t calls_left; /* 0: every call */
} soft_fault;

typedef struct soft_call_count {
  _Alignas(64) _Atomic(uint64_t) count;
} soft_call_count;

typedef struct soft_moment {
  uint64_t at_ns, order;        /* unique, ascending by addition */
  soft_engine *engine;          /* whose current work ends, or NULL */
  soft_device *lost;            /* device that is lost now, or NULL */
  ladei_host_function function; /* timer, or NULL */
  void *user;
} soft_moment;

typedef struct soft_findings {
  uint64_t freed_memory_used, unordered_reuse, unpinned_copies, stale_handles;
  char text[256];
} soft_findings;

/* What differs between the clocks. */
typedef struct soft_clock {
  uint64_t (*now_ns)(soft_runtime *rt);
  /* Under the lock: gets the device's engines ready to take work. False: the system refuses threads. */
  bool (*device_start)(soft_runtime *rt, soft_device *device);
  /* Under the lock: the engine was given work. */
  void (*engine_kick)(soft_runtime *rt, soft_engine *engine);
  /* Under the lock, which it may let go meanwhile: until stream->completed reaches `number`. */
  lade_status (*wait)(soft_runtime *rt, soft_stream *stream, uint64_t number, const char *op);
} soft_clock;

struct soft_runtime {
  const soft_clock *clock;
  const char *name;
  bool virtual_time;
  pthread_mutex_t lock;
  /* Not 0: some op may have to do more than count. Bits below. */
  _Atomic(uint32_t) attention;
  uint32_t fork_generation;
  soft_call_count calls[SOFT_OP_COUNT];
  uint64_t cost_ns[SOFT_OP_COUNT];
  lade_soft_costs costs;
  soft_fault *faults;
  size_t fault_count;

  int32_t device_count;
  soft_device *devices;
  soft_tree threads;

  /* Memory */
  soft_tree ranges, mappings;
  uint64_t arena_begin, arena_next; /* addresses of memory with bytes */
  uint64_t count_next;              /* addresses without */
  uint64_t pinned_bytes, pinned_limit_bytes, pinned_ranges;
  uint64_t ipc_opens;  /* of all ranges */
  soft_range *garbage; /* to unmap when the lock is let go */

  /* Handles */
  soft_table stream_table, event_table, graph_table, exec_table, object_table, pool_table, vm_table;

  /* Streams by index, never moved; index 0 unused. */
  _Atomic(soft_stream *) *streams;
  uint32_t stream_count;
  soft_stream *idle_streams; /* destroyed; recycled when idle and observed; oldest first */
  soft_stream *idle_streams_tail;
  uint64_t next_id;

  /* Work */
  soft_node *free_nodes;
  soft_node **node_slabs;
  size_t node_slab_count;
  soft_stream *ready_streams, *ready_streams_tail;
  bool running_ready;
  soft_engine *wake_list;
  pthread_cond_t idle_cond; /* "cpu": running work of some range ended, or of a device that is being lost */
  bool stopping;            /* close is under way: threads end, timers are dropped */

  /* Captures */
  soft_capture *captures;
  uint64_t next_capture_id;

  /* Hazards */
  struct soft_hazards *hazards;
  soft_findings findings;

  /* "sim" */
  uint64_t now_ns;
  soft_moment *moments; /* binary heap by (at_ns, order) */
  size_t moment_count, moment_capacity;
  uint64_t next_moment;
  uint32_t dispatching; /* depth: in a timer or host function */
};

enum {
  SOFT_ATTENTION_FAULTS = 1u << 0,
  SOFT_ATTENTION_COSTS = 1u << 1,
  SOFT_ATTENTION_LOSE = 1u << 2,     /* "cpu": a device is to be lost at a time to come */
  SOFT_ATTENTION_CALLBACK = 1u << 8, /* counted in this and the higher bits: host functions that run now */
};

/* ---- enter.c: the way into every op ------------------------------------------------------------------------------- */

extern _Atomic(uint32_t) ladei_soft_fork_generation; /* forks of this process so far, as seen by the child */
lade_status ladei_soft_enter_slowly(soft_runtime *rt, soft_op op);

/* Counts the call, applies the fault plan, charges its cost. First statement of every op; not under the lock. */
static inline lade_status ladei_soft_enter(soft_runtime *rt, soft_op op) {
  ladei_lock_assert_none_held();
  atomic_fetch_add_explicit(&rt->calls[op].count, 1, memory_order_relaxed);
  uint32_t generation = atomic_load_explicit(&ladei_soft_fork_generation, memory_order_relaxed);
  uint32_t attention = atomic_load_explicit(&rt->attention, memory_order_relaxed);
  return (attention | (generation ^ rt->fork_generation)) == 0 ? LADE_OK : ladei_soft_enter_slowly(rt, op);
}

/* Lets `ns` of virtual time pass for the caller of an op. Nothing on "cpu". */
void ladei_soft_charge(soft_runtime *rt, uint64_t ns);
/* The device exists and is not lost; NULL and the error recorded otherwise. */
soft_device *ladei_soft_device_use(soft_runtime *rt, soft_op op, int device, lade_status *out_status);
/* Brings the device's context, and engines for its streams, into being. Under the lock. */
lade_status ladei_soft_device_start(soft_runtime *rt, soft_op op, soft_device *device);
const char *ladei_soft_op_name(soft_op op);
/* LADE_ERR_INVALID_ARGUMENT for flag bits that the op does not know. */
lade_status ladei_soft_flags(soft_op op, unsigned flags, unsigned known);
lade_status ladei_soft_lost(soft_op op, int device);
/* Marks a device as lost once no engine of it moves bytes any more, and lets the work on it run out without effect. Under
 * the lock, let go meanwhile. */
void ladei_soft_device_drop(soft_runtime *rt, soft_device *device);
/* Runs a function of the program in which runtime calls are refused. Not under the lock. */
void ladei_soft_call_out(soft_runtime *rt, ladei_host_function function, void *user);
/* Identity of the calling thread: unique for the life of the process. */
uint64_t ladei_soft_thread_identity(void);
/* State of the calling thread; NULL when it has none and `create` is false, or without memory. Under the lock. */
soft_thread *ladei_soft_thread(soft_runtime *rt, bool create);
void ladei_soft_lock(soft_runtime *rt);
/* Also wakes engines and unmaps garbage that were noted under the lock. */
void ladei_soft_unlock(soft_runtime *rt);
void ladei_soft_gate_open(soft_runtime *rt);

/* ---- memory.c, address.c, vm.c, pool.c --------------------------------------------------------------------------- */

void ladei_soft_addresses_open(soft_runtime *rt);
/*
 * Maps new memory (device memory of `device`, or host memory) at an address of its own, never used before in this
 * runtime, and makes a live range of it. node: NUMA node to bind host memory to, -1: any. Under the lock. NULL: the
 * system refuses.
 */
soft_range *ladei_soft_range_new(soft_runtime *rt, soft_range_kind kind, soft_device *device, bool host, size_t bytes,
                                 size_t align, int32_t node);
/* A live range over the program's own memory. NULL: no memory. */
soft_range *ladei_soft_range_register(soft_runtime *rt, soft_device *device, void *address, size_t bytes);
/* Ends a range: no longer found; unmapped when the last work that names it has ended. Under the lock. */
void ladei_soft_range_end(soft_runtime *rt, soft_range *range);
/* The same for a range that is not in rt->ranges. */
void ladei_soft_range_discard(soft_runtime *rt, soft_range *range);
/* One piece of work less names the range. */
void ladei_soft_range_unpin(soft_runtime *rt, soft_range *range);
void ladei_soft_range_unmap(soft_range *range);
/* The live range that holds `address`, or NULL. */
soft_range *ladei_soft_range_at(const soft_runtime *rt, const void *address);
bool ladei_soft_range_covers(const soft_range *range, const void *address, size_t bytes);
bool ladei_soft_range_overlaps(const soft_runtime *rt, const void *address, size_t bytes);
/* Whether an address that no live range holds was handed out before. */
bool ladei_soft_address_was_used(const soft_runtime *rt, const void *address);
/* Counts device memory; false when the capacity does not allow it. */
bool ladei_soft_memory_charge(soft_device *device, size_t bytes);
void ladei_soft_memory_uncharge(soft_device *device, size_t bytes);
bool ladei_soft_pinned_charge(soft_runtime *rt, size_t bytes);
lade_status ladei_soft_out_of_device_memory(soft_op op, const soft_device *device, size_t bytes);

/* All of [address, address + bytes) is mapped, and accessible to `device` (-1: to any). */
bool ladei_soft_vm_accessible(const soft_runtime *rt, const void *address, size_t bytes, int device);
/* At the runtime's end. */
void ladei_soft_vm_close(soft_runtime *rt);
soft_mapping *ladei_soft_vm_mapping_at(const soft_runtime *rt, const void *address);
/* The program has synchronised: pools give back what is over their threshold. Under the lock. */
void ladei_soft_pools_synchronized(soft_runtime *rt);
void ladei_soft_pools_close(soft_runtime *rt);

/* ---- stream.c, event.c ------------------------------------------------------------------------------------------- */

soft_stream *ladei_soft_stream_new(soft_runtime *rt, soft_device *device, ladei_stream_kind kind, bool blocking);
/* The stream of a resolved handle, or NULL with an error recorded . Under the lock. */
soft_stream *ladei_soft_stream_find(soft_runtime *rt, soft_op op, const ladei_stream *stream, lade_status *out_status);
static inline soft_stream *ladei_soft_stream_by_index(const soft_runtime *rt, uint64_t index) {
  return atomic_load_explicit(&rt->streams[index], memory_order_acquire);
}
bool ladei_soft_streams_open(soft_runtime *rt);
void ladei_soft_streams_close(soft_runtime *rt);
void ladei_soft_events_close(soft_runtime *rt);
/* The live event of a handle, or NULL with an error recorded. Under the lock. */
soft_event *ladei_soft_event_find(soft_runtime *rt, soft_op op, lade_event handle, lade_status *out_status);
/* Lets all later work of `stream` wait for `awaited` up to `number`. Under the lock. */
lade_status ladei_soft_stream_wait_point(soft_runtime *rt, soft_op op, soft_stream *stream, soft_stream *awaited,
                                         uint64_t number);
/* The legacy stream's rule: orders `stream` after what it implicitly waits for. Queues waits. Under the lock. */
lade_status ladei_soft_stream_join_legacy(soft_runtime *rt, soft_op op, soft_stream *stream);

/* ---- order.c ----------------------------------------------------------------------------------------------------- */

/* A caller learned that `stream` has finished up to `number`. Needs no lock. */
void ladei_soft_observe_number(soft_stream *stream, uint64_t number);
/* ... and, under the lock, with it what lay before. */
void ladei_soft_observe(soft_stream *stream, uint64_t number);
void ladei_soft_observe_order(const soft_order *order);
/* These three return false without memory. */
bool ladei_soft_order_add(soft_order *order, soft_stream *stream, uint64_t number);
bool ladei_soft_order_merge(soft_order *into, const soft_order *from);
bool ladei_soft_order_copy(soft_order *into, soft_order *from);
bool ladei_soft_order_has(const soft_order *order, const soft_stream *stream, uint64_t number);

/* ---- work.c: queues and engines. All under the lock -------------------------------------------------------------- */

soft_node *ladei_soft_node_new(soft_runtime *rt);
void ladei_soft_node_free(soft_runtime *rt, soft_node *node);
void ladei_soft_nodes_close(soft_runtime *rt);
/* Queues a node behind the stream's work and gives it its number. The caller runs ladei_soft_run_ready() after. */
void ladei_soft_stream_push(soft_runtime *rt, soft_stream *stream, soft_node *node);
void ladei_soft_stream_make_ready(soft_runtime *rt, soft_stream *stream);
/* Moves every stream on as far as it goes. */
void ladei_soft_run_ready(soft_runtime *rt);
void ladei_soft_engine_push(soft_runtime *rt, soft_node *node);
/* The engine's next piece of work that may run; takes it in hand. NULL: none. */
soft_node *ladei_soft_engine_take(soft_runtime *rt, soft_engine *engine);
/* Decides whether the work has an effect, and pins its memory. */
void ladei_soft_work_start(soft_runtime *rt, soft_work *work);
/* Moves the bytes, calls the function. Not under the lock. */
void ladei_soft_work_perform(soft_runtime *rt, soft_work *work);
/* The engine's current work has ended: frees it, moves its stream or graph on. */
void ladei_soft_engine_finish(soft_runtime *rt, soft_engine *engine);
/* The head of the stream has ended. */
void ladei_soft_stream_finish_head(soft_runtime *rt, soft_stream *stream);
/* Runs `function` on the host engine of device 0, after no other work. Takes the node. */
void ladei_soft_post(soft_runtime *rt, soft_node *node, ladei_host_function function, void *user);
/* memmove for a destination that no processor reads soon. */
void ladei_soft_stream_bytes(void *dst, const void *src, size_t bytes);
uint64_t ladei_soft_work_duration_ns(const soft_runtime *rt, const soft_work *work);
void ladei_soft_work_bind(soft_work *work);
void ladei_soft_work_unbind(soft_runtime *rt, soft_work *work);
static inline soft_piece *ladei_soft_work_pieces(soft_work *work) {
  return work->pieces != NULL ? work->pieces : &work->piece;
}

/* The event's word for the work that the stream has now. */
static inline uint64_t ladei_soft_event_word(const soft_stream *stream, uint64_t number) {
  return (uint64_t)stream->index << SOFT_EVENT_NUMBER_BITS | number;
}

/* ---- submit.c ---------------------------------------------------------------------------------------------------- */

/*
 * Queues work on a stream, or captures it. Takes what the work owns, also on failure. Legacy order, hazards and memory
 * are looked after here. Under the lock.
 */
lade_status ladei_soft_submit(soft_runtime *rt, soft_op op, soft_stream *stream, soft_work *work);
void ladei_soft_work_dispose(soft_work *work);

/* ---- graph.c, exec.c --------------------------------------------------------------------------------------------- */

lade_status ladei_soft_capture_append(soft_runtime *rt, soft_op op, soft_stream *stream, soft_work *work);
lade_status ladei_soft_capture_record(soft_runtime *rt, soft_op op, soft_stream *stream, soft_event *event);
lade_status ladei_soft_capture_wait(soft_runtime *rt, soft_op op, soft_stream *stream, soft_event *event);
/* An op that a capture forbids: the capture becomes invalid. Returns LADE_ERR_CAPTURE. */
lade_status ladei_soft_capture_break(soft_runtime *rt, soft_op op, soft_capture *capture, int native);
/* The capture under way with this id, or NULL. */
soft_capture *ladei_soft_capture_by_id(const soft_runtime *rt, uint64_t id);
/* A blocking stream of the device captures: the legacy stream cannot be used. NULL: none. */
soft_capture *ladei_soft_capture_implicit(const soft_runtime *rt, const soft_device *device);
/* Use of the stream where that is the legacy one: all captures that forbid it become invalid. LADE_OK: there are none. */
lade_status ladei_soft_capture_check_legacy(soft_runtime *rt, soft_op op, const soft_stream *stream);
ladei_graph ladei_soft_graph_handle(const soft_runtime *rt, const soft_graph *graph);
/* Applies the calling thread's capture mode to a potentially unsafe op. Under the lock. */
lade_status ladei_soft_unsafe(soft_runtime *rt, const char *what);
void ladei_soft_capture_stream_gone(soft_runtime *rt, soft_stream *stream);
void ladei_soft_objects_release(soft_runtime *rt, soft_object_list *list);
bool ladei_soft_objects_add(soft_object_list *list, soft_user_object *object);
/* The launch at the head of its stream may begin. */
void ladei_soft_exec_begin(soft_runtime *rt, soft_node *launch);
/* A node of the running launch has ended. */
void ladei_soft_exec_node_done(soft_runtime *rt, soft_exec *exec, soft_node *node);
/* The accesses of all nodes, as work `number` of `stream`. */
void ladei_soft_exec_hazards(soft_runtime *rt, soft_stream *stream, uint64_t number, const soft_exec *exec);

/* ---- hazard.c ---------------------------------------------------------------------------------------------------- */

bool ladei_soft_hazards_open(soft_runtime *rt);
void ladei_soft_hazards_close(soft_runtime *rt);
/* Work number `number` of `stream` reads or writes these bytes. Counts a finding where no order covers it. */
void ladei_soft_hazard_access(soft_runtime *rt, soft_stream *stream, uint64_t number, const void *address, size_t bytes,
                              bool write);
/* Forgets the accesses to bytes that were freed. */
void ladei_soft_hazard_forget(soft_runtime *rt, uint64_t address, size_t bytes);
/* The invariants of hazard.c; NULL, or what does not hold. */
const char *ladei_soft_hazards_check(const soft_runtime *rt);
/* All accesses of a piece of work. */
void ladei_soft_hazard_work(soft_runtime *rt, soft_stream *stream, uint64_t number, soft_work *work);
void ladei_soft_finding(soft_runtime *rt, uint64_t *counter, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
lade_status ladei_soft_stale(soft_runtime *rt, soft_op op, lade_status status, const char *what, uint64_t handle);

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

extern const soft_clock ladei_soft_sim_clock, ladei_soft_cpu_clock;
/* "sim": lets everything happen that is due by `until_ns`, then sets the clock to it. */
void ladei_soft_sim_run_until(soft_runtime *rt, uint64_t until_ns);
/* "sim": the next thing; false when nothing will ever happen. */
bool ladei_soft_sim_step(soft_runtime *rt);
bool ladei_soft_sim_open(soft_runtime *rt);
void ladei_soft_sim_ops(lade_runtime_ops *ops);
bool ladei_soft_sim_add(soft_runtime *rt, const soft_moment *moment);
/* "cpu": stops and joins the engines' threads. */
void ladei_soft_cpu_stop(soft_runtime *rt);

/* ---- ops, by file ------------------------------------------------------------------------------------------------ */

#define SOFT_OP_TABLES(X)            X(device) X(memory) X(vm) X(pool) X(stream) X(event) X(copy) X(graph) X(exec) X(peer)
#define SOFT_TABLE_DECLARATION(part) void ladei_soft_##part##_ops(lade_runtime_ops *ops);
SOFT_OP_TABLES(SOFT_TABLE_DECLARATION)
#undef SOFT_TABLE_DECLARATION

static inline soft_runtime *soft_self(void *self) { return self; }

#endif /* LADE_RUNTIME_SOFT_MODEL_H */
