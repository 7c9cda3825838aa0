// SPDX-License-Identifier: Apache-2.0
//
// Ints that a program passes. Sizes and counts as keyword arguments: None, or an int from 0 on; refused by the argument's name
// otherwise.
#ifndef LADE_PYTHON_NATURAL_H
#define LADE_PYTHON_NATURAL_H

#include "status.h"

#include <cstdint>
#include <optional>

namespace lade_python {

// The int that an object stands for: an int itself, or what its __index__ gives, as NumPy's integers have it. Empty where it stands for
// none, and for a bool, which is no number of anything here. An error of __index__ passes, except TypeError: arrays have the method and
// refuse by that.
nb::object integer_of(nb::handle object);

// An argument that is an int from 0 on, or has __index__. Refuses the rest by name.
uint64_t natural_from(nb::handle object, const char *name);

// An argument as it was passed. Borrowed for the call.
struct NaturalArgument {
  nb::handle object;

  // Its value; none for None. Refuses what is no int (or has no __index__), negative, or 2^64 and more.
  std::optional<uint64_t> read(const char *name) const;
};

} // namespace lade_python

// Takes any object: read() refuses, by name.
template <> struct nanobind::detail::type_caster<lade_python::NaturalArgument> {
  NB_TYPE_CASTER(lade_python::NaturalArgument, const_name("int | None"))
  bool from_python(handle source, uint8_t, cleanup_list *) noexcept {
    value.object = source;
    return true;
  }
};

#endif // LADE_PYTHON_NATURAL_H
