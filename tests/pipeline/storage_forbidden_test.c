/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Where io_uring is forbidden, wholly or in part, transfers go on by other means, and the report says
 * why. Each in a process of its own, since what is forbidden stays so.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "tests/pipeline/fixture.h"
#include "tests/pipeline/storage_child.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 16384, BYTES = 40 * CHUNK, SEED = 7 };

static const char *const storages[] = {"auto", "uring", NULL};

typedef struct scene {
  fixture f;
  support_temp_dir dir;
  char *in;
  char *out;
} scene;

static bool scene_open(scene *s, const char *storage) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.storage = strcmp(storage, "uring") == 0 ? LADE_STORAGE_URING : LADE_STORAGE_AUTO;
  if (!support_temp_dir_create(&s->dir)) return false;
  s->in = support_temp_dir_path(&s->dir, "in.bin");
  s->out = support_temp_dir_path(&s->dir, "out.bin");
  return support_temp_file_write(s->in, BYTES, SEED) && fixture_open(&s->f, "cpu", BYTES, &options);
}

/* Reads and writes, past the page cache and through it, and compares. */
static void scene_use(scene *s) {
  for (uint32_t direct = 0; direct < 2; direct++) {
    uint32_t flags = direct ? LADE_FILE_DIRECT : 0;
    LADE_EXPECT_OK(fixture_move(&s->f, LADE_TO_DEVICE, lade_endpoint_path(s->in, 0, flags), BYTES));
    fixture_expect_device_pattern(&s->f, 0, BYTES, SEED, 0);
    LADE_EXPECT_OK(fixture_move(&s->f, LADE_TO_HOST, lade_endpoint_path(s->out, 0, flags | LADE_FILE_ATOMIC), BYTES));
    LADE_EXPECT_OK(fixture_move(&s->f, LADE_TO_DEVICE, lade_endpoint_path(s->out, 0, flags), BYTES));
    fixture_expect_device_pattern(&s->f, 0, BYTES, SEED, 0);
  }
}

static void scene_close(scene *s) {
  fixture_close(&s->f);
  free(s->in);
  free(s->out);
  support_temp_dir_remove(&s->dir);
}

typedef struct forbidden {
  const char *storage;
  int system_call;
  int code;
} forbidden;

static void without_ring(void *user) {
  const forbidden *f = user;
  scene s;
  if (storage_child_forbid(f->system_call, f->code) != 0) {
    storage_child_skip("no seccomp here");
    return;
  }
  if (!scene_open(&s, f->storage)) return;
  lade_pipeline_info info = fixture_info(&s.f);
  LADE_EXPECT_EQ_INT(info.storage_buffered, LADE_STORAGE_PREAD);
  LADE_EXPECT_EQ_INT(info.storage_direct, LADE_STORAGE_PREAD);
  LADE_EXPECT_CONTAINS_STR(info.storage_note, "no io_uring");
  scene_use(&s);
  scene_close(&s);
}

LADE_TEST_P(StorageForbidden, UsesPreadWhereASandboxForbidsRings, storages, storage) {
  static const int codes[] = {EPERM, ENOSYS, EACCES, ENOMEM};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
    forbidden f = {storage, SYS_io_uring_setup, codes[i]};
    storage_child_run(without_ring, &f);
  }
}

/* Without the tables of files and blocks a ring is as good, only slower. */
static void without_tables(void *user) {
  const forbidden *f = user;
  scene s;
  if (storage_child_forbid(f->system_call, f->code) != 0) {
    storage_child_skip("no seccomp here");
    return;
  }
  if (!scene_open(&s, f->storage)) return;
  scene_use(&s);
  LADE_EXPECT(fixture_info(&s.f).storage_direct == LADE_STORAGE_PREAD ||
              strstr(fixture_info(&s.f).storage_note, "without registered buffers") != NULL);
  scene_close(&s);
}

LADE_TEST_P(StorageForbidden, DoesWithoutRegisteredBuffers, storages, storage) {
  forbidden f = {storage, SYS_io_uring_register, EPERM};
  storage_child_run(without_tables, &f);
}

/* A sandbox that closes when the ring is there already: what is in the kernel comes back, the rest goes by pread. */
static void ring_breaks(void *user) {
  const forbidden *f = user;
  scene s;
  lade_ticket *tickets[8];
  if (!scene_open(&s, f->storage)) return;
  scene_use(&s);
  for (size_t i = 0; i < 8; i++) {
    lade_transfer transfer =
        fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, LADE_FILE_DIRECT), BYTES);
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &tickets[i]));
  }
  if (storage_child_forbid(f->system_call, f->code) != 0) storage_child_skip("no seccomp here");
  for (size_t i = 0; i < 8; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  scene_use(&s);
  scene_close(&s);
}

LADE_TEST_P(StorageForbidden, GoesOnWithPreadWhenTheRingBreaks, storages, storage) {
  forbidden f = {storage, SYS_io_uring_enter, EPERM};
  storage_child_run(ring_breaks, &f);
}

static void over_the_limit(void *user) {
  scene s;
  if (storage_child_lock_nothing() != 0) {
    storage_child_skip("capabilities cannot be given up here");
    return;
  }
  if (!scene_open(&s, user)) return;
  scene_use(&s);
  lade_pipeline_info info = fixture_info(&s.f);
  LADE_EXPECT_EQ_UINT(info.registered_buffers, 0);
  LADE_EXPECT_CONTAINS_STR(info.storage_note, "io_uring");
  scene_close(&s);
}

LADE_TEST_P(StorageForbidden, StaysBelowTheLimitOfLockedMemory, storages, storage) {
  storage_child_run(over_the_limit, (void *)(uintptr_t)storage);
}
