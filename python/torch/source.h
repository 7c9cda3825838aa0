// SPDX-License-Identifier: Apache-2.0
//
// Where pinned memory comes from while lade serves PyTorch: a pool of lade, and what its streams are.
//
// S1  A source lives as long as the process: blocks of its pool are freed by the thread that drops a tensor last, also while the
//     interpreter ends.
// S2  A stream that cannot be noted on a block is waited for, so that the block's bytes are not reused early; where that fails
//     too, the caller gets an exception.
// S3  In a forked child nothing is allocated and nothing is given back: the parent has that memory.
#ifndef LADE_TORCH_SOURCE_H
#define LADE_TORCH_SOURCE_H

#include "torch_abi.h"

#include <lade/pinned.h>

namespace lade_torch {

// The meaning of a c10::Stream to a pool.
enum class Streams {
  cuda,     // a stream of PyTorch's CUDA part
  software, // its id is a lade_stream: for tests of a pool on a software device
};

class Source {
public:
  Source(lade_pinned_pool *pool, lade_runtime *runtime, Streams streams, c10::DeleterFnPtr release);

  lade_pinned_pool *const pool;
  lade_runtime *const runtime;
  const Streams streams;
  const bool by_current_device;    // the machine's devices are near different NUMA nodes
  const c10::DeleterFnPtr release; // of this source's blocks; its context is the block's address

  // Memory near the current device. NULL where lade refuses: throw_last_error().
  void *allocate(size_t bytes, lade_status *out_status) const {
    void *block = nullptr;
    *out_status = by_current_device ? allocate_near(bytes, &block) : lade_pinned_alloc(pool, bytes, &block);
    return block;
  }
  // Notes the stream on the block that an address lies in. False: no block of this pool. S2.
  bool record(void *address, c10::Stream stream) const;
  // Waits for all work of a device. Not during captures.
  void synchronize(c10::DeviceIndex device) const;

private:
  lade_status allocate_near(size_t bytes, void **out) const;
};

// Throws what a failed call of lade left as this thread's last error: c10::OutOfMemoryError or c10::Error.
[[noreturn]] void throw_last_error(lade_status status);
inline void check(lade_status status) {
  if (C10_UNLIKELY(status != LADE_OK)) throw_last_error(status);
}

// The stream that PyTorch works on at the moment.
c10::Stream current_stream(Streams streams);
// The answer of current_stream() in this thread for sources on software devices.
void set_software_stream(lade_stream stream);

// The handle of a stream.
lade_stream stream_handle(Streams streams, c10::Stream stream);

} // namespace lade_torch

#endif // LADE_TORCH_SOURCE_H
