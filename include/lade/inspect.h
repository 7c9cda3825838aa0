/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where every byte is: one picture of the device allocators, pinned pools and pipelines of a process, in files that other
 * people's tools open.
 *
 *   lade_part parts[] = {lade_part_device(allocator), lade_part_pinned(pool)};
 *   lade_snapshot *snapshot;
 *   lade_snapshot_take(parts, 2, NULL, &snapshot);
 *   lade_snapshot_save(snapshot, LADE_SNAPSHOT_PICKLE, NULL, "memory.pickle"); // PyTorch's viewer opens it
 *   lade_snapshot_save(snapshot, LADE_SNAPSHOT_HTML, NULL, "memory.html");     // any browser, no network
 *   lade_snapshot_destroy(snapshot);
 *
 * A snapshot is data: it does not change, it outlives its parts, and one that was read from a file is the same object as one
 * that was taken. Programs read it as JSON (LADE_SNAPSHOT_JSON; docs/formats.md).
 */
#ifndef LADE_INSPECT_H
#define LADE_INSPECT_H

#include "lade/device.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"
#include "lade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

/** Kind of a part. Numbers are fixed. */
typedef enum lade_part_kind {
  LADE_PART_DEVICE = 1,   /**< A lade_device_allocator. */
  LADE_PART_PINNED = 2,   /**< A lade_pinned_pool. */
  LADE_PART_PIPELINE = 3, /**< A lade_pipeline. */
} lade_part_kind;

/** Something that is looked into. */
typedef struct lade_part {
  uint32_t kind; /**< lade_part_kind. */
  uint32_t reserved;
  void *object;     /**< Borrowed; must outlive the call, or the publisher, that it is given to. */
  const char *name; /**< For reports; borrowed as long. NULL: kind and number, such as "pinned 0". */
} lade_part;

/** A device allocator as a part. Threads: any. */
LADE_INLINE lade_part lade_part_device(lade_device_allocator *allocator) {
  lade_part part = LADE_ZERO;
  part.kind = LADE_PART_DEVICE;
  part.object = allocator;
  return part;
}

/** A pinned pool as a part. Threads: any. */
LADE_INLINE lade_part lade_part_pinned(lade_pinned_pool *pool) {
  lade_part part = LADE_ZERO;
  part.kind = LADE_PART_PINNED;
  part.object = pool;
  return part;
}

/** A pipeline as a part: counters alone, it has no memory of its own. Threads: any. */
LADE_INLINE lade_part lade_part_pipeline(lade_pipeline *pipeline) {
  lade_part part = LADE_ZERO;
  part.kind = LADE_PART_PIPELINE;
  part.object = pipeline;
  return part;
}

/** A snapshot: tables that never change. */
typedef struct lade_snapshot lade_snapshot;

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

/** Flags of lade_snapshot_options. */
typedef enum lade_snapshot_flag {
  LADE_SNAPSHOT_NO_BLOCKS = 1,    /**< Counters and settings alone: no segments, blocks, events. */
  LADE_SNAPSHOT_NO_EVENTS = 2,    /**< Without the histories. Parts are then not rolled back to one moment. */
  LADE_SNAPSHOT_NO_STACKS = 4,    /**< Without stacks. */
  LADE_SNAPSHOT_ONE_DEVICE = 8,   /**< Of parts that have a device, only those of `device`. */
  LADE_SNAPSHOT_ONE_POOL = 16,    /**< Of device allocators, only the segments, blocks and events of `pool`. */
  LADE_SNAPSHOT_NO_SYMBOLS = 32,  /**< Written without names of lade's stacks: lade_snapshot_symbolise() elsewhere. */
  LADE_SNAPSHOT_NO_ROLL_BACK = 64 /**< Each part as it was when it was copied. */
} lade_snapshot_flag;

/** A frame as a program describes it. */
typedef struct lade_frame {
  const char *function; /**< NULL: "". */
  const char *file;     /**< NULL: "". */
  uint32_t line;        /**< 0: unknown. */
  uint32_t reserved;
} lade_frame;

