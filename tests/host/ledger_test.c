/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools in one ledger. A lock belongs to an open file, so each ladei_ledger of this process is to the others as that of
 * another process. What ends without its last words is a child that is killed: ledger_processes_test.c.
 */
#include "host/budget/ledger.h"
#include "host/budget/ledger_file.h"
#include "host/budget/ledger_survey.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

typedef struct fixture {
  support_temp_dir folder;
  char path[LADEI_LEDGER_PATH_BYTES];
} fixture;

static bool fixture_open(fixture *own) {
  bool made = support_temp_dir_create(&own->folder);
  snprintf(own->path, sizeof own->path, "%.200s/ledger", own->folder.path);
  return made;
}

static ladei_ledger *pool_of(const fixture *own, uint64_t default_bytes) {
  ladei_ledger_terms terms = {.default_bytes = default_bytes};
  return ladei_ledger_create(own->path, &terms, &ladei_ledger_system_calls);
}

static ladei_ledger_result charge(ladei_ledger *ledger, uint64_t bytes) {
  ladei_ledger_answer answer;
  return ladei_ledger_charge(ledger, bytes, &answer);
}

static ladei_ledger_state state_of(ladei_ledger *ledger) {
  ladei_ledger_state state;
  ladei_ledger_state_get(ledger, &state);
  return state;
}

/* What the living hold, by the file; -1: it cannot be read. */
static int64_t held_by_file(const fixture *own, size_t *out_rows) {
  ladei_ledger_survey survey;
  if (ladei_ledger_survey_take(own->path, false, &ladei_ledger_system_calls, &survey) != LADE_OK) return -1;
  int64_t sum = 0;
  for (size_t i = 0; i < survey.count; i++)
    if (survey.rows[i].has_owner) sum += (int64_t)survey.rows[i].slot.bytes;
  if (out_rows != NULL) *out_rows = survey.count;
  ladei_ledger_survey_release(&survey);
  return sum;
}

static void bytes_write(const fixture *own, const void *data, size_t bytes, off_t offset) {
  int fd = open(own->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  LADE_EXPECT_EQ_INT(pwrite(fd, data, bytes, offset), (int)bytes);
  close(fd);
}

static void faults(ladei_ledger *ledger, const char *what) {
  LADE_EXPECT_EQ_INT(charge(ledger, 10), LADEI_LEDGER_FAULT);
  ladei_ledger_state state = state_of(ledger);
  LADE_EXPECT(!state.attached);
  if (strstr(state.fault, what) == NULL) LADE_EXPECT_EQ_STR(state.fault, what);
}

LADE_TEST(Ledger, PoolsShareOneBudget) {
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 777); /* the first one's default counts */
  LADE_EXPECT_EQ_INT(charge(a, 600), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 401), LADEI_LEDGER_REFUSED);
  LADE_EXPECT_EQ_INT(charge(b, 400), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 1000);
  ladei_ledger_credit(a, 250);
  LADE_EXPECT(ladei_ledger_leaves(b, 250));
  LADE_EXPECT(!ladei_ledger_leaves(b, 251));
  LADE_EXPECT_EQ_INT(charge(b, 250), LADEI_LEDGER_GRANTED);
  ladei_ledger_destroy(a);
  LADE_EXPECT_EQ_INT(charge(b, 350), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_UINT(state_of(b).answer.budget_bytes, 1000);
  ladei_ledger_destroy(b);
  /* Nobody is left: the next one's default. */
  a = pool_of(&own, 50);
  LADE_EXPECT_EQ_INT(charge(a, 51), LADEI_LEDGER_REFUSED);
  LADE_EXPECT_EQ_INT(charge(a, 50), LADEI_LEDGER_GRANTED);
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, RefusedPoolAsksTheOthersOnce) {
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 900), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(a), 0);
  LADE_EXPECT_EQ_INT(charge(b, 300), LADEI_LEDGER_REFUSED);
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(a), 300);
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(a), 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(b), 0); /* its own wish */
  ladei_ledger_credit(a, 200);
  LADE_EXPECT_EQ_INT(charge(b, 300), LADEI_LEDGER_GRANTED);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, FileIsTheUsersAlone) {
  fixture own;
  struct stat found;
  LADE_ASSERT(fixture_open(&own));
  mode_t mask = umask(0777); /* must not matter */
  ladei_ledger *a = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
  umask(mask);
  LADE_EXPECT_EQ_INT(stat(own.path, &found), 0);
  LADE_EXPECT_EQ_UINT(found.st_mode & 07777, 0600);
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

/* ---- Memory that pools hold together ----------------------------------------------------------------------------- */

static ladei_ledger_result share(ladei_ledger *ledger, ladei_ledger_hold *hold, uint64_t id, uint64_t bytes) {
  ladei_ledger_answer answer;
  *hold = (ladei_ledger_hold){.id = id, .bytes = bytes};
  return ladei_ledger_hold_add(ledger, hold, &answer);
}

LADE_TEST(Ledger, SharedMemoryIsRefusedToTheFirstPoolAndFreeToTheNextOnes) {
  fixture own;
  ladei_ledger_hold of_a, of_b, others;
  size_t rows;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 500), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(share(b, &of_b, 1, 501), LADEI_LEDGER_REFUSED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 500);
  LADE_EXPECT_EQ_SIZE(rows, 2);                    /* a refusal leaves no slot, ... */
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(a), 501); /* ... and asks the others to give back */
  LADE_EXPECT_EQ_INT(share(b, &of_b, 1, 500), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(share(a, &of_a, 1, 500), LADEI_LEDGER_GRANTED); /* nothing is left, and nothing is asked for */
  LADE_EXPECT_EQ_UINT(state_of(a).held_bytes, 500);
  LADE_EXPECT_EQ_UINT(state_of(a).shared_bytes, 500);
  LADE_EXPECT_EQ_INT(share(a, &others, 2, 1), LADEI_LEDGER_REFUSED); /* other memory */
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 1000);
  LADE_EXPECT_EQ_SIZE(rows, 3);
  ladei_ledger_hold_remove(b, &of_b);
  ladei_ledger_destroy(b);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 1000);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_REFUSED);
  ladei_ledger_hold_remove(a, &of_a);
  LADE_EXPECT_EQ_INT(charge(a, 500), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 1000);
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

