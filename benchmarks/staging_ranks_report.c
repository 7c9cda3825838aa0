/* SPDX-License-Identifier: Apache-2.0 */
/* Results of the ranks together, for people and for programs. Reads what was measured; measures nothing. */
#include "benchmarks/staging_ranks_report.h"

#include <stdio.h>
#include <string.h>

#include "benchmarks/staging_messages.h"

static const char *const direction_names[] = {"to device", "to host"};
static const char *const direction_keys[] = {"h2d", "d2h"};

/* A column of the table. */
typedef struct column {
  staging_variant variant;
  const char *title, *key;
} column;
static const column columns[] = {{STAGING_LADE, "lade", "lade"},
                                 {STAGING_PINNED, "pinned (p)", "pinned"},
                                 {STAGING_BY_HAND, "by hand (e)", "by_hand"},
                                 {STAGING_CEILING, "copies (a)", "copies"},
                                 {STAGING_ALONE, "alone (a1)", "copies_alone"}};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static bool is_measured(const staging *s, int direction, staging_variant variant) {
  return s->ranks.samples[direction][variant].sum.count > 0;
}

/* The median of the ratios of single rounds. */
static double round_ratio(const staging *s, int direction, staging_variant of, staging_variant to) {
  const bench_samples *a = &s->ranks.samples[direction][of].sum, *b = &s->ranks.samples[direction][to].sum;
  bench_samples ratios = {.count = a->count < b->count ? a->count : b->count};
  for (size_t i = 0; i < ratios.count; i++) ratios.values[i] = a->values[i] / b->values[i];
  return bench_median(&ratios);
}

/* How many different hosts, or devices, the ranks have. */
static uint32_t distinct(const staging *s, bool (*same)(const staging_rank_row *a, const staging_rank_row *b)) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < s->ranks.count; i++) {
    uint32_t earlier = 0;
    while (earlier < i && !same(&s->ranks.rows[earlier], &s->ranks.rows[i])) earlier++;
    count += earlier == i;
  }
  return count;
}

static bool same_host(const staging_rank_row *a, const staging_rank_row *b) { return strcmp(a->host, b->host) == 0; }
static bool same_device(const staging_rank_row *a, const staging_rank_row *b) {
  return same_host(a, b) && a->device == b->device;
}

static uint64_t bytes_together(const staging *s) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < s->ranks.count; i++) bytes += s->ranks.rows[i].bytes;
  return bytes;
}

static bool all_verified(const staging *s) {
  for (uint32_t i = 0; i < s->ranks.count; i++)
    if (!s->ranks.rows[i].verified) return false;
  return true;
}

/* --- table -------------------------------------------------------------------------------------------------------- */

static void print_head(const staging *s) {
  uint32_t hosts = distinct(s, same_host), devices = distinct(s, same_device);
  printf("ranks     %u on %u host%s and %u device%s%s, started by %s; together %.4g GiB, %u passes\n", s->ranks.count,
         hosts, hosts == 1 ? "" : "s", devices, devices == 1 ? "" : "s",
         devices < s->ranks.count ? " (ranks share devices)" : "", s->ranks.launcher,
         (double)bytes_together(s) / (double)(UINT64_C(1) << 30), s->settings.passes);
  printf("runtime   %s, %s%s\n", lade_runtime_name(s->runtime), s->ranks.rows[0].device_name,
         s->runtime->software_device != NULL ? " (software device, no GPU): its figures prove nothing about a GPU"
                                             : "");
  printf("settings  %s, chunk %.4g MiB, %u reader%s in rank 0\n", s->settings.direct ? "O_DIRECT" : "page cache",
         (double)s->info.chunk_bytes / (double)(1 << 20), s->ranks.rows[0].readers,
         s->ranks.rows[0].readers == 1 ? "" : "s");
}

static void print_rank(const staging *s, int direction, uint32_t rank) {
  const staging_rank_row *row = &s->ranks.rows[rank];
  printf("rank %-4u %-16.16s device %-3d node %-3d", rank, row->host, row->device, row->numa_node);
  for (int i = 0; i < COLUMNS; i++)
    if (is_measured(s, direction, columns[i].variant)) printf("  %11.2f", row->gbps[direction][columns[i].variant]);
  printf("   first %.2f, %.3f core-s/GiB\n", row->first_gbps[direction], row->core_s_per_gib[direction][STAGING_LADE]);
}

/* One figure of each variant. */
static void print_line(const staging *s, int direction, const char *title,
                       const bench_samples *(*figure)(const staging_rank_samples *samples)) {
  printf("%-46s", title);
  for (int i = 0; i < COLUMNS; i++)
    if (is_measured(s, direction, columns[i].variant))
      printf("  %11.2f", bench_median(figure(&s->ranks.samples[direction][columns[i].variant])));
  printf("\n");
}

static const bench_samples *sum_figure(const staging_rank_samples *samples) { return &samples->sum; }
static const bench_samples *slowest_figure(const staging_rank_samples *samples) { return &samples->slowest; }
static const bench_samples *imbalance_figure(const staging_rank_samples *samples) { return &samples->imbalance; }

