/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Software devices: GPUs made of host memory, for users without one and for tests.
 *
 * Two clocks, one meaning. "cpu" copies with threads in real time. "sim" is single-threaded: nothing happens by itself;
 * the virtual clock moves only in a call that waits (synchronise), in lade_soft_advance(), by the cost of driver calls
 * where one is set, and in the pipeline's own waits. A copy takes effect as a whole at its end: at that moment it reads
 * its source and writes its destination, so host memory that is reused too early shows as wrong bytes. Each engine of a
 * device (H2D, H2D of up to 16 KiB, D2H, within the device, to peers, host functions) serves all streams, first ready, first
 * served, and a copy lasts copy_launch_ns + bytes / rate, rounded up. Same input, same run. (So do an NVIDIA H200's: a small
 * copy to the device waits for no long one of another stream; the two engines are one on a half-duplex device.)
 *
 * Software devices report what hardware hides (lade_soft_report): use of freed memory, reuse that no event or stream
 * order covers, copies from unpinned memory, use of destroyed streams and events. Copies and fills over the end
 * of a registration are refused, as the driver refuses them. Reuse is judged when work is queued, by what orders it, so
 * that a race is found however well it went; a wait or a successful query orders all that the program does later, in any
 * thread, and so does a host function. A launch of a graph counts as one access to all that its nodes touch; races between
 * the nodes of one graph are looked for when its capture ends.
 *
 *   lade_soft_device device = {.numa_node = 1, .link_bytes_per_s = 25000000000, .copy_launch_ns = 3000};
 *   lade_soft_options soft;
 *   lade_soft_options_init(&soft);
 *   soft.devices = &device; soft.device_count = 1;
 *   lade_runtime_options options;
 *   lade_runtime_options_init(&options);
 *   options.soft = &soft;
 *   lade_runtime_open("sim", &options, &runtime);
 *   lade_soft_fault_add(runtime, "host_register", 3, LADE_ERR_OUT_OF_PINNED_MEMORY); // the third call fails
 */
#ifndef LADE_SOFT_H
#define LADE_SOFT_H

#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One software device. All zero is a sensible device; fields are appended only, in 8-byte steps. */
typedef struct lade_soft_device {
  uint64_t memory_bytes;         /**< Capacity; default 16 GiB on "sim" and half of the machine's memory on "cpu". */
  uint64_t link_bytes_per_s;     /**< H2D and D2H, each; default 55e9. "sim" only. */
  uint64_t memory_bytes_per_s;   /**< D2D copies, fills and kernels; default 2e12. "sim" only. */
  uint64_t peer_bytes_per_s;     /**< Copies between devices; default 50e9. "sim" only. */
  uint64_t copy_launch_ns;       /**< Cost of each copy, serial on its engine; default 3000. "sim" only. */
  uint64_t vm_granularity_bytes; /**< Default 2 MiB. */
  int32_t numa_node;             /**< OS index + 1; 0: unknown. So node 0 is written 1. */
  int32_t half_duplex;           /**< 1: H2D and D2H share one engine. */
  int32_t addresses_only;        /**< 1: device memory is addresses without bytes; copies move none. */
  int32_t no_peer_access;        /**< 1: no other device may map this one's memory. */
  int32_t no_virtual_memory;     /**< 1: the virtual-memory ops give LADE_ERR_UNSUPPORTED. */
  int32_t no_driver_pools;       /**< 1: the driver-pool ops give LADE_ERR_UNSUPPORTED. */
  int32_t no_copy_batch;         /**< 1: batched copies give LADE_ERR_UNSUPPORTED. */
  int32_t engine_stays;          /**< 1: a copy engine goes on with one stream as long as that has copies, as those of
                                    NVIDIA H200s do; 0: it takes the streams in turn. */
} lade_soft_device;

/** Virtual cost of one driver call, charged to the calling thread on "sim"; 0 (default) lets calls take no time. */
typedef struct lade_soft_costs {
  uint64_t event_record_ns;
  uint64_t event_query_ns;
  uint64_t event_create_ns;
  uint64_t submit_ns; /**< Copy, fill, kernel, host function, graph launch. */
  uint64_t device_alloc_ns;
  uint64_t device_free_ns;
  uint64_t host_pin_ns;          /**< host_alloc, host_register: fixed part. */
  uint64_t host_pin_bytes_per_s; /**< ... and per byte; 0: no cost. */
  uint64_t host_unpin_ns;
} lade_soft_costs;

