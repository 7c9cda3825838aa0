// SPDX-License-Identifier: Apache-2.0
#include "tensor_view.h"

#include "device.h"
#include "device_view.h"
#include "graphs.h"
#include "natural.h"
#include "pinned.h"
#include "stream.h"

#include <nanobind/stl/string.h>

#include <cstring>

namespace lade_python {

void TensorView::reset() noexcept {
  if (buffer_) PyBuffer_Release(buffer_.get());
  buffer_.reset();
  capsule_.reset();
  owner_.reset();
}

TensorView &TensorView::operator=(TensorView &&other) noexcept {
  reset();
  data = other.data, bytes = other.bytes, on_device = other.on_device, ordinal = other.ordinal;
  read_only = other.read_only, dtype = other.dtype, shape = std::move(other.shape);
  has_stream = other.has_stream, stream = other.stream, arena = other.arena;
  owner_ = std::move(other.owner_);
  capsule_ = std::move(other.capsule_);
  buffer_ = std::move(other.buffer_);
  return *this;
}

// Fills in a view from one way of showing memory.
struct TensorViewReader {
  nb::handle object;
  Access access;
  const char *name;
  TensorView view = {};

  [[noreturn]] void refuse_it(const std::string &what) const {
    refuse(std::string(name) + " is a " + class_text(object) + ", " + what);
  }

  // An attribute, or an empty object.
  nb::object attribute(const char *key) const { return attribute_of(object, key); }
  static nb::object attribute_of(nb::handle object, const char *key) {
    PyObject *value = python_run([=] { return PyObject_GetAttrString(object.ptr(), key); });
    if (!value) {
      if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
      PyErr_Clear();
    }
    return nb::steal(value);
  }

  template <typename Array> void read_own(const Array &array) {
    view.data = array.block().pointer();
    view.bytes = array.layout().bytes();
    view.dtype = array.layout().dtype();
    view.shape.assign(array.layout().shape(), array.layout().shape() + array.layout().dims());
    view.arena = array.block().arena();
  }

  bool read_lade() {
    Buffer *buffer = nullptr;
    if (nb::try_cast(object, buffer) && buffer) {
      read_own(*buffer);
      return true;
    }
    DeviceView *device_view = nullptr;
    if (nb::try_cast(object, device_view) && device_view) {
      read_own(*device_view);
      view.on_device = true;
      view.ordinal = view.arena->device().ordinal;
      return true;
    }
    GraphArray *graph_array = nullptr;
    if (nb::try_cast(object, graph_array) && graph_array) {
      graph_array->output().check_valid();
      read_own(*graph_array);
      view.on_device = view.has_stream = true;
      view.ordinal = view.arena->device().ordinal;
      view.stream = graph_array->stream();
      return true;
    }
    DeviceBuffer *device_buffer = nullptr;
    if (!nb::try_cast(object, device_buffer) || !device_buffer) return false;
    read_own(*device_buffer);
    view.on_device = true;
    view.ordinal = view.arena->device().ordinal;
    view.has_stream = true;
    view.stream = device_buffer->stream();
    return true;
  }

  // Whether it is of a class of a package, or of one below it. The package is not imported: where it was not, no argument is.
  bool is_of(const char *package, const char *name_of_class) const {
    PyObject *module = PyDict_GetItemString(PyImport_GetModuleDict(), package);
    if (!module) return false;
    const nb::object type = nb::steal(PyObject_GetAttrString(module, name_of_class));
    if (!type) { // still being imported
      PyErr_Clear();
      return false;
    }
    const int is = PyObject_IsInstance(object.ptr(), type.ptr());
    if (is < 0) throw nb::python_error();
    return is == 1;
  }

  // NumPy shows the memory of a masked array as that of any other: what is masked would be taken for a value.
  void refuse_masked() const {
    if (is_of("numpy.ma", "MaskedArray"))
      refuse_it("whose mask would be lost; expected .filled(value) of it, or its .data");
  }

