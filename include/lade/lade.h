/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The whole library, and the way most programs start: a pair.
 *
 * A pair is the host and the device side of one device in one object: a pinned pool near the device, a caching
 * allocator of its memory and a pipeline between the two.
 *
 *   lade_runtime *runtime;
 *   lade_pair *pair;
 *   lade_runtime_open(NULL, NULL, &runtime);
 *   lade_pair_create(runtime, 0, NULL, &pair);
 *   lade_device_alloc(lade_pair_device_allocator(pair), bytes, stream, &weights);
 *   ... lade_pipeline_submit(lade_pair_pipeline(pair), &transfer, &ticket) ...
 *   lade_pair_destroy(pair, true);
 *   lade_runtime_close(runtime);
 */
#ifndef LADE_LADE_H
#define LADE_LADE_H

#include "lade/config.h"
#include "lade/copy.h"
#include "lade/device.h"
#include "lade/dtype.h"
#include "lade/graph.h"
#include "lade/group.h"
#include "lade/history.h"
#include "lade/inspect.h"
#include "lade/loader.h"
#include "lade/log.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"
#include "lade/runtime.h"
#include "lade/safetensors.h"
#include "lade/soft.h"
#include "lade/stacks.h"
#include "lade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Pool, allocator and pipeline of one device. */
typedef struct lade_pair lade_pair;

/** Options of lade_pair_create; all zero means all defaults. Their own `device` fields must be 0 or the pair's device.
 */
typedef struct lade_pair_options {
  size_t struct_size;
  const lade_pinned_options *pinned;     /**< NULL: defaults. */
  const lade_device_options *device;     /**< NULL: defaults. */
  const lade_pipeline_options *pipeline; /**< NULL: defaults. */
} lade_pair_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_pair_options_init(lade_pair_options *options) { LADE_INIT(options); }

/**
 * Create a pinned pool near a device, an allocator of the device's memory and a pipeline on them.
 *
 * @param runtime  Borrowed; must outlive the pair.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_pair_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for the creation of threads. Stream order: none.
 * Errors: those of lade_pinned_pool_create(), lade_device_allocator_create() and lade_pipeline_create();
 * LADE_ERR_INVALID_ARGUMENT when options name another device.
 * Source: docs/pipeline.md "A pair".
 */
LADE_API lade_status lade_pair_create(lade_runtime *runtime, int device, const lade_pair_options *options,
                                      lade_pair **out);

/**
 * Destroy a pair. NULL does nothing.
 *
 * @param pair    Taken on success. The pipeline goes first, then the allocator, then the pool; after an error the parts that
 *                went are gone, and the calls below give NULL for them: call again, or go on using what is there.
 * @param cancel  As in lade_pipeline_destroy().
 *
 * Threads: excludes every other call on its parts. Waits: for transfers, and for streams that still use freed blocks.
 * Errors: LADE_ERR_BUSY, with counts, while blocks of the pool or the allocator are handed out; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pair_destroy(lade_pair *pair, bool cancel);

/** The pair's pool; borrowed, valid until lade_pair_destroy() destroys it, NULL from then on. Threads: any. */
LADE_API lade_pinned_pool *lade_pair_pinned_pool(lade_pair *pair);
/** The pair's allocator; as lade_pair_pinned_pool(). Threads: any. */
LADE_API lade_device_allocator *lade_pair_device_allocator(lade_pair *pair);
/** The pair's pipeline; as lade_pair_pinned_pool(). It is gone also after a lade_pair_destroy() that found blocks in use. Threads:
 * any. */
LADE_API lade_pipeline *lade_pair_pipeline(lade_pair *pair);

/** The pair's device as a place to load checkpoints to and to save them from, with copies ordered by `stream`. */
LADE_INLINE lade_load_target lade_load_target_pair(lade_pair *pair, lade_stream stream) {
  lade_load_target target = LADE_ZERO;
  target.pipeline = lade_pair_pipeline(pair);
  target.allocator = lade_pair_device_allocator(pair);
  target.stream = stream;
  return target;
}

#ifdef __cplusplus
}
#endif
#endif /* LADE_LADE_H */
