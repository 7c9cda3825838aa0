/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/metrics.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "base/error.h"
#include "host/caches/stat_list.h"
#include "inspect/formats/metrics_help.h"

/* A counter under the name that it gets. */
typedef struct metric_sample {
  char family[160]; /* without _total */
  char pool[64];    /* "": none */
  char help[32];    /* the key's first word, for the text */
  const ladei_metrics_source *source;
  const ladei_snapshot_counter *counter;
  const ladei_snapshot_part *part;
  const char *figure; /* what a cell adds to the text */
  bool is_counter;
  double per_second; /* of a time: counts in a second; 0: it is none */
} metric_sample;

/* Meaning of a key's last word. */
typedef struct metric_cell {
  const char *word;
  const char *suffix;
  const char *figure;
  bool is_counter;
  bool is_time;
} metric_cell;

static const metric_cell cells[] = {
    {"current", "", " Now.", false, false},
    {"peak", "_peak", " Most since the start or a reset.", false, false},
    {"allocated", "_allocated", " All increases.", true, false},
    {"freed", "_freed", " All decreases.", true, false},
    {"total", "_seconds", " Time in all of them.", true, true},
    {"max", "_max_seconds", " The longest.", false, true},
    {"min", "_min_seconds", " The shortest.", false, true},
    {"avg", "_mean_seconds", " The mean.", false, true},
    {"count", "_calls", " Their number.", true, false},
};

static const metric_cell *cell_of(const char *word) {
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (strcmp(cells[i].word, word) == 0) return &cells[i];
  return NULL;
}

/* Names have letters, digits and underscores. */
static void name_clean(char *name) {
  for (; *name != '\0'; name++)
    if (!isalnum((unsigned char)*name)) *name = '_';
}

/* Whether the key is in a list of words, each with its NUL, up to an empty one. */
static bool word_listed(const char *words, const char *key) {
  while (*words != '\0' && strcmp(words, key) != 0) words += strlen(words) + 1;
  return *words != '\0';
}

/* Single words that only grow; the others are gauges. */
static bool word_is_counter(const char *key) {
#define PINNED_WORD(name) #name "\0"
  static const char pinned[] =
      LADEI_PINNED_STATS(LADEI_PINNED_STAT_NONE, PINNED_WORD, PINNED_WORD, LADEI_PINNED_STAT_NONE);
#undef PINNED_WORD
  static const char pipelines[] =
      "transfers_submitted\0transfers_completed\0transfers_failed\0bytes_completed\0copies\0"
      "direct_files\0direct_refused\0callbacks_stalled_sum\0block_waits\0bytes_by_pread\0"
      "bytes_by_uring\0bytes_by_url\0bytes_by_cufile\0bytes_direct\0url_retries\0";
  if (strncmp(key, "num_", 4) == 0) return true;
  return word_listed(pinned, key) || word_listed(pipelines, key);
}

/* The bytes of a name without an ending that it has; 0: it has not. */
static int bytes_without(const char *name, int bytes, const char *ending) {
  int without = bytes - (int)strlen(ending);
  return without > 0 && strncmp(name + without, ending, strlen(ending)) == 0 ? without : 0;
}

/* Times are seconds, with their unit as a word. `_sum` is a suffix of histograms alone. */
static void word_read(const char *kind, const char *key, metric_sample *out) {
  enum { NS_PER_S = 1000000000 };
  out->is_counter = word_is_counter(key);
  const char *name = strncmp(key, "num_", 4) == 0 ? key + 4 : key, *suffix = "";
  int bytes = (int)strnlen(name, sizeof out->family), without;
  if ((without = bytes_without(name, bytes, "_ns")) > 0) {
    out->per_second = NS_PER_S;
    suffix = "_seconds";
  } else if ((without = bytes_without(name, bytes, "_sum")) > 0) {
    suffix = "_ever";
  } else {
    without = bytes;
  }
  snprintf(out->family, sizeof out->family, "lade_%s_%.*s%s", kind, without, name, suffix);
}

/* METRIC[.POOL].CELL, or a single word. */
static void sample_read(const ladei_metrics_source *source, const ladei_snapshot_counter *counter, metric_sample *out) {
  const lade_snapshot *snapshot = source->snapshot;
  const ladei_snapshot_part *part = &snapshot->parts.rows[counter->part];
  const char *key = ladei_inspect_string(snapshot, counter->key);
  const char *kind = ladei_inspect_kind_name(part->kind);
  const char *last = strrchr(key, '.');
  const metric_cell *cell = last == NULL ? NULL : cell_of(last + 1);
  *out = (metric_sample){.source = source, .counter = counter, .part = part, .figure = ""};
  snprintf(out->help, sizeof out->help, "%.*s", (int)strcspn(key, "."), key);
  if (cell == NULL) {
    word_read(kind, key, out);
  } else {
    const char *first = strchr(key, '.');
    int bytes = (int)(first - key), without = bytes_without(key, bytes, "_ns");
    snprintf(out->family, sizeof out->family, "lade_%s_%.*s%s", kind, without > 0 ? without : bytes, key, cell->suffix);
    if (first < last) snprintf(out->pool, sizeof out->pool, "%.*s", (int)(last - first - 1), first + 1);
    out->is_counter = cell->is_counter;
    out->figure = cell->figure;
    if (cell->is_time) out->per_second = without > 0 ? 1e9 : 1e6;
  }
  name_clean(out->family);
}

