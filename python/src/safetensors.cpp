// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: what lade/safetensors.py stands on.
//
//   load --> one segment of device memory for each target --> a DeviceView for each tensor
//
// S1  A load is under way only within load(): file, pipelines and allocators outlive it. Its memory outlives it where all arrived.
// S2  The memory of a segment is given back with the last tensor in it.
#include "safetensors.h"

#include "current_device.h"
#include "device.h"
#include "device_view.h"
#include "pipeline.h"
#include "stream.h"
#include "tensor_view.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <map>
#include <optional>

namespace lade_python {

namespace {

// Where a load goes to, or a save comes from.
struct Target {
  std::shared_ptr<Pipe> pipe;
  Owner<Allocator> allocator;
  lade_stream stream;
  std::shared_ptr<Stream> kept; // of `stream`, where it is a lade.Stream
};

// Memory of one target, that the tensors lie in. The stream that it was allocated on outlives it.
class Segment final : public Shared {
public:
  Segment(const Target &target, void *base)
      : Shared(target.allocator->device()), kept_(target.kept), allocator_(target.allocator), base_(base),
        stream_(target.stream) {}
  ~Segment() override {
    if (base_ && !is_abandoned()) allocator_->free(base_);
  }
  lade_status record(lade_stream stream) noexcept override {
    const lade_stream legacy = LADE_STREAM_LEGACY;
    const bool same = stream == stream_ || ((!stream || stream == legacy) && (!stream_ || stream_ == legacy));
    return same || !base_ ? LADE_OK : lade_device_record_stream(allocator_->get(), base_, stream);
  }

private:
  std::shared_ptr<Stream> kept_;
  Owner<Allocator> allocator_;
  void *base_;
  const lade_stream stream_;
};

// The bytes [data, data + bytes) of a segment as Python has them.
nb::object view_of(Segment &segment, void *data, uint64_t bytes) {
  const auto extent = static_cast<int64_t>(bytes);
  return nb::cast(DeviceView(segment, data, Layout(&extent, 1, dtype_find("uint8"))));
}

// (Pipeline, DeviceAllocator, stream) of each.
std::vector<Target> targets_from(nb::handle list) {
  std::vector<Target> targets;
  for (nb::handle item : nb::iter(list)) {
    nb::tuple entry = nb::cast<nb::tuple>(item);
    Target target;
    target.pipe = pipe_from(nb::object(entry[0]));
    const Device &device = target.pipe->device();
    target.allocator = allocator_from(nb::object(entry[1]));
    if (target.allocator->device().runtime != device.runtime || target.allocator->device().ordinal != device.ordinal)
      refuse("allocator is of " + target.allocator->device().text() + "; the pipeline's device is " + device.text());
    target.stream = stream_from(*device.runtime, nb::object(entry[2]));
    target.kept = stream_owner(nb::object(entry[2]));
    targets.push_back(std::move(target));
  }
  return targets;
}

// The targets as the library has them, with their pipelines kept open.
struct Calls {
  std::vector<std::unique_ptr<PipeCall>> calls;
  std::vector<lade_load_target> targets;
  bool is_virtual = false;

  explicit Calls(const std::vector<Target> &list) {
    for (const Target &target : list) {
      calls.push_back(std::make_unique<PipeCall>(target.pipe));
      targets.push_back({calls.back()->get(), target.allocator->get(), target.stream});
      is_virtual = is_virtual || target.pipe->is_virtual();
    }
  }
};

// --- checkpoints -----------------------------------------------------------------------------------------------------

// What lade._lade._Checkpoint wraps. Its files are closed with it; calls and slices hold it.
struct Checkpoint {
  lade_safetensors *file = nullptr;

