/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As snapshot_files, with snapshots that are taken of a program at random: two devices, private pools, captures, pinned pools with
 * and without a history, a pipeline; stacks, labels, scopes, notes, awkward texts, pending blocks, shortages.
 *
 * usage: taken_files small|long|FILE FORMAT OUT      LADE_TEST_SEED=N: another program
 *
 * Addresses differ from run to run. So the first run of a shape keeps its snapshot as .SHAPE.json beside OUT, and later ones read that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inspect/formats/format.h"
#include "lade/lade.h"

enum { DEVICES = 2, STREAMS = 3, BLOCKS = 150, POOLS = 2 };

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call);                                                                                \
  } while (0)

static _Noreturn void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, lade_last_error()->text);
  exit(1);
}

static const char *const texts[] = {"plain",
                                    "with \"quotes\", \\ and / and \t and \n",
                                    "</script><script>alert(1)</script> & ]]> -->",
                                    "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                                    "\x1b[31mred\x1b[0m\x7f\xc2\x9b",
                                    "no UTF-8: \xff\xc0\x80\xed\xa0\x80\xe2\x82",
                                    "a;b{c=\"d\"} 1 2",
                                    ""};
enum { TEXTS = sizeof texts / sizeof *texts };

typedef struct device {
  lade_device_allocator *allocator;
  lade_stream streams[STREAMS];
  lade_device_pool_id pools[POOLS];
  void *blocks[BLOCKS];
} device;

typedef struct pinned {
  lade_pinned_pool *pool;
  void *blocks[BLOCKS];
} pinned;

typedef struct program {
  lade_runtime *runtime;
  lade_stacks *stacks;
  lade_pipeline *pipeline;
  device devices[DEVICES];
  pinned pinned[POOLS];
  uint64_t random;
} program;

static uint64_t below(program *p, uint64_t limit) {
  p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (p->random >> 33) % limit;
}

static const char *any_text(program *p) { return texts[below(p, TEXTS)]; }

/* --- steps -------------------------------------------------------------------------------------------------------- */

__attribute__((noinline)) static void device_step(program *p, device *d) {
  static const uint64_t most[] = {4000, 2 << 20, 12 << 20, 50 << 20};
  void **block = &d->blocks[below(p, BLOCKS)];
  lade_stream stream = d->streams[below(p, STREAMS)];
  if (*block == NULL) {
    uint64_t scope = 0;
    bool scoped = below(p, 6) == 0;
    if (scoped)
      CHECK(lade_device_scope_begin(d->allocator, d->pools[below(p, POOLS)], NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
    if (lade_device_alloc(d->allocator, 1 + below(p, most[below(p, 4)]), stream, block) != LADE_OK) *block = NULL;
    if (scoped) CHECK(lade_device_scope_end(d->allocator, scope));
  } else if (below(p, 3) == 0) {
    CHECK(lade_device_record_stream(d->allocator, *block, stream));
  } else if (below(p, 8) == 0) {
    CHECK(lade_device_annotate(d->allocator, *block, any_text(p)));
  } else {
    CHECK(lade_device_free(d->allocator, *block));
    *block = NULL;
  }
}

__attribute__((noinline)) static void pinned_step(program *p, pinned *q) {
  void **block = &q->blocks[below(p, BLOCKS)];
  if (*block == NULL) {
    CHECK(lade_pinned_alloc(q->pool, 1 + below(p, below(p, 4) == 0 ? 3 << 20 : 20000), block));
  } else if (below(p, 4) == 0) {
    CHECK(lade_pinned_record_event(q->pool, *block, p->devices[0].streams[below(p, STREAMS)]));
  } else if (below(p, 8) == 0) {
    CHECK(lade_pinned_annotate(q->pool, *block, any_text(p)));
  } else {
    CHECK(lade_pinned_free(q->pool, *block));
    *block = NULL;
  }
}

static void capture_step(program *p, device *d) {
  lade_device_pool_id id = {7, 1 + below(p, UINT64_C(1) << 30)};
  void *block = NULL;
  CHECK(lade_device_pool_begin(d->allocator, id, &d->streams[0], 1));
  if (lade_device_alloc(d->allocator, 1 + below(p, 3 << 20), d->streams[0], &block) == LADE_OK)
    CHECK(lade_device_free(d->allocator, block));
  CHECK(lade_device_pool_end(d->allocator, id));
  CHECK(lade_device_pool_release(d->allocator, id));
}

static void step(program *p) {
  device *d = &p->devices[below(p, DEVICES)];
  CHECK(lade_soft_advance(p->runtime, below(p, 3000)));
  switch (below(p, 40)) {
  case 0: CHECK(lade_history_label_set(below(p, 2) == 0 ? NULL : any_text(p))); break;
  case 1:
    if (lade_history_scope_push(any_text(p)) != LADE_OK) CHECK(lade_history_scope_pop());
    break;
  case 2: (void)lade_history_scope_pop(); break;
  case 3: CHECK(lade_device_annotate(d->allocator, NULL, any_text(p))); break;
  case 4: CHECK(lade_pinned_annotate(p->pinned[0].pool, NULL, any_text(p))); break;
  case 5: capture_step(p, d); break;
  case 6: CHECK(lade_soft_stream_hold(p->runtime, d->streams[below(p, STREAMS)], true)); break;
  case 7: CHECK(lade_soft_stream_hold(p->runtime, d->streams[below(p, STREAMS)], false)); break;
  case 8: (void)lade_device_empty_cache(d->allocator); break;
  default:
    if (below(p, 3) == 0)
      pinned_step(p, &p->pinned[below(p, POOLS)]);
    else
      device_step(p, d);
    break;
  }
}

/* --- the program -------------------------------------------------------------------------------------------------- */

static void device_open(program *p, int ordinal, const lade_history_options *history) {
  device *d = &p->devices[ordinal];
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = (uint32_t)below(p, 2);
  options.max_bytes = UINT64_C(300) << 20; /* so that some requests find none */
  CHECK(lade_device_allocator_create(p->runtime, ordinal, &options, &d->allocator));
  CHECK(lade_device_history_set(d->allocator, history));
  for (size_t i = 0; i < STREAMS; i++) CHECK(lade_stream_create(p->runtime, ordinal, &d->streams[i]));
  for (size_t i = 0; i < POOLS; i++) CHECK(lade_device_pool_create(d->allocator, NULL, &d->pools[i]));
}

static void program_open(program *p, uint64_t events) {
  static const lade_soft_device devices[DEVICES] = {{.memory_bytes = UINT64_C(2) << 30, .addresses_only = 1},
                                                    {.memory_bytes = UINT64_C(2) << 30, .addresses_only = 1}};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_soft_options_init(&soft);
  lade_runtime_options_init(&options);
  soft.devices = devices;
  soft.device_count = DEVICES;
  options.soft = &soft;
  CHECK(lade_runtime_open("sim", &options, &p->runtime));
  CHECK(lade_stacks_create(NULL, &p->stacks));
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  history.level = LADE_CONTEXT_ALL;
  history.max_entries = events;
  lade_stacks_use(p->stacks, &history);
  for (int i = 0; i < DEVICES; i++) device_open(p, i, &history);
  for (size_t i = 0; i < POOLS; i++) {
    CHECK(lade_pinned_pool_create(p->runtime, NULL, &p->pinned[i].pool));
    if (i == 0) CHECK(lade_pinned_history_set(p->pinned[i].pool, &history));
  }
  CHECK(lade_pipeline_create(p->runtime, p->pinned[0].pool, NULL, &p->pipeline));
}

/* What is left goes with the process: a snapshot does not need its parts. */
static lade_snapshot *snapshot_take(program *p) {
  lade_part parts[DEVICES + POOLS + 1];
  lade_snapshot *snapshot;
  for (size_t i = 0; i < DEVICES; i++) parts[i] = lade_part_device(p->devices[i].allocator);
  for (size_t i = 0; i < POOLS; i++) parts[DEVICES + i] = lade_part_pinned(p->pinned[i].pool);
  parts[DEVICES + POOLS] = lade_part_pipeline(p->pipeline);
  for (size_t i = 0; i < DEVICES + POOLS + 1; i++)
    if (below(p, 2) == 0) parts[i].name = any_text(p);
  CHECK(lade_snapshot_take(parts, DEVICES + POOLS + 1, NULL, &snapshot));
  return snapshot;
}

static lade_snapshot *snapshot_make(const char *shape) {
  static program p;
  bool small = strcmp(shape, "small") == 0;
  const char *seed = getenv("LADE_TEST_SEED");
  p.random = seed == NULL ? 1 : strtoull(seed, NULL, 10);
  program_open(&p, small ? 60 : 10000);
  void *older; /* than the events of a small one: it is never freed, and its device has some eighty events */
  CHECK(lade_device_alloc(p.devices[0].allocator, 1000, p.devices[0].streams[0], &older));
  for (int i = small ? 300 : 8000; i > 0; i--) step(&p);
  return snapshot_take(&p);
}

static lade_snapshot *snapshot_get(const char *shape, const char *beside) {
  char path[4096];
  lade_snapshot *snapshot = NULL;
  const char *slash = strrchr(beside, '/');
  snprintf(path, sizeof path, "%.*s/.%s.json", slash == NULL ? 1 : (int)(slash - beside), slash == NULL ? "." : beside,
           shape);
  if (access(path, F_OK) != 0) {
    lade_snapshot *made = snapshot_make(shape);
    CHECK(lade_snapshot_save(made, LADE_SNAPSHOT_JSON, NULL, path));
    lade_snapshot_destroy(made);
  }
  CHECK(lade_snapshot_open(path, &snapshot));
  return snapshot;
}

static uint32_t format_find(const char *name) {
  const ladei_inspect_format *format;
  for (size_t i = 0; (format = ladei_inspect_format_at(i)) != NULL; i++)
    if (strcmp(format->name, name) == 0) return format->format;
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 4 || format_find(argv[2]) == 0) {
    fprintf(stderr, "usage: taken_files small|long|FILE FORMAT OUT\n");
    return 2;
  }
  lade_snapshot *snapshot = NULL;
  if (strchr(argv[1], '/') != NULL)
    CHECK(lade_snapshot_open(argv[1], &snapshot));
  else
    snapshot = snapshot_get(argv[1], argv[3]);
  CHECK(lade_snapshot_save(snapshot, format_find(argv[2]), NULL, argv[3]));
  lade_snapshot_destroy(snapshot);
  return 0;
}
