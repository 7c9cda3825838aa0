/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What goes wrong with files, for real: errors of the disk, files that change their length, full disks,
 * interrupted and short calls, O_DIRECT refused, saves that cannot be finished, storage that hangs. By pread, by
 * io_uring, and on virtual time. After each, other transfers are unharmed and every block is accounted for (the runtime
 * closes only when nothing is alive).
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/pipeline/fixture.h"
#include "tests/pipeline/storage_child.h"
#include "tests/pipeline/storage_faults.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 16384, CHUNKS = 24, BYTES = CHUNKS * CHUNK, SEED = 7 };

static const char *const storages[] = {"pread", "uring", "sim", NULL};
static const char *const threaded[] = {"pread", "uring", NULL};

typedef struct scene {
  fixture f;
  support_temp_dir dir;
  char *in;  /* BYTES of the pattern */
  char *out; /* not there */
} scene;

static bool scene_open_with(scene *s, const char *storage, uint32_t readers) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.readers = readers;
  options.storage = strcmp(storage, "uring") == 0 ? LADE_STORAGE_URING : LADE_STORAGE_PREAD;
  if (!support_temp_dir_create(&s->dir)) return false;
  s->in = support_temp_dir_path(&s->dir, "in.bin");
  s->out = support_temp_dir_path(&s->dir, "out.bin");
  return support_temp_file_write(s->in, BYTES, SEED) &&
         fixture_open(&s->f, strcmp(storage, "sim") == 0 ? "sim" : "cpu", BYTES, &options);
}

static bool scene_open(scene *s, const char *storage) { return scene_open_with(s, storage, 2); }

/* The next transfers work, both ways; then everything goes back. */
static void scene_close(scene *s) {
  storage_faults_set((storage_faults){0});
  for (uint32_t direct = 0; direct < 2; direct++) {
    LADE_EXPECT_OK(
        fixture_move(&s->f, LADE_TO_DEVICE, lade_endpoint_path(s->in, 0, direct ? LADE_FILE_DIRECT : 0), BYTES));
    fixture_expect_device_pattern(&s->f, 0, BYTES, SEED, 0);
  }
  char *back = support_temp_dir_path(&s->dir, "back.bin");
  LADE_EXPECT_OK(fixture_move(&s->f, LADE_TO_HOST, lade_endpoint_path(back, 0, LADE_FILE_ATOMIC), BYTES));
  LADE_EXPECT_EQ_INT(unlink(back), 0);
  free(back);
  fixture_close(&s->f);
  free(s->in);
  free(s->out);
  support_temp_dir_remove(&s->dir);
}

/* --- the disk ----------------------------------------------------------------------------------------------------- */

/* This process's own memory as a file: where a mapping goes on behind the end of its file, reading it is an input/output error.
 * The read before that comes up short. A hole in the address space would be another thread's next mapping. */
LADE_TEST_P(StorageFault, NamesTheByteThatCannotBeRead, storages, storage) {
  scene s;
  const size_t good = 5 * CHUNK + 4096;
  if (!scene_open(&s, storage)) return;
  LADE_ASSERT(support_temp_file_write(s.out, good, SEED));
  int shorter = open(s.out, O_RDONLY), fd = open("/proc/self/mem", O_RDONLY);
  char *memory = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, shorter, 0);
  close(shorter);
  if (memory == MAP_FAILED || fd < 0) {
    scene_close(&s);
    LADE_SKIP("no /proc/self/mem");
  }
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_file(fd, (uintptr_t)memory, "disk"), good));
  fixture_expect_device_pattern(&s.f, 0, good, SEED, 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO,
                     fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_file(fd, (uintptr_t)memory, "disk"), 6 * CHUNK));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EIO);
  char at[64];
  snprintf(at, sizeof at, "disk at byte %llu", (unsigned long long)(uintptr_t)(memory + good));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, at);
  munmap(memory, BYTES);
  close(fd);
  LADE_EXPECT_EQ_INT(unlink(s.out), 0);
  scene_close(&s);
}