  Checkpoint() = default;
  Checkpoint(const Checkpoint &) = delete;
  ~Checkpoint() { lade_safetensors_close(file); }
};

void checkpoint_init(Checkpoint *self, nb::handle path) {
  const std::string text = path_from(path, "path");
  lade_safetensors *file = nullptr;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_safetensors_open(text.c_str(), &file);
  }
  check(status);
  new (self) Checkpoint();
  self->file = file;
}

// (name, dtype, shape, bytes, file, offset) of each, in the order of their bytes.
nb::list checkpoint_tensors(Checkpoint &self) {
  nb::list out;
  const uint64_t count = lade_safetensors_count(self.file);
  for (uint64_t i = 0; i < count; i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    check(lade_safetensors_tensor(self.file, i, &info));
    nb::list shape;
    for (uint64_t j = 0; j < info.rank; j++) shape.append(info.shape[j]);
    out.append(nb::make_tuple(info.name, lade_dtype_name(static_cast<lade_dtype>(info.dtype)), nb::tuple(shape),
                              info.bytes, info.file, info.offset));
  }
  return out;
}

nb::list checkpoint_metadata(Checkpoint &self) {
  nb::list out;
  const uint64_t count = lade_safetensors_metadata_count(self.file);
  for (uint64_t i = 0; i < count; i++) {
    const char *key, *value;
    check(lade_safetensors_metadata(self.file, i, &key, &value));
    out.append(nb::make_tuple(key, value));
  }
  return out;
}

nb::list checkpoint_files(Checkpoint &self) {
  nb::list out;
  const uint64_t count = lade_safetensors_file_count(self.file);
  for (uint64_t i = 0; i < count; i++)
    out.append(nb::steal(PyUnicode_DecodeFSDefault(lade_safetensors_file_path(self.file, i))));
  return out;
}

// --- loading ---------------------------------------------------------------------------------------------------------

template <typename Number> std::vector<Number> numbers_from(nb::handle list) {
  std::vector<Number> numbers;
  if (list.is_none()) return numbers;
  for (nb::handle item : nb::iter(list)) numbers.push_back(nb::cast<Number>(item));
  return numbers;
}

void load_end(lade_tensor_load *load) {
  Unlocked unlocked;
  (void)lade_tensor_load_destroy(load, false);
}

// Waits in slices; ends the load where that fails.
void load_wait(lade_tensor_load *load, bool is_virtual, nb::handle progress) {
  try {
    for (lade_status status = LADE_ERR_TIMEOUT; status == LADE_ERR_TIMEOUT;) {
      lade_load_info info;
      lade_load_info_init(&info);
      lade_status state;
      {
        Unlocked unlocked;
        status = lade_tensor_load_wait(load, is_virtual ? LADE_WAIT_FOREVER : slice_ns);
        state = status == LADE_ERR_TIMEOUT || !progress.is_none() ? lade_tensor_load_query(load, &info) : status;
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!progress.is_none()) python_run([&] { progress(info.bytes_done, info.bytes); });
      if (status == LADE_ERR_TIMEOUT && (is_virtual || (state != LADE_NOT_READY && state != LADE_OK))) check(status);
      if (status != LADE_ERR_TIMEOUT) check(status);
    }
  } catch (...) {
    load_end(load);
    throw;
  }
}

// The tensors of a load that has arrived, which is ended: their memory is Python's (S2).
nb::list load_take(Checkpoint &self, lade_tensor_load *load, const std::vector<Target> &targets,
                   const std::vector<uint64_t> &numbers, bool per_tensor) {
  struct Place {
    void *memory;
    uint32_t target;
    uint64_t bytes;
  };
  std::vector<Place> places(numbers.size());
  std::vector<void *> bases(targets.size(), nullptr);
  for (size_t i = 0; i < numbers.size(); i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    (void)lade_safetensors_tensor(self.file, numbers[i], &info);
    (void)lade_tensor_load_address(load, i, &places[i].memory, &places[i].target);
    places[i].bytes = info.bytes;
    void *&base = bases[places[i].target];
    if (places[i].memory && (!base || std::less<void *>()(places[i].memory, base))) base = places[i].memory;
  }
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_tensor_load_destroy(load, true);
  }
  check(status);
  std::vector<Owner<Segment>> segments(targets.size());
  const auto segment_new = [&](const Place &place, void *base) {
    return Owner<Segment>(new Segment(targets[place.target], base));
  };
  nb::list out;
  for (const Place &place : places) {
    Owner<Segment> own;
    Owner<Segment> &segment = per_tensor || !place.memory ? own : segments[place.target];
    if (!segment)
      segment = segment_new(place, per_tensor ? place.memory : place.memory ? bases[place.target] : nullptr);
    out.append(view_of(*segment.get(), place.memory, place.bytes));
  }
  return out;
}

