// SPDX-License-Identifier: Apache-2.0
//
// Device memory by stream: DeviceAllocator, and the arrays it hands out.
#ifndef LADE_PYTHON_DEVICE_H
#define LADE_PYTHON_DEVICE_H

#include "arena.h"
#include "layout.h"
#include "stream.h"

namespace lade_python {

// An allocator: what lade.DeviceAllocator wraps.
class Allocator final : public Arena {
public:
  // `uncached`: a free gives memory back to the driver, which may wait for the device.
  Allocator(Device on, lade_device_allocator *handle, bool uncached)
      : Arena(std::move(on)), handle_(handle), uncached_(uncached) {
    runtime().arena_add(this);
  }
  ~Allocator() override;

  // Refuses a closed allocator.
  lade_device_allocator *get() const {
    lade_device_allocator *handle = handle_.load(std::memory_order_relaxed);
    if (__builtin_expect(!handle || (!has_gil && is_closing()), 0)) refuse("the DeviceAllocator is closed");
    return handle;
  }
  bool is_closed() const noexcept { return !handle_.load(std::memory_order_relaxed) || (!has_gil && is_closing()); }
  void close(bool wait);
  void free(void *pointer) noexcept override {
    if (is_abandoned()) return;
    if (uncached_)
      without_gil([&] { (void)lade_device_free(handle_, pointer); });
    else
      (void)lade_device_free(handle_, pointer);
  }
  lade_status retire(lade_stream stream) noexcept override { return lade_device_stream_retire(handle_, stream); }

private:
  std::atomic<lade_device_allocator *> handle_; // NULL: closed
  const bool uncached_;
};

// The C++ object of lade.DeviceAllocator.
struct AllocatorObject {
  Owner<Allocator> allocator;
  AllocatorObject() = default;
  AllocatorObject(AllocatorObject &&) = default;
  ~AllocatorObject() { let_go(allocator); }
  Use<Allocator> use() const noexcept { return Use<Allocator>(allocator); }
};

// The allocator that an argument means: a lade.DeviceAllocator that is open. Refuses the rest by name.
Owner<Allocator> allocator_from(nb::handle object);

// The C++ object of lade.DeviceBuffer: a C-contiguous array in one block of device memory, first used on `stream`.
class DeviceBuffer {
public:
  // Takes over a count of the block.
  DeviceBuffer(Block *block, Layout &&layout, lade_stream stream) noexcept
      : block_(block), layout_(std::move(layout)), stream_(stream) {}
  DeviceBuffer(DeviceBuffer &&other) noexcept
      : block_(other.block_), layout_(std::move(other.layout_)), stream_(other.stream_) {
    other.block_ = nullptr;
  }
  ~DeviceBuffer() {
    if (block_) let_go(block_);
  }

  Block &block() const noexcept { return *block_; }
  const Layout &layout() const noexcept { return layout_; }
  lade_stream stream() const noexcept { return stream_; }
  Allocator &allocator() const noexcept { return static_cast<Allocator &>(*block_->arena()); }

private:
  Block *block_;
  Layout layout_;
  lade_stream stream_;
};

// A block of the allocator, for work on `on`. Waits without the GIL.
Block *device_block(Allocator &allocator, size_t bytes, lade_stream on, std::shared_ptr<void> kept = nullptr);
// Notes a stream, an argument, on a block of an allocator. Refuses one that tells of another device.
void device_record(const Block &block, nb::handle stream);

// The same as an array, for work on `stream`, a stream argument; the block holds a lade.Stream. Waits without the GIL.
DeviceBuffer device_empty(Allocator &allocator, Layout &&layout, nb::handle stream);

void bind_device(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_DEVICE_H
