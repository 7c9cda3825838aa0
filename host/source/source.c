/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources of pinned memory.
 *
 *   register:   mapped  |---slack---|-- base: bytes, 2 MiB aligned where that long --|---slack---|
 *
 * I1  Memory that acquire returns is pinned; a failed acquire gives its mappings and registrations back.
 * I2  Sources are tried in the order of their bits; each failure is final for its source and this request only.
 * I3  Of a mapping the first registered_bytes are registered: all of it, in one call or in chunks, or none.
 * I4  Of a region's area nothing below `taken` is touched or unmapped by the region any more.
 * Locks: none, and none may be held by the caller: the driver is called.
 */
#include "host/source/source.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/size.h"
#include "host/budget/limits.h"
#include "host/source/prefault.h"

static void cost_note(ladei_pinned_source_cost *cost, uint64_t ns, bool succeeded) {
  cost->ns += succeeded ? ns : 0;
  cost->calls += succeeded ? 1 : 0;
}

static uint64_t now_ns(const ladei_pinned_sources *sources) {
  return sources->runtime->ops->now_ns(sources->runtime->self);
}

/* ---- register ---------------------------------------------------------------------------------------------------- */

/* Areas of a huge page and more begin at a huge page, so that the kernel can use them. */
static lade_status area_map(size_t bytes, ladei_pinned_memory *out) {
  size_t align = bytes >= LADEI_PINNED_HUGE_PAGE_BYTES ? LADEI_PINNED_HUGE_PAGE_BYTES : 0;
  void *mapped = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, errno, "register: mmap of %zu bytes: %s", bytes + align,
                       strerror(errno));
  }
  uintptr_t base = (uintptr_t)mapped;
  base += align == 0 ? 0 : (align - base % align) % align;
  *out = (ladei_pinned_memory){.base = (void *)base,
                               .bytes = bytes,
                               .mapped = mapped,
                               .mapped_bytes = bytes + align,
                               .source = LADE_PINNED_SOURCE_REGISTER};
  if (align != 0 && madvise((void *)base, bytes, MADV_HUGEPAGE) != 0) /* advice: without huge pages it works as well */
    ladei_log_later(LADE_LOG_WARN, "pinned memory: the kernel refuses huge pages for %zu bytes: %s", bytes,
                    strerror(errno));
  /* A child would share the pages copy-on-write, and the parent's next write could move them away from the device. */
  (void)madvise((void *)base, bytes, MADV_DONTFORK);
  return LADE_OK;
}

/* Preferred: a system that forbids binding, as containers do, costs speed and no more. */
static lade_status area_bind(const ladei_pinned_sources *sources, const ladei_topology *topology, int node,
                             const ladei_pinned_memory *memory) {
  lade_error saved;
  if (topology == NULL || node < 0) return LADE_OK;
  ladei_error_save(&saved);
  lade_status status = ladei_topology_bind_area(topology, node, memory->base, memory->bytes, sources->strict);
  if (status != LADE_OK && !sources->strict) {
    ladei_error_restore(&saved);
    return LADE_OK;
  }
  return status;
}

/* A mapping on its node, not touched yet. */
static lade_status area_acquire(const ladei_pinned_sources *sources, const ladei_topology *topology, int node,
                                size_t bytes, ladei_pinned_memory *out) {
  LADEI_TRY(area_map(bytes, out));
  lade_status status = area_bind(sources, topology, node, out);
  if (status != LADE_OK) munmap(out->mapped, out->mapped_bytes);
  return status;
}

static ladei_prefault_crew crew_of(const ladei_pinned_sources *sources, const ladei_topology *topology, int node) {
  return (ladei_prefault_crew){.topology = topology,
                               .node = node,
                               .threads = sources->prefault_threads,
                               .fewer_for_small = sources->prefault_chosen};
}

/* Length of the chunk that begins there; 0 at the end. */
static size_t chunk_at(const ladei_pinned_sources *sources, const ladei_pinned_memory *memory, size_t offset) {
  size_t rest = (ladei_pinned_pages(memory->bytes) << LADEI_PINNED_PAGE_SHIFT) - offset;
  return sources->register_chunk_bytes == 0 ? rest : ladei_size_min(rest, sources->register_chunk_bytes);
}

