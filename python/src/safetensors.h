// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints, as lade/safetensors/ needs them: opened, loaded into device memory, saved from it.
#ifndef LADE_PYTHON_SAFETENSORS_H
#define LADE_PYTHON_SAFETENSORS_H

#include "status.h"

namespace lade_python {

void bind_safetensors(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_SAFETENSORS_H
