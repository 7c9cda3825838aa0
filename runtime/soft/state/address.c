/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and ranges: the places of software devices' memory, and the range that an address belongs to.
 *
 *   arena       0x200000000000 ...   memory with bytes: anonymous mappings without reserve, so capacity costs nothing
 *                                    until it is touched; that of host_alloc shared, the rest private
 *   counted     0x700000000000 ...   memory of addresses-only devices: numbers, mapped nowhere
 *
 * I1  Both counters only rise: a runtime never hands out an address twice, so a use of freed memory can be told from a
 *     use of foreign memory, and equal runs have equal addresses. Addresses that were skipped, as they were not free,
 *     were not handed out: they may be the program's.
 * I2  Live ranges do not overlap. A range is in rt->ranges exactly while it is live.
 * I3  A range that ended is unmapped (rt->garbage, when the lock is dropped) once its inflight is 0; a chunk with its
 *     last place. Places are not reused, as addresses are not.
 * Locks: rt->lock. Mapping under it is the exception that costs one system call per device allocation.
 */
#include "runtime/soft/state/address.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/size.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/hazard.h"

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif

/* Far from the system's places for programs, libraries, heaps. Thread sanitiser allows mappings near the top only. */
#ifdef THREAD_SANITIZER
#define ARENA_BEGIN 0x7e9000000000u
#else
#define ARENA_BEGIN 0x200000000000u
#endif
#define ARENA_STRIDE       ((uint64_t)64 << 30) /* skipped if other memory is in the way */
#define COUNTED_BEGIN      0x700000000000u      /* as on the replay device of the trace format */
#define ADDRESS_ALIGN      ((uint64_t)2 << 20)
#define ADDRESS_PAGE_BYTES ((size_t)4096)

#define MPOL_BIND_POLICY   2 /* the kernel's MPOL_BIND: its header is in a package of its own */

static bool bind_to_node(void *address, size_t bytes, int32_t node) {
  enum { BITS_PER_WORD = 64, WORDS = 16 };
  unsigned long mask[WORDS] = {0};
  if (node < 0 || node >= BITS_PER_WORD * WORDS) return false;
  mask[node / BITS_PER_WORD] = 1ul << (node % BITS_PER_WORD);
  return syscall(SYS_mbind, address, bytes, MPOL_BIND_POLICY, mask, (unsigned long)BITS_PER_WORD * WORDS + 1, 0) == 0;
}

/* The addresses were handed out, or lie between two that were. With too many pieces the last one includes the gaps. */
static void arena_note(soft_runtime *rt, uint64_t address, size_t bytes, bool jumped) {
  if (rt->arena_pieces == 0 || (jumped && rt->arena_pieces < SOFT_ARENA_PIECES))
    rt->arena[rt->arena_pieces++].begin = address;
  rt->arena[rt->arena_pieces - 1].end = address + bytes;
}

/* Maps at the next free address of the arena; NULL when the system refuses. */
static void *arena_map(soft_runtime *rt, size_t bytes, size_t align, int protection, int sharing) {
  uint64_t address = rt->arena_pieces == 0 ? ARENA_BEGIN : rt->arena[rt->arena_pieces - 1].end;
  for (int attempt = 0; attempt < 1024; attempt++) {
    address = (address + align - 1) / align * align;
    void *wanted = (void *)(uintptr_t)address;
    int flags = sharing | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *got = mmap(wanted, bytes, protection, flags, -1, 0);
    if (got == wanted) {
      arena_note(rt, address, bytes, attempt > 0);
      return got;
    }
    if (got != MAP_FAILED) /* a kernel before 4.17 takes the address as a hint */
      munmap(got, bytes);
    else if (errno != EEXIST)
      return NULL;
    address = (address / ARENA_STRIDE + 1) * ARENA_STRIDE;
  }
  return NULL;
}

void ladei_soft_addresses_open(soft_runtime *rt) {
  rt->arena_pieces = 0;
  rt->count_next = COUNTED_BEGIN;
}

