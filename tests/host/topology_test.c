/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA decisions on machines that hwloc makes up, and on this one. */
#include "host/source/topology.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

static ladei_topology *synthetic(const char *description) {
  ladei_topology *topology = NULL;
  LADE_EXPECT_OK(ladei_topology_load(LADEI_TOPOLOGY_SYNTHETIC, description, true, &topology));
  return topology;
}

enum { MOST_NODES = 64 };

/* Indexes of the nodes with memory that this process may use, and how many there are. */
static size_t usable_nodes(const ladei_topology *topology, int indexes[MOST_NODES]) {
  ladei_topology_node nodes[MOST_NODES];
  size_t all = ladei_topology_nodes(topology, nodes, MOST_NODES), count = 0;
  LADE_EXPECT_LE_SIZE(all, MOST_NODES);
  for (size_t i = 0; i < all && i < MOST_NODES; i++)
    if (nodes[i].usable) indexes[count++] = nodes[i].os_index;
  return count;
}

LADE_TEST(Topology, NodesOfOneTwoAndEight) {
  static const struct {
    const char *description;
    size_t nodes;
  } machines[] = {{"node:1 core:2 pu:1", 1}, {"node:2 core:4 pu:2", 2}, {"package:2 node:4 core:2 pu:1", 8}};
  for (int i = 0; i < 3; i++) {
    ladei_topology *topology = synthetic(machines[i].description);
    LADE_ASSERT(topology != NULL);
    int usable[MOST_NODES];
    LADE_ASSERT_EQ_SIZE(usable_nodes(topology, usable), machines[i].nodes);
    for (int node = 0; node < (int)machines[i].nodes; node++) {
      LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, node), node);
      LADE_EXPECT_EQ_INT(usable[node], node);
    }
    LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, (int)machines[i].nodes), -1);
    LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, -1), -1);
    ladei_topology_destroy(topology);
  }
}

LADE_TEST(Topology, NodesAreNamedByOsIndex) {
  ladei_topology *topology = synthetic("node:2(indexes=5,3) core:2 pu:1");
  LADE_ASSERT(topology != NULL);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 5), 5);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 3), 3);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 0), -1);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 1), -1);
  ladei_topology_destroy(topology);
}

/* Two packages with two nodes each; node 2, in the second package, has no memory. */
static const char xml_memoryless[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
    "version=\"2.0\">\n"
    "<object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" allowed_cpuset=\"0xf\" "
    "nodeset=\"0xf\" complete_nodeset=\"0xf\" allowed_nodeset=\"%s\">"
#define CORE(index, cpus, node)                                                                                        \
  "<object type=\"PU\" os_index=\"" index "\" cpuset=\"" cpus "\" complete_cpuset=\"" cpus "\" nodeset=\"" node        \
  "\" complete_nodeset=\"" node "\"/>"
    "<object type=\"Package\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x3\" "
    "complete_nodeset=\"0x3\">"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x1\" "
    "complete_nodeset=\"0x1\" local_memory=\"1000000\"/>"
    "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x2\" "
    "complete_nodeset=\"0x2\" local_memory=\"1000000\"/>" CORE("0", "0x1", "0x3")
        CORE("1", "0x2",
             "0x3") "<object type=\"Bridge\" depth=\"0\" bridge_type=\"0-1\" bridge_pci=\"0000:[40-4f]\">"
                    "<object type=\"PCIDev\" pci_busid=\"0000:41:00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" "
                    "pci_link_speed=\"0\"/></object>"
                    "</object>"
                    "<object type=\"Package\" os_index=\"1\" cpuset=\"0xc\" complete_cpuset=\"0xc\" nodeset=\"0xc\" "
                    "complete_nodeset=\"0xc\">"
                    "<object type=\"NUMANode\" os_index=\"2\" cpuset=\"0xc\" complete_cpuset=\"0xc\" nodeset=\"0x4\" "
                    "complete_nodeset=\"0x4\" local_memory=\"0\"/>"
                    "<object type=\"NUMANode\" os_index=\"3\" cpuset=\"0xc\" complete_cpuset=\"0xc\" nodeset=\"0x8\" "
                    "complete_nodeset=\"0x8\" local_memory=\"1000000\"/>" CORE("2", "0x4", "0xc")
                        CORE("3", "0x8", "0xc") "</object></object></topology>";

static ladei_topology *load_xml(const char *allowed_nodes) {
  support_temp_dir dir;
  ladei_topology *topology = NULL;
  if (!support_temp_dir_create(&dir)) return NULL;
  char *path = support_temp_dir_path(&dir, "machine.xml");
  FILE *file = fopen(path, "w");
  if (file != NULL) {
    fprintf(file, xml_memoryless, allowed_nodes);
    fclose(file);
  }
  LADE_EXPECT_OK(ladei_topology_load(LADEI_TOPOLOGY_XML, path, true, &topology));
  free(path);
  support_temp_dir_remove(&dir);
  return topology;
}

LADE_TEST(Topology, NodeWithoutMemoryIsReplacedByTheNearest) {
  ladei_topology *topology = load_xml("0xf");
  int usable[MOST_NODES];
  LADE_ASSERT(topology != NULL);
  LADE_EXPECT_EQ_SIZE(usable_nodes(topology, usable), 3);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 2), 3);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 1), 1);
  ladei_topology_destroy(topology);
}

