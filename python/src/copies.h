// SPDX-License-Identifier: Apache-2.0
//
// Copies of blocks by number, between arrays whose first dimension counts blocks: lade/copy.h.
#ifndef LADE_PYTHON_COPIES_H
#define LADE_PYTHON_COPIES_H

#include "device.h"

namespace lade_python {

void bind_copies(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_COPIES_H
