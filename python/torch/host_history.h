// SPDX-License-Identifier: Apache-2.0
//
// torch.cuda.memory._record_memory_history() and _snapshot() for pinned memory of lade (PyTorch 2.14 and newer): PyTorch's
// recorder captures the contexts of lade's history, and the history is shown as PyTorch's entries.
//
// H1  Contexts are as contexts.h has them.
// H2  PyTorch keeps its entries when recording stops; lade's history ends then. So the entries are taken before, into saved_.
// Locks: mutex_ guards saved_. It is not held while lade is called, whose `capture` may need the interpreter's lock.
#ifndef LADE_TORCH_HOST_HISTORY_H
#define LADE_TORCH_HOST_HISTORY_H

#include "torch_abi.h"

#if LADE_TORCH_HAS_HOST_HISTORY

#include "contexts.h"

#include <lade/pinned.h>

#include <map>
#include <mutex>
#include <vector>

namespace lade_torch {

using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;
using RecordContext = c10::CachingDeviceAllocator::RecordContext;

struct HistoryRequest {
  bool enabled;
  CreateContext recorder;
  size_t max_entries;
  RecordContext when;
  bool clear;
};

class HostHistory {
public:
  static HostHistory &get(); // never destroyed

  // As at::HostAllocator::record_history() for one pool.
  void set(lade_pinned_pool *pool, const HistoryRequest &request);
  // The request in force, for a pool that begins to serve while history is on. False: history is off.
  bool current(HistoryRequest *out_request) const;
  // Blocks in use, pending and cached; as PyTorch's, which are segments of their own.
  void append_segments(lade_pinned_pool *pool, std::vector<at::HostSegmentInfo> &segments);
  void append_traces(lade_pinned_pool *pool, std::vector<TraceEntry> &traces);

private:
  mutable std::mutex mutex_;
  std::map<lade_pinned_pool *, std::vector<TraceEntry>> saved_;
  HistoryRequest request_{};
};

// Oldest first; entries of one moment stay in their order.
void sort_by_time(std::vector<TraceEntry> &traces);

} // namespace lade_torch

#endif
#endif // LADE_TORCH_HOST_HISTORY_H
