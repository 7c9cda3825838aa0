// SPDX-License-Identifier: Apache-2.0
//
// What lade/torch/__init__.py calls, by ctypes, and what PyTorch calls by address. No symbol but these is visible.
//
// E1  Functions for Python return 0 or more, or -1 with a text: no exception passes them. They are called without the interpreter's
//     lock.
// E2  Functions for PyTorch throw c10::Error and c10::OutOfMemoryError: PyTorch's own frames are above them.

#include "device_hooks.h"
#include "host_history.h"
#include "pinned_router.h"

#include <lade/config.h>
#include <lade/lade.h>

#include <cstdio>

#define LADE_TORCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace lade_torch {
namespace {

// E1.
template <typename Call> int told(char *text, size_t text_bytes, Call call) noexcept {
  try {
    return call();
  } catch (const c10::Error &error) {
    std::snprintf(text, text_bytes, "%s", error.what_without_backtrace());
  } catch (const std::exception &error) {
    std::snprintf(text, text_bytes, "%s", error.what());
  } catch (...) {
    std::snprintf(text, text_bytes, "an exception of an unknown kind");
  }
  return -1;
}

void check(lade_status status) {
  if (status != LADE_OK) throw_last_error(status);
}

// A pool that begins to serve while PyTorch records memory history joins in.
void join_history([[maybe_unused]] lade_pinned_pool *pool) {
#if LADE_TORCH_HAS_HOST_HISTORY
  HistoryRequest request;
  if (!HostHistory::get().current(&request)) return;
  lade_history *history = nullptr;
  check(lade_pinned_history_take(pool, &history));
  const bool is_on = history->capacity > 0;
  lade_history_destroy(history);
  if (!is_on) HostHistory::get().set(pool, request);
#endif
}

lade_device_options device_options(const char *settings) {
  lade_device_options options;
  lade_device_options_init(&options);
  lade_config config;
  lade_config_init(&config);
  config.device = &options;
  check(lade_config_parse(settings, &config));
  return options;
}

} // namespace
} // namespace lade_torch

using namespace lade_torch;

// ---- For Python ------------------------------------------------------------------------------------------------------

// Minor version of PyTorch that this was built for.
LADE_TORCH_EXPORT int lade_torch_minor() { return LADE_TORCH_MINOR; }

// 1: the library that this is linked with is as new as the headers it was built with.
LADE_TORCH_EXPORT int lade_torch_library_fits() {
  return lade_version() >= LADE_VERSION_MAJOR * 1000000 + LADE_VERSION_MINOR * 1000 + LADE_VERSION_PATCH ? 1 : 0;
}

// Address of a function in the library that this is linked with, to tell two copies of the library apart.
LADE_TORCH_EXPORT void *lade_torch_library() { return reinterpret_cast<void *>(&lade_pinned_alloc); }

// Puts the router in its place, and lets the pool serve. The pool and its runtime must live until the process ends (S1).
// Returns the index of the source.
LADE_TORCH_EXPORT int lade_torch_pinned_install(lade_pinned_pool *pool, lade_runtime *runtime, int is_software,
                                                char *text, size_t text_bytes) {
  return told(
      text, text_bytes,
      [&] {
        Router &router = Router::install();
        size_t index = router.source_for(pool, runtime, is_software != 0 ? Streams::software : Streams::cuda);
        join_history(pool);
        router.serve(static_cast<int>(index));
        return static_cast<int>(index);
      });
}

// Lets a source serve again; -1: PyTorch's own allocator.
LADE_TORCH_EXPORT void lade_torch_pinned_serve(int index) {
  if (Router *router = Router::installed()) router->serve(index);
}

LADE_TORCH_EXPORT uint64_t lade_torch_pinned_refused_frees() {
  const Router *router = Router::installed();
  return router == nullptr ? 0 : router->refused_frees();
}

// The stream that counts as this thread's current one for pools on software devices: for tests.
LADE_TORCH_EXPORT void lade_torch_software_stream(void *stream) {
  set_software_stream(static_cast<lade_stream>(stream));
}

