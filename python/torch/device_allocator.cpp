// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's device allocator over lade's: device_allocator.h has A1 to A5.

#include "device_allocator.h"

#include "device_caches.h"
#include "device_history.h"
#include "device_ipc.h"
#include "device_pools.h"
#include "source.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>

namespace lade_torch {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

DeviceCaches &caches() { return DeviceCaches::get(); }

c10::Device cuda_device(int index) { return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)); }

// Where PyTorch works at the moment.
struct Place {
  int device;
  cudaStream_t stream;
};

Place current_place() {
  if (C10_UNLIKELY(caches().is_software()))
    return {0, stream_handle(Streams::software, current_stream(Streams::software))};
  const c10::DeviceIndex device = c10::cuda::current_device();
  return {device, c10::cuda::getCurrentCUDAStream(device).stream()};
}

// ---- What PyTorch's profilers hear -----------------------------------------------------------------------------------

C10_NOINLINE void profile_block(void *pointer, bool is_freed) {
  lade_device_block_info block;
  lade_device_block_info_init(&block);
  lade_device_usage usage;
  lade_device_usage_init(&usage);
  int on = 0;
  lade_status status = caches().for_owner([&](lade_device_allocator *of, int device) {
    on = device;
    lade_status found = lade_device_find(of, pointer, &block);
    return found != LADE_OK ? found : lade_device_usage_get(of, &usage);
  });
  if (status != LADE_OK) return;
  const int64_t bytes = static_cast<int64_t>(block.bytes);
  c10::reportMemoryUsageToProfiler(pointer, is_freed ? -bytes : bytes,
                                   usage.allocated_bytes - (is_freed ? block.bytes : 0), usage.reserved_bytes,
                                   cuda_device(on));
}

void tell_allocated(void *pointer) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) profile_block(pointer, false);
  const c10::impl::PyInterpreter *tracer = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(tracer != nullptr))
    (*tracer)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

void tell_freed(void *pointer) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) profile_block(pointer, true);
  const c10::impl::PyInterpreter *tracer = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(tracer != nullptr))
    (*tracer)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------

// A5
class Uncached {
public:
  static Uncached &get() {
    static Uncached *uncached = new Uncached;
    return *uncached;
  }
  bool is_on() const noexcept { return is_on_.load(std::memory_order_relaxed); }
  void set_on(bool is_on) noexcept { is_on_.store(is_on, std::memory_order_relaxed); }

  C10_NOINLINE void *allocate(size_t bytes) {
    void *pointer = nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    auto place = pointers_.insert(nullptr); // what may fail, before the memory is there
    C10_CUDA_CHECK(cudaMalloc(&pointer, bytes));
    auto node = pointers_.extract(place);
    node.value() = pointer;
    pointers_.insert(std::move(node));
    count_.fetch_add(1, std::memory_order_release);
    return pointer;
  }
  // False: not uncached.
  bool free(void *pointer) noexcept {
    if (C10_LIKELY(count_.load(std::memory_order_acquire) == 0)) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = pointers_.find(pointer);
      if (found == pointers_.end()) return false;
      pointers_.erase(found);
      count_.fetch_sub(1, std::memory_order_release);
    }
    (void)cudaFree(pointer); // fails only where the process ends or the device is lost
    return true;
  }

private:
  std::atomic<bool> is_on_{false};
  std::atomic<size_t> count_{0};
  std::mutex mutex_;
  std::multiset<void *> pointers_;
};

// A2
void release_block(void *pointer) {
  if (pointer == nullptr) return;
  tell_freed(pointer);
  if (C10_UNLIKELY(Uncached::get().free(pointer))) return;
  DeviceIpc::get().freed(pointer);
  caches().free(pointer);
}

void *allocate_block(size_t bytes, const Place &at) {
  const bool is_cached = C10_LIKELY(!Uncached::get().is_on()) || bytes == 0;
  void *pointer = is_cached ? caches().allocate(bytes, at.device, at.stream) : Uncached::get().allocate(bytes);
  if (pointer != nullptr) tell_allocated(pointer);
  return pointer;
}

