/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The survey as JSON; docs/formats.md describes it. Null means unknown, without limit, or none.
 *
 * A value that could not be made, for want of memory, is NULL: so is what json_pack() would make with it.
 */
#include "tools/topo/survey.h"

/* Takes the value. The array is NULL from the first value on that is. */
static void append(json_t **array, json_t *value) {
  if (json_array_append_new(*array, value) == 0) return;
  json_decref(*array);
  *array = NULL;
}

/* JSON integers are signed here; UINT64_MAX means "no limit" and "unknown" alike. */
static json_t *count_json(uint64_t value) { return value > INT64_MAX ? json_null() : json_integer((json_int_t)value); }
static json_t *node_json(int node) { return node < 0 ? json_null() : json_integer(node); }

static json_t *pools_json(const pages_pools *pools) {
  json_t *array = json_array();
  for (size_t i = 0; i < pools->count; i++)
    append(&array,
           json_pack("{so so so}", "page_bytes", count_json(pools->pools[i].page_bytes), "total_count",
                     count_json(pools->pools[i].total_count), "free_count", count_json(pools->pools[i].free_count)));
  return array;
}

static json_t *trial_json(const survey_trial *trial) {
  if (!trial->done) return json_null();
  bool good = trial->status == LADE_OK;
  return json_pack("{ss ss? so}", "status", lade_status_name(trial->status), "source",
                   good ? survey_source_name(trial->source) : NULL, "node", node_json(good ? trial->numa_node : -1));
}

static json_t *devices_json(const survey *s) {
  json_t *array = json_array();
  for (size_t i = 0; i < s->device_count; i++) {
    const survey_device *device = &s->devices[i];
    append(&array, json_pack("{sI ss so ss so so so}", "device", (json_int_t)i, "name", device->info.name,
                             "memory_bytes", count_json(device->info.total_bytes), "pci_bus_id",
                             device->info.pci_bus_id, "near_node", node_json(device->near_node), "pinned_node",
                             node_json(device->pinned_node), "trial", trial_json(&device->trial)));
  }
  return array;
}

static json_t *distances_json(const survey *s, size_t from) {
  json_t *array = json_array();
  for (size_t to = 0; to < s->node_count; to++) {
    unsigned long distance = s->distances[from * s->node_count + to];
    append(&array, distance == 0 ? json_null() : count_json(distance));
  }
  return array;
}

static json_t *nodes_json(const survey *s) {
  json_t *array = json_array();
  for (size_t i = 0; i < s->node_count; i++) {
    const survey_node *node = &s->nodes[i];
    append(&array, json_pack("{si sb so so si ss so so}", "node", node->node.os_index, "usable", node->node.usable,
                             "memory_bytes", count_json(node->node.memory_bytes), "free_bytes",
                             count_json(node->free_bytes), "cpu_count", node->node.cpu_count, "cpus", node->node.cpus,
                             "huge_pages", pools_json(&node->huge_pages), "distances", distances_json(s, i)));
  }
  return array;
}

static json_t *limits_json(const survey *s) {
  /* memlock_counts: no source of pinned memory locks pages itself */
  return json_pack("{so so so sb ss so}", "available_bytes", count_json(s->limits.available_bytes),
                   "cgroup_headroom_bytes", count_json(s->limits.cgroup_headroom_bytes), "memlock_bytes",
                   count_json(s->limits.memlock_bytes), "memlock_counts", false, "transparent_huge_pages",
                   s->transparent_huge_pages, "huge_pages", pools_json(&s->huge_pages));
}

static json_t *pool_json(const survey *s) {
  const char *cap_from = s->cap_from_cgroup ? "cgroup" : "available";
  json_t *sources = json_array();
  for (uint32_t bit = 1; bit != 0 && bit <= s->pool.sources; bit <<= 1)
    if ((s->pool.sources & bit) != 0) append(&sources, json_string(survey_source_name((int)bit)));
  return json_pack("{so so ss? so so sI sI}", "sources", sources, "max_bytes", count_json(s->pool.max_bytes),
                   "cap_from", s->pool.max_bytes != LADEI_PINNED_NO_LIMIT ? cap_from : NULL, "segment_bytes",
                   count_json(s->pool.segment_bytes), "magazine_bytes", count_json(s->pool.magazine_bytes),
                   "prefault_threads", (json_int_t)s->pool.prefault_threads, "event_batch",
                   (json_int_t)s->pool.event_batch);
}

json_t *survey_json(const survey *s) {
  return json_pack("{si ss sb so so so so}", "version", 1, "runtime", s->runtime, "software_device", s->software,
                   "devices", devices_json(s), "nodes", nodes_json(s), "limits", limits_json(s), "pinned",
                   pool_json(s));
}