static int sample_compare(const void *a, const void *b) {
  const metric_sample *x = a, *y = b;
  int order = strcmp(x->family, y->family);
  if (order != 0) return order;
  if (x->source != y->source) return x->source < y->source ? -1 : 1;
  if (x->part != y->part) return x->part < y->part ? -1 : 1;
  return strcmp(x->pool, y->pool);
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* In the quotes of a label. */
static void label_write(ladei_output *output, const char *name, const char *value) {
  ladei_output_text(output, name);
  ladei_output_text(output, "=\"");
  while (*value != '\0') {
    size_t bytes = ladei_text_character(value); /* 0: a terminal may obey it */
    if (*value == '"' || *value == '\\') ladei_output_byte(output, '\\');
    if (*value == '\n')
      ladei_output_text(output, "\\n");
    else
      ladei_output_bytes(output, bytes == 0 ? "?" : value, bytes == 0 ? 1 : bytes);
    value += bytes == 0 ? 1 : bytes;
  }
  ladei_output_byte(output, '"');
}

static const char *help_of(const char *word) {
  static const struct {
    const char *word, *text;
  } rows[] = {
#define HELP_ROW(key, text) {#key, text},
      LADEI_METRICS_HELP(HELP_ROW)
#undef HELP_ROW
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (strcmp(rows[i].word, word) == 0) return rows[i].text;
  return "Statistic of a later version of lade, or of the program's own."; /* of a file */
}

static void head_write(ladei_output *output, const metric_sample *sample, bool openmetrics) {
  const char *total = sample->is_counter && !openmetrics ? "_total" : "";
  const char *type = sample->is_counter ? "counter" : "gauge";
  ladei_output_format(output, "# HELP %s%s %s%s\n", sample->family, total, help_of(sample->help), sample->figure);
  ladei_output_format(output, "# TYPE %s%s %s\n", sample->family, total, type);
}

/* The process: those of a file are of another time or machine, and have a number alone. */
static void process_write(const ladei_metrics_source *source, ladei_output *output) {
  const lade_snapshot *snapshot = source->snapshot;
  if (snapshot->process_id != 0) ladei_output_format(output, ",pid=\"%llu\"", (unsigned long long)snapshot->process_id);
  if (source->publisher != 0) ladei_output_format(output, ",publisher=\"%u\"", source->publisher);
  if (snapshot->command[0] != '\0') {
    label_write(output, ",command", snapshot->command);
    label_write(output, ",host", snapshot->host);
  }
}

static void sample_write(const metric_sample *sample, ladei_output *output) {
  ladei_output_text(output, sample->family);
  ladei_output_text(output, sample->is_counter ? "_total{" : "{");
  ladei_output_format(output, "part=\"%u\",", sample->counter->part); /* names need not differ */
  label_write(output, "name", ladei_inspect_string(sample->source->snapshot, sample->part->name));
  if (sample->part->device >= 0) ladei_output_format(output, ",device=\"%d\"", sample->part->device);
  if (sample->pool[0] != '\0') {
    ladei_output_byte(output, ',');
    label_write(output, "pool", sample->pool);
  }
  process_write(sample->source, output);
  ladei_output_text(output, "} ");
  if (sample->per_second > 0) {
    char seconds[40];
    ladei_decimal_print(seconds, sizeof seconds, "%.9g", (double)sample->counter->value / sample->per_second);
    ladei_output_text(output, seconds);
  } else {
    ladei_output_int(output, sample->counter->value);
  }
  ladei_output_byte(output, '\n');
}

lade_status ladei_inspect_metrics_write(const ladei_metrics_source *sources, size_t source_count, bool openmetrics,
                                        ladei_output *output) {
  size_t count = 0, filled = 0;
  for (size_t i = 0; i < source_count; i++) count += sources[i].snapshot->counters.count;
  metric_sample *samples = malloc((count + 1) * sizeof *samples);
  if (samples == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu counters", count);
  for (size_t i = 0; i < source_count; i++)
    for (size_t k = 0; k < sources[i].snapshot->counters.count; k++)
      sample_read(&sources[i], &sources[i].snapshot->counters.rows[k], &samples[filled++]);
  qsort(samples, count, sizeof *samples, sample_compare);
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || strcmp(samples[i].family, samples[i - 1].family) != 0) head_write(output, &samples[i], openmetrics);
    sample_write(&samples[i], output);
  }
  if (openmetrics) ladei_output_text(output, "# EOF\n");
  free(samples);
  return LADE_OK;
}

lade_status ladei_inspect_write_prometheus(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                           ladei_output *output) {
  const ladei_metrics_source source = {snapshot, 0};
  (void)options;
  return ladei_inspect_metrics_write(&source, 1, false, output);
}

lade_status ladei_inspect_write_openmetrics(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                            ladei_output *output) {
  const ladei_metrics_source source = {snapshot, 0};
  (void)options;
  return ladei_inspect_metrics_write(&source, 1, true, output);
}
