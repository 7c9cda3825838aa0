// SPDX-License-Identifier: Apache-2.0
//
// Batches of records: what lade/loader.py stands on.
//
//   lade.RecordIndex --> Index <--+
//   _Loader -----------------> Feed --> Pipe, Owner<Allocator>
//   _Batch --> Lease ------------^
//   DeviceView, DLPack capsules --^
//
// F1  A feed counts among the users of its pipe, and its index does not change as long as it is there.
// F2  A lease gives its batch back with its last owner, in any thread. So a feed whose leases are alive is not destroyed, also where its
//     loader is closed.
// F3  Calls on the library's loader hold `lock` shared; destroying holds it alone. No thread waits for it with the GIL: what a destruction
//     waits for may need the GIL. In a forked child it is not taken.
// F4  A lade.Stream that batches are allocated on, or handed out on, outlives them: on one that is gone none can be returned.
#include "loader.h"

#include "current_device.h"
#include "device.h"
#include "device_view.h"
#include "natural.h"
#include "pipeline.h"
#include "stream.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <shared_mutex>

namespace lade_python {

namespace {

// --- the index -------------------------------------------------------------------------------------------------------

// The library's index, shared with feeds.
struct Index {
  lade_record_index *handle = nullptr;
  std::vector<std::string> fields;
  std::atomic<int> feeds{0};

  Index() = default;
  Index(const Index &) = delete;
  Index &operator=(const Index &) = delete;
  ~Index() { lade_index_destroy(handle); }
};

struct IndexObject {
  std::shared_ptr<Index> index;
  bool is_adding = false; // another thread adds; guarded as Locked says
};

void refuse_while_adding(const IndexObject &self) {
  if (self.is_adding) raise(LADE_ERR_BUSY, "the RecordIndex is being added to by another thread");
}

// The index to be read, with the GIL from here to the end of the read: its tables move while another thread adds.
const Index &index_to_read(const IndexObject &self) {
  refuse_while_adding(self);
  return *self.index;
}

// Runs a call that changes the index, without the GIL.
template <typename Call> void index_change(IndexObject &self, Call call) {
  if (self.index->feeds.load() > 0)
    raise(LADE_ERR_BUSY, "the RecordIndex cannot change: " + std::to_string(self.index->feeds.load()) +
                             " loaders and saves read it; close them first");
  refuse_while_adding(self);
  self.is_adding = true;
  const std::shared_ptr<Index> index = self.index;
  lade_status status;
  {
    Unlocked unlocked;
    status = call(index->handle);
  }
  self.is_adding = false;
  check(status);
}

// "jpg,cls" or a sequence of names.
std::string fields_text(nb::handle fields) {
  if (PyUnicode_Check(fields.ptr())) return str_text(fields);
  std::string text;
  for (nb::handle name : nb::iter(python_list(fields, "fields", "a str, a sequence of str, or None"))) {
    if (!PyUnicode_Check(name.ptr()))
      refuse_type("fields has a " + class_text(name) + "; expected names, such as (\"jpg\", \"cls\")");
    text += (text.empty() ? "" : ",") + str_text(name);
  }
  return text;
}

void index_init(IndexObject *self, nb::handle fields) {
  auto index = std::make_shared<Index>();
  const std::string text = fields.is_none() ? "" : fields_text(fields);
  check(lade_index_create(fields.is_none() ? nullptr : c_text(text, "fields"), &index->handle));
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string names = text.substr(at, comma - at);
    index->fields.push_back(names.substr(0, names.find(';')));
    at = comma + 1;
  }
  new (self) IndexObject{std::move(index)};
}

lade_index_info index_info(const Index &index);

// Other threads may read the index meanwhile, and none changes it.
void index_save(IndexObject &self, nb::handle path) {
  const std::string text = path_from(path, "path");
  refuse_while_adding(self);
  const std::shared_ptr<Index> index = self.index;
  lade_status status;
  index->feeds++;
  {
    Unlocked unlocked;
    status = lade_index_save(index->handle, text.c_str());
  }
  index->feeds--;
  check(status);
}

IndexObject index_open(nb::handle path) {
  const std::string text = path_from(path, "path");
  auto index = std::make_shared<Index>();
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_index_open(text.c_str(), &index->handle);
  }
  check(status);
  const uint64_t fields = index_info(*index).fields;
  for (uint64_t i = 0; i < fields; i++) {
    const char *name = lade_index_field(index->handle, i);
    index->fields.push_back(name != nullptr ? name : "");
  }
  return IndexObject{std::move(index)};
}

