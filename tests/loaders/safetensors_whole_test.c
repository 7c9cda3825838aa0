/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A save over an older checkpoint, stopped anywhere: what lies there is the old checkpoint or the new
 * one, whole, and the next save leaves nothing but its own files. Each system call of a save fails once, is made and
 * reported as failed once, and never comes because the process is killed before it.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "loaders/generation.h"
#include "tests/loaders/fixture.h"
#include "tests/pipeline/storage_faults.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/temp_dir.h"

/* Of the calls before which a process is killed, every so many: a fork takes long with the address sanitiser. */
#ifdef __SANITIZE_ADDRESS__
enum { KILL_STEP = 3 };
#else
enum { KILL_STEP = 1 };
#endif

enum { TENSORS = 3, TENSOR_BYTES = 5000, OLD = 1, NEW = 2, LATER = 3 };

/* One file or several, with files that have no name and on file systems without them; waited for, or begun. */
typedef struct kind {
  const char *name;
  bool sharded, named, no_sync, begun;
} kind;

static const kind all_kinds[] = {{"single", .sharded = false},
                                 {"single_named", .named = true},
                                 {"sharded", .sharded = true},
                                 {"sharded_named", .sharded = true, .named = true},
                                 {"sharded_no_sync", .sharded = true, .no_sync = true},
                                 {"single_begun", .begun = true},
                                 {"sharded_begun", .sharded = true, .begun = true}};
static const char *const kinds[] = {"single",          "single_named", "sharded",       "sharded_named",
                                    "sharded_no_sync", "single_begun", "sharded_begun", NULL};

static kind kind_of(const char *name) {
  size_t i = 0;
  while (strcmp(all_kinds[i].name, name) != 0) i++;
  return all_kinds[i];
}

typedef struct scene {
  kind k;
  support_temp_dir dir;
  char *path;  /* as given to the save */
  char *whole; /* what is opened */
  int calls;   /* of the last save */
  char context[100];
  lade_save_progress progress;
  const fixture *f; /* for what comes in between, as the next one */
  int code;         /* of the failures there */
  lade_status between, again;
  const char *nth; /* call of the last save that did not go its way; "": none */
} scene;

static bool scene_open(scene *s, const char *kind_name) {
  *s = (scene){.k = kind_of(kind_name)};
  if (access("/dev/shm", W_OK) == 0) setenv("TEST_TMPDIR", "/dev/shm", 1); /* thousands of files that are not kept */
  if (!support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "model.safetensors");
  s->whole = support_temp_dir_path(&s->dir, s->k.sharded ? "model.safetensors.index.json" : "model.safetensors");
  return true;
}

static void scene_close(scene *s) {
  storage_faults_set((storage_faults){0});
  free(s->path);
  free(s->whole);
  support_temp_dir_remove(&s->dir);
}

static storage_faults faults_of(const scene *s, storage_faults faults) {
  faults.open_nameless = s->k.named ? EOPNOTSUPP : 0;
  faults.flush_nothing = true;
  return faults;
}

/* --- saving ------------------------------------------------------------------------------------------------------- */

static lade_status tensors_save(const scene *s, const fixture *f, const lade_tensor tensors[TENSORS],
                                const lade_save_options *options) {
  lade_save *save;
  if (!s->k.begun) return lade_safetensors_save(s->path, f->targets, 1, tensors, TENSORS, options);
  LADEI_TRY(lade_safetensors_save_begin(s->path, f->targets, 1, tensors, TENSORS, options, &save));
  lade_status status = lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER);
  lade_error outcome = *lade_last_error();
  LADE_EXPECT_OK(lade_save_destroy(save, false));
  if (status != LADE_OK) ladei_error_restore(&outcome);
  return status;
}

