/* SPDX-License-Identifier: Apache-2.0 */
/* Files that appear under their names all at once, or not at all. */
#include "base/save.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/pipeline/storage_faults.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"
#include "tests/support/temp_dir.h"

typedef struct place {
  support_temp_dir dir;
  char *path;
} place;

static bool place_create(place *p) {
  bool good = support_temp_dir_create(&p->dir);
  p->path = good ? support_temp_dir_path(&p->dir, "model.bin") : NULL;
  return good;
}

static void place_remove(place *p) {
  storage_faults_set((storage_faults){0});
  free(p->path);
  support_temp_dir_remove(&p->dir);
}

static size_t names_in(const place *p) { return support_names_count(p->dir.path); }

static void text_write(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  LADE_EXPECT_EQ_INT(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
}

static void expect_text(const char *path, const char *text) {
  char found[64] = {0};
  int fd = open(path, O_RDONLY);
  LADE_ASSERT_GE_INT(fd, 0);
  LADE_EXPECT_GE_INT(read(fd, found, sizeof found - 1), 0);
  LADE_EXPECT_EQ_STR(found, text);
  close(fd);
}

static ladei_save *save_begun(const place *p, const char *text) {
  ladei_save *save = NULL;
  LADE_EXPECT_OK(ladei_save_begin(p->path, &save));
  if (save != NULL) LADE_EXPECT_EQ_INT(write(ladei_save_fd(save), text, strlen(text)), (ssize_t)strlen(text));
  return save;
}

/* All steps of one file, as the loaders take them. */
static lade_status save_commit(ladei_save *save, bool sync) {
  lade_error first;
  lade_status status = ladei_save_prepare(save, sync);
  if (status == LADE_OK) status = ladei_save_name(save);
  ladei_error_save(&first);
  lade_status ended = ladei_save_end(save, sync);
  if (status != LADE_OK) ladei_error_restore(&first);
  return status != LADE_OK ? status : ended;
}

/* With files that have no name, and on file systems without them. */
static const char *const kinds[] = {"nameless", "named", NULL};

static void kind_set(const char *kind, storage_faults faults) {
  faults.open_nameless = strcmp(kind, "named") == 0 ? EOPNOTSUPP : 0;
  storage_faults_set(faults);
}

LADE_TEST_P(Save, AppearsWhenCommitted, kinds, kind) {
  place p;
  struct stat status;
  if (!place_create(&p)) return;
  kind_set(kind, (storage_faults){0});
  mode_t mask = umask(027);
  ladei_save *save = save_begun(&p, "new");
  umask(mask);
  LADE_EXPECT_NE_INT(access(p.path, F_OK), 0);
  LADE_EXPECT_EQ_UINT(names_in(&p), strcmp(kind, "named") == 0 ? 1 : 0);
  LADE_EXPECT_OK(save_commit(save, true));
  expect_text(p.path, "new");
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  LADE_EXPECT_EQ_INT(stat(p.path, &status), 0);
  LADE_EXPECT_EQ_UINT(status.st_mode & 07777, 0640);
  place_remove(&p);
}

LADE_TEST_P(Save, ReplacesWhatWasThere, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  text_write(p.path, "old and longer");
  kind_set(kind, (storage_faults){0});
  ladei_save *save = save_begun(&p, "new");
  expect_text(p.path, "old and longer");
  LADE_EXPECT_OK(save_commit(save, false));
  expect_text(p.path, "new");
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  place_remove(&p);
}

LADE_TEST_P(Save, LeavesNothingWhenGivenUp, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  kind_set(kind, (storage_faults){0});
  LADE_EXPECT_OK(ladei_save_end(save_begun(&p, "new"), true));
  expect_text(p.path, "old");
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  LADE_EXPECT_OK(ladei_save_end(NULL, false));
  place_remove(&p);
}

/* Bug: it tried for ever. Some file systems of user space say so where they have no room. */
LADE_TEST(Save, TakesAWriteOfNothingForAFailure) {
  place p;
  if (!place_create(&p)) return;
  ladei_save *save = save_begun(&p, "new");
  storage_faults_set((storage_faults){.write_nothing = true});
  (void)alarm(60); /* a failed test ends */
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_save_write(save, 3, "more", 4));
  (void)alarm(0);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "model.bin");
  storage_faults_set((storage_faults){0});
  LADE_EXPECT_OK(ladei_save_end(save, false));
  place_remove(&p);
}

