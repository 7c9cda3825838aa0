/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program as users write them, linked with the static runtime. tests/preload_gpu/run runs it with and without
 * liblade_preload.so and compares.
 *
 *   program answers             what the runtime says of pinned memory, and of wrong calls: the same lines either way
 *   program work                copies, kernels on pinned memory, captures, threads, a reset: checks bytes, prints the same lines
 *   program device_answers      the same of device memory
 *   program device_work         kernels, copies, captures, threads and a reset with device memory that is freed at once
 *   program device_loop BYTES STREAMS ROUNDS WAIT   as loop: cudaMalloc, cudaMemsetAsync, cudaFree
 *   program loop BYTES STREAMS ROUNDS WAIT   alloc, copy, free: prints ns per alloc and free, ns per round, wrong bytes.
 *                               Every WAIT rounds it waits for all streams, outside of what is timed as alloc and free; 0: never, so
 *                               that copies are queued faster than the link moves them and alloc and free have to wait for it
 *   program bandwidth           copies of a large block in both directions: prints GB/s
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)

#define MUST(call)                                                                                                     \
  do {                                                                                                                 \
    cudaError_t must_code = (call);                                                                                    \
    if (must_code != cudaSuccess) {                                                                                    \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(must_code));                               \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void say(const char *what, cudaError_t code) {
  printf("%s: %s\n", what, cudaGetErrorName(code));
  (void)cudaGetLastError();
}

static void answers_of(unsigned flags) {
  void *pointer = NULL, *device_pointer = NULL;
  unsigned told = 0;
  struct cudaPointerAttributes attributes = {0};
  MUST(cudaHostAlloc(&pointer, 10000, flags));
  MUST(cudaHostGetFlags(&told, pointer));
  cudaError_t code = cudaHostGetDevicePointer(&device_pointer, pointer, 0);
  MUST(cudaPointerGetAttributes(&attributes, (char *)pointer + 100));
  printf("flags %u: told %u, device pointer %s %d, type %d, device %d, host %d, alias %d\n", flags, told,
         cudaGetErrorName(code), device_pointer == pointer, (int)attributes.type, attributes.device,
         attributes.hostPointer == (char *)pointer + 100, attributes.devicePointer == (char *)pointer + 100);
  MUST(cudaFreeHost(pointer));
}

/* Memory of the program's own, which the driver serves either way. */
static void own_answers(void) {
  static _Alignas(4096) char own[4 * 4096];
  say("unregister own memory", cudaHostUnregister(own));
  say("register own memory", cudaHostRegister(own, 2 * 4096, cudaHostRegisterDefault));
  say("register it again", cudaHostRegister(own, 4096, cudaHostRegisterDefault));
  say("register more", cudaHostRegister(own + 4096, 2 * 4096, cudaHostRegisterDefault));
  say("unregister inside own memory", cudaHostUnregister(own + 4096));
  say("unregister it", cudaHostUnregister(own));
  say("unregister it again", cudaHostUnregister(own));
}

static int answers(void) {
  char *pointer = NULL;
  void *none = NULL;
  static char own[4096];
  MUST(cudaSetDevice(0));
  for (unsigned flags = 0; flags < 8; flags++) answers_of(flags);
  say("free NULL", cudaFreeHost(NULL));
  say("free of static memory", cudaFreeHost(own));
  say("alloc of 0", cudaMallocHost(&none, 0));
  say("unknown flags", cudaHostAlloc(&none, 4096, 1u << 20));
  MUST(cudaMallocHost((void **)&pointer, 2 * MIB));
  say("free inside", cudaFreeHost(pointer + 4096));
  say("register what is pinned", cudaHostRegister(pointer, 4096, cudaHostRegisterDefault));
  say("register inside", cudaHostRegister(pointer + 4096, 4096, cudaHostRegisterDefault));
  say("unregister what was allocated", cudaHostUnregister(pointer));
  say("unregister inside", cudaHostUnregister(pointer + 4096));
  MUST(cudaFreeHost(pointer));
  say("free again", cudaFreeHost(pointer));
  own_answers();
  say("more than there is", cudaMallocHost(&none, (size_t)1 << 50));
  say("after all that", cudaDeviceSynchronize());
  return 0;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

/* Adds 1 to each of `count` words, from `source` to `target`, after some milliseconds. */
static const char *const kernel_text =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add_one(.param .u64 target, .param .u64 source, .param .u32 count, .param .u64 cycles) {\n"
    ".reg .b64 %rd<9>; .reg .b32 %r<8>; .reg .pred %p<3>;\n"
    "ld.param.u64 %rd1, [target]; ld.param.u64 %rd2, [source]; ld.param.u32 %r1, [count]; ld.param.u64 %rd5, "
    "[cycles];\n"
    "mov.u64 %rd6, %clock64;\n"
    "WAIT: mov.u64 %rd7, %clock64; sub.u64 %rd8, %rd7, %rd6; setp.lt.u64 %p2, %rd8, %rd5; @%p2 bra WAIT;\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;\n"
    "setp.ge.u32 %p1, %r5, %r1; @%p1 bra END;\n"
    "mul.wide.u32 %rd3, %r5, 4; add.u64 %rd4, %rd2, %rd3; ld.volatile.global.u32 %r6, [%rd4]; add.u32 %r7, %r6, 1;\n"
    "add.u64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], %r7;\n"
    "END: ret;\n}\n";

static cudaKernel_t kernel;

static void kernel_load(void) {
  cudaLibrary_t library;
  MUST(cudaLibraryLoadData(&library, kernel_text, NULL, NULL, 0, NULL, NULL, 0));
  MUST(cudaLibraryGetKernel(&kernel, library, "add_one"));
}

static void kernel_launch(void *target, const void *source, unsigned count, uint64_t cycles, cudaStream_t stream) {
  void *arguments[] = {&target, &source, &count, &cycles};
  dim3 grid = {(count + 255) / 256, 1, 1}, block = {256, 1, 1};
  MUST(cudaLaunchKernel((const void *)kernel, grid, block, arguments, 0, stream));
}

static uint64_t wrong_words(const uint32_t *words, unsigned count, uint32_t expected) {
  uint64_t wrong = 0;
  for (unsigned i = 0; i < count; i++) wrong += words[i] != expected + i ? 1u : 0u;
  return wrong;
}

static void words_fill(uint32_t *words, unsigned count, uint32_t first) {
  for (unsigned i = 0; i < count; i++) words[i] = first + i;
}

/* A slow kernel reads a pinned block where it lies; the block is freed at once, and others are filled. */
static uint64_t kernels_on_pinned(cudaStream_t stream) {
  enum { WORDS = 1 << 18, ROUNDS = 40 };
  uint64_t wrong = 0;
  uint32_t *target, *back;
  MUST(cudaMalloc((void **)&target, ROUNDS * WORDS * sizeof *target));
  MUST(cudaMallocHost((void **)&back, WORDS * sizeof *back));
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint32_t *source;
    MUST(cudaHostAlloc((void **)&source, WORDS * sizeof *source, cudaHostAllocMapped));
    words_fill(source, WORDS, i * 1000);
    kernel_launch(target + (size_t)i * WORDS, source, WORDS, 2000000, stream);
    MUST(cudaFreeHost(source));
  }
  MUST(cudaStreamSynchronize(stream));
  for (uint32_t i = 0; i < ROUNDS; i++) {
    MUST(cudaMemcpy(back, target + (size_t)i * WORDS, WORDS * sizeof *back, cudaMemcpyDeviceToHost));
    wrong += wrong_words(back, WORDS, i * 1000 + 1);
  }
  MUST(cudaFreeHost(back));
  MUST(cudaFree(target));
  return wrong;
}

/* Allocs and frees during a capture, the captured block freed behind a launch. */
static uint64_t captures(void) {
  enum { WORDS = 1 << 18 };
  uint64_t wrong = 0;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  uint32_t *target, *source, *back, *other;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaMalloc((void **)&target, WORDS * sizeof *target));
  MUST(cudaMallocHost((void **)&source, WORDS * sizeof *source));
  MUST(cudaMallocHost((void **)&back, WORDS * sizeof *back));
  words_fill(source, WORDS, 7);
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  MUST(cudaMemcpyAsync(target, source, WORDS * sizeof *target, cudaMemcpyHostToDevice, stream));
  for (int i = 0; i < 40; i++) {
    MUST(cudaMallocHost((void **)&other, WORDS * sizeof *other));
    MUST(cudaFreeHost(other));
  }
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&exec, graph, 0));
  MUST(cudaGraphLaunch(exec, stream));
  MUST(cudaFreeHost(source));
  MUST(cudaMallocHost((void **)&other, WORDS * sizeof *other));
  words_fill(other, WORDS, 99);
  MUST(cudaMemcpyAsync(back, target, WORDS * sizeof *back, cudaMemcpyDeviceToHost, stream));
  MUST(cudaStreamSynchronize(stream));
  wrong += wrong_words(back, WORDS, 7);
  MUST(cudaGraphExecDestroy(exec));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaStreamDestroy(stream));
  MUST(cudaFreeHost(other));
  MUST(cudaFreeHost(back));
  MUST(cudaFree(target));
  return wrong;
}

