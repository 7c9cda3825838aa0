/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases that hold for pinned and for device memory alike. Each is the body of a test between START and finish().
 */
#ifndef LADE_TESTS_PRELOAD_CASES_H
#define LADE_TESTS_PRELOAD_CASES_H

#include <pthread.h>

#include "tests/preload/fixture.h"

/* A kind of memory: an alloc and a free of the driver's, and what they are called. */
typedef struct memory {
  CUresult (*alloc)(const program *as, uintptr_t *out, size_t bytes, CUstream stream);
  CUresult (*free)(const program *as, uintptr_t block, CUstream stream);
  const char *alloc_name, *free_name;
} memory;

extern const memory pinned_memory;  /* cuMemHostAlloc; the stream counts for nothing */
extern const memory device_memory;  /* cuMemAlloc; the same */
extern const memory ordered_memory; /* cuMemAllocAsync, cuMemFreeAsync */

/* Whether one of the next blocks of the size is this one. Few tries while a stream is held: a free waits where much is pending. */
enum { TRIES = 64, TRIES_WHILE_HELD = 6 };
bool handed_out(const memory *of, const program *as, uintptr_t block, size_t bytes, CUstream stream, int tries);

/* A free waits where more is pending than LADE_PRELOAD_PENDING_BYTES. `use` queues work with 2 MiB of a block on the stream. */
void free_waits_at_the_limit(const memory *of, void (*use)(uintptr_t block, CUstream stream, void *user), void *user);
/* Under a context that is no primary one the driver serves. */
void other_contexts_pass(const memory *of);
/* B1 of preload/blocks.h. Threads free under the context; NULL: under none. */
void one_of_two_frees_wins(const memory *of, CUcontext context);
/* A child process that frees the block gets what the driver says. */
void child_asks_the_driver(const memory *of, uintptr_t block);

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 60 };
typedef struct worker {
  pthread_t thread;
  CUcontext context; /* the caller's, to be made current */
  int number;
} worker;

/* A thread for each function, which gets its worker; until all have ended. */
typedef void *worker_work(void *user);
void workers_run(worker_work *const works[THREADS]);

#endif /* LADE_TESTS_PRELOAD_CASES_H */