  bool read_torch() {
    if (!is_of("torch", "Tensor")) return false;
    const nb::object device = object.attr("device");
    const std::string kind = str_text(device.attr("type"));
    if (kind != "cpu" && kind != "cuda") refuse_it("on device " + kind + "; expected memory of the host or of CUDA");
    const std::string layout = str_text(object.attr("layout"));
    if (layout != "torch.strided") refuse_it("of layout " + layout + "; expected a strided tensor");
    for (const char *lazy : {"is_conj", "is_neg"})
      if (nb::cast<bool>(object.attr(lazy)()))
        refuse_it("whose bytes are not its values yet (" + std::string(lazy) +
                  "()); expected tensor.resolve_conj().resolve_neg()");
    if (!nb::cast<bool>(object.attr("is_contiguous")())) refuse_strides();
    view.data = reinterpret_cast<void *>(nb::cast<uintptr_t>(object.attr("data_ptr")()));
    view.bytes = nb::cast<size_t>(object.attr("nbytes"));
    view.on_device = kind == "cuda";
    if (view.on_device) view.ordinal = nb::cast<int>(device.attr("index"));
    view.dtype = dtype_find(str_text(object.attr("dtype")).c_str() + std::strlen("torch."));
    read_shape(object.attr("shape"));
    return true;
  }

  [[noreturn]] void refuse_beyond() const { refuse_it("whose bytes lie beyond the end of the address space"); }

  [[noreturn]] void refuse_strides() const {
    refuse_it("which is not contiguous in C order; expected one that is, as a copy is");
  }

  void read_shape(nb::handle shape) {
    if (!PySequence_Check(shape.ptr()))
      refuse_it("with the shape " + repr_text(shape) + "; expected a tuple of extents");
    const Py_ssize_t dims = PySequence_Size(shape.ptr());
    if (dims < 0) throw nb::python_error();
    view.shape.clear();
    for (Py_ssize_t i = 0; i < dims; i++) {
      const nb::object extent = nb::steal(PySequence_GetItem(shape.ptr(), i));
      if (!extent) throw nb::python_error();
      const nb::object number = integer_of(extent);
      if (!number) refuse_it("with the shape " + repr_text(shape) + "; expected extents of 0 or more");
      view.shape.push_back(nb::cast<int64_t>(number));
      if (view.shape.back() < 0) refuse_it("with the shape " + repr_text(shape) + "; expected extents of 0 or more");
    }
  }

  // Size of an element by the array interfaces' typestr: "<f4", "|V2", "<U3" (of 4 bytes each), "<M8[ns]".
  size_t itemsize_of(const std::string &typestr) const {
    size_t count = 0, at = 2;
    for (; at < typestr.size() && at < 12 && typestr[at] >= '0' && typestr[at] <= '9'; at++)
      count = 10 * count + static_cast<size_t>(typestr[at] - '0');
    if (at == 2 || (at < typestr.size() && typestr[at] != '['))
      refuse_it("with the typestr \"" + typestr + "\"; expected one of the array interface, such as \"<f4\"");
    if (typestr[1] == 'O') refuse_it("of Python objects; expected an array of plain values");
    return typestr[1] == 'U' ? 4 * count : count;
  }

  // Bytes of `shape`; refuses strides (of bytes; NULL: none) of another order.
  void take_shape(size_t itemsize, const int64_t *strides) {
    uint64_t elements = 1, total = 0;
    bool is_over = false, is_empty = false;
    for (const int64_t extent : view.shape) {
      is_empty |= extent == 0;
      is_over |= __builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements);
    }
    is_over |= __builtin_mul_overflow(elements, static_cast<uint64_t>(itemsize), &total);
    if (is_empty) total = 0;
    if (!is_empty && (is_over || total > PTRDIFF_MAX)) refuse_it("of more bytes than an address space");
    view.bytes = total;
    if (!strides || total == 0) return;
    auto expected = static_cast<int64_t>(itemsize);
    for (size_t i = view.shape.size(); i-- > 0;) {
      if (view.shape[i] != 1 && strides[i] != expected) refuse_strides();
      expected *= view.shape[i];
    }
  }

  // The name that NumPy's dtype of an object has, of a type that array interfaces name by its size alone: "bfloat16" for "<V2".
  const DType *dtype_by_name(size_t itemsize) const {
    const nb::object dtype = attribute("dtype");
    const nb::object told = dtype ? attribute_of(dtype, "name") : nb::object();
    if (!told || !PyUnicode_Check(told.ptr())) return nullptr;
    const DType *found = dtype_find(str_text(told).c_str());
    return found && found->bytes == itemsize ? found : nullptr;
  }

