/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the native backend: those in the tables of backends, with contracts in device/state/backend.h; and
 * what it alone has, as the public calls of these names. */
#ifndef LADE_DEVICE_NATIVE_NATIVE_H
#define LADE_DEVICE_NATIVE_NATIVE_H

#include "device/state/backend.h"

lade_status ladei_device_native_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup);
lade_status ladei_device_native_close(lade_device_allocator *allocator, bool wait);
lade_status ladei_device_native_check(lade_device_allocator *allocator);
lade_status ladei_device_native_recount(lade_device_allocator *allocator, size_t *out_looked_at);
lade_status ladei_device_native_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);
lade_status ladei_device_native_alloc_ready(lade_device_allocator *allocator, size_t bytes, lade_stream stream,
                                            void **out);
lade_status ladei_device_native_free(lade_device_allocator *allocator, void *pointer);
/* A block that the caller has claimed (state/thread_caches.h), or that is suspended, which is freed as above. Lock held,
 * and released. */
void ladei_device_native_free_found(lade_device_allocator *allocator, ladei_device_block *block);
lade_status ladei_device_native_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream);
lade_status ladei_device_native_empty_cache(lade_device_allocator *allocator);
lade_status ladei_device_native_stream_retire(lade_device_allocator *allocator, lade_stream stream);
lade_status ladei_device_native_pool_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                           const lade_stream *streams, size_t stream_count);
lade_status ladei_device_native_pool_end(lade_device_allocator *allocator, lade_device_pool_id id);
lade_status ladei_device_native_pool_release(lade_device_allocator *allocator, lade_device_pool_id id);
/* Options are checked for their size alone, here and in a suspend, where out_bytes may be NULL; info is cleared. `calls` are
 * those of lade's pinned pool, constant. */
lade_status ladei_device_native_pool_create(lade_device_allocator *allocator, const lade_device_pool_options *options,
                                            lade_device_pool_id *out_id);
lade_status ladei_device_native_pool_retain(lade_device_allocator *allocator, lade_device_pool_id id);
lade_status ladei_device_native_pool_flags_set(lade_device_allocator *allocator, lade_device_pool_id id,
                                               uint32_t flags);
lade_status ladei_device_native_pool_info_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                              lade_device_pool_info *info);
lade_status ladei_device_native_pool_trim(lade_device_allocator *allocator, lade_device_pool_id id,
                                          const lade_device_range *keep, size_t keep_count, uint64_t *out_bytes);
lade_status ladei_device_native_pool_suspend(lade_device_allocator *allocator, lade_device_pool_id id,
                                             const lade_device_suspend_options *options,
                                             const ladei_device_backup_calls *calls, uint64_t *out_bytes);
lade_status ladei_device_native_pool_resume(lade_device_allocator *allocator, lade_device_pool_id id);
lade_status ladei_device_native_scope_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                            const lade_stream *streams, size_t stream_count, uint64_t *out_scope);
lade_status ladei_device_native_scope_end(lade_device_allocator *allocator, uint64_t scope);
lade_status ladei_device_native_frees_hold(lade_device_allocator *allocator);
lade_status ladei_device_native_frees_resume(lade_device_allocator *allocator);
lade_status ladei_device_native_provider_set(lade_device_allocator *allocator, const lade_device_plugin *provider);
lade_status ladei_device_native_checkpoint_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                               lade_device_checkpoint **out);
/* Host memory that it takes. */
size_t ladei_device_native_checkpoint_bytes(const lade_device_checkpoint *checkpoint, size_t *out_blocks);
lade_status ladei_device_native_checkpoint_set(lade_device_allocator *allocator,
                                               const lade_device_checkpoint *checkpoint, lade_device_restored **out);

/* The same with thread caches in front (threads.c). */
lade_status ladei_device_threads_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup);
lade_status ladei_device_threads_close(lade_device_allocator *allocator, bool wait);
lade_status ladei_device_threads_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);
lade_status ladei_device_threads_alloc_ready(lade_device_allocator *allocator, size_t bytes, lade_stream stream,
                                             void **out);
lade_status ladei_device_threads_free(lade_device_allocator *allocator, void *pointer);

#endif /* LADE_DEVICE_NATIVE_NATIVE_H */
