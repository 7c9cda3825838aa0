/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may happen between any two system calls of a pool: a call fails, reads or writes less than asked, the process dies,
 * another pool charges, the file is removed, cut or overwritten. Each at every position of a script of charges and credits.
 *
 * After it, whatever it was: the ledger says what the living hold, exactly; no descriptor is left.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

enum { BUDGET = 1000, SHARED = 200 };

typedef enum event_kind {
  NO_EVENT,
  CALL_FAILS,    /* with `code`, and nothing is done */
  CALL_IS_SHORT, /* reads and writes end after 5 bytes, and the next one fails with `code`; 0: goes on */
  PROCESS_DIES,  /* nothing is done from here on */
  OTHER_ACTS     /* `act` is run before the call */
} event_kind;

typedef struct script {
  support_temp_dir folder;
  char path[LADEI_LEDGER_PATH_BYTES];
  event_kind kind;
  int code;
  void (*act)(struct script *own);
  int at, calls; /* position of the event; calls so far */
  bool dead, fail_next;
  int fd;         /* open now */
  uint64_t clock; /* goes on by sleeping alone */
  ladei_ledger *pool;
  pid_t other;
  int to_other, from_other;
  uint64_t pool_bytes, other_bytes; /* held */
  bool shares;                      /* the script is that of memory which both hold */
  bool pool_shares, other_shares;   /* SHARED bytes */
  ladei_ledger_hold hold;
} script;

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* True: the call is not made. */
static bool intercept(script *own, size_t *bytes) {
  bool hit = own->calls++ == own->at;
  if (own->dead) {
    errno = EBADF;
    return true;
  }
  if (own->fail_next) {
    own->fail_next = false;
    errno = own->code;
    return true;
  }
  if (!hit) return false;
  if (own->kind == OTHER_ACTS) own->act(own);
  if (own->kind == CALL_IS_SHORT && bytes != NULL) {
    *bytes = *bytes < 5 ? *bytes : 5;
    own->fail_next = own->code != 0;
  }
  if (own->kind == PROCESS_DIES) {
    if (own->fd >= 0) close(own->fd); /* the kernel ends the locks */
    own->fd = -1;
    own->dead = true;
    errno = EBADF;
  }
  if (own->kind == CALL_FAILS) errno = own->code;
  return own->kind == CALL_FAILS || own->kind == PROCESS_DIES;
}

static int call_open(void *user, const char *path, int flags, mode_t mode) {
  script *own = user;
  if (intercept(own, NULL)) return -1;
  int fd = open(path, flags, mode);
  if (fd >= 0) own->fd = fd;
  return fd;
}
/* Fails for nobody: what it closes is closed. */
static int call_close(void *user, int fd) {
  script *own = user;
  if (own->dead) return 0;
  own->fd = -1;
  return close(fd);
}
static int call_fstat(void *user, int fd, struct stat *out) { return intercept(user, NULL) ? -1 : fstat(fd, out); }
static int call_fchmod(void *user, int fd, mode_t mode) { return intercept(user, NULL) ? -1 : fchmod(fd, mode); }
static int call_ftruncate(void *user, int fd, off_t bytes) { return intercept(user, NULL) ? -1 : ftruncate(fd, bytes); }
static int call_flock(void *user, int fd, int operation) {
  return intercept(user, NULL) ? -1 : ladei_ledger_system_calls.flock(NULL, fd, operation);
}
static int call_lock(void *user, int fd, int command, short type, int64_t byte, short *out_type) {
  return intercept(user, NULL) ? -1 : ladei_ledger_system_calls.lock(NULL, fd, command, type, byte, out_type);
}
static ssize_t call_pread(void *user, int fd, void *data, size_t bytes, off_t offset) {
  return intercept(user, &bytes) ? -1 : pread(fd, data, bytes, offset);
}
static ssize_t call_pwrite(void *user, int fd, const void *data, size_t bytes, off_t offset) {
  return intercept(user, &bytes) ? -1 : pwrite(fd, data, bytes, offset);
}
static uint64_t call_clock(void *user) { return ((script *)user)->clock += 1; }
static void call_sleep(void *user, uint64_t ns) { ((script *)user)->clock += ns; }

static ladei_ledger_calls calls_of(script *own) {
  return (ladei_ledger_calls){call_open, call_close, call_fstat,  call_fchmod, call_ftruncate, call_flock,
                              call_lock, call_pread, call_pwrite, call_clock,  call_sleep,     own};
}

/* ---- The other pool, in a process of its own --------------------------------------------------------------------- */

static uint64_t other_ns;
static uint64_t other_clock(void *user) {
  (void)user;
  return other_ns += 1;
}
static void other_sleep(void *user, uint64_t ns) {
  (void)user;
  other_ns += ns;
}

enum { ORDER_SHARE = 1 << 20 };

