/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Events in a cache of memory, in order: the history of device allocators (lade/device.h) and pinned pools
 * (lade/pinned.h).
 *
 * With history on, a cache keeps its last events in a ring, and with each live block the context of its allocation: whatever
 * a callback of the program captures, or a call stack (lade/stacks.h). Off, it costs nothing.
 *
 *   lade_history_options options;
 *   lade_history_options_init(&options);
 *   options.enabled = 1;
 *   options.max_bytes = 64 << 20;
 *   lade_pinned_history_set(pool, &options);
 *   lade_history_scope_push("epoch 3");
 *   ...
 *   lade_history *history;
 *   lade_pinned_history_take(pool, &history);
 *
 * Labels and scopes belong to the calling thread, and stand with each event that the thread causes in any cache.
 */
#ifndef LADE_HISTORY_H
#define LADE_HISTORY_H

#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Name of a private pool, chosen by the caller; {0, 0} names none. */
typedef struct lade_device_pool_id {
  uint64_t first;
  uint64_t second;
} lade_device_pool_id;

/** Kinds of events; in pinned pools too. Numbers are fixed. */
typedef enum lade_device_action {
  LADE_DEVICE_ALLOC = 0,          /**< A block was handed out; bytes as asked for. */
  LADE_DEVICE_FREE_REQUESTED = 1, /**< A free took it back; bytes as asked for. */
  LADE_DEVICE_FREE_COMPLETED = 2, /**< Its memory may be used again: no stream uses it. */
  LADE_DEVICE_SEGMENT_ALLOC = 3,  /**< A segment came from the driver. */
  LADE_DEVICE_SEGMENT_FREE = 4,   /**< ... and went back to it. */
  LADE_DEVICE_SEGMENT_MAP = 5,    /**< Memory was mapped into an expandable segment. */
  LADE_DEVICE_SEGMENT_UNMAP = 6,  /**< ... and taken out of it. */
  LADE_DEVICE_SNAPSHOT = 7,       /**< A snapshot was taken; address 0; bytes: of all active blocks. */
  LADE_DEVICE_OOM = 8,            /**< An allocation failed for lack of memory; address: the device's free bytes as the
                                       driver sees them, or what a pinned pool's cap leaves; bytes: rounded request. */
  LADE_DEVICE_USER_DEFINED = 9,   /**< A note of the program's own; address and bytes 0. */
  LADE_DEVICE_ANNOTATE = 10,      /**< A note on a live block; bytes as asked for. */
} lade_device_action;

/** Where contexts are captured and kept; each level includes those above it. */
typedef enum lade_device_context_level {
  LADE_CONTEXT_NEVER = 0,
  LADE_CONTEXT_STATE = 1, /**< With live blocks and their segments: captured by alloc and checkpoint_set. */
  LADE_CONTEXT_ALLOC = 2, /**< ... and with events, texts of notes included. */
  LADE_CONTEXT_ALL = 3,   /**< ... also captured by free, empty_cache and checkpoint_get. Events of a free without a
                               context of its own carry that of the block's allocation. */
} lade_device_context_level;

/** One frame of a context, for reports. Texts are borrowed for the call; NULL: not known. */
typedef struct lade_stack_frame {
  uint64_t address;     /**< As captured: for a call the address after it; 0: none. */
  const char *module;   /**< Path of the program or library. */
  uint64_t base;        /**< Where it was loaded: address - base is the address in its file. */
  const char *build_id; /**< Hexadecimal. */
  const char *function;
  const char *file;
  uint32_t line;       /**< 0: not known. */
  uint32_t is_inlined; /**< 1: its code lies in the function of the next frame. */
} lade_stack_frame;

/** Gets the frames of one context, innermost first. Another status than LADE_OK ends the walk and is returned. */
typedef lade_status (*lade_stack_frame_visit)(void *user, const lade_stack_frame *frame);

