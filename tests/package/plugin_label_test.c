/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A plugin whose only use of lade is to label threads, closed before these threads end. In a process of its own: any
 * other use of a plugin here would see to it that its file stays.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "tests/package/plugin.h"
#include "tests/shim/lade_test.h"

static const char *const forms[] = {"shared", "static", NULL};

typedef struct labelled {
  plugin_call *label;
  pthread_barrier_t step; /* it has a label; it is to end */
} labelled;

static void *label_and_stay(void *argument) {
  labelled *own = argument;
  const char *wrong = own->label();
  LADE_EXPECT_EQ_STR(wrong == NULL ? "" : wrong, "");
  pthread_barrier_wait(&own->step);
  pthread_barrier_wait(&own->step);
  return NULL;
}

/* The key of labels was made past base/thread_key.h: the ending thread called code that was gone. */
LADE_TEST_P(PluginLabel, LabelledThreadEndsAfterThePluginWasClosed, forms, form) {
  char path[64];
  labelled own;
  pthread_t thread;
  snprintf(path, sizeof path, "tests/package/plugin_%s.so", form);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  LADE_ASSERT_NE_PTR(handle, NULL);
  *(void **)&own.label = dlsym(handle, "plugin_label");
  LADE_ASSERT_NE_PTR(*(void **)&own.label, NULL);
  LADE_ASSERT_EQ_INT(pthread_barrier_init(&own.step, NULL, 2), 0);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, label_and_stay, &own), 0);
  pthread_barrier_wait(&own.step);
  LADE_EXPECT_EQ_INT(dlclose(handle), 0);
  pthread_barrier_wait(&own.step);
  LADE_EXPECT_EQ_INT(pthread_join(thread, NULL), 0);
  pthread_barrier_destroy(&own.step);
}
