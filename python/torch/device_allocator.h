// SPDX-License-Identifier: Apache-2.0
//
// The allocator that PyTorch has for CUDA once lade was installed: every function of c10::cuda::CUDACachingAllocator::CUDAAllocator,
// in each version, over lade's device allocators.
//
//   blocks       device_caches.h        pools     device_pools.h
//   histories    device_history.h       sharing   device_ipc.h
//
// A1  There is one, which lives until the process ends; it is installed before PyTorch's own has begun to work.
// A2  The context of a block is the block's address, and all blocks have one deleter. A deleter that is another's is memory that
//     lade has not handed out: recordStream() passes it over, as PyTorch's does.
// A3  Its name is that of PyTorch's own allocator, "native": programs ask for the name to know what an allocator can do, and this one
//     can do all of that.
// A4  What asks about a device that was not used yet gets zeros and makes no allocator there.
// A5  While caching is off (enable()), memory is the driver's own and counted nowhere, as in PyTorch; a free knows which it is.
#ifndef LADE_TORCH_DEVICE_ALLOCATOR_H
#define LADE_TORCH_DEVICE_ALLOCATOR_H

#include "device_caches.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <lade/device.h>

#include <array>
#include <atomic>
#include <string>
#include <unordered_set>
#include <vector>

namespace lade_torch {

namespace torch_device = c10::cuda::CUDACachingAllocator;

class DeviceAllocator final : public torch_device::CUDAAllocator {
public:
  // Puts it in PyTorch's place. Throws where PyTorch's allocator has begun to work. Again: nothing to do.
  static void install();
  static bool is_installed();

  // ---- Blocks
  at::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *destination, const void *source, std::size_t bytes) const override;
  void *raw_alloc(size_t bytes) override;
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void *pointer) override;
  void recordStream(const at::DataPtr &data, c10::cuda::CUDAStream stream) override;
  void *getBaseAllocation(void *pointer, size_t *out_bytes) override;
#if LADE_TORCH_HAS_ADDRESSES
  at::DataPtr allocateWithAddress(size_t bytes, void *address) override;
#endif

  // ---- The whole
  void init(int device_count) override;
  bool initialized() override;
  std::string name() override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void emptyCache(PoolId pool) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  void cacheInfo(c10::DeviceIndex device, size_t *largest_block) override;
#if LADE_TORCH_HAS_USER_METADATA
  std::vector<torch_device::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override;
#endif

  // ---- Statistics, snapshots, histories
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  bool isHistoryEnabled() override;
#if LADE_TORCH_HAS_SKIP_ACTIONS
  torch_device::SnapshotInfo snapshot(PoolId pool, bool include_traces) override;
  void recordHistory(bool enabled, torch_device::CreateContextFn recorder, size_t max_entries,
                     torch_device::RecordContext when, bool clear,
                     const std::vector<std::string> &skip_actions) override;
#else
  torch_device::SnapshotInfo snapshot(PoolId pool) override;
  void recordHistory(bool enabled, torch_device::CreateContextFn recorder, size_t max_entries,
                     torch_device::RecordContext when, bool clear) override;
#endif
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) override;
  void pushCompileContext(std::string &name) override;
  void popCompileContext() override;
#if LADE_TORCH_HAS_USER_METADATA
  void setUserMetadata(const std::string &text) override;
  std::string getUserMetadata() override;
#endif
#if LADE_TORCH_HAS_ANNOTATIONS
  bool supportsUserMetadata() override;
  void annotateMemory(const void *pointer, const std::string &text) override;
#endif
  void attachOutOfMemoryObserver(torch_device::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(torch_device::AllocatorTraceTracker tracker) override;
#if LADE_TORCH_HAS_OOM_REJECTIONS
  void attachOomRejectionObserver(torch_device::OomRejectionObserver observer) override;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *pointer) override;
#endif

  // ---- Pools
  void beginAllocateToPool(c10::DeviceIndex device, PoolId pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, PoolId pool) override;
  void releasePool(c10::DeviceIndex device, PoolId pool) override;
  int getPoolUseCount(c10::DeviceIndex device, PoolId pool) override;
#if LADE_TORCH_HAS_SHARED_OWNERS
  void createOrIncrefPool(c10::DeviceIndex device, PoolId pool, std::shared_ptr<CUDAAllocator> provider) override;
  void setUseOnOOM(c10::DeviceIndex device, PoolId pool, bool use_on_oom) override;
#else
  void createOrIncrefPool(c10::DeviceIndex device, PoolId pool, CUDAAllocator *provider) override;
  void setUseOnOOM(c10::DeviceIndex device, PoolId pool) override;
#endif
#if LADE_TORCH_HAS_NO_SPLIT
  void setNoSplit(c10::DeviceIndex device, PoolId pool) override;
#endif
  bool checkPoolLiveAllocations(c10::DeviceIndex device, PoolId pool,
                                const std::unordered_set<void *> &expected) override;
  std::shared_ptr<torch_device::AllocatorState> getCheckpointState(c10::DeviceIndex device, PoolId pool) override;
  torch_device::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                       std::shared_ptr<torch_device::AllocatorState> state) override;

  // ---- Other devices and processes
  torch_device::ShareableHandle shareIpcHandle(void *pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex device_to_access) override;
  cudaError_t memcpyAsync(void *destination, int destination_device, const void *source, int source_device,
                          size_t bytes, cudaStream_t stream, bool has_peer_access) override;

private:
  DeviceAllocator() = default;
  // Throws where there is no such device.
  void check_device(c10::DeviceIndex device) const;

  std::atomic<int> device_count_{0};
  std::array<std::atomic<double>, DeviceCaches::max_devices> fractions_{}; // 1: no limit
};

} // namespace lade_torch

#endif // LADE_TORCH_DEVICE_ALLOCATOR_H