static void *range_map(soft_runtime *rt, const soft_range *range, size_t align, int32_t node) {
  int protection = range->kind == SOFT_RANGE_RESERVED ? PROT_NONE : PROT_READ | PROT_WRITE;
  int sharing =
      range->kind == SOFT_RANGE_HOST ? MAP_SHARED : MAP_PRIVATE; /* shared with fork()'s children, as CUDA's driver */
  void *address = arena_map(rt, range->mapped_bytes, align, protection, sharing);
  if (address == NULL) return NULL;
  if (node >= 0 && !bind_to_node(address, range->mapped_bytes, node)) {
    munmap(address, range->mapped_bytes);
    return NULL;
  }
  /* Programs on virtual time touch few bytes of their memory, and those on the wall clock copy all of it. */
  if (!rt->virtual_time && !range->host && range->mapped_bytes >= ADDRESS_ALIGN)
    madvise(address, range->mapped_bytes, MADV_HUGEPAGE);
  return address;
}

soft_range *ladei_soft_range_new(soft_runtime *rt, soft_range_kind kind, soft_device *device, bool host, size_t bytes,
                                 size_t align, int32_t node) {
  soft_range *range = calloc(1, sizeof *range);
  if (range == NULL) return NULL;
  *range = (soft_range){.bytes = bytes, .kind = kind, .device = device->ordinal, .host = host, .live = true};
  range->has_bytes = host || !device->description.addresses_only;
  align = ladei_size_max(align, ADDRESS_ALIGN);
  uint64_t address;
  if (range->has_bytes) {
    range->mapped_bytes = (bytes + ADDRESS_PAGE_BYTES - 1) / ADDRESS_PAGE_BYTES * ADDRESS_PAGE_BYTES;
    address = (uint64_t)(uintptr_t)range_map(rt, range, align, node);
    if (address == 0) {
      free(range);
      return NULL;
    }
  } else {
    address = (rt->count_next + align - 1) / align * align;
    rt->count_next = address + bytes;
  }
  assert(ladei_soft_range_overlapping(rt, (const void *)(uintptr_t)address, bytes) == NULL); /* I2 */
  soft_tree_insert(&rt->ranges, &range->node, address);
  return range;
}

soft_range *ladei_soft_range_register(soft_runtime *rt, soft_device *device, void *address, size_t bytes) {
  soft_range *range = calloc(1, sizeof *range);
  if (range == NULL) return NULL;
  *range = (soft_range){.bytes = bytes,
                        .kind = SOFT_RANGE_REGISTERED,
                        .device = device->ordinal,
                        .host = true,
                        .has_bytes = true,
                        .live = true};
  assert(ladei_soft_range_overlapping(rt, address, bytes) == NULL); /* I2 */
  soft_tree_insert(&rt->ranges, &range->node, (uint64_t)(uintptr_t)address);
  return range;
}

void ladei_soft_range_end(soft_runtime *rt, soft_range *range) {
  ladei_ordered_set_remove(&rt->ranges, &range->node);
  ladei_soft_range_discard(rt, range);
}

void ladei_soft_range_discard(soft_runtime *rt, soft_range *range) {
  ladei_soft_hazard_forget(rt, soft_tree_key(&range->node), range->bytes);
  assert(range->live); /* I2 */
  range->live = false;
  range->inflight++;
  ladei_soft_range_unpin(rt, range);
}