/** Options of lade_snapshot_take; all zero means all defaults: everything, of all parts. */
typedef struct lade_snapshot_options {
  size_t struct_size;
  uint32_t flags;           /**< lade_snapshot_flag, ored. */
  int32_t device;           /**< See LADE_SNAPSHOT_ONE_DEVICE. */
  lade_device_pool_id pool; /**< See LADE_SNAPSHOT_ONE_POOL. */
  /** Names the frames of a context that the program's own callback captured, innermost first. Writes at most `capacity`
   * of them, and returns how many; texts are borrowed until its next call. Called once for each distinct context, with no
   * lock held, in the call that takes the snapshot. NULL: contexts that are not lade's stacks are left out. */
  size_t (*describe)(void *user, const void *context, lade_frame *frames, size_t capacity);
  void *user; /**< For `describe`. */
} lade_snapshot_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_snapshot_options_init(lade_snapshot_options *options) { LADE_INIT(options); }

/**
 * Copy what the parts hold: segments, blocks, events, counters, settings.
 *
 * Parts are copied one after the other, each at one moment of its own. Where the histories of all parts that have memory
 * are on, those copied later are rolled back to the moment of the first; else the snapshot tells how much later each is
 * (skew_ns of the part).
 *
 * @param parts    Borrowed for the call; `count` of them, at most 1,000.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_snapshot_destroy(). Untouched on error.
 *
 * Threads: any; calls of others on a part wait as lade_device_snapshot_take() says. Waits: never. Stream order: none.
 * Errors: LADE_ERR_INVALID_ARGUMENT; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_FORKED.
 * Source: docs/inspect.md "Snapshots".
 */
LADE_API lade_status lade_snapshot_take(const lade_part *parts, size_t count, const lade_snapshot_options *options,
                                        lade_snapshot **out);

/**
 * Name the frames of a snapshot that are addresses alone, in its tables: function, file and line, and what was inlined as
 * frames of its own. The one call that changes a snapshot.
 *
 * lade_snapshot_write() does the same for what it writes of a snapshot that was taken in this process. So this call is for
 * programs that look into the tables, and for snapshots that were read from files: the programs and libraries that these name
 * are opened, and asked where their build id is the snapshot's. Debug information is that of this machine; nothing is
 * downloaded. Frames that cannot be named stay as they are.
 *
 * Threads: excludes every other call on the snapshot. Reads files; milliseconds for each library. Errors, nothing changed:
 * LADE_ERR_INVALID_ARGUMENT; LADE_ERR_OUT_OF_HOST_MEMORY.
 * Source: docs/inspect.md "Snapshots".
 */
LADE_API lade_status lade_snapshot_symbolise(lade_snapshot *snapshot);

/** Free a snapshot. NULL does nothing. Threads: any; independent of the parts' lives. */
LADE_API void lade_snapshot_destroy(lade_snapshot *snapshot);

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/** Formats of files; docs/formats.md has their schemas. Numbers are fixed; 5, 6, 12 and 13 are not used. */
typedef enum lade_snapshot_format {
  LADE_SNAPSHOT_PICKLE = 1,          /**< PyTorch's: its viewers open it. Written. */
  LADE_SNAPSHOT_JSON = 2,            /**< lade's own, everything. Written and read. */
  LADE_SNAPSHOT_FOLDED = 3,          /**< Live memory by stack, a line for each: what flame graph tools read. */
  LADE_SNAPSHOT_FOLDED_SEGMENTS = 4, /**< The same by segment. */
  LADE_SNAPSHOT_HTML = 7,            /**< One page that needs no network. */
  LADE_SNAPSHOT_PPROF = 8,           /**< pprof's, compressed: in use and allocated, counts and bytes. */
  LADE_SNAPSHOT_CHROME_TRACE = 9,    /**< Chrome's trace events: counters, lives of blocks by stream, notes. */
  LADE_SNAPSHOT_PROMETHEUS = 10,     /**< Counters as Prometheus' text. */
  LADE_SNAPSHOT_OPENMETRICS = 11,    /**< Counters as OpenMetrics' text. */
} lade_snapshot_format;

/** Takes `bytes` bytes of output. Another status than LADE_OK ends the writing and is returned by the call that writes. */
typedef lade_status (*lade_writer)(void *user, const void *data, size_t bytes);

/** Options of lade_snapshot_write; all zero means all defaults. */
typedef struct lade_snapshot_write_options {
  size_t struct_size;
  const lade_snapshot *before; /**< HTML: show what changed since. Borrowed for the call. NULL: none. */
  const char *title;           /**< HTML. Borrowed for the call. NULL: a title that says what it is. */
} lade_snapshot_write_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_snapshot_write_options_init(lade_snapshot_write_options *options) { LADE_INIT(options); }

