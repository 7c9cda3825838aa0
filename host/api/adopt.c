/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the program's own that a pool pins in place. It is no segment: nothing of it is cached or handed out, and no use is
 * tracked. The pool keeps its registration and its charge.
 *
 *   adopt   charge -> register -> in the list          disown   out of the list -> unregister -> credit
 *                                                                 ^----- refused: in it again
 *   charge  refused by the budget: what the pool has free is given back, as far as needed, and the charge tried again
 *
 * A1  What is in the list is registered, and charged to the budget unless the program said that another process has done that; what
 *     processes share is charged by all of them together.
 * A2  A thread that takes an entry out of the list has it alone; so of two that disown the same memory one is refused.
 * A3  Memory that a failed creation could not unregister stays in the list, and destroying the pool tries again.
 * Locks: the pool's lock guards the list. The driver is called without it.
 */
#include "host/api/adopt.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "host/budget/ledger_mapping.h"
#include "host/grow/give_back.h"
#include "host/grow/seek.h"
#include "host/state/call.h"
#include "host/state/stats.h"

typedef struct ladei_pinned_adopted {
  struct ladei_pinned_adopted *next;
  void *memory; /* as the program named it */
  void *base;   /* its pages */
  size_t bytes;
  uint64_t charged;       /* of them, to the budget, by this pool alone */
  ladei_ledger_hold hold; /* id not 0: charged by this pool and those of other processes together */
  bool mapped;            /* by lade: unmapped at the end */
  bool abandoned;         /* no caller knows of it: A3 */
} ladei_pinned_adopted;

static void list_put(lade_pinned_pool *pool, ladei_pinned_adopted *entry) {
  ladei_lock_acquire(&pool->lock);
  entry->next = pool->adopted;
  pool->adopted = entry;
  ladei_lock_release(&pool->lock);
}

/* A2; NULL: it is not there. */
static ladei_pinned_adopted *list_take(lade_pinned_pool *pool, const void *memory) {
  ladei_lock_acquire(&pool->lock);
  ladei_pinned_adopted **link = &pool->adopted;
  while (*link != NULL && (*link)->memory != memory) link = &(*link)->next;
  ladei_pinned_adopted *found = *link;
  if (found != NULL) *link = found->next;
  ladei_lock_release(&pool->lock);
  return found;
}

uint64_t ladei_pinned_adopted_bytes(lade_pinned_pool *pool) {
  uint64_t bytes = 0;
  ladei_lock_acquire(&pool->lock);
  for (const ladei_pinned_adopted *entry = pool->adopted; entry != NULL; entry = entry->next)
    bytes += entry->abandoned ? 0 : entry->bytes;
  ladei_lock_release(&pool->lock);
  return bytes;
}

static lade_status budget_ask(lade_pinned_pool *pool, ladei_pinned_adopted *entry) {
  bool fault = false;
  lade_status status = LADE_OK;
  if (entry->hold.id != 0)
    status = ladei_pinned_budget_share(&pool->budget, &entry->hold, &fault);
  else if (entry->charged > 0)
    status = ladei_pinned_budget_charge(&pool->budget, entry->charged, &fault);
  if (fault)
    ladei_pinned_count(&pool->counters.budget_faults, 1);
  else if (status != LADE_OK)
    ladei_pinned_count(&pool->counters.budget_refusals, 1);
  return status;
}

/* Refused, the pool gives back what the budget lacks. True: something has come back to it. */
static bool room_make(lade_pinned_pool *pool, uint64_t bytes) {
  lade_error refusal;
  uint64_t left = ladei_pinned_budget_left(&pool->budget);
  uint64_t before = ladei_pinned_gauge_current(&pool->counters.reserved_bytes);
  uint64_t lacking = left < bytes ? ladei_size_min(bytes - left, before) : 0;
  ladei_error_save(&refusal);
  (void)ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, NULL);
  (void)ladei_pinned_pool_trim(pool, before - lacking); /* what the driver does not take back stays */
  ladei_error_restore(&refusal);
  return ladei_pinned_gauge_current(&pool->counters.reserved_bytes) < before;
}

static lade_status budget_charge(lade_pinned_pool *pool, ladei_pinned_adopted *entry) {
  lade_status status = budget_ask(pool, entry);
  return status == LADE_ERR_LIMIT && room_make(pool, entry->bytes) ? budget_ask(pool, entry) : status;
}

static void budget_credit(lade_pinned_pool *pool, ladei_pinned_adopted *entry) {
  if (entry->hold.id != 0)
    ladei_pinned_budget_unshare(&pool->budget, &entry->hold);
  else if (entry->charged > 0)
    ladei_pinned_budget_credit(&pool->budget, entry->charged);
}