/* Charges what it reads, or shares, and answers with the result; ends with the pipe. */
static void other_main(const char *path, int in, int out) {
  ladei_ledger_terms terms = {.default_bytes = BUDGET};
  ladei_ledger_calls calls = ladei_ledger_system_calls; /* waits by no clock, too */
  calls.monotonic_ns = other_clock;
  calls.sleep = other_sleep;
  ladei_ledger *pool = ladei_ledger_create(path, &terms, &calls);
  ladei_ledger_answer answer;
  ladei_ledger_hold hold = {.id = 7, .bytes = SHARED};
  bool shares = false;
  uint64_t bytes;
  while (read(in, &bytes, sizeof bytes) == sizeof bytes) {
    const bool share = bytes == ORDER_SHARE;
    int32_t result =
        (int32_t)(share ? ladei_ledger_hold_add(pool, &hold, &answer) : ladei_ledger_charge(pool, bytes, &answer));
    shares = shares || (share && result != LADEI_LEDGER_REFUSED);
    if (write(out, &result, sizeof result) != sizeof result) break;
  }
  if (shares) ladei_ledger_hold_remove(pool, &hold);
  ladei_ledger_destroy(pool);
  _exit(0);
}

static bool other_start(script *own) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return false;
  own->other = fork();
  if (own->other == 0) {
    close(in[1]);
    close(out[0]);
    other_main(own->path, in[0], out[1]);
  }
  close(in[0]);
  close(out[1]);
  own->to_other = in[1];
  own->from_other = out[0];
  return own->other > 0;
}

static void other_end(script *own) {
  close(own->to_other);
  close(own->from_other);
  LADE_EXPECT_EQ_INT(waitpid(own->other, NULL, 0), own->other);
}

static ladei_ledger_result other_charge_bytes(script *own, uint64_t bytes) {
  int32_t result = -1;
  LADE_EXPECT_EQ_INT(write(own->to_other, &bytes, sizeof bytes), (int)sizeof bytes);
  LADE_EXPECT_EQ_INT(read(own->from_other, &result, sizeof result), (int)sizeof result);
  if (bytes == ORDER_SHARE)
    own->other_shares = own->other_shares || result != LADEI_LEDGER_REFUSED;
  else if (result != LADEI_LEDGER_REFUSED)
    own->other_bytes += bytes;
  return (ladei_ledger_result)result;
}

static void other_charge(script *own) { (void)other_charge_bytes(own, 70); }
/* Once: the event comes once. */
static void other_share(script *own) { (void)other_charge_bytes(own, ORDER_SHARE); }

/* ---- The script -------------------------------------------------------------------------------------------------- */

static void pool_charge(script *own, uint64_t bytes) {
  ladei_ledger_answer answer;
  if (ladei_ledger_charge(own->pool, bytes, &answer) != LADEI_LEDGER_REFUSED) own->pool_bytes += bytes;
}

static void pool_share(script *own, ladei_ledger_hold *hold, uint64_t bytes) {
  ladei_ledger_answer answer;
  *hold = (ladei_ledger_hold){.id = 7, .bytes = bytes};
  own->pool_shares = ladei_ledger_hold_add(own->pool, hold, &answer) != LADEI_LEDGER_REFUSED;
}

static void pool_unshare(script *own, ladei_ledger_hold *hold) {
  if (own->pool_shares) ladei_ledger_hold_remove(own->pool, hold);
  own->pool_shares = false;
}

/* Brings shared memory, gives it back, is refused too much of it, and has it in the end. */
static void sharing_run(script *own) {
  ladei_ledger_hold much;
  pool_share(own, &own->hold, SHARED);
  pool_charge(own, 100);
  if (own->dead) return;
  pool_unshare(own, &own->hold);
  pool_share(own, &much, 5000);
  pool_unshare(own, &much); /* where a fault counted it */
  pool_share(own, &own->hold, SHARED);
  (void)ladei_ledger_asked(own->pool);
}

static void script_run(script *own) {
  if (own->shares) {
    sharing_run(own);
    return;
  }
  pool_charge(own, 100);
  pool_charge(own, 50);
  if (own->dead) return;
  ladei_ledger_credit(own->pool, 50);
  own->pool_bytes -= 50;
  pool_charge(own, 5000); /* refused, or a fault */
  if (own->pool_bytes > 5000) {
    ladei_ledger_credit(own->pool, 5000);
    own->pool_bytes -= 5000;
  }
  (void)ladei_ledger_leaves(own->pool, 1);
  (void)ladei_ledger_asked(own->pool);
}

/* By the file, of those who live. */
static uint64_t held_by_file(const script *own) {
  ladei_ledger_survey survey;
  uint64_t sum = 0;
  lade_status status = ladei_ledger_survey_take(own->path, false, &ladei_ledger_system_calls, &survey);
  if (status == LADE_NOT_READY) return 0;
  LADE_EXPECT_OK(status);
  if (status != LADE_OK) return UINT64_MAX;
  LADE_EXPECT(!survey.busy);
  for (size_t i = 0; i < survey.count; i++) sum += survey.rows[i].has_owner ? survey.rows[i].slot.bytes : 0;
  ladei_ledger_survey_release(&survey);
  return sum;
}

