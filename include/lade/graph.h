/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Experimental: CUDA graphs whose memory lies in private pools of a device allocator.
 *
 * Single graphs: one graph, captured or adopted, with the pool that keeps its memory (at the end of this header).
 *
 * Graph trees: many graphs that follow one another in one pool. A graph replays on fixed addresses, so a pool of its own for each
 * adds their memory up, and one pool shared without care lets one graph write over what another one still has to say. A tree
 * knows which of its recordings may follow which, with which memory alive: every order that occurs has recordings of its own
 * where it needs them, memory that died is used again, and no byte under a buffer that is valid ever changes.
 *
 *   static lade_status body(lade_graph_context *context, void *user) {        // of warm-ups, recordings and eager runs alike
 *     lade_graph_value in;
 *     void *out;
 *     if (lade_graph_input_get(context, 0, &in) != LADE_OK) return LADE_ERR_CALLBACK;
 *     if (lade_graph_alloc(context, in.bytes, &out) != LADE_OK) return LADE_ERR_CALLBACK;
 *     ... launch kernels that read in.address and write out, on context->stream ...
 *     return lade_graph_output_memory(context, 0, out, in.bytes);
 *   }
 *
 *   lade_graph_tree_create(allocator, NULL, &tree);
 *   lade_graph_function_options options;
 *   lade_graph_function_options_init(&options);
 *   options.body = body; options.input_count = 1; options.output_count = 1;
 *   lade_graph_tree_function_add(tree, &options, &function);
 *   for (;;) {
 *     lade_graph_tree_step(tree);                                             // outputs of the step before may go
 *     lade_graph_tree_run(tree, function, &call, &output, 1, NULL);           // warm-up, recording, replay, replay, ...
 *     ... work on call.stream that reads output.address ...
 *     lade_graph_buffer_release(tree, output.buffer);
 *   }
 *
 * A *path* is what has run since it began: its nodes are recordings, replayed or recorded just now, and at its end warm-ups. It
 * ends at a step's begin, or when nothing of it is alive, as soon as the next call comes. A call looks among the recordings that
 * were made where the path stands for one that matches it: inputs of the same sizes, at the same addresses as far as they are
 * not copied, and everything dead that was dead when it was recorded. The first time at which there is none, it is recorded.
 *
 *   NONE --cold--> WARMUP --ended--> NONE --no match--> RECORDING --ended--> NONE
 *   NONE --match--> EXECUTION --match--> EXECUTION --ended--> NONE
 *                   EXECUTION --no match, may not end: restore--> RECORDING, cold: WARMUP
 *   WARMUP --any--> WARMUP      RECORDING --warm--> RECORDING, --cold--> WARMUP
 *
 * Rules of all functions of trees. Any thread may call them; a second run waits for the first one. From within a body,
 * or a callback of the tree, a run and every call that changes the tree is LADE_ERR_BUSY. So is a run of any other tree
 * from within a body or callback of a run: a recording would not contain it. Other calls for another tree may be made
 * from a body or callback, but wait for no thread there: they are LADE_ERR_BUSY while another thread is in a call of
 * that tree, as both could wait for each other. No call waits for the device or for work of the host, except where
 * stated. Runs are ordered on the device one after the other, whatever streams they are made on. A failed call changes
 * nothing, except where lade_graph_tree_run() says so.
 */
#ifndef LADE_GRAPH_H
#define LADE_GRAPH_H

#include "lade/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Recordings that share a pool. */
typedef struct lade_graph_tree lade_graph_tree;
/** A function that is called through a tree. */
typedef struct lade_graph_function lade_graph_function;

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/**
 * A handle of memory that a run gave out. {0, 0}: none.
 *
 * It is counted: 1 when it is given out, more with lade_graph_buffer_retain(). It is valid until it was released as often, or
 * until the tree ends the path that its memory belongs to. From then on every call that names it answers LADE_ERR_OVERWRITTEN,
 * saying which output of which run it was and why it went, and nothing of it is left to be released.
 */
typedef struct lade_graph_buffer {
  uint32_t slot;
  uint32_t generation;
} lade_graph_buffer;

/** Kind of a value. */
typedef enum lade_graph_value_kind {
  LADE_GRAPH_MEMORY = 0, /**< Memory of the program's: address and bytes. */
  LADE_GRAPH_BUFFER = 1, /**< A buffer; of an input: lent for the call. */
  /** An input whose reference the call takes over: it is released as soon as the function is done with it, so that its
   * memory may serve the function itself. */
  LADE_GRAPH_BUFFER_TAKEN = 2,
  LADE_GRAPH_INTEGER = 3 /**< A number; outputs alone. */
} lade_graph_value_kind;

/** An input or an output. */
typedef struct lade_graph_value {
  uint32_t kind;            /**< lade_graph_value_kind. */
  uint32_t reserved;        /**< 0 */
  void *address;            /**< Of memory; set for outputs that are buffers, too. */
  uint64_t bytes;           /**< From 1 on. Of an input that is a buffer: 0, or the buffer's. */
  lade_graph_buffer buffer; /**< Of buffers. */
  uint64_t integer;         /**< Of integers. */
  uint64_t tag;             /**< Of outputs, and of inputs in a body: the function's tag. Ignored in calls. */
} lade_graph_value;

/* ---- Trees ------------------------------------------------------------------------------------------------------- */

/** Purpose of a call of a body. */
typedef enum lade_graph_stage {
  LADE_GRAPH_STAGE_WARMUP = 0, /**< The work runs at once, in the tree's pool: caches are filled, libraries load. */
  LADE_GRAPH_STAGE_RECORD = 1, /**< The work is captured. */
  LADE_GRAPH_STAGE_EAGER = 2   /**< The work runs at once, in memory outside the pool. */
} lade_graph_stage;

/** One call of a body, which reads it and gives it to the calls below; valid until the body returns, in its thread. Fields are
 * appended only. */
