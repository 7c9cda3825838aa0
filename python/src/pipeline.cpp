// SPDX-License-Identifier: Apache-2.0
#include "pipeline.h"

#include "current_device.h"
#include "natural.h"
#include "stream.h"

#include <fcntl.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

namespace lade_python {

std::shared_ptr<Pipe> pipe_from(nb::handle object) {
  PipelineObject *pipeline = nullptr;
  if (!nb::try_cast(object, pipeline) || !pipeline || !pipeline->pipe)
    refuse_type("pipeline", object, "a lade.Pipeline");
  (void)pipeline->pipe->get();
  return pipeline->pipe;
}

std::string path_from(nb::handle object, const char *what) {
  PyObject *bytes = nullptr;
  if (!PyUnicode_FSConverter(object.ptr(), &bytes)) {
    const bool is_type = PyErr_ExceptionMatches(PyExc_TypeError);
    const bool has_null = PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_UnicodeError);
    if (!is_type && !has_null) throw nb::python_error();
    PyErr_Clear();
    if (has_null) refuse(std::string(what) + " is " + repr_text(object) + "; expected a path without null characters");
    refuse_type(what, object, "a path: str, bytes or os.PathLike");
  }
  nb::object owned = nb::steal(bytes);
  return std::string(PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes)));
}

namespace {

using Natural = NaturalArgument;

// --- what a program passes -------------------------------------------------------------------------------------------

int32_t priority_from(int priority) {
  if (priority < LADE_PRIORITY_BACKGROUND || priority > LADE_PRIORITY_URGENT)
    refuse("priority is " + std::to_string(priority) + "; expected -1 (background), 0 or 1 (urgent)");
  return priority;
}

// Options that all transfers have.
struct Common {
  nb::handle stream;
  int priority;
  nb::handle progress;
};

// A host end or a device end.
struct Side {
  TensorView view;
  const char *name;