/* The bug: the budget that a pool's options said stayed in force after its end, while others had memory that it had shared. */
LADE_TEST(Ledger, SharedMemoryKeepsNoBudgetOfAPoolThatHasEnded) {
  fixture own;
  ladei_ledger_hold of_a, of_b;
  LADE_ASSERT(fixture_open(&own));
  const ladei_ledger_terms terms = {.total_bytes = 1000, .default_bytes = 5000};
  ladei_ledger *a = ladei_ledger_create(own.path, &terms, &ladei_ledger_system_calls), *b = pool_of(&own, 5000);
  LADE_EXPECT_EQ_INT(share(a, &of_a, 1, 1001), LADEI_LEDGER_REFUSED);
  LADE_EXPECT_EQ_INT(share(a, &of_a, 1, 400), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(share(b, &of_b, 1, 400), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 601), LADEI_LEDGER_REFUSED);
  ladei_ledger_hold_remove(a, &of_a);
  ladei_ledger_destroy(a);
  LADE_EXPECT_EQ_INT(charge(b, 4601), LADEI_LEDGER_REFUSED);
  LADE_EXPECT_EQ_INT(charge(b, 4600), LADEI_LEDGER_GRANTED);
  ladei_ledger_hold_remove(b, &of_b);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

/* Each pool that was in the file before tells it again, and the second one finds what the first has told. */
LADE_TEST(Ledger, SharedMemoryIsToldOnceToANewFile) {
  fixture own;
  ladei_ledger_hold of[3], more[3];
  ladei_ledger *pools[3];
  size_t rows;
  LADE_ASSERT(fixture_open(&own));
  for (int i = 0; i < 3; i++) pools[i] = pool_of(&own, 1000);
  for (int i = 0; i < 3; i++) LADE_EXPECT_EQ_INT(share(pools[i], &of[i], 1, 300), LADEI_LEDGER_GRANTED);
  for (int i = 0; i < 3; i++) LADE_EXPECT_EQ_INT(share(pools[i], &more[i], 2, 200), LADEI_LEDGER_GRANTED);
  for (int cut = 0; cut < 2; cut++) {
    if (cut)
      LADE_EXPECT_EQ_INT(truncate(own.path, 0), 0);
    else
      LADE_EXPECT_EQ_INT(unlink(own.path), 0);
    for (int i = 0; i < 3; i++) (void)charge(pools[i], 10); /* one that finds damage is a fault */
    for (int i = 0; i < 3; i++) LADE_EXPECT_EQ_INT(charge(pools[i], 10), LADEI_LEDGER_GRANTED);
    LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 500 + 60 * (cut + 1));
    LADE_EXPECT_EQ_SIZE(rows, 5);
  }
  for (int i = 0; i < 3; i++) {
    ladei_ledger_hold_remove(pools[i], &of[i]);
    LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 120 + 200 + (i < 2 ? 300 : 0));
  }
  for (int i = 0; i < 3; i++) ladei_ledger_hold_remove(pools[i], &more[i]);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 120);
  LADE_EXPECT_EQ_SIZE(rows, 3);
  for (int i = 0; i < 3; i++) ladei_ledger_destroy(pools[i]);
  support_temp_dir_remove(&own.folder);
}

