/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: what holds for pinned and for device memory alike. */
#include "tests/preload/cases.h"

#include <sys/wait.h>
#include <unistd.h>

/* ---- Kinds of memory --------------------------------------------------------------------------------------------- */

static CUresult pinned_alloc(const program *as, uintptr_t *out, size_t bytes, CUstream stream) {
  (void)stream;
  return as->host_alloc((void **)out, bytes, 0);
}
static CUresult pinned_free(const program *as, uintptr_t block, CUstream stream) {
  (void)stream;
  return as->free_host((void *)block);
}

static CUresult device_alloc(const program *as, uintptr_t *out, size_t bytes, CUstream stream) {
  CUdeviceptr block = 0;
  (void)stream;
  CUresult code = as->mem_alloc(&block, bytes);
  *out = (uintptr_t)block;
  return code;
}
static CUresult device_free(const program *as, uintptr_t block, CUstream stream) {
  (void)stream;
  return as->mem_free(block);
}

static CUresult ordered_alloc(const program *as, uintptr_t *out, size_t bytes, CUstream stream) {
  CUdeviceptr block = 0;
  CUresult code = as->mem_alloc_async(&block, bytes, stream);
  *out = (uintptr_t)block;
  return code;
}
static CUresult ordered_free(const program *as, uintptr_t block, CUstream stream) {
  return as->mem_free_async(block, stream);
}

const memory pinned_memory = {pinned_alloc, pinned_free, "cuMemHostAlloc", "cuMemFreeHost"};
const memory device_memory = {device_alloc, device_free, "cuMemAlloc", "cuMemFree"};
const memory ordered_memory = {ordered_alloc, ordered_free, "cuMemAllocAsync", "cuMemFreeAsync"};

/* ---- Reuse ------------------------------------------------------------------------------------------------------- */

static uintptr_t taken(const memory *of, const program *as, size_t bytes, CUstream stream) {
  uintptr_t block = 0;
  LADE_CU(of->alloc(as, &block, bytes, stream));
  LADE_EXPECT_NE_UINT(block, 0);
  return block;
}

bool handed_out(const memory *of, const program *as, uintptr_t block, size_t bytes, CUstream stream, int tries) {
  uintptr_t others[TRIES];
  int count = 0;
  bool found = false;
  while (!found && count < tries && count < TRIES) {
    others[count] = taken(of, as, bytes, stream);
    found = others[count++] == block;
  }
  for (int i = 0; i < count; i++) LADE_CU(of->free(as, others[i], stream));
  return found;
}

void free_waits_at_the_limit(const memory *of, void (*use)(uintptr_t block, CUstream stream, void *user), void *user) {
  enum { BLOCKS = 12 };
  uintptr_t blocks[BLOCKS];
  CUstream stream = stream_make();
  pthread_t thread;
  hold held;
  for (int i = 0; i < BLOCKS; i++) blocks[i] = taken(of, &cuda, 2 * MIB, NULL);
  hold_begin(&held, &cuda, stream);
  for (int i = 0; i < BLOCKS; i++) use(blocks[i], stream, user);
  for (int i = 0; i < BLOCKS / 2; i++) LADE_CU(of->free(&cuda, blocks[i], NULL));
  LADE_EXPECT(!atomic_load(&held.is_released)); /* below the limit: at once */
  pthread_create(&thread, NULL, hold_end_later, &held);
  for (int i = BLOCKS / 2; i < BLOCKS; i++) LADE_CU(of->free(&cuda, blocks[i], NULL));
  LADE_EXPECT(atomic_load(&held.is_released));
  pthread_join(thread, NULL);
  LADE_CU(cuda.stream_synchronize(stream));
  LADE_CU(cuda.stream_destroy(stream));
}

/* ---- Contexts, processes ----------------------------------------------------------------------------------------- */

void other_contexts_pass(const memory *of) {
  CUcontext first, own;
  LADE_CU(cuda.ctx_get_current(&first));
  uintptr_t block = taken(of, &cuda, MIB, NULL);
  LADE_CU(cuda.ctx_create(&own, 0, 0));
  uint64_t allocs = hooks->calls(of->alloc_name), frees = hooks->calls(of->free_name);
  uintptr_t passed = taken(of, &cuda, MIB, NULL);
  LADE_EXPECT_EQ_UINT(hooks->calls(of->alloc_name), allocs + 1); /* the driver's, and freed by it */
  LADE_CU(of->free(&cuda, block, NULL));
  LADE_CU(of->free(&cuda, passed, NULL));
  LADE_EXPECT_EQ_UINT(hooks->calls(of->free_name), frees + 1);
  LADE_CU(cuda.ctx_destroy(own));
  LADE_CU(cuda.ctx_set_current(first));
  LADE_EXPECT(handed_out(of, &cuda, block, MIB, NULL, TRIES));
}

static void *call_often(void *user) {
  atomic_bool *ends = user;
  CUcontext current;
  while (!atomic_load(ends)) LADE_CU(cuda.ctx_get_current(&current));
  return NULL;
}

/* Beside a thread that calls the driver, which may hold the locks of the loopback driver in the moment of the fork. */
void child_asks_the_driver(const memory *of, uintptr_t block) {
  atomic_bool ends = false;
  pthread_t calls;
  LADE_ASSERT(pthread_create(&calls, NULL, call_often, &ends) == 0);
  for (int i = 0; i < 20; i++) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
      alarm(60); /* one that hangs is a failure */
      uint64_t before = hooks->calls(of->free_name);
      bool refused = of->free(&cuda, block, NULL) != CUDA_SUCCESS;
      _exit(refused && hooks->calls(of->free_name) == before + 1 ? 0 : 1);
    }
    LADE_EXPECT_EQ_INT((int)waitpid(child, &status, 0), (int)child);
    LADE_EXPECT_EQ_INT(status, 0);
  }
  atomic_store(&ends, true);
  pthread_join(calls, NULL);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct one_block {
  const memory *of;
  pthread_barrier_t ready;
  CUcontext context;
  uintptr_t block;
  atomic_int freed;
} one_block;

static void *free_one(void *user) {
  one_block *own = user;
  if (own->context != NULL) LADE_CU(cuda.ctx_set_current(own->context));
  pthread_barrier_wait(&own->ready);
  if (own->of->free(&cuda, own->block, NULL) == CUDA_SUCCESS) atomic_fetch_add(&own->freed, 1);
  return NULL;
}

void one_of_two_frees_wins(const memory *of, CUcontext context) {
  for (int i = 0; i < 40; i++) {
    one_block shared = {.of = of, .context = context, .block = taken(of, &cuda, SMALL, NULL)};
    pthread_t threads[2];
    pthread_barrier_init(&shared.ready, NULL, 2);
    for (int t = 0; t < 2; t++) pthread_create(&threads[t], NULL, free_one, &shared);
    for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    LADE_EXPECT_EQ_INT(atomic_load(&shared.freed), 1);
    pthread_barrier_destroy(&shared.ready);
  }
}

void workers_run(worker_work *const works[THREADS]) {
  worker workers[THREADS];
  CUcontext context;
  LADE_CU(cuda.ctx_get_current(&context));
  for (int i = 0; i < THREADS; i++) {
    workers[i].context = context;
    workers[i].number = i;
    pthread_create(&workers[i].thread, NULL, works[i], &workers[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
}
