// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include "current_device.h"
#include "natural.h"

#include <algorithm>
#include <nanobind/stl/string.h>

#include <climits>

#include <dlfcn.h>

namespace lade_python {

namespace {

// A handle out of a Python int; refuses what no pointer can be.
lade_stream handle_from_int(nb::handle number, const char *what) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == ~0ull && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(std::string(what) + " is " + str_text(number) + "; expected the handle of a stream: 0 or more, below 2^64");
  }
  return reinterpret_cast<lade_stream>(static_cast<uintptr_t>(value));
}

// An attribute, or an empty object where there is none. Errors other than AttributeError pass.
nb::object attribute(nb::handle object, const char *name) {
  PyObject *value = python_run([=] { return PyObject_GetAttrString(object.ptr(), name); });
  if (!value) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
    PyErr_Clear();
  }
  return nb::steal(value);
}

// An attribute that is an integer, or an empty object.
nb::object attribute_integer(nb::handle object, const char *name) {
  const nb::object value = attribute(object, name);
  return value ? integer_of(value) : nb::object();
}

// The protocol: __cuda_stream__() gives (version, handle); the first versions of numba had a tuple there.
lade_stream handle_from_protocol(nb::handle object, nb::object protocol) {
  nb::object answer = PyCallable_Check(protocol.ptr()) ? python_run([&] { return protocol(); }) : protocol;
  nb::object handle;
  if (PyTuple_Check(answer.ptr()) && PyTuple_Size(answer.ptr()) == 2) handle = integer_of(nb::object(answer[1]));
  if (!handle)
    refuse("stream: __cuda_stream__ of a " + class_text(object) + " gave " + repr_text(answer) +
           "; expected (0, handle)");
  if (!nb::object(answer[0]).equal(nb::int_(0)))
    raise(LADE_ERR_UNSUPPORTED, "stream: __cuda_stream__ of a " + class_text(object) + " has version " +
                                    str_text(nb::object(answer[0])) + "; this lade knows version 0");
  return handle_from_int(handle, "the handle that __cuda_stream__ gave");
}

} // namespace

Stream::~Stream() {
  if (exiting() || device_.runtime->is_of_parent()) return;
  without_gil([&] { device_.runtime->stream_end(handle_); }); // memory that was allocated on it may be its last owner
}

JoinedStreams::~JoinedStreams() {
  if (own_) (void)lade_stream_destroy(device_.get(), own_);
}

void JoinedStreams::add(lade_stream stream, int ordinal) {
  if (!stream) stream = LADE_STREAM_LEGACY;
  const std::pair<lade_stream, int> added(stream, ordinal);
  if (std::find(streams_.begin(), streams_.end(), added) == streams_.end()) streams_.push_back(added);
}

void stream_follow(const Device &device, lade_stream later, lade_stream earlier) {
  lade_event event = nullptr;
  check(lade_event_create(device.get(), device.ordinal, &event));
  lade_status status = lade_event_record(device.get(), event, earlier);
  if (status == LADE_OK) status = lade_stream_wait_event(device.get(), later, event);
  if (status != LADE_OK) set_error(status);
  (void)lade_event_destroy(device.get(), event);
  if (status != LADE_OK) throw nb::python_error();
}

void JoinedStreams::own_wait(lade_stream stream, int ordinal) {
  const CurrentDevice current(Device{device_.runtime, ordinal}, stream);
  check(current.status());
  stream_follow(Device{device_.runtime, ordinal}, own_, stream);
}

lade_stream JoinedStreams::get() {
  if (streams_.size() == 1) return streams_[0].first;
  check(lade_stream_create(device_.get(), device_.ordinal, &own_));
  for (const auto &entry : streams_) own_wait(entry.first, entry.second);
  return own_;
}

StreamObject stream_create(const Device &device) {
  lade_stream stream = nullptr;
  check(lade_stream_create(device.get(), device.ordinal, &stream));
  return StreamObject(std::make_shared<Stream>(device, stream));
}

std::shared_ptr<Stream> stream_owner(nb::handle object) {
  StreamObject *own = nullptr;
  if (PyLong_CheckExact(object.ptr()) || !nb::try_cast(object, own) || !own) return nullptr;
  return own->stream;
}

