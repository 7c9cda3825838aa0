/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does a segment pay for the budget that all pools share? A charge and a credit of one pool, beside others that hold
 * something; a lock belongs to an open file, so pools of this process are to each other as those of other processes.
 * And what does a pool pay that joins: its first charge, and its end.
 *
 * The baselines: `calls` makes the system calls of one credit alone (a lock, a look at the file, a read, a write, the unlock),
 * with nothing decided; of a pool that joins, those and the lock of a slot. `lock` is the lock and the unlock. All in the same
 * folder, which is /dev/shm as for programs.
 *
 * pressure: a look at what the kernel says of memory, as background threads do ten times a second. `poll` asks a trigger on
 * /proc/pressure/memory whether it has fired, which says less, and of windows of two seconds, where the kernel takes one.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "host/budget/ledger.h"
#include "host/budget/ledger_file.h"
#include "host/budget/pressure.h"

enum { MOST_POOLS = 4096, FILE_MOST = LADEI_LEDGER_HEADER_BYTES + (MOST_POOLS + 64) * LADEI_LEDGER_SLOT_BYTES };

typedef struct budget {
  char path[LADEI_LEDGER_PATH_BYTES];
  int pools;
  ladei_ledger *others[MOST_POOLS];
  ladei_ledger *own;
  unsigned pairs;
  int fd; /* for the baselines */
} budget;

/* Of the thread, in the kernel too: nothing here waits, and other programs on the machine do not count. */
static double processor_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double charges_run(void *user) {
  budget *b = user;
  ladei_ledger_answer answer;
  double begin = processor_seconds();
  for (unsigned i = 0; i < b->pairs; i++) {
    if (ladei_ledger_charge(b->own, 1 << 20, &answer) != LADEI_LEDGER_GRANTED) {
      fprintf(stderr, "a charge was not granted\n");
      return NAN;
    }
    ladei_ledger_credit(b->own, 1 << 20);
  }
  return (processor_seconds() - begin) * 1e6 / (2.0 * b->pairs); /* of one of both */
}

static bool lock_set(int fd, int64_t byte, short type) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}
static bool file_lock(int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0; }
static bool file_unlock(int fd) { return flock(fd, LOCK_UN) == 0; }

static double locks_run(void *user) {
  budget *b = user;
  bool good = true;
  double begin = processor_seconds();
  for (unsigned i = 0; i < 2 * b->pairs; i++) good = file_lock(b->fd) && file_unlock(b->fd) && good;
  return good ? (processor_seconds() - begin) * 1e6 / (2.0 * b->pairs) : NAN;
}

static double calls_run(void *user) {
  static char data[FILE_MOST];
  budget *b = user;
  size_t bytes = LADEI_LEDGER_HEADER_BYTES + (size_t)(b->pools + 1) * LADEI_LEDGER_SLOT_BYTES;
  off_t last = (off_t)bytes - LADEI_LEDGER_SLOT_BYTES;
  struct stat found;
  bool good = true;
  double begin = processor_seconds();
  for (unsigned i = 0; i < 2 * b->pairs; i++) {
    good = good && file_lock(b->fd);
    good = good && fstat(b->fd, &found) == 0 && found.st_size == (off_t)bytes;
    good = good && pread(b->fd, data, bytes, 0) == (ssize_t)bytes;
    good = good && pwrite(b->fd, data + last, LADEI_LEDGER_SLOT_BYTES, last) == LADEI_LEDGER_SLOT_BYTES;
    good = good && file_unlock(b->fd);
  }
  return good ? (processor_seconds() - begin) * 1e6 / (2.0 * b->pairs) : NAN;
}

static ladei_ledger *pool_open(const budget *b) {
  ladei_ledger_terms terms = {.default_bytes = UINT64_C(1) << 40};
  return ladei_ledger_create(b->path, &terms, &ladei_ledger_system_calls);
}

static double joins_run(void *user) {
  budget *b = user;
  ladei_ledger_answer answer;
  bool good = true;
  double begin = processor_seconds();
  for (unsigned i = 0; i < b->pairs && good; i++) {
    ladei_ledger *pool = pool_open(b);
    good = pool != NULL && ladei_ledger_charge(pool, 1 << 20, &answer) == LADEI_LEDGER_GRANTED;
    ladei_ledger_destroy(pool);
  }
  return good ? (processor_seconds() - begin) * 1e6 / b->pairs : NAN;
}

static double join_calls_run(void *user) {
  static char data[FILE_MOST];
  budget *b = user;
  size_t bytes = LADEI_LEDGER_HEADER_BYTES + (size_t)(b->pools + 1) * LADEI_LEDGER_SLOT_BYTES;
  bool good = true;
  double begin = processor_seconds();
  for (unsigned i = 0; i < b->pairs && good; i++) {
    int fd = open(b->path, O_RDWR | O_CLOEXEC);
    good = fd >= 0 && lock_set(fd, LADEI_LEDGER_SLOT_LOCK + b->pools + 1, F_WRLCK);
    for (int k = 0; k < 2 && good; k++) /* the charge, the end */
      good = file_lock(fd) && pread(fd, data, bytes, 0) == (ssize_t)bytes &&
             pwrite(fd, data + bytes - LADEI_LEDGER_SLOT_BYTES, LADEI_LEDGER_SLOT_BYTES,
                    (off_t)bytes - LADEI_LEDGER_SLOT_BYTES) == LADEI_LEDGER_SLOT_BYTES &&
             file_unlock(fd);
    close(fd);
  }
  return good ? (processor_seconds() - begin) * 1e6 / b->pairs : NAN;
}

