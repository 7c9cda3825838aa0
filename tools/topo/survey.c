/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at the machine through a pinned pool with default settings, which pins nothing.
 *
 * S1  A survey that failed holds nothing.
 * Locks: none.
 */
#include "tools/topo/survey.h"
#include "host/state/nodes.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"

/* The least that a pool pins at a time. */
#define TRIAL_SEGMENT_BYTES LADEI_MIB

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "topo: no memory for the survey");
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static lade_status device_look(lade_runtime *runtime, lade_pinned_pool *pool, int device, survey_device *out) {
  ladei_pinned_node *node = NULL;
  lade_device_info_init(&out->info);
  lade_status status = lade_runtime_device_info(runtime, device, &out->info);
  if (status == LADE_OK) status = ladei_pinned_pool_nearest_node(pool, device, &out->near_node);
  if (status == LADE_OK) status = ladei_pinned_pool_node_of_device(pool, device, "lade topo", &node);
  if (status == LADE_OK) out->pinned_node = node->os_index;
  return status;
}

static lade_status devices_look(survey *s, lade_runtime *runtime, lade_pinned_pool *pool) {
  int count = 0;
  lade_status status = lade_runtime_device_count(runtime, &count);
  if (status != LADE_OK) return status;
  s->devices = calloc((size_t)count, sizeof *s->devices);
  if (s->devices == NULL) return no_memory();
  s->device_count = (size_t)count;
  for (int i = 0; i < count && status == LADE_OK; i++) status = device_look(runtime, pool, i, &s->devices[i]);
  s->software = count > 0 && s->devices[0].info.software != 0;
  return status;
}

static lade_status block_try(lade_pinned_pool *pool, survey_trial *trial) {
  lade_pinned_info info;
  void *block = NULL;
  lade_pinned_info_init(&info);
  LADEI_TRY(lade_pinned_alloc(pool, LADEI_PINNED_PAGE_BYTES, &block));
  lade_status status = lade_pinned_find(pool, block, &info);
  trial->source = info.source;
  trial->numa_node = info.numa_node;
  lade_status freed = lade_pinned_free(pool, block);
  return status != LADE_OK ? status : freed;
}

static void device_try(lade_runtime *runtime, const ladei_pinned_hooks *hooks, int device, survey_trial *trial) {
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_pinned_options_init(&options);
  options.device = device;
  options.segment_bytes = TRIAL_SEGMENT_BYTES;
  trial->done = true;
  trial->status = ladei_pinned_pool_create(runtime, &options, hooks, &pool);
  if (trial->status != LADE_OK) return;
  trial->status = block_try(pool, trial);
  lade_status destroyed = lade_pinned_pool_destroy(pool, true);
  if (trial->status == LADE_OK) trial->status = destroyed;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static lade_status nodes_allocate(survey *s, size_t count, ladei_topology_node **out_described) {
  size_t pairs;
  if (!ladei_size_mul(count, count, &pairs)) return no_memory();
  s->nodes = calloc(count, sizeof *s->nodes);
  s->distances = calloc(pairs, sizeof *s->distances);
  *out_described = calloc(count, sizeof **out_described);
  return s->nodes == NULL || s->distances == NULL || *out_described == NULL ? no_memory() : LADE_OK;
}

/* The kernel shows free memory and huge pages of this machine only. */
static void node_look(const char *root, bool shown, survey_node *node) {
  node->free_bytes = PAGES_UNKNOWN;
  if (shown) {
    node->free_bytes = pages_node_free_bytes(root, node->node.os_index);
    pages_pools_read(root, node->node.os_index, &node->huge_pages);
  }
}

static lade_status nodes_look(survey *s, lade_pinned_pool *pool, const char *root) {
  ladei_topology_node *described = NULL;
  const ladei_topology *topology = ladei_pinned_pool_topology(pool);
  size_t count = topology == NULL ? 0 : ladei_topology_nodes(topology, NULL, 0);
  if (count == 0) return LADE_OK; /* the pool does without, and so does the survey */
  lade_status status = nodes_allocate(s, count, &described);
  if (status == LADE_OK) {
    bool shown = root[0] != '\0' || ladei_topology_is_this_machine(topology);
    s->node_count = count;
    (void)ladei_topology_nodes(topology, described, count);
    for (size_t i = 0; i < count; i++) {
      s->nodes[i].node = described[i];
      node_look(root, shown, &s->nodes[i]);
      for (size_t k = 0; k < count; k++)
        s->distances[i * count + k] = ladei_topology_distance(topology, described[i].os_index, described[k].os_index);
    }
  }
  free(described);
  return status;
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

static lade_status pool_look(survey *s, lade_runtime *runtime, const ladei_pinned_hooks *hooks) {
  const char *root = hooks->root == NULL ? "" : hooks->root;
  lade_pinned_pool *pool = NULL;
  ladei_pinned_limits_read(root, &s->limits);
  pages_pools_read(root, -1, &s->huge_pages);
  pages_transparent_mode(root, s->transparent_huge_pages);
  LADEI_TRY(ladei_pinned_pool_create(runtime, NULL, hooks, &pool));
  lade_pinned_options_init(&s->pool);
  lade_status status = lade_pinned_settings_get(pool, &s->pool);
  s->pool.segment_bytes = pool->settings.segment_bytes; /* lade's choice, if much is pinned */
  s->pool.prefault_threads = pool->sources.prefault_threads;
  s->cap_from_cgroup = ladei_pinned_limits_cap_is_of_group(&s->limits);
  if (status == LADE_OK) status = devices_look(s, runtime, pool);
  if (status == LADE_OK) status = nodes_look(s, pool, root);
  lade_status destroyed = lade_pinned_pool_destroy(pool, true);
  return status != LADE_OK ? status : destroyed;
}

lade_status survey_make(lade_runtime *runtime, const ladei_pinned_hooks *hooks, bool try_pinning, survey *out) {
  survey s = {.runtime = lade_runtime_name(runtime)};
  lade_status status = pool_look(&s, runtime, hooks);
  if (status != LADE_OK) {
    survey_dispose(&s);
    return status;
  }
  for (size_t i = 0; try_pinning && i < s.device_count; i++) device_try(runtime, hooks, (int)i, &s.devices[i].trial);
  *out = s;
  return LADE_OK;
}

void survey_dispose(survey *s) {
  free(s->devices);
  free(s->nodes);
  free(s->distances);
  memset(s, 0, sizeof *s);
}

const char *survey_source_name(int source) {
  switch (source) {
  case LADE_PINNED_SOURCE_REGISTER: return "register";
  case LADE_PINNED_SOURCE_DRIVER: return "driver";
  case LADE_PINNED_SOURCE_POOL: return "pool";
  case LADE_PINNED_SOURCE_PAGEABLE: return "pageable";
  default: return "unknown";
  }
}
