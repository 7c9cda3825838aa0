/* SPDX-License-Identifier: Apache-2.0 */
/* What `lade doctor` says of a driver that is made up. */
#include "tools/doctor/checks.h"

#include <string.h>

#include "tests/loopback/hooks.h"
#include "tests/shim/lade_test.h"

static finding look(const char *name) {
  finding out;
  memset(&out, 0, sizeof out);
  for (size_t i = 0; i < check_count; i++)
    if (strcmp(checks[i].name, name) == 0) checks[i].look(&out);
  return out;
}

LADE_TEST(Doctor, RegistrationIsAskedForAndGivenBack) {
  const loopback_hooks *hooks = loopback_hooks_get();
  LADE_ASSERT(hooks != NULL);
  LADE_ASSERT_OK(hooks->reset());
  finding allowed = look("registration");
  LADE_EXPECT_EQ_INT(allowed.state, FINDING_GOOD);
  LADE_EXPECT_EQ_STR(allowed.found, "allowed");
  hooks->fail("cuMemHostRegister", 0, CUDA_ERROR_NOT_SUPPORTED);
  finding refused = look("registration");
  LADE_EXPECT_EQ_INT(refused.state, FINDING_TO_DO);
  LADE_EXPECT_CONTAINS_STR(refused.found, "refused: ");
  LADE_EXPECT_CONTAINS_STR(refused.found, "operation not supported (801)");
  LADE_EXPECT_CONTAINS_STR(refused.advice, "confidential computing");
  LADE_EXPECT_EQ_UINT(hooks->retained(0), 0);
  LADE_ASSERT_OK(hooks->reset()); /* nothing is left */
}