LADE_TEST_P(Save, LeavesNothingWhenItCannotBeFinished, kinds, kind) {
  const storage_faults faults[] = {{.flush = EIO}, {.rename = EACCES}, {.link = ENOSPC}};
  for (size_t i = 0; i < 3; i++) {
    place p;
    if (!place_create(&p)) return;
    if (i == 2 && strcmp(kind, "named") == 0) {
      place_remove(&p);
      continue; /* it has a name: nothing is linked */
    }
    text_write(p.path, "old");
    kind_set(kind, faults[i]);
    ladei_save *save = save_begun(&p, "new");
    LADE_EXPECT_STATUS(LADE_ERR_IO, save_commit(save, true));
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, i == 0 ? EIO : i == 1 ? EACCES : ENOSPC);
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, p.path);
    expect_text(p.path, "old");
    LADE_EXPECT_EQ_UINT(names_in(&p), 1);
    place_remove(&p);
  }
}

LADE_TEST_P(Save, NamesWhatCannotBeCreated, kinds, kind) {
  place p;
  ladei_save *save = NULL;
  if (!place_create(&p)) return;
  kind_set(kind, (storage_faults){0});
  char *missing = support_temp_dir_path(&p.dir, "missing/model.bin");
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_save_begin(missing, &save));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOENT);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, missing);
  char *folder = support_temp_dir_path(&p.dir, "");
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_save_begin(folder, &save));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EISDIR);
  LADE_EXPECT_EQ_PTR(save, NULL);
  LADE_EXPECT_EQ_UINT(names_in(&p), 0);
  free(missing);
  free(folder);
  place_remove(&p);
}

/* --- what fails after the file has its name ------------------------------------------------------------------------ */

/* A file system whose folders cannot be flushed says EINVAL; what cannot be flushed otherwise is an error, and complete. */
LADE_TEST_P(Save, NeverTakesAwayWhatHasItsName, kinds, kind) {
  static const struct {
    storage_faults faults;
    lade_status status;
  } cases[] = {{{.flush_folder = EINVAL}, LADE_OK},
               {{.flush_folder = ENOTSUP}, LADE_OK},
               {{.flush_folder = EIO}, LADE_ERR_IO},
               {{.closing = EDQUOT}, LADE_ERR_IO}};
  for (size_t i = 0; i < 4; i++) {
    place p;
    if (!place_create(&p)) return;
    text_write(p.path, "old");
    kind_set(kind, cases[i].faults);
    LADE_EXPECT_STATUS(cases[i].status, save_commit(save_begun(&p, "new"), true));
    expect_text(p.path, "new");
    LADE_EXPECT_EQ_UINT(names_in(&p), 1);
    place_remove(&p);
  }
}

/* What only a close says, over a network, is known before the old file is replaced. */
LADE_TEST_P(Save, KeepsTheOldFileWhenClosingSaysThatThereIsNoRoom, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  kind_set(kind, (storage_faults){.closing = EDQUOT});
  LADE_EXPECT_STATUS(LADE_ERR_IO, save_commit(save_begun(&p, "new"), false));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EDQUOT);
  expect_text(p.path, "old");
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  place_remove(&p);
}

/* --- temporary names ---------------------------------------------------------------------------------------------- */

static void expect_ended(pid_t child) {
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

/* A process that is ended while it writes leaves its temporary file; the next save takes it away, and those of the living
 * stay. */
LADE_TEST(Save, TakesAwayWhatKilledProcessesLeft) {
  place p;
  if (!place_create(&p)) return;
  kind_set("named", (storage_faults){0});
  ladei_save *living = save_begun(&p, "living");
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    LADE_ASSERT_GE_INT(child, 0);
    if (child == 0) {
      (void)save_begun(&p, "killed");
      raise(SIGTERM);
    }
    expect_ended(child);
    LADE_EXPECT_EQ_UINT(names_in(&p), 2); /* each has taken away what the one before it left */
  }
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), false));
  expect_text(p.path, "new");
  LADE_EXPECT_EQ_UINT(names_in(&p), 2);
  LADE_EXPECT_OK(save_commit(living, false));
  expect_text(p.path, "living");
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  place_remove(&p);
}

/* Whether another process could take the file away. */
static bool is_locked(const char *path) {
  int fd = open(path, O_RDWR);
  bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (fd >= 0) close(fd);
  return locked;
}

/* Bug: a call for the lock that a signal interrupted was taken for a file system without locks: the next save of the name took the
 * temporary of a living one away, which then could not be renamed. */