/** Description of all software devices of a runtime. */
typedef struct lade_soft_options {
  size_t struct_size;
  const lade_soft_device *devices; /**< Borrowed for the call; NULL: one default device. */
  uint64_t device_count;           /**< 0 with NULL. At most 64. */
  lade_soft_costs costs;
  uint64_t pinned_limit_bytes; /**< host_alloc and host_register beyond it are refused; 0: no limit. */
  uint64_t graph_node_bytes;   /**< Device memory that each node of an executable graph takes, from instantiation until
                                    exec and launches are gone; 0: none. */
} lade_soft_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_soft_options_init(lade_soft_options *options) {
  const lade_soft_options defaults = {sizeof(lade_soft_options), NULL, 0, {0, 0, 0, 0, 0, 0, 0, 0, 0}, 0, 0};
  *options = defaults;
}

/** Counts of what hardware would hide, and of what is alive. */
typedef struct lade_soft_report {
  size_t struct_size;
  uint64_t freed_memory_used;  /**< Work and graph nodes that touched device or pinned memory after its free. */
  uint64_t unordered_reuse;    /**< Accesses to the same bytes, one of them a write, ordered by no stream or event. */
  uint64_t unpinned_copies;    /**< Asynchronous copies from or to pageable host memory. */
  uint64_t stale_handles;      /**< Uses of destroyed streams, events, graphs. */
  uint64_t device_bytes;       /**< Device memory allocated or created now, all devices. */
  uint64_t pinned_bytes;       /**< Host memory pinned now. */
  uint64_t device_allocations; /**< Live ones, virtual-memory handles and driver-pool blocks included. */
  uint64_t pinned_ranges;      /**< Live host allocations and registrations. */
  uint64_t streams;            /**< Live streams that the program created. */
  uint64_t events;
  uint64_t graphs; /**< Graphs and executable graphs. */
  uint64_t driver_pools;
  uint64_t user_objects;
  /** Text of the most recent of those counted here; "": there is none. Valid until the next. */
  const char *last_finding;
} lade_soft_report;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_soft_report_init(lade_soft_report *report) {
  const lade_soft_report defaults = {sizeof(lade_soft_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL};
  *report = defaults;
}

/**
 * Read the counters.
 *
 * @param report  [in,out] struct_size set by lade_soft_report_init().
 *
 * Threads: any on "cpu". Waits: never. Stream order: none. Errors: LADE_ERR_UNSUPPORTED on "cuda".
 */
LADE_API lade_status lade_soft_report_get(lade_runtime *runtime, lade_soft_report *report);

/**
 * Move the virtual clock of "sim" by `ns`, letting everything due on the way happen.
 *
 * Errors: LADE_ERR_UNSUPPORTED on other runtimes.
 */
LADE_API lade_status lade_soft_advance(lade_runtime *runtime, uint64_t ns);

/**
 * Let a later call of an op fail: the fault plan.
 *
 * @param op      Name of the op as in the table of runtime ops, such as "host_register", "event_record", "copy".
 * @param nth     Which call from now on fails: 1 is the next one. 0: every call from now on.
 * @param status  What it returns; the op does nothing then. Not LADE_OK, nor LADE_ERR_TIMEOUT, which ends waits alone.
 *
 * Several faults may be pending. Threads: as the runtime. Errors: LADE_ERR_INVALID_ARGUMENT for an unknown op and those two;
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_UNSUPPORTED on "cuda".
 */
LADE_API lade_status lade_soft_fault_add(lade_runtime *runtime, const char *op, uint64_t nth, lade_status status);

/** Forget all pending faults; holds and a lost device stay. Threads: as the runtime. Errors: LADE_ERR_UNSUPPORTED on "cuda". */
LADE_API lade_status lade_soft_fault_clear(lade_runtime *runtime);

/** Calls of an op since the runtime was opened, failed ones included. Threads: as the runtime. Errors: as lade_soft_fault_add(). */
LADE_API lade_status lade_soft_call_count(lade_runtime *runtime, const char *op, uint64_t *out_count);

/**
 * Stop a stream, or let it run on. Work queued on a stopped one so far and later does not run (an event recorded after this
 * never completes) until it runs on, or is destroyed.
 *
 * @param hold  true: stop it. false: let it run on.
 *
 * Threads: as the runtime. Errors: LADE_ERR_INVALID_ARGUMENT for no stream; LADE_ERR_UNSUPPORTED on "cuda".
 */
LADE_API lade_status lade_soft_stream_hold(lade_runtime *runtime, lade_stream stream, bool hold);

/**
 * Lose a device: when the clock reaches `at_ns` (at once if that is past), work on it stops and every call that needs
 * it gives LADE_ERR_DEVICE_LOST. From then on the device touches no memory. Other devices go on; what was made on the
 * lost one can still be given back.
 *
 * Threads: as the runtime. Errors: LADE_ERR_NO_DEVICE; LADE_ERR_UNSUPPORTED on "cuda".
 */
LADE_API lade_status lade_soft_device_lose(lade_runtime *runtime, int device, uint64_t at_ns);

/** A kernel's accesses to a range of memory: a set of these. */
typedef enum lade_soft_access {
  LADE_SOFT_READ = 1 << 0,
  LADE_SOFT_WRITE = 1 << 1,
} lade_soft_access;

/** Memory that a kernel touches. */
typedef struct lade_soft_range {
  const void *address; /**< Device memory that the device of the stream may access, or pinned memory. */
  size_t bytes;        /**< At least 1. All in one allocation, registration or run of mappings. */
  uint32_t access;     /**< Set of lade_soft_access, not empty. */
  uint32_t reserved;   /**< 0 */
} lade_soft_range;

/**
 * A kernel's function: plain C that reads and writes the ranges named at the call, through addresses in its arguments.
 *
 * It must end by itself, and may make no call of this library: LADE_ERR_DRIVER, as in host functions.
 *
 * @param arguments  The copy that lade_soft_kernel() took, aligned for any type; NULL where it has 0 bytes. The same one
 *                   at each replay of a graph.
 */
typedef void (*lade_soft_function)(const void *arguments);

/**
 * Queue a software kernel: a C function that the device runs, where a program on a GPU launches one.
 *
 * The function runs once, when the work queued on `stream` before it has ended: on "sim" at the end of its time, in the call
 * that moves the clock; on "cpu" on the device's compute engine, a thread, beside copies of other streams. It
 * takes the time of its ranges at memory_bytes_per_s, pinned ones at link_bytes_per_s, and those read and written twice.
 * While `stream` captures it becomes a node of the graph, and so of each graph made executable from it, with the
 * arguments of this call.
 *
 * Only `ranges` decide which memory it is taken to touch, as for copies and fills: reuse that no order covers is
 * counted when the kernel is queued or its graph launched; if a range was freed before the kernel ran, that is counted
 * and the function does not run. Nor does it on a lost device, or if a range has no bytes (addresses_only).
 * A kernel that writes pinned memory may tell the program of its end by it, as a host function does.
 *
 *   struct scale { float *values; size_t count; float by; } arguments = {device_values, 1000, 2.0f};
 *   lade_soft_range range = {device_values, 1000 * sizeof(float), LADE_SOFT_READ | LADE_SOFT_WRITE, 0};
 *   lade_soft_kernel(runtime, stream, scale_run, &arguments, sizeof arguments, &range, 1);
 *
 * @param function   Borrowed until the kernel has run, of a captured one until the graph and all execs of it are gone.
 * @param arguments  `bytes` bytes, copied before the call returns. NULL if bytes is 0.
 * @param ranges     `count` ranges, copied before the call returns; they may overlap. NULL if count is 0.
 *
 * Threads: as the runtime. Waits: never. Stream order: after the work queued on `stream` so far.
 * Errors, with nothing queued: LADE_ERR_UNSUPPORTED on "cuda"; LADE_ERR_INVALID_ARGUMENT names the field, also for memory
 * that is pageable, freed or of another device; LADE_ERR_CAPTURE; LADE_ERR_DEVICE_LOST; LADE_ERR_OUT_OF_HOST_MEMORY. The fault plan
 * knows it as "kernel".
 */
LADE_API lade_status lade_soft_kernel(lade_runtime *runtime, lade_stream stream, lade_soft_function function,
                                      const void *arguments, size_t bytes, const lade_soft_range *ranges, size_t count);

#ifdef __cplusplus
}
#endif
#endif /* LADE_SOFT_H */
