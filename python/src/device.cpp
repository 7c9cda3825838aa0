// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include "array.h"
#include "natural.h"
#include "observe.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>

namespace lade_python {

Allocator::~Allocator() {
  if (!handle_ || is_abandoned()) return;
  runtime().arena_remove(this);
  (void)lade_device_allocator_destroy(handle_, true);
  runtime().arena_closed();
}

void Allocator::close(bool wait) {
  if (is_closed()) return;
  arena_close(*this, handle_, "DeviceAllocator",
              [wait](lade_device_allocator *handle) { return lade_device_allocator_destroy(handle, wait); });
}

Owner<Allocator> allocator_from(nb::handle object) {
  AllocatorObject *allocator = nullptr;
  if (!nb::try_cast(object, allocator) || !allocator) refuse_type("allocator", object, "a lade.DeviceAllocator");
  Owner<Allocator> owner = allocator->allocator;
  (void)owner->get();
  return owner;
}

namespace {

// A stream argument for work on the arena's device. Refuses a stream that tells of another device.
lade_stream stream_on(const Device &device, nb::handle object) {
  const lade_stream stream = stream_from(*device.runtime, object, device.ordinal);
  if (PyLong_CheckExact(object.ptr()) || object.is_none()) return stream;
  const int ordinal = stream_device(object);
  if (ordinal >= 0 && ordinal != device.ordinal)
    refuse("stream is on device " + std::to_string(ordinal) + "; expected a stream on " + device.text());
  return stream;
}

} // namespace

Block *device_block(Allocator &allocator, size_t bytes, lade_stream on, std::shared_ptr<void> kept) {
  void *pointer = nullptr;
  // Cached memory is taken with the GIL, as pinned memory is (pool_block): that waits for no thread.
  const lade_status ready = bytes > 0 ? lade_device_alloc_ready(allocator.get(), bytes, on, &pointer) : LADE_OK;
  if (bytes == 0)
    (void)allocator.get();
  else if (ready == LADE_NOT_READY)
    unlocked_call(allocator,
                  [&](lade_device_allocator *handle) { return lade_device_alloc(handle, bytes, on, &pointer); });
  else
    check(ready);
  return new Block(&allocator, pointer, std::move(kept));
}

DeviceBuffer device_empty(Allocator &allocator, Layout &&layout, nb::handle stream) {
  const lade_stream on = stream_on(allocator.device(), stream);
  Block *block = device_block(allocator, layout.bytes(), on, stream_owner(stream));
  return DeviceBuffer(block, std::move(layout), on);
}

void device_record(const Block &block, nb::handle stream) {
  const Allocator &allocator = static_cast<const Allocator &>(*block.arena());
  lade_device_allocator *handle = allocator.get();
  const lade_stream on = stream_on(allocator.device(), stream);
  if (block.pointer()) check(lade_device_record_stream(handle, block.pointer(), on));
}

namespace {

using Natural = NaturalArgument;

struct Flag {
  const char *name;
  uint32_t bit;
};
const Flag flags[] = {{"uncached", LADE_DEVICE_UNCACHED},
                      {"expandable_private_pools", LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS},
                      {"expandable_ipc", LADE_DEVICE_EXPANDABLE_IPC},
                      {"reference", LADE_DEVICE_REFERENCE},
                      {"older_reference", LADE_DEVICE_OLDER_REFERENCE},
                      {"newest_pool", LADE_DEVICE_NEWEST_POOL},
                      {"streams_are_retired", LADE_DEVICE_STREAMS_ARE_RETIRED},
                      {"thread_caches", LADE_DEVICE_THREAD_CACHES},
                      {"refuse_beyond_limit", LADE_DEVICE_REFUSE_BEYOND_LIMIT},
                      {"capture_reuse", LADE_DEVICE_CAPTURE_REUSE}};

uint32_t flags_from(nb::handle names) {
  uint32_t bits = 0;
  std::string known;
  for (const Flag &flag : flags) known += std::string(known.empty() ? "\"" : ", \"") + flag.name + "\"";
  if (PyUnicode_Check(names.ptr())) refuse_type("flags", names, "a sequence of " + known);
  for (nb::handle name : nb::iter(python_list(names, "flags", "a sequence of " + known))) {
    uint32_t bit = 0;
    for (const Flag &flag : flags)
      if (PyUnicode_Check(name.ptr()) && str_text(name) == flag.name) bit = flag.bit;
    if (!PyUnicode_Check(name.ptr())) refuse_type("flags has a " + class_text(name) + "; expected " + known);
    if (!bit) refuse("flags has " + repr_text(name) + "; expected " + known);
    bits |= bit;
  }
  return bits;
}

uint32_t backend_from(const std::string &name) {
  if (name == "native") return LADE_DEVICE_NATIVE;
  if (name == "cudaMallocAsync") return LADE_DEVICE_CUDA_MALLOC_ASYNC;
  refuse("backend is \"" + name + "\"; expected \"native\" or \"cudaMallocAsync\"");
}

void allocator_init(AllocatorObject *self, nb::handle device_argument, Natural max_bytes,
                    std::optional<double> memory_fraction, std::optional<std::string> backend, bool expandable_segments,
                    Natural max_split_bytes, Natural large_segment_bytes, std::optional<double> collection_threshold,
                    Natural event_batch, nb::handle flag_names, std::optional<std::string> settings) {
  lade_device_options options;
  lade_device_options_init(&options);
  if (settings) {
    lade_config config;
    lade_config_init(&config);
    config.device = &options;
    check(lade_config_parse(c_text(*settings, "settings"), &config));
  }
  if (const auto given = max_bytes.read("max_bytes")) options.max_bytes = positive(*given, "max_bytes");
  if (memory_fraction) {
    if (!(*memory_fraction > 0))
      refuse("memory_fraction is " + std::to_string(*memory_fraction) + "; expected a number above 0, or None");
    options.memory_fraction = *memory_fraction;
  }
  if (backend) options.backend = backend_from(*backend);
  if (expandable_segments) options.expandable_segments = 1;
  if (const auto given = max_split_bytes.read("max_split_bytes"))
    options.max_split_bytes = positive(*given, "max_split_bytes");
  if (const auto given = large_segment_bytes.read("large_segment_bytes"))
    options.large_segment_bytes = positive(*given, "large_segment_bytes");
  if (collection_threshold) options.collection_threshold = *collection_threshold;
  if (const auto given = event_batch.read("event_batch"))
    options.event_batch = static_cast<uint32_t>(std::min<uint64_t>(positive(*given, "event_batch"), UINT32_MAX));
  options.flags |= flags_from(flag_names);
  Device device = device_from(device_argument);
  lade_device_allocator *handle = nullptr;
  check(lade_device_allocator_create(device.get(), device.ordinal, &options, &handle));
  new (self) AllocatorObject;
  self->allocator =
      Owner<Allocator>(new Allocator(std::move(device), handle, (options.flags & LADE_DEVICE_UNCACHED) != 0));
}

DeviceBuffer allocator_empty(const AllocatorObject &self, nb::handle shape, nb::handle dtype, nb::handle stream) {
  return device_empty(*self.use(), Layout(shape, dtype_from(dtype)), stream);
}

DeviceBuffer allocator_alloc(const AllocatorObject &self, nb::handle bytes, nb::handle stream) {
  const auto count = static_cast<int64_t>(natural_from(bytes, "nbytes"));
  if (count < 0) refuse("nbytes is " + str_text(bytes) + "; expected less than 2^63");
  return device_empty(*self.use(), Layout(&count, 1, dtype_find("uint8")), stream);
}

void allocator_record_stream(const AllocatorObject &self, nb::handle object, nb::handle stream) {
  DeviceBuffer *buffer = nullptr;
  if (!nb::try_cast(object, buffer) || !buffer) refuse_type("buffer", object, "a lade.DeviceBuffer");
  if (buffer->block().arena() != self.allocator.get())
    raise(LADE_ERR_FOREIGN_POINTER, "the buffer is of another DeviceAllocator");
  device_record(buffer->block(), stream);
}

void allocator_peer_add(const AllocatorObject &self, nb::handle object) {
  const Device peer = device_from(object, "peer");
  const Use<Allocator> use = self.use();
  Allocator &allocator = *use;
  if (peer.runtime != allocator.device().runtime)
    refuse("peer is " + peer.text() + "; expected a device of the runtime of " + allocator.device().text());
  unlocked_call(allocator, [&](lade_device_allocator *handle) { return lade_device_peer_add(handle, peer.ordinal); });
}

lade_device_stats allocator_stats(const AllocatorObject &self) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  check(lade_device_stats_get(self.use()->get(), &stats));
  return stats;
}

std::string allocator_summary(const AllocatorObject &self, bool abbreviated) {
  const lade_device_stats stats = allocator_stats(self);
  char text[LADE_SUMMARY_BYTES];
  check(lade_device_summary_write(&stats, self.allocator->device().ordinal, abbreviated ? LADE_SUMMARY_ABBREVIATED : 0,
                                  text, sizeof text, nullptr));
  return text;
}

nb::dict allocator_usage(const AllocatorObject &self) {
  lade_device_usage usage;
  lade_device_usage_init(&usage);
  check(lade_device_usage_get(self.use()->get(), &usage));
  nb::dict out;
#define LADE_PYTHON_FIELD(name) out[#name] = usage.name
  LADE_PYTHON_FIELD(allocated_bytes);
  LADE_PYTHON_FIELD(active_bytes);
  LADE_PYTHON_FIELD(requested_bytes);
  LADE_PYTHON_FIELD(reserved_bytes);
  LADE_PYTHON_FIELD(allocated_peak_bytes);
  LADE_PYTHON_FIELD(active_peak_bytes);
  LADE_PYTHON_FIELD(requested_peak_bytes);
  LADE_PYTHON_FIELD(reserved_peak_bytes);
  LADE_PYTHON_FIELD(free_bytes);
  LADE_PYTHON_FIELD(largest_free_bytes);
  LADE_PYTHON_FIELD(fragmentation);
#undef LADE_PYTHON_FIELD
  return out;
}

// False: of an allocator that is closed, or a parent's.
bool usage_of(const AllocatorObject &self, lade_device_usage &usage) noexcept {
  const Use<Allocator> allocator = self.use();
  if (allocator->is_closed()) return false;
  lade_device_usage_init(&usage);
  return lade_device_usage_get(allocator->get(), &usage) == LADE_OK;
}

std::string allocator_text_of(const AllocatorObject &self) {
  const std::string text = "<lade.DeviceAllocator on " + self.allocator->device().text();
  lade_device_usage usage;
  if (self.allocator->is_closed()) return text + ", closed>";
  if (!usage_of(self, usage)) return text + ">";
  return text + ", " + bytes_text(usage.allocated_bytes) + " allocated of " + bytes_text(usage.reserved_bytes) +
         " reserved>";
}

std::string allocator_settings(const AllocatorObject &self) {
  size_t needed = 0;
  check(lade_device_settings_write(self.use()->get(), nullptr, 0, &needed));
  std::string text(needed, '\0');
  check(lade_device_settings_write(self.use()->get(), text.data(), text.size(), nullptr));
  text.resize(needed ? needed - 1 : 0);
  return text;
}

// Note [Streams of consumers]: work of `consumer` is ordered after what the buffer's stream has queued, and its use is recorded, so that
// the block is not handed out again before that work is done, whichever thread drops the capsule.
void consumer_wait(const DeviceBuffer &buffer, lade_stream consumer) {
  if (consumer == buffer.stream() || !buffer.block().pointer()) return;
  stream_follow(buffer.allocator().device(), consumer, buffer.stream());
  check(lade_device_record_stream(buffer.allocator().get(), buffer.block().pointer(), consumer));
}

// The consumer's stream of __dlpack__ on CUDA: None and 1 the legacy default stream, 2 the per-thread one, -1 no order, else a handle.
void dlpack_order(const DeviceBuffer &buffer, nb::handle stream) {
  if (stream.is_none()) return consumer_wait(buffer, LADE_STREAM_LEGACY);
  if (keeps_order_itself(stream)) return;
  const nb::object number = integer_of(stream);
  if (!number) refuse_type("stream", stream, "None, -1, or a stream's handle as an int");
  if (number.equal(nb::int_(0)))
    refuse(
        "stream is 0, which may be either default stream; expected 1 (legacy), 2 (per thread), -1, None, or a handle");
  consumer_wait(buffer, stream_from(buffer.allocator().runtime(), number, buffer.allocator().device().ordinal));
}

// A software device's memory is host memory: its consumers have no stream, so its work is waited for.
void software_order(const DeviceBuffer &buffer, nb::handle stream) {
  if (!stream.is_none())
    refuse("stream is " + repr_text(stream) +
           "; expected None on a software device, whose memory is shown as host memory");
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_stream_synchronize(buffer.allocator().device().get(), buffer.stream());
  }
  check(status);
}

