/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Threads make calls of chance, each of those that any thread may make at any time, on the same objects: memory
 * is allocated, recorded, freed and staged while others set, look, trim and publish.
 *
 * What is right or wrong here the sanitisers say, the assertions of the library, and the end, at which nothing is alive. No call may say
 * LADE_ERR_INTERNAL. LADE_SOAK_SECONDS lets it go on; the seed alone does not repeat a failure.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "lade/config.h"
#include "lade/graph.h"
#include "lade/history.h"
#include "lade/inspect.h"
#include "lade/lade.h"
#include "lade/loader.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/sample_file.h"
#include "tests/support/listener.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"
#include "tests/support/temp_dir.h"

enum { THREADS = 5, BLOCKS = 16, BYTES = 20000 };

typedef struct arena {
  support_soak soak;
  bool faults; /* driver calls fail now and then */
  bool native; /* the allocator keeps blocks, and has pools and graphs */
  lade_runtime *runtime;
  lade_pair *pair;
  lade_pinned_pool *pool;
  lade_device_allocator *allocator;
  lade_pipeline *pipeline;
  lade_record_index *index;
  lade_loader *loader;
  lade_stream loader_stream, graph_stream;
  lade_publisher *publisher;
  lade_graph *graph;
  void *graph_memory;
  lade_device_pool_id pool_id;
  _Atomic(uint64_t) calls;
} arena;

typedef struct worker {
  arena *all;
  pthread_t thread;
  support_random random;
  lade_stream stream;
  void *pinned[BLOCKS], *device[BLOCKS];
} worker;

static uint64_t below(worker *w, uint64_t limit) { return support_random_below(&w->random, limit); }

static void said(worker *w, lade_status status) {
  atomic_fetch_add(&w->all->calls, 1);
  if (status == LADE_ERR_INTERNAL) LADE_FAIL("%s", lade_last_error()->text);
}

/* While driver calls fail a call that gives back may fail, too; it changes nothing then, and is made again. */
#define GIVEN_BACK(w, call)                                                                                            \
  do {                                                                                                                 \
    lade_status given = (call);                                                                                        \
    for (int tries = 0; (w)->all->faults && given != LADE_OK && tries < 100; tries++) given = (call);                  \
    LADE_EXPECT_OK(given);                                                                                             \
  } while (0)

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void pinned_pair(worker *w) {
  void **block = &w->pinned[below(w, BLOCKS)];
  if (*block == NULL) {
    said(w, lade_pinned_alloc(w->all->pool, below(w, 20) == 0 ? LADEI_MIB : 1 + below(w, 9000), block));
    return;
  }
  if (below(w, 2) == 0) said(w, lade_pinned_record_event(w->all->pool, *block, w->stream));
  GIVEN_BACK(w, lade_pinned_free(w->all->pool, *block));
  *block = NULL;
}

static void device_pair(worker *w) {
  void **block = &w->device[below(w, BLOCKS)];
  if (*block == NULL) {
    said(w,
         lade_device_alloc(w->all->allocator, 1 + below(w, below(w, 8) == 0 ? 3 * LADEI_MIB : 9000), w->stream, block));
    return;
  }
  if (below(w, 2) == 0) said(w, lade_device_record_stream(w->all->allocator, *block, w->all->loader_stream));
  GIVEN_BACK(w, lade_device_free(w->all->allocator, *block));
  *block = NULL;
}

static void pinned_look(worker *w) {
  lade_pinned_stats stats;
  lade_pinned_options settings;
  lade_pinned_info info;
  lade_pinned_stats_init(&stats);
  lade_pinned_options_init(&settings);
  lade_pinned_info_init(&info);
  said(w, lade_pinned_stats_get(w->all->pool, &stats));
  said(w, lade_pinned_settings_get(w->all->pool, &settings));
  void *block = w->pinned[below(w, BLOCKS)];
  if (block == NULL) return;
  LADE_EXPECT_OK(lade_pinned_find(w->all->pool, block, &info));
  said(w, lade_pinned_annotate(w->all->pool, block, "a block"));
}