LADE_TEST(Save, LocksItsTemporaryAlsoWhereASignalInterrupts) {
  place p;
  bool locks = false;
  if (!place_create(&p)) return;
  char *temporary = support_temp_dir_path(&p.dir, ".model.bin.lade-1");
  for (int nth = 1; nth < 20 && !locks; nth++) {
    ladei_save *save = NULL;
    kind_set("named", (storage_faults){.nth = nth, .how = STORAGE_FAULTS_FAIL, .code = EINTR});
    (void)ladei_save_begin(p.path, &save);
    locks = save != NULL && strcmp(storage_faults_nth(), "flock") == 0;
    storage_faults_set((storage_faults){0});
    if (locks) LADE_EXPECT(is_locked(temporary));
    LADE_EXPECT_OK(ladei_save_end(save, false));
  }
  LADE_EXPECT(locks);
  free(temporary);
  place_remove(&p);
}

/* Without locks it is not known which process lives: what is there stays, and saves work. */
LADE_TEST_P(Save, WorksWhereFilesCannotBeLocked, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  kind_set(kind, (storage_faults){.lock = ENOLCK});
  char *left = support_temp_dir_path(&p.dir, ".model.bin.lade-1");
  text_write(left, "whose?");
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  expect_text(p.path, "new");
  expect_text(left, "whose?");
  LADE_EXPECT_EQ_UINT(names_in(&p), 2);
  free(left);
  place_remove(&p);
}

LADE_TEST(Save, KnowsItsTemporaryNames) {
  LADE_EXPECT_EQ_SIZE(ladei_save_temporary_name(".model.bin.lade-1"), strlen("model.bin"));
  LADE_EXPECT_EQ_SIZE(ladei_save_temporary_name(".a.lade-1.lade-23"), strlen("a.lade-1"));
  static const char *const others[] = {
      "model.bin.lade-1", ".model.bin.lade-", ".model.bin.lade-1x", ".lade-1", "", "."};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    LADE_EXPECT_EQ_SIZE(ladei_save_temporary_name(others[i]), 0);
}

/* --- the target --------------------------------------------------------------------------------------------------- */

/* What could not be replaced at the end is found at the beginning; a device is no file to be replaced. */
LADE_TEST_P(Save, RefusesWhatItCouldNotReplace, kinds, kind) {
  place p;
  ladei_save *save = NULL;
  if (!place_create(&p)) return;
  kind_set(kind, (storage_faults){0});
  LADE_ASSERT_EQ_INT(mkdir(p.path, 0755), 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_save_begin(p.path, &save));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EISDIR);
  LADE_ASSERT_EQ_INT(rmdir(p.path), 0);
  LADE_ASSERT_EQ_INT(mkfifo(p.path, 0600), 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_save_begin(p.path, &save));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EINVAL);
  LADE_EXPECT_EQ_PTR(save, NULL);
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  LADE_ASSERT_EQ_INT(unlink(p.path), 0);
  char name[300], *path = (memset(name, 'n', 299), name[299] = '\0', support_temp_dir_path(&p.dir, name));
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_save_begin(path, &save));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENAMETOOLONG);
  free(path);
  place_remove(&p);
}

/* Bug: a link was replaced whatever it led to, so a save by root to /dev/stdout took that away. What leads to a file, or to nothing, is
 * replaced. */
