/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Groups: several processes, or threads, that move device memory between each other. Experimental.
 *
 * A group has `size` ranks, numbered from 0. Each rank holds a lade_group of its own, and all of them make the same
 * collective calls in the same order. An implementation, a table of operations, moves the bytes:
 *
 *   lade_group_create_local()   processes of one host, or threads: shared memory, CUDA IPC
 *   lade_group_create_mpi()     ranks of an MPI communicator, on many hosts
 *   lade_group_create_nccl()    device memory by NCCL, the rest by a group of one of the other kinds
 *   lade_group_create()         any other: a table of the program's own, for example over torch.distributed
 *
 *   lade_group_local_options options;
 *   lade_group_local_options_init(&options);
 *   options.name = "job-4711";                         // the same on all ranks, another one for each group
 *   options.rank = rank, options.size = size;
 *   lade_group *group;
 *   if (lade_group_create_local(runtime, &options, &group) != LADE_OK) ...
 *   lade_group_broadcast(group, weights, bytes, 0, stream);     // from rank 0 to all others
 *   lade_group_destroy(group);
 *
 * Checkpoints are loaded with a group by lade_safetensors_load(): every byte is read from storage once.
 *
 * Rules shared by the calls below
 *   - Collective calls (broadcast, scatter, barrier, gather) are made by all ranks, in one order. They wait for the other
 *     ranks, for at most the time limit of the implementation. None waits forever.
 *   - After a collective call has failed the group is broken: every later one is refused with the status of that
 *     failure, and its text, which begins with "group NAME is broken". Exceptions are LADE_ERR_INVALID_ARGUMENT,
 *     LADE_ERR_FORKED and LADE_ERR_BUSY of the call's own checks, which reach no other rank. After a failure the
 *     contents of memory are not known, but it is touched no more. A broken group is destroyed, and another one made.
 *   - A rank's failure is the failure of all: the others' calls, under way or next, fail as well, where the implementation can
 *     tell them at once, else at their time limit. "local" tells them, also that a process died.
 *   - One thread of a rank at a time makes collective calls of a group: LADE_ERR_BUSY else. Another one may call
 *     lade_group_abort() meanwhile. Several groups in one process are independent of each other.
 *   - Device memory and streams are those of the runtime that the implementation works on. Streams do not capture.
 *   - After fork() the child may not use a group: LADE_ERR_FORKED. The parent's group is not harmed by it.
 *   - Time limits are of the wall clock, also on "sim". There each rank has a runtime of its own, in a thread of its own; a
 *     message takes the sender's virtual time along, and the receiver's clock moves there. Same input, same times.
 */
#ifndef LADE_GROUP_H
#define LADE_GROUP_H

#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One rank's end of a group. */
typedef struct lade_group lade_group;

/** Ranks of a group, at most. */
#define LADE_GROUP_RANKS 4096
/** Bytes of one rank's record in lade_group_gather(), at most. */
#define LADE_GROUP_RECORD_BYTES 2048

/**
 * The operations that move the bytes. A table is copied when a group is made of it, and checked then:
 * LADE_ERR_INVALID_ARGUMENT names a missing one. All operations but `abort` are required.
 *
 * `self` is the implementation's. Operations are called by one thread at a time, which may be another one each time; `abort`
 * also beside another operation. `rank` and `size` are called once.
 *
 * Operations that can fail have an `error`, which is all zero at the call. One that fails returns its status and writes the text,
 * terminated, and a native code if it has one, there; without a text the status' own text is shown. One that succeeds leaves it
 * alone. C++ exceptions must not leave an operation.
 *
 * None may wait without limit for another rank: after a time of the implementation's choice, LADE_ERR_TIMEOUT, with a text that
 * names the rank where that is known. After a failure the group calls no operation but `abort` and `destroy`.
 */
