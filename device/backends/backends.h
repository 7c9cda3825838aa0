/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backends there are. X(VALUE, TABLE) for each that options.backend names: the public constant, and the name of the
 * table ladei_device_backend_TABLE. A new backend is a line here, its constant in lade/device.h and its source.
 */
#ifndef LADE_DEVICE_BACKENDS_BACKENDS_H
#define LADE_DEVICE_BACKENDS_BACKENDS_H

#include "device/state/backend.h"

#define LADEI_DEVICE_BACKENDS(X)                                                                                       \
  X(LADE_DEVICE_NATIVE, native)                                                                                        \
  X(LADE_DEVICE_CUDA_MALLOC_ASYNC, pool)

#define LADEI_DEVICE_BACKEND_DECLARE(value, table) extern const ladei_device_backend ladei_device_backend_##table;
LADEI_DEVICE_BACKENDS(LADEI_DEVICE_BACKEND_DECLARE)
#undef LADEI_DEVICE_BACKEND_DECLARE

extern const ladei_device_backend ladei_device_backend_threads; /* native with LADE_DEVICE_THREAD_CACHES */
extern const ladei_device_backend ladei_device_backend_plugin;  /* native with options.plugin */

#endif /* LADE_DEVICE_BACKENDS_BACKENDS_H */
