/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that go on by themselves: the files of a blocking save, from bytes that may change once they are staged. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/lade.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { TENSORS = 3, BYTES = 192 << 10, ALL = TENSORS * BYTES, HOST_BYTES = 1000 };
static const uint64_t shape[] = {BYTES}, host_shape[] = {HOST_BYTES};

/* Tensors of a pattern on a device, one in host memory, and a checkpoint of them by a blocking save. */
typedef struct scene {
  fixture f;
  lade_stream stream;
  lade_load_target target;
  lade_tensor tensors[TENSORS + 1];
  char host[HOST_BYTES];
  support_temp_dir dir;
  char *path, *expected;
} scene;

/* At 50 MB/s, on "sim". */
static lade_pipeline_options slow_options(void) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.storage_total_bytes_per_s = 50000000;
  return options;
}

static void pattern_write(scene *s, uint64_t seed) {
  char *bytes = malloc(ALL);
  LADE_ASSERT(bytes != NULL);
  support_pattern_fill(bytes, ALL, seed, 0);
  fixture_device_write(&s->f, 0, bytes, ALL);
  support_pattern_fill(s->host, HOST_BYTES, seed, 0);
  free(bytes);
}

static bool scene_open_on(scene *s, bool opened) {
  static const char *const names[] = {"c", "a", "b", "host"};
  if (!opened) return false;
  LADE_EXPECT_OK(lade_stream_create(s->f.runtime, 0, &s->stream));
  s->target = (lade_load_target){.pipeline = s->f.pipeline, .stream = s->stream};
  for (unsigned i = 0; i < TENSORS; i++)
    s->tensors[i] = (lade_tensor){names[i], shape, 1, s->f.device + (size_t)i * BYTES, 0, LADE_DTYPE_U8};
  s->tensors[TENSORS] = (lade_tensor){names[TENSORS], host_shape, 1, s->host, LADE_TARGET_HOST, LADE_DTYPE_I8};
  if (!support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "m.safetensors");
  s->expected = support_temp_dir_path(&s->dir, "expected");
  pattern_write(s, 1);
  LADE_EXPECT_OK(lade_safetensors_save(s->expected, &s->target, 1, s->tensors, TENSORS + 1, NULL));
  return true;
}

static bool scene_open(scene *s, const char *runtime, const lade_pipeline_options *options) {
  *s = (scene){0};
  return scene_open_on(s, fixture_open(&s->f, runtime, ALL, options));
}

static void scene_close(scene *s) {
  support_temp_dir_remove(&s->dir);
  free(s->path);
  free(s->expected);
  LADE_EXPECT_OK(lade_stream_destroy(s->f.runtime, s->stream));
  fixture_close(&s->f);
}

static lade_status begin(scene *s, const lade_save_options *options, lade_save **out) {
  return lade_safetensors_save_begin(s->path, &s->target, 1, s->tensors, TENSORS + 1, options, out);
}

static void expect_same_file(const char *path, const char *expected_path) {
  size_t bytes = 0, expected_bytes = 0;
  char *data = support_file_read(path, &bytes), *expected = support_file_read(expected_path, &expected_bytes);
  LADE_EXPECT(data != NULL && expected != NULL);
  if (data != NULL && expected != NULL) {
    LADE_EXPECT_EQ_SIZE(bytes, expected_bytes);
    if (bytes == expected_bytes) LADE_EXPECT_EQ_MEM(data, expected, bytes);
  }
  free(data);
  free(expected);
}

static lade_save_options staged_by(uint64_t stage_bytes) {
  lade_save_options options;
  lade_save_options_init(&options);
  options.stage_bytes = stage_bytes;
  return options;
}

/* Of blocks of the stage, at the same time. */
static uint64_t blocks_peak(const scene *s) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(s->f.pool, &stats));
  return stats.in_use_bytes.peak;
}

LADE_TEST_P(SaveBegin, TensorsMayChangeOnceTheyAreStaged, support_soft_runtimes, name) {
  static const uint64_t stages[] = {0, ALL, 64 << 10, 1};
  scene s;
  lade_save *save;
  if (!scene_open(&s, name, NULL)) return;
  for (unsigned i = 0; i < 4; i++) {
    lade_save_options options = staged_by(stages[i]);
    pattern_write(&s, 1);
    LADE_EXPECT_OK(lade_pinned_stats_reset(s.f.pool, LADE_STATS_RESET_PEAKS));
    LADE_ASSERT_OK(begin(&s, &options, &save));
    LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER));
    pattern_write(&s, 2);
    LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
    LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_STAGED, 0)); /* stays so */
    LADE_EXPECT_OK(lade_save_destroy(save, false));
    expect_same_file(s.path, s.expected);
    LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 2);
    if (stages[i] != 0 && strcmp(name, "sim") == 0) /* elsewhere peaks of threads are added */
      LADE_EXPECT_LE_UINT(blocks_peak(&s), stages[i] > 8192 ? stages[i] : 8192);
  }
  scene_close(&s);
}

