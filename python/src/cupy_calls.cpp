// SPDX-License-Identifier: Apache-2.0
#include "cupy_calls.h"

#include "device.h"
#include "natural.h"
#include "pinned.h"

#include <structmember.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace lade_python {

namespace {

// ---- The memory ------------------------------------------------------------------------------------------------------

// The last members of an object: P1.
struct Held {
  Block *block;
  PyObject *arena;
};

void held_set(Held &held, Block *block, PyObject *arena) {
  Py_INCREF(arena);
  held = {block, arena};
}

void held_drop(Held &held) {
  const Held gone = held;
  held = {nullptr, nullptr};
  if (gone.block) let_go(gone.block);
  Py_XDECREF(gone.arena);
}

// lade._lade._CupyBlock: pinned memory. Not tracked by the garbage collector: an arena refers to no array.
struct BlockObject {
  PyObject_HEAD unsigned long long ptr;
  Py_ssize_t size;
  Held held;
};

PyTypeObject *block_type;

void block_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  held_drop(reinterpret_cast<BlockObject *>(self)->held);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMemberDef block_members[] = {{"ptr", T_ULONGLONG, offsetof(BlockObject, ptr), READONLY, "Address."},
                               {"size", T_PYSSIZET, offsetof(BlockObject, size), READONLY, "Size in bytes."},
                               {nullptr, 0, 0, 0, nullptr}};
char block_text[] = "A block of memory that CuPy has of lade.";
PyType_Slot block_slots[] = {{Py_tp_dealloc, reinterpret_cast<void *>(&block_dealloc)},
                             {Py_tp_members, block_members},
                             {Py_tp_doc, block_text},
                             {0, nullptr}};
PyType_Spec block_spec = {"lade._lade._CupyBlock", sizeof(BlockObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, block_slots};

// Takes over a count of the block.
nb::object block_object(Block *block, size_t bytes, PyObject *arena) {
  PyObject *made = PyType_GenericAlloc(block_type, 0);
  if (!made) {
    let_go(block);
    throw nb::python_error();
  }
  auto *object = reinterpret_cast<BlockObject *>(made);
  object->ptr = reinterpret_cast<uintptr_t>(block->pointer());
  object->size = static_cast<Py_ssize_t>(bytes);
  held_set(object->held, block, arena);
  return nb::steal(made);
}

// ---- Device memory: P6 -----------------------------------------------------------------------------------------------

// Members of CuPy's class come before this place.
constexpr size_t held_at = 64;

Held &held_of(PyObject *memory) { return *reinterpret_cast<Held *>(reinterpret_cast<char *>(memory) + held_at); }

// Members of CuPy's class go after it, by CuPy's own dealloc.
void memory_finalize(PyObject *self) { held_drop(held_of(self)); }

char memory_text[] = "Device memory of lade.";
PyType_Slot memory_slots[] = {
    {Py_tp_finalize, reinterpret_cast<void *>(&memory_finalize)}, {Py_tp_doc, memory_text}, {0, nullptr}};
PyType_Spec memory_spec = {"lade._lade._CupyMemory", held_at + sizeof(Held), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};

// A member of CuPy's class: an integer of so many bytes, at this place if that is known.
struct Field {
  nb::object name;
  size_t bytes, at = 0;

  void write(PyObject *object, size_t value) const {
    if (at != 0)
      std::memcpy(reinterpret_cast<char *>(object) + at, &value, bytes); // little-endian
    else if (PyObject_SetAttr(object, name.ptr(), nb::steal(PyLong_FromSize_t(value)).ptr()) != 0)
      throw nb::python_error();
  }
  size_t read(PyObject *object) const {
    const nb::object value = nb::steal(PyObject_GetAttr(object, name.ptr()));
    return value ? PyLong_AsSize_t(value.ptr()) : throw nb::python_error();
  }
  bool is_at(PyObject *object, size_t place, size_t value) const {
    return std::memcmp(reinterpret_cast<char *>(object) + place, &value, bytes) == 0;
  }
};

// A subclass of cupy.cuda.memory.BaseMemory.
class MemoryClass {
public:
  explicit MemoryClass(const nb::object &base)
      : fields_{{{nb::str("ptr"), 8}, {nb::str("size"), 8}, {nb::str("device_id"), 4}}} {
    const size_t base_bytes = nb::cast<size_t>(base.attr("__basicsize__"));
    if (base_bytes > held_at) throw nb::import_error("lade serves no CuPy whose BaseMemory has more than 64 bytes");
    type_ = nb::steal(PyType_FromSpecWithBases(&memory_spec, base.ptr()));
    no_arguments_ = nb::steal(PyTuple_New(0));
    if (!type_ || !no_arguments_) throw nb::python_error();
    new_ = reinterpret_cast<newfunc>(PyType_GetSlot(reinterpret_cast<PyTypeObject *>(base.ptr()), Py_tp_new));
    fields_find(base_bytes);
  }

  // Takes over a count of the block.
  nb::object made(Block *block, size_t bytes, PyObject *arena, size_t device) const {
    PyObject *object = new_(reinterpret_cast<PyTypeObject *>(type_.ptr()), no_arguments_.ptr(), nullptr);
    if (!object) {
      let_go(block);
      throw nb::python_error();
    }
    nb::object memory = nb::steal(object);
    held_set(held_of(object), block, arena);
    write(object, {reinterpret_cast<uintptr_t>(block->pointer()), bytes, device});
    return memory;
  }

private:
  using Values = std::array<size_t, 3>;

  void write(PyObject *object, const Values &values) const {
    for (size_t i = 0; i < fields_.size(); i++) fields_[i].write(object, values[i]);
  }

  // The one place of a field where all objects have the values that CuPy gave them; 0: there is none, or several.
  size_t place_find(size_t index, size_t base_bytes, const std::array<nb::object, 2> &objects,
                    const std::array<Values, 2> &values) const {
    const Field &field = fields_[index];
    size_t found = 0, count = 0;
    for (size_t at = sizeof(PyObject); at + field.bytes <= base_bytes; at += 4) {
      bool is_there = true;
      for (size_t i = 0; i < objects.size(); i++)
        is_there = is_there && field.is_at(objects[i].ptr(), at, values[i][index]);
      if (!is_there) continue;
      found = at;
      count++;
    }
    return count == 1 ? found : 0;
  }

  // Written by CuPy, found, written there, and read by CuPy. A class of Python has no such places: its fields are set by name.
  void fields_find(size_t base_bytes) {
    const std::array<Values, 2> values = {Values{0x123456789abcdef0, 0x0fedcba987654321, 0x13579bdf},
                                          Values{0x76543210fedcba98, 0x1032547698badcfe, 0x2468ace0}};
    const Values last = {0x2143658709badcfe, 0x5a6978f00f8796a5, 0x01234567};
    std::array<nb::object, 2> objects;
    std::array<Field, 3> found = fields_;
    bool is_known = true;
    for (size_t i = 0; i < objects.size(); i++) {
      objects[i] = nb::steal(new_(reinterpret_cast<PyTypeObject *>(type_.ptr()), no_arguments_.ptr(), nullptr));
      if (!objects[i]) throw nb::python_error();
      write(objects[i].ptr(), values[i]);
    }
    for (size_t i = 0; i < found.size(); i++) {
      found[i].at = place_find(i, base_bytes, objects, values);
      is_known = is_known && found[i].at != 0;
    }
    if (!is_known) return;
    for (size_t i = 0; i < found.size(); i++) found[i].write(objects[0].ptr(), last[i]);
    for (size_t i = 0; i < found.size(); i++) is_known = is_known && found[i].read(objects[0].ptr()) == last[i];
    if (is_known) fields_ = found;
  }

  nb::object type_, no_arguments_;
  newfunc new_ = nullptr;
  std::array<Field, 3> fields_;
};

// ---- The functions ---------------------------------------------------------------------------------------------------

// An allocator or pool of one device: its Python object, and what that wraps.
template <typename Object> struct Slot {
  nb::object object;
  Object *native = nullptr;
};

// The objects of CuPy and of lade.cupy that a function holds.
template <typename Object> struct Function {
  nb::object arena_of; // from a device's number to its allocator or pool, the same one each time
  nb::object device_count, current_device, current_stream, held, hold, pointer, failed;
  std::unique_ptr<MemoryClass> memory;   // of device memory
  int (*device_number)(int) = nullptr;   // P4: in place of current_device, ...
  intptr_t (*stream_handle)() = nullptr; // ... and of current_stream
  std::vector<Slot<Object>>
      slots; // by the device's number, as far as they were asked for; guarded by the capsule's lock
  std::atomic<bool> is_sole{false}; // P5
  PyObject *ptr_name = PyUnicode_InternFromString("ptr");

  Slot<Object> slot(size_t number) {
    if (__builtin_expect(number < slots.size() && slots[number].native != nullptr, 1)) return slots[number];
    Slot<Object> found;
    found.object = arena_of(number);
    found.native = nb::cast<Object *>(found.object);
    is_sole = number == 0 && nb::cast<int>(device_count()) == 1;
    if (slots.size() <= number) slots.resize(number + 1);
    return slots[number] = found;
  }
};

nb::object called(const nb::object &function) {
  nb::object result = nb::steal(PyObject_CallNoArgs(function.ptr()));
  if (!result) throw nb::python_error();
  return result;
}

// P4. NULL where it is not offered, or is another one than the name says.
template <typename Pointer> void offered_set(Pointer &function, nb::handle capsule, const char *signature) {
  if (!capsule.is_none() && PyCapsule_IsValid(capsule.ptr(), signature))
    function = reinterpret_cast<Pointer>(PyCapsule_GetPointer(capsule.ptr(), signature));
}

// A number that an offered function gives: -1 may be an exception.
template <typename Number> Number raised_check(Number number) {
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

template <typename Object> size_t device_now(const Function<Object> &function) {
  if (function.is_sole.load(std::memory_order_relaxed)) return 0;
  if (function.device_number) return static_cast<size_t>(raised_check(function.device_number(0)));
  const size_t number = PyLong_AsSize_t(called(function.current_device).ptr());
  if (number == static_cast<size_t>(-1)) throw nb::python_error();
  return number;
}

// A class of CuPy, made of arguments of which each is stolen.
template <typename... Arguments> nb::object made(const nb::object &type, Arguments... arguments) {
  nb::object tuple = nb::steal(PyTuple_New(sizeof...(arguments)));
  PyObject *items[] = {arguments...};
  Py_ssize_t at = 0;
  bool is_whole = tuple.ptr() != nullptr;
  for (PyObject *item : items) {
    if (is_whole && item)
      (void)PyTuple_SetItem(tuple.ptr(), at++, item);
    else
      Py_XDECREF(item);
    is_whole = is_whole && item;
  }
  nb::object result;
  if (is_whole) result = nb::steal(PyObject_Call(type.ptr(), tuple.ptr(), nullptr));
  if (!result) throw nb::python_error();
  return result;
}

// The object of a stream that is held already; none: it is not.
nb::object stream_held(const Function<AllocatorObject> &function, intptr_t number) {
  const nb::object handle = nb::steal(PyLong_FromSsize_t(number));
  if (!handle) throw nb::python_error();
#if defined(Py_GIL_DISABLED)
  PyObject *stream = nullptr;
  if (PyDict_GetItemRef(function.held.ptr(), handle.ptr(), &stream) < 0) throw nb::python_error();
  return nb::steal(stream);
#else
  nb::object stream = nb::borrow(PyDict_GetItemWithError(function.held.ptr(), handle.ptr()));
  if (!stream && PyErr_Occurred()) throw nb::python_error();
  return stream;
#endif
}

// P2. The stream, whose object is kept in `stream`, unless it is a default one.
lade_stream stream_now(Function<AllocatorObject> &function, const Allocator &allocator, nb::object &stream) {
  if (function.stream_handle) {
    const intptr_t number = raised_check(function.stream_handle());
    const bool is_default = number >= 0 && number <= 2;
    if (!is_default) stream = stream_held(function, number);
    if (is_default || stream)
      return stream_current(allocator.runtime(), reinterpret_cast<lade_stream>(number), allocator.device().ordinal);
  }
  stream = called(function.current_stream);
  const nb::object handle = nb::steal(PyObject_GetAttr(stream.ptr(), function.ptr_name));
  if (!handle) throw nb::python_error();
  const int is_held = PyDict_Contains(function.held.ptr(), handle.ptr());
  if (is_held < 0) throw nb::python_error();
  if (!is_held && !nb::steal(PyObject_CallFunctionObjArgs(function.hold.ptr(), stream.ptr(), nullptr)))
    throw nb::python_error();
  return stream_from(allocator.runtime(), handle, allocator.device().ordinal);
}

// Device memory. A refusal of lade's goes through `failed`, which raises CuPy's error.
Block *block_now(Function<AllocatorObject> &function, AllocatorObject &arena, size_t bytes, PyObject *nbytes) {
  nb::object stream;
  const Use<Allocator> allocator = arena.use();
  const lade_stream on = stream_now(function, *allocator, stream);
  try {
    return device_block(*allocator, bytes, on);
  } catch (nb::python_error &error) {
    const nb::object value = nb::borrow(error.value());
    if (!nb::steal(PyObject_CallFunctionObjArgs(function.failed.ptr(), nbytes, value.ptr(), nullptr)))
      throw nb::python_error();
    throw;
  }
}

Block *block_now(Function<PoolObject> &, PoolObject &arena, size_t bytes, PyObject *) {
  return pool_block(*arena.use(), bytes);
}

template <typename Object> PyObject *allocate(Function<Object> &function, PyObject *capsule, PyObject *nbytes) {
  const std::optional<uint64_t> bytes = NaturalArgument{nbytes}.read("nbytes");
  if (!bytes || *bytes > static_cast<uint64_t>(PY_SSIZE_T_MAX))
    refuse("nbytes is " + repr_text(nbytes) + "; expected an int of 0 or more, below 2^63");
  const size_t number = device_now(function);
  Slot<Object> slot;
  {
    const nb::ft_object_guard guard(capsule);
    slot = function.slot(number);
  }
  Block *block = block_now(function, *slot.native, *bytes, nbytes);
  nb::object memory = function.memory ? function.memory->made(block, *bytes, slot.object.ptr(), number)
                                      : block_object(block, *bytes, slot.object.ptr());
  return made(function.pointer, memory.release().ptr(), PyLong_FromLong(0)).release().ptr();
}

const char capsule_name[] = "lade.cupy", device_signature[] = "int (int __pyx_skip_dispatch)";

// The functions that CuPy calls. C++'s exceptions end here.
template <typename Object> PyObject *entry(PyObject *capsule, PyObject *nbytes) {
  try {
    return allocate(*static_cast<Function<Object> *>(PyCapsule_GetPointer(capsule, capsule_name)), capsule, nbytes);
  } catch (nb::python_error &error) {
    error.restore();
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  } catch (const std::exception &error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <typename Object> void function_drop(PyObject *capsule) {
  auto *function = static_cast<Function<Object> *>(PyCapsule_GetPointer(capsule, capsule_name));
  Py_XDECREF(function->ptr_name);
  delete function;
}

template <typename Object> nb::object function_object(PyMethodDef &method, std::unique_ptr<Function<Object>> function) {
  const nb::object capsule = nb::steal(PyCapsule_New(function.get(), capsule_name, &function_drop<Object>));
  if (!capsule) throw nb::python_error();
  (void)function.release();
  nb::object out = nb::steal(PyCFunction_NewEx(&method, capsule.ptr(), nullptr));
  if (!out) throw nb::python_error();
  return out;
}

PyMethodDef device_method = {"lade_device_memory", &entry<AllocatorObject>, METH_O,
                             "Device memory of lade as a cupy.cuda.MemoryPointer."};
PyMethodDef pinned_method = {"lade_pinned_memory", &entry<PoolObject>, METH_O,
                             "Pinned memory of lade as a cupy.cuda.PinnedMemoryPointer."};

nb::object device_function(nb::object arena_of, nb::object device_count, nb::object current_device,
                           nb::handle device_number, nb::object pointer, nb::object base_memory,
                           nb::object current_stream, nb::handle stream_handle, nb::object held, nb::object hold,
                           nb::object failed) {
  auto function = std::make_unique<Function<AllocatorObject>>();
  function->arena_of = std::move(arena_of);
  function->device_count = std::move(device_count);
  function->current_device = std::move(current_device);
  function->pointer = std::move(pointer);
  function->memory = std::make_unique<MemoryClass>(base_memory);
  function->current_stream = std::move(current_stream);
  function->held = std::move(held);
  function->hold = std::move(hold);
  function->failed = std::move(failed);
  offered_set(function->device_number, device_number, device_signature);
  offered_set(function->stream_handle, stream_handle, "intptr_t (void)");
  return function_object(device_method, std::move(function));
}

nb::object pinned_function(nb::object arena_of, nb::object device_count, nb::object current_device,
                           nb::handle device_number, nb::object pointer) {
  auto function = std::make_unique<Function<PoolObject>>();
  function->arena_of = std::move(arena_of);
  function->device_count = std::move(device_count);
  function->current_device = std::move(current_device);
  function->pointer = std::move(pointer);
  offered_set(function->device_number, device_number, device_signature);
  return function_object(pinned_method, std::move(function));
}

// Not one that a program has copied, which has no block.
bool is_memory(nb::handle object) {
  return PyType_GetSlot(Py_TYPE(object.ptr()), Py_tp_finalize) == reinterpret_cast<void *>(&memory_finalize) &&
         held_of(object.ptr()).block != nullptr;
}

// False: the object is no device memory of lade's.
bool record_stream(nb::handle memory, nb::handle stream) {
  if (!is_memory(memory)) return false;
  device_record(*held_of(memory.ptr()).block, stream);
  return true;
}

} // namespace

void bind_cupy(nb::module_ &module) {
  block_type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&block_spec));
  if (!block_type) throw nb::python_error();
  module.attr("_CupyBlock") = nb::borrow(reinterpret_cast<PyObject *>(block_type));
  module.def("_cupy_device_function", &device_function, nb::arg("arena_of"), nb::arg("device_count"),
             nb::arg("current_device"), nb::arg("device_number").none(), nb::arg("pointer"), nb::arg("base_memory"),
             nb::arg("current_stream"), nb::arg("stream_handle").none(), nb::arg("held"), nb::arg("hold"),
             nb::arg("failed"), "What cupy.cuda.set_allocator() takes.");
  module.def("_cupy_pinned_function", &pinned_function, nb::arg("arena_of"), nb::arg("device_count"),
             nb::arg("current_device"), nb::arg("device_number").none(), nb::arg("pointer"),
             "What cupy.cuda.set_pinned_memory_allocator() takes.");
  module.def("_is_cupy_memory", &is_memory, nb::arg("object").none(),
             "Whether it is device memory that CuPy has of lade.");
  module.def("_cupy_record_stream", &record_stream, nb::arg("memory").none(), nb::arg("stream").none(),
             "Notes a stream on device memory that CuPy has of lade; False: it is none.");
}

} // namespace lade_python