/* Both directions on a stream of its own, blocks freed with the copy in flight. */
static uint64_t copies(uint32_t seed) {
  enum { WORDS = 1 << 16, ROUNDS = 200 };
  uint64_t wrong = 0;
  cudaStream_t stream;
  uint32_t *target;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaMalloc((void **)&target, WORDS * sizeof *target));
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint32_t *source, *back;
    MUST(cudaMallocHost((void **)&source, WORDS * sizeof *source));
    MUST(cudaHostAlloc((void **)&back, WORDS * sizeof *back, cudaHostAllocPortable));
    words_fill(source, WORDS, seed + i);
    MUST(cudaMemcpyAsync(target, source, WORDS * sizeof *target, cudaMemcpyHostToDevice, stream));
    MUST(cudaFreeHost(source));
    MUST(cudaMemcpyAsync(back, target, WORDS * sizeof *back, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    wrong += wrong_words(back, WORDS, seed + i);
    MUST(cudaFreeHost(back));
  }
  MUST(cudaStreamDestroy(stream));
  MUST(cudaFree(target));
  return wrong;
}

static void *copies_thread(void *seed) {
  MUST(cudaSetDevice(0));
  return (void *)(uintptr_t)copies((uint32_t)(uintptr_t)seed);
}

static uint64_t threads(void) {
  enum { THREADS = 8 };
  pthread_t all[THREADS];
  uint64_t wrong = 0;
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, copies_thread, (void *)(i * 10000));
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(all[i], &result);
    wrong += (uintptr_t)result;
  }
  return wrong;
}