  Side(const Pipe &pipe, nb::handle object, const char *what, Access access)
      : view(tensor_view(object, access, what)), name(what) {
    if (view.arena && view.arena->device().runtime != pipe.device().runtime)
      refuse(std::string(name) + " is of " + view.arena->device().text() +
             " of another runtime; the pipeline's device is " + pipe.device().text());
    if (view.on_device && !view.arena && pipe.device().runtime->is_software())
      refuse(std::string(name) + " is memory of a GPU; the pipeline's device is " + pipe.device().text());
  }
  bool is_on(const Device &device) const {
    return view.on_device && (view.ordinal < 0 || view.ordinal == device.ordinal);
  }
  // Refuses host memory, and other devices'. NumPy's views of a software device's memory cannot be told from host memory here: the
  // library refuses what is none.
  void expect_device(const Pipe &pipe) const {
    const Device &device = pipe.device();
    if (view.on_device && !is_on(device))
      refuse(std::string(name) + " is on device " + std::to_string(view.ordinal) + "; the pipeline's device is " +
             device.text());
    if (!view.on_device && (view.arena || !device.runtime->is_software()))
      refuse(std::string(name) + " is host memory; expected memory of " + device.text() + ", the pipeline's device");
  }
};

// torch's current stream where the tensor is torch's: its allocator gives memory out in the order of that stream.
bool torch_stream(nb::handle tensor, int ordinal, lade_stream &out) {
  if (!nb::hasattr(tensor, "is_cuda") || !nb::hasattr(tensor, "data_ptr")) return false;
  const nb::object torch = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch"));
  if (!torch) return false;
  out = reinterpret_cast<lade_stream>(
      nb::cast<uintptr_t>(torch.attr("cuda").attr("current_stream")(ordinal).attr("cuda_stream")));
  return true;
}

// The stream whose work comes first: the argument, or what the tensor's package has as its current stream.
void order_after(const Pipe &pipe, const Side &side, nb::handle tensor, nb::handle stream, lade_transfer &request) {
  const Device &device = pipe.device();
  request.after_stream = 1;
  if (!stream.is_none()) {
    const int ordinal = stream_device(stream);
    if (ordinal >= 0 && ordinal != device.ordinal)
      refuse("stream is one of device " + std::to_string(ordinal) + "; the pipeline's device is " + device.text());
    request.stream = stream_from(*device.runtime, stream);
  } else if (side.view.has_stream) {
    request.stream = side.view.stream;
  } else if (!side.view.on_device || !torch_stream(tensor, device.ordinal, request.stream)) {
    request.stream = nullptr;
  }
}

uint64_t bytes_from(const Side &side, nb::handle bytes) {
  if (bytes.is_none()) return side.view.bytes;
  const uint64_t count = natural_from(bytes, "bytes");
  if (count > side.view.bytes)
    refuse("bytes is " + std::to_string(count) + "; " + std::string(side.name) + " has " +
           std::to_string(side.view.bytes));
  return count;
}

// The thing that a name is of: a URL's object, or a file.
lade_endpoint named_endpoint(const std::string &name, uint64_t offset, uint32_t flags) {
  lade_endpoint endpoint = lade_endpoint_path(name.c_str(), offset, flags);
  for (const char *scheme : {"http://", "https://", "s3://"})
    if (name.rfind(scheme, 0) == 0) endpoint.kind = LADE_ENDPOINT_URL;
  return endpoint;
}

// The file end: a path, a URL, or an open file, whose descriptor is copied.
void file_set(Transfer &transfer, lade_endpoint &endpoint, nb::handle file, uint64_t offset, uint32_t flags) {
  int fd = -1;
  if (PyLong_Check(file.ptr()) || nb::hasattr(file, "fileno")) {
    fd = PyObject_AsFileDescriptor(file.ptr());
    if (fd < 0) throw nb::python_error();
    transfer.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (transfer.fd < 0) {
      const int reason = errno;
      raise(LADE_ERR_IO, "descriptor " + std::to_string(fd) + " cannot be used: " + std::strerror(reason));
    }
    transfer.path = "descriptor " + std::to_string(fd);
    endpoint = lade_endpoint_file(transfer.fd, offset, transfer.path.c_str());
    endpoint.flags = flags;
    return;
  }
  transfer.path = path_from(file, "path");
  endpoint = named_endpoint(transfer.path, offset, flags);
}

std::shared_ptr<Transfer> transfer_new(const std::shared_ptr<Pipe> &pipe, const Common &common,
                                       lade_transfer &request) {
  lade_transfer_init(&request);
  request.priority = priority_from(common.priority);
  if (!common.progress.is_none() && !PyCallable_Check(common.progress.ptr()))
    refuse_type("progress", common.progress, "a function(bytes_done, bytes), or None");
  return std::make_shared<Transfer>(pipe);
}

TicketObject submit(std::shared_ptr<Transfer> transfer, lade_transfer &request, const Common &common,
                    nb::handle result) {
  transfer->bytes_ = request.bytes;
  if (!common.progress.is_none()) transfer->progress_ = common.progress.inc_ref().ptr();
  const std::shared_ptr<Pipe> pipe = transfer->pipe();
  pipe->submit(transfer, request);
  return TicketObject(std::move(transfer), nb::borrow(result));
}

// --- transfers -------------------------------------------------------------------------------------------------------

TicketObject read_into(PipelineObject &self, nb::handle path, nb::handle offset, nb::handle tensor, nb::handle bytes,
                       nb::handle stream, int priority, bool direct, nb::handle progress) {
  const Common common{stream, priority, progress};
  const std::shared_ptr<Pipe> pipe = self.pipe;
  (void)pipe->get();
  lade_transfer request;
  auto transfer = transfer_new(pipe, common, request);
  Side side(*pipe, tensor, "tensor", Access::write);
  side.expect_device(*pipe);
  request.direction = LADE_TO_DEVICE;
  request.device_memory = side.view.data;
  request.bytes = bytes_from(side, bytes);
  order_after(*pipe, side, tensor, stream, request);
  file_set(*transfer, request.host, path, natural_from(offset, "offset"), direct ? LADE_FILE_DIRECT : 0);
  transfer->views.push_back(std::move(side.view));
  return submit(std::move(transfer), request, common, tensor);
}

TicketObject write_from(PipelineObject &self, nb::handle path, nb::handle offset, nb::handle tensor, nb::handle bytes,
                        nb::handle stream, int priority, bool direct, bool sync, bool atomic, nb::handle progress) {
  const Common common{stream, priority, progress};
  const std::shared_ptr<Pipe> pipe = self.pipe;
  (void)pipe->get();
  lade_transfer request;
  auto transfer = transfer_new(pipe, common, request);
  Side side(*pipe, tensor, "tensor", Access::read);
  side.expect_device(*pipe);
  request.direction = LADE_TO_HOST;
  request.device_memory = side.view.data;
  request.bytes = bytes_from(side, bytes);
  order_after(*pipe, side, tensor, stream, request);
  uint32_t flags = 0;
  if (direct) flags |= LADE_FILE_DIRECT;
  if (sync) flags |= LADE_FILE_SYNC;
  if (atomic) flags |= LADE_FILE_ATOMIC;
  file_set(*transfer, request.host, path, natural_from(offset, "offset"), flags);
  if (atomic && transfer->fd >= 0) refuse("atomic is True; expected a path then, not an open file");
  transfer->is_sink = true;
  transfer->views.push_back(std::move(side.view));
  return submit(std::move(transfer), request, common, tensor);
}

TicketObject copy(PipelineObject &self, nb::handle destination, nb::handle source, nb::handle stream, int priority,
                  nb::handle progress) {
  const Common common{stream, priority, progress};
  const std::shared_ptr<Pipe> pipe = self.pipe;
  (void)pipe->get();
  lade_transfer request;
  auto transfer = transfer_new(pipe, common, request);
  Side from(*pipe, source, "source", Access::read), to(*pipe, destination, "destination", Access::write);
  if (from.view.bytes != to.view.bytes)
    refuse("source has " + std::to_string(from.view.bytes) + " bytes and destination " + std::to_string(to.view.bytes) +
           "; expected the same");
  const Device &device = pipe->device();
  if (!from.is_on(device) && !to.is_on(device))
    refuse("neither source nor destination is memory of " + device.text() +
           ", the pipeline's device; expected one end there");
  const bool is_to_device = to.is_on(device);
  const Side &own = is_to_device ? to : from, &other = is_to_device ? from : to;
  request.direction = is_to_device ? LADE_TO_DEVICE : LADE_TO_HOST;
  request.device_memory = own.view.data;
  request.bytes = own.view.bytes;
  request.host =
      other.view.on_device
          ? lade_endpoint_device(other.view.ordinal < 0 ? device.ordinal : other.view.ordinal, other.view.data)
          : lade_endpoint_memory(other.view.data);
  order_after(*pipe, own, is_to_device ? destination : source, stream, request);
  JoinedStreams streams(device);
  streams.add(request.stream, device.ordinal);
  if (stream.is_none() && other.view.has_stream)
    streams.add(other.view.stream, other.view.ordinal < 0 ? device.ordinal : other.view.ordinal);
  request.stream = streams.get();
  transfer->views.push_back(std::move(from.view));
  transfer->views.push_back(std::move(to.view));
  return submit(std::move(transfer), request, common, destination);
}

// (path, offset, tensor), one after the other.
TicketObject read_many(PipelineObject &self, nb::handle pieces, nb::handle stream, int priority, bool direct,
                       nb::handle progress) {
  const Common common{stream, priority, progress};
  const std::shared_ptr<Pipe> pipe = self.pipe;
  (void)pipe->get();
  lade_transfer request;
  auto transfer = transfer_new(pipe, common, request);
  nb::list tensors;
  std::vector<lade_piece> list;
  std::vector<uint64_t> offsets;
  for (nb::handle item : nb::iter(python_list(pieces, "pieces", "a sequence of (path, offset, tensor)"))) {
    const std::string name = "pieces[" + std::to_string(list.size()) + "]";
    const auto parts = nb::borrow<nb::list>(python_list(item, name, "(path, offset, tensor)"));
    if (parts.size() != 3)
      refuse(name + " has " + std::to_string(parts.size()) + " items; expected (path, offset, tensor)");
    nb::object tensor = parts[2];
    Side side(*pipe, tensor, name.c_str(), Access::write);
    side.expect_device(*pipe);
    if (list.empty()) order_after(*pipe, side, tensor, stream, request);
    transfer->paths.push_back(path_from(nb::object(parts[0]), "path"));
    offsets.push_back(natural_from(nb::object(parts[1]), "offset"));
    lade_piece piece{};
    piece.device_memory = side.view.data;
    piece.bytes = side.view.bytes;
    list.push_back(piece);
    request.bytes += piece.bytes;
    transfer->views.push_back(std::move(side.view));
    tensors.append(tensor);
  }
  for (size_t i = 0; i < list.size(); i++)
    list[i].host = named_endpoint(transfer->paths[i], offsets[i], direct ? LADE_FILE_DIRECT : 0);
  request.direction = LADE_TO_DEVICE;
  request.pieces = list.data();
  request.piece_count = list.size();
  if (list.empty()) refuse("pieces is empty; expected one (path, offset, tensor) or more");
  JoinedStreams streams(pipe->device());
  streams.add(request.stream, pipe->device().ordinal);
  for (const TensorView &view : transfer->views)
    if (stream.is_none() && view.has_stream) streams.add(view.stream, pipe->device().ordinal);
  request.stream = streams.get();
  return submit(std::move(transfer), request, common, tensors);
}

// --- life ------------------------------------------------------------------------------------------------------------

int32_t storage_from(const std::string &name) {
  static const char *const names[] = {"auto", "pread", "uring", "cufile"};
  for (int32_t i = 0; i < 4; i++)
    if (name == names[i]) return i;
  refuse("storage is \"" + name + "\"; expected \"auto\", \"pread\", \"uring\" or \"cufile\"");
}

template <typename Field> void set_field(Field &field, Natural argument, const char *name) {
  const std::optional<uint64_t> value = argument.read(name);
  if (!value) return;
  if (*value == 0 || *value > static_cast<Field>(-1))
    refuse(std::string(name) + " is " + std::to_string(*value) + "; expected 1 to " +
           std::to_string(static_cast<Field>(-1)) + ", or None for the default");
  field = static_cast<Field>(*value);
}

void pipeline_init(PipelineObject *self, nb::handle device, nb::handle pool, Natural chunk_bytes, Natural depth,
                   Natural readers, Natural max_transfers, Natural window_bytes, Natural local_ranks,
                   const std::string &storage) {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  set_field(options.chunk_bytes, chunk_bytes, "chunk_bytes");
  set_field(options.depth, depth, "depth");
  set_field(options.readers, readers, "readers");
  set_field(options.max_transfers, max_transfers, "max_transfers");
  set_field(options.window_bytes, window_bytes, "window_bytes");
  set_field(options.local_ranks, local_ranks, "local_ranks");
  options.storage = storage_from(storage);
  Owner<Pool> staging;
  if (pool.is_none()) {
    nb::object made = nb::handle(nb::type<PoolObject>())(DeviceObject(device_from(device)),
                                                         nb::arg("local_ranks") = local_ranks.object);
    staging = pool_from(made);
  } else {
    staging = pool_from(pool);
    if (!device.is_none()) {
      const Device wanted = device_from(device);
      if (wanted.runtime != staging->device().runtime || wanted.ordinal != staging->device().ordinal)
        refuse("device is " + wanted.text() + "; the pool is near " + staging->device().text() +
               (wanted.runtime != staging->device().runtime ? " of another runtime" : ""));
    }
  }
  options.device = staging->device().ordinal;
  new (self) PipelineObject();
  self->pipe = Pipe::create(std::move(staging), options);
}

// With the GIL: os.environ changes under it.
uint32_t local_ranks_from_env() {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  lade_config config;
  lade_config_init(&config);
  config.pipeline = &options;
  check(lade_config_from_env(&config));
  return options.local_ranks ? options.local_ranks : 1;
}

lade_status info_add(const char *key, int64_t value, void *user) {
  (*static_cast<nb::dict *>(user))[key] = value;
  return LADE_OK;
}

nb::dict pipeline_stats(PipelineObject &self) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  check(lade_pipeline_info_get(self.pipe->get(), &info));
  nb::dict out;
  check(lade_pipeline_stats_each(&info, info_add, &out));
  out["storage_note"] = nb::str(info.storage_note);
  return out;
}