LADE_TEST_P(Save, ReplacesNoLinkToWhatIsNoFile, kinds, kind) {
  bool kernel_tells = syscall(SYS_openat2, AT_FDCWD, ".", NULL, 0) == 0 || errno != ENOSYS; /* an emulator may not */
  place p;
  if (!place_create(&p)) return;
  char *other = support_temp_dir_path(&p.dir, "other");
  text_write(other, "other");
  int open_file = open(other, O_RDONLY);
  char self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", open_file);
  const struct {
    const char *to;
    int code;
  } cases[] = {{"/dev/null", EINVAL}, {self, EINVAL}, {p.dir.path, EISDIR},
               {"model.bin", EINVAL}, {"nothing", 0}, {"other", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (cases[i].to == self && !kernel_tells) continue;
    ladei_save *save = NULL;
    kind_set(kind, (storage_faults){0});
    LADE_ASSERT_EQ_INT(symlink(cases[i].to, p.path), 0);
    lade_status status = ladei_save_begin(p.path, &save);
    if (cases[i].code == 0) {
      LADE_EXPECT_OK(status);
      LADE_EXPECT_OK(save_commit(save, false));
      expect_text(other, "other");
    } else {
      LADE_EXPECT_STATUS(LADE_ERR_IO, status);
      LADE_EXPECT_EQ_INT(lade_last_error()->native_code, cases[i].code);
    }
    struct stat facts;
    LADE_EXPECT_EQ_INT(lstat(p.path, &facts), 0);
    LADE_EXPECT_EQ_INT(S_ISLNK(facts.st_mode), cases[i].code != 0);
    (void)unlink(p.path);
    LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  }
  close(open_file);
  free(other);
  place_remove(&p);
}

/* Bug: that was found when all was written. */
LADE_TEST_P(Save, WorksWithoutProc, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  kind_set(kind, (storage_faults){.no_proc = true});
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  expect_text(p.path, "new");
  LADE_EXPECT_EQ_UINT(names_in(&p), 1);
  place_remove(&p);
}

/* --- rights ------------------------------------------------------------------------------------------------------- */

static unsigned mode_of(const char *path) {
  struct stat facts = {0};
  LADE_EXPECT_EQ_INT(stat(path, &facts), 0);
  return facts.st_mode & 07777;
}

static unsigned mode_while_written(const ladei_save *save) {
  struct stat facts = {0};
  LADE_EXPECT_EQ_INT(fstat(ladei_save_fd(save), &facts), 0);
  return facts.st_mode & 07777;
}

/* Bug: what replaced a private file could be read by everybody. A write would have taken the bits of other users away, too. */
LADE_TEST_P(Save, KeepsTheMode, kinds, kind) {
  const unsigned modes[][2] = {{0600, 0600}, {0640, 0640}, {0666, 0666}, {0400, 0400}, {0604, 0604}, {06755, 0755}};
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
    place p;
    if (!place_create(&p)) return;
    text_write(p.path, "old");
    LADE_EXPECT_EQ_INT(chmod(p.path, modes[i][0]), 0);
    kind_set(kind, (storage_faults){0});
    mode_t mask = umask(022);
    ladei_save *save = save_begun(&p, "new");
    LADE_EXPECT_EQ_UINT(mode_while_written(save) & 077, 0);
    LADE_EXPECT_OK(save_commit(save, true));
    umask(mask);
    LADE_EXPECT_EQ_UINT(mode_of(p.path), modes[i][1]);
    expect_text(p.path, "new");
    place_remove(&p);
  }
}

/* What is under the name at the end counts, also where that changes meanwhile. */
LADE_TEST_P(Save, KeepsTheModeOfTheEnd, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  kind_set(kind, (storage_faults){0});
  ladei_save *save = save_begun(&p, "new");
  text_write(p.path, "old");
  LADE_EXPECT_EQ_INT(chmod(p.path, 0600), 0);
  LADE_EXPECT_OK(save_commit(save, false));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0600);
  LADE_EXPECT_EQ_INT(chmod(p.path, 0644), 0);
  save = save_begun(&p, "newer");
  LADE_EXPECT_EQ_INT(unlink(p.path), 0);
  LADE_EXPECT_OK(save_commit(save, false));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0600); /* closed while it was written; nothing is there to open it */
  place_remove(&p);
}

LADE_TEST_P(Save, HasTheRightsOfTheFileBehindALink, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  char *other = support_temp_dir_path(&p.dir, "other");
  text_write(other, "other");
  LADE_EXPECT_EQ_INT(symlink("other", p.path), 0);
  kind_set(kind, (storage_faults){0});
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), false));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0600);
  expect_text(other, "other");
  free(other);
  place_remove(&p);
}

/* The files of a checkpoint that replaces another have new names. */
LADE_TEST_P(Save, HasTheRightsOfAnotherName, kinds, kind) {
  place p;
  ladei_save *save = NULL;
  if (!place_create(&p)) return;
  char *other = support_temp_dir_path(&p.dir, "other");
  text_write(other, "other");
  kind_set(kind, (storage_faults){0});
  int folder = open(p.dir.path, O_RDONLY | O_DIRECTORY);
  LADE_EXPECT_OK(ladei_save_begin_in(folder, p.path, "other", &save));
  LADE_EXPECT_EQ_UINT(mode_while_written(save), 0600);
  LADE_EXPECT_OK(save_commit(save, false));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0600);
  LADE_EXPECT_EQ_INT(chmod(p.path, 0640), 0);
  LADE_EXPECT_OK(ladei_save_begin_in(folder, p.path, "other", &save));
  LADE_EXPECT_OK(save_commit(save, false));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0640); /* its own name goes first */
  close(folder);
  free(other);
  place_remove(&p);
}

