// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's device memory from lade: device_hooks.h has D1 to D6.

#include "device_hooks.h"

#include "source.h"
#include "special_streams.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <string_view>

namespace lade_torch {

namespace {

constexpr size_t most_bytes = size_t(1) << 60; // beyond it lade_device_alloc() sees a mistake, PyTorch a lack of memory

void check(lade_status status) {
  if (C10_UNLIKELY(status != LADE_OK)) throw_last_error(status);
}

lade_device_pool_id pool_id(DeviceHooks::PoolId id) { return lade_device_pool_id{id.first, id.second}; }

// The calling thread's allocations go to a pool for as long as this lives.
class Route {
public:
  Route(lade_device_allocator *allocator, DeviceHooks::PoolId id) : allocator_(allocator) {
    check(lade_device_scope_begin(allocator, pool_id(id), NULL, LADE_DEVICE_SCOPE_THREAD, &scope_));
  }
  ~Route() { (void)lade_device_scope_end(allocator_, scope_); }
  Route(const Route &) = delete;
  Route &operator=(const Route &) = delete;

private:
  lade_device_allocator *allocator_;
  uint64_t scope_ = 0;
};

} // namespace

DeviceHooks &DeviceHooks::get() {
  static DeviceHooks *hooks = new DeviceHooks;
  return *hooks;
}

// ---- Allocators ------------------------------------------------------------------------------------------------------

void DeviceHooks::configure(const char *runtime_name, const lade_device_options &options) {
  std::lock_guard<std::mutex> lock(mutex_);
  for_each([](lade_device_allocator *) {
    TORCH_CHECK(false, "lade: PyTorch has memory of lade's device allocators already: their settings stay");
  });
  options_ = options;
  if (runtime() != nullptr) return;
  lade_runtime *opened = nullptr;
  check(lade_runtime_open(runtime_name, nullptr, &opened));
  runtime_.store(opened, std::memory_order_release);
}

lade_device_allocator *DeviceHooks::existing(int device) const noexcept {
  return allocators_[static_cast<size_t>(device)].load(std::memory_order_acquire);
}

lade_device_allocator *DeviceHooks::allocator(int device) {
  TORCH_CHECK(device >= 0 && device < max_devices, "lade: device is ", device, "; expected 0 to ", max_devices - 1);
  if (lade_device_allocator *found = existing(device)) return found;
  std::lock_guard<std::mutex> lock(mutex_);
  if (lade_device_allocator *found = existing(device)) return found;
  TORCH_CHECK(runtime() != nullptr, "lade: lade.torch.install_device() was not called");
  lade_device_allocator *made = nullptr;
  check(lade_device_allocator_create(runtime(), device, &options_, &made));
  allocators_[static_cast<size_t>(device)].store(made, std::memory_order_release);
  return made;
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------

// D3. The filter is asked without the lock: it calls the driver.
bool DeviceHooks::routed(int device, cudaStream_t stream, PoolId *out_id) {
  std::vector<Capture> captures;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    captures = captures_;
  }
  for (const Capture &each : captures) {
    if (each.device != device || !each.filter(stream)) continue;
    *out_id = each.id;
    return true;
  }
  return false;
}

// D6. A stream of another device is refused.
lade_status DeviceHooks::allocate_on(lade_device_allocator *from, size_t bytes, int device, cudaStream_t stream,
                                     void **out) {
  return on_device(
      runtime(), device, stream, [&] { return lade_device_alloc(from, bytes, stream, out); });
}

void *DeviceHooks::allocate(size_t bytes, int device, cudaStream_t stream) {
  if (bytes == 0) return nullptr; // D2
  lade_device_allocator *from = allocator(device);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < most_bytes, "CUDA out of memory. lade: ", bytes,
                   " bytes asked for; expected less than 2^60");
  void *block = nullptr;
  PoolId id;
  if (C10_UNLIKELY(underway_.load(std::memory_order_acquire) != 0) && routed(device, stream, &id)) {
    Route route(from, id);
    check(allocate_on(from, bytes, device, stream, &block));
  } else {
    check(allocate_on(from, bytes, device, stream, &block));
  }
  return block;
}

void DeviceHooks::refused(lade_status status) noexcept {
  if (status != LADE_OK && status != LADE_ERR_FORKED) refused_frees_.fetch_add(1, std::memory_order_relaxed);
}

void DeviceHooks::free(void *pointer, int device) noexcept {
  lade_device_allocator *from = device >= 0 && device < max_devices ? existing(device) : nullptr;
  if (from == nullptr || pointer == nullptr) return;
  refused(lade_device_free(from, pointer));
}

// D5. A wait that fails is a device that was lost, or the end of the process: nothing uses the segment then either.
void DeviceHooks::free_segment(void *pointer, int device) noexcept {
  try {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->synchronizeDevice(static_cast<c10::DeviceIndex>(device));
  } catch (...) {
  }
  free(pointer, device);
}

bool DeviceHooks::is_software() const { return std::string_view(lade_runtime_name(runtime())) != "cuda"; }

// D6. A stream of another device is not refused, so the guard sees to it that the right one is meant.
lade_status DeviceHooks::record_on(lade_device_allocator *of, void *pointer, int device, cudaStream_t stream) {
  c10::OptionalDeviceGuard guard;
  if (C10_UNLIKELY(is_special(stream)) && !is_software())
    guard.reset_device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
  return on_device(runtime(), device, stream, [&] { return lade_device_record_stream(of, pointer, stream); });
}

void DeviceHooks::record_stream(void *pointer, cudaStream_t stream) {
  if (pointer == nullptr) return;
  lade_status status = LADE_ERR_FOREIGN_POINTER;
  for (int device = 0; device < max_devices && status == LADE_ERR_FOREIGN_POINTER; device++)
    if (lade_device_allocator *each = existing(device)) status = record_on(each, pointer, device, stream);
  check(status);
}

// ---- Captures --------------------------------------------------------------------------------------------------------

void DeviceHooks::begin(int device, PoolId id, Filter filter) {
  lade_device_allocator *of = allocator(device);
  std::lock_guard<std::mutex> lock(mutex_);
  captures_.reserve(captures_.size() + 1);
  lade_stream &marker = markers_[static_cast<size_t>(device)];
  if (marker == nullptr) check(lade_stream_create(runtime(), device, &marker));
  check(lade_device_pool_begin(of, pool_id(id), &marker, 1)); // D3
  captures_.push_back({device, id, std::move(filter)});
  underway_.store(captures_.size(), std::memory_order_release);
}

void DeviceHooks::end(int device, PoolId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(captures_.begin(), captures_.end(),
                            [&](const Capture &each) { return each.device == device && each.id == id; });
  TORCH_CHECK(found != captures_.end(), "lade: no capture into pool (", id.first, ", ", id.second, ") is under way");
  captures_.erase(found);
  underway_.store(captures_.size(), std::memory_order_release);
  check(lade_device_pool_end(existing(device), pool_id(id)));
}

void DeviceHooks::release(int device, PoolId id) {
  lade_device_allocator *of = device >= 0 && device < max_devices ? existing(device) : nullptr;
  TORCH_CHECK(of != nullptr, "lade: pool (", id.first, ", ", id.second, ") of device ", device, " is not known");
  check(lade_device_pool_release(of, pool_id(id)));
}

} // namespace lade_torch
