// SPDX-License-Identifier: Apache-2.0
#include "pinned.h"

#include "adopted.h"
#include "natural.h"
#include "observe.h"
#include "stream.h"
#include "tensor_view.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <iterator>
#include <optional>
#include <string>

namespace lade_python {

Pool::~Pool() {
  if (!handle_ || is_abandoned()) return;
  runtime().arena_remove(this);
  (void)lade_pinned_pool_destroy(handle_, true);
  runtime().arena_closed();
}

void Pool::close(bool wait) {
  if (is_closed()) return;
  arena_close(*this, handle_, "PinnedPool",
              [wait](lade_pinned_pool *handle) { return lade_pinned_pool_destroy(handle, wait); });
}

Owner<Pool> pool_from(nb::handle object) {
  PoolObject *pool = nullptr;
  if (!nb::try_cast(object, pool) || !pool) refuse_type("pool", object, "a lade.PinnedPool");
  Owner<Pool> owner = pool->pool;
  (void)owner->get();
  return owner;
}

Block *pool_block(Pool &pool, size_t bytes) {
  void *pointer = nullptr;
  lade_pinned_pool *handle = pool.get();
  // A block that the thread has at hand is taken with the GIL: that waits for no thread, so not for a thread that waits for the GIL. Letting go of
  // it takes a tenth of a warm pair of alloc and free.
  if (bytes > 0 && lade_pinned_alloc_ready(handle, bytes, &pointer) != LADE_OK)
    unlocked_call(pool, [&](lade_pinned_pool *own) { return lade_pinned_alloc(own, bytes, &pointer); });
  return new Block(&pool, pointer);
}

namespace {

struct SourceName {
  const char *name;
  uint32_t bit;
};
const SourceName source_names[] = {{"register", LADE_PINNED_SOURCE_REGISTER},
                                   {"driver", LADE_PINNED_SOURCE_DRIVER},
                                   {"pool", LADE_PINNED_SOURCE_POOL},
                                   {"pageable", LADE_PINNED_SOURCE_PAGEABLE}};

uint32_t source_from(nb::handle object) {
  if (PyUnicode_Check(object.ptr()))
    for (const SourceName &source : source_names)
      if (nb::str(object).equal(nb::str(source.name))) return source.bit;
  const std::string text = "sources has " + repr_text(object) +
                           "; expected \"register\", \"driver\", \"pool\", \"pageable\", or several of them";
  PyUnicode_Check(object.ptr()) ? refuse(text) : refuse_type(text);
}

uint32_t sources_from(nb::handle object) {
  if (object.is_none()) return 0;
  if (PyUnicode_Check(object.ptr())) return source_from(object);
  uint32_t bits = 0;
  for (nb::handle item : nb::iter(python_list(object, "sources", "a str, a sequence of str, or None")))
    bits |= source_from(item);
  if (bits == 0) refuse("sources is empty; expected one or more of \"register\", \"driver\", \"pool\", \"pageable\"");
  return bits;
}

// A number of 32 bits; 0 is allowed where it is a value of its own.
uint32_t narrow(uint64_t value, const char *name) {
  if (value > UINT32_MAX)
    refuse(std::string(name) + " is " + std::to_string(value) + "; expected at most " + std::to_string(UINT32_MAX));
  return static_cast<uint32_t>(value);
}

using Natural = NaturalArgument;

const char *const share_names[] = {"first_come", "fair", "part"}; // lade_pinned_budget_share

uint32_t share_from(nb::handle object) {
  if (!PyUnicode_Check(object.ptr())) refuse_type("budget_share", object, "\"first_come\", \"fair\" or \"part\"");
  for (uint32_t share = 0; share < std::size(share_names); share++)
    if (str_text(object) == share_names[share]) return share;
  refuse("budget_share is " + repr_text(object) + "; expected \"first_come\", \"fair\" or \"part\"");
}

// The arguments of PinnedPool(...). The options refer to the texts beside them.
struct PoolOptions {
  lade_pinned_options options;
  lade_config config;
  std::string budget_name;
  PoolOptions() {
    lade_pinned_options_init(&options);
    lade_config_init(&config);
    config.pinned = &options;
  }
  PoolOptions(const PoolOptions &) = delete;
  PoolOptions &operator=(const PoolOptions &) = delete;