/* It is counted without the ledger, and told as soon as that can be had; what is given back before is told no more. */
LADE_TEST(Ledger, SharedMemoryIsToldLaterWhereTheFileIsBad) {
  fixture own;
  ladei_ledger_hold kept, given_back;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(mkdir(own.path, 0700), 0);
  LADE_EXPECT_EQ_INT(share(a, &kept, 1, 300), LADEI_LEDGER_FAULT);
  LADE_EXPECT_EQ_INT(share(a, &given_back, 2, 200), LADEI_LEDGER_FAULT);
  LADE_EXPECT_EQ_UINT(state_of(a).shared_bytes, 500);
  ladei_ledger_hold_remove(a, &given_back);
  rmdir(own.path);
  (void)ladei_ledger_asked(a);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 300);
  ladei_ledger_hold_remove(a, &kept);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 0);
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

/* ---- Files that are refused -------------------------------------------------------------------------------------- */

LADE_TEST(Ledger, FilesThatAreNotOursAreRefusedByName) {
  fixture own;
  ladei_ledger_header header;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(symlink("/dev/null", own.path), 0);
  faults(a, "symbolic link");
  unlink(own.path);
  LADE_EXPECT_EQ_INT(mkfifo(own.path, 0600), 0);
  faults(a, "no regular file");
  unlink(own.path);
  LADE_EXPECT_EQ_INT(mkdir(own.path, 0700), 0);
  faults(a, "cannot be opened");
  rmdir(own.path);
  bytes_write(&own, "", 0, 0);
  chmod(own.path, 0644);
  faults(a, "permissions 0644; expected 0600");
  chmod(own.path, 0600);
  bytes_write(&own, "hello", 5, 0);
  faults(a, "no whole header");
  char text[4000] = "text of another program";
  bytes_write(&own, text, sizeof text, 0);
  faults(a, "no ledger of lade's");
  ladei_ledger_header_make(&header, 64, 0);
  header.version = 9;
  bytes_write(&own, &header, sizeof header, 0);
  faults(a, "another version");
  ladei_ledger_header_make(&header, 64, 0);
  header.made_ns++;
  bytes_write(&own, &header, sizeof header, 0);
  faults(a, "checksum");
  /* All was counted, and is told as soon as the file is good. */
  unlink(own.path);
  LADE_EXPECT_EQ_INT(charge(a, 10), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_UINT(state_of(a).held_bytes, 90);
  LADE_EXPECT_EQ_UINT(state_of(a).faults, 8);
  LADE_EXPECT_EQ_STR(state_of(a).fault, "");
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 90);
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, FileOfAnotherUserIsRefusedByName) {
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  bytes_write(&own, "", 0, 0);
  if (chown(own.path, 12345, (gid_t)-1) != 0) {
    support_temp_dir_remove(&own.folder);
    LADE_SKIP("files of other users need privileges");
  }
  ladei_ledger *a = pool_of(&own, 1000);
  faults(a, "belongs to user 12345");
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, FileWithTwoNamesIsRefusedByName) {
  fixture own;
  char other[300];
  LADE_ASSERT(fixture_open(&own));
  snprintf(other, sizeof other, "%s.other", own.path);
  bytes_write(&own, "", 0, 0);
  LADE_EXPECT_EQ_INT(link(own.path, other), 0);
  ladei_ledger *a = pool_of(&own, 1000);
  faults(a, "2 names");
  ladei_ledger_destroy(a);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, FolderThatIsNotThereIsNamed) {
  ladei_ledger_terms terms = {.default_bytes = 1};
  ladei_ledger *a = ladei_ledger_create("/nonexistent/lade", &terms, &ladei_ledger_system_calls);
  faults(a, "/nonexistent/lade cannot be opened: No such file");
  ladei_ledger_credit(a, 10);
  ladei_ledger_destroy(a);
}