void index_add_tar(IndexObject &self, nb::handle path, bool ignore_zeros) {
  const std::string text = path_from(path, "path");
  lade_tar_options options;
  lade_tar_options_init(&options);
  options.ignore_zeros = ignore_zeros;
  index_change(self, [&](lade_record_index *index) { return lade_index_add_tar(index, text.c_str(), &options); });
}

void index_add_fixed(IndexObject &self, nb::handle path, nb::handle record_bytes_argument,
                     nb::handle skip_bytes_argument) {
  const std::string text = path_from(path, "path");
  const uint64_t record_bytes = natural_from(record_bytes_argument, "record_bytes");
  const uint64_t skip_bytes = natural_from(skip_bytes_argument, "skip_bytes");
  index_change(self, [&](lade_record_index *index) {
    return lade_index_add_fixed(index, text.c_str(), skip_bytes, record_bytes);
  });
}

uint64_t index_add_file(IndexObject &self, nb::handle path) {
  const std::string text = path_from(path, "path");
  uint64_t file = 0;
  index_change(self, [&](lade_record_index *index) { return lade_index_add_file(index, text.c_str(), &file); });
  return file;
}

lade_range range_from(nb::handle item) {
  const std::string expected = "; expected (file, offset, bytes), ints of 0 or more";
  if (!is_iterable(item)) refuse_type("ranges has a " + class_text(item) + expected);
  const nb::object entry = python_list(item);
  uint64_t numbers[3];
  bool is_range = PyList_Size(entry.ptr()) == 3;
  for (Py_ssize_t i = 0; is_range && i < 3; i++) {
    const nb::handle part = PyList_GetItem(entry.ptr(), i);
    const nb::object number = integer_of(part);
    if (!number) refuse_type("ranges has " + repr_text(item) + " with a " + class_text(part) + expected);
    is_range = nb::try_cast(number, numbers[i]);
  }
  if (!is_range) refuse("ranges has " + repr_text(item) + expected);
  return {numbers[0], numbers[1], numbers[2]};
}

lade_index_info index_info(const Index &index) {
  lade_index_info info;
  lade_index_info_init(&info);
  check(lade_index_info_get(index.handle, &info));
  return info;
}

void index_add(IndexObject &self, nb::handle ranges, std::optional<std::string> key) {
  std::vector<lade_range> list;
  for (nb::handle item : nb::iter(python_list(ranges, "ranges", "a sequence of (file, offset, bytes)")))
    list.push_back(range_from(item));
  const uint64_t count = index_info(*self.index).fields;
  if (list.size() != count)
    refuse("ranges has " + std::to_string(list.size()) + " items; expected " + std::to_string(count) +
           ", one for each field");
  const char *key_text = key ? c_text(*key, "key") : nullptr;
  index_change(self, [&](lade_record_index *index) { return lade_index_add(index, key_text, list.data()); });
}

nb::object index_key(const Index &index, uint64_t record) {
  const char *key = lade_index_key(index.handle, record);
  return key ? nb::steal(PyUnicode_DecodeFSDefault(key)) : nb::none();
}

nb::dict index_left_out(IndexObject &self) {
  const lade_index_info left_out = index_info(index_to_read(self));
  nb::dict out;
  out["dotted"] = left_out.dotted;
  out["private_folders"] = left_out.private_folders;
  out["other_types"] = left_out.other_types;
  return out;
}

nb::tuple index_range(IndexObject &self, uint64_t record, uint64_t field) {
  lade_range range;
  check(lade_index_range(index_to_read(self).handle, record, field, &range));
  return nb::make_tuple(range.file, range.offset, range.bytes);
}

// Smallest and largest record of each field.
struct FieldSizes {
  std::vector<uint64_t> smallest, largest;

  explicit FieldSizes(const Index &index)
      : smallest(index_info(index).fields, UINT64_MAX), largest(smallest.size(), 0) {
    const uint64_t count = lade_index_count(index.handle);
    for (uint64_t record = 0; record < count; record++)
      for (size_t field = 0; field < largest.size(); field++) {
        lade_range range;
        if (lade_index_range(index.handle, record, field, &range) != LADE_OK) continue;
        smallest[field] = std::min(smallest[field], range.bytes);
        largest[field] = std::max(largest[field], range.bytes);
      }
  }
  bool are_of_one_size(size_t field) const { return smallest[field] >= largest[field]; }
  bool all_are_of_one_size() const {
    for (size_t field = 0; field < largest.size(); field++)
      if (!are_of_one_size(field)) return false;
    return true;
  }
};

// A field as one array in each batch: (records, *shape) of a type.
struct FieldArray {
  const DType *type;
  std::vector<int64_t> shape;
};