typedef struct lade_graph_context {
  size_t struct_size;
  lade_graph_stage stage; /**< The purpose of this call. */
  uint32_t reserved;      /**< 0 */
  /** That the work goes to. Streams that are forked from it are joined to it again before the body returns. */
  lade_stream stream;
  const uint64_t *key; /**< Of the call; NULL where the count is 0. */
  uint64_t key_count;
} lade_graph_context;

/**
 * Called before and after each body, on its thread: for libraries that keep workspaces, which must not lie in the pool.
 * Its allocations on the tree's stream are the body's. Another status than LADE_OK fails the run as a body's does; of the one
 * that is called afterwards, too.
 */
typedef lade_status (*lade_graph_hook)(void *user, lade_graph_stage stage, lade_stream stream);

/** For options whose 0 is the default: none. */
#define LADE_GRAPH_NONE UINT64_MAX

/** Flags of lade_graph_tree_options. */
typedef enum lade_graph_tree_flag {
  /** A static input that has moved since the recording that would match is an error that names it, not another
   * recording. */
  LADE_GRAPH_TREE_FIXED_STATICS = 1 << 0
} lade_graph_tree_flag;

/** Options of lade_graph_tree_create; all zero means all defaults. */
typedef struct lade_graph_tree_options {
  size_t struct_size;
  /** {0, 0}: a pool of the tree's own. Else one that lends nothing, in use by nothing else: no other tree's, with no
   * blocks handed out, no scope and no capture. As long as the tree lives, calls that begin a scope or a capture into
   * its pool, trim it or set a checkpoint of it are LADE_ERR_BUSY. */
  lade_device_pool_id pool;
  /** For memory outside the pool: of eager runs, and copies of inputs from a path that ended. Of the same device;
   * borrowed, outlives the tree. NULL: the tree's allocator. */
  lade_device_allocator *outside;
  uint64_t warmups;   /**< Of each function and key before it is recorded. 0: 1. LADE_GRAPH_NONE: none. */
  uint64_t max_nodes; /**< Recordings kept. At the limit the one longest unused goes that none follows. 0: no limit. */
  /** Recordings of a function and key after one node for inputs that moved: at this number, such calls run eagerly. 0:
   * 128. LADE_GRAPH_NONE: none. */
  uint64_t max_rerecords;
  /** Device memory that the driver took for all graphs together, as measured when they were made. Beyond it recordings
   * go as at max_nodes. 0: no limit. */
  uint64_t max_driver_bytes;
  lade_graph_hook before; /**< NULL: none. */
  lade_graph_hook after;  /**< NULL: none. */
  void *user;             /**< For the two. */
  uint32_t flags;         /**< Set of lade_graph_tree_flag. */
  uint32_t reserved;      /**< 0 */
} lade_graph_tree_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_graph_tree_options_init(lade_graph_tree_options *options) { LADE_INIT(options); }

/**
 * Create a tree: a stream of its own, and a pool.
 *
 * @param allocator  Borrowed; must outlive the tree. Of the native backend.
 * @param options    Borrowed for the call; NULL for defaults.
 * @param out        [out] Caller owns it until lade_graph_tree_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: none.
 * Errors: LADE_ERR_UNSUPPORTED where allocator or runtime have no pools or graphs; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_BUSY where
 * the pool is suspended; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED; what the driver refused the stream with.
 * Source: docs/design.md "Graphs".
 */
LADE_API lade_status lade_graph_tree_create(lade_device_allocator *allocator, const lade_graph_tree_options *options,
                                            lade_graph_tree **out);

/**
 * Destroy a tree with its functions and recordings. NULL does nothing.
 *
 * @param tree  Taken on success.
 * @param wait  false: LADE_ERR_BUSY, with counts, while buffers are valid; LADE_NOT_READY while its work is under way. true: wait
 *              until other threads have released them, and for the work; in a body or callback of another tree, for the work alone.
 *
 * Threads: excludes every other call on it, but releases of buffers that it waits for. Errors: LADE_ERR_BUSY, also from
 * within a body; LADE_ERR_CAPTURE while a stream of its runs captures; LADE_NOT_READY; LADE_ERR_FORKED; what the driver refused to
 * take back: the tree has no functions and recordings any more then, and is still to be destroyed.
 */
LADE_API lade_status lade_graph_tree_destroy(lade_graph_tree *tree, bool wait);

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/** Called for warm-ups, recordings and eager runs, in the thread of the run, with no lock held. It must do the same work each time
 * for the same key. Another status than LADE_OK fails the run with LADE_ERR_CALLBACK. */
typedef lade_status (*lade_graph_body)(lade_graph_context *context, void *user);

/** How steps look at a function. */
typedef enum lade_graph_mode {
  LADE_GRAPH_INFERENCE = 0,
  LADE_GRAPH_FORWARD = 1, /**< A backward call is expected, before which LADE_GRAPH_CALL_AUTO begins no new step. */
  LADE_GRAPH_BACKWARD = 2 /**< It is that call. */
} lade_graph_mode;

/** Flags of an input. */
typedef enum lade_graph_input_flag {
  /** Its memory stays where it is from call to call (weights): it is used in place. Other inputs that are not outputs
   * of the path are copied into the pool. */
  LADE_GRAPH_STATIC = 1 << 0,
  LADE_GRAPH_MUTATED = 1 << 1 /**< The function writes to it. */
} lade_graph_input_flag;

/** Options of lade_graph_tree_function_add. */
typedef struct lade_graph_function_options {
  size_t struct_size;
  lade_graph_body body;        /**< Not NULL. */
  void *user;                  /**< Given to the body. Lives until the function is removed. */
  const char *name;            /**< For messages and dumps; its first 47 bytes are copied. NULL: "". */
  uint32_t mode;               /**< lade_graph_mode. */
  uint32_t reserved;           /**< 0 */
  uint64_t input_count;        /**< At most 65,535, as outputs. */
  const uint32_t *input_flags; /**< Set of lade_graph_input_flag of each input; borrowed for the call. NULL: all 0. */
  const uint64_t *input_tags;  /**< The program's names of them; borrowed for the call. NULL: their indices. */
  uint64_t output_count;
  const uint64_t *output_tags; /**< As input_tags. */
} lade_graph_function_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_graph_function_options_init(lade_graph_function_options *options) { LADE_INIT(options); }

