/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Files from end to end: every kind of storage, through the page cache and past it, any range; files by
 * path, flushed, appearing all at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "pipeline/state/state.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 16384, CHUNKS = 24, DEVICE_BYTES = CHUNKS * CHUNK, BEHIND = 5000 };

static const char *const storages[] = {"auto", "pread", "uring", "sim", NULL};

typedef struct scene {
  fixture f;
  support_temp_dir dir;
  char *in;  /* DEVICE_BYTES + CHUNK of pattern 7 */
  char *out; /* not there yet */
} scene;

static int32_t storage_of(const char *name) {
  return strcmp(name, "pread") == 0   ? LADE_STORAGE_PREAD
         : strcmp(name, "uring") == 0 ? LADE_STORAGE_URING
                                      : LADE_STORAGE_AUTO;
}

static bool scene_open(scene *s, const char *storage) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.storage = storage_of(storage);
  if (!support_temp_dir_create(&s->dir)) return false;
  s->in = support_temp_dir_path(&s->dir, "in.bin");
  s->out = support_temp_dir_path(&s->dir, "out.bin");
  return support_temp_file_write(s->in, DEVICE_BYTES + CHUNK, 7) &&
         fixture_open(&s->f, strcmp(storage, "sim") == 0 ? "sim" : "cpu", DEVICE_BYTES, &options);
}

static void scene_close(scene *s) {
  fixture_close(&s->f);
  free(s->in);
  free(s->out);
  support_temp_dir_remove(&s->dir);
}

static void expect_part(const char *path, uint64_t offset, size_t bytes, uint64_t seed, uint64_t position) {
  char *found = malloc(bytes + 1);
  int fd = open(path, O_RDONLY);
  LADE_EXPECT_EQ_INT(pread(fd, found, bytes, (off_t)offset), (ssize_t)bytes);
  LADE_EXPECT_PATTERN(found, bytes, seed, position);
  close(fd);
  free(found);
}

/* The same, and the file ends there. */
static void expect_file(const char *path, uint64_t offset, size_t bytes, uint64_t seed, uint64_t position) {
  struct stat status;
  expect_part(path, offset, bytes, seed, position);
  LADE_EXPECT_EQ_INT(stat(path, &status), 0);
  LADE_EXPECT_EQ_UINT(status.st_size, offset + bytes);
}

static size_t names_in(const scene *s) { return support_names_count(s->dir.path); }

static const struct {
  size_t offset;
  size_t bytes;
} ranges[] = {{0, DEVICE_BYTES},
              {0, 1},
              {4095, 2},
              {4096, 4096},
              {1, DEVICE_BYTES},
              {12345, 5 * CHUNK + 17},
              {CHUNK, 3 * CHUNK},
              {CHUNK - 1, CHUNK},
              {4096, DEVICE_BYTES - 1}};
enum { RANGES = sizeof ranges / sizeof ranges[0] };

LADE_TEST_P(StorageTransfer, ReadsAnyRange, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  unsigned char *zero = calloc(1, DEVICE_BYTES);
  for (uint32_t direct = 0; direct < 2; direct++) {
    for (size_t i = 0; i < RANGES; i++) {
      lade_test_context("direct %u, offset %zu, bytes %zu", direct, ranges[i].offset, ranges[i].bytes);
      fixture_device_write(&s.f, 0, zero, DEVICE_BYTES);
      lade_endpoint host = lade_endpoint_path(s.in, ranges[i].offset, direct ? LADE_FILE_DIRECT : 0);
      LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, host, ranges[i].bytes));
      fixture_expect_device_pattern(&s.f, 0, ranges[i].bytes, 7, ranges[i].offset);
    }
  }
  lade_pipeline_info info = fixture_info(&s.f);
  LADE_EXPECT_EQ_UINT(info.direct_files + info.direct_refused, RANGES);
  free(zero);
  scene_close(&s);
}