// Of each field; empty: its records are several arrays.
using FieldArrays = std::vector<std::optional<FieldArray>>;

// --- the loader ------------------------------------------------------------------------------------------------------

// The library's loader, with what it stands on.
class Feed {
public:
  Feed(std::shared_ptr<Index> index, std::shared_ptr<Pipe> pipe, Owner<Allocator> allocator,
       std::shared_ptr<Stream> stream)
      : stream_(std::move(stream)), index_(std::move(index)), pipe_(std::move(pipe)), allocator_(std::move(allocator)) {
    pipe_->user_add();
    index_->feeds++;
  }
  Feed(const Feed &) = delete;
  Feed &operator=(const Feed &) = delete;
  ~Feed() {
    if (is_usable()) (void)destroy();
    if (handle_) { // at the exit, and on "sim" what can never end: threads still read by the index, and write
      (void)new Kept{std::move(stream_), std::move(index_), std::move(pipe_), std::move(allocator_)};
      return;
    }
    index_->feeds--;
    pipe_->user_remove();
  }

  bool is_usable() const noexcept { return !exiting() && pipe_->is_own(); }
  lade_status create(const lade_loader_options &options) {
    return lade_loader_create(index_->handle, pipe_->get(), allocator_->get(), &options, &handle_);
  }
  // Without the GIL, or where nothing is waited for. After it, every call gives LADE_ERR_INVALID_ARGUMENT.
  lade_status destroy() noexcept {
    std::unique_lock<std::shared_mutex> guard(lock_);
    const lade_status status = lade_loader_destroy(handle_);
    if (status == LADE_OK) handle_ = nullptr;
    return status;
  }
  // Without the GIL.
  template <typename Call> lade_status call(Call function) {
    std::shared_lock<std::shared_mutex> guard(lock_);
    return function(handle_);
  }
  // With the GIL, for a call that does not wait. Refuses where the loader was closed meanwhile.
  template <typename Call> lade_status ask(Call function) {
    std::shared_lock<std::shared_mutex> guard(lock_, std::try_to_lock);
    if (!guard) {
      Unlocked unlocked;
      guard.lock();
    }
    if (!handle_) refuse("the Loader is closed");
    return function(handle_);
  }
  const Device &device() const noexcept { return pipe_->device(); }
  const Index &index() const noexcept { return *index_; }
  Pipe &pipe() const noexcept { return *pipe_; }

private:
  // The objects that a loader which is not destroyed stands on; never let go of.
  struct Kept {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Index> index;
    std::shared_ptr<Pipe> pipe;
    Owner<Allocator> allocator;
  };

  std::shared_ptr<Stream> stream_; // F4; may be empty
  std::shared_ptr<Index> index_;
  std::shared_ptr<Pipe> pipe_;
  Owner<Allocator> allocator_;
  std::shared_mutex lock_; // F3
  lade_loader *handle_ = nullptr;
};

// A batch that is handed out.
class Lease final : public Shared {
public:
  Lease(std::shared_ptr<Feed> feed, const lade_batch &batch, lade_stream stream, std::shared_ptr<Stream> kept)
      : Shared(feed->device()), kept_(std::move(kept)), feed_(std::move(feed)), batch_(batch), stream_(stream) {}
  ~Lease() override {
    if (is_abandoned()) return;
    const CurrentDevice current(device(), stream_);
    for (const lade_stream other : others_) wait_for(other);
    (void)feed_->call(
        [this](lade_loader *loader) { return loader ? lade_loader_return(loader, &batch_, stream_) : LADE_OK; });
  }
  lade_status record(lade_stream stream) noexcept override {
    const lade_stream legacy = LADE_STREAM_LEGACY;
    const bool same = stream == stream_ || ((!stream || stream == legacy) && (!stream_ || stream_ == legacy));
    const std::lock_guard<std::mutex> guard(lock_); // no Python runs under it
    if (!same && std::find(others_.begin(), others_.end(), stream) == others_.end()) others_.push_back(stream);
    return LADE_OK;
  }
  const lade_batch &batch() const noexcept { return batch_; }
  const Feed &feed() const noexcept { return *feed_; }

private:
  // The batch's stream waits for the work queued on another one. Where that fails, the other's work is waited for here.
  void wait_for(lade_stream other) noexcept {
    lade_runtime *runtime = device().get();
    lade_event event = nullptr;
    const CurrentDevice current(device(), other);
    lade_status status = lade_event_create(runtime, device().ordinal, &event);
    if (status == LADE_OK) status = lade_event_record(runtime, event, other);
    if (status == LADE_OK) status = lade_stream_wait_event(runtime, stream_, event);
    if (status != LADE_OK) (void)lade_stream_synchronize(runtime, other);
    if (event) (void)lade_event_destroy(runtime, event);
  }