/**
 * Add a function. One with more than four inputs that are not static loads the kernel of lade_copy_prepare(), which copies them, if
 * the tree has no work under way.
 *
 * @param out  [out] Valid until it is removed, or the tree destroyed. Untouched on error.
 *
 * Threads: any; waits for a run. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_BUSY, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_graph_tree_function_add(lade_graph_tree *tree, const lade_graph_function_options *options,
                                                  lade_graph_function **out);

/**
 * Remove a function with its recordings, and those that follow them. Buffers stay valid as they were.
 *
 * @param function  Taken on success.
 *
 * Threads: any; waits for a run. Errors: LADE_ERR_INVALID_ARGUMENT for one of another tree; LADE_ERR_BUSY; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_graph_tree_function_remove(lade_graph_tree *tree, lade_graph_function *function);

/* ---- Within a body ----------------------------------------------------------------------------------------------- */

/**
 * Read an input: where the function finds its bytes now.
 *
 * @param out  [out] LADE_GRAPH_MEMORY with address, bytes and the function's tag. Untouched on error.
 *
 * Errors: LADE_ERR_INVALID_ARGUMENT for an index beyond the inputs, and an input that was dropped.
 */
LADE_API lade_status lade_graph_input_get(const lade_graph_context *context, size_t index, lade_graph_value *out);

/**
 * Say that the function is done with an input: what is allocated from now on may be its memory, where the tree has copied it,
 * or the call has taken it.
 *
 * Errors: LADE_ERR_INVALID_ARGUMENT for an index beyond the inputs, an input that was dropped already, and one that is an output.
 */
LADE_API lade_status lade_graph_input_drop(lade_graph_context *context, size_t index);

/**
 * Allocate memory: from the pool, in eager runs outside of it. Memory that is neither freed nor an output when the body
 * returns is freed then. In warm-ups and recordings lade_device_alloc() on the body's stream does the same, except that
 * memory left over from it is an error. In eager runs its memory is the program's as ever, also as an output
 * (LADE_GRAPH_OUTPUT_OUTSIDE): a body that may run eagerly names memory of lade_graph_alloc() as its outputs.
 *
 * @param bytes  From 1 on.
 * @param out    [out] Untouched on error.
 *
 * Errors: those of lade_device_alloc(); LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_graph_alloc(lade_graph_context *context, size_t bytes, void **out);
/** Free what lade_graph_alloc() gave; nothing else frees it in eager runs. Errors: LADE_ERR_FOREIGN_POINTER for another address, also in memory that is an output. */
LADE_API lade_status lade_graph_free(lade_graph_context *context, void *address);

/**
 * Name an output: memory.
 *
 * @param index    Below the function's output_count, in any order, each once.
 * @param address  In memory of this call's; in an input that was not dropped; in an older output, which must be alive then
 *                 for the recording to match later; or device memory of the program's outside of the pool.
 * @param bytes    From 1 on, within that memory.
 *
 * Errors: LADE_ERR_INVALID_ARGUMENT, for host memory and freed memory, too.
 */
LADE_API lade_status lade_graph_output_memory(lade_graph_context *context, size_t index, void *address, size_t bytes);
/**
 * The same, of memory that the body itself frees before it returns, as a framework's tensor does when it goes: of a block of
 * lade_device_alloc(), the first lade_device_free() from now to the body's return does nothing, and the output keeps the block. A body
 * that has not called it by then fails with LADE_ERR_CALLBACK: what it keeps would be freed later, under the tree.
 * In eager runs, and of other memory, as lade_graph_output_memory().
 *
 * @param out_awaited  [out] Whether that free is awaited. NULL: not wanted. Untouched on error.
 */
LADE_API lade_status lade_graph_output_freed(lade_graph_context *context, size_t index, void *address, size_t bytes,
                                             bool *out_awaited);
/** Name an output: a number, the same at every replay. Errors: LADE_ERR_INVALID_ARGUMENT. */
LADE_API lade_status lade_graph_output_integer(lade_graph_context *context, size_t index, uint64_t value);

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/** Flags of a call. */
typedef enum lade_graph_call_flag {
  /** The program calls its functions once per step and marks no steps: this call may end the path, but not while a
   * backward call is expected. */
  LADE_GRAPH_CALL_AUTO = 1 << 0
} lade_graph_call_flag;

/** A call. */
typedef struct lade_graph_call {
  size_t struct_size;
  lade_stream stream; /**< Whose work it follows, and which the outputs are ready for. */
  /** Numbers that change what the body does (shapes): each key has warm-ups and recordings of its own. */
  const uint64_t *key;
  uint64_t key_count;             /**< At most 64. */
  const lade_graph_value *inputs; /**< As many as the function has. Memory of the device's, not in the pool. */
  uint64_t input_count;
  uint32_t flags;    /**< Set of lade_graph_call_flag. */
  uint32_t reserved; /**< 0 */
} lade_graph_call;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_graph_call_init(lade_graph_call *call) { LADE_INIT(call); }

