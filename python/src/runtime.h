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
// R2  The last owner closes. It waits without the GIL: let_go() lets go of the GIL where a Python object goes,
//     Arena::drop() where other code does that may hold it, such as NumPy with a DLPack capsule. So do the end of a Stream, which
//     memory may own, and the free of memory that is not cached.
// R3  From the interpreter's exit on nothing is closed: exiting() is true, and the process ends with what it has. Nothing waits
//     then, and no thread of a consumer meets memory that is gone.
// R4  A child of fork() has its parent's objects and must not use them: the library refuses every call, and nothing of them is
//     closed or locked (is_of_parent()).
// R5  Where the interpreter ends, CPython before 3.14 ends a thread that asks for the GIL by unwinding its stack. That aborts the
//     process in a function that promises to throw nothing, lets go of Python objects without the GIL, and is no exception that
//     anybody can translate. So such a thread stops for ever: where it waits for the GIL (Unlocked, gil_take), where it runs
//     functions of the program (python_run), else where its unwinding reaches the call of lade (bind_runtime()).
#ifndef LADE_PYTHON_RUNTIME_H
#define LADE_PYTHON_RUNTIME_H

#include "status.h"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lade_python {

// R3. True from the call of atexit's functions on.
bool exiting() noexcept;

// R5.
[[noreturn]] inline void thread_stop() noexcept {
  for (;;) pause();
}

// R5. Calls what runs functions of the program.
template <typename Call> auto python_run(Call call) {
  try {
    return call();
  } catch (abi::__forced_unwind &) {
    thread_stop();
  }
}

// R5. The items of an iterable of the program's, as a list: going through that runs none of its functions.
inline nb::object python_list(nb::handle iterable) {
  PyObject *list = python_run([&] { return PySequence_List(iterable.ptr()); });
  if (!list) throw nb::python_error();
  return nb::steal(list);
}

// Whether an object's type has a way to go through it.
inline bool is_iterable(nb::handle object) {
  return PyType_GetSlot(Py_TYPE(object.ptr()), Py_tp_iter) || PySequence_Check(object.ptr());
}

// The items of an argument, which is refused by name where it is no iterable. Errors of going through it pass.
inline nb::object python_list(nb::handle iterable, const std::string &name, const std::string &expected) {
  if (!is_iterable(iterable)) refuse_type(name, iterable, expected);
  return python_list(iterable);
}

// Whether this thread holds the GIL. False also in subinterpreters, which lade does not serve.
bool gil_is_held() noexcept;

// Lets other threads run Python while it lives (R5).
class Unlocked {
public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      thread_stop();
    }
  }
  Unlocked(const Unlocked &) = delete;
  Unlocked &operator=(const Unlocked &) = delete;

private:
  PyThreadState *state_;
};

// R2. Calls what may wait, without the GIL, whether this thread has it or not.
template <typename Call> void without_gil(Call call) {
  if (gil_is_held()) {
    Unlocked unlocked;
    call();
  } else {
    call();
  }
}

// Takes the GIL in a function that a call without it calls back (R5).
inline PyGILState_STATE gil_take() {
  try {
    return PyGILState_Ensure();
  } catch (...) {
    thread_stop();
  }
}

// Whether the interpreter runs threads one at a time. Without a GIL, to hold it means that the thread is attached: the interpreter's
// garbage collector waits for it, and it must not wait.
#if defined(Py_GIL_DISABLED)
constexpr bool has_gil = false;
#else
constexpr bool has_gil = true;
#endif

// R2. Lets go of a reference, without the GIL where it is the last one. The caller holds the GIL.
template <typename Object> void let_go(std::shared_ptr<Object> &object) {
  std::shared_ptr<Object> gone = std::move(object); // other threads find none from now on, not one that goes
  if (!gone || (has_gil && gone.use_count() != 1)) return;
  Unlocked unlocked;
  gone.reset();
}