LADE_TEST_P(StorageTransfer, WritesAnyRangeAndNothingElse, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  unsigned char *bytes = malloc(DEVICE_BYTES);
  support_pattern_fill(bytes, DEVICE_BYTES, 8, 0);
  fixture_device_write(&s.f, 0, bytes, DEVICE_BYTES);
  for (uint32_t direct = 0; direct < 2; direct++) {
    for (size_t i = 0; i < RANGES; i++) {
      lade_test_context("direct %u, offset %zu, bytes %zu", direct, ranges[i].offset, ranges[i].bytes);
      uint64_t end = ranges[i].offset + ranges[i].bytes;
      LADE_ASSERT(support_temp_file_write(s.out, (size_t)end + BEHIND, 9));
      lade_endpoint host =
          lade_endpoint_path(s.out, ranges[i].offset, (direct ? LADE_FILE_DIRECT : 0) | LADE_FILE_SYNC);
      LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, host, ranges[i].bytes));
      expect_part(s.out, 0, ranges[i].offset, 9, 0);
      expect_part(s.out, ranges[i].offset, ranges[i].bytes, 8, 0);
      expect_part(s.out, end, BEHIND, 9, end);
    }
  }
  free(bytes);
  scene_close(&s);
}

/* The caller's own descriptor, opened with O_DIRECT: any range all the same. */
LADE_TEST_P(StorageTransfer, TakesDescriptorsWithODirect, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  int in = open(s.in, O_RDONLY | O_DIRECT);
  int out = open(s.out, O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (in < 0 || out < 0) {
    scene_close(&s);
    LADE_SKIP("no O_DIRECT in the folder of temporary files");
  }
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_file(in, 777, s.in), 9 * CHUNK + 5));
  fixture_expect_device_pattern(&s.f, 0, 9 * CHUNK + 5, 7, 777);
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_file(out, 333, s.out), 9 * CHUNK + 5));
  expect_file(s.out, 333, 9 * CHUNK + 5, 7, 777);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).direct_files + fixture_info(&s.f).direct_refused, 2);
  close(in);
  close(out);
  scene_close(&s);
}

/* The report says what files go through, and why not what was asked for. */
LADE_TEST_P(StorageTransfer, ReportsWhatWasChosen, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  lade_pipeline_info info = fixture_info(&s.f);
  bool pread_only = strcmp(storage, "pread") == 0 || strcmp(storage, "sim") == 0;
  if (pread_only) {
    LADE_EXPECT_EQ_INT(info.storage_buffered, LADE_STORAGE_PREAD);
    LADE_EXPECT_EQ_INT(info.storage_direct, LADE_STORAGE_PREAD);
    LADE_EXPECT_EQ_STR(info.storage_note, "");
  } else if (info.storage_direct == LADE_STORAGE_URING) {
    LADE_EXPECT_EQ_INT(info.storage_buffered, strcmp(storage, "uring") == 0 ? LADE_STORAGE_URING : LADE_STORAGE_PREAD);
  } else {
    LADE_EXPECT_EQ_INT(info.storage_direct, LADE_STORAGE_PREAD);
    LADE_EXPECT_CONTAINS_STR(info.storage_note, "io_uring");
  }
  scene_close(&s);
}

/* Blocks that stay are registered with the kernel while they are used, and no longer. */
LADE_TEST(StorageTransfer, ForgetsRegisteredBlocksWithTheirUse) {
  scene s;
  if (!scene_open(&s, "uring")) return;
  for (int i = 0; i < 3; i++) {
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, LADE_FILE_DIRECT), DEVICE_BYTES));
    fixture_expect_device_pattern(&s.f, 0, DEVICE_BYTES, 7, 0);
  }
  while (fixture_info(&s.f).blocks > 0) usleep(1000);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).registered_buffers, 0);
  scene_close(&s);
}

LADE_TEST_P(StorageTransfer, OpensManyFilesByPath, storages, storage) {
  enum { FILES = 48, PART = DEVICE_BYTES / FILES };
  scene s;
  lade_ticket *tickets[FILES];
  char *paths[FILES];
  if (!scene_open(&s, storage)) return;
  for (size_t i = 0; i < FILES; i++) {
    char name[32];
    snprintf(name, sizeof name, "shard-%zu", i);
    paths[i] = support_temp_dir_path(&s.dir, name);
    LADE_ASSERT(support_temp_file_write(paths[i], PART, i));
    lade_transfer transfer =
        fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_path(paths[i], 0, i % 2 ? LADE_FILE_DIRECT : 0), PART);
    transfer.device_memory = s.f.device + i * PART;
    LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &tickets[i]));
  }
  for (size_t i = 0; i < FILES; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
    fixture_expect_device_pattern(&s.f, i * PART, PART, i, 0);
    free(paths[i]);
  }
  scene_close(&s);
}

