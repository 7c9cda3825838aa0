// SPDX-License-Identifier: Apache-2.0
//
// lade's device allocators under PyTorch, one per device, and what of its calls finds its way by an address or a capture.
//
//   PyTorch --> DeviceAllocator (device_allocator.h) --> DeviceCaches --> one lade_device_allocator per device
//   PyTorch's own allocator, a MemPool --> lade_torch_segment_alloc/_free --> the same
//
// D1  An allocator is made at the first use of its device and lives as long as the process.
// D2  A failure is no NULL: c10::OutOfMemoryError or c10::Error is thrown. NULL is what a tensor without elements has.
// D3  A deleter gets nothing but an address, so an address finds its allocator by asking them: first the one that the thread used
//     last, which is the right one wherever threads work on one device.
// D4  A segment of a MemPool of PyTorch's own allocator goes back as by cudaFree, which waits for the device: nothing has told
//     lade which streams used it.
// D5  A special stream (special_streams.h) is one of the device that PyTorch names with it.
// D6  What is said of allocators before they are there (settings, listeners, histories) holds for those that come: setups_.
// D7  The driver is opened with the first allocator and not before: until then the environment may choose devices, and a process fork.
// Locks: mutex_ guards the making of allocators, options_ and setups_. Allocators are called under it while they are made
// and set up, and where all of them change; their callbacks do not come here.
#ifndef LADE_TORCH_DEVICE_CACHES_H
#define LADE_TORCH_DEVICE_CACHES_H

#include "torch_abi.h"

#include <c10/cuda/CUDAStream.h>
#include <lade/device.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace lade_torch {

class DeviceCaches {
public:
  using Setup = std::function<void(lade_device_allocator *, int device)>;
  static constexpr int max_devices = 64;

  static DeviceCaches &get(); // never destroyed: D1

  // The settings of allocators that are made from now on. Throws where allocators exist already.
  void configure(const char *runtime_name, const lade_device_options &options);
  // Changes the settings of all allocators, those to come included, as PyTorch's setter does: `change` gets those in force.
  void change(const std::function<void(lade_device_options *)> &change);
  // Calls it for each allocator, also for those to come: D6.
  void set_up(Setup setup);
  // The same for those that are there alone. One that is being made at this moment is among them, or is set up after the call.
  void apply(const Setup &setup);

  bool is_configured() const noexcept { return !runtime_name_.empty(); }
  // NULL before the first allocator.
  lade_runtime *runtime() const noexcept { return runtime_.load(std::memory_order_acquire); }
  bool is_software() const noexcept { return is_software_; }
  // Of the settings; 1: none.
  double memory_fraction();

  lade_device_allocator *allocator(int device);
  // NULL: not used yet.
  lade_device_allocator *existing(int device) const noexcept;
  template <typename Call> void for_each(Call call) {
    for (int device = 0; device < max_devices; device++)
      if (lade_device_allocator *each = existing(device)) call(each, device);
  }
  // The result of `call(allocator, device)` for the allocator that knows the address; LADE_ERR_FOREIGN_POINTER: none does.
  template <typename Call> lade_status for_owner(Call call) {
    int last = last_used();
    lade_device_allocator *each = existing(last);
    lade_status status = each == nullptr ? LADE_ERR_FOREIGN_POINTER : call(each, last);
    for (int device = 0; device < max_devices && C10_UNLIKELY(status == LADE_ERR_FOREIGN_POINTER); device++) {
      each = device == last ? nullptr : existing(device);
      if (each != nullptr) status = call(each, device);
    }
    return status;
  }

  void *allocate(size_t bytes, int device, cudaStream_t stream);
  void free(void *pointer) noexcept;
  void free_segment(void *pointer, int device) noexcept;
  void record_stream(void *pointer, int device, cudaStream_t stream);
  uint64_t refused_frees() const noexcept { return refused_frees_.load(std::memory_order_relaxed); }

private:
  void open_runtime();
  lade_status allocate_on(lade_device_allocator *from, size_t bytes, int device, cudaStream_t stream, void **out);
  static int last_used() noexcept;

  std::mutex mutex_;
  std::atomic<lade_runtime *> runtime_{nullptr};
  std::string runtime_name_; // "": not configured
  bool is_software_ = false;
  lade_device_options options_{};
  std::vector<Setup> setups_;
  std::array<std::atomic<lade_device_allocator *>, max_devices> allocators_{};
  std::atomic<uint64_t> refused_frees_{0};
};

} // namespace lade_torch

#endif // LADE_TORCH_DEVICE_CACHES_H
