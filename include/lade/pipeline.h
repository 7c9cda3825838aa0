/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Staged, overlapped transfers: file, memory or callback -> pinned blocks -> device memory, and back.
 *
 * A pipeline cuts a transfer into chunks. Reader threads bring each chunk from its source straight into a pinned block
 * of the pool, the copy engine takes it from there, and the block is used again: while one chunk is copied the next
 * ones are read. Towards the host the same runs backwards: copied into a block, then written to the sink.
 *
 *   lade_transfer transfer;
 *   lade_transfer_init(&transfer);
 *   transfer.direction = LADE_TO_DEVICE;
 *   transfer.host = lade_endpoint_file(fd, 0, "weights.bin");
 *   transfer.device_memory = weights;
 *   transfer.bytes = bytes;
 *   lade_ticket *ticket;
 *   lade_pipeline_submit(pipeline, &transfer, &ticket);
 *   lade_stream_wait_ticket(stream, ticket);        // work queued on `stream` from here on sees the bytes
 *   ...
 *   if (lade_ticket_wait(ticket, LADE_WAIT_FOREVER) != LADE_OK)
 *     fprintf(stderr, "%s\n", lade_last_error()->text);
 *   lade_ticket_release(ticket);
 *
 * Rules shared by the calls below
 *   - Any thread may call anything at any time, except that destroy excludes other calls on the pipeline. Calls on its
 *     tickets it does not: a ticket outlives its pipeline, and then answers with its transfer's outcome. On runtime "sim"
 *     one thread at a time.
 *   - A thread that is cancelled (pthread_cancel) in a call brings the call to its end first.
 *   - What a transfer names (file descriptor, memory, callback, device memory) must stay valid until its ticket is
 *     over: LADE_OK, or an error other than LADE_NOT_READY. After that lade uses nothing of it any more, also after an
 *     error.
 *   - Transfers are scheduled by priority, then by submitter, then in the order of submission, chunk by chunk.
 *   - At the cap of their pool transfers wait for blocks that other transfers hold, or that are pending. LADE_ERR_LIMIT comes
 *     out of a ticket only where the program itself holds all that the cap allows.
 *   - The first error of a transfer is kept on its ticket and stops that transfer; others go on. Of a transfer that
 *     failed or was cancelled the destination holds some bytes, not all.
 *   - Nothing runs by itself on "sim": a pipeline advances while the program is in one of the calls below that wait,
 *     and by its own timers whenever the virtual clock moves.
 */
#ifndef LADE_PIPELINE_H
#define LADE_PIPELINE_H

#include "lade/device.h"
#include "lade/dtype.h"
#include "lade/pinned.h"
#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Moves bytes between endpoints and devices. */
typedef struct lade_pipeline lade_pipeline;
/** One submitted transfer. */
typedef struct lade_ticket lade_ticket;

/** As a time to wait: no limit. */
#define LADE_WAIT_FOREVER UINT64_MAX

/** Which way a transfer goes. */
typedef enum lade_direction {
  LADE_TO_DEVICE = 1, /**< The endpoint is a source. */
  LADE_TO_HOST = 2,   /**< The endpoint is a sink. */
} lade_direction;

/** Kind of the host side of a transfer. */
typedef enum lade_endpoint_kind {
  LADE_ENDPOINT_MEMORY = 1,   /**< Ordinary memory. */
  LADE_ENDPOINT_FILE = 2,     /**< A descriptor. */
  LADE_ENDPOINT_CALLBACK = 3, /**< A function of the program. */
  LADE_ENDPOINT_PATH = 4,     /**< A file by its name. */
  LADE_ENDPOINT_DEVICE = 5,   /**< Memory of a device. */
  LADE_ENDPOINT_URL = 6,      /**< An object that a URL names. */
} lade_endpoint_kind;