static int work(void) {
  cudaStream_t stream;
  void *lost;
  MUST(cudaSetDevice(0));
  kernel_load();
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  printf("kernels on pinned memory: %llu wrong\n", (unsigned long long)kernels_on_pinned(stream));
  printf("kernels on the default stream: %llu wrong\n", (unsigned long long)kernels_on_pinned(NULL));
  printf("captures: %llu wrong\n", (unsigned long long)captures());
  printf("copies: %llu wrong\n", (unsigned long long)copies(1));
  printf("threads: %llu wrong\n", (unsigned long long)threads());
  MUST(cudaStreamDestroy(stream));
  MUST(cudaMallocHost(&lost, MIB));
  MUST(cudaDeviceReset());
  printf("copies after a reset: %llu wrong\n", (unsigned long long)copies(5));
  MUST(cudaMallocHost(&lost, MIB)); /* the process ends with it */
  return 0;
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

static int loop(size_t bytes, int stream_count, int rounds, int wait) {
  enum { STREAMS = 64, WARM_UP = 64 };
  cudaStream_t streams[STREAMS];
  char *targets[STREAMS], *back = malloc(bytes);
  uint64_t calls_ns = 0, wrong = 0, start = 0;
  MUST(cudaSetDevice(0));
  for (int i = 0; i < stream_count; i++) {
    MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    MUST(cudaMalloc((void **)&targets[i], bytes));
  }
  for (int i = -WARM_UP; i < rounds; i++) {
    char *source;
    int at = (i + WARM_UP) % stream_count;
    if (i == 0) {
      MUST(cudaDeviceSynchronize());
      start = now_ns();
    }
    for (int s = 0; wait > 0 && (i + WARM_UP) % wait == 0 && s < stream_count; s++)
      MUST(cudaStreamSynchronize(streams[s]));
    uint64_t before = now_ns();
    MUST(cudaHostAlloc((void **)&source, bytes, cudaHostAllocDefault));
    uint64_t between = now_ns();
    source[0] = source[bytes - 1] = (char)i;
    MUST(cudaMemcpyAsync(targets[at], source, bytes, cudaMemcpyHostToDevice, streams[at]));
    uint64_t again = now_ns();
    MUST(cudaFreeHost(source));
    if (i >= 0) calls_ns += between - before + now_ns() - again;
  }
  MUST(cudaDeviceSynchronize());
  uint64_t all_ns = now_ns() - start;
  for (int i = 0; i < stream_count && i < rounds; i++) {
    int last = rounds - 1 - i, at = (last + WARM_UP) % stream_count;
    MUST(cudaMemcpy(back, targets[at], bytes, cudaMemcpyDeviceToHost));
    wrong += back[0] != (char)last || back[bytes - 1] != (char)last ? 1u : 0u;
  }
  printf("%zu %d %d %d %.0f %.0f %llu\n", bytes, stream_count, rounds, wait, (double)calls_ns / rounds,
         (double)all_ns / rounds, (unsigned long long)wrong);
  free(back);
  return wrong == 0 ? 0 : 1;
}

/* ---- device memory ----------------------------------------------------------------------------------------------- */

static int memory_is_back(size_t before_bytes) {
  size_t free_now, total;
  MUST(cudaMemGetInfo(&free_now, &total));
  return free_now + MIB >= before_bytes;
}

static void device_sizes(void) {
  void *block;
  size_t before, total;
  MUST(cudaMemGetInfo(&before, &total));
  MUST(cudaMalloc(&block, 256 * MIB));
  printf("256 MiB are gone: %d\n", !memory_is_back(before));
  MUST(cudaFree(block));
  printf("they are back: %d\n", memory_is_back(before));
  say("more than there is", cudaMalloc(&block, (size_t)1 << 50));
  say("alloc of 0", cudaMalloc(&block, 0));
}

static void device_attributes(void *block, const char *of) {
  struct cudaPointerAttributes attributes = {0};
  MUST(cudaPointerGetAttributes(&attributes, (char *)block + 100));
  printf("%s: type %d, device %d, device pointer %d, host pointer %d\n", of, (int)attributes.type, attributes.device,
         attributes.devicePointer == (char *)block + 100, attributes.hostPointer != NULL);
}

static int device_answers(void) {
  static char own[4096];
  char *block, *ordered;
  void *pitched;
  size_t pitch;
  cudaStream_t stream, other;
  MUST(cudaSetDevice(0));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  device_sizes();
  MUST(cudaMalloc((void **)&block, 10000));
  device_attributes(block, "cudaMalloc");
  say("free inside", cudaFree(block + 512));
  say("free as pinned memory", cudaFreeHost(block));
  MUST(cudaFree(block));
  say("free again", cudaFree(block));
  say("free NULL", cudaFree(NULL));
  say("free of static memory", cudaFree(own));
  MUST(cudaMallocAsync((void **)&ordered, 10000, stream));
  device_attributes(ordered, "cudaMallocAsync");
  MUST(cudaStreamSynchronize(stream));
  say("free where it was allocated", cudaFreeAsync(ordered, stream));
  MUST(cudaMallocAsync((void **)&ordered, 10000, stream));
  MUST(cudaStreamSynchronize(stream));
  say("free on another stream", cudaFreeAsync(ordered, other));
  MUST(cudaMallocAsync((void **)&ordered, 10000, stream));
  MUST(cudaStreamSynchronize(stream));
  say("free without a stream", cudaFree(ordered));
  MUST(cudaMalloc((void **)&block, 10000));
  say("free in order what is not ordered", cudaFreeAsync(block, stream));
  MUST(cudaMallocPitch(&pitched, &pitch, 1000, 100));
  say("free of pitched memory", cudaFree(pitched));
  MUST(cudaMallocManaged((void **)&block, 10000, cudaMemAttachGlobal));
  say("free of managed memory", cudaFree(block));
  say("after all that", cudaDeviceSynchronize());
  MUST(cudaStreamDestroy(stream));
  MUST(cudaStreamDestroy(other));
  return 0;
}

enum { DEVICE_WORDS = 1 << 18, DEVICE_ROUNDS = 60 };

/* A slow kernel writes a block, which a copy reads; the block is freed at once, and what another stream gets is overwritten. */
static uint64_t freed_in_use(cudaStream_t stream, cudaStream_t other, int ordered) {
  uint64_t wrong = 0;
  uint32_t *source, *results;
  size_t bytes = DEVICE_WORDS * sizeof *source;
  MUST(cudaMallocHost((void **)&source, bytes));
  MUST(cudaMallocHost((void **)&results, DEVICE_ROUNDS * bytes));
  words_fill(source, DEVICE_WORDS, 1000);
  for (int i = 0; i < DEVICE_ROUNDS; i++) {
    uint32_t *block, *spoilt;
    MUST(ordered ? cudaMallocAsync((void **)&block, bytes, stream) : cudaMalloc((void **)&block, bytes));
    kernel_launch(block, source, DEVICE_WORDS, 200000, stream);
    MUST(cudaMemcpyAsync(results + (size_t)i * DEVICE_WORDS, block, bytes, cudaMemcpyDeviceToHost, stream));
    MUST(ordered ? cudaFreeAsync(block, stream) : cudaFree(block));
    MUST(ordered ? cudaMallocAsync((void **)&spoilt, bytes, other) : cudaMalloc((void **)&spoilt, bytes));
    MUST(cudaMemsetAsync(spoilt, 0xff, bytes, other));
    MUST(ordered ? cudaFreeAsync(spoilt, other) : cudaFree(spoilt));
  }
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaStreamSynchronize(other));
  for (int i = 0; i < DEVICE_ROUNDS; i++) wrong += wrong_words(results + (size_t)i * DEVICE_WORDS, DEVICE_WORDS, 1001);
  MUST(cudaFreeHost(source));
  MUST(cudaFreeHost(results));
  return wrong;
}

