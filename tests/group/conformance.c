/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every group does, whatever carries the bytes: each test runs with each implementation that the program is linked with.
 */
#include "tests/group/conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"

/* Sizes around those of slots, which have 4 KiB: one, several, one byte more and less, more than all slots hold. */
static const uint64_t sizes[] = {1, 4095, 4096, 4097, 8192, 3 * 4096, 5 * 4096 + 17, 100000};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* --- broadcast ---------------------------------------------------------------------------------------------------- */

void conformance_broadcasts(ranks_one *one) {
  uint32_t size = one->plan->size;
  void *memory = ranks_device_memory(one, 100000);
  for (uint32_t turn = 0; turn < SIZES * 2; turn++) {
    uint64_t bytes = sizes[turn % SIZES];
    uint32_t root = turn * 7 % size;
    ranks_device_fill(one, memory, 0, bytes, one->rank == root ? turn : 1000 + turn);
    LADE_EXPECT_OK(lade_group_broadcast(one->group, memory, bytes, root, one->stream));
    LADE_EXPECT_OK(lade_stream_synchronize(one->runtime, one->stream));
    ranks_device_expect(one, memory, 0, bytes, turn);
  }
  ranks_device_free(one, memory);
}

LADE_TEST_P(Group, BroadcastsFromEachRank, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = conformance_broadcasts});
}

/* --- scatter ------------------------------------------------------------------------------------------------------ */

/* Part of a rank in a turn: uneven, some empty, some longer than a slot. */
static uint64_t part_bytes(uint32_t rank, uint32_t turn) {
  static const uint64_t lengths[] = {0, 1, 5000, 4096, 0, 12289, 4095};
  return turn == 0 ? 4096 : lengths[(rank * 3 + turn) % 7];
}

static void scatter_body(ranks_one *one) {
  uint32_t size = one->plan->size;
  void *from = ranks_device_memory(one, 20000 * RANKS_MOST), *to = ranks_device_memory(one, 20000);
  for (uint32_t turn = 0; turn < 14; turn++) {
    uint64_t parts[RANKS_MOST], total = 0, before = 0;
    uint32_t root = turn * 5 % size;
    for (uint32_t i = 0; i < size; i++) {
      parts[i] = part_bytes(i, turn);
      if (i == one->rank) before = total;
      total += parts[i];
    }
    if (total > 0) ranks_device_fill(one, from, 0, total, one->rank == root ? turn : 1000 + turn);
    LADE_EXPECT_OK(lade_group_scatter(one->group, from, parts, to, root, one->stream));
    LADE_EXPECT_OK(lade_stream_synchronize(one->runtime, one->stream));
    if (parts[one->rank] > 0) ranks_device_expect(one, to, before, parts[one->rank], turn);
  }
  ranks_device_free(one, from);
  ranks_device_free(one, to);
}

LADE_TEST_P(Group, ScattersUnevenParts, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = scatter_body});
}

/* --- records ------------------------------------------------------------------------------------------------------ */

void conformance_gathers(ranks_one *one) {
  uint32_t size = one->plan->size;
  char *all = malloc((size_t)size * LADE_GROUP_RECORD_BYTES), record[LADE_GROUP_RECORD_BYTES];
  for (uint32_t turn = 0; turn < 20; turn++) {
    size_t bytes = turn % 2 == 0 ? 8 : LADE_GROUP_RECORD_BYTES;
    memset(record, (int)(one->rank * 3 + turn), bytes);
    LADE_EXPECT_OK(lade_group_gather(one->group, record, bytes, all));
    for (uint32_t i = 0; i < size; i++) {
      LADE_EXPECT_EQ_INT((unsigned char)all[i * bytes], (unsigned char)(i * 3 + turn));
      LADE_EXPECT_EQ_INT((unsigned char)all[i * bytes + bytes - 1], (unsigned char)(i * 3 + turn));
    }
    LADE_EXPECT_OK(lade_group_barrier(one->group));
  }
  free(all);
}

LADE_TEST_P(Group, GathersRecords, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = conformance_gathers});
}

/* --- order with streams ------------------------------------------------------------------------------------------- */

