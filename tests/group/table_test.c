/* SPDX-License-Identifier: Apache-2.0 */
/* A group of a table of the program's own (lade_group_create): what is checked when it is made, and what its operations say. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "lade/group.h"
#include "tests/shim/lade_test.h"

/* One rank, whose operations return `status` and write `text`. */
typedef struct own_table {
  uint32_t rank, size;
  lade_status status;
  const char *text;
  size_t calls, aborts, destroys;
} own_table;

static uint32_t rank_of(void *self) { return ((own_table *)self)->rank; }
static uint32_t size_of(void *self) { return ((own_table *)self)->size; }

static lade_status answer(own_table *own, lade_error *error) {
  LADE_EXPECT_EQ_INT(error->status, LADE_OK);
  LADE_EXPECT_EQ_STR(error->text, "");
  own->calls++;
  if (own->status == LADE_OK) return LADE_OK;
  error->native_code = 77;
  (void)snprintf(error->text, sizeof error->text, "%s", own->text);
  return own->status;
}

static lade_status broadcast(void *self, void *memory, uint64_t bytes, uint32_t root, lade_stream stream,
                             lade_error *error) {
  (void)memory, (void)bytes, (void)root, (void)stream;
  return answer(self, error);
}

static lade_status scatter(void *self, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                           lade_stream stream, lade_error *error) {
  (void)from, (void)bytes, (void)to, (void)root, (void)stream;
  return answer(self, error);
}

static lade_status barrier(void *self, lade_error *error) { return answer(self, error); }

static lade_status gather(void *self, const void *record, uint64_t bytes, void *out_records, lade_error *error) {
  memcpy(out_records, record, bytes);
  return answer(self, error);
}

static void give_up(void *self, const lade_error *why) {
  LADE_EXPECT_NE_PTR(why, NULL);
  ((own_table *)self)->aborts++;
}

static void destroy(void *self) { ((own_table *)self)->destroys++; }

static lade_group_ops ops_whole(void) {
  lade_group_ops ops;
  lade_group_ops_init(&ops);
  ops.name = "table";
  ops.rank = rank_of;
  ops.size = size_of;
  ops.broadcast = broadcast;
  ops.scatter = scatter;
  ops.barrier = barrier;
  ops.gather = gather;
  ops.abort = give_up;
  ops.destroy = destroy;
  return ops;
}

static void expect_refused(const lade_group_ops *ops, own_table *own, lade_status status, const char *words) {
  lade_group *group = NULL;
  LADE_EXPECT_STATUS(status, lade_group_create(ops, own, &group));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT_EQ_PTR(group, NULL);
  LADE_EXPECT_EQ_SIZE(own->destroys, 0);
}

LADE_TEST(GroupTable, NamesWhatIsMissing) {
  own_table own = {.size = 1};
  lade_group_ops ops = ops_whole();
  expect_refused(NULL, &own, LADE_ERR_INVALID_ARGUMENT, "ops is NULL");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_group_create(&ops, &own, NULL));
#define WITHOUT(operation)                                                                                             \
  ops = ops_whole();                                                                                                   \
  ops.operation = NULL;                                                                                                \
  expect_refused(&ops, &own, LADE_ERR_INVALID_ARGUMENT, "ops." #operation " is NULL")
  WITHOUT(name);
  WITHOUT(rank);
  WITHOUT(size);
  WITHOUT(broadcast);
  WITHOUT(scatter);
  WITHOUT(barrier);
  WITHOUT(gather);
  WITHOUT(destroy);
#undef WITHOUT
  ops = ops_whole();
  ops.struct_size = offsetof(lade_group_ops, destroy); /* of a version that knew no more */
  expect_refused(&ops, &own, LADE_ERR_INVALID_ARGUMENT, "ops.destroy is NULL");
}

