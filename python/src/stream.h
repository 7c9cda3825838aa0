// SPDX-License-Identifier: Apache-2.0
//
// Streams: lade.Stream, and whatever else a program passes where a stream is meant.
#ifndef LADE_PYTHON_STREAM_H
#define LADE_PYTHON_STREAM_H

#include "runtime.h"

#include <utility>
#include <vector>

namespace lade_python {

// A stream that the program made by Device.stream(). Its last owner retires it from all pools and allocators, and destroys it; in
// any thread, with or without the GIL. Owners: lade.Stream, and device memory that was allocated on it.
class Stream {
public:
  Stream(Device on, lade_stream stream) : device_(std::move(on)), handle_(stream) {}
  ~Stream();
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;

  lade_stream get() const noexcept { return handle_; }
  const Device &device() const noexcept { return device_; }

private:
  Device device_;
  lade_stream handle_;
};

// The C++ object of lade.Stream.
struct StreamObject {
  std::shared_ptr<Stream> stream;
  explicit StreamObject(std::shared_ptr<Stream> of) : stream(std::move(of)) {}
  StreamObject(StreamObject &&) = default;
  ~StreamObject() { let_go(stream); }
};

// The lade.Stream that an argument is, or an empty pointer.
std::shared_ptr<Stream> stream_owner(nb::handle object);

// The stream that an argument means, for work on `runtime`:
//
//   None                  the default stream (legacy)
//   int                   a handle: a cudaStream_t or CUstream as a number; 1 and 2 are CUDA's special ones. NumPy's integers, and
//                         all else with __index__, bool apart
//   lade.Stream           refused where it is another runtime's
//   __cuda_stream__       the protocol: a method that gives (0, handle)
//   .cuda_stream, .ptr    torch's and CuPy's streams of versions without the protocol
//
// Anything else is refused by name. None, 1 and 2 mean the calling thread's current device; where it has none, device `ordinal` is
// made it. On a software runtime `ordinal` becomes the current device.
lade_stream stream_from(const Runtime &runtime, nb::handle object, int ordinal = 0);
// The same of a handle.
lade_stream stream_current(const Runtime &runtime, lade_stream stream, int ordinal);

// The device that a stream's object names (torch: device_index, CuPy: device_id, lade.Stream); -1: not told.
int stream_device(nb::handle object);

// Whether a DLPack consumer keeps order itself, and names no stream: -1.
bool keeps_order_itself(nb::handle stream);

// Several streams as one: work that is queued on it comes after what each of them has queued until then.
class JoinedStreams {
public:
  explicit JoinedStreams(Device on) : device_(std::move(on)) {}
  ~JoinedStreams();
  JoinedStreams(const JoinedStreams &) = delete;
  JoinedStreams &operator=(const JoinedStreams &) = delete;
  // `ordinal`: the stream's device.
  void add(lade_stream stream, int ordinal);
  // The only one, or a new stream, which lives as long as this.
  lade_stream get();

private:
  void own_wait(lade_stream stream, int ordinal);
  Device device_;
  std::vector<std::pair<lade_stream, int>> streams_;
  lade_stream own_ = nullptr;
};

// Work queued on `later` from now on comes after what `earlier`, a stream of the device, has queued. The two may be special handles.
void stream_follow(const Device &device, lade_stream later, lade_stream earlier);

// A new stream.
StreamObject stream_create(const Device &device);

void bind_stream(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_STREAM_H
