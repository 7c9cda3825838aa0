/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call stack begins with the function of the program that called lade, and has none of liblade.so's: rows of a report
 * were once all named by a static function of lade, whose public callers the compiler had made into jumps.
 */
#include <stdlib.h>
#include <string.h>

#include <lade/device.h>
#include <lade/runtime.h>
#include <lade/stacks.h>

#include "tests/shim/lade_test.h"

static __attribute__((noinline)) void *own_alloc(lade_device_allocator *allocator, lade_stream stream) {
  void *volatile block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(allocator, 4096, stream, (void **)(uintptr_t)&block));
  return block;
}

typedef struct seen_frames {
  size_t count, own;
  uint64_t first;
} seen_frames;

static lade_status frame_see(void *user, const lade_stack_frame *frame) {
  seen_frames *seen = user;
  if (seen->count++ == 0) seen->first = frame->address;
  seen->own += frame->module != NULL && strstr(frame->module, "/liblade.so") != NULL;
  return LADE_OK;
}

static void history_on(lade_stacks *stacks, lade_device_allocator *allocator, lade_history_options *out) {
  lade_history_options_init(out);
  out->enabled = 1;
  out->level = LADE_CONTEXT_ALLOC;
  out->max_bytes = 1 << 20;
  lade_stacks_use(stacks, out);
  LADE_ASSERT_OK(lade_device_history_set(allocator, out));
}

LADE_TEST(Stacks, BeginWithTheProgramsFunction) {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stacks *stacks;
  lade_stream stream;
  lade_history_options history;
  lade_device_block_info info;
  seen_frames seen = {.count = 0};
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &runtime));
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_ASSERT_OK(lade_device_allocator_create(runtime, 0, NULL, &allocator));
  LADE_ASSERT_OK(lade_stacks_create(NULL, &stacks));
  history_on(stacks, allocator, &history);
  void *block = own_alloc(allocator, stream);
  lade_device_block_info_init(&info);
  LADE_ASSERT_OK(lade_device_find(allocator, block, &info));
  LADE_ASSERT(info.context != NULL);
  LADE_EXPECT_OK(history.describe(history.user, info.context, frame_see, &seen));
  uintptr_t begin = (uintptr_t)own_alloc;
  LADE_EXPECT_GE_UINT(seen.count, 3); /* the two functions here, and the runner's */
  LADE_EXPECT_EQ_UINT(seen.own, 0);
  LADE_EXPECT(seen.first > begin && seen.first < begin + 1024);
  LADE_EXPECT_OK(lade_device_free(allocator, block));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}
