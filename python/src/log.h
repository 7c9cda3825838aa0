// SPDX-License-Identifier: Apache-2.0
//
// Lines of the library's log for Python's `logging`.
//
//   a thread of the library --callback--> a bounded list --pending call--> a thread of the interpreter --> lade._log.deliver()
//
// G1  The callback takes no lock but the list's, and never the interpreter's: it may run where the interpreter's is held, and where it is
//     not. The pending call starts a thread, as a handler of the program may wait for a lock that the interrupted code holds.
// G2  Of a list that is full, the newest lines are dropped and counted.
// G3  A forked child begins with an empty list.
#ifndef LADE_PYTHON_LOG_H
#define LADE_PYTHON_LOG_H

#include "status.h"

namespace lade_python {

// Gives a line to lade._log.deliver() now. With the GIL.
void log_line(lade_log_level level, const std::string &text);

void bind_log(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_LOG_H