  // An array interface whose data is an object with the buffer protocol, as Pillow's is, from an offset on.
  void read_interface_buffer(nb::handle data, const nb::dict &dict) {
    std::unique_ptr<Py_buffer> taken(new Py_buffer);
    if (PyObject_GetBuffer(data.ptr(), taken.get(), PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      refuse_it("whose array interface has data that is not contiguous");
    }
    view.buffer_ = std::move(taken);
    const auto size = static_cast<size_t>(view.buffer_->len);
    const size_t offset = dict.contains("offset") ? nb::cast<size_t>(nb::object(dict["offset"])) : 0;
    if (offset > size || view.bytes > size - offset)
      refuse_it("which shows " + std::to_string(view.bytes) + " bytes from byte " + std::to_string(offset) +
                " on of data of " + std::to_string(size));
    view.data = static_cast<char *>(view.buffer_->buf) + offset;
    view.read_only = view.buffer_->readonly;
  }

  // The two array interfaces, which share these keys.
  void read_interface(nb::handle interface, bool of_host) {
    if (!PyDict_Check(interface.ptr())) refuse_it("whose array interface is no dict");
    const auto dict = nb::borrow<nb::dict>(interface);
    for (const char *key : {"shape", "typestr", "data"})
      if (!dict.contains(key)) refuse_it("whose array interface has no \"" + std::string(key) + "\"");
    if (dict.contains("mask") && !nb::object(dict["mask"]).is_none()) refuse_it("with a mask; expected one without");
    const nb::object data = dict["data"];
    const bool is_buffer = of_host && PyObject_CheckBuffer(data.ptr()) != 0;
    if (!is_buffer && (!PyTuple_Check(data.ptr()) || PyTuple_Size(data.ptr()) != 2))
      refuse_it("whose array interface has no address");
    if (!is_buffer) {
      view.data = reinterpret_cast<void *>(nb::cast<uintptr_t>(nb::object(data[0])));
      view.read_only = nb::cast<bool>(nb::bool_(nb::object(data[1])));
    }
    const std::string typestr = str_text(nb::object(dict["typestr"]));
    view.dtype = dtype_find(typestr.c_str());
    read_shape(nb::object(dict["shape"]));
    std::vector<int64_t> strides;
    const nb::object given = dict.contains("strides") ? nb::object(dict["strides"]) : nb::none();
    if (!given.is_none() && !PySequence_Check(given.ptr()))
      refuse_it("with the strides " + repr_text(given) + "; expected a tuple, or None");
    if (!given.is_none())
      for (nb::handle stride : nb::iter(given)) strides.push_back(nb::cast<int64_t>(stride));
    if (!strides.empty() && strides.size() != view.shape.size())
      refuse_it("with as many strides as there are no dimensions");
    const size_t itemsize = itemsize_of(typestr);
    if (!view.dtype && typestr[0] != '>') view.dtype = dtype_by_name(itemsize);
    take_shape(itemsize, strides.empty() ? nullptr : strides.data());
    if (is_buffer) read_interface_buffer(data, dict);
  }

  bool read_cuda_array_interface() {
    const nb::object interface = attribute("__cuda_array_interface__");
    if (!interface) return false;
    read_interface(interface, false);
    view.on_device = true;
    const auto dict = nb::borrow<nb::dict>(interface);
    if (dict.contains("stream") && !nb::object(dict["stream"]).is_none()) {
      view.has_stream = true;
      view.stream = reinterpret_cast<lade_stream>(nb::cast<uintptr_t>(nb::object(dict["stream"])));
    }
    const nb::object device = attribute("device"); // CuPy: a Device with its number
    if (device && nb::hasattr(device, "id")) view.ordinal = nb::cast<int>(device.attr("id"));
    return true;
  }

  // Whether a format of the buffer protocol has Python objects: an 'O' outside of the names of fields, which are between colons.
  static bool has_objects(const char *format) {
    bool is_name = false;
    for (; *format; format++) {
      if (*format == ':') is_name = !is_name;
      if (*format == 'O' && !is_name) return true;
    }
    return false;
  }

  // Whether an object whose type the buffer protocol cannot name shows its memory in one of the ways that are asked next. Our own does
  // not: it is one without memory.
  bool is_shown_otherwise() const {
    if (nb::isinstance<Buffer>(object)) return false;
    return nb::hasattr(object, "__array_interface__") ||
           (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__"));
  }

  bool read_buffer() {
    if (!PyObject_CheckBuffer(object.ptr())) return false;
    refuse_masked();
    std::unique_ptr<Py_buffer> taken(new Py_buffer);
    if (PyObject_GetBuffer(object.ptr(), taken.get(), PyBUF_FULL_RO) != 0) {
      nb::python_error failure; // takes the error: hasattr() clears it
      const bool is_of_the_type = failure.matches(PyExc_BufferError) || failure.matches(PyExc_ValueError) ||
                                  failure.matches(PyExc_TypeError) || failure.matches(PyExc_NotImplementedError);
      if (!is_of_the_type || !is_shown_otherwise()) throw std::move(failure);
      return false;
    }
    view.buffer_ = std::move(taken);
    const Py_buffer &buffer = *view.buffer_;
    if (!PyBuffer_IsContiguous(&buffer, 'C')) refuse_strides();
    if (buffer.format && has_objects(buffer.format)) refuse_it("of Python objects; expected an array of plain values");
    view.data = buffer.buf;
    view.bytes = static_cast<size_t>(buffer.len);
    view.read_only = buffer.readonly;
    if (buffer.shape) view.shape.assign(buffer.shape, buffer.shape + buffer.ndim);
    view.dtype = dtype_of_format(buffer.format, buffer.itemsize);
    return true;
  }

  // The type of one character of the struct module, of native or little-endian order.
  static const DType *dtype_of_format(const char *format, Py_ssize_t itemsize) {
    if (!format) return dtype_find("uint8");
    if (*format == '<' || *format == '=' || *format == '@') format++;
    const char kind = std::strchr("bhilqn", *format)    ? 'i'
                      : std::strchr("BHILQNc", *format) ? 'u'
                      : std::strchr("efd", *format)     ? 'f'
                      : *format == 'Z'                  ? 'c'
                      : *format == '?'                  ? 'b'
                                                        : '\0';
    if (kind == '\0' || format[kind == 'c' ? 2 : 1] != '\0') return nullptr;
    return dtype_find((kind + std::to_string(itemsize)).c_str());
  }

  nb::object dlpack_capsule(bool is_device) {
    const nb::object method = object.attr("__dlpack__");
    nb::dict keywords;
    keywords["max_version"] = nb::make_tuple(1, 1);
    if (is_device) keywords["stream"] = -1; // T3
    try {
      return python_run([&] { return method(**keywords); });
    } catch (nb::python_error &error) { // one that does not know versions
      if (!error.matches(PyExc_TypeError)) throw;
    }
    PyDict_DelItemString(keywords.ptr(), "max_version");
    return python_run([&] { return method(**keywords); });
  }

  // A capsule's shape is looked at before it is read from, and nothing is read of its memory.
  void read_dlpack_shape(const DLTensor &tensor) {
    const int32_t dims = tensor.dims;
    if (dims < 0 || dims > Layout::max_dims)
      refuse_it("whose DLPack has " + std::to_string(dims) + " dimensions; expected 0 to " +
                std::to_string(Layout::max_dims));
    if (dims == 0) return;
    if (!tensor.shape) refuse_it("whose DLPack has " + std::to_string(dims) + " dimensions and no shape");
    view.shape.assign(tensor.shape, tensor.shape + dims);
    for (const int64_t extent : view.shape)
      if (extent < 0) refuse_it("whose DLPack has an extent of " + std::to_string(extent) + "; expected 0 or more");
  }

  size_t read_dlpack_type(const DLDataType &type) {
    if (type.lanes != 1) refuse_it("of elements of " + std::to_string(type.lanes) + " lanes; expected 1");
    if (type.bits % 8 != 0 || type.bits == 0 || (type.bits & (type.bits - 1)) != 0)
      refuse_it("of elements of " + std::to_string(type.bits) + " bits; expected 8, 16, 32, 64 or 128");
    view.dtype = dtype_of_dlpack(type.code, type.bits, type.lanes);
    return type.bits / 8;
  }

  // Strides of elements in bytes. A number that is too large for a stride is that of no contiguous array: -1 stands for it.
  static std::vector<int64_t> strides_in_bytes(const int64_t *strides, size_t dims, size_t itemsize) {
    std::vector<int64_t> out(strides, strides + dims);
    for (int64_t &stride : out)
      if (__builtin_mul_overflow(stride, static_cast<int64_t>(itemsize), &stride)) stride = -1;
    return out;
  }

  void read_dlpack_tensor(const DLTensor &tensor, bool is_device) {
    const int32_t type = tensor.device.type;
    if (type != kDLCPU && type != kDLCUDA && type != kDLCUDAHost && type != kDLCUDAManaged)
      refuse_it("on a device of DLPack's type " + std::to_string(type) + "; expected memory of the host or of CUDA");
    if (is_cuda(type) != is_device) refuse_it("whose DLPack is of another device than __dlpack_device__ says");
    if (type == kDLCUDA && tensor.device.id < 0)
      refuse_it("whose DLPack is on device " + std::to_string(tensor.device.id) + "; expected 0 or more");
    view.on_device = type == kDLCUDA;
    if (view.on_device) view.ordinal = tensor.device.id;
    const size_t itemsize = read_dlpack_type(tensor.dtype);
    read_dlpack_shape(tensor);
    const size_t dims = view.shape.size();
    const bool has_strides = tensor.strides && dims > 0;
    take_shape(itemsize, has_strides ? strides_in_bytes(tensor.strides, dims, itemsize).data() : nullptr);
    uintptr_t address = 0;
    if (view.bytes > 0 && tensor.data &&
        __builtin_add_overflow(reinterpret_cast<uintptr_t>(tensor.data), tensor.byte_offset, &address))
      refuse_beyond();
    view.data = reinterpret_cast<void *>(address);
  }

  // Whether the work on memory of this type of device is ordered by streams.
  static bool is_cuda(int32_t type) { return type == kDLCUDA || type == kDLCUDAManaged; }

  // The type of the device that __dlpack_device__ tells.
  int32_t dlpack_device_type() const {
    const nb::object told = python_run([this] { return object.attr("__dlpack_device__")(); });
    int32_t type = 0;
    nb::object number;
    if (PyTuple_Check(told.ptr()) && PyTuple_Size(told.ptr()) == 2) number = integer_of(PyTuple_GetItem(told.ptr(), 0));
    if (!number || !nb::try_cast(number, type))
      refuse_it("whose __dlpack_device__ gave " + repr_text(told) + "; expected (device_type, device_id)");
    return type;
  }

  bool read_dlpack() {
    if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__")) return false;
    const bool is_device = is_cuda(dlpack_device_type());
    view.capsule_ = dlpack_capsule(is_device);
    PyObject *capsule = view.capsule_.ptr();
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
      const auto *managed =
          static_cast<DLManagedTensorVersioned *>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
      if (managed->major != 1)
        refuse_it("whose DLPack has major version " + std::to_string(managed->major) + "; expected 1");
      view.read_only = (managed->flags & kDLReadOnly) != 0;
      read_dlpack_tensor(managed->tensor, is_device);
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
      read_dlpack_tensor(static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor, is_device);
    } else {
      refuse_it("whose __dlpack__ gave no capsule of DLPack");
    }
    return true;
  }

  bool read_array_interface() {
    const nb::object interface = attribute("__array_interface__");
    if (!interface) return false;
    read_interface(interface, true);
    return true;
  }

  TensorView read() {
    if (!read_lade() && !read_torch() && !read_cuda_array_interface() && !read_buffer() && !read_array_interface() &&
        !read_dlpack())
      refuse_type(std::string(name) + " is a " + class_text(object) +
                  ", which shows no memory; expected a buffer of lade, an array of NumPy, torch or CuPy, bytes, or "
                  "another object with the buffer protocol, DLPack or an array interface");
    if (access == Access::write && view.read_only) refuse_it("which is read-only; expected one that may be written");
    if (view.bytes == 0) view.data = nullptr;
    if (view.bytes > 0 && !view.data) refuse_it("which shows " + std::to_string(view.bytes) + " bytes at no address");
    if (view.bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(view.data)) refuse_beyond();
    view.owner_ = nb::borrow(object);
    return std::move(view);
  }
};

TensorView tensor_view(nb::handle object, Access access, const char *name) {
  TensorViewReader reader{object, access, name};
  try {
    return reader.read();
  } catch (const std::bad_cast &) { // nb::cast of what the object says of itself
    reader.refuse_it("which describes its memory with a value of a wrong type or size");
  }
}

void require_runtime(const TensorView &view, const Device &device, const char *name) {
  if (view.arena && view.arena->device().runtime != device.runtime)
    refuse(std::string(name) + " is of " + view.arena->device().text() + " of another runtime; expected memory for " +
           device.text());
  if (view.on_device && !view.arena && device.runtime->is_software())
    refuse(std::string(name) + " is memory of a GPU; expected memory for the software device " + device.text());
}

void require_reachable(const TensorView &view, const Device &device, const char *name) {
  require_runtime(view, device, name);
  if (view.on_device && view.ordinal >= 0 && view.ordinal != device.ordinal)
    refuse(std::string(name) + " is on device " + std::to_string(view.ordinal) +
           "; expected memory of the host or of " + device.text());
}

namespace {

nb::dict describe(nb::handle object, bool writable) {
  const TensorView view = tensor_view(object, writable ? Access::write : Access::read, "object");
  nb::dict out;
  nb::list shape;
  for (const int64_t extent : view.shape) shape.append(extent);
  out["ptr"] = reinterpret_cast<uintptr_t>(view.data);
  out["nbytes"] = view.bytes;
  out["on_device"] = view.on_device;
  out["ordinal"] = view.ordinal;
  out["read_only"] = view.read_only;
  out["dtype"] = view.dtype ? nb::object(nb::str(view.dtype->name)) : nb::object(nb::none());
  out["shape"] = nb::tuple(shape);
  out["stream"] =
      view.has_stream ? nb::object(nb::int_(reinterpret_cast<uintptr_t>(view.stream))) : nb::object(nb::none());
  return out;
}

// Both ends of a copy on one device. Host memory that is pageable makes the call wait.
void copy_async(const DeviceObject &device, nb::handle destination, nb::handle source, nb::handle stream) {
  const TensorView to = tensor_view(destination, Access::write, "destination");
  const TensorView from = tensor_view(source, Access::read, "source");
  if (to.bytes != from.bytes)
    refuse("source has " + std::to_string(from.bytes) + " bytes and destination " + std::to_string(to.bytes) +
           "; expected as many");
  require_runtime(to, device, "destination");
  require_runtime(from, device, "source");
  const lade_stream on = stream_from(*device.runtime, stream, device.ordinal);
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_copy_async(device.get(), to.data, from.data, from.bytes, on);
  }
  check(status);
}

void fill_async(const DeviceObject &device, nb::handle destination, int value, nb::handle stream) {
  const TensorView to = tensor_view(destination, Access::write, "destination");
  if (value < 0 || value > 255) refuse("value is " + std::to_string(value) + "; expected a byte, 0 to 255");
  require_reachable(to, device, "destination");
  check(lade_fill_async(device.get(), to.data, static_cast<uint8_t>(value), to.bytes,
                        stream_from(*device.runtime, stream, device.ordinal)));
}

} // namespace

