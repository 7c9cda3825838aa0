/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging data through lade's pinned memory, with lade's own runtime for streams and copies: runs on a GPU and, where
 * there is none, on a software device. pinned_around_memcpy.c is the like for CUDA's runtime API.
 *
 * usage: pinned_around_copy [RUNTIME]     cuda, cpu, sim; default: the best one found
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lade/device.h>
#include <lade/pinned.h>
#include <lade/runtime.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

static const size_t total_bytes = (size_t)32 << 20, chunk_bytes = (size_t)2 << 20;

static _Noreturn void fail(const char *call, const char *reason) {
  fprintf(stderr, "%s: %s\n", call, reason);
  exit(1);
}

/* Stands for reading a file, decoding an image, receiving a packet. */
static void produce(unsigned char *chunk, size_t at) {
  for (size_t i = 0; i < chunk_bytes; i++) chunk[i] = (unsigned char)((at + i) * 2654435761u >> 24);
}

static lade_status node_print(const lade_pinned_node_stats *node, void *user) {
  (void)user;
  printf("NUMA node %d: %llu MiB pinned at most\n", node->numa_node,
         (unsigned long long)node->reserved_bytes.peak >> 20);
  return LADE_OK;
}

static void report(lade_pinned_pool *pool) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE(lade_pinned_stats_get(pool, &stats));
  printf("staged %zu MiB in %zu MiB chunks, %llu MiB pinned at most, %llu of %llu blocks out of the cache\n",
         total_bytes >> 20, chunk_bytes >> 20, (unsigned long long)stats.reserved_bytes.peak >> 20,
         (unsigned long long)stats.hits, (unsigned long long)(stats.hits + stats.misses));
  LADE(lade_pinned_node_stats_each(pool, node_print, NULL));
}

static void stage(lade_runtime *runtime, char *device, lade_stream stream) {
  lade_pinned_pool *pool;
  lade_event staged;
  LADE(lade_pinned_pool_create(runtime, NULL, &pool));
  LADE(lade_event_create(runtime, 0, &staged));

  for (size_t at = 0; at < total_bytes; at += chunk_bytes) {
    void *staging;
    LADE(lade_pinned_alloc(pool, chunk_bytes, &staging));
    produce(staging, at);
    LADE(lade_copy_async(runtime, device + at, staging, chunk_bytes, stream));
    if (at + chunk_bytes < total_bytes) {
      LADE(lade_pinned_record_event(pool, staging, stream)); /* the stream uses the block */
      LADE(lade_pinned_free(pool, staging));                 /* returns at once, with the copy in flight */
    } else {
      LADE(lade_event_record(runtime, staged, stream)); /* the program has an event there anyway */
      LADE(lade_pinned_free_after(pool, staging, staged));
    }
  }

  report(pool);
  LADE(lade_pinned_stream_retire(pool, stream)); /* before the stream is destroyed */
  LADE(lade_pinned_pool_destroy(pool, true));    /* waits for the copies */
  LADE(lade_event_destroy(runtime, staged));
}

static void verify(lade_runtime *runtime, const char *device, lade_stream stream) {
  unsigned char *expected = malloc(chunk_bytes), *actual = malloc(chunk_bytes);
  if (expected == NULL || actual == NULL) fail("verify", "out of memory");
  for (size_t at = 0; at < total_bytes; at += chunk_bytes) {
    produce(expected, at);
    LADE(lade_copy_async(runtime, actual, device + at, chunk_bytes, stream));
    LADE(lade_stream_synchronize(runtime, stream));
    if (memcmp(expected, actual, chunk_bytes) != 0) fail("verify", "a chunk on the device differs");
  }
  puts("verified");
  free(expected);
  free(actual);
}

int main(int argc, char **argv) {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  void *device;
  LADE(lade_runtime_open(argc > 1 ? argv[1] : NULL, NULL, &runtime));
  LADE(lade_device_allocator_create(runtime, 0, NULL, &allocator));
  LADE(lade_stream_create(runtime, 0, &stream));
  LADE(lade_device_alloc(allocator, total_bytes, stream, &device));
  printf("runtime %s\n", lade_runtime_name(runtime));

  stage(runtime, device, stream);
  verify(runtime, device, stream);

  LADE(lade_device_free(allocator, device));
  LADE(lade_device_stream_retire(allocator, stream));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_device_allocator_destroy(allocator, true));
  LADE(lade_runtime_close(runtime));
  return 0;
}