static const char no_lists[] = "a file system without access control lists";

/* A list of access rights as the kernel has it: owner, one user, group, mask, others. */
typedef struct access_list {
  uint32_t version;
  struct {
    uint16_t tag, rights;
    uint32_t id;
  } entries[5];
} access_list;

static access_list list_of(unsigned mask) {
  const uint32_t none = UINT32_MAX;
  return (access_list){2, {{1, 6, none}, {2, 6, geteuid()}, {4, 0, none}, {16, (uint16_t)mask, none}, {32, 0, none}}};
}

static bool list_set(const char *path, const char *name, unsigned mask) {
  access_list list = list_of(mask);
  return setxattr(path, name, &list, sizeof list, 0) == 0;
}

static bool has_list(const char *path) {
  access_list found = {0}, wanted = list_of(6);
  return getxattr(path, "system.posix_acl_access", &found, sizeof found) == (ssize_t)sizeof found &&
         memcmp(&found, &wanted, sizeof found) == 0;
}

LADE_TEST_P(Save, KeepsListsAndAttributes, kinds, kind) {
  place p;
  char value[8] = {0};
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  if (!list_set(p.path, "system.posix_acl_access", 6)) {
    place_remove(&p);
    LADE_SKIP(no_lists);
  }
  LADE_EXPECT_EQ_INT(setxattr(p.path, "user.tag", "mine", 4, 0), 0);
  kind_set(kind, (storage_faults){0});
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  LADE_EXPECT(has_list(p.path));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0660);
  LADE_EXPECT_EQ_INT(getxattr(p.path, "user.tag", value, sizeof value), 4);
  LADE_EXPECT_EQ_STR(value, "mine");
  place_remove(&p);
}

/* What a folder gives to its new files is not for one that replaces an old one. */
LADE_TEST_P(Save, HasNoListOfTheFolder, kinds, kind) {
  place p;
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  LADE_EXPECT_EQ_INT(chmod(p.path, 0640), 0);
  if (!list_set(p.dir.path, "system.posix_acl_default", 6)) {
    place_remove(&p);
    LADE_SKIP(no_lists);
  }
  kind_set(kind, (storage_faults){0});
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0640);
  LADE_EXPECT_EQ_INT(getxattr(p.path, "system.posix_acl_access", NULL, 0), -1);
  LADE_EXPECT_EQ_INT(unlink(p.path), 0);
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  LADE_EXPECT(has_list(p.path)); /* a new one has it */
  place_remove(&p);
}

/* A list may forbid what the mode allows: without it the owner alone has rights. */
LADE_TEST_P(Save, ClosesWhatLosesItsList, kinds, kind) {
  place p;
  support_heard heard;
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  if (!list_set(p.path, "system.posix_acl_access", 6)) {
    place_remove(&p);
    LADE_SKIP(no_lists);
  }
  LADE_EXPECT_EQ_INT(setxattr(p.path, "user.tag", "mine", 4, 0), 0);
  kind_set(kind, (storage_faults){.attribute_set = ENOSPC});
  support_heard_begin(&heard, LADE_LOG_WARN);
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  support_heard_end();
  LADE_EXPECT_EQ_UINT(mode_of(p.path), 0600);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN,
                                         "the new file has mode 0600 and not all that the old one had: "
                                         "attribute user.tag, access control list: No space left"),
                     1);
  place_remove(&p);
}

LADE_TEST_P(Save, KeepsOwnerAndGroup, kinds, kind) {
  place p;
  struct stat facts = {0};
  if (!place_create(&p)) return;
  text_write(p.path, "old");
  if (chown(p.path, 12345, 23456) != 0) {
    place_remove(&p);
    LADE_SKIP("only root, outside of a name space, gives files away");
  }
  kind_set(kind, (storage_faults){0});
  LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
  LADE_EXPECT_EQ_INT(stat(p.path, &facts), 0);
  LADE_EXPECT_EQ_UINT(facts.st_uid, 12345);
  LADE_EXPECT_EQ_UINT(facts.st_gid, 23456);
  LADE_EXPECT_EQ_UINT(facts.st_mode & 07777, 0600);
  place_remove(&p);
}

