// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's view of device memory: histories and snapshots, trackers of events, observers of failures.
//
// V1  A request for history, a tracker, an observer hold for all devices, those that come later included (DeviceCaches, D6).
// V2  Trackers and observers stay for as long as the process lives, as in PyTorch, and are called by lade with no lock held: a
//     tracker before the call that made the event returns, or by another thread that calls trackers at that moment.
// V3  A compile context is the innermost open one of the thread, and lade's scope of it; user metadata are lade's label.
// V4  Annotations of profiler ranges lie in a ring here, of as many entries as the history's.
// V5  Trackers hear that memory goes before it does, as NCCL's registration has to; lade's event of it comes afterwards, and is passed
//     over. Where the driver refuses, they have heard of it all the same.
// Locks: mutex_ guards the request and annotations; `listening` in the source file guards trackers and observers, which are copied
// for each call. lade is not called under them.
#ifndef LADE_TORCH_DEVICE_HISTORY_H
#define LADE_TORCH_DEVICE_HISTORY_H

#include "contexts.h"
#include "device_caches.h"

#include <deque>
#include <string>

namespace lade_torch {

namespace torch_device = c10::cuda::CUDACachingAllocator;
using AnnotationEntry = decltype(torch_device::SnapshotInfo::external_annotations)::value_type;

class DeviceHistory {
public:
  static DeviceHistory &get(); // never destroyed

  // Once, before allocators are there: lade's callbacks reach PyTorch's registries and observers.
  void listen();

  struct Request {
    bool is_on = false;
    CreateContext recorder = nullptr;
    size_t max_entries = 1;
    torch_device::RecordContext when = torch_device::RecordContext::NEVER;
    uint32_t skip_actions = 0; // of lade_device_action
  };
  void set(const Request &request, bool clear);
  bool is_on() const;

  void add_tracker(torch_device::AllocatorTraceTracker tracker);
  void add_observer(torch_device::OutOfMemoryObserver observer);
#if LADE_TORCH_HAS_OOM_REJECTIONS
  void add_rejection_observer(torch_device::OomRejectionObserver observer);
#endif

  void annotate(int device, const std::vector<std::pair<std::string, std::string>> &metadata);
  std::vector<AnnotationEntry> annotations() const;

  void push_compile_context(const std::string &name);
  void pop_compile_context();
  void set_user_metadata(const std::string &text);
  std::string user_metadata() const;

  // Segments of a snapshot, and the events of a history. A pool of {0, 0}: all.
  static void append_segments(lade_device_allocator *of, PoolId pool, std::vector<torch_device::SegmentInfo> &segments);
  static std::vector<torch_device::TraceEntry> traces(lade_device_allocator *of);

private:
  void apply(lade_device_allocator *to) const;

  mutable std::mutex mutex_;
  Request request_;
  std::deque<AnnotationEntry> annotations_;
};

} // namespace lade_torch

#endif // LADE_TORCH_DEVICE_HISTORY_H