/* Allocated on one stream, used and freed on another that waits for it. */
static uint64_t freed_elsewhere(cudaStream_t stream, cudaStream_t other) {
  uint64_t wrong = 0;
  uint32_t *source, *results;
  size_t bytes = DEVICE_WORDS * sizeof *source;
  cudaEvent_t event;
  MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  MUST(cudaMallocHost((void **)&source, bytes));
  MUST(cudaMallocHost((void **)&results, DEVICE_ROUNDS * bytes));
  words_fill(source, DEVICE_WORDS, 1000);
  for (int i = 0; i < DEVICE_ROUNDS; i++) {
    uint32_t *block;
    MUST(cudaMallocAsync((void **)&block, bytes, stream));
    MUST(cudaMemsetAsync(block, 0xff, bytes, stream));
    MUST(cudaEventRecord(event, stream));
    MUST(cudaStreamWaitEvent(other, event, 0));
    kernel_launch(block, source, DEVICE_WORDS, 200000, other);
    MUST(cudaMemcpyAsync(results + (size_t)i * DEVICE_WORDS, block, bytes, cudaMemcpyDeviceToHost, other));
    MUST(cudaFreeAsync(block, other));
  }
  MUST(cudaStreamSynchronize(other));
  for (int i = 0; i < DEVICE_ROUNDS; i++) wrong += wrong_words(results + (size_t)i * DEVICE_WORDS, DEVICE_WORDS, 1001);
  MUST(cudaFreeHost(source));
  MUST(cudaFreeHost(results));
  MUST(cudaEventDestroy(event));
  return wrong;
}

