/* SPDX-License-Identifier: Apache-2.0 */
/* A capture of the calling thread may refuse driver calls that it has nothing to do with; relaxed, it does not. */
#include "device/native/capture_mode.h"

ladei_capture_mode ladei_device_capture_mode_relax(const lade_device_allocator *allocator) {
  return ladei_capture_mode_relax(allocator->runtime);
}

void ladei_device_capture_mode_restore(const lade_device_allocator *allocator, ladei_capture_mode mode) {
  ladei_capture_mode_restore(allocator->runtime, mode);
}