LADE_TEST(Topology, NodeThatTheProcessMayNotUseIsReplacedByTheNearest) {
  ladei_topology *topology = load_xml("0x9");
  int usable[MOST_NODES];
  LADE_ASSERT(topology != NULL);
  LADE_EXPECT_EQ_SIZE(usable_nodes(topology, usable), 2);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 1), 0);
  LADE_EXPECT_EQ_INT(ladei_topology_usable_node(topology, 3), 3);
  ladei_topology_destroy(topology);
}

LADE_TEST(Topology, DeviceBelowTwoNodesOrNowhereIsNearNone) {
  ladei_topology *topology = load_xml("0xf");
  LADE_ASSERT(topology != NULL);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci(topology, "0000:41:00.0"), -1);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci(topology, "0000:42:00.0"), -1);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci(topology, "nonsense"), -1);
  ladei_topology_destroy(topology);
}

LADE_TEST(Topology, BindingOnAMadeUpMachineTouchesNothing) {
  ladei_topology *topology = synthetic("node:2 core:2 pu:1");
  LADE_ASSERT(topology != NULL);
  void *area = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(area != MAP_FAILED);
  LADE_EXPECT_OK(ladei_topology_bind_area(topology, 1, area, 8192, true));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_topology_bind_area(topology, 2, area, 8192, true));
  ladei_topology_bind_thread(topology, 1);
  munmap(area, 8192);
  ladei_topology_destroy(topology);
}

/* A program that taskset keeps to some processors got threads on all those of the node. */
LADE_TEST(Topology, BoundThreadsStayWhereTheyMayRun) {
  ladei_topology *topology = NULL;
  cpu_set_t before, one, after;
  size_t last = CPU_SETSIZE - 1;
  int usable[MOST_NODES];
  LADE_ASSERT_OK(ladei_topology_load(LADEI_TOPOLOGY_SYSTEM, NULL, false, &topology));
  LADE_ASSERT_EQ_INT(sched_getaffinity(0, sizeof before, &before), 0);
  while (!CPU_ISSET(last, &before)) last--;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  LADE_ASSERT_EQ_INT(sched_setaffinity(0, sizeof one, &one), 0);
  for (size_t i = 0, count = usable_nodes(topology, usable); i < count; i++) {
    ladei_topology_bind_thread(topology, usable[i]);
    LADE_ASSERT_EQ_INT(sched_getaffinity(0, sizeof after, &after), 0);
    LADE_EXPECT(CPU_EQUAL(&one, &after));
  }
  LADE_EXPECT_EQ_INT(sched_setaffinity(0, sizeof before, &before), 0);
  ladei_topology_destroy(topology);
}

