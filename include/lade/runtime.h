/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Opening a runtime: the GPU through CUDA's driver, or a software device.
 *
 *   name    what it is                                                             clock
 *   "cuda"  NVIDIA GPUs through libcuda.so.1, opened at run time                    wall
 *   "cpu"   software device whose engines are threads; the fallback without a GPU   wall
 *   "sim"   software device, single-threaded and deterministic; see soft.h          virtual
 *
 * lade_stream and lade_event are pointers to the CUDA driver's own structs: a cudaStream_t, CUstream, cudaEvent_t or
 * CUevent passes unchanged. Handles and pointers of the CUDA runtime API work because lade uses each device's primary
 * context, as that API does.
 *
 * Rules: a runtime outlives everything made on it (lade_runtime_close refuses otherwise). After fork() the child may
 * not use it: LADE_ERR_FORKED. "cuda" and "cpu" may be used from any thread; "sim" from one thread at a time.
 *
 *   lade_runtime *runtime;
 *   if (lade_runtime_open(NULL, NULL, &runtime) != LADE_OK) ...
 *   lade_stream stream;
 *   lade_stream_create(runtime, 0, &stream);
 *   ...
 *   lade_stream_destroy(runtime, stream);
 *   lade_runtime_close(runtime);
 */
#ifndef LADE_RUNTIME_H
#define LADE_RUNTIME_H

#include "lade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A stream: a cudaStream_t or CUstream. */
typedef struct CUstream_st *lade_stream;
/** An event: a cudaEvent_t or CUevent. */
typedef struct CUevent_st *lade_event;
/** The GPU's driver, or a software device. */
typedef struct lade_runtime lade_runtime;

/** The legacy default stream of the calling thread's current device; the same as a NULL stream. LADE_ERR_INVALID_ARGUMENT in a
 * thread that has no current device: see lade_runtime_set_device(). */
#define LADE_STREAM_LEGACY ((lade_stream)0x1)
/** The calling thread's own default stream on its current device. */
#define LADE_STREAM_PER_THREAD ((lade_stream)0x2)

/**
 * A callback of lade_device_stats_each() and its like, called for each statistic. Another status than LADE_OK ends the walk
 * and is returned.
 *
 * @param key  Static, so that it may be kept, unless the call says otherwise.
 */
typedef lade_status (*lade_stat_visit)(const char *key, int64_t value, void *user);

/** Statistics that lade_device_stats_reset() and lade_pinned_stats_reset() start anew. */
typedef enum lade_stats_reset {
  LADE_STATS_RESET_PEAKS = 1 << 0, /**< Peaks, from the current values. */
  LADE_STATS_RESET_SUMS = 1 << 1,  /**< Sums and counters that only grow, from 0. */
} lade_stats_reset;

/** Flags of lade_device_summary_write() and its like. */
typedef enum lade_summary_flag {
  LADE_SUMMARY_ABBREVIATED = 1 << 0, /**< Fewer rows. */
} lade_summary_flag;

/** Room for any summary, with its NUL. */
#define LADE_SUMMARY_BYTES 4096

struct lade_soft_options; /* soft.h */

/** Options of lade_runtime_open; all zero means all defaults. */
typedef struct lade_runtime_options {
  size_t struct_size;
  const struct lade_soft_options *soft; /**< Borrowed for the call. Software devices' description; NULL: one default
                                             device. Ignored by "cuda". */
} lade_runtime_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_runtime_options_init(lade_runtime_options *options) {
  const lade_runtime_options defaults = {sizeof(lade_runtime_options), NULL};
  *options = defaults;
}

/** Properties of a device. */
typedef struct lade_device_info {
  size_t struct_size;
  char name[128];       /**< Marketing name; "software device" ones say so. */
  char pci_bus_id[16];  /**< "0000:41:00.0" */
  uint64_t total_bytes; /**< Device memory. */
  int32_t numa_node;    /**< OS index of the nearest node; -1 if the runtime does not know. */
  int32_t software;     /**< 1: it has no GPU. */
} lade_device_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_device_info_init(lade_device_info *info) {
  const lade_device_info defaults = {sizeof(lade_device_info), {0}, {0}, 0, -1, 0};
  *info = defaults;
}

/**
 * Open a runtime.
 *
 * @param name     "cuda", "cpu", "sim"; NULL: "cuda" where a driver and a device are found, else "cpu".
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_runtime_close(). Untouched on error.
 *
 * Threads: any. Waits: for the driver's initialisation. Stream order: none. Creates no context on any device.
 * Errors: LADE_ERR_INVALID_ARGUMENT for an unknown name or a bad description; LADE_ERR_NO_DEVICE for "cuda" without a
 * driver or device; LADE_ERR_UNSUPPORTED for a driver that is too old; LADE_ERR_OUT_OF_HOST_MEMORY.
 * Source: docs/design.md "The runtime interface"; CUDA Driver API, Initialization, cuInit; Driver Entry Point Access.
 */
