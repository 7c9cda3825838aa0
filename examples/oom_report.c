/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to leave behind when device memory is out: a summary, a page for the browser and a pickle for PyTorch's viewer, written
 * by an observer before the allocation that failed returns.
 *
 * usage: oom_report RUNTIME FOLDER
 */
#include <stdio.h>
#include <stdlib.h>

#include <lade/lade.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  exit(1);
}

typedef struct report {
  lade_device_allocator *allocator;
  const char *folder;
} report;

static void file_save(const lade_snapshot *snapshot, uint32_t format, const char *folder, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (lade_snapshot_save(snapshot, format, NULL, path) != LADE_OK)
    fprintf(stderr, "%s\n", lade_last_error()->text);
  else
    printf("wrote %s\n", path);
}

/* Called in the thread whose allocation fails, with no lock held. */
static void out_of_memory(void *user, const lade_device_oom *oom) {
  const report *r = user;
  lade_device_stats stats;
  char summary[8192];
  lade_device_stats_init(&stats);
  printf("%llu bytes were asked for\n", (unsigned long long)oom->requested_bytes);
  if (lade_device_stats_get(r->allocator, &stats) == LADE_OK &&
      lade_device_summary_write(&stats, oom->device, 0, summary, sizeof summary, NULL) == LADE_OK)
    fputs(summary, stdout);
  const lade_part part = lade_part_device(r->allocator);
  lade_snapshot *snapshot;
  if (lade_snapshot_take(&part, 1, NULL, &snapshot) != LADE_OK) {
    fprintf(stderr, "%s\n", lade_last_error()->text);
    return;
  }
  file_save(snapshot, LADE_SNAPSHOT_HTML, r->folder, "oom.html");
  file_save(snapshot, LADE_SNAPSHOT_PICKLE, r->folder, "oom.pickle");
  lade_snapshot_destroy(snapshot);
}

int main(int argc, char **argv) {
  if (argc != 3) fail(argv[0], "usage: RUNTIME FOLDER");
  lade_runtime *runtime;
  lade_stream stream;
  report r = {.folder = argv[2]};
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = 64 << 20; /* so that the end comes soon */
  LADE(lade_runtime_open(argv[1], NULL, &runtime));
  LADE(lade_stream_create(runtime, 0, &stream));
  LADE(lade_device_allocator_create(runtime, 0, &options, &r.allocator));

  lade_device_history_options history;
  lade_device_history_options_init(&history);
  history.enabled = 1;
  history.max_entries = 100000;
  LADE(lade_device_history_set(r.allocator, &history));
  LADE(lade_device_oom_observer_add(r.allocator, out_of_memory, &r));

  void *blocks[100] = {NULL};
  size_t count = 0;
  while (count < 100 && lade_device_alloc(r.allocator, (count + 1) << 20, stream, &blocks[count]) == LADE_OK) count++;
  printf("%zu blocks, then: %s\n", count, lade_last_error()->text);

  for (size_t i = 0; i < count; i++) LADE(lade_device_free(r.allocator, blocks[i]));
  LADE(lade_device_allocator_destroy(r.allocator, true));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_runtime_close(runtime));
  return 0;
}