// A copy in the same allocator, on the buffer's stream.
DeviceBuffer copy_of(const DeviceBuffer &buffer, nb::handle self_stream) {
  const Layout &layout = buffer.layout();
  DeviceBuffer out =
      device_empty(buffer.allocator(), Layout(layout.shape(), layout.dims(), layout.dtype()), self_stream);
  check(lade_copy_async(buffer.allocator().device().get(), out.block().pointer(), buffer.block().pointer(),
                        layout.bytes(), buffer.stream()));
  return out;
}

nb::object dlpack(const DeviceBuffer &buffer, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  nb::handle copy) {
  (void)buffer.allocator().get();
  const DLDevice own = dlpack_device(buffer.block(), kDLCUDA);
  DLDevice wanted = own;
  if (dlpack_device_from(dl_device, wanted) && !(wanted.type == own.type && wanted.id == own.id)) {
    PyErr_Format(PyExc_BufferError,
                 "dl_device is (%d, %d); the buffer is on (%d, %d) and is not copied to another device", wanted.type,
                 wanted.id, own.type, own.id);
    throw nb::python_error();
  }
  const bool is_software = buffer.allocator().runtime().is_software();
  if (dlpack_is_copy(copy)) {
    const DeviceBuffer copied = copy_of(buffer, nb::int_(reinterpret_cast<uintptr_t>(buffer.stream())));
    is_software ? software_order(copied, stream) : dlpack_order(copied, stream);
    return dlpack_export(copied.block(), copied.layout(), own, max_version, true);
  }
  is_software ? software_order(buffer, stream) : dlpack_order(buffer, stream);
  return dlpack_export(buffer.block(), buffer.layout(), own, max_version, false);
}

