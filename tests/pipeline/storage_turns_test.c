/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: threads that write one file: at once, or one after the other where the file system is in memory. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pipeline/storage/storage.h"
#include "tests/shim/lade_test.h"

enum { THREADS = 4, CALLS = 16, CALL_BYTES = 4096 };

static _Atomic(int) inside, most_inside;
static _Atomic(bool) fails;

/* The C library's is not called. */
ssize_t pwrite(int fd, const void *memory, size_t bytes, off_t at) {
  const struct timespec moment = {.tv_nsec = 200 * 1000};
  int now = atomic_fetch_add(&inside, 1) + 1, most = atomic_load(&most_inside);
  while (most < now && !atomic_compare_exchange_weak(&most_inside, &most, now)) {
  }
  nanosleep(&moment, NULL);
  ssize_t moved = syscall(SYS_pwrite64, fd, memory, bytes, at);
  bool refuse = atomic_load(&fails);
  atomic_fetch_sub(&inside, 1);
  if (refuse) errno = ENOSPC;
  return refuse ? -1 : moved;
}

typedef struct part {
  ladei_pipe_storage_file *file;
  int number;
  lade_status status;
} part;

static void *part_write(void *user) {
  part *own = user;
  char bytes[CALL_BYTES];
  memset(bytes, 'a' + own->number, sizeof bytes);
  for (int i = 0; i < CALLS && own->status == LADE_OK; i++) {
    ladei_pipe_storage_request request = {.file = own->file,
                                          .offset = (uint64_t)(i * THREADS + own->number) * CALL_BYTES,
                                          .buffer = bytes,
                                          .bytes = CALL_BYTES,
                                          .block_index = -1};
    own->status = ladei_pipe_storage_run(&request);
  }
  return NULL;
}

/* The most calls at once; the file has what was written unless it is to be refused. */
static int write_by_threads(int fd, lade_status expected) {
  ladei_pipe_storage storage;
  ladei_pipe_storage_file *file = NULL;
  ladei_pipe_storage_source source = {.name = "file", .fd = fd};
  part parts[THREADS];
  pthread_t threads[THREADS];
  char bytes[CALL_BYTES];
  memset(&storage, 0, sizeof storage);
  atomic_store(&most_inside, 0);
  ladei_pipe_storage_open(&storage, LADE_STORAGE_PREAD, true, THREADS, THREADS);
  LADE_EXPECT_OK(ladei_pipe_storage_file_open(&storage, &source, true, &file));
  for (int i = 0; i < THREADS && file != NULL; i++) {
    parts[i] = (part){.file = file, .number = i};
    LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, part_write, &parts[i]), 0);
  }
  for (int i = 0; i < THREADS && file != NULL; i++) {
    pthread_join(threads[i], NULL);
    LADE_EXPECT_STATUS(expected, parts[i].status);
  }
  for (int i = 0; expected == LADE_OK && i < THREADS * CALLS; i++) {
    LADE_EXPECT_EQ_INT((int)pread(fd, bytes, sizeof bytes, (off_t)i * CALL_BYTES), CALL_BYTES);
    LADE_EXPECT(bytes[0] == 'a' + i % THREADS && bytes[CALL_BYTES - 1] == 'a' + i % THREADS);
  }
  if (file != NULL) LADE_EXPECT_OK(ladei_pipe_storage_file_close(file));
  ladei_pipe_storage_close(&storage);
  return atomic_load(&most_inside);
}

LADE_TEST(StorageTurns, AFileInMemoryIsWrittenByOneThreadAtATime) {
  int fd = memfd_create("file", MFD_CLOEXEC);
  LADE_ASSERT(fd >= 0);
  LADE_EXPECT_EQ_INT(write_by_threads(fd, LADE_OK), 1);
  close(fd);
}

/* Each thread has its error, and no turn is kept. */
LADE_TEST(StorageTurns, ARefusedWriteLetsOthersHaveTheirTurn) {
  int fd = memfd_create("file", MFD_CLOEXEC);
  LADE_ASSERT(fd >= 0);
  atomic_store(&fails, true);
  LADE_EXPECT_EQ_INT(write_by_threads(fd, LADE_ERR_IO), 1);
  atomic_store(&fails, false);
  LADE_EXPECT_EQ_INT(write_by_threads(fd, LADE_OK), 1);
  close(fd);
}

LADE_TEST(StorageTurns, AFileOnADiskIsWrittenByThreadsAtOnce) {
  FILE *file = tmpfile();
  LADE_ASSERT(file != NULL);
  int most = write_by_threads(fileno(file), LADE_OK);
  if (most == 1) LADE_SKIP("temporary files are in memory, or the machine has one processor that is busy");
  LADE_EXPECT_LE_INT(most, THREADS);
  fclose(file);
}
