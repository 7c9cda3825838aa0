/* SPDX-License-Identifier: Apache-2.0 */
/* Driver allocations of other processes; model in ipc.c. */
#ifndef LADE_DEVICE_SHARE_IPC_H
#define LADE_DEVICE_SHARE_IPC_H

#include "device/state/allocator.h"

/* Whether the address lies in memory of another process that is open here. Lock held. */
bool ladei_device_ipc_has(const lade_device_allocator *allocator, const void *pointer);

/* The native backend's. */
lade_status ladei_device_native_ipc_export(lade_device_allocator *allocator, const void *pointer,
                                           lade_device_ipc_handle *out_handle, size_t *out_offset);

#endif /* LADE_DEVICE_SHARE_IPC_H */