LADE_TEST(Topology, BadDescriptionsAreErrors) {
  ladei_topology *topology = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     ladei_topology_load(LADEI_TOPOLOGY_SYNTHETIC, "node:x", true, &topology));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     ladei_topology_load(LADEI_TOPOLOGY_XML, "/nonexistent", true, &topology));
  LADE_EXPECT_EQ_PTR(topology, NULL);
}

LADE_TEST(Topology, MemoryOnThisMachineCanBeBoundToEachOfItsNodes) {
  ladei_topology *topology = NULL;
  LADE_ASSERT_OK(ladei_topology_load(LADEI_TOPOLOGY_SYSTEM, NULL, true, &topology));
  int usable[MOST_NODES];
  size_t count = usable_nodes(topology, usable);
  LADE_EXPECT_GT_SIZE(count, 0);
  for (size_t i = 0; i < count; i++) {
    void *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LADE_ASSERT(area != MAP_FAILED);
    LADE_EXPECT_OK(ladei_topology_bind_area(topology, usable[i], area, 1 << 20, true));
    *(volatile char *)area = 1;
    munmap(area, 1 << 20);
  }
  ladei_topology_destroy(topology);
}

LADE_TEST(Topology, NodesAreDescribedWhetherUsableOrNot) {
  ladei_topology *topology = load_xml("0xd");
  ladei_topology_node nodes[4] = {{0}};
  LADE_ASSERT(topology != NULL);
  LADE_EXPECT_EQ_SIZE(ladei_topology_nodes(topology, nodes, 3), 4);
  LADE_EXPECT_EQ_UINT(nodes[3].cpu_count, 0); /* past the capacity */
  LADE_EXPECT_EQ_SIZE(ladei_topology_nodes(topology, nodes, 4), 4);
  for (int i = 0; i < 4; i++) {
    LADE_EXPECT_EQ_INT(nodes[i].os_index, i);
    LADE_EXPECT_EQ_INT(nodes[i].usable, i == 0 || i == 3);
    LADE_EXPECT_EQ_UINT(nodes[i].memory_bytes, i == 2 ? 0 : 1000000);
    LADE_EXPECT_EQ_UINT(nodes[i].cpu_count, 2);
    LADE_EXPECT_EQ_STR(nodes[i].cpus, i < 2 ? "0-1" : "2-3");
  }
  LADE_EXPECT(!ladei_topology_is_this_machine(topology));
  ladei_topology_destroy(topology);
}

LADE_TEST(Topology, ListsOfManyCpusEndInDots) {
  /* Even CPUs on one node, odd ones on the other. */
  char description[512] = "node:2 core:64 pu:1(indexes=0";
  size_t length = strlen(description);
  for (int i = 1; i < 128; i++)
    length += (size_t)snprintf(description + length, sizeof description - length, ",%d", i < 64 ? 2 * i : 2 * i - 127);
  snprintf(description + length, sizeof description - length, ")");
  ladei_topology *topology = synthetic(description);
  ladei_topology_node nodes[2];
  LADE_ASSERT(topology != NULL);
  LADE_ASSERT_EQ_SIZE(ladei_topology_nodes(topology, nodes, 2), 2);
  LADE_EXPECT_EQ_UINT(nodes[0].cpu_count, 64);
  LADE_EXPECT_EQ_SIZE(strlen(nodes[0].cpus), sizeof nodes[0].cpus - 1);
  LADE_EXPECT_CONTAINS_STR(nodes[0].cpus, "...");
  LADE_EXPECT_EQ_UINT(ladei_topology_distance(topology, 0, 1), 0); /* hwloc has no table of a made-up machine */
  ladei_topology_destroy(topology);
}
