/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks; model and invariants in stacks.h.
 */
#include "history/stacks.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/options.h"
#include "history/modules.h"
#include "history/own_code.h"
#include "history/symbols.h"
#include "history/unwind.h"

enum {
  FRAMES_MOST = 64,
  FRAMES_DEFAULT = 16,
  FRAMES_OWN = 10,  /* most of lade's frames that are left out: own_code.h */
  FRAMES_OUTER = 2, /* of libc, below the first function of a thread */
  SHARDS = 16,      /* a power of two */
  BUCKETS = 512,    /* of each shard; a power of two */
};

/* Followed in memory by its record and its addresses. */
typedef struct stack_entry {
  struct stack_entry *next; /* in its bucket */
  lade_stacks *set;
  uint64_t hash;
  uint64_t generation;
  size_t count;
} stack_entry;

typedef struct stack_shard {
  _Alignas(128) ladei_lock lock;
  stack_entry *buckets[BUCKETS];
  size_t sweep; /* the bucket where the next search for room begins */
} stack_shard;

struct lade_stacks {
  ladei_unwind walk;
  uint32_t method;
  uint32_t max_frames;
  uint64_t max_bytes;
  ladei_own_code own; /* constant */
  ladei_modules modules;
  _Alignas(128) _Atomic(uint64_t) bytes;
  _Atomic(uint64_t) count, dropped;
  stack_shard shards[SHARDS];
};