typedef struct lade_group_ops {
  size_t struct_size; /**< sizeof(lade_group_ops). Fields are appended only. */
  /** Of the implementation, for messages: "local". Borrowed until `destroy`; at most 63 bytes count. */
  const char *name;

  /** This rank's number, below `size`. */
  uint32_t (*rank)(void *self);
  /** Number of ranks: 1 to LADE_GROUP_RANKS. */
  uint32_t (*size)(void *self);

  /**
   * Brings `bytes` bytes of device memory from rank `root` to all others. Called by all ranks with the same `bytes` (at least 1)
   * and `root`.
   *
   * In stream order: after the work queued on `stream`, and work queued there later sees the bytes, or may overwrite them at
   * the root. May wait for the stream, and for other ranks. When it returns LADE_OK, the rest of the work needs no other
   * rank: waiting for `stream` ends, whatever happens to them.
   */
  lade_status (*broadcast)(void *self, void *memory, uint64_t bytes, uint32_t root, lade_stream stream,
                           lade_error *error);

  /**
   * Brings to each rank its part of device memory of rank `root`. Called by all ranks with the same `bytes` and `root`.
   *
   * @param from   At the root: all parts, one directly after the other, in the order of the ranks. Else NULL.
   * @param bytes  One for each rank: the length of its part; some may be 0, not all.
   * @param to     Where this rank's part goes, at the root, too. NULL if it has no bytes. Does not overlap `from`, but may be
   *               the place of the root's own part there: then that is not copied.
   *
   * Stream order, waiting: as broadcast.
   */
  lade_status (*scatter)(void *self, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                         lade_stream stream, lade_error *error);

  /** Returns when all ranks have called it. No stream is concerned. */
  lade_status (*barrier)(void *self, lade_error *error);

  /**
   * Gives all ranks the records of all: an all-gather of ordinary host memory.
   *
   * @param record       Of this rank.
   * @param bytes        Of one record, the same on all ranks: 1 to LADE_GROUP_RECORD_BYTES.
   * @param out_records  size * bytes, in the order of the ranks. Does not overlap `record`. After an error its content is not
   *                     known.
   */
  lade_status (*gather)(void *self, const void *record, uint64_t bytes, void *out_records, lade_error *error);

  /**
   * Tells the other ranks, and an operation under way in another thread, that this rank has failed: their operations end with
   * `why`. Optional: without it they find out by their time limits. Waits for nothing; called at most once.
   */
  void (*abort)(void *self, const lade_error *why);

  /** Frees what the implementation holds, and `self`. No operation is under way, or called later. Waits for its own streams and
   * threads, never without limit for other ranks. Not called in a forked child. */
  void (*destroy)(void *self);
} lade_group_ops;

/** Sets struct_size, and clears the rest. Threads: any. */
LADE_INLINE void lade_group_ops_init(lade_group_ops *ops) { LADE_INIT(ops); }

/**
 * Make a group of a table of operations.
 *
 * @param ops   Copied, except for its name. Functions that a smaller struct_size leaves out are missing.
 * @param self  Taken on success: given to `destroy` in the end. On error it stays the caller's.
 * @param out   [out] Caller owns it until lade_group_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Reaches no other rank.
 * Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_UNSUPPORTED for a table of a later version, LADE_ERR_OUT_OF_HOST_MEMORY.
 * Source: docs/design.md "Groups".
 */
LADE_API lade_status lade_group_create(const lade_group_ops *ops, void *self, lade_group **out);

/** How bytes are carried in a group of lade_group_create_local(). */
typedef enum lade_group_transport {
  LADE_GROUP_TRANSPORT_AUTO = 0,   /**< DEVICE where all ranks can, else HOST. */
  LADE_GROUP_TRANSPORT_HOST = 1,   /**< Memory that the processes share, pinned where the driver allows it. */
  LADE_GROUP_TRANSPORT_DEVICE = 2, /**< Device memory that each rank opens for the others (CUDA IPC). */
} lade_group_transport;

