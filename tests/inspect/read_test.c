/* SPDX-License-Identifier: Apache-2.0 */
/* Files of snapshots: which ones are read, pipes; and no memory at every allocation. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inspect/formats/json.h"
#include "tests/failing_memory/failing_memory.h"
#include "tests/inspect/sample.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

/* --- no memory ---------------------------------------------------------------------------------------------------------- */

static lade_status nothing_write(void *user, const void *data, size_t bytes) {
  (void)user;
  (void)data;
  (void)bytes;
  return LADE_OK;
}

/* Calls of `work` in which each allocation fails in turn; all but the last say so. */
static void each_failure(lade_status (*work)(void *user), void *user) {
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  size_t failed = 0;
  for (size_t at = 1; status != LADE_OK; at++) {
    failing_memory_fail(at, FAILING_MEMORY_OF_ALL);
    status = work(user);
    (void)failing_memory_whole();
    LADE_ASSERT(status == LADE_OK || status == LADE_ERR_OUT_OF_HOST_MEMORY);
    if (status != LADE_OK) LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_OUT_OF_HOST_MEMORY);
    if (status != LADE_OK) failed++;
  }
  LADE_EXPECT_GT_SIZE(failed, 1);
}

typedef struct file {
  const char *data;
  size_t bytes;
} file;

static lade_status file_read(void *user) {
  const file *from = user;
  lade_snapshot *snapshot = NULL;
  lade_status status = lade_snapshot_read(from->data, from->bytes, NULL, &snapshot);
  if ((status == LADE_OK) != (snapshot != NULL)) LADE_FAIL("a snapshot without LADE_OK, or the other way round");
  lade_snapshot_destroy(snapshot);
  return status;
}

typedef struct writing {
  const lade_snapshot *snapshot;
  uint32_t format;
} writing;

static lade_status snapshot_write(void *user) {
  const writing *what = user;
  return lade_snapshot_write(what->snapshot, what->format, NULL, nothing_write, NULL);
}

LADE_TEST(SnapshotFiles, GetOverNoMemoryAtEveryAllocation) {
  lade_snapshot *snapshot = sample_create(&sample_small);
  LADE_ASSERT(snapshot != NULL);
  size_t bytes = 0;
  char *data = sample_write(snapshot, ladei_inspect_write_json, &bytes);
  file whole = {data, bytes};
  each_failure(file_read, &whole);
  free(data);
  for (uint32_t format = LADE_SNAPSHOT_PICKLE; format <= LADE_SNAPSHOT_JSON; format++) {
    writing what = {snapshot, format};
    each_failure(snapshot_write, &what);
  }
  lade_snapshot_destroy(snapshot);
}

/* A map of pairs that was exactly half full grew when it was only looked into, which writers do not expect to fail. */
LADE_TEST(SnapshotFiles, LookUpStreamsWithoutMemory) {
  lade_snapshot *snapshot = sample_create(&sample_small);
  LADE_ASSERT(snapshot != NULL);
  for (size_t i = 0; i < snapshot->segments.count; i++) snapshot->segments.rows[i].stream = 0;
  for (size_t i = 0; i < snapshot->events.count; i++) snapshot->events.rows[i].stream = i % 31;
  snapshot->events.rows[snapshot->events.count - 1].stream = 31;
  writing what = {snapshot, LADE_SNAPSHOT_JSON};
  each_failure(snapshot_write, &what);
  lade_snapshot_destroy(snapshot);
}

/* --- which reader --------------------------------------------------------------------------------------------------------- */

static void expect_read(const char *text, lade_status expected, const char *message) {
  lade_snapshot *snapshot = NULL;
  lade_test_context("%s", text);
  LADE_EXPECT_STATUS(expected, lade_snapshot_read(text, strlen(text), "FILE", &snapshot));
  if (expected != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, message);
  LADE_EXPECT_EQ_INT(snapshot != NULL, expected == LADE_OK);
  lade_snapshot_destroy(snapshot);
  lade_test_context("%s", "");
}

LADE_TEST(SnapshotFiles, AreKnownByTheirFirstBytes) {
  expect_read("", LADE_ERR_TRUNCATED, "FILE: byte 0: the file is empty");
  expect_read("\x80\x04}.", LADE_ERR_UNSUPPORTED,
              "FILE: byte 0: a pickle; `lade snapshot FILE -o OUT.json` converts it");
  expect_read(" \n{", LADE_ERR_TRUNCATED, "FILE: byte 3: the text ends too early");
  expect_read("Thread,Time,Action,Pointer,Size,Stream", LADE_ERR_INVALID_ARGUMENT,
              "FILE: byte 0: no snapshot; expected");
  expect_read("\x89PNG", LADE_ERR_INVALID_ARGUMENT, "FILE: byte 0: no snapshot; expected");
  expect_read("  ", LADE_ERR_INVALID_ARGUMENT, "FILE: byte 0: no snapshot; expected");
}

