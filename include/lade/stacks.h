/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Call stacks as contexts of a history (lade/history.h).
 *
 *   lade_stacks *stacks;
 *   lade_stacks_create(NULL, &stacks);
 *   lade_history_options options;
 *   lade_history_options_init(&options);
 *   options.enabled = 1;
 *   options.level = LADE_CONTEXT_ALLOC;
 *   options.max_bytes = 64 << 20;
 *   lade_stacks_use(stacks, &options);
 *   lade_device_history_set(allocator, &options);
 *
 * A stack is kept as raw addresses, once for all captures that are equal. The program and the libraries that were loaded when it was
 * captured stay known, so that it can be named at any later time, also after a dlclose(), and elsewhere by path, address in the file
 * and build id. What names them (libdw) and what walks the stack (libunwind) is opened when it is needed, if it is there.
 */
#ifndef LADE_STACKS_H
#define LADE_STACKS_H

#include "lade/history.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Stacks of one process, for any number of histories. */
typedef struct lade_stacks lade_stacks;

/** How a stack is walked. */
typedef enum lade_stacks_method {
  LADE_STACKS_BEST = 0, /**< libunwind, where there is libunwind.so.8, else glibc. */
  LADE_STACKS_LIBUNWIND = 1,
  LADE_STACKS_FRAME_POINTERS = 2, /**< Quickest, for programs and libraries that are built with them
                                       (-fno-omit-frame-pointer): a function without ends the stack or is missing, and so does code that
                                       no file was loaded for. */
  LADE_STACKS_BACKTRACE = 3,      /**< glibc's backtrace(): some microseconds. */
} lade_stacks_method;

/** Options of lade_stacks_create; all zero means all defaults. */
typedef struct lade_stacks_options {
  size_t struct_size;
  uint32_t method;     /**< lade_stacks_method. */
  uint32_t max_frames; /**< Of a stack, the innermost ones; at most 64. 0: 16. */
  uint64_t
      max_bytes; /**< Of all stacks, about 120 bytes and 8 for each frame; those that nothing refers to go first. 0:
                            16 MiB. */
} lade_stacks_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_stacks_options_init(lade_stacks_options *options) {
  const lade_stacks_options zero = LADE_ZERO;
  *options = zero;
  options->struct_size = sizeof(lade_stacks_options);
}

/** Counters. Fields are appended only. */
typedef struct lade_stacks_stats {
  size_t struct_size;
  uint64_t stacks;  /**< Kept. */
  uint64_t bytes;   /**< Of them. */
  uint64_t dropped; /**< Captures that found no room or memory: they have no stack. */
  uint32_t method;  /**< In use; never LADE_STACKS_BEST. */
  uint32_t modules; /**< The program and libraries that are known, unloaded ones included. */
} lade_stacks_stats;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_stacks_stats_init(lade_stacks_stats *stats) {
  const lade_stacks_stats zero = LADE_ZERO;
  *stats = zero;
  stats->struct_size = sizeof(lade_stacks_stats);
}

/**
 * Create an empty set of stacks, and open what walks them.
 *
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_stacks_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_UNSUPPORTED where the
 * method that is asked for is not there.
 */
LADE_API lade_status lade_stacks_create(const lade_stacks_options *options, lade_stacks **out);

/**
 * Destroy a set of stacks. NULL does nothing.
 *
 * Threads: excludes every other call on it. Waits: never. Errors, nothing changed: LADE_ERR_BUSY, with the count, while histories,
 * their copies or snapshots refer to stacks.
 */
LADE_API lade_status lade_stacks_destroy(lade_stacks *stacks);

/** Sets capture, release, describe and user of a history's options. Threads: any. */
LADE_API void lade_stacks_use(lade_stacks *stacks, lade_history_options *options);

/** Counters of this moment. Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT. */
LADE_API lade_status lade_stacks_stats_get(lade_stacks *stacks, lade_stacks_stats *stats);

/**
 * The stack of the calling thread, from the caller's frame on. NULL: there is no room (stats: dropped).
 *
 * @param stacks  A lade_stacks. The type is that of lade_history_options.capture.
 *
 * Caller owns one reference until lade_stacks_release(). Threads: any. Waits: never.
 */
LADE_API void *lade_stacks_capture(void *stacks);

/** Give one reference back. Threads: any. */
LADE_API void lade_stacks_release(void *stacks, void *stack);

/**
 * The raw addresses of a stack, innermost first: of each call the address behind it. Borrowed as long as the stack.
 *
 * @return  their number.
 */
LADE_API size_t lade_stacks_addresses(const void *stack, const uint64_t **out_addresses);

/**
 * Name the frames of a stack. With libdw functions, files, lines and what is inlined, from debug information that is on this machine
 * (nothing is downloaded); else functions that libraries export. Path, base and build id are always given.
 *
 * @param stacks  A lade_stacks. The type is that of lade_history_options.describe.
 * @param visit   Called for each frame, in this thread, with no lock held. What the frame names lives as long as the set.
 *
 * Threads: any. Reads files; milliseconds for the first stack of a library. Errors: LADE_ERR_INVALID_ARGUMENT; what `visit` returns.
 */
LADE_API lade_status lade_stacks_describe(void *stacks, const void *stack, lade_stack_frame_visit visit, void *visitor);

#ifdef __cplusplus
}
#endif
#endif /* LADE_STACKS_H */
