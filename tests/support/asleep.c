/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/asleep.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 'R' running or ready to, 'S' asleep, 'X' gone; '?' not to be read. */
static char state_of(int thread) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) return 'X';
  size_t bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  const char *end = bytes == 0 ? NULL : strrchr(text, ')');
  return end == NULL ? '?' : end[2];
}

bool support_thread_sleeps(int thread) { return state_of(thread) == 'S'; }

bool support_others_sleep(void) {
  bool all = true;
  int own = (int)syscall(SYS_gettid);
  const struct dirent *entry;
  DIR *folder = opendir("/proc/self/task");
  if (folder == NULL) return false;
  while (all && (entry = readdir(folder)) != NULL) {
    int thread = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : own;
    if (thread != own) all = strchr("SXZ", state_of(thread)) != NULL;
  }
  closedir(folder);
  return all;
}