// --- tickets ---------------------------------------------------------------------------------------------------------

int ticket_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  TicketObject *ticket = nb::inst_ptr<TicketObject>(self);
  Py_VISIT(ticket->result.ptr());
  return 0;
}

int ticket_clear(PyObject *self) {
  if (!nb::inst_ready(self)) return 0;
  nb::inst_ptr<TicketObject>(self)->result.reset();
  return 0;
}

PyType_Slot ticket_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(ticket_traverse)},
                              {Py_tp_clear, reinterpret_cast<void *>(ticket_clear)},
                              {0, nullptr}};

nb::object ticket_result(TicketObject &self, nb::handle timeout) {
  const std::shared_ptr<Transfer> transfer = self.transfer;
  transfer->wait(timeout_from(timeout));
  return self.result;
}

nb::object ticket_exception(TicketObject &self, nb::handle timeout) {
  const std::shared_ptr<Transfer> transfer = self.transfer;
  if (!transfer->wait_over(timeout_from(timeout)))
    raise(LADE_ERR_TIMEOUT, "the transfer is not over when the time to wait is");
  if (transfer->outcome().status == LADE_OK) return nb::none();
  try {
    transfer->raise_outcome();
  } catch (nb::python_error &error) {
    return nb::borrow(error.value());
  }
  return nb::none();
}

