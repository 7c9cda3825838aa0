// SPDX-License-Identifier: Apache-2.0
//
// The functions that CuPy calls for memory, without steps in Python: lade.cupy puts the functions together.
//
//   cupy.cuda.alloc(n) --> builtin function --> device: the current one          cupy.cuda.runtime.getDevice()
//                                           --> stream: the current one, held    cupy.cuda.get_current_stream()  (K1)
//                                           --> memory: _CupyMemory, a subclass of cupy.cuda.memory.BaseMemory
//                                           --> MemoryPointer(that, 0)
//
//   cupy.cuda.alloc_pinned_memory(n) has no stream. PinnedMemoryPointer(memory, 0) takes any object with an address and a size: _CupyBlock.
//
// P1  Either object owns one block, and holds the Python object that it came from, whose device lade._cupy_streams retires streams on
//     as long as that object lives. Its end gives the block back, in any thread.
// P2  The stream's object is referred to from before its first use until lade has the block (lade._cupy_streams, K1).
// P3  A failed call has given its block back.
// P4  CuPy's compiled modules offer each other functions of C, in capsules that are named by their signature (`__pyx_capi__`). Where
//     those for the current device and stream are offered, they are called in place of Python's, as CuPy's own pool does.
// P5  Of the one device of a process the number is known. To ask takes CUDA's runtime some microseconds in a thread that has not set
//     a device.
// P6  Address, size and device of a _CupyMemory are members of BaseMemory, which CuPy's functions read. Where they lie is found when the
//     function is made: CuPy writes values, which are looked for, and reads what was written there. Where that fails they are set by name.
#ifndef LADE_PYTHON_CUPY_CALLS_H
#define LADE_PYTHON_CUPY_CALLS_H

#include "runtime.h"

namespace lade_python {

void bind_cupy(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_CUPY_CALLS_H