LADE_API lade_status lade_runtime_open(const char *name, const lade_runtime_options *options, lade_runtime **out);

/**
 * Close a runtime. NULL does nothing.
 *
 * @param runtime  Taken on success.
 *
 * Threads: none may use it meanwhile. Waits: for the runtime's own threads. Stream order: none.
 * Errors: LADE_ERR_BUSY, with counts in the text, while pools, allocators, pipelines, groups or graph trees are alive on it, and
 * on software devices also while memory, streams or events are; it stays open then. LADE_ERR_FORKED in a forked child. Source:
 * docs/design.md "Rules that hold everywhere".
 */
LADE_API lade_status lade_runtime_close(lade_runtime *runtime);

/** Name of the runtime: "cuda", "cpu" or "sim"; static. Threads: any. */
LADE_API const char *lade_runtime_name(const lade_runtime *runtime);

/**
 * Number of devices.
 *
 * Threads: any. Waits: never. Stream order: none. Errors: LADE_ERR_INVALID_ARGUMENT.
 * Source: CUDA Driver API, Device Management, cuDeviceGetCount.
 */
LADE_API lade_status lade_runtime_device_count(lade_runtime *runtime, int *out_count);

/**
 * Describe a device.
 *
 * @param info  [in,out] struct_size set by lade_device_info_init(); at most that many bytes are written.
 *
 * Threads: any. Waits: never. Stream order: none. Errors: LADE_ERR_NO_DEVICE.
 * Source: CUDA Driver API, Device Management.
 */
LADE_API lade_status lade_runtime_device_info(lade_runtime *runtime, int device, lade_device_info *info);

/** How a process uses a device. */
typedef enum lade_process_kind {
  LADE_PROCESS_COMPUTES = 1 << 0,
  LADE_PROCESS_DRAWS = 1 << 1, /**< Graphics. */
} lade_process_kind;

/** A process that uses a device. */
typedef struct lade_device_process {
  uint32_t pid;
  uint32_t kinds;       /**< Set of lade_process_kind. */
  uint64_t bytes;       /**< Of the device's memory; 0 unless known. */
  uint32_t bytes_known; /**< 0: the driver does not tell them, as in some virtual machines and containers. */
  /** The device's number in the management library and in nvidia-smi, which differs where devices are masked; -1: not
   * told. */
  int32_t management_index;
} lade_device_process;

/** A callback of lade_device_processes_each(). Another status than LADE_OK ends the walk and is returned. */
typedef lade_status (*lade_device_process_visit)(const lade_device_process *process, void *user);

/**
 * Ask NVIDIA's management library (NVML, libnvidia-ml.so.1, opened at run time) which processes use a device. It finds the device
 * by its PCI address (lade_device_info).
 *
 * Takes tens of milliseconds at times, for the library's own start: for reports and people, not for loops. The library makes
 * no call of the CUDA driver, so captures go on.
 *
 * @param visit  Called for each process, after the library was closed, with no lock held.
 *
 * Threads: any. Waits: for the library. Errors, each with its text: LADE_ERR_UNSUPPORTED for software devices, and where the library
 * is missing or too old; LADE_ERR_NO_DEVICE for an unknown device, or where the library's driver is not loaded;
 * LADE_ERR_DRIVER for other refusals of the library; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_FORKED; what
 * the callback returns.
 */
LADE_API lade_status lade_device_processes_each(lade_runtime *runtime, int device, lade_device_process_visit visit,
                                                void *user);

/**
 * Make a device the calling thread's current one, as cudaSetDevice does: special stream handles refer to it. A new thread has none,
 * also where there is one device alone.
 *
 * Threads: sets the calling thread's only. Waits: for context creation. Stream order: none. Errors: LADE_ERR_NO_DEVICE,
 * LADE_ERR_FORKED.
 * Source: CUDA Driver API, Primary Context Management.
 */
LADE_API lade_status lade_runtime_set_device(lade_runtime *runtime, int device);

/** The runtime's clock in nanoseconds: monotonic, virtual on "sim". Threads: any. */
LADE_API uint64_t lade_runtime_now_ns(lade_runtime *runtime);

/**
 * Create a non-blocking stream of default priority.
 *
 * @param out  [out] Caller owns it until lade_stream_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: a new, empty order. Errors: LADE_ERR_NO_DEVICE,
 * LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_DEVICE_LOST. Source: CUDA Driver API, Stream Management,
 * cuStreamCreateWithPriority.
 */
