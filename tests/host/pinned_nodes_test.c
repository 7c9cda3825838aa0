/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: NUMA nodes that are full, and systems that refuse to bind. */
#include <dlfcn.h>
#include <errno.h>
#include <hwloc.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pinned.h"
#include "host/api/pool.h"
#include "host/api/ring_alloc.h"
#include "host/source/topology.h"
#include "host/state/nodes.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

/* Instead of hwloc's own. */
static int bind_error;

int hwloc_set_area_membind(hwloc_topology_t topology, const void *address, size_t bytes, hwloc_const_bitmap_t set,
                           hwloc_membind_policy_t policy, int flags) {
  (void)topology, (void)address, (void)bytes, (void)set, (void)policy, (void)flags;
  errno = bind_error;
  return bind_error == 0 ? 0 : -1;
}

/* Before each load that reads the machine's PCI devices. */
static int device_loads;

int hwloc_topology_set_io_types_filter(hwloc_topology_t topology, enum hwloc_type_filter_e filter) {
  (void)topology, (void)filter;
  device_loads++;
  return 0;
}

/* All loads. */
static int loads;

int hwloc_topology_load(hwloc_topology_t topology) {
  int (*next)(hwloc_topology_t) = (int (*)(hwloc_topology_t))(uintptr_t)dlsym(RTLD_NEXT, "hwloc_topology_load");
  loads++;
  return next(topology);
}

/* ---- The node of a device ---------------------------------------------------------------------------------------- */

/* A pool of two devices whose runtime is taken for a GPU's: whether it is software's decides who is asked. */
static bool gpu_pool_open(pinned_fixture *own, const ladei_pinned_hooks *hooks, bool driver_knows) {
  support_description described;
  support_description_init(&described);
  for (int i = 0; i < SUPPORT_DEVICE_COUNT && !driver_knows; i++) described.devices[i].numa_node = 0;
  if (!pinned_fixture_open_on(own, support_interposer_open("sim", &described.options), NULL, hooks)) return false;
  device_loads = 0;
  own->runtime->software_device = NULL;
  return true;
}

static void gpu_pool_close(pinned_fixture *own) {
  own->runtime->software_device = support_inner(own->runtime)->software_device;
  pinned_fixture_close(own);
}

/* The bug: the first pinned memory of each pool waited 15 ms for hwloc to read the registers of all PCI devices, though the
 * driver had named the node. */
LADE_TEST(PinnedNodes, NodeThatTheDriverNamesTakesNoLookAtPciDevices) {
  pinned_fixture own;
  void *block = NULL;
  if (!gpu_pool_open(&own, &pinned_fixture_two_nodes, true)) return;
  LADE_EXPECT_OK(lade_pinned_alloc_near(own.pool, LADEI_MIB, 1, &block));
  LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, block).numa_node, 1);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_EQ_INT(device_loads, 0);
  gpu_pool_close(&own);
}

/* The bug: a pipeline loaded a topology of its own, and its first transfer waited for the pool's. */
LADE_TEST(PinnedNodes, PlaceOfARingLeavesNothingToLoadForItsFirstBlock) {
  pinned_fixture own;
  const ladei_topology *topology;
  void *block = NULL;
  if (!gpu_pool_open(&own, &pinned_fixture_two_nodes, true)) return;
  loads = 0;
  LADE_EXPECT_EQ_INT(ladei_pinned_ring_place(own.pool, 1, &topology), 1);
  LADE_EXPECT(topology != NULL);
  LADE_EXPECT_EQ_INT(loads, 1);
  LADE_EXPECT_OK(lade_pinned_alloc_near(own.pool, LADEI_MIB, 1, &block));
  LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, block).numa_node, 1);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_EQ_INT(loads, 1);
  gpu_pool_close(&own);
}

/* The node of a device that nobody names: the only one of this machine, or -1. */
static int node_by_itself(void) {
  ladei_topology *machine;
  LADE_EXPECT_OK(ladei_topology_load(LADEI_TOPOLOGY_SYSTEM, NULL, false, &machine));
  int node = ladei_topology_only_node(machine);
  ladei_topology_destroy(machine);
  return node;
}