/** How a file is read or written, as a set. */
typedef enum lade_file_flags {
  /**
   * Past the page cache (O_DIRECT). Where the range begins and ends, and whether `fd` was opened so, does not matter:
   * the pipeline opens the file a second time through /proc/self/fd and keeps to the alignment that the file system
   * asks for. A file system without it, a chunk size below that alignment, or sources by path, of two descriptors each, that
   * hold a quarter of the process's limit on descriptors already: through the page cache, counted by
   * lade_pipeline_info.direct_refused. An `fd` that has O_DIRECT is used so without this flag too.
   */
  LADE_FILE_DIRECT = 1,
  /** Sinks: the bytes are on the disk (fsync) before the ticket is over. Without it, an error from closing a file that lade
   * has opened, as over a network, is still the outcome of the transfer. */
  LADE_FILE_SYNC = 2,
  /**
   * Sinks with a path: the file appears under its name when all of it is written, by renaming; a file of that name, or a
   * symbolic link to one or to nothing, is replaced, and nothing else is. The new file has mode, owner, group, access control
   * lists and extended attributes of the one that it replaces, or that the link leads to, as far as the process may give them; what it may
   * not is a line of the log, and then rights are fewer, never more. Set-user-id, set-group-id and capabilities go, as with any
   * write. While it is written its owner alone may open it. It has offset + bytes bytes. A transfer that fails or is cancelled leaves the name as it
   * was, and no temporary file. With LADE_FILE_SYNC the folder is flushed as well, after the renaming: if that alone
   * fails, or closing the file after that, the ticket says so and the file stays.
   *
   * Pieces of one transfer that go to such a file name it by the same path, in one spelling, and with the same flags.
   *
   * With several such sinks in one transfer all are complete, flushed and closed before the first is renamed. Renaming
   * several files is not one step: if one of them cannot be renamed, the error says how many, in the order in which they
   * were first named, are new; the others are as they were.
   *
   * A process that is killed may leave ".NAME.lade-1" (or another number) in the folder: all that was written on file
   * systems without O_TMPFILE, else only if it was killed within the renaming. The next transfer to that name removes
   * it, where the file system has locks (flock); a file that a living process writes is never removed.
   */
  LADE_FILE_ATOMIC = 4,
  /**
   * Sources, and lade_load_options.file_flags: through the page cache, whatever is in it, and what comes in stays. Without it, what was read
   * through the cache for an integrated device leaves the cache, which is memory of that device.
   */
  LADE_FILE_CACHED = 8,
} lade_file_flags;

/** Whether checkpoints are read through the page cache, where a load does not say. */
typedef enum lade_load_cache {
  /**
   * A file of which the page cache has less than a sixteenth, by a sample, is read past it: as fast, with a fraction of
   * the processor time, and the cache keeps what it has. The next load reads it from the disk again. Not where other
   * ranks of this machine read the same bytes (local_ranks above 1), and not for less than 16 MiB of a file, for files
   * that are not open all the time, for pieces with many gaps, in groups, with cuFile, and on "sim".
   */
  LADE_LOAD_CACHE_AUTO = 0,
  LADE_LOAD_CACHE_ALWAYS = 1, /**< Through the page cache. */
  LADE_LOAD_CACHE_NEVER = 2,  /**< Past it, as with LADE_FILE_DIRECT. */
} lade_load_cache;

/** How the bytes of files are moved. */
typedef enum lade_storage {
  LADE_STORAGE_AUTO = 0,  /**< Through the page cache: PREAD. With O_DIRECT: URING. */
  LADE_STORAGE_PREAD = 1, /**< The pipeline's readers, by pread and pwrite. */
  LADE_STORAGE_URING = 2, /**< io_uring; where the kernel, a sandbox or a limit forbids it: PREAD. */
  /** GPUDirect Storage: no staging block. Where its library or driver is missing or refuses a file, for transfers to the
   * device that run after a stream, with checksums, or with pieces that are no files: AUTO. */
  LADE_STORAGE_CUFILE = 3,
} lade_storage;

/**
 * Fills (to the device) or drains (to the host) `buffer`, which is bytes [offset, offset + bytes) of the transfer.
 *
 * Called in order of offset, one at a time per transfer (unless the endpoint says `concurrent`), from a thread of the
 * pipeline with no lock held. It may call lade, but must not wait for a ticket of the same pipeline. Any status but LADE_OK
 * ends the transfer with LADE_ERR_CALLBACK. C++ exceptions must not leave it.
 */
typedef lade_status (*lade_transfer_callback)(void *user, uint64_t offset, void *buffer, size_t bytes);

/** The host side of a transfer. Make it with one of the functions below. */
typedef struct lade_endpoint {
  int32_t kind; /**< lade_endpoint_kind */
  int32_t fd;   /**< FILE: open for reading or writing, seekable. Its file position is not used. DEVICE: the device. */
  uint64_t offset;                 /**< FILE, PATH, URL: where the transfer's first byte lies in the file. */
  const char *name;                /**< FILE: for messages; NULL: "file". PATH: the path. URL: the URL. */
  void *memory;                    /**< MEMORY, DEVICE */
  lade_transfer_callback callback; /**< CALLBACK */
  void *user;         /**< CALLBACK: its first argument. URL: NULL, or as lade_safetensors_endpoint() says. */
  int32_t concurrent; /**< CALLBACK: 1: may be called by several threads at once, in any order. */
  uint32_t flags;     /**< FILE, PATH: lade_file_flags */
} lade_endpoint;