/* Work that the program queues right away changes the tensors after the copies; no thread of its waits for the writes. */
LADE_TEST_P(SaveBegin, StreamsWaitForTheCopies, support_soft_runtimes, name) {
  scene s;
  lade_save *save;
  ladei_stream stream;
  if (!scene_open(&s, name, NULL)) return;
  LADE_ASSERT_OK(begin(&s, NULL, &save));
  LADE_EXPECT_OK(lade_stream_wait_save(s.stream, save));
  LADE_ASSERT_OK(s.f.runtime->ops->stream_resolve(s.f.runtime->self, s.stream, &stream));
  LADE_EXPECT_OK(
      s.f.runtime->ops->copy(s.f.runtime->self, LADEI_COPY_D2D, s.f.device, s.f.device + ALL / 2, ALL / 2, &stream));
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_stream_wait_save(s.stream, save)); /* nothing to wait for any more */
  LADE_EXPECT_OK(s.f.runtime->ops->stream_synchronize(s.f.runtime->self, &stream));
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  expect_same_file(s.path, s.expected);
  scene_close(&s);
}

/* The program's clock, which is virtual: 576 KiB take 12 ms to write, and 50 us to copy. */
LADE_TEST(SaveBegin, IsStagedLongBeforeItIsDurable) {
  scene s;
  lade_save *save;
  lade_pipeline_options slow = slow_options();
  if (!scene_open(&s, "sim", &slow)) return;
  uint64_t begun_ns = lade_runtime_now_ns(s.f.runtime);
  LADE_ASSERT_OK(begin(&s, NULL, &save));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_save_wait(save, LADE_SAVE_STAGED, 0));
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER));
  uint64_t staged_ns = lade_runtime_now_ns(s.f.runtime);
  LADE_EXPECT_LT_UINT(staged_ns - begun_ns, 1000000);
  LADE_EXPECT(access(s.path, F_OK) != 0);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_save_wait(save, LADE_SAVE_DURABLE, 1000000));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "not durable in the time to wait");
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, 100000000));
  LADE_EXPECT_GT_UINT(lade_runtime_now_ns(s.f.runtime) - begun_ns, 10000000);
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  expect_same_file(s.path, s.expected);
  scene_close(&s);
}

/* The pool keeps the stage: a second save pins nothing. */
LADE_TEST_P(SaveBegin, KeepsTheStageBetweenSaves, support_soft_runtimes, name) {
  scene s;
  lade_save *save;
  lade_pinned_stats stats[2];
  if (!scene_open(&s, name, NULL)) return;
  for (unsigned i = 0; i < 2; i++) {
    LADE_ASSERT_OK(begin(&s, NULL, &save));
    LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
    LADE_EXPECT_OK(lade_save_destroy(save, false));
    lade_pinned_stats_init(&stats[i]);
    LADE_EXPECT_OK(lade_pinned_stats_get(s.f.pool, &stats[i]));
  }
  LADE_EXPECT_EQ_UINT(stats[0].driver_allocs, stats[1].driver_allocs);
  LADE_EXPECT_EQ_UINT(stats[1].in_use_bytes.current, 0);
  scene_close(&s);
}

LADE_TEST_P(SaveBegin, LeavesTheOldCheckpointWhenItIsGivenUp, support_soft_runtimes, name) {
  scene s;
  lade_save *save;
  lade_pipeline_options slow = slow_options();
  if (!scene_open(&s, name, &slow)) return;
  for (unsigned shards = 0; shards < 2; shards++) {
    lade_save_options options = staged_by(64 << 10);
    options.max_shard_bytes = shards > 0 ? BYTES : 0;
    support_file_write(s.path, "old", 3);
    if (strcmp(name, "cpu") == 0)
      LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, s.stream, true)); /* no copy begins */
    LADE_ASSERT_OK(begin(&s, &options, &save));
    LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_save_wait(save, LADE_SAVE_DURABLE, 1000));
    if (strcmp(name, "cpu") == 0) LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, s.stream, false));
    LADE_EXPECT_OK(lade_save_destroy(save, true));
    LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 2);
  }
  scene_close(&s);
}