nb::dict cuda_array_interface(const DeviceBuffer &buffer) {
  if (buffer.allocator().runtime().is_software())
    throw nb::attribute_error(
        "__cuda_array_interface__: the memory of a software device is no memory of CUDA; take DLPack");
  const uintptr_t handle = reinterpret_cast<uintptr_t>(buffer.stream());
  nb::dict out = array_interface(buffer.block().pointer(), buffer.layout());
  out["stream"] = handle ? handle : reinterpret_cast<uintptr_t>(LADE_STREAM_LEGACY); // 0 is not allowed there
  return out;
}

nb::dict host_interface(const DeviceBuffer &buffer) {
  if (!buffer.allocator().runtime().is_software())
    throw nb::attribute_error("__array_interface__: the memory of a GPU is no memory of the host");
  software_order(buffer, nb::none());
  return array_interface(buffer.block().pointer(), buffer.layout());
}

void bind_device_buffer(nb::module_ &module) {
  nb::class_<DeviceBuffer> type(
      module, "DeviceBuffer", nb::is_weak_referenceable(),
      "An array in device memory: C-contiguous, its contents undefined at first.\n\n"
      "It has ``__cuda_array_interface__`` (version 3, with the stream) and DLPack; on a software device it is "
      "host\n"
      "memory, with ``__array_interface__`` and DLPack. The memory goes back to its allocator when the buffer and the "
      "last capsule of it are gone, in whatever "
      "thread\n"
      "that is: work queued on its stream until then is safe. For other streams call DeviceAllocator.record_stream().");
  bind_array(type);
  type.def_prop_ro(
          "stream", [](const DeviceBuffer &buffer) { return reinterpret_cast<uintptr_t>(buffer.stream()); },
          "Handle of the stream that it was allocated on.")
      .def_prop_ro("__cuda_array_interface__", &cuda_array_interface,
                   "Version 3 of the interface. Not on software devices.",
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, object]"))
      .def_prop_ro("__array_interface__", &host_interface,
                   "Version 3 of the interface; the stream's work is waited for. On software devices alone.",
                   nb::sig("def __array_interface__(self) -> dict[str, object]"))
      .def(
          "__array__",
          [](nb::handle self, nb::args, nb::kwargs) { refuse_numpy(self, nb::cast<DeviceBuffer &>(self).block()); },
          nb::sig("def __array__(self, *args: object, **kwargs: object) -> typing.NoReturn"),
          "TypeError: NumPy cannot read memory of a GPU. On software devices NumPy reads ``__array_interface__``.")
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: typing.SupportsIndex | None = None, max_version: tuple[int, int] | "
                   "None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
           "A DLPack capsule, for from_dlpack of other packages.\n\n"
           "Parameters\n----------\nstream : int\n"
           "    The consumer's stream, which is made to wait for the buffer's, and is recorded for it: None or 1 the "
           "legacy default\n"
           "    stream, 2 the per-thread one, -1 no order. On a software device None alone; the buffer's stream is "
           "waited for.\n"
           "max_version : tuple of int\n    Newest version that the consumer knows; from (1, 0) on the versioned "
           "struct is given.\n"
           "dl_device : tuple of int\n    The buffer's own device, or None.\n"
           "copy : bool\n    True: a copy in the same allocator, made on the buffer's stream.\n\n"
           "Raises\n------\nBufferError\n    dl_device is another one.")
      .def(
          "__dlpack_device__",
          [](const DeviceBuffer &buffer) {
            const DLDevice device = dlpack_device(buffer.block(), kDLCUDA);
            return nb::make_tuple(device.type, device.id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
          "``(2, ordinal)``; ``(1, 0)``, host memory, on a software device.");
}

// An allocator that a module of lade.torch has made, which lives until the process ends: it is not closed here.
AllocatorObject allocator_of_module(uintptr_t allocator, uintptr_t runtime, int ordinal, uintptr_t library) {
  if (library != reinterpret_cast<uintptr_t>(&lade_device_alloc))
    raise(LADE_ERR_UNSUPPORTED, "two copies of liblade are loaded: the allocator is of the other one");
  Device device{runtime_of_module(reinterpret_cast<lade_runtime *>(runtime)), ordinal};
  AllocatorObject out;
  out.allocator =
      Owner<Allocator>(new Allocator(std::move(device), reinterpret_cast<lade_device_allocator *>(allocator), false));
  out.allocator->hold();
  return out;
}

const char allocator_text[] =
    "A cache of one device's memory, ordered by streams.\n\n"
    "A block that is freed is reused at once by requests on its stream, because stream order makes that safe. Uses by "
    "other\n"
    "streams are recorded with record_stream().\n\n"
    "Parameters\n----------\n"
    "device : Device, int, str, torch.device or None\n    As lade.device().\n"
    "max_bytes : int\n    Cap on reserved bytes. Default: the device's memory.\n"
    "memory_fraction : float\n    Cap as a share of the device's memory.\n"
    "backend : str\n    ``\"native\"``, or ``\"cudaMallocAsync\"``, the driver's stream-ordered allocator.\n"
    "expandable_segments : bool\n    Map memory into a long range of addresses per stream, instead of separate "
    "segments.\n"
    "max_split_bytes : int\n    Blocks of this size and more are never split.\n"
    "large_segment_bytes : int\n    Size of segments for requests above 1 MiB and below 10 MiB. Default: 20 MiB.\n"
    "collection_threshold : float\n    Share of the limit above which cached segments that were not used for long go "
    "back.\n"
    "event_batch : int\n    Frees covered by one event. Default: 16.\n"
    "flags : sequence of str\n    Names of ``lade_device_flag`` in lade/device.h, in lower case: ``\"uncached\"``, "
    "``\"thread_caches\"``,\n"
    "    ``\"refuse_beyond_limit\"`` and others.\n"
    "settings : str\n    Settings as text, with PyTorch's keys and lade's (lade/config.h); the other arguments come on "
    "top.\n\n"
    "Raises\n------\nInvalidArgumentError, ConfigError, NoDeviceError, UnsupportedError";

} // namespace

