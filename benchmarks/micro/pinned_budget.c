/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does a segment pay for the budget that all pools share? A charge and a credit of one pool, beside others that hold
 * something; a lock belongs to an open file, so pools of this process are to each other as those of other processes.
 *
 * The baselines: `calls` makes the system calls of one credit alone (a lock, a look at the file, a read, a write, the unlock), with nothing decided;
 * `lock` is the lock and the unlock. Both in the same folder, which is /dev/shm as for programs.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "host/ledger.h"

enum { MOST_POOLS = 4096 };

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

static bool lock_set(int fd, short type) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)LADEI_LEDGER_FILE_LOCK, .l_len = 1};
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static double locks_run(void *user) {
  budget *b = user;
  bool good = true;
  double begin = processor_seconds();
  for (unsigned i = 0; i < 2 * b->pairs; i++) good = lock_set(b->fd, F_WRLCK) && lock_set(b->fd, F_UNLCK) && good;
  return good ? (processor_seconds() - begin) * 1e6 / (2.0 * b->pairs) : NAN;
}

static double calls_run(void *user) {
  static char data[LADEI_LEDGER_HEADER_BYTES + (MOST_POOLS + 64) * LADEI_LEDGER_SLOT_BYTES];
  budget *b = user;
  size_t bytes = LADEI_LEDGER_HEADER_BYTES + (size_t)(b->pools + 1) * LADEI_LEDGER_SLOT_BYTES;
  off_t last = (off_t)bytes - LADEI_LEDGER_SLOT_BYTES;
  struct stat found;
  bool good = true;
  double begin = processor_seconds();
  for (unsigned i = 0; i < 2 * b->pairs; i++) {
    good = good && lock_set(b->fd, F_WRLCK);
    good = good && fstat(b->fd, &found) == 0 && found.st_size == (off_t)bytes;
    good = good && pread(b->fd, data, bytes, 0) == (ssize_t)bytes;
    good = good && pwrite(b->fd, data + last, LADEI_LEDGER_SLOT_BYTES, last) == LADEI_LEDGER_SLOT_BYTES;
    good = good && lock_set(b->fd, F_UNLCK);
  }
  return good ? (processor_seconds() - begin) * 1e6 / (2.0 * b->pairs) : NAN;
}

static bool pools_open(budget *b) {
  ladei_ledger_terms terms = {.default_bytes = UINT64_C(1) << 40};
  ladei_ledger_answer answer;
  bool good = true;
  for (int i = 0; i <= b->pools && good; i++) {
    ladei_ledger *pool = ladei_ledger_create(b->path, &terms, &ladei_ledger_system_calls);
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

static bool charge_case(bench *b, const bench_case *self) {
  budget *own = calloc(1, sizeof *own);
  if (own == NULL) return false;
  snprintf(own->path, sizeof own->path, "/dev/shm/lade-benchmark-%d", (int)getpid());
  own->pools = *(const int *)self->user - 1;
  own->pairs = bench_is_quick(b) ? 200 : 5000;
  own->fd = -1;
  bool good = pools_open(own);
  if (!good) fprintf(stderr, "%s: %d pools cannot be opened (ulimit -n?)\n", own->path, own->pools + 1);
  const bench_variant variants[] = {{"lade", charges_run, own}, {"calls", calls_run, own}, {"lock", locks_run, own}};
  good = good && bench_measure(b, self->name, json_pack("{s:i}", "slots", own->pools + 1), "us", variants, 3);
  pools_close(own);
  free(own);
  return good;
}

int main(int argc, char **argv) {
  static const int one = 1, eight = 8, sixty_four = 64, five_hundred = 500;
  static const bench_case cases[] = {{"charge_1", "a charge or a credit, 1 slot", charge_case, &one},
                                     {"charge_8", "... 8 slots", charge_case, &eight},
                                     {"charge_64", "... 64 slots", charge_case, &sixty_four},
                                     {"charge_500", "... 500 slots", charge_case, &five_hundred}};
  return bench_main(argc, argv, "What does a segment pay for the budget that all pools share?", cases, 4);
}