// A class whose calls have the object to themselves, as far as the GIL gives it to them: until they let go of it. Without a GIL the object's own
// lock, which goes with the thread's state as the GIL does, stands for it. Other ways to bind are out of reach: what they bind has no lock.
template <typename Kind> class Locked : private nb::class_<Kind> {
  using Class = nb::class_<Kind>;

public:
  using Class::class_;
  template <typename... Arguments, typename... Extra>
  Locked &def(nb::init<Arguments...> &&init, const Extra &...extra) {
    Class::def(std::move(init), extra...);
    return *this;
  }
  template <typename Function, typename... Extra>
  Locked &def(const char *name, Function &&function, const Extra &...extra) {
    if constexpr (has_gil)
      Class::def(name, std::forward<Function>(function), extra...);
    else
      Class::def(name, std::forward<Function>(function), nb::lock_self(), extra...);
    return *this;
  }
  template <typename Function, typename... Extra>
  Locked &def_prop_ro(const char *name, Function &&function, const Extra &...extra) {
    if constexpr (has_gil)
      Class::def_prop_ro(name, std::forward<Function>(function), extra...);
    else
      Class::def_prop_ro(name, std::forward<Function>(function), nb::lock_self(), extra...);
    return *this;
  }
  template <typename Function, typename... Extra>
  Locked &def_static(const char *name, Function &&function, const Extra &...extra) {
    Class::def_static(name, std::forward<Function>(function), extra...);
    return *this;
  }
};

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

  // Pools and allocators that are open. Any thread.
  void arena_add(Arena *arena);
  // Before it is closed: what stream_end() calls on it ends before this returns. Then one of the two that follow.
  void arena_remove(Arena *arena) noexcept;
  // The same unless others own the arena: false. With the GIL.
  bool arena_remove_sole(Arena *arena);
  void arena_closed() noexcept;
  // It could not be closed. Without the GIL.
  void arena_restore(Arena *arena);
  // Retires a stream from all of them, and destroys it; where some are being closed, which may name it, when they are. Without the
  // GIL.
  void stream_end(lade_stream stream) noexcept;
  // Retires a stream of other code from all of them. False: one needs it still, or is being closed, which may name it. Without the
  // GIL.
  bool stream_retire(lade_stream stream) noexcept;

private:
  friend struct RuntimeOpener;
  lade_runtime *handle_;
  unsigned generation_;
  bool software_ = false;
  std::unique_lock<std::mutex> arenas_guard();
  void arena_erase(Arena *arena) noexcept;
  void closing_end(std::unique_lock<std::mutex> guard) noexcept;
  // Guards what follows. No thread waits for it with the GIL: what stream_end() waits for, holding it, may need the GIL.
  std::mutex arenas_lock_;
  std::vector<Arena *> arenas_;
  size_t closing_ = 0;                 // arenas removed, and not closed yet
  std::vector<lade_stream> late_ends_; // streams to destroy when there are none of these
};

// A device of a runtime, for native owners.
struct Device {
  std::shared_ptr<Runtime> runtime;
  int ordinal;

  lade_runtime *get() const noexcept { return runtime->get(); }
  // "cuda:0", "cpu:0", "sim:1".
  std::string text() const;
};

// A runtime that a module of lade.torch has opened, which lives until the process ends: so does this.
std::shared_ptr<Runtime> runtime_of_module(lade_runtime *handle);

// The C++ object of lade.Device: let go of by Python (R2).
struct DeviceObject : Device {
  explicit DeviceObject(Device device) : Device(std::move(device)) {}
  DeviceObject(const DeviceObject &) = default;
  DeviceObject(DeviceObject &&) = default;
  ~DeviceObject() { let_go(runtime); }
};

// The device that an argument means: a lade.Device; None (the first GPU, or the software device where there is none); an int
// (that GPU); a text "cuda", "cuda:1", "cpu"; an object whose str() is such a text, as torch.device. Refuses the rest by name.
Device device_from(nb::handle object, const char *name = "device");

void bind_runtime(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_RUNTIME_H