/* A1 */
static lade_status entry_pin(lade_pinned_pool *pool, ladei_pinned_adopted *entry, uint32_t flags) {
  const lade_runtime *runtime = pool->runtime;
  lade_error error;
  LADEI_TRY(budget_charge(pool, entry));
  lade_status status =
      runtime->ops->host_register(runtime->self, pool->settings.device, entry->base, entry->bytes,
                                  (flags & LADE_PINNED_ADOPT_READ_ONLY) != 0 ? LADEI_HOST_READ_ONLY : 0);
  if (status == LADE_OK) return LADE_OK;
  ladei_error_save(&error);
  budget_credit(pool, entry);
  ladei_error_restore(&error);
  return status;
}

static lade_status arguments_check(const void *memory, uint64_t bytes, uint32_t flags, const char *call) {
  const uint32_t all = LADE_PINNED_ADOPT_READ_ONLY | LADE_PINNED_ADOPT_CHARGED;
  if (bytes == 0 || bytes > LADEI_PINNED_MAX_BYTES || bytes > UINTPTR_MAX - (uintptr_t)memory)
    return ladei_error_argument(call, "bytes", "1 to 1 TiB", "%llu", (unsigned long long)bytes);
  return (flags & ~all) == 0 ? LADE_OK
                             : ladei_error_argument(call, "flags", "bits of lade_pinned_adopt_flag", "%#x", flags);
}

static lade_status memory_adopt(lade_pinned_pool *pool, void *memory, uint64_t bytes, uint32_t flags, bool mapped,
                                const char *call) {
  ladei_lock_assert_none_held();
  ladei_pinned_adopted *entry = calloc(1, sizeof *entry);
  if (entry == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", call);
  size_t before = (uintptr_t)memory % LADEI_PINNED_PAGE_BYTES;
  *entry = (ladei_pinned_adopted){.memory = memory, .base = (char *)memory - before, .mapped = mapped};
  entry->bytes = ladei_pinned_pages(before + (size_t)bytes) << LADEI_PINNED_PAGE_SHIFT;
  if (pool->budget.ledger != NULL && (flags & LADE_PINNED_ADOPT_CHARGED) == 0) {
    entry->hold = (ladei_ledger_hold){.id = ladei_ledger_mapping_id(entry->base, entry->bytes), .bytes = entry->bytes};
    entry->charged = entry->hold.id != 0 ? 0 : entry->bytes;
  }
  lade_status status = entry_pin(pool, entry, flags);
  if (status != LADE_OK) {
    free(entry);
    return ladei_error_prefix(status, "%s: %llu bytes: ", call, (unsigned long long)bytes);
  }
  ladei_log_later(LADE_LOG_INFO, "pinned pool %llu: adopted %zu bytes at %p", (unsigned long long)pool->id,
                  entry->bytes, memory);
  list_put(pool, entry);
  return LADE_OK;
}

lade_status ladei_pinned_adopt_mapped(lade_pinned_pool *pool, void *memory, uint64_t bytes, const char *call) {
  return memory_adopt(pool, memory, bytes, 0, true, call);
}

lade_status lade_pinned_adopt(lade_pinned_pool *pool, void *memory, uint64_t bytes, uint32_t flags) {
  LADEI_TRY(ladei_pinned_enter_with(pool, memory != NULL, "memory", __func__));
  LADEI_TRY(arguments_check(memory, bytes, flags, __func__));
  return LADEI_HELD(memory_adopt(pool, memory, bytes, flags, false, "lade_pinned_adopt"));
}

/* Refused by the driver, it stays, and no caller knows of it if `abandons`. */
static lade_status memory_disown(lade_pinned_pool *pool, const void *memory, bool abandons) {
  static const char call[] = "lade_pinned_disown";
  ladei_lock_assert_none_held();
  ladei_pinned_adopted *entry = list_take(pool, memory);
  if (entry == NULL)
    return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "%s: memory is %p; expected what this pool has adopted", call,
                       memory);
  lade_status status = pool->runtime->ops->host_unregister(pool->runtime->self, entry->base);
  if (status != LADE_OK) {
    entry->abandoned = abandons;
    list_put(pool, entry);
    return ladei_error_prefix(status, "%s: ", call);
  }
  budget_credit(pool, entry);
  if (entry->mapped) munmap(entry->base, entry->bytes);
  ladei_log_later(LADE_LOG_INFO, "pinned pool %llu: disowned %zu bytes at %p", (unsigned long long)pool->id,
                  entry->bytes, memory);
  free(entry);
  return LADE_OK;
}

lade_status lade_pinned_disown(lade_pinned_pool *pool, void *memory) {
  LADEI_TRY(ladei_pinned_enter_with(pool, memory != NULL, "memory", __func__));
  return LADEI_HELD(memory_disown(pool, memory, false));
}

void ladei_pinned_adopted_abandon(lade_pinned_pool *pool, const void *memory) {
  LADEI_ASIDE((void)memory_disown(pool, memory, true));
}

lade_status ladei_pinned_adopted_finish(lade_pinned_pool *pool) {
  lade_status status = LADE_OK;
  while (pool->adopted != NULL && status == LADE_OK) {
    assert(pool->adopted->abandoned && "A3");
    status = memory_disown(pool, pool->adopted->memory, true);
  }
  return status;
}
