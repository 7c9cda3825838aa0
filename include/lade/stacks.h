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
 * A stack is kept as raw addresses, once for all captures that are equal. The program and the libraries that were
 * loaded when it was captured stay known, so that it can be named at any later time, also after a dlclose(), and
 * elsewhere by path, address in the file and build id. The libraries that name frames (libdw) and walk the stack
 * (libunwind) are opened when needed, if they are there.
 *
 * A stack begins with the function that called lade. lade's own frames are told by the mapping of liblade.so, and in a
 * program that holds liblade.a by the section for code that CMake gives the archive: no symbol is needed.
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
  /** Of all stacks, about 120 bytes and 8 for each frame; those that nothing refers to go first. 0: 16 MiB. */
  uint64_t max_bytes;
} lade_stacks_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_stacks_options_init(lade_stacks_options *options) { LADE_INIT(options); }

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

/**
 * Sets capture, release, describe and user of a history's options: contexts are stacks of the set. A capture that finds no room
 * in the set, or no memory, gives none. Frames are named by libdw from debug information that is on this machine (functions, files,
 * lines and inlined calls; nothing is downloaded), else by the functions that libraries export; paths, bases and build ids are always
 * given.
 *
 * @param stacks   Borrowed; lives as long as options.user must.
 * @param options  [in,out] Set up by lade_history_options_init().
 *
 * Threads: any. Waits: never.
 */
LADE_API void lade_stacks_use(lade_stacks *stacks, lade_history_options *options);

#ifdef __cplusplus
}
#endif
#endif /* LADE_STACKS_H */
