// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: what lade/safetensors/ stands on.
//
//   start() --> a load under way --> what is made of its tensors: capsules, views, rows --> wait()
//                     |
//                     one segment of device memory, or one for each tensor
//
// S1  A load holds its file, pipeline and allocator until it is over. Objects of its tensors may be made while it is under way, so that
//     a program makes them while the bytes move; it hands them out after wait() alone.
// S2  The memory is the load's until wait() has returned, the segments' from then on: it is given back with the last tensor in it. Where
//     wait() fails, the load ends with the last of its objects, and no byte is written after that; it holds no pipeline from close() on.
#include "safetensors.h"

#include "array.h"
#include "current_device.h"
#include "device.h"
#include "device_view.h"
#include "pipeline.h"
#include "stream.h"
#include "tensor_rows.h"

#include <nanobind/stl/string.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <utility>

namespace lade_python {

namespace {

// Where a load goes to, or a save comes from.
struct Target {
  std::shared_ptr<Pipe> pipe;
  Owner<Allocator> allocator;
  lade_stream stream;
  std::shared_ptr<Stream> kept; // of `stream`, where it is a lade.Stream
};

class Load;

// Memory that tensors lie in. The stream that it was allocated on outlives it.
class Segment final : public Shared {
public:
  // `load`: whose the memory still is (S2); NULL: it is the segment's.
  Segment(const Target &target, void *base, std::shared_ptr<Load> load = nullptr)
      : Shared(target.allocator->device()), kept_(target.kept), allocator_(target.allocator), base_(base),
        stream_(target.stream), load_(std::move(load)) {}
  ~Segment() override {
    if (base_ && !load_ && !is_abandoned()) allocator_->free(base_);
  }
  // The load has arrived, and leaves its memory.
  void take() noexcept { load_.reset(); }
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
  std::shared_ptr<Load> load_;
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

// The files of a checkpoint, closed with the last of those that read them.
struct File {
  lade_safetensors *handle = nullptr;

  File() = default;
  File(const File &) = delete;
  ~File() { lade_safetensors_close(handle); }

  uint64_t count() const { return lade_safetensors_count(handle); }
  // Throws where there is no such tensor.
  lade_tensor_info tensor(uint64_t number) const {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    check(lade_safetensors_tensor(handle, number, &info));
    return info;
  }
};

// The C++ object of lade._lade._Checkpoint. Calls and slices hold it, loads its files.
struct Checkpoint {
  std::shared_ptr<File> file;
};

void checkpoint_init(Checkpoint *self, nb::handle path) {
  const std::string text = path_from(path, "path");
  auto file = std::make_shared<File>();
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_safetensors_open(text.c_str(), &file->handle);
  }
  check(status);
  new (self) Checkpoint{std::move(file)};
}

// The items that wrong ones are refused among, by nanobind.
template <typename Number> std::vector<Number> numbers_from(nb::handle list) {
  std::vector<Number> numbers;
  if (list.is_none()) return numbers;
  for (nb::handle item : nb::iter(list)) numbers.push_back(nb::cast<Number>(item));
  return numbers;
}

// Tensors by number; None: all, in the order of their bytes.
std::vector<uint64_t> tensors_from(const File &file, nb::handle list) {
  std::vector<uint64_t> numbers = numbers_from<uint64_t>(list);
  for (uint64_t i = 0; list.is_none() && i < file.count(); i++) numbers.push_back(i);
  return numbers;
}

nb::object text_of(const char *text) {
  PyObject *object = PyUnicode_FromString(text);
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

nb::object shape_of(const uint64_t *shape, uint64_t rank) {
  PyObject *tuple = PyTuple_New(static_cast<Py_ssize_t>(rank));
  if (!tuple) throw nb::python_error();
  for (uint64_t i = 0; i < rank; i++) {
    PyObject *extent = PyLong_FromUnsignedLongLong(shape[i]);
    if (!extent || PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), extent) != 0) {
      Py_DECREF(tuple);
      throw nb::python_error();
    }
  }
  return nb::steal(tuple);
}
nb::object shape_of(const lade_tensor_info &info) { return shape_of(info.shape, info.rank); }

const char *dtype_text(const lade_tensor_info &info) { return lade_dtype_name(static_cast<lade_dtype>(info.dtype)); }

nb::list checkpoint_names(Checkpoint &self, nb::handle tensors) {
  nb::list out;
  for (uint64_t number : tensors_from(*self.file, tensors)) out.append(text_of(self.file->tensor(number).name));
  return out;
}

// (dtype, shape, bytes, file, offset) of a tensor.
nb::tuple checkpoint_tensor(Checkpoint &self, uint64_t number) {
  const lade_tensor_info info = self.file->tensor(number);
  return nb::make_tuple(dtype_text(info), shape_of(info), info.bytes, info.file, info.offset);
}

// The types of tensors, with the number of the first of each.
nb::list checkpoint_dtypes(Checkpoint &self, nb::handle tensors) {
  std::vector<bool> seen;
  nb::list out;
  for (uint64_t number : tensors_from(*self.file, tensors)) {
    const lade_tensor_info info = self.file->tensor(number);
    const auto dtype = static_cast<size_t>(info.dtype);
    if (seen.size() <= dtype) seen.resize(dtype + 1);
    if (!seen[dtype]) out.append(nb::make_tuple(dtype_text(info), number));
    seen[dtype] = true;
  }
  return out;
}

nb::list checkpoint_metadata(Checkpoint &self) {
  nb::list out;
  const uint64_t count = lade_safetensors_metadata_count(self.file->handle);
  for (uint64_t i = 0; i < count; i++) {
    const char *key, *value;
    check(lade_safetensors_metadata(self.file->handle, i, &key, &value));
    out.append(nb::make_tuple(key, value));
  }
  return out;
}

nb::list checkpoint_files(Checkpoint &self) {
  nb::list out;
  for (uint64_t i = 0; const char *path = lade_safetensors_file_path(self.file->handle, i); i++)
    out.append(nb::steal(PyUnicode_DecodeFSDefault(path)));
  return out;
}

// --- mapped files ----------------------------------------------------------------------------------------------------

// A file, or a tensor of it, in the process' address space, private to it: what lade._lade._Mapping wraps. It needs no descriptor.
struct Mapping {
  void *memory = nullptr; // of whole pages
  size_t bytes = 0;       // from `memory` to the last byte asked for, or of the file
  size_t before = 0;      // of them, those before the first one asked for
  size_t file_bytes = 0;
  Mapping() = default;
  Mapping(Mapping &&other) noexcept
      : memory(std::exchange(other.memory, nullptr)), bytes(std::exchange(other.bytes, 0)), before(other.before),
        file_bytes(other.file_bytes) {}
  ~Mapping() {
    if (memory) munmap(memory, bytes);
  }
};

int mapping_buffer(PyObject *self, Py_buffer *view, int flags) noexcept {
  const Mapping &mapping = *nb::inst_ptr<Mapping>(self);
  return PyBuffer_FillInfo(view, self, static_cast<char *>(mapping.memory) + mapping.before,
                           static_cast<Py_ssize_t>(mapping.bytes - mapping.before), 0, flags);
}

PyType_Slot mapping_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(&mapping_buffer)}, {0, nullptr}};

