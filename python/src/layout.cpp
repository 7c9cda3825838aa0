// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <algorithm>
#include <cstring>

namespace lade_python {

namespace {

// Codes of DLPack's DLDataTypeCode (dlpack.h of DLPack 1.1).
enum : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

const DType dtypes[] = {
    {"uint8", "|u1", "B", kUInt, 1},
    {"bool", "|b1", "?", kBool, 1},
    {"int8", "|i1", "b", kInt, 1},
    {"uint16", "<u2", "H", kUInt, 2},
    {"int16", "<i2", "h", kInt, 2},
    {"uint32", "<u4", "I", kUInt, 4},
    {"int32", "<i4", "i", kInt, 4},
    {"uint64", "<u8", "Q", kUInt, 8},
    {"int64", "<i8", "q", kInt, 8},
    {"float16", "<f2", "e", kFloat, 2},
    {"float32", "<f4", "f", kFloat, 4},
    {"float64", "<f8", "d", kFloat, 8},
    {"complex64", "<c8", "Zf", kComplex, 8},
    {"complex128", "<c16", "Zd", kComplex, 16},
    {"bfloat16", "<V2", nullptr, kBfloat, 2},
    {"float8_e4m3fn", "|V1", nullptr, 10, 1},
    {"float8_e4m3fnuz", "|V1", nullptr, 11, 1},
    {"float8_e5m2", "|V1", nullptr, 12, 1},
    {"float8_e5m2fnuz", "|V1", nullptr, 13, 1},
    {"float8_e8m0fnu", "|V1", nullptr, 14, 1},
};
constexpr size_t dtype_count = sizeof dtypes / sizeof dtypes[0];

// Objects seen before -> index in `dtypes`: small ints, which live as long as the process. Immortal; a dict guards itself. Few: only what
// names one of the types gets in.
PyObject *known() {
  static PyObject *const dict = PyDict_New();
  return dict;
}

// Name of the element type that an object names, "" if it is none of the known kinds.
std::string dtype_name(nb::handle object) {
  if (object.is_none()) return "uint8";
  if (PyUnicode_Check(object.ptr())) return str_text(object);
  const auto type = reinterpret_cast<PyTypeObject *>(object.ptr());
  if (type == &PyBool_Type) return "bool";
  if (type == &PyLong_Type) return "int64";
  if (type == &PyFloat_Type) return "float64";
  if (type == &PyComplex_Type) return "complex128";
  const std::string class_name = class_text(object);
  if (class_name == "torch.dtype") return str_text(object).substr(std::strlen("torch."));
  if (PyType_Check(object.ptr())) { // numpy.float32, ml_dtypes.bfloat16
    const std::string module = str_text(object.attr("__module__"));
    if (module != "numpy" && module != "ml_dtypes") return "";
    const std::string name = str_text(object.attr("__name__"));
    return name == "bool_" ? "bool" : name;
  }
  if (class_name.compare(0, 6, "numpy.") == 0 && nb::hasattr(object, "byteorder")) {
    if (nb::str(object.attr("byteorder")).equal(nb::str(">"))) return str_text(object.attr("str"));
    return str_text(object.attr("name"));
  }
  return "";
}

const DType *dtype_learn(nb::handle object) {
  const std::string name = dtype_name(object);
  const bool has_null = name.find('\0') != std::string::npos;
  const DType *found = name.empty() || has_null ? nullptr : dtype_find(name.c_str());
  if (!found) {
    const std::string expected =
        "; expected a name such as \"float32\", or a dtype of NumPy or torch of a plain little-endian type";
    if (name.empty() && !PyUnicode_Check(object.ptr()) && !PyType_Check(object.ptr()))
      refuse_type("dtype is " + repr_text(object) + ", a " + class_text(object) + expected);
    refuse("dtype is " + repr_text(object) + (name.empty() ? ", a " + class_text(object) : "") + expected);
  }
  const nb::int_ index(static_cast<size_t>(found - dtypes));
  if (PyDict_SetItem(known(), object.ptr(), index.ptr()) != 0) PyErr_Clear(); // unhashable: not kept
  return found;
}

// An extent, or -1 with a Python error.
int64_t extent_from(PyObject *number) {
  if (PyLong_Check(number)) return PyLong_AsLongLong(number);
  PyObject *index = PyNumber_Index(number);
  if (!index) return -1;
  const int64_t value = PyLong_AsLongLong(index);
  Py_DECREF(index);
  return value;
}

int64_t extent_checked(nb::handle number, nb::handle shape) {
  const int64_t value = extent_from(number.ptr());
  if (value >= 0) return value;
  const bool is_type = PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError);
  const char *const expected = "; expected an int of 0 or more, or a sequence of them";
  mistake_clear();
  const std::string text = "shape is " + repr_text(shape);
  if (is_type) refuse_type(text + (number.is(shape) ? ", a " : ", which has a ") + class_text(number) + expected);
  refuse(text + expected);
}

} // namespace