LADE_TEST(GroupTable, RefusesNumbersThatAreNone) {
  const lade_group_ops ops = ops_whole();
  expect_refused(&ops, &(own_table){.size = 0}, LADE_ERR_INVALID_ARGUMENT, "ops.size() is 0; expected from 1 to 4096");
  expect_refused(&ops, &(own_table){.size = 4097}, LADE_ERR_INVALID_ARGUMENT, "ops.size() is 4097");
  expect_refused(&ops, &(own_table){.size = 2, .rank = 2}, LADE_ERR_INVALID_ARGUMENT,
                 "ops.rank() is 2; expected below 2");
}

LADE_TEST(GroupTable, NameIsKeptShortAndFitForATerminal) {
  own_table own = {.size = 1};
  char name[100];
  lade_group *group;
  lade_group_ops ops = ops_whole();
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  name[0] = '\033';
  ops.name = name;
  LADE_ASSERT_OK(lade_group_create(&ops, &own, &group));
  LADE_EXPECT_OK(lade_group_abort(group, LADE_ERR_IO, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_group_check(group));
  const char *said = strstr(lade_last_error()->text, "group ?n");
  LADE_ASSERT(said != NULL);
  LADE_EXPECT_EQ_SIZE(strspn(said + strlen("group ?"), "n"), 62);
  LADE_EXPECT_OK(lade_group_destroy(group));
  LADE_EXPECT_EQ_SIZE(own.destroys, 1);
}

/* The first failure is that of all calls from then on, and the table is not called any more. */
static void expect_broken_by(lade_status returned, const char *text, lade_status status, const char *words) {
  own_table own = {.size = 1, .status = returned, .text = text};
  lade_group *group;
  char record = 1, records;
  const lade_group_ops ops = ops_whole();
  LADE_ASSERT_OK(lade_group_create(&ops, &own, &group));
  LADE_EXPECT_STATUS(status, lade_group_barrier(group));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT_EQ_SIZE(own.aborts, 1);
  own.status = LADE_OK;
  LADE_EXPECT_STATUS(status, lade_group_gather(group, &record, 1, &records));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "group table is broken: ");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT_STATUS(status, lade_group_check(group));
  LADE_EXPECT_EQ_SIZE(own.calls, 1);
  LADE_EXPECT_EQ_SIZE(own.aborts, 1);
  LADE_EXPECT_OK(lade_group_destroy(group));
}

LADE_TEST(GroupTable, OperationsFailInTheirOwnWords) {
  expect_broken_by(LADE_ERR_TIMEOUT, "rank 7 sleeps", LADE_ERR_TIMEOUT, "rank 7 sleeps");
  expect_broken_by(LADE_ERR_PEER, "", LADE_ERR_PEER, lade_status_text(LADE_ERR_PEER));
  expect_broken_by(LADE_NOT_READY, "", LADE_ERR_CALLBACK, "the operation returned 1, which is no error");
  expect_broken_by((lade_status)999, "x", LADE_ERR_CALLBACK, "the operation returned 999, which is no error");
}

LADE_TEST(GroupTable, CallsWithNothingToMoveReachNoOperation) {
  own_table own = {.size = 2};
  lade_group *group;
  const uint64_t none[] = {0, 0}, some[] = {1, 0};
  char byte = 1;
  const lade_group_ops ops = ops_whole();
  LADE_ASSERT_OK(lade_group_create(&ops, &own, &group));
  LADE_EXPECT_OK(lade_group_broadcast(group, NULL, 0, 1, NULL));
  LADE_EXPECT_OK(lade_group_scatter(group, NULL, none, NULL, 0, NULL));
  LADE_EXPECT_EQ_SIZE(own.calls, 0);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_group_broadcast(group, &byte, 1, 2, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_group_scatter(group, NULL, some, &byte, 0, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_group_gather(group, &byte, LADE_GROUP_RECORD_BYTES + 1, &byte));
  LADE_EXPECT_OK(lade_group_check(group)); /* none of these broke it */
  LADE_EXPECT_OK(lade_group_scatter(group, &byte, some, &byte, 0, NULL));
  LADE_EXPECT_EQ_SIZE(own.calls, 1);
  LADE_EXPECT_OK(lade_group_destroy(group));
}