static lade_status end_at_once(void *user, uint64_t done, uint64_t bytes) {
  (void)done;
  *(uint64_t *)user = bytes;
  return LADE_ERR_CANCELLED;
}

LADE_TEST_P(SaveBegin, EndsByItsProgressCallback, support_soft_runtimes, name) {
  scene s;
  lade_save *save;
  uint64_t told = 0;
  if (!scene_open(&s, name, NULL)) return;
  lade_save_options options = staged_by(0);
  options.progress = end_at_once;
  options.user = &told;
  LADE_ASSERT_OK(begin(&s, &options, &save));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "progress callback");
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_stream_wait_save(s.stream, save));
  LADE_EXPECT_EQ_UINT(told, ALL + HOST_BYTES);
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  LADE_EXPECT(access(s.path, F_OK) != 0);
  scene_close(&s);
}

/* As where a disk is full, or a quota is reached: found by a write, after the call that began it. */
LADE_TEST_P(SaveBegin, TellsOfWritesThatFail, support_soft_runtimes, name) {
  scene s;
  lade_save *save = NULL;
  struct rlimit before, small = {ALL / 2, ALL / 2};
  if (!scene_open(&s, name, NULL)) return;
  (void)signal(SIGXFSZ, SIG_IGN);
  LADE_ASSERT(getrlimit(RLIMIT_FSIZE, &before) == 0);
  small.rlim_max = before.rlim_max;
  LADE_ASSERT(setrlimit(RLIMIT_FSIZE, &small) == 0);
  lade_status status = begin(&s, NULL, &save);
  if (status == LADE_OK) status = lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER);
  LADE_EXPECT_STATUS(LADE_ERR_IO, status); /* the file system may have refused to make room */
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "m.safetensors");
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  LADE_EXPECT(setrlimit(RLIMIT_FSIZE, &before) == 0);
  LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 1);
  scene_close(&s);
}

LADE_TEST(SaveBegin, RefusesBadArguments) {
  scene s;
  lade_save *save = NULL;
  if (!scene_open(&s, "cpu", NULL)) return;
  lade_tensor twice[2] = {s.tensors[0], s.tensors[0]};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_save_begin(NULL, NULL, 0, NULL, 0, NULL, &save));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_save_begin(s.path, NULL, 1, NULL, 0, NULL, &save));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_save_begin(s.path, NULL, 0, NULL, 1, NULL, &save));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, begin(&s, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_safetensors_save_begin(s.path, &s.target, 1, twice, 2, NULL, &save));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "lade_safetensors_save_begin: tensors[1].name");
  LADE_EXPECT_EQ_PTR(save, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_save_wait(NULL, LADE_SAVE_STAGED, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stream_wait_save(s.stream, NULL));
  LADE_EXPECT_OK(lade_save_destroy(NULL, true));
  LADE_ASSERT_OK(begin(&s, NULL, &save));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_save_wait(save, (lade_save_mark)3, 0));
  LADE_EXPECT_OK(lade_save_destroy(save, false)); /* waits for its end */
  expect_same_file(s.path, s.expected);
  scene_close(&s);
}

/* Without a device there is nothing to copy; what a thread does is written, named and flushed. */
LADE_TEST(SaveBegin, NeedsNoDevice) {
  scene s;
  lade_save *save;
  if (!scene_open(&s, "cpu", NULL)) return;
  LADE_ASSERT_OK(lade_safetensors_save_begin(s.path, NULL, 0, &s.tensors[TENSORS], 1, NULL, &save));
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER));
  memset(s.host, 0, HOST_BYTES);
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  pattern_write(&s, 1);
  LADE_EXPECT_OK(lade_safetensors_save(s.expected, NULL, 0, &s.tensors[TENSORS], 1, NULL));
  expect_same_file(s.path, s.expected);
  scene_close(&s);
}

typedef struct waiter {
  scene *s;
  lade_save *save;
  unsigned number;
} waiter;