const DType *dtype_from(nb::handle object) {
  PyObject *index = PyDict_GetItemWithError(known(), object.ptr());
  if (index) return &dtypes[PyLong_AsSize_t(index)];
  PyErr_Clear();
  return dtype_learn(object);
}

const DType *dtype_find(const char *text) {
  const bool is_prefixed = *text == '<' || *text == '=' || *text == '|';
  for (const DType &dtype : dtypes) {
    if (std::strcmp(dtype.name, text) == 0) return &dtype;
    if (dtype.format && std::strcmp(dtype.typestr + 1, text + (is_prefixed ? 1 : 0)) == 0) return &dtype;
  }
  return nullptr;
}

const DType *dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes) {
  if (lanes != 1) return nullptr;
  for (const DType &dtype : dtypes)
    if (dtype.code == code && dtype.bytes * 8 == bits) return &dtype;
  return nullptr;
}

int64_t *Layout::extents(int dims) {
  dims_ = dims;
  if (dims > near) far_.reset(new int64_t[2 * static_cast<size_t>(dims)]);
  return far_ ? far_.get() : near_;
}

// Strides and bytes (L1). An extent of 0 counts as 1 in strides, as in NumPy.
void Layout::finish() {
  int64_t *shape = far_ ? far_.get() : near_;
  int64_t *strides = shape + dims_;
  int64_t elements = 1, bytes = 0;
  bool is_empty = false, is_over = false;
  for (int i = dims_ - 1; i >= 0; i--) {
    strides[i] = elements;
    if (shape[i] == 0)
      is_empty = true;
    else
      is_over |= __builtin_mul_overflow(elements, shape[i], &elements);
  }
  is_over |= __builtin_mul_overflow(elements, static_cast<int64_t>(dtype_->bytes), &bytes);
  if (is_over) refuse("shape: an array of " + text() + " has more bytes than an address space");
  bytes_ = is_empty ? 0 : static_cast<size_t>(bytes);
}

Layout::Layout(nb::handle shape, const DType *dtype) : dtype_(dtype), bytes_(0) {
  if (PyLong_Check(shape.ptr()) || !PySequence_Check(shape.ptr()) || PyUnicode_Check(shape.ptr()) ||
      PyBytes_Check(shape.ptr())) {
    *extents(1) = extent_checked(shape, shape);
  } else if (const Py_ssize_t dims = PySequence_Size(shape.ptr()); dims < 0) { // an array without dimensions
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    *extents(1) = extent_checked(shape, shape);
  } else {
    if (dims > max_dims)
      refuse("shape has " + std::to_string(dims) + " dimensions; expected at most " + std::to_string(max_dims));
    int64_t *out = extents(static_cast<int>(dims));
    for (Py_ssize_t i = 0; i < dims; i++) {
      const nb::object item = nb::steal(PySequence_GetItem(shape.ptr(), i));
      if (!item) throw nb::python_error();
      out[i] = extent_checked(item, shape);
    }
  }
  finish();
}

Layout::Layout(const int64_t *shape, int dims, const DType *dtype) : dtype_(dtype), bytes_(0) {
  if (dims < 0 || dims > max_dims)
    refuse("shape has " + std::to_string(dims) + " dimensions; expected at most " + std::to_string(max_dims));
  std::copy(shape, shape + dims, extents(dims));
  for (int i = 0; i < dims; i++)
    if (shape[i] < 0) refuse("shape has an extent of " + std::to_string(shape[i]) + "; expected 0 or more");
  finish();
}

nb::tuple Layout::shape_tuple() const {
  nb::list out;
  for (int i = 0; i < dims_; i++) out.append(shape()[i]);
  return nb::tuple(out);
}

std::string Layout::text() const {
  std::string out = "(";
  for (int i = 0; i < dims_; i++) out += (i ? ", " : "") + std::to_string(shape()[i]);
  return out + (dims_ == 1 ? ",) " : ") ") + dtype_->name;
}

} // namespace lade_python