  std::shared_ptr<Stream> kept_; // F4: of stream_, where it is a lade.Stream
  std::shared_ptr<Feed> feed_;
  lade_batch batch_;
  const lade_stream stream_;
  std::mutex lock_; // guards what follows
  std::vector<lade_stream> others_;
};

struct LoaderObject {
  std::shared_ptr<Feed> feed;
  std::shared_ptr<const FieldArrays> arrays;
  uint32_t prefetch = 0;
  uint64_t return_timeout_ns = 0;
  LoaderObject() = default;
  LoaderObject(LoaderObject &&) = default;
  ~LoaderObject() {
    if (feed) let_go(feed);
  }
  Feed &open() const {
    if (feed && !feed->pipe().is_own())
      raise(LADE_ERR_FORKED,
            "Loader: made before fork(); its readers are threads of the parent, and only the parent may use it");
    if (!feed) refuse("the Loader is closed");
    return *feed;
  }
};

struct BatchObject {
  Owner<Lease> lease;
  std::shared_ptr<const FieldArrays> arrays;
  BatchObject() = default;
  BatchObject(BatchObject &&) = default;
  ~BatchObject() { let_go(lease); }
  // A count of its own: what runs meanwhile may release the batch.
  Owner<Lease> open() const {
    if (!lease) refuse("the batch was released");
    return lease;
  }
};

const struct {
  const char *name;
  uint64_t lade_loader_state::*field;
} wide_fields[] = {{"epoch", &lade_loader_state::epoch},
                   {"position", &lade_loader_state::position},
                   {"batches", &lade_loader_state::batches},
                   {"seed", &lade_loader_state::seed},
                   {"record_count", &lade_loader_state::record_count},
                   {"files", &lade_loader_state::files},
                   {"files_in_any_order", &lade_loader_state::files_in_any_order},
                   {"records", &lade_loader_state::records}};
const struct {
  const char *name;
  uint32_t lade_loader_state::*field;
} narrow_fields[] = {{"shuffle", &lade_loader_state::shuffle},
                     {"rank", &lade_loader_state::rank},
                     {"world", &lade_loader_state::world_size},
                     {"equal_ranks", &lade_loader_state::equal_ranks}};

nb::dict state_dict(const lade_loader_state &state) {
  nb::dict out;
  out["version"] = 1;
  for (const auto &entry : wide_fields) out[entry.name] = state.*entry.field;
  for (const auto &entry : narrow_fields) out[entry.name] = state.*entry.field;
  return out;
}

lade_loader_state state_from(nb::handle object) {
  if (!PyDict_Check(object.ptr())) refuse_type("state", object, "a dict of state_dict()");
  const auto dict = nb::borrow<nb::dict>(object);
  lade_loader_state state;
  lade_loader_state_init(&state);
  const auto number = [&dict](const char *name, uint64_t most) {
    if (!dict.contains(name)) refuse("state has no \"" + std::string(name) + "\"; expected a dict of state_dict()");
    const nb::object value = dict[name];
    uint64_t out = 0;
    if (!PyLong_Check(value.ptr()))
      refuse_type("state[\"" + std::string(name) + "\"]", value, "an int, 0 to " + std::to_string(most));
    if (!nb::try_cast(value, out) || out > most)
      refuse("state[\"" + std::string(name) + "\"] is " + repr_text(value) + "; expected 0 to " + std::to_string(most));
    return out;
  };
  if (number("version", UINT32_MAX) != 1)
    raise(LADE_ERR_UNSUPPORTED,
          "state is of version " + str_text(nb::object(dict["version"])) + "; this lade knows version 1");
  for (const auto &entry : wide_fields) state.*entry.field = number(entry.name, UINT64_MAX);
  for (const auto &entry : narrow_fields) state.*entry.field = static_cast<uint32_t>(number(entry.name, UINT32_MAX));
  return state;
}

// Whether a field is one array: all are where all records are of one size, or padded, else those that `layout` names.
bool is_array(const FieldSizes &sizes, const nb::list &layout, bool padded, size_t field) {
  return padded || sizes.all_are_of_one_size() || !nb::object(layout[field]).is_none();
}

// Alignment of records where none is asked for: 1 where all fields are arrays without gaps, else 64 (0), or what leaves none in the
// arrays of `layout`.
uint32_t alignment_of(const FieldSizes &sizes, const nb::list &layout, bool padded) {
  if (padded || sizes.all_are_of_one_size()) return 1;
  uint64_t alignment = 64;
  for (size_t field = 0; field < sizes.largest.size(); field++)
    while (!nb::object(layout[field]).is_none() && sizes.largest[field] % alignment != 0) alignment /= 2;
  return static_cast<uint32_t>(alignment);
}

