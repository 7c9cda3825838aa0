// SPDX-License-Identifier: Apache-2.0
#include "adopted.h"

#include "status.h"

#include <nanobind/stl/string.h>

#include <string>

namespace lade_python {

Adopted::Adopted(const Owner<Pool> &pool, TensorView &&view, bool charged) : pool_(pool), view_(std::move(view)) {
  if (view_.on_device) refuse("array is in device memory; expected host memory");
  if (view_.bytes == 0) refuse("array has no bytes");
  if (view_.arena) refuse("array is a lade.Buffer, which is pinned memory already");
  uint32_t flags = 0;
  if (view_.read_only) flags |= LADE_PINNED_ADOPT_READ_ONLY;
  if (charged) flags |= LADE_PINNED_ADOPT_CHARGED;
  unlocked_call(*pool_.get(),
                [&](lade_pinned_pool *handle) { return lade_pinned_adopt(handle, view_.data, view_.bytes, flags); });
  open_ = true;
}

Adopted::Adopted(Adopted &&other) noexcept
    : pool_(std::move(other.pool_)), view_(std::move(other.view_)), open_(other.open_.exchange(false)) {}

Adopted::~Adopted() {
  if (!open_.exchange(false)) return;
  if (!pool_->is_abandoned()) {
    Unlocked unlocked;
    if (lade_pinned_disown(pool_->get(), view_.data) == LADE_OK) open_ = true;
  }
  // Memory that stays pinned stays there: a device may write to it.
  if (!open_) (void)new TensorView(std::move(view_));
  let_go(pool_);
}

void Adopted::close() {
  if (!open_.exchange(false)) return;
  try {
    unlocked_call(
        *pool_.get(), [&](lade_pinned_pool *handle) { return lade_pinned_disown(handle, view_.data); });
  } catch (...) {
    open_ = true;
    throw;
  }
  view_.reset();
  let_go(pool_);
}

namespace {

std::string text_of(const Adopted &self) {
  if (!self.is_open()) return "<lade.Adopted, closed>";
  return "<lade.Adopted " + bytes_text(self.view().bytes) + ">";
}

} // namespace

void bind_adopted(nb::module_ &module, nb::class_<PoolObject> &pool) {
  Locked<Adopted>(
      module, "Adopted", nb::is_weak_referenceable(),
      "Memory of the program's own that PinnedPool.adopt() has pinned. It is pinned until close(), the end of its "
      "``with`` block,\nor the object's end; the array and the pool are kept until then.")
      .def("close", &Adopted::close,
           "Take the pin off. No stream uses the memory any more; the driver may wait for all work of the device.\n\n"
           "Raises\n------\nDriverError\n    The memory stays pinned.")
      .def_prop_ro(
          "closed", [](const Adopted &self) { return !self.is_open(); }, "Whether the pin is off.")
      .def_prop_ro(
          "nbytes", [](const Adopted &self) { return self.is_open() ? self.view().bytes : 0; },
          "Bytes of the array; 0 once it is closed.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Adopted"))
      .def(
          "__exit__", [](Adopted &self, nb::args raised) { with_end(raised, [&] { self.close(); }); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", &text_of);
  pool.def(
      "adopt",
      [](const PoolObject &self, nb::handle array, bool charged) {
        (void)self.use()->get();
        return Adopted(self.pool, tensor_view(array, Access::read, "array"), charged);
      },
      nb::arg("array").none(), nb::kw_only(), nb::arg("charged") = false,
      nb::sig("def adopt(self, array: object, *, charged: bool = False) -> Adopted"),
      "Pin memory that the program has, where it lies: copies to and from a GPU are then as fast as those of a "
      "Buffer.\n\n"
      "Parameters\n----------\narray : NumPy array, mmap, memoryview, tensor in host memory\n"
      "    Contiguous. Its first and last page are pinned whole. One that cannot be written, such as a mapping of a "
      "checkpoint in\n    /dev/shm, is pinned for reading. A shared mapping of a file on a disk is pinned so alone.\n"
      "charged : bool\n    Another pool has charged these pages to the budget of pinned memory. Default: this pool "
      "charges "
      "them, or where several\n    processes adopt the same bytes of memory that they share, all of them together: "
      "once. The cap "
      "(``max_bytes``) does not\n    count them.\n\n"
      "Returns\n-------\nAdopted\n\n"
      "Raises\n------\nInvalidArgumentError\n    Also for pages that are pinned already.\nLimitError\n    By the "
      "budget.\nOutOfPinnedMemoryError\nUnsupportedError\n\n"
      "Examples\n--------\n"
      ">>> from multiprocessing.shared_memory import SharedMemory\n"
      ">>> shared = SharedMemory(create=True, size=1 << 20)\n"
      ">>> with pool.adopt(shared.buf):\n"
      "...     pass\n"
      ">>> shared.close(); shared.unlink()\n");
}

} // namespace lade_python