static void device_look(worker *w) {
  lade_device_stats stats;
  lade_device_options settings;
  lade_device_usage usage;
  lade_device_block_info info;
  lade_device_stats_init(&stats);
  lade_device_options_init(&settings);
  lade_device_usage_init(&usage);
  lade_device_block_info_init(&info);
  said(w, lade_device_stats_get(w->all->allocator, &stats));
  said(w, lade_device_settings_get(w->all->allocator, &settings));
  said(w, lade_device_usage_get(w->all->allocator, &usage));
  void *block = w->device[below(w, BLOCKS)];
  if (block == NULL || !w->all->native) return;
  LADE_EXPECT_OK(lade_device_find(w->all->allocator, block, &info));
  said(w, lade_device_annotate(w->all->allocator, block, "a block"));
}

static void pinned_change(worker *w) {
  lade_pinned_pool *pool = w->all->pool;
  switch (below(w, 7)) {
  case 0: said(w, lade_pinned_trim(pool, below(w, 2) * 64 * LADEI_MIB)); break;
  case 1: said(w, lade_pinned_empty_cache(pool)); break;
  case 2: said(w, lade_pinned_process_events(pool)); break;
  case 3: said(w, lade_pinned_stats_reset(pool, LADE_STATS_RESET_PEAKS)); break;
  case 4: said(w, lade_pinned_stats_reset(pool, LADE_STATS_RESET_SUMS)); break;
  case 5: said(w, lade_pinned_latency_set(pool, below(w, 2) == 0)); break;
  default: said(w, lade_pinned_annotate(pool, NULL, "a label")); break;
  }
}

static lade_status reclaim(void *user) { return (void)user, LADE_NOT_READY; }
static void track(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  (void)user, (void)event, (void)totals;
}

static void device_change(worker *w) {
  lade_device_allocator *allocator = w->all->allocator;
  lade_device_options settings;
  switch (below(w, 12)) {
  case 0: said(w, lade_device_empty_cache(allocator)); break;
  case 1: said(w, lade_device_stats_reset(allocator, LADE_STATS_RESET_PEAKS)); break;
  case 2: said(w, lade_device_stats_reset(allocator, LADE_STATS_RESET_SUMS)); break;
  case 3: said(w, lade_device_latency_set(allocator, below(w, 2) == 0)); break;
  case 4: said(w, lade_device_set_memory_fraction(allocator, 0.9)); break;
  case 5: said(w, lade_device_set_memory_fraction(allocator, LADE_DEVICE_NO_FRACTION)); break;
  case 6: said(w, lade_device_annotate(allocator, NULL, "a label")); break;
  case 7: said(w, lade_device_listener_add(allocator, SUPPORT_LISTENER(reclaim, reclaim, w))); break;
  case 8: said(w, lade_device_listener_remove(allocator, SUPPORT_LISTENER(reclaim, reclaim, w))); break;
  case 9: said(w, lade_device_listener_add(allocator, SUPPORT_LISTENER(track, track, w))); break;
  case 10: said(w, lade_device_listener_remove(allocator, SUPPORT_LISTENER(track, track, w))); break;
  default:
    lade_device_options_init(&settings);
    said(w, lade_device_settings_get(allocator, &settings));
    said(w, lade_device_configure(allocator, &settings));
    break;
  }
}

static void pools_use(worker *w) {
  lade_device_allocator *allocator = w->all->allocator;
  lade_device_pool_id id = w->all->pool_id;
  uint64_t scope, bytes;
  void *block = NULL;
  lade_device_pool_info info;
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_pool_info_init(&info);
  if (!w->all->native) return;
  switch (below(w, 4)) {
  case 0:
    if (lade_device_scope_begin(allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope) != LADE_OK) break;
    said(w, lade_device_alloc(allocator, 1 + below(w, 5000), w->stream, &block));
    GIVEN_BACK(w, lade_device_scope_end(allocator, scope));
    if (block != NULL) GIVEN_BACK(w, lade_device_free(allocator, block));
    break;
  case 1: said(w, lade_device_pool_info_get(allocator, id, &info)); break;
  case 2: said(w, lade_device_pool_trim(allocator, id, NULL, 0, &bytes)); break;
  default:
    said(w, lade_device_checkpoint_get(allocator, id, &checkpoint));
    lade_device_checkpoint_destroy(checkpoint);
    break;
  }
}

