/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime "cuda" on the loopback driver, which notes whatever a real driver need not survive. */
#include "tests/conformance/conformance.h"
#include "tests/loopback/hooks.h"

const char *const conformance_runtimes[] = {"cuda", NULL};
const bool conformance_finds_reservations_out = true;

void conformance_check_driver(void) {
  const loopback_hooks *hooks = loopback_hooks_get();
  LADE_ASSERT(hooks != NULL);
  LADE_EXPECT_EQ_STR(hooks->violations(), "");
  LADE_EXPECT_OK(hooks->reset());
}
