/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings and limits of an allocator: checked here, kept in heap.settings and beside, read at each use.
 *
 * Locks: the allocator's lock while they change.
 */
#include "device/api/settings.h"

#include <stdio.h>

#include "base/bounded_text.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "device/api/config_keys.h"
#include "device/backends/find.h"
#include "device/heap/recent.h"
#include "device/native/caching.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

static void ages_tick_update(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_recent_forget_all(heap);
  bool none = heap->settings.reference && ladei_device_fraction_limit(allocator) == UINT64_MAX;
  heap->ages_tick = allocator->limits.fraction_set && heap->settings.collection_threshold > 0.0 && !none;
}

static void fraction_store(lade_device_allocator *allocator, double fraction) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->limits.fraction_set = fraction != LADE_DEVICE_NO_FRACTION;
  if (!allocator->limits.fraction_set) return;
  allocator->limits.fraction = fraction;
  allocator->limits.fraction_bytes = (uint64_t)(fraction * (double)allocator->total_bytes);
}

static lade_status fraction_change(lade_device_allocator *allocator, double fraction) {
  static const char call[] = "lade_device_set_memory_fraction";
  lade_status status = ladei_device_check_call(allocator, call);
  if (status != LADE_OK) return status;
  const bool none = fraction == LADE_DEVICE_NO_FRACTION;
  if (!none && !(fraction >= 0.0 && fraction <= 1.0))
    return ladei_error_argument(call, "fraction", "0 to 1, or LADE_DEVICE_NO_FRACTION", "%g", fraction);
  if (allocator->backend->memory_fraction_set != NULL) {
    status = allocator->backend->memory_fraction_set(allocator, none ? 1.0 : fraction);
    if (status != LADE_OK) return status;
  }
  ladei_lock_acquire(&allocator->lock);
  fraction_store(allocator, fraction);
  ages_tick_update(allocator);
  ladei_lock_release(&allocator->lock);
  return LADE_OK;
}

lade_status lade_device_set_memory_fraction(lade_device_allocator *allocator, double fraction) {
  return LADEI_UNCANCELLED(fraction_change(allocator, fraction));
}

/* The texts below say these sizes. */
_Static_assert(LADEI_DEVICE_LARGE_SEGMENT == 20 * LADEI_MIB && LADEI_DEVICE_OWN_SEGMENT_MIN == 10 * LADEI_MIB &&
                   LADEI_DEVICE_BLOCK_QUANTUM == 512,
               "messages quote them");

static lade_status sizes_check(const char *call, const lade_device_options *options) {
  if (options->max_split_bytes != 0 && options->max_split_bytes <= LADEI_DEVICE_LARGE_SEGMENT) {
    return ladei_error_argument(call, "options.max_split_bytes", "0 or more than 20 MiB", "%llu bytes",
                                (unsigned long long)options->max_split_bytes);
  }
  if (options->max_unsplit_slack_bytes != 0 && options->max_unsplit_slack_bytes < LADEI_DEVICE_LARGE_SEGMENT) {
    return ladei_error_argument(call, "options.max_unsplit_slack_bytes", "0, or 20 MiB or more", "%llu bytes",
                                (unsigned long long)options->max_unsplit_slack_bytes);
  }
  if (options->large_segment_bytes != 0 && (options->large_segment_bytes <= LADEI_DEVICE_OWN_SEGMENT_MIN ||
                                            options->large_segment_bytes >= LADEI_SIZE_LIMIT ||
                                            options->large_segment_bytes % LADEI_DEVICE_BLOCK_QUANTUM != 0)) {
    return ladei_error_argument(call, "options.large_segment_bytes",
                                "0, or a multiple of 512 above 10 MiB and below 2^60", "%llu bytes",
                                (unsigned long long)options->large_segment_bytes);
  }
  /* The least steps in which devices map memory; one with larger ones says so when it maps. */
  if (options->expandable_segments && options->large_segment_bytes % LADEI_DEVICE_SMALL_SEGMENT != 0) {
    return ladei_error_argument(call, "options.large_segment_bytes", "a multiple of 2 MiB with expandable_segments",
                                "%llu bytes", (unsigned long long)options->large_segment_bytes);
  }
  return LADE_OK;
}

static lade_status divisions_check(const char *call, const lade_device_options *options) {
  for (size_t i = 0; i < LADEI_DEVICE_DIVISION_ENTRIES; i++) {
    if (options->roundup_divisions[i] == 0 || ladei_is_power_of_two(options->roundup_divisions[i])) continue;
    char field[48];
    snprintf(field, sizeof field, "options.roundup_divisions[%zu]", i);
    return ladei_error_argument(call, field, "0 or a power of two", "%llu",
                                (unsigned long long)options->roundup_divisions[i]);
  }
  return LADE_OK;
}

