// SPDX-License-Identifier: Apache-2.0
//
// The part that the arrays of the package have in common in Python: Buffer, DeviceBuffer, DeviceView.
#ifndef LADE_PYTHON_ARRAY_H
#define LADE_PYTHON_ARRAY_H

#include "arena.h"
#include "dlpack.h"
#include "layout.h"

#include <nanobind/stl/string.h>

namespace lade_python {

// Version 3 of NumPy's array interface, and of CUDA's, of bytes at an address.
nb::dict array_interface(const void *data, const Layout &layout);

// The memory of an arena as DLPack names it: host memory on a software device, else that type, on the arena's device.
DLDevice dlpack_device(const Block &block, int32_t type);

// NumPy calls it where an array has no interface that it reads: memory of a GPU.
[[noreturn]] void refuse_numpy(nb::handle self, const Block &block);

// Properties, and what Python prints. `Array` has block() and layout(). `where`: how the array stands to its device.
template <typename Array>
void bind_array(nb::class_<Array> &type, const char *device_text = "Its device.", const char *where = " on ") {
  type.def_prop_ro(
          "nbytes", [](const Array &array) { return array.layout().bytes(); }, "Size in bytes.")
      .def_prop_ro(
          "shape", [](const Array &array) { return array.layout().shape_tuple(); }, "Extents.",
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "ndim", [](const Array &array) { return array.layout().dims(); }, "Number of dimensions.")
      .def_prop_ro(
          "dtype", [](const Array &array) { return array.layout().dtype()->name; },
          "Name of the element type, such as ``\"float32\"``.")
      .def_prop_ro(
          "itemsize", [](const Array &array) { return static_cast<int>(array.layout().dtype()->bytes); },
          "Bytes of an element.")
      .def_prop_ro(
          "ptr", [](const Array &array) { return reinterpret_cast<uintptr_t>(array.block().pointer()); },
          "Address; 0 of an array without bytes.")
      .def_prop_ro(
          "device", [](const Array &array) { return DeviceObject(array.block().arena()->device()); }, device_text)
      .def(
          "__len__",
          [](const Array &array) {
            if (array.layout().dims() == 0) throw nb::type_error("an array without dimensions has no length");
            return array.layout().shape()[0];
          })
      .def(
          "__repr__",
          [where](nb::handle self) {
            const Array &array = nb::cast<const Array &>(self);
            return "<lade." + str_text(self.type().attr("__name__")) + " " + array.layout().text() + ", " +
                   bytes_text(array.layout().bytes()) + where + array.block().arena()->device().text() + ">";
          });
}

} // namespace lade_python

#endif // LADE_PYTHON_ARRAY_H