// The layout of a field whose records take `row` bytes each; refuses one of another number.
FieldArray array_from(const std::string &name, nb::handle layout, uint64_t row) {
  FieldArray array{dtype_find("uint8"), {}};
  nb::object shape = nb::none();
  if (!layout.is_none()) {
    const nb::tuple pair = nb::cast<nb::tuple>(layout);
    array.type = dtype_from(nb::object(pair[0]));
    shape = nb::object(pair[1]);
  }
  uint64_t bytes = array.type->bytes;
  if (shape.is_none()) {
    if (row % bytes != 0)
      refuse(name + " has dtype " + array.type->name + "; records of " + std::to_string(row) +
             " bytes hold no whole number of them");
    array.shape.push_back(static_cast<int64_t>(row / bytes));
    bytes = row;
  } else {
    for (nb::handle extent : nb::iter(python_list(shape, "shape", "a sequence of ints, or None"))) {
      const nb::object number = integer_of(extent);
      array.shape.push_back(-1);
      if (!number || !nb::try_cast(number, array.shape.back()) || array.shape.back() < 0 ||
          __builtin_mul_overflow(bytes, static_cast<uint64_t>(array.shape.back()), &bytes))
        bytes = UINT64_MAX;
    }
  }
  if (bytes != row)
    refuse(name + " has shape " + repr_text(shape) + " of " + array.type->name + ", which is not the " +
           std::to_string(row) + " bytes that a record takes");
  return array;
}

// How batches show each field. `layout`: None or (dtype, shape) for each. Refuses what the records are not.
FieldArrays arrays_from(const Index &index, const FieldSizes &sizes, const nb::list &layout, uint32_t alignment,
                        bool padded) {
  FieldArrays arrays;
  const uint64_t step = alignment ? alignment : 64;
  if (lade_index_count(index.handle) == 0) return arrays; // the library refuses it
  for (size_t field = 0; field < sizes.largest.size(); field++) {
    arrays.emplace_back();
    if (!is_array(sizes, layout, padded, field)) continue;
    const std::string name = index.fields[field].empty() ? "layout" : "layout['" + index.fields[field] + "']";
    if (!padded && !sizes.are_of_one_size(field))
      refuse(name + " is of records of " + std::to_string(sizes.smallest[field]) + " to " +
             std::to_string(sizes.largest[field]) + " bytes; expected a field of records of one size, or padded=True");
    arrays.back() = array_from(name, nb::object(layout[field]), (sizes.largest[field] + step - 1) / step * step);
  }
  return arrays;
}

void loader_init(LoaderObject *self, nb::handle index_argument, nb::handle pipeline, nb::handle allocator_argument,
                 nb::handle stream, nb::handle resume, uint64_t batch_records, uint64_t batch_bytes, uint64_t seed,
                 uint64_t epochs, uint32_t rank, uint32_t world, uint32_t prefetch, std::optional<uint32_t> alignment,
                 const nb::list &layout, bool padded, bool shuffle, bool equal_ranks, bool drop_last,
                 bool skip_unreadable, nb::handle return_timeout) {
  IndexObject *index = nullptr;
  if (!nb::try_cast(index_argument, index) || !index) refuse_type("index", index_argument, "a lade.RecordIndex");
  const std::shared_ptr<Pipe> pipe = pipe_from(pipeline);
  Owner<Allocator> allocator = allocator_from(allocator_argument);
  if (allocator->device().runtime != pipe->device().runtime || allocator->device().ordinal != pipe->device().ordinal)
    refuse("allocator is of " + allocator->device().text() + "; the pipeline's device is " + pipe->device().text());
  const uint64_t return_timeout_ns = timeout_from(return_timeout, "return_timeout");
  std::shared_ptr<Feed> feed;
  { // from here on the index does not change (F1), whatever Python runs for the arguments that follow
    const nb::ft_object_guard guard(index_argument);
    refuse_while_adding(*index);
    feed = std::make_shared<Feed>(index->index, pipe, std::move(allocator), stream_owner(stream));
  }
  const FieldSizes sizes(*index->index);
  lade_loader_options options;
  lade_loader_options_init(&options);
  options.batch_records = batch_records;
  options.batch_bytes = batch_bytes;
  options.seed = seed;
  options.epochs = epochs;
  options.rank = rank;
  options.world_size = world;
  options.prefetch = prefetch;
  options.alignment = alignment ? *alignment : alignment_of(sizes, layout, padded);
  options.padded = padded;
  options.shuffle = shuffle;
  options.equal_ranks = equal_ranks;
  options.drop_last = drop_last;
  options.skip_unreadable = skip_unreadable;
  options.stream = stream.is_none() ? nullptr : stream_from(*pipe->device().runtime, stream);
  lade_loader_state state;
  if (!resume.is_none()) {
    state = state_from(resume);
    options.resume = &state;
  }
  auto arrays = std::make_shared<FieldArrays>(arrays_from(*index->index, sizes, layout, options.alignment, padded));
  lade_status status;
  lade_error error;
  {
    Unlocked unlocked;
    status = feed->create(options);
    error = *lade_last_error();
    if (status != LADE_OK) feed.reset();
  }
  if (status != LADE_OK) {
    set_error(error);
    throw nb::python_error();
  }
  new (self) LoaderObject();
  self->feed = std::move(feed);
  self->arrays = std::move(arrays);
  self->prefetch = prefetch ? prefetch : 4;
  self->return_timeout_ns = return_timeout_ns;
}