/* Of shared memory, which counts once. */
static uint64_t shared_bytes(const script *own) {
  return (own->pool_shares && !own->dead) || own->other_shares ? SHARED : 0;
}

static size_t descriptors(void) { return support_names_count("/proc/self/fd"); }

/* Each makes two good charges more: the first may tell of damage that was done before, the second brings what was not told. */
static void end_check(script *own) {
  ladei_ledger_state state;
  own->at = -1;
  for (int i = 0; i < 2 && !own->dead; i++) pool_charge(own, 1);
  for (int i = 0; i < 2; i++) other_charge(own);
  ladei_ledger_state_get(own->pool, &state);
  if (own->dead) own->pool_bytes = 0;
  if (!own->dead) LADE_EXPECT_EQ_UINT(state.held_bytes, own->pool_bytes);
  LADE_EXPECT_EQ_UINT(held_by_file(own), own->pool_bytes + own->other_bytes + shared_bytes(own));
  /* All that the dead held can be had. */
  const uint64_t left = BUDGET - own->other_bytes - shared_bytes(own);
  if (own->dead) LADE_EXPECT_EQ_INT(other_charge_bytes(own, left), LADEI_LEDGER_GRANTED);
}

/* False: the script ends before the position. */
static bool position_run(script *own, int at) {
  ladei_ledger_terms terms = {.default_bytes = BUDGET};
  ladei_ledger_calls calls = calls_of(own);
  *own = (script){.kind = own->kind, .code = own->code, .act = own->act, .shares = own->shares, .at = at, .fd = -1};
  if (!support_temp_dir_create(&own->folder)) return false;
  size_t before = descriptors();
  snprintf(own->path, sizeof own->path, "%.200s/ledger", own->folder.path);
  if (!other_start(own)) return false;
  own->pool = ladei_ledger_create(own->path, &terms, &calls);
  script_run(own);
  bool reached = own->calls > at;
  end_check(own);
  if (own->pool_shares) ladei_ledger_hold_remove(own->pool, &own->hold);
  own->pool_shares = false;
  ladei_ledger_destroy(own->pool);
  LADE_EXPECT_EQ_UINT(held_by_file(own), own->other_bytes + shared_bytes(own));
  other_end(own);
  LADE_EXPECT_EQ_UINT(held_by_file(own), 0);
  LADE_EXPECT_EQ_SIZE(descriptors(), before);
  support_temp_dir_remove(&own->folder);
  if (lade_test_has_failed()) printf("event %d (code %d) at call %d\n", (int)own->kind, own->code, at);
  return reached && !lade_test_has_failed();
}

static void each_position(event_kind kind, int code, void (*act)(script *own)) {
  enum { LEAST_CALLS = 30 }; /* of a script: fewer would mean that it does not run */
  for (int shares = 0; shares < 2; shares++) {
    script own = {.kind = kind, .code = code, .act = act, .shares = shares != 0};
    int at = 0;
    while (position_run(&own, at)) at++;
    LADE_EXPECT_GT_INT(at, LEAST_CALLS);
  }
}

LADE_TEST(LedgerFaults, AnyCallMayFail) {
  static const int codes[] = {EIO, ENOSPC, EINTR, EACCES, EROFS, ENOLCK, EMFILE, ENOENT};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) each_position(CALL_FAILS, codes[i], NULL);
}

LADE_TEST(LedgerFaults, AnyReadOrWriteMayBeShort) {
  each_position(CALL_IS_SHORT, 0, NULL);
  each_position(CALL_IS_SHORT, EIO, NULL);
  each_position(CALL_IS_SHORT, ENOSPC, NULL);
}

LADE_TEST(LedgerFaults, ProcessMayDieAtAnyCall) { each_position(PROCESS_DIES, 0, NULL); }

/* Every way in which a second pool's charge falls between the calls of the first. */
LADE_TEST(LedgerFaults, AnotherPoolMayChargeAtAnyCall) { each_position(OTHER_ACTS, 0, other_charge); }
LADE_TEST(LedgerFaults, AnotherPoolMayHoldTheSameMemoryFromAnyCallOn) { each_position(OTHER_ACTS, 0, other_share); }

static void file_remove(script *own) { unlink(own->path); }
static void file_empty(script *own) { (void)!truncate(own->path, 0); }
static void file_cut(script *own) { (void)!truncate(own->path, LADEI_LEDGER_HEADER_BYTES + 10); }
static void file_replace(script *own) {
  unlink(own->path);
  other_charge(own);
}

LADE_TEST(LedgerFaults, FileMayBeRemovedAtAnyCall) {
  each_position(OTHER_ACTS, 0, file_remove);
  each_position(OTHER_ACTS, 0, file_replace);
}

LADE_TEST(LedgerFaults, FileMayBeCutAtAnyCall) {
  each_position(OTHER_ACTS, 0, file_empty);
  each_position(OTHER_ACTS, 0, file_cut);
}
