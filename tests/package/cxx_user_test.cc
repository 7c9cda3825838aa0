/* SPDX-License-Identifier: Apache-2.0 */
/* A C++ program that knows only the public headers and one library file. */
#include <lade/device.h>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <lade/soft.h>
#include <lade/status.h>

#include <gtest/gtest.h>

TEST(CxxUser, LinksTheVersionOfItsHeaders) {
  EXPECT_EQ(lade_version(), LADE_VERSION_MAJOR * 1000000u + LADE_VERSION_MINOR * 1000u + LADE_VERSION_PATCH);
}

TEST(CxxUser, KnowsStatusNames) { EXPECT_STREQ(lade_status_name(LADE_ERR_LIMIT), "LADE_ERR_LIMIT"); }
