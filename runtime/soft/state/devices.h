/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that an op names.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_DEVICES_H
#define LADE_RUNTIME_SOFT_STATE_DEVICES_H

#include "runtime/soft/state/model.h"

/* The device, which exists and is not lost; NULL and the error recorded otherwise. */
soft_device *ladei_soft_device_use(soft_runtime *rt, soft_op op, int device, lade_status *out_status);

/* Creates the device's context, and engines for its streams. Under the lock. */
lade_status ladei_soft_device_start(soft_runtime *rt, soft_op op, soft_device *device);

#endif /* LADE_RUNTIME_SOFT_STATE_DEVICES_H */