/* Allocated and freed inside the capture, which makes nodes of both; beside it cudaMalloc and cudaFree. */
static uint64_t device_captures(cudaStream_t stream) {
  uint64_t wrong = 0;
  uint32_t *source, *back, *block, *beside;
  size_t bytes = DEVICE_WORDS * sizeof *source;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  MUST(cudaMallocHost((void **)&source, bytes));
  MUST(cudaMallocHost((void **)&back, bytes));
  words_fill(source, DEVICE_WORDS, 7);
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  MUST(cudaMallocAsync((void **)&block, bytes, stream));
  kernel_launch(block, source, DEVICE_WORDS, 200000, stream);
  MUST(cudaMemcpyAsync(back, block, bytes, cudaMemcpyDeviceToHost, stream));
  MUST(cudaFreeAsync(block, stream));
  for (int i = 0; i < 40; i++) {
    MUST(cudaMalloc((void **)&beside, bytes));
    MUST(cudaFree(beside));
  }
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 10; i++) MUST(cudaGraphLaunch(exec, stream));
  MUST(cudaStreamSynchronize(stream));
  wrong += wrong_words(back, DEVICE_WORDS, 8);
  MUST(cudaGraphExecDestroy(exec));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaFreeHost(source));
  MUST(cudaFreeHost(back));
  return wrong;
}

static void *device_thread(void *number) {
  cudaStream_t stream, other;
  uint64_t wrong;
  MUST(cudaSetDevice(0));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  wrong = freed_in_use(stream, other, (int)((uintptr_t)number % 2));
  MUST(cudaStreamDestroy(stream));
  MUST(cudaStreamDestroy(other));
  return (void *)(uintptr_t)wrong;
}

static uint64_t device_threads(void) {
  enum { THREADS = 4 };
  pthread_t all[THREADS];
  uint64_t wrong = 0;
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, device_thread, (void *)i);
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(all[i], &result);
    wrong += (uintptr_t)result;
  }
  return wrong;
}