static bool pools_open(budget *b) {
  ladei_ledger_answer answer;
  bool good = true;
  for (int i = 0; i <= b->pools && good; i++) {
    ladei_ledger *pool = pool_open(b);
    good = pool != NULL && ladei_ledger_charge(pool, 4096, &answer) == LADEI_LEDGER_GRANTED;
    *(i < b->pools ? &b->others[i] : &b->own) = pool;
  }
  b->fd = open(b->path, O_RDWR | O_CLOEXEC);
  return good && b->fd >= 0;
}

static void pools_close(budget *b) {
  for (int i = 0; i < b->pools; i++) ladei_ledger_destroy(b->others[i]);
  ladei_ledger_destroy(b->own);
  if (b->fd >= 0) close(b->fd);
  unlink(b->path);
}

/* ---- Pressure ---------------------------------------------------------------------------------------------------- */

enum { LOOKS = 2000 };

static double looks_run(void *user) {
  ladei_pressure pressure;
  uint64_t now_ns = 1;
  (void)user;
  ladei_pressure_init(&pressure, "");
  double begin = processor_seconds();
  for (int i = 0; i < LOOKS; i++) (void)ladei_pressure_look(&pressure, now_ns += UINT64_C(100000000));
  return (processor_seconds() - begin) * 1e6 / LOOKS;
}

static double polls_run(void *user) {
  struct pollfd trigger = {.fd = *(const int *)user, .events = POLLPRI};
  int ready = 0;
  double begin = processor_seconds();
  for (int i = 0; i < LOOKS && ready >= 0; i++) ready = poll(&trigger, 1, 0);
  return ready >= 0 ? (processor_seconds() - begin) * 1e6 / LOOKS : NAN;
}

/* Below 0: the kernel takes none. */
static int trigger_open(void) {
  static const char text[] = "some 200000 2000000"; /* us of us: the shortest window without privileges */
  int fd = open("/proc/pressure/memory", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || write(fd, text, sizeof text) == (ssize_t)sizeof text) return fd;
  close(fd);
  return -1;
}

static bool pressure_case(bench *b, const bench_case *self) {
  int fd = trigger_open();
  const bench_variant variants[] = {{"lade", looks_run, NULL}, {"poll", polls_run, &fd}};
  bool good = bench_measure(b, self->name, json_object(), "us", variants, fd < 0 ? 1 : 2);
  if (fd >= 0) close(fd);
  return good;
}

/* The case that is measured beside `pools` in all. */
typedef struct budget_case {
  int pools;
  bool joins;
} budget_case;

enum { POOLS_QUICK = 1024 }; /* more are slow to open */

static int pools_of(const bench *b, const budget_case *kind) {
  return bench_is_quick(b) && kind->pools > POOLS_QUICK ? POOLS_QUICK : kind->pools;
}

static unsigned pairs_of(const bench *b, const budget_case *kind) {
  unsigned pairs = bench_is_quick(b) ? 200 : 5000; /* fewer where each takes long */
  return kind->pools < 512 ? pairs : pairs / 10;
}

static bool case_run(bench *b, const bench_case *self) {
  const budget_case *kind = self->user;
  budget *own = calloc(1, sizeof *own);
  if (own == NULL) return false;
  snprintf(own->path, sizeof own->path, "/dev/shm/lade-benchmark-%d", (int)getpid());
  own->pools = pools_of(b, kind) - 1;
  own->pairs = pairs_of(b, kind);
  own->fd = -1;
  bool good = pools_open(own);
  if (!good) fprintf(stderr, "%s: %d pools cannot be opened (ulimit -n?)\n", own->path, own->pools + 1);
  const bench_variant charges[] = {{"lade", charges_run, own}, {"calls", calls_run, own}, {"lock", locks_run, own}};
  const bench_variant joins[] = {{"lade", joins_run, own}, {"calls", join_calls_run, own}};
  good = good && bench_measure(b, self->name, json_pack("{s:i}", "slots", own->pools + 1), "us",
                               kind->joins ? joins : charges, kind->joins ? 2 : 3);
  pools_close(own);
  free(own);
  return good;
}

/* Each pool has a file open. */
static void descriptors_allow(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
  static const budget_case kinds[] = {{1, false},    {8, false}, {64, false},  {500, false}, {1024, false},
                                      {4096, false}, {64, true}, {1024, true}, {4096, true}};
  static const bench_case cases[] = {{"charge_1", "a charge or a credit, 1 slot", case_run, &kinds[0]},
                                     {"charge_8", "... 8 slots", case_run, &kinds[1]},
                                     {"charge_64", "... 64 slots", case_run, &kinds[2]},
                                     {"charge_500", "... 500 slots", case_run, &kinds[3]},
                                     {"charge_1024", "... 1,024 slots", case_run, &kinds[4]},
                                     {"charge_4096", "... 4,096 slots", case_run, &kinds[5]},
                                     {"join_64", "a pool that comes, charges and goes, beside 64", case_run, &kinds[6]},
                                     {"join_1024", "... beside 1,024", case_run, &kinds[7]},
                                     {"join_4096", "... beside 4,096", case_run, &kinds[8]},
                                     {"pressure", "a look at the pressure on memory", pressure_case, NULL}};
  descriptors_allow();
  return bench_main(argc, argv, "What does a segment pay for the budget that all pools share?", cases,
                    sizeof cases / sizeof cases[0]);
}