// ---- Statistics ------------------------------------------------------------------------------------------------------

Stat stat_of(const lade_device_gauge &gauge) {
  Stat stat;
  stat.current = static_cast<int64_t>(gauge.current);
  stat.peak = static_cast<int64_t>(gauge.peak);
  stat.allocated = static_cast<int64_t>(gauge.allocated);
  stat.freed = static_cast<int64_t>(gauge.freed);
  return stat;
}

StatArray stats_of(const lade_device_gauges &gauges) {
  StatArray stats;
  stats[static_cast<size_t>(StatType::AGGREGATE)] = stat_of(gauges.all);
  stats[static_cast<size_t>(StatType::SMALL_POOL)] = stat_of(gauges.small_pool);
  stats[static_cast<size_t>(StatType::LARGE_POOL)] = stat_of(gauges.large_pool);
  return stats;
}

#if LADE_TORCH_HAS_POOL_STATS
// reserved_bytes_by_private_pools.FIRST_SECOND.CELL
lade_status pool_stat_add(const char *key, int64_t value, void *user) noexcept {
  auto *stats = static_cast<DeviceStats *>(user);
  PoolId pool;
  char cell[16];
  if (std::sscanf(key, "reserved_bytes_by_private_pools.%llu_%llu.%15s", &pool.first, &pool.second, cell) != 3)
    return LADE_OK;
  try {
    Stat &stat = stats->reserved_bytes_by_private_pools[pool][static_cast<size_t>(StatType::AGGREGATE)];
    const std::string_view name = cell;
    (name == "current" ? stat.current
     : name == "peak"  ? stat.peak
     : name == "freed" ? stat.freed
                       : stat.allocated) = value;
  } catch (...) {
    return LADE_ERR_OUT_OF_HOST_MEMORY;
  }
  return LADE_OK;
}
#endif

// ---- Snapshots -------------------------------------------------------------------------------------------------------

// As PyTorch has them: its own settings are parsed whichever allocator serves.
torch_device::AllocatorConfigInfo config_info() {
  using Config = torch_device::CUDAAllocatorConfig;
#if LADE_TORCH_HAS_COMMON_CONFIG
  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
  using Common = Config;
#endif
  torch_device::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = Common::garbage_collection_threshold();
  info.max_split_size = Common::max_split_size();
  info.pinned_num_register_threads = Config::pinned_num_register_threads();
  info.expandable_segments = Config::expandable_segments();
  info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
#if LADE_TORCH_HAS_CAPTURE_REUSE
  info.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
#endif
  info.last_allocator_settings = Common::last_allocator_settings();
  info.roundup_power2_divisions = Common::roundup_power2_divisions();
  return info;
}

uint32_t actions_of(const std::vector<std::string> &names) {
  static constexpr std::pair<std::string_view, lade_device_action> known[] = {
      {"alloc", LADE_DEVICE_ALLOC},
      {"free_requested", LADE_DEVICE_FREE_REQUESTED},
      {"free_completed", LADE_DEVICE_FREE_COMPLETED},
      {"segment_alloc", LADE_DEVICE_SEGMENT_ALLOC},
      {"segment_free", LADE_DEVICE_SEGMENT_FREE},
      {"segment_map", LADE_DEVICE_SEGMENT_MAP},
      {"segment_unmap", LADE_DEVICE_SEGMENT_UNMAP},
      {"snapshot", LADE_DEVICE_SNAPSHOT},
      {"oom", LADE_DEVICE_OOM},
      {"annotate", LADE_DEVICE_ANNOTATE},
  };
  uint32_t actions = 0;
  for (const std::string &name : names) {
    bool is_known = false;
    for (const auto &[text, action] : known) {
      if (name != text) continue;
      actions |= uint32_t(1) << action;
      is_known = true;
    }
    TORCH_CHECK(is_known, "lade: skip_actions has \"", name,
                "\"; expected names of a snapshot's events, such as \"alloc\"");
  }
  return actions;
}