LADE_TEST_P(StorageFault, GoesOnAfterShortAndInterruptedCalls, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  storage_faults_set(
      (storage_faults){.read_interrupted = 2, .read_short = 3, .write_interrupted = 2, .write_short = 3});
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), BYTES));
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, 0), BYTES));
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.out, 0, 0), BYTES));
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  scene_close(&s);
}

/* Keeps the rest of its transfer, which goes chunk by chunk, until it may go on. */
typedef struct stopper {
  _Atomic(bool) entered;
  _Atomic(bool) may_leave;
} stopper;

static lade_status stopper_fill(void *user, uint64_t offset, void *buffer, size_t bytes) {
  stopper *s = user;
  (void)offset;
  memset(buffer, 0, bytes);
  s->entered = true;
  while (!s->may_leave) usleep(100);
  return LADE_OK;
}

static bool stopper_entered(void *user) { return ((stopper *)user)->entered; }

/* A file that changes its length between submit and read: a piece of one chunk comes before it, whose callback keeps it.
 * Returns the transfer's outcome. */
static lade_status run_with_length(scene *s, size_t bytes, off_t new_length) {
  stopper stop = {false, false};
  lade_ticket *ticket;
  lade_piece pieces[2] = {{lade_endpoint_callback(stopper_fill, &stop), s->f.device, CHUNK},
                          {lade_endpoint_path(s->in, 0, 0), s->f.device, bytes}};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = 2;
  LADE_EXPECT_OK(lade_pipeline_submit(s->f.pipeline, &transfer, &ticket));
  if (!support_is_virtual(s->f.runtime)) LADE_EXPECT(support_wait(s->f.runtime, stopper_entered, &stop));
  LADE_EXPECT_EQ_INT(truncate(s->in, new_length), 0);
  stop.may_leave = true;
  lade_status status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  lade_error error = *lade_last_error();
  lade_ticket_release(ticket);
  if (status != LADE_OK) {
    LADE_EXPECT_CONTAINS_STR(error.text, s->in);
    char at[64];
    snprintf(at, sizeof at, "ends at byte %lld", (long long)new_length);
    LADE_EXPECT_CONTAINS_STR(error.text, at);
  }
  LADE_EXPECT(support_temp_file_write(s->in, BYTES, SEED));
  return status;
}

LADE_TEST_P(StorageFault, NoticesAFileThatGotShorter, storages, storage) {
  scene s;
  if (!scene_open_with(&s, storage, 1)) return;
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, run_with_length(&s, CHUNK, 1000));
  /* Between chunks of one transfer: the first chunk that fails decides. */
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, run_with_length(&s, 2 * CHUNK, CHUNK));
  scene_close(&s);
}

/* Bug: the message named the first byte of the range that the read was for, wherever the file ends. */
LADE_TEST_P(StorageFault, NamesTheByteAtWhichAFileEnds, storages, storage) {
  enum { LENGTH = CHUNK + 100 };
  scene s;
  if (!scene_open(&s, storage)) return;
  LADE_ASSERT_EQ_INT(truncate(s.in, LENGTH), 0);
  lade_transfer transfer =
      fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 3 * CHUNK, LADE_FILE_DIRECT), 2 * CHUNK);
  for (int direct = 0; direct < 2; direct++) {
    transfer.host.flags = direct ? LADE_FILE_DIRECT : 0;
    LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, fixture_run(&s.f, &transfer));
    char at[64];
    snprintf(at, sizeof at, "ends at byte %d", LENGTH);
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, at);
  }
  LADE_EXPECT(support_temp_file_write(s.in, BYTES, SEED));
  scene_close(&s);
}

