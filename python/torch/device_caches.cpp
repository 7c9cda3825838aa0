// SPDX-License-Identifier: Apache-2.0
//
// lade's device allocators under PyTorch: device_caches.h has D1 to D7.

#include "device_caches.h"

#include "device_pools.h"
#include "source.h"
#include "special_streams.h"

#include <c10/core/DeviceGuard.h>

#include <string_view>

namespace lade_torch {

namespace {

constexpr size_t most_bytes = size_t(1) << 60; // beyond it lade_device_alloc() sees a mistake, PyTorch a lack of memory

thread_local int last_device = 0; // D3

// The calling thread's allocations go to a pool for as long as this lives.
class Route {
public:
  Route(lade_device_allocator *allocator, PoolId id) : allocator_(allocator) {
    check(lade_device_scope_begin(allocator, lade_pool_id(id), NULL, LADE_DEVICE_SCOPE_THREAD, &scope_));
  }
  ~Route() { (void)lade_device_scope_end(allocator_, scope_); }
  Route(const Route &) = delete;
  Route &operator=(const Route &) = delete;

private:
  lade_device_allocator *allocator_;
  uint64_t scope_ = 0;
};

// With PyTorch's words for the sizes, which programs look for, and lade's for everything else.
[[noreturn]] void throw_allocation_failed(lade_device_allocator *from, int device, lade_status status, size_t bytes) {
  if (status != LADE_ERR_OUT_OF_DEVICE_MEMORY && status != LADE_ERR_LIMIT) throw_last_error(status);
  static constexpr std::string_view head = "CUDA out of memory. ";
  std::string text = lade_last_error()->text;
  if (text.compare(0, head.size(), head) == 0) text.erase(0, head.size());
  size_t free_bytes = 0, total_bytes = 0;
  (void)lade_device_memory_get(from, &free_bytes, &total_bytes);
  using c10::CachingAllocator::format_size;
  TORCH_CHECK_WITH(OutOfMemoryError, false, head, "Tried to allocate ", format_size(bytes), ". GPU ", device,
                   " has a total capacity of ", format_size(total_bytes), " of which ", format_size(free_bytes),
                   " is free. lade: ", text);
}

} // namespace

DeviceCaches &DeviceCaches::get() {
  static DeviceCaches *caches = new DeviceCaches;
  return *caches;
}

// ---- Allocators ------------------------------------------------------------------------------------------------------

void DeviceCaches::configure(const char *runtime_name, const lade_device_options &options) {
  std::lock_guard<std::mutex> lock(mutex_);
  for_each([](lade_device_allocator *, int) {
    TORCH_CHECK(false, "lade: PyTorch has memory of lade's device allocators already: their settings stay");
  });
  options_ = options;
  runtime_name_ = runtime_name;
  is_software_ = runtime_name_ != "cuda";
}

// D7. With mutex_ held.
void DeviceCaches::open_runtime() {
  if (runtime() != nullptr) return;
  TORCH_CHECK(!runtime_name_.empty(), "lade: lade.torch.install_device() was not called");
  lade_runtime *opened = nullptr;
  check(lade_runtime_open(runtime_name_.c_str(), nullptr, &opened));
  runtime_.store(opened, std::memory_order_release);
}

double DeviceCaches::memory_fraction() {
  std::lock_guard<std::mutex> lock(mutex_);
  return options_.memory_fraction == 0 ? 1.0 : options_.memory_fraction;
}

void DeviceCaches::change(const std::function<void(lade_device_options *)> &change) {
  std::lock_guard<std::mutex> lock(mutex_);
  lade_device_options options = options_;
  change(&options);
  for_each([&](lade_device_allocator *each, int) { check(lade_device_configure(each, &options)); });
  if (options.memory_fraction == 0) options.memory_fraction = options_.memory_fraction; // for those to come
  options_ = options;
}

void DeviceCaches::set_up(Setup setup) {
  std::lock_guard<std::mutex> lock(mutex_);
  setups_.push_back(std::move(setup));
  for_each(setups_.back());
}

void DeviceCaches::apply(const Setup &setup) {
  std::lock_guard<std::mutex> lock(mutex_);
  for_each(setup);
}

lade_device_allocator *DeviceCaches::existing(int device) const noexcept {
  return allocators_[static_cast<size_t>(device)].load(std::memory_order_acquire);
}

lade_device_allocator *DeviceCaches::allocator(int device) {
  TORCH_CHECK(device >= 0 && device < max_devices, "lade: device is ", device, "; expected 0 to ", max_devices - 1);
  if (lade_device_allocator *found = existing(device)) return found;
  std::lock_guard<std::mutex> lock(mutex_);
  if (lade_device_allocator *found = existing(device)) return found;
  open_runtime();
  lade_device_allocator *made = nullptr;
  check(lade_device_allocator_create(runtime(), device, &options_, &made));
  try {
    for (const Setup &setup : setups_) setup(made, device);
  } catch (...) {
    (void)lade_device_allocator_destroy(made, true);
    throw;
  }
  allocators_[static_cast<size_t>(device)].store(made, std::memory_order_release);
  return made;
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------

int DeviceCaches::last_used() noexcept { return last_device; }

// D5. A stream of another device is refused.
lade_status DeviceCaches::allocate_on(lade_device_allocator *from, size_t bytes, int device, cudaStream_t stream,
                                      void **out) {
  return on_device(
      runtime(), device, stream, [&] { return lade_device_alloc(from, bytes, stream, out); });
}

void *DeviceCaches::allocate(size_t bytes, int device, cudaStream_t stream) {
  if (bytes == 0) return nullptr; // D2
  lade_device_allocator *from = allocator(device);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < most_bytes,
                   "CUDA out of memory. Tried to allocate more than 1EB memory. lade: ", bytes,
                   " bytes asked for; expected less than 2^60");
  last_device = device;
  void *block = nullptr;
  lade_status status;
  PoolId id;
  if (C10_UNLIKELY(DevicePools::get().is_routed(device, stream, &id))) {
    Route route(from, id);
    status = allocate_on(from, bytes, device, stream, &block);
  } else {
    status = allocate_on(from, bytes, device, stream, &block);
  }
  if (C10_UNLIKELY(status != LADE_OK)) throw_allocation_failed(from, device, status, bytes);
  return block;
}

// A forked child's copy is the parent's to free. A deleter has no way to tell of other refusals than to count them.
void DeviceCaches::free(void *pointer) noexcept {
  if (pointer == nullptr) return;
  lade_status status = for_owner([&](lade_device_allocator *of, int) { return lade_device_free(of, pointer); });
  if (C10_UNLIKELY(status != LADE_OK && status != LADE_ERR_FORKED))
    refused_frees_.fetch_add(1, std::memory_order_relaxed);
}

// D4. A wait that fails is a device that was lost, or the end of the process: nothing uses the segment then either.
void DeviceCaches::free_segment(void *pointer, int device) noexcept {
  try {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->synchronizeDevice(static_cast<c10::DeviceIndex>(device));
  } catch (...) {
  }
  free(pointer);
}

// D5. lade does not refuse a stream of another device, so the guard sees to it that the right one is meant.
void DeviceCaches::record_stream(void *pointer, int device, cudaStream_t stream) {
  if (pointer == nullptr) return;
  c10::OptionalDeviceGuard guard;
  if (C10_UNLIKELY(is_special(stream)) && !is_software_)
    guard.reset_device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
  check(for_owner([&](lade_device_allocator *of, int) {
    return on_device(runtime(), device, stream, [&] { return lade_device_record_stream(of, pointer, stream); });
  }));
}

} // namespace lade_torch
