/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA topology by hwloc: which node a device is near to, which nodes this process may use, binding of memory and
 * threads. Nodes are named by their OS index, -1 meaning "unknown" or "none in particular".
 *
 * Loading takes a millisecond, with devices fifteen, as each one's registers are read. A pool loads it once, when it
 * first pins memory for a device whose node matters; the one with devices only on a machine of several nodes, where
 * neither the driver nor the kernel names the device's.
 */
#ifndef LADE_HOST_SOURCE_TOPOLOGY_H
#define LADE_HOST_SOURCE_TOPOLOGY_H

#include "base/lock.h"
#include "lade/status.h"

typedef struct ladei_topology ladei_topology;

typedef enum ladei_topology_kind {
  LADEI_TOPOLOGY_SYSTEM = 0,    /* this machine as this process may use it; HWLOC_XMLFILE is honoured by hwloc */
  LADEI_TOPOLOGY_SYNTHETIC = 1, /* description: hwloc's synthetic syntax */
  LADEI_TOPOLOGY_XML = 2,       /* description: path of an XML file */
} ladei_topology_kind;

/* `devices`: PCI devices too, which takes most of the time. Binding on a topology that is not this machine's succeeds
 * and does nothing. */
lade_status ladei_topology_load(ladei_topology_kind kind, const char *description, bool devices, ladei_topology **out);
void ladei_topology_destroy(ladei_topology *topology);

/* The topology of one machine, without and with devices, each loaded when it is first asked for. */
typedef struct ladei_topologies {
  ladei_topology_kind kind; /* constant, as the next */
  const char *description;  /* borrowed */
  ladei_lock lock;          /* guards the rest until it is tried; constant afterwards */
  struct {
    ladei_topology *loaded; /* NULL: it cannot be */
    bool tried;
  } made[2];
} ladei_topologies;

void ladei_topologies_init(ladei_topologies *own, ladei_topology_kind kind, const char *description);
void ladei_topologies_destroy(ladei_topologies *own);
/* NULL: it cannot be loaded; touches no error record. No lock held. */
const ladei_topology *ladei_topologies_get(ladei_topologies *own, bool devices);

/* Node of the PCI device "0000:41:00.0" as the kernel names it, without any topology; -1 where it does not. `root`
 * stands before /sys: "" for this machine, a folder for tests. */
int ladei_topology_node_of_pci_file(const char *root, const char *bus_id);

/* The node of a machine that has no other one; -1 where there are several. */
int ladei_topology_only_node(const ladei_topology *topology);

/* Node of the PCI device "0000:41:00.0"; -1 where the machine has no such device or does not say its node. */
int ladei_topology_node_of_pci(const ladei_topology *topology, const char *bus_id);

/* The node to take memory from in place of `node`: itself if it has memory and is allowed, otherwise the nearest such
 * one; -1 for a node that does not exist. */
int ladei_topology_usable_node(const ladei_topology *topology, int node);

/* A node as it is shown to people. */
typedef struct ladei_topology_node {
  int os_index;
  bool usable; /* has memory, and this process may use it */
  uint64_t memory_bytes;
  unsigned cpu_count;
  char cpus[64]; /* "0-3,8"; ends in "..." where there are too many ranges */
} ladei_topology_node;

/* Describes the first `capacity` of all nodes, usable or not, and returns how many there are. */
size_t ladei_topology_nodes(const ladei_topology *topology, ladei_topology_node *out, size_t capacity);

/* Distance between two nodes as the machine states it, 10 being the way to oneself; 0 where it does not say. */
unsigned long ladei_topology_distance(const ladei_topology *topology, int from, int to);

/* Whether this machine is described, not a made-up one. */
bool ladei_topology_is_this_machine(const ladei_topology *topology);

/* Binds an area to a node before it is touched. strict: pages from elsewhere are an error, not a fallback. */
lade_status ladei_topology_bind_area(const ladei_topology *topology, int node, void *address, size_t bytes,
                                     bool strict);

/* Binds the calling thread to those CPUs near a node that it may run on; where there is none it stays as it is. */
void ladei_topology_bind_thread(const ladei_topology *topology, int node);

#endif /* LADE_HOST_SOURCE_TOPOLOGY_H */