/* Bug: opening a pipe waits for the other end, so a submit with the path of one never returned. */
LADE_TEST_P(StorageFault, RefusesAPipeByItsPath, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  LADE_EXPECT_EQ_INT(unlink(s.in), 0);
  LADE_ASSERT_EQ_INT(mkfifo(s.in, 0600), 0);
  for (int sink = 0; sink < 2; sink++) {
    lade_transfer transfer =
        fixture_transfer(&s.f, sink ? LADE_TO_HOST : LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), CHUNK);
    fixture_expect_refused(&s.f, &transfer, LADE_ERR_IO, s.in);
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "a pipe");
  }
  int reader = open(s.in, O_RDONLY | O_NONBLOCK); /* also where it could be opened at once, or a second time */
  LADE_ASSERT_GE_INT(reader, 0);
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_HOST, lade_endpoint_path(s.in, 0, 0), CHUNK);
  fixture_expect_refused(&s.f, &transfer, LADE_ERR_IO, "a pipe");
  transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_file(reader, 0, "pipe"), CHUNK);
  transfer.host.flags = LADE_FILE_DIRECT;
  lade_ticket *ticket;
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  lade_status status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  LADE_EXPECT(status != LADE_OK && status != LADE_ERR_TIMEOUT);
  lade_ticket_release(ticket);
  close(reader);
  LADE_EXPECT_EQ_INT(unlink(s.in), 0);
  LADE_EXPECT(support_temp_file_write(s.in, BYTES, SEED));
  scene_close(&s);
}

static bool file_is(const char *path, off_t bytes) {
  struct stat facts;
  return stat(path, &facts) == 0 && facts.st_size == bytes;
}

/* Bug: a piece of 0 bytes was left out with its file, which a transfer of 0 bytes creates. */
LADE_TEST_P(StorageFault, CreatesTheSinkOfAnEmptyPiece, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  char *other = support_temp_dir_path(&s.dir, "other");
  for (int count = 1; count <= 3; count++) {
    for (int atomic = 0; atomic < 2; atomic++) {
      uint32_t flags = atomic ? LADE_FILE_ATOMIC : 0;
      (void)unlink(s.out);
      (void)unlink(other);
      /* The last one names the file of the second, which must not become empty for it. */
      lade_piece pieces[3] = {{lade_endpoint_path(s.out, 0, flags), s.f.device, 0},
                              {lade_endpoint_path(other, 0, flags), s.f.device, CHUNK},
                              {lade_endpoint_path(other, 0, flags), s.f.device, 0}};
      lade_transfer transfer;
      lade_transfer_init(&transfer);
      transfer.direction = LADE_TO_HOST;
      transfer.pieces = pieces;
      transfer.piece_count = (uint64_t)count;
      LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
      LADE_EXPECT(file_is(s.out, 0));
      LADE_EXPECT(count == 1 || file_is(other, CHUNK));
    }
  }
  free(other);
  scene_close(&s);
}

LADE_TEST_P(StorageFault, ReadsItsRangeOfAFileThatGrew, storages, storage) {
  scene s;
  if (!scene_open_with(&s, storage, 1)) return;
  LADE_EXPECT_OK(run_with_length(&s, BYTES, BYTES + 12345));
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  scene_close(&s);
}

/* --- full disks, and saves that fail ------------------------------------------------------------------------------ */

LADE_TEST_P(StorageFault, FindsTheDiskFull, storages, storage) {
  scene s;
  int fd = open("/dev/full", O_RDWR);
  if (fd < 0) LADE_SKIP("no /dev/full");
  if (!scene_open(&s, storage)) return;
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_file(fd, 0, "out.bin"), BYTES));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOSPC);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "out.bin");
  close(fd);
  scene_close(&s);
}

static const uint32_t save_flags[] = {LADE_FILE_ATOMIC, LADE_FILE_ATOMIC | LADE_FILE_SYNC,
                                      LADE_FILE_ATOMIC | LADE_FILE_SYNC | LADE_FILE_DIRECT};
enum { SAVE_FLAGS = sizeof save_flags / sizeof save_flags[0] };

