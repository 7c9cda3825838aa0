// SPDX-License-Identifier: Apache-2.0
#include "natural.h"

#include "runtime.h"

namespace lade_python {

nb::object integer_of(nb::handle object) {
  if (!PyIndex_Check(object.ptr()) || PyBool_Check(object.ptr())) return {};
  nb::object number = nb::steal(python_run([&] { return PyNumber_Index(object.ptr()); }));
  if (!number) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
  }
  return number;
}

std::optional<uint64_t> NaturalArgument::read(const char *name) const {
  if (object.is_none()) return std::nullopt;
  if (!PyIndex_Check(object.ptr()))
    refuse(std::string(name) + " is a " + class_text(object) + "; expected an int of 0 or more");
  const nb::object number = nb::steal(python_run([&] { return PyNumber_Index(object.ptr()); }));
  if (!number) throw nb::python_error();
  const uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == UINT64_MAX && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(std::string(name) + " is " + str_text(number) + "; expected an int of 0 or more, below 2^64");
  }
  return value;
}

} // namespace lade_python