static void print_direction(const staging *s, int direction) {
  printf("\nGB/s, %-40s", direction_names[direction]);
  for (int i = 0; i < COLUMNS; i++)
    if (is_measured(s, direction, columns[i].variant)) printf("  %11s", columns[i].title);
  printf("\n");
  for (uint32_t rank = 0; rank < s->ranks.count; rank++) print_rank(s, direction, rank);
  print_line(s, direction, "sum", sum_figure);
  print_line(s, direction, "slowest rank", slowest_figure);
  print_line(s, direction, "imbalance (longest time / mean time)", imbalance_figure);
  printf("lade is %.2f of (a), (p) %.2f of (a1)", round_ratio(s, direction, STAGING_LADE, STAGING_CEILING),
         round_ratio(s, direction, STAGING_PINNED, STAGING_ALONE));
  if (is_measured(s, direction, STAGING_BY_HAND))
    printf(", lade %.2f of (e)", round_ratio(s, direction, STAGING_LADE, STAGING_BY_HAND));
  printf(" (sums, median of rounds)\n");
}

void staging_ranks_print(const staging *s) {
  print_head(s);
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++)
    if (s->settings.directions[direction]) print_direction(s, direction);
  printf("  (a) pinned copies of all ranks at once  (a1) of one rank after the other: their sum  (e) threads with "
         "streams\n"
         "  and pinned buffers of their own  (p) lade, from or to pinned memory in place of files\n\n");
  printf("verified  %s\n",
         all_verified(s) ? "yes, by each rank: XXH3 of source and destination are equal" : "no (--no-verify)");
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static json_t *samples_json(const bench_samples *samples) {
  return json_pack("{s:f, s:f, s:f}", "median", bench_median(samples), "min", bench_min(samples), "max",
                   bench_max(samples));
}

static json_t *variant_json(const staging *s, int direction, staging_variant variant) {
  const staging_rank_samples *samples = &s->ranks.samples[direction][variant];
  json_t *by_rank = json_array();
  for (uint32_t rank = 0; rank < s->ranks.count; rank++)
    json_array_append_new(by_rank, json_real(s->ranks.rows[rank].gbps[direction][variant]));
  return json_pack("{s:o, s:o, s:o, s:o}", "sum_gbps", samples_json(&samples->sum), "slowest_gbps",
                   samples_json(&samples->slowest), "imbalance", samples_json(&samples->imbalance), "by_rank_gbps",
                   by_rank);
}

static json_t *direction_json(const staging *s, int direction) {
  if (!s->settings.directions[direction]) return json_null();
  json_t *out = json_object();
  bool by_hand = is_measured(s, direction, STAGING_BY_HAND);
  for (int i = 0; i < COLUMNS; i++)
    if (is_measured(s, direction, columns[i].variant))
      json_object_set_new(out, columns[i].key, variant_json(s, direction, columns[i].variant));
  json_object_set_new(out, "lade_vs_copies", json_real(round_ratio(s, direction, STAGING_LADE, STAGING_CEILING)));
  json_object_set_new(out, "pinned_vs_copies_alone",
                      json_real(round_ratio(s, direction, STAGING_PINNED, STAGING_ALONE)));
  json_object_set_new(out, "lade_vs_by_hand",
                      by_hand ? json_real(round_ratio(s, direction, STAGING_LADE, STAGING_BY_HAND)) : json_null());
  return out;
}

static json_t *rank_json(const staging *s, uint32_t rank) {
  const staging_rank_row *row = &s->ranks.rows[rank];
  return json_pack("{s:i, s:s, s:i, s:s, s:i, s:I, s:i, s:b, s:f, s:f}", "rank", (int)rank, "host", row->host, "device",
                   row->device, "device_name", row->device_name, "numa_node", row->numa_node, "bytes",
                   (json_int_t)row->bytes, "readers", (int)row->readers, "verified", (int)row->verified,
                   "h2d_core_seconds_per_gib", row->core_s_per_gib[STAGING_H2D][STAGING_LADE],
                   "d2h_core_seconds_per_gib", row->core_s_per_gib[STAGING_D2H][STAGING_LADE]);
}

bool staging_ranks_json(const staging *s) {
  json_t *ranks = json_array();
  for (uint32_t rank = 0; rank < s->ranks.count; rank++) json_array_append_new(ranks, rank_json(s, rank));
  json_t *document =
      json_pack("{s:s, s:b, s:s, s:i, s:i, s:I, s:i, s:b, s:b, s:I, s:o}", "runtime", lade_runtime_name(s->runtime),
                "software_device", s->runtime->software_device != NULL, "launcher", s->ranks.launcher, "hosts",
                (int)distinct(s, same_host), "devices", (int)distinct(s, same_device), "bytes",
                (json_int_t)bytes_together(s), "passes", (int)s->settings.passes, "direct", s->settings.direct,
                "verified", all_verified(s), "chunk_bytes", (json_int_t)s->info.chunk_bytes, "ranks", ranks);
  for (int direction = 0; document != NULL && direction < STAGING_DIRECTIONS; direction++)
    if (json_object_set_new(document, direction_keys[direction], direction_json(s, direction)) != 0) {
      json_decref(document);
      document = NULL;
    }
  if (document == NULL) {
    staging_error("no memory for the JSON report");
    return false;
  }
  bool written = bench_json_write(document, s->settings.json_path);
  json_decref(document);
  return written;
}