static void expect_no_save(scene *s, uint32_t flags, int code) {
  size_t before = support_names_count(s->dir.path);
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_move(&s->f, LADE_TO_HOST, lade_endpoint_path(s->out, 0, flags), BYTES - 5));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, code);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, s->out);
  LADE_EXPECT_EQ_UINT(support_names_count(s->dir.path), before);
  LADE_EXPECT_NE_INT(access(s->out, F_OK), 0);
}

/* A file must not grow beyond a part of what is written. */
static void save_over_limit(void *user) {
  const char *storage = user;
  scene s;
  struct rlimit limit = {6 * CHUNK, RLIM_INFINITY};
  struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  if (!scene_open(&s, storage)) return;
  signal(SIGXFSZ, SIG_IGN);
  for (size_t i = 0; i < SAVE_FLAGS; i++) {
    LADE_EXPECT_EQ_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_no_save(&s, save_flags[i], EFBIG);
    LADE_EXPECT_EQ_INT(setrlimit(RLIMIT_FSIZE, &none), 0);
  }
  scene_close(&s);
}

LADE_TEST_P(StorageFault, LeavesNoFileThatCouldNotBeWritten, storages, storage) {
  storage_child_run(save_over_limit, (void *)(uintptr_t)storage);
}

/* A disk of 64 KiB. */
static void save_on_tiny_disk(void *user) {
  const char *storage = user;
  scene s;
  if (!scene_open(&s, storage)) return;
  char *disk = support_temp_dir_path(&s.dir, "disk");
  if (mkdir(disk, 0700) != 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("tmpfs", disk, "tmpfs", 0, "size=64k") != 0) {
    storage_child_skip("no right to mount a tiny disk");
  } else {
    char *whole = s.out;
    s.out = support_temp_dir_path(&s.dir, "disk/out.bin");
    for (size_t i = 0; i < SAVE_FLAGS; i++) {
      expect_no_save(&s, save_flags[i], ENOSPC);
      LADE_EXPECT_EQ_UINT(support_names_count(disk), 0);
    }
    free(s.out);
    s.out = whole;
    LADE_EXPECT_EQ_INT(umount2(disk, MNT_DETACH), 0); /* io_uring closes files a moment after its completions */
  }
  LADE_EXPECT_EQ_INT(rmdir(disk), 0);
  free(disk);
  scene_close(&s);
}

LADE_TEST_P(StorageFault, LeavesNoFileOnAFullDisk, storages, storage) {
  storage_child_run(save_on_tiny_disk, (void *)(uintptr_t)storage);
}

LADE_TEST_P(StorageFault, LeavesNoFileThatCouldNotBeFinished, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  storage_faults_set((storage_faults){.flush = EIO});
  expect_no_save(&s, LADE_FILE_ATOMIC | LADE_FILE_SYNC, EIO);
  storage_faults_set((storage_faults){.rename = EACCES});
  expect_no_save(&s, LADE_FILE_ATOMIC, EACCES);
  storage_faults_set((storage_faults){.link = ENOSPC});
  expect_no_save(&s, LADE_FILE_ATOMIC, ENOSPC);
  storage_faults_set((storage_faults){.open_nameless = EOPNOTSUPP, .rename = EROFS});
  expect_no_save(&s, LADE_FILE_ATOMIC, EROFS);
  /* What cannot be flushed is not saved, also without renaming. */
  storage_faults_set((storage_faults){.flush = EDQUOT});
  LADE_EXPECT_STATUS(LADE_ERR_IO,
                     fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_SYNC), BYTES));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EDQUOT);
  scene_close(&s);
}

/* Over a network a file system may say only when a file is closed that it has no room. */
LADE_TEST_P(StorageFault, ReportsWhatClosingSays, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  storage_faults_set((storage_faults){.closing = EDQUOT});
  expect_no_save(&s, LADE_FILE_ATOMIC, EDQUOT);
  expect_no_save(&s, LADE_FILE_ATOMIC | LADE_FILE_DIRECT, EDQUOT);
  static const uint32_t plain[] = {0, LADE_FILE_SYNC, LADE_FILE_DIRECT};
  for (size_t i = 0; i < 3; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, plain[i]), BYTES));
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EDQUOT);
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "closing");
  }
  scene_close(&s);
}

