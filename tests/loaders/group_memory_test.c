/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The k-th allocation of host memory fails in one of two ranks, for every k, while they make a group and load a checkpoint together:
 * that rank says so, none hangs, none has a checkpoint that the other one lacks, and nothing is left alive.
 */
#include <stdatomic.h>

#include "tests/failing_memory/failing_memory.h"
#include "tests/loaders/group_expect.h"
#include "tests/shim/lade_test.h"

enum { RANKS = 2 };

typedef struct one_run {
  uint64_t k;
  uint32_t victim;
  _Atomic(uint64_t) allocations; /* of the victim */
  _Atomic(int) loaded;           /* ranks */
} one_run;

static void victim_begin(const ranks_one *one) {
  const one_run *run = one->plan->user;
  if (one->rank == run->victim) failing_memory_fail(run->k, FAILING_MEMORY_OF_THREAD);
}

static void victim_end(const ranks_one *one) {
  one_run *run = one->plan->user;
  if (one->rank == run->victim) atomic_store(&run->allocations, failing_memory_whole());
}

static lade_status make(ranks_one *one, const char *name, lade_group **out) {
  lade_group_local_options options;
  lade_group_local_options_init(&options);
  options.name = name;
  options.rank = one->rank;
  options.size = RANKS;
  options.slot_bytes = 4096;
  options.slots = 3;
  options.timeout_ns = UINT64_C(3000000000);
  victim_begin(one);
  lade_status status = lade_group_create_local(one->runtime, &options, out);
  if (status != LADE_OK) victim_end(one);
  return status;
}

/* A shortage: its own, or the other one's. */
static void status_expect(const ranks_one *one, lade_status status) {
  bool told = status == LADE_ERR_OUT_OF_HOST_MEMORY || status == LADE_ERR_OUT_OF_PINNED_MEMORY;
  const one_run *run = one->plan->user;
  if (one->rank != run->victim) told = told || status == LADE_ERR_PEER || status == LADE_ERR_TIMEOUT;
  if (status != LADE_OK && !told)
    LADE_FAIL("rank %u: %s: %s", (unsigned)one->rank, lade_status_name(status), lade_last_error()->text);
}

static lade_status rule_of(void *user, const lade_tensor_info *tensor, lade_load_rule *rule) {
  (void)user;
  bool sliced = tensor->rank > 0 && lade_dtype_bits((lade_dtype)tensor->dtype) >= 8 && tensor->file % 2 == 0;
  rule->spread = sliced ? LADE_SPREAD_SLICE : LADE_SPREAD_REPLICATE;
  rule->uneven = 1;
  return LADE_OK;
}

static void body(ranks_one *one) {
  one_run *run = one->plan->user;
  fixture f = {0};
  lade_safetensors *file = NULL;
  lade_tensor_load *load = NULL;
  lade_load_options options;
  status_expect(one, one->made);
  if (one->made != LADE_OK) return;
  lade_load_options_init(&options);
  options.group = one->group;
  options.rule_of = rule_of;
  options.part_bytes = 4096;
  lade_status status = fixture_open_some(&f, one->runtime, 1);
  bool opened = status == LADE_OK;
  if (status == LADE_OK) status = lade_safetensors_open(FIXTURE_GOLDEN "sharded.safetensors.index.json", &file);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_group_abort(one->group, status, NULL));
  if (status == LADE_OK) status = lade_safetensors_load(file, f.targets, 1, &options, &load);
  status_expect(one, status);
  if (status == LADE_OK) status = lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
  victim_end(one);
  status_expect(one, status);
  if (status == LADE_OK) atomic_fetch_add(&run->loaded, 1);
  for (uint64_t i = 0; status == LADE_OK && i < lade_safetensors_count(file); i++)
    group_expect_tensor(one, &f, file, load, i, i);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  if (opened) fixture_close_on(&f);
}

LADE_TEST(GroupMemory, EachAllocationOfARank) {
  for (uint32_t victim = 0; victim < RANKS; victim++) {
    uint64_t count = 1;
    for (uint64_t k = 0; k <= count && !lade_test_has_failed(); k += FAILING_MEMORY_STEP) {
      one_run run = {.k = k, .victim = victim};
      lade_test_context("allocation %llu of %llu of rank %u fails", (unsigned long long)k, (unsigned long long)count,
                        (unsigned)victim);
      ranks_run(
          &(ranks_plan){.runtime = "sim", .size = RANKS, .body = body, .alone = true, .make = make, .user = &run});
      if (k == 0) count = atomic_load(&run.allocations);
      if (k == 0) LADE_EXPECT_EQ_INT(atomic_load(&run.loaded), RANKS);
      LADE_EXPECT_NE_INT(atomic_load(&run.loaded), 1); /* both, or none */
    }
    lade_test_context("%s", "");
    LADE_EXPECT_GT_UINT(count, 50);
  }
}