std::atomic<DeviceAllocator *> the_allocator{nullptr}; // A1

struct CheckpointState final : torch_device::AllocatorState {
  lade_device_checkpoint *checkpoint = nullptr;
  ~CheckpointState() override { lade_device_checkpoint_destroy(checkpoint); }
};

} // namespace

// ---- Installation ----------------------------------------------------------------------------------------------------

bool DeviceAllocator::is_installed() { return the_allocator.load(std::memory_order_acquire) != nullptr; }

void DeviceAllocator::install() {
  static std::mutex installing;
  std::lock_guard<std::mutex> lock(installing);
  if (is_installed()) return;
  auto *before = torch_device::allocator.load();
  TORCH_CHECK(before == nullptr || !before->initialized(),
              "lade: PyTorch's device allocator has begun to work and cannot be replaced any more: call "
              "lade.torch.install_device() before anything uses the GPU");
  auto *the = new DeviceAllocator;
  DeviceHistory::get().listen();
  caches().set_up([the](lade_device_allocator *each, int device) {
    const double fraction = the->fractions_[static_cast<size_t>(device)].load(std::memory_order_relaxed);
    if (fraction < 1.0) check(lade_device_set_memory_fraction(each, fraction));
  });
  if (caches().is_software()) the->init(1); // for tests: PyTorch initialises GPUs alone
  c10::SetAllocator(c10::DeviceType::CUDA, the);
  torch_device::allocator.store(the);
  the_allocator.store(the, std::memory_order_release);
}

void DeviceAllocator::init(int device_count) {
  TORCH_CHECK(device_count <= DeviceCaches::max_devices, "lade: device_count is ", device_count, "; expected at most ",
              DeviceCaches::max_devices);
  if (!initialized()) {
    const double fraction = caches().memory_fraction();
    for (auto &each : fractions_) each.store(fraction, std::memory_order_relaxed);
  }
  device_count_.store(device_count, std::memory_order_release);
}
bool DeviceAllocator::initialized() { return device_count_.load(std::memory_order_acquire) > 0; }
std::string DeviceAllocator::name() { return "native"; } // A3

void DeviceAllocator::check_device(c10::DeviceIndex device) const {
  const int count = device_count_.load(std::memory_order_acquire);
  TORCH_CHECK(device >= 0 && device < count, "Invalid device argument ", static_cast<int>(device),
              ": did you call init? lade: expected 0 to ", count - 1);
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------

at::DataPtr DeviceAllocator::allocate(size_t bytes) {
  const Place at = current_place();
  void *pointer = allocate_block(bytes, at);
  return {pointer, pointer, &release_block, cuda_device(at.device)};
}

c10::DeleterFnPtr DeviceAllocator::raw_deleter() const { return &release_block; }

void DeviceAllocator::copy_data(void *destination, const void *source, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(destination, source, bytes, cudaMemcpyDeviceToDevice));
}

void *DeviceAllocator::raw_alloc(size_t bytes) { return bytes == 0 ? nullptr : allocate_block(bytes, current_place()); }

void *DeviceAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return bytes == 0 ? nullptr : allocate_block(bytes, {current_place().device, stream});
}

void DeviceAllocator::raw_delete(void *pointer) { release_block(pointer); }

void DeviceAllocator::recordStream(const at::DataPtr &data, c10::cuda::CUDAStream stream) {
  if (data.get() == nullptr || data.get_deleter() != &release_block) return; // A2
  caches().record_stream(data.get(), stream.device_index(), stream.stream());
}

void *DeviceAllocator::getBaseAllocation(void *pointer, size_t *out_bytes) {
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  check(caches().for_owner([&](lade_device_allocator *of, int) { return lade_device_find(of, pointer, &info); }));
  TORCH_CHECK(info.state == LADE_DEVICE_BLOCK_ALLOCATED, "invalid device pointer: ", pointer);
  TORCH_CHECK(!info.is_expandable, "a block in an expandable segment has no allocation of the driver's; expected "
                                   "expandable_segments:False");
  if (out_bytes != nullptr) *out_bytes = info.segment_bytes;
  return reinterpret_cast<void *>(info.segment_address);
}