/* --- several files of one transfer --------------------------------------------------------------------------------- */

enum { SEVERAL = 3 };

static lade_status several_save(scene *s, char *const *paths, uint32_t flags, storage_faults faults, int *out_calls) {
  lade_piece pieces[SEVERAL] = {0};
  lade_ticket *ticket;
  for (size_t i = 0; i < SEVERAL; i++) {
    pieces[i].host = lade_endpoint_path(paths[i], 0, flags);
    pieces[i].bytes = CHUNK;
  }
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_HOST, pieces[0].host, 0);
  transfer.host = (lade_endpoint){0};
  transfer.pieces = pieces;
  transfer.piece_count = SEVERAL;
  transfer.bytes = 0;
  storage_faults_set(faults);
  lade_status status = lade_pipeline_submit(s->f.pipeline, &transfer, &ticket);
  if (status == LADE_OK) {
    status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
    lade_ticket_release(ticket);
  }
  *out_calls = storage_faults_count();
  lade_test_context("call %d: %s", faults.nth, storage_faults_nth());
  storage_faults_set((storage_faults){0});
  return status;
}

/* How many of the files, from the first on, are new; the rest are old. All of each file is. */
static size_t several_new(char *const *paths) {
  size_t count = 0;
  for (size_t i = 0; i < SEVERAL; i++) {
    size_t bytes = 0;
    char *data = support_file_read(paths[i], &bytes);
    bool is_old = data != NULL && bytes == 3 && memcmp(data, "old", 3) == 0;
    if (!is_old) {
      LADE_EXPECT_EQ_SIZE(bytes, CHUNK);
      if (bytes == CHUNK) LADE_EXPECT_PATTERN(data, CHUNK, SEED, i * CHUNK);
      LADE_EXPECT_EQ_SIZE(count, i);
      count++;
    }
    free(data);
  }
  return count;
}

/* All are old, or all are new, or the error says how many are. */
static bool several_run(scene *s, char *const *paths, uint32_t flags, storage_faults faults) {
  int calls;
  char expected[60];
  for (size_t i = 0; i < SEVERAL; i++) support_file_write(paths[i], "old", 3);
  lade_status status = several_save(s, paths, flags, faults, &calls);
  size_t count = several_new(paths);
  snprintf(expected, sizeof expected, "the first %zu of %d files are new, the others as they were", count, SEVERAL);
  if (status == LADE_OK) LADE_EXPECT_EQ_SIZE(count, SEVERAL);
  if (status != LADE_OK && count > 0 && count < SEVERAL) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, expected);
  return faults.nth <= calls && !lade_test_has_failed();
}

LADE_TEST(StorageFault, SaysWhichOfSeveralFilesAreNew) {
  static const storage_faults_how hows[] = {STORAGE_FAULTS_FAIL, STORAGE_FAULTS_LIE};
  scene s;
  char *paths[SEVERAL];
  if (!scene_open(&s, "sim")) return;
  LADE_ASSERT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), BYTES));
  char *folder = support_temp_dir_path(&s.dir, "several");
  LADE_ASSERT_EQ_INT(mkdir(folder, 0700), 0);
  for (size_t i = 0; i < SEVERAL; i++) {
    char name[32];
    snprintf(name, sizeof name, "several/%zu.bin", i);
    paths[i] = support_temp_dir_path(&s.dir, name);
  }
  for (size_t how = 0; how < 2; how++) {
    for (size_t i = 0; i < SAVE_FLAGS; i++) {
      int nth = 0;
      do {
        nth++;
      } while (several_run(&s, paths, save_flags[i],
                           (storage_faults){.nth = nth, .how = hows[how], .code = EIO, .flush_nothing = true}));
      LADE_EXPECT_GT_INT(nth, 20);
    }
  }
  int calls; /* nothing of what failed is left */
  lade_test_context("at the end");
  LADE_EXPECT_OK(several_save(&s, paths, LADE_FILE_ATOMIC, (storage_faults){0}, &calls));
  LADE_EXPECT_EQ_UINT(support_names_count(folder), SEVERAL);
  for (size_t i = 0; i < SEVERAL; i++) free(paths[i]);
  free(folder);
  scene_close(&s);
}

