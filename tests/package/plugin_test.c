/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A program that knows nothing of lade opens and closes plugins that use it: one that is linked to the shared
 * library, and one that holds the static one. A closed plugin's threads, threads that used it and the end of the process come
 * to code that must still be there; and what is opened again and again must not pile up.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/package/plugin.h"
#include "tests/shim/lade_test.h"

#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 8, WARM_UP_ROUNDS = 4 };
#else
enum { ROUNDS = 60, WARM_UP_ROUNDS = 30 };
#endif

static const char *const forms[] = {"shared", "static", NULL};

typedef struct plugin {
  void *handle;
#define X(name) plugin_call *name;
  PLUGIN_CALLS(X)
#undef X
} plugin;

static bool plugin_load(plugin *p, const char *form) {
  char path[64];
  snprintf(path, sizeof path, "tests/package/plugin_%s.so", form);
  p->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  LADE_EXPECT_EQ_STR(p->handle == NULL ? dlerror() : "opened", "opened");
  if (p->handle == NULL) return false;
#define X(name) *(void **)&p->name = dlsym(p->handle, "plugin_" #name);
  PLUGIN_CALLS(X)
#undef X
  return p->open != NULL && p->use != NULL && p->transfer != NULL && p->close != NULL;
}

#define PLUGIN(p, call)                                                                                                \
  do {                                                                                                                 \
    const char *wrong = (p)->call();                                                                                   \
    LADE_EXPECT_EQ_STR(wrong == NULL ? "" : wrong, "");                                                                \
  } while (0)

/* Its callback is its own code, so it has to take that back. */
static void plugin_unload(const plugin *p) {
  PLUGIN(p, hush);
  LADE_EXPECT_EQ_INT(dlclose(p->handle), 0);
}

/* A thread of the program that uses a plugin, and ends when told to. */
typedef struct user {
  const plugin *used;
  pthread_barrier_t step; /* it has used the plugin; it is to end */
  pthread_t thread;
} user;

static void *use_and_stay(void *argument) {
  user *own = argument;
  PLUGIN(own->used, use);
  pthread_barrier_wait(&own->step);
  pthread_barrier_wait(&own->step);
  return NULL;
}

static void user_begin(user *own, const plugin *used) {
  own->used = used;
  LADE_ASSERT_EQ_INT(pthread_barrier_init(&own->step, NULL, 2), 0);
  LADE_ASSERT_EQ_INT(pthread_create(&own->thread, NULL, use_and_stay, own), 0);
  pthread_barrier_wait(&own->step);
}

static void user_end(user *own) {
  pthread_barrier_wait(&own->step);
  LADE_EXPECT_EQ_INT(pthread_join(own->thread, NULL), 0);
  pthread_barrier_destroy(&own->step);
}

/* --- what may not pile up ----------------------------------------------------------------------------------------- */

static int entries(const char *folder) {
  int count = 0;
  DIR *dir = opendir(folder);
  while (dir != NULL && readdir(dir) != NULL) count++;
  if (dir != NULL) closedir(dir);
  return count;
}

static int mappings(void) {
  int count = 0, c;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && (c = getc(maps)) != EOF) count += c == '\n';
  if (maps != NULL) fclose(maps);
  return count;
}

static int keys_left(void) {
  pthread_key_t keys[PTHREAD_KEYS_MAX];
  int count = 0;
  while (count < PTHREAD_KEYS_MAX && pthread_key_create(&keys[count], NULL) == 0) count++;
  for (int i = 0; i < count; i++) pthread_key_delete(keys[i]);
  return count;
}

typedef struct held {
  int descriptors, keys, mappings;
  size_t bytes; /* of the heap */
} held;

static held held_now(void) {
  return (held){entries("/proc/self/fd"), PTHREAD_KEYS_MAX - keys_left(), mappings(), mallinfo2().uordblks};
}

/* A joined thread may still be listed for a moment. Whoever leaves one behind makes the test run out of time. */
static void threads_await(int count) {
#ifdef __SANITIZE_THREAD__
  count++; /* the sanitiser's own */
#endif
  while (entries("/proc/self/task") > count) sched_yield();
}

