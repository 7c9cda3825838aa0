/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liblade.so.0, opened when the process first asks for memory that lade can serve. A process that never does loads only
 * this small library, and nothing that lade is linked with.
 */
#ifndef LADE_PRELOAD_LADE_H
#define LADE_PRELOAD_LADE_H

#include <stdbool.h>

#include "lade/config.h"
#include "lade/device.h"
#include "lade/pinned.h"
#include "lade/status.h"

#define PRELOAD_LADE_FUNCTIONS(X)                                                                                      \
  X(lade_config_from_env)                                                                                              \
  X(lade_device_alloc)                                                                                                 \
  X(lade_device_allocator_create)                                                                                      \
  X(lade_device_allocator_destroy)                                                                                     \
  X(lade_device_empty_cache)                                                                                           \
  X(lade_device_find)                                                                                                  \
  X(lade_device_free)                                                                                                  \
  X(lade_device_record_stream)                                                                                         \
  X(lade_device_stats_get)                                                                                             \
  X(lade_device_stream_retire)                                                                                         \
  X(lade_last_error)                                                                                                   \
  X(lade_pinned_alloc)                                                                                                 \
  X(lade_pinned_empty_cache)                                                                                           \
  X(lade_pinned_find)                                                                                                  \
  X(lade_pinned_free)                                                                                                  \
  X(lade_pinned_pool_create)                                                                                           \
  X(lade_pinned_pool_destroy)                                                                                          \
  X(lade_pinned_process_events)                                                                                        \
  X(lade_pinned_record_event)                                                                                          \
  X(lade_pinned_stats_get)                                                                                             \
  X(lade_pinned_stream_retire)                                                                                         \
  X(lade_runtime_close)                                                                                                \
  X(lade_runtime_open)                                                                                                 \
  X(lade_stream_create)                                                                                                \
  X(lade_stream_destroy)

typedef struct preload_lade {
#define PRELOAD_LADE_FIELD(name) __typeof__(name) *name;
  PRELOAD_LADE_FUNCTIONS(PRELOAD_LADE_FIELD)
#undef PRELOAD_LADE_FIELD
} preload_lade;

/* NULL after one line on stderr: the library cannot be opened or lacks a function. NULL without a line, `out_busy`
 * true: another thread opens it; waiting could deadlock, as the caller may hold the loader's lock. Any thread. */
const preload_lade *ladei_preload_lade(bool *out_busy);

#endif /* LADE_PRELOAD_LADE_H */