/* Else the kernel is asked, and all PCI devices only where it does not know either, and there are several nodes. */
LADE_TEST(PinnedNodes, KernelNamesTheNodeOfAPciDevice) {
  const int only = node_by_itself(), looks = only >= 0 ? 0 : 1;
  const struct {
    const char *text;
    int node, loads;
  } cases[] = {{"7\n", 7, 0}, {"0\n", 0, 0}, {"-1\n", only, looks}, {NULL, only, looks}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    support_temp_dir root;
    pinned_fixture own;
    int node;
    if (!support_temp_dir_create(&root)) return;
    const ladei_pinned_hooks hooks = {.root = root.path};
    if (cases[i].text != NULL)
      support_temp_dir_write(&root, "sys/bus/pci/devices/ffff:01:00.0/numa_node", cases[i].text);
    if (gpu_pool_open(&own, &hooks, false)) {
      LADE_EXPECT_OK(ladei_pinned_pool_nearest_node(own.pool, 1, &node));
      LADE_EXPECT_EQ_INT(node, cases[i].node);
      LADE_EXPECT_EQ_INT(device_loads, cases[i].loads);
      gpu_pool_close(&own);
    }
    support_temp_dir_remove(&root);
  }
}

/* The bug: on virtual machines, whose kernels name no node, the first pinned memory waited for the registers of all PCI
 * devices, though there was one node to find. */
LADE_TEST(PinnedNodes, MachineOfOneNodeTakesNoLookAtPciDevices) {
  static const struct {
    const char *machine;
    int node, loads;
  } cases[] = {{"node:1 core:2 pu:1", 0, 0}, {"node:2 core:2 pu:1", -1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const ladei_pinned_hooks hooks = {LADEI_TOPOLOGY_SYNTHETIC, cases[i].machine, NULL, 0, 0};
    pinned_fixture own;
    int node;
    if (!gpu_pool_open(&own, &hooks, false)) return;
    LADE_EXPECT_OK(ladei_pinned_pool_nearest_node(own.pool, 1, &node));
    LADE_EXPECT_EQ_INT(node, cases[i].node);
    LADE_EXPECT_EQ_INT(device_loads, cases[i].loads);
    gpu_pool_close(&own);
  }
}

LADE_TEST(PinnedNodes, KernelWritesPciAddressesInSmallLetters) {
  support_temp_dir root;
  if (!support_temp_dir_create(&root)) return;
  support_temp_dir_write(&root, "sys/bus/pci/devices/0000:1b:00.0/numa_node", "3\n");
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci_file(root.path, "0000:1B:00.0"), 3);
  LADE_EXPECT_EQ_INT(ladei_topology_node_of_pci_file(root.path, "0000:1C:00.0"), -1);
  support_temp_dir_remove(&root);
}

/* ---- Full nodes -------------------------------------------------------------------------------------------------- */

/* A machine of two nodes; node 0 has `free_kib` that nobody uses and 1 MiB of page cache, node 1 a GiB. */
typedef struct machine {
  support_temp_dir root;
  ladei_pinned_hooks hooks;
} machine;

static bool machine_make(machine *own, unsigned free_kib) {
  char text[256];
  if (!support_temp_dir_create(&own->root)) return false;
  snprintf(text, sizeof text,
           "Node 0 MemTotal:  9999 kB\nNode 0 MemFree:  %u kB\nNode 0 Active(file):  1000 kB\n"
           "Node 0 Inactive(file):  24 kB\n",
           free_kib);
  support_temp_dir_write(&own->root, "sys/devices/system/node/node0/meminfo", text);
  support_temp_dir_write(&own->root, "sys/devices/system/node/node1/meminfo", "Node 1 MemFree: 1048576 kB\n");
  own->hooks = pinned_fixture_two_nodes;
  own->hooks.root = own->root.path;
  return true;
}

/* The kernel's killer came for who bound memory to a full node. */
LADE_TEST(PinnedNodes, StrictRequestsOfAFullNodeFailBeforeTheyAreMade) {
  machine small;
  pinned_fixture own;
  void *block = NULL;
  if (!machine_make(&small, 3 * 1024)) return;
  for (uint32_t strict = 0; strict <= 1; strict++) {
    lade_pinned_options options = pinned_fixture_options();
    options.flags = strict != 0 ? LADE_PINNED_NUMA_STRICT : 0;
    if (!pinned_fixture_open_on(&own, support_interposer_open("sim", NULL), &options, &small.hooks)) return;
    lade_status status = ladei_pinned_alloc_on(own.pool, 5 * LADEI_MIB, 0, &block);
    LADE_EXPECT_EQ_INT(status, strict != 0 ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_OK);
    LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), strict != 0 ? 0 : 1);
    if (strict != 0) {
      LADE_EXPECT_CONTAINS_STR(lade_last_error()->text,
                               "NUMA node 0 has 4194304 bytes free, page cache included; 5242880 are asked for");
    } else {
      LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    }
    LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 4 * LADEI_MIB, 0, &block)); /* that much there is */
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 5 * LADEI_MIB, 1, &block));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    pinned_fixture_close(&own);
  }
  support_temp_dir_remove(&small.root);
}