  void take_settings(const std::string &text);
  void take_sizes(const Natural &max_bytes, const Natural &segment_bytes, const Natural &magazine_bytes,
                  const Natural &register_chunk_bytes);
  void take_numbers(const Natural &event_batch, const Natural &wait_ms, const Natural &max_idle_ms,
                    const Natural &prefault_threads, const Natural &local_ranks);
  void take_budget(std::optional<bool> budget, nb::handle name, const Natural &bytes, nb::handle share,
                   const Natural &part_bytes);
};

void PoolOptions::take_settings(const std::string &text) {
  check(lade_config_parse(c_text(text, "settings"), &config));
}

// None leaves a field to the settings, or to the library.
void PoolOptions::take_sizes(const Natural &max_bytes, const Natural &segment_bytes, const Natural &magazine_bytes,
                             const Natural &register_chunk_bytes) {
  if (const auto given = max_bytes.read("max_bytes")) options.max_bytes = positive(*given, "max_bytes");
  if (const auto given = segment_bytes.read("segment_bytes")) options.segment_bytes = positive(*given, "segment_bytes");
  if (const auto given = register_chunk_bytes.read("register_chunk_bytes")) options.register_chunk_bytes = *given;
  if (const auto given = magazine_bytes.read("magazine_bytes"))
    options.magazine_bytes = *given ? *given : 1; // 0 is the library's default
}

void PoolOptions::take_numbers(const Natural &event_batch, const Natural &wait_ms, const Natural &max_idle_ms,
                               const Natural &prefault_threads, const Natural &local_ranks) {
  if (const auto given = event_batch.read("event_batch"))
    options.event_batch = narrow(positive(*given, "event_batch"), "event_batch");
  if (const auto given = prefault_threads.read("prefault_threads"))
    options.prefault_threads = narrow(positive(*given, "prefault_threads"), "prefault_threads");
  if (const auto given = local_ranks.read("local_ranks"))
    options.local_ranks = narrow(positive(*given, "local_ranks"), "local_ranks");
  if (const auto given = wait_ms.read("wait_ms")) options.wait_ms = narrow(*given, "wait_ms");
  if (const auto given = max_idle_ms.read("max_idle_ms")) options.max_idle_ms = narrow(*given, "max_idle_ms");
}

void PoolOptions::take_budget(std::optional<bool> budget, nb::handle name, const Natural &bytes, nb::handle share,
                              const Natural &part_bytes) {
  if (budget) options.budget = *budget ? LADE_PINNED_BUDGET_ON : LADE_PINNED_BUDGET_OFF;
  if (!name.is_none()) {
    if (!PyUnicode_Check(name.ptr()))
      refuse_type("budget_name", name, "a str of 1 to 63 letters, digits, '-', '_' or '.'");
    budget_name = str_text(name);
    options.budget_name = c_text(budget_name, "budget_name");
  }
  if (const auto given = bytes.read("budget_bytes")) options.budget_bytes = positive(*given, "budget_bytes");
  if (!share.is_none()) options.budget_share = share_from(share);
  if (const auto given = part_bytes.read("budget_part_bytes"))
    options.budget_part_bytes = positive(*given, "budget_part_bytes");
}

void pool_init(PoolObject *self, nb::handle device_argument, Natural max_bytes, nb::handle sources,
               Natural segment_bytes, Natural magazine_bytes, Natural event_batch, Natural wait_ms, Natural max_idle_ms,
               Natural prefault_threads, Natural register_chunk_bytes, bool numa_strict, bool background, bool debug,
               bool reference, std::optional<bool> budget, nb::handle budget_name, Natural budget_bytes,
               nb::handle budget_share, Natural budget_part_bytes, Natural local_ranks,
               std::optional<std::string> settings) {
  PoolOptions asked;
  if (settings) asked.take_settings(*settings);
  lade_pinned_options &options = asked.options;
  if (!sources.is_none()) options.sources = sources_from(sources);
  asked.take_sizes(max_bytes, segment_bytes, magazine_bytes, register_chunk_bytes);
  asked.take_numbers(event_batch, wait_ms, max_idle_ms, prefault_threads, local_ranks);
  asked.take_budget(budget, budget_name, budget_bytes, budget_share, budget_part_bytes);
  if (numa_strict) options.flags |= LADE_PINNED_NUMA_STRICT;
  if (background) options.flags |= LADE_PINNED_BACKGROUND;
  if (debug) options.flags |= LADE_PINNED_DEBUG;
  if (reference) options.flags |= LADE_PINNED_REFERENCE;
  Device device = device_from(device_argument);
  options.device = device.ordinal;
  lade_pinned_pool *handle = nullptr;
  check(lade_pinned_pool_create(device.get(), &options, &handle));
  new (self) PoolObject;
  self->pool = Owner<Pool>(new Pool(std::move(device), handle));
}

Buffer pool_empty(const PoolObject &self, nb::handle shape, nb::handle dtype) {
  Layout layout(shape, dtype_from(dtype));
  Block *block = pool_block(*self.use(), layout.bytes());
  return Buffer(block, std::move(layout));
}

// Where a contiguous buffer of host memory begins, an array of NumPy's for example: a fifth of what a whole TensorView costs. NULL: it is
// none, or has no bytes.
void *buffer_address(nb::handle object) {
  Py_buffer view;
  if (!PyObject_CheckBuffer(object.ptr())) return nullptr;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) {
    PyErr_Clear(); // tensor_view() says why
    return nullptr;
  }
  void *address = view.len > 0 ? view.buf : nullptr;
  PyBuffer_Release(&view);
  return address;
}

// An address in the pool's memory: of a Buffer, or of any view of one, such as a NumPy array or a tensor. NULL: no bytes.
void *pool_pointer(const PoolObject &self, nb::handle object) {
  Buffer *buffer = nullptr;
  if (!nb::try_cast(object, buffer) || !buffer) {
    if (void *address = buffer_address(object)) return address;
    const TensorView view = tensor_view(object, Access::read, "buffer");
    if (view.on_device)
      refuse("buffer is a " + class_text(object) + " in device memory; expected pinned memory of the pool");
    return view.data; // the library refuses memory that is not the pool's
  }
  if (buffer->block().arena() != self.pool.get())
    raise(LADE_ERR_FOREIGN_POINTER, "the buffer is of another PinnedPool");
  return buffer->block().pointer();
}

void pool_record(const PoolObject &self, nb::handle buffer, nb::handle stream) {
  void *pointer = pool_pointer(self, buffer);
  const lade_stream on = stream_from(self.pool->runtime(), stream, self.pool->device().ordinal);
  const Use<Pool> pool = self.use();
  lade_pinned_pool *handle = pool->get(); // last: what the stream is asked for may close the pool
  if (pointer) check(lade_pinned_record_event(handle, pointer, on));
}

void pool_record_use(const PoolObject &self, nb::handle buffer, nb::handle stream) {
  void *pointer = pool_pointer(self, buffer);
  const lade_stream on = stream_from(self.pool->runtime(), stream, self.pool->device().ordinal);
  const Use<Pool> pool = self.use();
  lade_pinned_pool *handle = pool->get(); // last: what the stream is asked for may close the pool
  if (pointer) check(lade_pinned_record_use(handle, pointer, on));
}

lade_pinned_stats pool_stats_get(const PoolObject &self) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  check(lade_pinned_stats_get(self.use()->get(), &stats));
  return stats;
}

