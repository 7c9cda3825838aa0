/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of a pool: made when they are first asked for, found by device.
 *
 * N1  nodes[0 .. node_count) are there and have different os_index; a node's segments have its index.
 * N2  The topology is loaded at most once, and only for a device whose node is not known to be none in particular; the
 *     one with devices, which takes ten times as long, only for a device whose node is not named, among several nodes.
 * Locks: pool->lock for adding nodes; that of the topologies for loading. Neither is held when the driver is called.
 */
#include "host/state/nodes.h"

#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"

/* Without a topology memory lies where the system puts it, which is a matter of speed only. */
const ladei_topology *ladei_pinned_pool_topology(lade_pinned_pool *pool) {
  return ladei_topologies_get(&pool->sources.topologies, false);
}

/* Of a device whose driver does not know it. The cheapest question comes first. */
static int node_of_pci(lade_pinned_pool *pool, const char *bus_id) {
  bool this_machine = pool->sources.topologies.kind == LADEI_TOPOLOGY_SYSTEM;
  int node = this_machine ? ladei_topology_node_of_pci_file(pool->sources.root, bus_id) : -1;
  const ladei_topology *topology = node >= 0 ? NULL : ladei_pinned_pool_topology(pool);
  if (topology == NULL) return node;
  node = ladei_topology_only_node(topology);
  topology = node >= 0 ? NULL : ladei_topologies_get(&pool->sources.topologies, true);
  return topology == NULL ? node : ladei_topology_node_of_pci(topology, bus_id);
}

lade_status ladei_pinned_pool_nearest_node(lade_pinned_pool *pool, int device, int *out) {
  ladei_device_properties properties;
  LADEI_TRY(pool->runtime->ops->device_properties(pool->runtime->self, device, &properties));
  *out = properties.numa_node < 0 ? -1 : properties.numa_node;
  /* The PCI address of a software device names no device of this machine. */
  if (*out < 0 && !pool->runtime->software_device) *out = node_of_pci(pool, properties.pci_bus_id);
  return LADE_OK;
}

/* OS index of the NUMA node to use for a device; -1: none in particular. */
static lade_status os_node_of_device(lade_pinned_pool *pool, int device, int *out) {
  int nearest;
  LADEI_TRY(ladei_pinned_pool_nearest_node(pool, device, &nearest));
  const ladei_topology *topology = nearest < 0 ? NULL : ladei_pinned_pool_topology(pool);
  *out = topology == NULL ? -1 : ladei_topology_usable_node(topology, nearest);
  return LADE_OK;
}

static ladei_pinned_node *node_find(const lade_pinned_pool *pool, int os_node) {
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_node *node = ladei_pinned_pool_node(pool, i);
    if (node->os_index == os_node) return node;
  }
  return NULL;
}

/* As much as threads may keep, where they keep anything. */
static size_t depot_bytes(const lade_pinned_pool *pool) {
  return pool->policy->uses_thread_caches && ladei_pinned_pool_keeps_lists(pool) ? pool->settings.magazine_bytes : 0;
}

