/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of snapshots are whole at every moment, and what a killed process leaves goes with the next save: it is killed before each
 * call of the system in turn, and each of these calls fails in turn.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/inspect.h"
#include "tests/inspect/sample.h"
#include "tests/pipeline/storage_faults.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

typedef struct scene {
  support_temp_dir dir;
  char *path;
  lade_snapshot *former, *latter;
  int nameless; /* errno of files without names */
} scene;

/* Some pieces of output. */
static const sample_shape latter = {
    .seed = 6, .segments = 20, .blocks = 800, .events = 4000, .stacks = 20, .frames = 8, .devices = 2};

static bool scene_open(scene *s, const char *kind) {
  memset(s, 0, sizeof *s);
  s->former = sample_create(&sample_small);
  s->latter = sample_create(&latter);
  if (s->former == NULL || s->latter == NULL || !support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "memory.json");
  s->nameless = strcmp(kind, "named") == 0 ? EOPNOTSUPP : 0;
  return true;
}

static void scene_close(scene *s) {
  storage_faults_set((storage_faults){0});
  free(s->path);
  lade_snapshot_destroy(s->former);
  lade_snapshot_destroy(s->latter);
  support_temp_dir_remove(&s->dir);
}

static lade_status scene_save(const scene *s, const lade_snapshot *snapshot, storage_faults faults) {
  faults.open_nameless = s->nameless;
  faults.flush_nothing = true;
  storage_faults_set(faults);
  lade_status status = lade_snapshot_save(snapshot, LADE_SNAPSHOT_JSON, NULL, s->path);
  if (faults.nth == 0) storage_faults_set((storage_faults){0});
  return status;
}

/* The file is the one or the other, whole. */
static void expect_whole(const scene *s) {
  lade_snapshot *found = NULL;
  char room[256];
  LADE_ASSERT_OK(lade_snapshot_open(s->path, &found));
  bool former = sample_difference(s->former, found, 1, room)[0] == '\0';
  LADE_EXPECT(former || sample_difference(s->latter, found, 1, room)[0] == '\0');
  lade_snapshot_destroy(found);
}

/* False: the save needs fewer calls than the one that it was to be killed before. */
static bool save_killed(const scene *s, int nth) {
  int status = 0;
  pid_t child = fork();
  LADE_EXPECT(child >= 0);
  if (child == 0)
    _exit(scene_save(s, s->latter, (storage_faults){.nth = nth, .how = STORAGE_FAULTS_KILL}) == LADE_OK ? 0 : 1);
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  LADE_EXPECT(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return killed;
}

static const char *const kinds[] = {"nameless", "named", NULL};

LADE_TEST_P(SnapshotSave, LeavesNothingForLongWhenItIsKilled, kinds, kind) {
  scene s;
  bool left = false;
  if (!scene_open(&s, kind)) return;
  LADE_EXPECT_OK(scene_save(&s, s.former, (storage_faults){0}));
  int nth = 1;
  for (; save_killed(&s, nth); nth++) {
    left = left || support_names_count(s.dir.path) > 1;
    expect_whole(&s);
    LADE_EXPECT_OK(scene_save(&s, s.former, (storage_faults){0}));
    LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 1);
  }
  LADE_EXPECT(nth > 5);
  LADE_EXPECT(left); /* else nothing was tested */
  scene_close(&s);
}

LADE_TEST_P(SnapshotSave, LeavesNothingWhenACallFails, kinds, kind) {
  scene s;
  if (!scene_open(&s, kind)) return;
  LADE_EXPECT_OK(scene_save(&s, s.former, (storage_faults){0}));
  unsigned failed = 0;
  for (int nth = 1;; nth++) {
    failed += scene_save(&s, s.latter, (storage_faults){.nth = nth, .code = ENOSPC}) != LADE_OK;
    bool reached = storage_faults_count() >= nth;
    storage_faults_set((storage_faults){0});
    expect_whole(&s);
    LADE_EXPECT_OK(scene_save(&s, s.former, (storage_faults){0}));
    LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 1);
    if (!reached) break;
  }
  LADE_EXPECT(failed > 3);
  scene_close(&s);
}
