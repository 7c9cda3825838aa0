/* SPDX-License-Identifier: Apache-2.0 */
/* Groups over MPI where something fails: each call of MPI, other ranks, options, the plug-in. MPI is a stand-in, ranks are threads. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/group/mpi_standin.h"
#include "tests/group/mpi_threads.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { BYTES = 30000 };

/* --- a call of MPI fails ------------------------------------------------------------------------------------------ */

static struct {
  uint32_t rank, nth;
  atomic_bool reached; /* there was such a call */
} injected;

static void inject(ranks_one *one) {
  if (one->rank == injected.rank) mpi_standin_get()->fail(injected.nth);
}

static void one_second(const ranks_one *one, lade_group_mpi_options *options) {
  (void)one;
  options->timeout_ns = UINT64_C(1000000000);
}

/* Whatever fails, all ranks get an error in time, and none but of that failure. */
static void injected_body(ranks_one *one) {
  lade_status status = one->made;
  uint64_t parts[] = {7000, 9000, 5000};
  void *memory = ranks_device_memory(one, BYTES), *part = ranks_device_memory(one, BYTES);
  if (status == LADE_OK) status = lade_group_broadcast(one->group, memory, BYTES, 0, one->stream);
  if (status == LADE_OK) status = lade_group_scatter(one->group, memory, parts, part, 1, one->stream);
  if (status == LADE_OK) status = lade_group_barrier(one->group);
  bool reached = one->rank == injected.rank && mpi_standin_get()->calls() >= injected.nth;
  if (reached) atomic_store(&injected.reached, true);
  if (reached) LADE_EXPECT_STATUS(LADE_ERR_IO, status);
  if (reached) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "an error of the test");
  /* The last call may be over here when it fails elsewhere: the next one tells. */
  if (status == LADE_OK && one->rank != injected.rank) status = lade_group_barrier(one->group);
  if (status == LADE_OK && one->rank == injected.rank && !reached) status = lade_group_barrier(one->group);
  if (status != LADE_OK && !reached)
    LADE_EXPECT(status == LADE_ERR_IO || status == LADE_ERR_TIMEOUT || status == LADE_ERR_PEER);
  ranks_device_free(one, memory);
  ranks_device_free(one, part);
}

LADE_TEST(MpiGroup, EachCallOfMpiFails) {
  mpi_threads_tuning tuning = {one_second, inject};
  for (injected.rank = 0; injected.rank < 3; injected.rank++) {
    atomic_store(&injected.reached, true);
    for (injected.nth = 1; atomic_load(&injected.reached); injected.nth += 3) {
      ranks_plan plan = {.runtime = "sim", .size = 3, .body = injected_body, .alone = true, .user = &tuning};
      atomic_store(&injected.reached, false);
      mpi_threads_take(&plan);
      ranks_run(&plan);
      LADE_ASSERT(injected.nth < 200);
    }
    LADE_EXPECT_GT_INT((int)injected.nth, 20);
  }
}

/* --- a rank that says nothing any more ---------------------------------------------------------------------------- */

static void tenth_of_a_second(const ranks_one *one, lade_group_mpi_options *options) {
  (void)one;
  options->timeout_ns = UINT64_C(100000000);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void silent_body(ranks_one *one) {
  if (one->rank == 2) return; /* as if it had died */
  double begun = seconds();
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_group_barrier(one->group));
  LADE_EXPECT(seconds() - begun < 30);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "rank 2 has not come within 0.1 s");
}

/* Rank 0 finds out who it is, and tells rank 1. */
LADE_TEST(MpiGroup, WhoDoesNotComeIsNamedByAll) {
  mpi_threads_tuning tuning = {tenth_of_a_second, NULL};
  ranks_plan plan = {.runtime = "cpu", .size = 3, .body = silent_body, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

static void hanging_body(ranks_one *one) {
  void *memory = ranks_device_memory(one, BYTES);
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  if (one->rank == 0) mpi_standin_get()->hang();
  lade_status status = lade_group_broadcast(one->group, memory, BYTES, 0, one->stream);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, status);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_group_barrier(one->group));
  ranks_device_free(one, memory);
}

