/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts of the heap that builds without NDEBUG check: its lock, and the steps of a block from state to state. */
#include "device/heap/heap.h"

#include "tests/shim/lade_test.h"
#include "tests/support/stopped.h"

/* ---- The lock ---------------------------------------------------------------------------------------------------- */

static void reserve(void *user) { (void)ladei_device_heap_reserve_more(user, 1); }

static void reserve_locked(void *user) {
  ladei_lock lock;
  ladei_device_heap *heap = user;
  ladei_lock_init(&lock, LADEI_RANK_DEVICE);
  heap->lock = &lock;
  ladei_lock_acquire(&lock);
  reserve(heap);
}

LADE_TEST(DeviceHeap, ChangeWithoutItsLockStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check locks");
#endif
  ladei_lock lock;
  ladei_device_heap heap;
  ladei_lock_init(&lock, LADEI_RANK_DEVICE);
  ladei_device_heap_init(&heap);
  LADE_EXPECT(!support_stopped(reserve, &heap)); /* one that a thread has alone */
  LADE_EXPECT(!support_stopped(reserve_locked, &heap));
  heap.lock = &lock;
  LADE_EXPECT(support_stopped(reserve, &heap));
  ladei_device_heap_destroy(&heap);
}

/* ---- States of a block ------------------------------------------------------------------------------------------- */

typedef struct step {
  ladei_device_block_state from, to;
} step;

/* As drawn in heap.h. */
static bool step_is_drawn(step s) {
  static const step drawn[] = {
      {LADEI_DEVICE_HEAP_BUSY, LADEI_DEVICE_HEAP_FREE},      {LADEI_DEVICE_HEAP_BUSY, LADEI_DEVICE_HEAP_HOLE},
      {LADEI_DEVICE_HEAP_FREE, LADEI_DEVICE_HEAP_BUSY},      {LADEI_DEVICE_HEAP_HOLE, LADEI_DEVICE_HEAP_BUSY},
      {LADEI_DEVICE_HEAP_BUSY, LADEI_DEVICE_HEAP_ALLOCATED}, {LADEI_DEVICE_HEAP_ALLOCATED, LADEI_DEVICE_HEAP_BUSY},
      {LADEI_DEVICE_HEAP_BUSY, LADEI_DEVICE_HEAP_PENDING},   {LADEI_DEVICE_HEAP_PENDING, LADEI_DEVICE_HEAP_BUSY},
      {LADEI_DEVICE_HEAP_BUSY, LADEI_DEVICE_HEAP_DEFERRED},  {LADEI_DEVICE_HEAP_DEFERRED, LADEI_DEVICE_HEAP_PENDING},
      {LADEI_DEVICE_HEAP_BUSY, LADEI_DEVICE_HEAP_RECENT},    {LADEI_DEVICE_HEAP_RECENT, LADEI_DEVICE_HEAP_BUSY},
  };
  bool found = false;
  for (size_t i = 0; i < sizeof drawn / sizeof drawn[0]; i++)
    found = found || (drawn[i].from == s.from && drawn[i].to == s.to);
  return found;
}

static void step_take(void *user) {
  const step *s = user;
  static ladei_device_block block;
  block.state = (uint8_t)s->from;
  block.mapped = s->to != LADEI_DEVICE_HEAP_HOLE;
  ladei_device_block_state_set(&block, s->to);
}

LADE_TEST(DeviceHeap, StepOfABlockThatIsNotDrawnStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check states");
#endif
  for (int from = LADEI_DEVICE_HEAP_FREE; from <= LADEI_DEVICE_HEAP_RECENT; from++) {
    for (int to = LADEI_DEVICE_HEAP_FREE; to <= LADEI_DEVICE_HEAP_RECENT; to++) {
      step s = {(ladei_device_block_state)from, (ladei_device_block_state)to};
      lade_test_context("from state %d to %d", from, to);
      LADE_EXPECT_EQ_INT(support_stopped(step_take, &s), !step_is_drawn(s));
    }
  }
  lade_test_context("%s", "");
}

static void hand_out_hole(void *user) {
  static ladei_device_block block;
  (void)user;
  block.state = LADEI_DEVICE_HEAP_BUSY;
  block.mapped = false;
  ladei_device_block_state_set(&block, LADEI_DEVICE_HEAP_ALLOCATED);
}

LADE_TEST(DeviceHeap, HandingOutAddressesWithoutMemoryStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check states");
#endif
  LADE_EXPECT(support_stopped(hand_out_hole, NULL));
}
