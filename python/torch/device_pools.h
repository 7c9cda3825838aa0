// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's private pools of device memory: those of graph captures, and MemPools.
//
//   createOrIncrefPool   a use of a pool, which may bring what provides its segments
//   begin .. end         allocations that the filter takes come from the pool
//   release              takes one use back: of a create or a begin
//
// P1  Pools have PyTorch's numbers in lade. Of a begin, lade knows as of a capture: lade_device_pool_begin(), with a stream that
//     nothing is allocated on. Filters are functions, which lade has not, so each allocation that one takes is led to its pool by
//     a scope around the call. PyTorch's filters look at the calling thread, or ask the driver about the stream.
// P2  A pool with use_on_oom lends its memory, which a graph would keep: it is led to, and not captured into.
// P3  Of several begins that take an allocation the newest leads it, as in PyTorch 2.11.
// P4  A provider lives as long as its pool: it goes at the next create after that.
// P5  underway_ is the number of open begins: while it is 0 an allocation pays one load.
// Locks: mutex_ guards open_ and providers_. Neither lade nor a filter is called under it.
#ifndef LADE_TORCH_DEVICE_POOLS_H
#define LADE_TORCH_DEVICE_POOLS_H

#include "device_caches.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <map>
#include <memory>
#include <utility>

namespace lade_torch {

inline lade_device_pool_id lade_pool_id(PoolId id) { return lade_device_pool_id{id.first, id.second}; }

class DevicePools {
public:
  using Filter = std::function<bool(cudaStream_t)>;
  using Owner = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

  static DevicePools &get(); // never destroyed

  // Whether an open begin takes an allocation of the calling thread.
  bool is_routed(int device, cudaStream_t stream, PoolId *out_id) {
    return C10_UNLIKELY(underway_.load(std::memory_order_acquire) != 0) && find_route(device, stream, out_id);
  }

  // `provider` may be empty.
  void create(int device, PoolId id, Owner provider);
  // Flags of lade_device_pool_flag.
  void set_flag(int device, PoolId id, uint32_t flag, bool is_on);
  void begin(int device, PoolId id, Filter filter);
  void end(int device, PoolId id);
  void release(int device, PoolId id);
  // 0: there is none.
  int use_count(int device, PoolId id);

private:
  struct Begin {
    int device;
    PoolId id;
    Filter filter;
    bool is_capture; // P2
  };
  using Providers = std::map<std::pair<int, PoolId>, std::unique_ptr<Owner>>;
  using Open = std::vector<Begin>;

  static lade_status segment_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out);
  static lade_status segment_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream);
  bool find_route(int device, cudaStream_t stream, PoolId *out_id);
  lade_stream marker(int device);
  void forget_providers();
  void open_set(std::shared_ptr<const Open> open);

  std::mutex mutex_;
  std::atomic<size_t> underway_{0};
  std::shared_ptr<const Open> open_{std::make_shared<Open>()}; // oldest first; replaced, never changed
  Providers providers_;
  std::array<lade_stream, DeviceCaches::max_devices> markers_{}; // P1
};

} // namespace lade_torch

#endif // LADE_TORCH_DEVICE_POOLS_H