void bind_device(nb::module_ &module) {
  bind_device_buffer(module);
  module.def(
      "_allocator_of_module", &allocator_of_module, nb::arg("allocator"), nb::arg("runtime"), nb::arg("ordinal"),
      nb::arg("library"),
      nb::sig("def _allocator_of_module(allocator: int, runtime: int, ordinal: int, library: int) -> DeviceAllocator"));
  nb::class_<AllocatorObject>(module, "DeviceAllocator", nb::is_weak_referenceable(), allocator_text)
      .def("__init__", &allocator_init, nb::arg("device").none() = nb::none(), nb::kw_only(),
           nb::arg("max_bytes").none() = nb::none(), nb::arg("memory_fraction").none() = nb::none(),
           nb::arg("backend").none() = nb::none(), nb::arg("expandable_segments") = false,
           nb::arg("max_split_bytes").none() = nb::none(), nb::arg("large_segment_bytes").none() = nb::none(),
           nb::arg("collection_threshold").none() = nb::none(), nb::arg("event_batch").none() = nb::none(),
           nb::arg("flags") = nb::make_tuple(), nb::arg("settings").none() = nb::none(),
           nb::sig("def __init__(self, device: DeviceLike = None, *, max_bytes: int | None = None, memory_fraction: "
                   "float | None = None, "
                   "backend: str | None = None, expandable_segments: bool = False, max_split_bytes: int | None = None, "
                   "large_segment_bytes: int | None = None, collection_threshold: float | None = None, event_batch: "
                   "int | None = None, "
                   "flags: collections.abc.Sequence[str] = (), settings: str | None = None) -> None"))
      .def("alloc", &allocator_alloc, nb::arg("nbytes").none(), nb::arg("stream").none() = nb::none(),
           nb::sig("def alloc(self, nbytes: int, stream: StreamLike = None) -> DeviceBuffer"),
           "Bytes for work on a stream: empty() of that many uint8.")
      .def("empty", &allocator_empty, nb::arg("shape").none(), nb::arg("dtype").none() = nb::none(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def empty(self, shape: int | collections.abc.Sequence[int], dtype: DTypeLike = None, stream: "
                   "StreamLike = None) -> DeviceBuffer"),
           "An array for work on a stream; its contents are undefined.\n\n"
           "Parameters\n----------\nshape : int or sequence of int\ndtype : str, numpy.dtype, torch.dtype or type\n    "
           "Default: uint8.\n"
           "stream : int or object\n    Stream that will use the memory first; None: the legacy default stream. It "
           "must be retired before\n"
           "    it is destroyed: retire_stream(). A lade.Stream is kept alive, and retires itself.\n\n"
           "Raises\n------\nOutOfDeviceMemoryError\n    Also after giving back the cache; the text has the "
           "sums.\nLimitError\n    Over max_bytes.\n"
           "InvalidArgumentError")
      .def("record_stream", &allocator_record_stream, nb::arg("buffer").none(), nb::arg("stream").none(),
           nb::sig("def record_stream(self, buffer: DeviceBuffer, stream: StreamLike) -> None"),
           "Note that another stream uses the buffer: its reuse waits for the work queued there until the free.\n\n"
           "The stream must be retired before it is destroyed: retire_stream(). A lade.Stream retires itself.")
      .def(
          "retire_stream",
          [](const AllocatorObject &self, nb::handle stream) {
            const lade_stream retired = stream_on(self.allocator->device(), stream);
            unlocked_call(*self.use(),
                          [&](lade_device_allocator *handle) { return lade_device_stream_retire(handle, retired); });
          },
          nb::arg("stream").none(), nb::sig("def retire_stream(self, stream: StreamLike) -> None"),
          "Tell the allocator that a stream is about to be destroyed; it makes no driver call on it from then on.\n\n"
          "Needed for each stream that memory was allocated or recorded on, also where that memory is free by now.\n"
          "A lade.Stream does so by itself, a stream of CuPy under lade.cupy.install() too.\n\n"
          "Raises\n------\nCaptureError\n    The stream captures; it is still needed.\nInvalidArgumentError")
      .def("peer_add", &allocator_peer_add, nb::arg("peer").none(),
           nb::sig("def peer_add(self, peer: DeviceLike) -> None"),
           "Let another device use this allocator's memory, what it has and what it will get.\n\n"
           "Copies between devices work without, at a tenth of the speed. Nothing else gives access; for copies both "
           "ways "
           "add each\ndevice to the other's allocator. docs/two-devices.md says what it is worth and costs.\n\n"
           "Raises\n------\nUnsupportedError\n    The devices cannot access each other.\nInvalidArgumentError\n    A "
           "device of another runtime.")
      .def(
          "empty_cache",
          [](const AllocatorObject &self) {
            unlocked_call(*self.use(), [](lade_device_allocator *handle) { return lade_device_empty_cache(handle); });
          },
          "Wait for pending blocks, and give all wholly free segments back to the driver.")
      .def(
          "trim",
          [](const AllocatorObject &self) {
            unlocked_call(*self.use(), [](lade_device_allocator *handle) { return lade_device_empty_cache(handle); });
          },
          "The same as empty_cache().")
      .def(
          "stats",
          [](const AllocatorObject &self) {
            const lade_device_stats stats = allocator_stats(self);
            return stats_dict(
                [&](lade_stat_visit visit, void *user) { return lade_device_stats_each(&stats, visit, user); });
          },
          nb::sig("def stats(self) -> dict[str, int]"), "Statistics under the names that PyTorch gives them.")
      .def("usage", &allocator_usage, nb::sig("def usage(self) -> dict[str, float]"),
           "How much is used, all of one moment: the fields of ``lade_device_usage``, bytes except for "
           "``fragmentation``.")
      .def(
          "device_memory",
          [](const AllocatorObject &self) {
            size_t free_bytes = 0, total_bytes = 0;
            unlocked_call(*self.use(), [&](lade_device_allocator *handle) {
              return lade_device_memory_get(handle, &free_bytes, &total_bytes);
            });
            return nb::make_tuple(free_bytes, total_bytes);
          },
          nb::sig("def device_memory(self) -> tuple[int, int]"),
          "Free and total bytes of the device as the driver sees them; memory that the allocator keeps cached is not "
          "free. "
          "A call of\nthe driver.")
      .def(
          "reset_peak_stats",
          [](const AllocatorObject &self) {
            check(lade_device_stats_reset(self.use()->get(), LADE_STATS_RESET_PEAKS));
          },
          "Let all peaks start anew from the current values.")
      .def(
          "reset_accumulated_stats",
          [](const AllocatorObject &self) { check(lade_device_stats_reset(self.use()->get(), LADE_STATS_RESET_SUMS)); },
          "Let everything that only grows start anew from 0.")
      .def("summary", &allocator_summary, nb::arg("abbreviated") = false, "The statistics as a table for people.")
      .def("settings", &allocator_settings, "The settings in force, as text for ``settings=``.")
      .def(
          "set_memory_fraction",
          [](const AllocatorObject &self, double fraction) {
            check(lade_device_set_memory_fraction(self.use()->get(), fraction));
          },
          nb::arg("fraction"), "Limit reserved bytes to a share of the device's memory, from now on.")
      .def(
          "record_history",
          [](const AllocatorObject &self, Natural max_entries, bool stacks) {
            const lade_history_options options = history_options(max_entries.read("max_entries"), stacks);
            check(lade_device_history_set(self.use()->get(), &options));
          },
          nb::arg("max_entries").none() = nb::int_(100000), nb::kw_only(), nb::arg("stacks") = true,
          nb::sig("def record_history(self, max_entries: int | None = 100000, *, stacks: bool = True) -> None"),
          "Keep the newest events, for snapshots; None: stop, and forget them. With the call stack of Python at each "
          "unless "
          "stacks is False: some microseconds for one.")
      .def(
          "snapshot",
          [](const AllocatorObject &self, nb::handle path, std::optional<std::string> format) {
            const Owner<Allocator> held = self.allocator;
            return snapshot_of(lade_part_device(held->get()), path, format);
          },
          nb::arg("path").none() = nb::none(), nb::arg("format").none() = nb::none(),
          nb::sig("@typing.overload\ndef snapshot(self, path: None = None, format: None = None) -> Snapshot: "
                  "...\n@typing.overload\ndef snapshot(self, path: str | os.PathLike[str], format: str | None = None) "
                  "-> None"),
          "Write a picture of the memory to a file, or return it as a Snapshot, which a notebook shows.\n\n"
          "Parameters\n----------\npath : str or os.PathLike\n    None: it is returned.\nformat : str\n"
          "    ``pickle`` (PyTorch's viewers open it), ``json``, ``html``, ``folded``, ``folded-segments``, "
          "``pprof``,\n"
          "    ``trace``, ``prometheus`` or ``openmetrics``; None: what the path's suffix means, as to\n"
          "    ``lade snapshot``: ``.pickle``, ``.json``, ``.html``, ``.folded``, ``.segments.folded``, ``.pb.gz``,\n"
          "    ``.trace.json``, ``.prom`` or ``.openmetrics``.")
      .def(
          "close", [](const AllocatorObject &self, bool wait) { self.allocator->close(wait); }, nb::kw_only(),
          nb::arg("wait") = true,
          "Give all memory back; every later call is refused.\n\nParameters\n----------\nwait : bool\n    Wait for "
          "pending blocks, else raise NotReadyError while there are any.\n\n"
          "Raises\n------\nBusyError\n    Buffers, or tensors made of them, are alive.")
      .def_prop_ro(
          "closed", [](const AllocatorObject &self) { return self.allocator->is_closed(); }, "Whether it is closed.")
      .def_prop_ro(
          "device", [](const AllocatorObject &self) { return DeviceObject(self.allocator->device()); }, "Its device.")
      .def_prop_ro(
          "handle", [](const AllocatorObject &self) { return reinterpret_cast<uintptr_t>(self.use()->get()); },
          "The ``lade_device_allocator *`` as an int, for C extensions; valid while the allocator is open.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> DeviceAllocator"))
      .def(
          "__exit__",
          [](const AllocatorObject &self, nb::args raised) { with_end(raised, [&] { self.allocator->close(true); }); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", &allocator_text_of)
      .def("_repr_html_", [](const AllocatorObject &self) {
        Figures figures;
        lade_device_usage usage;
        if (usage_of(self, usage)) {
          const auto add = [&](const char *name, uint64_t now, uint64_t peak) {
            figures.emplace_back(name, bytes_text(now) + ", peak " + bytes_text(peak));
          };
          add("allocated", usage.allocated_bytes, usage.allocated_peak_bytes);
          add("active", usage.active_bytes, usage.active_peak_bytes);
          add("reserved", usage.reserved_bytes, usage.reserved_peak_bytes);
          figures.emplace_back("free, largest block",
                               bytes_text(usage.free_bytes) + ", " + bytes_text(usage.largest_free_bytes));
        }
        return figures_html(allocator_text_of(self), figures);
      });
}

} // namespace lade_python
