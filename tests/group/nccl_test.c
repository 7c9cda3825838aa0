/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups over NCCL: the suite of all groups, and what fails. NCCL is a fake, ranks are threads, the driver is the loopback one, and
 * the parent is a local group.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/group/conformance.h"
#include "tests/group/nccl_fake.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { BYTES = 30000 };

static _Thread_local lade_group *parent;
static uint64_t timeout_ns = UINT64_C(20000000000);

static lade_status make_with(ranks_one *one, const char *name, const lade_group_nccl_options *options,
                             lade_group **out) {
  lade_group_local_options local;
  lade_group_local_options_init(&local);
  local.name = name;
  local.rank = one->rank;
  local.size = one->plan->size;
  local.transport = LADE_GROUP_TRANSPORT_HOST;
  local.timeout_ns = UINT64_C(20000000000);
  parent = NULL;
  lade_status status = lade_group_create_local(one->runtime, &local, &parent);
  return status == LADE_OK ? lade_group_create_nccl(one->runtime, parent, options, out) : status;
}

static lade_status make(ranks_one *one, const char *name, lade_group **out) {
  lade_group_nccl_options options;
  lade_group_nccl_options_init(&options);
  options.timeout_ns = timeout_ns;
  options.piece_bytes = 4096; /* several steps */
  return make_with(one, name, &options, out);
}

static void end(ranks_one *one) {
  (void)one;
  LADE_EXPECT_OK(lade_group_destroy(parent));
}

static void run(ranks_plan plan) {
  plan.runtime = "cuda";
  plan.make = plan.make != NULL ? plan.make : make;
  plan.end = end;
  LADE_ASSERT(nccl_fake_get() != NULL);
  ranks_run(&plan);
  LADE_EXPECT_EQ_INT(nccl_fake_get()->living(), 0); /* communicators are given back */
}

const char *const group_implementations[] = {"nccl", NULL};

void group_implementation_run(const char *name, const ranks_plan *plan) {
  static const uint32_t counts[] = {1, 2, 3, 7};
  (void)name;
  for (size_t i = plan->several ? 1 : 0; i < sizeof counts / sizeof *counts; i++) {
    ranks_plan own = *plan;
    own.size = counts[i];
    run(own);
  }
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static struct {
  uint32_t rank, nth;
  atomic_bool reached;
} injected;

static lade_status injected_make(ranks_one *one, const char *name, lade_group **out) {
  nccl_fake_get()->fail(one->rank == injected.rank ? injected.nth : 0);
  return make(one, name, out);
}

static void injected_body(ranks_one *one) {
  lade_status status = one->made;
  uint64_t parts[] = {7000, 9000, 5000};
  void *memory = ranks_device_memory(one, BYTES), *part = ranks_device_memory(one, BYTES);
  if (status == LADE_OK) status = lade_group_broadcast(one->group, memory, BYTES, 0, one->stream);
  if (status == LADE_OK) status = lade_group_scatter(one->group, memory, parts, part, 1, one->stream);
  bool reached = one->rank == injected.rank && nccl_fake_get()->calls() >= injected.nth;
  if (reached) atomic_store(&injected.reached, true);
  if (reached) LADE_EXPECT_STATUS(LADE_ERR_DRIVER, status);
  if (status == LADE_OK) status = lade_group_barrier(one->group);
  ranks_device_free(one, memory);
  ranks_device_free(one, part);
}

/* Each call of NCCL fails, in each rank: that one says so, and nobody hangs. */
LADE_TEST(NcclGroup, EachCallOfNcclFails) {
  timeout_ns = UINT64_C(100000000);
  for (injected.rank = 0; injected.rank < 2; injected.rank++) {
    atomic_store(&injected.reached, true);
    for (injected.nth = 1; atomic_load(&injected.reached) && injected.nth < 60; injected.nth += 4) {
      atomic_store(&injected.reached, false);
      run((ranks_plan){.size = 3, .body = injected_body, .alone = true, .make = injected_make});
    }
    LADE_EXPECT_GT_INT((int)injected.nth, 12);
  }
  timeout_ns = UINT64_C(20000000000);
}

static void hanging_body(ranks_one *one) {
  void *memory = ranks_device_memory(one, BYTES);
  if (one->rank == 1) nccl_fake_get()->hang();
  lade_status status = lade_group_broadcast(one->group, memory, BYTES, 0, one->stream);
  LADE_EXPECT(status == LADE_ERR_TIMEOUT);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "not all ranks have come within 0.2 s");
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_group_barrier(one->group));
  LADE_EXPECT_NE_INT(lade_group_barrier(parent), LADE_OK); /* broken with it */
  ranks_device_free(one, memory);
}

LADE_TEST(NcclGroup, TransferThatNeverEndsIsAborted) {
  timeout_ns = UINT64_C(200000000);
  run((ranks_plan){.size = 2, .body = hanging_body});
  timeout_ns = UINT64_C(20000000000);
}

static lade_status differing_make(ranks_one *one, const char *name, lade_group **out) {
  lade_group_nccl_options options;
  lade_group_nccl_options_init(&options);
  options.piece_bytes = one->rank == 1 ? 8192 : 4096;
  return make_with(one, name, &options, out);
}

static void differing_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_PEER, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "options.piece_bytes is 8192 on rank 1 and 4096 on rank 0");
}

LADE_TEST(NcclGroup, DifferentOptionsAreRefusedOnAllRanks) {
  run((ranks_plan){.size = 3, .body = differing_body, .alone = true, .make = differing_make});
}

static lade_status missing_make(ranks_one *one, const char *name, lade_group **out) {
  lade_group_nccl_options options;
  lade_group_nccl_options_init(&options);
  options.library = one->rank == 1 ? "/nonexistent/libnccl.so.2" : NULL;
  return make_with(one, name, &options, out);
}

static void missing_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "rank 1");
  LADE_EXPECT_CONTAINS_STR(one->made_text, "/nonexistent/libnccl.so.2");
}

LADE_TEST(NcclGroup, LibraryThatOneRankLacksIsNamedByAll) {
  run((ranks_plan){.size = 3, .body = missing_body, .alone = true, .make = missing_make});
}

static void software_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "expected \"cuda\"");
}

LADE_TEST(NcclGroup, OtherRuntimesAreRefused) {
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = 2, .body = software_body, .alone = true, .make = make, .end = end});
}

static void bad_options_body(ranks_one *one) {
  lade_group *group = NULL;
  lade_group_nccl_options options;
#define REFUSED(field, value)                                                                                          \
  lade_group_nccl_options_init(&options);                                                                              \
  options.field = (value);                                                                                             \
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_group_create_nccl(one->runtime, parent, &options, &group));       \
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options." #field)
  REFUSED(timeout_ns, UINT64_C(3600000000001));
  REFUSED(piece_bytes, 1);
  REFUSED(piece_bytes, UINT64_MAX);
  REFUSED(reserved, 1);
#undef REFUSED
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_group_create_nccl(one->runtime, NULL, NULL, &group));
  LADE_EXPECT_OK(lade_group_barrier(one->group));
}

/* The parent counts once, too. */
static void open_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(one->runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "2 pools");
}

/* Bug: a group did not count as something that lives on its runtime, which was closed under it. */
LADE_TEST(NcclGroup, KeepsItsRuntimeOpen) { run((ranks_plan){.size = 2, .body = open_body}); }

LADE_TEST(NcclGroup, BadOptionsAreNamed) { run((ranks_plan){.size = 1, .body = bad_options_body}); }
