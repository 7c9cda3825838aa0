// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory in PyTorch's memory snapshots: host_history.h has H1 and H2.

#include "host_history.h"

#if LADE_TORCH_HAS_HOST_HISTORY

#include "capture_pools.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace lade_torch {

namespace {

using Contexts = std::unordered_map<uint64_t, Context>;

std::unique_ptr<lade_history, HistoryDeleter> history_take(lade_pinned_pool *pool) {
  lade_history *history = nullptr;
  check(lade_pinned_history_take(pool, &history));
  return std::unique_ptr<lade_history, HistoryDeleter>(history);
}

bool is_shown(uint32_t action) { return action <= LADE_DEVICE_SEGMENT_FREE || action == LADE_DEVICE_OOM; }

TraceEntry::Action action_of(uint32_t action) {
  switch (action) {
  case LADE_DEVICE_ALLOC: return TraceEntry::ALLOC;
  case LADE_DEVICE_FREE_REQUESTED: return TraceEntry::FREE_REQUESTED;
  case LADE_DEVICE_FREE_COMPLETED: return TraceEntry::FREE_COMPLETED;
  case LADE_DEVICE_SEGMENT_ALLOC: return TraceEntry::SEGMENT_ALLOC;
  case LADE_DEVICE_SEGMENT_FREE: return TraceEntry::SEGMENT_FREE;
  default: return TraceEntry::OOM;
  }
}

// Microseconds since 1970, as PyTorch's own entries have when they are shown.
TraceEntry entry_of(const lade_history_event &event) {
  const void *address = reinterpret_cast<const void *>(event.address);
  TraceEntry entry(action_of(event.action), /*device=*/-1, event.address, event.bytes, /*stream=*/nullptr,
                   CapturePools::get().owner(address), /*time=*/0, context_of(event.context));
  entry.time_.t_ = static_cast<time_t>(event.wall_ns / 1000);
  return entry;
}

void append_events(lade_pinned_pool *pool, std::vector<TraceEntry> &traces) {
  auto history = history_take(pool);
  for (size_t i = 0; i < history->event_count; i++)
    if (is_shown(history->events[i].action)) traces.push_back(entry_of(history->events[i]));
}

struct SegmentsWalk {
  std::vector<at::HostSegmentInfo> *segments;
  const Contexts *contexts;
};

lade_status segment_append(const lade_pinned_info *info, void *user) {
  auto *walk = static_cast<SegmentsWalk *>(user);
  at::HostSegmentInfo segment;
  segment.address = reinterpret_cast<size_t>(info->base);
  segment.size = info->bytes;
  segment.allocated = info->state == LADE_PINNED_IN_USE;
  segment.active = info->state != LADE_PINNED_CACHED;
  if (segment.allocated) {
    auto found = walk->contexts->find(segment.address);
    if (found != walk->contexts->end()) segment.context_when_allocated = found->second;
  }
  walk->segments->push_back(std::move(segment));
  return LADE_OK;
}

} // namespace

HostHistory &HostHistory::get() {
  static HostHistory *history = new HostHistory;
  return *history;
}

void HostHistory::set(lade_pinned_pool *pool, const HistoryRequest &request) {
  std::vector<TraceEntry> taken;
  if (!request.clear && !request.enabled) append_events(pool, taken); // H2
  if (request.clear || !request.enabled) check(lade_pinned_history_set(pool, nullptr));
  if (request.enabled) {
    const lade_history_options options = history_options(request.recorder, request.max_entries, request.when);
    check(lade_pinned_history_set(pool, &options));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  request_ = request;
  std::vector<TraceEntry> &saved = saved_[pool];
  if (request.clear) saved.clear();
  saved.insert(saved.end(), taken.begin(), taken.end());
}

bool HostHistory::current(HistoryRequest *out_request) const {
  std::lock_guard<std::mutex> lock(mutex_);
  *out_request = request_;
  return request_.enabled;
}

void HostHistory::append_traces(lade_pinned_pool *pool, std::vector<TraceEntry> &traces) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::vector<TraceEntry> &saved = saved_[pool];
    traces.insert(traces.end(), saved.begin(), saved.end());
  }
  append_events(pool, traces);
}

void HostHistory::append_segments(lade_pinned_pool *pool, std::vector<at::HostSegmentInfo> &segments) {
  Contexts contexts;
  auto history = history_take(pool);
  for (size_t i = 0; i < history->event_count; i++) {
    const lade_history_event &event = history->events[i];
    if (event.action == LADE_DEVICE_ALLOC) contexts[event.address] = context_of(event.context);
  }
  size_t first = segments.size();
  SegmentsWalk walk = {&segments, &contexts};
  check(lade_pinned_blocks_each(pool, segment_append, &walk));
  for (size_t i = first; i < segments.size(); i++)
    segments[i].owner_private_pool_id = CapturePools::get().owner(reinterpret_cast<const void *>(segments[i].address));
}

void sort_by_time(std::vector<TraceEntry> &traces) {
  std::stable_sort(
      traces.begin(), traces.end(),
      [](const TraceEntry &left, const TraceEntry &right) { return left.time_.t_ < right.time_.t_; });
}

} // namespace lade_torch

#endif
