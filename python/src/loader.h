// SPDX-License-Identifier: Apache-2.0
//
// Batches of records, as lade/loader.py needs them, and lade.RecordIndex.
#ifndef LADE_PYTHON_LOADER_H
#define LADE_PYTHON_LOADER_H

#include "status.h"

namespace lade_python {

void bind_loader(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_LOADER_H
