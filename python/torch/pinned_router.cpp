// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's host allocator with lade under it: pinned_router.h has the model and R1 to R4.

#include "pinned_router.h"

#include "host_history.h"
#include "host_stats.h"

#include <limits>
#include <string>

namespace lade_torch {

namespace {

std::atomic<Router *> the_router{nullptr};
std::mutex installing; // installation and adding sources, which are rare
std::atomic<uint64_t> refused_free_count{0};

// Pools by the number of their source, for the deleters, which get nothing but the block's address.
std::array<std::atomic<lade_pinned_pool *>, Router::max_sources> pools;

template <size_t index> void release_block(void *block) noexcept {
  lade_status status = lade_pinned_free(pools[index].load(std::memory_order_relaxed), block);
  // A forked child's copy is the parent's to free (S3). A deleter has no way to tell of other refusals than to count them.
  if (C10_UNLIKELY(status != LADE_OK && status != LADE_ERR_FORKED))
    refused_free_count.fetch_add(1, std::memory_order_relaxed);
}

template <size_t... index>
constexpr std::array<c10::DeleterFnPtr, sizeof...(index)> deleters_of(std::index_sequence<index...>) {
  return {{&release_block<index>...}};
}
constexpr auto deleters = deleters_of(std::make_index_sequence<Router::max_sources>());

// Calls all, and then throws what the first that failed has thrown.
class FirstFailure {
public:
  template <typename Call> void run(Call call) {
    try {
      call();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

private:
  std::exception_ptr failure_;
};

} // namespace

// ---- Installation ----------------------------------------------------------------------------------------------------

Router *Router::installed() noexcept { return the_router.load(std::memory_order_acquire); }

Router &Router::install() {
  std::lock_guard<std::mutex> lock(installing);
  Router *router = installed();
  if (router == nullptr) {
    router = new Router(at::getHostAllocator(at::kCUDA));
    at::setHostAllocator(at::kCUDA, router, std::numeric_limits<uint8_t>::max());
    if (at::getHostAllocator(at::kCUDA) != router) {
      delete router;
      TORCH_CHECK(false, "lade: PyTorch keeps the host allocator that another library has set for CUDA");
    }
    the_router.store(router, std::memory_order_release);
  }
  TORCH_CHECK(at::getHostAllocator(at::kCUDA) == router,
              "lade: another library has replaced lade's host allocator for CUDA");
  return *router;
}

size_t Router::source_for(lade_pinned_pool *pool, lade_runtime *runtime, Streams streams) {
  std::lock_guard<std::mutex> lock(installing);
  size_t count = source_count_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; i++)
    if (sources_[i]->pool == pool) return i;
  TORCH_CHECK(count < max_sources, "lade: PyTorch has had blocks of ", max_sources,
              " pools in this process, which all stay; install one of these again");
  sources_[count] = new Source(pool, runtime, streams, deleters[count]);
  pools[count].store(pool, std::memory_order_relaxed);
  source_count_.store(count + 1, std::memory_order_release);
  return count;
}

void Router::serve(int index) noexcept {
  serving_.store(index < 0 ? nullptr : sources_[static_cast<size_t>(index)], std::memory_order_release);
}

uint64_t Router::refused_frees() const noexcept { return refused_free_count.load(std::memory_order_relaxed); }

// ---- Blocks ----------------------------------------------------------------------------------------------------------

// In a capture, or out of memory.
C10_NOINLINE void *Router::allocate_slow(const Source &source, size_t bytes, lade_status status) {
  CapturePools &captures = CapturePools::get();
  if (status == LADE_ERR_LIMIT || status == LADE_ERR_OUT_OF_PINNED_MEMORY) {
    captures.reclaim();
    if (void *block = source.allocate(bytes, &status)) return block;
  }
  throw_last_error(status);
}

at::DataPtr Router::allocate(size_t bytes) {
  const Source *source = serving_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(source == nullptr)) return previous_->allocate(bytes);
  if (C10_UNLIKELY(bytes == 0)) return {nullptr, nullptr, source->release, at::DeviceType::CPU};
  lade_status status = LADE_OK;
  if (C10_UNLIKELY(CapturePools::get().is_underway())) {
    void *captured = CapturePools::get().allocate(*source, bytes, &status);
    if (captured != nullptr) return {captured, captured, &release_captured, at::DeviceType::CPU};
    if (status != LADE_OK) throw_last_error(status);
  }
  void *block = source->allocate(bytes, &status);
  if (C10_UNLIKELY(block == nullptr)) block = allocate_slow(*source, bytes, status);
  return {block, block, source->release, at::DeviceType::CPU};
}

// As blocks of PyTorch's allocator: only their deleter does anything with their context.
bool Router::is_simple_data_ptr(const c10::DataPtr &) const { return false; }

// Blocks have different deleters.
c10::DeleterFnPtr Router::raw_deleter() const { return nullptr; }

void Router::copy_data(void *destination, const void *source, std::size_t bytes) const {
  default_copy_data(destination, source, bytes);
}

bool Router::record_event(void *pointer, void *context, c10::Stream stream) {
  CapturePools::get().record(pointer);
  for (size_t i = source_count_.load(std::memory_order_acquire); i > 0; i--)
    if (sources_[i - 1]->record(pointer, stream)) return true;
  return previous_->record_event(pointer, context, stream);
}

// ---- The cache as a whole --------------------------------------------------------------------------------------------

template <typename Call> void Router::for_each_pool(Call call) {
  size_t count = source_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; i++) call(sources_[i]->pool);
}

