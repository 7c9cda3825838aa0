/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts of the queues that builds without NDEBUG check: their lock, and the steps of a use from state to state. */
#include "runtime/retire/retire_queue.h"

#include "tests/runtime/retire_fixture.h"
#include "tests/support/stopped.h"

static const ladei_stream stream = {.context = 1, .id = 77};

static void find(void *user) { (void)ladei_retire_queue_find(user, LADEI_RETIRE_QUEUE_STREAM, 1, 77); }

static void find_locked(void *user) {
  ladei_retire *retire = user;
  ladei_lock_acquire(&retire->lock);
  find(retire);
}

/* ---- States of a use --------------------------------------------------------------------------------------------- */

static ladei_retire_ticket ticket;

static ladei_retire_queue *queue_get(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  return ladei_retire_queue_need(retire, LADEI_RETIRE_QUEUE_STREAM, &stream);
}

static void append(void *user) {
  ladei_retire_queue *queue = queue_get(user);
  ladei_retire_queue_append(user, queue, ladei_retire_use_make(user, &ticket, queue));
}

static void append_twice(void *user) {
  ladei_retire_queue *queue = queue_get(user);
  ladei_retire_use *use = ladei_retire_use_make(user, &ticket, queue);
  ladei_retire_queue_append(user, queue, use);
  ladei_retire_queue_append(user, queue, use);
}

static void append_freed(void *user) {
  ladei_retire_queue *queue = queue_get(user);
  ladei_retire_use *use = ladei_retire_use_make(user, &ticket, queue);
  ladei_retire_use_free(user, use);
  ladei_retire_queue_append(user, queue, use);
}

static void mark_noted(void *user) {
  ladei_retire_queue *queue = queue_get(user);
  ladei_retire_queue_mark(queue, ladei_retire_use_make(user, &ticket, queue), NULL, 0);
}

/* In a retire object of its own. */
static bool stops(void (*body)(void *user)) {
  static fixture own;
  (void)fixture_open(&own, NULL);
  bool stopped = support_stopped(body, own.retire);
  fixture_close(&own);
  return stopped;
}

LADE_TEST(RetireQueue, CallWithoutTheLockStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check locks");
#endif
  LADE_EXPECT(!stops(find_locked));
  LADE_EXPECT(stops(find));
}

LADE_TEST(RetireQueue, StepOfAUseThatIsNotDrawnStopsTheProgram) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check states");
#endif
  LADE_EXPECT(!stops(append));
  LADE_EXPECT(stops(append_twice));
  LADE_EXPECT(stops(append_freed));
  LADE_EXPECT(stops(mark_noted));
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

typedef struct identity {
  uint64_t order, context, id;
  ladei_retire_queue_kind kind;
} identity;

static bool identity_is_before(const identity *a, const identity *b) {
  if (a->order != b->order) return a->order < b->order;
  if (a->context != b->context) return a->context < b->context;
  if (a->id != b->id) return a->id < b->id;
  return a->kind < b->kind;
}

static identity identity_make(unsigned number) {
  /* An address, and ids of all kinds: runtime/cuda tells those in their highest two bits. */
  static const uint64_t orders[] = {0, 7, UINT64_MAX}, contexts[] = {0, 1, 2, 0x00007fffdeadbee0};
  static const uint64_t ids[] = {0, 1, 5, UINT64_C(1) << 62, UINT64_C(2) << 62, (UINT64_C(3) << 62) + 5, UINT64_MAX};
  enum { ORDERS = 3, CONTEXTS = 4, IDS = 7 };
  return (identity){.order = orders[number / (CONTEXTS * IDS * 4) % ORDERS],
                    .context = contexts[number / (IDS * 4) % CONTEXTS],
                    .id = ids[number / 4 % IDS],
                    .kind = (ladei_retire_queue_kind)(number % 4)};
}

LADE_TEST(RetireQueue, PlacesAreByOrderContextIdAndKind) {
  enum { IDENTITIES = 3 * 4 * 7 * 4 };
  static ladei_retire_queue queues[IDENTITIES];
  for (unsigned i = 0; i < IDENTITIES; i++) {
    identity own = identity_make(i);
    const ladei_stream named = {.context = own.context, .id = own.id};
    ladei_retire_queue_init(&queues[i], own.kind, &named, own.order);
  }
  for (unsigned i = 0; i < IDENTITIES; i++) {
    for (unsigned k = 0; k < IDENTITIES; k++) {
      identity left = identity_make(i), right = identity_make(k);
      lade_test_context("%u, %u", i, k);
      LADE_ASSERT(ladei_retire_queue_is_before(&queues[i], &queues[k]) == identity_is_before(&left, &right));
    }
  }
}
