/* SPDX-License-Identifier: Apache-2.0 */
/* A C++ program that knows only the public headers and one library file. */
#include <lade/device.h>
#include <lade/lade.hpp>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <lade/soft.h>
#include <lade/status.h>

#include <string>

#include <gtest/gtest.h>

TEST(CxxUser, LinksTheVersionOfItsHeaders) {
  EXPECT_EQ(lade_version(), LADE_VERSION_MAJOR * 1000000u + LADE_VERSION_MINOR * 1000u + LADE_VERSION_PATCH);
}

TEST(CxxUser, StagesThroughPinnedMemory) {
  lade_runtime *runtime = nullptr;
  lade_pinned_pool *pool = nullptr;
  lade_stream stream = nullptr;
  void *staging = nullptr;
  ASSERT_EQ(lade_runtime_open("sim", nullptr, &runtime), LADE_OK);
  ASSERT_EQ(lade_pinned_pool_create(runtime, nullptr, &pool), LADE_OK);
  ASSERT_EQ(lade_stream_create(runtime, 0, &stream), LADE_OK);
  ASSERT_EQ(lade_pinned_alloc(pool, 4096, &staging), LADE_OK);
  EXPECT_EQ(lade_pinned_record_event(pool, staging, stream), LADE_OK);
  EXPECT_EQ(lade_pinned_free(pool, staging), LADE_OK);
  EXPECT_EQ(lade_pinned_free(pool, staging), LADE_ERR_DOUBLE_FREE);
  EXPECT_EQ(lade_pinned_stream_retire(pool, stream), LADE_OK);
  EXPECT_EQ(lade_stream_destroy(runtime, stream), LADE_OK);
  EXPECT_EQ(lade_pinned_pool_destroy(pool, true), LADE_OK);
  EXPECT_EQ(lade_runtime_close(runtime), LADE_OK);
}

TEST(CxxUser, GetsNamedErrors) {
  lade_runtime *runtime = nullptr;
  EXPECT_EQ(lade_runtime_open("no such runtime", nullptr, &runtime), LADE_ERR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(lade_last_error()->text).find("no such runtime"), std::string::npos);
  EXPECT_EQ(runtime, nullptr);
}

/* std::pmr says that an allocation is never nullptr, of 0 bytes, too: compilers take it for granted. */
TEST(CxxUser, PinnedResourceHasABlockForZeroBytes) {
  auto runtime = lade::open_runtime("sim");
  auto pool = lade::make_pinned_pool(runtime.get());
  lade::pinned_resource pinned(pool.get());
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  void *memory = pinned.allocate(0);
  EXPECT_EQ(lade_pinned_stats_get(pool.get(), &stats), LADE_OK);
  EXPECT_EQ(stats.in_use_blocks.current, 1u);
  pinned.deallocate(memory, 0);
  EXPECT_EQ(lade_pinned_stats_get(pool.get(), &stats), LADE_OK);
  EXPECT_EQ(stats.in_use_blocks.current, 0u);
}