void Router::empty_cache() {
  FirstFailure failure;
  failure.run([] { CapturePools::get().reclaim(); });
  for_each_pool([&](lade_pinned_pool *pool) { failure.run([&] { check(lade_pinned_empty_cache(pool)); }); });
  failure.run([&] { previous_->empty_cache(); });
  failure.rethrow();
}

at::HostStats Router::get_stats() {
  const Source *source = serving_.load(std::memory_order_acquire);
  return source == nullptr ? previous_->get_stats() : host_stats(source->pool);
}

void Router::reset_accumulated_stats() {
  FirstFailure failure;
  for_each_pool([&](lade_pinned_pool *pool) {
    failure.run([&] { check(lade_pinned_stats_reset(pool, LADE_STATS_RESET_SUMS)); });
  });
  failure.run([&] { previous_->reset_accumulated_stats(); });
  failure.rethrow();
}

void Router::reset_peak_stats() {
  FirstFailure failure;
  for_each_pool([&](lade_pinned_pool *pool) {
    failure.run([&] { check(lade_pinned_stats_reset(pool, LADE_STATS_RESET_PEAKS)); });
  });
  failure.run([&] { previous_->reset_peak_stats(); });
  failure.rethrow();
}

// ---- Graph captures --------------------------------------------------------------------------------------------------

#if LADE_TORCH_HAS_HOST_POOLS
// Both allocators hear of every capture, whichever serves: the one may be installed or not when the capture ends.
void Router::begin_allocate_to_pool(c10::MempoolId_t pool_id, std::function<bool(c10::Stream)> filter) {
  previous_->begin_allocate_to_pool(pool_id, filter);
  try {
    CapturePools::get().begin(pool_id, std::move(filter));
  } catch (...) {
    previous_->end_allocate_to_pool(pool_id);
    previous_->release_pool(pool_id);
    throw;
  }
}

void Router::end_allocate_to_pool(c10::MempoolId_t pool_id) {
  CapturePools::get().end(pool_id);
  previous_->end_allocate_to_pool(pool_id);
}

void Router::release_pool(c10::MempoolId_t pool_id) {
  FirstFailure failure;
  failure.run([&] { CapturePools::get().release(pool_id); });
  failure.run([&] { previous_->release_pool(pool_id); });
  failure.rethrow();
}
#endif

// ---- History ---------------------------------------------------------------------------------------------------------

#if LADE_TORCH_HAS_HOST_HISTORY
void Router::record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context_recorder,
                            size_t max_entries, c10::CachingDeviceAllocator::RecordContext when, bool clear_history) {
  previous_->record_history(enabled, context_recorder, max_entries, when, clear_history);
  const HistoryRequest request = {enabled, context_recorder, max_entries, when, clear_history};
  for_each_pool([&](lade_pinned_pool *pool) { HostHistory::get().set(pool, request); });
}

bool Router::is_history_enabled() const { return previous_->is_history_enabled(); }

std::vector<at::HostSegmentInfo> Router::get_segments() {
  std::vector<at::HostSegmentInfo> segments = previous_->get_segments();
  for_each_pool([&](lade_pinned_pool *pool) { HostHistory::get().append_segments(pool, segments); });
  return segments;
}

std::vector<c10::CachingDeviceAllocator::TraceEntry> Router::get_traces() {
  std::vector<c10::CachingDeviceAllocator::TraceEntry> traces = previous_->get_traces();
  for_each_pool([&](lade_pinned_pool *pool) { HostHistory::get().append_traces(pool, traces); });
  sort_by_time(traces);
  return traces;
}

void Router::record_external_register(void *pointer, size_t bytes) {
  previous_->record_external_register(pointer, bytes);
}

void Router::record_external_unregister(void *pointer) { previous_->record_external_unregister(pointer); }
#endif

} // namespace lade_torch