/* Note [Registration refused for good] */
enum { REGISTRATION_UNKNOWN, REGISTRATION_WORKS, REGISTRATION_KEEPING, REGISTRATION_REFUSED };

static bool registration_is_refused(const ladei_pinned_sources *sources) {
  return atomic_load_explicit(&sources->registration.state, memory_order_acquire) == REGISTRATION_REFUSED;
}

/* Keeps a request's experience for all later ones. */
static void registration_note(ladei_pinned_sources *sources, lade_status status) {
  ladei_pinned_registration *registration = &sources->registration;
  int unknown = REGISTRATION_UNKNOWN, next = status == LADE_OK ? REGISTRATION_WORKS : REGISTRATION_KEEPING;
  if (status != LADE_OK && status != LADE_ERR_UNSUPPORTED) return;
  if (!atomic_compare_exchange_strong(&registration->state, &unknown, next) || next == REGISTRATION_WORKS) return;
  registration->refusal = *lade_last_error();
  atomic_store_explicit(&registration->state, REGISTRATION_REFUSED, memory_order_release);
  ladei_log_later(LADE_LOG_WARN,
                  "pinned memory: the driver registers none, source register is left out from now on: %s",
                  registration->refusal.text);
}

static lade_status memory_register(const ladei_pinned_sources *sources, void *begin, size_t bytes) {
  lade_runtime *runtime = sources->runtime;
  return runtime->ops->host_register(runtime->self, sources->device, begin, bytes, 0);
}

static lade_status page_release(const ladei_pinned_sources *sources, void *page) {
  lade_status status = sources->runtime->ops->host_unregister(sources->runtime->self, page);
  if (status == LADE_OK) munmap(page, LADEI_PINNED_PAGE_BYTES);
  return status;
}

/* One page. Of two requests that ask at once, one keeps its own. */
static lade_status page_register(ladei_pinned_sources *sources) {
  void *none = NULL;
  void *page = mmap(NULL, LADEI_PINNED_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, errno, "register: mmap of a page: %s", strerror(errno));
  (void)madvise(page, LADEI_PINNED_PAGE_BYTES, MADV_DONTFORK); /* as area_map() */
  lade_status status = memory_register(sources, page, LADEI_PINNED_PAGE_BYTES);
  if (status != LADE_OK) munmap(page, LADEI_PINNED_PAGE_BYTES);
  if (status == LADE_OK && !atomic_compare_exchange_strong(&sources->registration.page, &none, page))
    status = page_release(sources, page);
  return status;
}

lade_status ladei_pinned_registration_close(ladei_pinned_sources *sources) {
  ladei_pinned_registration *registration = &sources->registration;
  void *page = atomic_load(&registration->page);
  lade_status status = page == NULL ? LADE_OK : page_release(sources, page);
  if (status == LADE_OK) atomic_store(&registration->page, NULL);
  return status;
}

/* Before memory is mapped for a registration. Software devices have nothing to ask for. */
static lade_status registration_check(ladei_pinned_sources *sources) {
  const ladei_pinned_registration *registration = &sources->registration;
  if (registration_is_refused(sources))
    return ladei_error(LADE_ERR_UNSUPPORTED, registration->refusal.native_code, "%s", registration->refusal.text);
  if (atomic_load(&registration->state) != REGISTRATION_UNKNOWN || sources->runtime->software_device) return LADE_OK;
  ladei_lock_assert_none_held();
  lade_status status = page_register(sources);
  registration_note(sources, status);
  return status;
}

/* Registers the rest, chunk by chunk, and stops at the first refusal. Waits until `prefault` has touched each chunk
 * (NULL: no thread touches); the memory begins `offset` bytes into its area. */
static lade_status chunks_register(ladei_pinned_sources *sources, ladei_pinned_memory *memory, ladei_prefault *prefault,
                                   size_t offset) {
  size_t chunk;
  ladei_lock_assert_none_held();
  while ((chunk = chunk_at(sources, memory, memory->registered_bytes)) > 0) {
    void *begin = (char *)memory->base + memory->registered_bytes;
    if (prefault != NULL)
      ladei_prefault_wait(prefault, ladei_size_min(offset + memory->registered_bytes + chunk, prefault->bytes));
    lade_status status = memory_register(sources, begin, chunk);
    if (status != LADE_OK) {
      registration_note(sources, status);
      return status;
    }
    memory->registered_bytes += chunk;
  }
  return LADE_OK;
}

