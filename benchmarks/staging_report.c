/* SPDX-License-Identifier: Apache-2.0 */
/* The table for people, the JSON for programs. Both read what was measured; none measures. */
#include "benchmarks/staging_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "benchmarks/staging_by_hand.h"
#include "benchmarks/staging_messages.h"

static const char *const direction_names[] = {"to device", "to host"};

static uint64_t peak_rss_bytes(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (uint64_t)usage.ru_maxrss * 1024u;
}

static const char *size_text(uint64_t bytes, char *text, size_t room) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) value /= 1024;
  snprintf(text, room, "%.4g %s", value, units[unit]);
  return text;
}

static double ratio(const staging *s, int direction, staging_variant variant) {
  return bench_median(&s->samples[direction][STAGING_LADE]) / bench_median(&s->samples[direction][variant]);
}

/* The median of the ratios of single rounds: of variants that run in lade's rounds. */
static double round_ratio(const staging *s, int direction, staging_variant variant) {
  const bench_samples *lade = &s->samples[direction][STAGING_LADE], *other = &s->samples[direction][variant];
  bench_samples ratios = {.count = lade->count};
  for (size_t i = 0; i < lade->count; i++) ratios.values[i] = lade->values[i] / other->values[i];
  return bench_median(&ratios);
}

/* The lower of pinned copies alone and reads alone: no staging can be faster. */
static double bound(const staging *s, int direction) {
  double copies = bench_median(&s->samples[direction][STAGING_CEILING]);
  double reads = bench_median(&s->samples[direction][STAGING_READS]);
  return copies < reads ? copies : reads;
}

static double cpu_median(const staging *s, int direction, staging_variant variant) {
  return bench_median(&s->cpu[direction][variant]);
}

static double gib(const staging *s) { return (double)s->inputs.bytes / (double)(UINT64_C(1) << 30); }

static double cpu_per_gib(const staging *s, int direction) { return cpu_median(s, direction, STAGING_LADE) / gib(s); }

/* ... beyond what the reads take by themselves and, where the copy engines are threads, the copies. */
static double cpu_beyond_per_gib(const staging *s, int direction) {
  double own = cpu_median(s, direction, STAGING_LOOP);
  if (s->runtime->software_device != NULL) own += cpu_median(s, direction, STAGING_CEILING);
  return (cpu_median(s, direction, STAGING_LADE) - own) / gib(s);
}

static double cpu_total(const staging *s) {
  double seconds = 0;
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++)
    for (size_t i = 0; i < s->cpu[direction][STAGING_LADE].count; i++)
      seconds += s->cpu[direction][STAGING_LADE].values[i];
  return seconds;
}

static const char *storage_name(int32_t storage) {
  static const char *const names[] = {"auto", "pread", "io_uring", "cufile"};
  return names[storage];
}

static double hit_rate(const lade_pinned_stats *stats) {
  uint64_t all = stats->hits + stats->misses;
  return all == 0 ? 0 : (double)stats->hits / (double)all;
}

static lade_pinned_stats pinned_stats(const staging *s) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  (void)lade_pinned_stats_get(lade_pair_pinned_pool(s->pair), &stats);
  return stats;
}

static lade_device_info device_info(const staging *s) {
  lade_device_info info;
  lade_device_info_init(&info);
  (void)lade_runtime_device_info(s->runtime, s->settings.device, &info);
  return info;
}

/* --- table -------------------------------------------------------------------------------------------------------- */

static void print_device(const staging *s) {
  char text[32];
  lade_device_info info = device_info(s);
  printf("device    %d: %s, %s", s->settings.device, info.name, size_text(info.total_bytes, text, sizeof text));
  printf("%s\nruntime   %s%s\n", info.software ? " (software device, no GPU: its figures prove nothing about one)" : "",
         lade_runtime_name(s->runtime),
         s->runtime->ops->step != NULL ? ": virtual time, every figure is exact for its model" : "");
  if (info.numa_node >= 0)
    printf("NUMA node %d\n", info.numa_node);
  else
    printf("NUMA node unknown\n");
}

static void print_settings(const staging *s) {
  char text[32];
  const staging_settings *given = &s->settings;
  printf("input     %zu file%s, %s%s\n", s->inputs.count, s->inputs.count == 1 ? "" : "s",
         size_text(s->inputs.bytes, text, sizeof text), s->inputs.generated ? " of random data, just written" : "");
  printf("settings  chunk %s%s", size_text(s->info.chunk_bytes, text, sizeof text),
         given->chunk_bytes == 0 ? " (chosen)" : "");
  printf(", depth %u%s, readers %u%s", s->info.depth, given->depth == 0 ? " (chosen)" : "", s->info.readers,
         given->readers == 0 ? " (chosen)" : "");
  printf(", window %s, %u passes\n", size_text(s->window_bytes, text, sizeof text), given->passes);
}

