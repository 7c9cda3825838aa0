// SPDX-License-Identifier: Apache-2.0
//
// Statistics, snapshots and histories of pools and allocators, in one way for both.
#ifndef LADE_PYTHON_OBSERVE_H
#define LADE_PYTHON_OBSERVE_H

#include "runtime.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lade_python {

// A dict that a walk of the library fills: `each` calls visit(key, value, user) for every statistic.
template <typename Each> nb::dict stats_dict(Each each) {
  nb::dict out;
  const lade_stat_visit visit = [](const char *key, int64_t value, void *user) {
    PyObject *number = PyLong_FromLongLong(value);
    const int failed = number ? PyDict_SetItemString(static_cast<PyObject *>(user), key, number) : -1;
    Py_XDECREF(number);
    return failed ? LADE_ERR_OUT_OF_HOST_MEMORY : LADE_OK;
  };
  const lade_status status = each(visit, out.ptr());
  if (PyErr_Occurred()) throw nb::python_error();
  check(status);
  return out;
}

// Figures for people: what they are, and how much.
using Figures = std::vector<std::pair<const char *, std::string>>;

// A table for notebooks, whose head is what the object says of itself.
std::string figures_html(const std::string &head, const Figures &figures);

// Takes a snapshot of a part, and saves it at `path` (str, bytes or os.PathLike) in `format`: a name, or None for the one that the
// path's suffix means. A lade.Snapshot where the path is None.
nb::object snapshot_of(const lade_part &part, nb::handle path, const std::optional<std::string> &format);

// Options of a history of events, with call stacks of Python or without; none: off.
lade_history_options history_options(std::optional<uint64_t> max_entries, bool stacks);

void bind_observe(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_OBSERVE_H
