// SPDX-License-Identifier: Apache-2.0
#include "runtime.h"

#include "arena.h"
#include "log.h"
#include "natural.h"
#include "stream.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

namespace lade_python {

namespace {

std::atomic<bool> is_exiting{false};

// Runtimes that devices share: one of the GPUs, one software device. They live as long as something stands on them.
struct Shared {
  std::mutex lock; // taken without the GIL
  std::weak_ptr<Runtime> cuda, cpu;
};
Shared &shared = *new Shared; // outlives the interpreter (R3)

std::atomic<unsigned> generation{0};

// In a child: its parent's threads, and with them the one that held the lock, are gone.
void after_fork() {
  generation.fetch_add(1, std::memory_order_relaxed);
  new (&shared.lock) std::mutex;
}

} // namespace

unsigned process_generation() noexcept { return generation.load(std::memory_order_relaxed); }

// As PyGILState_Check(), which the limited API lacks, and which says yes of every thread where there is a subinterpreter. The name of the
// function changed with Python 3.13.
bool gil_is_held() noexcept {
  using current = PyThreadState *(*)();
  static const auto get = [] {
    void *found = dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked");
    return reinterpret_cast<current>(found ? found : dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet"));
  }();
  const PyThreadState *own = PyGILState_GetThisThreadState();
  return own && get && get() == own;
}

bool exiting() noexcept { return is_exiting.load(std::memory_order_relaxed); }

struct RuntimeOpener {
  // The GIL is not held.
  static lade_status open(const char *name, const lade_runtime_options *options, std::shared_ptr<Runtime> &out) {
    lade_runtime *handle = nullptr;
    const lade_status status = lade_runtime_open(name, options, &handle);
    if (status == LADE_OK) out = wrap(handle);
    return status;
  }

  static std::shared_ptr<Runtime> wrap(lade_runtime *handle) {
    auto out = std::make_shared<Runtime>(handle);
    out->software_ = std::string(lade_runtime_name(handle)) != "cuda";
    return out;
  }

  // The runtime that all devices of this name share.
  static std::shared_ptr<Runtime> get(const char *name) {
    std::shared_ptr<Runtime> runtime;
    lade_status status = LADE_OK;
    {
      Unlocked unlocked;
      std::lock_guard<std::mutex> guard(shared.lock);
      std::weak_ptr<Runtime> &kept = std::string(name) == "cuda" ? shared.cuda : shared.cpu;
      runtime = kept.lock();
      if (!runtime || runtime->is_of_parent()) {
        runtime.reset();
        status = open(name, nullptr, runtime);
        kept = runtime;
      }
    }
    if (status == LADE_ERR_NO_DEVICE || status == LADE_ERR_UNSUPPORTED) {
      lade_error error = *lade_last_error();
      const size_t end = std::strlen(error.text);
      std::snprintf(error.text + end, sizeof error.text - end, "; device=\"cpu\" needs no GPU");
      set_error(error);
      throw nb::python_error();
    }
    check(status);
    return runtime;
  }
};

std::shared_ptr<Runtime> runtime_of_module(lade_runtime *handle) {
  static auto &lock = *new std::mutex; // no Python runs under it
  static auto &known = *new std::vector<std::shared_ptr<Runtime>>;
  const std::lock_guard<std::mutex> guard(lock);
  for (const auto &each : known)
    if (each->get() == handle) return each;
  known.push_back(RuntimeOpener::wrap(handle));
  return known.back();
}

Runtime::~Runtime() {
  if (!exiting() && !is_of_parent()) (void)lade_runtime_close(handle_);
}

std::unique_lock<std::mutex> Runtime::arenas_guard() {
  std::unique_lock<std::mutex> guard(arenas_lock_, std::try_to_lock);
  if (!guard) without_gil([&] { guard.lock(); });
  return guard;
}

void Runtime::arena_erase(Arena *arena) noexcept {
  arenas_.erase(std::remove(arenas_.begin(), arenas_.end(), arena), arenas_.end());
}

void Runtime::arena_add(Arena *arena) {
  if (is_of_parent()) return;
  const auto guard = arenas_guard();
  arenas_.push_back(arena);
}

void Runtime::arena_remove(Arena *arena) noexcept {
  if (is_of_parent()) return;
  const auto guard = arenas_guard();
  arena_erase(arena);
  closing_++;
}

bool Runtime::arena_remove_sole(Arena *arena) {
  if (is_of_parent()) return arena->closing_begin();
  arena->hold(); // as a call under way: another thread's close is refused while this one waits
  const auto guard = arenas_guard();
  arena->drop();
  if (!arena->closing_begin()) return false;
  arena_erase(arena);
  closing_++;
  return true;
}

void Runtime::closing_end(std::unique_lock<std::mutex> guard) noexcept {
  if (--closing_ > 0) return;
  const std::vector<lade_stream> streams = std::move(late_ends_);
  late_ends_.clear();
  guard.unlock();
  for (const lade_stream stream : streams) (void)lade_stream_destroy(handle_, stream);
}

void Runtime::arena_closed() noexcept {
  if (!is_of_parent()) closing_end(arenas_guard());
}

void Runtime::arena_restore(Arena *arena) {
  if (is_of_parent()) return;
  auto guard = arenas_guard();
  for (const lade_stream stream : late_ends_) (void)arena->retire(stream);
  arenas_.push_back(arena);
  closing_end(std::move(guard));
}

void Runtime::stream_end(lade_stream stream) noexcept {
  if (is_of_parent()) return;
  std::unique_lock<std::mutex> guard(arenas_lock_);
  for (Arena *arena : arenas_) (void)arena->retire(stream);
  if (closing_ > 0) {
    late_ends_.push_back(stream);
    return;
  }
  guard.unlock();
  (void)lade_stream_destroy(handle_, stream);
}

bool Runtime::stream_retire(lade_stream stream) noexcept {
  if (is_of_parent()) return false;
  std::lock_guard<std::mutex> guard(arenas_lock_);
  bool is_needed = closing_ > 0;
  for (Arena *arena : arenas_) {
    const lade_status status = arena->retire(stream);
    is_needed |= status != LADE_OK && status != LADE_ERR_INVALID_ARGUMENT; // the latter: it is of another device
  }
  return !is_needed;
}

std::string Device::text() const { return std::string(runtime->name()) + ":" + std::to_string(ordinal); }

namespace {

// Refuses a number that the runtime has no device for.
Device device_of(std::shared_ptr<Runtime> runtime, int ordinal) {
  int count = 0;
  check(lade_runtime_device_count(runtime->get(), &count));
  if (ordinal < 0 || ordinal >= count)
    raise(LADE_ERR_NO_DEVICE, "no device " + std::to_string(ordinal) + ": runtime " + runtime->name() + " has " +
                                  std::to_string(count) + ", numbered from 0");
  return Device{std::move(runtime), ordinal};
}

Device device_default() {
  std::shared_ptr<Runtime> runtime;
  lade_status status;
  {
    Unlocked unlocked;
    std::lock_guard<std::mutex> guard(shared.lock);
    runtime = shared.cuda.lock();
    status = LADE_OK;
    if (!runtime || runtime->is_of_parent()) {
      runtime.reset();
      status = RuntimeOpener::open("cuda", nullptr, runtime);
      shared.cuda = runtime;
    }
  }
  if (status == LADE_OK) return Device{std::move(runtime), 0};
  if (status != LADE_ERR_NO_DEVICE && status != LADE_ERR_UNSUPPORTED) raise(status);
  static std::atomic<bool> is_told{false};
  if (!is_told.exchange(true))
    log_line(LADE_LOG_WARN, "the device is the software device, which is host memory, because no GPU can be used: " +
                                std::string(lade_last_error()->text) + " (device=\"cpu\" asks for it)");
  return Device{RuntimeOpener::get("cpu"), 0};
}

Device device_by_text(const std::string &text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  int ordinal = 0;
  bool is_number = true;
  if (colon != std::string::npos) {
    const std::string digits = text.substr(colon + 1);
    is_number = !digits.empty() && digits.size() <= 6 && digits.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) ordinal = std::atoi(digits.c_str());
  }
  if (!is_number || (name != "cuda" && name != "cpu"))
    refuse("device is \"" + text + "\"; expected \"cuda\", \"cuda:N\" or \"cpu\" (the software device)");
  return device_of(RuntimeOpener::get(name.c_str()), ordinal);
}

// Description of software devices from keyword arguments; all of one kind.
struct Software {
  std::vector<lade_soft_device> devices;
  lade_soft_options soft;
  lade_runtime_options options;

  Software(const lade_soft_device &device, int count, uint64_t pinned_limit_bytes)
      : devices(static_cast<size_t>(count), device) {
    lade_soft_options_init(&soft);
    soft.devices = devices.data();
    soft.device_count = devices.size();
    soft.pinned_limit_bytes = pinned_limit_bytes;
    lade_runtime_options_init(&options);
    options.soft = &soft;
  }
};

DeviceObject software_device(int ordinal, std::optional<std::string> clock, std::optional<int> device_count,
                             std::optional<uint64_t> memory_bytes, std::optional<uint64_t> pinned_limit_bytes) {
  if (!clock && !device_count && !memory_bytes && !pinned_limit_bytes)
    return DeviceObject(device_of(RuntimeOpener::get("cpu"), ordinal));
  const std::string name = clock.value_or("cpu");
  if (name != "cpu" && name != "sim") refuse("clock is \"" + name + "\"; expected \"cpu\" or \"sim\"");
  const int count = device_count.value_or(1);
  if (count < 1 || count > 64) refuse("device_count is " + std::to_string(count) + "; expected 1 to 64");
  lade_soft_device device = LADE_ZERO;
  device.memory_bytes = memory_bytes.value_or(0);
  Software description(device, count, pinned_limit_bytes.value_or(0));
  std::shared_ptr<Runtime> runtime;
  lade_status status;
  {
    Unlocked unlocked;
    status = RuntimeOpener::open(name.c_str(), &description.options, runtime);
  }
  check(status);
  return DeviceObject(device_of(std::move(runtime), ordinal));
}

lade_device_info device_info(const Device &device) {
  lade_device_info info;
  lade_device_info_init(&info);
  check(lade_runtime_device_info(device.get(), device.ordinal, &info));
  return info;
}

lade_soft_report report_of(const Device &device) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  check(lade_soft_report_get(device.get(), &report));
  return report;
}

nb::dict soft_report(const Device &device) {
  const lade_soft_report report = report_of(device);
  nb::dict out;
#define LADE_PYTHON_FIELD(name) out[#name] = report.name
  LADE_PYTHON_FIELD(freed_memory_used);
  LADE_PYTHON_FIELD(unordered_reuse);
  LADE_PYTHON_FIELD(unpinned_copies);
  LADE_PYTHON_FIELD(stale_handles);
  LADE_PYTHON_FIELD(device_bytes);
  LADE_PYTHON_FIELD(pinned_bytes);
  LADE_PYTHON_FIELD(device_allocations);
  LADE_PYTHON_FIELD(pinned_ranges);
  LADE_PYTHON_FIELD(streams);
  LADE_PYTHON_FIELD(events);
  LADE_PYTHON_FIELD(graphs);
  LADE_PYTHON_FIELD(driver_pools);
  LADE_PYTHON_FIELD(user_objects);
#undef LADE_PYTHON_FIELD
  return out;
}

} // namespace

