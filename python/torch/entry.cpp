// SPDX-License-Identifier: Apache-2.0
//
// The functions that lade/torch/__init__.py calls, by ctypes, and that PyTorch calls by address. No symbol but these is visible.
//
// E1  Functions for Python return 0 or more, or -1 with a text: no exception passes them. They are called without the interpreter's
//     lock.
// E2  Functions for PyTorch throw c10::Error and c10::OutOfMemoryError: PyTorch's own frames are above them.

#include "device_allocator.h"
#include "device_caches.h"
#include "host_history.h"
#include "pinned_router.h"

#include <lade/config.h>
#include <lade/lade.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

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

// Applies the environment, as PyTorch reads it too, and then `settings`. As in PyTorch, private pools grow in ranges, the newest
// pool leads, and a block is back as soon as its streams are done.
lade_device_options device_options(const char *settings) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS | LADE_DEVICE_NEWEST_POOL;
  options.event_batch = 1;
  lade_config config;
  lade_config_init(&config);
  config.device = &options;
  check(lade_config_from_env(&config));
  check(lade_config_parse(settings, &config));
  // PyTorch's own settings fail an assertion where they name another backend than the one that is installed.
  TORCH_CHECK(options.backend == LADE_DEVICE_NATIVE,
              "lade: the settings (PYTORCH_CUDA_ALLOC_CONF in the environment, or \"", settings,
              "\") name another backend; expected backend:native, or none");
  return options;
}

// As PyTorch's setter: what it does not name keeps its value, except these three, which begin from their defaults.
void device_options_change(lade_device_options *options, const char *settings) {
  options->max_split_bytes = 0;
  options->collection_threshold = 0;
  std::fill(std::begin(options->roundup_divisions), std::end(options->roundup_divisions), 0);
  options->memory_fraction = 0; // configure: it stays as it is, but where `settings` name it
  lade_config config;
  lade_config_init(&config);
  config.device = options;
  check(lade_config_parse(settings, &config));
  options->backend = LADE_DEVICE_NATIVE;
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
        DeviceCaches::get().configure(runtime_name, device_options(settings));
        return 0;
      });
}

// The same, and lade is PyTorch's device allocator from now on.
LADE_TORCH_EXPORT int lade_torch_device_install(const char *runtime_name, const char *settings, char *text,
                                                size_t text_bytes) {
  return told(
      text, text_bytes,
      [&] {
        DeviceCaches::get().configure(runtime_name, device_options(settings));
        DeviceAllocator::install();
        return 0;
      });
}

// Settings that PyTorch was given while lade is its allocator.
LADE_TORCH_EXPORT int lade_torch_device_settings(const char *settings, char *text, size_t text_bytes) {
  return told(
      text, text_bytes,
      [&] {
        DeviceCaches::get().change([&](lade_device_options *options) { device_options_change(options, settings); });
        return 0;
      });
}

// Whether lade is PyTorch's device allocator.
LADE_TORCH_EXPORT int lade_torch_device_is_installed() { return DeviceAllocator::is_installed() ? 1 : 0; }

// Whether one of the two above was called.
LADE_TORCH_EXPORT int lade_torch_device_is_configured() { return DeviceCaches::get().is_configured() ? 1 : 0; }

// The allocator of a device, or NULL while nothing was allocated there.
LADE_TORCH_EXPORT lade_device_allocator *lade_torch_device_allocator(int device) {
  return device >= 0 && device < DeviceCaches::max_devices ? DeviceCaches::get().existing(device) : nullptr;
}

// The allocator of a device, made if there is none, for lade's calls in Python; and its runtime, and a function of its liblade.
LADE_TORCH_EXPORT int lade_torch_device_lend(int device, void **out, char *text, size_t text_bytes) {
  return told(
      text, text_bytes,
      [&] {
        TORCH_CHECK(device >= 0 && device < DeviceCaches::max_devices, "device is ", device, "; expected one of a GPU");
        out[0] = DeviceCaches::get().allocator(device);
        out[1] = DeviceCaches::get().runtime();
        out[2] = reinterpret_cast<void *>(&lade_device_alloc);
        return 0;
      });
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

LADE_TORCH_EXPORT uint64_t lade_torch_device_refused_frees() { return DeviceCaches::get().refused_frees(); }

// ---- For PyTorch's CUDAPluggableAllocator, whose MemPools take segments from lade: E2 ----------------------------------

LADE_TORCH_EXPORT void *lade_torch_segment_alloc(size_t bytes, int device, cudaStream_t stream) {
  return DeviceCaches::get().allocate(bytes, device, stream);
}

LADE_TORCH_EXPORT void lade_torch_segment_free(void *pointer, size_t, int device, cudaStream_t) {
  DeviceCaches::get().free_segment(pointer, device);
}