static int device_work(void) {
  cudaStream_t stream, other;
  void *lost;
  MUST(cudaSetDevice(0));
  kernel_load();
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  printf("cudaFree of memory in use: %llu wrong\n", (unsigned long long)freed_in_use(stream, other, 0));
  printf("on the default stream: %llu wrong\n", (unsigned long long)freed_in_use(NULL, other, 0));
  printf("cudaFreeAsync of memory in use: %llu wrong\n", (unsigned long long)freed_in_use(stream, other, 1));
  printf("on another stream: %llu wrong\n", (unsigned long long)freed_elsewhere(stream, other));
  printf("captures: %llu wrong\n", (unsigned long long)device_captures(stream));
  printf("threads: %llu wrong\n", (unsigned long long)device_threads());
  MUST(cudaStreamDestroy(stream));
  MUST(cudaStreamDestroy(other));
  MUST(cudaMalloc(&lost, MIB));
  MUST(cudaDeviceReset());
  printf("copies after a reset: %llu wrong\n", (unsigned long long)copies(5));
  MUST(cudaMalloc(&lost, MIB)); /* the process ends with it */
  return 0;
}

static int device_loop(size_t bytes, int stream_count, int rounds, int wait) {
  enum { STREAMS = 64, WARM_UP = 64 };
  cudaStream_t streams[STREAMS];
  uint64_t calls_ns = 0, start = 0;
  MUST(cudaSetDevice(0));
  for (int i = 0; i < stream_count; i++) MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  for (int i = -WARM_UP; i < rounds; i++) {
    void *block;
    int at = (i + WARM_UP) % stream_count;
    if (i == 0) {
      MUST(cudaDeviceSynchronize());
      start = now_ns();
    }
    for (int s = 0; wait > 0 && (i + WARM_UP) % wait == 0 && s < stream_count; s++)
      MUST(cudaStreamSynchronize(streams[s]));
    uint64_t before = now_ns();
    MUST(cudaMalloc(&block, bytes));
    uint64_t between = now_ns();
    MUST(cudaMemsetAsync(block, i, bytes, streams[at]));
    uint64_t again = now_ns();
    MUST(cudaFree(block));
    if (i >= 0) calls_ns += between - before + now_ns() - again;
  }
  MUST(cudaDeviceSynchronize());
  uint64_t all_ns = now_ns() - start;
  printf("%zu %d %d %d %.0f %.0f 0\n", bytes, stream_count, rounds, wait, (double)calls_ns / rounds,
         (double)all_ns / rounds);
  return 0;
}

/* ---- bandwidth --------------------------------------------------------------------------------------------------- */

static double copy_gb_per_s(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  enum { COPIES = 20 };
  uint64_t best = UINT64_MAX;
  for (int i = 0; i < COPIES; i++) {
    uint64_t start = now_ns();
    MUST(cudaMemcpyAsync(to, from, bytes, kind, NULL));
    MUST(cudaStreamSynchronize(NULL));
    uint64_t ns = now_ns() - start;
    best = ns < best ? ns : best;
  }
  return (double)bytes / (double)best;
}

static int bandwidth(void) {
  const size_t bytes = 256 * MIB;
  void *host, *device;
  MUST(cudaMallocHost(&host, bytes));
  MUST(cudaMalloc(&device, bytes));
  memset(host, 1, bytes);
  double up = copy_gb_per_s(device, host, bytes, cudaMemcpyHostToDevice);
  double down = copy_gb_per_s(host, device, bytes, cudaMemcpyDeviceToHost);
  printf("%.2f %.2f\n", up, down);
  MUST(cudaFree(device));
  MUST(cudaFreeHost(host));
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "answers") == 0) return answers();
  if (strcmp(what, "work") == 0) return work();
  if (strcmp(what, "device_answers") == 0) return device_answers();
  if (strcmp(what, "device_work") == 0) return device_work();
  if (strcmp(what, "bandwidth") == 0) return bandwidth();
  if (strcmp(what, "device_loop") == 0 && argc == 6)
    return device_loop(strtoull(argv[2], NULL, 10), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
  if (strcmp(what, "loop") == 0 && argc == 6)
    return loop(strtoull(argv[2], NULL, 10), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
  fprintf(stderr, "usage: program answers | work | device_answers | device_work | bandwidth |\n"
                  "       loop BYTES STREAMS ROUNDS WAIT | device_loop BYTES STREAMS ROUNDS WAIT\n");
  return 2;
}
