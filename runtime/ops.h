/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface to a device: one table of operations, filled in by runtime/cuda and runtime/soft.
 *
 *   host/  device/  pipeline/  loaders/        know nothing of CUDA
 *   ---------- lade_runtime_ops ----------
 *   runtime/cuda      runtime/soft             know nothing of pools
 *
 * Rules of the whole table
 *   R1  Every op except `now_ns` and the texts returns a lade_status and, on failure, fills the thread's error record
 *       with the op's name, the sizes and the driver's own code and words. A failed op changes nothing and leaves *out
 *       alone.
 *   R2  Ops may be called from any thread, except on `sim`, which belongs to one thread at a time.
 *   R3  The caller holds no lade lock: an op may wait, call back into the program (host functions run on the runtime's
 *       own threads, destructors of user objects there or in the op itself) or take the driver's locks.
 *   R4  Device ordinals are 0..device_count-1. Any other gives LADE_ERR_NO_DEVICE.
 *   R5  An op leaves the calling thread's current device (context) and capture mode as it found them; only
 *       `current_device_set` and `capture_mode_exchange` change them.
 *   R6  Asynchronous ops are ordered after all earlier work of their stream. The legacy stream is ordered with all
 *       blocking streams of its context, per-thread ones included, both ways.
 *   R7  A fault that the device reports later comes out of any following op of the same runtime as
 *       LADE_ERR_DEVICE_LOST, which is final: only destroy, free, release, unregister and close ops still succeed (and
 *       free host resources).
 *   R8  Sizes are in bytes and must not be 0 unless an op says so; times are nanoseconds of `now_ns`. A size of 0, a
 *       NULL address, an enumerator or flag bit that this header does not name for the op, a handle or address that was
 *       not handed out (or is not the start of what was) gives LADE_ERR_INVALID_ARGUMENT if it is found; use of
 *       destroyed streams, events and graphs need not be.
 *   R9  Queries, waits, records, pinning and driver pools (event_query, stream_query, *_synchronize, event_record,
 *       event_create, host_*, pool_*, peer_*, ipc_*) on objects that do not capture, and copy_sync, are allowed in
 *       every thread capture mode: the runtime switches to relaxed mode around the driver call. These never harm a
 *       capture: vm_*, memory_info, stream_create, stream_destroy, event_destroy, stream_resolve, stream_capture_info,
 *       an event_record on a capturing stream, and the query of an event recorded on its stream before the capture.
 *   R10 A capture forbids work that it could not replay. The following give LADE_ERR_CAPTURE and invalidate the
 *       capture, whose streams then give LADE_ERR_CAPTURE until capture_end, which gives it once more:
 *         - in any mode: stream_query and stream_synchronize of a capturing stream; event_query and event_synchronize
 *           of an event recorded in the capture, while that is under way; work, copy_sync, records, queries and waits
 *           in a legacy stream in status IMPLICIT, which invalidates all captures of blocking streams of its context;
 *           device_synchronize, which invalidates all captures on the device; waiting in the capture for an event
 *           recorded outside it;
 *         - depending on the thread's and the capture's mode: device_alloc, device_free, graph_instantiate,
 *           graph_exec_destroy, device_synchronize for captures elsewhere.
 *       An event recorded in a capture that is over gives LADE_ERR_CAPTURE to queries, waits of threads and streams,
 *       and comparisons of times until it is recorded anew, and harms nothing. (The driver does all of this; seen with
 *       CUDA 13.0 on an H100 and an H200.) So lade asks a stream, or waits for it, only through ladei_stream_ask and
 *       ladei_stream_wait: Note [Asking and capturing].
 *
 * Note [Copies end with registrations]
 *   If the host side of a copy, or the range of a fill, begins in pinned memory, it must end in the same allocation or
 *   registration. Otherwise LADE_ERR_INVALID_ARGUMENT; nothing is queued, and a capture goes on as it was. This holds
 *   for copy, copy_sync, copy_batch (which refuses the whole batch) and fill, even if the next registration begins at
 *   the very next byte, and if pageable memory follows. A range that begins in pageable memory may reach into
 *   registrations, and is staged as a whole. A device side lies in one allocation of device_alloc likewise. Seen with
 *   CUDA driver 580, CUDA_ERROR_INVALID_VALUE; software devices do the same. To copy memory that may be registered in
 *   pieces, cut at `base + bytes` of pointer_attributes.
 *
 * Note [Copies between devices]
 *   A copy reaches memory of device_alloc from every device, with access between the devices (peer_enable) or without.
 *   Mapped memory, and that of a driver pool, is reached from the devices that have access to it (vm_set_access,
 *   pool_set_access; peer_enable does not give it): by copy and copy_batch from the device of the stream, by copy_peer
 *   from the device that is named for this end. Memory that is not reached gives LADE_ERR_INVALID_ARGUMENT at the call.
 *   So copy_peer accepts copies that copy refuses, if each end is accessible to its own device; but captures take only
 *   copy. ladei_copy_between() tries one, then the other. Without access a copy takes ten times as long, and one of
 *   more than some 256 MiB waits in the call for earlier work of the stream. (Seen with CUDA driver 580 and two H200;
 *   only that a refused copy leaves a capture as it was is the software devices' own behaviour.)
 *
 * Special stream handles. NULL and LADE_STREAM_LEGACY name the legacy default stream, LADE_STREAM_PER_THREAD the
 * calling thread's own default stream, both of the calling thread's current context. They are resolved once, by
 * stream_resolve, into a ladei_stream; every other op takes that resolved form and looks at no thread state. A resolved
 * per-thread stream may only be used by the thread that resolved it.
 *
 * Optional ops may be NULL, which means LADE_ERR_UNSUPPORTED; those of one optional group are all there or all NULL.
 * runtime/ops_list.h names every op with its group, and ladei_ops_check() holds a table against it.
 */
#ifndef LADE_RUNTIME_OPS_H
#define LADE_RUNTIME_OPS_H

#include "base/process.h"
#include "lade/dtype.h"
#include "lade/runtime.h"
#include "lade/status.h"

/* A stream as lade keeps it: resolved at the call that named it. Equal when context and id are equal. */
typedef struct ladei_stream {
  uint64_t context;   /* identity of the context it belongs to; never 0 */
  uint64_t id;        /* unique over the life of the process, also if handles are recycled */
  lade_stream handle; /* the driver's handle; LADE_STREAM_LEGACY for the legacy stream, never NULL */
  int32_t device;     /* ordinal of the context's device */
  int32_t kind;       /* ladei_stream_kind */
} ladei_stream;

typedef enum ladei_stream_kind {
  LADEI_STREAM_ORDINARY = 0,
  LADEI_STREAM_LEGACY = 1,
  LADEI_STREAM_PER_THREAD = 2,
} ladei_stream_kind;

typedef enum ladei_copy_direction {
  LADEI_COPY_H2D = 0,
  LADEI_COPY_D2H = 1,
  LADEI_COPY_D2D = 2,
  LADEI_COPY_H2H = 3,
} ladei_copy_direction;

static inline ladei_copy_direction ladei_copy_direction_of(bool dst_on_device, bool src_on_device) {
  if (dst_on_device) return src_on_device ? LADEI_COPY_D2D : LADEI_COPY_H2D;
  return src_on_device ? LADEI_COPY_D2H : LADEI_COPY_H2H;
}

typedef enum ladei_capture_mode {
  LADEI_CAPTURE_GLOBAL = 0,
  LADEI_CAPTURE_THREAD_LOCAL = 1,
  LADEI_CAPTURE_RELAXED = 2,
} ladei_capture_mode;

typedef enum ladei_capture_status {
  LADEI_CAPTURE_NONE = 0,
  LADEI_CAPTURE_ACTIVE = 1,
  LADEI_CAPTURE_INVALIDATED = 2,
  /* Only for the legacy stream: a blocking stream of its context captures, so it can be neither used nor queried. */
  LADEI_CAPTURE_IMPLICIT = 3,
} ladei_capture_status;

/* Native handles, opaque above this interface. */
typedef struct ladei_graph *ladei_graph;             /* CUgraph */
typedef struct ladei_graph_exec *ladei_graph_exec;   /* CUgraphExec */
typedef struct ladei_user_object *ladei_user_object; /* CUuserObject */
typedef struct ladei_graph_node *ladei_graph_node;   /* CUgraphNode; names its node while the graph lives */
typedef struct ladei_driver_pool *ladei_driver_pool; /* CUmemoryPool */
typedef uint64_t ladei_vm_handle;                    /* CUmemGenericAllocationHandle */

typedef struct ladei_capture_info {
  ladei_capture_status status;
  uint64_t id;       /* unique per capture in the process while ACTIVE; otherwise 0, as drivers do not tell it */
  ladei_graph graph; /* borrowed: the graph under construction while ACTIVE, otherwise NULL */
} ladei_capture_info;

typedef enum ladei_memory_kind {
  LADEI_MEMORY_UNKNOWN = 0, /* ordinary host memory, or no memory at all */
  LADEI_MEMORY_PINNED = 1,  /* host memory that is page-locked by allocation or registration */
  LADEI_MEMORY_DEVICE = 2,
  LADEI_MEMORY_MANAGED = 3,
} ladei_memory_kind;

typedef struct ladei_pointer_attributes {
  ladei_memory_kind kind;
  int32_t device;     /* DEVICE: place of the memory; PINNED: device of the context that pinned it; otherwise -1 */
  uint64_t base;      /* start of the allocation, mapping or registered range; 0 if UNKNOWN */
  size_t bytes;       /* its length; 0 if UNKNOWN */
  void *device_alias; /* PINNED: the device's address for the pointer; otherwise NULL */
} ladei_pointer_attributes;

typedef struct ladei_device_properties {
  char name[128];
  char pci_bus_id[16]; /* "0000:41:00.0" */
  uint8_t uuid[16];
  size_t total_bytes;
  int32_t numa_node; /* OS index, -1 if the runtime does not know it (ask the PCI bus then) */
  int32_t compute_major, compute_minor;
  int32_t multiprocessor_count;
} ladei_device_properties;

/* Answers are integers; booleans are 0 and 1. */
typedef enum ladei_device_attribute {
  LADEI_ATTR_ASYNC_ENGINE_COUNT = 0,
  LADEI_ATTR_UNIFIED_ADDRESSING = 1,
  LADEI_ATTR_INTEGRATED = 2,
  LADEI_ATTR_CAN_MAP_HOST_MEMORY = 3,
  LADEI_ATTR_HOST_REGISTER_SUPPORTED = 4,
  LADEI_ATTR_HOST_REGISTER_READ_ONLY_SUPPORTED = 5,
  LADEI_ATTR_VIRTUAL_MEMORY_SUPPORTED = 6,
  LADEI_ATTR_DRIVER_POOLS_SUPPORTED = 7,
  LADEI_ATTR_HOST_POOLS_SUPPORTED = 8,      /* driver pools whose memory is pinned host memory */
  LADEI_ATTR_HOST_NUMA_POOLS_SUPPORTED = 9, /* the same, bound to one NUMA node */
  LADEI_ATTR_STREAM_WRITE_VALUE_64 = 10,
  LADEI_ATTR_PAGEABLE_MEMORY_ACCESS = 11,
  LADEI_ATTR_HANDLE_TYPE_POSIX_FD = 12, /* vm_export works */
  LADEI_ATTR_GPU_DIRECT_RDMA = 13,
  LADEI_ATTR_STREAM_PRIORITY_LOWEST = 14,  /* largest number */
  LADEI_ATTR_STREAM_PRIORITY_HIGHEST = 15, /* smallest number */
  LADEI_ATTR_HOST_PAGE_TABLES = 16,        /* the device goes by the page tables of the host */
  LADEI_ATTR_CONCURRENT_MANAGED_ACCESS = 17,
  LADEI_ATTR_COUNT
} ladei_device_attribute;

/* Flags of host_alloc and host_register. Both always make the memory portable: pinned for every device. With unified addressing, which
 * all 64-bit systems have, it is mapped too: devices reach it at its own address (seen: driver 580, H200, no flag asked for that). */
enum {
  LADEI_HOST_WRITE_COMBINED = 1u << 0, /* host_alloc only */
  LADEI_HOST_READ_ONLY = 1u << 1,      /* host_register only: the device will only read */
};

/* The driver packs smaller requests into shared pages (CUDA 13.0 on an H200: at multiples of 512 bytes). */
enum { LADEI_HOST_OWN_BYTES = 1 << 20 };

/* Flags of stream_create. */
enum { LADEI_STREAM_NON_BLOCKING = 1u << 0 /* not ordered with the legacy stream */ };

/* Flags of event_create. */
enum { LADEI_EVENT_TIMING = 1u << 0, LADEI_EVENT_INTERPROCESS = 1u << 1 };

typedef enum ladei_pool_location {
  LADEI_POOL_DEVICE = 0,    /* id = device ordinal */
  LADEI_POOL_HOST = 1,      /* id ignored */
  LADEI_POOL_HOST_NUMA = 2, /* id = OS index of the NUMA node */
} ladei_pool_location;

typedef struct ladei_pool_properties {
  ladei_pool_location location;
  int32_t id;
  size_t max_bytes; /* 0: no limit */
} ladei_pool_properties;

typedef enum ladei_pool_attribute {
  LADEI_POOL_RELEASE_THRESHOLD = 0, /* get, set: bytes kept across a synchronisation */
  LADEI_POOL_RESERVED_CURRENT = 1,  /* get */
  LADEI_POOL_RESERVED_HIGH = 2,     /* get; set to 0 resets it */
  LADEI_POOL_USED_CURRENT = 3,      /* get */
  LADEI_POOL_USED_HIGH = 4,         /* get; set to 0 resets it */
} ladei_pool_attribute;

typedef struct ladei_ipc_handle {
  unsigned char bytes[64];
} ladei_ipc_handle;

/* Flags of graph_instantiate_with. */
enum {
  LADEI_GRAPH_AUTO_FREE = 1u << 0, /* a launch first frees the memory that the earlier one allocated and left */
  LADEI_GRAPH_UPLOAD = 1u << 1,    /* with graph_upload on the stream named */
  /* Kernels may launch it too, after an upload. Not with AUTO_FREE, nor for empty graphs or those with host functions,
   * written values, memory nodes or work of several devices. */
  LADEI_GRAPH_DEVICE_LAUNCH = 1u << 2,
};

/* Result of graph_exec_update. All but the first: nothing was changed. */
typedef enum ladei_graph_update {
  LADEI_GRAPH_UPDATED = 0,
  LADEI_GRAPH_TOPOLOGY_CHANGED = 1,   /* other nodes, other edges, or another order */
  LADEI_GRAPH_KIND_CHANGED = 2,       /* of a node */
  LADEI_GRAPH_PARAMETERS_CHANGED = 3, /* of a node, in a way that an exec cannot adopt */
  LADEI_GRAPH_NOT_UPDATABLE = 4,      /* for another reason of the driver */
} ladei_graph_update;

typedef enum ladei_node_kind {
  LADEI_NODE_KERNEL = 0,
  LADEI_NODE_COPY = 1,
  LADEI_NODE_FILL = 2,
  LADEI_NODE_HOST = 3,
  LADEI_NODE_WRITE = 4,       /* stream_write_value and similar */
  LADEI_NODE_ALLOCATION = 5,  /* memory that the graph allocates */
  LADEI_NODE_FREE = 6,        /* memory that the graph frees */
  LADEI_NODE_CHILD = 7,       /* a graph; its own nodes are not counted */
  LADEI_NODE_CONDITIONAL = 8, /* graphs, likewise */
  LADEI_NODE_OTHER = 9,
  LADEI_NODE_KINDS
} ladei_node_kind;

typedef struct ladei_graph_counts {
  size_t nodes, edges;
  size_t of_kind[LADEI_NODE_KINDS]; /* sum: nodes */
} ladei_graph_counts;

/* The driver's allocator for memory that graphs allocate; a high is the largest value so far. */
typedef struct ladei_graph_memory {
  uint64_t used_bytes, used_high_bytes;         /* by execs */
  uint64_t reserved_bytes, reserved_high_bytes; /* held for them */
} ladei_graph_memory;

typedef void (*ladei_host_function)(void *user);

/* Of copy_kernel_convert. */
enum { LADEI_CONVERT_LAUNCH_PIECES = 200 };

/* Blocks of one size: block i goes from src + src_stride * src_ids[i] to dst + dst_stride * dst_ids[i]. */
typedef struct ladei_copy_table {
  void *dst;
  const void *src;
  size_t dst_stride, src_stride;
  size_t dst_count, src_count; /* how many blocks there are on each side; a block with a higher id is not copied */
  const void *dst_ids, *src_ids;
  bool
      at_call; /* ids are in host memory and read before the op returns; otherwise the device reads them in stream order */
  bool wide;           /* ids have 64 bits, not 32 */
  size_t bytes, count; /* of a block; how many ids. Both less than 2^32 - 2^14 */
} ladei_copy_table;

struct lade_copy_piece; /* lade/copy.h */
struct lade_soft_range; /* lade/soft.h */

typedef struct lade_runtime_ops {
  size_t struct_size; /* append only */
  const char *name;   /* "cuda", "cpu", "sim"; static storage */

  /* ---- life ---------------------------------------------------------------------------------------------------- */

  /* Frees everything the runtime itself holds, and `self`. The caller has freed all that it got from it. On soft,
   * objects still alive give LADE_ERR_BUSY with counts per kind in the text, and the runtime stays open. */
  lade_status (*close)(void *self);

  /* ---- devices ------------------------------------------------------------------------------------------------- */

  lade_status (*device_count)(void *self, int *out_count);
  lade_status (*device_properties)(void *self, int device, ladei_device_properties *out);
  lade_status (*device_attribute)(void *self, int device, ladei_device_attribute attribute, int64_t *out_value);
  /* Free and total device memory, as the driver reports it now. */
  lade_status (*memory_info)(void *self, int device, size_t *out_free_bytes, size_t *out_total_bytes);
  /* Ordinal of the device of the calling thread's current context; -1 if none is current. Creates no context. */
  lade_status (*current_device)(void *self, int *out_device);
  /* Makes the device's primary context current in the calling thread, creating it if needed. */
  lade_status (*current_device_set)(void *self, int device);
  /* Identity of the device's primary context, as in ladei_stream.context; activates it if needed. */
  lade_status (*device_context)(void *self, int device, uint64_t *out_context);
  /* Whether the primary context exists; never creates it. */
  lade_status (*device_active)(void *self, int device, bool *out_active);
  /* Waits until all work submitted to the device has finished: that of its streams, with graphs launched there and all
   * that these do elsewhere; not what streams of other devices do with its memory. LADE_ERR_CAPTURE during any capture
   * on it, which becomes invalid (R10). */
  lade_status (*device_synchronize)(void *self, int device);

  /* ---- device memory ------------------------------------------------------------------------------------------- */

  /* At least 256-byte aligned. May synchronise with the device. LADE_ERR_OUT_OF_DEVICE_MEMORY when there is not enough.
   */
  lade_status (*device_alloc)(void *self, int device, size_t bytes, void **out);
  /* May wait for work in flight on the device; the caller must not rely on it. NULL, an interior address and memory
   * that is already free: LADE_ERR_INVALID_ARGUMENT. */
  lade_status (*device_free)(void *self, int device, void *pointer);

  /* ---- virtual memory (optional group: all or none) ------------------------------------------------------------ */

  lade_status (*vm_granularity)(void *self, int device, size_t *out_minimum_bytes, size_t *out_recommended_bytes);
  /* Reserves addresses without memory. bytes is a multiple of the granularity, as in all ops of the group, otherwise
   * LADE_ERR_INVALID_ARGUMENT; align is a power of two, 0 = granularity. */
  lade_status (*vm_reserve)(void *self, int device, size_t bytes, size_t align, void **out_address);
  /* Takes a whole reserved range, with nothing mapped in it, otherwise LADE_ERR_INVALID_ARGUMENT; the driver of "cuda"
   * also takes a part, and leaves the rest. */
  lade_status (*vm_address_free)(void *self, void *address, size_t bytes);
  /* Physical memory; counts against the device's memory from here until release and last unmap. */
  lade_status (*vm_create)(void *self, int device, size_t bytes, bool exportable, ladei_vm_handle *out_handle);
  /* Drops the creator's (importer's) reference; the memory goes when it is no longer mapped anywhere. */
  lade_status (*vm_release)(void *self, ladei_vm_handle handle);
  /* Maps the whole handle at `address` inside a reservation, where nothing is mapped; no access yet. A handle may be
   * mapped several times. The driver of "cuda" does not check the end of the reservation: the caller does. */
  lade_status (*vm_map)(void *self, void *address, size_t bytes, ladei_vm_handle handle);
  /* Waits for nothing: the caller ensures that no work uses the range. Whole mapped handles only, otherwise
   * LADE_ERR_INVALID_ARGUMENT. */
  lade_status (*vm_unmap)(void *self, void *address, size_t bytes);
  /* Gives `device` read and write access to mapped memory, in one call also over several adjacent handles; writable
   * false removes access. */
  lade_status (*vm_set_access)(void *self, void *address, size_t bytes, int device, bool writable);
  /* A file descriptor that another process (or this one) can import; the caller closes it. */
  lade_status (*vm_export)(void *self, ladei_vm_handle handle, int *out_fd);
  /* For `device`, which need not be the one that has the memory: pointer_attributes of its mappings gives that one,
   * whose context need not exist here. */
  lade_status (*vm_import)(void *self, int device, int fd, ladei_vm_handle *out_handle);

  /* ---- driver pools: stream-ordered allocation by the driver (optional group) ---------------------------------- */

  lade_status (*pool_create)(void *self, const ladei_pool_properties *properties, ladei_driver_pool *out_pool);
  /* Memory still allocated from the pool stays valid until freed. The default pool: LADE_ERR_INVALID_ARGUMENT. */
  lade_status (*pool_destroy)(void *self, ladei_driver_pool pool);
  lade_status (*pool_default)(void *self, int device, ladei_driver_pool *out_pool);
  /* Lets `device` access the pool's memory, or not. Removing it from the pool's own: LADE_ERR_NO_DEVICE. */
  lade_status (*pool_set_access)(void *self, ladei_driver_pool pool, int device, bool writable);
  lade_status (*pool_attribute_get)(void *self, ladei_driver_pool pool, ladei_pool_attribute attribute, uint64_t *out);
  lade_status (*pool_attribute_set)(void *self, ladei_driver_pool pool, ladei_pool_attribute attribute, uint64_t value);
  /* Gives free memory beyond `keep_bytes` back. */
  lade_status (*pool_trim)(void *self, ladei_driver_pool pool, size_t keep_bytes);
  /* Memory usable by work on `stream` queued from now on. LADE_ERR_OUT_OF_DEVICE_MEMORY (host pools:
   * LADE_ERR_OUT_OF_PINNED_MEMORY) if there is not enough, or the pool's max_bytes is reached. On a capturing stream it
   * and pool_free become graph nodes; soft gives LADE_ERR_UNSUPPORTED there. */
  lade_status (*pool_alloc)(void *self, ladei_driver_pool pool, size_t bytes, const ladei_stream *stream, void **out);
  /* Frees in stream order, after the work queued on `stream` so far. On a capturing stream, memory that the capture did
   * not allocate: LADE_ERR_INVALID_ARGUMENT. */
  lade_status (*pool_free)(void *self, void *pointer, const ladei_stream *stream);

  /* ---- pinned host memory -------------------------------------------------------------------------------------- */

  /* Page-locked memory from the driver, at least 256-byte aligned; LADEI_HOST_OWN_BYTES and more begin on a page,
   * smaller requests may share one. LADE_ERR_OUT_OF_PINNED_MEMORY if refused. `device`: its context pins the memory
   * (which is portable nevertheless). */
  lade_status (*host_alloc)(void *self, int device, size_t bytes, unsigned flags, void **out);
  /* May wait for all work of the device. */
  lade_status (*host_free)(void *self, void *pointer);
  /* Page-locks the caller's memory. pointer and bytes are multiples of the page size. Overlap with a registered range:
   * LADE_ERR_INVALID_ARGUMENT. Refusal by the system: LADE_ERR_OUT_OF_PINNED_MEMORY, no sticky driver error. The pages
   * are readable without a hole; without LADEI_HOST_READ_ONLY also writable, and no shared mapping of a file that the
   * system writes back (ext4; memfd and /dev/shm work): else LADE_ERR_INVALID_ARGUMENT ("sim" checks no pages). */
  lade_status (*host_register)(void *self, int device, void *pointer, size_t bytes, unsigned flags);
  /* Takes the start of a registered range. May wait, as host_free. */
  lade_status (*host_unregister)(void *self, void *pointer);

  /* ---- pointers ------------------------------------------------------------------------------------------------ */

  /* Takes any address, interior ones too; an unknown one is LADEI_MEMORY_UNKNOWN, not an error. */
  lade_status (*pointer_attributes)(void *self, const void *pointer, ladei_pointer_attributes *out);

  /* ---- streams ------------------------------------------------------------------------------------------------- */

  /* In the device's primary context. priority: smaller is more urgent; clamped to the device's range. The handle is
   * never a special one; destroying a special one is LADE_ERR_INVALID_ARGUMENT. */
  lade_status (*stream_create)(void *self, int device, int priority, unsigned flags, lade_stream *out);
  /* Returns at once; work in flight still finishes. The next create may recycle the handle, but never the id. */
  lade_status (*stream_destroy)(void *self, lade_stream stream);
  /* Resolves a handle for the other ops. Special handles: in the calling thread, with its current context
   * (LADE_ERR_INVALID_ARGUMENT if none is current). Allowed on capturing streams. Does not synchronise. */
  lade_status (*stream_resolve)(void *self, lade_stream stream, ladei_stream *out);
  /* Work queued later waits for the work that the event's last record before this call covers. An event never recorded:
   * no wait. Events of other devices are allowed. */
  lade_status (*stream_wait_event)(void *self, const ladei_stream *stream, lade_event event);
  /* LADE_OK when all queued work has finished, LADE_NOT_READY otherwise. R10. An event recorded on a blocking stream
   * while the legacy stream is busy waits for that work, which is not work of the stream itself: this op and
   * stream_synchronize ignore it, and may return LADE_OK while the event is pending. Query the event if it matters. */
  lade_status (*stream_query)(void *self, const ladei_stream *stream);
  /* On `sim`: moves the clock to the stream's end; LADE_ERR_TIMEOUT, naming the stream, if its work can never end. */
  lade_status (*stream_synchronize)(void *self, const ladei_stream *stream);
  /* Allowed in every capture mode; never invalidates a capture. */
  lade_status (*stream_capture_info)(void *self, const ladei_stream *stream, ladei_capture_info *out);

  /* Exchanges the calling thread's capture mode: *mode is set, and becomes the former one. */
  lade_status (*capture_mode_exchange)(void *self, ladei_capture_mode *mode);

  /* ---- events -------------------------------------------------------------------------------------------------- */

  /* For streams of that context (device_context, or ladei_stream.context); recording it on a stream of another one is
   * LADE_ERR_INVALID_ARGUMENT. TIMING and INTERPROCESS exclude each other. */
  lade_status (*event_create)(void *self, uint64_t context, unsigned flags, lade_event *out);
  /* Allowed while its record is pending: the handle goes, the work goes on. */
  lade_status (*event_destroy)(void *self, lade_event event);
  /* Captures the work queued on the stream so far; replaces the former record. On a capturing stream: a captured event.
   */
  lade_status (*event_record)(void *self, lade_event event, const ladei_stream *stream);
  /* LADE_OK: finished, or never recorded. LADE_NOT_READY: pending. R10. */
  lade_status (*event_query)(void *self, lade_event event);
  lade_status (*event_synchronize)(void *self, lade_event event);
  /* Device time between two recorded, finished events of one context made with LADEI_EVENT_TIMING. Without that flag or
   * a record LADE_ERR_INVALID_ARGUMENT; LADE_NOT_READY while one is pending. 0 if `end` is before `start`. */
  lade_status (*event_elapsed_ns)(void *self, lade_event start, lade_event end, uint64_t *out_ns);

  /* ---- copies, fills, host functions --------------------------------------------------------------------------- */

  /* Asynchronous copy; the host side should be pinned. The driver stages pageable memory: the source may be reused when
   * the call returns (H2D), the call may wait (D2H; H2D of more than some MiB). H2H: the driver of "cuda" waits for the
   * stream, even between pinned memory (a copy_batch of one does not), and in each launch of a graph with such a copy.
   * Copies of one direction are not ordered across streams: a short one to the device (16 KiB and less) may pass a long
   * one of another stream; longer ones and those to the host wait for it. Note [Copies end with registrations] */
  lade_status (*copy)(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                      const ladei_stream *stream);
  /* Synchronous copy in the device's primary context, to or from any host memory. */
  lade_status (*copy_sync)(void *self, int device, ladei_copy_direction direction, void *dst, const void *src,
                           size_t bytes);
  /* `count` copies of one direction in one submission, unordered among themselves. Optional: LADE_ERR_UNSUPPORTED if
   * the driver has none, or for a legacy or capturing stream. A failure submits nothing. */
  lade_status (*copy_batch)(void *self, ladei_copy_direction direction, size_t count, void *const *dsts,
                            const void *const *srcs, const size_t *sizes, const ladei_stream *stream);
  /* Device to device, with or without access between the devices. Each end is reached from the device that is named for
   * it. Not in a capture, which becomes invalid: LADE_ERR_CAPTURE. Note [Copies between devices] */
  lade_status (*copy_peer)(void *self, void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                           const ladei_stream *stream);
  /* Within a device: `rows` rows of `width` bytes, each a pitch after the previous one. Widths, rows and pitches from 1
   * to 2^31 - 1, pitches at least the width. Source and destination do not overlap. */
  lade_status (*copy_2d)(void *self, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                         size_t rows, const ladei_stream *stream);
  /* Sets device (or pinned) memory to one byte value. Note [Copies end with registrations] */
  lade_status (*fill)(void *self, void *dst, unsigned char value, size_t bytes, const ladei_stream *stream);
  /* Runs `function` on a driver thread after the work queued so far. It may make no runtime call ("cuda":
   * LADE_ERR_UNSUPPORTED, soft: LADE_ERR_DRIVER; a driver may let some pass), and does not run after a device error.
   * One thread runs those of all streams, one after the other. Captured like other work. */
  lade_status (*host_function)(void *self, const ladei_stream *stream, ladei_host_function function, void *user);
  /* Writes 32 or 64 bits (`width_bits`) to device-accessible memory, aligned to the width, after the work queued so
   * far. Memory of a driver pool: LADE_ERR_INVALID_ARGUMENT. Optional. */
  lade_status (*stream_write_value)(void *self, const ladei_stream *stream, void *address, uint64_t value,
                                    unsigned width_bits);

  /* ---- captures and graphs (optional group) -------------------------------------------------------------------- */

  /* On any stream but the legacy one or one that captures (LADE_ERR_CAPTURE). A stream that waits for an event captured
   * in it joins the capture, and must be waited for in turn before the end. */
  lade_status (*capture_begin)(void *self, const ladei_stream *stream, ladei_capture_mode mode);
  /* On the stream that began it, in the thread that did unless the mode is RELAXED. Caller owns the graph.
   * LADE_ERR_CAPTURE if the stream began no capture, or the capture was invalidated or has streams that were not joined
   * back: that also ends the capture, and its user objects go. */
  lade_status (*capture_end)(void *self, const ladei_stream *stream, ladei_graph *out_graph);
  lade_status (*graph_instantiate)(void *self, ladei_graph graph, ladei_graph_exec *out_exec);
  /* In stream order, and after earlier launches of the same exec on any stream. On a capturing stream:
   * LADE_ERR_CAPTURE, and the capture becomes invalid (as with the driver of CUDA 13.0 on an H200). */
  lade_status (*graph_launch)(void *self, ladei_graph_exec exec, const ladei_stream *stream);
  lade_status (*graph_destroy)(void *self, ladei_graph graph);
  /* A launch in flight finishes first; user objects go after it. Those of an exec that was ever launched go later, on a
   * driver thread, even if its launches ended long ago. */
  lade_status (*graph_exec_destroy)(void *self, ladei_graph_exec exec);
  /* One reference, owned by the caller. `destroy` runs when the last reference is gone, and may make no runtime call.
   * It runs within the op that drops it (user_object_release, graph_destroy, graph_exec_update, capture_end of an
   * invalid capture, stream_destroy of its stream, graph_exec_destroy of an exec never launched; else see that op). */
  lade_status (*user_object_create)(void *self, ladei_host_function destroy, void *user, ladei_user_object *out);
  lade_status (*user_object_release)(void *self, ladei_user_object object);
  /* Moves the caller's reference into the graph; execs made from the graph hold references of their own. Allowed on a
   * graph under construction. */
  lade_status (*graph_retain_user_object)(void *self, ladei_graph graph, ladei_user_object object);

  /* ---- peers, other processes ---------------------------------------------------------------------------------- */

  /* False for a device and itself. */
  lade_status (*peer_can_access)(void *self, int device, int peer, bool *out_can);
  /* Lets `device` use memory of `peer`. Enabling twice succeeds. LADE_ERR_UNSUPPORTED if peer_can_access gives false;
   * with itself, and disabling access that is not enabled: LADE_ERR_INVALID_ARGUMENT. */
  lade_status (*peer_enable)(void *self, int device, int peer);
  lade_status (*peer_disable)(void *self, int device, int peer);
  /* For memory of device_alloc; names the whole allocation that contains `pointer`. Optional group of three. */
  lade_status (*ipc_export)(void *self, void *pointer, ladei_ipc_handle *out_handle);
  /* Gives `device` access, whichever device has the memory; pointer_attributes gives `device`. The software devices
   * open only their own process's memory, on the device that has it. */
  lade_status (*ipc_open)(void *self, int device, const ladei_ipc_handle *handle, void **out_base);
  lade_status (*ipc_close)(void *self, void *base);

  /* ---- clock, texts -------------------------------------------------------------------------------------------- */

  /* The only clock the library reads: monotonic; virtual on `sim`. Never fails. */
  uint64_t (*now_ns)(void *self);
  /* Driver's name and text for a native code, such as "CUDA_ERROR_OUT_OF_MEMORY: out of memory"; static. Never NULL. */
  const char *(*native_error_text)(void *self, int64_t native_code);

  /* ---- virtual time (optional pair; present only on `sim`) ----------------------------------------------------- */

  /* Calls `function` when the clock reaches `at_ns` (in the next step, if that is past). Functions of one time run in
   * the order in which they were added. They may call ops. */
  lade_status (*timer_add)(void *self, uint64_t at_ns, ladei_host_function function, void *user);
  /* Moves the clock to the next occurrence (work ends, timer fires) and lets it happen. LADE_NOT_READY if nothing more
   * can happen by itself. */
  lade_status (*step)(void *self);

  /* ---- kernels (optional; software devices only) --------------------------------------------------------------- */

  /* Queues a function of the program as work of the device: lade_soft_kernel() is this op on a handle. The arguments
   * and ranges are copied; the function may make no runtime call. Captured like other work. */
  lade_status (*kernel)(void *self, const ladei_stream *stream, void (*function)(const void *arguments),
                        const void *arguments, size_t bytes, const struct lade_soft_range *ranges, size_t count);

  /* ---- more on graphs (of the optional group of captures and graphs) -------------------------------------------- */

  /* As graph_instantiate, with flags. `upload`: stream of the upload with LADEI_GRAPH_UPLOAD, otherwise NULL. Unknown
   * flags, and those that the graph does not allow: LADE_ERR_INVALID_ARGUMENT (or the driver's
   * LADE_ERR_UNSUPPORTED). */
  lade_status (*graph_instantiate_with)(void *self, ladei_graph graph, unsigned flags, const ladei_stream *upload,
                                        ladei_graph_exec *out_exec);
  /*
   * Gives the exec the parameters and the user objects of another graph, of the same nodes, edges and kinds in the same
   * order of capture. LADE_OK with LADEI_GRAPH_UPDATED, or with the reason for leaving the exec as it was. Launches
   * that were queued earlier keep their parameters. The driver of "cuda" adds restrictions of its own (CUDA Driver API,
   * Graph Management, cuGraphExecUpdate), so callers must be able to instantiate instead. A copy keeps its direction
   * (within the host and within a device count as one). Device memory from device_alloc is not replaced by mapped or
   * pool memory, nor these by it. Copies and fills keep the devices of their memory, on soft other nodes the device of
   * their stream.
   */
  lade_status (*graph_exec_update)(void *self, ladei_graph_exec exec, ladei_graph graph, ladei_graph_update *out);
  /* Brings the exec to the device ahead of its first launch, which otherwise does it; in stream order, and after
   * earlier launches of the exec. On a capturing stream: LADE_ERR_CAPTURE, and the capture becomes invalid. */
  lade_status (*graph_upload)(void *self, ladei_graph_exec exec, const ladei_stream *stream);
  /* Also for a graph under construction. */
  lade_status (*graph_counts)(void *self, ladei_graph graph, ladei_graph_counts *out);
  /* All 0 on soft, where no graph allocates. */
  lade_status (*graph_memory_get)(void *self, int device, ladei_graph_memory *out);
  /* Gives reserved and unused memory back to the device. */
  lade_status (*graph_memory_trim)(void *self, int device);

  /* ---- order of the work in a capture (optional pair) ----------------------------------------------------------- */

  /*
   * As stream_capture_info, with the nodes that the stream's next captured work will depend on, at one moment.
   * *out_count is their number, 0 unless ACTIVE; only the first `capacity` of them are written. Harms no capture. No
   * other thread may use the stream meanwhile. LADE_ERR_DRIVER with "cuda" if one of them does not wait for its
   * predecessor's end (programmatic launches). Failures leave *out_info and *out_count alone.
   */
  lade_status (*capture_frontier)(void *self, const ladei_stream *stream, ladei_capture_info *out_info,
                                  ladei_graph_node *nodes, size_t capacity, size_t *out_count);
  /* The nodes on which a node of a graph (also of one under construction) depends; counts, failures and harm as above.
   * No other thread may add work to the graph meanwhile. */
  lade_status (*graph_node_dependencies)(void *self, ladei_graph_node node, ladei_graph_node *dependencies,
                                         size_t capacity, size_t *out_count);

  /* ---- a kernel that copies pieces (optional group) -------------------------------------------------------------- */

  /*
   * Loads the kernel for a device, once. Harms no capture. "cuda" waits for all work of the device, and launches of other
   * threads wait with it (driver 580, H200); the first load of a machine compiles for 0.1 to 0.3 s. LADE_ERR_UNSUPPORTED if
   * the device or the driver cannot have it.
   */
  lade_status (*copy_kernel_load)(void *self, int device);
  /*
   * Copies pieces within memory that the stream's device reads and writes itself: its own, what it may access, and pinned memory by
   * its device_alias. In no order; pieces that overlap others' destinations end with any bytes of both. `blocks`: of
   * threads, each of which takes a part of a multiprocessor. Captured like other work. The lists are copied.
   * LADE_ERR_UNSUPPORTED if the kernel is not loaded, and on a stream of another context than the device's primary one: nothing is
   * queued then. Also for addresses that the kernel has no room for: pieces before them may be queued.
   */
  lade_status (*copy_kernel)(void *self, const struct lade_copy_piece *pieces, size_t count, unsigned blocks,
                             const ladei_stream *stream);
  /* The same for a table of blocks. Ids that the device reads stay in place until the work has run. */
  lade_status (*copy_kernel_table)(void *self, const ladei_copy_table *table, unsigned blocks,
                                   const ladei_stream *stream);
  /*
   * The same for pieces of numbers, which are converted (runtime/convert.h). A piece's bytes are those of its source; both ends lie at
   * multiples of the size of their numbers. Up to LADEI_CONVERT_LAUNCH_PIECES of 2 GiB or less are queued all or none.
   */
  lade_status (*copy_kernel_convert)(void *self, const struct lade_copy_piece *pieces, size_t count, lade_dtype from,
                                     lade_dtype to, unsigned blocks, const ladei_stream *stream);
} lade_runtime_ops;

/* Checks the arguments of copy_kernel_convert: LADE_ERR_INVALID_ARGUMENT. */
lade_status ladei_ops_convert_check(const struct lade_copy_piece *pieces, size_t count, lade_dtype from, lade_dtype to,
                                    unsigned blocks);

/*
 * The one checker, called when a table is adopted: required ops present, groups and pairs whole, struct_size known,
 * name set. LADE_ERR_INVALID_ARGUMENT names the first wrong op.
 */
lade_status ladei_ops_check(const lade_runtime_ops *ops);

/* Pipelines share their knowledge of the links of this many devices; for other devices each has its own. */
enum { LADEI_RUNTIME_LINKS = 64 };

/* The pipelines' knowledge of a link, in one direction. */
typedef struct ladei_link {
  _Atomic(size_t)
      chunk_bytes; /* sufficient length of a copy: pipeline/core/adapt.c, Note [Chunk and link]. 0: unknown */
  _Atomic(uint32_t)
      copiers; /* pipelines that copy over it now: one alone may measure it (pipeline/drivers/execute.c) */
} ladei_link;

/* A device's ways to copy pieces: runtime/copies/ways.c. */
enum { LADEI_COPY_WAYS = 3 }; /* directions: to the device, from it, within it */
enum { LADEI_COPY_UNKNOWN = 0, LADEI_COPY_READY = 1, LADEI_COPY_NONE = 2 };
typedef struct ladei_copy_ways {
  _Atomic(uint32_t) state;
  _Atomic(bool) tried;                            /* by a first use */
  _Atomic(uint32_t) blocks[LADEI_COPY_WAYS];      /* of threads */
  _Atomic(uint32_t) engine_from[LADEI_COPY_WAYS]; /* bytes */
  _Atomic(uint64_t) kernel_pieces, kernel_bytes, engine_pieces, engine_bytes, merged_pieces;
} ladei_copy_ways;

/* A runtime, as the library's code uses it. */
struct lade_runtime {
  const lade_runtime_ops *ops;
  void *self;
  void *software_device;                    /* runtime/soft's own object, also under a wrapped table; NULL for a GPU */
  _Atomic(uint64_t) users;                  /* pools, pipelines, ... alive on it; close refuses while not 0 */
  ladei_process owner;                      /* process that opened it; others get LADE_ERR_FORKED */
  ladei_link links[LADEI_RUNTIME_LINKS][2]; /* to a device, and from it */
  ladei_copy_ways copies[LADEI_RUNTIME_LINKS];
  _Atomic(void *) copy_memory; /* kept by runtime/copies/plan.c, freed by close */
};

/* Counts an object that lives on the runtime. Acquire fails with LADE_ERR_FORKED in a forked child. */
lade_status ladei_runtime_acquire(lade_runtime *runtime);
void ladei_runtime_release(lade_runtime *runtime);

/*
 * Note [Asking and capturing]. A question about a capturing stream, and a wait for it, invalidate its capture. So these
 * two first ask, without harm, whether the stream captures, and leave it alone if it does: LADE_ERR_CAPTURE. A capture
 * that another thread begins between the two calls is still broken; no driver call asks both at once. Therefore:
 *   - lade asks a stream only about work that it was told of, and only when it looks for memory;
 *   - if an event will do, it is recorded and queried instead. A record on a stream that has begun to capture harms
 *     nothing; a query of that event would. So code that recorded an event on the program's stream asks once more
 *     whether the stream captures, and if so goes on without the event.
 * The driver's answer to the identity of a stream (cuStreamGetId) is such a question, too: on "cuda" stream_resolve
 * first asks whether the stream captures. A wait that is queued on a caller's stream (stream_wait_event) is another. A
 * program avoids this race if it begins captures on streams on which lade has nothing pending, or in the thread that
 * also calls lade.
 */
/* LADE_OK if the stream may be asked and waited for; otherwise LADE_ERR_CAPTURE, naming the purpose (`call`), or the
 * reason why it is not known. */
lade_status ladei_stream_uncaptured(const lade_runtime *runtime, const ladei_stream *stream, const char *call);
/* Whether the handle of a stream that was resolved earlier still names it. LADE_ERR_STREAM_RETIRED: the program has
 * destroyed the stream; the handle names none now, or another one. */
lade_status ladei_stream_verify(const lade_runtime *runtime, const ladei_stream *stream);
/*
 * After a call on such a stream that succeeded: whether the call reached it. Ids are never given twice, so a handle
 * that names the stream after the call named it during the call, too. Fails as the two above: the id of a stream that
 * captures would not be the driver's answer (I4 in cuda/stream_identity.c).
 */
lade_status ladei_stream_confirm(const lade_runtime *runtime, const ladei_stream *stream, const char *call);
/* stream_query, stream_synchronize, if the stream does not capture. */
lade_status ladei_stream_ask(const lade_runtime *runtime, const ladei_stream *stream);
lade_status ladei_stream_wait(const lade_runtime *runtime, const ladei_stream *stream);

/*
 * Copies device memory to device memory, of one device or of two: by copy, or if that does not reach one end by
 * copy_peer with these devices. LADE_ERR_CAPTURE, with the capture left as it was, if only copy_peer would do and the
 * stream captures. Note [Copies between devices]
 */
lade_status ladei_copy_between(const lade_runtime *runtime, void *dst, int dst_device, const void *src, int src_device,
                               size_t bytes, const ladei_stream *stream);

/* Around lade's own driver calls that a capture of this thread, or another's in mode GLOBAL, would forbid (R10). If the
 * exchange fails, the call that follows fails too, and reports why. No lock held. */
ladei_capture_mode ladei_capture_mode_relax(const lade_runtime *runtime);
void ladei_capture_mode_restore(const lade_runtime *runtime, ladei_capture_mode mode);

/* Checks rows and pitches for copy_2d; LADE_ERR_INVALID_ARGUMENT. */
lade_status ladei_copy_2d_check(size_t dst_pitch, size_t src_pitch, size_t width, size_t rows);

/* LADE_ERR_FORKED in a child of the process that opened the runtime; one load, so for the fast paths too. */
lade_status ladei_runtime_forked(const lade_runtime *runtime); /* the error itself */
static inline lade_status ladei_runtime_check_process(const lade_runtime *runtime) {
  return ladei_process_is_own(&runtime->owner) ? LADE_OK : ladei_runtime_forked(runtime);
}

/*
 * Makes a runtime of a table and its object, after checking the table. Tests put a counting or failing table around
 * that of another runtime. Borrows `ops` until close; takes `self` on success; `software_device` as in the struct.
 */
lade_status ladei_runtime_adopt(const lade_runtime_ops *ops, void *self, void *software_device, lade_runtime **out);

#endif /* LADE_RUNTIME_OPS_H */
