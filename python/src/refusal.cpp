// SPDX-License-Identifier: Apache-2.0
//
// nanobind has no hook for this error: its translators see exceptions of C++ alone, and a last overload for everything would make each call
// slower. So each function is entered by a wrapper, which looks at a call that has failed:
//
//   CPython --vectorcall--> wrapper<N> --> entries[N], one of nanobind's ways to call --> the bound function
//
// V1  A function's entry lies after the head of its object, where CPython finds it by the type's __vectorcalloffset__. If this member
//     says another value than lies there, the function keeps its entry, and nanobind's text.
// V2  entries[] is filled while the module is imported, and is not changed after that.
#include "refusal.h"

#include <string>
#include <utility>

namespace lade_python {

namespace {

using Entry = PyObject *(*)(PyObject *, PyObject *const *, size_t, PyObject *);

struct Function {
  PyVarObject head;
  Entry entry;
};

constexpr size_t entry_limit = 16; // nanobind has six
Entry entries[entry_limit];        // NULL: none yet (V2)

// Puts the error of a call that was refused in the place of nanobind's. Leaves others. Returns NULL.
PyObject *refused(PyObject *function, PyObject *const *arguments, size_t flags, PyObject *names) noexcept {
  if (PyErr_Occurred() != PyExc_TypeError && PyErr_Occurred() != PyExc_RuntimeError) return nullptr;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  nb::object error;
  try {
    // Without a frame: not of a function that this one has called. The second one is what nb::cast() throws in a bound function.
    const std::string text = value && !trace ? str_text(value) : "";
    if (text.find("(): incompatible function arguments.") != std::string::npos || text == "std::bad_cast") {
      const auto count = static_cast<uint32_t>(flags); // nanobind has bits of its own beside CPython's
      nb::list positional;
      nb::dict keywords;
      for (size_t i = 0; i < count; i++) positional.append(nb::borrow(arguments[i]));
      if (names)
        for (size_t i = 0; i < nb::len(names); i++) keywords[nb::handle(names)[i]] = nb::borrow(arguments[count + i]);
      error = nb::module_::import_("lade._calls").attr("refusal")(nb::borrow(function), positional, keywords);
    }
  } catch (nb::python_error &failed) {
    // At the interpreter's exit nothing is imported: nanobind's own text, then. An interrupt passes.
    if (!failed.matches(PyExc_Exception)) {
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
      failed.restore();
      return nullptr;
    }
  }
  PyErr_Restore(type, value, trace);
  if (error.is_valid()) PyErr_SetObject(error.type().ptr(), error.ptr());
  return nullptr;
}

template <size_t N>
PyObject *wrapper(PyObject *function, PyObject *const *arguments, size_t flags, PyObject *names) noexcept {
  PyObject *result = entries[N](function, arguments, flags, names);
  return __builtin_expect(result != nullptr, 1) ? result : refused(function, arguments, flags, names);
}

template <size_t... N> Entry wrapper_of(Entry entry, std::index_sequence<N...>) {
  static const Entry wrappers[] = {&wrapper<N>...};
  for (size_t i = 0; i < entry_limit; i++) {
    if (!entries[i]) entries[i] = entry;
    if (entries[i] == entry) return wrappers[i];
  }
  return entry;
}

void cover(nb::handle object) {
  const std::string kind = str_text(object.type().attr("__name__"));
  if (kind != "nb_func" && kind != "nb_method") return;
  auto *function = reinterpret_cast<Function *>(object.ptr());
  if (nb::cast<Py_ssize_t>(object.attr("__vectorcalloffset__")) != reinterpret_cast<Py_ssize_t>(function->entry))
    return; // V1
  function->entry = wrapper_of(function->entry, std::make_index_sequence<entry_limit>());
}

} // namespace

void cover_refusals(nb::module_ &module) {
  module.def(
      "_is_made", [](nb::handle object) { return !nb::inst_check(object) || nb::inst_ready(object); },
      nb::arg("object").none(),
      "Whether __init__() has run, of an object of a class of this package; true for others.");
  const nb::object values = module.attr("__dict__").attr("values");
  for (nb::handle value : values()) {
    cover(value);
    if (!PyType_Check(value.ptr())) continue;
    const nb::object members = value.attr("__dict__").attr("values");
    for (nb::handle member : members()) cover(member);
  }
}

} // namespace lade_python
