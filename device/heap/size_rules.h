/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Size rules: constants, rounding of requests, size of segments. Pure functions of the size and the settings.
 *
 *   requested --round--> block size --segment size--> asked from the driver
 *   1                    512 B                        2 MiB    up to 1 MiB: the small pool
 *   1 MiB + 1            1 MiB + 512 B                20 MiB   below 10 MiB: one segment for several blocks, as large
 *                                                              as the settings say
 *   10 MiB + 1           10 MiB + 512 B               12 MiB   from there: the next multiple of 2 MiB
 */
#ifndef LADE_DEVICE_HEAP_SIZE_RULES_H
#define LADE_DEVICE_HEAP_SIZE_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/size.h"

#define LADEI_DEVICE_BLOCK_QUANTUM     ((size_t)512)    /* every block size and address is a multiple */
#define LADEI_DEVICE_SMALL_MAX         LADEI_MIB        /* largest rounded size of the small pool */
#define LADEI_DEVICE_SMALL_SEGMENT     (2 * LADEI_MIB)  /* also the granule of small expandable segments */
#define LADEI_DEVICE_LARGE_SEGMENT     (20 * LADEI_MIB) /* the settings' default; also the slack of oversize blocks */
#define LADEI_DEVICE_OWN_SEGMENT_MIN   (10 * LADEI_MIB) /* from here a request gets a segment of its own size */
#define LADEI_DEVICE_OWN_SEGMENT_ROUND (2 * LADEI_MIB)
#define LADEI_DEVICE_SPLIT_UNLIMITED   SIZE_MAX
enum { LADEI_DEVICE_DIVISION_ENTRIES = 16 };

/* Settings that decide sizes and splits. They may change between two calls, so they are read at each use. */
typedef struct ladei_device_settings {
  size_t max_split_bytes;      /* blocks of this size and more are never split; LADEI_DEVICE_SPLIT_UNLIMITED for none */
  double collection_threshold; /* share of the fraction's limit above which old cached segments go; 0: off */
  size_t large_segment_bytes;  /* also the granule of large expandable segments */
  size_t max_unsplit_slack;    /* an oversize block serves requests that leave less than this of it unused */
  bool expandable_segments;
  bool expandable_private_pools; /* ... in private pools too */
  bool expandable_ipc;           /* what is mapped into them can be given to other processes */
  bool newest_pool;              /* of several captures that take a stream, the newest gets it */
  bool refuse_beyond_limit; /* a request that would need more than the limit is refused before anything goes back */
  bool capture_reuse;       /* blocks come back within a capture by the order of its graph */
  bool reference;           /* decide as PyTorch's allocator also where lade decides otherwise */
  bool older_reference;     /* ... and as its versions before pools were objects */
  uint64_t divisions[LADEI_DEVICE_DIVISION_ENTRIES]; /* steps per power of two, by floor(log2 size) - 20; 0 or 1: off */
} ladei_device_settings;

/* Rounds `size` up within its power of two to one of `divisions` steps. divisions is at least 2, size at least 1. */
size_t ladei_device_round_to_division(size_t size, uint64_t divisions);

/* Block size for a request below LADEI_SIZE_LIMIT. */
size_t ladei_device_round_request(const ladei_device_settings *settings, size_t requested);

static inline bool ladei_device_is_small(size_t rounded) { return rounded <= LADEI_DEVICE_SMALL_MAX; }

/* Bytes to ask the driver for when a rounded request finds no block. */
size_t ladei_device_heap_segment_bytes(const ladei_device_settings *settings, size_t rounded);

/* Whether a block that exceeds the rounded request by `remaining` is split; the first function: as one of a plain
 * segment. */
static inline bool ladei_device_split_plain(const ladei_device_settings *settings, bool small_pool, size_t rounded,
                                            size_t remaining) {
  if (small_pool) return remaining >= LADEI_DEVICE_BLOCK_QUANTUM;
  return rounded < settings->max_split_bytes && remaining > LADEI_DEVICE_SMALL_MAX;
}
static inline bool ladei_device_split_wanted(const ladei_device_settings *settings, bool small_pool, size_t rounded,
                                             size_t remaining) {
  if (settings->expandable_segments) return remaining >= LADEI_DEVICE_BLOCK_QUANTUM;
  return ladei_device_split_plain(settings, small_pool, rounded, remaining);
}

#endif /* LADE_DEVICE_HEAP_SIZE_RULES_H */
