/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics by name; model and invariants in stat_keys.h. */
#include "base/stat_keys.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"

/* The struct as this library knows it: the caller's own, or a copy if that is smaller. */
typedef struct whole_stats {
  const void *stats;
  _Alignas(8) unsigned char copy[LADEI_STAT_STRUCT_MAX];
} whole_stats;

static lade_status stats_complete(const ladei_stat_table *table, const char *call, const void *stats,
                                  whole_stats *whole) {
  assert(table->struct_bytes <= sizeof whole->copy);
  if (stats == NULL) return ladei_error_null(call, "stats");
  size_t bytes;
  memcpy(&bytes, stats, sizeof bytes);
  whole->stats = stats;
  if (bytes >= table->struct_bytes) return LADE_OK;
  whole->stats = whole->copy;
  return ladei_options_read(call, stats, whole->copy, table->struct_bytes);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Offsets of a public gauge's cells, in the order of their names; the same for three gauges. */
static const size_t cell_offsets[LADEI_STAT_CELLS] = {16, 0, 24, 8};
static const size_t pool_offsets[LADEI_STAT_POOLS] = {0, 64, 32};

static size_t keys_count(ladei_stat_kind kind) {
  switch (kind) {
  case LADEI_STAT_GAUGES: return LADEI_STAT_KEYS_MAX;
  case LADEI_STAT_GAUGE:
  case LADEI_STAT_COMPUTED_GAUGE: return LADEI_STAT_CELLS;
  case LADEI_STAT_COMPUTED_TIMES: return LADEI_STAT_FIGURES;
  default: return 1;
  }
}

static int64_t wide_read(const unsigned char *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

static int64_t value_read(const ladei_stat_metric *metric, size_t key, const void *stats) {
  const unsigned char *at = (const unsigned char *)stats + metric->offset;
  uint32_t narrow;
  switch (metric->kind) {
  case LADEI_STAT_U64: return wide_read(at);
  case LADEI_STAT_U32: memcpy(&narrow, at, sizeof narrow); return narrow;
  case LADEI_STAT_I32: memcpy(&narrow, at, sizeof narrow); return (int32_t)narrow;
  case LADEI_STAT_COMPUTED:
  case LADEI_STAT_COMPUTED_GAUGE:
  case LADEI_STAT_COMPUTED_TIMES: return metric->compute(stats, key);
  case LADEI_STAT_GAUGE:
  case LADEI_STAT_GAUGES:
    return wide_read(at + pool_offsets[key / LADEI_STAT_CELLS] + cell_offsets[key % LADEI_STAT_CELLS]);
  }
  return 0;
}

lade_status ladei_stat_keys_each(const ladei_stat_table *table, const char *call, const void *stats,
                                 lade_stat_visit visit, void *user) {
  whole_stats whole;
  lade_status status = stats_complete(table, call, stats, &whole);
  if (status == LADE_OK && visit == NULL) return ladei_error_null(call, "visit");
  for (size_t part = 0; part < LADEI_STAT_PARTS; part++)
    for (size_t i = 0; i < table->parts[part].count; i++) {
      const ladei_stat_metric *metric = &table->parts[part].metrics[i];
      for (size_t key = 0; status == LADE_OK && key < keys_count(metric->kind); key++)
        status = visit(metric->keys[key], value_read(metric, key, whole.stats), user);
    }
  return status;
}

lade_status ladei_stats_reset_check(const char *call, uint32_t what) {
  const uint32_t known = LADE_STATS_RESET_PEAKS | LADE_STATS_RESET_SUMS;
  if (what != 0 && (what & ~known) == 0) return LADE_OK;
  return ladei_error_argument(call, "what", "LADE_STATS_RESET_PEAKS, LADE_STATS_RESET_SUMS or both", "%u", what);
}
