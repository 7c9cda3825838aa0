/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A process in which others have taken all keys of threads (PTHREAD_KEYS_MAX) before lade is used first. Threads
 * then keep nothing for themselves, since nobody would take it from them when they end; all else works.
 */
#include <lade/lade.h>
#include <pthread.h>
#include <string.h>

#include "tests/shim/lade_test.h"

static void keys_take_all(void) {
  pthread_key_t key;
  while (pthread_key_create(&key, NULL) == 0) continue;
}

static void *use(void *user) {
  lade_pinned_pool *pool = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &block));
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_free(pool, block));
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_DOUBLE_FREE);
  LADE_EXPECT_GT_SIZE(strlen(lade_last_error()->text), 0);
  return NULL;
}

static void device_use(lade_runtime *runtime) {
  lade_device_options options;
  lade_device_allocator *device = NULL;
  lade_stream stream;
  void *block = NULL;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_THREAD_CACHES;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_HOST_MEMORY, lade_device_allocator_create(runtime, 0, &options, &device));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "no memory");
  LADE_ASSERT_OK(lade_device_allocator_create(runtime, 0, NULL, &device));
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_EXPECT_OK(lade_device_alloc(device, 4096, stream, &block));
  LADE_EXPECT_OK(lade_device_free(device, block));
  LADE_EXPECT_OK(lade_device_stream_retire(device, stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  LADE_EXPECT_OK(lade_device_allocator_destroy(device, true));
}

/* More threads than the emergency set of error records: who gets none has the status, and words for it. */
LADE_TEST(NoKeys, ThreadsKeepNothingAndAllElseWorks) {
  enum { THREADS = 24 };
  pthread_t threads[THREADS];
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  keys_take_all();
  LADE_ASSERT_OK(lade_runtime_open("cpu", NULL, &runtime));
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, use, pool), 0);
  for (int i = 0; i < THREADS; i++) LADE_EXPECT_EQ_INT(pthread_join(threads[i], NULL), 0);
  device_use(runtime);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}