/* ---- Files that change under a pool ------------------------------------------------------------------------------ */

LADE_TEST(Ledger, RemovedFileIsMadeAnewWithAllThatIsHeld) {
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 200), LADEI_LEDGER_GRANTED);
  unlink(own.path);
  LADE_EXPECT_EQ_INT(charge(a, 5), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 105);
  LADE_EXPECT_EQ_INT(charge(b, 5), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 310);
  ladei_ledger_credit(b, 205);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 105);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

/* A pool that holds much and asks for no more joins the new file by its looks, which its background thread makes. */
LADE_TEST(Ledger, LookJoinsTheFileThatWasMadeAnew) {
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 900), LADEI_LEDGER_GRANTED);
  LADE_ASSERT_EQ_INT(unlink(own.path), 0);
  LADE_EXPECT_EQ_INT(charge(b, 10), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 10);
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(a), 0);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 910);
  LADE_EXPECT_EQ_INT(charge(b, 100), LADEI_LEDGER_REFUSED);
  LADE_ASSERT_EQ_INT(close(next), 0); /* that of `a`: its locks end */
  LADE_EXPECT_EQ_INT(charge(b, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_UINT(ladei_ledger_asked(a), 0);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 1010);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

/* Mapped, the file would end all processes that have it; cut, it names itself once, and is good again. */
LADE_TEST(Ledger, CutFileIsAFaultAndThenGood) {
  static const off_t lengths[] = {LADEI_LEDGER_HEADER_BYTES, LADEI_LEDGER_HEADER_BYTES + 60, 0};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    fixture own;
    LADE_ASSERT(fixture_open(&own));
    ladei_ledger *a = pool_of(&own, 1000);
    LADE_EXPECT_EQ_INT(charge(a, 100), LADEI_LEDGER_GRANTED);
    LADE_EXPECT_EQ_INT(truncate(own.path, lengths[i]), 0);
    faults(a, "was cut or changed");
    LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
    LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 111);
    ladei_ledger_destroy(a);
    support_temp_dir_remove(&own.folder);
  }
}

/* The pools whose slots were cut off have the locks of these still: no slot behind the new end can be had at first. */
LADE_TEST(Ledger, PoolJoinsAFileThatWasCutWhileOthersLive) {
  fixture own;
  size_t rows;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000), *c = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 200), LADEI_LEDGER_GRANTED);
  LADE_ASSERT_EQ_INT(truncate(own.path, LADEI_LEDGER_HEADER_BYTES), 0);
  LADE_EXPECT_EQ_INT(charge(c, 10), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(c, 10), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_FAULT);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_FAULT);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 324);
  LADE_EXPECT_EQ_INT((int)rows, 3);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  ladei_ledger_destroy(c);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, DamagedSlotOfALivingPoolIsRefused) {
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 100), LADEI_LEDGER_GRANTED);
  bytes_write(&own, "x", 1, LADEI_LEDGER_HEADER_BYTES + 20);
  faults(b, "damaged slot, 0");
  faults(a, "was cut or changed: slot 0");
  /* Slot 0 has no owner any more. */
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 222);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