/**
 * Call a function: replay a recording that matches, or warm up, or record and launch, or run eagerly.
 *
 * @param call       Borrowed for the call.
 * @param outputs    [out] Borrowed for the call. The program owns a count of each buffer. Untouched on error.
 * @param capacity   Of `outputs`; at least the function's output_count.
 * @param out_count  [out] NULL: not wanted. Untouched on error.
 *
 * Threads: any; a second run on the tree waits. Waits: never for the device, except where the driver refuses an event
 * after a warm-up, or after a run on LADE_STREAM_PER_THREAD.
 * Stream order: after the work queued on call.stream, after all runs before, and after the streams of
 * lade_graph_buffer_record_stream(). Outputs are ready for work queued on call.stream from now on. That stream lives until the
 * next run is over, not counting those with whose error nothing changed; where buffers of eager runs were made or used on it, until
 * they are released; or until lade_graph_tree_stream_retire().
 *
 * Errors, with which the run has no outputs:
 *   LADE_ERR_INVALID_ARGUMENT  nothing changed: counts, unknown values, memory in the pool, a buffer taken more often than it is
 *                              held, or as often and lent too, a mutated input that is another one, too. With
 *                              LADE_GRAPH_TREE_FIXED_STATICS: a static input has moved
 *   LADE_ERR_FOREIGN_POINTER   nothing changed: a buffer of another tree
 *   LADE_ERR_OVERWRITTEN       nothing changed: a buffer that is not valid any more
 *   LADE_ERR_BUSY              nothing changed: from within a body, of another tree, too; the tree is suspended
 *   LADE_ERR_CALLBACK          the body failed, or left something that it must not leave. After a recording all is as
 *                              before. After a warm-up or an eager run its effects stand: mutations, inputs dropped,
 *                              and the end of a path
 *   LADE_ERR_CAPTURE           the body of a recording did something that cannot be captured; as for LADE_ERR_CALLBACK.
 *                              Or call.stream captures, or a stream whose work the run comes after: nothing changed
 *   LADE_ERR_OUT_OF_DEVICE_MEMORY, LADE_ERR_LIMIT, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_DRIVER: all as before, except
 *                              that the end of a path stands if memory may have been written to
 *   LADE_ERR_DEVICE_LOST, LADE_ERR_FORKED
 * Source: docs/design.md "Graphs".
 */
LADE_API lade_status lade_graph_tree_run(lade_graph_tree *tree, lade_graph_function *function,
                                         const lade_graph_call *call, lade_graph_value *outputs, size_t capacity,
                                         size_t *out_count);

/** Begin a step: the next call may end the path, whatever is alive of it. Threads: any; waits for a run. Errors:
 * LADE_ERR_BUSY, LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED. */
LADE_API lade_status lade_graph_tree_step(lade_graph_tree *tree);
/** The backward call that LADE_GRAPH_FORWARD expects was made elsewhere, or will not be. As lade_graph_tree_step(). */
LADE_API lade_status lade_graph_tree_backward_done(lade_graph_tree *tree);

/**
 * Forget a stream that is about to be destroyed: what was queued on it for the tree is ordered before the next run by an event, and
 * before the next use of memory outside of the pool (lade_device_stream_retire() of that allocator is a part of this call).
 *
 * Threads: any; waits for a run. Errors, the stream still needed: LADE_ERR_CAPTURE while it captures; LADE_ERR_BUSY;
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DRIVER; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_graph_tree_stream_retire(lade_graph_tree *tree, lade_stream stream);

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/**
 * Read where a buffer lies.
 *
 * @param out_address  [out] As out_bytes.
 * @param out_bytes  [out] NULL: not wanted. Untouched on error.
 *
 * Threads: any, also beside a run. Waits: never. Errors: LADE_ERR_OVERWRITTEN, LADE_ERR_FOREIGN_POINTER for a buffer of another tree,
 * LADE_ERR_INVALID_ARGUMENT for {0, 0}, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_graph_buffer_get(lade_graph_tree *tree, lade_graph_buffer buffer, void **out_address,
                                           size_t *out_bytes);

/** Add a count. During a run it takes effect after the run; a buffer whose last counts that run takes is not valid. As
 * lade_graph_buffer_get(); also LADE_ERR_LIMIT for a buffer that has 2^31 counts. */
LADE_API lade_status lade_graph_buffer_retain(lade_graph_tree *tree, lade_graph_buffer buffer);

/** Take a count back. Work that still uses the memory is queued on the stream of the run made last, or of a stream noted with
 * lade_graph_buffer_record_stream(). During a run, and in a body, it takes effect after the run. As
 * lade_graph_buffer_get(). */
LADE_API lade_status lade_graph_buffer_release(lade_graph_tree *tree, lade_graph_buffer buffer);

/** Note that another stream uses the buffer: the next run waits on the device for the work queued on it until then. The
 * stream must live as long; for a buffer of an eager run until that is released, or until
 * lade_graph_tree_stream_retire(). As lade_graph_buffer_get(); also LADE_ERR_OUT_OF_HOST_MEMORY, the errors of a wrong
 * stream, and LADE_ERR_CAPTURE for LADE_STREAM_PER_THREAD while it captures. */
LADE_API lade_status lade_graph_buffer_record_stream(lade_graph_tree *tree, lade_graph_buffer buffer,
                                                     lade_stream stream);

/* ---- What happened ----------------------------------------------------------------------------------------------- */

/** The state of a tree: what ran last in the path. */
typedef enum lade_graph_state {
  LADE_GRAPH_STATE_NONE = 0, /**< There is no path. */
  LADE_GRAPH_STATE_WARMUP = 1,
  LADE_GRAPH_STATE_RECORDING = 2,
  LADE_GRAPH_STATE_EXECUTION = 3
} lade_graph_state;

/** How a run was served. */
typedef enum lade_graph_did {
  LADE_GRAPH_DID_ERROR = 0,
  LADE_GRAPH_DID_EAGER = 1,
  LADE_GRAPH_DID_WARMUP = 2,
  LADE_GRAPH_DID_RECORD = 3,
  LADE_GRAPH_DID_REPLAY = 4
} lade_graph_did;