/* The cache of an OS node, made if need be. Past the table's end: the first one. */
static lade_status node_acquire(lade_pinned_pool *pool, int os_node, ladei_pinned_node **out) {
  ladei_lock_acquire(&pool->lock);
  ladei_pinned_node *node = node_find(pool, os_node);
  uint32_t count = ladei_pinned_pool_node_count(pool);
  if (node == NULL && count == LADEI_PINNED_MAX_NODES) node = ladei_pinned_pool_node(pool, 0);
  if (node == NULL) {
    ladei_pinned_thread_counters *exited = ladei_pinned_thread_counters_create(count, pool->policy->uses_thread_caches);
    node =
        exited == NULL ? NULL : ladei_pinned_node_create(&pool->map, pool->retire, count, os_node, depot_bytes(pool));
    if (node == NULL) {
      free(exited);
    } else {
      atomic_store_explicit(&pool->threads.exited[count], exited, memory_order_release);
      atomic_store_explicit(&pool->nodes.list[count], node, memory_order_release);
      atomic_store_explicit(&pool->nodes.count, count + 1, memory_order_release);
    }
  }
  ladei_lock_release(&pool->lock);
  if (node == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for the cache of NUMA node %d", os_node);
  *out = node;
  return LADE_OK;
}

lade_status ladei_pinned_pool_node_of_device(lade_pinned_pool *pool, int device, const char *call,
                                             ladei_pinned_node **out) {
  if (device < 0 || device >= pool->nodes.device_count)
    return ladei_error(LADE_ERR_NO_DEVICE, 0, "%s: device is %d; expected 0 to %d", call, device,
                       pool->nodes.device_count - 1);
  int32_t index = atomic_load_explicit(&pool->nodes.of_devices[device], memory_order_acquire);
  if (index != LADEI_PINNED_NODE_UNRESOLVED) {
    *out = ladei_pinned_pool_node(pool, (uint32_t)index);
    return LADE_OK;
  }
  int os_node;
  int cancellation = ladei_cancellation_hold();
  lade_status status = os_node_of_device(pool, device, &os_node);
  if (status == LADE_OK) status = node_acquire(pool, os_node, out);
  if (status == LADE_OK) {
    atomic_store_explicit(&pool->nodes.of_devices[device], (int32_t)(*out)->index, memory_order_release);
    if (device == pool->settings.device)
      atomic_store_explicit(&pool->nodes.home, (int32_t)(*out)->index, memory_order_release);
  }
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status ladei_pinned_pool_node_of_os(lade_pinned_pool *pool, int os_node, const char *call,
                                         ladei_pinned_node **out) {
  int cancellation = ladei_cancellation_hold();
  const ladei_topology *topology = os_node < 0 ? NULL : ladei_pinned_pool_topology(pool);
  ladei_cancellation_resume(cancellation);
  if (os_node >= 0 && (topology == NULL || ladei_topology_usable_node(topology, os_node) != os_node)) {
    return ladei_error_argument(call, "numa_node", "-1, or a NUMA node with memory that this process may use", "%d",
                                os_node);
  }
  return node_acquire(pool, os_node < 0 ? -1 : os_node, out);
}

/* ---- Blocks that go back ----------------------------------------------------------------------------------------- */

void ladei_pinned_pool_put(lade_pinned_pool *pool, ladei_pinned_block *list) {
  bool any = list != NULL;
  while (list != NULL) {
    unsigned index = ladei_pinned_word_node(ladei_pinned_block_word(list));
    ladei_pinned_block *first = list, *last = list, *next;
    while ((next = ladei_pinned_block_next(last)) != NULL &&
           ladei_pinned_word_node(ladei_pinned_block_word(next)) == index)
      last = next;
    list = next;
    ladei_pinned_block_next_set(last, NULL);
    ladei_pinned_node_put(ladei_pinned_pool_node(pool, index), first);
  }
  if (any) ladei_pinned_memory_returned(&pool->cap_wait);
}

void ladei_pinned_pool_share(lade_pinned_pool *pool, ladei_pinned_block *list) {
  ladei_pinned_block *others = NULL;
  bool any = list != NULL;
  while (list != NULL) {
    uint64_t word = ladei_pinned_block_word(list);
    unsigned class_index = ladei_pinned_word_class(word), count = 1;
    unsigned most =
        class_index < LADEI_PINNED_MAGAZINE_CLASSES ? ladei_pinned_batch(ladei_pinned_class_bytes(class_index)) : 1;
    ladei_pinned_block *first = list, *last = list, *next;
    for (; (next = ladei_pinned_block_next(last)) != NULL && count < most &&
           ladei_pinned_word_is_alike(ladei_pinned_block_word(next), word);
         count++)
      last = next;
    list = next;
    ladei_pinned_block_next_set(last, NULL);
    ladei_pinned_depot *depot = ladei_pinned_pool_node(pool, ladei_pinned_word_node(word))->depot;
    if (class_index >= LADEI_PINNED_MAGAZINE_CLASSES || !ladei_pinned_depot_put(depot, class_index, first, count)) {
      ladei_pinned_block_next_set(last, others);
      others = first;
    }
  }
  if (others != NULL)
    ladei_pinned_pool_put(pool, others);
  else if (any)
    ladei_pinned_memory_returned(&pool->cap_wait);
}

void ladei_pinned_pool_put_one(lade_pinned_pool *pool, ladei_pinned_block *block) {
  ladei_pinned_block_next_set(block, NULL);
  ladei_pinned_node_put(ladei_pinned_pool_node(pool, ladei_pinned_word_node(ladei_pinned_block_word(block))), block);
  ladei_pinned_memory_returned(&pool->cap_wait);
}
