/* SPDX-License-Identifier: Apache-2.0 */
/* Which pool serves a request; model in routes.c. */
#ifndef LADE_DEVICE_NATIVE_ROUTES_H
#define LADE_DEVICE_NATIVE_ROUTES_H

#include "device/state/allocator.h"

/* The pool that a route leads the calling thread's request to; NULL: the default pools. Lock held. */
ladei_device_private_pool *ladei_device_route_choose(const lade_device_allocator *allocator, uint64_t stream_key);

/* R5: LADE_ERR_CAPTURE for a request that no scope may lead where one does. No lock held. */
lade_status ladei_device_route_check(lade_device_allocator *allocator, const char *call, lade_stream stream);

/* A route in no list, its streams resolved; its pool is not set. No lock held. */
lade_status ladei_device_route_create(lade_device_allocator *allocator, const char *call, ladei_device_route_kind kind,
                                      const lade_stream *streams, size_t count, ladei_device_route **out);
/* It is the newest from now on; or is none any more. Lock held; both count. */
void ladei_device_route_add(lade_device_allocator *allocator, ladei_device_route *route);
void ladei_device_route_remove(lade_device_allocator *allocator, ladei_device_route *route);

#endif /* LADE_DEVICE_NATIVE_ROUTES_H */