/** Ordinary or pinned memory. Memory that the driver knows to be pinned is copied as it is, without a staging block;
 * also where it was registered in pieces, if those between the first and the last are of one length. */
LADE_INLINE lade_endpoint lade_endpoint_memory(void *memory) {
  lade_endpoint endpoint = {LADE_ENDPOINT_MEMORY, -1, 0, NULL, memory, NULL, NULL, 0, 0};
  return endpoint;
}

/** A range of a file, from `offset` on. A sink must not have O_APPEND. */
LADE_INLINE lade_endpoint lade_endpoint_file(int fd, uint64_t offset, const char *name) {
  lade_endpoint endpoint = {LADE_ENDPOINT_FILE, fd, offset, name, NULL, NULL, NULL, 0, 0};
  return endpoint;
}

/**
 * A range of the file at `path`, which lade opens at the submit and closes before the ticket is over.
 *
 * To the device the file must exist. To the host it is made if it does not (0666, as the umask allows), and nothing of
 * it is truncated; with LADE_FILE_ATOMIC it is a new file, and a path that could not be
 * replaced at the end (a folder, a device, a file that is mounted or immutable) is refused. So is a pipe
 * (LADE_ERR_IO): it has no offsets. An error in opening it is the error of the submit.
 *
 * @param path   Borrowed until the ticket is over.
 * @param flags  lade_file_flags. Sinks of one transfer that are one file with LADE_FILE_ATOMIC have the same flags and one
 *               spelling of its path: LADE_ERR_INVALID_ARGUMENT otherwise, before anything is opened.
 */
LADE_INLINE lade_endpoint lade_endpoint_path(const char *path, uint64_t offset, uint32_t flags) {
  lade_endpoint endpoint = {LADE_ENDPOINT_PATH, -1, offset, path, NULL, NULL, NULL, 0, flags};
  return endpoint;
}

/**
 * Experimental: a range of the object at `url`, a source: http://, https:// or s3://bucket/key. docs/sources.md has the
 * settings, which environment variables and files of the tools of AWS name, and the limits.
 *
 * Requests for ranges bring the bytes straight into staging blocks. Each answer is checked before its first byte is taken:
 * it is of the range that was asked for, and of one version of the object. Requests that fail for a while are repeated from
 * the byte that was reached. Object, range, HTTP status and attempt are in the error: LADE_ERR_IO, with ENOENT, EACCES or
 * ESTALE (it was replaced) as native code where they apply; LADE_ERR_TRUNCATED. No message has the query of a URL. On
 * "sim" requests take real time, and none of the clock's.
 *
 * @param url     Borrowed until the ticket is over.
 * @param offset  In bytes, of the object.
 *
 * The submit sends nothing; it opens libcurl.so.4 the first time (LADE_ERR_UNSUPPORTED: it is not there, or older than
 * 7.85), and reads the environment then.
 */
LADE_INLINE lade_endpoint lade_endpoint_url(const char *url, uint64_t offset) {
  lade_endpoint endpoint = {LADE_ENDPOINT_URL, -1, offset, url, NULL, NULL, NULL, 0, 0};
  return endpoint;
}

/**
 * Memory of a device: a peer of the pipeline's own, or that one. Copied by the device, without staging. Work that still
 * writes it must be over, or be ordered before the end of transfer.stream, with after_stream.
 */
LADE_INLINE lade_endpoint lade_endpoint_device(int device, void *memory) {
  lade_endpoint endpoint = {LADE_ENDPOINT_DEVICE, device, 0, NULL, memory, NULL, NULL, 0, 0};
  return endpoint;
}

/** A function of the caller. */
LADE_INLINE lade_endpoint lade_endpoint_callback(lade_transfer_callback callback, void *user) {
  lade_endpoint endpoint = {LADE_ENDPOINT_CALLBACK, -1, 0, NULL, NULL, callback, user, 0, 0};
  return endpoint;
}

/**
 * One of several ranges that a transfer consists of: on the host an endpoint's own bytes [0, bytes), on the device a
 * range anywhere. A callback gets offsets within its piece.
 */
