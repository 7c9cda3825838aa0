// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's view of device memory: device_history.h has V1 to V5.

#include "device_history.h"

#include "device_pools.h"
#include "source.h"

#include <algorithm>
#include <memory>
#include <set>

namespace lade_torch {

namespace {

using torch_device::TraceEntry;

// ---- Events ----------------------------------------------------------------------------------------------------------

// False: PyTorch has no such event.
bool action_of(uint32_t action, TraceEntry::Action *out) {
  switch (action) {
  case LADE_DEVICE_ALLOC: *out = TraceEntry::ALLOC; return true;
  case LADE_DEVICE_FREE_REQUESTED: *out = TraceEntry::FREE_REQUESTED; return true;
  case LADE_DEVICE_FREE_COMPLETED: *out = TraceEntry::FREE_COMPLETED; return true;
  case LADE_DEVICE_SEGMENT_ALLOC: *out = TraceEntry::SEGMENT_ALLOC; return true;
  case LADE_DEVICE_SEGMENT_FREE: *out = TraceEntry::SEGMENT_FREE; return true;
  case LADE_DEVICE_SEGMENT_MAP: *out = TraceEntry::SEGMENT_MAP; return true;
  case LADE_DEVICE_SEGMENT_UNMAP: *out = TraceEntry::SEGMENT_UNMAP; return true;
  case LADE_DEVICE_SNAPSHOT: *out = TraceEntry::SNAPSHOT; return true;
  case LADE_DEVICE_OOM: *out = TraceEntry::OOM; return true;
#if LADE_TORCH_HAS_ANNOTATIONS
  case LADE_DEVICE_ANNOTATE: *out = TraceEntry::ANNOTATE; return true;
#endif
  default: return false;
  }
}

// Of a lade_device_event or a lade_history_event.
template <typename Event>
TraceEntry entry_of(const Event &event, TraceEntry::Action action, decltype(c10::getApproximateTime()) time) {
  return TraceEntry(action, static_cast<c10::DeviceIndex>(event.device), event.address, event.bytes, event.stream,
                    PoolId{event.pool.first, event.pool.second}, time, context_of(event.context));
}

// ---- Trackers and observers ------------------------------------------------------------------------------------------

std::mutex listening;

// A list that only grows, which may be called while it does.
template <typename Call> class Listeners {
public:
  // Whether it is the first.
  bool add(Call call) {
    std::lock_guard<std::mutex> lock(listening);
    auto calls = std::make_shared<std::vector<Call>>(*calls_);
    calls->push_back(std::move(call));
    calls_ = std::move(calls);
    return calls_->size() == 1;
  }
  // An exception must not pass lade's C code.
  template <typename... Argument> void call_all(const Argument &...arguments) const noexcept {
    std::shared_ptr<const std::vector<Call>> calls;
    {
      std::lock_guard<std::mutex> lock(listening);
      calls = calls_;
    }
    for (const Call &each : *calls) {
      try {
        each(arguments...);
      } catch (...) {
      }
    }
  }

private:
  std::shared_ptr<const std::vector<Call>> calls_{std::make_shared<std::vector<Call>>()};
};

// Never destroyed: V2.
template <typename Call> Listeners<Call> &listeners() {
  static auto *list = new Listeners<Call>;
  return *list;
}

lade_device_allocator *user_allocator(void *user) {
  return DeviceCaches::get().existing(static_cast<int>(reinterpret_cast<intptr_t>(user)));
}
void *user_of(int device) { return reinterpret_cast<void *>(static_cast<intptr_t>(device)); }

// The callbacks in PyTorch's registry may free memory: tensors of other processes that are read no more, for one.
lade_status reclaim(void *) noexcept {
  bool freed = false;
  try {
    auto *registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto &name : registry->Keys()) freed |= registry->Create(name)->Execute();
  } catch (...) {
  }
  return freed ? LADE_OK : LADE_NOT_READY;
}

void observe_oom(void *user, const lade_device_oom *oom) noexcept {
  lade_device_usage usage;
  lade_device_usage_init(&usage);
  lade_device_allocator *of = user_allocator(user);
  if (of != nullptr && lade_device_usage_get(of, &usage) == LADE_OK) {
    const auto device = static_cast<c10::DeviceIndex>(oom->device);
    try {
      c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(oom->requested_bytes), usage.allocated_bytes,
                                       usage.reserved_bytes, c10::Device(c10::DeviceType::CUDA, device));
    } catch (...) {
    }
#if LADE_TORCH_HAS_OOM_REJECTIONS
    lade_device_stats stats;
    lade_device_stats_init(&stats);
    static std::array<std::atomic<uint64_t>, DeviceCaches::max_devices> told{};
    std::atomic<uint64_t> &seen = told[static_cast<size_t>(oom->device)];
    if (lade_device_stats_get(of, &stats) == LADE_OK && seen.exchange(stats.oom_rejections) < stats.oom_rejections)
      listeners<torch_device::OomRejectionObserver>().call_all(int64_t(oom->device), size_t(oom->segment_bytes),
                                                               size_t(usage.allocated_bytes), size_t(oom->limit_bytes));
#endif
  }
  listeners<torch_device::OutOfMemoryObserver>().call_all(int64_t(oom->device), size_t(oom->segment_bytes),
                                                          size_t(oom->limit_bytes), size_t(oom->free_bytes));
}

