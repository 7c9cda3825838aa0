/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain CUDA program that stages data through lade's pinned memory.
 *
 * Without lade it would call cudaMallocHost() once and wait for each copy before filling the buffer again. With it,
 * each chunk gets a staging block that is freed right after its copy was queued: the block comes back when the copy is
 * done. On the way back a host function of the driver looks at each chunk and frees it. pinned_around_copy.c is nearly the same
 * program without CUDA.
 *
 * usage: pinned_around_memcpy
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <lade/pinned.h>
#include <lade/runtime.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)
#define CUDA(call)                                                                                                     \
  do {                                                                                                                 \
    cudaError_t error = (call);                                                                                        \
    if (error != cudaSuccess) fail(#call, cudaGetErrorString(error));                                                  \
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

static void report(lade_pinned_pool *pool) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE(lade_pinned_stats_get(pool, &stats));
  printf("staged %zu MiB in %zu MiB chunks, %llu MiB pinned at most, %llu of %llu blocks out of the cache\n",
         total_bytes >> 20, chunk_bytes >> 20, (unsigned long long)stats.reserved_bytes.peak >> 20,
         (unsigned long long)stats.hits, (unsigned long long)(stats.hits + stats.misses));
}

static void stage(char *device, cudaStream_t stream) {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  LADE(lade_runtime_open("cuda", NULL, &runtime));
  LADE(lade_pinned_pool_create(runtime, NULL, &pool));

  for (size_t at = 0; at < total_bytes; at += chunk_bytes) {
    void *staging;
    LADE(lade_pinned_alloc(pool, chunk_bytes, &staging));
    produce(staging, at);
    CUDA(cudaMemcpyAsync(device + at, staging, chunk_bytes, cudaMemcpyHostToDevice, stream));
    LADE(lade_pinned_record_event(pool, staging, stream)); /* the stream uses the block */
    LADE(lade_pinned_free(pool, staging));                 /* returns at once, with the copy in flight */
  }

  report(pool);
  LADE(lade_pinned_stream_retire(pool, stream)); /* before the stream is destroyed */
  LADE(lade_pinned_pool_destroy(pool, true));    /* waits for the copies */
  LADE(lade_runtime_close(runtime));
}

typedef struct arrival {
  lade_pinned_pool *pool;
  void *chunk;
  size_t at;
} arrival;

/* In a thread of the driver's, which may not be called from here: the usual free may record an event. */
static void CUDART_CB chunk_arrived(void *user) {
  const arrival *own = user;
  unsigned char *expected = malloc(chunk_bytes);
  if (expected == NULL) fail("verify", "out of memory");
  produce(expected, own->at);
  if (memcmp(expected, own->chunk, chunk_bytes) != 0) fail("verify", "a chunk on the device differs");
  free(expected);
  LADE(lade_pinned_free_quiet(own->pool, own->chunk));
}

static void verify(const char *device, cudaStream_t stream) {
  arrival arrivals[16];
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  LADE(lade_runtime_open("cuda", NULL, &runtime));
  LADE(lade_pinned_pool_create(runtime, NULL, &pool));
  for (size_t i = 0, at = 0; at < total_bytes; i++, at += chunk_bytes) {
    arrivals[i] = (arrival){.pool = pool, .at = at};
    LADE(lade_pinned_alloc(pool, chunk_bytes, &arrivals[i].chunk));
    CUDA(cudaMemcpyAsync(arrivals[i].chunk, device + at, chunk_bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaLaunchHostFunc(stream, chunk_arrived, &arrivals[i]));
  }
  CUDA(cudaStreamSynchronize(stream));
  puts("verified");
  LADE(lade_pinned_pool_destroy(pool, false));
  LADE(lade_runtime_close(runtime));
}

int main(void) {
  cudaStream_t stream;
  char *device;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMalloc((void **)&device, total_bytes));
  stage(device, stream);
  verify(device, stream);
  CUDA(cudaFree(device));
  CUDA(cudaStreamDestroy(stream));
  return 0;
}
