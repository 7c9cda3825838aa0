// SPDX-License-Identifier: Apache-2.0
//
// Call stacks of Python for the histories of pools and allocators.
//
// K1  A capture waits for the interpreter's lock where its thread has let go of it; it is called with no lock of lade held. A thread that
//     Python does not know has no stack of it.
// K2  A capture runs no code of a program: the collector of cycles is held off, and an exception that is on its way stays.
// K3  A stack holds no object of Python, only texts that live as long as the process: it is released and described without the
//     interpreter, in any thread.
#ifndef LADE_PYTHON_STACKS_H
#define LADE_PYTHON_STACKS_H

#include "status.h"

namespace lade_python {

// Lets a history have stacks, of at most 32 frames.
void stacks_add(lade_history_options &options);

} // namespace lade_python

#endif // LADE_PYTHON_STACKS_H
