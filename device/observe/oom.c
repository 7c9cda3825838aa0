/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why an allocation found no memory: the error's text, the event in the history, the observers.
 *
 *   facts: counters (lock), driver and processes (no lock) --> history's event (lock) --> observers --> text
 *
 * The text, in this order; fields in brackets only where they say something:
 *   the words that programs know, device, bytes asked for, bytes needed from the driver; total, free; [processes, as
 *   far as NVML knows them]; [limit]; allocated [of it cached in private pools, as far as a limited number of their
 *   blocks shows]; reserved but unallocated [and what may help]; [pending]; [capture]; [refused by the driver]; cause
 *
 * Locks: the allocator's lock while counters are copied; no callback or driver call is made under it.
 */
#include "device/observe/oom.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/static_probe.h"
#include "device/heap/recent.h"
#include "device/observe/callbacks.h"
#include "device/observe/history.h"
#include "device/state/backend.h"
#include "device/state/memory_info.h"
#include "runtime/nvml.h"

typedef struct size_text {
  char text[32];
} size_text;

/* "512 bytes", "1024.00 KiB", "20.00 MiB": the unit grows only beyond a whole of the next one. */
static size_text size_format(uint64_t bytes) {
  size_text out;
  if (bytes <= LADEI_KIB)
    snprintf(out.text, sizeof out.text, "%llu bytes", (unsigned long long)bytes);
  else if (bytes <= LADEI_MIB)
    snprintf(out.text, sizeof out.text, "%.2f KiB", (double)bytes / (double)LADEI_KIB);
  else if (bytes <= LADEI_GIB)
    snprintf(out.text, sizeof out.text, "%.2f MiB", (double)bytes / (double)LADEI_MIB);
  else
    snprintf(out.text, sizeof out.text, "%.2f GiB", (double)bytes / (double)LADEI_GIB);
  return out;
}

/* ---- Facts ------------------------------------------------------------------------------------------------------- */

typedef struct oom_facts {
  size_t free_bytes; /* of the device; 0 if the driver does not say */
  size_t total_bytes;
  uint64_t limit_bytes; /* UINT64_MAX: none */
  uint64_t allocated_bytes;
  uint64_t private_bytes; /* cached in private pools */
  bool private_more;      /* there may be more of them: not all was looked at */
  uint64_t reserved_bytes;
  uint64_t held_bytes; /* that the driver refused to take back */
  bool frees_held;     /* nothing may be given back meanwhile */
  bool pending;
  bool capturing;  /* and nothing may be given back then: PyTorch's decision */
  bool expandable; /* or no backend that could be */
} oom_facts;

/* How many free blocks are looked at, as other threads wait for the lock meanwhile. */
enum { PRIVATE_BLOCKS_MAX = 1024 };

/* The free blocks of a pool, as long as *budget lasts. */
static uint64_t pool_cached_bytes(const ladei_device_block_pool *pool, size_t *budget) {
  uint64_t total = 0;
  const ladei_device_sorted_entry *entry = ladei_device_free_set_first(&pool->free);
  for (; entry != NULL && *budget > 0; entry = ladei_device_free_set_next(&pool->free, &entry->key)) {
    total += entry->block->size;
    --*budget;
  }
  return total;
}

/* Bytes cached in private pools, which only their captures can use; at least so many where the budget is used up. */
static void private_bytes_sum(const ladei_device_heap *heap, oom_facts *facts) {
  ladei_device_recent_settle(heap);
  size_t budget = PRIVATE_BLOCKS_MAX;
  const ladei_device_private_pool *pool = heap->private_pools;
  facts->private_bytes = 0;
  for (; pool != NULL && budget > 0; pool = pool->next) {
    facts->private_bytes += pool_cached_bytes(&pool->small_pool, &budget);
    facts->private_bytes += pool_cached_bytes(&pool->large_pool, &budget);
  }
  facts->private_more = budget == 0;
}

