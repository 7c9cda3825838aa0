/* SPDX-License-Identifier: Apache-2.0 */
/* The native backend as a table, and that with thread caches; their functions are in device/native. */
#include "device/native/native.h"

#include "device/backends/backends.h"
#include "device/share/peer.h"

/* The same with and without thread caches. */
#define NATIVE_COMMON                                                                                                  \
  .name = "native", .has_heap = true, .check = ladei_device_native_check, .recount = ladei_device_native_recount,      \
  .record_stream = ladei_device_native_record_stream, .empty_cache = ladei_device_native_empty_cache,                  \
  .stream_retire = ladei_device_native_stream_retire, .peer_add = ladei_device_native_peer_add,                        \
  .pool_begin = ladei_device_native_pool_begin, .pool_end = ladei_device_native_pool_end,                              \
  .pool_release = ladei_device_native_pool_release

const ladei_device_backend ladei_device_backend_native = {
    .open = ladei_device_native_open,
    .close = ladei_device_native_close,
    .alloc = ladei_device_native_alloc,
    .alloc_ready = ladei_device_native_alloc_ready,
    .free = ladei_device_native_free,
    NATIVE_COMMON,
};

const ladei_device_backend ladei_device_backend_threads = {
    .open = ladei_device_threads_open,
    .close = ladei_device_threads_close,
    .alloc = ladei_device_threads_alloc,
    .alloc_ready = ladei_device_threads_alloc_ready,
    .free = ladei_device_threads_free,
    NATIVE_COMMON,
};
