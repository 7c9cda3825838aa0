/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUDirect Storage, by a cuFile in place of NVIDIA's: what goes that way, what does not, and what goes wrong.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/loopback/cufile.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 65536, BYTES = 20 * CHUNK, SEED = 5 };

typedef struct scene {
  fixture f;
  support_temp_dir dir;
  char *in;
  char *out;
  void (*set)(const loop_cufile_plan *plan);
  void (*get)(loop_cufile_counts *out);
} scene;

static bool hooks_find(scene *s) {
  void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
  void *set = library != NULL ? dlsym(library, "loop_cufile_set") : NULL;
  void *get = library != NULL ? dlsym(library, "loop_cufile_get") : NULL;
  memcpy(&s->set, &set, sizeof set);
  memcpy(&s->get, &get, sizeof get);
  return set != NULL && get != NULL;
}

static bool scene_open_on(scene *s, const char *runtime, loop_cufile_plan plan) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.storage = LADE_STORAGE_CUFILE;
  if (!hooks_find(s)) {
    LADE_FAIL("no cuFile of the tests: %s", dlerror());
    return false;
  }
  s->set(&plan);
  if (!support_temp_dir_create(&s->dir)) return false;
  s->in = support_temp_dir_path(&s->dir, "in.bin");
  s->out = support_temp_dir_path(&s->dir, "out.bin");
  return support_temp_file_write(s->in, BYTES + 100, SEED) && fixture_open(&s->f, runtime, BYTES, &options);
}

static bool scene_open(scene *s, loop_cufile_plan plan) { return scene_open_on(s, "cuda", plan); }

static loop_cufile_counts counts_of(const scene *s) {
  loop_cufile_counts counts;
  s->get(&counts);
  return counts;
}

static void scene_close(scene *s) {
  s->set(&(loop_cufile_plan){0});
  LADE_EXPECT_OK(fixture_move(&s->f, LADE_TO_DEVICE, lade_endpoint_path(s->in, 0, 0), BYTES));
  fixture_expect_device_pattern(&s->f, 0, BYTES, SEED, 0);
  LADE_EXPECT_EQ_INT(counts_of(s).handles, 0);
  fixture_close(&s->f);
  free(s->in);
  free(s->out);
  support_temp_dir_remove(&s->dir);
}

/* Reads a file that was written back, and compares. */
static void expect_out(scene *s, size_t bytes, uint64_t position) {
  LADE_EXPECT_OK(fixture_move(&s->f, LADE_TO_DEVICE, lade_endpoint_path(s->out, 0, 0), bytes));
  fixture_expect_device_pattern(&s->f, 0, bytes, SEED, position);
}

LADE_TEST(StorageCufile, MovesFilesWithoutBlocksAndCopies) {
  scene s;
  if (!scene_open(&s, (loop_cufile_plan){.short_moves = 50000})) return;
  LADE_EXPECT_EQ_INT(fixture_info(&s.f).storage_direct, LADE_STORAGE_CUFILE);
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 77, 0), BYTES));
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 77);
  LADE_EXPECT_OK(
      fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_ATOMIC | LADE_FILE_SYNC), BYTES - 3));
  loop_cufile_counts counts = counts_of(&s);
  LADE_EXPECT_GE_UINT(counts.reads, BYTES / 50000);
  LADE_EXPECT_GE_UINT(counts.writes, BYTES / 50000);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).blocks_peak, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).copies, 0);
  expect_out(&s, BYTES - 3, 77);
  scene_close(&s);
}

