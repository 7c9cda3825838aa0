/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources of pinned memory.
 *
 *   register:   mapped  |---slack---|-- base: bytes, 2 MiB aligned where that long --|---slack---|
 *
 * I1  What acquire returns is pinned and covers whole pages; what a failed acquire mapped is unmapped again.
 * I2  Sources are tried in the order of their bits; each failure is final for its source and this request only.
 * Locks: none, and none may be held by the caller: the driver is called.
 */
#include "host/source.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "host/prefault.h"

#define HUGE_PAGE_BYTES (2 * LADEI_MIB)

static uint64_t now_ns(const ladei_source_settings *settings) {
  return settings->runtime->ops->now_ns(settings->runtime->self);
}

/* ---- register ---------------------------------------------------------------------------------------------------- */

/* Areas of a huge page and more begin at a huge page, so that the kernel can use them. */
static lade_status area_map(size_t bytes, ladei_memory *out) {
  size_t align = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
  void *mapped = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, errno, "register: mmap of %zu bytes: %s", bytes + align,
                       strerror(errno));
  }
  uintptr_t base = (uintptr_t)mapped;
  base += align == 0 ? 0 : (align - base % align) % align;
  *out = (ladei_memory){(void *)base, bytes, mapped, bytes + align, LADE_PINNED_SOURCE_REGISTER};
  if (align != 0) {
    (void)madvise((void *)base, bytes, MADV_HUGEPAGE); /* advice: without huge pages it works as well */
  }
  /* A child would share the pages copy-on-write, and the parent's next write could move them away from the device. */
  (void)madvise((void *)base, bytes, MADV_DONTFORK);
  return LADE_OK;
}

/* Preferred: a system that forbids binding, as containers do, costs speed and no more. */
static lade_status area_bind(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                             const ladei_memory *memory) {
  lade_error saved;
  if (topology == NULL || node < 0) {
    return LADE_OK;
  }
  ladei_error_save(&saved);
  lade_status status = ladei_topology_bind_area(topology, node, memory->base, memory->bytes, settings->strict);
  if (status != LADE_OK && !settings->strict) {
    ladei_error_restore(&saved);
    return LADE_OK;
  }
  return status;
}

/* A mapping on its node, touched if asked. */
static lade_status area_acquire(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                                size_t bytes, ladei_memory *out) {
  lade_status status = area_map(bytes, out);
  if (status != LADE_OK) {
    return status;
  }
  status = area_bind(settings, topology, node, out);
  if (status != LADE_OK) {
    munmap(out->mapped, out->mapped_bytes);
    return status;
  }
  if (settings->prefault_threads > 0) {
    ladei_prefault(topology, node, out->base, out->bytes, settings->prefault_threads);
  }
  return LADE_OK;
}

static lade_status register_acquire(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                                    size_t bytes, ladei_memory *out) {
  const lade_runtime *runtime = settings->runtime;
  lade_status status = area_acquire(settings, topology, node, bytes, out);
  if (status != LADE_OK) {
    return status;
  }
  ladei_lock_assert_none_held();
  status = runtime->ops->host_register(runtime->self, settings->device, out->base, out->bytes, 0);
  if (status != LADE_OK) {
    munmap(out->mapped, out->mapped_bytes);
  }
  return status;
}

static lade_status register_release(const ladei_source_settings *settings, const ladei_memory *memory) {
  const lade_runtime *runtime = settings->runtime;
  lade_status status = runtime->ops->host_unregister(runtime->self, memory->base);
  if (status == LADE_OK) {
    munmap(memory->mapped, memory->mapped_bytes);
  }
  return status;
}

/* ---- driver ------------------------------------------------------------------------------------------------------ */

static lade_status driver_acquire(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                                  size_t bytes, ladei_memory *out) {
  const lade_runtime *runtime = settings->runtime;
  void *base = NULL;
  (void)topology;
  if (settings->strict && node >= 0) {
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0, "driver: %zu bytes cannot be placed on NUMA node %d", bytes,
                       node);
  }
  ladei_lock_assert_none_held();
  lade_status status = runtime->ops->host_alloc(runtime->self, settings->device, bytes, 0, &base);
  if (status == LADE_OK) {
    *out = (ladei_memory){base, bytes, NULL, 0, LADE_PINNED_SOURCE_DRIVER};
  }
  return status;
}

static lade_status driver_release(const ladei_source_settings *settings, const ladei_memory *memory) {
  return settings->runtime->ops->host_free(settings->runtime->self, memory->base);
}

/* ---- pageable ---------------------------------------------------------------------------------------------------- */

static lade_status pageable_acquire(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                                    size_t bytes, ladei_memory *out) {
  lade_status status = area_acquire(settings, topology, node, bytes, out);
  if (status == LADE_OK) {
    out->source = LADE_PINNED_SOURCE_PAGEABLE;
  }
  return status;
}

static lade_status pageable_release(const ladei_source_settings *settings, const ladei_memory *memory) {
  (void)settings;
  munmap(memory->mapped, memory->mapped_bytes);
  return LADE_OK;
}

/* ---- All sources ------------------------------------------------------------------------------------------------- */

typedef struct source_entry {
  lade_pinned_source source;
  lade_status (*acquire)(const ladei_source_settings *settings, const ladei_topology *topology, int node, size_t bytes,
                         ladei_memory *out);
  lade_status (*release)(const ladei_source_settings *settings, const ladei_memory *memory);
} source_entry;

static const source_entry sources[] = {
    {LADE_PINNED_SOURCE_REGISTER, register_acquire, register_release},
    {LADE_PINNED_SOURCE_DRIVER, driver_acquire, driver_release},
    {LADE_PINNED_SOURCE_PAGEABLE, pageable_acquire, pageable_release},
};

enum { SOURCE_COUNT = sizeof sources / sizeof sources[0] };

lade_status ladei_memory_acquire(const ladei_source_settings *settings, const ladei_topology *topology, int node,
                                 size_t bytes, ladei_memory *out, ladei_source_cost *cost) {
  lade_error saved;
  ladei_error_save(&saved);
  lade_status status = ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "pinned pool: no source of memory is allowed");
  for (size_t i = 0; i < SOURCE_COUNT && status != LADE_OK && status != LADE_ERR_DEVICE_LOST; i++) {
    if ((settings->sources & sources[i].source) != 0) {
      uint64_t begin_ns = now_ns(settings);
      status = sources[i].acquire(settings, topology, node, bytes, out);
      cost->ns += now_ns(settings) - begin_ns;
      cost->calls += status == LADE_OK ? 1 : 0;
    }
  }
  if (status == LADE_OK) {
    ladei_error_restore(&saved); /* a source that refused is no failure of the call */
  }
  return status;
}

lade_status ladei_memory_release(const ladei_source_settings *settings, const ladei_memory *memory,
                                 ladei_source_cost *cost) {
  size_t i = 0;
  while (sources[i].source != memory->source) {
    i++;
  }
  ladei_lock_assert_none_held();
  uint64_t begin_ns = now_ns(settings);
  lade_status status = sources[i].release(settings, memory);
  cost->ns += now_ns(settings) - begin_ns;
  cost->calls += status == LADE_OK ? 1 : 0;
  return status;
}