// Waits in slices. None: the last epoch is over.
nb::object loader_next(LoaderObject &self, nb::handle stream, nb::handle timeout) {
  (void)self.open();
  const std::shared_ptr<Feed> feed = self.feed;
  const Device &device = feed->device();
  const lade_stream on = stream_from(*device.runtime, stream);
  const bool is_virtual = feed->pipe().is_virtual();
  const uint64_t limit = std::min(timeout_from(timeout), self.return_timeout_ns);
  const Deadline deadline(limit);
  lade_batch batch;
  lade_batch_init(&batch);
  bool is_closed = false;
  for (lade_status status = LADE_ERR_TIMEOUT; status != LADE_OK;) {
    const uint64_t slice = is_virtual ? limit : deadline.slice(slice_ns);
    const CurrentDevice current(device, on);
    check(current.status());
    {
      Unlocked unlocked;
      status = feed->call([&](lade_loader *loader) {
        is_closed = !loader;
        return loader ? lade_loader_next(loader, on, slice, &batch) : LADE_OK;
      });
    }
    if (is_closed) refuse("the Loader is closed");
    if (status != LADE_OK && status != LADE_ERR_TIMEOUT) check(status);
    if (status == LADE_OK) break;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (slice == 0 || is_virtual) check(status);
  }
  feed->pipe().drain();
  if (batch.count == 0) return nb::none();
  BatchObject out;
  out.lease = Owner<Lease>(new Lease(feed, batch, on, stream_owner(stream)));
  out.arrays = self.arrays;
  return nb::cast(std::move(out));
}

nb::dict loader_state(LoaderObject &self) {
  (void)self.open();
  const std::shared_ptr<Feed> feed = self.feed;
  lade_loader_state state;
  lade_loader_state_init(&state);
  check(feed->ask([&](lade_loader *loader) { return lade_loader_state_get(loader, &state); }));
  return state_dict(state);
}

nb::dict loader_stats(LoaderObject &self) {
  (void)self.open();
  const std::shared_ptr<Feed> feed = self.feed;
  lade_loader_stats stats;
  lade_loader_stats_init(&stats);
  check(feed->ask([&](lade_loader *loader) { return lade_loader_stats_get(loader, &stats); }));
  nb::dict out;
  out["batches"] = stats.batches;
  out["records"] = stats.records;
  out["skipped_records"] = stats.skipped_records;
  out["skipped_batches"] = stats.skipped_batches;
  out["skips_listed"] = stats.skips_listed;
  return out;
}

nb::list loader_skips(LoaderObject &self) {
  (void)self.open();
  const std::shared_ptr<Feed> feed = self.feed; // what runs meanwhile may close the loader
  nb::list out;
  for (uint64_t i = 0; i < LADE_LOADER_SKIPS_LISTED; i++) {
    lade_loader_skip skip;
    lade_loader_skip_init(&skip);
    const lade_status status = feed->ask([&](lade_loader *loader) { return lade_loader_skip_get(loader, i, &skip); });
    if (status != LADE_OK) break;
    out.append(nb::make_tuple(skip.record, index_key(feed->index(), skip.record), skip.count, nb::str(skip.text)));
  }
  return out;
}

void loader_close(LoaderObject &self) {
  if (!self.feed) return;
  (void)self.open();
  std::shared_ptr<Feed> feed = self.feed;
  lade_status status;
  {
    Unlocked unlocked;
    status = feed->destroy();
  }
  if (status != LADE_ERR_BUSY) check(status); // batches in use: the last one destroys it (F2)
  self.feed.reset();
  let_go(feed);
}

// --- batches ---------------------------------------------------------------------------------------------------------

