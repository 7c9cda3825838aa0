/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend options name. */
#include "device/backends/find.h"

#include "device/backends/backends.h"

const ladei_device_backend *ladei_device_backend_find(const lade_device_options *options) {
  if (options->plugin != NULL) return &ladei_device_backend_plugin;
  if (options->backend == LADE_DEVICE_NATIVE && (options->flags & LADE_DEVICE_THREAD_CACHES) != 0)
    return &ladei_device_backend_threads;
#define BACKEND_CASE(value, table)                                                                                     \
  case value: return &ladei_device_backend_##table;
  switch (options->backend) {
    LADEI_DEVICE_BACKENDS(BACKEND_CASE)
  default: return NULL;
  }
#undef BACKEND_CASE
}
