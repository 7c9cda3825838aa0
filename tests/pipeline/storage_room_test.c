/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Room that is set aside for files to be written: what it changes of them, and what it leaves alone. */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "pipeline/storage/storage.h"
#include "tests/shim/lade_test.h"

static bool preallocates(int fd) { return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4096) == 0; }

/* Blocks are set aside; the size says what was written. */
LADE_TEST(StorageRoom, RoomIsSetAsideAndTheSizeStays) {
  enum { END = 16 << 20 };
  ladei_pipe_storage storage;
  ladei_pipe_storage_file *file = NULL;
  struct stat facts;
  FILE *on_disk = tmpfile(), *other = tmpfile();
  memset(&storage, 0, sizeof storage);
  LADE_ASSERT(on_disk != NULL && other != NULL);
  struct statfs system;
  LADE_ASSERT_EQ_INT(fstatfs(fileno(other), &system), 0);
  bool has = system.f_type != TMPFS_MAGIC && preallocates(fileno(other));
  ladei_pipe_storage_open(&storage, LADE_STORAGE_PREAD, true, 4, 4);
  ladei_pipe_storage_source source = {.name = "file", .fd = fileno(on_disk)};
  LADE_ASSERT_OK(ladei_pipe_storage_file_open(&storage, &source, true, &file));
  LADE_EXPECT_EQ_INT((int)pwrite(fileno(on_disk), "abc", 3, 0), 3);
  ladei_pipe_storage_file_preallocate(file, 0, END);
  LADE_EXPECT_EQ_INT(fstat(fileno(on_disk), &facts), 0);
  LADE_EXPECT_EQ_INT((int)facts.st_size, 3);
  if (has) LADE_EXPECT_GE_UINT((uint64_t)facts.st_blocks * 512, END);
  ladei_pipe_storage_file_preallocate(file, 0, 2); /* there already */
  LADE_EXPECT_EQ_INT(fstat(fileno(on_disk), &facts), 0);
  LADE_EXPECT_EQ_INT((int)facts.st_size, 3);
  LADE_EXPECT_OK(ladei_pipe_storage_file_close(file));
  ladei_pipe_storage_close(&storage);
  fclose(other);
  fclose(on_disk);
}

/* The bug: what lay between the end of the file and the range was set aside, too. */
LADE_TEST(StorageRoom, RoomIsSetAsideForTheRangeAlone) {
  enum { RANGE = 16 << 20 };
  const uint64_t begin = UINT64_C(256) << 20;
  ladei_pipe_storage storage;
  ladei_pipe_storage_file *file = NULL;
  struct stat facts;
  struct statfs system;
  FILE *on_disk = tmpfile(), *other = tmpfile();
  memset(&storage, 0, sizeof storage);
  LADE_ASSERT(on_disk != NULL && other != NULL);
  LADE_ASSERT_EQ_INT(fstatfs(fileno(other), &system), 0);
  bool has = system.f_type != TMPFS_MAGIC && preallocates(fileno(other));
  ladei_pipe_storage_open(&storage, LADE_STORAGE_PREAD, true, 4, 4);
  ladei_pipe_storage_source source = {.name = "file", .fd = fileno(on_disk)};
  LADE_ASSERT_OK(ladei_pipe_storage_file_open(&storage, &source, true, &file));
  ladei_pipe_storage_file_preallocate(file, begin, begin + RANGE);
  LADE_EXPECT_EQ_INT(fstat(fileno(on_disk), &facts), 0);
  LADE_EXPECT_EQ_INT((int)facts.st_size, 0);
  LADE_EXPECT_LT_UINT((uint64_t)facts.st_blocks * 512, begin / 2);
  if (has) LADE_EXPECT_GE_UINT((uint64_t)facts.st_blocks * 512, RANGE);
  LADE_EXPECT_OK(ladei_pipe_storage_file_close(file));
  ladei_pipe_storage_close(&storage);
  fclose(other);
  fclose(on_disk);
}

/* File systems in memory would touch all pages there and then; pipes and files that are read have nothing to set aside. */
LADE_TEST(StorageRoom, RoomIsNotSetAsideWhereThatIsNoUse) {
  enum { END = 16 << 20 };
  struct stat facts;
  int memory = memfd_create("file", MFD_CLOEXEC);
  FILE *on_disk = tmpfile();
  LADE_ASSERT(memory >= 0 && on_disk != NULL);
  const int fds[] = {memory, fileno(on_disk)};
  for (int i = 0; i < 2; i++) {
    ladei_pipe_storage storage;
    ladei_pipe_storage_file *file = NULL;
    memset(&storage, 0, sizeof storage);
    ladei_pipe_storage_open(&storage, LADE_STORAGE_PREAD, true, 4, 4);
    ladei_pipe_storage_source source = {.name = "file", .fd = fds[i]};
    LADE_ASSERT_OK(ladei_pipe_storage_file_open(&storage, &source, i == 0, &file));
    ladei_pipe_storage_file_preallocate(file, 0, END);
    LADE_EXPECT_EQ_INT(fstat(fds[i], &facts), 0);
    LADE_EXPECT_EQ_INT((int)facts.st_blocks, 0);
    LADE_EXPECT_OK(ladei_pipe_storage_file_close(file));
    ladei_pipe_storage_close(&storage);
  }
  close(memory);
  fclose(on_disk);
}
