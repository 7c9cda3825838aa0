/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines where host and device memory are one: what lade does there, by attributes of the device.
 *
 *   integrated (Jetson, DGX Spark)     device memory is the system's: what the system has available is free, and the page cache
 *                                      of a file that was read takes the place of its tensors
 *   integrated, or the host's page     the host writes into memory that the device uses: pinned memory, managed memory if both may
 *   tables (GH200)                     touch it at once, and with the host's page tables all of the host's. What
 *                                      cuMemAlloc gives is the device's alone on all of them
 *
 * The loopback driver plays such machines (tests); lade has not run on one.
 * Locks: none.
 */
#ifndef LADE_RUNTIME_UNIFIED_H
#define LADE_RUNTIME_UNIFIED_H

#include "runtime/ops.h"

typedef struct ladei_unified {
  bool memory_is_systems; /* integrated */
  bool
      writes_pinned; /* the host may write into memory of a transfer, which then needs no block and no copy: pinned, ... */
  bool writes_managed; /* ... managed, ... */
  bool writes_all;     /* ... any of the host's */
} ladei_unified;

/* An attribute that the driver does not know, or does not tell, counts as 0. */
void ladei_unified_find(const lade_runtime *runtime, int device, ladei_unified *out);

/* Whether the host may write all of [memory, memory + bytes). Asks the driver, but on such machines alone. */
bool ladei_unified_is_written(const lade_runtime *runtime, const ladei_unified *unified, const void *memory,
                              uint64_t bytes);

#endif /* LADE_RUNTIME_UNIFIED_H */