static ladei_history_context *record_of(const stack_entry *own) {
  return (ladei_history_context *)(void *)((uintptr_t)own + sizeof *own);
}
static uint64_t *addresses_of(const stack_entry *own) { return (uint64_t *)(void *)(record_of(own) + 1); }
static size_t bytes_of(size_t frames) {
  return sizeof(stack_entry) + sizeof(ladei_history_context) + frames * sizeof(uint64_t);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static lade_status options_check(const lade_stacks_options *options) {
  static const char call[] = "lade_stacks_create";
  if (options->method > LADE_STACKS_BACKTRACE)
    return ladei_error_argument(call, "options.method", "a lade_stacks_method", "%u", options->method);
  if (options->max_frames > FRAMES_MOST)
    return ladei_error_argument(call, "options.max_frames", "at most 64", "%u", options->max_frames);
  return LADE_OK;
}

lade_status lade_stacks_create(const lade_stacks_options *options, lade_stacks **out) {
  lade_stacks_options own;
  uint64_t generation;
  if (out == NULL) return ladei_error_null(__func__, "out");
  lade_status status = ladei_options_read("lade_stacks_options", options, &own, sizeof own);
  if (status == LADE_OK) status = options_check(&own);
  if (status != LADE_OK) return status;
  lade_stacks *stacks = aligned_alloc(_Alignof(lade_stacks), sizeof *stacks);
  if (stacks == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", __func__);
  memset(stacks, 0, sizeof *stacks);
  status = ladei_unwind_choose(own.method, &stacks->method, &stacks->walk);
  if (status != LADE_OK) {
    free(stacks);
    return status;
  }
  stacks->max_frames = own.max_frames == 0 ? FRAMES_DEFAULT : own.max_frames;
  stacks->max_bytes = own.max_bytes == 0 ? (uint64_t)16 << 20 : own.max_bytes;
  ladei_own_code_find(&stacks->own);
  ladei_modules_init(&stacks->modules);
  for (int i = 0; i < SHARDS; i++) ladei_lock_init(&stacks->shards[i].lock, LADEI_RANK_LEAF);
  (void)ladei_modules_look(&stacks->modules, &generation); /* on failure the first capture looks */
  *out = stacks;
  return LADE_OK;
}

/* Number of stacks with references outside the table. */
static uint64_t referred_count(const lade_stacks *stacks) {
  uint64_t count = 0;
  for (int i = 0; i < SHARDS; i++)
    for (size_t b = 0; b < BUCKETS; b++)
      for (const stack_entry *own = stacks->shards[i].buckets[b]; own != NULL; own = own->next)
        count += atomic_load(&record_of(own)->references) > 1;
  return count;
}

lade_status lade_stacks_destroy(lade_stacks *stacks) {
  if (stacks == NULL) return LADE_OK;
  uint64_t referred = referred_count(stacks);
  if (referred > 0) {
    return ladei_error(LADE_ERR_BUSY, 0, "%s: histories or copies of them refer to %llu stacks; expected none",
                       __func__, (unsigned long long)referred);
  }
  for (int i = 0; i < SHARDS; i++) {
    for (size_t b = 0; b < BUCKETS; b++) {
      while (stacks->shards[i].buckets[b] != NULL) {
        stack_entry *own = stacks->shards[i].buckets[b];
        stacks->shards[i].buckets[b] = own->next;
        free(own);
      }
    }
    ladei_lock_destroy(&stacks->shards[i].lock);
  }
  for (ladei_module *module = stacks->modules.first; module != NULL; module = module->next) ladei_symbols_close(module);
  ladei_modules_destroy(&stacks->modules);
  free(stacks);
  return LADE_OK;
}

void lade_stacks_use(lade_stacks *stacks, lade_history_options *options) {
  options->capture = ladei_stacks_capture;
  options->release = ladei_stacks_release;
  options->describe = ladei_stacks_describe;
  options->user = stacks;
}

ladei_stacks_counts ladei_stacks_count(const lade_stacks *stacks) {
  return (ladei_stacks_counts){atomic_load(&stacks->count), atomic_load(&stacks->bytes), atomic_load(&stacks->dropped)};
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(void *const *addresses, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ (uintptr_t)addresses[i]) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

static stack_entry **bucket_of(stack_shard *shard, uint64_t hash) { return &shard->buckets[(hash >> 8) % BUCKETS]; }

/* Lock held. */
static stack_entry *stack_find(stack_shard *shard, uint64_t hash, void *const *addresses, size_t count) {
  stack_entry *own = *bucket_of(shard, hash);
  while (own != NULL && !(own->hash == hash && own->count == count &&
                          memcmp(addresses_of(own), addresses, count * sizeof addresses[0]) == 0))
    own = own->next;
  return own;
}

/* Frees stacks without references outside (Z2) from the shard until `bytes` fit, or none is left. Lock held. */
static bool room_make(lade_stacks *stacks, stack_shard *shard, uint64_t bytes) {
  for (size_t looked = 0; looked < BUCKETS; looked++) {
    if (atomic_load(&stacks->bytes) + bytes <= stacks->max_bytes) return true;
    stack_entry **link = &shard->buckets[shard->sweep];
    shard->sweep = (shard->sweep + 1) % BUCKETS;
    while (*link != NULL) {
      stack_entry *own = *link;
      if (atomic_load(&record_of(own)->references) > 1) {
        link = &own->next;
        continue;
      }
      *link = own->next;
      atomic_fetch_sub(&stacks->bytes, bytes_of(own->count));
      atomic_fetch_sub(&stacks->count, 1);
      free(own);
    }
  }
  return atomic_load(&stacks->bytes) + bytes <= stacks->max_bytes;
}

/* Counts the bytes of one more stack: Z3. Lock held. */
static bool room_take(lade_stacks *stacks, stack_shard *shard, uint64_t bytes) {
  uint64_t before = atomic_load(&stacks->bytes);
  do {
    if (before + bytes > stacks->max_bytes) {
      if (!room_make(stacks, shard, bytes)) return false;
      before = atomic_load(&stacks->bytes);
    }
  } while (before + bytes > stacks->max_bytes ||
           !atomic_compare_exchange_weak(&stacks->bytes, &before, before + bytes));
  return true;
}

static stack_entry *stack_create(lade_stacks *stacks, uint64_t hash, void *const *addresses, size_t count,
                                 uint64_t generation) {
  stack_entry *own = malloc(bytes_of(count));
  if (own == NULL) return NULL;
  *own = (stack_entry){.set = stacks, .hash = hash, .generation = generation, .count = count};
  ladei_history_context *record = record_of(own);
  memset(record, 0, sizeof *record);
  atomic_init(&record->references, 1);
  record->handle = own;
  record->user = stacks;
  record->describe = ladei_stacks_describe;
  memcpy(addresses_of(own), addresses, count * sizeof addresses[0]);
  return own;
}

/* Puts a new stack into the table, unless an equal one is there by now. Returns that in the table; NULL: no room. */
static stack_entry *stack_put(lade_stacks *stacks, stack_shard *shard, stack_entry *fresh) {
  ladei_lock_acquire(&shard->lock);
  stack_entry *own = stack_find(shard, fresh->hash, (void *const *)(void *)addresses_of(fresh), fresh->count);
  if (own == NULL && room_take(stacks, shard, bytes_of(fresh->count))) {
    stack_entry **bucket = bucket_of(shard, fresh->hash);
    fresh->next = *bucket;
    *bucket = own = fresh;
    atomic_fetch_add(&stacks->count, 1);
  }
  if (own != NULL) ladei_history_context_retain(record_of(own));
  ladei_lock_release(&shard->lock);
  if (own != fresh) free(fresh);
  return own;
}

static stack_entry *stack_find_shared(stack_shard *shard, uint64_t hash, void *const *addresses, size_t count) {
  ladei_lock_acquire(&shard->lock);
  stack_entry *own = stack_find(shard, hash, addresses, count);
  if (own != NULL) ladei_history_context_retain(record_of(own));
  ladei_lock_release(&shard->lock);
  return own;
}

/* Frame pointers mislead where code has none, mostly at the outer end: an address in no module is no return address. */
static size_t sound_count(lade_stacks *stacks, void *const *addresses, size_t count, uint64_t generation) {
  size_t sound = 0;
  if (stacks->method != LADE_STACKS_FRAME_POINTERS) return count;
  while (sound < count && ladei_modules_find(&stacks->modules, (uintptr_t)addresses[sound] - 1, generation) != NULL)
    sound++;
  return sound;
}

/* Takes a reference for the caller; NULL: there is no room. */
static stack_entry *stack_intern(lade_stacks *stacks, void *const *addresses, size_t count) {
  uint64_t hash = hash_of(addresses, count), generation;
  stack_shard *shard = &stacks->shards[hash % SHARDS];
  stack_entry *own = stack_find_shared(shard, hash, addresses, count);
  if (own != NULL) return own;
  bool known = ladei_modules_look(&stacks->modules, &generation); /* X1 in modules.h */
  if (known) {
    count = sound_count(stacks, addresses, count, generation);
    hash = hash_of(addresses, count);
    shard = &stacks->shards[hash % SHARDS];
    own = stack_find_shared(shard, hash, addresses, count);
  }
  if (own != NULL) return own;
  stack_entry *fresh = known ? stack_create(stacks, hash, addresses, count, generation) : NULL;
  own = fresh == NULL ? NULL : stack_put(stacks, shard, fresh);
  if (own == NULL) atomic_fetch_add(&stacks->dropped, 1);
  return own;
}

/* ---- Capture ----------------------------------------------------------------------------------------------------- */

/* Number of frames to leave out: lade's own, and at least those up to the call that returns to `from`. A thread of lade's
 * keeps the former: what would remain is libc's. */
static int inner_count(const lade_stacks *stacks, void *const *addresses, int count, const void *from) {
  int first = 0, own = 0;
  while (first < count && first < FRAMES_OWN && addresses[first] != from) first++;
  if (first == count || first == FRAMES_OWN) first = 0; /* the walker leaves some frames out */
  while (own < count && (own < first || ladei_own_code_has(&stacks->own, addresses[own]))) own++;
  return count - own > FRAMES_OUTER ? own : first;
}

/* The calling thread's stack, from the frame that called lade. */
static __attribute__((noinline)) stack_entry *stack_capture(lade_stacks *stacks, const void *from) {
  void *addresses[FRAMES_MOST + FRAMES_OWN];
  int count = stacks->walk(addresses, (int)stacks->max_frames + FRAMES_OWN);
  int first = inner_count(stacks, addresses, count, from);
  size_t frames = (size_t)(count - first) < stacks->max_frames ? (size_t)(count - first) : stacks->max_frames;
  return stack_intern(stacks, addresses + first, frames);
}

ladei_history_context *ladei_stacks_take(lade_stacks *stacks, const void *from, atomic_ullong *lost) {
  stack_entry *own = stack_capture(stacks, from);
  if (own != NULL) return record_of(own);
  atomic_fetch_add_explicit(lost, 1, memory_order_relaxed);
  return NULL;
}

__attribute__((noinline)) void *ladei_stacks_capture(void *stacks) {
  return stacks == NULL ? NULL : stack_capture(stacks, __builtin_return_address(0));
}

void ladei_stacks_release(void *stacks, void *stack_pointer) {
  (void)stacks;
  if (stack_pointer != NULL) atomic_fetch_sub_explicit(&record_of(stack_pointer)->references, 1, memory_order_acq_rel);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

lade_status ladei_stacks_each(const void *stack_pointer, ladei_stacks_visit visit, void *user) {
  const stack_entry *own = stack_pointer;
  ladei_module *module = NULL;
  for (size_t i = 0; i < own->count; i++) {
    uint64_t address = addresses_of(own)[i];
    if (module == NULL || !ladei_module_has(module, address - 1, own->generation)) /* mostly that of the frame before */
      module = ladei_modules_find(&own->set->modules, address - 1, own->generation);
    LADEI_TRY(visit(user, address, module));
  }
  return LADE_OK;
}

typedef struct describer {
  lade_stack_frame_visit visit;
  void *visitor;
} describer;

static lade_status address_describe(void *user, uint64_t address, ladei_module *module) {
  const describer *d = user;
  return ladei_symbols_describe(module, address, d->visit, d->visitor);
}

lade_status ladei_stacks_describe(void *stacks, const void *stack_pointer, lade_stack_frame_visit visit,
                                  void *visitor) {
  const stack_entry *own = stack_pointer;
  if (stacks == NULL || own == NULL || visit == NULL)
    return ladei_error_null(__func__, stacks == NULL ? "stacks" : own == NULL ? "stack" : "visit");
  uint64_t generation;
  describer d = {visit, visitor};
  (void)ladei_modules_look(&((lade_stacks *)stacks)->modules,
                           &generation); /* the loader is not asked about unloaded modules */
  return ladei_stacks_each(own, address_describe, &d);
}