/**
 * Write a snapshot in a format.
 *
 * @param format   lade_snapshot_format.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param writer   Called with pieces of some 64 KiB, in the calling thread.
 *
 * Threads: any. Waits: as `writer` does. Errors: LADE_ERR_INVALID_ARGUMENT for an unknown format; LADE_ERR_UNSUPPORTED for
 * one that needs a library (zlib) that is not there; LADE_ERR_OUT_OF_HOST_MEMORY; what `writer` returns.
 */
LADE_API lade_status lade_snapshot_write(const lade_snapshot *snapshot, uint32_t format,
                                         const lade_snapshot_write_options *options, lade_writer writer, void *user);

/**
 * Write a snapshot into a file: under no name or a temporary one in the same folder, which then replaces the file of
 * that name. So the file is whole at every moment, and stays after an error. A killed process leaves a file called
 * ".NAME.lade-N" at most, which the next save to NAME removes. Devices and pipes are refused: lade_snapshot_write() is
 * for them.
 *
 * @param path  Borrowed for the call.
 *
 * Threads: any. Waits: as the file system does. Errors: those of lade_snapshot_write(); LADE_ERR_IO.
 */
LADE_API lade_status lade_snapshot_save(const lade_snapshot *snapshot, uint32_t format,
                                        const lade_snapshot_write_options *options, const char *path);

/**
 * Read a snapshot: lade's JSON. `lade snapshot FILE -o OUT.json`, or lade.pickles of the Python package, makes it of a
 * pickle of PyTorch's or lade's.
 *
 * Sizes that a file claims take no memory before its bytes are there.
 *
 * @param data  `bytes` bytes, borrowed for the call.
 * @param name  For messages; borrowed for the call. NULL: "snapshot".
 * @param out   [out] Caller owns it until lade_snapshot_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, with the byte, for data that is no snapshot;
 * LADE_ERR_TRUNCATED for one that ends early; LADE_ERR_UNSUPPORTED for a pickle; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
LADE_API lade_status lade_snapshot_read(const void *data, size_t bytes, const char *name, lade_snapshot **out);

/** lade_snapshot_read() of a file. Errors: also LADE_ERR_IO. */
LADE_API lade_status lade_snapshot_open(const char *path, lade_snapshot **out);

/* ---- Live -------------------------------------------------------------------------------------------------------- */

/** Counters of parts, where other processes of the same user can read them while this one runs. */
typedef struct lade_publisher lade_publisher;

/** Flags of lade_publish_options. */
typedef enum lade_publish_flag {
  LADE_PUBLISH_MANUAL = 1, /**< No thread: lade_publish_update() alone refreshes. Always so for parts on "sim". */
  /** Processes of the same user, and root, may take snapshots of the parts and turn their histories on and off, through a
   * socket without a file. A thread of its own answers them; where refreshing is manual, it waits with what they ask for
   * until lade_publish_update(). A history that a client turned on stays on until someone turns it off. */
  LADE_PUBLISH_CONTROL = 2,
} lade_publish_flag;

/** Options of lade_publish; all zero means all defaults. */
typedef struct lade_publish_options {
  size_t struct_size;
  uint32_t flags;       /**< lade_publish_flag, ored. */
  uint32_t interval_ms; /**< How often a thread refreshes the counters. 0: 1,000. At least 10. */
} lade_publish_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_publish_options_init(lade_publish_options *options) { LADE_INIT(options); }

/**
 * Publish the counters of parts: in memory without a name that other processes can map for reading, and neither write nor
 * cut. A process that is killed leaves nothing. `lade top` and `lade stats PID` read it.
 *
 * @param parts    Borrowed for the call; `count` of them, at most 1,000. Their objects outlive the publisher.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_publisher_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_UNSUPPORTED where
 * the kernel has no sealed memory (before 5.1); LADE_ERR_IO for its other refusals; LADE_ERR_LIMIT where the names of the parts have
 * many megabytes; LADE_ERR_FORKED.
 * Source: docs/inspect.md "Live"; memfd_create(2), fcntl(2) "File Sealing".
 */
