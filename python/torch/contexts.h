// SPDX-License-Identifier: Apache-2.0
//
// Contexts of lade's histories that PyTorch's recorder captures: Python and C++ frames.
//
// A context is a std::shared_ptr of PyTorch's on the heap, made by `capture` and freed by `release`. The contexts that leave a history are
// copies. The recorder never goes back to NULL while a history may capture: it is a function of PyTorch's, which stays loaded.
#ifndef LADE_TORCH_CONTEXTS_H
#define LADE_TORCH_CONTEXTS_H

#include "torch_abi.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <lade/history.h>

#include <algorithm>
#include <atomic>
#include <memory>

namespace lade_torch {

using Context = std::shared_ptr<c10::GatheredContext>;
using CreateContext = Context (*)();

inline std::atomic<CreateContext> &context_recorder() {
  static std::atomic<CreateContext> recorder{nullptr};
  return recorder;
}

// An exception must not pass lade's C code: an event without a context is better.
inline void *context_capture(void *) noexcept {
  try {
    return new Context(context_recorder().load(std::memory_order_acquire)());
  } catch (...) {
    return nullptr;
  }
}

inline void context_release(void *, void *context) noexcept { delete static_cast<Context *>(context); }

inline Context context_of(const void *captured) {
  return captured == nullptr ? Context() : *static_cast<const Context *>(captured);
}

struct HistoryDeleter {
  void operator()(lade_history *history) const { lade_history_destroy(history); }
};

// Options of a history that is on. `when` is PyTorch's RecordContext, whose levels are those of lade.
template <typename When> lade_history_options history_options(CreateContext recorder, size_t max_entries, When when) {
  // PyTorch's default is no limit, and its ring grows with what comes. lade's is reserved, of 80 bytes an event: 1.25 GiB of
  // addresses, of which what was never written is no memory.
  constexpr size_t most_entries = size_t(1) << 24;
  if (recorder != nullptr) context_recorder().store(recorder, std::memory_order_release);
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  if (recorder != nullptr) options.level = static_cast<uint32_t>(when);
  options.max_entries = std::clamp(max_entries, size_t(1), most_entries);
  options.capture = context_capture;
  options.release = context_release;
  return options;
}

} // namespace lade_torch

#endif // LADE_TORCH_CONTEXTS_H
