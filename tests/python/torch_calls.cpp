// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's C++ interface of host allocators as plain functions, for tests and benchmarks (by ctypes). No part of the package.
// Functions that may fail return -1 (or NULL) and leave a text in calls_error().

#include "torch_abi.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#define CALLS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

thread_local std::string last_error;

template <typename Call> auto told(Call call) noexcept -> decltype(call()) {
  try {
    last_error.clear();
    return call();
  } catch (const c10::OutOfMemoryError &error) {
    last_error = std::string("out of memory: ") + error.what_without_backtrace();
  } catch (const c10::Error &error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception &error) {
    last_error = error.what();
  }
  return static_cast<decltype(call())>(-1);
}

at::HostAllocator &allocator() { return *at::getHostAllocator(at::kCUDA); }

c10::Stream stream_of(int64_t id, int device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)),
                     id);
}

using Clock = std::chrono::steady_clock;

// Nanoseconds of one thread for `count` pairs of allocate and release, with `depth` blocks held at a time.
double pairs_ns(c10::Allocator &from, size_t bytes, size_t count, size_t depth) {
  std::vector<at::DataPtr> held(depth);
  for (size_t i = 0; i < 4 * depth; i++)
    held[i % depth] = from.allocate(bytes); // warm: the cache has what the loop takes
  held.clear();
  held.resize(depth);
  auto begin = Clock::now();
  for (size_t i = 0; i < count; i++) {
    held[i % depth].clear();
    held[i % depth] = from.allocate(bytes);
  }
  held.clear();
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / static_cast<double>(count);
}

// The mean of the threads; -1: refused.
double threads_pairs_ns(c10::Allocator &from, size_t bytes, size_t count, size_t depth, int threads) {
  std::vector<double> ns(static_cast<size_t>(threads), -1);
  std::atomic<int> ready{0};
  std::vector<std::thread> all;
  auto work = [&](size_t index) {
    try {
      ready++;
      while (ready.load() < threads) std::this_thread::yield();
      ns[index] = pairs_ns(from, bytes, count, depth);
    } catch (const std::exception &error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
  };
  for (int i = 1; i < threads; i++) all.emplace_back(work, static_cast<size_t>(i));
  work(0);
  for (auto &each : all) each.join();
  double sum = 0;
  for (double each : ns) {
    if (each < 0) return -1;
    sum += each;
  }
  return sum / threads;
}

} // namespace

CALLS_EXPORT int calls_minor() { return LADE_TORCH_MINOR; }
CALLS_EXPORT const char *calls_error() { return last_error.c_str(); }

// The registered allocator's address, to see that it stays the same.
CALLS_EXPORT void *calls_allocator() { return at::getHostAllocator(at::kCUDA); }

// A block, as a handle to give to the others and at last to calls_release(); NULL: refused.
CALLS_EXPORT at::DataPtr *calls_allocate(size_t bytes) {
  at::DataPtr *out = nullptr;
  told([&] {
    out = new at::DataPtr(allocator().allocate(bytes));
    return 0;
  });
  return out;
}

CALLS_EXPORT void calls_release(at::DataPtr *block) { delete block; }
CALLS_EXPORT void *calls_pointer(at::DataPtr *block) { return block->get(); }
CALLS_EXPORT void *calls_context(at::DataPtr *block) { return block->get_context(); }
CALLS_EXPORT void *calls_deleter(at::DataPtr *block) { return reinterpret_cast<void *>(block->get_deleter()); }
CALLS_EXPORT int calls_device_type(at::DataPtr *block) { return static_cast<int>(block->device().type()); }

// 1: noted, 0: not known, -1: refused.
CALLS_EXPORT int calls_record(void *pointer, void *context, int64_t stream, int device) {
  return told([&] { return allocator().record_event(pointer, context, stream_of(stream, device)) ? 1 : 0; });
}

CALLS_EXPORT int calls_empty_cache() {
  return told([&] {
    allocator().empty_cache();
    return 0;
  });
}

CALLS_EXPORT int calls_copy(void *destination, const void *source, size_t bytes) {
  return told([&] {
    allocator().copy_data(destination, source, bytes);
    return 0;
  });
}