namespace {

lade_stream any_stream_from(const Runtime &runtime, nb::handle object) {
  if (PyLong_CheckExact(object.ptr())) return handle_from_int(object, "stream");
  if (object.is_none()) return nullptr;
  StreamObject *object_of = nullptr;
  if (nb::try_cast(object, object_of) && object_of) {
    const Stream *own = object_of->stream.get();
    if (own->device().runtime.get() != &runtime)
      refuse("stream is one of " + own->device().text() + " of another runtime; expected a stream of runtime " +
             runtime.name());
    return own->get();
  }
  if (nb::object protocol = attribute(object, "__cuda_stream__"); protocol)
    return handle_from_protocol(object, protocol);
  if (nb::object number = integer_of(object); number) return handle_from_int(number, "stream");
  for (const char *name : {"cuda_stream", "ptr"})
    if (nb::object number = attribute_integer(object, name); number) return handle_from_int(number, name);
  refuse_type("stream", object,
              "a handle (int), None, or an object with __cuda_stream__, as the streams of torch and CuPy are");
}

// Whether the calling thread has a current CUDA context. libcuda is open when a runtime "cuda" is.
bool has_context() {
  using get_current = int (*)(void **);
  static const auto get = [] {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<get_current>(dlsym(library, "cuCtxGetCurrent")) : nullptr;
  }();
  void *context = nullptr;
  return get && get(&context) == 0 && context;
}

} // namespace

lade_stream stream_from(const Runtime &runtime, nb::handle object, int ordinal) {
  return stream_current(runtime, any_stream_from(runtime, object), ordinal);
}

lade_stream stream_current(const Runtime &runtime, lade_stream stream, int ordinal) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2 && (runtime.is_software() || !has_context()))
    check(lade_runtime_set_device(runtime.get(), ordinal));
  return stream;
}

int stream_device(nb::handle object) {
  if (const auto own = stream_owner(object)) return own->device().ordinal;
  for (const char *name : {"device_index", "device_id"})
    if (nb::object number = attribute_integer(object, name); number) {
      int overflow = 0; // such a number is no device's: said as -1, not told
      const long ordinal = PyLong_AsLongAndOverflow(number.ptr(), &overflow);
      return overflow || ordinal < 0 || ordinal > INT_MAX ? -1 : static_cast<int>(ordinal);
    }
  return -1;
}

bool keeps_order_itself(nb::handle stream) {
  const nb::object number = integer_of(stream);
  int overflow = 0;
  return number && PyLong_AsLongAndOverflow(number.ptr(), &overflow) == -1 && !overflow;
}

void bind_stream(nb::module_ &module) {
  nb::class_<StreamObject>(
      module, "Stream",
      "A stream of a device's own, as Device.stream() makes. Destroyed with its last reference; its work still "
      "finishes.\n\n"
      "Others' streams need no wrapping: every call takes them.\n\n"
      "Parameters\n----------\ndevice : Device, int, str, torch.device or None\n    As lade.device().")
      .def(
          "__init__",
          [](StreamObject *self, nb::handle device) { new (self) StreamObject(stream_create(device_from(device))); },
          nb::arg("device").none() = nb::none(), nb::sig("def __init__(self, device: DeviceLike = None) -> None"))
      .def_prop_ro(
          "handle", [](const StreamObject &stream) { return reinterpret_cast<uintptr_t>(stream.stream->get()); },
          "The ``cudaStream_t`` as an int.")
      .def_prop_ro(
          "device", [](const StreamObject &stream) { return DeviceObject(stream.stream->device()); }, "Its device.")
      .def(
          "__cuda_stream__",
          [](const StreamObject &stream) {
            return nb::make_tuple(0, reinterpret_cast<uintptr_t>(stream.stream->get()));
          },
          nb::sig("def __cuda_stream__(self) -> tuple[int, int]"))
      .def(
          "synchronize",
          [](const StreamObject &stream) {
            lade_status status;
            {
              Unlocked unlocked;
              status = lade_stream_synchronize(stream.stream->device().get(), stream.stream->get());
            }
            check(status);
          },
          "Wait for the work queued so far.")
      .def(
          "query",
          [](const StreamObject &stream) {
            const lade_status status = lade_stream_query(stream.stream->device().get(), stream.stream->get());
            if (status == LADE_NOT_READY) return false;
            check(status);
            return true;
          },
          "Whether the work queued so far is done.")
      .def(
          "soft_hold",
          [](const StreamObject &stream) {
            check(lade_soft_stream_hold(stream.stream->device().get(), stream.stream->get(), true));
          },
          "Stop a software device's stream: work queued on it does not run until soft_release().")
      .def(
          "soft_release",
          [](const StreamObject &stream) {
            check(lade_soft_stream_hold(stream.stream->device().get(), stream.stream->get(), false));
          },
          "Let a held stream run on.")
      .def(
          "__repr__",
          [](const StreamObject &stream) { return "<lade.Stream on " + stream.stream->device().text() + ">"; });
}

} // namespace lade_python
