// SPDX-License-Identifier: Apache-2.0
//
// D1  A pool that this made has one use here until the object goes; one that is given by its id is its owner's.
// D2  `kept_` is what the library has as move_user: from a suspend with a file until the resume. It holds descriptor and pipeline, which
//     is not closed meanwhile.
// D3  One thread at a time is in a suspend or resume of an object (`moving_`, with the GIL), so that `kept_` is that of the pool.
#include "device_pool.h"

#include "device.h"
#include "pipeline.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <optional>

namespace lade_python {

namespace {

using PoolId = std::pair<uint64_t, uint64_t>;

// Where the bytes of a suspended pool are.
class File {
public:
  File(std::shared_ptr<Pipe> pipe, int fd) : pipe_(std::move(pipe)), fd_(fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
    if (fd_ < 0) {
      PyErr_SetFromErrno(PyExc_OSError);
      throw nb::python_error();
    }
    try {
      pipe_->user_add();
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  ~File() {
    ::close(fd_);
    pipe_->user_remove();
    if (!exiting()) let_go(pipe_);
  }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  const std::shared_ptr<Pipe> &pipe() const noexcept { return pipe_; }

  // lade_device_suspend_move: one range after the other. Past the page cache, which the bytes would take the place of otherwise.
  static lade_status move(void *user, bool returning, const lade_device_range *ranges, size_t count) noexcept {
    const File &file = *static_cast<const File *>(user);
    std::unique_ptr<lade_piece[]> pieces(new (std::nothrow) lade_piece[count]);
    if (!pieces) return LADE_ERR_OUT_OF_HOST_MEMORY;
    lade_transfer request;
    lade_transfer_init(&request);
    request.direction = returning ? LADE_TO_DEVICE : LADE_TO_HOST;
    request.pieces = pieces.get();
    request.piece_count = count;
    for (size_t i = 0; i < count; i++) {
      pieces[i] = {lade_endpoint_file(file.fd_, request.bytes, "the file of a suspended pool"),
                   const_cast<void *>(ranges[i].address), ranges[i].bytes};
      pieces[i].host.flags = LADE_FILE_DIRECT | (returning ? 0u : uint32_t{LADE_FILE_SYNC});
      request.bytes += ranges[i].bytes;
    }
    lade_ticket *ticket = nullptr;
    lade_status status = lade_pipeline_submit(file.pipe_->get(), &request, &ticket);
    if (status != LADE_OK) return status;
    status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
    lade_ticket_release(ticket);
    return status;
  }

private:
  std::shared_ptr<Pipe> pipe_;
  int fd_;
};

class DevicePool {
public:
  DevicePool(Owner<Allocator> allocator, std::optional<PoolId> id) : allocator_(std::move(allocator)), owns_(!id) {
    if (id) {
      id_ = {id->first, id->second};
      return;
    }
    lade_device_pool_options options;
    lade_device_pool_options_init(&options);
    check(lade_device_pool_create(allocator_->get(), &options, &id_));
  }
  ~DevicePool() {
    if (owns_ && !allocator_->is_closed() && !allocator_->is_abandoned())
      (void)lade_device_pool_release(allocator_->get(), id_);
    // No call is left that could resume a pool that is still suspended: it goes with its last block.
    let_go(allocator_);
  }
  DevicePool(const DevicePool &) = delete;
  DevicePool &operator=(const DevicePool &) = delete;

  PoolId id() const { return {id_.first, id_.second}; }

  lade_device_pool_info info() const {
    lade_device_pool_info info;
    lade_device_pool_info_init(&info);
    check(lade_device_pool_info_get(allocator_->get(), id_, &info));
    return info;
  }

  uint64_t suspend(bool discards, nb::handle pipeline, int fd) {
    lade_device_suspend_options options;
    lade_device_suspend_options_init(&options);
    if (discards) options.flags = LADE_DEVICE_SUSPEND_DISCARD;
    std::unique_ptr<File> file;
    if (!pipeline.is_none()) {
      file = std::make_unique<File>(pipe_from(pipeline), fd);
      options.move = File::move;
      options.move_user = file.get();
    }
    uint64_t bytes = 0;
    move(file.get(),
         [&](lade_device_allocator *handle) { return lade_device_pool_suspend(handle, id_, &options, &bytes); });
    kept_ = std::move(file);
    return bytes;
  }

  void resume() {
    move(kept_.get(), [&](lade_device_allocator *handle) { return lade_device_pool_resume(handle, id_); });
    kept_.reset();
  }

  uint64_t begin() const {
    uint64_t scope = 0;
    check(lade_device_scope_begin(allocator_->get(), id_, nullptr, LADE_DEVICE_SCOPE_THREAD, &scope));
    return scope;
  }
  void end(uint64_t scope) const { check(lade_device_scope_end(allocator_->get(), scope)); }

private:
  template <typename Call> void move(const File *file, Call call) {
    if (moving_) raise(LADE_ERR_BUSY, "another thread suspends or resumes the pool");
    std::optional<PipeCall> held;
    if (file) held.emplace(file->pipe());
    moving_ = true;
    try {
      unlocked_call(*allocator_.get(), call);
    } catch (...) {
      moving_ = false;
      throw;
    }
    moving_ = false;
  }

  Owner<Allocator> allocator_;
  lade_device_pool_id id_{};
  const bool owns_;            // D1
  std::unique_ptr<File> kept_; // D2
  bool moving_ = false;        // D3
};

} // namespace

void bind_device_pool(nb::module_ &module) {
  module.def(
      "_backup_bytes",
      [](nb::handle allocator) {
        lade_device_stats stats;
        lade_device_stats_init(&stats);
        check(lade_device_stats_get(allocator_from(allocator)->get(), &stats));
        return stats.backup_bytes;
      },
      nb::arg("allocator"), nb::sig("def _backup_bytes(allocator: DeviceAllocator) -> int"));
  Locked<DevicePool>(module, "_DevicePool")
      .def(
          "__init__",
          [](DevicePool *self, nb::handle allocator, std::optional<PoolId> id) {
            new (self) DevicePool(allocator_from(allocator), id);
          },
          nb::arg("allocator"), nb::arg("id").none() = nb::none(),
          nb::sig("def __init__(self, allocator: DeviceAllocator, id: tuple[int, int] | None = None) -> None"))
      .def_prop_ro("id", &DevicePool::id)
      .def(
          "info",
          [](const DevicePool &self) {
            const lade_device_pool_info info = self.info();
            return nb::make_tuple(info.suspended != 0, info.suspended ? info.suspended_bytes : info.reserved_bytes);
          },
          nb::sig("def info(self) -> tuple[bool, int]"))
      .def("suspend", &DevicePool::suspend, nb::arg("discard"), nb::arg("pipeline").none(), nb::arg("fd"),
           nb::sig("def suspend(self, discard: bool, pipeline: Pipeline | None, fd: int) -> int"))
      .def("resume", &DevicePool::resume)
      .def("begin", &DevicePool::begin)
      .def("end", &DevicePool::end, nb::arg("scope"));
}

} // namespace lade_python