#if LADE_TORCH_HAS_ADDRESSES
// PyTorch's own text names the allocator, which is "native" here (A3).
at::DataPtr DeviceAllocator::allocateWithAddress(size_t bytes, void *address) {
  TORCH_CHECK(false, "lade: allocateWithAddress() of ", bytes, " bytes at ", address,
              " is not supported; expected a request without an address");
}
#endif

// ---- The whole -------------------------------------------------------------------------------------------------------

double DeviceAllocator::getMemoryFraction(c10::DeviceIndex device) {
  check_device(device);
  return fractions_[static_cast<size_t>(device)].load(std::memory_order_relaxed);
}

void DeviceAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  check_device(device);
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". lade: expected 0 to 1");
  check(lade_device_set_memory_fraction(caches().allocator(device), fraction));
  fractions_[static_cast<size_t>(device)].store(fraction, std::memory_order_relaxed);
}

// Of one pool only what is released goes back, as in PyTorch: graphs may use the rest.
void DeviceAllocator::emptyCache(PoolId pool) {
  caches().for_each([&](lade_device_allocator *each, int) {
    if (pool == PoolId{0, 0}) return check(lade_device_empty_cache(each));
    lade_device_pool_info info;
    lade_device_pool_info_init(&info);
    // A suspended one has no memory to give back. A MemPool calls this at its end, and must not throw.
    if (lade_device_pool_info_get(each, lade_pool_id(pool), &info) == LADE_OK && info.use_count == 0 && !info.suspended)
      check(lade_device_pool_trim(each, lade_pool_id(pool), nullptr, 0, nullptr));
  });
}

void DeviceAllocator::enable(bool value) { Uncached::get().set_on(!value); }
bool DeviceAllocator::isEnabled() const { return !Uncached::get().is_on(); }

void DeviceAllocator::cacheInfo(c10::DeviceIndex device, size_t *largest_block) {
  check_device(device);
  lade_device_allocator *of = caches().allocator(device);
  lade_device_usage usage;
  lade_device_usage_init(&usage);
  size_t free_bytes = *largest_block, total_bytes = 0;
  if (free_bytes == 0) check(lade_device_memory_get(of, &free_bytes, &total_bytes));
  check(lade_device_usage_get(of, &usage));
  *largest_block = std::max(free_bytes, static_cast<size_t>(usage.largest_free_bytes));
}

#if LADE_TORCH_HAS_USER_METADATA
// By stream, size and pool: lade has one expandable segment for each.
std::vector<torch_device::StreamSegmentSize> DeviceAllocator::getExpandableSegmentSizes(c10::DeviceIndex device) {
  check_device(device);
  std::vector<torch_device::SegmentInfo> segments;
  if (lade_device_allocator *of = caches().existing(device)) DeviceHistory::append_segments(of, {0, 0}, segments);
  std::map<std::tuple<PoolId, const void *, bool>, size_t> sizes;
  for (const auto &each : segments)
    if (each.is_expandable) sizes[{each.owner_private_pool_id, each.stream, !each.is_large}] += each.total_size;
  std::vector<torch_device::StreamSegmentSize> result;
  for (const auto &[key, bytes] : sizes)
    result.emplace_back(static_cast<cudaStream_t>(const_cast<void *>(std::get<1>(key))), std::get<2>(key), bytes);
  return result;
}
#endif

// ---- Statistics, snapshots, histories --------------------------------------------------------------------------------

