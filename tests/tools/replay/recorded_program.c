/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program at random whose history becomes a snapshot: what `lade replay` makes of it must be what happened.
 *
 * usage: recorded_program SEED reference|default OUT.pickle      prints the peak of reserved bytes
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/lade.h"

enum { BLOCKS = 60, STREAMS = 3, STEPS = 1500 };

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    if ((call) != LADE_OK) {                                                                                           \
      fprintf(stderr, "%s: %s\n", #call, lade_last_error()->text);                                                     \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

typedef struct program {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream streams[STREAMS];
  void *blocks[BLOCKS];
  uint64_t random;
} program;

static uint64_t number(program *p, uint64_t below) {
  p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (p->random >> 33) % below;
}

static void block_free(program *p, size_t i) {
  CHECK(lade_device_free(p->allocator, p->blocks[i]));
  p->blocks[i] = NULL;
}

static void step(program *p) {
  size_t i = (size_t)number(p, BLOCKS), stream = (size_t)number(p, STREAMS);
  if (p->blocks[i] != NULL) {
    block_free(p, i);
    return;
  }
  static const uint64_t most[] = {4000, 2 << 20, 12 << 20, 50 << 20};
  size_t bytes = (size_t)(1 + number(p, most[number(p, 4)]));
  CHECK(lade_device_alloc(p->allocator, bytes, p->streams[stream], &p->blocks[i]));
}

static void snapshot_save(program *p, const char *path) {
  const lade_part part = lade_part_device(p->allocator);
  lade_snapshot *snapshot;
  CHECK(lade_snapshot_take(&part, 1, NULL, &snapshot));
  CHECK(lade_snapshot_save(snapshot, LADE_SNAPSHOT_PICKLE, NULL, path));
  lade_snapshot_destroy(snapshot);
}

static void program_open(program *p, bool reference) {
  lade_device_options options;
  lade_history_options history;
  lade_device_options_init(&options);
  lade_history_options_init(&history);
  if (reference) options.flags |= LADE_DEVICE_REFERENCE;
  history.enabled = 1;
  history.max_entries = 100000;
  CHECK(lade_runtime_open("sim", NULL, &p->runtime));
  CHECK(lade_device_allocator_create(p->runtime, 0, &options, &p->allocator));
  CHECK(lade_device_history_set(p->allocator, &history));
  for (size_t i = 0; i < STREAMS; i++) CHECK(lade_stream_create(p->runtime, 0, &p->streams[i]));
}

static void program_close(program *p) {
  for (size_t i = 0; i < BLOCKS; i++)
    if (p->blocks[i] != NULL) block_free(p, i);
  CHECK(lade_device_allocator_destroy(p->allocator, true));
  for (size_t i = 0; i < STREAMS; i++) CHECK(lade_stream_destroy(p->runtime, p->streams[i]));
  CHECK(lade_runtime_close(p->runtime));
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  program p = {.random = strtoull(argv[1], NULL, 10)};
  program_open(&p, strcmp(argv[2], "reference") == 0);
  for (int i = 0; i < STEPS; i++) step(&p);
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  CHECK(lade_device_stats_get(p.allocator, &stats));
  snapshot_save(&p, argv[3]);
  printf("%" PRIu64 " %" PRIu64 "\n", stats.reserved_bytes.all.peak, stats.reserved_bytes.all.current);
  program_close(&p);
  return 0;
}