LADE_TEST_P(StorageTransfer, LetsFilesAppearWhenTheyAreWhole, storages, storage) {
  scene s;
  struct stat status;
  if (!scene_open(&s, storage)) return;
  unsigned char *bytes = malloc(DEVICE_BYTES);
  support_pattern_fill(bytes, DEVICE_BYTES, 8, 0);
  fixture_device_write(&s.f, 0, bytes, DEVICE_BYTES);
  LADE_ASSERT(support_temp_file_write(s.out, DEVICE_BYTES + 100, 3)); /* replaced, and longer */
  const uint32_t flags[] = {LADE_FILE_ATOMIC, LADE_FILE_ATOMIC | LADE_FILE_SYNC,
                            LADE_FILE_ATOMIC | LADE_FILE_SYNC | LADE_FILE_DIRECT};
  for (size_t i = 0; i < 3; i++) {
    size_t length = DEVICE_BYTES - 1000 * i;
    LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, flags[i]), length));
    expect_file(s.out, 0, length, 8, 0);
    LADE_EXPECT_EQ_UINT(names_in(&s), 2);
  }
  /* An empty one too. */
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_ATOMIC), 0));
  LADE_EXPECT_EQ_INT(stat(s.out, &status), 0);
  LADE_EXPECT_EQ_INT(status.st_size, 0);
  free(bytes);
  scene_close(&s);
}

static void expect_size(const char *path, off_t bytes) {
  struct stat facts = {.st_size = -1};
  LADE_EXPECT_EQ_INT(stat(path, &facts), 0);
  LADE_EXPECT_EQ_INT(facts.st_size, bytes);
}

/* Bug: a new file ended at the last byte that was written, not where its last range does. */
LADE_TEST_P(StorageTransfer, NewFilesEndWhereTheirRangesDo, storages, storage) {
  scene s;
  if (!scene_open(&s, storage)) return;
  LADE_EXPECT_OK(
      fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 100, LADE_FILE_ATOMIC | LADE_FILE_SYNC), 0));
  expect_size(s.out, 100);
  lade_piece pieces[3] = {{lade_endpoint_path(s.out, 700, LADE_FILE_ATOMIC), NULL, 0},
                          {lade_endpoint_path(s.out, 300, LADE_FILE_ATOMIC), NULL, 50},
                          {lade_endpoint_path(s.out, 500, LADE_FILE_ATOMIC), NULL, 0}};
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_HOST, (lade_endpoint){.kind = 0}, 0);
  transfer.pieces = pieces;
  transfer.piece_count = 3;
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_size(s.out, 700);
  /* What is there already ends where it ended. */
  LADE_EXPECT_OK(fixture_move(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 900, 0), 0));
  expect_size(s.out, 700);
  scene_close(&s);
}

LADE_TEST_P(StorageTransfer, LeavesNoFileWhenItIsCancelled, storages, storage) {
  scene s;
  lade_stream stream;
  lade_ticket *ticket;
  support_stream_hold hold;
  if (!scene_open(&s, storage)) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  LADE_ASSERT(support_stream_hold_begin(&hold, s.f.runtime, stream));
  lade_transfer transfer =
      fixture_transfer(&s.f, LADE_TO_HOST, lade_endpoint_path(s.out, 0, LADE_FILE_ATOMIC), DEVICE_BYTES);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  support_stream_hold_end(&hold);
  lade_status status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, status);
  LADE_EXPECT_EQ_UINT(names_in(&s), 1);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  scene_close(&s);
}

static void expect_refused(scene *s, lade_direction direction, lade_endpoint host, lade_status status,
                           const char *names) {
  lade_transfer transfer = fixture_transfer(&s->f, direction, host, CHUNK);
  fixture_expect_refused(&s->f, &transfer, status, names);
}