bool ticket_cancel(TicketObject &self) {
  const std::shared_ptr<Transfer> transfer = self.transfer;
  if (transfer->is_over()) return false;
  check(lade_ticket_cancel(transfer->ticket()));
  transfer->pipe()->drain();
  return true;
}

// In steps, so that signals are seen: each returns when so many bytes have been read and their copies queued.
void ticket_stream_wait(TicketObject &self, nb::handle stream) {
  constexpr uint64_t step = 64ull << 20;
  const std::shared_ptr<Transfer> transfer = self.transfer;
  const Device &device = transfer->pipe()->device();
  const lade_stream on = stream_from(*device.runtime, stream);
  const CurrentDevice current(device, on);
  check(current.status());
  for (uint64_t prefix = step;; prefix += step) {
    const bool is_last = prefix >= transfer->bytes();
    lade_status status;
    {
      Unlocked unlocked;
      status = is_last ? lade_stream_wait_ticket(on, transfer->ticket())
                       : lade_stream_wait_ticket_prefix(on, transfer->ticket(), prefix);
    }
    check(status);
    if (is_last) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void ticket_add_done_callback(nb::handle self, nb::handle function) {
  if (!PyCallable_Check(function.ptr())) refuse_type("callback", function, "a function(ticket)");
  const std::shared_ptr<Transfer> transfer = nb::cast<TicketObject &>(self).transfer;
  transfer->add_callback(self, function);
}

std::string ticket_text(TicketObject &self) {
  Transfer &transfer = *self.transfer;
  std::string state = std::to_string(transfer.bytes_done()) + " done";
  if (transfer.is_over())
    state = transfer.outcome().status == LADE_OK ? "done" : lade_status_name(transfer.outcome().status);
  return "<lade.Ticket of " + std::to_string(transfer.bytes()) + " bytes: " + state + ">";
}

void bind_ticket(nb::module_ &module) {
  nb::class_<TicketObject>(
      module, "Ticket", nb::type_slots(ticket_slots), nb::is_weak_referenceable(),
      "A transfer that was begun: Pipeline gives them.\n\n"
      "The transfer goes on whether or not the ticket is kept; tensor, file and pipeline stay alive until it is over.\n"
      "``await ticket`` gives result() under asyncio; a task that is cancelled meanwhile cancels the transfer.\n"
      "All methods may be called by any thread.")
      .def(
          "wait", [](TicketObject &self, nb::handle timeout) { (void)ticket_result(self, timeout); },
          nb::arg("timeout").none() = nb::none(), nb::sig("def wait(self, timeout: float | None = None) -> None"),
          "Wait until the transfer is over.\n\n"
          "Parameters\n----------\ntimeout : float or None\n    Seconds; None: no limit; 0 asks only.\n\n"
          "Raises\n------\nTimeoutError\n    It is not over; it goes on, and the ticket can be waited for again.\n"
          "Error\n    What the transfer failed with: IOError, TruncatedError, CancelledError, ...\n"
          "KeyboardInterrupt\n    SIGINT came (main thread). The transfer goes on.")
      .def("result", &ticket_result, nb::arg("timeout").none() = nb::none(),
           nb::sig("def result(self, timeout: float | None = None) -> typing.Any"),
           "wait(), then the tensor that the transfer filled or read: the object that was passed.")
      .def("exception", &ticket_exception, nb::arg("timeout").none() = nb::none(),
           nb::sig("def exception(self, timeout: float | None = None) -> BaseException | None"),
           "Wait, then the error of the transfer, or None. TimeoutError is raised, not returned.")
      .def(
          "done",
          [](TicketObject &self) {
            const std::shared_ptr<Transfer> transfer = self.transfer;
            return transfer->ask_over();
          },
          "Whether the transfer is over, with success or without.")
      .def(
          "cancelled",
          [](TicketObject &self) {
            return self.transfer->is_over() && self.transfer->outcome().status == LADE_ERR_CANCELLED;
          },
          "Whether it ended with CancelledError.")
      .def("cancel", &ticket_cancel,
           "Cancel the transfer. The destination then holds some bytes, not all.\n\n"
           "Returns\n-------\nbool\n    False: it is over already. True: it ends with CancelledError soon, unless it "
           "was about to end.\n"
           "    wait() tells.")
      .def("add_done_callback", &ticket_add_done_callback, nb::arg("callback").none(),
           nb::sig("def add_done_callback(self, callback: typing.Callable[[Ticket], object]) -> None"),
           "Call ``callback(ticket)`` once the transfer is over, however it ends; at once if it is over.\n\n"
           "Runs in a thread of the pipeline's own that does nothing else, in the order of addition. What it raises "
           "goes to\n"
           "``sys.unraisablehook``, and the next callback is called. It may call anything of lade, waits included.")
      .def("wait_on", &ticket_stream_wait, nb::arg("stream").none() = nb::none(),
           nb::sig("def wait_on(self, stream: StreamLike = None) -> None"),
           "Let work that is queued on a stream from now on wait for the transfer's copies.\n\n"
           "Returns when the copies are queued, that is, after the reads; only the stream waits for the copies.\n\n"
           "Parameters\n----------\nstream : Stream, int, object with __cuda_stream__ or None\n    None: the default "
           "stream.")
      .def_prop_ro(
          "bytes", [](TicketObject &self) { return self.transfer->bytes(); }, "Of the whole transfer.")
      .def_prop_ro(
          "bytes_done", [](TicketObject &self) { return self.transfer->bytes_done(); }, "Arrived until now.")
      .def(
          "__await__",
          [](nb::handle self) {
            const std::shared_ptr<Transfer> transfer = nb::cast<TicketObject &>(self).transfer;
            // A loop of asyncio does not let "sim" go on.
            if (transfer->pipe()->is_virtual()) (void)transfer->wait_over(LADE_WAIT_FOREVER);
            return nb::module_::import_("lade._asyncio").attr("wait")(self);
          },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"))
      .def("__repr__", &ticket_text);
}

#define COMMON_DOC                                                                                                     \
  "stream : Stream, int, object with __cuda_stream__ or None\n"                                                        \
  "    The copies run after the work that is queued on it now. None: the streams of DeviceBuffers, the current "       \
  "stream of the\n"                                                                                                    \
  "    tensor's package (torch, CuPy), else the default stream.\n"                                                     \
  "priority : int\n    -1 background, 0, 1 urgent.\n"                                                                  \
  "progress : function(bytes_done, bytes) or None\n"                                                                   \
  "    Called about 20 times a second while there is progress, and at the end of a transfer without error; by the "    \
  "thread\n"                                                                                                           \
  "    that calls done callbacks.\n\n"                                                                                 \
  "Returns\n-------\nTicket\n"

} // namespace

void bind_pipeline(nb::module_ &module) {
  bind_ticket(module);
  nb::class_<PipelineObject>(
      module, "Pipeline", nb::is_weak_referenceable(),
      "Moves bytes between files, host memory and a device, through pinned memory, with reads and copies "
      "overlapped.\n\n"
      "Parameters\n----------\ndevice : Device, int, str, torch.device or None\n    None: the pool's, or the first "
      "GPU, or the software device.\n"
      "pool : PinnedPool or None\n    Where staging blocks come from. None: one of its own.\n"
      "chunk_bytes : int or None\n    Bytes per read and copy. None: chosen by lade.\n"
      "depth : int or None\n    Staging blocks for each direction, at most.\n"
      "readers : int or None\n    Threads that read and write.\n"
      "max_transfers : int or None\n    Transfers under way, at most; the next call waits. Default 64.\n"
      "window_bytes : int or None\n    Bytes of staging blocks under way in each direction, about. Default 72 MiB,\n   "
      " divided by local_ranks.\n"
      "local_ranks : int or None\n    Processes of this job on this machine, such as LOCAL_WORLD_SIZE says under "
      "torchrun:\n"
      "    they share processors, cache and budget. Default 1. A pool that is passed has its own number.\n"
      "storage : str\n    ``\"auto\"``, ``\"pread\"``, ``\"uring\"``, ``\"cufile\"``.\n\n"
      "All methods may be called by any thread. At the interpreter's exit writes may take 10 seconds to end, all else "
      "is\n"
      "cancelled. A forked child gets ForkedError.\n\n"
      "Examples\n--------\n>>> with lade.Pipeline(device) as pipeline:\n...     pipeline.read_into(\"weights.bin\", 0, "
      "tensor).wait()\n\n"
      "With a progress bar of tqdm:\n\n"
      ">>> with tqdm(total=tensor.nbytes) as bar:\n"
      "...     pipeline.read_into(path, 0, tensor, progress=lambda done, _: bar.update(done - bar.n)).wait()")
      .def("__init__", &pipeline_init, nb::arg("device").none() = nb::none(), nb::kw_only(),
           nb::arg("pool").none() = nb::none(), nb::arg("chunk_bytes").none() = nb::none(),
           nb::arg("depth").none() = nb::none(), nb::arg("readers").none() = nb::none(),
           nb::arg("max_transfers").none() = nb::none(), nb::arg("window_bytes").none() = nb::none(),
           nb::arg("local_ranks").none() = nb::none(), nb::arg("storage") = "auto",
           nb::sig("def __init__(self, device: DeviceLike = None, *, pool: PinnedPool | None = None, "
                   "chunk_bytes: int | None = None, depth: int | None = None, readers: int | None = None, "
                   "max_transfers: int | None = None, window_bytes: int | None = None, local_ranks: int | None = None, "
                   "storage: str = 'auto') -> None"))
      .def("read_into", &read_into, nb::arg("path").none(), nb::arg("offset").none(), nb::arg("tensor").none(),
           nb::kw_only(), nb::arg("bytes").none() = nb::none(), nb::arg("stream").none() = nb::none(),
           nb::arg("priority") = 0, nb::arg("direct") = false, nb::arg("progress").none() = nb::none(),
           nb::sig("def read_into(self, path: str | bytes | os.PathLike[str], offset: int, tensor: object, *, bytes: "
                   "int | None = None, "
                   "stream: StreamLike = None, priority: int = 0, direct: bool = False, "
                   "progress: typing.Callable[[int, int], object] | None = None) -> Ticket"),
           "Begin to read a range of a file into device memory.\n\n"
           "Parameters\n----------\npath : str, bytes, os.PathLike, int or file object\n"
           "    An open file's descriptor is copied, so that it may be closed at once. ``http://``, ``https://`` and "
           "``s3://``\n    are URLs (docs/sources.md).\n"
           "offset : int\n    Of the first byte in the file.\n"
           "tensor : object\n    Contiguous, writable memory of the pipeline's device: DeviceBuffer, torch, CuPy, "
           "DLPack.\n"
           "bytes : int or None\n    How many. None: as many as the tensor has.\n"
           "direct : bool\n    Past the page cache (O_DIRECT).\n" COMMON_DOC
           "\nRaises\n------\nInvalidArgumentError\n    Naming the argument: not contiguous, read-only, memory of the "
           "host or of another device.\n"
           "IOError\n    The file cannot be opened. What fails later comes out of the ticket: TruncatedError for a "
           "short file.")
      .def("write_from", &write_from, nb::arg("path").none(), nb::arg("offset").none(), nb::arg("tensor").none(),
           nb::kw_only(), nb::arg("bytes").none() = nb::none(), nb::arg("stream").none() = nb::none(),
           nb::arg("priority") = 0, nb::arg("direct") = false, nb::arg("sync") = false, nb::arg("atomic") = false,
           nb::arg("progress").none() = nb::none(),
           nb::sig(
               "def write_from(self, path: str | bytes | os.PathLike[str], offset: int, tensor: object, *, bytes: int "
               "| None = None, "
               "stream: StreamLike = None, priority: int = 0, direct: bool = False, sync: bool = False, atomic: bool = "
               "False, "
               "progress: typing.Callable[[int, int], object] | None = None) -> Ticket"),
           "Begin to write device memory to a range of a file, which is made if there is none; nothing of it is "
           "truncated.\n\n"
           "Parameters\n----------\npath : str, bytes, os.PathLike, int or file object\n    A descriptor is copied.\n"
           "offset : int\n    Of the first byte in the file.\n"
           "tensor : object\n    Contiguous memory of the pipeline's device.\n"
           "bytes : int or None\n    How many. None: as many as the tensor has.\n"
           "direct : bool\n    Past the page cache (O_DIRECT).\n"
           "sync : bool\n    On the disk (fsync) before the ticket is over.\n"
           "atomic : bool\n    The file appears under its name when all of it is written; else the name stays as it "
           "was.\n" COMMON_DOC)
      .def("copy", &copy, nb::arg("destination").none(), nb::arg("source").none(), nb::kw_only(),
           nb::arg("stream").none() = nb::none(), nb::arg("priority") = 0, nb::arg("progress").none() = nb::none(),
           nb::sig("def copy(self, destination: object, source: object, *, stream: StreamLike = None, "
                   "priority: int = 0, "
                   "progress: typing.Callable[[int, int], object] | None = None) -> Ticket"),
           "Begin to copy between host and device, or between devices; one end is memory of the pipeline's device.\n\n"
           "Pinned memory is copied as it is, other host memory through staging blocks.\n\n"
           "Parameters\n----------\ndestination, source : object\n    In this order, as of all copies; contiguous, of "
           "the same number of "
           "bytes.\n" COMMON_DOC)
      .def("read_many", &read_many, nb::arg("pieces"), nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("priority") = 0, nb::arg("direct") = false, nb::arg("progress").none() = nb::none(),
           nb::sig("def read_many(self, pieces: typing.Iterable[tuple[str | bytes | os.PathLike[str], int, object]], "
                   "*, stream: "
                   "StreamLike = None, "
                   "priority: int = 0, direct: bool = False, progress: typing.Callable[[int, int], object] | None = "
                   "None) -> Ticket"),
           "Begin to read ranges of files into several tensors, as one transfer: small ones are copied together.\n\n"
           "Parameters\n----------\npieces : iterable of (path, offset, tensor)\n    Paths may be URLs.\n" COMMON_DOC)
      .def("stats", &pipeline_stats, nb::sig("def stats(self) -> dict[str, int | str]"),
           "Settings and counters (``lade_pipeline_info``); ``storage_note`` says why something asked for is not used.")
      .def(
          "close",
          [](PipelineObject &self, bool cancel, nb::handle timeout) {
            const std::shared_ptr<Pipe> pipe = self.pipe;
            pipe->close(cancel, timeout_from(timeout));
          },
          nb::kw_only(), nb::arg("cancel") = false, nb::arg("timeout").none() = nb::none(),
          nb::sig("def close(self, *, cancel: bool = False, timeout: float | None = None) -> None"),
          "Wait for all transfers, and give threads and staging blocks back. Tickets stay readable.\n\n"
          "Parameters\n----------\ncancel : bool\n    Cancel transfers instead of letting them end.\n"
          "timeout : float or None\n    Seconds; then TimeoutError, and the pipeline stays open.\n\n"
          "Raises\n------\nBusyError\n    Loaders stand on it.")
      .def_prop_ro(
          "closed", [](PipelineObject &self) { return self.pipe->is_closed(); }, "Whether close() has been called.")
      .def_prop_ro(
          "device", [](PipelineObject &self) { return DeviceObject(self.pipe->device()); }, "Its device.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Pipeline"))
      .def(
          "__exit__",
          [](PipelineObject &self, nb::args raised) {
            const std::shared_ptr<Pipe> pipe = self.pipe;
            const bool cancels = raised.size() > 0 && !nb::object(raised[0]).is_none();
            with_end(raised, [&] { pipe->close(cancels, LADE_WAIT_FOREVER); });
          },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](PipelineObject &self) {
        return std::string("<lade.Pipeline ") +
               (self.pipe->is_closed() ? "closed" : "on " + self.pipe->device().text()) + ">";
      });
  module.def("local_ranks_from_env", &local_ranks_from_env,
             "Processes of this job on this machine, as its launcher says (torchrun, DeepSpeed, Open MPI, MPICH, PALS, "
             "Slurm), for "
             "arguments ``local_ranks``.\n\n"
             "Reads the environment as lade_config_from_env() does, so that LADE_LOG and LADE_STATS take effect, too; "
             "no other call of\nthe package reads it.\n\n"
             "Returns\n-------\nint\n    1 where no launcher says a number, or says one that makes no sense: the log "
             "names it then.\n\n"
             "Raises\n------\nConfigError\n    A variable of lade's is not what is expected; the text names it.\n\n"
             "Examples\n--------\n>>> ranks = lade.local_ranks_from_env()\n"
             ">>> tensors = lade.safetensors.load_file(path, \"cuda:0\", local_ranks=ranks)");
  module.def("_pipes_exit", &pipes_exit, "Ends transfers and callbacks. Called at the interpreter's exit.");
  nb::module_::import_("atexit").attr("register")(module.attr("_pipes_exit"));
}

} // namespace lade_python
