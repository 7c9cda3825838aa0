/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/heard.h"

#include <stdio.h>
#include <string.h>

static void hear(void *user, lade_log_level level, const char *text) {
  support_heard *heard = user;
  pthread_mutex_lock(&heard->lock);
  if (heard->count < SUPPORT_HEARD_MOST) {
    heard->levels[heard->count] = level;
    snprintf(heard->texts[heard->count++], sizeof heard->texts[0], "%s", text);
  }
  pthread_mutex_unlock(&heard->lock);
  if (heard->also != NULL) heard->also(heard->user);
}

void support_heard_begin(support_heard *heard, lade_log_level level) {
  memset(heard, 0, sizeof *heard);
  pthread_mutex_init(&heard->lock, NULL);
  (void)lade_log_set(hear, heard, level);
}

void support_heard_resume(support_heard *heard, lade_log_level level) { (void)lade_log_set(hear, heard, level); }

void support_heard_end(void) { (void)lade_log_set(NULL, NULL, LADE_LOG_OFF); }

int support_heard_count(support_heard *heard, lade_log_level level, const char *words) {
  int found = 0;
  pthread_mutex_lock(&heard->lock);
  for (int i = 0; i < heard->count; i++)
    found += heard->levels[i] == level && strstr(heard->texts[i], words) != NULL ? 1 : 0;
  pthread_mutex_unlock(&heard->lock);
  return found;
}
