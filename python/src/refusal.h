// SPDX-License-Identifier: Apache-2.0
//
// Calls that nanobind refuses before a function of this package has seen them: an argument missing, one too many, or of a type that its
// parameter does not take. Its text has names of C++; here the error becomes lade.ArgumentTypeError, with the text of lade._calls.
#ifndef LADE_PYTHON_REFUSAL_H
#define LADE_PYTHON_REFUSAL_H

#include "status.h"

namespace lade_python {

// Covers all functions that the module and its classes have by now.
void cover_refusals(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_REFUSAL_H
