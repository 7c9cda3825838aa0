// SPDX-License-Identifier: Apache-2.0
#include "status.h"

#include <nanobind/stl/string.h>

#include <cstdio>
#include <cstring>

namespace lade_python {

namespace {

// A class of lade.Error, and the classes of Python that programs catch where they do not know lade.
struct Row {
  lade_status status;
  const char *name;
  PyObject **also;          // NULL: none
  PyObject **too = nullptr; // a second one; NULL: none
};

const Row rows[] = {
    {LADE_NOT_READY, "NotReadyError", nullptr},
    {LADE_ERR_INVALID_ARGUMENT, "InvalidArgumentError", &PyExc_ValueError},
    {LADE_ERR_OUT_OF_HOST_MEMORY, "OutOfHostMemoryError", &PyExc_MemoryError},
    // Programs that try again with less know PyTorch's error, a RuntimeError.
    {LADE_ERR_OUT_OF_PINNED_MEMORY, "OutOfPinnedMemoryError", &PyExc_MemoryError, &PyExc_RuntimeError},
    {LADE_ERR_OUT_OF_DEVICE_MEMORY, "OutOfDeviceMemoryError", &PyExc_MemoryError, &PyExc_RuntimeError},
    {LADE_ERR_LIMIT, "LimitError", &PyExc_MemoryError, &PyExc_RuntimeError},
    {LADE_ERR_UNSUPPORTED, "UnsupportedError", &PyExc_NotImplementedError},
    {LADE_ERR_NO_DEVICE, "NoDeviceError", nullptr},
    {LADE_ERR_DEVICE_LOST, "DeviceLostError", nullptr},
    {LADE_ERR_DRIVER, "DriverError", nullptr},
    {LADE_ERR_FOREIGN_POINTER, "ForeignPointerError", &PyExc_ValueError},
    {LADE_ERR_NOT_BLOCK_START, "NotBlockStartError", &PyExc_ValueError},
    {LADE_ERR_DOUBLE_FREE, "DoubleFreeError", &PyExc_ValueError},
    {LADE_ERR_BUSY, "BusyError", nullptr},
    {LADE_ERR_FORKED, "ForkedError", nullptr},
    {LADE_ERR_IO, "IOError", &PyExc_OSError},
    {LADE_ERR_TRUNCATED, "TruncatedError", &PyExc_EOFError},
    {LADE_ERR_CANCELLED, "CancelledError", nullptr},
    {LADE_ERR_TIMEOUT, "TimeoutError", &PyExc_TimeoutError},
    {LADE_ERR_CAPTURE, "CaptureError", nullptr},
    {LADE_ERR_CHECKSUM, "ChecksumError", nullptr},
    {LADE_ERR_CONFIG, "ConfigError", &PyExc_ValueError},
    {LADE_ERR_CALLBACK, "CallbackError", nullptr},
    {LADE_ERR_STREAM_RETIRED, "StreamRetiredError", nullptr},
    {LADE_ERR_INTERNAL, "InternalError", nullptr},
    {LADE_ERR_FORMAT, "FormatError", &PyExc_ValueError},
    {LADE_ERR_OVERWRITTEN, "OverwrittenError", nullptr},
    {LADE_ERR_PEER, "PeerError", nullptr},
};

#define LADE_PYTHON_COUNT(name, number, text) +1
constexpr size_t status_count = 0 LADE_STATUS_TABLE(LADE_PYTHON_COUNT);
#undef LADE_PYTHON_COUNT
static_assert(sizeof rows / sizeof rows[0] == status_count - 1, "every status but LADE_OK has a class");

PyObject *base_class;                 // lade.Error; immortal
PyObject *status_class[status_count]; // by number; immortal
PyObject *argument_type_class;        // lade.ArgumentTypeError; immortal

PyObject *class_of(lade_status status) {
  const auto number = static_cast<size_t>(status);
  return number < status_count && status_class[number] ? status_class[number] : base_class;
}

PyObject *set_error_of(PyObject *type, const char *text, int64_t native_code) noexcept {
  // A text names files, whose names may be any bytes.
  PyObject *words = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace");
  PyObject *error = words ? PyObject_CallFunctionObjArgs(type, words, nullptr) : nullptr;
  Py_XDECREF(words);
  if (!error) return nullptr;
  PyObject *code = PyLong_FromLongLong(native_code);
  if (code && PyObject_SetAttrString(error, "native_code", code) == 0) PyErr_SetObject(type, error);
  Py_XDECREF(code);
  Py_DECREF(error);
  return nullptr;
}

PyObject *set_error_with(lade_status status, const char *text, int64_t native_code) noexcept {
  return set_error_of(class_of(status), text, native_code);
}

// A text for C: a null character, which a program has passed, would end it.
std::string without_nulls(const std::string &text) {
  std::string whole;
  for (const char c : text)
    if (c == '\0')
      whole += "\\x00";
    else
      whole += c;
  return whole;
}

void class_add(nb::module_ &module, const Row &row) {
  const std::string name = std::string("lade._lade.") + row.name;
  const std::string text = std::string(lade_status_name(row.status)) + ": " + lade_status_text(row.status) + ".";
  nb::list bases;
  for (PyObject *base : {base_class, row.also ? *row.also : nullptr, row.too ? *row.too : nullptr})
    if (base) bases.append(nb::borrow(base));
  PyObject *type = PyErr_NewExceptionWithDoc(name.c_str(), text.c_str(), nb::tuple(bases).ptr(), nullptr);
  if (!type) throw nb::python_error();
  nb::handle(type).attr("status") = static_cast<int>(row.status);
  status_class[row.status] = type;
  module.attr(row.name) = nb::borrow(type);
}

} // namespace

PyObject *set_error(lade_status status) noexcept {
  const lade_error *last = lade_last_error();
  const bool own = last->status == status && last->text[0] != '\0';
  return set_error_with(status, own ? last->text : lade_status_text(status), own ? last->native_code : 0);
}

PyObject *set_error(lade_status status, const char *text) noexcept { return set_error_with(status, text, 0); }

PyObject *set_error(const lade_error &error) noexcept {
  return set_error_with(error.status, error.text[0] != '\0' ? error.text : lade_status_text(error.status),
                        error.native_code);
}

void raise(lade_status status) {
  set_error(status);
  throw nb::python_error();
}

void raise(lade_status status, const std::string &text) {
  set_error(status, without_nulls(text).c_str());
  throw nb::python_error();
}

void refuse(const std::string &text) { raise(LADE_ERR_INVALID_ARGUMENT, text); }

void refuse_type(const std::string &text) {
  set_error_of(argument_type_class, without_nulls(text).c_str(), 0);
  throw nb::python_error();
}

void refuse_type(const std::string &name, nb::handle object, const std::string &expected) {
  refuse_type(name + " is a " + class_text(object) + "; expected " + expected);
}

const char *c_text(const std::string &text, const char *name) {
  if (text.find('\0') != std::string::npos)
    refuse(std::string(name) + " is " + repr_text(nb::str(text.c_str(), text.size())) +
           "; expected a str without null characters");
  return text.c_str();
}

void mistake_clear() {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError))
    throw nb::python_error();
  PyErr_Clear();
}

