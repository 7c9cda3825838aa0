// SPDX-License-Identifier: Apache-2.0
//
// Device memory shared with other processes, as torch.multiprocessing sends it: handles are texts that PyTorch passes on.
//
//   2 c HANDLE         a plain segment, by the driver's handle; with the offset of the block in it. As PyTorch's own allocator writes
//                      it (version 2), so one of the two processes may be without lade
//   2 l DESCRIPTORS    memory of an expandable segment: the receiver takes copies of the sender's file descriptors by
//                      the system call pidfd_getfd, which asks for the same user (or CAP_SYS_PTRACE)
//
// X1  Descriptors of a block stay open in the sender until the block is freed: exports_, looked at by a free only while it has any.
// X2  A receiver's mapping lives as long as the pointer that it got.
// Locks: mutex_ guards exports_. Under it lade exports and closes, which calls nothing of this process.
#ifndef LADE_TORCH_DEVICE_IPC_H
#define LADE_TORCH_DEVICE_IPC_H

#include "device_caches.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <map>
#include <memory>
#include <string>

namespace lade_torch {

class DeviceIpc {
public:
  static DeviceIpc &get(); // never destroyed

  c10::cuda::CUDACachingAllocator::ShareableHandle share(void *pointer);
  // Mapped for `device`.
  std::shared_ptr<void> open(const std::string &handle, int device);
  // A block is about to be freed: X1.
  void freed(const void *pointer) noexcept {
    if (C10_UNLIKELY(export_count_.load(std::memory_order_acquire) != 0)) forget(pointer);
  }

private:
  std::string share_descriptors(lade_device_allocator *of, const void *pointer);
  void forget(const void *pointer) noexcept;

  std::mutex mutex_;
  std::atomic<size_t> export_count_{0};
  std::map<const void *, lade_device_shared> exports_;
};

} // namespace lade_torch

#endif // LADE_TORCH_DEVICE_IPC_H
