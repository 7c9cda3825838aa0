/* SPDX-License-Identifier: Apache-2.0 */
/* A C program that knows only the public headers and one library file. */
#include <lade/device.h>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <lade/soft.h>
#include <lade/status.h>

#include "tests/shim/lade_test.h"

LADE_TEST(CUser, LinksTheVersionOfItsHeaders) {
  LADE_EXPECT_EQ_UINT(lade_version(), LADE_VERSION_MAJOR * 1000000u + LADE_VERSION_MINOR * 1000u + LADE_VERSION_PATCH);
}

LADE_TEST(CUser, KnowsStatusNames) { LADE_EXPECT_EQ_STR(lade_status_name(LADE_ERR_LIMIT), "LADE_ERR_LIMIT"); }