// V5: addresses that trackers were told of before they go.
std::mutex leaving_lock;
std::set<std::pair<int, uint64_t>> &leaving = *new std::set<std::pair<int, uint64_t>>;

bool leaving_take(const lade_device_event &event) {
  if (event.action != LADE_DEVICE_SEGMENT_FREE && event.action != LADE_DEVICE_SEGMENT_UNMAP) return false;
  std::lock_guard<std::mutex> lock(leaving_lock);
  return leaving.erase({event.device, event.address}) != 0;
}

void track(void *, const lade_device_event *event, const lade_device_event_totals *) noexcept {
  TraceEntry::Action action;
  if (!action_of(event->action, &action)) return;
  try {
    if (leaving_take(*event)) return;
    TraceEntry entry = entry_of(*event, action, c10::getApproximateTime());
    listeners<torch_device::AllocatorTraceTracker>().call_all(entry);
  } catch (...) {
  }
}

void leave(void *, const lade_device_event *event) noexcept {
  TraceEntry::Action action;
  if (!action_of(event->action, &action)) return;
  try {
    {
      std::lock_guard<std::mutex> lock(leaving_lock);
      leaving.insert({event->device, event->address});
    }
    listeners<torch_device::AllocatorTraceTracker>().call_all(entry_of(*event, action, c10::getApproximateTime()));
  } catch (...) {
  }
}

// ---- Snapshots -------------------------------------------------------------------------------------------------------

struct SnapshotDeleter {
  void operator()(lade_device_snapshot *snapshot) const { lade_device_snapshot_destroy(snapshot); }
};

torch_device::BlockInfo block_of(const lade_device_snapshot_block &block) {
  torch_device::BlockInfo info;
  info.size = block.bytes;
  info.requested_size = block.requested_bytes;
  info.gc_counter = static_cast<int32_t>(block.age);
  info.allocated = block.state == LADE_DEVICE_BLOCK_ALLOCATED;
  info.active = block.state != LADE_DEVICE_BLOCK_INACTIVE;
  info.context_when_allocated = context_of(block.context);
  return info;
}

torch_device::SegmentInfo segment_of(const lade_device_snapshot &snapshot,
                                     const lade_device_snapshot_segment &segment) {
  torch_device::SegmentInfo info;
  info.device = static_cast<c10::DeviceIndex>(snapshot.device);
  info.address = segment.address;
  info.total_size = segment.total_bytes;
  info.requested_size = segment.requested_bytes;
  info.allocated_size = segment.allocated_bytes;
  info.active_size = segment.active_bytes;
  info.stream = segment.stream;
  info.is_large = segment.is_large;
  info.is_expandable = segment.is_expandable;
  info.owner_private_pool_id = {segment.pool.first, segment.pool.second};
  info.context_when_allocated = context_of(segment.context);
  info.blocks.reserve(segment.block_count);
  for (size_t i = 0; i < segment.block_count; i++)
    info.blocks.push_back(block_of(snapshot.blocks[segment.first_block + i]));
  return info;
}

constexpr size_t most_label_bytes = 4095;               // lade_history_label_set()
thread_local std::vector<std::string> compile_contexts; // innermost last
thread_local bool compile_scope_is_open = false;        // of the innermost
thread_local std::string metadata_text;

} // namespace

DeviceHistory &DeviceHistory::get() {
  static DeviceHistory *history = new DeviceHistory;
  return *history;
}

void DeviceHistory::listen() {
  DeviceCaches::get().set_up([this](lade_device_allocator *to, int device) {
    lade_device_listener listener;
    lade_device_listener_init(&listener);
    listener.user = user_of(device);
    listener.reclaim = reclaim;
    listener.observe_oom = observe_oom;
    check(lade_device_listener_add(to, &listener));
    if (is_on()) apply(to);
  });
}

void DeviceHistory::add_tracker(torch_device::AllocatorTraceTracker tracker) {
  if (!listeners<torch_device::AllocatorTraceTracker>().add(std::move(tracker))) return;
  DeviceCaches::get().set_up([](lade_device_allocator *to, int device) {
    lade_device_listener listener;
    lade_device_listener_init(&listener);
    listener.user = user_of(device);
    listener.track = track;
    listener.leave = leave;
    check(lade_device_listener_add(to, &listener));
  });
}

void DeviceHistory::add_observer(torch_device::OutOfMemoryObserver observer) {
  listeners<torch_device::OutOfMemoryObserver>().add(std::move(observer));
}

#if LADE_TORCH_HAS_OOM_REJECTIONS
void DeviceHistory::add_rejection_observer(torch_device::OomRejectionObserver observer) {
  listeners<torch_device::OomRejectionObserver>().add(std::move(observer));
}
#endif