/* The same names and shapes whatever the seed: a mixture would be a good checkpoint of the format. */
static lade_status seed_save(scene *s, const fixture *f, uint64_t seed, storage_faults faults) {
  static const uint64_t shape[] = {TENSOR_BYTES};
  static const char *const names[TENSORS] = {"a", "b", "c"};
  lade_tensor tensors[TENSORS];
  unsigned char bytes[TENSOR_BYTES];
  void *memory;
  LADE_EXPECT_OK(lade_device_alloc(f->targets[0].allocator, TENSORS * TENSOR_BYTES, f->streams[0], &memory));
  for (size_t i = 0; i < TENSORS; i++) {
    char *at = (char *)memory + i * TENSOR_BYTES;
    support_pattern_fill(bytes, TENSOR_BYTES, seed, i * TENSOR_BYTES);
    fixture_device_write(f, 0, at, bytes, TENSOR_BYTES);
    tensors[i] = (lade_tensor){names[i], shape, 1, at, 0, LADE_DTYPE_U8};
  }
  lade_save_options options;
  lade_save_options_init(&options);
  options.max_shard_bytes = s->k.sharded ? TENSOR_BYTES : 0;
  options.no_sync = s->k.no_sync;
  options.progress = s->progress;
  options.user = s;
  storage_faults_set(faults_of(s, faults));
  lade_status status = tensors_save(s, f, tensors, &options);
  s->calls = storage_faults_count();
  s->nth = storage_faults_nth();
  if (faults.nth > 0) lade_test_context("%s, %s", s->context, storage_faults_nth());
  storage_faults_set((storage_faults){0});
  LADE_EXPECT_OK(lade_device_free(f->targets[0].allocator, memory));
  return status;
}

static void good_save(scene *s, const fixture *f, uint64_t seed) {
  LADE_EXPECT_OK(seed_save(s, f, seed, (storage_faults){0}));
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

/* Which seed's checkpoint is there: all of it, on a device. 0 with the test failed: none, or a mixture. */
static uint64_t seed_loaded(const scene *s, const fixture *f) {
  lade_safetensors *file = NULL;
  lade_tensor_load *load = NULL;
  uint64_t found = 0;
  lade_status status = lade_safetensors_open(s->whole, &file);
  if (status == LADE_OK) status = lade_safetensors_load(file, f->targets, 1, NULL, &load);
  if (status == LADE_OK) status = lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
  LADE_EXPECT_OK(status);
  for (uint64_t i = 0; status == LADE_OK && i < TENSORS; i++) {
    unsigned char bytes[TENSOR_BYTES], expected[TENSOR_BYTES];
    void *memory;
    uint64_t seed = OLD;
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &memory, NULL));
    fixture_device_read(f, 0, memory, bytes, TENSOR_BYTES);
    for (;; seed++) {
      support_pattern_fill(expected, TENSOR_BYTES, seed, i * TENSOR_BYTES);
      if (seed > LATER || memcmp(bytes, expected, TENSOR_BYTES) == 0) break;
    }
    if (seed > LATER || (found != 0 && found != seed)) {
      LADE_FAIL("tensor %d is of save %d, those before it are of save %d", (int)i, (int)seed, (int)found);
      found = 0;
      break;
    }
    found = seed;
  }
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  return found;
}

static size_t files_of_a_save(const scene *s) { return s->k.sharded ? TENSORS + 1 : 1; }

static void names_print(const scene *s) {
  DIR *folder = opendir(s->dir.path);
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
    fprintf(stderr, "  left: %s\n", entry->d_name);
  if (folder != NULL) closedir(folder);
}

/* The next save is whole, and nothing of others is left. */
static void expect_next_save(scene *s, const fixture *f) {
  good_save(s, f, LATER);
  LADE_EXPECT_EQ_UINT(seed_loaded(s, f), LATER);
  size_t count = support_names_count(s->dir.path);
  LADE_EXPECT_EQ_SIZE(count, files_of_a_save(s));
  if (count != files_of_a_save(s)) names_print(s);
}

/* All of it is taken away, however it is named. */
static void folder_empty(scene *s) {
  support_temp_dir_remove(&s->dir);
  free(s->path);
  free(s->whole);
  scene again;
  if (scene_open(&again, s->k.name)) *s = again;
}

static unsigned descriptors_count(void) { return (unsigned)support_names_count("/proc/self/fd"); }

/* --- every call fails --------------------------------------------------------------------------------------------- */

typedef struct failure {
  storage_faults_how how;
  int code;
} failure;