/* A program that closes all descriptors closes this one; the number is another file's then, which nobody may write to. */
LADE_TEST(Ledger, DescriptorThatTheProgramClosedIsLeftAlone) {
  fixture own;
  char other[300], data[8] = "";
  LADE_ASSERT(fixture_open(&own));
  snprintf(other, sizeof other, "%s.other", own.path);
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next); /* the ledger's number */
  ladei_ledger *a = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 100), LADEI_LEDGER_GRANTED);
  close(next); /* and no other file has it yet */
  LADE_EXPECT_EQ_INT(charge(a, 10), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 110);
  close(next);
  int fd = open(other, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  LADE_EXPECT_EQ_INT(fd, next);
  LADE_EXPECT_EQ_INT(flock(fd, LOCK_SH), 0); /* the program's own: a lock of the ledger's on it would change it */
  LADE_EXPECT_EQ_INT(charge(a, 10), LADEI_LEDGER_GRANTED);
  int again = open(other, O_RDWR | O_CLOEXEC);
  LADE_EXPECT_EQ_INT(flock(again, LOCK_EX | LOCK_NB), -1);
  LADE_EXPECT_EQ_INT(flock(again, LOCK_SH | LOCK_NB), 0);
  close(again);
  LADE_EXPECT_EQ_INT(pread(fd, data, sizeof data, 0), 0); /* as empty as before */
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 120);
  ladei_ledger_destroy(a);
  LADE_EXPECT_EQ_INT(fcntl(fd, F_GETFD), FD_CLOEXEC);
  close(fd);
  support_temp_dir_remove(&own.folder);
}

/* The first pool that opens the file again gets the number of another one, which must not take it for its own: both would be in
 * changes at once, and what the one closes would end the locks of the other. */
LADE_TEST(Ledger, PoolsWhoseDescriptorsTheProgramClosedShareNone) {
  fixture own;
  size_t rows = 0;
  LADE_ASSERT(fixture_open(&own));
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 100), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 200), LADEI_LEDGER_GRANTED);
  close(next);
  close(next + 1);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 302);
  LADE_EXPECT_EQ_INT((int)rows, 2);
  close(next);
  close(next + 1);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED);
  ladei_ledger_destroy(a);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, &rows), 202);
  LADE_EXPECT_EQ_INT((int)rows, 1);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

/* A program under `ulimit -f` that writes no file is not ended by one that it knows nothing of. */
LADE_TEST(Ledger, LimitOnTheSizeOfFilesIsAFaultAndNoSignal) {
  fixture own;
  struct rlimit before, little;
  LADE_ASSERT(fixture_open(&own));
  LADE_ASSERT_EQ_INT(getrlimit(RLIMIT_FSIZE, &before), 0);
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(b, 20), LADEI_LEDGER_GRANTED);
  for (rlim_t bytes = 0; bytes <= 200; bytes += 100) { /* none, a part of the header, of a slot */
    little = (struct rlimit){bytes, before.rlim_max};
    LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_FSIZE, &little), 0);
    ladei_ledger_result result = charge(a, 10);
    ladei_ledger_state state = state_of(a);
    ladei_ledger_credit(b, 1);
    LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_FSIZE, &before), 0); /* before anything is said: that may go to a file, too */
    LADE_EXPECT_EQ_INT(result, LADEI_LEDGER_FAULT);
    LADE_EXPECT(strstr(state.fault, "cannot be written: File too large") != NULL);
  }
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 31 + 18);
  ladei_ledger_destroy(a);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* Time goes on by sleeping alone; meanwhile others may change the file, which is locked by its holder. */
typedef struct waiting {
  fixture own;
  uint64_t now_ns;
  int holder;       /* descriptor */
  bool changes;     /* at each sleep, with times of the settable clock after steps of it */
  int sleeps, ends; /* so far; the holder is done after so many, if that is not 0 */
} waiting;

static uint64_t waiting_clock(void *user) { return ((waiting *)user)->now_ns; }

static void file_touch(const waiting *w, time_t seconds) {
  const struct timespec times[2] = {{seconds, 0}, {seconds, 0}};
  LADE_EXPECT_EQ_INT(futimens(w->holder, times), 0);
}

static void waiting_sleep(void *user, uint64_t ns) {
  static const time_t steps[] = {0, 4000000000, 1, 86400, 3000000000};
  waiting *w = user;
  w->now_ns += ns;
  w->sleeps++;
  if (w->changes) file_touch(w, steps[w->sleeps % 5] + w->sleeps % 7);
  if (w->ends != 0 && w->sleeps == w->ends) LADE_EXPECT_EQ_INT(flock(w->holder, LOCK_UN), 0);
}

