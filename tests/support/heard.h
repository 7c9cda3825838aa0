/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of a test: what was logged since support_heard_begin().
 *
 *   support_heard heard;
 *   support_heard_begin(&heard, LADE_LOG_WARN);
 *   ...
 *   support_heard_end();
 *   LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "register refused"), 1);
 */
#ifndef LADE_TESTS_SUPPORT_HEARD_H
#define LADE_TESTS_SUPPORT_HEARD_H

#include <pthread.h>

#include "lade/log.h"

enum { SUPPORT_HEARD_MOST = 64 };

typedef struct support_heard {
  pthread_mutex_t lock;
  int count;
  lade_log_level levels[SUPPORT_HEARD_MOST];
  char texts[SUPPORT_HEARD_MOST][512];
  void (*also)(void *user); /* called in each callback; NULL: nothing */
  void *user;
} support_heard;

void support_heard_begin(support_heard *heard, lade_log_level level);
/* The same log goes on, or begins when `also` was set. */
void support_heard_resume(support_heard *heard, lade_log_level level);
void support_heard_end(void);

/* Lines of that level with these words. */
int support_heard_count(support_heard *heard, lade_log_level level, const char *words);

#endif /* LADE_TESTS_SUPPORT_HEARD_H */