nb::dict pool_stats(const PoolObject &self) {
  const lade_pinned_stats stats = pool_stats_get(self);
  return stats_dict([&](lade_stat_visit visit, void *user) { return lade_pinned_stats_each(&stats, visit, user); });
}

nb::dict pool_latencies(const PoolObject &self) {
  return stats_dict(
      [&](lade_stat_visit visit, void *user) { return lade_pinned_latency_each(self.use()->get(), visit, user); });
}

// None, as the constructor takes it, where the library chooses.
nb::object unless_chosen(uint64_t value) { return value == 0 ? nb::none() : nb::object(nb::int_(value)); }

nb::dict pool_settings(const PoolObject &self) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  check(lade_pinned_settings_get(self.use()->get(), &options));
  nb::dict out;
  nb::list sources;
  for (const SourceName &source : source_names)
    if (options.sources & source.bit) sources.append(source.name);
  out["sources"] = nb::tuple(sources);
#define LADE_PYTHON_FIELD(name) out[#name] = options.name
  LADE_PYTHON_FIELD(max_bytes);
  LADE_PYTHON_FIELD(magazine_bytes);
  LADE_PYTHON_FIELD(event_batch);
  LADE_PYTHON_FIELD(wait_ms);
  LADE_PYTHON_FIELD(max_idle_ms);
  LADE_PYTHON_FIELD(register_chunk_bytes);