/** Options of lade_group_create_local(). */
typedef struct lade_group_local_options {
  size_t struct_size;
  /**
   * By which the ranks find each other: 1 to 80 bytes, the same on all ranks, and not in use by another group that is being made.
   * A name is one of this user and of this network namespace. One that begins with '/' is the path of a socket, which
   * rank 0 makes and removes: for containers that share a folder.
   */
  const char *name;
  uint32_t rank;       /**< Of this one, below `size`. */
  uint32_t size;       /**< Ranks: 1 to 128. */
  int32_t device;      /**< Of this rank. Default 0. */
  int32_t transport;   /**< lade_group_transport; the same on all ranks. */
  uint64_t timeout_ns; /**< Longest wait for another rank, in one step of a call. Default 60 s, at most an hour. */
  /** Bytes that are carried at once; a power of two from 4 KiB to 64 MiB. Default 4 MiB. The same on all ranks, as
   * `slots`. */
  uint64_t slot_bytes;
  uint64_t slots; /**< 3 to 16 of them: by default 8. HOST: once for the group. DEVICE: in each rank's device memory. */
} lade_group_local_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_group_local_options_init(lade_group_local_options *options) { LADE_INIT(options); }

/**
 * Make a group of processes of one host, or of threads. Collective: called by every rank.
 *
 * The ranks meet at a socket, share a piece of memory, and know of each other's death from then on, by the kernel (pidfd;
 * before Linux 5.3 by the time limit alone). A rank that fails, dies or is missing fails the call on all that have come;
 * ranks that disagree about size or options are refused, all of them, with the difference.
 *
 * @param runtime  Borrowed; must outlive the group. On "sim" each rank has one of its own.
 * @param options  Borrowed for the call. Not NULL.
 * @param out      [out] Caller owns it until lade_group_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for the other ranks, options.timeout_ns at most (ranks other than 0 a little longer, to learn
 * from rank 0 which rank is missing). Stream order: none.
 * Errors: LADE_ERR_TIMEOUT, naming the rank that did not come; LADE_ERR_PEER, naming the rank that died or disagreed;
 * LADE_ERR_BUSY: another rank 0 of this name waits already; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_IO: of a system call, by name;
 * LADE_ERR_UNSUPPORTED: of LADE_GROUP_TRANSPORT_DEVICE; LADE_ERR_NO_DEVICE; LADE_ERR_OUT_OF_HOST_MEMORY, also for shared memory;
 * LADE_ERR_OUT_OF_DEVICE_MEMORY; LADE_ERR_FORKED; those of another rank.
 * Source: docs/design.md "Groups".
 */
LADE_API lade_status lade_group_create_local(lade_runtime *runtime, const lade_group_local_options *options,
                                             lade_group **out);

/**
 * Destroy a group. It is not collective, but the group is broken for the others from then on, if they still make
 * collective calls: a barrier before it makes sure that they do not. NULL does nothing.
 *
 * @param group  Taken, also after an error except LADE_ERR_FORKED and LADE_ERR_BUSY.
 *
 * Threads: excludes every other call on it. Waits: as the implementation's `destroy`.
 * Errors: LADE_ERR_FORKED; LADE_ERR_BUSY while another thread is in a call of it.
 */
LADE_API lade_status lade_group_destroy(lade_group *group);

/** This rank's number; 0 for NULL. Threads: any. */
LADE_API uint32_t lade_group_rank(const lade_group *group);
/** Number of ranks; 0 for NULL. Threads: any. */
LADE_API uint32_t lade_group_size(const lade_group *group);

/**
 * LADE_OK while the group works; else what it broke by, as a collective call would give it.
 *
 * Threads: any. Waits: never, and asks no other rank. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_group_check(lade_group *group);

/**
 * Bring device memory from one rank to all others. Collective; all ranks name the same `bytes` and `root`.
 *
 * @param memory  Read at the root, written elsewhere. NULL only if `bytes` is 0.
 * @param bytes   0 succeeds and does nothing: it is not a meeting of the ranks.
 * @param root    Rank that has the bytes.
 * @param stream  The copies run after what is queued there; work queued there later sees them.
 *
 * Threads: any, one at a time. Waits: for the other ranks, and maybe for `stream`. Stream order: see `stream`.
 * Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_BUSY, LADE_ERR_FORKED: nothing happened. All others break the group:
 * LADE_ERR_TIMEOUT, naming the rank that did not come; LADE_ERR_PEER; another rank's error; LADE_ERR_DEVICE_LOST,
 * LADE_ERR_DRIVER.
 */
