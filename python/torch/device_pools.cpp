// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's private pools of device memory: device_pools.h has P1 to P5.

#include "device_pools.h"

#include "source.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

namespace lade_torch {

namespace {

// False: there is no such pool.
bool info_get(int device, PoolId id, lade_device_pool_info *info) {
  lade_device_allocator *of = DeviceCaches::get().existing(device);
  lade_device_pool_info_init(info);
  return of != nullptr && lade_device_pool_info_get(of, lade_pool_id(id), info) == LADE_OK;
}

lade_device_allocator *known(int device, PoolId id) {
  lade_device_allocator *of =
      device >= 0 && device < DeviceCaches::max_devices ? DeviceCaches::get().existing(device) : nullptr;
  TORCH_CHECK(of != nullptr, "lade: pool (", id.first, ", ", id.second, ") of device ", device, " is not known");
  return of;
}

} // namespace

DevicePools &DevicePools::get() {
  static DevicePools *pools = new DevicePools;
  return *pools;
}

// ---- Pools -----------------------------------------------------------------------------------------------------------

lade_status DevicePools::segment_alloc(void *user, size_t bytes, int device, lade_stream, void **out) {
  auto &provider = *static_cast<Owner *>(user);
  try {
    c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
    *out = provider->raw_alloc(bytes);
    return LADE_OK;
  } catch (...) {
    return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  }
}

lade_status DevicePools::segment_free(void *user, void *pointer, size_t, int device, lade_stream) {
  auto &provider = *static_cast<Owner *>(user);
  try {
    c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
    provider->raw_delete(pointer);
    return LADE_OK;
  } catch (...) {
    return LADE_ERR_CALLBACK;
  }
}

// P4
void DevicePools::forget_providers() {
  std::vector<std::pair<int, PoolId>> keys;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &each : providers_) keys.push_back(each.first);
  }
  lade_device_pool_info info;
  keys.erase(
      std::remove_if(keys.begin(), keys.end(), [&](const auto &key) { return info_get(key.first, key.second, &info); }),
      keys.end());
  std::vector<std::unique_ptr<Owner>> gone; // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &key : keys) {
    auto found = providers_.find(key);
    if (found == providers_.end()) continue;
    gone.push_back(std::move(found->second));
    providers_.erase(found);
  }
}

void DevicePools::create(int device, PoolId id, Owner provider) {
  lade_device_allocator *of = DeviceCaches::get().allocator(device);
  lade_device_pool_info info;
  if (info_get(device, id, &info)) return check(lade_device_pool_retain(of, lade_pool_id(id)));
  forget_providers();
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  options.id = lade_pool_id(id);
  lade_device_plugin plugin;
  lade_device_plugin_init(&plugin);
  Providers fresh;
  if (provider != nullptr) {
    plugin.user =
        fresh.emplace(std::make_pair(device, id), std::make_unique<Owner>(std::move(provider))).first->second.get();
    plugin.alloc = segment_alloc;
    plugin.free = segment_free;
    options.provider = &plugin;
  }
  lade_device_pool_id made;
  check(lade_device_pool_create(of, &options, &made));
  std::lock_guard<std::mutex> lock(mutex_);
  providers_.merge(fresh); // allocates nothing, and so it cannot fail
}

void DevicePools::set_flag(int device, PoolId id, uint32_t flag, bool is_on) {
  lade_device_allocator *of = known(device, id);
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  check(lade_device_pool_info_get(of, lade_pool_id(id), &info));
  check(lade_device_pool_flags_set(of, lade_pool_id(id), is_on ? info.flags | flag : info.flags & ~flag));
}

int DevicePools::use_count(int device, PoolId id) {
  lade_device_pool_info info;
  return info_get(device, id, &info) ? static_cast<int>(info.use_count) : 0;
}

void DevicePools::release(int device, PoolId id) {
  check(lade_device_pool_release(known(device, id), lade_pool_id(id)));
}

// ---- Begin and end ---------------------------------------------------------------------------------------------------

// P3. The filters are asked without the lock: they call the driver.
bool DevicePools::find_route(int device, cudaStream_t stream, PoolId *out_id) {
  std::shared_ptr<const Open> open;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open = open_;
  }
  auto found = std::find_if(open->rbegin(), open->rend(),
                            [&](const Begin &each) { return each.device == device && each.filter(stream); });
  if (found == open->rend()) return false;
  *out_id = found->id;
  return true;
}

lade_stream DevicePools::marker(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  lade_stream &stream = markers_[static_cast<size_t>(device)];
  if (stream == nullptr) check(lade_stream_create(DeviceCaches::get().runtime(), device, &stream));
  return stream;
}

// With mutex_ held.
void DevicePools::open_set(std::shared_ptr<const Open> open) {
  open_ = std::move(open);
  underway_.store(open_->size(), std::memory_order_release);
}

void DevicePools::begin(int device, PoolId id, Filter filter) {
  lade_device_allocator *of = DeviceCaches::get().allocator(device);
  lade_stream stream = marker(device);
  lade_device_pool_info info;
  const bool lends = info_get(device, id, &info) && (info.flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0;
  if (lends)
    check(lade_device_pool_retain(of, lade_pool_id(id)));
  else
    check(lade_device_pool_begin(of, lade_pool_id(id), &stream, 1));
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    auto open = std::make_shared<Open>(*open_);
    open->push_back({device, id, std::move(filter), !lends});
    open_set(std::move(open));
  } catch (...) {
    if (!lends) (void)lade_device_pool_end(of, lade_pool_id(id));
    (void)lade_device_pool_release(of, lade_pool_id(id));
    throw;
  }
}

void DevicePools::end(int device, PoolId id) {
  bool is_capture;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto open = std::make_shared<Open>(*open_);
    auto found = std::find_if(open->begin(), open->end(),
                              [&](const Begin &each) { return each.device == device && each.id == id; });
    TORCH_CHECK(found != open->end(), "lade: nothing is allocated to pool (", id.first, ", ", id.second, ") of device ",
                device, "; expected a pool between its begin and its end");
    is_capture = found->is_capture;
    open->erase(found);
    open_set(std::move(open));
  }
  if (is_capture) check(lade_device_pool_end(known(device, id), lade_pool_id(id)));
}

} // namespace lade_torch
