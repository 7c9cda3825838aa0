/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LADE_PRELOAD_REPORT: counts of the library's work, written when the process ends.
 *
 * I1  A process that never asked for memory that lade serves writes nothing, nor does a child of fork().
 * Locks: none.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pools.h"
#include "preload/settings.h"

/* "%p" in the name becomes the process id, so that ranks do not overwrite each other's reports. Returns the length of
 * the name, also if it does not fit. */
static int path_make(const char *pattern, char *path, size_t room) {
  const char *mark = strstr(pattern, "%p");
  return mark == NULL ? snprintf(path, room, "%s", pattern)
                      : snprintf(path, room, "%.*s%d%s", (int)(mark - pattern), pattern, (int)getpid(), mark + 2);
}

/* Prints a number of at least 0 with a decimal point in every locale; printf() follows the program's locale. */
static void decimal_print(FILE *file, double value) {
  enum { MILLION = 1000000 };
  uint64_t millionths = (uint64_t)(value * (double)MILLION + 0.5);
  fprintf(file, "%" PRIu64 ".%06" PRIu64, millionths / MILLION, millionths % MILLION);
}

/* The time to pin every served byte, at this run's time per pinned byte, minus the time that pinning took. */
static double saved_seconds(const preload_sums *sums, uint64_t bytes_served) {
  if (sums->pinned_bytes == 0) return 0;
  double ns_per_byte = (double)sums->driver_alloc_ns / (double)sums->pinned_bytes;
  double ns = ns_per_byte * (double)bytes_served - (double)sums->driver_alloc_ns;
  return ns > 0 ? ns / 1e9 : 0;
}

static void report_print(FILE *file, const preload_sums *sums) {
  static const char *const modes[] = {"safe", "fast", "off"};
  static const char *const devices[] = {"off", "malloc", "all"};
  uint64_t allocs = sums->hits + sums->misses;
  fprintf(file, "{\n  \"pid\": %d,\n  \"mode\": \"%s\",\n  \"device\": \"%s\",\n", (int)getpid(),
          modes[ladei_preload_settings()->mode], devices[ladei_preload_settings()->device]);
#define COUNTER_PRINT(constant, key)                                                                                   \
  fprintf(file, "  \"%s\": %" PRIu64 ",\n", #key, ladei_preload_counted(PRELOAD_##constant));
  PRELOAD_COUNTERS(COUNTER_PRINT)
#undef COUNTER_PRINT
  fprintf(file, "  \"hits\": %" PRIu64 ",\n  \"misses\": %" PRIu64 ",\n  \"hit_rate\": ", sums->hits, sums->misses);
  decimal_print(file, allocs == 0 ? 0.0 : (double)sums->hits / (double)allocs);
  fprintf(file,
          ",\n  \"driver_allocs\": %" PRIu64 ",\n  \"driver_alloc_ns\": %" PRIu64 ",\n  \"driver_free_ns\": %" PRIu64,
          sums->driver_allocs, sums->driver_alloc_ns, sums->driver_free_ns);
  fprintf(file, ",\n  \"pinned_bytes\": %" PRIu64 ",\n  \"peak_in_use_bytes\": %" PRIu64, sums->pinned_bytes,
          sums->peak_in_use_bytes);
  fprintf(file, ",\n  \"device_driver_allocs\": %" PRIu64 ",\n  \"device_driver_frees\": %" PRIu64,
          sums->heap_driver_allocs, sums->heap_driver_frees);
  fprintf(file, ",\n  \"device_peak_in_use_bytes\": %" PRIu64 ",\n  \"device_peak_reserved_bytes\": %" PRIu64,
          sums->heap_peak_in_use_bytes, sums->heap_peak_reserved_bytes);
  fprintf(file, ",\n  \"peak_reserved_bytes\": %" PRIu64 ",\n  \"driver_seconds_saved\": ", sums->peak_reserved_bytes);
  decimal_print(file, saved_seconds(sums, ladei_preload_counted(PRELOAD_BYTES_SERVED)));
  fputs("\n}\n", file);
}

static bool anything_counted(void) {
  for (int i = 0; i < PRELOAD_COUNTER_COUNT; i++)
    if (ladei_preload_counted((preload_counter)i) != 0) return true;
  return false;
}

/* The loader runs this after the program's own destructors: their frees are counted. */
__attribute__((destructor)) static void report_write(void) {
  char path[4096]; /* PATH_MAX: no longer name can be opened */
  preload_sums sums;
  if (ladei_preload_forked() || !anything_counted() || ladei_preload_settings()->report == NULL) return;
  ladei_preload_sums(&sums);
  int bytes = path_make(ladei_preload_settings()->report, path, sizeof path);
  if (bytes < 0 || (size_t)bytes >= sizeof path) {
    fprintf(stderr, "liblade_preload: LADE_PRELOAD_REPORT: the name of the file has %d bytes; expected at most %zu\n",
            bytes, sizeof path - 1);
    return;
  }
  FILE *file = fopen(path, "we");
  if (file != NULL) {
    report_print(file, &sums);
    if (fclose(file) == 0) return;
  }
  fprintf(stderr, "liblade_preload: LADE_PRELOAD_REPORT: %s: %s\n", ladei_preload_settings()->report, strerror(errno));
}
