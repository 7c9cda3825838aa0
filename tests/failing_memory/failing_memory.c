/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/failing_memory/failing_memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

static _Atomic(uint64_t) allocations, fails_at;
static _Atomic(bool) of_all, resting;
static _Thread_local bool of_thread;

static bool fails(void) {
  if (!of_thread && !atomic_load_explicit(&of_all, memory_order_relaxed)) return false;
  if (atomic_load_explicit(&resting, memory_order_relaxed)) return false;
  return atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&fails_at);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *memory, size_t bytes) { return fails() ? NULL : __real_realloc(memory, bytes); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  return fails() ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, file, offset);
}

void failing_memory_fail(uint64_t k, failing_memory_whose whose) {
  atomic_store(&allocations, 0);
  atomic_store(&fails_at, k);
  of_thread = whose == FAILING_MEMORY_OF_THREAD;
  atomic_store(&of_all, whose == FAILING_MEMORY_OF_ALL);
}

void failing_memory_rest(bool rests) { atomic_store(&resting, rests); }

uint64_t failing_memory_whole(void) {
  atomic_store(&of_all, false);
  of_thread = false;
  return atomic_load(&allocations);
}
