// SPDX-License-Identifier: Apache-2.0
#include "rmm_calls.h"

#include "device.h"
#include "stream.h"

#include <new>
#include <unordered_map>

namespace lade_python {

namespace {

struct RmmBlocks {
  nb::object object; // the lade.DeviceAllocator, which may be closed while no block is out
  AllocatorObject *native = nullptr;
  std::shared_ptr<Stream> own;
  std::unordered_map<uintptr_t, Block *> blocks;

  RmmBlocks(nb::handle allocator, nb::handle own_stream)
      : object(nb::borrow(allocator)), own(stream_owner(own_stream)) {
    (void)allocator_from(allocator);
    native = nb::cast<AllocatorObject *>(allocator);
    if (!own) refuse_type("own", own_stream, "a lade.Stream");
  }
  RmmBlocks(const RmmBlocks &) = delete;
  RmmBlocks &operator=(const RmmBlocks &) = delete;
  ~RmmBlocks() {
    for (const auto &entry : blocks) let_go(entry.second);
  }
};

// The default streams live as long as the process, or their thread.
bool is_default(lade_stream stream) {
  return !stream || stream == LADE_STREAM_LEGACY || stream == LADE_STREAM_PER_THREAD;
}

nb::object allocate(RmmBlocks &self, uint64_t nbytes, nb::handle stream) {
  const Use<Allocator> use = self.native->use();
  Allocator &allocator = *use;
  const lade_stream asked = stream_from(allocator.runtime(), stream, allocator.device().ordinal);
  Block *block = is_default(asked) ? device_block(allocator, nbytes, asked)
                                   : device_block(allocator, nbytes, self.own->get(), self.own); // M2
  const auto address = reinterpret_cast<uintptr_t>(block->pointer());
  nb::object number = nb::steal(PyLong_FromUnsignedLongLong(address));
  try {
    if (!number) throw nb::python_error();
    if (address) self.blocks.emplace(address, block);
  } catch (...) {
    let_go(block);
    throw;
  }
  if (!address) let_go(block);
  return number;
}

// RMM promises order after the work of this stream, whatever stream the block was made on.
void block_free(RmmBlocks &self, uintptr_t pointer, nb::handle stream) {
  auto node = self.blocks.extract(pointer);
  try {
    device_record(*node.mapped(), stream);
  } catch (...) {
    self.blocks.insert(std::move(node)); // as it was: another free may succeed
    throw;
  }
  let_go(node.mapped());
}

// RMM calls it from destructors, where an error ends the process: it is printed. A block that could not be freed stays in use.
void deallocate(RmmBlocks &self, uintptr_t pointer, uint64_t nbytes, nb::handle stream) {
  if (!pointer) return;
  if (self.blocks.find(pointer) == self.blocks.end()) {
    PySys_WriteStderr("lade.rmm: free of 0x%llx, which this resource did not give: ignored\n",
                      static_cast<unsigned long long>(pointer));
    return;
  }
  try {
    block_free(self, pointer, stream);
    return;
  } catch (nb::python_error &error) {
    error.restore();
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  const bool is_interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0;
  PySys_WriteStderr("lade.rmm: %llu bytes at 0x%llx could not be freed and stay in use:\n",
                    static_cast<unsigned long long>(nbytes), static_cast<unsigned long long>(pointer));
  PyErr_WriteUnraisable(stream.ptr());
  if (is_interrupted) PyErr_SetInterrupt(); // for a thread that can take it
}

} // namespace

void bind_rmm(nb::module_ &module) {
  Locked<RmmBlocks>(module, "_RmmBlocks", "What rmm.mr.CallbackMemoryResource takes: its two methods.")
      .def(nb::init<nb::handle, nb::handle>(), nb::arg("allocator"), nb::arg("own"))
      .def("allocate", &allocate, nb::arg("nbytes"), nb::arg("stream").none())
      .def("deallocate", &deallocate, nb::arg("pointer"), nb::arg("nbytes"), nb::arg("stream").none());
}

} // namespace lade_python