lade_status ladei_device_settings_check(const char *call, const lade_device_options *options) {
  const uint32_t known = LADE_DEVICE_UNCACHED | LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS | LADE_DEVICE_EXPANDABLE_IPC |
                         LADE_DEVICE_REFERENCE | LADE_DEVICE_NEWEST_POOL | LADE_DEVICE_STREAMS_ARE_RETIRED |
                         LADE_DEVICE_THREAD_CACHES | LADE_DEVICE_REFUSE_BEYOND_LIMIT | LADE_DEVICE_CAPTURE_REUSE |
                         LADE_DEVICE_OLDER_REFERENCE;
  const uint32_t policies = LADE_DEVICE_REFERENCE | LADE_DEVICE_THREAD_CACHES;
  if ((options->flags & ~known) != 0)
    return ladei_error_argument(call, "options.flags", "LADE_DEVICE_... flags only", "0x%x", (unsigned)options->flags);
  if (options->plugin != NULL && (options->backend != LADE_DEVICE_NATIVE || options->provider != NULL))
    return ladei_error_argument(call, "options.plugin",
                                "NULL where `backend` or `provider` say where memory comes from", "%p",
                                (const void *)options->plugin);
  if ((options->flags & policies) == policies)
    return ladei_error_argument(call, "options.flags",
                                "at most one of LADE_DEVICE_REFERENCE and LADE_DEVICE_THREAD_CACHES", "0x%x",
                                (unsigned)options->flags);
  if ((options->flags & LADE_DEVICE_OLDER_REFERENCE) != 0 && (options->flags & LADE_DEVICE_REFERENCE) == 0)
    return ladei_error_argument(call, "options.flags", "LADE_DEVICE_OLDER_REFERENCE with LADE_DEVICE_REFERENCE alone",
                                "0x%x", (unsigned)options->flags);
  if (ladei_device_backend_find(options) == NULL) {
    return ladei_error_argument(call, "options.backend", "a constant of lade_device_backend", "%u",
                                (unsigned)options->backend);
  }
  if (options->expandable_segments > 1) {
    return ladei_error_argument(call, "options.expandable_segments", "0 or 1", "%u",
                                (unsigned)options->expandable_segments);
  }
  if (!(options->collection_threshold >= 0.0 && options->collection_threshold < 1.0)) {
    return ladei_error_argument(call, "options.collection_threshold", "0 or more and below 1", "%g",
                                options->collection_threshold);
  }
  if (!(options->memory_fraction >= 0.0 && options->memory_fraction <= 1.0))
    return ladei_error_argument(call, "options.memory_fraction", "0 to 1", "%g", options->memory_fraction);
  lade_status status = sizes_check(call, options);
  return status == LADE_OK ? divisions_check(call, options) : status;
}

void ladei_device_settings_imply(lade_device_options *options) {
  bool reference = (options->flags & LADE_DEVICE_REFERENCE) != 0;
  if (options->event_batch == 0 && reference) options->event_batch = 1; /* PyTorch's: an event inside each free */
}

static void settings_read(ladei_device_settings *settings, const lade_device_options *options) {
  settings->max_split_bytes =
      options->max_split_bytes == 0 ? LADEI_DEVICE_SPLIT_UNLIMITED : (size_t)options->max_split_bytes;
  settings->collection_threshold = options->collection_threshold;
  settings->expandable_segments = options->expandable_segments != 0;
  settings->max_unsplit_slack =
      options->max_unsplit_slack_bytes == 0 ? LADEI_DEVICE_LARGE_SEGMENT : (size_t)options->max_unsplit_slack_bytes;
  settings->large_segment_bytes =
      options->large_segment_bytes == 0 ? LADEI_DEVICE_LARGE_SEGMENT : (size_t)options->large_segment_bytes;
  settings->reference = (options->flags & LADE_DEVICE_REFERENCE) != 0;
  settings->older_reference = (options->flags & LADE_DEVICE_OLDER_REFERENCE) != 0;
  bool newer = settings->reference && !settings->older_reference;
  settings->expandable_private_pools = newer || (options->flags & LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS) != 0;
  settings->expandable_ipc = (options->flags & LADE_DEVICE_EXPANDABLE_IPC) != 0;
  settings->newest_pool = newer || (options->flags & LADE_DEVICE_NEWEST_POOL) != 0;
  settings->refuse_beyond_limit = (options->flags & LADE_DEVICE_REFUSE_BEYOND_LIMIT) != 0;
  settings->capture_reuse = (options->flags & LADE_DEVICE_CAPTURE_REUSE) != 0;
  for (size_t i = 0; i < LADEI_DEVICE_DIVISION_ENTRIES; i++) settings->divisions[i] = options->roundup_divisions[i];
}