/* ---- Looks ------------------------------------------------------------------------------------------------------- */

static void histories_use(worker *w) {
  lade_history_options options;
  lade_history *history = NULL;
  lade_history_options_init(&options);
  options.enabled = below(w, 4) != 0;
  if (below(w, 2) == 0) {
    if (below(w, 4) == 0) said(w, lade_pinned_history_set(w->all->pool, &options));
    said(w, lade_pinned_history_take(w->all->pool, &history));
  } else {
    if (below(w, 4) == 0) said(w, lade_device_history_set(w->all->allocator, &options));
    said(w, lade_device_history_take(w->all->allocator, &history));
  }
  lade_history_destroy(history);
}

static void snapshot_use(worker *w) {
  const arena *all = w->all;
  const lade_part parts[] = {lade_part_device(all->allocator), lade_part_pinned(all->pool),
                             lade_part_pipeline(all->pipeline)};
  lade_snapshot *snapshot = NULL;
  said(w, lade_snapshot_take(parts, 3, NULL, &snapshot));
  lade_snapshot_destroy(snapshot);
  said(w, lade_publish_update(all->publisher));
}

static void log_ignore(void *user, lade_log_level level, const char *text) { (void)user, (void)level, (void)text; }
static void log_use(worker *w) {
  said(w, below(w, 2) == 0 ? lade_log_set(log_ignore, w, LADE_LOG_DEBUG) : lade_log_set(NULL, NULL, LADE_LOG_ERROR));
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void transfer_use(worker *w) {
  static const char zeros[BYTES];
  arena *all = w->all;
  lade_transfer transfer;
  lade_ticket *ticket = NULL;
  lade_ticket_info info;
  lade_pipeline_info pipeline;
  void *memory = NULL;
  lade_ticket_info_init(&info);
  lade_pipeline_info_init(&pipeline);
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory((void *)(uintptr_t)zeros);
  transfer.bytes = 1 + below(w, BYTES);
  transfer.stream = w->stream;
  transfer.allocator = all->allocator;
  transfer.out_device_memory = &memory;
  said(w, lade_pipeline_submit(all->pipeline, &transfer, &ticket));
  if (ticket == NULL) return;
  if (below(w, 3) == 0) said(w, lade_ticket_cancel(ticket));
  if (below(w, 3) == 0) said(w, lade_stream_wait_ticket(w->stream, ticket));
  (void)lade_ticket_query(ticket, &info);
  said(w, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  GIVEN_BACK(w, lade_device_free(all->allocator, memory));
  said(w, lade_pipeline_info_get(all->pipeline, &pipeline));
}

static void loader_use(worker *w) {
  arena *all = w->all;
  lade_batch batch;
  lade_loader_stats stats;
  lade_loader_state state;
  lade_batch_init(&batch);
  lade_loader_stats_init(&stats);
  lade_loader_state_init(&state);
  lade_status status = lade_loader_next(all->loader, w->stream, 0, &batch); /* not if others have all of them */
  said(w, status);
  if (status == LADE_OK && batch.count > 0) {
    do status = lade_loader_return(all->loader, &batch, w->stream);
    while (status != LADE_OK &&
           status != LADE_ERR_INVALID_ARGUMENT); /* that: it is given back, its copies had failed */
    said(w, status);
  }
  said(w, lade_loader_stats_get(all->loader, &stats));
  said(w, lade_loader_state_get(all->loader, &state));
}

static lade_status graph_work(lade_stream stream, void *user) {
  const arena *all = user;
  return lade_fill_async(all->runtime, all->graph_memory, 1, BYTES, stream);
}

static void graph_use(worker *w) {
  lade_graph_info info;
  bool in_place;
  lade_graph_info_init(&info);
  if (!w->all->native) return;
  if (below(w, 8) == 0) said(w, lade_graph_update(w->all->graph, graph_work, w->all, &in_place));
  said(w, lade_graph_launch(w->all->graph, w->stream));
  said(w, lade_graph_info_get(w->all->graph, &info));
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

static void *work(void *user) {
  /* Often what programs do all the time; now and then the rest. */
  static void (*const calls[])(worker *) = {pinned_pair,   pinned_pair,  pinned_pair, device_pair,   device_pair,
                                            device_pair,   transfer_use, loader_use,  pinned_look,   device_look,
                                            pinned_change, pools_use,    graph_use,   device_change, histories_use,
                                            snapshot_use,  log_use};
  worker *w = user;
  GIVEN_BACK(w, lade_runtime_set_device(w->all->runtime, 0));
  do {
    for (int i = 0; i < 50; i++) calls[below(w, sizeof calls / sizeof *calls)](w);
  } while (support_soak_goes_on(&w->all->soak) && !lade_test_has_failed());
  for (int i = 0; i < BLOCKS; i++) {
    if (w->pinned[i] != NULL) GIVEN_BACK(w, lade_pinned_free(w->all->pool, w->pinned[i]));
    if (w->device[i] != NULL) GIVEN_BACK(w, lade_device_free(w->all->allocator, w->device[i]));
  }
  (void)lade_device_listener_remove(w->all->allocator, SUPPORT_LISTENER(reclaim, reclaim, w));
  (void)lade_device_listener_remove(w->all->allocator, SUPPORT_LISTENER(track, track, w));
  return NULL;
}

static void pair_open(arena *all, const char *settings) {
  lade_config config;
  lade_device_options device;
  lade_pinned_options pinned;
  lade_pipeline_options pipeline;
  lade_pair_options pair;
  lade_config_init(&config);
  lade_device_options_init(&device);
  lade_pinned_options_init(&pinned);
  lade_pipeline_options_init(&pipeline);
  lade_pair_options_init(&pair);
  config.device = &device;
  config.pinned = &pinned;
  LADE_EXPECT_OK(lade_config_parse(settings, &config));
  pipeline.chunk_bytes = 4096;
  pipeline.readers = 2;
  pair.device = &device;
  pair.pinned = &pinned;
  pair.pipeline = &pipeline;
  LADE_ASSERT_OK(lade_pair_create(all->runtime, 0, &pair, &all->pair));
}

static void arena_open(arena *all, const char *records, const char *settings) {
  lade_loader_options loader;
  lade_graph_options graph;
  LADE_EXPECT_OK(lade_runtime_set_device(all->runtime, 0));
  pair_open(all, settings);
  LADE_ASSERT(all->pair != NULL);
  all->pool = lade_pair_pinned_pool(all->pair);
  all->allocator = lade_pair_device_allocator(all->pair);
  all->pipeline = lade_pair_pipeline(all->pair);
  LADE_EXPECT_OK(lade_stream_create(all->runtime, 0, &all->loader_stream));
  LADE_EXPECT_OK(lade_stream_create(all->runtime, 0, &all->graph_stream));
  LADE_EXPECT_OK(lade_index_create("data", &all->index));
  LADE_EXPECT_OK(lade_index_add_fixed(all->index, records, 0, 100));
  lade_loader_options_init(&loader);
  loader.batch_records = 3;
  loader.stream = all->loader_stream;
  LADE_ASSERT_OK(lade_loader_create(all->index, all->pipeline, all->allocator, &loader, &all->loader));
  LADE_EXPECT_OK(lade_device_alloc(all->allocator, BYTES, all->graph_stream, &all->graph_memory));
  lade_graph_options_init(&graph);
  graph.stream = all->graph_stream;
  if (all->native) {
    LADE_ASSERT_OK(lade_graph_capture(all->allocator, &graph, graph_work, all, &all->graph));
    LADE_EXPECT_OK(lade_device_pool_create(all->allocator, NULL, &all->pool_id));
  }
  const lade_part parts[] = {lade_part_device(all->allocator), lade_part_pinned(all->pool)};
  LADE_ASSERT_OK(lade_publish(parts, 2, NULL, &all->publisher));
}

static void arena_close(arena *all, worker *workers) {
  LADE_EXPECT_OK(lade_log_set(NULL, NULL, LADE_LOG_ERROR));
  lade_publisher_destroy(all->publisher);
  LADE_EXPECT_OK(lade_loader_destroy(all->loader));
  lade_index_destroy(all->index);
  LADE_EXPECT_OK(lade_graph_destroy(all->graph, true));
  if (all->native) LADE_EXPECT_OK(lade_device_pool_release(all->allocator, all->pool_id));
  LADE_EXPECT_OK(lade_device_free(all->allocator, all->graph_memory));
  lade_stream streams[THREADS + 2] = {all->loader_stream, all->graph_stream};
  for (int i = 0; i < THREADS; i++) streams[2 + i] = workers[i].stream;
  for (int i = 0; i < THREADS + 2; i++) {
    LADE_EXPECT_OK(lade_stream_synchronize(all->runtime, streams[i]));
    LADE_EXPECT_OK(lade_pinned_stream_retire(all->pool, streams[i]));
    LADE_EXPECT_OK(lade_device_stream_retire(all->allocator, streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(all->runtime, streams[i]));
  }
  LADE_EXPECT_OK(lade_pair_destroy(all->pair, false));
}

/* Makes driver calls fail, each once. Not those that free, destroy and unmap, which no driver refuses for valid objects. */
static void *sabotage(void *user) {
  static const char *const ops[] = {"device_alloc",  "host_register", "host_alloc",        "event_create",
                                    "event_record",  "event_query",   "stream_wait_event", "copy",
                                    "copy_batch",    "fill",          "vm_create",         "vm_map",
                                    "memory_info",   "stream_query",  "event_synchronize", "graph_launch",
                                    "capture_begin", "capture_end",   "graph_upload",      "stream_resolve"};
  arena *all = user;
  support_random random;
  support_random_start_quietly(&random, support_seed(1));
  while (support_soak_goes_on(&all->soak) && !lade_test_has_failed()) {
    LADE_EXPECT_OK(lade_soft_fault_clear(all->runtime)); /* one at a time: the second attempt succeeds */
    const char *op = ops[support_random_below(&random, sizeof ops / sizeof *ops)];
    LADE_EXPECT_OK(lade_soft_fault_add(all->runtime, op, support_random_between(&random, 1, 10), LADE_ERR_DRIVER));
    (void)usleep(500);
  }
  LADE_EXPECT_OK(lade_soft_fault_clear(all->runtime));
  return NULL;
}

static void test_run(const char *settings, bool faults) {
  arena all = {.soak = support_soak_begin(1.0), .faults = faults, .native = strstr(settings, "backend") == NULL};
  worker workers[THREADS];
  pthread_t saboteur;
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *records = support_temp_dir_path(&dir, "records");
  sample_file_write(records, NULL, 5000);
  all.runtime = support_runtime_open("cpu");
  LADE_ASSERT(all.runtime != NULL);
  arena_open(&all, records, settings);
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.all = &all};
    support_random_start_quietly(&workers[i].random, support_seed(1) * 1000 + (uint64_t)i);
    LADE_EXPECT_OK(lade_stream_create(all.runtime, 0, &workers[i].stream));
  }
  if (faults) LADE_ASSERT(pthread_create(&saboteur, NULL, sabotage, &all) == 0);
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  for (int i = 0; i < THREADS; i++) (void)pthread_join(workers[i].thread, NULL);
  if (faults) (void)pthread_join(saboteur, NULL);
  LADE_EXPECT_GT_UINT(atomic_load(&all.calls), 100);
  arena_close(&all, workers);
  support_runtime_close(all.runtime);
  free(records);
  support_temp_dir_remove(&dir);
}

static const char *const all_settings[] = {
    "",
    "expandable_segments:True,device_expandable_pools:True",
    "device_policy:threads",
    "pinned_debug:True",
    "backend:cudaMallocAsync",
    "device_uncached:True",
    "pinned_policy:reference,pinned_background:True",
    "max_split_size_mb:21,garbage_collection_threshold:0.6",
    NULL,
};

LADE_TEST_P(AnyThread, MakesAnyCallAtAnyTime, all_settings, settings) { test_run(settings, false); }

LADE_TEST_P(AnyThread, WhileDriverCallsFail, all_settings, settings) { test_run(settings, true); }