/* Nothing of it ends any more, and the runtime can be closed nevertheless. */
LADE_TEST_P(MpiGroup, TransfersThatNeverEndAreLeftBehind, support_soft_runtimes, runtime) {
  mpi_threads_tuning tuning = {tenth_of_a_second, NULL};
  ranks_plan plan = {.runtime = runtime, .size = 2, .body = hanging_body, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

static void late_body(ranks_one *one) {
  if (one->rank == 1) return; /* it left the world before */
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "has not come within 0.1 s");
}

static void stay_away(ranks_one *one) {
  if (one->rank == 1) mpi_standin_get()->fail(1);
}

LADE_TEST(MpiGroup, CreationEndsWithoutTheOthers) {
  mpi_threads_tuning tuning = {tenth_of_a_second, stay_away};
  ranks_plan plan = {.runtime = "cpu", .size = 2, .body = late_body, .alone = true, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static void differ(const ranks_one *one, lade_group_mpi_options *options) {
  if (one->rank == 2) options->slots = 5;
}

static void differ_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_PEER, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "differ in options");
  LADE_EXPECT_CONTAINS_STR(one->made_text, "rank 2");
  LADE_EXPECT_CONTAINS_STR(one->made_text, "slots");
}

LADE_TEST(MpiGroup, DifferentOptionsAreRefusedOnAllRanks) {
  mpi_threads_tuning tuning = {differ, NULL};
  ranks_plan plan = {.runtime = "sim", .size = 3, .body = differ_body, .alone = true, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

static void no_memory(ranks_one *one) {
  if (one->rank == 1) (void)lade_soft_fault_add(one->runtime, "host_register", 1, LADE_ERR_OUT_OF_PINNED_MEMORY);
}

static void no_memory_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "rank 1");
}

LADE_TEST(MpiGroup, WhatOneRankLacksAllAreTold) {
  mpi_threads_tuning tuning = {NULL, no_memory};
  ranks_plan plan = {.runtime = "sim", .size = 3, .body = no_memory_body, .alone = true, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

static void given(const ranks_one *one, lade_group_mpi_options *options) {
  (void)one;
  options->communicator_given = 1;
  options->communicator = 7;
}

static void given_body(ranks_one *one) { LADE_EXPECT_OK(lade_group_barrier(one->group)); }

LADE_TEST(MpiGroup, CommunicatorIsTheOneGiven) {
  mpi_threads_tuning tuning = {given, NULL};
  ranks_plan plan = {.runtime = "sim", .size = 2, .body = given_body, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

static void open_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(one->runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 pools");
}

/* Bug: a group did not count as something that lives on its runtime, which a GPU's driver lets be closed under it. */
LADE_TEST(MpiGroup, KeepsItsRuntimeOpen) {
  mpi_threads_tuning tuning = {NULL, NULL};
  ranks_plan plan = {.runtime = "sim", .size = 2, .body = open_body, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}

static void expect_refused(const lade_group_mpi_options *options, lade_status status, const char *words) {
  lade_runtime *runtime = support_runtime_open("sim");
  lade_group *group = NULL;
  LADE_EXPECT_STATUS(status, lade_group_create_mpi(runtime, options, &group));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT_EQ_PTR(group, NULL);
  support_runtime_close(runtime);
}

LADE_TEST(MpiGroup, BadOptionsAreNamed) {
  lade_group_mpi_options options;
#define REFUSED(field, value)                                                                                          \
  lade_group_mpi_options_init(&options);                                                                               \
  options.plugin = MPI_STANDIN;                                                                                        \
  options.field = (value);                                                                                             \
  expect_refused(&options, LADE_ERR_INVALID_ARGUMENT, "options." #field)
  REFUSED(timeout_ns, UINT64_C(3600000000001));
  REFUSED(slot_bytes, 4097);
  REFUSED(slot_bytes, 2048);
  REFUSED(slot_bytes, UINT64_C(128) << 20);
  REFUSED(slots, 1);
  REFUSED(slots, 17);
  REFUSED(transport, 3);
  REFUSED(initialize, 2);
  REFUSED(communicator_given, 2);
  REFUSED(reserved, 1);
#undef REFUSED
}

LADE_TEST(MpiGroup, PluginIsMissingOrOfAnotherVersion) {
  mpi_standin *standin = mpi_standin_get();
  lade_group_mpi_options options;
  lade_group_mpi_options_init(&options);
  options.plugin = "/nonexistent/liblade_mpi.so.0";
  expect_refused(&options, LADE_ERR_UNSUPPORTED, "/nonexistent/liblade_mpi.so.0");
  options.plugin = "libjansson.so.4"; /* a library, but no plug-in */
  expect_refused(&options, LADE_ERR_UNSUPPORTED, "another version");
  options.plugin = MPI_STANDIN;
  standin->version = 1000;
  expect_refused(&options, LADE_ERR_UNSUPPORTED, "another version");
  standin->version = 0;
  standin->runs = 0;
  expect_refused(&options, LADE_ERR_UNSUPPORTED, "MPI does not run");
  standin->runs = 1;
}

static void by_device(const ranks_one *one, lade_group_mpi_options *options) {
  (void)one;
  options->transport = LADE_GROUP_TRANSPORT_DEVICE;
}

static void by_device_body(ranks_one *one) {
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, one->made);
  LADE_EXPECT_CONTAINS_STR(one->made_text, "takes no device memory");
}

LADE_TEST(MpiGroup, DeviceMemoryIsRefusedWhereMpiTakesNone) {
  mpi_threads_tuning tuning = {by_device, NULL};
  ranks_plan plan = {.runtime = "sim", .size = 2, .body = by_device_body, .alone = true, .user = &tuning};
  mpi_threads_take(&plan);
  ranks_run(&plan);
}