/** Why a recording did not match, or a call ran eagerly. */
typedef enum lade_graph_reason {
  LADE_GRAPH_REASON_FORM = 0,        /**< An input's size differs, or it is copied in one of both alone. */
  LADE_GRAPH_REASON_MANAGED = 1,     /**< An input is an output of the path in one of both alone, or another one. */
  LADE_GRAPH_REASON_STATIC = 2,      /**< A static input lies elsewhere. */
  LADE_GRAPH_REASON_DEAD_BEFORE = 3, /**< An older output is alive that was dead before the recording. */
  LADE_GRAPH_REASON_DEAD_AFTER = 4,  /**< An older output would stay alive that was dead after it. */
  LADE_GRAPH_REASON_PRIOR = 5,       /**< An older output is dead that the recording gives out again. */
  LADE_GRAPH_REASON_MUTATED = 6,     /**< Eager: a mutated input is neither static nor of the path. */
  LADE_GRAPH_REASON_LIMIT = 7,       /**< Eager: max_nodes, max_rerecords or max_driver_bytes. */
  LADE_GRAPH_REASON_CHECKPOINT = 8,  /**< Eager: the pool could not be brought to the state after the path. */
  LADE_GRAPH_REASON_COUNT = 9
} lade_graph_reason;

/** How a path ended. */
typedef enum lade_graph_ended {
  LADE_GRAPH_ENDED_NOT = 0,
  LADE_GRAPH_ENDED_BOUNDARY = 1, /**< A step began. */
  LADE_GRAPH_ENDED_DEAD = 2      /**< Nothing of it was alive. */
} lade_graph_ended;

/** Class of an input. */
typedef enum lade_graph_class {
  LADE_GRAPH_CLASS_MANAGED = 0, /**< An output of the path. */
  LADE_GRAPH_CLASS_STATIC = 1,
  LADE_GRAPH_CLASS_COPIED = 2
} lade_graph_class;

/** Kind of an output. */
typedef enum lade_graph_output_kind {
  LADE_GRAPH_OUTPUT_NEW = 0,   /**< Memory of the run's. */
  LADE_GRAPH_OUTPUT_SAME = 1,  /**< In the memory of an output before it. */
  LADE_GRAPH_OUTPUT_PRIOR = 2, /**< In the memory of an older output of the path. */
  LADE_GRAPH_OUTPUT_INPUT = 3, /**< An input that is used in place. */
  LADE_GRAPH_OUTPUT_INTEGER = 4,
  LADE_GRAPH_OUTPUT_PLAIN = 5,  /**< Memory of an eager run, outside of the pool. */
  LADE_GRAPH_OUTPUT_OUTSIDE = 6 /**< Memory of the program's that is no input. */
} lade_graph_output_kind;

/** In place of a node's id: there is none. */
#define LADE_GRAPH_NO_NODE INT64_MIN

/** A buffer that is not valid any more, with counts that were not released. */
typedef struct lade_graph_lost {
  lade_graph_buffer buffer;
  uint64_t tag; /**< Of the output. */
  uint64_t run; /**< That made it. */
  uint64_t step;
  uint64_t output; /**< Its index there. */
} lade_graph_lost;

/** One run, for logs. Lists are borrowed during the callback. Fields are appended only. */
typedef struct lade_graph_run_record {
  size_t struct_size;
  uint64_t run;  /**< Number of the run, from 1. */
  uint64_t step; /**< Steps begun so far. */
  lade_graph_function *function;
  const char *name; /**< The function's. */
  const uint64_t *key;
  uint64_t key_count;
  uint32_t status; /**< lade_status. */
  uint32_t did;    /**< lade_graph_did. */
  /** That decided what was done: 3 (mutated), 4 (warm-up), 5 (replay), 6 (limit), 7 (record); 0: an error before any
   * did. Rule 2, and 5 without a match, end paths: `ended`. */
  uint32_t rule;
  uint32_t ended;    /**< lade_graph_ended. */
  uint32_t restored; /**< 1: the pool was brought to the state after the path. */
  uint32_t state;    /**< lade_graph_state after the run; so is `node`. */
  int64_t node;      /**< Recordings 0, 1, ...; warm-ups -1, -2, ...; LADE_GRAPH_NO_NODE. */
  int64_t evicted;   /**< The recording that went for this run; LADE_GRAPH_NO_NODE. */
  /** lade_graph_reason: of the candidates looked at last, oldest first, or why the run was eager. */
  const uint32_t *why;
  size_t why_count;
  const uint32_t *carried; /**< Inputs from a path that ended, which were copied out before. */
  size_t carried_count;
  const uint32_t *classes; /**< lade_graph_class of each input; none of eager runs and errors. */
  size_t class_count;
  const lade_graph_value *outputs;
  const uint32_t *output_kinds; /**< lade_graph_output_kind of each. */
  size_t output_count;
  const lade_graph_lost *lost; /**< In order of creation. */
  size_t lost_count;
} lade_graph_run_record;

/**
 * Called after each run that got as far as its function, errors included, in its thread, with no lock held, before the
 * next run begins. It may make calls that do not change the tree: LADE_ERR_BUSY otherwise.
 */
typedef void (*lade_graph_log)(void *user, const lade_graph_run_record *record);

/** Which runs the log gets. */
typedef enum lade_graph_log_level {
  LADE_GRAPH_LOG_OFF = 0,
  LADE_GRAPH_LOG_EAGER = 1,   /**< Eager runs and errors. */
  LADE_GRAPH_LOG_CHANGES = 2, /**< Also warm-ups and recordings. */
  LADE_GRAPH_LOG_ALL = 3
} lade_graph_log_level;

/** Set the function that gets a log of runs. With LADE_GRAPH_LOG_ALL every candidate is looked at one by one, which
 * costs time if there are many. Threads: any; waits for a run. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_BUSY,
 * LADE_ERR_FORKED. */
LADE_API lade_status lade_graph_tree_log_set(lade_graph_tree *tree, lade_graph_log log, void *user,
                                             lade_graph_log_level level);