#undef LADE_PYTHON_FIELD
  out["segment_bytes"] = unless_chosen(options.segment_bytes);
  out["prefault_threads"] = unless_chosen(options.prefault_threads);
  out["numa_strict"] = (options.flags & LADE_PINNED_NUMA_STRICT) != 0;
  out["background"] = (options.flags & LADE_PINNED_BACKGROUND) != 0;
  out["debug"] = (options.flags & LADE_PINNED_DEBUG) != 0;
  out["reference"] = (options.flags & LADE_PINNED_REFERENCE) != 0;
  out["budget"] = options.budget == LADE_PINNED_BUDGET_ON;
  out["budget_name"] = options.budget_name ? nb::object(nb::str(options.budget_name)) : nb::none();
  out["budget_bytes"] = unless_chosen(options.budget_bytes);
  out["budget_share"] = share_names[options.budget_share];
  out["budget_part_bytes"] = unless_chosen(options.budget_part_bytes);
  out["local_ranks"] = unless_chosen(options.local_ranks);
  return out;
}

// Whose memory an address is, and what the block is at the moment.
nb::dict pool_find(const PoolObject &self, uintptr_t address) {
  static const char *const states[] = {"", "in use", "pending", "cached"};
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  check(lade_pinned_find(self.use()->get(), reinterpret_cast<void *>(address), &info));
  nb::dict out;
  out["base"] = reinterpret_cast<uintptr_t>(info.base);
  out["bytes"] = info.bytes;
  out["requested_bytes"] = info.requested_bytes;
  out["numa_node"] = info.numa_node;
  out["state"] = states[info.state];
  for (const SourceName &source : source_names)
    if (source.bit == static_cast<uint32_t>(info.source)) out["source"] = source.name;
  out["contiguous_bytes"] = info.contiguous_bytes;
  return out;
}

std::string pool_summary(const PoolObject &self, bool abbreviated) {
  const lade_pinned_stats stats = pool_stats_get(self);
  char text[LADE_SUMMARY_BYTES];
  check(lade_pinned_summary_write(&stats, self.pool->device().ordinal, abbreviated ? LADE_SUMMARY_ABBREVIATED : 0, text,
                                  sizeof text, nullptr));
  return text;
}

// A size that must be given.
uint64_t bytes_from(const Natural &argument, const char *name) {
  const std::optional<uint64_t> given = argument.read(name);
  if (!given) refuse(std::string(name) + " is None; expected an int of 0 or more");
  return *given;
}

void pool_reserve(const PoolObject &self, Natural nbytes, nb::handle device) {
  const uint64_t bytes = bytes_from(nbytes, "nbytes");
  const Device near = device.is_none() ? self.pool->device() : device_from(device);
  if (near.runtime != self.pool->device().runtime)
    refuse("device is " + near.text() + " of another runtime; expected one of " + self.pool->runtime().name());
  unlocked_call(*self.use(),
                [&](lade_pinned_pool *handle) { return lade_pinned_reserve(handle, bytes, near.ordinal); });
}

// False: of a pool that is closed, or a parent's.
bool stats_of(const PoolObject &self, lade_pinned_stats &stats) noexcept {
  const Use<Pool> pool = self.use();
  if (pool->is_closed()) return false;
  lade_pinned_stats_init(&stats);
  return lade_pinned_stats_get(pool->get(), &stats) == LADE_OK;
}