static ladei_ledger_calls waiting_calls(waiting *w) {
  ladei_ledger_calls calls = ladei_ledger_system_calls;
  calls.monotonic_ns = waiting_clock;
  calls.sleep = waiting_sleep;
  calls.user = w;
  return calls;
}

/* The file is there, and locked. */
static bool waiting_open(waiting *w) {
  memset(w, 0, sizeof *w);
  if (!fixture_open(&w->own)) return false;
  w->now_ns = 1;
  w->holder = open(w->own.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  return flock(w->holder, LOCK_EX) == 0;
}

static void waiting_close(waiting *w, ladei_ledger *ledger) {
  ladei_ledger_destroy(ledger);
  close(w->holder);
  support_temp_dir_remove(&w->own.folder);
}

/* A charge is a fault, after so long, for that reason. */
static void waits_in_vain(waiting *w, ladei_ledger *ledger, uint64_t ns, const char *what) {
  uint64_t begin_ns = w->now_ns;
  LADE_EXPECT_EQ_INT(charge(ledger, 10), LADEI_LEDGER_FAULT);
  LADE_EXPECT_EQ_UINT(w->now_ns - begin_ns, ns);
  if (strstr(state_of(ledger).fault, what) == NULL) LADE_EXPECT_EQ_STR(state_of(ledger).fault, what);
}

/* L2. The times of the file do not matter, whatever they are. */
LADE_TEST(Ledger, StoppedProcessIsWaitedForOnce) {
  static const time_t times[] = {0, 1, 4000000000};
  for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
    waiting w;
    LADE_ASSERT(waiting_open(&w));
    file_touch(&w, times[i]);
    ladei_ledger_calls calls = waiting_calls(&w);
    ladei_ledger_terms terms = {.default_bytes = 1000};
    ladei_ledger *a = ladei_ledger_create(w.own.path, &terms, &calls);
    waits_in_vain(&w, a, LADEI_LEDGER_JOIN_PATIENCE_NS,
                  "is locked for more than 2000 ms by a process that may be stopped");
    waits_in_vain(&w, a, 1000000, "is locked for more than 1 ms by a process");
    LADE_EXPECT_EQ_INT(flock(w.holder, LOCK_UN), 0);
    LADE_EXPECT_EQ_INT(charge(a, 10), LADEI_LEDGER_GRANTED);
    LADE_EXPECT_EQ_INT((int)held_by_file(&w.own, NULL), 30);
    LADE_EXPECT_EQ_INT(flock(w.holder, LOCK_EX), 0);
    waits_in_vain(&w, a, LADEI_LEDGER_PATIENCE_NS, "is locked for more than 500 ms by a process that may be stopped");
    LADE_EXPECT_EQ_INT(flock(w.holder, LOCK_UN), 0);
    waiting_close(&w, a);
  }
}