LADE_TEST(StorageTransfer, NamesWhatIsWrongWithAFile) {
  scene s;
  if (!scene_open(&s, "auto")) return;
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path(NULL, 0, 0), LADE_ERR_INVALID_ARGUMENT, "host.name");
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path("", 0, 0), LADE_ERR_INVALID_ARGUMENT, "host.name");
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path(s.in, INT64_MAX, 0), LADE_ERR_INVALID_ARGUMENT, "host.offset");
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, 16), LADE_ERR_INVALID_ARGUMENT, "host.flags");
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, LADE_FILE_DIRECT | LADE_FILE_CACHED),
                 LADE_ERR_INVALID_ARGUMENT, "host.flags is 0x9; expected LADE_FILE_DIRECT or LADE_FILE_CACHED");
  expect_refused(&s, LADE_TO_HOST, lade_endpoint_path(s.in, 0, LADE_FILE_CACHED), LADE_ERR_INVALID_ARGUMENT,
                 "host.flags");
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path(s.in, 0, LADE_FILE_SYNC), LADE_ERR_INVALID_ARGUMENT,
                 "host.flags");
  lade_endpoint file = lade_endpoint_file(0, 0, NULL);
  file.flags = LADE_FILE_ATOMIC;
  expect_refused(&s, LADE_TO_HOST, file, LADE_ERR_INVALID_ARGUMENT, "host.flags");
  lade_endpoint memory = lade_endpoint_memory(&s);
  memory.flags = LADE_FILE_DIRECT;
  expect_refused(&s, LADE_TO_HOST, memory, LADE_ERR_INVALID_ARGUMENT, "host.flags");
  expect_refused(&s, LADE_TO_DEVICE, lade_endpoint_path(s.out, 0, 0), LADE_ERR_IO, s.out);
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOENT);
  expect_refused(&s, LADE_TO_HOST, lade_endpoint_path(s.dir.path, 0, 0), LADE_ERR_IO, s.dir.path);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).transfers_submitted, 0);
  scene_close(&s);
}

/* The first half of the device memory to one path, the second half behind it to the other. */
static lade_transfer halves(const scene *s, lade_piece pieces[2], const char *first, uint32_t first_flags,
                            const char *second, uint32_t second_flags) {
  enum { HALF = DEVICE_BYTES / 2 };
  pieces[0] = (lade_piece){lade_endpoint_path(first, 0, first_flags), NULL, HALF};
  pieces[1] = (lade_piece){lade_endpoint_path(second, HALF, second_flags), NULL, HALF};
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_HOST, (lade_endpoint){.kind = 0}, DEVICE_BYTES);
  transfer.pieces = pieces;
  transfer.piece_count = 2;
  return transfer;
}

/* The bug: pieces with different flags, or different spellings of a path, made two new files of one name. The second replaced
 * the first, and half of the bytes were gone, with LADE_OK. */