/** Where a tree stands, and its counters since its creation. Fields are appended only. */
typedef struct lade_graph_tree_stats {
  size_t struct_size;
  uint32_t state;    /**< lade_graph_state. */
  uint32_t pending;  /**< 1: a backward call is expected. */
  int64_t node;      /**< The last one of the path; LADE_GRAPH_NO_NODE. */
  uint64_t depth;    /**< Nodes in the path. */
  uint64_t last_run; /**< Number of the run made last, from 1. */
  uint64_t steps;    /**< Begun so far. */
  uint64_t buffers;  /**< Valid ones. */
  uint64_t alive;    /**< Memories of the path that valid buffers lie in. */
  lade_device_pool_id pool;
  lade_stream stream; /**< Of warm-ups and captures. Borrowed. */
  uint32_t suspended; /**< 1 */
  uint32_t reserved;  /**< 0 */
  uint64_t runs;      /**< Those that succeeded: the sum of the four below. */
  uint64_t eager_runs;
  uint64_t warmups;
  uint64_t recordings;
  uint64_t replays;
  uint64_t errors;
  uint64_t ended_boundary;
  uint64_t ended_dead;
  uint64_t restores;
  uint64_t evictions;
  uint64_t carried; /**< Inputs. */
  uint64_t carried_bytes;
  uint64_t copied; /**< Inputs copied into the pool. */
  uint64_t copied_bytes;
  uint64_t overwritten;                         /**< Buffers that the end of a path took. */
  uint64_t mismatches[LADE_GRAPH_REASON_COUNT]; /**< By lade_graph_reason, in looks in which nothing matched. */
  uint64_t eager[LADE_GRAPH_REASON_COUNT];      /**< Eager runs, by reason. */
  uint64_t checkpoints_failed;                  /**< Recordings that became warm-ups. */
  uint64_t nodes;                               /**< Recordings. */
  uint64_t pool_reserved_bytes;
  uint64_t pool_peak_bytes;   /**< The most that the pool held from the driver at once. */
  uint64_t alone_bytes;       /**< What the recordings would need, each with a pool of its own. */
  uint64_t saved_bytes;       /**< What of that sharing saves. */
  uint64_t driver_bytes;      /**< Device memory that the driver took for the recordings. */
  uint64_t metadata_bytes;    /**< Host memory of the recordings, checkpoints included. */
  uint64_t checkpoint_blocks; /**< Blocks in all checkpoints. */
} lade_graph_tree_stats;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_graph_tree_stats_init(lade_graph_tree_stats *stats) { LADE_INIT(stats); }

/** Read them. Threads: any; waits for a run of another thread; also from within bodies and callbacks. Errors: LADE_ERR_BUSY for
 * another tree, see above; LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED. */
LADE_API lade_status lade_graph_tree_stats_get(lade_graph_tree *tree, lade_graph_tree_stats *stats);

/** Takes a piece of a document. Another status than LADE_OK ends it and is returned. */
typedef lade_status (*lade_graph_writer)(void *user, const void *data, size_t bytes);

/** Write the tree as JSON: options, state, counters, functions, recordings with their inputs and outputs, the path with what is
 * alive. docs/formats.md. As lade_graph_tree_stats_get(); LADE_ERR_OUT_OF_HOST_MEMORY; what the writer returns. In it the tree is as
 * in a body. */
LADE_API lade_status lade_graph_tree_dump(lade_graph_tree *tree, lade_graph_writer writer, void *user);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/**
 * Have the pool get at least so many bytes in one piece from the driver, before it grows by small ones.
 *
 * Threads: any; waits for a run. Errors: those of lade_device_alloc(); LADE_ERR_BUSY.
 */
LADE_API lade_status lade_graph_tree_reserve(lade_graph_tree *tree, size_t bytes);

/**
 * Give back what no recording that is left ever used, and no valid buffer lies in. (lade_device_pool_suspend() of the tree's pool,
 * lade_graph_tree_stats.pool, gives all of it back for a while, and no recording has to be made again: until
 * lade_device_pool_resume() runs, reserve, trim and destroy are LADE_ERR_BUSY, and buffers stay valid.)
 *
 * @param out_bytes  [out] NULL: not wanted. Untouched on error.
 *
 * Threads: any; waits for a run. Waits: for the runs' work, as lade_device_pool_trim(). Errors: those of that; LADE_ERR_BUSY;
 * LADE_ERR_CAPTURE while a stream of its runs captures.
 */
LADE_API lade_status lade_graph_tree_trim(lade_graph_tree *tree, uint64_t *out_bytes);

/* ---- Single graphs -----------------------------------------------------------------------------------------------
 *
 * One graph around code that queues work on streams: captured, launched as often as wanted, captured anew when its addresses
 * or shapes change. Its memory comes from a pool that stays as long as anything may launch the graph.
 *
 *   static lade_status decode(lade_stream stream, void *user) { ... copies, fills, kernels on stream ... }
 *
 *   lade_graph *graph;
 *   lade_graph_options options;
 *   lade_graph_options_init(&options);
 *   options.stream = stream;
 *   lade_graph_capture(allocator, &options, decode, &model, &graph);
 *   for (...) lade_graph_launch(graph, stream);
 *   lade_graph_update(graph, decode, &other_model, &in_place);
 *   lade_graph_destroy(graph, true);
 *
 * *Memory.* While the code of a capture runs, allocations on its streams come from the graph's pool. Memory that is
 * allocated and freed there serves only launches of the graph, and other graphs of the pool. Memory that is not freed
 * is the program's until lade_device_free(): outputs, for example, which each launch writes anew. The pool has one use
 * for the graph. The driver gives it back when the native graph, all executable graphs made of it and their launches
 * are gone, whether lade or the program destroys them.
 *
 * *The code of a capture* may allocate on the capture's streams alone, and free what it allocated alone; in its own thread another
 * call of lade_device_alloc() or lade_device_free() is refused with LADE_ERR_CAPTURE, and so is the capture in the end. Streams
 * that it forks are joined to the capture's again before it ends. It waits for no stream of the capture. Whatever it does wrong, the
 * call that ends the capture names it, and nothing is left: no capture, no route, no use of the pool, no block.
 *
 * *Sharing a pool.* Graphs of one pool use the same memory for what they allocate and free, as far as they were captured on the same
 * stream: blocks belong to streams. So the program does not let two of them run at once, and reads what one wrote to memory that
 * it had freed before another one runs. Outputs that were not freed are no other graph's.
 *
 * *Launches* of one graph run one after the other, on whatever streams, also across updates. A launch on another stream
 * than the capture's does not note that stream for the blocks that it uses: lade_device_record_stream().
 *
 * Pinned blocks of lade_pinned_alloc() that a capture uses stay in use until the graph is gone, or updated by a capture that does
 * not use them (lade_pinned_record_event()).
 */