/* Copies what the allocator knows, and writes the event. */
static lade_device_stats facts_copy(lade_device_allocator *allocator, const ladei_device_request *request,
                                    oom_facts *facts) {
  ladei_device_heap *heap = &allocator->heap;
  LADEI_PROBE3(device_oom, allocator->device, request->requested, facts->free_bytes);
  ladei_lock_acquire(&allocator->lock);
  lade_device_stats stats = ladei_device_heap_stats(heap);
  private_bytes_sum(heap, facts);
  facts->held_bytes = allocator->limits.held_bytes;
  facts->frees_held = allocator->caching.frees_held > 0;
  facts->limit_bytes = ladei_device_fraction_limit(allocator);
  if (allocator->limits.max_bytes < facts->limit_bytes) facts->limit_bytes = allocator->limits.max_bytes;
  facts->capturing = ladei_device_reference_captures(allocator);
  facts->expandable = heap->settings.expandable_segments || allocator->backend_state != NULL;
  if (heap->listener != NULL) {
    ladei_device_history_event(heap, LADE_DEVICE_OOM, facts->free_bytes, request->rounded, request->stream.handle,
                               request->pool_id);
  }
  ladei_lock_release(&allocator->lock);
  return stats;
}

static void facts_collect(lade_device_allocator *allocator, const ladei_device_request *request, oom_facts *facts) {
  facts->total_bytes = (size_t)allocator->total_bytes;
  (void)ladei_device_memory_info(allocator, &facts->free_bytes, &facts->total_bytes);
  lade_device_stats stats = facts_copy(allocator, request, facts);
  if (allocator->backend->stats_complete != NULL) (void)allocator->backend->stats_complete(allocator, &stats);
  facts->allocated_bytes = stats.allocated_bytes.all.current;
  facts->reserved_bytes = stats.reserved_bytes.all.current;
  facts->pending = stats.active.all.current > stats.allocation.all.current;
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

/* How many other processes are named; the rest is one sum, so that the text stays one that can be read. */
enum { PROCESSES_NAMED = 3 };

typedef struct process_text {
  char text[320];
  size_t length;
} process_text;

__attribute__((format(printf, 2, 3))) static void text_add(process_text *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(out->text + out->length, sizeof out->text - out->length, format, arguments);
  va_end(arguments);
  if (length > 0) out->length += (size_t)length;
  if (out->length >= sizeof out->text) out->length = sizeof out->text - 1;
}

static size_text use_format(const ladei_process_use *use) {
  return use->bytes_known ? size_format(use->bytes) : (size_text){"an unknown amount"};
}

/* This process first, then those that use most. */
static int use_compare(const void *a, const void *b) {
  const ladei_process_use *x = a;
  const ladei_process_use *y = b;
  uint32_t own = (uint32_t)getpid();
  if ((x->pid == own) != (y->pid == own)) return x->pid == own ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return (x->pid > y->pid) - (x->pid < y->pid);
}

static void processes_write(const ladei_process_use *list, size_t count, process_text *out) {
  size_t others = 0;
  size_t rest_count = 0;
  uint64_t rest_bytes = 0;
  for (size_t i = 0; i < count; i++) {
    if (list[i].pid == (uint32_t)getpid()) {
      text_add(out, "; this process uses %s, other memory included", use_format(&list[i]).text);
    } else if (others++ < PROCESSES_NAMED) {
      text_add(out, "; process %u uses %s", (unsigned)list[i].pid, use_format(&list[i]).text);
    } else {
      rest_count++;
      rest_bytes += list[i].bytes;
    }
  }
  if (rest_count > 0) text_add(out, "; %zu more use %s", rest_count, size_format(rest_bytes).text);
}

/* Empty where nothing is known; no other process uses a software device. */
static process_text processes_report(lade_device_allocator *allocator) {
  process_text out = {"", 0};
  ladei_device_properties properties;
  ladei_nvml_answer answer;
  lade_error before;
  lade_runtime *runtime = allocator->runtime;
  ladei_lock_assert_none_held();
  ladei_error_save(&before);
  if (runtime->software_device != NULL ||
      runtime->ops->device_properties(runtime->self, allocator->device, &properties) != LADE_OK ||
      ladei_nvml_processes(LADEI_NVML_LIBRARY, properties.pci_bus_id, &answer) != LADE_OK) {
    ladei_error_restore(&before); /* why memory is out is what observers read */
    return out;
  }
  qsort(answer.list, answer.count, sizeof *answer.list, use_compare);
  processes_write(answer.list, answer.count, &out);
  free(answer.list);
  return out;
}

/* ---- The error --------------------------------------------------------------------------------------------------- */

static lade_status text_record(const lade_device_allocator *allocator, const ladei_device_request *request,
                               const oom_facts *facts, const process_text *processes, lade_status status,
                               const lade_error *cause) {
  uint64_t taken = facts->allocated_bytes + facts->private_bytes;
  uint64_t unallocated = facts->reserved_bytes > taken ? facts->reserved_bytes - taken : 0;
  char limit[64] = "";
  char private_share[80] = "";
  if (facts->limit_bytes != UINT64_MAX)
    snprintf(limit, sizeof limit, "; limit %s", size_format(facts->limit_bytes).text);
  if (facts->private_bytes > 0) {
    snprintf(private_share, sizeof private_share, ", %s%s of it cached in private pools",
             facts->private_more ? "at least " : "", size_format(facts->private_bytes).text);
  }
  char kept[96] = "";
  if (request->kept_bytes > 0) {
    snprintf(kept, sizeof kept, "; %s stayed cached, as giving them back would break a capture",
             size_format(request->kept_bytes).text);
  }
  char held[112] = "";
  if (facts->held_bytes > 0)
    snprintf(held, sizeof held, "; %s that the driver refused to take back", size_format(facts->held_bytes).text);
  if (facts->frees_held) snprintf(held + strlen(held), sizeof held - strlen(held), "; frees to the driver are held");
  bool hint = unallocated >= request->segment_bytes && !facts->expandable;
  return ladei_error(status, cause->native_code,
                     LADEI_OUT_OF_MEMORY "Device %d: %zu bytes asked for, needing %s; total %s, free %s%s%s; allocated "
                                         "%s%s; reserved but "
                                         "unallocated %s%s%s%s%s%s: %s",
                     allocator->device, request->requested, size_format(request->segment_bytes).text,
                     size_format(facts->total_bytes).text, size_format(facts->free_bytes).text, processes->text, limit,
                     size_format(taken).text, private_share, size_format(unallocated).text,
                     hint ? ", for which expandable_segments:True may help (docs/tuning.md)" : "",
                     facts->pending ? "; some freed blocks are still in use by other streams" : "",
                     facts->capturing ? "; a capture forbids giving the cache back" : "", kept, held, cause->text);
}

lade_status ladei_device_report_exhausted(lade_device_allocator *allocator, const ladei_device_request *request,
                                          lade_status status) {
  ladei_lock_assert_none_held();
  lade_error cause;
  ladei_error_save(&cause);
  int cancellation = ladei_cancellation_hold();
  oom_facts facts = {0};
  facts_collect(allocator, request, &facts);
  process_text processes = processes_report(allocator);
  lade_device_oom oom = {.struct_size = sizeof oom,
                         .device = allocator->device,
                         .requested_bytes = request->requested,
                         .segment_bytes = request->segment_bytes,
                         .limit_bytes = facts.limit_bytes != UINT64_MAX ? facts.limit_bytes : facts.total_bytes,
                         .free_bytes = facts.free_bytes};
  ladei_device_callbacks_report_oom(allocator, &oom);
  ladei_cancellation_resume(cancellation);
  return text_record(allocator, request, &facts, &processes, status, &cause);
}
