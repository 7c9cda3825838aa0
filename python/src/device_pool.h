// SPDX-License-Identifier: Apache-2.0
//
// A private pool of an allocator for lade.SleepPool: suspended and resumed, with its bytes in a file on request.
#ifndef LADE_PYTHON_DEVICE_POOL_H
#define LADE_PYTHON_DEVICE_POOL_H

#include <nanobind/nanobind.h>

namespace lade_python {

void bind_device_pool(nanobind::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_DEVICE_POOL_H
