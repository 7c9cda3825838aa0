// SPDX-License-Identifier: Apache-2.0
//
// CUDA's special stream handles (NULL, legacy, per-thread), which mean a stream of the calling thread's current device.
//
// A thread has no current context before its first call of the CUDA runtime that needs one: PyTorch's guards only compare numbers
// of devices, and a new thread's is 0 already, so autograd's threads may come without one. A context of another device is
// current where PyTorch has only taken down the device that it names (its "target device") and has not set it yet.
#ifndef LADE_TORCH_SPECIAL_STREAMS_H
#define LADE_TORCH_SPECIAL_STREAMS_H

#include "torch_abi.h"

#include <lade/runtime.h>

namespace lade_torch {

inline bool is_special(lade_stream stream) {
  return stream == nullptr || stream == LADE_STREAM_LEGACY || stream == LADE_STREAM_PER_THREAD;
}

// The result of `call`, which names `stream` to lade, for a device that PyTorch says is current. Where lade refuses a special
// stream, the device is made current and the call repeated: a refused call has changed nothing. It stays current, as after a
// thread's first call of the CUDA runtime.
template <typename Call> lade_status on_device(lade_runtime *runtime, int device, lade_stream stream, Call call) {
  lade_status status = call();
  if (C10_LIKELY(status != LADE_ERR_INVALID_ARGUMENT) || !is_special(stream)) return status;
  status = lade_runtime_set_device(runtime, device);
  return status == LADE_OK ? call() : status;
}

} // namespace lade_torch

#endif // LADE_TORCH_SPECIAL_STREAMS_H