typedef struct lade_piece {
  lade_endpoint host;
  void *device_memory; /**< NULL: directly after the piece before; for the first, transfer.device_memory. */
  uint64_t bytes; /**< 0 is allowed; a path is still opened, and created as a sink; the next piece may follow it. */
} lade_piece;

/** transfer.priority. A transfer begins no chunk while one of higher priority and the same direction has chunks to begin;
 * chunks under way go on. The copies of background ones take turns half as long, so that the program's own copies wait half as long
 * for them. */
enum { LADE_PRIORITY_BACKGROUND = -1, LADE_PRIORITY_NORMAL = 0, LADE_PRIORITY_URGENT = 1 };

/** transfer.checksum: XXH3 (64 bits, seed 0) of every transfer.checksum_bytes bytes, the last ones fewer. */
typedef enum lade_checksum {
  LADE_CHECKSUM_NONE = 0,
  LADE_CHECKSUM_RETURN = 1, /**< Stored in transfer.checksums. */
  /** Compared with transfer.checksums: what differs ends the transfer with LADE_ERR_CHECKSUM, which names the place, and is
   * neither copied to the device nor written to the sink. To the host pinned memory is staged then. */
  LADE_CHECKSUM_VERIFY = 2,
} lade_checksum;

/**
 * Called once when the transfer is over, before any wait for its ticket returns.
 *
 * Runs on a thread of the pipeline (on "sim": inside the call that moves the clock; with transfer.on_complete_in_calls
 * also inside others), never in a host function of the driver, with no lock held. It may call lade: submit, release this
 * ticket; but must not wait for a ticket of the same pipeline, nor for a place among options.max_transfers. Any status but LADE_OK becomes the error LADE_ERR_CALLBACK of a
 * transfer that had none. C++ exceptions must not leave it.
 *
 * @param ticket   Borrowed: the one that submit gives its caller, perhaps before that has returned.
 * @param outcome  Borrowed for the call; its status is LADE_OK or the transfer's first error.
 */
typedef lade_status (*lade_completion)(void *user, lade_ticket *ticket, const lade_error *outcome);

/** Description of a transfer. Fields are appended only. */
typedef struct lade_transfer {
  size_t struct_size;
  int32_t direction; /**< lade_direction */
  /** 1: the copies run after the work queued on `stream` at the submit; transfers after nothing, or after other streams,
   * go on meanwhile. 0: at once. */
  int32_t after_stream;
  lade_stream stream; /**< See after_stream; NULL is the legacy stream of the calling thread's device. */
  lade_endpoint host;
  void *device_memory; /**< Destination or source on the pipeline's device. */
  uint64_t bytes;      /**< 0 is over at once. Below 2^60. With `pieces`: 0, or their sum. */
  /** Instead of `host`: the ranges to transfer, in this order. Many small ones are gathered into one staging block and
   * copied together: as one copy where they lie side by side on the device, also where others lie between them in the
   * list, else by a batched copy where the driver has one. To the device: which of them is there where they overlap is not
   * defined. Borrowed for the call. */
  const lade_piece *pieces;
  uint64_t piece_count; /**< 0: the transfer is `host`, device_memory and bytes. */
  /** To the device, instead of device_memory: submit allocates the destination here, on `stream`, and the copies run
   * after the work queued on `stream` at the submit (as with after_stream). Borrowed for the call. */
  lade_device_allocator *allocator;
  /** [out] With `allocator`: the destination, stored before the transfer begins; untouched when submit fails. Yours from
   * then on, whatever the outcome of the transfer: give it back with lade_device_free() once the ticket is over, or after
   * lade_stream_wait_ticket() on `stream`. */
  void **out_device_memory;
  int32_t priority; /**< LADE_PRIORITY_BACKGROUND, _NORMAL or _URGENT. */
  int32_t checksum; /**< lade_checksum, of what is on the host on its way. Not with endpoints of devices. */
  /** The submitter, by any number: transfers of one priority alternate between submitters, by bytes, and go in order
   * within one. 0: the calling thread. */
  uint64_t submitter;
  lade_completion on_complete; /**< NULL: not called. */
  void *on_complete_user;      /**< Its first argument. */
  /** With `checksum`: a power of two from 4 KiB to 16 MiB, at most options.chunk_bytes where that is set. A small one keeps
   * the freedom to use small staging blocks. */
  uint64_t checksum_bytes;
  /** With `checksum`: one for every checksum_bytes begun, in their order. Borrowed until the ticket is over; returned ones
   * count only if that is LADE_OK. */
  uint64_t *checksums;
  /** 1: on_complete may run inside calls of the program, too: submits, waits and queries of the pipeline, on any transfer.
   * It is short, and waits for nothing that such a call may keep. A short transfer is then the calls' (see
   * lade_pipeline_submit()), as one without on_complete. 0: it runs on threads of the pipeline alone. */
  int32_t on_complete_in_calls;
  int32_t reserved; /**< 0. */
  /** Experimental: to the device, types of two of the numbers LADE_DTYPE_F32, _F16, _BF16, _F8_E5M2 and _F8_E4M3: those of the source are
   * converted to those of the destination on the way, as torch's `.to()` does on the CPU (nearest, ties to even; a number that is too large
   * becomes infinity, in F8_E4M3 NaN). `bytes`, of pieces as well, are those of the source, of whole numbers; on the device are as many numbers,
   * at multiples of their size. The kernel of lade_copy_prepare() does it, which must have been called for the device: it reads the
   * staging block over the link, so no device memory is taken beside. Not with endpoints of devices, nor from a pool of pageable
   * memory. Both 0: bytes, as they are. */
  int32_t host_dtype;
  int32_t device_dtype; /**< See host_dtype. */
} lade_transfer;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_transfer_init(lade_transfer *transfer) { LADE_INIT(transfer); }

