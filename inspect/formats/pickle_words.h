/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of a snapshot's pickle: keys and values that stand in every file. The writer puts the first ones, up to
 * LADEI_PICKLE_WORDS_WRITTEN, into the memo in this order, so that a word's number is its memo number, below 256.
 */
#ifndef LADE_INSPECT_FORMATS_PICKLE_WORDS_H
#define LADE_INSPECT_FORMATS_PICKLE_WORDS_H

/* clang-format off */
#define LADEI_PICKLE_WORDS(word)                                                                                       \
  word(EMPTY, "")                                                                                                      \
  /* lade_device_action, in its order */                                                                               \
  word(ALLOC, "alloc") word(FREE_REQUESTED, "free_requested") word(FREE_COMPLETED, "free_completed")                   \
  word(SEGMENT_ALLOC, "segment_alloc") word(SEGMENT_FREE, "segment_free") word(SEGMENT_MAP, "segment_map")             \
  word(SEGMENT_UNMAP, "segment_unmap") word(SNAPSHOT, "snapshot") word(OOM, "oom") word(USER_DEFINED, "user_defined")  \
  word(ANNOTATE, "annotate")                                                                                           \
  /* lade_device_block_state, in its order */                                                                          \
  word(INACTIVE, "inactive") word(ACTIVE_ALLOCATED, "active_allocated")                                                \
  word(ACTIVE_PENDING_FREE, "active_pending_free")                                                                     \
  /* lade_part_kind, in its order */                                                                                   \
  word(DEVICE, "device") word(PINNED, "pinned") word(PIPELINE, "pipeline")                                             \
  word(LARGE, "large") word(SMALL, "small")                                                                            \
  /* events */                                                                                                         \
  word(ACTION, "action") word(ADDR, "addr") word(DEVICE_FREE, "device_free") word(SIZE, "size")                        \
  word(STREAM, "stream") word(TIME_US, "time_us") word(FRAMES, "frames") word(POOL_ID, "pool_id")                      \
  word(USER_METADATA, "user_metadata") word(COMPILE_CONTEXT, "compile_context") word(STAGE, "stage")                   \
  /* segments, blocks, frames */                                                                                       \
  word(ADDRESS, "address") word(TOTAL_SIZE, "total_size") word(ALLOCATED_SIZE, "allocated_size")                       \
  word(ACTIVE_SIZE, "active_size") word(REQUESTED_SIZE, "requested_size") word(SEGMENT_TYPE, "segment_type")           \
  word(SEGMENT_POOL_ID, "segment_pool_id") word(IS_EXPANDABLE, "is_expandable") word(BLOCKS, "blocks")                 \
  word(STATE, "state") word(ALLOCATED, "allocated") word(ACTIVE, "active") word(FILENAME, "filename")                  \
  word(LINE, "line") word(NAME, "name") word(MODULE, "module") word(UNNAMED, "unnamed")           \
  /* the whole */                                                                                                      \
  word(SEGMENTS, "segments") word(DEVICE_TRACES, "device_traces") word(ALLOCATOR_SETTINGS, "allocator_settings")       \
  word(EXTERNAL_ANNOTATIONS, "external_annotations") word(HOST_SEGMENTS, "host_segments")                              \
  word(HOST_TRACES, "host_traces") word(TRACE_ALLOC_OVERFLOWED, "trace_alloc_overflowed")                              \
  word(TRACE_ALLOC_MAX_ENTRIES, "trace_alloc_max_entries")                                                             \
  /* what lade adds */                                                                                                 \
  word(LADE, "lade") word(VERSION, "version") word(WORDS, "words") word(TIME_NS, "time_ns")                            \
  word(PROCESS_ID, "process_id") word(MODULES, "modules") word(PATH, "path") word(BASE, "base") word(BYTES, "bytes")   \
  word(BUILD_ID, "build_id") word(PARTS, "parts") word(KIND, "kind") word(HISTORY_ON, "history_on")                    \
  word(SEGMENT_COUNT, "segment_count") word(EVENT_COUNT, "event_count") word(LOST_COUNT, "lost_count")                 \
  word(CAPACITY_BYTES, "capacity_bytes") word(MAX_ENTRIES, "max_entries") word(SKEW_NS, "skew_ns")                     \
  word(SETTINGS, "settings") word(COUNTERS, "counters") word(PINNED_SEGMENTS, "pinned_segments")                       \
  word(BLOCK_COUNT, "block_count") word(NUMA_NODE, "numa_node")                                                        \
  /* only read: of older files */                                                                                      \
  word(HISTORY, "history") word(REAL_SIZE, "real_size") word(ACTIVE_AWAITING_FREE, "active_awaiting_free")             \
  word(FREE, "free")
/* clang-format on */

#define LADEI_PICKLE_WORD_NUMBER(name, text) LADEI_PICKLE_##name,
typedef enum ladei_pickle_word {
  LADEI_PICKLE_WORDS(LADEI_PICKLE_WORD_NUMBER) LADEI_PICKLE_WORD_COUNT,
  LADEI_PICKLE_WORDS_WRITTEN = LADEI_PICKLE_HISTORY,
} ladei_pickle_word;
#undef LADEI_PICKLE_WORD_NUMBER

/* For a list of the texts: LADEI_PICKLE_WORDS(LADEI_PICKLE_WORD_TEXT). */
#define LADEI_PICKLE_WORD_TEXT(name, text) text,

#endif /* LADE_INSPECT_FORMATS_PICKLE_WORDS_H */
