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

// The result of __index__ of an argument. Arrays have one that refuses by TypeError.
static nb::object index_of(nb::handle object, const char *name, const char *expected) {
  if (!PyIndex_Check(object.ptr())) refuse_type(name, object, expected);
  nb::object number = nb::steal(python_run([&] { return PyNumber_Index(object.ptr()); }));
  if (number) return number;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  refuse_type(name, object, expected);
}

uint64_t natural_from(nb::handle object, const char *name) {
  const nb::object number = index_of(object, name, "an integer from 0 on");
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == ~0ull && PyErr_Occurred()) {
    mistake_clear();
    refuse(std::string(name) + " is " + repr_text(object) + "; expected an integer from 0 on");
  }
  return value;
}

std::optional<uint64_t> NaturalArgument::read(const char *name) const {
  if (object.is_none()) return std::nullopt;
  const nb::object number = index_of(object, name, "an int of 0 or more");
  const uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == UINT64_MAX && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(std::string(name) + " is " + str_text(number) + "; expected an int of 0 or more, below 2^64");
  }
  return value;
}

} // namespace lade_python
