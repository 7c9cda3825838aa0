// SPDX-License-Identifier: Apache-2.0
#include "dlpack.h"

#include <algorithm>
#include <vector>

namespace lade_python {

namespace {

// The memory of a capsule: one of the two structs first, so that it is found from its address.
template <typename Managed> struct Exported {
  Managed managed;
  Block *block;
  std::vector<int64_t> extents; // shape, then strides

  Exported(Block &of, const Layout &layout, DLDevice device) : managed(), block(&of) {
    const size_t dims = static_cast<size_t>(layout.dims());
    extents.assign(layout.shape(), layout.shape() + 2 * dims);
    const DType &dtype = *layout.dtype();
    managed.tensor.data = of.pointer();
    managed.tensor.device = device;
    managed.tensor.dims = layout.dims();
    managed.tensor.dtype = {dtype.code, static_cast<uint8_t>(dtype.bytes * 8), 1};
    managed.tensor.shape = extents.data();
    managed.tensor.strides = extents.data() + dims;
    managed.context = this;
    managed.deleter = [](Managed *of_managed) {
      auto *self = static_cast<Exported *>(of_managed->context);
      self->block->drop();
      delete self;
    };
    block->hold();
  }
};

template <typename Managed> nb::object capsule_of(Managed *managed, const char *name, PyCapsule_Destructor unused) {
  PyObject *capsule = PyCapsule_New(managed, name, unused);
  if (!capsule) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

// D1: the deleter of a capsule that no consumer took.
template <typename Managed> void capsule_drop(PyObject *capsule, const char *name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto *managed = static_cast<Managed *>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

// Whether the consumer knows the versioned struct.
bool is_versioned(nb::handle max_version) {
  if (max_version.is_none()) return false;
  if (!PyTuple_Check(max_version.ptr()) || PyTuple_Size(max_version.ptr()) != 2 ||
      !PyLong_Check(PyTuple_GetItem(max_version.ptr(), 0)))
    refuse("max_version is " + repr_text(max_version) + "; expected (major, minor)");
  int overflow = 0;
  const long major = PyLong_AsLongAndOverflow(PyTuple_GetItem(max_version.ptr(), 0), &overflow);
  return overflow > 0 || major >= 1;
}

} // namespace

nb::object dlpack_export(Block &block, const Layout &layout, DLDevice device, nb::handle max_version, bool is_copied) {
  if (!is_versioned(max_version)) {
    auto *exported = new Exported<DLManagedTensor>(block, layout, device);
    return capsule_of(&exported->managed, "dltensor",
                      [](PyObject *capsule) { capsule_drop<DLManagedTensor>(capsule, "dltensor"); });
  }
  auto *exported = new Exported<DLManagedTensorVersioned>(block, layout, device);
  exported->managed.major = 1;
  exported->managed.minor = 1;
  if (is_copied) exported->managed.flags = kDLCopied;
  return capsule_of(&exported->managed, "dltensor_versioned",
                    [](PyObject *capsule) { capsule_drop<DLManagedTensorVersioned>(capsule, "dltensor_versioned"); });
}

bool dlpack_is_copy(nb::handle copy) {
  const int is_true = copy.is_none() ? 0 : PyObject_IsTrue(copy.ptr());
  if (is_true < 0) throw nb::python_error();
  return is_true == 1;
}

bool dlpack_device_from(nb::handle object, DLDevice &out) {
  if (object.is_none()) return false;
  PyObject *pair = object.ptr();
  if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2)
    refuse("dl_device is " + repr_text(object) + "; expected (device_type, device_id)");
  int values[2];
  for (int i = 0; i < 2; i++) { // enums of ints among them
    const nb::object number = nb::steal(PyNumber_Index(PyTuple_GetItem(pair, i)));
    if (!number) throw nb::python_error();
    if (!nb::try_cast(number, values[i]))
      refuse("dl_device is " + repr_text(object) + "; expected (device_type, device_id), both of 32 bits");
  }
  out = {values[0], values[1]};
  return true;
}

void dlpack_refuse_copy(const char *what, DLDevice own, nb::handle dl_device, nb::handle copy) {
  DLDevice wanted = own;
  const bool elsewhere = dlpack_device_from(dl_device, wanted) && !(wanted.type == own.type && wanted.id == own.id);
  if (!elsewhere && !dlpack_is_copy(copy)) return;
  PyErr_Format(PyExc_BufferError, "a %s on (%d, %d) makes no copies; expected copy=None or False, and dl_device=None",
               what, own.type, own.id);
  throw nb::python_error();
}

} // namespace lade_python
