// SPDX-License-Identifier: Apache-2.0
//
// Device memory shared with other processes: device_ipc.h has X1 and X2.

#include "device_ipc.h"

#include "source.h"

#include <cerrno>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

namespace lade_torch {

namespace {

constexpr char version = 2, kind_driver = 'c', kind_descriptors = 'l';
constexpr size_t head_bytes = 2; // version and kind

// After that in a text of kind 'l'; fd_count descriptors of process `pid` follow, an int each.
struct Descriptors {
  int64_t pid;
  uint64_t piece_bytes;
  uint64_t offset;
  uint64_t fd_count;
};

[[noreturn]] void refuse_handle(const std::string &handle) {
  TORCH_CHECK(false, "lade: handle of device memory of another process has ", handle.size(),
              " bytes and does not begin as one of lade's; expected one that lade.torch.install_device() made in the "
              "sender, too");
}

// Descriptors of this process, closed at the end.
class Received {
public:
  Received(int64_t pid, const int *fds, size_t count) {
    const int process = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
    TORCH_CHECK(process >= 0, "lade: process ", pid,
                ", which shares device memory, is not reached: ", std::strerror(errno));
    for (size_t i = 0; i < count; i++) {
      const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, process, fds[i], 0));
      if (fd < 0) {
        const int error = errno;
        ::close(process);
        close_all();
        TORCH_CHECK(false, "lade: descriptor ", fds[i], " of process ", pid,
                    ", which shares device memory, is not to be had: ", std::strerror(error),
                    "; expected a process of the same user that still has the memory");
      }
      fds_.push_back(fd);
    }
    ::close(process);
  }
  ~Received() { close_all(); }
  Received(const Received &) = delete;
  Received &operator=(const Received &) = delete;
  int *data() { return fds_.data(); }

private:
  void close_all() {
    for (int fd : fds_) ::close(fd);
    fds_.clear();
  }
  std::vector<int> fds_;
};

std::shared_ptr<void> open_shared(lade_device_allocator *at, const lade_device_shared &shared) {
  void *opened = nullptr;
  check(lade_device_shared_open(at, &shared, &opened));
  return std::shared_ptr<void>(opened, [at](void *pointer) { (void)lade_device_shared_close(at, pointer); });
}

std::shared_ptr<void> open_driver(lade_device_allocator *at, const std::string &handle) {
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  if (handle.size() != head_bytes + sizeof shared.handle) refuse_handle(handle);
  std::memcpy(shared.handle, handle.data() + head_bytes, sizeof shared.handle);
  return open_shared(at, shared);
}

std::shared_ptr<void> open_descriptors(lade_device_allocator *at, const std::string &handle) {
  Descriptors head;
  if (handle.size() < head_bytes + sizeof head) refuse_handle(handle);
  std::memcpy(&head, handle.data() + head_bytes, sizeof head);
  const size_t rest = handle.size() - head_bytes - sizeof head;
  if (rest % sizeof(int) != 0 || head.fd_count == 0 || head.fd_count != rest / sizeof(int)) refuse_handle(handle);
  std::vector<int> fds(head.fd_count);
  std::memcpy(fds.data(), handle.data() + head_bytes + sizeof head, rest);
  Received received(head.pid, fds.data(), fds.size());
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  shared.fds = received.data();
  shared.fd_count = head.fd_count;
  shared.piece_bytes = head.piece_bytes;
  shared.offset = head.offset;
  return open_shared(at, shared);
}

} // namespace

DeviceIpc &DeviceIpc::get() {
  static DeviceIpc *ipc = new DeviceIpc;
  return *ipc;
}

std::string DeviceIpc::share_descriptors(lade_device_allocator *of, const void *pointer) {
  lade_device_shared shared;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [place, is_new] = exports_.try_emplace(pointer);
    if (is_new) {
      lade_device_shared_init(&place->second);
      lade_status status = lade_device_shared_export(of, pointer, &place->second);
      if (status != LADE_OK) exports_.erase(place);
      check(status);
      export_count_.store(exports_.size(), std::memory_order_release);
    }
    shared = place->second;
  }
  const Descriptors head = {getpid(), shared.piece_bytes, shared.offset, shared.fd_count};
  std::string text = {version, kind_descriptors};
  text.append(reinterpret_cast<const char *>(&head), sizeof head);
  text.append(reinterpret_cast<const char *>(shared.fds), shared.fd_count * sizeof(int));
  return text;
}

c10::cuda::CUDACachingAllocator::ShareableHandle DeviceIpc::share(void *pointer) {
  lade_device_allocator *owner = nullptr;
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  check(DeviceCaches::get().for_owner([&](lade_device_allocator *of, int) {
    owner = of;
    return lade_device_find(of, pointer, &info);
  }));
  if (info.is_expandable) {
    char *block = reinterpret_cast<char *>(static_cast<uintptr_t>(info.address));
    return {static_cast<char *>(pointer) - block, share_descriptors(owner, block)};
  }
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  check(lade_device_shared_export(owner, pointer, &shared));
  std::string text = {version, kind_driver};
  text.append(reinterpret_cast<const char *>(shared.handle), sizeof shared.handle);
  return {static_cast<ptrdiff_t>(shared.offset), std::move(text)};
}

std::shared_ptr<void> DeviceIpc::open(const std::string &handle, int device) {
  lade_device_allocator *at = DeviceCaches::get().allocator(device);
  switch (handle.size() < head_bytes || handle[0] > version ? '\0' : handle[1]) {
  case kind_driver: return open_driver(at, handle);
  case kind_descriptors: return open_descriptors(at, handle);
  default: refuse_handle(handle);
  }
}

void DeviceIpc::forget(const void *pointer) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = exports_.find(pointer);
  if (found == exports_.end()) return;
  lade_device_shared_release(&found->second);
  exports_.erase(found);
  export_count_.store(exports_.size(), std::memory_order_release);
}

} // namespace lade_torch
