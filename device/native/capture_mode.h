/* SPDX-License-Identifier: Apache-2.0 */
/* The capture mode of the calling thread around driver calls. */
#ifndef LADE_DEVICE_NATIVE_CAPTURE_MODE_H
#define LADE_DEVICE_NATIVE_CAPTURE_MODE_H

#include "device/state/allocator.h"

/* Relaxed capture mode around driver calls that a capture of the thread would refuse. */
ladei_capture_mode ladei_device_capture_mode_relax(const lade_device_allocator *allocator);
void ladei_device_capture_mode_restore(const lade_device_allocator *allocator, ladei_capture_mode mode);

#endif /* LADE_DEVICE_NATIVE_CAPTURE_MODE_H */
