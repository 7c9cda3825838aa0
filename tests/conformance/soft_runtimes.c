/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/conformance.h"

const char *const conformance_runtimes[] = {"sim", "cpu", NULL};

void conformance_check_driver(void) {}