/* Without its group, the members of that one and of the new one get what both had. */
LADE_TEST_P(Save, ClosesWhatLosesItsGroup, kinds, kind) {
  const unsigned modes[][2] = {{0664, 0644}, {0640, 0600}, {0604, 0600}, {0666, 0666}};
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
    place p;
    support_heard heard;
    if (!place_create(&p)) return;
    text_write(p.path, "old");
    LADE_EXPECT_EQ_INT(chmod(p.path, modes[i][0]), 0);
    kind_set(kind, (storage_faults){.owner = EPERM, .foreign = true});
    support_heard_begin(&heard, LADE_LOG_WARN);
    LADE_EXPECT_OK(save_commit(save_begun(&p, "new"), true));
    support_heard_end();
    LADE_EXPECT_EQ_UINT(mode_of(p.path), modes[i][1]);
    LADE_EXPECT_EQ_INT(
        support_heard_count(&heard, LADE_LOG_WARN, "not all that the old one had: owner, group: Operation not"), 1);
    place_remove(&p);
  }
}

/* Whatever call fails, the new file allows nobody more than the old one. */
LADE_TEST_P(Save, OpensNothingWhateverCallFails, kinds, kind) {
  bool reached = true;
  for (int nth = 1; reached; nth++) {
    place p;
    ladei_save *save = NULL;
    if (!place_create(&p)) return;
    text_write(p.path, "old");
    LADE_EXPECT_EQ_INT(chmod(p.path, 0640), 0);
    kind_set(kind, (storage_faults){.nth = nth, .how = STORAGE_FAULTS_FAIL, .code = EPERM});
    mode_t mask = umask(0);
    if (ladei_save_begin(p.path, &save) == LADE_OK) (void)save_commit(save, true);
    umask(mask);
    reached = storage_faults_count() >= nth;
    storage_faults_set((storage_faults){0});
    LADE_EXPECT_EQ_UINT(mode_of(p.path) & 037, 0);
    place_remove(&p);
  }
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

/* A path without folder: the current one. */
LADE_TEST(Save, TakesANameAlone) {
  place p;
  char before[4096];
  if (!place_create(&p)) return;
  LADE_ASSERT(getcwd(before, sizeof before) != NULL);
  LADE_ASSERT_EQ_INT(chdir(p.dir.path), 0);
  ladei_save *save = NULL;
  LADE_EXPECT_OK(ladei_save_begin("model.bin", &save));
  /* The folder is the one it was at the beginning. */
  LADE_EXPECT_EQ_INT(chdir(before), 0);
  LADE_EXPECT_OK(save_commit(save, false));
  expect_text(p.path, "");
  place_remove(&p);
}

/* --- room --------------------------------------------------------------------------------------------------------- */

/* The bug: a save to memory spent most of its time here, in one thread, before its first copy. */
LADE_TEST(FileReserve, TouchesNoPageOfAFileSystemInMemory) {
  struct stat facts;
  struct statfs system;
  int fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
  if (fd < 0 || fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC || system.f_blocks == 0) {
    if (fd >= 0) close(fd);
    LADE_SKIP("no limited file system in memory at /dev/shm");
  }
  LADE_EXPECT_EQ_INT(ladei_file_reserve(fd, 0, 0, 1 << 20), 0);
  LADE_EXPECT_EQ_INT(fstat(fd, &facts), 0);
  LADE_EXPECT_EQ_INT(facts.st_blocks, 0);
  LADE_EXPECT_EQ_INT(ladei_file_reserve(fd, 0, 0, (uint64_t)system.f_blocks * (uint64_t)system.f_bsize + 1), ENOSPC);
  close(fd);
}

LADE_TEST(FileReserve, SetsRoomAside) {
  place p;
  struct stat facts;
  LADE_ASSERT(place_create(&p));
  int fd = open(p.path, O_RDWR | O_CREAT, 0600);
  int reason = ladei_file_reserve(fd, 0, 0, 1 << 20);
  if (reason == 0) {
    LADE_EXPECT_EQ_INT(fstat(fd, &facts), 0);
    LADE_EXPECT_EQ_INT(facts.st_size, 1 << 20);
  } else {
    LADE_EXPECT_EQ_INT(reason, EOPNOTSUPP); /* a file system that promises nothing */
  }
  LADE_EXPECT_EQ_INT(ladei_file_reserve(fd, 0, 0, UINT64_MAX), EFBIG);
  close(fd);
  place_remove(&p);
}
