// SPDX-License-Identifier: Apache-2.0
#include "status.h"

#include <cstring>

namespace lade_python {

namespace {

// A class of lade.Error, and the class of Python that programs catch where they do not know lade.
struct Row {
  lade_status status;
  const char *name;
  PyObject **also; // NULL: none
};

const Row rows[] = {
    {LADE_NOT_READY, "NotReadyError", nullptr},
    {LADE_ERR_INVALID_ARGUMENT, "InvalidArgumentError", &PyExc_ValueError},
    {LADE_ERR_OUT_OF_HOST_MEMORY, "OutOfHostMemoryError", &PyExc_MemoryError},
    {LADE_ERR_OUT_OF_PINNED_MEMORY, "OutOfPinnedMemoryError", &PyExc_MemoryError},
    {LADE_ERR_OUT_OF_DEVICE_MEMORY, "OutOfDeviceMemoryError", &PyExc_MemoryError},
    {LADE_ERR_LIMIT, "LimitError", &PyExc_MemoryError},
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

PyObject *class_of(lade_status status) {
  const auto number = static_cast<size_t>(status);
  return number < status_count && status_class[number] ? status_class[number] : base_class;
}

PyObject *set_error_with(lade_status status, const char *text, int64_t native_code) noexcept {
  PyObject *type = class_of(status);
  PyObject *error = PyObject_CallFunction(type, "s", text);
  if (!error) return nullptr;
  PyObject *code = PyLong_FromLongLong(native_code);
  if (code && PyObject_SetAttrString(error, "native_code", code) == 0) PyErr_SetObject(type, error);
  Py_XDECREF(code);
  Py_DECREF(error);
  return nullptr;
}

void class_add(nb::module_ &module, const Row &row) {
  const std::string name = std::string("lade._lade.") + row.name;
  const std::string text = std::string(lade_status_name(row.status)) + ": " + lade_status_text(row.status) + ".";
  nb::object bases = row.also ? nb::make_tuple(nb::borrow(base_class), nb::borrow(*row.also))
                              : nb::object(nb::make_tuple(nb::borrow(base_class)));
  PyObject *type = PyErr_NewExceptionWithDoc(name.c_str(), text.c_str(), bases.ptr(), nullptr);
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
  set_error(status, text.c_str());
  throw nb::python_error();
}

void refuse(const std::string &text) { raise(LADE_ERR_INVALID_ARGUMENT, text); }

uint64_t positive(uint64_t value, const char *name) {
  if (value == 0) refuse(std::string(name) + " is 0; expected 1 or more, or None for the default");
  return value;
}

std::string class_text(nb::handle object) {
  nb::handle type(reinterpret_cast<PyObject *>(Py_TYPE(object.ptr())));
  const auto name = nb::str(type.attr("__qualname__"));
  const auto module = nb::str(type.attr("__module__"));
  return std::strcmp(module.c_str(), "builtins") == 0 ? std::string(name.c_str())
                                                      : std::string(module.c_str()) + "." + name.c_str();
}

void bind_status(nb::module_ &module) {
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
}

} // namespace lade_python