std::string pool_text_of(const PoolObject &self) {
  const std::string text = "<lade.PinnedPool near " + self.pool->device().text();
  lade_pinned_stats stats;
  if (self.pool->is_closed()) return text + ", closed>";
  if (!stats_of(self, stats)) return text + ">";
  return text + ", " + bytes_text(stats.in_use_bytes.current) + " in use of " +
         bytes_text(stats.reserved_bytes.current) + " reserved>";
}

const char pool_text[] =
    "A cache of pinned host memory.\n\n"
    "A buffer that a stream has used is handed out again only after the work that was queued on the stream has "
    "finished:\n"
    "record() the streams, then drop the buffer with the copies still in flight. Any thread may call anything.\n\n"
    "Parameters\n----------\n"
    "device : Device, int, str, torch.device or None\n    Whose NUMA node the memory is near to; as lade.device().\n"
    "max_bytes : int\n    Cap on reserved bytes. Default: the smaller of half of the available memory and seven "
    "eighths of the\n"
    "    control group's headroom.\n"
    "sources : str or sequence of str\n    Where memory comes from, tried in this order: ``\"register\"`` (mapped, "
    "then registered with the driver),\n"
    "    ``\"driver\"``, ``\"pool\"`` (the driver's pools of host memory), ``\"pageable\"`` (not pinned). Default: all "
    "but the last.\n"
    "segment_bytes : int\n    Memory is pinned in segments of this size. A multiple of 4 KiB from 1 MiB to 1 TiB. "
    "Default: 64 MiB.\n"
    "magazine_bytes : int\n    What threads may keep for themselves, all together; 0: nothing. Default: 64 MiB, at "
    "most an eighth of the cap.\n"
    "event_batch : int\n    Frees covered by one event. Default: 16.\n"
    "wait_ms : int\n    At the cap: wait so long for memory to come back, by a stream that is done or by another "
    "thread, before "
    "LimitError.\n    Default: 0. Handlers of signals run after it.\n"
    "max_idle_ms : int\n    Give segments back that were not used for so long. Default: 0, never.\n"
    "prefault_threads : int\n    Threads that touch new memory before it is registered. Default: lade chooses.\n"
    "register_chunk_bytes : int\n    Register memory in chunks of this length. Default: 0, all at once.\n"
    "numa_strict : bool\n    Memory lies on the device's node, or the request fails.\n"
    "background : bool\n    A thread of the pool's own looks at pending blocks.\n"
    "debug : bool\n    Find writes behind a block's end and into free memory, slowly.\n"
    "reference : bool\n    Decide as PyTorch's host cache does, for comparison.\n"
    "budget : bool\n    Whether the pool is in the budget of pinned memory that all processes of the user share; "
    "max_bytes holds, too.\n"
    "    Default: yes; no on the runtime ``\"sim\"``.\n"
    "budget_name : str\n    A budget of its own for all pools that say this name: 1 to 63 letters, digits, ``-``, "
    "``_``, ``.``.\n"
    "budget_bytes : int\n    The budget; of several that pools say, the smallest is in force while its pool lives. "
    "Default: the first pool\n    that comes decides, by the memory that is available.\n"
    "budget_share : str\n    ``\"first_come\"``: what others neither hold nor are entitled to. ``\"fair\"``: an equal "
    "part, that others leave.\n    ``\"part\"``: budget_part_bytes, that others leave. Default: first_come.\n"
    "budget_part_bytes : int\n    With the share ``\"part\"``: how much.\n"
    "local_ranks : int\n    Processes of this job on this machine: a fair share counts on so many, and where there is "
    "no "
    "budget the default\n    cap is divided by them. Default: 1.\n"
    "settings : str\n    Settings as text, with PyTorch's keys and lade's (lade/config.h); the other arguments come on "
    "top.\n\n"
    "Raises\n------\nInvalidArgumentError, ConfigError, NoDeviceError, UnsupportedError\n\n"
    "Examples\n--------\n"
    ">>> pool = lade.PinnedPool(lade.software_device())\n"
    ">>> batch = pool.empty((32, 3, 224, 224), \"float32\")\n"
    ">>> batch.numpy()[...] = 0\n";

