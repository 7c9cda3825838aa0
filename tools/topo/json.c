/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The survey as JSON; docs/formats.md describes it. Null means unknown, without limit, or none.
 *
 * A value that could not be made, for want of memory, marks the builder as failed; nothing is written then.
 */
#include "tools/topo/survey.h"

typedef struct builder {
  bool failed;
} builder;

static json_t *made(builder *b, json_t *value) {
  b->failed = b->failed || value == NULL;
  return value;
}

/* Takes the value. */
static void put(builder *b, json_t *object, const char *key, json_t *value) {
  b->failed = json_object_set_new(object, key, made(b, value)) != 0 || b->failed;
}

static void append(builder *b, json_t *array, json_t *value) {
  b->failed = json_array_append_new(array, made(b, value)) != 0 || b->failed;
}

/* JSON integers are signed here; UINT64_MAX means "no limit" and "unknown" alike. */
static json_t *count_json(uint64_t value) { return value > INT64_MAX ? json_null() : json_integer((json_int_t)value); }
static json_t *node_json(int node) { return node < 0 ? json_null() : json_integer(node); }

static json_t *pools_json(builder *b, const pages_pools *pools) {
  json_t *array = made(b, json_array());
  for (size_t i = 0; i < pools->count; i++) {
    json_t *pool = json_object();
    put(b, pool, "page_bytes", count_json(pools->pools[i].page_bytes));
    put(b, pool, "total_count", count_json(pools->pools[i].total_count));
    put(b, pool, "free_count", count_json(pools->pools[i].free_count));
    append(b, array, pool);
  }
  return array;
}

static json_t *trial_json(builder *b, const survey_trial *trial) {
  if (!trial->done) return json_null();
  json_t *object = json_object();
  bool good = trial->status == LADE_OK;
  put(b, object, "status", json_string(lade_status_name(trial->status)));
  put(b, object, "source", good ? json_string(survey_source_name(trial->source)) : json_null());
  put(b, object, "node", good ? node_json(trial->numa_node) : json_null());
  return object;
}

static json_t *devices_json(builder *b, const survey *s) {
  json_t *array = made(b, json_array());
  for (size_t i = 0; i < s->device_count; i++) {
    const survey_device *device = &s->devices[i];
    json_t *object = json_object();
    put(b, object, "device", json_integer((json_int_t)i));
    put(b, object, "name", json_string(device->info.name));
    put(b, object, "memory_bytes", count_json(device->info.total_bytes));
    put(b, object, "pci_bus_id", json_string(device->info.pci_bus_id));
    put(b, object, "near_node", node_json(device->near_node));
    put(b, object, "pinned_node", node_json(device->pinned_node));
    put(b, object, "trial", trial_json(b, &device->trial));
    append(b, array, object);
  }
  return array;
}

static json_t *distances_json(builder *b, const survey *s, size_t from) {
  json_t *array = made(b, json_array());
  for (size_t to = 0; to < s->node_count; to++) {
    unsigned long distance = s->distances[from * s->node_count + to];
    append(b, array, distance == 0 ? json_null() : count_json(distance));
  }
  return array;
}

static json_t *nodes_json(builder *b, const survey *s) {
  json_t *array = made(b, json_array());
  for (size_t i = 0; i < s->node_count; i++) {
    const survey_node *node = &s->nodes[i];
    json_t *object = json_object();
    put(b, object, "node", json_integer(node->node.os_index));
    put(b, object, "usable", json_boolean(node->node.usable));
    put(b, object, "memory_bytes", count_json(node->node.memory_bytes));
    put(b, object, "free_bytes", count_json(node->free_bytes));
    put(b, object, "cpu_count", json_integer(node->node.cpu_count));
    put(b, object, "cpus", json_string(node->node.cpus));
    put(b, object, "huge_pages", pools_json(b, &node->huge_pages));
    put(b, object, "distances", distances_json(b, s, i));
    append(b, array, object);
  }
  return array;
}

static json_t *limits_json(builder *b, const survey *s) {
  json_t *object = made(b, json_object());
  put(b, object, "available_bytes", count_json(s->limits.available_bytes));
  put(b, object, "cgroup_headroom_bytes", count_json(s->limits.cgroup_headroom_bytes));
  put(b, object, "memlock_bytes", count_json(s->limits.memlock_bytes));
  put(b, object, "memlock_counts", json_false()); /* no source of pinned memory locks pages itself */
  put(b, object, "transparent_huge_pages", json_string(s->transparent_huge_pages));
  put(b, object, "huge_pages", pools_json(b, &s->huge_pages));
  return object;
}

static json_t *pool_json(builder *b, const survey *s) {
  json_t *object = made(b, json_object());
  json_t *sources = json_array();
  for (uint32_t bit = 1; bit != 0 && bit <= s->pool.sources; bit <<= 1)
    if ((s->pool.sources & bit) != 0) append(b, sources, json_string(survey_source_name((int)bit)));
  put(b, object, "sources", sources);
  put(b, object, "max_bytes", count_json(s->pool.max_bytes));
  bool capped = s->pool.max_bytes != LADEI_PINNED_NO_LIMIT;
  put(b, object, "cap_from", capped ? json_string(s->cap_from_cgroup ? "cgroup" : "available") : json_null());
  put(b, object, "segment_bytes", count_json(s->pool.segment_bytes));
  put(b, object, "magazine_bytes", count_json(s->pool.magazine_bytes));
  put(b, object, "prefault_threads", json_integer(s->pool.prefault_threads));
  put(b, object, "event_batch", json_integer(s->pool.event_batch));
  return object;
}

json_t *survey_json(const survey *s) {
  builder b = {false};
  json_t *root = made(&b, json_object());
  put(&b, root, "version", json_integer(1));
  put(&b, root, "runtime", json_string(s->runtime));
  put(&b, root, "software_device", json_boolean(s->software));
  put(&b, root, "devices", devices_json(&b, s));
  put(&b, root, "nodes", nodes_json(&b, s));
  put(&b, root, "limits", limits_json(&b, s));
  put(&b, root, "pinned", pool_json(&b, s));
  if (!b.failed) return root;
  json_decref(root);
  return NULL;
}
