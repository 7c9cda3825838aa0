// SPDX-License-Identifier: Apache-2.0
//
// The source of memory: the native side of PinnedPool and DeviceAllocator, counted by its owners.
//
//   PinnedPool ------+                              (Python object)
//   Buffer ----------+--> Arena --> Runtime         Arena: Pool (pinned.h) or Allocator (device.h)
//   DLPack capsule --+
//
// A1  owners() counts: the Python object, each block handed out, each call under way without the GIL, each other object
//     that stands on it (a pipeline). The last one deletes, which closes and waits (R2).
// A2  close() is for owners() == 1, so that no other thread is in a call of the library on it, as its destroy functions demand:
//     a block counts until its free has returned.
// A3  A close begins where owners() is 1, in one step with taking that count (closing_begin()), and a call without a block counts before
//     it looks (Use): with the GIL that is needless, and Use counts nothing. retire() finds open ones alone: an arena is in its runtime's
//     list (Runtime::arena_add) from its creation until it is about to be closed. A closed arena refuses every call by name.
#ifndef LADE_PYTHON_ARENA_H
#define LADE_PYTHON_ARENA_H

#include "runtime.h"

namespace lade_python {

class Arena {
public:
  Arena(Device on) : device_(std::move(on)) {}
  virtual ~Arena() = default;
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  void hold() noexcept { owners_.fetch_add(1, std::memory_order_relaxed); }
  // Any thread, with or without the GIL.
  void drop() noexcept {
    if ((owners_.fetch_sub(1, std::memory_order_acq_rel) & ~closing_bit) == 1) end();
  }
  long owners() const noexcept { return owners_.load(std::memory_order_acquire) & ~closing_bit; }
  // A3. False: others own it. After it, is_closing() is true until closing_undo().
  bool closing_begin() noexcept {
    long sole = 1;
    return owners_.compare_exchange_strong(sole, 1 | closing_bit, std::memory_order_acq_rel);
  }
  void closing_undo() noexcept { owners_.fetch_and(~closing_bit, std::memory_order_acq_rel); }
  bool is_closing() const noexcept { return (owners_.load(std::memory_order_acquire) & closing_bit) != 0; }
  const Device &device() const noexcept { return device_; }
  Runtime &runtime() const noexcept { return *device_.runtime; }
  // R3, R4: what is there stays as it is.
  bool is_abandoned() const noexcept { return exiting() || runtime().is_of_parent(); }

  // Gives a block back. Any thread, with or without the GIL; failures stay in lade_last_error().
  virtual void free(void *pointer) noexcept = 0;
  // Tells the library that a stream is about to be destroyed. Called while the arena is in its runtime's list.
  virtual lade_status retire(lade_stream stream) noexcept = 0;

private:
  // R2.
  void end() noexcept {
    if (!exiting() && gil_is_held()) {
      Unlocked unlocked;
      delete this;
    } else {
      delete this;
    }
  }

