/* SPDX-License-Identifier: Apache-2.0 */
/* The calling process, and others, as /proc shows them. Every file may be missing. */
#include "host/budget/ledger_process.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Field 22 of /proc/PID/stat; the name in brackets before it may have blanks and brackets. */
uint64_t ladei_ledger_process_start(uint32_t process_id) {
  char path[64], text[1024];
  uint64_t start = 0;
  snprintf(path, sizeof path, "/proc/%u/stat", (unsigned)process_id);
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  size_t bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[bytes] = '\0';
  char *at = strrchr(text, ')');
  for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
  if (at != NULL) start = strtoull(at, NULL, 10);
  return start;
}

bool ladei_ledger_process_shares_time(uint32_t process_id) {
  char path[64];
  struct stat own, its;
  snprintf(path, sizeof path, "/proc/%u/ns/time", (unsigned)process_id);
  if (stat("/proc/self/ns/time", &own) != 0) return true; /* before Linux 5.6 there is one for all */
  return stat(path, &its) == 0 && its.st_dev == own.st_dev && its.st_ino == own.st_ino;
}

/* No id of a process: those below mean groups of them, and a ledger's bytes may be anything. */
bool ladei_ledger_process_is_gone(uint32_t process_id) {
  return process_id > 0 && process_id <= INT_MAX && kill((pid_t)process_id, 0) != 0 && errno == ESRCH;
}

uint32_t ladei_ledger_namespace(void) {
  struct stat found;
  return stat("/proc/self/ns/pid", &found) == 0 ? (uint32_t)found.st_ino : 0;
}

void ladei_ledger_command(char out[16]) {
  FILE *file = fopen("/proc/self/comm", "re");
  memset(out, 0, 16);
  if (file == NULL) return;
  if (fgets(out, 16, file) == NULL) memset(out, 0, 16);
  fclose(file);
  out[strcspn(out, "\n")] = '\0';
}