/* The reverse, last chunk first. */
static lade_status chunks_unregister(ladei_pinned_sources *sources, ladei_pinned_memory *memory) {
  const lade_runtime *runtime = sources->runtime;
  while (memory->registered_bytes > 0) {
    size_t whole = sources->register_chunk_bytes == 0 ? memory->registered_bytes : sources->register_chunk_bytes;
    size_t begin = (memory->registered_bytes - 1) / whole * whole;
    LADEI_TRY(runtime->ops->host_unregister(runtime->self, (char *)memory->base + begin));
    memory->registered_bytes = begin;
  }
  return LADE_OK;
}

/* Gives a mapping back whose registration failed; keeps the failure. */
static lade_status mapped_undo(ladei_pinned_sources *sources, ladei_pinned_memory *memory, lade_status status) {
  lade_error saved;
  ladei_error_save(&saved);
  /* Memory that the driver does not let go of stays mapped for good: the device may write there. */
  if (chunks_unregister(sources, memory) == LADE_OK) munmap(memory->mapped, memory->mapped_bytes);
  ladei_error_restore(&saved);
  return status;
}

static lade_status register_acquire(ladei_pinned_sources *sources, const ladei_topology *topology, int node,
                                    size_t bytes, ladei_pinned_memory *out) {
  ladei_prefault prefault;
  ladei_prefault_crew crew = crew_of(sources, topology, node);
  LADEI_TRY(registration_check(sources));
  LADEI_TRY(area_acquire(sources, topology, node, bytes, out));
  ladei_prefault_open(&prefault, &crew, out->base, bytes);
  ladei_prefault_allow(&prefault, bytes);
  lade_status status = chunks_register(sources, out, &prefault, 0);
  ladei_prefault_close(&prefault);
  return status == LADE_OK ? LADE_OK : mapped_undo(sources, out, status);
}

/* Registered or not. */
static lade_status mapped_release(ladei_pinned_sources *sources, ladei_pinned_memory *memory) {
  lade_status status = chunks_unregister(sources, memory);
  if (status == LADE_OK) {
    munmap(memory->mapped, memory->mapped_bytes);
    return LADE_OK;
  }
  if (memory->source == LADE_PINNED_SOURCE_REGISTER)
    LADEI_ASIDE(if (chunks_register(sources, memory, NULL, 0) != LADE_OK) memory->source = LADE_PINNED_SOURCE_PAGEABLE);
  return status;
}

/* ---- driver, pool ------------------------------------------------------------------------------------------------ */

/* Memory of the driver's making, which need not begin on a page. */
typedef struct driver_memory {
  lade_status (*alloc)(ladei_pinned_sources *sources, int node, size_t bytes, void **out);
  lade_status (*free)(ladei_pinned_sources *sources, void *memory);
  size_t own_bytes; /* smaller memory shares pages with others */
  lade_pinned_source source;
} driver_memory;

/* lade finds the owner of an address by its page. Memory that may share a page is requested with one page more at once,
 * since giving memory back may wait for the device; other memory only if it does not begin on a page. */
static lade_status page_acquire(ladei_pinned_sources *sources, const driver_memory *kind, int node, size_t bytes,
                                ladei_pinned_memory *out) {
  size_t more = bytes < kind->own_bytes ? (size_t)LADEI_PINNED_PAGE_BYTES : 0;
  void *memory = NULL;
  ladei_lock_assert_none_held();
  lade_status status = kind->alloc(sources, node, bytes + more, &memory);
  if (status == LADE_OK && more == 0 && (uintptr_t)memory % LADEI_PINNED_PAGE_BYTES != 0) {
    status = kind->free(sources, memory);
    if (status == LADE_OK) status = kind->alloc(sources, node, bytes + LADEI_PINNED_PAGE_BYTES, &memory);
  }
  if (status == LADE_OK) {
    uintptr_t aligned = ((uintptr_t)memory + LADEI_PINNED_PAGE_BYTES - 1) & ~(uintptr_t)(LADEI_PINNED_PAGE_BYTES - 1);
    *out = (ladei_pinned_memory){.base = (void *)aligned, .bytes = bytes, .mapped = memory, .source = kind->source};
  }
  return status;
}