// The file that the bytes of a tensor are in, as it was opened, or where `alone` the bytes of that tensor.
Mapping checkpoint_map(Checkpoint &self, uint64_t number, bool alone) {
  const lade_tensor_info info = self.file->tensor(number);
  lade_endpoint source;
  check(lade_safetensors_endpoint(self.file->handle, number, 0, 0, &source));
  const bool is_open = source.kind == LADE_ENDPOINT_FILE;
  const int fd = is_open ? source.fd : open(source.name, O_RDONLY | O_CLOEXEC);
  struct stat status;
  Mapping mapping;
  void *memory = MAP_FAILED;
  if (fd >= 0 && fstat(fd, &status) == 0) {
    mapping.file_bytes = static_cast<size_t>(status.st_size);
    const size_t begin = alone ? std::min<size_t>(info.offset, mapping.file_bytes) : 0;
    const size_t end = alone ? std::min<size_t>(info.offset + info.bytes, mapping.file_bytes) : mapping.file_bytes;
    mapping.before = begin % static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapping.bytes = end - begin + mapping.before;
    memory = mapping.bytes == 0 ? nullptr // cut since it was opened: mmap() takes no empty range
                                : mmap(nullptr, mapping.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd,
                                       static_cast<off_t>(begin - mapping.before));
  }
  const int fault = errno;
  if (!is_open && fd >= 0) close(fd);
  if (memory == MAP_FAILED) {
    errno = fault;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, source.name);
    throw nb::python_error();
  }
  mapping.memory = memory;
  return mapping;
}

// --- loading ---------------------------------------------------------------------------------------------------------

// A load and what it borrows. The last of its owners ends it, in any thread, with or without the GIL.
class Load {
public:
  // Under the GIL.
  Load(std::shared_ptr<File> file, std::vector<Target> targets)
      : file_(std::move(file)), targets_(std::move(targets)), calls_(new Calls(targets_)) {}
  Load(const Load &) = delete;
  ~Load() {
    if (targets_[0].allocator->is_abandoned()) {
      (void)calls_.release();
      return;
    }
    without_gil([this] { end(false); });
    const PyGILState_STATE state = gil_take();
    calls_.reset();
    PyGILState_Release(state);
  }

  const File &file() const noexcept { return *file_; }
  const Target &target() const noexcept { return targets_[0]; }
  bool is_virtual() const noexcept { return calls_->is_virtual; }
  lade_tensor_load *get() const noexcept { return load_; }
  // Copies come after what is queued there, instead of on the target's stream.
  void begin_after(lade_stream stream) noexcept { calls_->targets[0].stream = stream; }
  lade_status start(const lade_load_options &options) {
    return lade_safetensors_load(file_->handle, calls_->targets.data(), calls_->targets.size(), &options, &load_);
  }
  // Under the GIL. Once no transfer is under way nothing but memory is left to give back, which needs no pipeline: one whose load has
  // failed, and whose tensors a program keeps, may close.
  void leave_pipeline() {
    if (lade_tensor_load_query(load_, nullptr) != LADE_NOT_READY) calls_.reset();
  }
  // Without the GIL.
  lade_status end(bool keeps_memory) {
    const lade_status status = lade_tensor_load_destroy(load_, keeps_memory);
    if (status == LADE_OK) load_ = nullptr;
    return status;
  }

private:
  std::shared_ptr<File> file_;
  std::vector<Target> targets_;
  std::unique_ptr<Calls> calls_;
  lade_tensor_load *load_ = nullptr; // NULL: over
};