/* Segments are touched ahead: what is not touched yet counts, and what is does not count twice. */
LADE_TEST(PinnedNodes, StrictReservesAskTheNodeForEachSegment) {
  static const unsigned free_kib[] = {3 * 1024, 512};
  for (int i = 0; i < 2; i++) {
    machine small;
    pinned_fixture own;
    lade_pinned_options options = pinned_fixture_options();
    options.flags = LADE_PINNED_NUMA_STRICT;
    options.prefault_threads = 3;
    if (!machine_make(&small, free_kib[i])) return;
    if (!pinned_fixture_open_on(&own, support_interposer_open("cpu", NULL), &options, &small.hooks)) return;
    uint64_t bytes = 4 * PINNED_FIXTURE_SEGMENT_BYTES;
    lade_status status = lade_pinned_reserve(own.pool, bytes, 0);
    LADE_EXPECT_EQ_INT(status, i == 0 ? LADE_OK : LADE_ERR_OUT_OF_PINNED_MEMORY);
    if (i == 1) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "NUMA node 0 has 1572864 bytes free");
    LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), i == 0 ? 4 : 0);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, i == 0 ? bytes : 0);
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
    pinned_fixture_close(&own);
    support_temp_dir_remove(&small.root);
  }
}

typedef struct bound_thread {
  const ladei_pinned_hooks *hooks;
  bool bound; /* the system lets it */
} bound_thread;

/* As a program under numactl --membind=0. */
static void *allocate_bound(void *user) {
  bound_thread *thread = user;
  unsigned long node_0 = 1;
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *block = NULL;
  thread->bound = syscall(SYS_set_mempolicy, MPOL_BIND, &node_0, 8 * sizeof node_0) == 0;
  if (!thread->bound) return NULL;
  if (!pinned_fixture_open_on(&own, support_interposer_open("sim", NULL), &options, thread->hooks)) return NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, ladei_pinned_alloc_on(own.pool, 5 * LADEI_MIB, -1, &block));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "bound to have 4194304 bytes free, page cache included; 5242880");
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), 0);
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 4 * LADEI_MIB, -1, &block));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 5 * LADEI_MIB, 1, &block)); /* preferred there: our word, not theirs */
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  pinned_fixture_close(&own);
  return NULL;
}

LADE_TEST(PinnedNodes, RequestsOfAThreadThatIsBoundToAFullNodeFailBeforeTheyAreMade) {
  machine small;
  pthread_t thread;
  if (!machine_make(&small, 3 * 1024)) return;
  bound_thread bound = {&small.hooks, false};
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, allocate_bound, &bound), 0);
  pthread_join(thread, NULL);
  support_temp_dir_remove(&small.root);
  if (!bound.bound) LADE_SKIP("the system does not let a thread bind its memory");
}

LADE_TEST(PinnedNodes, NodesThatNothingIsKnownOfLimitNothing) {
  ladei_pinned_hooks hooks = pinned_fixture_two_nodes;
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  void *block = NULL;
  hooks.root = "/nonexistent";
  options.flags = LADE_PINNED_NUMA_STRICT;
  if (!pinned_fixture_open_on(&own, support_interposer_open("sim", NULL), &options, &hooks)) return;
  LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, 8 * LADEI_MIB, 0, &block));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  pinned_fixture_close(&own);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

/* As in a container: what is strict fails, and is not served from wherever the system likes; the rest is. */
LADE_TEST(PinnedNodes, SystemThatRefusesToBindFailsStrictPoolsOnly) {
  static const lade_pinned_source sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_PAGEABLE};
  for (uint32_t i = 0; i < 4; i++) {
    lade_pinned_options options = pinned_fixture_options();
    bool strict = (i & 1) != 0;
    pinned_fixture own;
    void *block = NULL;
    options.sources = sources[i / 2];
    options.flags = strict ? LADE_PINNED_NUMA_STRICT : 0;
    if (!pinned_fixture_open_on(&own, support_interposer_open("sim", NULL), &options, &pinned_fixture_two_nodes))
      return;
    bind_error = EPERM;
    lade_status status = ladei_pinned_alloc_on(own.pool, LADEI_MIB, 1, &block);
    bind_error = 0;
    LADE_EXPECT_EQ_INT(status, strict ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_OK);
    if (strict) {
      LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EPERM);
      LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "cannot bind 1048576 bytes to NUMA node 1");
      LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), 0);
      LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
      LADE_EXPECT_OK(ladei_pinned_alloc_on(own.pool, LADEI_MIB, 1, &block)); /* refused once, and not for ever */
    }
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    pinned_fixture_close(&own);
  }
}
