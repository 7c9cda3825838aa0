/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks that provide the plain segments of a pool in place of the driver; model in provider.c. */
#ifndef LADE_DEVICE_NATIVE_PROVIDER_H
#define LADE_DEVICE_NATIVE_PROVIDER_H

#include "device/state/allocator.h"

/* NULL: the driver. The lock is held, or something keeps the pool. */
const lade_device_plugin *ladei_device_provider_of(const lade_device_allocator *allocator,
                                                   const ladei_device_block_pool *pool);

/* LADE_ERR_INVALID_ARGUMENT where a callback is missing. `plugin` is the name of the argument. */
lade_status ladei_device_provider_read(const char *call, const lade_device_plugin *plugin, lade_device_plugin *out);

/* V3 of what a callback gave. Lock held. */
lade_status ladei_device_provider_check(const lade_device_allocator *allocator, uint64_t address, size_t bytes);

/* The callbacks. No lock held. */
lade_status ladei_device_provider_alloc(lade_device_allocator *allocator, const lade_device_plugin *provider,
                                        size_t bytes, const ladei_stream *stream, void **out);
lade_status ladei_device_provider_free(lade_device_allocator *allocator, const lade_device_plugin *provider,
                                       uint64_t address, size_t bytes, lade_stream stream);

/* LADE_ERR_BUSY inside a callback of the allocator's providers, for a call that would wait for it. Lock held. */
lade_status ladei_device_provider_refuse(const lade_device_allocator *allocator, const char *call);

#endif /* LADE_DEVICE_NATIVE_PROVIDER_H */