CALLS_EXPORT at::DataPtr *calls_clone(at::DataPtr *block, size_t bytes) {
  at::DataPtr *out = nullptr;
  told([&] {
    out = new at::DataPtr(allocator().clone(block->get(), bytes));
    return 0;
  });
  return out;
}

// Figures in the order of PyTorch's four stats and their cells (current, peak, allocated, freed), then both counts and both
// totals of time: 20 numbers.
CALLS_EXPORT int calls_stats(int64_t *out) {
  return told([&] {
    const at::HostStats stats = allocator().get_stats();
#if LADE_TORCH_HAS_ACTIVE_STATS
    const c10::CachingAllocator::Stat all[] = {stats.active_requests, stats.active_bytes, stats.allocations,
                                               stats.allocated_bytes};
#else
    const c10::CachingAllocator::Stat all[] = {stats.allocation, stats.allocated_bytes, stats.segment,
                                               stats.reserved_bytes};
#endif
    for (const auto &stat : all) {
      *out++ = stat.current;
      *out++ = stat.peak;
      *out++ = stat.allocated;
      *out++ = stat.freed;
    }
    *out++ = stats.num_host_alloc;
    *out++ = stats.num_host_free;
    *out++ = stats.host_alloc_time.total;
    *out++ = stats.host_free_time.total;
    return 0;
  });
}

CALLS_EXPORT int calls_reset(int peaks) {
  return told([&] {
    if (peaks != 0)
      allocator().reset_peak_stats();
    else
      allocator().reset_accumulated_stats();
    return 0;
  });
}

#if LADE_TORCH_HAS_HOST_POOLS
// A capture that takes allocations while the current stream has this id.
CALLS_EXPORT int calls_pool_begin(uint64_t first, uint64_t second, int64_t stream) {
  return told([&] {
    allocator().begin_allocate_to_pool(
        {first, second}, [stream](c10::Stream each) { return each.id() == stream; });
    return 0;
  });
}

CALLS_EXPORT int calls_pool_end(uint64_t first, uint64_t second) {
  return told([&] {
    allocator().end_allocate_to_pool({first, second});
    return 0;
  });
}

CALLS_EXPORT int calls_pool_release(uint64_t first, uint64_t second) {
  return told([&] {
    allocator().release_pool({first, second});
    return 0;
  });
}
#endif

#if LADE_TORCH_HAS_HOST_HISTORY
namespace {
std::atomic<int> contexts_made{0}, contexts_alive{0};
struct CountedContext : c10::GatheredContext {
  CountedContext() { contexts_alive++; }
  ~CountedContext() override { contexts_alive--; }
};
std::shared_ptr<c10::GatheredContext> counted_context() {
  contexts_made++;
  return std::make_shared<CountedContext>();
}
} // namespace

CALLS_EXPORT int calls_history(int enabled, size_t max_entries, int when, int clear) {
  return told([&] {
    allocator().record_history(enabled != 0, counted_context, max_entries,
                               static_cast<c10::CachingDeviceAllocator::RecordContext>(when), clear != 0);
    return allocator().is_history_enabled() ? 1 : 0;
  });
}

CALLS_EXPORT int calls_contexts(int *out_alive) {
  *out_alive = contexts_alive.load();
  return contexts_made.load();
}

// Entries of one action (or -1: all) at an address (or 0: all); `out_contexts` of them have a context.
CALLS_EXPORT int calls_traces(int action, uint64_t address, int *out_contexts, int *out_sorted) {
  return told([&] {
    int count = 0;
    *out_contexts = 0;
    *out_sorted = 1;
    time_t last = 0;
    for (const auto &entry : allocator().get_traces()) {
      if (entry.time_.t_ < last) *out_sorted = 0;
      last = entry.time_.t_;
      if ((action >= 0 && entry.action_ != action) || (address != 0 && entry.addr_ != address)) continue;
      count++;
      *out_contexts += entry.context_ != nullptr;
    }
    return count;
  });
}

// State of the segment at an address: bit 0 allocated, bit 1 active, bit 2 with a context; -2: none there.
CALLS_EXPORT int calls_segment(uint64_t address, uint64_t *out_bytes, uint64_t *out_pool) {
  return told([&] {
    for (const auto &segment : allocator().get_segments()) {
      if (segment.address != address) continue;
      *out_bytes = segment.size;
      *out_pool = segment.owner_private_pool_id.first;
      return (segment.allocated ? 1 : 0) | (segment.active ? 2 : 0) | (segment.context_when_allocated ? 4 : 0);
    }
    return -2;
  });
}