/** A captured or adopted graph, ready to be launched. */
typedef struct lade_graph lade_graph;
/** A capture under way. */
typedef struct lade_graph_capture_state lade_graph_capture_state;

/** The code of a capture: queues work on the stream. Called once for each capture, in the caller's thread, with no lock held. Another
 * status than LADE_OK fails the capture. */
typedef lade_status (*lade_graph_work)(lade_stream stream, void *user);

/** Which calls of the program a capture forbids, as the driver's capture modes say it. */
typedef enum lade_graph_strictness {
  LADE_GRAPH_THREAD_LOCAL = 0, /**< Unsafe ones of the thread that began it. */
  LADE_GRAPH_GLOBAL = 1,       /**< Those of other threads, too: they break the capture. */
  LADE_GRAPH_RELAXED = 2       /**< None; another thread may end the capture. */
} lade_graph_strictness;

/** Flags of lade_graph_options. */
typedef enum lade_graph_flag {
  /** lade_graph_adopt() alone: the native graph stays the program's, which may destroy it at any time after the call.
   * The pool stays until it does. */
  LADE_GRAPH_BORROW_NATIVE = 1 << 0,
  /** Kernels may launch it, too, after lade_graph_upload(), and another one after each update. */
  LADE_GRAPH_DEVICE_LAUNCH = 1 << 1,
  /** A launch first frees what the graph's own memory nodes allocated at the launch before, and left. */
  LADE_GRAPH_AUTO_FREE = 1 << 2
} lade_graph_flag;

/** Options of a graph; all zero means all defaults. */
typedef struct lade_graph_options {
  size_t struct_size;
  /** Where the memory of captures comes from. {0, 0}: a pool of the graph's own. An id that no pool has: one is made.
   * Of adopted graphs: see there. */
  lade_device_pool_id pool;
  /** Of captures: the one that begins them. Of the allocator's device, not the legacy default stream. It outlives the
   * graph; memory belongs to it, so retire it before it is destroyed (lade_device_stream_retire()). NULL: adopted
   * graphs alone. */
  lade_stream stream;
  /** Further streams that captures fork to, whose allocations come from the pool, too. Copied. */
  const lade_stream *streams;
  uint64_t stream_count; /**< At most 63. */
  uint32_t strictness;   /**< lade_graph_strictness. */
  uint32_t flags;        /**< Set of lade_graph_flag. */
} lade_graph_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_graph_options_init(lade_graph_options *options) { LADE_INIT(options); }

/**
 * Capture what a function queues, and make it ready for launches.
 *
 * @param allocator  Borrowed; outlives the graph: its destruction is LADE_ERR_BUSY as long as graphs, or what the driver keeps of
 *                   them, name it. Of the native backend.
 * @param options    Borrowed for the call.
 * @param work       The code of the capture.
 * @param user       Given to it.
 * @param out        [out] Caller owns it until lade_graph_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for other threads that give memory back. Stream order: nothing runs.
 * Errors, with nothing left: LADE_ERR_CALLBACK if the function failed, with its status and words in the text;
 * LADE_ERR_CAPTURE if it left the capture invalid, forked a stream and did not join it, or made a call that was
 * refused, if the stream captures already, and if the pool is captured into; LADE_ERR_INVALID_ARGUMENT;
 * LADE_ERR_UNSUPPORTED if allocator or runtime have no pools or graphs; LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_OUT_OF_DEVICE_MEMORY; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED; LADE_ERR_DRIVER with what the driver refused.
 * Source: docs/graphs.md "Single graphs"; CUDA Driver API, Stream Management, cuStreamBeginCapture.
 */
LADE_API lade_status lade_graph_capture(lade_device_allocator *allocator, const lade_graph_options *options,
                                        lade_graph_work work, void *user, lade_graph **out);

/**
 * The same for code without a callback: what is queued from here to lade_graph_capture_end() is captured. The calling thread is that
 * of the capture's code.
 *
 * @param out  [out] Caller ends or aborts it. Untouched on error.
 *
 * As lade_graph_capture(), for what goes wrong so far.
 */
LADE_API lade_status lade_graph_capture_begin(lade_device_allocator *allocator, const lade_graph_options *options,
                                              lade_graph_capture_state **out);

/**
 * End a capture, and make it ready for launches.
 *
 * @param state  Taken, also on error, except for errors of another thread and LADE_ERR_INVALID_ARGUMENT.
 * @param out    [out] As lade_graph_capture(); of lade_graph_update_begin() its graph, which the caller owns already; NULL: not
 *               wanted, of an update alone.
 *
 * Threads: the one that began it; any with LADE_GRAPH_RELAXED. Another one: LADE_ERR_CAPTURE, the capture goes on.
 * Errors: those of lade_graph_capture(), of an update those of lade_graph_update().
 */
LADE_API lade_status lade_graph_capture_end(lade_graph_capture_state *state, lade_graph **out);

/** End a capture, also of an update, and drop what it captured: nothing is left of it. NULL does nothing. State, threads and their error
 * as lade_graph_capture_end(). */
LADE_API lade_status lade_graph_capture_abort(lade_graph_capture_state *state);