LADE_TEST(StorageTransfer, AnAtomicFileHasOneSpellingAndOneSetOfFlags) {
  scene s;
  lade_piece pieces[2];
  if (!scene_open(&s, "auto")) return;
  unsigned char *bytes = malloc(DEVICE_BYTES);
  support_pattern_fill(bytes, DEVICE_BYTES, 8, 0);
  fixture_device_write(&s.f, 0, bytes, DEVICE_BYTES);
  char *dotted = support_temp_dir_path(&s.dir, "./out.bin");
  char *folder_link = support_temp_dir_path(&s.dir, "folder"),
       *through = support_temp_dir_path(&s.dir, "folder/out.bin");
  char *link = support_temp_dir_path(&s.dir, "link.bin");
  LADE_ASSERT_EQ_INT(symlink(".", folder_link), 0);
  LADE_ASSERT_EQ_INT(symlink("out.bin", link), 0);
  static const uint32_t flags[][2] = {{LADE_FILE_ATOMIC, LADE_FILE_ATOMIC | LADE_FILE_DIRECT},
                                      {LADE_FILE_ATOMIC | LADE_FILE_SYNC, LADE_FILE_ATOMIC},
                                      {LADE_FILE_ATOMIC, 0},
                                      {0, LADE_FILE_ATOMIC}};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    lade_test_context("flags %x and %x", flags[i][0], flags[i][1]);
    lade_transfer transfer = halves(&s, pieces, s.out, flags[i][0], s.out, flags[i][1]);
    char words[64];
    (void)snprintf(words, sizeof words, "transfer.pieces[1].host.flags is 0x%x; expected 0x%x, as", flags[i][1],
                   flags[i][0]);
    fixture_expect_refused(&s.f, &transfer, LADE_ERR_INVALID_ARGUMENT, words);
  }
  const char *const others[] = {dotted, through};
  for (size_t i = 0; i < 2; i++) {
    lade_transfer transfer = halves(&s, pieces, s.out, LADE_FILE_ATOMIC, others[i], LADE_FILE_ATOMIC);
    fixture_expect_refused(&s.f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.pieces[1].host.name is ");
    transfer = halves(&s, pieces, others[i], 0, s.out, LADE_FILE_ATOMIC);
    fixture_expect_refused(&s.f, &transfer, LADE_ERR_INVALID_ARGUMENT, "; transfer.pieces[0] has ");
  }
  LADE_EXPECT_EQ_UINT(names_in(&s), 3); /* nothing was opened */
  /* Pieces without bytes count, too. */
  lade_transfer transfer = halves(&s, pieces, s.out, LADE_FILE_ATOMIC, dotted, LADE_FILE_ATOMIC);
  transfer.bytes = pieces[0].bytes;
  pieces[1].bytes = 0;
  fixture_expect_refused(&s.f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.pieces[1].host.name is ");
  /* In place, every spelling reaches the one file, with any flags. */
  transfer = halves(&s, pieces, s.out, 0, s.out, LADE_FILE_SYNC);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_file(s.out, 0, DEVICE_BYTES, 8, 0);
  LADE_EXPECT_EQ_INT(unlink(s.out), 0);
  transfer = halves(&s, pieces, s.out, 0, dotted, 0);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_file(s.out, 0, DEVICE_BYTES, 8, 0);
  /* In place through a link to what is replaced. */
  transfer = halves(&s, pieces, link, 0, s.out, LADE_FILE_ATOMIC);
  fixture_expect_refused(&s.f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.pieces[1].host.name is ");
  /* A link that is replaced itself is another file. */
  transfer = halves(&s, pieces, s.out, 0, link, LADE_FILE_ATOMIC);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_part(s.out, 0, DEVICE_BYTES / 2, 8, 0);
  expect_part(link, DEVICE_BYTES / 2, DEVICE_BYTES / 2, 8, DEVICE_BYTES / 2);
  LADE_EXPECT_EQ_INT(unlink(s.out), 0);
  transfer = halves(&s, pieces, s.out, LADE_FILE_ATOMIC, s.out, LADE_FILE_ATOMIC);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_file(s.out, 0, DEVICE_BYTES, 8, 0);
  free(link);
  free(through);
  free(folder_link);
  free(dotted);
  free(bytes);
  scene_close(&s);
}

/* Chunks smaller than a block of the file: through the page cache, and said so. */
LADE_TEST(StorageTransfer, GoesThroughThePageCacheWithTinyChunks) {
  fixture f;
  lade_pipeline_options options;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "in.bin");
  LADE_ASSERT(support_temp_file_write(path, 20000, 7));
  fixture_options(&options);
  options.chunk_bytes = 1000;
  if (!fixture_open(&f, "cpu", 20000, &options)) return;
  support_heard heard;
  support_heard_begin(&heard, LADE_LOG_WARN);
  LADE_EXPECT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_path(path, 17, LADE_FILE_DIRECT), 19000));
  ladei_log_flush();
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, ": O_DIRECT is refused: "), 1);
  fixture_expect_device_pattern(&f, 0, 19000, 7, 17);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).direct_refused, 1);
  fixture_close(&f);
  free(path);
  support_temp_dir_remove(&dir);
}

/* Writes of a transfer at once, at first; 0: as many as there are threads. */
static unsigned writers_of(scene *s, lade_endpoint host) {
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_HOST, host, DEVICE_BYTES);
  lade_ticket *ticket;
  if (lade_pipeline_submit(s->f.pipeline, &transfer, &ticket) != LADE_OK) return UINT32_MAX;
  ladei_lock_acquire(&s->f.pipeline->lock);
  unsigned writers = ticket->transfer.writers;
  LADE_EXPECT_EQ_INT(ticket->transfer.sink != 0, writers != 0);
  ladei_lock_release(&s->f.pipeline->lock);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  return writers;
}

/* The bug: 20 blocks of 4.9 MiB left the processor's cache before they were written. Of an engine that is a device, chunks to the
 * page cache are short; to memory, and where the program says how long they are, they are as long as ever. */
