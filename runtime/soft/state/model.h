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
 * I1  In a stream only the head is ready or runs. completed <= submitted; both never fall, even if the stream object
 *     serves a later stream.
 * I2  A stream is in the waiters list of the one stream that its head waits for, and nowhere else.
 * I3  A piece of work is in at most one of: its stream's queue, unready; an engine's queue; an engine's hands.
 * I4  The program may know that the work up to `observed` has finished: by a query, a wait or a host function.
 * I5  The bytes of a range stay mapped while work that names the range is queued or runs (inflight > 0), even if the
 *     program has freed it; such work then has no effect and is counted as a use of freed memory.
 * I6  charged device memory = sum over live ranges, handles and pools of their charges.
 *
 * Locks: rt->lock guards everything except the fields that are atomic. It is the innermost lock: no call under it waits
 * or runs the program's code. Host functions, destructors of user objects, timers and the copies themselves run without
 * it. On "sim" there is no lock, as one thread at a time owns the runtime.
 */
#ifndef LADE_RUNTIME_SOFT_MODEL_H
#define LADE_RUNTIME_SOFT_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "runtime/ops_list.h"
#include "runtime/soft/state/native.h"
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
typedef struct soft_body soft_body;
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

/* Pages that small requests of host_alloc share. */
typedef struct soft_chunk {
  uint64_t base, next;       /* begin of the next place */
  _Atomic(uint32_t) holders; /* places not yet unmapped, + 1 while it is the runtime's */
} soft_chunk;

/* Memory or addresses that an op handed out or pinned. */
typedef struct soft_range {
  soft_tree_node node; /* in rt->ranges, by first address, while live */
  size_t bytes;        /* requested */
  size_t mapped_bytes; /* to unmap when the range goes; 0: no mapping of its own */
  soft_chunk *chunk;   /* that contains it, or NULL */
  size_t charged;      /* charged device memory */
  soft_range_kind kind;
  int32_t device;
  bool host;      /* pinned host memory, otherwise device memory */
  bool has_bytes; /* false on an addresses-only device */
  bool live;
  uint32_t inflight;       /* queued or running work that names it */
  uint32_t running;        /* running work that names it, "cpu" only */
  uint32_t ipc_opens;      /* ipc_open calls not closed */
  soft_pool *pool;         /* for a POOL range */
  size_t held_bytes;       /* its bytes in the pool, of which `bytes` were requested */
  soft_stream *free_owner; /* POOL, freed: usable again when free_owner->completed reaches free_number */
  uint64_t free_number;
  struct soft_range *next; /* pool's free list, or rt->garbage */
} soft_range;

/* Physical memory of vm_create. */
struct soft_vm {
  soft_slot slot;
  int32_t device;
  size_t bytes;
  int file;              /* its own file, which other processes may map; -1: a part of the device's memory file */
  uint64_t inode;        /* of its own file: identifies the handle of a descriptor */
  uint64_t offset;       /* in the file */
  uint32_t references;   /* vm_create and vm_import, minus vm_release */
  uint32_t mapped_count; /* number of its mappings */
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
  uint64_t held; /* bytes of its blocks */
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

/* The work before a point, apart from its own stream: at most one point per stream. */
typedef struct soft_order {
  soft_point *points;
  uint32_t count;
  size_t capacity;
} soft_order;

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef enum soft_work_kind {
  SOFT_WORK_EMPTY,  /* nothing; on a stream it has a number of its own, in a graph it joins */
  SOFT_WORK_COPY,   /* pieces */
  SOFT_WORK_FILL,   /* piece.dst, value, width_bytes */
  SOFT_WORK_WRITE,  /* piece.dst, value */
  SOFT_WORK_HOST,   /* function */
  SOFT_WORK_KERNEL, /* pieces: src is read, dst is written; kernel, its arguments in `staged` */
  SOFT_WORK_STAMP,  /* event: note the time */
  SOFT_WORK_WAIT,   /* point */
  SOFT_WORK_CALLER, /* done by the thread that submitted it: caller */
  SOFT_WORK_LAUNCH, /* body */
} soft_work_kind;

typedef enum soft_engine_kind {
  SOFT_ENGINE_H2D,
  SOFT_ENGINE_D2H,
  SOFT_ENGINE_COMPUTE, /* copies within the device, fills, written values, kernels */
  SOFT_ENGINE_PEER,
  SOFT_ENGINE_HOST,  /* host functions, destructors, copies from host to host */
  SOFT_ENGINE_SMALL, /* copies to a device that are too small to wait for long ones of other streams */
  SOFT_ENGINE_COUNT,
} soft_engine_kind;

typedef struct soft_piece {
  void *dst;
  const void *src;
  size_t bytes;
  soft_range *dst_range, *src_range; /* NULL: pageable memory */
  bool dst_tracked, src_tracked;     /* in a graph: was in a range at the capture, so must be in one at the launch */
  bool dst_mapped, src_mapped;       /* in a graph: in pool memory of a device, or mapped */
  int32_t dst_device, src_device;    /* in a graph: the memory's device; -1: the host */
} soft_piece;

typedef struct soft_caller {
  pthread_cond_t cond;
  bool ready;
} soft_caller;

typedef struct soft_work {
  soft_work_kind kind;
  soft_engine_kind engine;
  int32_t device; /* device of the engine */
  bool detached;  /* belongs to no stream: runs on a lost device too */
  bool moves;     /* set at its start: it has bytes to touch and all its memory is live */
  bool bound;     /* counted in its ranges' inflight */
  bool runs;      /* counted in its ranges' running */
  uint32_t piece_count;
  soft_piece piece;   /* the only one, or unused */
  soft_piece *pieces; /* owned; NULL if there is only one */
  void *staged;       /* owned: copy of pageable memory, or of a kernel's arguments, taken at the call */
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
      lade_soft_function kernel;
      size_t argument_bytes;
      uint64_t blind_bytes; /* not 0: it touches so many bytes of its ranges, and which ones is not known */
      bool tells;           /* it writes host memory, and so may show the program that it has run */
    };
    struct {
      soft_event *event;
      uint64_t event_word;
    };
    soft_point point;
    soft_caller *caller;
    soft_body *body;
  };
} soft_work;