uint64_t field_check(const lade_batch &batch, uint64_t field) {
  if (field >= batch.field_count)
    refuse("field is " + std::to_string(field) + "; the batch has " + std::to_string(batch.field_count));
  return field * batch.count;
}

// The records of a field, each an array of bytes.
nb::list batch_parts(BatchObject &self, uint64_t field) {
  const Owner<Lease> lease = self.open();
  const lade_batch &batch = lease->batch();
  const uint64_t first = field_check(batch, field);
  nb::list out;
  for (uint64_t i = 0; i < batch.count; i++) {
    const auto bytes = static_cast<int64_t>(batch.lengths[first + i]);
    void *data = bytes > 0 ? static_cast<char *>(batch.memory) + batch.offsets[first + i] : nullptr;
    out.append(nb::cast(DeviceView(*lease.get(), data, Layout(&bytes, 1, dtype_find("uint8")))));
  }
  return out;
}

// All records of a field as one array; None where they are several.
nb::object batch_array(BatchObject &self, uint64_t field) {
  const Owner<Lease> lease = self.open();
  const lade_batch &batch = lease->batch();
  const uint64_t first = field_check(batch, field);
  const std::optional<FieldArray> &array = (*self.arrays)[field];
  if (!array) return nb::none();
  std::vector<int64_t> extents{static_cast<int64_t>(batch.count)};
  extents.insert(extents.end(), array->shape.begin(), array->shape.end());
  Layout layout(extents.data(), static_cast<int>(extents.size()), array->type);
  void *data = layout.bytes() > 0 ? static_cast<char *>(batch.memory) + batch.offsets[first] : nullptr;
  return nb::cast(DeviceView(*lease.get(), data, std::move(layout)));
}

nb::list numbers(const uint64_t *list, uint64_t count) {
  nb::list out;
  for (uint64_t i = 0; i < count; i++) out.append(list[i]);
  return out;
}

nb::list batch_keys(BatchObject &self) {
  const Owner<Lease> lease = self.open();
  nb::list out;
  for (uint64_t i = 0; i < lease->batch().count; i++)
    out.append(index_key(lease->feed().index(), lease->batch().records[i]));
  return out;
}

void bind_index(nb::module_ &module) {
  Locked<IndexObject>(
      module, "RecordIndex",
      "Which records a data set has, and where the bytes of each lie.\n\n"
      "Parameters\n----------\nfields : str, sequence of str or None\n"
      "    Names of the fields of each record: for tar files the extensions, with ';' between those of one field\n"
      "    (``\"jpg;jpeg,cls\"``). None: one field without name.\n\n"
      "Built by one thread at a time: while it adds, other threads' calls raise BusyError. While a Loader reads the "
      "index, changes do.")
      .def("__init__", &index_init, nb::arg("fields").none() = nb::none(),
           nb::sig("def __init__(self, fields: str | typing.Sequence[str] | None = None) -> None"))
      .def("save", &index_save, nb::arg("path"),
           nb::sig("def save(self, path: str | bytes | os.PathLike[str]) -> None"),
           "Keep the index in a file, for open(): shards are not read again.\n\n"
           "Paths of shards are kept as they were given.\n\n"
           "Raises\n------\nUnsupportedError\n    A shard's URL has a query, which may be a secret.")
      .def_static(
          "open", &index_open, nb::arg("path"),
          nb::sig("def open(path: str | bytes | os.PathLike[str]) -> RecordIndex"),
          "An index that save() has kept.\n\n"
          "Raises\n------\nFormatError\n    The file is none, or damaged.\nIOError\n    It cannot be read; or a "
          "shard has changed since it was indexed.")
      .def("add_tar", &index_add_tar, nb::arg("path"), nb::kw_only(), nb::arg("ignore_zeros") = false,
           nb::sig("def add_tar(self, path: str | bytes | os.PathLike[str], *, ignore_zeros: bool = False) -> None"),
           "Add the records of a tar file: files that follow each other with one key, in the manner of WebDataset.\n\n"
           "Parameters\n----------\npath : str, bytes or os.PathLike\n    Or a URL (docs/sources.md).\nignore_zeros : "
           "bool\n"
           "    Read on behind blocks of zeros: archives one behind the other.\n\n"
           "Raises\n------\nFormatError\n    Naming byte and member; the index is as before.\nIOError\n    It cannot "
           "be read.")
      .def("add_fixed", &index_add_fixed, nb::arg("path").none(), nb::arg("record_bytes").none(), nb::kw_only(),
           nb::arg("skip_bytes").none() = 0,
           nb::sig("def add_fixed(self, path: str | bytes | os.PathLike[str], record_bytes: int, *, skip_bytes: int = "
                   "0) -> None"),
           "Add a file of records of one size, behind a header of ``skip_bytes``. For an index of one field.")
      .def("add_file", &index_add_file, nb::arg("path"),
           nb::sig("def add_file(self, path: str | bytes | os.PathLike[str]) -> int"),
           "Add a file without records, and give its number for add().")
      .def("add", &index_add, nb::arg("ranges"), nb::arg("key").none() = nb::none(),
           nb::sig("def add(self, ranges: typing.Iterable[tuple[int, int, int]], key: str | None = None) -> None"),
           "Add a record: ``(file, offset, bytes)`` for each field.")
      .def(
          "left_out", &index_left_out, nb::sig("def left_out(self) -> dict[str, int]"),
          "Members of the tar files that are in no record, though their names end as those of a field's members do.\n\n"
          "``dotted``: of ``a.b.jpg``, where ``b.jpg`` is no field and ``jpg`` is one: a key has no dot. "
          "``private_folders``: in a\nfolder named ``__x__``. ``other_types``: pipes, sockets, devices.")
      .def(
          "key", [](IndexObject &self, uint64_t record) { return index_key(index_to_read(self), record); },
          nb::arg("record"), nb::sig("def key(self, record: int) -> str | None"),
          "Key of a record; None if it has none.")
      .def("range", &index_range, nb::arg("record"), nb::arg("field") = 0,
           nb::sig("def range(self, record: int, field: int = 0) -> tuple[int, int, int]"),
           "``(file, offset, bytes)`` of a field.")
      .def_prop_ro(
          "fields",
          [](IndexObject &self) {
            nb::list out;
            for (const std::string &name : self.index->fields) out.append(nb::str(name.c_str()));
            return nb::tuple(out);
          },
          nb::sig("def fields(self) -> tuple[str, ...]"),
          "Names of the fields; the first one where several mean the same.")
      .def(
          "__len__", [](IndexObject &self) { return lade_index_count(index_to_read(self).handle); },
          "Number of records.")
      .def(
          "__repr__",
          [](IndexObject &self) {
            return self.is_adding
                       ? "<lade.RecordIndex, being added to>"
                       : "<lade.RecordIndex of " + std::to_string(lade_index_count(self.index->handle)) + " records>";
          });
}

} // namespace

