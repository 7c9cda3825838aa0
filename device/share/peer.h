/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as others may use it; model in peer.c. */
#ifndef LADE_DEVICE_SHARE_PEER_H
#define LADE_DEVICE_SHARE_PEER_H

#include "device/state/allocator.h"

/* For the native backend's table. */
lade_status ladei_device_native_peer_add(lade_device_allocator *allocator, int peer);

#endif /* LADE_DEVICE_SHARE_PEER_H */
