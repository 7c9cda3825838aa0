/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Who copies what io_uring reads from the page cache: the engine alone, without the pipeline around it. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pipeline/storage/storage.h"
#include "tests/shim/lade_test.h"

/* Threads of this process that the kernel made for io_uring. */
static unsigned kernel_threads(void) {
  unsigned count = 0;
  const struct dirent *entry;
  DIR *tasks = opendir("/proc/self/task");
  while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "re");
    if (file != NULL && fgets(name, sizeof name, file) != NULL) count += strncmp(name, "iou-wrk", 7) == 0 ? 1 : 0;
    if (file != NULL) fclose(file);
  }
  if (tasks != NULL) closedir(tasks);
  return count;
}

/* The thread that submitted copied for all: 5 GB/s where readers with pread bring 60. */
LADE_TEST(StorageUring, LeavesThePageCacheToThreadsOfTheKernel) {
  enum { BYTES = 1 << 20 };
  ladei_pipe_storage storage;
  ladei_pipe_storage_file *file = NULL;
  ladei_pipe_storage_request *done = NULL;
  char *bytes = malloc(BYTES), *read_back = calloc(1, BYTES);
  FILE *on_disk = tmpfile();
  memset(&storage, 0, sizeof storage);
  LADE_ASSERT(bytes != NULL && read_back != NULL && on_disk != NULL);
  ladei_pipe_storage_open(&storage, LADE_STORAGE_URING, true, 4, 4);
  if (storage.engine == NULL) LADE_SKIP("io_uring is forbidden here");
  memset(bytes, 'x', BYTES);
  LADE_ASSERT_EQ_INT((int)pwrite(fileno(on_disk), bytes, BYTES, 0), BYTES);
  ladei_pipe_storage_source source = {.name = "file", .fd = fileno(on_disk)};
  LADE_ASSERT_OK(ladei_pipe_storage_file_open(&storage, &source, false, &file));
  ladei_pipe_storage_request request = {.file = file, .buffer = read_back, .bytes = BYTES, .block_index = -1};
  LADE_EXPECT_EQ_UINT(kernel_threads(), 0);
  ladei_pipe_storage_submit(&request);
  while (ladei_pipe_storage_reap(&storage, UINT64_C(1000000000), &done, 1) == 0) continue;
  LADE_EXPECT_GE_UINT(kernel_threads(), 1); /* they rest for some seconds before they end */
  LADE_EXPECT_OK(done->status);
  LADE_EXPECT_EQ_INT(memcmp(bytes, read_back, BYTES), 0);
  LADE_EXPECT_OK(ladei_pipe_storage_file_close(file));
  ladei_pipe_storage_close(&storage);
  fclose(on_disk);
  free(bytes);
  free(read_back);
}
