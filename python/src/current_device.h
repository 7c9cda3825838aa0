// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's current device, for calls with CUDA's special stream handles, which mean a stream of that device.
#ifndef LADE_PYTHON_CURRENT_DEVICE_H
#define LADE_PYTHON_CURRENT_DEVICE_H

#include "runtime.h"

namespace lade_python {

// While it lives, and where `stream` is NULL, legacy or per-thread, `device` is this thread's current device. Afterwards it is what
// it was, so that torch and CuPy see no change. Made and ended by one
// thread, with or without the GIL.
class CurrentDevice {
public:
  CurrentDevice(const Device &device, lade_stream stream) noexcept;
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice &) = delete;
  CurrentDevice &operator=(const CurrentDevice &) = delete;
  // LADE_OK, or why the device could not be made current.
  lade_status status() const noexcept { return status_; }

private:
  lade_status status_ = LADE_OK;
  bool restores_ = false;
  void *before_ = nullptr; // CUcontext
};

} // namespace lade_python

#endif // LADE_PYTHON_CURRENT_DEVICE_H
