/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The picture of a run: a row for lade and each baseline, a bar in it for each direction.
 *
 *   title
 *                                    | bar of the median, its figure
 *   lade                             |=====================|--- 51.2     a line from the least to the most
 *   (a) pinned copies alone          |======================== 55.1
 *                                    [] to device  [] to host
 *
 * A report has the median of each baseline, and of lade the least and the most as well.
 */
#include "benchmarks/staging_plot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/svg.h"
#include "benchmarks/staging_by_hand.h"
#include "benchmarks/staging_messages.h"

static const char *const direction_keys[STAGING_DIRECTIONS] = {"h2d", "d2h"};
static const char *const direction_names[STAGING_DIRECTIONS] = {"to device", "to host"};
static const char *const direction_colours[STAGING_DIRECTIONS] = {"#4472c4", "#c05a00"};

/* In the order of the rows. */
static const struct {
  staging_variant variant;
  const char *name;
} rows[] = {
    {STAGING_LADE, "lade"},
    {STAGING_CEILING, "(a) pinned copies alone"},
    {STAGING_NAIVE, "(b) read and copy, one by one"},
    {STAGING_UNCACHED, "(c) pinned anew for each chunk"},
    {STAGING_READS, "(d) the file alone"},
    {STAGING_BY_HAND, "(e) threads and buffers by hand"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* ---- What is drawn ----------------------------------------------------------------------------------------------- */

static void title_make(staging_plot *plot, double bytes, const char *device, const char *runtime) {
  snprintf(plot->title, sizeof plot->title, "%.4g GiB of files, %s (runtime %s), GB/s", bytes / 0x1p30, device,
           runtime);
}

void staging_plot_of_run(const staging *s, staging_plot *out) {
  lade_device_info info;
  lade_device_info_init(&info);
  (void)lade_runtime_device_info(s->runtime, s->settings.device, &info);
  memset(out, 0, sizeof *out);
  title_make(out, (double)s->inputs.bytes, info.name, lade_runtime_name(s->runtime));
  for (int variant = 0; variant < STAGING_LOOP; variant++) {
    if (variant == STAGING_BY_HAND && !staging_has_by_hand(s)) continue;
    for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) {
      const bench_samples *samples = &s->samples[direction][variant];
      if (s->settings.directions[direction]) {
        out->bars[variant][direction] =
            (staging_plot_bar){bench_median(samples), bench_min(samples), bench_max(samples)};
      }
    }
  }
}

/* 0 where the report has no such number. */
static double number_of(const json_t *object, const char *key) {
  double value = json_number_value(json_object_get(object, key));
  return value > 0 ? value : 0;
}

static staging_plot_bar bar_of(double median) { return (staging_plot_bar){median, median, median}; }

static void direction_read(const json_t *report, int direction, staging_plot *out) {
  const char *key = direction_keys[direction];
  const json_t *rates = json_object_get(report, key);
  const json_t *bounds = json_object_get(json_object_get(report, "bounds"), key);
  const json_t *by_hand = json_object_get(json_object_get(report, "by_hand"), key);
  double median = number_of(rates, "gbps_median"), naive = number_of(rates, "vs_naive"),
         uncached = number_of(rates, "vs_uncached");
  out->bars[STAGING_LADE][direction] =
      (staging_plot_bar){median, number_of(rates, "gbps_min"), number_of(rates, "gbps_max")};
  out->bars[STAGING_NAIVE][direction] = bar_of(naive > 0 ? median / naive : 0);
  out->bars[STAGING_UNCACHED][direction] = bar_of(uncached > 0 ? median / uncached : 0);
  out->bars[STAGING_CEILING][direction] = bar_of(number_of(bounds, "copies_alone_gbps"));
  out->bars[STAGING_READS][direction] = bar_of(number_of(bounds, "reads_alone_gbps"));
  out->bars[STAGING_BY_HAND][direction] = bar_of(number_of(by_hand, "gbps"));
}

bool staging_plot_of_report(const char *path, staging_plot *out) {
  json_error_t error;
  json_t *report = json_load_file(path, 0, &error);
  if (report == NULL) {
    staging_error("%s: line %d: %s", path, error.line, error.text);
    return false;
  }
  memset(out, 0, sizeof *out);
  const char *device = json_string_value(json_object_get(report, "device"));
  const char *runtime = json_string_value(json_object_get(report, "runtime"));
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) direction_read(report, direction, out);
  bool good = device != NULL && runtime != NULL &&
              (out->bars[STAGING_LADE][STAGING_H2D].median > 0 || out->bars[STAGING_LADE][STAGING_D2H].median > 0);
  if (good)
    title_make(out, number_of(report, "bytes"), device, runtime);
  else
    staging_error("%s: no report of staging_throughput --json", path);
  json_decref(report);
  return good;
}