/* False: there are fewer calls, or the test failed. */
static bool one_failure_run(scene *s, const fixture *f, failure with, int nth) {
  unsigned before = descriptors_count();
  good_save(s, f, OLD);
  lade_status status = seed_save(s, f, NEW, (storage_faults){.nth = nth, .how = with.how, .code = with.code});
  bool came = nth <= s->calls;
  uint64_t found = seed_loaded(s, f);
  LADE_EXPECT(found == NEW || (found == OLD && status != LADE_OK));
  expect_next_save(s, f);
  LADE_EXPECT_EQ_UINT(descriptors_count(), before);
  folder_empty(s);
  return came && !lade_test_has_failed();
}

LADE_TEST_P(SafetensorsWhole, IsOldOrNewWhateverCallFails, kinds, name) {
  static const failure failures[] = {{STORAGE_FAULTS_FAIL, EIO},
                                     {STORAGE_FAULTS_FAIL, EINVAL},
                                     {STORAGE_FAULTS_FAIL, ENOSPC},
                                     {STORAGE_FAULTS_LIE, EIO}};
  fixture f;
  scene s;
  if (!fixture_open(&f, "sim") || !scene_open(&s, name)) return;
  for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
    int nth = 0;
    do {
      nth++;
      snprintf(s.context, sizeof s.context, "%s, call %d with %s",
               failures[i].how == STORAGE_FAULTS_LIE ? "made and failing" : "failing", nth, strerror(failures[i].code));
    } while (one_failure_run(&s, &f, failures[i], nth));
    LADE_EXPECT_GT_INT(nth, 10);
  }
  scene_close(&s);
  fixture_close(&f);
}

/* --- the process is killed before every call ----------------------------------------------------------------------- */

/* The old save and the new one in a child, which has a runtime of its own. True: it was killed before the n-th call. */
static bool save_killed(scene *s, int nth) {
  fflush(NULL);
  pid_t child = fork();
  LADE_EXPECT_GE_INT(child, 0);
  if (child == 0) {
    fixture f;
    if (fixture_open_some(&f, support_runtime_open("sim"), 1) != LADE_OK) _exit(1);
    good_save(s, &f, OLD);
    _exit(seed_save(s, &f, NEW, (storage_faults){.nth = nth, .how = STORAGE_FAULTS_KILL}) == LADE_OK ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  LADE_EXPECT(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return killed;
}

static const char *const killed_kinds[] = {"single", "sharded", "sharded_named", "single_begun", "sharded_begun", NULL};

LADE_TEST_P(SafetensorsWhole, IsOldOrNewWhereverItIsKilled, killed_kinds, name) {
  fixture f;
  scene s;
  bool killed = true;
  if (!scene_open(&s, name)) return;
  for (int nth = 1; killed && !lade_test_has_failed(); nth += KILL_STEP) {
    lade_test_context("killed before call %d", nth);
    killed = save_killed(&s, nth); /* no runtime is open: a child must not use it */
    if (!fixture_open(&f, "sim")) return;
    uint64_t found = seed_loaded(&s, &f);
    LADE_EXPECT(found == NEW || (found == OLD && killed));
    expect_next_save(&s, &f);
    fixture_close(&f);
    folder_empty(&s);
    if (!killed) LADE_EXPECT_GT_INT(nth, 10);
  }
  scene_close(&s);
}

/* --- two saves at once --------------------------------------------------------------------------------------------- */

static lade_status save_in_between(void *user, uint64_t done, uint64_t bytes) {
  scene *s = user;
  s->progress = NULL;
  if (done < bytes) s->between = seed_save(s, s->f, LATER, (storage_faults){0});
  return LADE_OK;
}

/* While one save runs another one of the same checkpoint is refused, and changes nothing. */
LADE_TEST(SafetensorsWhole, IsSavedByOneAtATime) {
  fixture f;
  scene s;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  good_save(&s, &f, OLD);
  s.progress = save_in_between;
  s.f = &f;
  s.between = LADE_OK;
  LADE_EXPECT_OK(seed_save(&s, &f, NEW, (storage_faults){0}));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, s.between);
  s.progress = NULL;
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), NEW);
  expect_next_save(&s, &f);
  scene_close(&s);
  fixture_close(&f);
}