LADE_API lade_status lade_publish(const lade_part *parts, size_t count, const lade_publish_options *options,
                                  lade_publisher **out);

/**
 * Refresh the counters now.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_BUSY while another thread refreshes them; LADE_ERR_INVALID_ARGUMENT;
 * LADE_ERR_FORKED; those of reading the counters.
 */
LADE_API lade_status lade_publish_update(lade_publisher *publisher);

/** Withdraw the counters. NULL does nothing; a forked child gives its copy back. Threads: excludes every other call on it.
 * Waits: for its thread, which ends at once. */
LADE_API void lade_publisher_destroy(lade_publisher *publisher);

/**
 * Read what a process publishes: its counters as a snapshot without memory and events.
 *
 * @param process_id  Of a process of the same user, or any for root.
 * @param index       Of its publishers, from 0 on.
 * @param out         [out] Caller owns it until lade_snapshot_destroy(). Untouched on error.
 *
 * Nothing in the process is trusted: what it publishes is checked, and copied while it does not change.
 *
 * Threads: any. Waits: never. Errors: LADE_NOT_READY for an index that no publisher has; LADE_ERR_IO if the process is
 * not there or belongs to another user; LADE_ERR_UNSUPPORTED for counters of another version; LADE_ERR_INVALID_ARGUMENT
 * for malformed ones; LADE_ERR_TIMEOUT if they keep changing while they are copied; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
LADE_API lade_status lade_published_read(uint64_t process_id, uint32_t index, lade_snapshot **out);

/**
 * Have a process take a snapshot of the parts that it publishes with LADE_PUBLISH_CONTROL.
 *
 * @param process_id  Of a process of the same user, or any for root. It may be in a container: root alone reaches a process in
 *                    another network namespace.
 * @param index       Of its publishers, from 0 on.
 * @param options     As of lade_snapshot_take(), without `describe`: the process names its frames. Borrowed for the call;
 *                    NULL for defaults.
 * @param wait_ms     How long to wait for it; at most 600,000. 0: 10,000.
 * @param out         [out] Caller owns it until lade_snapshot_destroy(). Untouched on error.
 *
 * The process writes into memory of the caller's and opens no file for that. The result is checked as a file is.
 *
 * Threads: any. Waits: up to `wait_ms`. Errors: those of lade_published_read(); LADE_ERR_UNSUPPORTED for a publisher without
 * control, or of another version; LADE_ERR_TIMEOUT, also where the process refreshes by hand and did not; LADE_ERR_CANCELLED
 * where it destroys its publisher meanwhile; LADE_ERR_INVALID_ARGUMENT; those of lade_snapshot_take() there.
 * Source: docs/inspect.md "Live"; unix(7).
 */
LADE_API lade_status lade_published_snapshot_take(uint64_t process_id, uint32_t index,
                                                  const lade_snapshot_options *options, uint32_t wait_ms,
                                                  lade_snapshot **out);

/** Options of lade_published_history_set; all zero: histories off. */
typedef struct lade_published_history_options {
  size_t struct_size;
  uint32_t enabled; /**< 1: record. 0: stop; rings are cleared. */
  uint32_t level;   /**< lade_device_context_level: with more than LADE_CONTEXT_NEVER, call stacks (lade/stacks.h). */
  uint64_t max_entries;  /**< Of each part's ring, as in lade_history_options. */
  uint64_t max_bytes;    /**< The same. Both 0: 64 MiB. */
  uint32_t max_frames;   /**< Of a stack; at most 64. 0: 16. */
  uint32_t skip_actions; /**< As in lade_history_options. */
} lade_published_history_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_published_history_options_init(lade_published_history_options *options) { LADE_INIT(options); }

/**
 * Turn the histories of the parts that a process publishes with LADE_PUBLISH_CONTROL on or off, or change them: of all that
 * have one, or of none.
 *
 * It replaces settings of the program's own. Else as lade_published_snapshot_take(). Errors: LADE_ERR_UNSUPPORTED also
 * if no part has a history; those of lade_device_history_set() and lade_pinned_history_set() there.
 */
LADE_API lade_status lade_published_history_set(uint64_t process_id, uint32_t index,
                                                const lade_published_history_options *options, uint32_t wait_ms);

#ifdef __cplusplus
}
#endif
#endif /* LADE_INSPECT_H */