  static constexpr long closing_bit = 1L << 62;
  std::atomic<long> owners_{1};
  Device device_;
};

// An owner. `Kind` is an Arena.
template <typename Kind> class Owner {
public:
  Owner() = default;
  // Takes over the count that a new arena starts with.
  explicit Owner(Kind *arena) noexcept : arena_(arena) {}
  Owner(const Owner &other) noexcept : arena_(other.arena_) {
    if (arena_) arena_->hold();
  }
  Owner(Owner &&other) noexcept : arena_(other.arena_) { other.arena_ = nullptr; }
  Owner &operator=(Owner other) noexcept {
    std::swap(arena_, other.arena_);
    return *this;
  }
  ~Owner() {
    if (arena_) arena_->drop();
  }

  Kind *get() const noexcept { return arena_; }
  Kind *operator->() const noexcept { return arena_; }
  explicit operator bool() const noexcept { return arena_ != nullptr; }

private:
  Kind *arena_ = nullptr;
};

// A call on an arena that a Python object owns (A3): made before the arena is asked whether it is closed, for as long as the call.
template <typename Kind> class Use {
public:
#if defined(Py_GIL_DISABLED)
  explicit Use(const Owner<Kind> &owner) noexcept : owner_(owner) {}
  Kind *operator->() const noexcept { return owner_.get(); }
  Kind &operator*() const noexcept { return *owner_.get(); }

private:
  Owner<Kind> owner_;
#else
  explicit Use(const Owner<Kind> &owner) noexcept : arena_(owner.get()) {}
  Kind *operator->() const noexcept { return arena_; }
  Kind &operator*() const noexcept { return *arena_; }

private:
  Kind *arena_;
#endif
};

// Lets go of an owner from Python: without the GIL where it is the last one, because that waits (R2).
template <typename Kind> void let_go(Owner<Kind> &owner) {
  Owner<Kind> gone = std::move(owner); // other threads find none from now on, not one that goes
  if (!gone || gone->owners() != 1) return;
  Unlocked unlocked;
  gone = Owner<Kind>();
}

// A block of memory that is given back with its last owner: a Buffer, and DLPack capsules made of it.
//
// B1  `pointer` is NULL for a block of no bytes, which no arena knows.
// B2  `kept` lives until the block is free: the stream that device memory was allocated on.
class Block {
public:
  Block(Arena *arena, void *pointer, std::shared_ptr<void> kept = nullptr) noexcept
      : arena_(arena), pointer_(pointer), kept_(std::move(kept)) {
    arena->hold();
  }
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;

  void hold() noexcept { owners_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  Arena *arena() const noexcept { return arena_; }
  void *pointer() const noexcept { return pointer_; }

private:
  ~Block() {
    if (pointer_) arena_->free(pointer_);
    kept_.reset();
    arena_->drop();
  }
  std::atomic<long> owners_{1};
  Arena *arena_;
  void *pointer_;
  std::shared_ptr<void> kept_;
};

// Lets go of a block from Python (R2).
inline void let_go(Block *block) {
  if (block->arena()->owners() == 1) {
    Unlocked unlocked;
    block->drop();
  } else {
    block->drop();
  }
}

// Closes an arena at a user's word; `destroy` is the library's call of its kind. Refuses while others stand on it (A2).
template <typename Handle, typename Destroy>
void arena_close(Arena &arena, std::atomic<Handle *> &handle, const char *class_name, Destroy destroy) {
  if (arena.owners() != 1 || !arena.runtime().arena_remove_sole(&arena)) {
    if (arena.is_closing()) return; // by another thread
    raise(LADE_ERR_BUSY, std::string("the ") + class_name + " cannot be closed: " + std::to_string(arena.owners() - 1) +
                             " buffers, exported tensors, calls in other threads or pipelines still use it");
  }
  Handle *closed = handle.exchange(nullptr); // calls from now on are refused (A3)
  lade_status status;
  {
    Unlocked unlocked;
    status = destroy(closed);
    if (status == LADE_OK) arena.runtime().arena_closed();
  }
  if (status == LADE_OK) return;
  handle.store(closed);
  arena.closing_undo();
  set_error(status);
  {
    Unlocked unlocked;
    arena.runtime().arena_restore(&arena);
  }
  throw nb::python_error();
}

// Runs a call of the library that may wait, without the GIL; the arena counts it (A1). Throws on failure.
template <typename Kind, typename Call> void unlocked_call(Kind &arena, Call call) {
  auto *handle = arena.get();
  arena.hold();
  lade_status status;
  {
    Unlocked unlocked;
    status = call(handle);
  }
  if (__builtin_expect(status != LADE_OK, 0)) set_error(status);
  arena.drop();
  if (__builtin_expect(status != LADE_OK, 0)) throw nb::python_error();
}

} // namespace lade_python

#endif // LADE_PYTHON_ARENA_H
