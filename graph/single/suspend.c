/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspending a pool: the public call, here as it needs what device/ does not know, the pinned pool in which the bytes wait
 * (Z7 in device/native/suspend.c).
 *
 * No stream uses its blocks when they are freed. So its thread is there for the budget and for pressure alone, and looks
 * as often as it asks the kernel about memory (host/budget/pressure.h).
 * Locks: none.
 */
#include "device/for_graphs.h"
#include "host/api/pool.h"

static lade_status backup_create(lade_device_allocator *allocator, lade_pinned_pool **out) {
  static const ladei_pinned_hooks hooks = {.longest_wait_ns = UINT64_C(100000000)};
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.device = allocator->device;
  options.magazine_bytes = 1; /* nothing: pieces are few and large */
  if (allocator->runtime->ops->step == NULL) options.flags = LADE_PINNED_BACKGROUND;
  return ladei_pinned_pool_create(allocator->runtime, &options, &hooks, out);
}

static const ladei_device_backup_calls backup_calls = {
    .create = backup_create,
    .reserve = lade_pinned_reserve,
    .alloc = lade_pinned_alloc,
    .free = lade_pinned_free,
    .empty_cache = lade_pinned_empty_cache,
    .stats_get = lade_pinned_stats_get,
    .destroy = lade_pinned_pool_destroy,
};

lade_status lade_device_pool_suspend(lade_device_allocator *allocator, lade_device_pool_id id,
                                     const lade_device_suspend_options *options, uint64_t *out_bytes) {
  return ladei_device_pool_suspend(allocator, id, options, &backup_calls, out_bytes);
}