static lade_status driver_alloc(ladei_pinned_sources *sources, int node, size_t bytes, void **out) {
  const lade_runtime *runtime = sources->runtime;
  (void)node;
  return runtime->ops->host_alloc(runtime->self, sources->device, bytes, 0, out);
}

static lade_status driver_free(ladei_pinned_sources *sources, void *memory) {
  return sources->runtime->ops->host_free(sources->runtime->self, memory);
}

static lade_status driver_acquire(ladei_pinned_sources *sources, const ladei_topology *topology, int node, size_t bytes,
                                  ladei_pinned_memory *out) {
  static const driver_memory kind = {driver_alloc, driver_free, LADEI_HOST_OWN_BYTES, LADE_PINNED_SOURCE_DRIVER};
  (void)topology;
  if (sources->strict && node >= 0) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0, "driver: %zu bytes cannot be placed on NUMA node %d", bytes,
                       node);
  }
  return page_acquire(sources, &kind, node, bytes, out);
}

static lade_status driver_release(ladei_pinned_sources *sources, ladei_pinned_memory *memory) {
  return driver_free(sources, memory->mapped);
}

static lade_status pool_alloc(ladei_pinned_sources *sources, int node, size_t bytes, void **out) {
  return ladei_pinned_driver_pools_alloc(&sources->driver_pools, node, sources->strict, bytes, out);
}

static lade_status pool_free(ladei_pinned_sources *sources, void *memory) {
  return ladei_pinned_driver_pools_free(&sources->driver_pools, memory);
}

static lade_status pool_acquire(ladei_pinned_sources *sources, const ladei_topology *topology, int node, size_t bytes,
                                ladei_pinned_memory *out) {
  static const driver_memory kind = {pool_alloc, pool_free, 0, LADE_PINNED_SOURCE_POOL};
  (void)topology;
  return page_acquire(sources, &kind, node, bytes, out);
}

static lade_status pool_release(ladei_pinned_sources *sources, ladei_pinned_memory *memory) {
  return pool_free(sources, memory->mapped);
}

/* ---- pageable ---------------------------------------------------------------------------------------------------- */

static lade_status pageable_acquire(ladei_pinned_sources *sources, const ladei_topology *topology, int node,
                                    size_t bytes, ladei_pinned_memory *out) {
  ladei_prefault_crew crew = crew_of(sources, topology, node);
  LADEI_TRY(area_acquire(sources, topology, node, bytes, out));
  ladei_prefault_all(&crew, out->base, bytes);
  out->source = LADE_PINNED_SOURCE_PAGEABLE;
  return LADE_OK;
}

/* ---- All sources ------------------------------------------------------------------------------------------------- */

typedef struct source_entry {
  lade_pinned_source source;
  lade_status (*acquire)(ladei_pinned_sources *sources, const ladei_topology *topology, int node, size_t bytes,
                         ladei_pinned_memory *out);
  lade_status (*release)(ladei_pinned_sources *sources, ladei_pinned_memory *memory);
} source_entry;

static const source_entry entries[] = {
    {LADE_PINNED_SOURCE_REGISTER, register_acquire, mapped_release},
    {LADE_PINNED_SOURCE_DRIVER, driver_acquire, driver_release},
    {LADE_PINNED_SOURCE_POOL, pool_acquire, pool_release},
    {LADE_PINNED_SOURCE_PAGEABLE, pageable_acquire, mapped_release},
};

enum { SOURCE_COUNT = sizeof entries / sizeof entries[0] };

static void refusal_log(const ladei_pinned_sources *sources, lade_pinned_source source, size_t bytes) {
  static const struct {
    lade_pinned_source source;
    const char *name;
  } names[] = {{LADE_PINNED_SOURCE_REGISTER, "register"},
               {LADE_PINNED_SOURCE_DRIVER, "driver"},
               {LADE_PINNED_SOURCE_POOL, "pool"},
               {LADE_PINNED_SOURCE_PAGEABLE, "pageable"}};
  size_t i = 0;
  if (source == LADE_PINNED_SOURCE_REGISTER && registration_is_refused(sources)) return; /* logged when it was learnt */
  while (names[i].source != source) i++;
  ladei_log_later(LADE_LOG_WARN, "pinned memory: source %s refused %zu bytes, the next one is tried: %s", names[i].name,
                  bytes, lade_last_error()->text);
}