/** Options of lade_pipeline_create; all zero means all defaults. */
typedef struct lade_pipeline_options {
  size_t struct_size;
  int32_t device;         /**< Default 0. */
  uint32_t readers;       /**< Threads that read and write, for each direction; on "sim" simulated ones; where copy
                               engines are threads themselves ("cpu"), for both together. 0: chosen by lade. At most
                               256. */
  uint64_t chunk_bytes;   /**< Bytes per read and copy. 0: chosen by lade: smaller for small transfers, and as large as
                               the link needs, up to 16 MiB, by timing the first copies. */
  uint32_t depth;         /**< Pinned blocks of chunk_bytes per direction, at most. 0: chosen by lade. At most 1024. */
  uint32_t max_transfers; /**< Transfers submitted and not over, at most. 0: 64. */
  int32_t no_wait;        /**< 1: submit answers LADE_NOT_READY instead of waiting while there are max_transfers. */
  int32_t storage;        /**< lade_storage; 0: chosen by lade. On "sim" files are always read as with PREAD. */
  /** "sim" only: time from the start of a read or write to its first byte, while its reader may still be busy with the
   * requests before. Default 0. */
  uint64_t storage_latency_ns;
  uint64_t storage_bytes_per_s;       /**< "sim" only: rate of each reader. Default 12e9. */
  uint64_t storage_total_bytes_per_s; /**< "sim" only: rate of all readers of a direction together. 0: no limit. */
  uint64_t drain_timeout_ns; /**< Longest time that destroy waits for transfers, by the runtime's clock: a callback that
                                never returns must not keep the program. 0: no limit. */
  /** Experimental: keeps the last so many events of its timeline, 56 bytes each, for lade_pipeline_timeline_read(); at most
   * 2^24. 0: none, and no clock is read for them. */
  uint64_t timeline_events;
  /** About how many bytes of staging blocks are under way in each direction, if lade chooses chunk_bytes: chunks are so
   * short that the blocks in use fit. Data in the processor's cache reaches the device faster. 0: 72 MiB, divided by
   * local_ranks; on "sim", which has no such cache, 144 MiB. */
  uint64_t window_bytes;
  /** Processes of this job on this machine (lade_config_from_env() knows launchers): they share processors and cache, where
   * lade chooses `readers` and `window_bytes`. 0: 1. */
  uint32_t local_ranks;
  int32_t load_cache; /**< lade_load_cache; 0: chosen by lade. */
  /** Experimental: limits of requests for URLs. Until a connection is there; 0: 10 s. At most an hour. */
  uint32_t url_connect_ms;
  uint32_t url_stall_s;  /**< With less than a KiB a second; 0: 30. At most a day. */
  uint32_t url_attempts; /**< For each range; 0: 10. At most 1000. */
  uint32_t url_requests; /**< Under way to one host at once; 0: 64. At most 1024. */
} lade_pipeline_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_pipeline_options_init(lade_pipeline_options *options) { LADE_INIT(options); }

