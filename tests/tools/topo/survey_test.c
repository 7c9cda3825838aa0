/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade topo` on machines made up of hwloc's descriptions, software devices with nodes, and the files
 * of a kernel.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/size.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"
#include "tools/topo/survey.h"

/* Nodes 0 and 1 in one package, 2 in another; this process may not use node 1. */
static const char machine_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
    "version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" "
    "allowed_cpuset=\"0xf\" nodeset=\"0x7\" complete_nodeset=\"0x7\" allowed_nodeset=\"0x5\">\n"
    "<object type=\"Package\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x3\" "
    "complete_nodeset=\"0x3\">\n"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x1\" "
    "complete_nodeset=\"0x1\" local_memory=\"64424509440\"/>\n"
    "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x2\" "
    "complete_nodeset=\"0x2\" local_memory=\"17179869184\"/>\n"
    "<object type=\"PU\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x3\" "
    "complete_nodeset=\"0x3\"/>\n"
    "<object type=\"PU\" os_index=\"1\" cpuset=\"0x2\" complete_cpuset=\"0x2\" nodeset=\"0x3\" "
    "complete_nodeset=\"0x3\"/>\n</object>\n"
    "<object type=\"Package\" os_index=\"1\" cpuset=\"0xc\" complete_cpuset=\"0xc\" nodeset=\"0x4\" "
    "complete_nodeset=\"0x4\">\n"
    "<object type=\"NUMANode\" os_index=\"2\" cpuset=\"0xc\" complete_cpuset=\"0xc\" nodeset=\"0x4\" "
    "complete_nodeset=\"0x4\" local_memory=\"64424509440\"/>\n"
    "<object type=\"PU\" os_index=\"2\" cpuset=\"0x4\" complete_cpuset=\"0x4\" nodeset=\"0x4\" "
    "complete_nodeset=\"0x4\"/>\n"
    "<object type=\"PU\" os_index=\"3\" cpuset=\"0x8\" complete_cpuset=\"0x8\" nodeset=\"0x4\" "
    "complete_nodeset=\"0x4\"/>\n</object>\n</object>\n"
    "<distances2 type=\"NUMANode\" nbobjs=\"3\" kind=\"5\" indexing=\"os\">\n<indexes length=\"6\">0 1 2 </indexes>\n"
    "<u64values length=\"27\">10 17 21 17 10 28 21 28 10 </u64values>\n</distances2>\n</topology>\n";

/* The same with a second table of latencies, such as hwloc reads beside the first where memory is of two kinds. */
static const char second_table_xml[] =
    "<distances2 type=\"NUMANode\" nbobjs=\"3\" kind=\"6\" indexing=\"os\">\n<indexes length=\"6\">0 1 2 </indexes>\n"
    "<u64values length=\"27\">10 99 99 99 10 99 99 99 10 </u64values>\n</distances2>\n</topology>\n";

/* ---- Making machines up ------------------------------------------------------------------------------------------ */

/* Software devices of 1 GiB on "sim"; numa_nodes as in lade_soft_device: index + 1, 0 for unknown. */
static lade_runtime *devices_open(const int32_t *numa_nodes, size_t count, uint64_t pinned_limit_bytes) {
  lade_soft_device devices[64];
  lade_soft_options soft;
  lade_runtime_options options;
  lade_runtime *runtime = NULL;
  memset(devices, 0, sizeof devices);
  for (size_t i = 0; i < count; i++) {
    devices[i].memory_bytes = LADEI_GIB;
    devices[i].numa_node = numa_nodes[i];
  }
  lade_soft_options_init(&soft);
  soft.devices = devices;
  soft.device_count = count;
  soft.pinned_limit_bytes = pinned_limit_bytes;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  LADE_EXPECT_OK(lade_runtime_open("sim", &options, &runtime));
  return runtime;
}

/* A machine of three nodes as `root` has it: devices near node 2, near node 1, near none. */
typedef struct fixture {
  support_temp_dir root;
  char *xml;
  lade_runtime *runtime;
  ladei_pinned_hooks hooks;
  survey s;
} fixture;

static void root_write(const support_temp_dir *root) {
  support_temp_dir_write(root, "machine.xml", machine_xml);
  support_temp_dir_write(root, "proc/meminfo", "MemTotal:  99 kB\nMemAvailable:    8388608 kB\n");
  support_temp_dir_write(root, "proc/self/cgroup", "0::/job\n");
  support_temp_dir_write(root, "sys/devices/system/node/node0/meminfo",
                         "Node 0 MemTotal: 62914560 kB\nNode 0 MemFree: 15728640 kB\n");
  support_temp_dir_write(root, "sys/devices/system/node/node2/meminfo", "Node 2 MemFree: 1048576 kB\n");
  support_temp_dir_write(root, "sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
  support_temp_dir_write(root, "sys/devices/system/node/node2/hugepages/hugepages-2048kB/free_hugepages", "500\n");
  support_temp_dir_write(root, "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
  support_temp_dir_write(root, "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n");
  support_temp_dir_write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
  support_temp_dir_write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500\n");
  support_temp_dir_write(root, "sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "many\n");
  support_temp_dir_write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
}

static bool fixture_open(fixture *own, uint64_t pinned_limit_bytes) {
  static const int32_t numa_nodes[] = {3, 2, 0};
  memset(own, 0, sizeof *own);
  if (!support_temp_dir_create(&own->root)) return false;
  root_write(&own->root);
  own->xml = support_temp_dir_path(&own->root, "machine.xml");
  own->hooks = (ladei_pinned_hooks){LADEI_TOPOLOGY_XML, own->xml, own->root.path, 0, 0};
  own->runtime = devices_open(numa_nodes, 3, pinned_limit_bytes);
  return own->runtime != NULL;
}

static void fixture_close(fixture *own) {
  survey_dispose(&own->s);
  LADE_EXPECT_OK(lade_runtime_close(own->runtime)); /* refuses while anything is pinned */
  free(own->xml);
  support_temp_dir_remove(&own->root);
}

/* What a writer writes; the caller frees it. */
static char *written(const survey *s) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  survey_write_text(out, s);
  fclose(out);
  return text;
}

static json_t *json_of(const survey *s) {
  json_t *root = survey_json(s);
  if (root == NULL) LADE_FAIL("no JSON: no memory");
  return root;
}

/* ---- Devices and nodes ------------------------------------------------------------------------------------------- */

LADE_TEST(Topo, DevicesAreNearTheNodesThatThePoolPinsOn) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  LADE_EXPECT_EQ_SIZE(own.s.device_count, 3);
  LADE_EXPECT_EQ_INT(own.s.devices[0].near_node, 2);
  LADE_EXPECT_EQ_INT(own.s.devices[0].pinned_node, 2);
  LADE_EXPECT_EQ_INT(own.s.devices[1].near_node, 1);
  LADE_EXPECT_EQ_INT(own.s.devices[1].pinned_node, 0); /* node 1 is not for this process: the nearest that is */
  LADE_EXPECT_EQ_INT(own.s.devices[2].near_node, -1);
  LADE_EXPECT_EQ_INT(own.s.devices[2].pinned_node, -1);
  LADE_EXPECT(!own.s.devices[0].trial.done);
  LADE_EXPECT(own.s.software);
  fixture_close(&own);
}

LADE_TEST(Topo, NodesHaveMemoryHugePagesAndDistances) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  LADE_EXPECT_EQ_SIZE(own.s.node_count, 3);
  if (own.s.node_count == 3) {
    const survey_node *nodes = own.s.nodes;
    LADE_EXPECT_EQ_UINT(nodes[0].node.memory_bytes, 60 * LADEI_GIB);
    LADE_EXPECT_EQ_UINT(nodes[0].free_bytes, 15 * LADEI_GIB);
    LADE_EXPECT_EQ_UINT(nodes[1].free_bytes, PAGES_UNKNOWN);
    LADE_EXPECT_EQ_UINT(nodes[2].free_bytes, LADEI_GIB);
    LADE_EXPECT(!nodes[1].node.usable);
    LADE_EXPECT_EQ_SIZE(nodes[0].huge_pages.count, 0);
    LADE_EXPECT_EQ_UINT(pages_total_bytes(&nodes[2].huge_pages), LADEI_GIB);
    LADE_EXPECT_EQ_UINT(own.s.distances[0 * 3 + 1], 17);
    LADE_EXPECT_EQ_UINT(own.s.distances[2 * 3 + 1], 28);
  }
  fixture_close(&own);
}

/* All distances were unknown, and the table that had been read was lost. */
LADE_TEST(Topo, FirstOfTwoTablesOfLatencies) {
  fixture own;
  char xml[sizeof machine_xml + sizeof second_table_xml];
  size_t before = strlen(machine_xml) - strlen("</topology>\n");
  if (!fixture_open(&own, 0)) return;
  memcpy(xml, machine_xml, before);
  memcpy(xml + before, second_table_xml, sizeof second_table_xml);
  support_temp_dir_write(&own.root, "machine.xml", xml);
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  LADE_ASSERT_EQ_SIZE(own.s.node_count, 3);
  LADE_EXPECT_EQ_UINT(own.s.distances[0 * 3 + 1], 17);
  LADE_EXPECT_EQ_UINT(own.s.distances[2 * 3 + 1], 28);
  fixture_close(&own);
}

/* hwloc's own variables describe another machine: of that the kernel here knows no free memory. */
static void environment_check(const char *name, const char *value, size_t nodes) {
  static const ladei_pinned_hooks this_machine = {LADEI_TOPOLOGY_SYSTEM, NULL, NULL, 0, 0};
  static const int32_t first_node[] = {1};
  survey s;
  lade_runtime *runtime = devices_open(first_node, 1, 0);
  LADE_ASSERT(runtime != NULL);
  setenv(name, value, 1);
  lade_status status = survey_make(runtime, &this_machine, false, &s);
  unsetenv(name);
  LADE_EXPECT_OK(status);
  if (status == LADE_OK) {
    LADE_EXPECT_EQ_SIZE(s.node_count, nodes);
    LADE_EXPECT_EQ_INT(s.devices[0].pinned_node, 0);
    LADE_EXPECT_EQ_UINT(s.nodes[0].free_bytes, PAGES_UNKNOWN);
    LADE_EXPECT_EQ_SIZE(s.nodes[0].huge_pages.count, 0);
    survey_dispose(&s);
  }
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(Topo, HwlocsVariablesAreHonoured) {
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  support_temp_dir_write(&dir, "machine.xml", machine_xml);
  char *path = support_temp_dir_path(&dir, "machine.xml");
  environment_check("HWLOC_SYNTHETIC", "package:2 node:4 core:2 pu:1", 8);
  environment_check("HWLOC_XMLFILE", path, 3);
  free(path);
  support_temp_dir_remove(&dir);
}

/* ---- Limits and the pool ----------------------------------------------------------------------------------------- */

LADE_TEST(Topo, LimitsAndCapAreThoseOfThePool) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  LADE_EXPECT_EQ_UINT(own.s.limits.available_bytes, 8 * LADEI_GIB);
  LADE_EXPECT_EQ_UINT(own.s.limits.cgroup_headroom_bytes, LADEI_PINNED_NO_LIMIT);
  LADE_EXPECT_EQ_UINT(own.s.pool.max_bytes, 4 * LADEI_GIB);
  LADE_EXPECT(!own.s.cap_from_cgroup);
  LADE_EXPECT_EQ_STR(own.s.transparent_huge_pages, "madvise");
  survey_dispose(&own.s);

  support_temp_dir_write(&own.root, "sys/fs/cgroup/job/memory.max", "2147483648\n");
  support_temp_dir_write(&own.root, "sys/fs/cgroup/job/memory.current", "1073741824\n");
  support_temp_dir_write(&own.root, "sys/fs/cgroup/job/memory.stat", "file 536870912\nshmem 0\n");
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  LADE_EXPECT_EQ_UINT(own.s.limits.cgroup_headroom_bytes, 1536 * LADEI_MIB); /* page cache counts as free */
  LADE_EXPECT_EQ_UINT(own.s.pool.max_bytes, 1344 * LADEI_MIB);
  LADE_EXPECT(own.s.cap_from_cgroup);
  char *text = written(&own.s);
  LADE_EXPECT_CONTAINS_STR(text, ", 7/8 of what the control group leaves");
  free(text);
  fixture_close(&own);
}

LADE_TEST(Topo, HugePagePoolsAreSortedAndUnreadableOnesLeftOut) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  const pages_pools *pools = &own.s.huge_pages;
  LADE_EXPECT_EQ_SIZE(pools->count, 2);
  LADE_EXPECT_EQ_UINT(pools->pools[0].page_bytes, 2 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(pools->pools[0].free_count, 500);
  LADE_EXPECT_EQ_UINT(pools->pools[1].page_bytes, LADEI_GIB);
  LADE_EXPECT_EQ_UINT(pools->pools[1].total_count, 2);
  char *text = written(&own.s);
  LADE_EXPECT_CONTAINS_STR(text, "500/512 free of 2.0 MiB; 1/2 free of 1.0 GiB\n");
  free(text);
  fixture_close(&own);
}

LADE_TEST(Topo, MachineThatTellsNothingIsShownAllTheSame) {
  static const int32_t unknown[] = {0};
  support_temp_dir root;
  survey s;
  char *description = "node:1 pu:1";
  LADE_ASSERT(support_temp_dir_create(&root));
  ladei_pinned_hooks hooks = {LADEI_TOPOLOGY_SYNTHETIC, description, root.path, 0, 0};
  lade_runtime *runtime = devices_open(unknown, 1, 0);
  LADE_ASSERT_OK(survey_make(runtime, &hooks, false, &s));
  LADE_EXPECT_EQ_STR(s.transparent_huge_pages, "unknown");
  LADE_EXPECT_EQ_UINT(s.pool.max_bytes, LADEI_PINNED_NO_LIMIT);
  json_t *json = json_of(&s);
  json_t *pinned = json_object_get(json, "pinned");
  LADE_EXPECT(json_is_null(json_object_get(pinned, "max_bytes")));
  LADE_EXPECT(json_is_null(json_object_get(pinned, "cap_from")));
  char *text = written(&s);
  LADE_EXPECT_CONTAINS_STR(text, "cap                     no limit\n");
  free(text);
  json_decref(json);
  survey_dispose(&s);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
  support_temp_dir_remove(&root);
}

/* ---- Pinning for a trial ----------------------------------------------------------------------------------------- */

LADE_TEST(Topo, TrialTellsTheSourceAndTheNode) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, true, &own.s));
  LADE_EXPECT(own.s.devices[1].trial.done);
  LADE_EXPECT_OK(own.s.devices[1].trial.status);
  LADE_EXPECT_EQ_INT(own.s.devices[1].trial.source, LADE_PINNED_SOURCE_REGISTER);
  LADE_EXPECT_EQ_INT(own.s.devices[1].trial.numa_node, 0);
  survey_dispose(&own.s);
  LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", 0, LADE_ERR_UNSUPPORTED));
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, true, &own.s));
  LADE_EXPECT_EQ_INT(own.s.devices[1].trial.source, LADE_PINNED_SOURCE_DRIVER);
  fixture_close(&own);
}

LADE_TEST(Topo, TrialThatFailsIsToldAndLeavesNothing) {
  fixture own;
  if (!fixture_open(&own, 1)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, true, &own.s));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, own.s.devices[0].trial.status);
  char *text = written(&own.s);
  LADE_EXPECT_CONTAINS_STR(text, "pinning near device 0 failed: LADE_ERR_OUT_OF_PINNED_MEMORY");
  free(text);
  json_t *json = json_of(&own.s);
  json_t *trial = json_object_get(json_array_get(json_object_get(json, "devices"), 0), "trial");
  LADE_EXPECT_EQ_STR(json_string_value(json_object_get(trial, "status")), "LADE_ERR_OUT_OF_PINNED_MEMORY");
  LADE_EXPECT(json_is_null(json_object_get(trial, "source")));
  json_decref(json);
  fixture_close(&own);
}

LADE_TEST(Topo, SurveyThatFailsHoldsNothing) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  for (uint64_t nth = 1; nth <= 4; nth++) {
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "device_properties", nth, LADE_ERR_DEVICE_LOST));
    LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, survey_make(own.runtime, &own.hooks, false, &own.s));
    LADE_EXPECT_EQ_PTR(own.s.devices, NULL);
  }
  fixture_close(&own);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_int_t number_at(const json_t *object, const char *key) {
  json_t *value = json_object_get(object, key);
  if (!json_is_integer(value)) LADE_FAIL("%s is no number", key);
  return json_integer_value(value);
}

static void json_nodes_check(const json_t *nodes) {
  LADE_EXPECT_EQ_SIZE(json_array_size(nodes), 3);
  const json_t *last = json_array_get(nodes, 2);
  LADE_EXPECT_EQ_INT(number_at(last, "node"), 2);
  LADE_EXPECT(json_is_true(json_object_get(last, "usable")));
  LADE_EXPECT_EQ_INT(number_at(last, "free_bytes"), (json_int_t)LADEI_GIB);
  LADE_EXPECT_EQ_INT(number_at(last, "cpu_count"), 2);
  LADE_EXPECT_EQ_STR(json_string_value(json_object_get(last, "cpus")), "2-3");
  const json_t *pool = json_array_get(json_object_get(last, "huge_pages"), 0);
  LADE_EXPECT_EQ_INT(number_at(pool, "total_count"), 512);
  LADE_EXPECT_EQ_INT(json_integer_value(json_array_get(json_object_get(last, "distances"), 1)), 28);
  LADE_EXPECT(json_is_null(json_object_get(json_array_get(nodes, 1), "free_bytes")));
}

LADE_TEST(Topo, JsonTellsAllOfIt) {
  fixture own;
  if (!fixture_open(&own, 0)) return;
  LADE_EXPECT_OK(survey_make(own.runtime, &own.hooks, false, &own.s));
  json_t *json = json_of(&own.s);
  LADE_EXPECT_EQ_INT(number_at(json, "version"), 1);
  LADE_EXPECT_EQ_STR(json_string_value(json_object_get(json, "runtime")), "sim");
  LADE_EXPECT(json_is_true(json_object_get(json, "software_device")));
  const json_t *devices = json_object_get(json, "devices");
  LADE_EXPECT_EQ_SIZE(json_array_size(devices), 3);
  LADE_EXPECT_EQ_INT(number_at(json_array_get(devices, 1), "near_node"), 1);
  LADE_EXPECT_EQ_INT(number_at(json_array_get(devices, 1), "pinned_node"), 0);
  LADE_EXPECT_EQ_INT(number_at(json_array_get(devices, 1), "memory_bytes"), (json_int_t)LADEI_GIB);
  LADE_EXPECT(json_is_null(json_object_get(json_array_get(devices, 2), "near_node")));
  LADE_EXPECT(json_is_null(json_object_get(json_array_get(devices, 2), "trial")));
  json_nodes_check(json_object_get(json, "nodes"));
  const json_t *limits = json_object_get(json, "limits");
  LADE_EXPECT_EQ_INT(number_at(limits, "available_bytes"), (json_int_t)(8 * LADEI_GIB));
  LADE_EXPECT(json_is_null(json_object_get(limits, "cgroup_headroom_bytes")));
  LADE_EXPECT(json_is_false(json_object_get(limits, "memlock_counts")));
  LADE_EXPECT_EQ_SIZE(json_array_size(json_object_get(limits, "huge_pages")), 2);
  const json_t *pinned = json_object_get(json, "pinned");
  LADE_EXPECT_EQ_INT(number_at(pinned, "max_bytes"), (json_int_t)(4 * LADEI_GIB));
  LADE_EXPECT_EQ_STR(json_string_value(json_object_get(pinned, "cap_from")), "available");
  LADE_EXPECT_EQ_STR(json_string_value(json_array_get(json_object_get(pinned, "sources"), 0)), "register");
  LADE_EXPECT_EQ_INT(number_at(pinned, "event_batch"), 16);
  json_decref(json);
  fixture_close(&own);
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

enum { LARGE = 12 };

/* As wide and high as it gets: more nodes and devices than rows, all numbers long, a trial that fails. */
static survey large_machine(void) {
  survey s = {.runtime = "sim", .software = true, .device_count = LARGE, .node_count = LARGE, .cap_from_cgroup = true};
  s.devices = calloc(LARGE, sizeof *s.devices);
  s.nodes = calloc(LARGE, sizeof *s.nodes);
  s.distances = calloc(LARGE * LARGE, sizeof *s.distances);
  for (int i = 0; i < LARGE; i++) {
    survey_device *device = &s.devices[i];
    memset(device->info.name, 'N', sizeof device->info.name - 1);
    strcpy(device->info.pci_bus_id, "0000:41:00.0");
    device->info.total_bytes = 1023 * LADEI_GIB;
    device->near_node = device->pinned_node = i * 80;
    device->trial =
        (survey_trial){true, i == 3 ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_OK, LADE_PINNED_SOURCE_PAGEABLE, i};
    survey_node *node = &s.nodes[i];
    node->node = (ladei_topology_node){i * 80, i != 5, 999 * LADEI_GIB, 128, "0-15,32-47,64-79,96-111"};
    node->free_bytes = 998 * LADEI_GIB;
    node->huge_pages = (pages_pools){1, {{LADEI_GIB, 999, 999}}};
    for (int k = 0; k < LARGE; k++) s.distances[i * LARGE + k] = i == k ? 10 : 255;
  }
  s.limits = (ladei_pinned_limits){
      .available_bytes = 999 * LADEI_GIB, .cgroup_headroom_bytes = 998 * LADEI_GIB, .memlock_bytes = 997 * LADEI_GIB};
  s.pool = (lade_pinned_options){.sources = 3, .max_bytes = 998 * LADEI_GIB, .segment_bytes = 64 * LADEI_MIB};
  s.huge_pages.count = PAGES_MAX_SIZES;
  for (int i = 0; i < PAGES_MAX_SIZES; i++) s.huge_pages.pools[i] = (pages_pool){LADEI_MIB << i, 1000000, 999999};
  strcpy(s.transparent_huge_pages, "madvise");
  return s;
}

LADE_TEST(Topo, TableFitsAScreenOf80By40OnALargeMachine) {
  survey s = large_machine();
  char *text = written(&s);
  size_t lines = 0;
  for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL && rest != NULL; lines++) {
    lade_test_context("%s", line);
    LADE_EXPECT_LE_SIZE(strlen(line), 80);
    LADE_EXPECT(line[0] == '\0' || line[strlen(line) - 1] != ' ');
  }
  lade_test_context("%s", "");
  LADE_EXPECT_LE_SIZE(lines, 40);
  LADE_EXPECT_GT_SIZE(lines, 30);
  free(text);
  survey_dispose(&s);
}

LADE_TEST(Topo, TableSaysWhatItLeavesOut) {
  survey s = large_machine();
  char *text = written(&s);
  LADE_EXPECT_CONTAINS_STR(text, "... and 4 more");
  LADE_EXPECT_CONTAINS_STR(text, "* without memory, or not for this process");
  LADE_EXPECT_CONTAINS_STR(text, "does not count");
  LADE_EXPECT_CONTAINS_STR(text, "999999/1000000 free of 1.0 MiB; ...\n");
  free(text);
  survey_dispose(&s);
}
