// SPDX-License-Identifier: Apache-2.0
#include "current_device.h"

#include <dlfcn.h>

namespace lade_python {

namespace {

// Of the CUDA Driver API, Context Management; by name, as liblade has opened the library already.
struct Driver {
  int (*get)(void **context) = nullptr;
  int (*set)(void *context) = nullptr;

  Driver() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return;
    get = reinterpret_cast<int (*)(void **)>(dlsym(library, "cuCtxGetCurrent"));
    set = reinterpret_cast<int (*)(void *)>(dlsym(library, "cuCtxSetCurrent"));
  }
  bool is_there() const { return get && set; }
};

bool is_special(lade_stream stream) {
  return !stream || stream == LADE_STREAM_LEGACY || stream == LADE_STREAM_PER_THREAD;
}

const Driver &driver() {
  static const Driver &only = *new Driver;
  return only;
}

} // namespace

CurrentDevice::CurrentDevice(const Device &device, lade_stream stream) noexcept {
  if (!is_special(stream)) return;
  restores_ = !device.runtime->is_software() && driver().is_there() && driver().get(&before_) == 0;
  status_ = lade_runtime_set_device(device.get(), device.ordinal);
}

CurrentDevice::~CurrentDevice() {
  if (restores_) (void)driver().set(before_);
}

} // namespace lade_python