// The C++ object of lade._lade._Load. Its calls are made by one thread, in the order of lade/safetensors/.
struct LoadObject {
  struct Place {
    lade_tensor_info info;
    void *memory;   // NULL: no bytes
    size_t segment; // number
  };
  std::shared_ptr<Load> load; // NULL: over
  std::vector<Place> places;
  std::vector<Owner<Segment>> segments;
  std::vector<std::pair<char *, char *>> ranges; // of each segment

  Load &open() const {
    if (!load) refuse("the load is over");
    return *load;
  }
  // Memory of each tensor, or of all (S2). The infos of `wanted` are those of the tensors in memory.
  void places_make(const std::vector<lade_tensor_info> &wanted, bool per_tensor) {
    places.reserve(wanted.size());
    for (size_t i = 0; i < wanted.size(); i++) {
      Place place{wanted[i], nullptr, 0};
      check(lade_tensor_load_address(load->get(), i, &place.memory, nullptr));
      auto *begin = static_cast<char *>(place.memory);
      if (begin) {
        if (per_tensor || ranges.empty()) ranges.emplace_back(begin, begin);
        place.segment = ranges.size() - 1;
        std::pair<char *, char *> &range = ranges.back();
        range.first = std::min(range.first, begin);
        range.second = std::max(range.second, begin + place.info.bytes);
      }
      places.push_back(place);
    }
    for (const auto &range : ranges) segments.push_back(Owner<Segment>(new Segment(load->target(), range.first, load)));
  }
};

// The tensors of a load: their types and parts, for the library, and their infos with the bytes in memory.
struct Wanted {
  std::vector<int32_t> dtypes; // empty: as in the file
  std::vector<lade_load_part> parts;
  std::vector<lade_tensor_info> infos;

  explicit Wanted(std::vector<lade_tensor_info> of) : infos(std::move(of)) {}
  Wanted(const File &file, const std::vector<uint64_t> &numbers) {
    infos.reserve(numbers.size());
    for (uint64_t number : numbers) infos.push_back(file.tensor(number));
  }

  // A tensor's part (begin, end, dimension), or None. Wrong ones are the library's to refuse: their bytes do not matter.
  void cut(size_t at, nb::handle range) {
    if (range.is_none()) return;
    if (parts.empty()) parts.resize(infos.size());
    lade_load_part &part = parts[at];
    lade_tensor_info &info = infos[at];
    const nb::tuple three = nb::cast<nb::tuple>(range);
    part.begin = nb::cast<uint64_t>(nb::object(three[0]));
    part.end = nb::cast<uint64_t>(nb::object(three[1]));
    part.dim = nb::cast<int32_t>(nb::object(three[2]));
    const bool is_good = part.dim >= 0 && static_cast<uint64_t>(part.dim) < info.rank && part.begin <= part.end;
    const uint64_t size = is_good ? info.shape[part.dim] : 0, count = part.end - part.begin;
    if (size > 0) // an element of the dimension may have half a byte: F4, F6
      info.bytes = info.bytes / size * count + info.bytes % size * count / size;
  }
  // The type that a tensor is converted to, by name, or None.
  void convert(size_t at, nb::handle name) {
    if (name.is_none()) return;
    if (dtypes.empty()) dtypes.resize(infos.size());
    lade_tensor_info &info = infos[at];
    dtypes[at] = dtype_number(nb::cast<std::string>(name));
    info.bytes = info.bytes * 8 / lade_dtype_bits(static_cast<lade_dtype>(info.dtype)) *
                 lade_dtype_bits(static_cast<lade_dtype>(dtypes[at])) / 8;
    info.dtype = dtypes[at];
  }
};

// Begins it, with the types and parts of `wanted`; without the GIL where it waits.
void load_start(LoadObject &self, const Wanted &wanted, lade_load_options &options, nb::handle direct) {
  options.dtypes = wanted.dtypes.empty() ? nullptr : wanted.dtypes.data();
  options.parts = wanted.parts.empty() ? nullptr : wanted.parts.data();
  if (!direct.is_none()) options.file_flags = nb::cast<bool>(direct) ? LADE_FILE_DIRECT : LADE_FILE_CACHED;
  lade_status status;
  {
    const CurrentDevice current(self.load->target().pipe->device(), self.load->target().stream);
    check(current.status());
    Unlocked unlocked;
    status = self.load->start(options);
  }
  check(status);
}

// `dtypes`: a name or None for each tensor, or None; `parts`: (begin, end, dimension) or None for each, or None.
LoadObject checkpoint_start(Checkpoint &self, nb::handle target, nb::handle tensors, bool per_tensor, nb::handle direct,
                            nb::handle dtypes, nb::handle parts) {
  nb::list one;
  one.append(nb::borrow(target));
  const std::vector<uint64_t> numbers = tensors_from(*self.file, tensors);
  Wanted wanted(*self.file, numbers);
  const auto each = [&](nb::handle list, auto set) {
    size_t at = 0;
    for (nb::handle item : list.is_none() ? nb::iter(nb::tuple()) : nb::iter(list))
      at < numbers.size() ? set(at++, item) : refuse("dtypes or parts have more items than tensors");
    if (!list.is_none() && at < numbers.size()) refuse("dtypes or parts have fewer items than tensors");
  };
  each(
      parts, [&](size_t at, nb::handle item) { wanted.cut(at, item); });
  each(dtypes, [&](size_t at, nb::handle item) { wanted.convert(at, item); });
  LoadObject out;
  out.load = std::make_shared<Load>(self.file, targets_from(one));
  lade_load_options options;
  lade_load_options_init(&options);
  if (!tensors.is_none()) {
    options.tensors = numbers.data();
    options.tensor_count = numbers.size();
  }
  options.per_tensor = per_tensor;
  if (numbers.empty()) return out;
  load_start(out, wanted, options, direct);
  out.places_make(wanted.infos, per_tensor);
  return out;
}