bool is_status(const nb::python_error &error, lade_status status) { return error.matches(class_of(status)); }

uint64_t positive(uint64_t value, const char *name) {
  if (value == 0) refuse(std::string(name) + " is 0; expected 1 or more, or None for the default");
  return value;
}

// Python keeps the UTF-8 of a text that has one.
static std::string text_of(PyObject *object) {
  const nb::object text = nb::steal(object);
  Py_ssize_t bytes = 0;
  if (!text) throw nb::python_error();
  if (const char *own = PyUnicode_AsUTF8AndSize(text.ptr(), &bytes)) return {own, static_cast<size_t>(bytes)};
  PyErr_Clear();
  const nb::object escaped = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  char *data = nullptr;
  if (!escaped || PyBytes_AsStringAndSize(escaped.ptr(), &data, &bytes) != 0) throw nb::python_error();
  return {data, static_cast<size_t>(bytes)};
}

std::string str_text(nb::handle object) { return text_of(PyObject_Str(object.ptr())); }
std::string repr_text(nb::handle object) { return text_of(PyObject_Repr(object.ptr())); }

std::string bytes_text(uint64_t bytes) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit < 5; unit++) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
  return text;
}

std::string class_text(nb::handle object) {
  nb::handle type(reinterpret_cast<PyObject *>(Py_TYPE(object.ptr())));
  const std::string name = str_text(type.attr("__qualname__")), module = str_text(type.attr("__module__"));
  return module == "builtins" ? name : module + "." + name;
}

void bind_status(nb::module_ &module) {
  module.def("_bytes_text", &bytes_text, nb::arg("bytes"), "\"1.5 MiB\".");
  base_class = PyErr_NewExceptionWithDoc(
      "lade._lade.Error",
      "A call of lade that failed; its classes are named after the statuses.\n\n"
      "Attributes\n----------\nstatus : int\n    Number of the status; 0 in this class itself.\n"
      "native_code : int\n    Code of the driver, or errno; 0 where none applies.",
      nullptr, nullptr);
  if (!base_class) throw nb::python_error();
  nb::handle(base_class).attr("status") = 0;
  nb::handle(base_class).attr("native_code") = 0;
  module.attr("Error") = nb::borrow(base_class);
  for (const Row &row : rows) class_add(module, row);
  argument_type_class = PyErr_NewExceptionWithDoc(
      "lade._lade.ArgumentTypeError",
      "An argument of a type that the call does not take: an InvalidArgumentError that is a TypeError, too.",
      nb::make_tuple(nb::borrow(status_class[LADE_ERR_INVALID_ARGUMENT]), nb::borrow(PyExc_TypeError)).ptr(), nullptr);
  if (!argument_type_class) throw nb::python_error();
  module.attr("ArgumentTypeError") = nb::borrow(argument_type_class);
}

} // namespace lade_python