// Says on which runtime and how device memory is to be allocated, the latter in the words of lade_config_parse().
LADE_TORCH_EXPORT int lade_torch_device_configure(const char *runtime_name, const char *settings, char *text,
                                                  size_t text_bytes) {
  return told(
      text, text_bytes,
      [&] {
        DeviceHooks::get().configure(runtime_name, device_options(settings));
        return 0;
      });
}

// The runtime of the device allocators; NULL before lade_torch_device_configure().
LADE_TORCH_EXPORT lade_runtime *lade_torch_device_runtime() { return DeviceHooks::get().runtime(); }

// The allocator of a device, or NULL while nothing was allocated there.
LADE_TORCH_EXPORT lade_device_allocator *lade_torch_device_allocator(int device) {
  return device >= 0 && device < DeviceHooks::max_devices ? DeviceHooks::get().existing(device) : nullptr;
}

// Calls `visit` for each statistic of a device's allocator; all are 0 while nothing was allocated there.
LADE_TORCH_EXPORT int lade_torch_device_stats(int device, lade_stat_visit visit, void *user, char *text,
                                              size_t text_bytes) {
  return told(
      text, text_bytes,
      [&] {
        lade_device_stats stats;
        lade_device_stats_init(&stats);
        lade_device_allocator *allocator = lade_torch_device_allocator(device);
        if (allocator != nullptr) check(lade_device_stats_get(allocator, &stats));
        check(lade_device_stats_each(&stats, visit, user));
        return 0;
      });
}

LADE_TORCH_EXPORT uint64_t lade_torch_device_refused_frees() { return DeviceHooks::get().refused_frees(); }

// ---- For PyTorch's CUDAPluggableAllocator: E2 ------------------------------------------------------------------------

LADE_TORCH_EXPORT void *lade_torch_device_alloc(size_t bytes, int device, cudaStream_t stream) {
  return DeviceHooks::get().allocate(bytes, device, stream);
}

LADE_TORCH_EXPORT void lade_torch_device_free(void *pointer, size_t, int device, cudaStream_t) {
  DeviceHooks::get().free(pointer, device);
}

LADE_TORCH_EXPORT void *lade_torch_segment_alloc(size_t bytes, int device, cudaStream_t stream) {
  return DeviceHooks::get().allocate(bytes, device, stream);
}

LADE_TORCH_EXPORT void lade_torch_segment_free(void *pointer, size_t, int device, cudaStream_t) {
  DeviceHooks::get().free_segment(pointer, device);
}

LADE_TORCH_EXPORT void lade_torch_device_reset() {
  DeviceHooks::get().for_each([](lade_device_allocator *allocator) { check(lade_device_empty_cache(allocator)); });
}

LADE_TORCH_EXPORT void lade_torch_device_memory_fraction(double fraction, int device) {
  check(lade_device_set_memory_fraction(DeviceHooks::get().allocator(device), fraction));
}

LADE_TORCH_EXPORT void *lade_torch_device_base(void *pointer, size_t *out_bytes) {
  lade_status status = LADE_ERR_FOREIGN_POINTER;
  void *base = nullptr;
  size_t bytes = 0;
  DeviceHooks::get().for_each([&](lade_device_allocator *allocator) {
    if (status == LADE_ERR_FOREIGN_POINTER) status = lade_device_base_get(allocator, pointer, &base, &bytes);
  });
  check(status);
  if (out_bytes != nullptr) *out_bytes = bytes;
  return base;
}

LADE_TORCH_EXPORT void lade_torch_device_record_stream(void *pointer, cudaStream_t stream) {
  DeviceHooks::get().record_stream(pointer, stream);
}

// PyTorch hands the function object over by value: C++ on both sides, by address alone.
LADE_TORCH_EXPORT void lade_torch_device_pool_begin(int device, DeviceHooks::PoolId id, DeviceHooks::Filter filter) {
  DeviceHooks::get().begin(device, id, std::move(filter));
}

LADE_TORCH_EXPORT void lade_torch_device_pool_end(int device, DeviceHooks::PoolId id) {
  DeviceHooks::get().end(device, id);
}

LADE_TORCH_EXPORT void lade_torch_device_pool_release(int device, DeviceHooks::PoolId id) {
  DeviceHooks::get().release(device, id);
}