/* One source's attempt. A source that the runtime does not have leaves the refusal of an earlier one standing. */
static lade_status source_try(ladei_pinned_sources *sources, const source_entry *entry, const ladei_topology *topology,
                              int node, size_t bytes, ladei_pinned_memory *out, ladei_pinned_source_cost *cost,
                              lade_status before) {
  lade_error saved;
  ladei_error_save(&saved);
  uint64_t begin_ns = now_ns(sources);
  lade_status status = entry->acquire(sources, topology, node, bytes, out);
  cost_note(cost, now_ns(sources) - begin_ns, status == LADE_OK);
  if (status == LADE_ERR_UNSUPPORTED && before != LADE_ERR_INVALID_ARGUMENT) {
    ladei_error_restore(&saved);
    return before;
  }
  if (status != LADE_OK && ladei_log_wants(LADE_LOG_WARN)) refusal_log(sources, entry->source, bytes);
  return status;
}

/*
 * Note [Nodes that are full]
 *   Memory that is bound to a NUMA node, strictly by us or by the policy of the process, does not come from elsewhere
 *   where the node has none left: the kernel calls its killer. So the node is asked first. Others may be faster between
 *   the question and the first touch; but a pool that grows to a node's limit ends in an error.
 */
static lade_status nodes_check(const ladei_pinned_sources *sources, int node, size_t bytes) {
  uint64_t free_bytes;
  if (sources->strict && node >= 0) {
    free_bytes = ladei_pinned_limits_node_free(sources->root, node);
    return bytes <= free_bytes ? LADE_OK
                               : ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0,
                                             "NUMA node %d has %llu bytes free, page cache included; %zu are asked for",
                                             node, (unsigned long long)free_bytes, bytes);
  }
  if (node < 0 && ladei_pinned_limits_bound_free(sources->root, &free_bytes) && bytes > free_bytes) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0,
                       "the NUMA nodes that this thread is bound to have %llu bytes free, page cache included; %zu are "
                       "asked for",
                       (unsigned long long)free_bytes, bytes);
  }
  return LADE_OK;
}

/* The sources from `first` on, after one that answered `status`. */
static lade_status sources_try(ladei_pinned_sources *sources, const ladei_topology *topology, int node, size_t bytes,
                               ladei_pinned_memory *out, ladei_pinned_source_cost *cost, size_t first,
                               lade_status status) {
  for (size_t i = first; i < SOURCE_COUNT && status != LADE_OK && status != LADE_ERR_DEVICE_LOST; i++)
    if ((sources->sources & entries[i].source) != 0)
      status = source_try(sources, &entries[i], topology, node, bytes, out, cost, status);
  return status;
}

lade_status ladei_pinned_memory_acquire(ladei_pinned_sources *sources, const ladei_topology *topology, int node,
                                        size_t bytes, ladei_pinned_memory *out, ladei_pinned_source_cost *cost) {
  ladei_lock_assert_none_held();
  lade_error saved;
  lade_status enough = nodes_check(sources, node, bytes);
  if (enough != LADE_OK) return enough;
  ladei_error_save(&saved);
  lade_status status = ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "pinned pool: no source of memory is allowed");
  status = sources_try(sources, topology, node, bytes, out, cost, 0, status);
  if (status == LADE_OK) ladei_error_restore(&saved); /* a source that refused is no failure of the call */
  return status;
}

lade_status ladei_pinned_memory_release(ladei_pinned_sources *sources, ladei_pinned_memory *memory,
                                        ladei_pinned_source_cost *cost) {
  size_t i = 0;
  while (entries[i].source != memory->source) i++;
  ladei_lock_assert_none_held();
  uint64_t begin_ns = now_ns(sources);
  lade_status status = entries[i].release(sources, memory);
  cost_note(cost, now_ns(sources) - begin_ns, status == LADE_OK);
  return status;
}

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

/* The area alone: of the mapping around it nothing is left. */
static void slack_unmap(ladei_pinned_memory *area) {
  char *base = area->base, *mapped = area->mapped;
  size_t before = (size_t)(base - mapped), behind = area->mapped_bytes - before - area->bytes;
  if (before > 0) munmap(mapped, before);
  if (behind > 0) munmap(base + area->bytes, behind);
  area->mapped = base;
  area->mapped_bytes = area->bytes;
}