static void print_storage(const staging *s) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  (void)lade_pipeline_info_get(lade_pair_pipeline(s->pair), &info);
  printf("storage   %s, %s", s->settings.direct ? "O_DIRECT" : "page cache",
         storage_name(s->settings.direct ? info.storage_direct : info.storage_buffered));
  printf("%s%s", info.direct_refused > 0 ? "; O_DIRECT refused" : "", info.storage_note[0] != '\0' ? "; " : "");
  printf("%s\n", info.storage_note);
}

/* The bounds of what is possible, and what lade took to get there. */
static void print_bounds(const staging *s, int direction) {
  const bench_samples *samples = s->samples[direction];
  printf("%-9s  %s alone (d) %.2f, pinned copies alone (a) %.2f: lade is %.2f of (d), %.2f of (a), %.2f of the lower\n",
         direction_names[direction], direction == STAGING_H2D ? "reads" : "writes",
         bench_median(&samples[STAGING_READS]), bench_median(&samples[STAGING_CEILING]),
         ratio(s, direction, STAGING_READS), ratio(s, direction, STAGING_CEILING),
         bench_median(&samples[STAGING_LADE]) / bound(s, direction));
  printf("           %.3f core-seconds per GiB, %.3f beyond %s%s by themselves; the first pass, which pins: %.2f\n",
         cpu_per_gib(s, direction), cpu_beyond_per_gib(s, direction), direction == STAGING_H2D ? "reads" : "writes",
         s->runtime->software_device != NULL ? " and copies" : "", s->first_gbps[direction]);
}

static void print_by_hand(const staging *s, int direction) {
  char text[32];
  const staging_by_hand *choice = &s->by_hand[direction];
  printf("           by hand (e) %.2f, %u thread%s with %u buffers of %s each: lade is %.2f of it (median of rounds), "
         "with "
         "%.2f of its processor time\n",
         bench_median(&s->samples[direction][STAGING_BY_HAND]), choice->threads, choice->threads == 1 ? "" : "s",
         choice->buffers, size_text(choice->bytes, text, sizeof text), round_ratio(s, direction, STAGING_BY_HAND),
         cpu_median(s, direction, STAGING_LADE) / cpu_median(s, direction, STAGING_BY_HAND));
}

static void print_direction(const staging *s, int direction) {
  const bench_samples *samples = s->samples[direction];
  printf("%-9s %6.2f  %6.2f..%-6.2f   %5.2f of %-6.2f   %5.2f x %-6.2f   %5.2f x %-6.2f\n", direction_names[direction],
         bench_median(&samples[STAGING_LADE]), bench_min(&samples[STAGING_LADE]), bench_max(&samples[STAGING_LADE]),
         ratio(s, direction, STAGING_CEILING), bench_median(&samples[STAGING_CEILING]),
         ratio(s, direction, STAGING_NAIVE), bench_median(&samples[STAGING_NAIVE]),
         ratio(s, direction, STAGING_UNCACHED), bench_median(&samples[STAGING_UNCACHED]));
}

void staging_report_print(const staging *s) {
  char text[32];
  lade_pinned_stats stats = pinned_stats(s);
  print_device(s);
  print_settings(s);
  print_storage(s);
  printf("\nGB/s      median    min..max      (a) ceiling       (b) naive loop   (c) no cache\n");
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++)
    if (s->settings.directions[direction]) print_direction(s, direction);
  printf("  (a) pinned copies alone  (b) read into malloc memory, synchronous copy  (c) pinned allocation per chunk\n"
         "  (d) lade with the copies left out  (e) threads with streams and pinned buffers of their own\n");
  for (int direction = 0; direction < STAGING_DIRECTIONS && s->runtime->ops->step == NULL; direction++) {
    if (s->settings.directions[direction]) {
      print_bounds(s, direction);
      print_by_hand(s, direction);
    }
  }
  printf("\n");
  printf("verified  %s\n", s->verified ? "yes: XXH3 of source and destination are equal" : "no (--no-verify)");
  printf("pinned    cache hit rate %.1f %%, peak %s\n", 100 * hit_rate(&stats),
         size_text(stats.reserved_bytes.peak, text, sizeof text));
  printf("memory    peak resident %s%s\n", size_text(peak_rss_bytes(), text, sizeof text),
         device_info(s).software ? ", the device's own included" : "");
  printf("CPU       %.2f s in lade's passes\n", cpu_total(s));
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static json_t *direction_json(const staging *s, int direction) {
  const bench_samples *samples = s->samples[direction];
  if (!s->settings.directions[direction]) return json_null();
  return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "gbps_median", bench_median(&samples[STAGING_LADE]),
                   "gbps_first", s->first_gbps[direction], "gbps_min", bench_min(&samples[STAGING_LADE]), "gbps_max",
                   bench_max(&samples[STAGING_LADE]), "vs_ceiling", ratio(s, direction, STAGING_CEILING), "vs_naive",
                   ratio(s, direction, STAGING_NAIVE), "vs_uncached", ratio(s, direction, STAGING_UNCACHED));
}

