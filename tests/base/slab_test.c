/* SPDX-License-Identifier: Apache-2.0 */
/* Slab: records stay where and what they are; generations tell live from free. */
#include "base/slab.h"

#include <pthread.h>

#include "tests/shim/lade_test.h"

typedef struct record {
  ladei_slab_head head;
  _Atomic(uint64_t) payload;
  uint64_t more[2];
} record;

enum { MANY = 5000 };

LADE_TEST(Slab, RecordsAreDistinctAlignedAndFoundByIndex) {
  ladei_slab slab;
  ladei_slab_init(&slab, sizeof(record));
  static record *records[MANY];
  for (uint32_t i = 0; i < MANY; i++) {
    records[i] = ladei_slab_alloc(&slab);
    LADE_ASSERT(records[i] != NULL);
    LADE_EXPECT_EQ_UINT((uintptr_t)records[i] % 8, 0);
    LADE_EXPECT_EQ_UINT(records[i]->payload, 0);
    records[i]->payload = i + 1;
  }
  for (uint32_t i = 0; i < MANY; i++) {
    LADE_EXPECT_EQ_UINT(records[i]->payload, i + 1);
    LADE_EXPECT_EQ_UINT(ladei_slab_index(records[i]), i);
    LADE_EXPECT_EQ_PTR(ladei_slab_at(&slab, i), records[i]);
  }
  LADE_EXPECT_EQ_UINT(slab.fresh, MANY);
  ladei_slab_destroy(&slab);
}

LADE_TEST(Slab, GenerationIsOddWhileLiveAndNeverComesBack) {
  ladei_slab slab;
  ladei_slab_init(&slab, sizeof(record));
  record *first = ladei_slab_alloc(&slab);
  LADE_ASSERT(first != NULL);
  uint32_t last = 0;
  for (int i = 0; i < 100; i++) {
    uint32_t live = ladei_slab_generation(first);
    LADE_EXPECT(ladei_slab_generation_live(live));
    LADE_EXPECT_GT_UINT(live, last);
    ladei_slab_free(&slab, first);
    last = ladei_slab_generation(first);
    LADE_EXPECT(!ladei_slab_generation_live(last));
    LADE_EXPECT_GT_UINT(last, live);
    LADE_EXPECT_EQ_PTR(ladei_slab_alloc(&slab), first); /* the one freed last */
  }
  ladei_slab_destroy(&slab);
}

LADE_TEST(Slab, FreedRecordsKeepTheirBytes) {
  ladei_slab slab;
  ladei_slab_init(&slab, sizeof(record));
  record *one = ladei_slab_alloc(&slab), *two = ladei_slab_alloc(&slab);
  LADE_ASSERT(one != NULL && two != NULL);
  one->payload = 11;
  two->payload = 22;
  ladei_slab_free(&slab, one);
  ladei_slab_free(&slab, two);
  LADE_EXPECT_EQ_UINT(one->payload, 11);
  LADE_EXPECT_EQ_UINT(two->payload, 22);
  ladei_slab_destroy(&slab);
}

LADE_TEST(Slab, ReserveMakesRoomSoThatAllocsNeedNoMemory) {
  ladei_slab slab;
  ladei_slab_init(&slab, sizeof(record));
  LADE_ASSERT(ladei_slab_reserve(&slab, 1000));
  uint32_t capacity = slab.capacity;
  LADE_EXPECT_GE_UINT(capacity, 1000);
  for (int i = 0; i < 1000; i++) LADE_EXPECT(ladei_slab_alloc(&slab) != NULL);
  LADE_EXPECT_EQ_UINT(slab.capacity, capacity);
  ladei_slab_destroy(&slab);
}

LADE_TEST(Slab, NoRecordAtIndicesBeyondIt) {
  ladei_slab slab;
  ladei_slab_init(&slab, sizeof(record));
  LADE_EXPECT(ladei_slab_at(&slab, 0) == NULL);
  LADE_ASSERT(ladei_slab_alloc(&slab) != NULL);
  LADE_EXPECT(ladei_slab_at(&slab, 0) != NULL);
  LADE_EXPECT(ladei_slab_at(&slab, LADEI_SLAB_FIRST) == NULL);
  LADE_EXPECT(ladei_slab_at(&slab, LADEI_SLAB_NONE) == NULL);
  ladei_slab_destroy(&slab);
}

/* A reader holds (index, generation) and looks while the owner frees and reuses: he never sees a live generation that
 * is its own with a payload that is not. */
typedef struct reader_state {
  ladei_slab slab;
  _Atomic(uint64_t) handle; /* index << 32 | generation */
  _Atomic(bool) stop;
  uint64_t mismatches;
} reader_state;

static void *read_handles(void *argument) {
  reader_state *state = argument;
  while (!atomic_load(&state->stop)) {
    uint64_t handle = atomic_load(&state->handle);
    record *found = ladei_slab_at(&state->slab, (uint32_t)(handle >> 32));
    if (found == NULL) continue;
    uint64_t payload = atomic_load(&found->payload);
    if (ladei_slab_generation(found) == (uint32_t)handle && payload != handle) state->mismatches++;
  }
  return NULL;
}

LADE_TEST(Slab, StaleHandlesAreRecognisedWhileRecordsAreReused) {
  static reader_state state;
  ladei_slab_init(&state.slab, sizeof(record));
  atomic_store(&state.stop, false);
  atomic_store(&state.handle, (uint64_t)LADEI_SLAB_NONE << 32);
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, read_handles, &state), 0);
  record *held[200] = {NULL};
  for (int i = 0; i < 20000; i++) {
    record **slot = &held[i % 200];
    if (*slot != NULL) ladei_slab_free(&state.slab, *slot);
    record *fresh = ladei_slab_alloc(&state.slab);
    uint64_t handle = (uint64_t)ladei_slab_index(fresh) << 32 | ladei_slab_generation(fresh);
    atomic_store(&fresh->payload, handle);
    atomic_store(&state.handle, handle);
    *slot = fresh;
  }
  atomic_store(&state.stop, true);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_UINT(state.mismatches, 0);
  ladei_slab_destroy(&state.slab);
}
