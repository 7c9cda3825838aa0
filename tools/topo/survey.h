/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of `lade topo`: the machine as a pinned pool with default settings sees it.
 *
 * Nothing is computed twice: nodes, limits and settings come from the pool and from the files of host/ that it
 * decides by.
 */
#ifndef LADE_TOOLS_TOPO_SURVEY_H
#define LADE_TOOLS_TOPO_SURVEY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "host/api/pool.h"
#include "host/budget/limits.h"
#include "lade/pinned.h"
#include "tools/topo/pages.h"

/* The result of pinning a block near a device. */
typedef struct survey_trial {
  bool done;
  lade_status status;
  int source;    /* lade_pinned_source; only if status is LADE_OK, as the next one */
  int numa_node; /* -1: bound to none */
} survey_trial;

typedef struct survey_device {
  lade_device_info info;
  int near_node;   /* OS index; -1: unknown, or near to none in particular */
  int pinned_node; /* the node that memory for it is taken from; -1: any */
  survey_trial trial;
} survey_device;

typedef struct survey_node {
  ladei_topology_node node;
  uint64_t free_bytes; /* PAGES_UNKNOWN: not known */
  pages_pools huge_pages;
} survey_node;

typedef struct survey {
  const char *runtime; /* static name */
  bool software;       /* no GPU */
  size_t device_count;
  survey_device *devices;
  size_t node_count;
  survey_node *nodes;
  unsigned long *distances; /* [from * node_count + to], 10 to itself; 0: not known */
  ladei_pinned_limits limits;
  pages_pools huge_pages;
  char transparent_huge_pages[PAGES_MODE_BYTES];
  lade_pinned_options pool; /* the settings in force by default */
  bool cap_from_cgroup;     /* the default cap is the control group's rest, not half of the available memory */
} survey;

/*
 * `hooks` stand in for the machine, as for a pool. try_pinning: pin a block near each device, and give it back; on
 * "cuda" this makes a context on each. Its failures are in the survey.
 */
lade_status survey_make(lade_runtime *runtime, const ladei_pinned_hooks *hooks, bool try_pinning, survey *out);
void survey_dispose(survey *s);

/* "register", "driver", "pool", "pageable". */
const char *survey_source_name(int source);

/* Two ways to show it. Write errors stay in the file's error flag; the JSON is NULL without memory, else the caller's. */
void survey_write_text(FILE *out, const survey *s);
json_t *survey_json(const survey *s);

#endif /* LADE_TOOLS_TOPO_SURVEY_H */