// --- loading into tensors that are there -----------------------------------------------------------------------------

// Which tensor of the file goes into which row: the C++ object of lade._lade._Fit.
struct Fit {
  nb::list missing, unexpected; // names
  std::vector<uint64_t> numbers;
  std::vector<size_t> rows; // of each
};

// Rows by their names, which are those of a dict: the one after the last that was found, where it is that, or by a table with a place for
// each and as many free ones.
class RowNames {
public:
  explicit RowNames(const std::vector<TensorRows::Row> &rows) : rows_(rows) {}
  // SIZE_MAX: there is none.
  size_t find(std::string_view name) {
    if (next_ < rows_.size() && rows_[next_].name == name) return next_++;
    if (places_.empty()) table_make();
    const size_t found = place_of(name);
    if (found != none) next_ = found + 1;
    return found;
  }

private:
  static constexpr size_t none = SIZE_MAX;
  void table_make() {
    size_t count = 2; // a power of two
    while (count < 2 * rows_.size()) count *= 2;
    places_.resize(count, none);
    for (size_t i = 0; i < rows_.size(); i++) place_of(rows_[i].name) = i;
  }
  size_t &place_of(std::string_view name) {
    const size_t mask = places_.size() - 1;
    size_t at = std::hash<std::string_view>()(name) & mask;
    while (places_[at] != none && rows_[places_[at]].name != name) at = (at + 1) & mask;
    return places_[at];
  }
  const std::vector<TensorRows::Row> &rows_;
  size_t next_ = 0;
  std::vector<size_t> places_; // empty: not made
};

// By names. Of rows in the same memory one name will do, and the last in the file counts.
Fit checkpoint_fit(Checkpoint &self, const TensorRows &rows) {
  Fit fit;
  RowNames by_name(rows.rows);
  const std::vector<size_t> firsts = rows.firsts();
  std::vector<size_t> given(rows.rows.size(), SIZE_MAX); // of each first, in `fit`
  for (uint64_t number = 0; number < self.file->count(); number++) {
    const char *name = self.file->tensor(number).name;
    const size_t found = by_name.find(name);
    if (found == SIZE_MAX) {
      fit.unexpected.append(text_of(name));
      continue;
    }
    size_t &place = given[firsts[found]];
    if (place == SIZE_MAX) {
      place = fit.numbers.size();
      fit.numbers.push_back(number);
      fit.rows.push_back(found);
    } else {
      fit.numbers[place] = number;
      fit.rows[place] = found;
    }
  }
  for (size_t i = 0; i < rows.rows.size(); i++)
    if (given[firsts[i]] == SIZE_MAX) fit.missing.append(rows.rows[i].key);
  return fit;
}

bool is_same(const lade_tensor_info &info, const TensorRows &rows, const TensorRows::Row &row) {
  return info.dtype == row.dtype && info.rank == row.rank &&
         std::equal(info.shape, info.shape + info.rank, rows.shape_of(row));
}

// Begins a load into rows; None where no tensor has bytes. `decide`(name, type and shape of the file, type and shape of the row) is asked
// about rows that differ from the file, or about all if `each`: it gives the type to convert to or None, and the part or None; or None for
// no bytes. The caller keeps the rows, and ends the load before they go.
nb::object checkpoint_start_into(Checkpoint &self, nb::handle target, const TensorRows &rows, const Fit &fit,
                                 nb::handle decide, bool each, nb::handle direct) {
  nb::list one;
  one.append(nb::borrow(target));
  std::vector<uint64_t> numbers;
  std::vector<size_t> into;
  std::vector<lade_tensor_info> infos;
  std::vector<std::pair<size_t, nb::tuple>> decided; // of the numbers
  numbers.reserve(fit.numbers.size());
  into.reserve(fit.numbers.size());
  infos.reserve(fit.numbers.size());
  for (size_t i = 0; i < fit.numbers.size(); i++) {
    const lade_tensor_info info = self.file->tensor(fit.numbers[i]);
    const TensorRows::Row &row = rows.rows.at(fit.rows[i]);
    if (each || !is_same(info, rows, row)) {
      const nb::object answer = python_run([&] {
        return nb::object(decide(row.key, dtype_text(info), shape_of(info),
                                 lade_dtype_name(static_cast<lade_dtype>(row.dtype)),
                                 shape_of(rows.shape_of(row), row.rank)));
      });
      if (answer.is_none()) continue;
      decided.emplace_back(numbers.size(), nb::cast<nb::tuple>(answer));
    } else if (info.bytes == 0) {
      continue;
    }
    numbers.push_back(fit.numbers[i]);
    into.push_back(fit.rows[i]);
    infos.push_back(info);
  }
  if (numbers.empty()) return nb::none();
  Wanted wanted(std::move(infos));
  for (const auto &item : decided) {
    wanted.cut(item.first, nb::object(item.second[1]));
    wanted.convert(item.first, nb::object(item.second[0]));
  }
  LoadObject out;
  out.load = std::make_shared<Load>(self.file, targets_from(one));
  const Device &device = out.load->target().pipe->device();
  JoinedStreams streams(device);
  streams.add(out.load->target().stream, device.ordinal);
  std::vector<void *> memory;
  memory.reserve(into.size());
  for (size_t i = 0; i < into.size(); i++) {
    const TensorRows::Row &row = rows.rows[into[i]];
    if (row.view != SIZE_MAX) {
      const TensorView &view = rows.views[row.view];
      require_reachable(view, device, rows.title_of(row).c_str());
      if (view.has_stream) streams.add(view.stream, device.ordinal);
    }
    if (row.bytes != wanted.infos[i].bytes)
      refuse(rows.title_of(row) + " has " + std::to_string(row.bytes) + " bytes of memory; expected " +
             std::to_string(wanted.infos[i].bytes));
    memory.push_back(row.data);
  }
  lade_load_options options;
  lade_load_options_init(&options);
  options.tensors = numbers.data();
  options.tensor_count = numbers.size();
  options.memory = memory.data();
  options.per_tensor = true;
  out.load->begin_after(streams.get());
  load_start(out, wanted, options, direct);
  return nb::cast(std::move(out));
}

