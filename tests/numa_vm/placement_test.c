/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Where pinned memory really lies, page by page, on a machine with two NUMA nodes. Elsewhere these
 * tests are skipped: tests/numa_vm/run starts a virtual machine that has two, with a PCI display on each in place of a
 * GPU.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/source/topology.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"

enum { PAGE_BYTES = 4096, BLOCK_BYTES = 8 << 20, BLOCK_PAGES = BLOCK_BYTES / PAGE_BYTES, NODES = 2 };

/* Device 0 on node 0, device 1 on node 1, device 2 on a node that nobody knows. */
static lade_runtime *runtime_open(void) {
  static const lade_soft_device devices[] = {{.numa_node = 1}, {.numa_node = 2}, {.numa_node = 0}};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = devices;
  soft.device_count = 3;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  lade_runtime *runtime = NULL;
  LADE_EXPECT_OK(lade_runtime_open("cpu", &options, &runtime));
  return runtime;
}

static ladei_topology *topology_load(void) {
  ladei_topology *topology = NULL;
  LADE_EXPECT_OK(ladei_topology_load(LADEI_TOPOLOGY_SYSTEM, NULL, true, &topology));
  return topology;
}

#define SKIP_UNLESS_TWO_NODES()                                                                                        \
  if (access("/sys/devices/system/node/node1", F_OK) != 0)                                                             \
  LADE_SKIP("this machine has one NUMA node; tests/numa_vm/run starts one with two")

/* Pages of touched memory on each node, as the kernel says. A page that it does not tell is counted nowhere. */
static void pages_count(const void *memory, size_t bytes, size_t counts[NODES]) {
  size_t pages = bytes / PAGE_BYTES;
  void **addresses = calloc(pages, sizeof *addresses);
  int *nodes = calloc(pages, sizeof *nodes);
  LADE_ASSERT(addresses != NULL && nodes != NULL);
  for (size_t i = 0; i < pages; i++) addresses[i] = (char *)(uintptr_t)memory + i * PAGE_BYTES;
  LADE_EXPECT_EQ_INT(syscall(SYS_move_pages, 0, pages, addresses, NULL, nodes, 0), 0);
  for (size_t i = 0; i < pages; i++)
    if (nodes[i] >= 0 && nodes[i] < NODES) counts[nodes[i]]++;
  free(addresses);
  free(nodes);
}

static void expect_on_node(const void *memory, size_t bytes, int node) {
  size_t counts[NODES] = {0};
  pages_count(memory, bytes, counts);
  LADE_EXPECT_EQ_SIZE(counts[node], bytes / PAGE_BYTES);
}

static void *block_near(lade_pinned_pool *pool, int device) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc_near(pool, BLOCK_BYTES, device, &block));
  if (block != NULL) memset(block, 0xa5, BLOCK_BYTES);
  return block;
}

static void expect_node_told(lade_pinned_pool *pool, const void *block, int node) {
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_OK(lade_pinned_find(pool, block, &info));
  LADE_EXPECT_EQ_INT(info.numa_node, node);
}

/* The control for all others: the count tells nodes apart for memory that lade has nothing to do with. */
LADE_TEST(NumaVm, CountsPagesWhereTheyWereTouchedFirst) {
  SKIP_UNLESS_TWO_NODES();
  ladei_topology *topology = topology_load();
  cpu_set_t all;
  LADE_ASSERT_EQ_INT(sched_getaffinity(0, sizeof all, &all), 0);
  for (int node = 0; node < NODES; node++) {
    LADE_ASSERT_EQ_INT(sched_setaffinity(0, sizeof all, &all), 0); /* a thread is bound within its mask */
    ladei_topology_bind_thread(topology, node);
    void *memory = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LADE_ASSERT(memory != MAP_FAILED);
    memset(memory, 1, BLOCK_BYTES);
    expect_on_node(memory, BLOCK_BYTES, node);
    munmap(memory, BLOCK_BYTES);
  }
  LADE_ASSERT_EQ_INT(sched_setaffinity(0, sizeof all, &all), 0);
  ladei_topology_destroy(topology);
}