nb::list checkpoint_load(Checkpoint &self, nb::handle target_list, nb::handle tensors, nb::handle target_of,
                         bool per_tensor, bool direct, nb::handle progress) {
  const std::vector<Target> targets = targets_from(target_list);
  std::vector<uint64_t> numbers = numbers_from<uint64_t>(tensors);
  const std::vector<uint32_t> of = numbers_from<uint32_t>(target_of);
  if (tensors.is_none())
    for (uint64_t i = 0; i < lade_safetensors_count(self.file); i++) numbers.push_back(i);
  if (!target_of.is_none() && of.size() != numbers.size()) refuse("target_of has another length than tensors");
  if (targets.size() != 1) refuse("targets has another number of items than one");
  if (numbers.empty()) return nb::list();
  lade_load_options options;
  lade_load_options_init(&options);
  options.tensors = numbers.data();
  options.tensor_count = numbers.size();
  options.target_of = target_of.is_none() ? nullptr : of.data();
  options.per_tensor = per_tensor;
  options.file_flags = direct ? LADE_FILE_DIRECT : 0;
  const Calls calls(targets);
  const CurrentDevice current(targets[0].pipe->device(), targets[0].stream);
  check(current.status());
  lade_tensor_load *load = nullptr;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_safetensors_load(self.file, calls.targets.data(), calls.targets.size(), &options, &load);
  }
  check(status);
  load_wait(load, calls.is_virtual, progress);
  return load_take(self, load, targets, numbers, per_tensor);
}

// Pieces of one transfer of checkpoint_read(), at most: so much is in memory of ranges that may be a great many.
constexpr size_t read_pieces_most = 1 << 16;

// Some of the ranges, from `whole`, as pieces of a transfer; none: they are over.
std::vector<lade_piece> pieces_next(const lade_endpoint &whole, const nb::object &ranges) {
  std::vector<lade_piece> pieces;
  while (pieces.size() < read_pieces_most) {
    const nb::object item = nb::steal(PyIter_Next(ranges.ptr()));
    if (!item && PyErr_Occurred()) throw nb::python_error();
    if (!item) break;
    const nb::tuple range = nb::cast<nb::tuple>(item);
    lade_piece piece{};
    piece.host = whole;
    piece.host.offset += nb::cast<uint64_t>(nb::object(range[0]));
    piece.bytes = nb::cast<uint64_t>(nb::object(range[1]));
    pieces.push_back(piece);
  }
  return pieces;
}

// Pieces into memory of a buffer, waited for.
void pieces_read(const Target &target, const std::vector<lade_piece> &pieces, nb::handle buffer, void *memory,
                 uint64_t bytes) {
  auto transfer = std::make_shared<Transfer>(target.pipe);
  lade_transfer request;
  lade_transfer_init(&request);
  request.bytes = bytes;
  request.direction = LADE_TO_DEVICE;
  request.device_memory = memory;
  request.pieces = pieces.data();
  request.piece_count = pieces.size();
  request.after_stream = 1;
  request.stream = target.stream;
  transfer->bytes_ = bytes;
  transfer->views.push_back(tensor_view(buffer, Access::write, "buffer"));
  target.pipe->submit(transfer, request);
  try {
    transfer->wait(LADE_WAIT_FOREVER);
  } catch (...) {
    (void)lade_ticket_cancel(transfer->ticket());
    Unlocked unlocked; // the file is open until then
    (void)lade_ticket_wait(transfer->ticket(), LADE_WAIT_FOREVER);
    throw;
  }
}