/** Choices and counters of a pipeline. Fields are appended only. */
typedef struct lade_pipeline_info {
  size_t struct_size;
  /** Of large transfers; where lade chooses, the larger direction's until now. Never shrinks, but when blocks of that
   * size are refused. */
  uint64_t chunk_bytes;
  uint32_t depth;
  uint32_t readers;
  int32_t device;
  int32_t numa_node; /**< Node that the readers are bound to, OS index; -1: not bound. */
  uint64_t transfers_submitted;
  uint64_t transfers_completed; /**< Ended with LADE_OK. */
  uint64_t transfers_failed;    /**< Ended with an error, cancelled ones included. */
  uint64_t bytes_completed;     /**< Moved from end to end. */
  uint64_t copies;              /**< Calls that submitted copies to the copy engines; one may be for several chunks. */
  uint64_t events_recorded;
  uint64_t events_queried;
  uint64_t blocks; /**< Pinned blocks held now. */
  uint64_t blocks_peak;
  int32_t storage_buffered;    /**< lade_storage that files go through with the page cache, ... */
  int32_t storage_direct;      /**< ... and with O_DIRECT. */
  uint64_t direct_files;       /**< Transfers of files that began with O_DIRECT. */
  uint64_t direct_refused;     /**< Those that should have, and were moved through the page cache, partly or wholly. */
  uint64_t registered_buffers; /**< Blocks now registered with the kernel for io_uring. */
  char storage_note[160];      /**< Why something asked for is not used; empty: nothing to say. */
  uint32_t requests_to_device; /**< Reads at once: as many as made the storage faster, ... */
  uint32_t requests_to_host;   /**< ... and writes. */
  uint64_t callbacks_stalled;  /**< Callbacks that have been called for 50 ms or longer and have not returned, ... */
  uint64_t callbacks_stalled_sum; /**< ... and how many ever were. On "sim" they take no time of their own. */
  uint64_t block_waits;           /**< Times that a direction without a block waited at the pool's cap. */
  uint64_t bytes_by_pread;        /**< Of files, moved by pread and pwrite, ... */
  uint64_t bytes_by_uring;        /**< ... by io_uring, ... */
  uint64_t bytes_by_cufile;       /**< ... and by cuFile. */
  uint64_t bytes_direct;          /**< Of the first two, past the page cache (O_DIRECT). */
  uint64_t bytes_by_url;          /**< From URLs. */
  uint64_t url_retries;           /**< Requests to URLs that were sent again after a failure. */
} lade_pipeline_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_pipeline_info_init(lade_pipeline_info *info) { LADE_INIT(info); }

/** Activity of a thread of the pipeline or of one in a call, or of the link, in the time of an event. */
typedef enum lade_timeline_kind {
  LADE_TIMELINE_ACQUIRE = 1,    /**< Took a staging block from the pool. */
  LADE_TIMELINE_READ = 2,       /**< Filled a block from the source. */
  LADE_TIMELINE_DEPENDENCY = 3, /**< Asked for the work that the transfer runs after. */
  LADE_TIMELINE_COPY = 4,       /**< Queued a chunk's copies. Of several together the first has all of the time. */
  LADE_TIMELINE_RECORD = 5,     /**< Recorded an event after copies. */
  LADE_TIMELINE_POLL = 6,       /**< Asked an event; `status` is LADE_NOT_READY where copies were still under way. */
  LADE_TIMELINE_WRITE = 7,      /**< Drained a block into the sink. */
  LADE_TIMELINE_RELEASE = 8,    /**< Gave a staging block back to the pool. */
  LADE_TIMELINE_FINISH = 9,     /**< Ended a transfer: closed its files, called on_complete. */
  LADE_TIMELINE_LOCK = 10,      /**< Waited for the pipeline's lock after one of the above. */
  LADE_TIMELINE_IDLE = 11,      /**< Found nothing to do, and waited. */
  /** A chunk's copies were queued and not yet found finished; `thread` is 0. Chunks of one direction overlap. */
  LADE_TIMELINE_FLIGHT = 12,
} lade_timeline_kind;

/** A stretch of time of a pipeline. */
typedef struct lade_timeline_event {
  uint64_t begin_ns; /**< By the runtime's clock. */
  uint64_t end_ns;
  uint64_t transfer; /**< In the order of submission, from 1; 0: none in particular. */
  uint64_t offset;   /**< Of the chunk in the transfer; 0 where there is none. */
  uint64_t bytes;    /**< Of the chunk; 0 where there is none. */
  uint32_t kind;     /**< lade_timeline_kind */
  uint32_t thread;   /**< In the order in which threads came to be seen, from 1; 0: none. */
  int32_t direction; /**< lade_direction; 0: none in particular. */
  int32_t status;    /**< lade_status of what was done. */
} lade_timeline_event;

