// SPDX-License-Identifier: Apache-2.0
//
// The functions that RMM calls for its memory: lade._lade._RmmBlocks, the two callables of a resource of lade.rmm.
//
// M1  A block that RMM has is in the table under its address, and nowhere else: the free of that address lets go of it.
// M2  No block is of a stream that other code may destroy: it is of a default one, or of `own`, on which nothing is queued. Work
//     on other streams is recorded by an event within the free (event_batch 1), while RMM promises that they live.
// M3  No Python runs in a call but what a stream of Python's own runs to name its handle. So no signal's handler does, whose
//     exception would end the call between M1's table and RMM.
// Locks: the GIL. An address has one owner at a time.
#ifndef LADE_PYTHON_RMM_CALLS_H
#define LADE_PYTHON_RMM_CALLS_H

#include "status.h"

namespace lade_python {

void bind_rmm(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_RMM_CALLS_H
