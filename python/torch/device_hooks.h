// SPDX-License-Identifier: Apache-2.0
//
// lade's device allocators behind the plain functions that torch.cuda.memory.CUDAPluggableAllocator calls.
//
//   PyTorch (CUDAPluggableAllocator) --> lade_torch_device_alloc/_free and hooks --> one lade_device_allocator per device
//   PyTorch (its own allocator, a MemPool) --> lade_torch_segment_alloc/_free -----> the same
//
// D1  An allocator is made at the first use of its device and lives as long as the process.
// D2  A failure is no NULL, as PyTorch does not look: c10::OutOfMemoryError is thrown. NULL is what a tensor without elements has, as of
//     PyTorch's allocator.
// D3  A block that a capture's filter takes comes from the pool of that capture, which has PyTorch's number. Pools know nothing of
//     filters, so the one call is routed: lade_device_scope_begin() around it. That the pool is captured into lade knows by
//     lade_device_pool_begin(), with a stream that nobody allocates on.
// D4  underway_ is 0 while no capture is under way: then an allocation pays one load.
// D5  A segment of a MemPool goes back as by cudaFree, which waits for the device: nobody has told lade which streams used it.
// D6  A special stream (special_streams.h) is one of the device that PyTorch names, and for record_stream, where it names none, of
//     the block's device: PyTorch guards a tensor's calls by that device.
// Locks: mutex_ guards captures_ and markers_. Allocators are not called under it, but for the begin and end of a capture.
#ifndef LADE_TORCH_DEVICE_HOOKS_H
#define LADE_TORCH_DEVICE_HOOKS_H

#include "torch_abi.h"

#include <c10/cuda/CUDAStream.h>
#include <lade/device.h>

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace lade_torch {

class DeviceHooks {
public:
  using PoolId = std::pair<unsigned long long, unsigned long long>;
  using Filter = std::function<bool(cudaStream_t)>;
  static constexpr int max_devices = 64;

  static DeviceHooks &get(); // never destroyed: D1

  // What allocators are made with. Opens the runtime at the first call. Throws where allocators exist already.
  void configure(const char *runtime_name, const lade_device_options &options);
  // NULL before that.
  lade_runtime *runtime() const noexcept { return runtime_.load(std::memory_order_acquire); }

  lade_device_allocator *allocator(int device);
  // NULL: not used yet.
  lade_device_allocator *existing(int device) const noexcept;
  template <typename Call> void for_each(Call call) {
    for (int device = 0; device < max_devices; device++)
      if (lade_device_allocator *each = existing(device)) call(each);
  }

  void *allocate(size_t bytes, int device, cudaStream_t stream);
  void free(void *pointer, int device) noexcept;
  void free_segment(void *pointer, int device) noexcept;
  void record_stream(void *pointer, cudaStream_t stream);
  void begin(int device, PoolId id, Filter filter);
  void end(int device, PoolId id);
  void release(int device, PoolId id);
  uint64_t refused_frees() const noexcept { return refused_frees_.load(std::memory_order_relaxed); }

private:
  struct Capture {
    int device;
    PoolId id;
    Filter filter;
  };
  lade_status allocate_on(lade_device_allocator *from, size_t bytes, int device, cudaStream_t stream, void **out);
  lade_status record_on(lade_device_allocator *of, void *pointer, int device, cudaStream_t stream);
  bool is_software() const;
  bool routed(int device, cudaStream_t stream, PoolId *out_id);
  void refused(lade_status status) noexcept;

  std::mutex mutex_;
  std::atomic<lade_runtime *> runtime_{nullptr};
  lade_device_options options_{};
  std::array<std::atomic<lade_device_allocator *>, max_devices> allocators_{};
  std::atomic<size_t> underway_{0};
  std::vector<Capture> captures_;
  std::array<lade_stream, max_devices> markers_{}; // D3
  std::atomic<uint64_t> refused_frees_{0};
};

} // namespace lade_torch

#endif // LADE_TORCH_DEVICE_HOOKS_H
