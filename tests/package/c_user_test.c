/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: A C program that knows only the public headers and one library file. */
#include <lade/device.h>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <lade/soft.h>
#include <lade/status.h>

#include "tests/shim/lade_test.h"

LADE_TEST(CUser, LinksTheVersionOfItsHeaders) {
  LADE_EXPECT_EQ_UINT(lade_version(), LADE_VERSION_MAJOR * 1000000u + LADE_VERSION_MINOR * 1000u + LADE_VERSION_PATCH);
}

LADE_TEST(CUser, StagesThroughPinnedMemory) {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream stream;
  void *staging;
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &runtime));
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_ASSERT_OK(lade_pinned_alloc(pool, 4096, &staging));
  LADE_EXPECT_OK(lade_pinned_record_event(pool, staging, stream));
  LADE_EXPECT_OK(lade_pinned_free(pool, staging));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_free(pool, staging));
  LADE_EXPECT_OK(lade_pinned_stream_retire(pool, stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(CUser, GetsNamedErrors) {
  lade_runtime *runtime = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_runtime_open("no such runtime", NULL, &runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "no such runtime");
  LADE_EXPECT_EQ_PTR(runtime, NULL);
}