/* ---- The drawing ------------------------------------------------------------------------------------------------- */

static const int WIDTH = 700, LEFT = 240, RIGHT = 60, TOP = 50, BAR = 18, GAP = 12, BOTTOM = 40; /* pixels */

static double most_of(const staging_plot *plot) {
  double most = 0;
  for (int variant = 0; variant < STAGING_LOOP; variant++) {
    for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) {
      const staging_plot_bar *bar = &plot->bars[variant][direction];
      most = bar->most > most ? bar->most : most;
    }
  }
  return most;
}

static int row_bars(const staging_plot *plot, size_t row) {
  const staging_plot_bar *bars = plot->bars[rows[row].variant];
  return (bars[STAGING_H2D].median > 0 ? 1 : 0) + (bars[STAGING_D2H].median > 0 ? 1 : 0);
}

/* `scale`: pixels of one GB/s. */
static void bar_draw(ladei_svg *out, const staging_plot_bar *bar, int direction, double y, double scale) {
  char text[64];
  double middle = y + (BAR - 2) / 2.0, end = LEFT + bar->most * scale;
  snprintf(text, sizeof text, "%s: %.2f to %.2f GB/s", direction_names[direction], bar->least, bar->most);
  ladei_svg_rect(out, LEFT, y, bar->median * scale, BAR - 2, &(ladei_svg_look){.fill = direction_colours[direction]},
                 text);
  if (bar->least < bar->most)
    ladei_svg_line(out, LEFT + bar->least * scale, middle, end, middle, &(ladei_svg_look){.stroke = "#222"}, NULL);
  snprintf(text, sizeof text, bar->median < 10 ? "%.2f" : "%.1f", bar->median);
  ladei_svg_text(out, end + 6, middle + 4, NULL, 0, text);
}

/* Returns where the next row begins. */
static double row_draw(ladei_svg *out, const staging_plot *plot, size_t row, double y, double scale) {
  int bars = row_bars(plot, row);
  if (bars == 0) return y;
  ladei_svg_text(out, LEFT - 10, y + bars * BAR / 2.0 + 3, &(ladei_svg_look){.anchor = "end"}, 0, rows[row].name);
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) {
    const staging_plot_bar *bar = &plot->bars[rows[row].variant][direction];
    if (bar->median <= 0) continue;
    bar_draw(out, bar, direction, y, scale);
    y += BAR;
  }
  return y + GAP;
}

static void legend_draw(ladei_svg *out, const staging_plot *plot, double y) {
  double x = LEFT;
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) {
    if (plot->bars[STAGING_LADE][direction].median <= 0) continue;
    ladei_svg_rect(out, x, y, 12, 12, &(ladei_svg_look){.fill = direction_colours[direction]}, NULL);
    ladei_svg_text(out, x + 18, y + 10, NULL, 0, direction_names[direction]);
    x += 100;
  }
}

static lade_status plot_draw(const staging_plot *plot, FILE *file) {
  ladei_svg out;
  double scale = (WIDTH - LEFT - RIGHT) / most_of(plot), y = TOP;
  int height = TOP + BOTTOM;
  for (size_t row = 0; row < ROWS; row++) height += row_bars(plot, row) > 0 ? row_bars(plot, row) * BAR + GAP : 0;
  ladei_svg_begin(&out, ladei_svg_to_file, file, WIDTH, height, "text{font:13px sans-serif;fill:#222}");
  ladei_svg_text(&out, 20, 28, NULL, 0, plot->title);
  for (size_t row = 0; row < ROWS; row++) y = row_draw(&out, plot, row, y, scale);
  ladei_svg_line(&out, LEFT, TOP - 6, LEFT, y - 6, &(ladei_svg_look){.stroke = "#222"}, NULL);
  legend_draw(&out, plot, y + 4);
  return ladei_svg_end(&out);
}

bool staging_plot_write(const staging_plot *plot, const char *path) {
  FILE *file = fopen(path, "w");
  bool good = file != NULL && plot_draw(plot, file) == LADE_OK;
  int code = errno;
  if (file != NULL && fclose(file) != 0 && good) {
    good = false;
    code = errno;
  }
  if (!good) staging_error("%s: %s", path, strerror(code));
  return good;
}
