// SPDX-License-Identifier: Apache-2.0
#include "tensor_rows.h"

#include "device.h"

#include <lade/safetensors.h>

#include <nanobind/stl/string.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace lade_python {

int32_t dtype_number(const std::string &name) {
#define LADE_PYTHON_DTYPE(text, number, bits)                                                                          \
  if (name == #text) return number;
  LADE_DTYPE_TABLE(LADE_PYTHON_DTYPE)
#undef LADE_PYTHON_DTYPE
  refuse("dtype is \"" + name + "\"; expected one of the format's names, such as \"F32\"");
}

namespace {

// DLPack's DLPackExchangeAPI (dlpack.h of DLPack 1.3), up to what is called here.
struct ExchangeApi {
  uint32_t major, minor;
  ExchangeApi *before;
  void *allocator, *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void *object, DLTensor *out); // lends shape and strides; not 0: a Python error is set
  void *current_stream;
};

// The API of a class of tensors; NULL if it has none, or one of another major version.
const ExchangeApi *exchange_api_of(nb::handle type) {
  PyObject *capsule = PyObject_GetAttrString(type.ptr(), "__dlpack_c_exchange_api__");
  const void *api = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : nullptr;
  PyErr_Clear();
  Py_XDECREF(capsule); // the struct is static
  const auto *found = static_cast<const ExchangeApi *>(api);
  return found && found->major == 1 && found->tensor_from_object ? found : nullptr;
}

bool is_contiguous(const DLTensor &tensor) {
  int64_t expected = 1;
  bool follows = true;
  for (int32_t i = tensor.dims; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    follows = follows && (tensor.shape[i] == 1 || tensor.strides[i] == expected);
    expected *= tensor.shape[i];
  }
  return follows;
}

// Makes the rows of a dict.
class RowsReader {
public:
  // The arguments of _Rows().
  RowsReader(TensorRows &out, nb::handle torch_types, nb::handle names, nb::handle read, nb::handle device,
             Access access)
      : out_(out), names_(names), read_(read), device_(device), access_(access) {
    for (nb::handle type : nb::iter(torch_types)) torch_types_.push_back(type.ptr());
    if (!torch_types_.empty()) api_ = exchange_api_of(torch_types_[0]);
    is_neg_ = nb::steal(PyUnicode_InternFromString("is_neg"));
    is_conj_ = nb::steal(PyUnicode_InternFromString("is_conj"));
    storage_ = nb::steal(PyUnicode_InternFromString("untyped_storage"));
  }

  void add(nb::handle key, nb::handle tensor) {
    TensorRows::Row row{};
    row.key = nb::borrow(key);
    row.name = name_of(key);
    row.view = SIZE_MAX;
    row.device = -1;
    if (!read_torch(tensor, row) && !read_buffer(tensor, row)) read_other(tensor, row);
    out_.rows.push_back(std::move(row));
  }

private:
  static std::string_view name_of(nb::handle key) {
    Py_ssize_t size = 0;
    if (!PyUnicode_Check(key.ptr())) {
      PyErr_SetString(PyExc_TypeError,
                      ("name " + repr_text(key) + " is a " + class_text(key) + "; expected str").c_str());
      throw nb::python_error();
    }
    const char *text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (!text) throw nb::python_error();
    const std::string_view name(text, static_cast<size_t>(size));
    if (name.find('\0') != std::string_view::npos)
      refuse("name has " + repr_text(key) + "; expected no null character");
    if (name == "__metadata__") refuse("name is \"__metadata__\"; expected another one than the format's own");
    return name;
  }

  // W2. False: it has something else to it, or is none of torch.
  bool read_torch(nb::handle tensor, TensorRows::Row &row) {
    const auto *type = reinterpret_cast<PyObject *>(Py_TYPE(tensor.ptr()));
    if (!api_ || std::find(torch_types_.begin(), torch_types_.end(), type) == torch_types_.end()) return false;
    DLTensor seen{};
    if (api_->tensor_from_object(tensor.ptr(), &seen) != 0) { // sparse, say
      PyErr_Clear();
      return false;
    }
    const bool on_device = seen.device.type == kDLCUDA;
    const int32_t dtype = dtype_of(seen.dtype);
    if (dtype == 0 || (!on_device && seen.device.type != kDLCPU && seen.device.type != kDLCUDAHost) ||
        (seen.dims > 0 && (!seen.strides || !is_contiguous(seen))))
      return false;
    uint64_t bytes = seen.dtype.bits / 8;
    for (int32_t i = 0; i < seen.dims; i++) bytes *= static_cast<uint64_t>(seen.shape[i]);
    const std::vector<uint64_t> shape(seen.shape, seen.shape + seen.dims); // lent until the next call of it
    if (bytes > 0 && !seen.data) return false;
    nb::object storage =
        called(tensor, storage_); // W1: before any call that lets other threads run, which may replace it
    if (answer(tensor, is_neg_) || (is_complex(seen.dtype) && answer(tensor, is_conj_))) return false;
    out_.storages.push_back(std::move(storage));
    shape_set(row, shape);
    row.data = bytes > 0 ? static_cast<char *>(seen.data) + seen.byte_offset : nullptr;
    row.bytes = bytes;
    row.dtype = dtype;
    row.device = on_device ? device_of_gpu(seen.device.id) : -1;
    row.of_torch = true;
    return true;
  }

  bool read_buffer(nb::handle tensor, TensorRows::Row &row) {
    DeviceBuffer *buffer = nullptr;
    if (!nb::try_cast(tensor, buffer) || !buffer) return false;
    const DType &dtype = *buffer->layout().dtype();
    row.dtype = dtype_of({dtype.code, static_cast<uint8_t>(8 * dtype.bytes), 1});
    if (row.dtype == 0) return false;
    view_set(row, tensor);
    const Device &device = row_view(row).arena->device();
    int &number = devices_of_lade_.try_emplace({device.runtime.get(), device.ordinal}, -1).first->second;
    if (number < 0) number = device_number(nb::object(tensor.attr("device")));
    row.device = number;
    const Layout &layout = buffer->layout();
    shape_set(row, std::vector<uint64_t>(layout.shape(), layout.shape() + layout.dims()));
    return true;
  }

  // `read` gives (the format's type, shape, tensor or what stands for it, its device or None, whether it is of torch).
  void read_other(nb::handle tensor, TensorRows::Row &row) {
    const nb::tuple facts = nb::cast<nb::tuple>(python_run([&] { return read_(row.key, tensor); }));
    row.dtype = dtype_number(nb::cast<std::string>(nb::object(facts[0])));
    std::vector<uint64_t> shape;
    for (nb::handle extent : nb::iter(nb::object(facts[1]))) shape.push_back(nb::cast<uint64_t>(extent));
    shape_set(row, shape);
    view_set(row, nb::object(facts[2]));
    const nb::object device = facts[3];
    row.device = device.is_none() ? -1 : device_number(device);
    row.of_torch = nb::cast<bool>(nb::object(facts[4]));
  }

  void view_set(TensorRows::Row &row, nb::handle tensor) {
    row.view = out_.views.size();
    out_.views.push_back(tensor_view(tensor, access_, out_.title_of(row).c_str()));
    row.data = row_view(row).data;
    row.bytes = row_view(row).bytes;
  }
  const TensorView &row_view(const TensorRows::Row &row) const { return out_.views[row.view]; }

  void shape_set(TensorRows::Row &row, const std::vector<uint64_t> &shape) {
    row.rank = static_cast<uint32_t>(shape.size());
    row.shape = out_.extents.size();
    out_.extents.insert(out_.extents.end(), shape.begin(), shape.end());
  }

  static bool is_complex(const DLDataType &type) { return type.code == 5; }

  static nb::object called(nb::handle tensor, nb::handle method) {
    PyObject *result = PyObject_CallMethodObjArgs(tensor.ptr(), method.ptr(), nullptr);
    if (!result) throw nb::python_error();
    return nb::steal(result);
  }
  static bool answer(nb::handle tensor, nb::handle method) { return !called(tensor, method).is(nb::bool_(false)); }

  // The format's number of a type; 0: `read` has to say.
  int32_t dtype_of(const DLDataType &type) {
    if (type.lanes != 1) return 0;
    int32_t &number = dtypes_.try_emplace({type.code, type.bits}, -1).first->second;
    if (number < 0) {
      const DType *dtype = dtype_of_dlpack(type.code, type.bits, type.lanes);
      number = dtype ? number_of(*dtype) : 0;
    }
    return number;
  }
  int32_t number_of(const DType &dtype) {
    const nb::object name = nb::object(names_.attr("get")(dtype.name));
    return name.is_none() ? 0 : dtype_number(nb::cast<std::string>(name));
  }

  int device_of_gpu(int32_t ordinal) {
    int &number = gpus_.try_emplace(ordinal, -1).first->second;
    if (number < 0) number = device_number(python_run([&] { return nb::object(device_(ordinal)); }));
    return number;
  }
  int device_number(const nb::object &device) {
    for (size_t i = 0; i < out_.devices.size(); i++)
      if (out_.devices[i].first.equal(device)) return static_cast<int>(i);
    out_.devices.emplace_back(device, out_.rows.size());
    return static_cast<int>(out_.devices.size() - 1);
  }

  TensorRows &out_;
  const nb::handle names_, read_, device_;
  const Access access_;
  std::vector<const PyObject *> torch_types_;
  const ExchangeApi *api_ = nullptr;
  nb::object is_neg_, is_conj_, storage_;
  std::map<std::pair<uint8_t, uint8_t>, int32_t> dtypes_; // -1: not known yet, as below
  std::map<int32_t, int> gpus_;
  std::map<std::pair<const Runtime *, int>, int> devices_of_lade_;
};

void rows_init(TensorRows *self, nb::handle tensors, nb::handle torch_types, nb::handle names, nb::handle read,
               nb::handle device, bool writable) {
  TensorRows rows;
  RowsReader reader(rows, torch_types, names, read, device, writable ? Access::write : Access::read);
  // Pair by pair: a list of them takes a sixth of the time of it all.
  const nb::object items =
      nb::steal(python_run([&] { return PyObject_GetIter(nb::object(tensors.attr("items")()).ptr()); }));
  if (!items) throw nb::python_error();
  const auto next = [&] { return nb::steal(python_run([&] { return PyIter_Next(items.ptr()); })); };
  for (nb::object pair = next(); pair; pair = next()) {
    if (!PyTuple_Check(pair.ptr()) || PyTuple_Size(pair.ptr()) != 2)
      refuse("items() of tensors has " + repr_text(pair) + "; expected pairs of a name and a tensor");
    reader.add(pair[0], pair[1]);
  }
  if (PyErr_Occurred()) throw nb::python_error();
  new (self) TensorRows(std::move(rows));
}

// (device, name of the first tensor on it) of each; None of the host.
nb::list rows_devices(const TensorRows &self) {
  nb::list out;
  for (const auto &device : self.devices) out.append(nb::make_tuple(device.first, self.rows[device.second].key));
  for (const TensorRows::Row &row : self.rows) {
    if (row.device >= 0) continue;
    out.append(nb::make_tuple(nb::none(), row.key));
    break;
  }
  return out;
}

bool rows_has_torch_on_device(const TensorRows &self) {
  return std::any_of(
      self.rows.begin(), self.rows.end(), [](const auto &row) { return row.of_torch && row.device >= 0; });
}

// Numbers of the rows with bytes, or of those of torch, by address; those at one address, few at most times, in the order of `key`.
template <typename Key> std::vector<size_t> rows_sorted(const TensorRows &self, bool of_torch_alone, Key key) {
  std::vector<std::pair<uintptr_t, size_t>> places;
  places.reserve(self.rows.size());
  for (size_t i = 0; i < self.rows.size(); i++)
    if (self.rows[i].data && (self.rows[i].of_torch || !of_torch_alone))
      places.emplace_back(reinterpret_cast<uintptr_t>(self.rows[i].data), i);
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    while (end < places.size() && places[end].first == places[begin].first) end++;
    if (end - begin > 1)
      std::sort(places.begin() + begin, places.begin() + end,
                [&](const auto &a, const auto &b) { return key(self.rows[a.second]) < key(self.rows[b.second]); });
  }
  std::vector<size_t> order;
  order.reserve(places.size());
  for (const auto &place : places) order.push_back(place.second);
  return order;
}