struct soft_node {
  soft_work work;
  soft_stream *stream;    /* NULL: in a graph, or detached */
  soft_body *body;        /* of the executable graph that contains it */
  uint64_t number;        /* in its stream */
  bool started;           /* ready or running: out of its stream's control */
  soft_node *next;        /* after it in the stream; in the free list */
  soft_node *engine_next; /* after it at the engine */
};

typedef struct soft_engine {
  soft_node *head, *tail;
  soft_node *current;
  const soft_stream *last_stream; /* stream of its last work; never followed */
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
  uint64_t legacy_seen; /* blocking: is ordered after the legacy stream up to this number */
  lade_stream handle;
  soft_node *head, *tail;
  soft_order order;         /* the work before its next work */
  soft_stream *waiters;     /* streams whose head waits for this one */
  soft_stream *waiter_next; /* in the list of the stream that its own head waits for */
  soft_stream *ready_next;
  soft_stream *blocking_previous, *blocking_next; /* device's blocking streams */
  soft_stream *next;                              /* rt->idle_streams */
  soft_host_waiter *host_waiters;
  soft_capture *capture;
  uint32_t *frontier; /* capturing: graph nodes that its next node depends on */
  uint32_t frontier_count;
  size_t frontier_capacity;
};

typedef struct soft_stream_slot {
  soft_slot slot;
  soft_stream *stream;
} soft_stream_slot;

/* Event word: stream index in the upper 20 bits, number in the lower 44; 0: never recorded. */
enum { SOFT_EVENT_NUMBER_BITS = 44 };
#define SOFT_EVENT_NUMBER_MASK (((uint64_t)1 << SOFT_EVENT_NUMBER_BITS) - 1)
/* Stream index 0 belongs to no stream; its words other than 0 mean "captured". */
#define SOFT_EVENT_CAPTURED ((uint64_t)1)

struct soft_event {
  soft_slot slot;
  _Atomic(uint64_t) word;
  _Atomic(bool) has_order;
  int32_t device;
  unsigned flags;
  soft_order order; /* the work before its record, apart from the stream itself */
  uint64_t time_ns; /* of word time_word, LADEI_EVENT_TIMING */
  uint64_t time_word;
  uint64_t capture_id; /* captured: the capture */
  uint32_t *frontier;
  uint32_t frontier_count;
  size_t frontier_capacity;
};

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

typedef struct soft_user_object {
  soft_slot slot;
  uint32_t references;
  uint32_t late; /* those of execs that are gone and drop them on the host engine */
  ladei_host_function destroy;
  void *user;
  soft_node *node; /* reserved for the destructor */
} soft_user_object;

typedef struct soft_object_list {
  soft_user_object **objects;
  uint32_t count;
  size_t capacity;
} soft_object_list;

/* Reserved for a launched exec, to drop its references. */
typedef struct soft_late_objects {
  soft_runtime *runtime;
  soft_node *node; /* reserved for the host engine */
  soft_object_list list;
} soft_late_objects;

typedef struct soft_graph_node {
  soft_work work;
  uint32_t *dependencies; /* owned */
  uint32_t dependency_count;
  uint32_t stream; /* index of the stream that captured it */
} soft_graph_node;

typedef struct soft_graph {
  soft_slot slot;
  soft_graph_node *nodes; /* a node depends on earlier ones only */
  uint32_t count;
  size_t capacity;
  soft_object_list objects;
  soft_capture *capture; /* under construction; then the program does not own it */
} soft_graph;