LADE_TEST(NumaVm, FindsTheNodeOfAPciDevice) {
  SKIP_UNLESS_TWO_NODES();
  ladei_topology *topology = topology_load();
  LADE_EXPECT_EQ_SIZE(ladei_topology_nodes(topology, NULL, 0), NODES);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci(topology, "0000:41:00.0"), 0);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci(topology, "0000:81:00.0"), 1);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci(topology, "0000:99:00.0"), -1);
  ladei_topology_destroy(topology);
}

/* From a thread on the other node, so that first touch alone would put the pages on the wrong one. */
LADE_TEST(NumaVm, PutsBlocksOnTheNodeOfTheirDevice) {
  SKIP_UNLESS_TWO_NODES();
  lade_runtime *runtime = runtime_open();
  ladei_topology *topology = topology_load();
  lade_pinned_pool *pool = NULL;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  for (int device = 0; device < NODES; device++) {
    ladei_topology_bind_thread(topology, NODES - 1 - device);
    void *block = block_near(pool, device);
    expect_on_node(block, BLOCK_BYTES, device);
    expect_node_told(pool, block, device);
    LADE_EXPECT_OK(lade_pinned_free(pool, block));
  }
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  ladei_topology_destroy(topology);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(NumaVm, GivesAFreedBlockBackToItsOwnNode) {
  SKIP_UNLESS_TWO_NODES();
  lade_runtime *runtime = runtime_open();
  lade_pinned_pool *pool = NULL;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  void *far = block_near(pool, 1);
  LADE_EXPECT_OK(lade_pinned_free(pool, far));
  void *near = block_near(pool, 0);
  LADE_EXPECT_NE_PTR(near, far);
  expect_on_node(near, BLOCK_BYTES, 0);
  void *far_again = block_near(pool, 1);
  LADE_EXPECT_EQ_PTR(far_again, far);
  LADE_EXPECT_OK(lade_pinned_free(pool, near));
  LADE_EXPECT_OK(lade_pinned_free(pool, far_again));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(NumaVm, ServesADeviceWhoseNodeNobodyKnows) {
  SKIP_UNLESS_TWO_NODES();
  lade_runtime *runtime = runtime_open();
  lade_pinned_pool *pool = NULL;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  void *block = block_near(pool, 2);
  size_t counts[NODES] = {0};
  pages_count(block, BLOCK_BYTES, counts);
  LADE_EXPECT_EQ_SIZE(counts[0] + counts[1], BLOCK_PAGES);
  expect_node_told(pool, block, -1);
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

/* Bytes of the mapping around `memory` that lie in transparent huge pages. */
static size_t huge_bytes(const void *memory) {
  FILE *smaps = fopen("/proc/self/smaps", "r");
  char line[512];
  size_t kib = 0;
  bool inside = false;
  while (smaps != NULL && fgets(line, sizeof line, smaps) != NULL) {
    uintptr_t begin, end;
    if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) inside = begin <= (uintptr_t)memory && (uintptr_t)memory < end;
    if (inside && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1) break;
  }
  if (smaps != NULL) fclose(smaps);
  return kib * 1024;
}

LADE_TEST(NumaVm, AsksForHugePages) {
  SKIP_UNLESS_TWO_NODES();
  lade_runtime *runtime = runtime_open();
  lade_pinned_pool *pool = NULL;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  void *block = block_near(pool, 1);
  LADE_EXPECT_GE_SIZE(huge_bytes(block), BLOCK_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(NumaVm, BindsReadersToTheNodeOfTheDevice) {
  SKIP_UNLESS_TWO_NODES();
  lade_runtime *runtime = runtime_open();
  for (int device = 0; device < NODES; device++) {
    lade_pinned_pool *pool = NULL;
    lade_pipeline *pipeline = NULL;
    LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
    lade_pipeline_options options;
    lade_pipeline_options_init(&options);
    options.device = device;
    LADE_ASSERT_OK(lade_pipeline_create(runtime, pool, &options, &pipeline));
    lade_pipeline_info info;
    lade_pipeline_info_init(&info);
    LADE_EXPECT_OK(lade_pipeline_info_get(pipeline, &info));
    LADE_EXPECT_EQ_INT(info.numa_node, device);
    LADE_EXPECT_OK(lade_pipeline_destroy(pipeline, false));
    LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  }
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}