/** Options of lade_device_history_set and lade_pinned_history_set; all zero: history off. */
typedef struct lade_history_options {
  size_t struct_size;
  uint32_t enabled;     /**< 1: record. 0: stop; the ring is cleared and all contexts are released. */
  uint32_t level;       /**< lade_device_context_level. Counts while enabled. */
  uint64_t max_entries; /**< Events that the ring keeps, 80 bytes each, touched as they come; 0: as many as max_bytes
                             holds, and without that 1. */
  /** Captures a context for the call under way. Called in the thread of the call with no lock held, so it may take locks
   * of its own, but must not call the cache. NULL result: none. Not NULL unless level is LADE_CONTEXT_NEVER. */
  void *(*capture)(void *user);
  /** Releases what one capture returned, once for each; in any thread, with no lock held. NULL: nothing to do. */
  void (*release)(void *user, void *context);
  /** For these and `describe`. Must live until history is off (another history that is set meanwhile keeps what this one has
   * captured), calls under way have returned, those that take snapshots and copies included (a publisher with
   * LADE_PUBLISH_CONTROL takes snapshots in a thread of its own), and copies of the history (lade_history,
   * lade_device_snapshot) are destroyed. A lade_snapshot (lade/inspect.h) has named all contexts when it
   * is there, and needs nothing. */
  void *user;
  uint64_t max_bytes;    /**< Memory of the ring; contexts, labels and texts of notes come on top. 0: max_entries alone
                              counts. */
  uint32_t skip_actions; /**< Set of (1 << lade_device_action) that the ring leaves out; trackers hear of them. */
  uint32_t reserved;     /**< 0 */
  /** Names the frames of what one capture returned, for reports; called with no lock held, in the thread that reports. It gets
   * what the `capture` beside it returned and nothing else, also where another history has been set since, and may be called
   * for as long as `user` must live. NULL: reports have no frames. */
  lade_status (*describe)(void *user, const void *context, lade_stack_frame_visit visit, void *visitor);
} lade_history_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_history_options_init(lade_history_options *options) { LADE_INIT(options); }

/** One event. Rows are fixed for a soname. Texts and context are borrowed as long as the history. */
typedef struct lade_history_event {
  uint64_t sequence; /**< Number of the event in its cache's life; of those that are not skipped, none is left out. */
  uint64_t time_ns;  /**< On the runtime's clock (lade_runtime_now_ns). */
  uint64_t wall_ns;  /**< Since 1970-01-01 UTC. On runtime "sim": the moment at which history was turned on, and the
                          virtual time since then. */
  uint64_t address;
  uint64_t bytes;
  uint64_t block_bytes; /**< Size of the block, rounding and what was not worth splitting off included; 0: no block. */
  lade_stream stream;   /**< Of the block or segment, or of the request; NULL: none, and for pinned memory. */
  lade_device_pool_id pool; /**< Its private pool; {0, 0}: the default pools, or none. */
  const void *context;      /**< As captured; NULL: none. */
  const char *text;         /**< Of a note; else NULL. */
  const char *label;        /**< lade_history_label_set(); NULL: none. */
  const char *scopes;       /**< Of the thread, outermost first, divided by "/"; NULL: none. */
  int32_t device;           /**< Ordinal; -1 for pinned memory. */
  uint32_t action;          /**< lade_device_action. */
} lade_history_event;

/** A copy of a ring. */
typedef struct lade_history {
  const lade_history_event *events; /**< Oldest first: no event before one that caused it. */
  size_t event_count;
  uint64_t lost_count;         /**< Events since history was turned on that the ring no longer holds. */
  uint64_t lost_context_count; /**< Contexts, labels and scopes that there was no memory to keep, since then. */
  uint64_t capacity;           /**< Events that the ring has room for; 0: history is off. */
} lade_history;

/** Free a copy. NULL does nothing. Threads: any; independent of the life of the cache. */
LADE_API void lade_history_destroy(lade_history *history);

/**
 * Name what the calling thread does from now on: a text that its events in every cache carry.
 *
 * @param label  Copied; at most 4,095 bytes. NULL: none.
 *
 * Threads: any, each for itself. Waits: never. Errors, nothing changed: LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_LIMIT for a
 * longer text.
 */
LADE_API lade_status lade_history_label_set(const char *label);

/**
 * Enter a scope: its name stands with the thread's events until the matching lade_history_scope_pop().
 *
 * @param name  Copied. Not NULL.
 *
 * Threads: any, each for itself. Waits: never. Errors, nothing changed: LADE_ERR_INVALID_ARGUMENT;
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_LIMIT where 64 scopes are open or their names and dividers exceed 4,095 bytes.
 */
LADE_API lade_status lade_history_scope_push(const char *name);

/** Leave the innermost scope. Threads: any, each for itself. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT where none is
 * open. */
LADE_API lade_status lade_history_scope_pop(void);

#ifdef __cplusplus
}
#endif
#endif /* LADE_HISTORY_H */