/* Tries a save with each of its calls failing so, up to that which locks; what that one comes to counts. */
static lade_status failing_save_in_between(void *user, uint64_t done, uint64_t bytes) {
  scene *s = user;
  (void)done;
  (void)bytes;
  s->progress = NULL;
  bool locks = false;
  for (int nth = 1; !locks && nth < 50; nth++) {
    s->between = seed_save(s, s->f, LATER, (storage_faults){.nth = nth, .how = STORAGE_FAULTS_FAIL, .code = s->code});
    locks = strcmp(s->nth, "flock") == 0;
  }
  LADE_EXPECT(locks);
  s->again = seed_save(s, s->f, LATER, (storage_faults){0});
  return LADE_OK;
}

/* Bug: a save whose call for the lock failed took the lock file of another one away, and the third began. */
static void keeps_its_lock(int code, lade_status expected) {
  fixture f;
  scene s;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  good_save(&s, &f, OLD);
  s.progress = failing_save_in_between;
  s.f = &f;
  s.code = code;
  LADE_EXPECT_OK(seed_save(&s, &f, NEW, (storage_faults){0}));
  LADE_EXPECT_STATUS(expected, s.between);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, s.again);
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), NEW);
  expect_next_save(&s, &f);
  scene_close(&s);
  fixture_close(&f);
}

LADE_TEST(SafetensorsWhole, KeepsItsLockWhileAnotherIsInterrupted) { keeps_its_lock(EINTR, LADE_ERR_BUSY); }
LADE_TEST(SafetensorsWhole, KeepsItsLockWhileAnotherCannotLock) { keeps_its_lock(EIO, LADE_ERR_IO); }

/* Saves when its end of the pipe says so. Exit status: 0 saved, 2 refused. */
static pid_t saver_fork(scene *s, uint64_t seed, const int gate[2]) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    fixture f;
    char byte;
    close(gate[1]);
    bool good = fixture_open(&f, "sim") && read(gate[0], &byte, 1) == 0;
    lade_status status = good ? seed_save(s, &f, seed, (storage_faults){0}) : LADE_ERR_INTERNAL;
    _exit(lade_test_has_failed() ? 1 : status == LADE_OK ? 0 : status == LADE_ERR_BUSY ? 2 : 1);
  }
  return child;
}

/* Two processes at once: one of them at least saves, and what is there is one of theirs. */
LADE_TEST(SafetensorsWhole, IsOfOneOfTwoSaversAtOnce) {
  enum { ROUNDS = 12 };
  fixture f;
  scene s;
  if (!scene_open(&s, "sharded")) return;
  for (int round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    int gate[2], answers[3] = {0};
    LADE_ASSERT_EQ_INT(pipe(gate), 0);
    pid_t children[2] = {saver_fork(&s, OLD, gate), saver_fork(&s, NEW, gate)};
    close(gate[0]);
    close(gate[1]); /* both go */
    for (int i = 0; i < 2; i++) {
      int status = -1;
      LADE_EXPECT_EQ_INT(waitpid(children[i], &status, 0), children[i]);
      LADE_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) != 1);
      answers[WEXITSTATUS(status)]++;
    }
    LADE_EXPECT_GE_INT(answers[0], 1);
    if (!fixture_open(&f, "sim")) return;
    uint64_t found = seed_loaded(&s, &f);
    LADE_EXPECT(found == OLD || found == NEW);
    LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), files_of_a_save(&s));
    fixture_close(&f);
  }
  scene_close(&s);
}

/* --- mixtures, and files of others --------------------------------------------------------------------------------- */

/* A file of another save of the same number, as half a copy leaves it. */
LADE_TEST(SafetensorsWhole, IsRefusedWhenTwoSavesAreMixed) {
  static const char shard[] = "model-1-00002-of-00003.safetensors";
  fixture f;
  scene one, other;
  size_t bytes;
  if (!fixture_open(&f, "sim") || !scene_open(&one, "sharded") || !scene_open(&other, "sharded")) return;
  good_save(&one, &f, OLD);
  good_save(&other, &f, NEW);
  char *from = support_temp_dir_path(&other.dir, shard), *to = support_temp_dir_path(&one.dir, shard);
  char *data = support_file_read(from, &bytes);
  support_file_write(to, data, bytes);
  lade_safetensors *file = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_safetensors_open(one.whole, &file));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "model-1-00002-of-00003.safetensors: it is of save 1-");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "mixed");
  fixture_safetensors_write(to, "{\"b\":{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[0,5000]}}", TENSOR_BYTES);
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_safetensors_open(one.whole, &file));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "it is of save (none)");
  free(data);
  free(from);
  free(to);
  scene_close(&one);
  scene_close(&other);
  fixture_close(&f);
}