/* Thousands that start at once: each was told that a process is stopped when it had waited for half a second in all. */
LADE_TEST(Ledger, OthersThatWereFirstAreWaitedFor) {
  enum { SLEEPS = 60 };
  waiting w;
  LADE_ASSERT(waiting_open(&w));
  w.changes = true;
  w.ends = SLEEPS;
  ladei_ledger_calls calls = waiting_calls(&w);
  ladei_ledger_terms terms = {.default_bytes = 1000};
  ladei_ledger *a = ladei_ledger_create(w.own.path, &terms, &calls);
  LADE_EXPECT_EQ_INT(charge(a, 10), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_GT_UINT(w.now_ns, 2 * LADEI_LEDGER_JOIN_PATIENCE_NS);
  waiting_close(&w, a);
}

/* A file that changes for good, and whose lock is never free, ends a wait, too; after some hundred looks at it. */
LADE_TEST(Ledger, WaitForOthersEnds) {
  waiting w;
  LADE_ASSERT(waiting_open(&w));
  w.changes = true;
  ladei_ledger_calls calls = waiting_calls(&w);
  ladei_ledger_terms terms = {.default_bytes = 1000};
  ladei_ledger *a = ladei_ledger_create(w.own.path, &terms, &calls);
  faults(a, "is locked by one process after the other for more than 16000 ms");
  LADE_EXPECT_GE_UINT(w.now_ns, LADEI_LEDGER_QUEUE * LADEI_LEDGER_JOIN_PATIENCE_NS);
  LADE_EXPECT_LT_INT(w.sleeps, 300);
  waiting_close(&w, a);
}

/* ---- Many -------------------------------------------------------------------------------------------------------- */

LADE_TEST(Ledger, FullLedgerIsNamedAndHasRoomAgain) {
  enum { MOST = 5 };
  fixture own;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *pools[MOST + 1];
  ladei_ledger_terms terms = {.default_bytes = 1000, .most_slots = MOST};
  for (int i = 0; i <= MOST; i++) pools[i] = ladei_ledger_create(own.path, &terms, &ladei_ledger_system_calls);
  for (int i = 0; i < MOST; i++) LADE_EXPECT_EQ_INT(charge(pools[i], 1), LADEI_LEDGER_GRANTED);
  faults(pools[MOST], "is full: 5 of 5 slots are taken");
  ladei_ledger_destroy(pools[2]);
  LADE_EXPECT_EQ_INT(charge(pools[MOST], 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), MOST + 10);
  for (int i = 0; i <= MOST; i++)
    if (i != 2) ladei_ledger_destroy(pools[i]);
  support_temp_dir_remove(&own.folder);
}

/* After a time with many pools a charge reads few slots again. */
LADE_TEST(Ledger, FreeSlotsAtTheEndAreCutOff) {
  enum { MANY = 5000, SPARE = 64 };
  static const ladei_ledger_slot unused;
  fixture own;
  struct stat found;
  LADE_ASSERT(fixture_open(&own));
  ladei_ledger *a = pool_of(&own, 1000), *b = pool_of(&own, 1000);
  LADE_EXPECT_EQ_INT(charge(a, 1), LADEI_LEDGER_GRANTED);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED);
  bytes_write(&own, &unused, sizeof unused, LADEI_LEDGER_HEADER_BYTES + (MANY - 1) * LADEI_LEDGER_SLOT_BYTES);
  ladei_ledger_destroy(a);
  LADE_ASSERT_EQ_INT(stat(own.path, &found), 0);
  LADE_EXPECT_EQ_INT((int)found.st_size, LADEI_LEDGER_HEADER_BYTES + 2 * LADEI_LEDGER_SLOT_BYTES);
  bytes_write(&own, &unused, sizeof unused, LADEI_LEDGER_HEADER_BYTES + (SPARE + 1) * LADEI_LEDGER_SLOT_BYTES);
  LADE_EXPECT_EQ_INT(charge(b, 1), LADEI_LEDGER_GRANTED); /* some stay */
  LADE_ASSERT_EQ_INT(stat(own.path, &found), 0);
  LADE_EXPECT_EQ_INT((int)found.st_size, LADEI_LEDGER_HEADER_BYTES + (SPARE + 2) * LADEI_LEDGER_SLOT_BYTES);
  LADE_EXPECT_EQ_INT((int)held_by_file(&own, NULL), 2);
  ladei_ledger_destroy(b);
  support_temp_dir_remove(&own.folder);
}

LADE_TEST(Ledger, NamesAndPaths) {
  char path[LADEI_LEDGER_PATH_BYTES], name[LADEI_LEDGER_NAME_BYTES + 1];
  LADE_EXPECT(ladei_ledger_path("", 1000, NULL, path));
  LADE_EXPECT_EQ_STR(path, "/dev/shm/lade-budget-1000");
  LADE_EXPECT(ladei_ledger_path("/r", 0, "train", path));
  LADE_EXPECT_EQ_STR(path, "/r/dev/shm/lade-budget-0-train");
  LADE_EXPECT(ladei_ledger_name_is_good("a-B_9.x"));
  LADE_EXPECT(!ladei_ledger_name_is_good(""));
  LADE_EXPECT(!ladei_ledger_name_is_good("../x"));
  LADE_EXPECT(!ladei_ledger_name_is_good("a b"));
  memset(name, 'a', sizeof name);
  name[LADEI_LEDGER_NAME_BYTES] = '\0';
  LADE_EXPECT(!ladei_ledger_name_is_good(name));
  name[LADEI_LEDGER_NAME_BYTES - 1] = '\0';
  LADE_EXPECT(ladei_ledger_name_is_good(name));
}