static void once_open_use_close(const char *form) {
  plugin p;
  user own;
  if (!plugin_load(&p, form)) return;
  PLUGIN(&p, open);
  PLUGIN(&p, use);
  PLUGIN(&p, transfer);
  user_begin(&own, &p);
  PLUGIN(&p, close);
  plugin_unload(&p);
  user_end(&own);
}

LADE_TEST_P(Plugin, OpenedAgainAndAgainPilesNothingUp, forms, form) {
  int threads = entries("/proc/self/task");
  held before = {0};
  mallopt(M_ARENA_MAX, 1); /* else threads get mappings of malloc's, one after the other */
  for (int round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    if (round == WARM_UP_ROUNDS) before = held_now();
    once_open_use_close(form);
    threads_await(threads);
  }
  held after = held_now();
  LADE_EXPECT_EQ_INT(after.descriptors, before.descriptors);
  LADE_EXPECT_EQ_INT(after.keys, before.keys);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map what they need */
  LADE_EXPECT_LT_INT(after.mappings, before.mappings + (ROUNDS - WARM_UP_ROUNDS) / 2);
  if (getenv("GLIBC_TUNABLES") != NULL) LADE_EXPECT_LT_SIZE(after.bytes, before.bytes + (ROUNDS - WARM_UP_ROUNDS) * 16);
#endif
}

/* What the static library is linked into is not marked to stay; the library sees to it itself. */
LADE_TEST_P(Plugin, ThreadsEndAfterItWasClosed, forms, form) {
  plugin p, again;
  user own;
  if (!plugin_load(&p, form)) return;
  PLUGIN(&p, open);
  user_begin(&own, &p);
  plugin_unload(&p); /* with pools, the pipeline's threads, and what that thread keeps */
  user_end(&own);
  if (strcmp(form, "shared") == 0) return; /* the plugin's own variables are gone */
  if (!plugin_load(&again, form)) return;
  PLUGIN(&again, transfer);
  PLUGIN(&again, close);
  plugin_unload(&again);
}

/* --- the end of the process --------------------------------------------------------------------------------------- */

/* In a process of its own: opens, uses and closes, and then ends. */
static int child_run(const char *form, const char *stats, bool objects_stay) {
  plugin p;
  user own;
  setenv("LADE_STATS", stats, 1);
  if (!plugin_load(&p, form)) return 1;
  PLUGIN(&p, open);
  PLUGIN(&p, transfer);
  user_begin(&own, &p);
  if (!objects_stay) PLUGIN(&p, close);
  plugin_unload(&p);
  user_end(&own);
  return lade_test_has_failed();
}

static void end_after(const char *form, bool objects_stay, const char *wanted) {
#ifdef __SANITIZE_THREAD__
  LADE_SKIP("the thread sanitiser allows no threads in a child of a program that had some");
#endif
  const char *folder = getenv("TEST_TMPDIR");
  char path[256], stats[300], text[1024] = "";
  int status = -1;
  snprintf(path, sizeof path, "%s/stats_%s_%d", folder != NULL ? folder : "/tmp", form, objects_stay);
  snprintf(stats, sizeof stats, "exit:%s", path);
  pid_t child = fork();
  if (child == 0) exit(child_run(form, stats, objects_stay));
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT_EQ_INT(status, 0);
  FILE *file = fopen(path, "r");
  LADE_ASSERT_NE_PTR(file, NULL);
  LADE_EXPECT_GT_SIZE(fread(text, 1, sizeof text - 1, file), 0);
  fclose(file);
  remove(path);
  LADE_EXPECT_CONTAINS_STR(text, wanted);
}

LADE_TEST_P(Plugin, ProcessEndsWithTheSummaryAfterItWasClosed, forms, form) { end_after(form, false, ""); }

LADE_TEST_P(Plugin, ProcessEndsWhileItsObjectsLive, forms, form) { end_after(form, true, "pinned"); }
