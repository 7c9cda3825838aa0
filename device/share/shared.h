/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes; model in shared.c. */
#ifndef LADE_DEVICE_SHARE_SHARED_H
#define LADE_DEVICE_SHARE_SHARED_H

#include "device/state/allocator.h"

/* Whether the address lies in memory of another process that is open here. Lock held. */
bool ladei_device_shared_has(const lade_device_allocator *allocator, const void *pointer);

/* For destroy, which excludes other calls: whether the program has memory of other processes open; memory that failed
 * opens and clean-ups left goes back. */
bool ladei_device_shared_open(const lade_device_allocator *allocator);
lade_status ladei_device_shared_finish(lade_device_allocator *allocator);

/* The native backend's. */
lade_status ladei_device_native_shared_export(lade_device_allocator *allocator, const void *pointer,
                                              lade_device_shared *out);

#endif /* LADE_DEVICE_SHARE_SHARED_H */
