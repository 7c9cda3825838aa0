// SPDX-License-Identifier: Apache-2.0
//
// The host allocator that PyTorch has for CUDA once lade was installed, for as long as the process lives.
//
//   at::getHostAllocator(kCUDA) --> Router --+-- serving: a Source, that is a pool of lade
//                                            +-- previous: PyTorch's own allocator
//
//   allocate          the source that serves; without one (uninstalled) the previous allocator
//   free              the deleter that each block got: a source's own, or the previous allocator's; the router has no part in it
//   record_event      by the address: whichever source has the block; else the previous allocator
//   everything else   to lade and to the previous allocator, which may still hold blocks
//
// Why it stays
//   PyTorch asks the one registered allocator to record events, and does nothing about a block that it does not know. So an
//   allocator that has handed out blocks cannot be replaced: copies that are under way would be forgotten, and bytes reused
//   early. Uninstalling only sends new requests elsewhere.
//
// R1  sources_[0 .. source_count_) never change once published, and are never freed (S1).
// R2  serving_ is NULL or one of them.
// R3  The context of a block of lade is the block's address. Contexts that PyTorch passes in may be anything (a wrapped tensor's,
//     a dead object's): they are compared by the previous allocator and never looked into.
// R4  Registered with the highest priority, and only once; registration is checked, not assumed.
// Locks: none on the way of allocate, free and record_event, except for blocks of graph captures (capture_pools.h).
#ifndef LADE_TORCH_PINNED_ROUTER_H
#define LADE_TORCH_PINNED_ROUTER_H

#include "capture_pools.h"
#include "source.h"

#include <array>

namespace lade_torch {

class Router final : public at::HostAllocator {
public:
  static constexpr size_t max_sources = 8;

  // The installed router; NULL before the first installation.
  static Router *installed() noexcept;
  // The same, installed now if need be. Throws where PyTorch has no host allocator for CUDA or keeps another one.
  static Router &install();

  // Index of the source for a pool, added if need be. Throws where there are max_sources others.
  size_t source_for(lade_pinned_pool *pool, lade_runtime *runtime, Streams streams);
  // Lets a source serve new requests; -1: the previous allocator does.
  void serve(int index) noexcept;
  // Frees that lade has refused: 0 unless a program breaks rules.
  uint64_t refused_frees() const noexcept;
  at::HostAllocator &previous() noexcept { return *previous_; }

  at::DataPtr allocate(size_t bytes) override;
  bool is_simple_data_ptr(const c10::DataPtr &data_ptr) const override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *destination, const void *source, std::size_t bytes) const override;
  bool record_event(void *pointer, void *context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;
#if LADE_TORCH_HAS_HOST_POOLS
  void begin_allocate_to_pool(c10::MempoolId_t pool_id, std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(c10::MempoolId_t pool_id) override;
  void release_pool(c10::MempoolId_t pool_id) override;
#endif
#if LADE_TORCH_HAS_HOST_HISTORY
  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder, size_t max_entries,
                      c10::CachingDeviceAllocator::RecordContext when, bool clear_history) override;
  bool is_history_enabled() const override;
  std::vector<at::HostSegmentInfo> get_segments() override;
  std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() override;
  void record_external_register(void *pointer, size_t bytes) override;
  void record_external_unregister(void *pointer) override;
#endif

private:
  explicit Router(at::HostAllocator *previous) : previous_(previous) {}
  void *allocate_slow(const Source &source, size_t bytes, lade_status status);
  template <typename Call> void for_each_pool(Call call);

  at::HostAllocator *const previous_;
  std::atomic<const Source *> serving_{nullptr};
  std::array<const Source *, max_sources> sources_{};
  std::atomic<size_t> source_count_{0};
};

} // namespace lade_torch

#endif // LADE_TORCH_PINNED_ROUTER_H
