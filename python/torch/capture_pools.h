// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory of graph captures. A graph names addresses: what it was captured with must stay what it is for as long as the
// graph may be launched, also where the use was not recorded (a kernel that reads pinned memory in place). So blocks that are
// allocated during a capture belong to the capture's pool, by PyTorch's number of it, and stay there until the pool is
// released.
//
//   allocate        block -> IN_USE                      in a capture whose filter takes the current stream
//   freed           IN_USE -> FREE                       no stream recorded: the same pool may have it again
//                   IN_USE -> KEPT                       recorded: the graph copies from or to it
//   pool released   KEPT -> lade_pinned_free()           lade knows by the record until when graphs and streams use it
//                   FREE -> RETURNING                    not known: given back by empty_cache, after a wait for the device
//                   IN_USE -> the same when it is freed
//
// C1  A block lies in blocks_ from its allocation until it is given back to its source.
// C2  A block of a pool is handed out again by that pool alone, and only if no stream was recorded for it.
// C3  underway_ is the number of captures_; while it is 0 allocate() pays one load. block_count_ is the size of blocks_; while it
//     is 0 record() pays one.
// C4  FREE and RETURNING blocks that graphs may have read in place go back only after a wait for their device, and never while a
//     capture is under way, which the wait would break.
// C5  end() and release() of a pool that is not known do nothing: its capture began before lade was installed.
// Locks: mutex_ guards all fields. Neither lade nor the driver is called under it, except a capture's filter, which asks the
// driver about the current stream.
#ifndef LADE_TORCH_CAPTURE_POOLS_H
#define LADE_TORCH_CAPTURE_POOLS_H

#include "source.h"

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace lade_torch {

using StreamFilter = std::function<bool(c10::Stream)>;

class CapturePools {
public:
  static CapturePools &get(); // never destroyed: S1

  bool is_underway() const noexcept { return underway_.load(std::memory_order_acquire) != 0; }

  void begin(PoolId id, StreamFilter filter);
  void end(PoolId id) noexcept;
  void release(PoolId id);

  // Memory for the current stream where a capture takes it. NULL: none does (LADE_OK), or the source refuses.
  void *allocate(const Source &source, size_t bytes, lade_status *out_status);
  // Called for every free of such a block.
  void free(void *pointer) noexcept;
  // Remembers that a stream uses the block, which Source::record() notes.
  void record(const void *address) noexcept;
  // Gives back what released pools have left. Nothing while captures are under way (C4).
  void reclaim();
  // PyTorch's number of the pool that an address belongs to; {0, 0}: none.
  PoolId owner(const void *address) const;

private:
  enum class State { in_use, free, kept, returning };
  struct Block {
    size_t bytes;
    const Source *source;
    PoolId pool;
    State state;
    bool is_recorded;
    bool is_orphan; // the pool was released while it was in use
    c10::DeviceIndex device;
  };
  using Blocks = std::map<uintptr_t, Block>;
  struct Capture {
    PoolId id;
    StreamFilter filter;
  };

  // The pool that a stream's capture fills. Under mutex_.
  const PoolId *pool_of(c10::Stream stream) const;
  void *reuse(const Source &source, PoolId id, size_t bytes);
  std::vector<std::pair<uintptr_t, Block>> returning() const;
  bool take_out(uintptr_t address) noexcept;
  Blocks::iterator containing(const void *address);
  void blocks_changed() noexcept { block_count_.store(blocks_.size(), std::memory_order_release); }

  mutable std::mutex mutex_;
  std::atomic<size_t> underway_{0};
  std::atomic<size_t> block_count_{0};
  std::vector<Capture> captures_;
  std::map<PoolId, int> users_; // begins without their release
  Blocks blocks_;
};

// Deleter of blocks that were allocated in a capture.
void release_captured(void *pointer) noexcept;

} // namespace lade_torch

#endif // LADE_TORCH_CAPTURE_POOLS_H
