/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of a device allocator's statistics: the rows and labels by which users of PyTorch know them. */
#include "base/summary.h"

#include <stddef.h>

#include "base/error.h"
#include "lade/device.h"

typedef struct summary_metric {
  const char *label;
  ladei_summary_unit unit;
  size_t offset; /* in lade_device_stats, of lade_device_gauges */
} summary_metric;

static const summary_metric divided[] = {
    {"Allocated memory", LADEI_SUMMARY_BYTES, offsetof(lade_device_stats, allocated_bytes)},
    {"Active memory", LADEI_SUMMARY_BYTES, offsetof(lade_device_stats, active_bytes)},
    {"Requested memory", LADEI_SUMMARY_BYTES, offsetof(lade_device_stats, requested_bytes)},
    {"GPU reserved memory", LADEI_SUMMARY_BYTES, offsetof(lade_device_stats, reserved_bytes)},
    {"Non-releasable memory", LADEI_SUMMARY_BYTES, offsetof(lade_device_stats, inactive_split_bytes)},
    {"Allocations", LADEI_SUMMARY_COUNT, offsetof(lade_device_stats, allocation)},
    {"Active allocs", LADEI_SUMMARY_COUNT, offsetof(lade_device_stats, active)},
    {"GPU reserved segments", LADEI_SUMMARY_COUNT, offsetof(lade_device_stats, segment)},
    {"Non-releasable allocs", LADEI_SUMMARY_COUNT, offsetof(lade_device_stats, inactive_split)},
};

static ladei_summary_values values_of(const lade_device_gauge *gauge) {
  return (ladei_summary_values){{gauge->current, gauge->peak, gauge->allocated, gauge->freed}};
}

static void metric_write(ladei_bounded_text *text, const summary_metric *metric, const lade_device_stats *stats,
                         bool abbreviated) {
  const lade_device_gauges *gauges = (const void *)((const char *)stats + metric->offset);
  const ladei_summary_values all = values_of(&gauges->all);
  ladei_summary_group(text);
  ladei_summary_row(text, metric->label, metric->unit, &all, &all);
  if (abbreviated) return;
  const ladei_summary_values large = values_of(&gauges->large_pool), small = values_of(&gauges->small_pool);
  ladei_summary_row(text, "      from large pool", metric->unit, &large, &all);
  ladei_summary_row(text, "      from small pool", metric->unit, &small, &all);
}

static void single_write(ladei_bounded_text *text, const char *label, const lade_device_gauge *gauge) {
  const ladei_summary_values values = values_of(gauge);
  ladei_summary_group(text);
  ladei_summary_row(text, label, LADEI_SUMMARY_COUNT, &values, &values);
}

lade_status lade_device_summary_write(const lade_device_stats *stats, int device, uint32_t flags, char *buffer,
                                      size_t bytes, size_t *out_needed) {
  lade_device_stats own;
  ladei_bounded_text text;
  LADEI_TRY(ladei_summary_enter(__func__, stats, &own, sizeof own, flags, buffer, bytes, &text));
  const ladei_summary_head head = {"lade device memory summary, device ID",
                                   device,
                                   "CUDA OOMs:",
                                   "cudaMalloc retries:",
                                   own.ooms,
                                   own.alloc_retries};
  ladei_summary_begin(&text, &head);
  for (size_t i = 0; i < sizeof divided / sizeof divided[0]; i++)
    metric_write(&text, &divided[i], &own, (flags & LADE_SUMMARY_ABBREVIATED) != 0);
  single_write(&text, "Oversize allocations", &own.oversize_allocations);
  single_write(&text, "Oversize GPU segments", &own.oversize_segments);
  ladei_summary_end(&text);
  ladei_bounded_text_end(&text, out_needed);
  return LADE_OK;
}