/* What carries no id, or another one, is not removed, whatever its name; names in use are not used again. */
LADE_TEST(SafetensorsWhole, LeavesFilesOfOthersAlone) {
  static const char *const names[] = {"model-00001-of-00003.safetensors",   "model-7-00001-of-00003.safetensors",
                                      "model-1-00009-of-00009.safetensors", "model-1-2-00001-of-00003.safetensors",
                                      "model-x-00001-of-00003.safetensors", "model-1-00001-of-00003.safetensors.bak"};
  static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
  fixture f;
  scene s;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  for (size_t i = 0; i < 6; i++) {
    char *path = support_temp_dir_path(&s.dir, names[i]);
    fixture_safetensors_write(path, header, 3);
    free(path);
  }
  good_save(&s, &f, OLD);
  char *eight = support_temp_dir_path(&s.dir, "model-8-00001-of-00003.safetensors");
  LADE_EXPECT_EQ_INT(access(eight, F_OK), 0);
  char *beside = support_temp_dir_path(&s.dir, "model-8-00009-of-00009.safetensors"); /* of the number that goes */
  fixture_safetensors_write(beside, header, 3);
  good_save(&s, &f, NEW);
  LADE_EXPECT_EQ_INT(unlink(beside), 0);
  free(beside);
  LADE_EXPECT_NE_INT(access(eight, F_OK), 0);
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), NEW);
  for (size_t i = 0; i < 6; i++) {
    char *path = support_temp_dir_path(&s.dir, names[i]);
    LADE_EXPECT_EQ_INT(access(path, F_OK), 0);
    free(path);
  }
  LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 6 + files_of_a_save(&s));
  free(eight);
  scene_close(&s);
  fixture_close(&f);
}

/* Bug: above a file of the highest number that names are read with, saves gave one of a digit more, which none of them knew
 * again: each wrote over the files of the one before, long before its index named them. */
LADE_TEST(SafetensorsWhole, IsNotSavedAboveTheHighestNumber) {
  fixture f;
  scene s;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  good_save(&s, &f, OLD);
  char *last = support_temp_dir_path(&s.dir, "model-999999999999999-00001-of-00003.safetensors");
  support_file_write(last, "x", 1);
  LADE_EXPECT_STATUS(LADE_ERR_IO, seed_save(&s, &f, NEW, (storage_faults){0}));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "999999999999999");
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), OLD);
  LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 1 + files_of_a_save(&s));
  LADE_EXPECT_EQ_INT(unlink(last), 0);
  good_save(&s, &f, NEW);
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), NEW);
  free(last);
  scene_close(&s);
  fixture_close(&f);
}

/* Bug: the look at a target before anything is read removed the files that a killed save had replaced without a flush of
 * the folder: the new index was not there for good. */
LADE_TEST(SafetensorsWhole, KeepsReplacedFilesUntilTheFolderIsFlushed) {
  fixture f;
  scene s;
  bool killed = true;
  int between = 0; /* times that the new index was there, and a file of the old one */
  if (!scene_open(&s, "sharded")) return;
  for (int nth = 1; killed && !lade_test_has_failed(); nth += KILL_STEP) {
    lade_test_context("killed before call %d", nth);
    killed = save_killed(&s, nth);
    char *old = support_temp_dir_path(&s.dir, "model-1-00003-of-00003.safetensors");
    if (!fixture_open(&f, "sim")) return;
    if (seed_loaded(&s, &f) == NEW && access(old, F_OK) == 0) {
      between++;
      storage_faults_set((storage_faults){.flush_folder = EIO});
      LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_loader_generation_check(s.path, true));
      storage_faults_set((storage_faults){0});
      LADE_EXPECT_EQ_INT(access(old, F_OK), 0);
      LADE_EXPECT_OK(ladei_loader_generation_check(s.path, true));
      LADE_EXPECT_NE_INT(access(old, F_OK), 0);
    }
    free(old);
    fixture_close(&f);
    folder_empty(&s);
  }
  LADE_EXPECT_GT_INT(between, 0);
  scene_close(&s);
}