LADE_API lade_status lade_group_broadcast(lade_group *group, void *memory, uint64_t bytes, uint32_t root,
                                          lade_stream stream);

/**
 * Bring each rank its part of one rank's device memory. Collective; all ranks name the same `bytes` and `root`.
 *
 * @param from   At the root: the parts, one directly after the other, in the order of the ranks. Elsewhere ignored.
 * @param bytes  As many as ranks: the length of each part. If all are 0, nothing happens.
 * @param to     Where this rank's part goes, at the root, too. NULL only if it has no bytes. Does not overlap `from`, but may be
 *               the place of the root's own part there.
 *
 * Threads, waits, stream order, errors: as lade_group_broadcast().
 */
LADE_API lade_status lade_group_scatter(lade_group *group, const void *from, const uint64_t *bytes, void *to,
                                        uint32_t root, lade_stream stream);

/** Wait until all ranks are here. Collective. Streams are not waited for. Errors: as lade_group_broadcast(). */
LADE_API lade_status lade_group_barrier(lade_group *group);

/**
 * Give all ranks the records of all. Collective; all ranks name the same `bytes`.
 *
 * @param record       This rank's: ordinary memory.
 * @param bytes        Of one record: 1 to LADE_GROUP_RECORD_BYTES.
 * @param out_records  [out] size * bytes, in the order of the ranks. Does not overlap `record`. Its content is not known after
 *                     an error.
 *
 * Threads: any, one at a time. Waits: for the other ranks. Stream order: none. Errors: as lade_group_broadcast().
 */
LADE_API lade_status lade_group_gather(lade_group *group, const void *record, uint64_t bytes, void *out_records);

/**
 * Break the group: this rank can go on no more. Calls under way here and elsewhere fail with `status` and a text that names this
 * rank and `text`, where the implementation can tell them. A group that is broken already stays as it is.
 *
 * @param status  An error; LADE_OK and LADE_NOT_READY are refused.
 * @param text    NULL: the status' own.
 *
 * Threads: any, at any time but beside lade_group_destroy(). Waits: never.
 * Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_group_abort(lade_group *group, lade_status status, const char *text);

/* --- over MPI ----------------------------------------------------------------------------------------------------- */

/** Options of lade_group_create_mpi(). All zero means the defaults. */
typedef struct lade_group_mpi_options {
  size_t struct_size;
  const char *plugin; /**< Path of the plug-in. NULL: liblade_mpi.so.0 beside the library, then by that name. */
  uint32_t communicator_given; /**< 1: the ranks are those of `communicator`. 0: of MPI_COMM_WORLD. */
  int32_t communicator;        /**< MPI_Comm_c2f of it. */
  int32_t device;              /**< Of this rank. Default 0. */
  /** lade_group_transport; the same on all ranks. DEVICE: through device memory, which the MPI of each rank takes
   * (CUDA-aware). AUTO: DEVICE where all say that they do, else HOST. */
  int32_t transport;
  uint64_t timeout_ns; /**< Longest wait for another rank, in one step of a call. Default 60 s, at most an hour. */
  /** Bytes that are carried at once; a power of two from 4 KiB to 64 MiB. Default 4 MiB. The same on all ranks, as
   * `slots`. */
  uint64_t slot_bytes;
  uint64_t slots;      /**< 2 to 16 of them in each rank: by default 4. */
  uint32_t initialize; /**< 1: MPI is started if it does not run, and ended when the process exits. */
  uint32_t reserved;   /**< 0. */
} lade_group_mpi_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_group_mpi_options_init(lade_group_mpi_options *options) { LADE_INIT(options); }