// Waits in slices, until all tensors are there; then their memory is theirs (S2).
void load_wait(LoadObject &self, nb::handle progress) {
  (void)self.open();
  const std::shared_ptr<Load> load = self.load;
  lade_tensor_load *const handle = load->get();
  const CurrentDevice current(load->target().pipe->device(), load->target().stream);
  check(current.status());
  for (lade_status status = LADE_ERR_TIMEOUT; handle && status == LADE_ERR_TIMEOUT;) {
    lade_load_info info;
    lade_load_info_init(&info);
    lade_status state;
    {
      Unlocked unlocked;
      status = lade_tensor_load_wait(handle, LADE_LOAD_ALL, load->is_virtual() ? LADE_WAIT_FOREVER : slice_ns);
      state = status == LADE_ERR_TIMEOUT || !progress.is_none() ? lade_tensor_load_query(handle, &info) : status;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) python_run([&] { progress(info.bytes_done, info.bytes); });
    if (status == LADE_ERR_TIMEOUT && (load->is_virtual() || (state != LADE_NOT_READY && state != LADE_OK)))
      check(status);
    if (status != LADE_ERR_TIMEOUT) check(status);
  }
  lade_status status;
  {
    Unlocked unlocked;
    status = load->end(true);
  }
  check(status);
  for (const Owner<Segment> &segment : self.segments) segment->take();
  self.load.reset();
}