/* The bytes that are sent are those of the work queued before, and what is queued behind sees those that came. */
static void order_body(ranks_one *one) {
  enum { BYTES = 50000 };
  void *memory = ranks_device_memory(one, BYTES), *copy = ranks_device_memory(one, BYTES);
  for (uint32_t turn = 0; turn < 5; turn++) {
    uint32_t root = turn % one->plan->size;
    ranks_device_fill(one, copy, 0, BYTES, one->rank == root ? turn : 1000 + turn);
    LADE_EXPECT_OK(lade_copy_async(one->runtime, memory, copy, BYTES, one->stream));
    LADE_EXPECT_OK(lade_group_broadcast(one->group, memory, BYTES, root, one->stream));
    LADE_EXPECT_OK(lade_copy_async(one->runtime, copy, memory, BYTES, one->stream));
    LADE_EXPECT_OK(lade_stream_synchronize(one->runtime, one->stream));
    ranks_device_expect(one, copy, 0, BYTES, turn);
  }
  ranks_device_free(one, memory);
  ranks_device_free(one, copy);
}

LADE_TEST_P(Group, CopiesInStreamOrder, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = order_body});
}

/* --- the own part of a scatter ------------------------------------------------------------------------------------ */

static void own_place_body(ranks_one *one) {
  enum { PART = 9000 };
  uint32_t size = one->plan->size, root = size - 1;
  char *from = ranks_device_memory(one, PART * RANKS_MOST), *to = ranks_device_memory(one, PART);
  uint64_t parts[RANKS_MOST];
  for (uint32_t i = 0; i < size; i++) parts[i] = PART;
  ranks_device_fill(one, from, 0, (uint64_t)PART * size, 5);
  char *own = one->rank == root ? from + (size_t)PART * root : to;
  LADE_EXPECT_OK(lade_group_scatter(one->group, from, parts, own, root, one->stream));
  LADE_EXPECT_OK(lade_stream_synchronize(one->runtime, one->stream));
  ranks_device_expect(one, own, (uint64_t)PART * one->rank, PART, 5);
  ranks_device_free(one, from);
  ranks_device_free(one, to);
}

LADE_TEST_P(Group, ScattersWithTheRootsPartInPlace, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = own_place_body});
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* All ranks find out, each in this call or the next, and nothing works afterwards. */
static void expect_broken(ranks_one *one, lade_status first) {
  lade_status status = first;
  if (status == LADE_OK) status = lade_group_barrier(one->group);
  LADE_EXPECT_NE_INT(status, LADE_OK);
  LADE_EXPECT_STATUS(status, lade_group_barrier(one->group));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "is broken");
  LADE_EXPECT_STATUS(status, lade_group_check(one->group));
}

static void disagreement_body(ranks_one *one) {
  void *memory = ranks_device_memory(one, 20000);
  uint64_t bytes = one->rank == one->plan->size - 1 ? 10000 : 20000;
  lade_status status = lade_group_broadcast(one->group, memory, bytes, 0, one->stream);
  LADE_EXPECT_STATUS(LADE_ERR_PEER, status);
  char last[16];
  (void)snprintf(last, sizeof last, "rank %u", one->plan->size - 1);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, last);
  expect_broken(one, status);
  ranks_device_free(one, memory);
}

LADE_TEST_P(Group, RefusesDifferentLengthsOnAllRanks, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = disagreement_body, .several = true});
}

static void other_call_body(ranks_one *one) {
  char record[8] = "record", all[8 * RANKS_MOST];
  lade_status status = one->rank == 0 ? lade_group_barrier(one->group) : lade_group_gather(one->group, record, 8, all);
  LADE_EXPECT_STATUS(LADE_ERR_PEER, status);
  expect_broken(one, status);
}

LADE_TEST_P(Group, RefusesDifferentCallsOnAllRanks, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = other_call_body, .several = true});
}

/* The others wait in a call while one gives up; or one is still in the call that makes the group, as its last message is under way. */
static void abort_body(ranks_one *one) {
  if (one->group == NULL) {
    LADE_EXPECT_STATUS(LADE_ERR_IO, one->made);
    LADE_EXPECT_CONTAINS_STR(one->made_text, "file weights.bin, byte 4711");
    return;
  }
  if (one->rank == 1) {
    LADE_EXPECT_OK(lade_group_abort(one->group, LADE_ERR_IO, "file weights.bin, byte 4711"));
    LADE_EXPECT_STATUS(LADE_ERR_IO, lade_group_barrier(one->group));
    return;
  }
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_group_barrier(one->group));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "rank 1");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "file weights.bin, byte 4711");
}

LADE_TEST_P(Group, GivingUpEndsTheOthersWithItsWords, group_implementations, name) {
  group_implementation_run(name, &(ranks_plan){.body = abort_body, .several = true, .alone = true});
}