/**
 * Make a graph that the program built ready for launches: with nodes that no capture makes, say (conditional ones, memory, graphs
 * within graphs).
 *
 * @param pool           That the memory is from which the graph uses; in use, and one that lends nothing. It gets another use, which the native graph keeps until it,
 *                       all executable graphs made of it from now on and their launches are gone. {0, 0}: none; the program
 *                       keeps the memory itself.
 * @param native_graph   A CUgraph, complete. Taken on success, unless LADE_GRAPH_BORROW_NATIVE.
 * @param options        Borrowed for the call; NULL for defaults. options.pool is not looked at.
 * @param out            [out] As lade_graph_capture().
 *
 * Threads: any, none using the native graph. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; LADE_ERR_OUT_OF_HOST_MEMORY; what the driver
 * refuses the graph with; the rest as lade_graph_capture().
 */
LADE_API lade_status lade_graph_adopt(lade_device_allocator *allocator, lade_device_pool_id pool, void *native_graph,
                                      const lade_graph_options *options, lade_graph **out);

/**
 * Capture again: launches from now on do the work captured last. If the new graph has the same nodes except for their
 * parameters, the executable graph is updated in place; else, or if the driver cannot, another one takes its place.
 *
 * The graph stays as it was, and may be launched by other threads, until the new one is complete. Memory that the former capture
 * allocated and freed serves the new one; what it left allocated is the program's as before.
 *
 * @param out_in_place  [out] Whether it was updated in place. NULL: not wanted. Untouched on error.
 *
 * Threads: any; a launch waits for the end of an update, not for its code. Waits: never for the device.
 * Stream order: launches queued before are as they were; later ones come after them.
 * Errors, with the graph as it was: those of lade_graph_capture(); LADE_ERR_CAPTURE also while another update captures, and where the
 * graph is to be replaced while options.stream captures otherwise and the last launch was there; LADE_ERR_INVALID_ARGUMENT for a
 * graph without options.stream.
 */
LADE_API lade_status lade_graph_update(lade_graph *graph, lade_graph_work work, void *user, bool *out_in_place);

/** The same for code without a callback, as lade_graph_capture_begin(): lade_graph_capture_end() ends it and gives the graph, whose
 * info counts updates in place and replacements. The graph is not destroyed before that. */
LADE_API lade_status lade_graph_update_begin(lade_graph *graph, lade_graph_capture_state **out);
/** The same with a graph that the program built, and the pool of its memory, as in lade_graph_adopt(): taken on success if the
 * graph's native graphs are. */
LADE_API lade_status lade_graph_update_native(lade_graph *graph, lade_device_pool_id pool, void *native_graph,
                                              bool *out_in_place);

/**
 * Queue a launch.
 *
 * @param stream  Of the allocator's device. It need not be the capture's, and may be destroyed at any time after the call; an event is
 *                recorded on it then, which a launch on options.stream does not need.
 *
 * Threads: any; launches of one graph come one after the other. Waits: for another thread's launch or update. Stream order: after the
 * work queued on `stream` so far, and after earlier launches of the graph on whatever stream.
 * Errors, nothing queued: LADE_ERR_BUSY while the graph's pool is suspended; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED; on a capturing stream, and else,
 * what the driver refused.
 */
LADE_API lade_status lade_graph_launch(lade_graph *graph, lade_stream stream);

/**
 * Bring the graph to the device ahead of its next launch, which does it else, and for launches by kernels.
 *
 * Threads, stream order: as a launch. Waits: for another thread's launch or update. Errors: as lade_graph_launch(), but that on a
 * capturing stream LADE_ERR_CAPTURE makes the capture invalid.
 */
LADE_API lade_status lade_graph_upload(lade_graph *graph, lade_stream stream);

/**
 * The driver's handles: for tools, and for what lade does not do. Valid until the next update, or destruction. The program may make
 * executable graphs of the native graph, and launch all of them: the pool stays for them.
 *
 * @param out_graph  [out] A CUgraph, NULL where it is the program's. NULL: not wanted.
 * @param out_exec  [out] A CUgraphExec. NULL: not wanted.
 *
 * Threads: any. Waits: for another thread's launch or update. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_graph_native(lade_graph *graph, void **out_graph, void **out_exec);

/** State and counters of a graph. Fields are appended only. */
typedef struct lade_graph_info {
  size_t struct_size;
  lade_device_pool_id pool; /**< {0, 0}: none. */
  uint64_t launches;        /**< Queued so far. */
  uint64_t updates;         /**< In place. */
  uint64_t replacements;    /**< Updates in which the executable graph was replaced. */
  uint64_t node_count;      /**< Of the native graph; graphs within it count as one. */
  uint64_t edge_count;
  uint32_t adopted;  /**< 1 */
  uint32_t reserved; /**< 0 */
} lade_graph_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_graph_info_init(lade_graph_info *info) { LADE_INIT(info); }

/** Read them. As lade_graph_native(). */
LADE_API lade_status lade_graph_info_get(lade_graph *graph, lade_graph_info *info);

/**
 * Destroy a graph. NULL does nothing. Blocks that its captures left allocated stay the program's.
 *
 * @param graph  Taken on success.
 * @param wait   false: launches under way end by themselves, and the pool's use with them. true: return when the last launch has ended
 *               (where that was on options.stream, the work queued there so far), and the pool's use is given back, unless handles were lent (lade_graph_native()) or
 *               the native graph is the program's.
 *
 * Threads: excludes every other call on it. Errors, with the graph still to be destroyed: LADE_ERR_CAPTURE while options.stream
 * captures, where the last launch was there, and wait; LADE_ERR_BUSY while an update of it is open; LADE_ERR_FORKED; what the driver refused.
 */
LADE_API lade_status lade_graph_destroy(lade_graph *graph, bool wait);

#ifdef __cplusplus
}
#endif
#endif /* LADE_GRAPH_H */