void ladei_pinned_region_open(ladei_pinned_sources *sources, const ladei_topology *topology, int node, size_t bytes,
                              ladei_pinned_region *out) {
  lade_error saved;
  ladei_prefault_crew crew = crew_of(sources, topology, node);
  ladei_error_save(&saved);
  out->topology = topology;
  out->node = node;
  out->taken = out->allowed = 0;
  out->area.mapped = NULL;
  if (bytes == 0 || (sources->sources & LADE_PINNED_SOURCE_REGISTER) == 0) return;
  if (registration_check(sources) != LADE_OK || area_acquire(sources, topology, node, bytes, &out->area) != LADE_OK) {
    out->area.mapped = NULL; /* the segments may be placed one by one */
    ladei_error_restore(&saved);
    return;
  }
  slack_unmap(&out->area);
  ladei_prefault_open(&out->prefault, &crew, out->area.base, bytes);
}

/* Note [Nodes that are full]. The nodes will lack memory that is allowed and not touched yet, too. */
static lade_status region_nodes_check(const ladei_pinned_sources *sources, ladei_pinned_region *region, size_t bytes) {
  lade_error saved;
  ladei_error_save(&saved);
  size_t untouched = region->allowed - ladei_size_max(ladei_prefault_touched(&region->prefault), region->taken);
  lade_status status = nodes_check(sources, region->node, untouched + bytes);
  if (status == LADE_OK || untouched == 0) return status;
  /* Part of that may have been touched before the node was asked: look again when all of it is. */
  ladei_error_restore(&saved);
  ladei_prefault_wait(&region->prefault, region->allowed);
  return nodes_check(sources, region->node, bytes);
}

lade_status ladei_pinned_region_allow(ladei_pinned_sources *sources, ladei_pinned_region *region, size_t bytes) {
  if (region->area.mapped == NULL) return LADE_OK; /* asked when it is acquired */
  LADEI_TRY(region_nodes_check(sources, region, bytes));
  region->allowed += bytes;
  ladei_prefault_allow(&region->prefault, region->allowed);
  return LADE_OK;
}

/* As source_try does with register. */
static lade_status region_register(ladei_pinned_sources *sources, ladei_pinned_region *region, size_t bytes,
                                   ladei_pinned_memory *out, ladei_pinned_source_cost *cost) {
  uint64_t begin_ns = now_ns(sources);
  size_t offset = region->taken;
  char *base = (char *)region->area.base + offset;
  *out = (ladei_pinned_memory){
      .base = base, .bytes = bytes, .mapped = base, .mapped_bytes = bytes, .source = LADE_PINNED_SOURCE_REGISTER};
  ladei_prefault_wait(&region->prefault, offset + bytes);
  region->taken += bytes;
  lade_status status = chunks_register(sources, out, &region->prefault, offset);
  cost_note(cost, now_ns(sources) - begin_ns, status == LADE_OK);
  return status == LADE_OK ? LADE_OK : mapped_undo(sources, out, status);
}

lade_status ladei_pinned_region_acquire(ladei_pinned_sources *sources, ladei_pinned_region *region, size_t bytes,
                                        ladei_pinned_memory *out, ladei_pinned_source_cost *cost) {
  lade_error saved;
  if (region->area.mapped == NULL)
    return ladei_pinned_memory_acquire(sources, region->topology, region->node, bytes, out, cost);
  ladei_error_save(&saved);
  lade_status status = region_register(sources, region, bytes, out, cost);
  if (status != LADE_OK && ladei_log_wants(LADE_LOG_WARN)) refusal_log(sources, LADE_PINNED_SOURCE_REGISTER, bytes);
  status = sources_try(sources, region->topology, region->node, bytes, out, cost, 1, status);
  if (status == LADE_OK) ladei_error_restore(&saved);
  return status;
}

void ladei_pinned_region_close(ladei_pinned_region *region) {
  if (region->area.mapped == NULL) return;
  ladei_prefault_close(&region->prefault);
  size_t rest = region->area.bytes - region->taken;
  if (rest > 0) munmap((char *)region->area.base + region->taken, rest);
  region->area.mapped = NULL;
}