void ladei_device_settings_apply(lade_device_allocator *allocator, const lade_device_options *options) {
  ladei_lock_acquire(&allocator->lock);
  (void)ladei_device_thread_caches_flush(allocator);
  ladei_device_recent_forget_all(&allocator->heap);
  settings_read(&allocator->heap.settings, options);
  allocator->options = *options;
  allocator->options.plugin = allocator->options.provider = NULL; /* the creation has copied them */
  atomic_store_explicit(&allocator->seen.reference, allocator->heap.settings.reference, memory_order_relaxed);
  bool scopes = allocator->heap.settings.reference && !allocator->heap.settings.older_reference;
  atomic_store_explicit(&allocator->seen.scopes_capture, scopes, memory_order_relaxed);
  atomic_store_explicit(&allocator->seen.capture_reuse, allocator->heap.settings.capture_reuse, memory_order_relaxed);
  bool retired = (options->flags & LADE_DEVICE_STREAMS_ARE_RETIRED) != 0;
  atomic_store_explicit(&allocator->seen.streams_are_retired, retired, memory_order_relaxed);
  allocator->limits.max_bytes = options->max_bytes == 0 ? UINT64_MAX : options->max_bytes;
  if (options->memory_fraction > 0.0) fraction_store(allocator, options->memory_fraction);
  ages_tick_update(allocator);
  if (allocator->backend->has_heap) ladei_device_caching_set(allocator, (options->flags & LADE_DEVICE_UNCACHED) == 0);
  ladei_lock_release(&allocator->lock);
}

/* Options that the creation alone takes, as they were then. */
static void creation_keep(lade_device_allocator *allocator, lade_device_options *options) {
  const uint32_t fixed = LADE_DEVICE_THREAD_CACHES;
  ladei_lock_acquire(&allocator->lock);
  options->backend = allocator->options.backend;
  options->event_batch = allocator->options.event_batch;
  options->plugin = options->provider = NULL;
  options->flags = (options->flags & ~fixed) | (allocator->options.flags & fixed);
  ladei_lock_release(&allocator->lock);
}

lade_status lade_device_configure(lade_device_allocator *allocator, const lade_device_options *options) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  lade_device_options own;
  lade_status status = ladei_options_read("lade_device_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_device_settings_check(__func__, &own);
  if (status != LADE_OK) return status;
  creation_keep(allocator, &own);
  status = ladei_device_settings_check(__func__, &own); /* together with that */
  if (status != LADE_OK) return status;
  ladei_device_settings_apply(allocator, &own);
  return LADE_OK;
}

/* ---- Settings in force ------------------------------------------------------------------------------------------- */

enum { EVENT_BATCH_DEFAULT = 16 };

lade_status lade_device_settings_get(lade_device_allocator *allocator, lade_device_options *settings) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  ladei_lock_acquire(&allocator->lock);
  lade_device_options own = allocator->options;
  own.memory_fraction = allocator->limits.fraction_set ? allocator->limits.fraction : 0.0;
  own.max_unsplit_slack_bytes = allocator->heap.settings.max_unsplit_slack;
  own.large_segment_bytes = allocator->heap.settings.large_segment_bytes;
  own.max_bytes = allocator->limits.max_bytes == UINT64_MAX ? allocator->total_bytes : allocator->limits.max_bytes;
  ladei_lock_release(&allocator->lock);
  if (own.event_batch == 0) own.event_batch = EVENT_BATCH_DEFAULT;
  return ladei_stats_write("lade_device_options", &own, sizeof own, settings);
}

lade_status lade_device_settings_write(lade_device_allocator *allocator, char *buffer, size_t bytes,
                                       size_t *out_needed) {
  ladei_bounded_text text;
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  LADEI_TRY(ladei_bounded_text_begin(&text, __func__, buffer, bytes));
  ladei_lock_acquire(&allocator->lock);
  lade_device_options own = allocator->options;
  own.memory_fraction = allocator->limits.fraction_set ? allocator->limits.fraction : 0.0;
  ladei_lock_release(&allocator->lock);
  ladei_settings_write(&ladei_device_keys, &own, &text);
  ladei_bounded_text_end(&text, out_needed);
  return LADE_OK;
}
