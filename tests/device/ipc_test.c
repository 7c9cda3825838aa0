/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing driver allocations. On the software device one process is both sides. */
#include <pthread.h>

#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

static lade_device_shared export_of(device_fixture *f, const void *pointer) {
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  LADE_EXPECT_OK(lade_device_shared_export(f->allocator, pointer, &shared));
  LADE_EXPECT_EQ_UINT(shared.fd_count, 0);
  return shared;
}

LADE_TEST(DeviceIpc, OneMappingServesManyOpens) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  char *b = device_fixture_alloc(&f, 1000, 0);
  lade_device_shared of_a = export_of(&f, a), of_b = export_of(&f, b + 8);
  LADE_EXPECT_EQ_UINT(of_a.offset, 0);
  LADE_EXPECT_EQ_UINT(of_b.offset, 1032);
  void *there_a = NULL;
  void *there_b = NULL;
  LADE_EXPECT_OK(lade_device_shared_open(f.allocator, &of_a, &there_a));
  LADE_EXPECT_OK(lade_device_shared_open(f.allocator, &of_b, &there_b));
  LADE_EXPECT_EQ_PTR(there_a, a);
  LADE_EXPECT_EQ_PTR(there_b, b + 8);
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "ipc_open"), 1);
  LADE_EXPECT_OK(lade_device_shared_close(f.allocator, there_a));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "ipc_close"), 0);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_OK(lade_device_shared_close(f.allocator, there_b));
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "ipc_close"), 1);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_shared_close(f.allocator, there_b));
  device_fixture_close(&f);
}

/* A use of imported memory is nothing to this allocator's blocks; its owner must see to it. */
LADE_TEST(DeviceIpc, UsesOfImportedMemoryArePassedOver) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_allocator *other = NULL;
  LADE_ASSERT_OK(lade_device_allocator_create(f.runtime, 0, NULL, &other));
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_shared shared = export_of(&f, a);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(other, a, f.streams[1]));
  void *base = NULL;
  LADE_EXPECT_OK(lade_device_shared_open(other, &shared, &base));
  LADE_EXPECT_OK(lade_device_record_stream(other, (char *)base + 10, f.streams[1]));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(other, (char *)base + 2 * MIB, f.streams[1]));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(other, base));
  LADE_EXPECT_OK(lade_device_shared_close(other, base));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(other, a, f.streams[1]));
  LADE_EXPECT_OK(lade_device_allocator_destroy(other, true));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

LADE_TEST(DeviceIpc, RefusalsLeaveNothingOpen) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_shared shared = export_of(&f, a), nonsense;
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_shared_export(f.allocator, &f, &shared));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_export(f.allocator, a, NULL));
  void *base = NULL;
  lade_device_shared_init(&nonsense);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_open(f.allocator, &nonsense, &base));
  support_fail(f.runtime, "ipc_open", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_shared_open(f.allocator, &shared, &base));
  nonsense = shared;
  nonsense.offset = 2 * MIB;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_open(f.allocator, &nonsense, &base));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "shared.offset is 2097152; expected less than the allocation");
  LADE_EXPECT_EQ_PTR(base, NULL);
  LADE_EXPECT_OK(lade_device_shared_open(f.allocator, &shared, &base));
  support_fail(f.runtime, "ipc_close", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_shared_close(f.allocator, base));
  LADE_EXPECT_OK(lade_device_shared_close(f.allocator, base)); /* still open: the second attempt closes it */
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* The bug: the memory stayed open for good, and the allocator could not be destroyed. */
LADE_TEST(DeviceIpc, ARefusedOffsetWhoseCloseIsRefusedLeavesNothingOpen) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_allocator *other = NULL;
  LADE_ASSERT_OK(lade_device_allocator_create(f.runtime, 0, NULL, &other));
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_shared shared = export_of(&f, a), wrong = shared;
  wrong.offset = 2 * MIB;
  void *there = NULL;
  for (int round = 0; round < 2; round++) { /* the first time it is opened again, the second time it is left */
    support_fail(f.runtime, "ipc_close", 1, 1);
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_open(other, &wrong, &there));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "shared.offset is 2097152");
    LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_shared_close(other, a));
    if (round > 0) break;
    LADE_EXPECT_OK(lade_device_shared_open(other, &shared, &there));
    LADE_EXPECT_EQ_PTR(there, a);
    LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "ipc_open"), 1);
    LADE_EXPECT_OK(lade_device_shared_close(other, there));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(other, true));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 300 };

typedef struct opener {
  device_fixture *f;
  const lade_device_shared *shared;
  void *expected;
} opener;

static void *opener_run(void *user) {
  opener *o = user;
  for (int i = 0; i < ROUNDS; i++) {
    void *base = NULL;
    LADE_EXPECT_OK(lade_device_shared_open(o->f->allocator, o->shared, &base));
    LADE_EXPECT_EQ_PTR(base, o->expected);
    LADE_EXPECT_OK(lade_device_shared_close(o->f->allocator, base));
  }
  return NULL;
}

/* An open that comes while another thread's last close is under way must not find its mapping gone. */
LADE_TEST(DeviceIpc, OpensAndClosesOfManyThreadsCount) {
  device_fixture f;
  if (!device_fixture_open(&f, "cpu", 64 * MIB, NULL)) return;
  char *a = device_fixture_alloc(&f, 1000, 0);
  lade_device_shared shared = export_of(&f, a);
  opener o = {&f, &shared, a};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, opener_run, &o) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_EQ_UINT(support_call_count(f.runtime, "ipc_open"), support_call_count(f.runtime, "ipc_close"));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}
