/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure on memory, as the kernel tells it.
 *
 *   some avg10=0.00 avg60=0.00 avg300=0.00 total=12345        microseconds in which some task waited
 *
 * The events of a group count those of the groups below it; those of the groups above it are in their own files, all of
 * which are read.
 *
 * E1  Every file may be missing, unreadable or malformed: it then says nothing.
 * Locks: none; one thread.
 */
#include "host/budget/pressure.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroups.h"
#include "base/file_number.h"

enum { PATH_BYTES = PATH_MAX };

#define LOOK_NS           UINT64_C(100000000)
#define STALLED_US_PER_NS 10000 /* a tenth: 1 us in 10,000 ns */

void ladei_pressure_init(ladei_pressure *pressure, const char *root) { *pressure = (ladei_pressure){.root = root}; }

/* 0: nothing is said. */
static uint64_t stalled_us(const char *path) {
  char line[256];
  uint64_t total = 0;
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  if (fgets(line, sizeof line, file) != NULL && strncmp(line, "some ", 5) == 0) {
    const char *at = strstr(line, "total=");
    total = at == NULL ? 0 : strtoull(at + strlen("total="), NULL, 10);
  }
  fclose(file);
  return total;
}

typedef struct group_sums {
  uint64_t stalled_us, events;
  bool inner_seen;
} group_sums;

static uint64_t event_count(const char *folder, const char *key) {
  char path[PATH_BYTES];
  uint64_t count;
  int length = snprintf(path, sizeof path, "%s/memory.events", folder);
  return length > 0 && (size_t)length < sizeof path && ladei_file_number(path, key, &count) ? count : 0;
}

/* From the process's own group up. Its own waits include those that groups above it cause. */
static void group_visit(const char *folder, bool version_2, void *user) {
  char path[PATH_BYTES];
  group_sums *sums = user;
  if (!version_2) return;
  sums->events += event_count(folder, "high ") + event_count(folder, "max ");
  int length = snprintf(path, sizeof path, "%s/memory.pressure", folder);
  if (!sums->inner_seen && length > 0 && (size_t)length < sizeof path) sums->stalled_us = stalled_us(path);
  sums->inner_seen = true;
}

static bool grew(uint64_t *last, uint64_t now, uint64_t least) {
  bool more = now >= *last && now - *last >= least && now != *last;
  *last = now;
  return more;
}

bool ladei_pressure_look(ladei_pressure *pressure, uint64_t now_ns) {
  char path[PATH_BYTES];
  group_sums sums = {.events = 0};
  uint64_t elapsed_ns = now_ns - pressure->looked_ns;
  if (pressure->has_looked && elapsed_ns < LOOK_NS) return false;
  snprintf(path, sizeof path, "%s/proc/pressure/memory", pressure->root);
  ladei_cgroups_each(pressure->root, "memory", group_visit, &sums);
  uint64_t least_us = elapsed_ns / STALLED_US_PER_NS;
  bool machine = grew(&pressure->stalled_us, stalled_us(path), least_us);
  bool group = grew(&pressure->group_stalled_us, sums.stalled_us, least_us);
  bool events = grew(&pressure->group_events, sums.events, 1);
  bool first = !pressure->has_looked;
  pressure->looked_ns = now_ns;
  pressure->has_looked = true;
  return !first && (machine || group || events);
}
