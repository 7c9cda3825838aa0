// SPDX-License-Identifier: Apache-2.0
//
// Statuses of the library as exceptions: lade.Error, and a class below it for each status.
//
// C1  Callers hold the GIL.
// C2  The text is read in the thread of the failed call before that thread calls the library again.
#ifndef LADE_PYTHON_STATUS_H
#define LADE_PYTHON_STATUS_H

#include <lade/lade.h>
#include <nanobind/nanobind.h>

#include <string>

namespace lade_python {

namespace nb = nanobind;

// Sets the Python error of a status: its class, with lade_last_error()'s text where that is of this status. Returns NULL.
PyObject *set_error(lade_status status) noexcept;
// The same with a text of its own.
PyObject *set_error(lade_status status, const char *text) noexcept;

// The same of an error that an object kept: its status, text and native code.
PyObject *set_error(const lade_error &error) noexcept;

// Throws what set_error() sets.
[[noreturn]] void raise(lade_status status);
[[noreturn]] void raise(lade_status status, const std::string &text);

// Throws unless the status is LADE_OK. LADE_NOT_READY throws, too: ask where it is an answer.
inline void check(lade_status status) {
  if (__builtin_expect(status != LADE_OK, 0)) raise(status);
}

// Refuses an argument: LADE_ERR_INVALID_ARGUMENT.
[[noreturn]] void refuse(const std::string &text);

// Refuses an argument whose type is wrong: lade.ArgumentTypeError, an InvalidArgumentError that is a TypeError, too.
[[noreturn]] void refuse_type(const std::string &text);
// The same with the usual words: "`name` is a CLASS; expected `expected`".
[[noreturn]] void refuse_type(const std::string &name, nb::handle object, const std::string &expected);

// Whether an error is that of a status.
bool is_status(const nb::python_error &error, lade_status status);

// The end of a with block, whose exception is `raised`, if one ends it: that goes on where what it closes is in use still, which it is as
// long as the exception holds the block's variables.
template <typename Close> void with_end(nb::args raised, Close close) {
  try {
    close();
  } catch (nb::python_error &error) {
    if (raised.size() == 0 || nb::object(raised[0]).is_none() || !is_status(error, LADE_ERR_BUSY)) throw;
  }
}

// A number of 1 or more; refuses 0, which None means in this package.
uint64_t positive(uint64_t value, const char *name);

// Clears the error of an object that is no number, or none of that size. Other errors of its __index__() or __float__() are thrown.
void mistake_clear();

// str() and repr() of an object as UTF-8. Characters without such a form are escaped: Python has bytes of file names that are no text as single
// surrogates.
std::string str_text(nb::handle object);
std::string repr_text(nb::handle object);

// The text of an argument for C, which ends at the first null character: refuses one in it. As long as `text`.
const char *c_text(const std::string &text, const char *name);

// The kind of an object, for messages: its class, with the module where that is not builtins.
std::string class_text(nb::handle object);
// "512 B", "1.5 MiB".
std::string bytes_text(uint64_t bytes);

void bind_status(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_STATUS_H