// Ranges of a tensor's bytes, `bytes` in all, one behind the other in new memory: what get_slice() reads, of the file that was opened.
nb::object checkpoint_read(Checkpoint &self, nb::handle target_entry, uint64_t number, nb::handle ranges,
                           uint64_t bytes, bool direct) {
  nb::list one;
  one.append(nb::borrow(target_entry));
  const std::vector<Target> targets = targets_from(one);
  const Target &target = targets[0];
  lade_endpoint whole;
  check(lade_safetensors_endpoint(self.file, number, 0, direct ? LADE_FILE_DIRECT : 0, &whole));
  void *memory = nullptr;
  lade_status status = LADE_OK;
  if (bytes > 0) {
    lade_device_allocator *allocator = target.allocator->get();
    Unlocked unlocked;
    status = lade_device_alloc(allocator, bytes, target.stream, &memory);
  }
  check(status);
  const Owner<Segment> segment(new Segment(target, memory));
  nb::object buffer = view_of(*segment.get(), memory, bytes);
  const nb::object iterator = nb::steal(PyObject_GetIter(ranges.ptr()));
  if (!iterator) throw nb::python_error();
  uint64_t done = 0;
  for (;;) {
    const std::vector<lade_piece> pieces = pieces_next(whole, iterator);
    uint64_t count = 0;
    for (const lade_piece &piece : pieces) count += piece.bytes;
    if (count > bytes - done) refuse("ranges have more bytes than are asked for");
    if (pieces.empty()) break;
    pieces_read(target, pieces, buffer, static_cast<char *>(memory) + done, count);
    done += count;
  }
  return buffer;
}

// --- saving ----------------------------------------------------------------------------------------------------------

struct SaveUser {
  nb::handle progress;
  bool failed = false; // the Python error is set
};

// In the thread of the save.
lade_status save_progress(void *user, uint64_t bytes_done, uint64_t bytes) {
  auto *self = static_cast<SaveUser *>(user);
  const PyGILState_STATE state = gil_take();
  if (!self->failed) self->failed = PyErr_CheckSignals() != 0;
  if (!self->failed && !self->progress.is_none()) {
    PyObject *result = python_run([=] {
      return PyObject_CallFunction(self->progress.ptr(), "KK", static_cast<unsigned long long>(bytes_done),
                                   static_cast<unsigned long long>(bytes));
    });
    self->failed = !result;
    Py_XDECREF(result);
  }
  const lade_status status = self->failed ? LADE_ERR_CANCELLED : LADE_OK;
  PyGILState_Release(state);
  return status;
}