static json_t *by_hand_json(const staging *s, int direction) {
  const staging_by_hand *choice = &s->by_hand[direction];
  if (!s->settings.directions[direction] || !staging_has_by_hand(s)) return json_null();
  return json_pack(
      "{s:f, s:i, s:i, s:I, s:f, s:f, s:f}", "gbps", bench_median(&s->samples[direction][STAGING_BY_HAND]), "threads",
      (int)choice->threads, "buffers", (int)choice->buffers, "buffer_bytes", (json_int_t)choice->bytes,
      "core_seconds_per_gib", cpu_median(s, direction, STAGING_BY_HAND) / gib(s), "lade_vs_by_hand",
      round_ratio(s, direction, STAGING_BY_HAND), "lade_vs_ceiling", round_ratio(s, direction, STAGING_CEILING));
}

/* The bound of a direction, how near lade comes, and what processors did for it. */
static json_t *bounds_json(const staging *s, int direction) {
  const bench_samples *samples = s->samples[direction];
  if (!s->settings.directions[direction]) return json_null();
  return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "copies_alone_gbps",
                   bench_median(&samples[STAGING_CEILING]), "reads_alone_gbps", bench_median(&samples[STAGING_READS]),
                   "loop_gbps", bench_median(&samples[STAGING_LOOP]), "vs_copies_alone",
                   ratio(s, direction, STAGING_CEILING), "vs_reads_alone", ratio(s, direction, STAGING_READS),
                   "vs_lower", bench_median(&samples[STAGING_LADE]) / bound(s, direction), "core_seconds_per_gib",
                   cpu_per_gib(s, direction), "core_seconds_per_gib_beyond_reads", cpu_beyond_per_gib(s, direction));
}

static json_t *settings_json(const staging *s) {
  const staging_settings *given = &s->settings;
  return json_pack("{s:I, s:b, s:i, s:b, s:i, s:b, s:i, s:I, s:i, s:b, s:b, s:s}", "chunk_bytes",
                   (json_int_t)s->info.chunk_bytes, "chunk_chosen", given->chunk_bytes == 0, "depth",
                   (int)s->info.depth, "depth_chosen", given->depth == 0, "readers", (int)s->info.readers,
                   "readers_chosen", given->readers == 0, "passes", (int)given->passes, "window_bytes",
                   (json_int_t)s->window_bytes, "input_files", (int)s->inputs.count, "input_generated",
                   s->inputs.generated, "direct", given->direct, "storage",
                   storage_name(given->direct ? s->info.storage_direct : s->info.storage_buffered));
}

bool staging_report_json(const staging *s) {
  lade_device_info info = device_info(s);
  lade_pinned_stats stats = pinned_stats(s);
  json_t *document = json_pack(
      "{s:s, s:b, s:s, s:i, s:b, s:o, s:o, s:I, s:f, s:I, s:I, s:f, s:o, s:{s:o, s:o}, s:{s:o, s:o}}", "runtime",
      lade_runtime_name(s->runtime), "software_device", info.software, "device", info.name, "numa_node", info.numa_node,
      "verified", s->verified, "h2d", direction_json(s, STAGING_H2D), "d2h", direction_json(s, STAGING_D2H), "bytes",
      (json_int_t)s->inputs.bytes, "cache_hit_rate", hit_rate(&stats), "peak_pinned_bytes",
      (json_int_t)stats.reserved_bytes.peak, "peak_rss_bytes", (json_int_t)peak_rss_bytes(), "cpu_seconds",
      cpu_total(s), "settings", settings_json(s), "bounds", "h2d", bounds_json(s, STAGING_H2D), "d2h",
      bounds_json(s, STAGING_D2H), "by_hand", "h2d", by_hand_json(s, STAGING_H2D), "d2h", by_hand_json(s, STAGING_D2H));
  if (document == NULL) {
    staging_error("no memory for the JSON report");
    return false;
  }
  bool written = bench_json_write(document, s->settings.json_path);
  json_decref(document);
  return written;
}
