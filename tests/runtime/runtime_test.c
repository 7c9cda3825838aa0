/* SPDX-License-Identifier: Apache-2.0 */
/* The checker of ops tables, and the runtime object: life, users, fork. Over a table of ops that count their calls. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/ops.h"
#include "runtime/ops_list.h"
#include "tests/shim/lade_test.h"

static int close_calls;

/* Stands in the table for ops that these tests never call. */
static void never_called(void) { LADE_FAIL("an op was called that should not be"); }

static lade_status counting_close(void *self) {
  (void)self;
  close_calls++;
  return LADE_OK;
}

/* Fills the slot of one op; tables are written through bytes because every op has its own function type. */
static void slot_set(lade_runtime_ops *ops, size_t offset, void (*function)(void)) {
  memcpy((char *)ops + offset, &function, sizeof function);
}

static lade_runtime_ops full_table(void) {
  lade_runtime_ops ops = {.struct_size = sizeof ops, .name = "test"};
#define FILL(op, group) slot_set(&ops, offsetof(lade_runtime_ops, op), never_called);
  LADEI_OPS_LIST(FILL)
#undef FILL
  ops.close = counting_close;
  return ops;
}

LADE_TEST(OpsCheck, AcceptsAFullTable) {
  lade_runtime_ops ops = full_table();
  LADE_EXPECT_OK(ladei_ops_check(&ops));
}

LADE_TEST(OpsCheck, RefusesNoTableNoNameAndAnUnknownSize) {
  lade_runtime_ops nameless = full_table(), short_table = full_table();
  nameless.name = NULL;
  short_table.struct_size -= 8;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_ops_check(NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_ops_check(&nameless));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_ops_check(&short_table));
}

/* Takes one op out at a time: a lone op of an optional group may go, all others are named in the refusal. */
LADE_TEST(OpsCheck, NamesTheMissingOpAtEveryPosition) {
#define WITHOUT(op, group) {#op, #group, offsetof(lade_runtime_ops, op)},
  static const struct {
    const char *name, *group;
    size_t offset;
  } entries[] = {LADEI_OPS_LIST(WITHOUT)};
#undef WITHOUT
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    lade_runtime_ops ops = full_table();
    slot_set(&ops, entries[i].offset, NULL);
    bool alone = strcmp(entries[i].group, "COPY_BATCH") == 0 || strcmp(entries[i].group, "WRITE_VALUE") == 0 ||
                 strcmp(entries[i].group, "KERNELS") == 0;
    lade_test_context("without %s", entries[i].name);
    LADE_EXPECT_EQ_INT(ladei_ops_check(&ops), alone ? LADE_OK : LADE_ERR_INVALID_ARGUMENT);
    if (!alone) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, entries[i].name);
  }
}

LADE_TEST(OpsCheck, AcceptsATableWithoutOptionalGroups) {
  lade_runtime_ops ops = full_table();
#define DROP_OPTIONAL(op, group)                                                                                       \
  if (strcmp(#group, "REQUIRED") != 0) slot_set(&ops, offsetof(lade_runtime_ops, op), NULL);
  LADEI_OPS_LIST(DROP_OPTIONAL)
#undef DROP_OPTIONAL
  LADE_EXPECT_OK(ladei_ops_check(&ops));
}

LADE_TEST(Runtime, AdoptRefusesABrokenTableAndLeavesOutAlone) {
  lade_runtime_ops ops = full_table();
  lade_runtime *runtime = NULL;
  ops.event_query = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_runtime_adopt(&ops, NULL, NULL, &runtime));
  LADE_EXPECT_EQ_PTR(runtime, NULL);
}

LADE_TEST(Runtime, CloseRefusesWhileObjectsAreAlive) {
  lade_runtime_ops ops = full_table();
  lade_runtime *runtime;
  close_calls = 0;
  LADE_ASSERT_OK(ladei_runtime_adopt(&ops, NULL, NULL, &runtime));
  LADE_EXPECT_OK(ladei_runtime_acquire(runtime));
  LADE_EXPECT_OK(ladei_runtime_acquire(runtime));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "2 pools");
  LADE_EXPECT_EQ_INT(close_calls, 0);
  ladei_runtime_release(runtime);
  ladei_runtime_release(runtime);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
  LADE_EXPECT_EQ_INT(close_calls, 1);
  LADE_EXPECT_OK(lade_runtime_close(NULL));
}

/* Exit status of a forked child that runs `body`; 255 when it did not exit by itself. */
static int in_child(int (*body)(lade_runtime *), lade_runtime *runtime) {
  pid_t child = fork();
  if (child == 0) _exit(body(runtime));
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 255;
  return WEXITSTATUS(status);
}

static int every_call_is_refused(lade_runtime *runtime) {
  int count, refused = 0;
  lade_event event;
  refused += lade_runtime_close(runtime) == LADE_ERR_FORKED;
  refused += ladei_runtime_acquire(runtime) == LADE_ERR_FORKED;
  refused += lade_runtime_device_count(runtime, &count) == LADE_ERR_FORKED;
  refused += lade_event_create(runtime, 0, &event) == LADE_ERR_FORKED;
  refused += lade_stream_synchronize(runtime, LADE_STREAM_LEGACY) == LADE_ERR_FORKED;
  return refused;
}

LADE_TEST(Runtime, AForkedChildMakesNoDriverCall) {
  lade_runtime_ops ops = full_table();
  lade_runtime *runtime;
  LADE_ASSERT_OK(ladei_runtime_adopt(&ops, NULL, NULL, &runtime));
  LADE_EXPECT_EQ_INT(in_child(every_call_is_refused, runtime), 5);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(Runtime, HelpersRefuseArgumentsByNameBeforeTheDriver) {
#define REFUSED(words, call)                                                                                           \
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, call);                                                                 \
  LADE_EXPECT_EQ_STR(lade_last_error()->text, words)
  lade_runtime_ops ops = full_table();
  lade_runtime *runtime;
  LADE_ASSERT_OK(ladei_runtime_adopt(&ops, NULL, NULL, &runtime));
  REFUSED("lade_runtime_device_count: out_count is NULL", lade_runtime_device_count(runtime, NULL));
  REFUSED("lade_runtime_device_count: runtime is NULL", lade_runtime_device_count(NULL, &close_calls));
  REFUSED("lade_runtime_device_info: info is NULL", lade_runtime_device_info(runtime, 0, NULL));
  REFUSED("lade_stream_create: out is NULL", lade_stream_create(runtime, 0, NULL));
  REFUSED("lade_stream_destroy: stream is 0x2; expected a stream from lade_stream_create",
          lade_stream_destroy(runtime, LADE_STREAM_PER_THREAD));
  REFUSED("lade_event_destroy: event is NULL", lade_event_destroy(runtime, NULL));
  REFUSED("lade_event_record: event is NULL", lade_event_record(runtime, NULL, NULL));
  REFUSED("lade_copy_async: dst is NULL", lade_copy_async(runtime, NULL, &ops, 1, NULL));
  REFUSED("lade_copy_async: src is NULL", lade_copy_async(runtime, &ops, NULL, 1, NULL));
  REFUSED("lade_copy_async: bytes is 1152921504606846976; expected less than 2^60",
          lade_copy_async(runtime, &ops, &ops, (size_t)1 << 60, NULL));
  REFUSED("lade_copy_async: runtime is NULL", lade_copy_async(NULL, &ops, &ops, 1, NULL));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
#undef REFUSED
}