DeviceStats DeviceAllocator::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  lade_device_stats of_lade;
  lade_device_stats_init(&of_lade);
  lade_device_allocator *of = caches().existing(device);
  if (of != nullptr) check(lade_device_stats_get(of, &of_lade));
  DeviceStats stats;
  stats.allocation = stats_of(of_lade.allocation);
  stats.segment = stats_of(of_lade.segment);
  stats.active = stats_of(of_lade.active);
  stats.inactive_split = stats_of(of_lade.inactive_split);
  stats.allocated_bytes = stats_of(of_lade.allocated_bytes);
  stats.reserved_bytes = stats_of(of_lade.reserved_bytes);
  stats.active_bytes = stats_of(of_lade.active_bytes);
  stats.inactive_split_bytes = stats_of(of_lade.inactive_split_bytes);
  stats.requested_bytes = stats_of(of_lade.requested_bytes);
  stats.num_alloc_retries = static_cast<int64_t>(of_lade.alloc_retries);
  stats.num_ooms = static_cast<int64_t>(of_lade.ooms);
  stats.oversize_allocations = stat_of(of_lade.oversize_allocations);
  stats.oversize_segments = stat_of(of_lade.oversize_segments);
  stats.num_sync_all_streams = static_cast<int64_t>(of_lade.sync_all_streams);
  stats.num_device_alloc = static_cast<int64_t>(of_lade.device_allocs);
  stats.num_device_free = static_cast<int64_t>(of_lade.device_frees);
  stats.max_split_size = of_lade.max_split_bytes == 0 ? -1 : static_cast<int64_t>(of_lade.max_split_bytes);
#if LADE_TORCH_HAS_POOL_STATS
  if (of != nullptr) check(lade_device_pool_stats_each(of, pool_stat_add, &stats));
#endif
  return stats;
}

void DeviceAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  if (lade_device_allocator *of = caches().existing(device)) check(lade_device_stats_reset(of, LADE_STATS_RESET_SUMS));
}

void DeviceAllocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  if (lade_device_allocator *of = caches().existing(device)) check(lade_device_stats_reset(of, LADE_STATS_RESET_PEAKS));
}

bool DeviceAllocator::isHistoryEnabled() { return DeviceHistory::get().is_on(); }