/* Reads know nothing of streams: one that must run after a stream's work begins when that is over. Writes come after it, too. */
LADE_TEST(StorageCufile, KeepsTheOrderOfStreams) {
  scene s;
  lade_stream stream;
  ladei_stream resolved;
  lade_ticket *ticket;
  support_stream_hold hold;
  if (!scene_open(&s, (loop_cufile_plan){0})) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  LADE_ASSERT_OK(s.f.runtime->ops->stream_resolve(s.f.runtime->self, stream, &resolved));
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), BYTES);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT(support_stream_hold_begin(&hold, s.f.runtime, stream));
  LADE_EXPECT_OK(s.f.runtime->ops->fill(s.f.runtime->self, s.f.device, 0x11, BYTES, &resolved));
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, 20000000));
  LADE_EXPECT_EQ_UINT(counts_of(&s).reads, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  LADE_EXPECT_GT_UINT(counts_of(&s).reads, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).copies, 0);
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  LADE_ASSERT(support_stream_hold_begin(&hold, s.f.runtime, stream));
  LADE_EXPECT_OK(s.f.runtime->ops->fill(s.f.runtime->self, s.f.device, 0x5a, BYTES, &resolved));
  transfer = fixture_transfer(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, 0), BYTES);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, 20000000));
  LADE_EXPECT_EQ_UINT(counts_of(&s).writes, 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_GT_UINT(counts_of(&s).writes, 0);
  lade_ticket_release(ticket);
  unsigned char *written = malloc(BYTES);
  unsigned char *expected = malloc(BYTES);
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.out, 0, 0), BYTES));
  fixture_device_read(&s.f, 0, written, BYTES);
  memset(expected, 0x5a, BYTES);
  LADE_EXPECT_EQ_MEM(written, expected, BYTES);
  free(written);
  free(expected);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  scene_close(&s);
}

/* The caller gives up while the stream is still busy: nothing is read, and others go on. */
LADE_TEST(StorageCufile, IsCancelledWhileItWaitsForAStream) {
  scene s;
  lade_stream stream;
  lade_ticket *tickets[2];
  support_stream_hold hold;
  if (!scene_open(&s, (loop_cufile_plan){0})) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  LADE_ASSERT(support_stream_hold_begin(&hold, s.f.runtime, stream));
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), BYTES);
  transfer.after_stream = 1;
  transfer.stream = stream;
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &tickets[i]));
  LADE_EXPECT_OK(lade_ticket_cancel(tickets[0]));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(tickets[0], LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_UINT(counts_of(&s).reads, 0);
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), CHUNK));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(tickets[1], LADE_WAIT_FOREVER));
  for (int i = 0; i < 2; i++) lade_ticket_release(tickets[i]);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  scene_close(&s);
}

/* Where there is no driver, or it does not take the file, files go as without it, and the report says so. */
LADE_TEST(StorageCufile, FallsBackWhereItIsNotToBeHad) {
  const loop_cufile_plan plans[] = {{.driver_code = 5033}, {.register_code = 5018}};
  for (size_t i = 0; i < 2; i++) {
    scene s;
    if (!scene_open(&s, plans[i])) return;
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 9, 0), BYTES));
    fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 9);
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_DIRECT), BYTES));
    LADE_EXPECT_EQ_UINT(counts_of(&s).reads + counts_of(&s).writes, 0);
    LADE_EXPECT_CONTAINS_STR(fixture_info(&s.f).storage_note, "GPUDirect Storage");
    expect_out(&s, BYTES, 9);
    scene_close(&s);
  }
}

LADE_TEST(StorageCufile, IsNotForSoftwareDevices) {
  scene s;
  if (!scene_open_on(&s, "cpu", (loop_cufile_plan){0})) return;
  LADE_EXPECT_CONTAINS_STR(fixture_info(&s.f).storage_note, "software");
  LADE_EXPECT_NE_INT(fixture_info(&s.f).storage_direct, LADE_STORAGE_CUFILE);
  scene_close(&s);
}

LADE_TEST(StorageCufile, NamesFileAndByteOfAnError) {
  scene s;
  if (!scene_open(&s, (loop_cufile_plan){.move_code = -1, .move_errno = EIO})) return;
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 5, 0), CHUNK));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EIO);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "in.bin at byte 5");
  s.set(&(loop_cufile_plan){.move_code = -5012});
  LADE_EXPECT_STATUS(LADE_ERR_IO,
                     fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_ATOMIC), CHUNK));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, 5012);
  LADE_EXPECT_NE_INT(access(s.out, F_OK), 0);
  s.set(&(loop_cufile_plan){0});
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 200, 0), BYTES));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "it ends at byte");
  scene_close(&s);
}
