// SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include "array.h"
#include "pinned.h"

#include <cstring>

namespace lade_python {

namespace {

// Address of arrays without bytes.
alignas(64) char nothing[64];

Buffer &self_of(PyObject *self) { return *nb::inst_ptr<Buffer>(self); }

// Pinned memory is not there in a child after fork(), and the library refuses every call: reading it would end the child.
void refuse_child(const Buffer &buffer) {
  if (!buffer.block().pointer()) return;
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  const auto &pool = static_cast<Pool &>(*buffer.block().arena());
  check(lade_pinned_find(pool.get(), buffer.block().pointer(), &info));
}

// Note [Buffer protocol]: the buffer's own shape and strides are shown; `internal` keeps the strides in bytes.
int fill_view(PyObject *self, Py_buffer *view, int flags) {
  Buffer &buffer = self_of(self);
  const Layout &layout = buffer.layout();
  const DType &dtype = *layout.dtype();
  refuse_child(buffer);
  if ((flags & PyBUF_FORMAT) && !dtype.format) {
    PyErr_Format(
        PyExc_BufferError,
        "a buffer of %s has no format of the struct module: ask for bytes without one, or use __array_interface__ or "
        "__dlpack__",
        dtype.name);
    return -1;
  }
  const bool is_fortran_too = layout.dims() <= 1 || layout.bytes() == 0;
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_fortran_too) {
    PyErr_SetString(PyExc_BufferError, "the buffer is C-contiguous, and not Fortran-contiguous");
    return -1;
  }
  std::unique_ptr<Py_ssize_t[]> strides;
  if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES && layout.dims() > 0) {
    strides.reset(new Py_ssize_t[static_cast<size_t>(layout.dims())]);
    for (int i = 0; i < layout.dims(); i++) strides[static_cast<size_t>(i)] = layout.strides()[i] * dtype.bytes;
  }
  view->buf = buffer.data();
  view->len = static_cast<Py_ssize_t>(layout.bytes());
  view->readonly = 0;
  view->itemsize = dtype.bytes;
  view->format = flags & PyBUF_FORMAT ? const_cast<char *>(dtype.format) : nullptr;
  const bool is_shaped = (flags & PyBUF_ND) != 0;
  view->ndim = is_shaped ? layout.dims() : 1;
  view->shape = is_shaped && layout.dims() > 0 ? const_cast<Py_ssize_t *>(layout.shape()) : nullptr;
  view->suboffsets = nullptr;
  view->strides = strides.get();
  view->internal = strides.release();
  view->obj = self;
  Py_INCREF(self);
  return 0;
}

int get_buffer(PyObject *self, Py_buffer *view, int flags) noexcept {
  view->obj = nullptr;
  if (!nb::inst_ready(self)) { // by __new__() alone: only a pool makes one
    PyErr_SetString(PyExc_BufferError, "this Buffer is of no pool; expected one that PinnedPool.empty() gave");
    return -1;
  }
  try {
    return fill_view(self, view, flags);
  } catch (nb::python_error &error) {
    error.restore();
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  return -1;
}

void release_buffer(PyObject *, Py_buffer *view) noexcept { delete[] static_cast<Py_ssize_t *>(view->internal); }

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(&get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void *>(&release_buffer)},
                       {0, nullptr}};

nb::dict buffer_interface(const Buffer &buffer) {
  refuse_child(buffer);
  return array_interface(buffer.data(), buffer.layout());
}

// A copy of the buffer, in the same pool.
Buffer copy_of(const Buffer &buffer) {
  const Layout &layout = buffer.layout();
  Buffer out(pool_block(static_cast<Pool &>(*buffer.block().arena()), layout.bytes()),
             Layout(layout.shape(), layout.dims(), layout.dtype()));
  Unlocked unlocked;
  std::memcpy(out.data(), buffer.data(), layout.bytes());
  return out;
}

// The array API's protocol. Host memory has no stream; pinned memory may be taken as plain host memory.
nb::object dlpack(const Buffer &buffer, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  nb::handle copy) {
  if (!stream.is_none())
    refuse("stream is " + repr_text(stream) + "; expected None: pinned memory is host memory, which has none");
  refuse_child(buffer);
  const DLDevice own = dlpack_device(buffer.block(), kDLCUDAHost);
  DLDevice wanted = own;
  if (dlpack_device_from(dl_device, wanted) && !(wanted.type == own.type && wanted.id == own.id) &&
      !(wanted.type == kDLCPU && wanted.id == 0)) {
    PyErr_Format(
        PyExc_BufferError,
        "dl_device is (%d, %d); the buffer can be shown as (%d, %d), where it is, and as (1, 0), plain host memory",
        wanted.type, wanted.id, own.type, own.id);
    throw nb::python_error();
  }
  if (dlpack_is_copy(copy)) {
    const Buffer copied = copy_of(buffer);
    return dlpack_export(copied.block(), copied.layout(), wanted, max_version, true);
  }
  return dlpack_export(buffer.block(), buffer.layout(), wanted, max_version, false);
}

} // namespace

void *Buffer::data() const noexcept { return block_->pointer() ? block_->pointer() : nothing; }

void bind_buffer(nb::module_ &module) {
  nb::class_<Buffer> type(
      module, "Buffer", nb::type_slots(slots), nb::is_weak_referenceable(),
      "An array in pinned memory: C-contiguous and writable, its contents undefined at first.\n\n"
      "It has the buffer protocol (memoryview, numpy.asarray, torch.frombuffer), "
      "``__array_interface__`` and DLPack. The\n"
      "memory goes back to its pool when the buffer and the last view of it are gone, in whatever "
      "thread that is; where a\n"
      "stream was recorded for it (PinnedPool.record), it is handed out again when the stream is done.");
  bind_array(type, "Device that the memory is near to.", " near ");
  type.def_prop_ro("__array_interface__", &buffer_interface, "Version 3 of NumPy's array interface.",
                   nb::sig("def __array_interface__(self) -> dict[str, object]"))
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: None = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
           "A DLPack capsule, for from_dlpack of other packages.\n\n"
           "Parameters\n----------\nstream : None\n    Host memory has no stream.\n"
           "max_version : tuple of int\n    Newest version that the consumer knows; from (1, 0) on the versioned "
           "struct is given.\n"
           "dl_device : tuple of int\n    (1, 0) shows pinned memory as plain host memory.\n"
           "copy : bool\n    True: a copy in the same pool.\n\n"
           "Raises\n------\nBufferError\n    dl_device is another one.")
      .def(
          "__dlpack_device__",
          [](const Buffer &buffer) {
            const DLDevice device = dlpack_device(buffer.block(), kDLCUDAHost);
            return nb::make_tuple(device.type, device.id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
          "``(3, ordinal)``, pinned memory of CUDA; ``(1, 0)``, host memory, on a software device.")
      .def(
          "numpy", [](nb::handle self) { return nb::module_::import_("numpy").attr("asarray")(self); },
          "The buffer as a NumPy array, without a copy. Types that NumPy lacks are void types of their size.",
          nb::sig("def numpy(self) -> numpy.typing.NDArray[typing.Any]"));
}

} // namespace lade_python