void bind_methods(nb::class_<PoolObject> &pool) {
  pool.def(
      "empty", &pool_empty, nb::arg("shape").none(), nb::arg("dtype").none() = nb::none(),
      nb::sig("def empty(self, shape: int | collections.abc.Sequence[int], dtype: DTypeLike = None) -> Buffer"),
      "A buffer of pinned memory; its contents are undefined.\n\n"
      "Parameters\n----------\nshape : int or sequence of int\n    Extents; 0 is allowed.\n"
      "dtype : str, numpy.dtype, torch.dtype or type\n    Default: uint8.\n\n"
      "Returns\n-------\nBuffer\n    Its memory comes back to the pool when it and the last view of it are gone.\n\n"
      "Raises\n------\nLimitError\n    At the cap; the text has the sums.\n"
      "OutOfPinnedMemoryError\n    The system refused to pin more, also after the cache was given back.\n"
      "InvalidArgumentError\n    A negative or huge shape, an unknown dtype, a closed pool.");
  pool.def("record", &pool_record, nb::arg("buffer").none(), nb::arg("stream").none(),
           nb::sig("def record(self, buffer: object, stream: StreamLike) -> None"),
           "Note that a stream uses a buffer: it is handed out again only after the work queued there until it is "
           "dropped.\n\n"
           "Parameters\n----------\nbuffer : Buffer, or any view of one\n    A NumPy array, a memoryview, a tensor: "
           "any address inside the buffer.\n"
           "stream : int or object\n    A handle; or an object with ``__cuda_stream__``, as the streams of lade, torch "
           "and CuPy are; None: the legacy\n"
           "    default stream. A stream that is destroyed before its work on the buffer is done must be retired: "
           "retire_stream().\n\n"
           "Raises\n------\nForeignPointerError\n    The memory is not the "
           "pool's.\nInvalidArgumentError\nStreamRetiredError");
  pool.def("record_use", &pool_record_use, nb::arg("buffer").none(), nb::arg("stream").none(),
           nb::sig("def record_use(self, buffer: object, stream: StreamLike) -> None"),
           "Note that a stream's use of a buffer ends with the work queued so far. Otherwise as record().");
  pool.def(
      "retire_stream",
      [](const PoolObject &self, nb::handle stream) {
        const lade_stream retired = stream_from(self.pool->runtime(), stream, self.pool->device().ordinal);
        unlocked_call(*self.use(),
                      [&](lade_pinned_pool *handle) { return lade_pinned_stream_retire(handle, retired); });
      },
      nb::arg("stream").none(), nb::sig("def retire_stream(self, stream: StreamLike) -> None"),
      "Tell the pool that a stream is about to be destroyed. A lade.Stream does so by itself.");
  pool.def(
      "reserve", &pool_reserve, nb::arg("nbytes").none(), nb::arg("device").none() = nb::none(),
      nb::sig("def reserve(self, nbytes: int, device: DeviceLike = None) -> None"),
      "Pin ahead: add what is missing to so much free memory near a device (None: the pool's).\n\n"
      "Raises\n------\nLimitError\n    The cap does not leave as much; nothing was pinned.\nOutOfPinnedMemoryError");
  pool.def(
      "trim",
      [](const PoolObject &self, Natural keep_bytes) {
        const uint64_t kept = bytes_from(keep_bytes, "keep_bytes");
        unlocked_call(
            *self.use(), [&](lade_pinned_pool *handle) { return lade_pinned_trim(handle, kept); });
      },
      nb::arg("keep_bytes").none() = nb::int_(0), nb::sig("def trim(self, keep_bytes: int = 0) -> None"),
      "Give cached segments back, oldest first, until at most keep_bytes are held.");
  pool.def(
      "empty_cache",
      [](const PoolObject &self) {
        unlocked_call(
            *self.use(), [](lade_pinned_pool *handle) { return lade_pinned_empty_cache(handle); });
      },
      "Give all cached memory back to the system.");
  pool.def(
      "process_events",
      [](const PoolObject &self) {
        unlocked_call(*self.use(), [](lade_pinned_pool *handle) { return lade_pinned_process_events(handle); });
      },
      "Look at pending blocks, and make those that are done reusable.");
  pool.def(
      "find", &pool_find, nb::arg("address"), nb::sig("def find(self, address: int) -> dict[str, typing.Any]"),
      "Describe the block that an address lies in: base, bytes, requested_bytes, numa_node, state (``\"in use\"``,\n"
      "``\"pending\"`` or ``\"cached\"``), source, and contiguous_bytes, which one copy from the address may name.\n\n"
      "Raises\n------\nForeignPointerError\n    The memory is not the pool's.");
  pool.def(
      "close", [](const PoolObject &self, bool wait) { self.pool->close(wait); }, nb::kw_only(), nb::arg("wait") = true,
      "Unpin all memory; every later call is refused.\n\nParameters\n----------\nwait : bool\n"
      "    Wait for streams that use freed blocks, else raise NotReadyError while there are any.\n\n"
      "Raises\n------\nBusyError\n    Buffers, tensors made of them, or pipelines are alive; the pool stays usable.");
}

