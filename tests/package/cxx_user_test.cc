/* SPDX-License-Identifier: Apache-2.0 */
/* A C++ program that knows only the public headers and one library file. */
#include <lade/device.h>
#include <lade/lade.hpp>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <lade/soft.h>
#include <lade/status.h>

#include <cstdint>
#include <string>
#include <utility>

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

static std::uint64_t in_use_blocks(lade_device_allocator *allocator) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  EXPECT_EQ(lade_device_stats_get(allocator, &stats), LADE_OK);
  return stats.allocation.all.current;
}

TEST(CxxUser, DeviceBlocksAreFreedWithTheirOwners) {
  auto runtime = lade::open_runtime("sim");
  auto allocator = lade::make_device_allocator(runtime.get(), 0);
  lade_stream stream = nullptr;
  lade::check(lade_stream_create(runtime.get(), 0, &stream));
  {
    lade::device_block block(allocator.get(), 4096, stream), other;
    EXPECT_NE(block.data(), nullptr);
    EXPECT_EQ(block.size(), 4096u);
    other = std::move(block);
    EXPECT_EQ(block.data(), nullptr);
    EXPECT_EQ(in_use_blocks(allocator.get()), 1u);
    other = lade::device_block(allocator.get(), 512, stream);
    EXPECT_EQ(in_use_blocks(allocator.get()), 1u);
  }
  EXPECT_EQ(in_use_blocks(allocator.get()), 0u);
  EXPECT_THROW(lade::device_block(allocator.get(), static_cast<std::size_t>(1) << 62, stream), lade::error);
  allocator.reset();
  EXPECT_EQ(lade_stream_destroy(runtime.get(), stream), LADE_OK);
}

TEST(CxxUser, SnapshotsStacksAndPublishersHaveOwners) {
  auto runtime = lade::open_runtime("cpu");
  auto pool = lade::make_pinned_pool(runtime.get());
  auto allocator = lade::make_device_allocator(runtime.get(), 0);
  auto stacks = lade::make_stacks();
  auto publisher = lade::publish({lade_part_pinned(pool.get()), lade_part_device(allocator.get())});
  auto snapshot = lade::take_snapshot({lade_part_pinned(pool.get()), lade_part_device(allocator.get())});
  EXPECT_NE(publisher.get(), nullptr);
  EXPECT_NE(snapshot.get(), nullptr);
  EXPECT_THROW(lade::open_snapshot("/no/such/file.json"), lade::error);
  EXPECT_THROW(lade::open_safetensors("/no/such/file.safetensors"), lade::error);
}

TEST(CxxUser, TheEndOfASaveWaitsForItsFile) {
  const std::string path = testing::TempDir() + "cxx_user.safetensors";
  const float value = 1.5f;
  lade_tensor tensor = {"a", nullptr, 0, const_cast<float *>(&value), LADE_TARGET_HOST, LADE_DTYPE_F32};
  { auto save = lade::begin_save(path.c_str(), nullptr, 0, &tensor, 1); }
  EXPECT_EQ(lade_safetensors_count(lade::open_safetensors(path.c_str()).get()), 1u);
  EXPECT_THROW(lade::begin_save("/no/such/folder/a", nullptr, 0, &tensor, 1), lade::error);
}

#ifdef LADE_HAS_SPAN
TEST(CxxUser, PinnedBlocksAreSpans) {
  auto runtime = lade::open_runtime("sim");
  auto pool = lade::make_pinned_pool(runtime.get());
  lade::pinned_block block(pool.get(), 4 * 100 + 3);
  std::span<float> numbers = block.as<float>();
  EXPECT_EQ(numbers.size(), 100u);
  EXPECT_EQ(static_cast<void *>(numbers.data()), block.data());
  numbers[99] = 1;
}
#elif __cplusplus >= 202002L
#error "the views are not there"
#endif