/** How far a transfer is. */
typedef struct lade_ticket_info {
  size_t struct_size;
  uint64_t bytes;      /**< Of the whole transfer. */
  uint64_t bytes_done; /**< Arrived at the destination, anywhere in it. */
  /** Bytes from the start of the transfer that have all arrived. 0 after an error. */
  uint64_t bytes_ready;
} lade_ticket_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_ticket_info_init(lade_ticket_info *info) { LADE_INIT(info); }

/**
 * Create a pipeline on a pool. Makes its streams and threads; takes no block of the pool yet.
 *
 * @param runtime  Borrowed; must outlive the pipeline.
 * @param pool     Borrowed; must outlive the pipeline. Where staging blocks come from; may be shared.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_pipeline_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for the creation of threads. Stream order: none.
 * Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_NO_DEVICE, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_DEVICE_LOST,
 * LADE_ERR_FORKED.
 * Source: docs/pipeline.md.
 */
LADE_API lade_status lade_pipeline_create(lade_runtime *runtime, lade_pinned_pool *pool,
                                          const lade_pipeline_options *options, lade_pipeline **out);

/**
 * Destroy a pipeline. NULL does nothing. Tickets stay readable until they are released.
 *
 * @param pipeline  Taken on success.
 * @param cancel    false: transfers under way are finished first. true: they are cancelled.
 *
 * Threads: excludes submit and every other call on the pipeline; not a callback of it. Calls on its tickets may go on, and
 * may finish. Transfers that callbacks submit meanwhile are finished too; with `cancel` they are refused with
 * LADE_ERR_CANCELLED. Waits: for transfers to end; a cancelled one ends when the copies already queued and the read or
 * callback in progress have. Errors: LADE_ERR_TIMEOUT after options.drain_timeout_ns, and on "sim" when that can never
 * happen: the pipeline stays. LADE_ERR_DRIVER where a stream or event cannot be destroyed: call it again.
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pipeline_destroy(lade_pipeline *pipeline, bool cancel);

/**
 * Start a transfer. Transfers of one direction, priority and submitter are begun in the order of submission.
 *
 * @param transfer    Borrowed for the call.
 * @param out_ticket  [out] Caller owns it until lade_ticket_release(). Untouched on error.
 *
 * Short transfers of memory (up to 1 MiB, without callback and checksum, and after no stream with work) are begun by the
 * call itself, where their direction has no other kind: it copies pageable memory into a block, and queues the copies.
 * Waits and queries find their end; without any, threads do, up to a millisecond later: see lade_ticket_leave().
 *
 * Threads: any. Waits: while options.max_transfers are under way, unless options.no_wait.
 * Stream order: see transfer.after_stream. Without it the device memory must be free for use already.
 * Errors: LADE_NOT_READY with options.no_wait; LADE_ERR_INVALID_ARGUMENT, the text naming the field; LADE_ERR_UNSUPPORTED
 * for checksums of memory of a device; LADE_ERR_OUT_OF_HOST_MEMORY; those of lade_device_alloc() with transfer.allocator; LADE_ERR_IO where a path cannot be
 * opened; LADE_ERR_TIMEOUT on "sim" when no transfer under way can ever end; LADE_ERR_CAPTURE when
 * transfer.stream is being captured; LADE_ERR_CANCELLED while the pipeline is being destroyed; LADE_ERR_DEVICE_LOST;
 * LADE_ERR_FORKED. Errors of the transfer itself come out of its ticket.
 * Source: docs/pipeline.md.
 */
LADE_API lade_status lade_pipeline_submit(lade_pipeline *pipeline, const lade_transfer *transfer,
                                          lade_ticket **out_ticket);

/**
 * Read settings and counters.
 *
 * @param info  [in,out] struct_size set by lade_pipeline_info_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pipeline_info_get(lade_pipeline *pipeline, lade_pipeline_info *info);

/**
 * Show every number of lade_pipeline_info under its field's name, in code-point order.
 *
 * @param info   Borrowed for the call; from lade_pipeline_info_get().
 * @param visit  Not NULL. It may call anything.
 *
 * Threads: any; it touches no pipeline and allocates nothing. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; what the
 * callback returns.
 */
LADE_API lade_status lade_pipeline_stats_each(const lade_pipeline_info *info, lade_stat_visit visit, void *user);