void bind_reports(nb::class_<PoolObject> &pool) {
  pool.def("stats", &pool_stats, nb::sig("def stats(self) -> dict[str, int]"),
           "Statistics by name: those that PyTorch has for its pinned cache, and all fields of ``lade_pinned_stats``.");
  pool.def("summary", &pool_summary, nb::arg("abbreviated") = false, "The statistics as a table for people.");
  pool.def(
      "reset_peak_stats",
      [](const PoolObject &self) { check(lade_pinned_stats_reset(self.use()->get(), LADE_STATS_RESET_PEAKS)); },
      "Let all peaks start anew from the current values.");
  pool.def(
      "reset_accumulated_stats",
      [](const PoolObject &self) { check(lade_pinned_stats_reset(self.use()->get(), LADE_STATS_RESET_SUMS)); },
      "Let everything that only grows start anew from 0.");
  pool.def("settings", &pool_settings, nb::sig("def settings(self) -> dict[str, typing.Any]"),
           "The settings in force, by the names of the constructor's arguments; it takes them for a pool that acts "
           "alike. None is what the library chooses request by request.");
  pool.def(
      "record_latencies",
      [](const PoolObject &self, bool enabled) { check(lade_pinned_latency_set(self.use()->get(), enabled)); },
      nb::arg("enabled") = true, "Turn the counting of latencies on, from 0, or off.");
  pool.def("latencies", &pool_latencies, nb::sig("def latencies(self) -> dict[str, int]"),
           "What record_latencies() counted, by name.");
  pool.def(
      "record_history",
      [](const PoolObject &self, Natural max_entries, bool stacks) {
        const lade_history_options options = history_options(max_entries.read("max_entries"), stacks);
        check(lade_pinned_history_set(self.use()->get(), &options));
      },
      nb::arg("max_entries").none() = nb::int_(100000), nb::kw_only(), nb::arg("stacks") = true,
      nb::sig("def record_history(self, max_entries: int | None = 100000, *, stacks: bool = True) -> None"),
      "Keep the newest events, for snapshots; None: stop, and forget them. With the call stack of Python at each "
      "unless "
      "stacks is False: some microseconds for one.");
  pool.def(
      "snapshot",
      [](const PoolObject &self, nb::handle path, std::optional<std::string> format) {
        const Owner<Pool> held = self.pool;
        return snapshot_of(lade_part_pinned(held->get()), path, format);
      },
      nb::arg("path").none() = nb::none(), nb::arg("format").none() = nb::none(),
      nb::sig(
          "@typing.overload\ndef snapshot(self, path: None = None, format: None = None) -> Snapshot: "
          "...\n@typing.overload\ndef snapshot(self, path: str | os.PathLike[str], format: str | None = None) -> None"),
      "Write a picture of the memory to a file, or return it. As DeviceAllocator.snapshot().");
  pool.def(
      "debug_last", [](const PoolObject &self) { return std::string(lade_pinned_debug_last(self.use()->get())); },
      "Text of the last finding with ``debug=True``; empty if there is none.");
}

// For lade.torch, whose blocks may be freed at any time until the process ends: no call closes the pool from now on.
nb::tuple pool_lend(const PoolObject &self) {
  const auto number = [](const auto *pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  const Owner<Pool> owner = self.pool;
  lade_pinned_pool *handle = owner->get();
  owner->hold();
  const Runtime &runtime = *self.pool->device().runtime;
  return nb::make_tuple(number(handle), number(runtime.get()), runtime.is_software(),
                        reinterpret_cast<uintptr_t>(&lade_pinned_alloc));
}

} // namespace