LADE_TEST(SnapshotFiles, RefuseWrongArguments) {
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_read(NULL, 1, NULL, &snapshot));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_read("x", 1, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, lade_snapshot_read(NULL, 0, NULL, &snapshot));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "snapshot: byte 0");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_open(NULL, &snapshot));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_open("/", NULL));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_snapshot_open("/nowhere/at all", &snapshot));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "/nowhere/at all: cannot open: No such file");
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_snapshot_open("/", &snapshot));
  LADE_EXPECT(snapshot == NULL);
}

LADE_TEST(SnapshotFiles, AreOpenedAsTheyWereSaved) {
  char room[256];
  support_temp_dir dir;
  lade_snapshot *before = sample_create(&sample_small);
  LADE_ASSERT(before != NULL && support_temp_dir_create(&dir));
  lade_snapshot *after = NULL;
  char *path = support_temp_dir_path(&dir, "snapshot");
  LADE_EXPECT_OK(lade_snapshot_save(before, LADE_SNAPSHOT_JSON, NULL, path));
  LADE_EXPECT_OK(lade_snapshot_open(path, &after));
  if (after != NULL) LADE_EXPECT_EQ_STR(sample_difference(before, after, 1, room), "");
  lade_snapshot_destroy(after);
  free(path);
  support_temp_dir_remove(&dir);
  lade_snapshot_destroy(before);
}

typedef struct sender {
  const char *path;
  file whole;
} sender;

static void *send_all(void *user) {
  const sender *from = user;
  int fd = open(from->path, O_WRONLY | O_CLOEXEC);
  for (size_t at = 0; fd >= 0 && at < from->whole.bytes;) {
    ssize_t count = write(fd, from->whole.data + at, from->whole.bytes - at);
    if (count <= 0) break;
    at += (size_t)count;
  }
  if (fd >= 0) close(fd);
  return NULL;
}

LADE_TEST(SnapshotFiles, ComeThroughPipes) {
  char room[256];
  size_t bytes = 0;
  pthread_t thread;
  support_temp_dir dir;
  lade_snapshot *before = sample_create(&sample_long), *after = NULL;
  LADE_ASSERT(before != NULL && support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "pipe"), *data = sample_write(before, ladei_inspect_write_json, &bytes);
  LADE_EXPECT_GT_SIZE(bytes, 100000); /* more than a pipe holds */
  LADE_ASSERT_EQ_INT(mkfifo(path, 0600), 0);
  sender from = {path, {data, bytes}};
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, send_all, &from), 0);
  LADE_EXPECT_OK(lade_snapshot_open(path, &after));
  pthread_join(thread, NULL);
  if (after != NULL) LADE_EXPECT_EQ_STR(sample_difference(before, after, 1, room), "");
  lade_snapshot_destroy(before);
  lade_snapshot_destroy(after);
  free(path);
  free(data);
  support_temp_dir_remove(&dir);
}

/* --- files that change ------------------------------------------------------------------------------------------------ */

/* As a program does that writes its snapshot again under the same name, for ever. */
static void file_write_again(const char *path, const char *data, size_t bytes) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) > 0) {
  }
  _exit(1);
}

/* A file that is cut while it is mapped kills whoever looks behind its new end (SIGBUS): here, this program. */
LADE_TEST(SnapshotFiles, ThatAreCutMeanwhileAreAnError) {
  enum { ROUNDS = 200 };
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "memory.json");
  lade_snapshot *snapshot = sample_create(&sample_long);
  LADE_ASSERT(snapshot != NULL);
  size_t bytes = 0;
  char *data = sample_write(snapshot, ladei_inspect_write_json, &bytes);
  LADE_ASSERT(data != NULL);
  support_file_write(path, data, bytes);
  pid_t writer = fork();
  if (writer == 0) file_write_again(path, data, bytes);
  for (unsigned i = 0; i < ROUNDS; i++) {
    lade_snapshot *read = NULL;
    lade_status status = lade_snapshot_open(path, &read);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_TRUNCATED || status == LADE_ERR_INVALID_ARGUMENT);
    lade_snapshot_destroy(read);
  }
  kill(writer, SIGKILL);
  waitpid(writer, NULL, 0);
  lade_snapshot_destroy(snapshot);
  free(data);
  free(path);
  support_temp_dir_remove(&dir);
}
