/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA topology by hwloc.
 *
 * I1  A loaded topology is not changed any more: all calls but load and destroy may come from any thread.
 * I2  Nodes are told apart by OS index everywhere; hwloc's logical indexes do not leave this file.
 * Locks: none.
 */
#include "host/source/topology.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file_number.h"

struct ladei_topology {
  hwloc_topology_t hwloc;
};

static lade_status fail(const char *what, const char *description) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, errno, "topology: %s%s%s", what, description == NULL ? "" : " ",
                     description == NULL ? "" : description);
}

/* hwloc 2.9 stops the process (an assertion) where this folder is there and names no node, as sandboxes may show it. */
static bool nodes_are_hidden(void) {
  DIR *folder = opendir("/sys/devices/system/node");
  const struct dirent *entry;
  bool hidden = folder != NULL;
  while (hidden && (entry = readdir(folder)) != NULL)
    hidden = strncmp(entry->d_name, "node", 4) != 0 || !isdigit((unsigned char)entry->d_name[4]);
  if (folder != NULL) closedir(folder);
  return hidden;
}

/*
 * Where the kernel names the nodes, hwloc need not ask each processor: it visits all of them for that, and each CPUID
 * stops a virtual machine. 2 processors: 5 ms, without that 1.
 */
static void components_choose(hwloc_topology_t hwloc) {
  const char *spared = nodes_are_hidden() ? "linux" : "x86";
  hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, spared);
}

static lade_status source_set(hwloc_topology_t hwloc, ladei_topology_kind kind, const char *description) {
  if (kind == LADEI_TOPOLOGY_SYSTEM) components_choose(hwloc);
  if (kind == LADEI_TOPOLOGY_SYNTHETIC && hwloc_topology_set_synthetic(hwloc, description) != 0)
    return fail("hwloc refuses the synthetic description", description);
  if (kind == LADEI_TOPOLOGY_XML && hwloc_topology_set_xml(hwloc, description) != 0)
    return fail("hwloc cannot read the XML file", description);
  return LADE_OK;
}

lade_status ladei_topology_load(ladei_topology_kind kind, const char *description, bool devices, ladei_topology **out) {
  ladei_topology *topology = calloc(1, sizeof *topology);
  if (topology == NULL || hwloc_topology_init(&topology->hwloc) != 0) {
    free(topology);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "topology: out of memory");
  }
  /* Nodes that a cpuset keeps from this process stay visible: a device may be near to one. */
  hwloc_topology_set_flags(topology->hwloc, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (devices) hwloc_topology_set_io_types_filter(topology->hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  lade_status status = source_set(topology->hwloc, kind, description);
  if (status == LADE_OK && hwloc_topology_load(topology->hwloc) != 0)
    status = fail("hwloc cannot load the topology", description);
  if (status != LADE_OK) {
    hwloc_topology_destroy(topology->hwloc);
    free(topology);
    return status;
  }
  *out = topology;
  return LADE_OK;
}

void ladei_topology_destroy(ladei_topology *topology) {
  if (topology != NULL) {
    hwloc_topology_destroy(topology->hwloc);
    free(topology);
  }
}

void ladei_topologies_init(ladei_topologies *own, ladei_topology_kind kind, const char *description) {
  *own = (ladei_topologies){.kind = kind, .description = description};
  ladei_lock_init(&own->lock, LADEI_RANK_TOPOLOGY);
}

void ladei_topologies_destroy(ladei_topologies *own) {
  for (int i = 0; i < 2; i++) ladei_topology_destroy(own->made[i].loaded);
  ladei_lock_destroy(&own->lock);
}

const ladei_topology *ladei_topologies_get(ladei_topologies *own, bool devices) {
  lade_error saved;
  ladei_error_save(&saved);
  ladei_lock_acquire(&own->lock);
  if (!own->made[devices].tried) {
    own->made[devices].tried = true;
    if (ladei_topology_load(own->kind, own->description, devices, &own->made[devices].loaded) != LADE_OK)
      ladei_error_restore(&saved);
  }
  const ladei_topology *topology = own->made[devices].loaded;
  ladei_lock_release(&own->lock);
  return topology;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static bool node_is_usable(const ladei_topology *topology, hwloc_obj_t node) {
  return node->attr->numanode.local_memory != 0 &&
         hwloc_bitmap_isset(hwloc_topology_get_allowed_nodeset(topology->hwloc), node->os_index) != 0;
}

static hwloc_obj_t node_by_os_index(const ladei_topology *topology, int node) {
  return node < 0 ? NULL : hwloc_get_numanode_obj_by_os_index(topology->hwloc, (unsigned)node);
}

int ladei_topology_node_of_pci_file(const char *root, const char *bus_id) {
  char path[4096];
  uint64_t node;
  int length = snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/numa_node", root, bus_id);
  if (length < 0 || (size_t)length >= sizeof path) return -1;
  for (char *at = path + strlen(root); *at != '\0'; at++)
    *at = (char)tolower((unsigned char)*at);                                     /* drivers write 0000:1B */
  return ladei_file_number(path, "", &node) && node <= INT_MAX ? (int)node : -1; /* it says -1 where it knows none */
}

int ladei_topology_only_node(const ladei_topology *topology) {
  hwloc_obj_t first = hwloc_get_next_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, NULL);
  bool only = first != NULL && hwloc_get_next_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, first) == NULL;
  return only ? (int)first->os_index : -1;
}