int32_t dtype_number(const std::string &name) {
#define LADE_PYTHON_DTYPE(text, number, bits)                                                                          \
  if (name == #text) return number;
  LADE_DTYPE_TABLE(LADE_PYTHON_DTYPE)
#undef LADE_PYTHON_DTYPE
  refuse("dtype is \"" + name + "\"; expected one of the format's names, such as \"F32\"");
}

// Bytes of a tensor by its dtype and shape; UINT64_MAX where the library refuses them.
uint64_t bytes_of(const lade_tensor &tensor) {
  uint64_t bits = lade_dtype_bits(static_cast<lade_dtype>(tensor.dtype));
  for (uint64_t i = 0; i < tensor.rank; i++)
    if (__builtin_mul_overflow(bits, tensor.shape[i], &bits)) return UINT64_MAX;
  return bits % 8 == 0 ? bits / 8 : UINT64_MAX;
}

// Tensors as the library has them, with what they point to. No item moves once it is there.
struct Tensors {
  std::vector<std::string> names;
  std::vector<std::vector<uint64_t>> shapes;
  std::vector<lade_tensor> list;
  std::vector<TensorView> views;

  // (name, dtype, shape, tensor, whether it is on the target's device, or in host memory) of each.
  Tensors(nb::handle entries, const std::vector<Target> &targets) {
    for (nb::handle item : nb::iter(entries)) {
      nb::tuple entry = nb::cast<nb::tuple>(item);
      names.push_back(nb::cast<std::string>(nb::object(entry[0])));
      shapes.push_back(numbers_from<uint64_t>(nb::object(entry[2])));
      const bool on_target = nb::cast<bool>(nb::object(entry[4]));
      const std::string title = "tensor `" + names.back() + "`";
      TensorView view = tensor_view(nb::object(entry[3]), Access::read, title.c_str());
      if (on_target)
        require_reachable(view, targets.at(0).pipe->device(), title.c_str());
      else if (view.on_device && !(view.arena && view.arena->device().runtime->is_software()))
        refuse(title +
               " is memory of a GPU that only DLPack shows; expected an array of torch or CuPy, or a DeviceBuffer");
      list.push_back({nullptr, nullptr, shapes.back().size(), view.data, on_target ? 0 : LADE_TARGET_HOST,
                      dtype_number(nb::cast<std::string>(nb::object(entry[1])))});
      views.push_back(std::move(view));
    }
    for (size_t i = 0; i < list.size(); i++) {
      list[i].name = names[i].c_str();
      list[i].shape = shapes[i].data();
      const uint64_t wanted = bytes_of(list[i]);
      if (wanted != UINT64_MAX && views[i].bytes != wanted)
        refuse("tensor `" + names[i] + "` has " + std::to_string(views[i].bytes) + " bytes of memory; expected " +
               std::to_string(wanted) + ", as its dtype and shape say");
    }
  }
};

void save(nb::handle path, nb::handle target_list, nb::handle entries, nb::handle metadata, uint64_t max_shard_bytes,
          bool sync, nb::handle progress) {
  const std::string text = path_from(path, "path");
  const std::vector<Target> targets = targets_from(target_list);
  if (targets.size() > 1) refuse("targets has more items than one");
  const Tensors tensors(entries, targets);
  std::vector<std::pair<std::string, std::string>> texts;
  for (nb::handle item : metadata.is_none() ? nb::iter(nb::tuple()) : nb::iter(metadata)) {
    const nb::tuple pair = nb::cast<nb::tuple>(item);
    texts.emplace_back(nb::cast<std::string>(nb::object(pair[0])), nb::cast<std::string>(nb::object(pair[1])));
  }
  std::vector<lade_metadata> pairs;
  for (const auto &pair : texts) pairs.push_back({pair.first.c_str(), pair.second.c_str()});
  SaveUser user{progress};
  lade_save_options options;
  lade_save_options_init(&options);
  options.metadata = pairs.data();
  options.metadata_count = pairs.size();
  options.max_shard_bytes = max_shard_bytes;
  options.progress = save_progress;
  options.user = &user;
  options.no_sync = !sync;
  options.empty_metadata = !metadata.is_none() && pairs.empty();
  Calls calls(targets);
  std::optional<JoinedStreams> streams;
  std::optional<CurrentDevice> current;
  if (!targets.empty()) {
    const Device &device = targets[0].pipe->device();
    streams.emplace(device);
    streams->add(targets[0].stream, device.ordinal);
    for (const TensorView &view : tensors.views)
      if (view.has_stream) streams->add(view.stream, device.ordinal);
    calls.targets[0].stream = streams->get();
    current.emplace(device, calls.targets[0].stream);
    check(current->status());
  }
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_safetensors_save(text.c_str(), calls.targets.data(), calls.targets.size(), tensors.list.data(),
                                   tensors.list.size(), &options);
  }
  if (user.failed) throw nb::python_error();
  check(status);
}

} // namespace

void bind_safetensors(nb::module_ &module) {
  nb::class_<Checkpoint>(module, "_Checkpoint", "A checkpoint that is open: lade.safetensors has the calls for users.")
      .def("__init__", &checkpoint_init, nb::arg("path"))
      .def("tensors", &checkpoint_tensors)
      .def("metadata", &checkpoint_metadata)
      .def("files", &checkpoint_files)
      .def("load", &checkpoint_load, nb::arg("targets"), nb::arg("tensors").none(), nb::arg("target_of").none(),
           nb::arg("per_tensor"), nb::arg("direct"), nb::arg("progress").none())
      .def("read", &checkpoint_read, nb::arg("target"), nb::arg("number"), nb::arg("ranges"), nb::arg("bytes"),
           nb::arg("direct"));
  module.def("_save", &save, nb::arg("path"), nb::arg("targets"), nb::arg("tensors"), nb::arg("metadata").none(),
             nb::arg("max_shard_bytes"), nb::arg("sync"), nb::arg("progress").none());
}

} // namespace lade_python