/* --- O_DIRECT ----------------------------------------------------------------------------------------------------- */

LADE_TEST_P(StorageFault, GoesThroughThePageCacheWhereODirectIsRefused, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  storage_faults_set((storage_faults){.open_direct = EINVAL});
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, LADE_FILE_DIRECT), BYTES));
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_DIRECT), BYTES));
  lade_pipeline_info info = fixture_info(&s.f);
  LADE_EXPECT_EQ_UINT(info.direct_files, 0);
  LADE_EXPECT_EQ_UINT(info.direct_refused, 2);
  LADE_EXPECT_CONTAINS_STR(info.storage_note, "O_DIRECT refused");
  scene_close(&s);
}

/* A file system that has no O_DIRECT. */
static void read_from_ramfs(void *user) {
  const char *storage = user;
  scene s;
  if (!scene_open(&s, storage)) return;
  char *disk = support_temp_dir_path(&s.dir, "disk");
  char *path = support_temp_dir_path(&s.dir, "disk/in.bin");
  if (mkdir(disk, 0700) != 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("ramfs", disk, "ramfs", 0, NULL) != 0) {
    storage_child_skip("no right to mount a file system");
  } else {
    LADE_EXPECT(support_temp_file_write(path, BYTES, 8));
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(path, 3, LADE_FILE_DIRECT), BYTES - 3));
    fixture_expect_device_pattern(&s.f, 0, BYTES - 3, 8, 3);
    LADE_EXPECT_EQ_UINT(fixture_info(&s.f).direct_refused, 1);
    LADE_EXPECT_EQ_INT(umount2(disk, MNT_DETACH), 0); /* io_uring closes files a moment after its completions */
  }
  LADE_EXPECT_EQ_INT(rmdir(disk), 0);
  free(disk);
  free(path);
  scene_close(&s);
}

LADE_TEST_P(StorageFault, ReadsFromAFileSystemWithoutODirect, storages, storage) {
  storage_child_run(read_from_ramfs, (void *)(uintptr_t)storage);
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

/* Of this process. */
static size_t descriptors_count(void) { return support_names_count("/proc/self/fd"); }

static void read_more_files_than_fit(void *user) {
  enum { FILES = 80, PART = 4096, LIMIT = 128, READERS = 2, FOR_A_MOMENT = 4 };
  scene s;
  lade_piece pieces[FILES];
  lade_ticket *ticket;
  struct rlimit limit = {LIMIT, LIMIT};
  LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (!scene_open_with(&s, user, READERS)) return;
  for (size_t i = 0; i < FILES; i++) {
    char name[32];
    snprintf(name, sizeof name, "shard-%zu", i);
    char *path = support_temp_dir_path(&s.dir, name);
    LADE_ASSERT(support_temp_file_write(path, PART, i));
    pieces[i] = (lade_piece){lade_endpoint_path(path, 0, LADE_FILE_DIRECT), NULL, PART};
  }
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, (lade_endpoint){.kind = 0}, 0);
  transfer.pieces = pieces;
  transfer.piece_count = FILES;
  const size_t open_before = descriptors_count();
  for (int again = 0; again < 2; again++) { /* the count of the first is gone with it */
    lade_pipeline_info before = fixture_info(&s.f);
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
    LADE_EXPECT_LE_UINT(descriptors_count(), open_before + LIMIT / 4 + READERS + FOR_A_MOMENT);
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(ticket);
    for (size_t i = 0; i < FILES; i++) fixture_expect_device_pattern(&s.f, i * PART, PART, i, 0);
    lade_pipeline_info info = fixture_info(&s.f);
    LADE_EXPECT_EQ_UINT(info.direct_files + info.direct_refused - before.direct_files - before.direct_refused, FILES);
    if (info.direct_files > 0) LADE_EXPECT_EQ_UINT(info.direct_files - before.direct_files, LIMIT / 4 / 2);
  }
  for (size_t i = 0; i < FILES; i++) free((char *)(uintptr_t)pieces[i].host.name);
  scene_close(&s);
}

