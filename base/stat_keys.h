/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics by name: a room's table maps each key to a field of its public struct. Base knows no table.
 *
 *   METRIC               a field, or a figure computed from several
 *   METRIC.CELL          a gauge: allocated, current, freed, peak
 *   METRIC.POOL.CELL     three gauges side by side: all, large_pool, small_pool
 *   METRIC.FIGURE        times of calls: avg, count, max, min, total
 *
 * I1  The metrics of a part of a table are in code-point order, and so are the keys, as no name has a character below
 *     '.'. A table may have two parts: names of other projects, then lade's own.
 * I2  A field beyond the end of the caller's struct counts as 0.
 * Locks: none. Nothing is allocated.
 */
#ifndef LADE_BASE_STAT_KEYS_H
#define LADE_BASE_STAT_KEYS_H

#include <stddef.h>

#include "lade/runtime.h"

/* The type of a metric. */
typedef enum ladei_stat_kind {
  LADEI_STAT_U64,
  LADEI_STAT_U32,
  LADEI_STAT_I32,
  LADEI_STAT_GAUGE,          /* lade_device_gauge or lade_pinned_gauge */
  LADEI_STAT_GAUGES,         /* lade_device_gauges */
  LADEI_STAT_COMPUTED,       /* from several fields */
  LADEI_STAT_COMPUTED_GAUGE, /* ... the cells of a gauge */
  LADEI_STAT_COMPUTED_TIMES  /* ... times of calls */
} ladei_stat_kind;

/* The second parts of keys, in their order. */
typedef enum ladei_stat_cell {
  LADEI_STAT_ALLOCATED,
  LADEI_STAT_CURRENT,
  LADEI_STAT_FREED,
  LADEI_STAT_PEAK,
  LADEI_STAT_CELLS
} ladei_stat_cell;

typedef enum ladei_stat_figure {
  LADEI_STAT_AVG,
  LADEI_STAT_COUNT,
  LADEI_STAT_MAX,
  LADEI_STAT_MIN,
  LADEI_STAT_TOTAL,
  LADEI_STAT_FIGURES
} ladei_stat_figure;

enum { LADEI_STAT_POOLS = 3, LADEI_STAT_KEYS_MAX = LADEI_STAT_CELLS * LADEI_STAT_POOLS };

typedef struct ladei_stat_metric {
  ladei_stat_kind kind;
  size_t offset;                                     /* of the field */
  int64_t (*compute)(const void *stats, size_t key); /* by the key's number below */
  const char *keys[LADEI_STAT_KEYS_MAX];             /* in order; the kind gives their number */
} ladei_stat_metric;

typedef struct ladei_stat_part {
  const ladei_stat_metric *metrics;
  size_t count;
} ladei_stat_part;

enum { LADEI_STAT_PARTS = 2, LADEI_STAT_STRUCT_MAX = 2048 };

typedef struct ladei_stat_table {
  ladei_stat_part parts[LADEI_STAT_PARTS];
  size_t struct_bytes; /* of the library's own struct, at most LADEI_STAT_STRUCT_MAX */
} ladei_stat_table;

/* Rows of a table: for `field` of the struct `type` under a name; for a function. */
#define LADEI_STAT_KEYS_OF_GAUGE(name) name ".allocated", name ".current", name ".freed", name ".peak"
#define LADEI_STAT_ROW_PLAIN(type, name, field, kind)                                                                  \
  {                                                                                                                    \
    kind, offsetof(type, field), NULL, { name }                                                                        \
  }
#define LADEI_STAT_ROW_COMPUTED_GAUGE(name, function)                                                                  \
  {                                                                                                                    \
    LADEI_STAT_COMPUTED_GAUGE, 0, function, { LADEI_STAT_KEYS_OF_GAUGE(name) }                                         \
  }
#define LADEI_STAT_ROW_COMPUTED_TIMES(name, function)                                                                  \
  {                                                                                                                    \
    LADEI_STAT_COMPUTED_TIMES, 0, function, { name ".avg", name ".count", name ".max", name ".min", name ".total" }    \
  }
#define LADEI_STAT_ROW_COMPUTED(name, function)                                                                        \
  {                                                                                                                    \
    LADEI_STAT_COMPUTED, 0, function, { name }                                                                         \
  }
#define LADEI_STAT_ROW_GAUGE(type, name, field)                                                                        \
  {                                                                                                                    \
    LADEI_STAT_GAUGE, offsetof(type, field), NULL, { LADEI_STAT_KEYS_OF_GAUGE(name) }                                  \
  }
#define LADEI_STAT_ROW_GAUGES(type, name, field)                                                                       \
  {                                                                                                                    \
    LADEI_STAT_GAUGES, offsetof(type, field), NULL, {                                                                  \
      LADEI_STAT_KEYS_OF_GAUGE(name ".all"), LADEI_STAT_KEYS_OF_GAUGE(name ".large_pool"),                             \
          LADEI_STAT_KEYS_OF_GAUGE(name ".small_pool")                                                                 \
    }                                                                                                                  \
  }

/* The public call of a room: `call` is its name, `stats` the caller's struct, with struct_size. */
lade_status ladei_stat_keys_each(const ladei_stat_table *table, const char *call, const void *stats,
                                 lade_stat_visit visit, void *user);

/* Whether `what` of the public call is a set of lade_stats_reset, not an empty one. */
lade_status ladei_stats_reset_check(const char *call, uint32_t what);

#endif /* LADE_BASE_STAT_KEYS_H */
