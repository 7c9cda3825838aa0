// SPDX-License-Identifier: Apache-2.0
//
// Pools of lade as sources of PyTorch's pinned memory: source.h says what holds.

#include "source.h"

#include "special_streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDAStream.h>

#include <string>

namespace lade_torch {

namespace {

thread_local lade_stream software_stream = nullptr;

const c10::impl::DeviceGuardImplInterface *cuda_devices() {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
}

std::string last_error_text() {
  const char *text = lade_last_error()->text;
  return text != nullptr ? std::string(text) : std::string();
}

// Whether it matters which device memory is to be near to.
bool nodes_differ(lade_runtime *runtime, Streams streams) {
  int count = 0;
  lade_device_info first, other;
  lade_device_info_init(&first);
  if (streams == Streams::software || lade_runtime_device_count(runtime, &count) != LADE_OK || count < 2) return false;
  if (lade_runtime_device_info(runtime, 0, &first) != LADE_OK) return false;
  for (int device = 1; device < count; device++) {
    lade_device_info_init(&other);
    if (lade_runtime_device_info(runtime, device, &other) != LADE_OK) return false;
    if (other.numa_node != first.numa_node) return true;
  }
  return false;
}

// S2. Only a stream that works through its queue can be waited for: one that captures cannot.
void wait_instead(const Source &source, lade_status status, lade_stream stream) {
  if (status == LADE_ERR_DOUBLE_FREE || status == LADE_ERR_FORKED) throw_last_error(status);
  std::string text = last_error_text();
  lade_status waited = lade_stream_synchronize(source.runtime, stream);
  TORCH_CHECK(waited == LADE_OK, "lade: a stream uses pinned memory and could be neither noted nor waited for: ", text,
              "; ", last_error_text());
}

// False: no block of the source.
bool note_or_wait(const Source &source, void *address, int device, lade_stream stream) {
  lade_status status =
      on_device(source.runtime, device, stream, [&] { return lade_pinned_record_event(source.pool, address, stream); });
  if (status == LADE_ERR_FOREIGN_POINTER) return false;
  if (C10_UNLIKELY(status != LADE_OK)) wait_instead(source, status, stream);
  return true;
}

} // namespace

void throw_last_error(lade_status status) {
  std::string text = last_error_text();
  bool memory =
      status == LADE_ERR_LIMIT || status == LADE_ERR_OUT_OF_PINNED_MEMORY || status == LADE_ERR_OUT_OF_DEVICE_MEMORY;
  // lade begins it with the words that programs look for.
  if (memory) TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  if (status == LADE_ERR_OUT_OF_HOST_MEMORY) TORCH_CHECK_WITH(OutOfMemoryError, false, "lade: ", text);
  TORCH_CHECK(false, "lade: ", text);
}

lade_stream stream_handle(Streams streams, c10::Stream stream) {
  if (streams == Streams::software) return reinterpret_cast<lade_stream>(static_cast<intptr_t>(stream.id()));
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, stream).stream();
}

c10::Stream current_stream(Streams streams) {
  if (streams == Streams::software) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, 0),
                       static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(software_stream)));
  }
  return cuda_devices()->getStream(cuda_devices()->getDevice());
}

void set_software_stream(lade_stream stream) { software_stream = stream; }

Source::Source(lade_pinned_pool *of_pool, lade_runtime *of_runtime, Streams kind, c10::DeleterFnPtr deleter)
    : pool(of_pool), runtime(of_runtime), streams(kind), by_current_device(nodes_differ(of_runtime, kind)),
      release(deleter) {}

lade_status Source::allocate_near(size_t bytes, void **out) const {
  return lade_pinned_alloc_near(pool, bytes, cuda_devices()->getDevice().index(), out);
}

bool Source::record(void *address, c10::Stream stream) const {
  lade_stream handle = stream_handle(streams, stream);
  // A special stream is one of the current device, which need not be the stream's.
  c10::OptionalDeviceGuard guard;
  if (C10_UNLIKELY(is_special(handle)) && streams == Streams::cuda) guard.reset_device(stream.device());
  return note_or_wait(*this, address, stream.device_index(), handle);
}

void Source::synchronize(c10::DeviceIndex device) const {
  if (streams == Streams::cuda) cuda_devices()->synchronizeDevice(device);
}

} // namespace lade_torch
