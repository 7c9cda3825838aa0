/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timeline of a replay.
 *
 * I1  Each point covers per_point operations, the last one in_point of them.
 */
#include "tools/replay/timeline.h"

#include <string.h>

#include "base/size.h"
#include "base/svg.h"

void timeline_init(timeline *t) {
  memset(t, 0, sizeof *t);
  t->per_point = 1;
}

/* Makes one point of every two. */
static void points_halve(timeline *t) {
  for (int s = 0; s < TIMELINE_SERIES; s++)
    for (size_t i = 0; i < TIMELINE_POINTS / 2; i++)
      t->points[s][i] = ladei_size_max(t->points[s][2 * i], t->points[s][2 * i + 1]);
  t->point_count = TIMELINE_POINTS / 2;
  t->per_point *= 2;
  t->in_point = t->per_point;
}

/* Between two operations a counter grows, or a reset sets it to 0. */
static void counter_follow(timeline_counter *counter, uint64_t value) {
  counter->total += value < counter->latest ? value : value - counter->latest;
  counter->latest = value;
}

static void totals_follow(timeline *t, const lade_device_stats *stats) {
  t->operations++;
  t->peak_active = ladei_size_max(t->peak_active, stats->active_bytes.all.peak);
  counter_follow(&t->device_allocs, stats->device_allocs);
  counter_follow(&t->alloc_retries, stats->alloc_retries);
  counter_follow(&t->ooms, stats->ooms);
}

void timeline_add(timeline *t, const lade_device_stats *stats) {
  const uint64_t values[TIMELINE_SERIES] = {stats->reserved_bytes.all.current, stats->active_bytes.all.current,
                                            stats->requested_bytes.all.current};
  totals_follow(t, stats);
  if (values[0] > t->peak_reserved) {
    t->peak_reserved = values[0];
    t->active_at_peak = values[1];
  }
  if (t->point_count > 0 && t->in_point < t->per_point) {
    size_t last = t->point_count - 1;
    for (int s = 0; s < TIMELINE_SERIES; s++) t->points[s][last] = ladei_size_max(t->points[s][last], values[s]);
    t->in_point++;
    return;
  }
  if (t->point_count == TIMELINE_POINTS) points_halve(t);
  for (int s = 0; s < TIMELINE_SERIES; s++) t->points[s][t->point_count] = values[s];
  t->point_count++;
  t->in_point = 1;
}

double timeline_fragmentation(const timeline *t) {
  return t->peak_reserved == 0 ? 0.0 : 1.0 - (double)t->active_at_peak / (double)t->peak_reserved;
}

/* ---- Picture ----------------------------------------------------------------------------------------------------- */

enum { WIDTH = 1000, HEIGHT = 420, LEFT = 90, RIGHT = 20, TOP = 50, BOTTOM = 60, TICKS = 5 };

static double x_at(const timeline *t, size_t point) {
  double left = LEFT, length = WIDTH - LEFT - RIGHT;
  return left + (t->point_count < 2 ? 0.0 : length * (double)point / (double)(t->point_count - 1));
}

static double y_at(uint64_t value, uint64_t top_value) {
  double length = HEIGHT - TOP - BOTTOM;
  return HEIGHT - BOTTOM - (top_value == 0 ? 0.0 : length * (double)value / (double)top_value);
}

static void axes_draw(ladei_svg *out, const timeline *t, uint64_t top_value) {
  const ladei_svg_look right = {.anchor = "end"};
  char label[64];
  for (int i = 0; i <= TICKS; i++) {
    uint64_t value = top_value / TICKS * (uint64_t)i;
    double y = y_at(value, top_value);
    snprintf(label, sizeof label, "%.1f MiB", (double)value / (double)LADEI_MIB);
    ladei_svg_line(out, LEFT, y, WIDTH - RIGHT, y, &(ladei_svg_look){.stroke = "#ddd"}, NULL);
    ladei_svg_text(out, LEFT - 8, y + 4, &right, 0, label);
  }
  snprintf(label, sizeof label, "%llu operations", (unsigned long long)t->operations);
  ladei_svg_text(out, WIDTH - RIGHT, HEIGHT - BOTTOM + 20, &right, 0, label);
  ladei_svg_text(out, LEFT, HEIGHT - BOTTOM + 20, NULL, 0, "0");
}

static void series_draw(ladei_svg *out, const timeline *t, int series, uint64_t top_value, const char *colour) {
  ladei_svg_point points[TIMELINE_POINTS];
  for (size_t i = 0; i < t->point_count; i++)
    points[i] = (ladei_svg_point){x_at(t, i), y_at(t->points[series][i], top_value)};
  ladei_svg_polyline(out, points, t->point_count,
                     &(ladei_svg_look){.fill = "none", .stroke = colour, .stroke_width = 1.5}, NULL);
}

void timeline_write_svg(FILE *file, const timeline *t, const char *title) {
  static const char *const names[TIMELINE_SERIES] = {"reserved", "active", "requested"};
  static const char *const colours[TIMELINE_SERIES] = {"#1f4e79", "#c05a00", "#3a7d44"};
  ladei_svg out;
  ladei_svg_begin(&out, ladei_svg_to_file, file, WIDTH, HEIGHT, "text{font:12px sans-serif}");
  ladei_svg_text(&out, LEFT, 24, NULL, 0, title);
  axes_draw(&out, t, t->peak_reserved);
  for (int s = 0; s < TIMELINE_SERIES; s++) {
    double x = (double)LEFT + 140.0 * s;
    series_draw(&out, t, s, t->peak_reserved, colours[s]);
    ladei_svg_rect(&out, x, HEIGHT - 26, 12, 12, &(ladei_svg_look){.fill = colours[s]}, NULL);
    ladei_svg_text(&out, x + 18, HEIGHT - 16, NULL, 0, names[s]);
  }
  (void)ladei_svg_end(&out); /* the file keeps the error */
}