void bind_tensor_view(nb::module_ &module) {
  module.def(
      "memory_info", &describe, nb::arg("object").none(), nb::arg("writable") = false,
      nb::sig("def memory_info(object: object, writable: bool = False) -> dict[str, typing.Any]"),
      "What this package sees of an object that it is passed as memory.\n\n"
      "Parameters\n----------\nobject : object\n"
      "    A buffer of lade; an array of NumPy, torch, CuPy, Numba; bytes; whatever has the buffer protocol, DLPack, "
      "or an array\n"
      "    interface.\nwritable : bool\n    Refuse what is read-only.\n\n"
      "Returns\n-------\ndict\n    ptr, nbytes, on_device, ordinal (-1: host memory, or not told), read_only, dtype "
      "(None: a type\n"
      "    without a name here), shape, and stream (None: not told).\n\n"
      "Raises\n------\nInvalidArgumentError\n    It shows no memory, is not contiguous in C order, or is read-only.");
  module.def(
      "copy_async", &copy_async, nb::arg("device"), nb::arg("destination").none(), nb::arg("source").none(),
      nb::arg("stream").none(),
      nb::sig("def copy_async(device: Device, destination: object, source: object, stream: StreamLike) -> None"),
      "Queue a copy; its direction follows from the memory, as with cudaMemcpyDefault.\n\n"
      "Parameters\n----------\ndevice : Device\ndestination, source : object\n    As many bytes; see "
      "memory_info(). Both must live, and the source stay as it is,\n"
      "    until the copy is done: record pinned buffers (PinnedPool.record) to drop them at once. Memory of another "
      "device\n"
      "    than the stream's is copied, too.\n"
      "stream : int or object\n    The copy comes after the work queued on it so far. Waits for it where host "
      "memory is not pinned,\n    and for large copies between devices without access (DeviceAllocator.peer_add()).");
  module.def("fill_async", &fill_async, nb::arg("device"), nb::arg("destination"), nb::arg("value"),
             nb::arg("stream").none(),
             nb::sig("def fill_async(device: Device, destination: object, value: int, stream: StreamLike) -> None"),
             "Queue a fill of pinned or device memory with one byte value. As copy_async().");
}

} // namespace lade_python
