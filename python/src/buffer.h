// SPDX-License-Identifier: Apache-2.0
//
// Arrays in pinned memory: what PinnedPool.empty() returns.
#ifndef LADE_PYTHON_BUFFER_H
#define LADE_PYTHON_BUFFER_H

#include "arena.h"
#include "layout.h"

namespace lade_python {

// The C++ object of lade.Buffer: a C-contiguous, writable array in one block. Views of it (memoryview, NumPy) hold the Python object,
// DLPack capsules the block. Holds no Python object, so it is in no cycle.
class Buffer {
public:
  // Takes over a count of the block.
  Buffer(Block *block, Layout &&layout) noexcept : block_(block), layout_(std::move(layout)) {}
  Buffer(Buffer &&other) noexcept : block_(other.block_), layout_(std::move(other.layout_)) { other.block_ = nullptr; }
  ~Buffer() {
    if (block_) let_go(block_);
  }

  Block &block() const noexcept { return *block_; }
  const Layout &layout() const noexcept { return layout_; }
  // Where the bytes are; of an array without bytes an address that may be read 0 bytes of.
  void *data() const noexcept;

private:
  Block *block_;
  Layout layout_;
};

void bind_buffer(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_BUFFER_H
