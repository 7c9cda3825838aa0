/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of a pinned pool's statistics, in the frame of that of device memory. */
#include "base/summary.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "lade/pinned.h"

typedef struct summary_gauge {
  const char *label;
  ladei_summary_unit unit;
  size_t offset; /* in lade_pinned_stats, of lade_pinned_gauge */
} summary_gauge;

static const summary_gauge gauges[] = {
    {"Requested memory", LADEI_SUMMARY_BYTES, offsetof(lade_pinned_stats, requested_bytes)},
    {"Memory in use", LADEI_SUMMARY_BYTES, offsetof(lade_pinned_stats, in_use_bytes)},
    {"Pending memory", LADEI_SUMMARY_BYTES, offsetof(lade_pinned_stats, pending_bytes)},
    {"Cached memory", LADEI_SUMMARY_BYTES, offsetof(lade_pinned_stats, cached_bytes)},
    {"Reserved memory", LADEI_SUMMARY_BYTES, offsetof(lade_pinned_stats, reserved_bytes)},
    {"Blocks in use", LADEI_SUMMARY_COUNT, offsetof(lade_pinned_stats, in_use_blocks)},
    {"Pending blocks", LADEI_SUMMARY_COUNT, offsetof(lade_pinned_stats, pending_blocks)},
    {"Cached blocks", LADEI_SUMMARY_COUNT, offsetof(lade_pinned_stats, cached_blocks)},
    {"Segments", LADEI_SUMMARY_COUNT, offsetof(lade_pinned_stats, segments)},
};

static void gauge_write(ladei_bounded_text *text, const summary_gauge *row, const lade_pinned_stats *stats) {
  const lade_pinned_gauge *gauge = (const void *)((const char *)stats + row->offset);
  const ladei_summary_values values = {{gauge->current, gauge->peak, gauge->allocated, gauge->freed}};
  ladei_summary_group(text);
  ladei_summary_row(text, row->label, row->unit, &values, &values);
}

lade_status lade_pinned_summary_write(const lade_pinned_stats *stats, int device, uint32_t flags, char *buffer,
                                      size_t bytes, size_t *out_needed) {
  lade_pinned_stats own;
  ladei_bounded_text text;
  LADEI_TRY(ladei_summary_enter(__func__, stats, &own, sizeof own, flags, buffer, bytes, &text));
  const ladei_summary_head head = {"lade pinned memory summary, device ID",
                                   device,
                                   "Waits at the cap:",
                                   "driver allocations:",
                                   own.limit_waits,
                                   own.driver_allocs};
  bool abbreviated = (flags & LADE_SUMMARY_ABBREVIATED) != 0;
  ladei_summary_begin(&text, &head);
  for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++)
    if (!abbreviated || gauges[i].unit == LADEI_SUMMARY_BYTES) gauge_write(&text, &gauges[i], &own);
  ladei_summary_end(&text);
  ladei_bounded_text_end(&text, out_needed);
  return LADE_OK;
}
