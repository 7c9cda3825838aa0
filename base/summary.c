/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of a summary of memory; model in summary.h. */
#include "base/summary.h"

#include "base/error.h"
#include "base/options.h"
#include "lade/runtime.h"

enum { WIDTH = 75 };

static void rule_write(ladei_bounded_text *text, char character) {
  ladei_bounded_text_add(text, "|");
  ladei_bounded_text_repeat(text, character, WIDTH);
  ladei_bounded_text_add(text, "|\n");
}

lade_status ladei_summary_enter(const char *call, const void *stats, void *own, size_t own_bytes, uint32_t flags,
                                char *buffer, size_t bytes, ladei_bounded_text *out) {
  if (stats == NULL) return ladei_error_null(call, "stats");
  if ((flags & ~(uint32_t)LADE_SUMMARY_ABBREVIATED) != 0)
    return ladei_error_argument(call, "flags", "LADE_SUMMARY_ABBREVIATED or 0", "0x%x", (unsigned)flags);
  LADEI_TRY(ladei_options_read(call, stats, own, own_bytes));
  return ladei_bounded_text_begin(out, call, buffer, bytes);
}

void ladei_summary_begin(ladei_bounded_text *text, const ladei_summary_head *head) {
  rule_write(text, '=');
  ladei_bounded_text_add(text, "| %17s%-37s %-19d|\n", "", head->title, head->device);
  rule_write(text, '-');
  ladei_bounded_text_add(text, "|  %20s %-12llu | %26s %-8llu  |\n", head->left, (unsigned long long)head->left_count,
                         head->right, (unsigned long long)head->right_count);
  rule_write(text, '=');
  ladei_bounded_text_add(text, "|%8sMetric%9s| Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n", "", "");
}

void ladei_summary_group(ladei_bounded_text *text) { rule_write(text, '-'); }

/* Values from 768 x 1024 of a unit on are shown in the next one. */
static void bytes_write(ladei_bounded_text *text, uint64_t value, uint64_t scale) {
  static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
  const double most = 768.0 * 1024.0;
  double left = (double)scale;
  size_t unit = 0;
  for (; left >= most && unit + 1 < sizeof units / sizeof units[0]; unit++) {
    value /= 1024;
    left /= 1024.0;
  }
  ladei_bounded_text_add(text, " | %6llu %s", (unsigned long long)value, units[unit]);
}

/* Values from 750,000 on are shown in thousands, and so on. */
static void count_write(ladei_bounded_text *text, uint64_t value, uint64_t scale) {
  static const char units[] = {' ', 'K', 'M'};
  const double most = 750.0 * 1000.0;
  double left = (double)scale;
  size_t unit = 0;
  for (; left >= most && unit + 1 < sizeof units; unit++) {
    value /= 1000;
    left /= 1000.0;
  }
  ladei_bounded_text_add(text, " | %7llu %c ", (unsigned long long)value, units[unit]);
}

void ladei_summary_row(ladei_bounded_text *text, const char *label, ladei_summary_unit unit,
                       const ladei_summary_values *values, const ladei_summary_values *scale) {
  ladei_bounded_text_add(text, "| %-21s", label);
  for (size_t i = 0; i < LADEI_SUMMARY_COLUMNS; i++)
    if (unit == LADEI_SUMMARY_BYTES)
      bytes_write(text, values->column[i], scale->column[i]);
    else
      count_write(text, values->column[i], scale->column[i]);
  ladei_bounded_text_add(text, " |\n");
}

void ladei_summary_end(ladei_bounded_text *text) { rule_write(text, '='); }