LADE_TEST(StorageTransfer, ChunksToAFileAreShort) {
  enum { BYTES = 8 << 20, CHUNK_GIVEN = 2 << 20, TO_FILE = 512 << 10 };
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "out.bin");
  char *memory = malloc(BYTES);
  for (int given = 0; given < 2; given++) {
    lade_pipeline_options options;
    fixture f;
    lade_pipeline_options_init(&options);
    options.chunk_bytes = given ? CHUNK_GIVEN : 0;
    if (!fixture_open(&f, "cpu", BYTES, &options)) return;
    f.pipeline->chunk_adapts = !given; /* as where engines are no threads */
    for (int to_file = 0; to_file < 2; to_file++) {
      lade_endpoint host = to_file ? lade_endpoint_path(path, 0, 0) : lade_endpoint_memory(memory);
      lade_transfer transfer = fixture_transfer(&f, LADE_TO_HOST, host, BYTES);
      lade_ticket *ticket;
      LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
      LADE_EXPECT_EQ_UINT(ticket->transfer.chunk_bytes, given ? CHUNK_GIVEN : to_file ? TO_FILE : BYTES / 8);
      LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
      lade_ticket_release(ticket);
    }
    fixture_close(&f);
  }
  free(memory);
  free(path);
  support_temp_dir_remove(&dir);
}

/* The bug: 12 threads waited for the lock of one file, at 2.1 core-seconds per GiB. */
LADE_TEST(StorageTransfer, OneThreadWritesAFileAtFirst) {
  scene s;
  char *memory = malloc(DEVICE_BYTES);
  if (!scene_open(&s, "pread")) return;
  uint32_t readers = s.f.pipeline->options.readers;
  LADE_EXPECT_EQ_UINT(writers_of(&s, lade_endpoint_path(s.out, 0, 0)), 0); /* threads that were asked for */
  s.f.pipeline->readers_chosen = true;
  s.f.pipeline->options.readers = 12;
  LADE_EXPECT_EQ_UINT(writers_of(&s, lade_endpoint_path(s.out, 0, 0)), 1);
  LADE_EXPECT_EQ_UINT(writers_of(&s, lade_endpoint_path(s.out, 0, LADE_FILE_ATOMIC)), 1);
  LADE_EXPECT_EQ_UINT(writers_of(&s, lade_endpoint_memory(memory)), 0);
  uint64_t refused = fixture_info(&s.f).direct_refused;
  unsigned past_cache = writers_of(&s, lade_endpoint_path(s.out, 0, LADE_FILE_DIRECT));
  LADE_EXPECT_EQ_UINT(past_cache, fixture_info(&s.f).direct_refused > refused ? 1 : 0);
  s.f.pipeline->options.readers = readers;
  free(memory);
  scene_close(&s);
}

/* Bytes of the disk that a file takes. */
static uint64_t allocated_bytes(const char *path) {
  struct stat facts;
  return stat(path, &facts) == 0 ? (uint64_t)facts.st_blocks * 512 : UINT64_MAX;
}

/* Whether the folder's file system keeps a hole of `at` bytes. */
static bool keeps_holes(const char *path, uint64_t at) {
  int fd = open(path, O_WRONLY | O_CREAT, 0600);
  bool written = fd >= 0 && pwrite(fd, "x", 1, (off_t)at) == 1 && fsync(fd) == 0;
  if (fd >= 0) close(fd);
  bool keeps = written && allocated_bytes(path) < at / 2;
  unlink(path);
  return keeps;
}

/* The bug: room was set aside from the end of a file to the last range, so 64 KiB behind a hole of 1 GiB took 1 GiB, and could
 * end with ENOSPC where the bytes alone fit. */
LADE_TEST(StorageTransfer, HolesOfAFileStayHoles) {
  enum { BYTES = 8 << 20 };
  const uint64_t far = 256 << 20;
  fixture f;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "out.bin");
  if (!keeps_holes(path, far)) {
    free(path);
    support_temp_dir_remove(&dir);
    LADE_SKIP("the folder of temporary files keeps no holes");
  }
  if (!fixture_open(&f, "cpu", BYTES, NULL)) return;
  LADE_EXPECT_OK(fixture_move(&f, LADE_TO_HOST, lade_endpoint_path(path, far, 0), BYTES));
  LADE_EXPECT_LE_UINT(allocated_bytes(path), far / 2);
  LADE_EXPECT_EQ_INT(unlink(path), 0);
  /* Between two ranges of one transfer, too. */
  lade_piece pieces[] = {{lade_endpoint_path(path, far, 0), NULL, BYTES / 2},
                         {lade_endpoint_path(path, 0, 0), NULL, BYTES / 2}};
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_HOST, (lade_endpoint){.kind = 0}, BYTES);
  transfer.pieces = pieces;
  transfer.piece_count = 2;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_LE_UINT(allocated_bytes(path), far / 2);
  fixture_close(&f);
  free(path);
  support_temp_dir_remove(&dir);
}