// Waits in slices for one tensor.
void load_wait_tensor(LoadObject &self, uint64_t index) {
  const std::shared_ptr<Load> load = self.load;
  lade_tensor_load *const handle = self.open().get();
  if (!handle) return;
  const CurrentDevice current(load->target().pipe->device(), load->target().stream);
  check(current.status());
  for (lade_status status = LADE_ERR_TIMEOUT; status == LADE_ERR_TIMEOUT;) {
    {
      Unlocked unlocked;
      status = lade_tensor_load_wait(handle, index, load->is_virtual() ? LADE_WAIT_FOREVER : slice_ns);
    }
    if (status != LADE_ERR_TIMEOUT || load->is_virtual()) check(status);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

// Whether all tensors are there. False also where the load has failed, which a wait tells.
bool load_ready(LoadObject &self) {
  lade_tensor_load *const handle = self.open().get();
  return !handle || lade_tensor_load_query(handle, nullptr) == LADE_OK;
}

// Lets go of the tensors, and where they have not arrived, ends the load, if no object of it is left.
void load_close(LoadObject &self) {
  LoadObject gone = std::move(self);
  self = LoadObject();
  if (gone.load && gone.load->get()) gone.load->leave_pipeline();
  Unlocked unlocked;
  gone = LoadObject();
}

nb::handle item_of(nb::handle list, size_t at) {
  PyObject *item = PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(at));
  if (!item) throw nb::python_error();
  return item;
}

// A type as tensors get it: DLPack's, and the elements of the file in one of it.
struct Kind {
  nb::object text; // the file's name of it
  const DType *dtype = nullptr;
  uint64_t pack = 1;
  nb::list names, capsules;
};

// By the file's number of the type.
using Kinds = std::map<int32_t, Kind>;

Kinds kinds_from(nb::handle types) {
  Kinds kinds;
  for (nb::handle item : nb::iter(types)) {
    const nb::tuple row = nb::cast<nb::tuple>(item);
    Kind kind;
    kind.text = nb::object(row[0]);
    kind.dtype = dtype_find(nb::cast<std::string>(nb::object(row[1])).c_str());
    kind.pack = nb::cast<uint64_t>(nb::object(row[2]));
    if (!kind.dtype || kind.pack == 0) refuse("types has one that DLPack has not");
    kinds[dtype_number(nb::cast<std::string>(kind.text))] = std::move(kind);
  }
  return kinds;
}

Layout layout_of(const lade_tensor_info &info, const Kind &kind) {
  int64_t near[8];
  std::vector<int64_t> far(info.rank > 8 ? info.rank : 0);
  int64_t *const extents = info.rank > 8 ? far.data() : near;
  for (uint64_t i = 0; i < info.rank; i++) extents[i] = static_cast<int64_t>(info.shape[i]);
  if (info.rank > 0) extents[info.rank - 1] /= static_cast<int64_t>(kind.pack);
  if (info.rank > Layout::max_dims)
    refuse("tensor " + std::string(info.name) + " has " + std::to_string(info.rank) +
           " dimensions; expected 64 or fewer");
  return Layout(extents, static_cast<int>(info.rank), kind.dtype);
}

// The tensors with bytes as DLPack's capsules: (type, names, capsules) of each type. `types` has (type of the file, type of the capsule,
// elements of the file in one of it); work of `stream` may use them (V2).
nb::list load_capsules(LoadObject &self, nb::handle names, nb::handle types, nb::handle stream) {
  Kinds kinds = kinds_from(types);
  if (!stream.is_none())
    for (const Owner<Segment> &segment : self.segments) check(segment->record(stream_from(segment->runtime(), stream)));
  int32_t last = -1;
  Kind *kind = nullptr;
  for (size_t i = 0; i < self.places.size(); i++) {
    const LoadObject::Place &place = self.places[i];
    if (!place.memory) continue;
    if (place.info.dtype != last || !kind) {
      const auto found = kinds.find(place.info.dtype);
      if (found == kinds.end()) refuse("types lacks " + std::string(dtype_text(place.info)));
      kind = &found->second;
      last = place.info.dtype;
    }
    const Layout layout = layout_of(place.info, *kind);
    if (layout.bytes() != place.info.bytes) refuse("types has one of another size");
    auto *const block = new Block(self.segments[place.segment].get(), place.memory);
    nb::object capsule;
    try {
      capsule = dlpack_export(*block, layout, dlpack_device(*block, kDLCUDA), nb::none(), false);
    } catch (...) {
      block->drop();
      throw;
    }
    block->drop();
    kind->names.append(item_of(names, i));
    kind->capsules.append(capsule);
  }
  nb::list out;
  for (auto &entry : kinds) out.append(nb::make_tuple(entry.second.text, entry.second.names, entry.second.capsules));
  return out;
}

// (type, shape, segment, offset in it) of each tensor, in order; of one without bytes the segment is None.
nb::list load_rows(LoadObject &self) {
  nb::list out;
  std::map<int32_t, nb::object> texts; // one object for each type
  for (const LoadObject::Place &place : self.places) {
    nb::object &text = texts[place.info.dtype];
    if (!text) text = text_of(dtype_text(place.info));
    const auto offset = place.memory ? static_cast<char *>(place.memory) - self.ranges[place.segment].first : 0;
    out.append(nb::make_tuple(text, shape_of(place.info),
                              place.memory ? nb::object(nb::int_(place.segment)) : nb::object(nb::none()), offset));
  }
  return out;
}

// Numbers of the tensors without bytes, in the load.
nb::list load_empty(LoadObject &self) {
  nb::list out;
  for (size_t i = 0; i < self.places.size(); i++)
    if (!self.places[i].memory) out.append(i);
  return out;
}

// The bytes of each tensor.
nb::list load_views(LoadObject &self) {
  nb::list out;
  for (const LoadObject::Place &place : self.places) {
    const Owner<Segment> none =
        place.memory ? Owner<Segment>() : Owner<Segment>(new Segment(self.open().target(), nullptr));
    Segment &segment = place.memory ? *self.segments[place.segment].get() : *none.get();
    out.append(view_of(segment, place.memory, place.info.bytes));
  }
  return out;
}

// The bytes of each segment.
nb::list load_segments(LoadObject &self) {
  nb::list out;
  for (size_t i = 0; i < self.segments.size(); i++)
    out.append(view_of(*self.segments[i].get(), self.ranges[i].first,
                       static_cast<uint64_t>(self.ranges[i].second - self.ranges[i].first)));
  return out;
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

// Ranges of a tensor's bytes, `bytes` in all, one after the other in new memory: what get_slice() reads, of the file that was opened.
nb::object checkpoint_read(Checkpoint &self, nb::handle target_entry, uint64_t number, nb::handle ranges,
                           uint64_t bytes, bool direct) {
  nb::list one;
  one.append(nb::borrow(target_entry));
  const std::vector<Target> targets = targets_from(one);
  const Target &target = targets[0];
  lade_endpoint whole;
  check(lade_safetensors_endpoint(self.file->handle, number, 0, direct ? LADE_FILE_DIRECT : 0, &whole));
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

// Bytes of a tensor by its dtype and shape; UINT64_MAX where the library refuses them.
uint64_t bytes_of(const lade_tensor &tensor) {
  uint64_t bits = lade_dtype_bits(static_cast<lade_dtype>(tensor.dtype));
  for (uint64_t i = 0; i < tensor.rank; i++)
    if (__builtin_mul_overflow(bits, tensor.shape[i], &bits)) return UINT64_MAX;
  return bits % 8 == 0 ? bits / 8 : UINT64_MAX;
}

// Rows as the library has them: they point into `rows`.
std::vector<lade_tensor> tensors_of(const TensorRows &rows, const std::vector<Target> &targets) {
  std::vector<lade_tensor> list;
  list.reserve(rows.rows.size());
  for (const TensorRows::Row &row : rows.rows) {
    const bool on_target = row.device >= 0;
    if (row.view != SIZE_MAX) {
      const TensorView &view = rows.views[row.view];
      if (on_target)
        require_reachable(view, targets.at(0).pipe->device(), rows.title_of(row).c_str());
      else if (view.on_device && !(view.arena && view.arena->device().runtime->is_software()))
        refuse(rows.title_of(row) +
               " is memory of a GPU that only DLPack shows; expected an array of torch or CuPy, or a DeviceBuffer");
    }
    list.push_back(
        {row.name.data(), rows.shape_of(row), row.rank, row.data, on_target ? 0 : LADE_TARGET_HOST, row.dtype});
    const uint64_t wanted = bytes_of(list.back());
    if (wanted != UINT64_MAX && row.bytes != wanted)
      refuse(rows.title_of(row) + " has " + std::to_string(row.bytes) + " bytes of memory; expected " +
             std::to_string(wanted) + ", as its dtype and shape say");
  }
  return list;
}

// The arguments of a save, as the library takes them. Made and dropped under the GIL.
struct SaveRequest {
  std::string path;
  std::vector<Target> targets;
  std::vector<lade_tensor> tensors;
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<lade_metadata> pairs;
  lade_save_options options;
  Calls calls;
  std::optional<JoinedStreams> streams;
  std::optional<CurrentDevice> current;

  SaveRequest(nb::handle filename, nb::handle target_list, const TensorRows &rows, nb::handle metadata,
              uint64_t max_shard_bytes, bool sync)
      : path(path_from(filename, "path")), targets(targets_from(target_list)), tensors(tensors_of(rows, targets)),
        calls(targets) {
    if (targets.size() > 1) refuse("targets has more items than one");
    for (nb::handle item : metadata.is_none() ? nb::iter(nb::tuple()) : nb::iter(metadata)) {
      const nb::tuple pair = nb::cast<nb::tuple>(item);
      texts.emplace_back(nb::cast<std::string>(nb::object(pair[0])), nb::cast<std::string>(nb::object(pair[1])));
    }
    for (const auto &pair : texts) pairs.push_back({pair.first.c_str(), pair.second.c_str()});
    lade_save_options_init(&options);
    options.metadata = pairs.data();
    options.metadata_count = pairs.size();
    options.max_shard_bytes = max_shard_bytes;
    options.no_sync = !sync;
    options.empty_metadata = !metadata.is_none() && pairs.empty();
    if (targets.empty()) return;
    const Device &device = targets[0].pipe->device();
    streams.emplace(device);
    streams->add(targets[0].stream, device.ordinal);
    for (const TensorView &view : rows.views)
      if (view.has_stream) streams->add(view.stream, device.ordinal);
    calls.targets[0].stream = streams->get();
    current.emplace(device, calls.targets[0].stream);
    check(current->status());
  }
};

void save(nb::handle path, nb::handle target_list, const TensorRows &rows, nb::handle metadata,
          uint64_t max_shard_bytes, bool sync, nb::handle progress) {
  SaveRequest request(path, target_list, rows, metadata, max_shard_bytes, sync);
  SaveUser user{progress};
  request.options.progress = save_progress;
  request.options.user = &user;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_safetensors_save(request.path.c_str(), request.calls.targets.data(), request.calls.targets.size(),
                                   request.tensors.data(), request.tensors.size(), &request.options);
  }
  if (user.failed) throw nb::python_error();
  check(status);
}

// A save that goes on by itself. The memory of its tensors is held by the Python object that has it, until it is staged.
class Saving {
public:
  explicit Saving(std::vector<Target> targets) : targets_(std::move(targets)), generation_(process_generation()) {
    if (!targets_.empty()) targets_[0].pipe->user_add();
  }
  Saving(const Saving &) = delete;
  ~Saving() {
    if (!exiting()) without_gil([this] { (void)end(false); });
    if (save_) // at the exit, in a forked child, and on "sim" what can never end: it stands on these
      (void)new std::vector<Target>(std::move(targets_));
    else if (!targets_.empty())
      targets_[0].pipe->user_remove();
  }

  const std::vector<Target> &targets() const noexcept { return targets_; }
  bool is_virtual() const noexcept { return !targets_.empty() && targets_[0].pipe->is_virtual(); }
  // Without the GIL.
  lade_status begin(const SaveRequest &request) {
    return lade_safetensors_save_begin(request.path.c_str(), request.calls.targets.data(), request.calls.targets.size(),
                                       request.tensors.data(), request.tensors.size(), &request.options, &save_);
  }
  // Without the GIL. Other threads may be in calls: none begins any more, and it waits for them.
  lade_status end(bool cancel) {
    if (generation_ != process_generation()) return LADE_ERR_FORKED; // the parent's, its lock too
    closing_.store(true);
    std::unique_lock<std::shared_mutex> guard(lock_);
    const lade_status status = lade_save_destroy(save_, cancel);
    if (status == LADE_OK) save_ = nullptr;
    closing_.store(false);
    return status;
  }
  // The library's answer, waited for without the GIL. Refuses where the save is closed, or being closed.
  template <typename Call> lade_status call(Call function) {
    lade_status status = LADE_OK;
    bool is_open = generation_ == process_generation();
    if (is_open) {
      Unlocked unlocked;
      std::shared_lock<std::shared_mutex> guard(lock_);
      is_open = save_ && !closing_.load();
      if (is_open) status = function(save_);
    }
    if (!is_open) refuse("the Save is closed");
    return status;
  }

private:
  std::vector<Target> targets_;
  const unsigned generation_;
  std::shared_mutex lock_; // shared by calls; alone for the end
  std::atomic<bool> closing_{false};
  lade_save *save_ = nullptr; // NULL: over
};

// The C++ object of lade._lade._Save.
struct SaveObject {
  std::shared_ptr<Saving> saving;
  explicit SaveObject(std::shared_ptr<Saving> of) : saving(std::move(of)) {}
  SaveObject(SaveObject &&) = default;
  ~SaveObject() {
    if (saving) let_go(saving);
  }
};

SaveObject save_begin(nb::handle path, nb::handle target_list, const TensorRows &rows, nb::handle metadata,
                      uint64_t max_shard_bytes, bool sync, uint64_t stage_bytes) {
  SaveRequest request(path, target_list, rows, metadata, max_shard_bytes, sync);
  request.options.stage_bytes = stage_bytes;
  SaveObject out(std::make_shared<Saving>(request.targets));
  lade_status status;
  {
    Unlocked unlocked;
    status = out.saving->begin(request);
  }
  check(status);
  return out;
}

void save_wait(SaveObject &self, bool durable, nb::handle timeout) {
  const std::shared_ptr<Saving> saving = self.saving;
  const uint64_t timeout_ns = timeout_from(timeout);
  const lade_save_mark mark = durable ? LADE_SAVE_DURABLE : LADE_SAVE_STAGED;
  const Deadline deadline(timeout_ns);
  for (lade_status status = LADE_ERR_TIMEOUT; status == LADE_ERR_TIMEOUT;) {
    const uint64_t slice = saving->is_virtual() ? timeout_ns : deadline.slice(slice_ns);
    status = saving->call([&](lade_save *save) { return lade_save_wait(save, mark, slice); });
    if (status != LADE_ERR_TIMEOUT || saving->is_virtual() || slice == 0) check(status);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void save_stream_wait(SaveObject &self, nb::handle stream) {
  const std::shared_ptr<Saving> saving = self.saving;
  if (saving->targets().empty()) return; // nothing is on a device
  const Device &device = saving->targets()[0].pipe->device();
  const lade_stream on = stream_from(*device.runtime, stream);
  const CurrentDevice current(device, on);
  check(current.status());
  check(saving->call([&](lade_save *save) { return lade_stream_wait_save(on, save); }));
}

void save_end(SaveObject &self, bool cancel) {
  const std::shared_ptr<Saving> saving = self.saving;
  lade_status status;
  {
    Unlocked unlocked;
    status = saving->end(cancel);
  }
  check(status);
}

} // namespace

void bind_safetensors(nb::module_ &module) {
  nb::class_<Checkpoint>(module, "_Checkpoint", "A checkpoint that is open: lade.safetensors has the calls for users.")
      .def("__init__", &checkpoint_init, nb::arg("path"))
      .def("count", [](Checkpoint &self) { return self.file->count(); })
      .def("names", &checkpoint_names, nb::arg("tensors").none() = nb::none())
      .def("tensor", &checkpoint_tensor, nb::arg("number"))
      .def("dtypes", &checkpoint_dtypes, nb::arg("tensors").none() = nb::none())
      .def("metadata", &checkpoint_metadata)
      .def("files", &checkpoint_files)
      .def("map", &checkpoint_map, nb::arg("number"), nb::arg("alone"))
      .def("start", &checkpoint_start, nb::arg("target"), nb::arg("tensors").none(), nb::arg("per_tensor"),
           nb::arg("direct").none(), nb::arg("dtypes").none() = nb::none(), nb::arg("parts").none() = nb::none())
      .def("fit", &checkpoint_fit, nb::arg("rows"))
      .def("start_into", &checkpoint_start_into, nb::arg("target"), nb::arg("rows"), nb::arg("fit"), nb::arg("decide"),
           nb::arg("each"), nb::arg("direct").none())
      .def("read", &checkpoint_read, nb::arg("target"), nb::arg("number"), nb::arg("ranges"), nb::arg("bytes"),
           nb::arg("direct"));
  nb::class_<Mapping>(module, "_Mapping", nb::type_slots(mapping_slots),
                      "A file, or a tensor of it, in memory: lade.safetensors has the calls for users.")
      .def_ro("file_bytes", &Mapping::file_bytes);
  nb::class_<Fit>(module, "_Fit", "Tensors of a file and rows that match: lade.safetensors has the calls for users.")
      .def_ro("missing", &Fit::missing)
      .def_ro("unexpected", &Fit::unexpected);
  Locked<LoadObject>(module, "_Load", "A load that is under way: lade.safetensors has the calls for users.")
      .def("capsules", &load_capsules, nb::arg("names"), nb::arg("types"), nb::arg("stream").none())
      .def("rows", &load_rows)
      .def("empty", &load_empty)
      .def("views", &load_views)
      .def("segments", &load_segments)
      .def("wait", &load_wait, nb::arg("progress").none())
      .def("wait_tensor", &load_wait_tensor, nb::arg("index"))
      .def("ready", &load_ready)
      .def("close", &load_close);
  nb::class_<SaveObject>(module, "_Save", "A save that goes on by itself: lade.safetensors has the calls for users.")
      .def("wait", &save_wait, nb::arg("durable"), nb::arg("timeout").none())
      .def("wait_on", &save_stream_wait, nb::arg("stream").none())
      .def("end", &save_end, nb::arg("cancel"));
  module.def("_save_begin", &save_begin, nb::arg("path"), nb::arg("targets"), nb::arg("tensors"),
             nb::arg("metadata").none(), nb::arg("max_shard_bytes"), nb::arg("sync"), nb::arg("stage_bytes"));
  module.def("_save", &save, nb::arg("path"), nb::arg("targets"), nb::arg("tensors"), nb::arg("metadata").none(),
             nb::arg("max_shard_bytes"), nb::arg("sync"), nb::arg("progress").none());
}

} // namespace lade_python