/* The bug: files with O_DIRECT were all opened, with two descriptors each. */
LADE_TEST_P(StorageFault, FilesWithODirectAreNotOpenedBeyondTheLimit, storages, storage) {
  storage_child_run(read_more_files_than_fit, (void *)(uintptr_t)storage);
}

/* --- storage that hangs, and forks -------------------------------------------------------------------------------- */

/* A pipe without data is storage that never answers. Other transfers go on, and a cancel ends it. */
LADE_TEST(StorageFault, CancelsReadsThatHang) {
  scene s;
  int ends[2];
  lade_ticket *ticket;
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.storage = LADE_STORAGE_URING;
  options.drain_timeout_ns = UINT64_C(20000000000);
  if (!scene_open(&s, "uring")) return;
  if (fixture_info(&s.f).storage_buffered != LADE_STORAGE_URING) {
    scene_close(&s);
    LADE_SKIP("io_uring is forbidden here");
  }
  LADE_ASSERT_EQ_INT(pipe(ends), 0);
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_file(ends[0], 0, "pipe"), CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), BYTES));
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, NULL));
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, UINT64_C(20000000000)));
  lade_ticket_release(ticket);
  /* So does destroying the pipeline: at once, and when the read is sure to be in the kernel. */
  for (int later = 0; later < 2; later++) {
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
    if (later) LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 0), BYTES));
    LADE_EXPECT_OK(lade_pipeline_destroy(s.f.pipeline, true));
    LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, 0));
    lade_ticket_release(ticket);
    LADE_ASSERT_OK(lade_pipeline_create(s.f.runtime, s.f.pool, &options, &s.f.pipeline));
  }
  close(ends[0]);
  close(ends[1]);
  scene_close(&s);
}

/* Cancelled anywhere: what is not cancelled is right. */
LADE_TEST_P(StorageFault, CancelsAnywhere, threaded, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  for (unsigned i = 0; i < 60; i++) {
    lade_ticket *ticket;
    lade_transfer transfer =
        fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, i % 2 ? LADE_FILE_DIRECT : 0), BYTES);
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
    usleep(i * 20);
    LADE_EXPECT_OK(lade_ticket_cancel(ticket));
    lade_status status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_CANCELLED);
    if (status == LADE_OK) fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
    lade_ticket_release(ticket);
  }
  scene_close(&s);
}

typedef struct forked {
  scene *s;
  lade_ticket *ticket;
} forked;

static void child_is_refused(void *user) {
  forked *f = user;
  lade_ticket *ticket = NULL;
  lade_transfer transfer = fixture_transfer(&f->s->f, LADE_TO_DEVICE, lade_endpoint_path(f->s->in, 0, 0), CHUNK);
  LADE_EXPECT_STATUS(LADE_ERR_FORKED, lade_pipeline_submit(f->s->f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_FORKED, lade_pipeline_destroy(f->s->f.pipeline, true));
}

LADE_TEST_P(StorageFault, SurvivesAForkInMidTransfer, threaded, storage) {
  scene s;
  forked f = {.s = &s};
  if (!scene_open(&s, storage)) return;
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, LADE_FILE_DIRECT), BYTES);
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &f.ticket));
  storage_child_run(child_is_refused, &f);
  LADE_EXPECT_OK(lade_ticket_wait(f.ticket, LADE_WAIT_FOREVER));
  fixture_expect_device_pattern(&s.f, 0, BYTES, SEED, 0);
  lade_ticket_release(f.ticket);
  scene_close(&s);
}