#if LADE_TORCH_HAS_SKIP_ACTIONS
torch_device::SnapshotInfo DeviceAllocator::snapshot(PoolId pool, bool include_traces) {
#else
torch_device::SnapshotInfo DeviceAllocator::snapshot(PoolId pool) {
  const bool include_traces = true;
#endif
  torch_device::SnapshotInfo info;
  const int count = device_count_.load(std::memory_order_acquire);
  for (int device = 0; device < count; device++) {
    lade_device_allocator *of = caches().existing(device);
    std::vector<torch_device::TraceEntry> &traces = info.device_traces.emplace_back();
    if (of == nullptr) continue;
    if (include_traces)
      traces = DeviceHistory::traces(of); // first: a snapshot's own event is in the next one, as in PyTorch's
    DeviceHistory::append_segments(of, pool, info.segments);
  }
  if (include_traces) info.external_annotations = DeviceHistory::get().annotations();
  info.config_metadata = config_info();
  return info;
}

#if LADE_TORCH_HAS_SKIP_ACTIONS
void DeviceAllocator::recordHistory(bool enabled, torch_device::CreateContextFn recorder, size_t max_entries,
                                    torch_device::RecordContext when, bool clear,
                                    const std::vector<std::string> &skip_actions) {
  const uint32_t skipped = actions_of(skip_actions);
#else
void DeviceAllocator::recordHistory(bool enabled, torch_device::CreateContextFn recorder, size_t max_entries,
                                    torch_device::RecordContext when, bool clear) {
  const uint32_t skipped = actions_of({});
#endif
  TORCH_CHECK(when == torch_device::RecordContext::NEVER || recorder != nullptr,
              "lade: contexts are recorded by a function; expected one, or RecordContext::NEVER");
  DeviceHistory::Request request;
  request.is_on = enabled;
  request.recorder = recorder;
  request.max_entries = max_entries;
  request.when = when;
  request.skip_actions = skipped;
  DeviceHistory::get().set(request, clear);
}

void DeviceAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) {
  if (DeviceHistory::get().is_on()) DeviceHistory::get().annotate(current_place().device, metadata);
}

void DeviceAllocator::pushCompileContext(std::string &name) { DeviceHistory::get().push_compile_context(name); }
void DeviceAllocator::popCompileContext() { DeviceHistory::get().pop_compile_context(); }

#if LADE_TORCH_HAS_USER_METADATA
void DeviceAllocator::setUserMetadata(const std::string &text) { DeviceHistory::get().set_user_metadata(text); }
std::string DeviceAllocator::getUserMetadata() { return DeviceHistory::get().user_metadata(); }
#endif

#if LADE_TORCH_HAS_ANNOTATIONS
bool DeviceAllocator::supportsUserMetadata() { return true; }

void DeviceAllocator::annotateMemory(const void *pointer, const std::string &text) {
  check(caches().for_owner(
      [&](lade_device_allocator *of, int) { return lade_device_annotate(of, pointer, text.c_str()); }));
}
#endif

void DeviceAllocator::attachOutOfMemoryObserver(torch_device::OutOfMemoryObserver observer) {
  DeviceHistory::get().add_observer(std::move(observer));
}

void DeviceAllocator::attachAllocatorTraceTracker(torch_device::AllocatorTraceTracker tracker) {
  DeviceHistory::get().add_tracker(std::move(tracker));
}

#if LADE_TORCH_HAS_OOM_REJECTIONS
void DeviceAllocator::attachOomRejectionObserver(torch_device::OomRejectionObserver observer) {
  DeviceHistory::get().add_rejection_observer(std::move(observer));
}

std::shared_ptr<c10::GatheredContext> DeviceAllocator::getContextForPointer(const void *pointer) {
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  lade_status status =
      caches().for_owner([&](lade_device_allocator *of, int) { return lade_device_find(of, pointer, &info); });
  return status == LADE_OK && info.state == LADE_DEVICE_BLOCK_ALLOCATED ? context_of(info.context) : nullptr;
}
#endif

// ---- Pools -----------------------------------------------------------------------------------------------------------

void DeviceAllocator::beginAllocateToPool(c10::DeviceIndex device, PoolId pool,
                                          std::function<bool(cudaStream_t)> filter) {
  check_device(device);
  DevicePools::get().begin(device, pool, std::move(filter));
}

void DeviceAllocator::endAllocateToPool(c10::DeviceIndex device, PoolId pool) { DevicePools::get().end(device, pool); }
void DeviceAllocator::releasePool(c10::DeviceIndex device, PoolId pool) { DevicePools::get().release(device, pool); }

int DeviceAllocator::getPoolUseCount(c10::DeviceIndex device, PoolId pool) {
  check_device(device);
  return DevicePools::get().use_count(device, pool);
}

#if LADE_TORCH_HAS_SHARED_OWNERS
void DeviceAllocator::createOrIncrefPool(c10::DeviceIndex device, PoolId pool,
                                         std::shared_ptr<CUDAAllocator> provider) {
  check_device(device);
  DevicePools::get().create(device, pool, std::move(provider));
}

void DeviceAllocator::setUseOnOOM(c10::DeviceIndex device, PoolId pool, bool use_on_oom) {
  DevicePools::get().set_flag(device, pool, LADE_DEVICE_POOL_USE_ON_OOM, use_on_oom);
}
#else
// The caller keeps what provides segments.
void DeviceAllocator::createOrIncrefPool(c10::DeviceIndex device, PoolId pool, CUDAAllocator *provider) {
  check_device(device);
  DevicePools::get().create(device, pool, DevicePools::Owner(provider, [](CUDAAllocator *) {}));
}

void DeviceAllocator::setUseOnOOM(c10::DeviceIndex device, PoolId pool) {
  DevicePools::get().set_flag(device, pool, LADE_DEVICE_POOL_USE_ON_OOM, true);
}
#endif

#if LADE_TORCH_HAS_NO_SPLIT
void DeviceAllocator::setNoSplit(c10::DeviceIndex device, PoolId pool) {
  DevicePools::get().set_flag(device, pool, LADE_DEVICE_POOL_NO_SPLIT, true);
}
#endif

bool DeviceAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, PoolId pool,
                                               const std::unordered_set<void *> &expected) {
  check_device(device);
  TORCH_CHECK(DevicePools::get().use_count(device, pool) > 0, "lade: pool (", pool.first, ", ", pool.second,
              ") of device ", static_cast<int>(device), " is unknown or released; expected one in use");
  std::vector<torch_device::SegmentInfo> segments;
  DeviceHistory::append_segments(caches().existing(device), pool, segments);
  size_t live = 0;
  for (const auto &segment : segments) {
    uintptr_t address = segment.address;
    for (const auto &block : segment.blocks) {
      if (block.allocated && expected.count(reinterpret_cast<void *>(address)) == 0) return false;
      live += block.allocated;
      address += block.size;
    }
  }
  return live == expected.size();
}