void bind_loader(nb::module_ &module) {
  bind_index(module);
  Locked<LoaderObject>(module, "_Loader", "What lade.Loader stands on.")
      .def("__init__", &loader_init, nb::arg("index"), nb::arg("pipeline"), nb::arg("allocator"), nb::kw_only(),
           nb::arg("stream").none(), nb::arg("resume").none(), nb::arg("batch_records"), nb::arg("batch_bytes"),
           nb::arg("seed"), nb::arg("epochs"), nb::arg("rank"), nb::arg("world"), nb::arg("prefetch"),
           nb::arg("alignment").none(), nb::arg("layout"), nb::arg("padded"), nb::arg("shuffle"),
           nb::arg("equal_ranks"), nb::arg("drop_last"), nb::arg("skip_unreadable"), nb::arg("return_timeout").none())
      .def("next", &loader_next, nb::arg("stream").none(), nb::arg("timeout").none())
      .def("state", &loader_state)
      .def("stats", &loader_stats)
      .def("skips", &loader_skips)
      .def("close", &loader_close);
  Locked<BatchObject>(module, "_Batch", "What lade.Batch stands on.")
      .def_prop_ro("released", [](BatchObject &self) { return !self.lease; })
      .def_prop_ro("number", [](BatchObject &self) { return self.open()->batch().number; })
      .def_prop_ro("epoch", [](BatchObject &self) { return self.open()->batch().epoch; })
      .def_prop_ro("count", [](BatchObject &self) { return self.open()->batch().count; })
      .def_prop_ro("nbytes", [](BatchObject &self) { return self.open()->batch().bytes; })
      .def("parts", &batch_parts, nb::arg("field"))
      .def("array", &batch_array, nb::arg("field"))
      .def(
          "lengths",
          [](BatchObject &self, uint64_t field) {
            const Owner<Lease> lease = self.open();
            const lade_batch &batch = lease->batch();
            return numbers(batch.lengths + field_check(batch, field), batch.count);
          },
          nb::arg("field"))
      .def("records",
           [](BatchObject &self) {
             const Owner<Lease> lease = self.open();
             return numbers(lease->batch().records, lease->batch().count);
           })
      .def("keys", &batch_keys)
      .def("release", [](BatchObject &self) { let_go(self.lease); });
}

} // namespace lade_python