// ---- Histories -------------------------------------------------------------------------------------------------------

void DeviceHistory::apply(lade_device_allocator *to) const {
  Request request;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request = request_;
  }
  if (!request.is_on) return check(lade_device_history_set(to, nullptr));
  lade_history_options options = history_options(request.recorder, request.max_entries, request.when);
  options.skip_actions = request.skip_actions;
  check(lade_device_history_set(to, &options));
}

void DeviceHistory::set(const Request &request, bool clear) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request_ = request;
    if (clear || !request.is_on) annotations_.clear();
  }
  DeviceCaches::get().apply([&](lade_device_allocator *each, int) {
    if (clear) check(lade_device_history_set(each, nullptr));
    apply(each);
  });
}

bool DeviceHistory::is_on() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return request_.is_on;
}

void DeviceHistory::annotate(int device, const std::vector<std::pair<std::string, std::string>> &metadata) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!request_.is_on) return;
  AnnotationEntry entry(static_cast<c10::DeviceIndex>(device), /*time=*/0);
  entry.time_.t_ = static_cast<time_t>(c10::getTimeSinceEpoch() / 1000);
  for (const auto &[name, value] : metadata) entry.recordUserMetadata(name, value);
  annotations_.push_back(std::move(entry));
  if (annotations_.size() > request_.max_entries) annotations_.pop_front(); // V4
}

std::vector<AnnotationEntry> DeviceHistory::annotations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {annotations_.begin(), annotations_.end()};
}

// V3. A refusal (64 scopes, 4,095 bytes) leaves events without the name, and scopes of the program as they are.
static void compile_context_show() {
  if (compile_scope_is_open) (void)lade_history_scope_pop();
  compile_scope_is_open =
      !compile_contexts.empty() && lade_history_scope_push(compile_contexts.back().c_str()) == LADE_OK;
}

void DeviceHistory::push_compile_context(const std::string &name) {
  if (!is_on()) return;
  compile_contexts.push_back(name);
  compile_context_show();
}

void DeviceHistory::pop_compile_context() {
  if (compile_contexts.empty()) return;
  compile_contexts.pop_back();
  compile_context_show();
}

// Events have the beginning of a longer text: PyTorch knows no limit, and decodes them as UTF-8.
void DeviceHistory::set_user_metadata(const std::string &text) {
  size_t bytes = std::min(text.size(), most_label_bytes);
  while (bytes > 0 && bytes < text.size() && (text[bytes] & 0xc0) == 0x80) bytes--;
  check(lade_history_label_set(text.empty() ? nullptr : text.substr(0, bytes).c_str()));
  metadata_text = text;
}

std::string DeviceHistory::user_metadata() const { return metadata_text; }

// ---- Snapshots -------------------------------------------------------------------------------------------------------

void DeviceHistory::append_segments(lade_device_allocator *of, PoolId pool,
                                    std::vector<torch_device::SegmentInfo> &segments) {
  const lade_device_pool_id id = lade_pool_id(pool);
  const bool is_all = pool == PoolId{0, 0};
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  if (!is_all && lade_device_pool_info_get(of, id, &info) != LADE_OK) return; // not this device's
  lade_device_snapshot *taken = nullptr;
  check(lade_device_snapshot_take(of, is_all ? nullptr : &id, &taken));
  std::unique_ptr<lade_device_snapshot, SnapshotDeleter> snapshot(taken);
  segments.reserve(segments.size() + snapshot->segment_count);
  for (size_t i = 0; i < snapshot->segment_count; i++) segments.push_back(segment_of(*snapshot, snapshot->segments[i]));
}

// With microseconds since 1970, as PyTorch's own entries have when they are shown.
std::vector<TraceEntry> DeviceHistory::traces(lade_device_allocator *of) {
  std::vector<TraceEntry> entries;
  lade_history *taken = nullptr;
  check(lade_device_history_take(of, &taken));
  std::unique_ptr<lade_history, HistoryDeleter> history(taken);
  entries.reserve(history->event_count);
  for (size_t i = 0; i < history->event_count; i++) {
    const lade_history_event &event = history->events[i];
    TraceEntry::Action action;
    if (!action_of(event.action, &action)) continue;
    TraceEntry entry = entry_of(event, action, /*time=*/0);
    entry.time_.t_ = static_cast<time_t>(event.wall_ns / 1000);
    entry.compile_context_ = event.scopes != nullptr ? event.scopes : "N/A"; // as PyTorch's own
#if LADE_TORCH_HAS_USER_METADATA
    if (event.label != nullptr) entry.user_metadata_ = event.label;
#endif
#if LADE_TORCH_HAS_ANNOTATIONS
    if (event.action == LADE_DEVICE_ANNOTATE && event.text != nullptr) entry.user_metadata_ = event.text;
#endif
    entries.push_back(std::move(entry));
  }
  return entries;
}

} // namespace lade_torch
