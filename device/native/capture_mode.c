/* SPDX-License-Identifier: Apache-2.0 */
/* A capture of the calling thread may refuse driver calls that it has nothing to do with; relaxed, it does not. */
#include "device/native/capture_mode.h"

ladei_capture_mode ladei_device_capture_mode_relax(const lade_device_allocator *allocator) {
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  ladei_lock_assert_none_held();
  /* Where the exchange fails, so does the call that follows, and says why. */
  if (allocator->runtime->ops->capture_mode_exchange(allocator->runtime->self, &mode) != LADE_OK)
    return LADEI_CAPTURE_RELAXED;
  return mode;
}

void ladei_device_capture_mode_restore(const lade_device_allocator *allocator, ladei_capture_mode mode) {
  if (mode == LADEI_CAPTURE_RELAXED) return;
  (void)allocator->runtime->ops->capture_mode_exchange(allocator->runtime->self, &mode);
}