LADE_API lade_status lade_stream_create(lade_runtime *runtime, int device, lade_stream *out);

/**
 * Destroy a stream; its work in flight still finishes.
 *
 * Retire it first on every pool it was recorded on: lade_pinned_stream_retire().
 *
 * Threads: any, none using the stream. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT for a special handle.
 * Source: CUDA Driver API, Stream Management, cuStreamDestroy.
 */
LADE_API lade_status lade_stream_destroy(lade_runtime *runtime, lade_stream stream);

/**
 * Wait for all work queued on a stream. On "sim": moves the virtual clock to its end.
 *
 * An event that was recorded on a stream that is ordered with the legacy stream comes after the legacy stream's work,
 * too. It may be pending when this returns, or when lade_stream_query() says LADE_OK: both look at the work of the
 * stream itself. A program that needs the event waits for the event itself.
 *
 * Threads: any. Waits: yes. Errors: LADE_ERR_DEVICE_LOST, LADE_ERR_CAPTURE; on "sim" LADE_ERR_TIMEOUT when the work can
 * never end. Source: CUDA Driver API, Stream Management, cuStreamSynchronize.
 */
LADE_API lade_status lade_stream_synchronize(lade_runtime *runtime, lade_stream stream);

/** LADE_OK when all work queued on the stream is done, LADE_NOT_READY otherwise. Threads: any. Waits: never. */
LADE_API lade_status lade_stream_query(lade_runtime *runtime, lade_stream stream);

/** Work queued on `stream` from now on waits for what `event` recorded last. Threads: any. Waits: never. */
LADE_API lade_status lade_stream_wait_event(lade_runtime *runtime, lade_stream stream, lade_event event);

/** Create an event without timing, for streams of `device`. Caller owns it until lade_event_destroy(). Threads: any. */
LADE_API lade_status lade_event_create(lade_runtime *runtime, int device, lade_event *out);
/** Destroy an event, pending or not. Threads: any. Waits: never. */
LADE_API lade_status lade_event_destroy(lade_runtime *runtime, lade_event event);
/** Make the event represent the work queued on `stream` so far. Threads: any. Waits: never. */
LADE_API lade_status lade_event_record(lade_runtime *runtime, lade_event event, lade_stream stream);

/**
 * Queue a copy whose direction is found from the two addresses, as cudaMemcpyAsync with cudaMemcpyDefault does.
 *
 * Host memory may be pinned by several registrations side by side, or in part: it is copied registration by registration,
 * as the driver refuses one copy over the end of one (docs/stream-ordering.md "Pinned memory").
 *
 * @param bytes  0 succeeds and does nothing.
 *
 * Threads: any. Waits: only for pageable host memory, and as lade_device_copy_async() between devices; with "cuda" for the stream
 * also from pinned memory to pinned memory on a default stream that is NULL or legacy, or with a driver before CUDA 12.8. (A copy
 * between pinned memory that was captured makes each launch of its graph wait for the stream.) Stream order: after the work
 * queued on `stream` so far.
 * Errors: LADE_ERR_INVALID_ARGUMENT; LADE_ERR_CAPTURE between devices, as lade_device_copy_async(); nothing is queued then.
 * LADE_ERR_DEVICE_LOST, LADE_ERR_DRIVER, and LADE_ERR_OUT_OF_HOST_MEMORY; of memory in several registrations, the first ones may be queued then.
 * Source: CUDA Driver API, Memory Management, cuMemcpyAsync.
 */
LADE_API lade_status lade_copy_async(lade_runtime *runtime, void *dst, const void *src, size_t bytes,
                                     lade_stream stream);

/**
 * Queue a fill: set each byte of device or pinned memory to one value, as cudaMemsetAsync does.
 *
 * Pinned memory of several registrations side by side is filled registration by registration, as by lade_copy_async().
 *
 * @param dst    Device memory that the stream's device may access, or pinned memory.
 * @param bytes  0 succeeds and does nothing.
 *
 * Threads: any. Waits: never. Stream order: after the work queued on `stream` so far. Captured like other work.
 * Errors: LADE_ERR_INVALID_ARGUMENT, also for pageable memory where the driver refuses it; nothing is queued then.
 * LADE_ERR_CAPTURE, LADE_ERR_DEVICE_LOST, LADE_ERR_DRIVER, LADE_ERR_OUT_OF_HOST_MEMORY; of memory in several registrations,
 * the first ones may be queued then. Source: CUDA Driver API, Memory Management, cuMemsetD8Async.
 */
LADE_API lade_status lade_fill_async(lade_runtime *runtime, void *dst, uint8_t value, size_t bytes, lade_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* LADE_RUNTIME_H */