/**
 * Experimental: copy the events that a pipeline made with options.timeline_events keeps, oldest end first.
 *
 * @param out        [out] `capacity` events, yours.
 * @param capacity   In events. With fewer than are kept, the newest are copied.
 * @param out_count  [out] How many were copied.
 * @param out_lost   [out] How many older ones are not there any more, or did not fit; may be NULL.
 *
 * Threads: any; transfers go on, and wait for the copying. Waits: never. Stream order: none.
 * Errors: LADE_ERR_INVALID_ARGUMENT; LADE_ERR_UNSUPPORTED without options.timeline_events; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pipeline_timeline_read(lade_pipeline *pipeline, lade_timeline_event *out, size_t capacity,
                                                 size_t *out_count, uint64_t *out_lost);

/**
 * Wait until a transfer is over.
 *
 * @param timeout_ns  Longest time to wait, by the runtime's clock; LADE_WAIT_FOREVER for no limit; 0 asks only.
 * @return LADE_OK: every byte is at its destination. LADE_ERR_TIMEOUT: not over yet; the transfer goes on. Else the
 *         transfer's own first error, which lade_last_error() then describes: LADE_ERR_IO and LADE_ERR_TRUNCATED with
 *         file and offset, LADE_ERR_CHECKSUM, LADE_ERR_CALLBACK, LADE_ERR_CANCELLED, LADE_ERR_LIMIT,
 *         LADE_ERR_OUT_OF_PINNED_MEMORY, LADE_ERR_DEVICE_LOST, LADE_ERR_DRIVER with the name of the driver call. In a
 *         forked child LADE_ERR_FORKED.
 *
 * Threads: any; not a callback of the same pipeline. Waits: yes. On "sim": moves the clock.
 */
LADE_API lade_status lade_ticket_wait(lade_ticket *ticket, uint64_t timeout_ns);

/**
 * Ask how far a transfer is.
 *
 * @param info  [in,out] NULL if not wanted; struct_size set by lade_ticket_info_init().
 * @return LADE_NOT_READY while it is under way, else as lade_ticket_wait().
 *
 * Threads: any. Waits: never.
 */
LADE_API lade_status lade_ticket_query(lade_ticket *ticket, lade_ticket_info *info);

/**
 * Cancel a transfer. It ends with LADE_ERR_CANCELLED, unless it is over or has failed already.
 *
 * Threads: any. Waits: never; wait for the ticket before what the transfer names is taken away.
 * Errors: LADE_ERR_FORKED.
 */
LADE_API lade_status lade_ticket_cancel(lade_ticket *ticket);

/**
 * Leave a transfer to the threads of the pipeline: no call is going to wait for it or ask about it, and its end is to be
 * found without delay, for on_complete or for another thread that hears of it. Does nothing where calls have no part in it.
 *
 * Threads: any. Waits: never.
 * Errors: LADE_ERR_FORKED.
 */
LADE_API lade_status lade_ticket_leave(lade_ticket *ticket);

/**
 * Give a ticket back. The transfer goes on if it is under way. NULL does nothing. Threads: any. Waits: never.
 */
LADE_API void lade_ticket_release(lade_ticket *ticket);

/**
 * Let work queued on `stream` from now on wait for the copies of a transfer. To the device: such work sees the bytes.
 * To the host: such work may overwrite the device memory, while the sink may still be written.
 *
 * @param stream  Any stream of the same runtime.
 *
 * Threads: any; not a callback of the same pipeline. Waits: until the transfer's last copy has been queued, that is,
 * for the reads, not for the copies. On "sim": moves the clock that far. Stream order: after the transfer's copies.
 * Errors: those of the ticket, if the transfer failed before (nothing is queued on `stream` then); LADE_ERR_TIMEOUT on
 * "sim" when its reads can never end; LADE_ERR_CAPTURE when `stream` is being captured; LADE_ERR_INVALID_ARGUMENT;
 * LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED. A copy that fails later is found by lade_ticket_wait().
 */
LADE_API lade_status lade_stream_wait_ticket(lade_stream stream, lade_ticket *ticket);

/**
 * The same for the first `bytes` of a transfer: returns, and `stream` goes on, as soon as those are there, while the rest
 * is still under way. For consumers that can begin with a part: the first tensors of a checkpoint.
 *
 * @param bytes  From the start of the transfer; at most its bytes.
 *
 * Everything else as lade_stream_wait_ticket().
 */
LADE_API lade_status lade_stream_wait_ticket_prefix(lade_stream stream, lade_ticket *ticket, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif /* LADE_PIPELINE_H */
