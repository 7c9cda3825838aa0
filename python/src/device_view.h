// SPDX-License-Identifier: Apache-2.0
//
// Arrays that share a range of device memory: tensors of a checkpoint, fields of a batch.
//
//   DeviceView --> Block --> Shared --> the range, and the object that gave it
//   capsule ---------^
//
// V1  The bytes are there before a view is made: no consumer has to wait for a stream.
// V2  The range is given back with the last view and capsule in it. Streams that may still use it then are recorded: those that
//     DLPack names.
#ifndef LADE_PYTHON_DEVICE_VIEW_H
#define LADE_PYTHON_DEVICE_VIEW_H

#include "arena.h"
#include "layout.h"

namespace lade_python {

// A range of device memory that is given back as a whole.
class Shared : public Arena {
public:
  explicit Shared(Device on) : Arena(std::move(on)) {}
  // Its parts are not given back by themselves.
  void free(void *) noexcept override {}
  lade_status retire(lade_stream) noexcept override { return LADE_OK; }
  // Notes that work of a stream may use the range until it is given back.
  virtual lade_status record(lade_stream stream) noexcept = 0;
};

// The C++ object of lade.DeviceView. Its block's arena is a Shared.
class DeviceView {
public:
  // Part of a range, from `data` on.
  DeviceView(Shared &range, void *data, Layout &&layout)
      : block_(new Block(&range, data)), layout_(std::move(layout)) {}
  DeviceView(DeviceView &&other) noexcept : block_(other.block_), layout_(std::move(other.layout_)) {
    other.block_ = nullptr;
  }
  ~DeviceView() {
    if (block_) let_go(block_);
  }

  Block &block() const noexcept { return *block_; }
  Shared &range() const noexcept { return static_cast<Shared &>(*block_->arena()); }
  const Layout &layout() const noexcept { return layout_; }

private:
  Block *block_;
  Layout layout_;
};

void bind_device_view(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_DEVICE_VIEW_H