struct soft_capture {
  uint64_t id;
  ladei_capture_mode mode;
  uint64_t thread; /* the one that began it */
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

/* Content of an executable graph. An update gives it another one; launches keep the one they were queued with. */
struct soft_body {
  soft_exec_node *nodes;
  uint32_t *dependents;
  uint32_t count;
  uint32_t remaining; /* of the running launch */
  uint32_t launches;  /* queued or running */
  bool launched;      /* at any time */
  bool retired;       /* its exec was destroyed or updated: freed after its last launch */
  soft_node *running; /* the launch under way, a node of a stream */
  soft_object_list objects;
  soft_late_objects *late; /* NULL: no objects */
  int32_t device;          /* that it is charged to */
  uint64_t charged;        /* device memory */
  soft_body **place;       /* the pointer to it in the list rt->bodies */
  soft_body *next;
};

struct soft_exec {
  soft_slot slot;
  soft_body *body;
  unsigned flags;  /* of its instantiation */
  soft_point last; /* the latest launch; stream NULL: none */
};

/* ---- devices, threads, runtime ----------------------------------------------------------------------------------- */

struct soft_device {
  lade_soft_device description; /* with defaults filled in */
  int32_t ordinal;
  uint64_t context;
  bool active;  /* its context exists */
  bool started; /* its engines are ready */
  bool copy_kernel_loaded;
  bool losing; /* about to be lost: no further work moves bytes */
  _Atomic(bool) lost;
  uint64_t lose_at_ns; /* UINT64_MAX: never */
  uint64_t charged;
  uint64_t peers; /* bit d: may use memory of device d */
  int memory_file;
  uint64_t memory_file_end;
  soft_stream *legacy;
  soft_stream *blocking_streams; /* list, without the legacy one */
  soft_pool *default_pool;
  soft_engine engines[SOFT_ENGINE_COUNT];
};

/* The runtime's record of a thread that used thread state. Kept until close. */
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
  soft_engine *engine;          /* its current work ends, or NULL */
  soft_device *lost;            /* device that is lost now, or NULL */
  ladei_host_function function; /* timer, or NULL */
  void *user;
} soft_moment;

typedef struct soft_findings {
  uint64_t freed_memory_used, unordered_reuse, unpinned_copies, stale_handles;
  char text[256];
} soft_findings;

/* Differences between the clocks. */
typedef struct soft_clock {
  uint64_t (*now_ns)(soft_runtime *rt);
  /* Under the lock: makes the device's engines ready to take work. False: the system refuses threads. */
  bool (*device_start)(soft_runtime *rt, soft_device *device);
  /* Under the lock: the engine was given work. */
  void (*engine_kick)(soft_runtime *rt, soft_engine *engine);
  /* Under the lock, which it may drop meanwhile: waits until stream->completed reaches `number`. */
  lade_status (*wait)(soft_runtime *rt, soft_stream *stream, uint64_t number, const char *op);
} soft_clock;

/* A run of addresses without a gap over other memory. */
typedef struct soft_arena_piece {
  uint64_t begin, end;
} soft_arena_piece;
enum { SOFT_ARENA_PIECES = 64 };

struct soft_runtime {
  const soft_clock *clock;
  const char *name;
  bool virtual_time;
  pthread_mutex_t lock;
  /* Not 0: an op may have to do more than count. Bits below. */
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
  soft_arena_piece arena[SOFT_ARENA_PIECES]; /* addresses of memory with bytes, in order of use */
  size_t arena_pieces;
  uint64_t count_next; /* addresses of memory without bytes */
  uint64_t pinned_bytes, pinned_limit_bytes, pinned_ranges;
  soft_chunk *chunk; /* for the next small request of host_alloc; NULL: none yet */
  uint64_t graph_node_bytes;
  uint64_t ipc_opens;  /* of all ranges */
  soft_range *garbage; /* to unmap when the lock is dropped */

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
  pthread_cond_t idle_cond;  /* "cpu": a range's running work ended, or that of a device being lost */
  _Atomic(uint32_t) waiting; /* threads that wait for a stream */
  bool stopping;             /* close is under way: threads end, timers are dropped */

  /* Captures */
  soft_body *bodies;        /* of executable graphs, also those that only launches hold */
  soft_node *ended_objects; /* destructors that the current op runs after it dropped the lock */
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
  SOFT_ATTENTION_LOSE = 1u << 2,     /* "cpu": a device will be lost at a set time */
  SOFT_ATTENTION_CALLBACK = 1u << 8, /* count of running host functions, in this and the higher bits */
};

static inline soft_piece *ladei_soft_work_pieces(soft_work *work) {
  return work->pieces != NULL ? work->pieces : &work->piece;
}

static inline soft_runtime *soft_self(void *self) { return self; }

#endif /* LADE_RUNTIME_SOFT_MODEL_H */
