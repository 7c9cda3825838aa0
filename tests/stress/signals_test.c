/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Signals that are sent to the process are for the program's threads: those that the library makes have
 * them blocked.
 */
#include <ctype.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { TASKS_MOST = 64 };

typedef struct tasks {
  int count;
  int ids[TASKS_MOST];
} tasks;

static void *nothing(void *user) { return user; }

/* The threads that there are. */
static tasks tasks_read(void) {
  tasks out = {0, {0}};
  DIR *folder = opendir("/proc/self/task");
  const struct dirent *entry;
  while (folder != NULL && (entry = readdir(folder)) != NULL && out.count < TASKS_MOST)
    if (isdigit((unsigned char)entry->d_name[0])) out.ids[out.count++] = atoi(entry->d_name);
  if (folder != NULL) closedir(folder);
  return out;
}

/* Those before the library makes some; among them the one that the thread sanitiser makes with the program's first. */
static tasks tasks_before(void) {
  pthread_t first;
  LADE_EXPECT_EQ_INT(pthread_create(&first, NULL, nothing, NULL), 0);
  pthread_join(first, NULL);
  return tasks_read();
}

static bool tasks_have(const tasks *own, int id) {
  for (int i = 0; i < own->count; i++)
    if (own->ids[i] == id) return true;
  return false;
}

/* Bit s-1: signal s is blocked. */
static uint64_t blocked_of(int id) {
  char path[64], line[256];
  unsigned long long mask = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/status", id);
  FILE *file = fopen(path, "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "SigBlk: %llx", &mask) == 1) break;
  if (file != NULL) fclose(file);
  return mask;
}

static bool is_blocked(int id, int number) { return (blocked_of(id) >> (number - 1) & 1) != 0; }

/* A thread that is just being made has everything blocked, until it runs. */
static void begun_wait(int id) {
  enum { LOOKS = 40000 }; /* 40 s: on a machine that does much else it may run late */
  const struct timespec pause = {.tv_nsec = 1000 * 1000};
  for (int i = 0; i < LOOKS && is_blocked(id, SIGSEGV); i++) nanosleep(&pause, NULL);
}

/* The threads that came since. */
static int expect_deaf(const tasks *before) {
  tasks now = tasks_read();
  int fresh = 0;
  for (int i = 0; i < now.count; i++) {
    if (tasks_have(before, now.ids[i])) continue;
    fresh++;
    begun_wait(now.ids[i]);
    LADE_EXPECT(is_blocked(now.ids[i], SIGTERM));
    LADE_EXPECT(is_blocked(now.ids[i], SIGUSR1));
    LADE_EXPECT(is_blocked(now.ids[i], SIGPROF));
    LADE_EXPECT(!is_blocked(now.ids[i], SIGSEGV)); /* its own faults are the program's to see */
    LADE_EXPECT(!is_blocked(now.ids[i], SIGBUS));
  }
  return fresh;
}

/* The bug: the background thread of a pool took signals of the program, as the system gives them to any thread. */
LADE_TEST(Signals, ThreadsOfTheLibraryTakeNone) {
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL) return;
  tasks before = tasks_before();
  lade_pinned_options_init(&options);
  options.flags = LADE_PINNED_BACKGROUND;
  LADE_EXPECT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  LADE_EXPECT_EQ_INT(expect_deaf(&before), 1);
  LADE_EXPECT(!is_blocked((int)before.ids[0], SIGTERM)); /* whoever made it hears as before */
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  support_runtime_close(runtime);
}

/* Those of the software device. */
LADE_TEST(Signals, EnginesTakeNone) {
  tasks before = tasks_before();
  lade_stream stream = NULL;
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL) return;
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream)); /* starts the device's */
  LADE_EXPECT_GT_INT(expect_deaf(&before), 0);
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  support_runtime_close(runtime);
}