CALLS_EXPORT int calls_external(void *pointer, size_t bytes) {
  return told([&] {
    if (bytes != 0)
      allocator().record_external_register(pointer, bytes);
    else
      allocator().record_external_unregister(pointer);
    return 0;
  });
}
#endif

// Nanoseconds of a pair of allocate and release with `threads` threads, each making `count` pairs: the mean of the threads. -1:
// refused.
CALLS_EXPORT double calls_pairs_ns(size_t bytes, size_t count, size_t depth, int threads) {
  return threads_pairs_ns(allocator(), bytes, count, depth, threads);
}

// The same of device memory.
CALLS_EXPORT double calls_device_pairs_ns(size_t bytes, size_t count, size_t depth, int threads) {
  return threads_pairs_ns(*c10::GetAllocator(c10::DeviceType::CUDA), bytes, count, depth, threads);
}

// ---- Device allocators -----------------------------------------------------------------------------------------------

namespace {

namespace device = c10::cuda::CUDACachingAllocator;

// Numbers the contexts that its recorder makes.
struct Numbered : c10::GatheredContext {
  explicit Numbered(int64_t its_number) : number(its_number) {}
  int64_t number;
};
std::atomic<int64_t> numbered{0};
std::shared_ptr<c10::GatheredContext> number_next() { return std::make_shared<Numbered>(++numbered); }

std::atomic<int64_t> tracked[16], failures{0};

} // namespace

// `level`: PyTorch's RecordContext.
CALLS_EXPORT int calls_device_history(int enabled, int level, int clear) {
  return told([&] {
    const auto when = static_cast<device::RecordContext>(level);
#if LADE_TORCH_HAS_SKIP_ACTIONS
    device::recordHistory(enabled != 0, number_next, 1000, when, clear != 0, {});
#else
    device::recordHistory(enabled != 0, number_next, 1000, when, clear != 0);
#endif
    return 0;
  });
}

// Begins a context of the compiler, of a name of so many bytes; 0: ends one.
CALLS_EXPORT int calls_device_compile_context(size_t name_bytes) {
  return told([&] {
    std::string name(name_bytes, 'n');
    if (name_bytes == 0)
      device::get()->popCompileContext();
    else
      device::get()->pushCompileContext(name);
    return 0;
  });
}

// The number of the context of the last event of this kind; 0: none, -2: no such event.
CALLS_EXPORT int64_t calls_device_event_context(int action) {
  return told([&]() -> int64_t {
    const auto snapshot = device::snapshot();
    const auto &events = snapshot.device_traces.at(0);
    for (auto event = events.rbegin(); event != events.rend(); event++) {
      if (event->action_ != action) continue;
      const auto *context = static_cast<const Numbered *>(event->context_.get());
      return context == nullptr ? 0 : context->number;
    }
    return -2;
  });
}

// The number of the context of the allocated block at an address; 0: none, -2: no such block.
CALLS_EXPORT int64_t calls_device_block_context(uintptr_t address) {
  return told([&]() -> int64_t {
    for (const auto &segment : device::snapshot().segments) {
      uintptr_t at = segment.address;
      for (const auto &block : segment.blocks) {
        const auto *context = static_cast<const Numbered *>(block.context_when_allocated.get());
        if (at == address && block.allocated) return context == nullptr ? 0 : context->number;
        at += block.size;
      }
    }
    return -2;
  });
}

// From now on events and failures are counted.
CALLS_EXPORT void calls_device_listen() {
  device::attachAllocatorTraceTracker([](const device::TraceEntry &entry) { tracked[entry.action_ & 15]++; });
  device::attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { failures++; });
}
CALLS_EXPORT int64_t calls_device_tracked(int action) { return tracked[action & 15]; }
CALLS_EXPORT int64_t calls_device_failures() { return failures; }
// As the destructor of a MemPool. -1: it throws, which would end the process there.
CALLS_EXPORT int calls_device_pool_end(uint64_t first, uint64_t second) {
  return told([&] {
    device::get()->releasePool(0, {first, second});
    device::get()->emptyCache({first, second});
    return 0;
  });
}
