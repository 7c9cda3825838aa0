/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/group/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

void ranks_name(char *out, size_t bytes) {
  uint64_t number = 0;
  LADE_EXPECT_EQ_INT(getentropy(&number, sizeof number), 0); /* process numbers repeat in sandboxes */
  (void)snprintf(out, bytes, "test-%016llx", (unsigned long long)number);
}

typedef struct rank_thread {
  ranks_one one;
  const char *name;
} rank_thread;

static lade_status local_make(ranks_one *one, const char *name, lade_group **out) {
  lade_group_local_options options;
  lade_group_local_options_init(&options);
  options.name = name;
  options.rank = one->rank;
  options.size = one->plan->size;
  options.timeout_ns = UINT64_C(20000000000);
  options.slot_bytes = 4096;
  options.slots = 3;
  if (one->plan->tune != NULL) one->plan->tune(one, &options);
  return lade_group_create_local(one->runtime, &options, out);
}

static void *rank_main(void *user) {
  rank_thread *thread = user;
  ranks_one *one = &thread->one;
  one->runtime = support_runtime_open_with(one->plan->runtime, one->plan->runtime_options);
  if (one->runtime == NULL) return NULL;
  LADE_EXPECT_OK(lade_stream_create(one->runtime, 0, &one->stream));
  one->made = (one->plan->make != NULL ? one->plan->make : local_make)(one, thread->name, &one->group);
  if (one->made != LADE_OK) (void)snprintf(one->made_text, sizeof one->made_text, "%s", lade_last_error()->text);
  if (!one->plan->alone) {
    LADE_EXPECT_EQ_INT(one->made, LADE_OK);
    if (one->made != LADE_OK) LADE_FAIL("rank %u: %s", (unsigned)one->rank, one->made_text);
  }
  if (one->group != NULL || one->plan->alone) one->plan->body(one);
  LADE_EXPECT_OK(lade_group_destroy(one->group));
  if (one->plan->end != NULL) one->plan->end(one);
  LADE_EXPECT_OK(lade_stream_destroy(one->runtime, one->stream));
  support_runtime_close(one->runtime);
  return NULL;
}

void ranks_run(const ranks_plan *plan) {
  static rank_thread none;
  char name[64];
  pthread_t threads[RANKS_MOST];
  rank_thread *ranks = calloc(plan->size, sizeof *ranks);
  LADE_ASSERT(ranks != NULL && plan->size <= RANKS_MOST);
  ranks_name(name, sizeof name);
  for (uint32_t i = 0; i < plan->size; i++) {
    ranks[i] = none;
    ranks[i].one.plan = plan;
    ranks[i].one.rank = i;
    ranks[i].name = name;
    LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
  }
  for (uint32_t i = 0; i < plan->size; i++) (void)pthread_join(threads[i], NULL);
  free(ranks);
}

void *ranks_device_memory(ranks_one *one, uint64_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(one->runtime->ops->device_alloc(one->runtime->self, 0, bytes, &memory));
  return memory;
}

void ranks_device_free(ranks_one *one, void *memory) {
  LADE_EXPECT_OK(one->runtime->ops->device_free(one->runtime->self, 0, memory));
}

static unsigned char byte_at(uint64_t place, uint32_t seed) {
  return (unsigned char)((place * UINT64_C(0x9E3779B97F4A7C15) + seed * UINT64_C(0xD1B54A32D192ED03)) >> 56);
}

void ranks_device_fill(ranks_one *one, void *memory, uint64_t first, uint64_t bytes, uint32_t seed) {
  unsigned char *data = malloc(bytes);
  LADE_ASSERT(data != NULL);
  for (uint64_t i = 0; i < bytes; i++) data[i] = byte_at(first + i, seed);
  LADE_EXPECT_OK(one->runtime->ops->copy_sync(one->runtime->self, 0, LADEI_COPY_H2D, memory, data, bytes));
  free(data);
}

void ranks_device_expect(ranks_one *one, const void *memory, uint64_t first, uint64_t bytes, uint32_t seed) {
  unsigned char *data = malloc(bytes);
  LADE_ASSERT(data != NULL);
  LADE_EXPECT_OK(one->runtime->ops->copy_sync(one->runtime->self, 0, LADEI_COPY_D2H, data, memory, bytes));
  uint64_t i = 0;
  while (i < bytes && data[i] == byte_at(first + i, seed)) i++;
  if (i < bytes)
    LADE_FAIL("rank %u: byte %llu of %llu from %llu, seed %u, differs", (unsigned)one->rank, (unsigned long long)i,
              (unsigned long long)bytes, (unsigned long long)first, (unsigned)seed);
  free(data);
}
