/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LADE_STATS=exit: a summary of all living objects, a line for each, with its own write().
 */
#include <stdio.h>
#include <unistd.h>

#include "base/living.h"
#include "config/stats.h"
#include "lade/device.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"

enum { SUMMARY_BYTES = 600 };

typedef unsigned long long number;

static int pinned_summary(lade_pinned_pool *pool, char *text, size_t bytes) {
  lade_pinned_stats s;
  lade_pinned_stats_init(&s);
  if (lade_pinned_stats_get(pool, &s) != LADE_OK) return 0;
  return snprintf(
      text, bytes,
      "pinned pool %p: reserved %llu bytes (most %llu), in use %llu (most %llu), pending %llu, cached %llu; "
      "%llu allocs from the cache, %llu with new memory, %llu driver allocs, %llu driver frees, "
      "%llu quarantined uses, %llu waits at the cap",
      (void *)pool, (number)s.reserved_bytes.current, (number)s.reserved_bytes.peak, (number)s.in_use_bytes.current,
      (number)s.in_use_bytes.peak, (number)s.pending_bytes.current, (number)s.cached_bytes.current, (number)s.hits,
      (number)s.misses, (number)s.driver_allocs, (number)s.driver_frees, (number)s.quarantined_uses,
      (number)s.limit_waits);
}

static int device_summary(lade_device_allocator *allocator, char *text, size_t bytes) {
  lade_device_stats s;
  lade_device_stats_init(&s);
  if (lade_device_stats_get(allocator, &s) != LADE_OK) return 0;
  return snprintf(
      text, bytes,
      "device allocator %p: reserved %llu bytes (most %llu), allocated %llu (most %llu), %llu blocks of %llu "
      "so far; %llu driver allocs, %llu driver frees, %llu retries, %llu out of memory",
      (void *)allocator, (number)s.reserved_bytes.all.current, (number)s.reserved_bytes.all.peak,
      (number)s.allocated_bytes.all.current, (number)s.allocated_bytes.all.peak, (number)s.allocation.all.current,
      (number)s.allocation.all.allocated, (number)s.device_allocs, (number)s.device_frees, (number)s.alloc_retries,
      (number)s.ooms);
}

static int pipeline_summary(lade_pipeline *pipeline, char *text, size_t bytes) {
  lade_pipeline_info i;
  lade_pipeline_info_init(&i);
  if (lade_pipeline_info_get(pipeline, &i) != LADE_OK) return 0;
  return snprintf(text, bytes,
                  "pipeline %p: %llu transfers submitted, %llu completed, %llu failed; %llu bytes, %llu copies, blocks "
                  "%llu (most %llu), direct files %llu, refused %llu",
                  (void *)pipeline, (number)i.transfers_submitted, (number)i.transfers_completed,
                  (number)i.transfers_failed, (number)i.bytes_completed, (number)i.copies, (number)i.blocks,
                  (number)i.blocks_peak, (number)i.direct_files, (number)i.direct_refused);
}

typedef struct summary {
  int fd;
  unsigned count;
} summary;

static void line_write(const summary *s, const char *text) {
  char line[SUMMARY_BYTES + 40];
  int length = snprintf(line, sizeof line, "lade[%d]: %s\n", (int)getpid(), text);
  ssize_t written = write(s->fd, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
  (void)written; /* a failure cannot be reported */
}

static void object_summary(ladei_living_kind kind, void *object, void *user) {
  summary *s = user;
  char text[SUMMARY_BYTES];
  int length = kind == LADEI_LIVING_PINNED   ? pinned_summary(object, text, sizeof text)
               : kind == LADEI_LIVING_DEVICE ? device_summary(object, text, sizeof text)
                                             : pipeline_summary(object, text, sizeof text);
  if (length <= 0) return;
  s->count++;
  line_write(s, text);
}

void ladei_stats_summary_write(int fd) {
  summary s = {.fd = fd};
  ladei_living_each(object_summary, &s);
  char text[80];
  snprintf(text, sizeof text, "at exit: %u pools, allocators and pipelines are alive", s.count);
  line_write(&s, text);
}