std::shared_ptr<torch_device::AllocatorState> DeviceAllocator::getCheckpointState(c10::DeviceIndex device,
                                                                                  PoolId pool) {
  check_device(device);
  auto state = std::make_shared<CheckpointState>();
  check(lade_device_checkpoint_get(caches().allocator(device), lade_pool_id(pool), &state->checkpoint));
  return state;
}

torch_device::CheckpointDelta
DeviceAllocator::setCheckpointPoolState(c10::DeviceIndex device, std::shared_ptr<torch_device::AllocatorState> state) {
  check_device(device);
  auto *of_lade = dynamic_cast<CheckpointState *>(state.get());
  TORCH_CHECK(of_lade != nullptr, "lade: the state is of another allocator; expected one of getCheckpointState()");
  lade_device_restored *taken = nullptr;
  check(lade_device_checkpoint_set(caches().allocator(device), of_lade->checkpoint, &taken));
  std::unique_ptr<lade_device_restored, decltype(&lade_device_restored_destroy)> restored(taken,
                                                                                          lade_device_restored_destroy);
  torch_device::CheckpointDelta delta;
  try {
    delta.ptrs_freed.assign(restored->freed, restored->freed + restored->freed_count);
    delta.dataptrs_allocd.reserve(restored->created_count);
  } catch (...) {
    for (size_t i = 0; i < restored->created_count; i++) caches().free(restored->created[i]);
    throw;
  }
  for (void *each : delta.ptrs_freed) DeviceIpc::get().freed(each);
  for (size_t i = 0; i < restored->created_count; i++)
    delta.dataptrs_allocd.emplace_back(restored->created[i], restored->created[i], &release_block, cuda_device(device));
  return delta;
}

// ---- Other devices and processes -------------------------------------------------------------------------------------

torch_device::ShareableHandle DeviceAllocator::shareIpcHandle(void *pointer) { return DeviceIpc::get().share(pointer); }

std::shared_ptr<void> DeviceAllocator::getIpcDevPtr(std::string handle) {
  return DeviceIpc::get().open(handle, current_place().device);
}

void DeviceAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex device_to_access) {
  check_device(device);
  check_device(device_to_access);
  check(lade_device_peer_add(caches().allocator(device_to_access), device));
}

// lade knows which memory the devices may access. PyTorch checks the error, which has the driver's number where there is one.
cudaError_t DeviceAllocator::memcpyAsync(void *destination, int destination_device, const void *source,
                                         int source_device, size_t bytes, cudaStream_t stream, bool has_peer_access) {
  if (has_peer_access || destination_device == source_device)
    return cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, stream);
  lade_status status = lade_device_copy_async(caches().allocator(destination_device), destination,
                                              caches().allocator(source_device), source, bytes, stream);
  if (status == LADE_OK) return cudaSuccess;
  const int64_t code = lade_last_error()->native_code;
  return status == LADE_ERR_DRIVER && code != 0 ? static_cast<cudaError_t>(code) : cudaErrorUnknown;
}

} // namespace lade_torch
