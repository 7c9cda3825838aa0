// SPDX-License-Identifier: Apache-2.0
//
// Runtimes and devices: what every other object of the package stands on.
//
//   lade.Device --+                                 (Python objects)
//   PinnedPool ---+--> Runtime --> lade_runtime     (shared_ptr, so that the last one closes it)
//   Buffer -> pool-+
//
// R1  A native object holds what it stands on by shared_ptr: never by a Python reference, so that it can be let go by any
//     thread, with or without the GIL (a DLPack consumer's thread, say).
// R2  The last owner closes. What that waits for is waited for without the GIL where a Python object lets go (let_go()).
// R3  From the interpreter's exit on nothing is closed: exiting() is true, and the process ends with what it has. Nothing waits
//     then, and no thread of a consumer meets memory that is gone.
// R4  A child of fork() has its parent's objects and must not use them: the library refuses every call, and nothing of them is
//     closed or locked (is_of_parent()).
#ifndef LADE_PYTHON_RUNTIME_H
#define LADE_PYTHON_RUNTIME_H

#include "status.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lade_python {

// R3. True from the call of atexit's functions on.
bool exiting() noexcept;

// Lets other threads run Python while it lives. Where the interpreter ends meanwhile, CPython ends a thread that asks for the GIL by
// unwinding its stack, through functions that promise to throw nothing, which aborts the process. So the thread stops here for ever.
class Unlocked {
public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  Unlocked(const Unlocked &) = delete;
  Unlocked &operator=(const Unlocked &) = delete;

private:
  PyThreadState *state_;
};

// R2. Lets go of a reference, without the GIL where it is the last one. The caller holds the GIL.
template <typename Object> void let_go(std::shared_ptr<Object> &object) {
  if (object.use_count() == 1) {
    Unlocked unlocked;
    object.reset();
  } else {
    object.reset();
  }
}

class Arena;

// Number of forks that led to this process: R4.
unsigned process_generation() noexcept;

// An open runtime. Closed with its last owner.
class Runtime {
public:
  explicit Runtime(lade_runtime *handle) : handle_(handle), generation_(process_generation()) {}
  ~Runtime();
  Runtime(const Runtime &) = delete;
  Runtime &operator=(const Runtime &) = delete;

  lade_runtime *get() const noexcept { return handle_; }
  // "cuda", "cpu" or "sim".
  const char *name() const noexcept { return lade_runtime_name(handle_); }
  // Not a GPU: its device memory is host memory.
  bool is_software() const noexcept { return software_; }
  // R4: made before the fork() that began this process.
  bool is_of_parent() const noexcept { return generation_ != process_generation(); }

  // Pools and allocators that are open. Any thread; what stream_retire() calls ends before arena_remove() returns.
  void arena_add(Arena *arena);
  void arena_remove(Arena *arena) noexcept;
  // Tells all of them that a stream is about to be destroyed.
  void stream_retire(lade_stream stream) noexcept;

private:
  friend struct RuntimeOpener;
  lade_runtime *handle_;
  unsigned generation_;
  bool software_ = false;
  std::mutex arenas_lock_; // taken with or without the GIL, and never while waiting for it
  std::vector<Arena *> arenas_;
};

// A device of a runtime, for native owners.
struct Device {
  std::shared_ptr<Runtime> runtime;
  int ordinal;

  lade_runtime *get() const noexcept { return runtime->get(); }
  // "cuda:0", "cpu:0", "sim:1".
  std::string text() const;
};

// What lade.Device wraps: let go of by Python (R2).
struct DeviceObject : Device {
  explicit DeviceObject(Device device) : Device(std::move(device)) {}
  DeviceObject(const DeviceObject &) = default;
  DeviceObject(DeviceObject &&) = default;
  ~DeviceObject() { let_go(runtime); }
};

// The device that an argument means: a lade.Device; None (the first GPU, or the software device where there is none); an int
// (that GPU); a text "cuda", "cuda:1", "cpu"; an object whose str() is such a text, as torch.device. Refuses the rest by name.
Device device_from(nb::handle object);

void bind_runtime(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_RUNTIME_H