// Names of tensors of torch that have bytes of others.
nb::list rows_shared(const TensorRows &self) {
  const auto order = rows_sorted(self, true, [](const auto &row) { return std::make_tuple(row.bytes, row.name); });
  nb::list out;
  const char *end = nullptr;
  for (size_t i = 0; i < order.size(); i++) {
    const TensorRows::Row &row = self.rows[order[i]];
    if (i > 0 && static_cast<const char *>(row.data) < end) {
      out.append(self.rows[order[i - 1]].key);
      out.append(row.key);
    }
    end = std::max(end, static_cast<const char *>(row.data) + row.bytes);
  }
  return out;
}

} // namespace

std::vector<size_t> TensorRows::firsts() const {
  std::vector<size_t> out(rows.size());
  std::iota(out.begin(), out.end(), size_t{0});
  const auto place = [](const Row &row) { return std::make_tuple(row.data, row.bytes, row.device); };
  const auto order =
      rows_sorted(*this, false, [](const Row &row) { return std::make_tuple(row.bytes, row.device, row.name); });
  for (size_t i = 1; i < order.size(); i++)
    if (place(rows[order[i]]) == place(rows[order[i - 1]])) out[order[i]] = out[order[i - 1]];
  return out;
}

void bind_tensor_rows(nb::module_ &module) {
  nb::class_<TensorRows>(module, "_Rows", "Tensors by name: lade.safetensors has the calls for users.")
      .def("__init__", &rows_init, nb::arg("tensors"), nb::arg("torch_types"), nb::arg("names"), nb::arg("read"),
           nb::arg("device"), nb::arg("writable"))
      .def(
          "__len__", [](const TensorRows &self) { return self.rows.size(); })
      .def("devices", &rows_devices)
      .def("has_torch_on_device", &rows_has_torch_on_device)
      .def("shared", &rows_shared);
}

} // namespace lade_python