int ladei_topology_node_of_pci(const ladei_topology *topology, const char *bus_id) {
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology->hwloc, bus_id);
  if (device == NULL) return -1;
  hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology->hwloc, device);
  /* A device below the whole machine is near to every node, that is, to none in particular. */
  return hwloc_bitmap_weight(place->nodeset) == 1 ? hwloc_bitmap_first(place->nodeset) : -1;
}

/* By the machine's own table, the first of several; 0 where it has none. */
static unsigned long table_distance(const ladei_topology *topology, hwloc_obj_t from, hwloc_obj_t to) {
  struct hwloc_distances_s *table;
  unsigned count = 1; /* asked for; the answer is how many there are, of which the first has been given */
  unsigned long value = 0;
  if (hwloc_distances_get_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, &count, &table,
                                  HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) == 0 &&
      count >= 1) {
    hwloc_uint64_t there, back;
    if (hwloc_distances_obj_pair_values(table, from, to, &there, &back) == 0) value = (unsigned long)there;
    hwloc_distances_release(topology->hwloc, table);
  }
  return value;
}

/* How far a node is from another: by the machine's own table, or by how much of the tree they share. */
static unsigned long distance(const ladei_topology *topology, hwloc_obj_t from, hwloc_obj_t to) {
  unsigned long value = table_distance(topology, from, to);
  if (value == 0) {
    hwloc_obj_t shared = hwloc_get_common_ancestor_obj(topology->hwloc, from->parent, to->parent);
    value = 1000ul - (unsigned long)shared->depth;
  }
  return value;
}

int ladei_topology_usable_node(const ladei_topology *topology, int node) {
  hwloc_obj_t wanted = node_by_os_index(topology, node);
  if (wanted == NULL || node_is_usable(topology, wanted)) return wanted == NULL ? -1 : node;
  hwloc_obj_t best = NULL;
  for (hwloc_obj_t other = NULL;
       (other = hwloc_get_next_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, other)) != NULL;)
    if (node_is_usable(topology, other) &&
        (best == NULL || distance(topology, wanted, other) < distance(topology, wanted, best)))
      best = other;
  return best == NULL ? -1 : (int)best->os_index;
}

/* ---- Description ------------------------------------------------------------------------------------------------- */

static void node_describe(const ladei_topology *topology, hwloc_obj_t node, ladei_topology_node *out) {
  *out = (ladei_topology_node){.os_index = (int)node->os_index,
                               .usable = node_is_usable(topology, node),
                               .memory_bytes = node->attr->numanode.local_memory};
  int cpus = hwloc_bitmap_weight(node->cpuset);
  out->cpu_count = cpus < 0 ? 0 : (unsigned)cpus;
  int length = hwloc_bitmap_list_snprintf(out->cpus, sizeof out->cpus, node->cpuset);
  if (length >= (int)sizeof out->cpus) strcpy(out->cpus + sizeof out->cpus - sizeof "...", "...");
}

size_t ladei_topology_nodes(const ladei_topology *topology, ladei_topology_node *out, size_t capacity) {
  size_t count = 0;
  for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL;
       count++)
    if (count < capacity) node_describe(topology, node, &out[count]);
  return count;
}

unsigned long ladei_topology_distance(const ladei_topology *topology, int from, int to) {
  hwloc_obj_t start = node_by_os_index(topology, from);
  hwloc_obj_t end = node_by_os_index(topology, to);
  return start == NULL || end == NULL ? 0 : table_distance(topology, start, end);
}

bool ladei_topology_is_this_machine(const ladei_topology *topology) {
  return hwloc_topology_is_thissystem(topology->hwloc) != 0;
}

/* ---- Binding ----------------------------------------------------------------------------------------------------- */

lade_status ladei_topology_bind_area(const ladei_topology *topology, int node, void *address, size_t bytes,
                                     bool strict) {
  hwloc_obj_t object = node_by_os_index(topology, node);
  if (object == NULL) return ladei_error_argument("topology", "node", "a NUMA node of the machine", "%d", node);
  int flags = HWLOC_MEMBIND_BYNODESET | (strict ? HWLOC_MEMBIND_STRICT : 0);
  if (hwloc_set_area_membind(topology->hwloc, address, bytes, object->nodeset, HWLOC_MEMBIND_BIND, flags) != 0) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, errno, "topology: cannot bind %zu bytes to NUMA node %d", bytes,
                       node);
  }
  return LADE_OK;
}

void ladei_topology_bind_thread(const ladei_topology *topology, int node) {
  hwloc_obj_t object = node_by_os_index(topology, node);
  hwloc_bitmap_t near = object == NULL ? NULL : hwloc_bitmap_alloc();
  if (near == NULL) return;
  /* Only speed is at stake: a thread that may not move, or may not run there, works from where it is. */
  if (hwloc_get_cpubind(topology->hwloc, near, HWLOC_CPUBIND_THREAD) == 0 &&
      hwloc_bitmap_and(near, near, object->cpuset) == 0 && !hwloc_bitmap_iszero(near))
    (void)hwloc_set_cpubind(topology->hwloc, near, HWLOC_CPUBIND_THREAD);
  hwloc_bitmap_free(near);
}