void ladei_soft_range_unpin(soft_runtime *rt, soft_range *range) {
  assert(range->inflight > 0); /* I5 of model.h */
  if (--range->inflight != 0 || range->live) return;
  range->next = rt->garbage;
  rt->garbage = range;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

#define CHUNK_BYTES ((uint64_t)2 << 20)
#define PLACE_BYTES ((uint64_t)512)

static void chunk_drop(soft_chunk *chunk) {
  if (chunk == NULL || atomic_fetch_sub_explicit(&chunk->holders, 1, memory_order_acq_rel) != 1) return;
  munmap((void *)(uintptr_t)chunk->base, CHUNK_BYTES);
  free(chunk);
}

/* A chunk with room for a place; NULL when the system refuses. */
static soft_chunk *chunk_need(soft_runtime *rt, uint64_t bytes) {
  if (rt->chunk != NULL && CHUNK_BYTES - (rt->chunk->next - rt->chunk->base) >= bytes) return rt->chunk;
  soft_chunk *chunk = calloc(1, sizeof *chunk);
  void *base = chunk == NULL ? NULL : arena_map(rt, CHUNK_BYTES, ADDRESS_ALIGN, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (base == NULL) {
    free(chunk);
    return NULL;
  }
  chunk->base = chunk->next = (uint64_t)(uintptr_t)base;
  atomic_init(&chunk->holders, 1);
  chunk_drop(rt->chunk);
  rt->chunk = chunk;
  return chunk;
}

soft_range *ladei_soft_range_place(soft_runtime *rt, soft_device *device, size_t bytes) {
  uint64_t whole = (bytes + PLACE_BYTES - 1) / PLACE_BYTES * PLACE_BYTES;
  soft_chunk *chunk = chunk_need(rt, whole);
  soft_range *range = chunk == NULL ? NULL : calloc(1, sizeof *range);
  if (range == NULL) return NULL;
  *range = (soft_range){.bytes = bytes,
                        .kind = SOFT_RANGE_HOST,
                        .device = device->ordinal,
                        .host = true,
                        .has_bytes = true,
                        .live = true,
                        .chunk = chunk};
  atomic_fetch_add_explicit(&chunk->holders, 1, memory_order_relaxed);
  soft_tree_insert(&rt->ranges, &range->node, chunk->next);
  chunk->next += whole;
  return range;
}

bool ladei_soft_in_chunk(const soft_runtime *rt, const void *address) {
  return rt->chunk != NULL && (uint64_t)(uintptr_t)address - rt->chunk->base < CHUNK_BYTES;
}

void ladei_soft_chunk_close(soft_runtime *rt) {
  chunk_drop(rt->chunk);
  rt->chunk = NULL;
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

void ladei_soft_range_unmap(soft_range *range) {
  chunk_drop(range->chunk);
  if (range->mapped_bytes != 0) munmap((void *)(uintptr_t)soft_tree_key(&range->node), range->mapped_bytes);
  free(range);
}

soft_range *ladei_soft_range_at(const soft_runtime *rt, const void *address) {
  uint64_t key = (uint64_t)(uintptr_t)address;
  soft_range *range = (soft_range *)soft_tree_floor(&rt->ranges, key);
  return range != NULL && key - soft_tree_key(&range->node) < range->bytes ? range : NULL;
}

bool ladei_soft_range_covers(const soft_range *range, const void *address, size_t bytes) {
  uint64_t offset = (uint64_t)(uintptr_t)address - soft_tree_key(&range->node);
  return offset <= range->bytes && bytes <= range->bytes - offset;
}

soft_range *ladei_soft_range_overlapping(const soft_runtime *rt, const void *address, size_t bytes) {
  uint64_t key = (uint64_t)(uintptr_t)address;
  soft_range *range = ladei_soft_range_at(rt, address);
  if (range != NULL) return range;
  soft_tree_node *next = soft_tree_ceiling(&rt->ranges, key);
  return next != NULL && soft_tree_key(next) - key < bytes ? (soft_range *)next : NULL;
}

bool ladei_soft_address_was_used(const soft_runtime *rt, const void *address) {
  uint64_t key = (uint64_t)(uintptr_t)address;
  for (size_t i = 0; i < rt->arena_pieces; i++)
    if (key >= rt->arena[i].begin && key < rt->arena[i].end) return true;
  return key >= COUNTED_BEGIN && key < rt->count_next;
}

/* ---- charges ----------------------------------------------------------------------------------------------------- */

bool ladei_soft_memory_charge(soft_device *device, size_t bytes) {
  if (bytes > device->description.memory_bytes - device->charged) return false;
  device->charged += bytes;
  return true;
}

void ladei_soft_memory_uncharge(soft_device *device, size_t bytes) {
  assert(device->charged >= bytes); /* I6 of model.h */
  device->charged -= bytes;
}

bool ladei_soft_pinned_charge(soft_runtime *rt, size_t bytes) {
  bool limited = rt->pinned_limit_bytes != 0;
  if (limited && (rt->pinned_bytes > rt->pinned_limit_bytes || bytes > rt->pinned_limit_bytes - rt->pinned_bytes))
    return false;
  rt->pinned_bytes += bytes;
  return true;
}

lade_status ladei_soft_out_of_device_memory(soft_op op, const soft_device *device, size_t bytes) {
  return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, LADEI_SOFT_NATIVE_OUT_OF_MEMORY,
                     "%s: %zu bytes asked on software device %d, %zu of %zu free", ladei_soft_op_name(op), bytes,
                     device->ordinal, (size_t)(device->description.memory_bytes - device->charged),
                     (size_t)device->description.memory_bytes);
}