static void *wait_main(void *argument) {
  const waiter *w = argument;
  for (unsigned i = 0; i < 3; i++) {
    if ((w->number + i) % 3 == 0) LADE_EXPECT_OK(lade_save_wait(w->save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER));
    if ((w->number + i) % 3 == 1) LADE_EXPECT_OK(lade_stream_wait_save(w->s->stream, w->save));
    if ((w->number + i) % 3 == 2) LADE_EXPECT_OK(lade_save_wait(w->save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  }
  return NULL;
}

LADE_TEST(SaveBegin, ManyThreadsWait) {
  enum { THREADS = 6, ROUNDS = 20 };
  scene s;
  if (!scene_open(&s, "cpu", NULL)) return;
  for (unsigned round = 0; round < ROUNDS; round++) {
    pthread_t threads[THREADS];
    waiter waiters[THREADS];
    lade_save *save;
    lade_save_options options = staged_by(round % 2 == 0 ? 0 : 64 << 10);
    options.no_sync = 1;
    LADE_ASSERT_OK(begin(&s, &options, &save));
    for (unsigned i = 0; i < THREADS; i++) {
      waiters[i] = (waiter){&s, save, i};
      LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, wait_main, &waiters[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    LADE_EXPECT_OK(lade_save_destroy(save, false));
    expect_same_file(s.path, s.expected);
  }
  scene_close(&s);
}

/* Two checkpoints at once, and a blocking one beside them. */
LADE_TEST(SaveBegin, SavesGoOnSideBySide) {
  scene s;
  lade_save *saves[2];
  if (!scene_open(&s, "cpu", NULL)) return;
  char *other = support_temp_dir_path(&s.dir, "other.safetensors"), *third = support_temp_dir_path(&s.dir, "third");
  LADE_ASSERT_OK(begin(&s, NULL, &saves[0]));
  LADE_ASSERT_OK(lade_safetensors_save_begin(other, &s.target, 1, s.tensors, TENSORS + 1, NULL, &saves[1]));
  LADE_EXPECT_OK(lade_safetensors_save(third, &s.target, 1, s.tensors, TENSORS + 1, NULL));
  for (unsigned i = 0; i < 2; i++) {
    LADE_EXPECT_OK(lade_save_wait(saves[i], LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
    LADE_EXPECT_OK(lade_save_destroy(saves[i], false));
  }
  expect_same_file(s.path, s.expected);
  expect_same_file(other, s.expected);
  expect_same_file(third, s.expected);
  free(other);
  free(third);
  scene_close(&s);
}

LADE_TEST(SaveBegin, BelongsToTheProcessThatBeganIt) {
  scene s;
  lade_save *save;
  if (!scene_open(&s, "cpu", NULL)) return;
  LADE_ASSERT_OK(begin(&s, NULL, &save));
  pid_t child = fork();
  if (child == 0) {
    bool refused = lade_save_wait(save, LADE_SAVE_DURABLE, 0) == LADE_ERR_FORKED &&
                   lade_stream_wait_save(s.stream, save) == LADE_ERR_FORKED &&
                   lade_save_destroy(save, true) == LADE_ERR_FORKED;
    _exit(refused ? 0 : 1);
  }
  int code = -1;
  LADE_EXPECT_EQ_INT(waitpid(child, &code, 0), child);
  LADE_EXPECT_EQ_INT(code, 0);
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  expect_same_file(s.path, s.expected);
  scene_close(&s);
}

/* --- every driver call that fails --------------------------------------------------------------------------------- */

/* Every call of these, one after the other: the save fails by name, or gets over it, and the file is whole or not there. */
LADE_TEST(SaveBegin, LosesNothingWhenACallFails) {
  static const char *const ops[] = {"stream_create",     "event_create", "event_record",       "event_query",
                                    "stream_wait_event", "copy",         "host_register",      "pointer_attributes",
                                    "stream_resolve",    "copy_batch",   "stream_capture_info"};
  scene s;
  lade_save *save;
  unsigned failed = 0;
  if (!scene_open(&s, "sim", NULL)) return;
  for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    bool reached = true;
    for (uint64_t nth = 1; reached; nth++) {
      uint64_t before, after;
      LADE_EXPECT_OK(lade_pinned_empty_cache(s.f.pool));
      LADE_EXPECT_OK(lade_soft_call_count(s.f.runtime, ops[i], &before));
      LADE_EXPECT_OK(lade_soft_fault_add(s.f.runtime, ops[i], nth, LADE_ERR_DRIVER));
      lade_status status = begin(&s, NULL, &save);
      bool begun = status == LADE_OK;
      if (begun) status = lade_save_wait(save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER);
      if (status == LADE_OK) status = lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER);
      LADE_EXPECT_OK(lade_soft_call_count(s.f.runtime, ops[i], &after));
      reached = after - before >= nth;
      LADE_EXPECT_OK(lade_soft_fault_clear(s.f.runtime));
      if (status != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, ops[i]);
      failed += status != LADE_OK ? 1 : 0;
      if (begun) LADE_EXPECT_OK(lade_save_destroy(save, false));
      LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), status == LADE_OK ? 2 : 1);
      if (status == LADE_OK) expect_same_file(s.path, s.expected);
      (void)unlink(s.path);
    }
  }
  LADE_EXPECT_GT_UINT(failed, 20);
  scene_close(&s);
}