/* An index that was put aside keeps its files; one that another program wrote, too. */
LADE_TEST(SafetensorsWhole, KeepsTheFilesOfAnIndexThatWasPutAside) {
  fixture f;
  scene s;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  good_save(&s, &f, OLD);
  char *aside = support_temp_dir_path(&s.dir, "best.index.json");
  LADE_ASSERT_EQ_INT(rename(s.whole, aside), 0);
  good_save(&s, &f, NEW);
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), NEW);
  char *current = s.whole;
  s.whole = aside;
  LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), OLD);
  s.whole = current;
  free(aside);
  scene_close(&s);
  fixture_close(&f);
}

/* Also after a save was killed: without its index it is not known which of its two saves was put aside. */
LADE_TEST(SafetensorsWhole, KeepsTheFilesOfAnIndexThatWasPutAsideAfterAKill) {
  fixture f;
  scene s;
  bool killed = true;
  if (!scene_open(&s, "sharded")) return;
  for (int nth = 1; killed && !lade_test_has_failed(); nth += 2) {
    lade_test_context("killed before call %d", nth);
    killed = save_killed(&s, nth);
    if (fixture_open_some(&f, support_runtime_open("sim"), 1) != LADE_OK) return;
    char *aside = support_temp_dir_path(&s.dir, "best.index.json"), *current = s.whole;
    LADE_ASSERT_EQ_INT(rename(s.whole, aside), 0);
    good_save(&s, &f, LATER);
    LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), LATER);
    s.whole = aside;
    uint64_t found = seed_loaded(&s, &f);
    LADE_EXPECT(found == OLD || found == NEW);
    s.whole = current;
    free(aside);
    lade_runtime *runtime = f.runtime;
    fixture_close_on(&f);
    support_runtime_close(runtime);
    folder_empty(&s);
  }
  scene_close(&s);
}

/* --- readers ------------------------------------------------------------------------------------------------------- */

/* What was opened before a save is loaded as it was: its files are gone by name only. */
LADE_TEST(SafetensorsWhole, IsReadToItsEndByWhoOpenedIt) {
  fixture f;
  scene s;
  lade_safetensors *file;
  lade_tensor_load *load;
  unsigned char bytes[TENSOR_BYTES];
  void *memory;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  good_save(&s, &f, OLD);
  LADE_ASSERT_OK(lade_safetensors_open(s.whole, &file));
  good_save(&s, &f, NEW);
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, NULL, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  for (uint64_t i = 0; i < TENSORS; i++) {
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &memory, NULL));
    fixture_device_read(&f, 0, memory, bytes, TENSOR_BYTES);
    LADE_EXPECT_PATTERN(bytes, TENSOR_BYTES, OLD, i * TENSOR_BYTES);
  }
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  scene_close(&s);
  fixture_close(&f);
}

static void save_now(void *user) {
  scene *s = user;
  LADE_EXPECT_OK(seed_save(s, s->f, NEW, (storage_faults){0}));
}

/* A save that removes the files of the index that was just read: the new checkpoint is opened. */
LADE_TEST(SafetensorsWhole, IsOpenedWhileItIsReplaced) {
  fixture f;
  scene s;
  int calls = 100;
  if (!fixture_open(&f, "sim") || !scene_open(&s, "sharded")) return;
  s.f = &f;
  for (int nth = 1; nth <= calls && !lade_test_has_failed(); nth++) {
    lade_safetensors *file = NULL;
    good_save(&s, &f, OLD);
    storage_faults_set((storage_faults){.nth = 1 << 30});
    LADE_ASSERT_OK(lade_safetensors_open(s.whole, &file));
    calls = storage_faults_count();
    lade_safetensors_close(file);
    storage_faults_set((storage_faults){.nth = nth, .before_nth = save_now, .user = &s, .flush_nothing = true});
    LADE_EXPECT_OK(lade_safetensors_open(s.whole, &file));
    storage_faults_set((storage_faults){0});
    lade_safetensors_close(file);
    LADE_EXPECT_EQ_UINT(seed_loaded(&s, &f), NEW);
  }
  LADE_EXPECT_LT_INT(calls, 100);
  scene_close(&s);
  fixture_close(&f);
}