Device device_from(nb::handle object, const char *name) {
  if (object.is_none()) return device_default();
  DeviceObject *device = nullptr;
  if (nb::try_cast(object, device) && device) return *device;
  if (const nb::object integer = integer_of(object); integer) {
    int overflow = 0;
    const long number = PyLong_AsLongAndOverflow(integer.ptr(), &overflow);
    if (overflow || number < 0 || number > 1 << 20)
      refuse(std::string(name) + " is " + str_text(integer) + "; expected a GPU's number from 0 on");
    return device_of(RuntimeOpener::get("cuda"), static_cast<int>(number));
  }
  // torch.device among them.
  const bool is_torch = class_text(object) == "torch.device";
  if (PyUnicode_Check(object.ptr()) || is_torch) return device_by_text(str_text(object));
  refuse_type(name, object, "a lade.Device, None, a GPU's number, or a text such as \"cuda:0\"");
}

void bind_runtime(nb::module_ &module) {
  module.def(
      "version",
      [] {
        const uint32_t version = lade_version();
        return std::to_string(version / 1000000) + "." + std::to_string(version / 1000 % 1000) + "." +
               std::to_string(version % 1000);
      },
      "Version of the library that is loaded, such as ``\"0.2.0\"``.");
  pthread_atfork(nullptr, nullptr, after_fork);
  // R5: what unwinds a thread is no exception, and has no pointer to one.
  nb::register_exception_translator([](const std::exception_ptr &error, void *) {
    if (!error) thread_stop();
    std::rethrow_exception(error);
  });
  module.def(
      "_exit", [] { is_exiting.store(true); }, "From now on nothing is closed. Called at the interpreter's exit.");
  nb::class_<DeviceObject>(
      module, "Device",
      "A GPU, or a software device: cuda_device() and software_device() give them.\n\n"
      "Its runtime stays open as long as something stands on it: devices, pools, buffers, streams.")
      .def_prop_ro(
          "runtime", [](const DeviceObject &device) { return device.runtime->name(); },
          "``\"cuda\"``, ``\"cpu\"`` or ``\"sim\"``.")
      .def_prop_ro(
          "ordinal", [](const DeviceObject &device) { return device.ordinal; }, "Number of the device in its runtime.")
      .def_prop_ro(
          "software", [](const DeviceObject &device) { return device.runtime->is_software(); }, "No GPU is behind it.")
      .def_prop_ro(
          "name", [](const DeviceObject &device) { return std::string(device_info(device).name); }, "Marketing name.")
      .def_prop_ro(
          "pci_bus_id", [](const DeviceObject &device) { return std::string(device_info(device).pci_bus_id); },
          "Such as ``\"0000:41:00.0\"``.")
      .def_prop_ro(
          "total_bytes", [](const DeviceObject &device) { return device_info(device).total_bytes; }, "Device memory.")
      .def_prop_ro(
          "numa_node", [](const DeviceObject &device) { return device_info(device).numa_node; },
          "OS index of the nearest NUMA node; -1 if unknown.")
      .def_prop_ro(
          "count",
          [](const DeviceObject &device) {
            int count = 0;
            check(lade_runtime_device_count(device.get(), &count));
            return count;
          },
          "Devices of its runtime.")
      .def(
          "sibling",
          [](const DeviceObject &device, int ordinal) { return DeviceObject(device_of(device.runtime, ordinal)); },
          nb::arg("ordinal"),
          "Another device of the same runtime.\n\nParameters\n----------\nordinal : int\n    Its number, from 0.\n\n"
          "Raises\n------\nNoDeviceError\n    The runtime has no such device.")
      .def(
          "stream", [](const DeviceObject &device) { return stream_create(device); },
          "Create a non-blocking stream on the device.\n\nReturns\n-------\nStream")
      .def(
          "_retire_stream",
          [](const DeviceObject &device, uintptr_t stream) {
            const std::shared_ptr<Runtime> runtime = device.runtime;
            Unlocked unlocked;
            return runtime->stream_retire(reinterpret_cast<lade_stream>(stream));
          },
          nb::arg("stream"),
          "Whether no pool and no allocator of its runtime names a stream any more: then it may be destroyed.")
      .def(
          "now_ns", [](const DeviceObject &device) { return lade_runtime_now_ns(device.get()); },
          "The runtime's clock in nanoseconds: monotonic, virtual on ``\"sim\"``.")
      .def(
          "soft_report", [](const DeviceObject &device) { return soft_report(device); },
          "Counts of what hardware would hide, and of what is alive, on a software device (``lade_soft_report``).\n\n"
          "Returns\n-------\ndict[str, int]\n\nRaises\n------\nUnsupportedError\n    It is a GPU.",
          nb::sig("def soft_report(self) -> dict[str, int]"))
      .def(
          "soft_last_finding", [](const DeviceObject &device) { return report_of(device).last_finding; },
          "Text of the most recent finding that soft_report() counts; empty if there is none.\n\nRaises\n------\n"
          "UnsupportedError\n    It is a GPU.")
      .def(
          "soft_advance", [](const DeviceObject &device, uint64_t ns) { check(lade_soft_advance(device.get(), ns)); },
          nb::arg("ns"), "Move the virtual clock of ``\"sim\"``, letting everything due on the way happen.")
      .def(
          "soft_fault",
          [](const DeviceObject &device, const char *op, uint64_t nth, int status) {
            check(lade_soft_fault_add(device.get(), op, nth, static_cast<lade_status>(status)));
          },
          nb::arg("op"), nb::arg("nth") = 1, nb::arg("status") = static_cast<int>(LADE_ERR_DRIVER),
          "Let a later call of a runtime op fail.\n\nParameters\n----------\nop : str\n    Such as "
          "``\"host_register\"``.\n"
          "nth : int\n    Which call from now on fails: 1 is the next one; 0: every one.\nstatus : int\n    What it "
          "returns, such as ``lade.DriverError.status``.")
      .def(
          "soft_fault_clear", [](const DeviceObject &device) { check(lade_soft_fault_clear(device.get())); },
          "Forget all pending faults.")
      .def(
          "soft_lose",
          [](const DeviceObject &device) { check(lade_soft_device_lose(device.get(), device.ordinal, 0)); },
          "Lose the device now: every call that needs it raises DeviceLostError.")
      .def(
          "soft_call_count",
          [](const DeviceObject &device, const char *op) {
            uint64_t count = 0;
            check(lade_soft_call_count(device.get(), op, &count));
            return count;
          },
          nb::arg("op"), "Calls of a runtime op since the runtime was opened.")
      .def(
          "__eq__",
          [](const DeviceObject &device, nb::handle other) {
            DeviceObject *that = nullptr;
            return nb::try_cast(other, that) && that && that->runtime == device.runtime &&
                   that->ordinal == device.ordinal;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def(
          "__hash__",
          [](const DeviceObject &device) {
            return std::hash<void *>()(device.runtime.get()) ^ static_cast<size_t>(device.ordinal);
          })
      .def(
          "__str__", [](const DeviceObject &device) { return device.text(); })
      .def(
          "__repr__",
          [](const DeviceObject &device) {
            return "<lade.Device " + device.text() + " \"" + device_info(device).name + "\">";
          });
  module.def(
      "device", [](nb::handle object) { return DeviceObject(device_from(object)); },
      nb::arg("device").none() = nb::none(), nb::sig("def device(device: DeviceLike = None) -> Device"),
      "The device that an argument of this package means.\n\n"
      "Parameters\n----------\ndevice : Device, int, str, torch.device or None\n"
      "    A GPU's number; ``\"cuda\"``, ``\"cuda:1\"``, ``\"cpu\"`` (the software device); None: the first GPU, or "
      "the\n"
      "    software device where there is none.\n\n"
      "Raises\n------\nNoDeviceError\n    There is no such device, or no usable driver.");
  module.def(
      "cuda_device", [](int ordinal) { return DeviceObject(device_of(RuntimeOpener::get("cuda"), ordinal)); },
      nb::arg("ordinal") = 0,
      "A GPU, through libcuda.so.1, which is opened now.\n\nParameters\n----------\nordinal : int\n"
      "    Number of the GPU among those visible.\n\n"
      "Raises\n------\nNoDeviceError\n    There is no usable driver, or no such device.\n"
      "UnsupportedError\n    The driver is too old.");
  module.def("software_device", &software_device, nb::arg("ordinal") = 0, nb::kw_only(),
             nb::arg("clock").none() = nb::none(), nb::arg("device_count").none() = nb::none(),
             nb::arg("memory_bytes").none() = nb::none(), nb::arg("pinned_limit_bytes").none() = nb::none(),
             "A device made of host memory, for programs and tests without a GPU.\n\n"
             "Without keywords all calls give the same device as long as something uses it. With any keyword a runtime "
             "of its own\n"
             "is opened; Device.sibling() has its other devices.\n\n"
             "Parameters\n----------\nordinal : int\n    Which of its devices.\nclock : str\n"
             "    ``\"cpu\"``: threads and the wall clock; ``\"sim\"``: one thread, a virtual clock, the same run "
             "every time.\n"
             "device_count : int\n    1 to 64. Default 1.\nmemory_bytes : int\n    Capacity of each device.\n"
             "pinned_limit_bytes : int\n    Pinning more than this is refused. Default: no limit.");
  bind_stream(module);
  nb::module_::import_("atexit").attr("register")(module.attr("_exit"));
}

} // namespace lade_python
