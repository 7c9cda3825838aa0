// SPDX-License-Identifier: Apache-2.0
//
// Pools of pinned memory, and buffers in them.
#ifndef LADE_PYTHON_PINNED_H
#define LADE_PYTHON_PINNED_H

#include "arena.h"
#include "buffer.h"

namespace lade_python {

// A pool: what lade.PinnedPool wraps, and pipelines stand on.
class Pool final : public Arena {
public:
  Pool(Device on, lade_pinned_pool *handle) : Arena(std::move(on)), handle_(handle) { runtime().arena_add(this); }
  ~Pool() override;

  // Refuses a closed pool.
  lade_pinned_pool *get() const {
    lade_pinned_pool *handle = handle_.load(std::memory_order_relaxed);
    if (__builtin_expect(!handle || (!has_gil && is_closing()), 0)) refuse("the PinnedPool is closed");
    return handle;
  }
  bool is_closed() const noexcept { return !handle_.load(std::memory_order_relaxed) || (!has_gil && is_closing()); }
  // Unpins all memory; waits for streams if told to. Refuses while others stand on the pool (A2).
  void close(bool wait);
  void free(void *pointer) noexcept override {
    if (!is_abandoned()) (void)lade_pinned_free(handle_, pointer);
  }
  lade_status retire(lade_stream stream) noexcept override { return lade_pinned_stream_retire(handle_, stream); }

private:
  std::atomic<lade_pinned_pool *> handle_; // NULL: closed
};

// The C++ object of lade.PinnedPool.
struct PoolObject {
  Owner<Pool> pool;
  PoolObject() = default;
  PoolObject(PoolObject &&) = default;
  ~PoolObject() { let_go(pool); }
  Use<Pool> use() const noexcept { return Use<Pool>(pool); }
};

// The pool that an argument means: a lade.PinnedPool that is open. Refuses the rest by name.
Owner<Pool> pool_from(nb::handle object);

// A block of the pool. Waits without the GIL.
Block *pool_block(Pool &pool, size_t bytes);

void bind_pinned(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_PINNED_H