void bind_pinned(nb::module_ &module) {
  bind_buffer(module);
  nb::class_<PoolObject> pool(module, "PinnedPool", nb::is_weak_referenceable(), pool_text);
  pool.def("__init__", &pool_init, nb::arg("device").none() = nb::none(), nb::kw_only(),
           nb::arg("max_bytes").none() = nb::none(), nb::arg("sources").none() = nb::none(),
           nb::arg("segment_bytes").none() = nb::none(), nb::arg("magazine_bytes").none() = nb::none(),
           nb::arg("event_batch").none() = nb::none(), nb::arg("wait_ms").none() = nb::none(),
           nb::arg("max_idle_ms").none() = nb::none(), nb::arg("prefault_threads").none() = nb::none(),
           nb::arg("register_chunk_bytes").none() = nb::none(), nb::arg("numa_strict") = false,
           nb::arg("background") = false, nb::arg("debug") = false, nb::arg("reference") = false,
           nb::arg("budget").none() = nb::none(), nb::arg("budget_name").none() = nb::none(),
           nb::arg("budget_bytes").none() = nb::none(), nb::arg("budget_share").none() = nb::none(),
           nb::arg("budget_part_bytes").none() = nb::none(), nb::arg("local_ranks").none() = nb::none(),
           nb::arg("settings").none() = nb::none(),
           nb::sig("def __init__(self, device: DeviceLike = None, *, max_bytes: int | None = None, "
                   "sources: str | collections.abc.Iterable[str] | None = None, segment_bytes: int | None = None, "
                   "magazine_bytes: int | None = None, event_batch: int | None = None, wait_ms: int | None = None, "
                   "max_idle_ms: int | None = None, prefault_threads: int | None = None, "
                   "register_chunk_bytes: int | None = None, numa_strict: bool = False, background: bool = False, "
                   "debug: bool = False, reference: bool = False, "
                   "budget: bool | None = None, budget_name: str | None = None, budget_bytes: int | None = None, "
                   "budget_share: str | None = None, budget_part_bytes: int | None = None, "
                   "local_ranks: int | None = None, "
                   "settings: str | None = None) -> None"));
  bind_methods(pool);
  bind_adopted(module, pool);
  bind_reports(pool);
  pool.def_prop_ro(
      "closed", [](const PoolObject &self) { return self.pool->is_closed(); }, "Whether it is closed.");
  pool.def_prop_ro(
      "device", [](const PoolObject &self) { return DeviceObject(self.pool->device()); },
      "Device that the memory is near to.");
  pool.def_prop_ro(
      "handle", [](const PoolObject &self) { return reinterpret_cast<uintptr_t>(self.use()->get()); },
      "The ``lade_pinned_pool *`` as an int, for C extensions; valid while the pool is open.");
  pool.def("_lend", &pool_lend, nb::sig("def _lend(self) -> tuple[int, int, bool, int]"),
           "What lade.torch needs of it.");
  pool.def(
      "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> PinnedPool"));
  pool.def(
      "__exit__", [](const PoolObject &self, nb::args raised) { with_end(raised, [&] { self.pool->close(true); }); },
      nb::sig("def __exit__(self, *args: object) -> None"));
  pool.def("__repr__", &pool_text_of);
  pool.def("_repr_html_", [](const PoolObject &self) {
    Figures figures;
    lade_pinned_stats stats;
    if (stats_of(self, stats)) {
      const auto add = [&](const char *name, const lade_pinned_gauge &gauge) {
        figures.emplace_back(name, bytes_text(gauge.current) + ", peak " + bytes_text(gauge.peak));
      };
      add("in use", stats.in_use_bytes);
      add("pending", stats.pending_bytes);
      add("cached", stats.cached_bytes);
      add("reserved", stats.reserved_bytes);
      figures.emplace_back("hits, misses", std::to_string(stats.hits) + ", " + std::to_string(stats.misses));
    }
    return figures_html(pool_text_of(self), figures);
  });
}

} // namespace lade_python