/**
 * Make a group of the ranks of an MPI communicator. Collective over it. The communicator is duplicated, so that the program's
 * messages and the group's do not meet.
 *
 * The library itself knows no MPI: it opens a small plug-in, which is built where cmake finds an MPI. The group calls MPI from
 * the threads that make its calls: with MPI_THREAD_SERIALIZED the program makes none of its own beside them.
 *
 * A rank that fails tells the others. A rank that dies is a matter of the launcher, which mostly ends the job; else the
 * others' calls end at their time limit, and rank 0 names the rank that is missing. Operations that MPI has not ended
 * by then are abandoned, with the slots that they may touch; a process with such a group is not ended by
 * MPI_Finalize().
 *
 * @param runtime  Borrowed; must outlive the group. On "sim" each rank has one of its own.
 * @param options  Borrowed for the call. NULL for defaults.
 * @param out      [out] Caller owns it until lade_group_destroy(), before MPI_Finalize(). Untouched on error.
 *
 * Threads: any, no other one calling MPI. Waits: for the other ranks, options.timeout_ns at most (ranks other than 0 an eighth
 * longer), and without limit in MPI_Init() where options.initialize has it called. Stream order: none.
 * Errors: LADE_ERR_UNSUPPORTED: no plug-in, one of another version, MPI does not run, or no CUDA-aware MPI for
 * LADE_GROUP_TRANSPORT_DEVICE; LADE_ERR_TIMEOUT; LADE_ERR_PEER, naming a rank that differs in options or failed; LADE_ERR_IO with
 * MPI's code and words; LADE_ERR_LIMIT: too many ranks; LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY,
 * LADE_ERR_OUT_OF_PINNED_MEMORY, LADE_ERR_OUT_OF_DEVICE_MEMORY, LADE_ERR_NO_DEVICE.
 * Source: docs/design.md "Groups"; MPI 3.1, "Nonblocking Collective Operations".
 */
LADE_API lade_status lade_group_create_mpi(lade_runtime *runtime, const lade_group_mpi_options *options,
                                           lade_group **out);

/* --- over NCCL ---------------------------------------------------------------------------------------------------- */

/** Options of lade_group_create_nccl(). All zero means the defaults. */
typedef struct lade_group_nccl_options {
  size_t struct_size;
  /** Path of the library. NULL: libnccl.so.2, as the dynamic linker finds it, or as it is loaded already. */
  const char *library;
  int32_t device;       /**< Of this rank; another one on each rank. Default 0. */
  uint32_t reserved;    /**< 0. */
  uint64_t timeout_ns;  /**< Longest wait for other ranks, in one step of a call. Default 60 s, at most an hour. */
  uint64_t piece_bytes; /**< Bytes of a step, 4 KiB to 64 GiB. Default 1 GiB. The same on all ranks. */
} lade_group_nccl_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_group_nccl_options_init(lade_group_nccl_options *options) { LADE_INIT(options); }

/**
 * Make a group that carries device memory by NCCL. Collective over `parent`, which does everything else: barrier, gather, and the
 * check that all ranks make the same call. So collective calls on both groups are one order, and one thread at a time.
 *
 * A broadcast or scatter waits for the work queued on the stream, and for its own. A failure, or the time limit, aborts the
 * communicator, which ends NCCL's kernels, and breaks both groups.
 *
 * @param runtime  "cuda". Borrowed; must outlive the group.
 * @param parent   Borrowed; must outlive the group.
 * @param options  Borrowed for the call. NULL for defaults.
 * @param out      [out] Caller owns it until lade_group_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for the other ranks, options.timeout_ns at most in each step. Stream order: none.
 * Errors: LADE_ERR_UNSUPPORTED: another runtime, no NCCL, or one before 2.14; LADE_ERR_TIMEOUT; LADE_ERR_DRIVER with NCCL's code
 * and words; LADE_ERR_PEER, naming the rank that differs; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_OUT_OF_HOST_MEMORY; those of another
 * rank; those of lade_group_gather() on `parent`, which is broken then.
 * Source: docs/design.md "Groups"; NCCL, Communicator Creation and Management Functions.
 */
LADE_API lade_status lade_group_create_nccl(lade_runtime *runtime, lade_group *parent,
                                            const lade_group_nccl_options *options, lade_group **out);

#ifdef __cplusplus
}
#endif
#endif /* LADE_GROUP_H */
