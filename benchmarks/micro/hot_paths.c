/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that users make most, so many times and nothing else, for counting the instructions of one: benchmarks/
 * instructions runs it under valgrind with two numbers of pairs, and what set-up and end cost cancels out.
 *
 * usage: hot_paths CASE BYTES PAIRS [threads]
 *   pinned    alloc and free of a pinned block, no stream
 *   recorded  alloc, record of a stream and free of a pinned block, 64 of them in flight
 *   streams   as recorded, over 10,000 streams, one after the other, each idle when it is used again
 *   device    alloc and free of a device block on one stream
 *   retired   the same with LADE_DEVICE_STREAMS_ARE_RETIRED
 *   caches    that with LADE_DEVICE_THREAD_CACHES, too
 * With "threads" the process has a second thread, which sleeps.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/messages.h"
#include "benchmarks/micro/model_driver.h"
#include "lade/device.h"
#include "lade/pinned.h"

enum { IN_FLIGHT = 64, MANY_STREAMS = 10000 };

static int failed(const char *what) {
  bench_lade_error(what);
  return 1;
}

static bool pinned_pair(lade_pinned_pool *pool, size_t bytes) {
  void *block;
  return lade_pinned_alloc(pool, bytes, &block) == LADE_OK && lade_pinned_free(pool, block) == LADE_OK;
}

static bool recorded_pair(lade_pinned_pool *pool, size_t bytes, model_stream *stream) {
  void *block;
  if (lade_pinned_alloc(pool, bytes, &block) != LADE_OK) return false;
  model_submit(stream);
  return lade_pinned_record_event(pool, block, model_handle(stream)) == LADE_OK &&
         lade_pinned_free(pool, block) == LADE_OK;
}

static int pinned_run(model_driver *driver, unsigned streams, size_t bytes, unsigned long pairs) {
  static model_stream *all[MANY_STREAMS];
  lade_pinned_pool *pool;
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.max_bytes = (uint64_t)1 << 40;
  if (lade_pinned_pool_create(model_runtime(driver), &options, &pool) != LADE_OK) return failed("pool");
  for (unsigned i = 0; i < streams; i++) all[i] = model_stream_create(driver, streams == 1 ? IN_FLIGHT : 0);
  for (unsigned long i = 0; i < pairs; i++) {
    bool done = streams > 0 ? recorded_pair(pool, bytes, all[i % streams]) : pinned_pair(pool, bytes);
    if (!done) return failed("pair");
  }
  for (unsigned i = 0; i < streams; i++) model_finish(all[i]);
  return lade_pinned_pool_destroy(pool, true) == LADE_OK ? 0 : failed("destroy");
}

static int device_run(model_driver *driver, uint32_t flags, size_t bytes, unsigned long pairs) {
  lade_device_allocator *allocator;
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = flags;
  if (lade_device_allocator_create(model_runtime(driver), 0, &options, &allocator) != LADE_OK)
    return failed("allocator");
  lade_stream stream = model_handle(model_stream_create(driver, 0));
  for (unsigned long i = 0; i < pairs; i++) {
    void *block;
    if (lade_device_alloc(allocator, bytes, stream, &block) != LADE_OK) return failed("alloc");
    if (lade_device_free(allocator, block) != LADE_OK) return failed("free");
  }
  return lade_device_allocator_destroy(allocator, true) == LADE_OK ? 0 : failed("destroy");
}

static void *sleeper_run(void *user) {
  pthread_mutex_t *until = user;
  pthread_mutex_lock(until);
  pthread_mutex_unlock(until);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    bench_error("usage: hot_paths pinned|recorded|streams|device|retired|caches BYTES PAIRS [threads]");
    return 2;
  }
  size_t bytes = strtoull(argv[2], NULL, 10);
  unsigned long pairs = strtoul(argv[3], NULL, 10);
  bool threads = argc > 4 && strcmp(argv[4], "threads") == 0;
  pthread_mutex_t until = PTHREAD_MUTEX_INITIALIZER;
  pthread_t sleeper;
  pthread_mutex_lock(&until);
  if (threads && pthread_create(&sleeper, NULL, sleeper_run, &until) != 0) return failed("thread");
  model_driver *driver = model_open(false);
  if (driver == NULL) return 1;
  int status;
  if (strcmp(argv[1], "device") == 0) {
    status = device_run(driver, 0, bytes, pairs);
  } else if (strcmp(argv[1], "retired") == 0) {
    status = device_run(driver, LADE_DEVICE_STREAMS_ARE_RETIRED, bytes, pairs);
  } else if (strcmp(argv[1], "caches") == 0) {
    status = device_run(driver, LADE_DEVICE_STREAMS_ARE_RETIRED | LADE_DEVICE_THREAD_CACHES, bytes, pairs);
  } else {
    unsigned streams = strcmp(argv[1], "streams") == 0 ? MANY_STREAMS : strcmp(argv[1], "recorded") == 0 ? 1 : 0;
    status = pinned_run(driver, streams, bytes, pairs);
  }
  pthread_mutex_unlock(&until);
  if (threads) pthread_join(sleeper, NULL);
  model_close(driver);
  return status;
}
