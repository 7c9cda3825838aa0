/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: In a child of fork() no call waits for a lock of its parent's.
 *
 * A thread of the parent may have held any lock in the moment of the fork, and is not there to let go of it. So in the child each
 * call is made on each kind of object, and every lock it takes on the way is reported: the switch points of base/switch.h
 * tell them.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "lade/graph.h"
#include "lade/history.h"
#include "lade/inspect.h"
#include "lade/lade.h"
#include "lade/loader.h"
#include "lade/safetensors.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/sample_file.h"
#include "tests/support/listener.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

/* ---- Locks taken ------------------------------------------------------------------------------------------------- */

static struct {
  bool watches;
  const char *call;
  int count;
  int ranks[16]; /* of the call */
} locks;

#ifdef LADEI_SCHEDULED

void ladei_switch_point(const char *what, int number) {
  if (!locks.watches || strcmp(what, "lock") != 0) return;
  int most = (int)(sizeof locks.ranks / sizeof *locks.ranks);
  if (locks.count < most) locks.ranks[locks.count] = number;
  locks.count++;
}
void ladei_switch_spin(void) {}

/* Threads that wait ask again and again. */
bool ladei_switch_sleep(_Atomic(uint32_t) *word, uint32_t seen, bool timed, uint32_t who) {
  (void)word, (void)seen, (void)who;
  (void)usleep(100);
  return !timed;
}
void ladei_switch_wake(_Atomic(uint32_t) *word, int count, uint32_t who) { (void)word, (void)count, (void)who; }

#endif

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

enum { BYTES = 100000 };

typedef struct objects {
  support_temp_dir dir;
  char *records, *checkpoint;
  lade_runtime *runtime;
  lade_stream stream;
  lade_event event;
  lade_pair *pair;
  lade_pinned_pool *pool;
  lade_device_allocator *allocator;
  lade_pipeline *pipeline;
  void *pinned, *device;
  lade_ticket *ticket;
  lade_device_pool_id pool_id;
  lade_device_checkpoint *state;
  lade_snapshot *snapshot;
  lade_publisher *publisher;
  lade_graph *graph;
  lade_graph_tree *tree;
  lade_graph_function *function;
  lade_record_index *index;
  lade_loader *loader;
  lade_batch batch;
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_group *group;
} objects;

static lade_status graph_work(lade_stream stream, void *user) {
  const objects *o = user;
  return lade_fill_async(o->runtime, o->device, 1, BYTES, stream);
}

static lade_status body(lade_graph_context *context, void *user) {
  (void)context, (void)user;
  return LADE_OK;
}

static void memory_open(objects *o) {
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  LADE_EXPECT_OK(lade_pair_create(o->runtime, 0, NULL, &o->pair));
  o->pool = lade_pair_pinned_pool(o->pair);
  o->allocator = lade_pair_device_allocator(o->pair);
  o->pipeline = lade_pair_pipeline(o->pair);
  LADE_EXPECT_OK(lade_pinned_history_set(o->pool, &history));
  LADE_EXPECT_OK(lade_device_history_set(o->allocator, &history));
  LADE_EXPECT_OK(lade_pinned_latency_set(o->pool, true));
  LADE_EXPECT_OK(lade_device_latency_set(o->allocator, true));
  LADE_EXPECT_OK(lade_pinned_alloc(o->pool, BYTES, &o->pinned));
  LADE_EXPECT_OK(lade_device_alloc(o->allocator, BYTES, o->stream, &o->device));
  LADE_EXPECT_OK(lade_device_pool_create(o->allocator, NULL, &o->pool_id));
  LADE_EXPECT_OK(lade_device_checkpoint_get(o->allocator, o->pool_id, &o->state));
}

static void staging_open(objects *o) {
  lade_transfer transfer;
  lade_loader_options options;
  lade_load_target target = lade_load_target_pair(o->pair, o->stream);
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(o->pinned);
  transfer.device_memory = o->device;
  transfer.bytes = BYTES;
  LADE_EXPECT_OK(lade_pipeline_submit(o->pipeline, &transfer, &o->ticket));
  LADE_EXPECT_OK(lade_ticket_wait(o->ticket, UINT64_MAX));
  LADE_EXPECT_OK(lade_index_create("data", &o->index));
  LADE_EXPECT_OK(lade_index_add_fixed(o->index, o->records, 0, 1000));
  lade_loader_options_init(&options);
  options.batch_records = 2;
  options.stream = o->stream;
  LADE_EXPECT_OK(lade_loader_create(o->index, o->pipeline, o->allocator, &options, &o->loader));
  lade_batch_init(&o->batch);
  LADE_EXPECT_OK(lade_loader_next(o->loader, o->stream, UINT64_MAX, &o->batch));
  LADE_EXPECT_OK(lade_safetensors_open(o->checkpoint, &o->file));
  LADE_EXPECT_OK(lade_safetensors_load(o->file, &target, 1, NULL, &o->load));
  LADE_EXPECT_OK(lade_tensor_load_wait(o->load, LADE_LOAD_ALL, UINT64_MAX));
}

static void others_open(objects *o) {
  const lade_part parts[] = {lade_part_device(o->allocator), lade_part_pinned(o->pool),
                             lade_part_pipeline(o->pipeline)};
  lade_publish_options publish;
  lade_graph_options graph;
  lade_graph_function_options function;
  lade_group_local_options group;
  lade_publish_options_init(&publish);
  LADE_EXPECT_OK(lade_snapshot_take(parts, 3, NULL, &o->snapshot));
  LADE_EXPECT_OK(lade_publish(parts, 3, &publish, &o->publisher));
  lade_graph_options_init(&graph);
  graph.stream = o->stream;
  LADE_EXPECT_OK(lade_graph_capture(o->allocator, &graph, graph_work, o, &o->graph));
  LADE_EXPECT_OK(lade_graph_tree_create(o->allocator, NULL, &o->tree));
  lade_graph_function_options_init(&function);
  function.body = body;
  LADE_EXPECT_OK(lade_graph_tree_function_add(o->tree, &function, &o->function));
  lade_group_local_options_init(&group);
  group.name = "fork-locks";
  group.size = 1;
  LADE_EXPECT_OK(lade_group_create_local(o->runtime, &group, &o->group));
}

static void objects_open(objects *o) {
  *o = (objects){0};
  LADE_ASSERT(support_temp_dir_create(&o->dir));
  o->records = support_temp_dir_path(&o->dir, "records");
  o->checkpoint = support_temp_dir_path(&o->dir, "model.safetensors");
  sample_file_write(o->records, NULL, 100000);
  sample_file_write(o->checkpoint, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1000],\"data_offsets\":[0,1000]}}", 1000);
  o->runtime = support_runtime_open("cpu");
  LADE_ASSERT(o->runtime != NULL);
  LADE_EXPECT_OK(lade_runtime_set_device(o->runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(o->runtime, 0, &o->stream));
  LADE_EXPECT_OK(lade_event_create(o->runtime, 0, &o->event));
  memory_open(o);
  staging_open(o);
  others_open(o);
}

static void objects_close(objects *o) {
  LADE_EXPECT_OK(lade_group_destroy(o->group));
  LADE_EXPECT_OK(lade_graph_tree_destroy(o->tree, true));
  LADE_EXPECT_OK(lade_graph_destroy(o->graph, true));
  lade_publisher_destroy(o->publisher);
  lade_snapshot_destroy(o->snapshot);
  LADE_EXPECT_OK(lade_tensor_load_destroy(o->load, false));
  lade_safetensors_close(o->file);
  LADE_EXPECT_OK(lade_loader_return(o->loader, &o->batch, o->stream));
  LADE_EXPECT_OK(lade_loader_destroy(o->loader));
  lade_index_destroy(o->index);
  lade_ticket_release(o->ticket);
  lade_device_checkpoint_destroy(o->state);
  LADE_EXPECT_OK(lade_device_pool_release(o->allocator, o->pool_id));
  LADE_EXPECT_OK(lade_device_free(o->allocator, o->device));
  LADE_EXPECT_OK(lade_pinned_free(o->pool, o->pinned));
  LADE_EXPECT_OK(lade_device_stream_retire(o->allocator, o->stream));
  LADE_EXPECT_OK(lade_pair_destroy(o->pair, false));
  LADE_EXPECT_OK(lade_event_destroy(o->runtime, o->event));
  LADE_EXPECT_OK(lade_stream_destroy(o->runtime, o->stream));
  support_runtime_close(o->runtime);
  free(o->records);
  free(o->checkpoint);
  support_temp_dir_remove(&o->dir);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static int found; /* calls that are wrong */

static void call_begin(const char *call) {
  locks.call = call;
  locks.count = 0;
  locks.watches = true;
}

static void call_end(bool answered) {
  locks.watches = false;
  if (locks.count == 0 && answered) return;
  found++;
  fprintf(stderr, "%s", locks.call);
  if (!answered) fprintf(stderr, ": LADE_OK");
  for (int i = 0; i < locks.count && i < 16; i++)
    fprintf(stderr, "%s%d", i == 0 ? ": lock of rank " : ", ", locks.ranks[i]);
  fprintf(stderr, "\n");
}

/* What says how it went must not say that all is well; CALL_ANY: what reads what the caller has may. */
#define CALL(call)     (call_begin(#call), call_end((call) != LADE_OK))
#define CALL_ANY(call) (call_begin(#call), (void)(call), call_end(true))

static lade_status stat_visit(const char *key, int64_t value, void *user) {
  (void)key, (void)value, (void)user;
  return LADE_OK;
}
static lade_status class_visit(const lade_pinned_class_stats *stats, void *user) {
  return (void)stats, (void)user, LADE_OK;
}
static lade_status node_visit(const lade_pinned_node_stats *stats, void *user) {
  return (void)stats, (void)user, LADE_OK;
}
static lade_status block_visit(const lade_pinned_info *info, void *user) { return (void)info, (void)user, LADE_OK; }
static lade_status graph_write(void *user, const void *text, size_t bytes) {
  return (void)user, (void)text, (void)bytes, LADE_OK;
}
static void oom_observer(void *user, const lade_device_oom *oom) { (void)user, (void)oom; }
static void tracker(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  (void)user, (void)event, (void)totals;
}
static lade_status reclaimer(void *user) { return (void)user, LADE_OK; }

static void runtime_calls(objects *o) {
  int count;
  lade_stream stream;
  lade_event event;
  lade_device_info info;
  lade_soft_report report;
  lade_device_info_init(&info);
  lade_soft_report_init(&report);
  CALL(lade_runtime_device_count(o->runtime, &count));
  CALL(lade_runtime_device_info(o->runtime, 0, &info));
  CALL(lade_runtime_set_device(o->runtime, 0));
  CALL_ANY(lade_runtime_now_ns(o->runtime));
  CALL(lade_stream_create(o->runtime, 0, &stream));
  CALL(lade_stream_synchronize(o->runtime, o->stream));
  CALL(lade_stream_query(o->runtime, o->stream));
  CALL(lade_stream_wait_event(o->runtime, o->stream, o->event));
  CALL(lade_event_create(o->runtime, 0, &event));
  CALL(lade_event_record(o->runtime, o->event, o->stream));
  CALL(lade_copy_async(o->runtime, o->device, o->pinned, BYTES, o->stream));
  CALL(lade_fill_async(o->runtime, o->device, 0, BYTES, o->stream));
  CALL(lade_soft_report_get(o->runtime, &report));
  CALL(lade_soft_fault_add(o->runtime, "copy", 1, LADE_ERR_DRIVER));
  CALL(lade_soft_fault_clear(o->runtime));
  CALL(lade_soft_stream_hold(o->runtime, o->stream, true));
  CALL(lade_soft_stream_hold(o->runtime, o->stream, false));
  CALL(lade_soft_device_lose(o->runtime, 0, 0));
  CALL(lade_event_destroy(o->runtime, o->event));
  CALL(lade_stream_destroy(o->runtime, o->stream));
}

static void pinned_calls(objects *o) {
  void *block;
  lade_pinned_pool *other;
  lade_pinned_info info;
  lade_pinned_stats stats;
  lade_pinned_options settings;
  lade_history *history;
  lade_pinned_info_init(&info);
  lade_pinned_stats_init(&stats);
  lade_pinned_options_init(&settings);
  CALL(lade_pinned_pool_create(o->runtime, NULL, &other));
  CALL(lade_pinned_alloc(o->pool, 100, &block));
  CALL(lade_pinned_alloc(o->pool, 100 << 20, &block));
  CALL(lade_pinned_alloc_ready(o->pool, 100, &block));
  CALL(lade_pinned_alloc_near(o->pool, 100, 0, &block));
  CALL(lade_pinned_record_event(o->pool, o->pinned, o->stream));
  CALL(lade_pinned_record_use(o->pool, o->pinned, o->stream));
  CALL(lade_pinned_free_after(o->pool, o->pinned, o->event));
  CALL(lade_pinned_free(o->pool, o->pinned));
  CALL(lade_pinned_free_quiet(o->pool, o->pinned));
  CALL(lade_pinned_process_events(o->pool));
  CALL(lade_pinned_empty_cache(o->pool));
  CALL(lade_pinned_trim(o->pool, 0));
  CALL(lade_pinned_adopt(o->pool, o->pinned, 1, 0));
  CALL(lade_pinned_disown(o->pool, o->pinned));
  CALL(lade_pinned_reserve(o->pool, 100 << 20, 0));
  CALL_ANY(lade_pinned_find(o->pool, o->pinned, &info));
  CALL(lade_pinned_stream_retire(o->pool, o->stream));
  CALL_ANY(lade_pinned_stats_get(o->pool, &stats));
  CALL(lade_pinned_stats_reset(o->pool, LADE_STATS_RESET_PEAKS));
  CALL(lade_pinned_stats_reset(o->pool, LADE_STATS_RESET_SUMS));
  CALL_ANY(lade_pinned_settings_get(o->pool, &settings));
  CALL_ANY(lade_pinned_debug_last(o->pool));
  CALL(lade_pinned_latency_set(o->pool, false));
  CALL_ANY(lade_pinned_latency_each(o->pool, stat_visit, NULL));
  CALL(lade_pinned_history_set(o->pool, NULL));
  CALL(lade_pinned_history_take(o->pool, &history));
  CALL_ANY(lade_pinned_annotate(o->pool, NULL, "label"));
  CALL(lade_pinned_annotate(o->pool, o->pinned, "text"));
  CALL(lade_pinned_class_stats_each(o->pool, class_visit, NULL));
  CALL(lade_pinned_node_stats_each(o->pool, node_visit, NULL));
  CALL(lade_pinned_blocks_each(o->pool, block_visit, NULL));
}

static void block_calls(objects *o) {
  void *block;
  size_t bytes, total;
  lade_device_block_info info;
  lade_device_shared shared;
  lade_device_allocator *other;
  lade_device_block_info_init(&info);
  lade_device_shared_init(&shared);
  CALL(lade_device_alloc(o->allocator, 100, o->stream, &block));
  CALL(lade_device_alloc(o->allocator, 100 << 20, o->stream, &block));
  CALL(lade_device_alloc_ready(o->allocator, 100, o->stream, &block));
  CALL(lade_device_record_stream(o->allocator, o->device, o->stream));
  CALL(lade_device_free(o->allocator, o->device));
  CALL(lade_device_empty_cache(o->allocator));
  CALL(lade_device_stream_retire(o->allocator, o->stream));
  CALL(lade_device_frees_hold(o->allocator, true));
  CALL(lade_device_frees_hold(o->allocator, false));
  CALL(lade_device_memory_get(o->allocator, &bytes, &total));
  CALL(lade_device_find(o->allocator, o->device, &info));
  CALL(lade_device_peer_add(o->allocator, 1));
  CALL(lade_device_copy_async(o->allocator, o->device, o->allocator, o->device, 1, o->stream));
  CALL(lade_device_shared_export(o->allocator, o->device, &shared));
  CALL(lade_device_listener_add(o->allocator, SUPPORT_LISTENER(reclaim, reclaimer, NULL)));
  CALL(lade_device_shared_open(o->allocator, &shared, &block));
  CALL(lade_device_shared_close(o->allocator, o->device));
  CALL(lade_device_listener_remove(o->allocator, SUPPORT_LISTENER(reclaim, reclaimer, NULL)));
  CALL(lade_device_listener_add(o->allocator, SUPPORT_LISTENER(observe_oom, oom_observer, NULL)));
  CALL(lade_device_listener_remove(o->allocator, SUPPORT_LISTENER(observe_oom, oom_observer, NULL)));
  CALL(lade_device_listener_add(o->allocator, SUPPORT_LISTENER(track, tracker, NULL)));
  CALL(lade_device_listener_remove(o->allocator, SUPPORT_LISTENER(track, tracker, NULL)));
  CALL(lade_device_allocator_create(o->runtime, 0, NULL, &other));
}

static void pool_calls(objects *o) {
  uint64_t number;
  lade_device_pool_id id;
  lade_device_pool_info pool_info;
  lade_device_restored *restored;
  lade_device_snapshot *snapshot;
  lade_device_checkpoint *checkpoint;
  lade_device_pool_info_init(&pool_info);
  CALL(lade_device_pool_create(o->allocator, NULL, &id));
  CALL(lade_device_pool_retain(o->allocator, o->pool_id));
  CALL(lade_device_scope_begin(o->allocator, o->pool_id, NULL, LADE_DEVICE_SCOPE_THREAD, &number));
  CALL(lade_device_scope_begin(o->allocator, o->pool_id, &o->stream, 1, &number));
  CALL(lade_device_scope_end(o->allocator, 1));
  CALL(lade_device_pool_info_get(o->allocator, o->pool_id, &pool_info));
  CALL(lade_device_pool_trim(o->allocator, o->pool_id, NULL, 0, &number));
  CALL(lade_device_pool_suspend(o->allocator, o->pool_id, NULL, &number));
  CALL(lade_device_pool_resume(o->allocator, o->pool_id));
  CALL(lade_device_pool_begin(o->allocator, o->pool_id, &o->stream, 1));
  CALL(lade_device_pool_end(o->allocator, o->pool_id));
  CALL(lade_device_pool_release(o->allocator, o->pool_id));
  CALL(lade_device_pool_stats_each(o->allocator, stat_visit, NULL));
  CALL(lade_device_checkpoint_get(o->allocator, o->pool_id, &checkpoint));
  CALL(lade_device_checkpoint_set(o->allocator, o->state, &restored));
  CALL(lade_device_snapshot_take(o->allocator, &o->pool_id, &snapshot));
}

static void look_calls(objects *o) {
  size_t bytes;
  char text[100];
  lade_device_stats stats;
  lade_device_usage usage;
  lade_device_options settings;
  lade_device_snapshot *snapshot;
  lade_history *history;
  lade_device_stats_init(&stats);
  lade_device_usage_init(&usage);
  lade_device_options_init(&settings);
  CALL_ANY(lade_device_stats_get(o->allocator, &stats));
  CALL(lade_device_stats_reset(o->allocator, LADE_STATS_RESET_PEAKS));
  CALL(lade_device_stats_reset(o->allocator, LADE_STATS_RESET_SUMS));
  CALL(lade_device_set_memory_fraction(o->allocator, 0.5));
  CALL_ANY(lade_device_settings_get(o->allocator, &settings));
  CALL_ANY(lade_device_settings_write(o->allocator, text, sizeof text, &bytes));
  CALL(lade_device_configure(o->allocator, &settings));
  CALL_ANY(lade_device_usage_get(o->allocator, &usage));
  CALL(lade_device_latency_set(o->allocator, false));
  CALL_ANY(lade_device_latency_each(o->allocator, stat_visit, NULL));
  CALL(lade_device_history_set(o->allocator, NULL));
  CALL(lade_device_history_take(o->allocator, &history));
  CALL(lade_device_annotate(o->allocator, NULL, "label"));
  CALL(lade_device_annotate(o->allocator, o->device, "text"));
  CALL(lade_device_snapshot_take(o->allocator, NULL, &snapshot));
}

static void staging_calls(objects *o) {
  uint64_t lost;
  size_t count;
  void *memory;
  lade_pair *pair;
  lade_pipeline *pipeline;
  lade_ticket *ticket;
  lade_transfer transfer;
  lade_pipeline_info info;
  lade_timeline_event events[4];
  lade_ticket_info ticket_info;
  lade_loader *loader;
  lade_loader_stats loader_stats;
  lade_loader_state loader_state;
  lade_loader_skip skip;
  lade_batch batch;
  lade_tensor_load *load;
  lade_load_info load_info;
  lade_load_target target = lade_load_target_pair(o->pair, o->stream);
  const uint64_t shape[] = {100};
  const lade_tensor tensor = {.name = "a", .dtype = LADE_DTYPE_U8, .shape = shape, .rank = 1, .memory = o->device};
  lade_transfer_init(&transfer);
  lade_pipeline_info_init(&info);
  lade_ticket_info_init(&ticket_info);
  lade_loader_stats_init(&loader_stats);
  lade_loader_state_init(&loader_state);
  lade_loader_skip_init(&skip);
  lade_batch_init(&batch);
  lade_load_info_init(&load_info);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(o->pinned);
  transfer.device_memory = o->device;
  transfer.bytes = BYTES;
  CALL(lade_pair_create(o->runtime, 0, NULL, &pair));
  CALL(lade_pipeline_create(o->runtime, o->pool, NULL, &pipeline));
  CALL(lade_pipeline_submit(o->pipeline, &transfer, &ticket));
  CALL_ANY(lade_pipeline_info_get(o->pipeline, &info));
  CALL_ANY(lade_pipeline_timeline_read(o->pipeline, events, 4, &count, &lost));
  CALL(lade_ticket_wait(o->ticket, UINT64_MAX));
  CALL(lade_ticket_query(o->ticket, &ticket_info));
  CALL(lade_ticket_cancel(o->ticket));
  CALL(lade_stream_wait_ticket(o->stream, o->ticket));
  CALL(lade_stream_wait_ticket_prefix(o->stream, o->ticket, 1));
  CALL(lade_loader_create(o->index, o->pipeline, o->allocator, NULL, &loader));
  CALL(lade_loader_next(o->loader, o->stream, UINT64_MAX, &batch));
  CALL(lade_loader_return(o->loader, &o->batch, o->stream));
  CALL_ANY(lade_loader_stats_get(o->loader, &loader_stats));
  CALL_ANY(lade_loader_skip_get(o->loader, 0, &skip));
  CALL_ANY(lade_loader_state_get(o->loader, &loader_state));
  CALL(lade_safetensors_load(o->file, &target, 1, NULL, &load));
  CALL_ANY(lade_tensor_load_address(o->load, 0, &memory, NULL));
  CALL(lade_tensor_load_wait(o->load, LADE_LOAD_ALL, UINT64_MAX));
  CALL(lade_tensor_load_wait(o->load, 0, UINT64_MAX));
  CALL(lade_tensor_load_stream_wait(o->load, 0, o->stream));
  CALL(lade_tensor_load_query(o->load, &load_info));
  CALL(lade_safetensors_save(o->checkpoint, &target, 1, &tensor, 1, NULL));
}

static void other_calls(objects *o) {
  const lade_part parts[] = {lade_part_device(o->allocator), lade_part_pinned(o->pool),
                             lade_part_pipeline(o->pipeline)};
  bool in_place;
  void *address, *native;
  size_t bytes;
  uint64_t number = 0;
  lade_graph *graph;
  lade_graph_capture_state *capture;
  lade_graph_info graph_info;
  lade_graph_options graph_options;
  lade_graph_function *function;
  lade_graph_function_options function_options;
  lade_graph_call call;
  lade_graph_tree *tree;
  lade_graph_tree_stats stats;
  lade_snapshot *snapshot;
  lade_publisher *publisher;
  lade_graph_info_init(&graph_info);
  lade_graph_options_init(&graph_options);
  lade_graph_function_options_init(&function_options);
  lade_graph_call_init(&call);
  lade_graph_tree_stats_init(&stats);
  graph_options.stream = o->stream;
  function_options.body = body;
  call.stream = o->stream;
  CALL(lade_snapshot_take(parts, 3, NULL, &snapshot));
  CALL(lade_publish(parts, 3, NULL, &publisher));
  CALL_ANY(lade_publish_update(o->publisher));
  CALL(lade_graph_capture(o->allocator, &graph_options, graph_work, o, &graph));
  CALL(lade_graph_capture_begin(o->allocator, &graph_options, &capture));
  CALL(lade_graph_update(o->graph, graph_work, o, &in_place));
  CALL(lade_graph_update_begin(o->graph, &capture));
  CALL(lade_graph_launch(o->graph, o->stream));
  CALL(lade_graph_upload(o->graph, o->stream));
  CALL_ANY(lade_graph_native(o->graph, &native, &native));
  CALL_ANY(lade_graph_info_get(o->graph, &graph_info));
  CALL(lade_graph_tree_create(o->allocator, NULL, &tree));
  CALL(lade_graph_tree_function_add(o->tree, &function_options, &function));
  CALL(lade_graph_tree_function_remove(o->tree, o->function));
  CALL(lade_graph_tree_run(o->tree, o->function, &call, NULL, 0, NULL));
  CALL(lade_graph_tree_step(o->tree));
  CALL(lade_graph_tree_backward_done(o->tree));
  CALL(lade_graph_tree_stream_retire(o->tree, o->stream));
  CALL(lade_graph_buffer_get(o->tree, (lade_graph_buffer){0}, &address, &bytes));
  CALL(lade_graph_buffer_retain(o->tree, (lade_graph_buffer){0}));
  CALL(lade_graph_buffer_release(o->tree, (lade_graph_buffer){0}));
  CALL(lade_graph_buffer_record_stream(o->tree, (lade_graph_buffer){0}, o->stream));
  CALL(lade_graph_tree_log_set(o->tree, NULL, NULL, (lade_graph_log_level)0));
  CALL_ANY(lade_graph_tree_stats_get(o->tree, &stats));
  CALL(lade_graph_tree_dump(o->tree, (lade_graph_writer)graph_write, NULL));
  CALL(lade_graph_tree_reserve(o->tree, 1 << 20));
  CALL(lade_graph_tree_trim(o->tree, &number));
  CALL(lade_group_check(o->group));
  CALL(lade_group_barrier(o->group));
  CALL(lade_group_gather(o->group, &number, sizeof number, &number));
  CALL(lade_group_scatter(o->group, o->device, &number, o->device, 0, o->stream));
  CALL(lade_group_abort(o->group, LADE_ERR_CANCELLED, NULL));
  CALL(lade_group_broadcast(o->group, o->device, 1, 0, o->stream));
}

/* As programs end: what a library or an interpreter destroys at the exit of a child. */
static void destroying_calls(objects *o) {
  CALL_ANY(lade_group_destroy(o->group));
  CALL_ANY(lade_graph_tree_destroy(o->tree, true));
  CALL_ANY(lade_graph_destroy(o->graph, true));
  CALL_ANY(lade_publisher_destroy(o->publisher));
  CALL_ANY(lade_tensor_load_destroy(o->load, false));
  CALL_ANY(lade_safetensors_close(o->file));
  CALL_ANY(lade_loader_destroy(o->loader));
  CALL_ANY(lade_index_destroy(o->index));
  CALL_ANY(lade_ticket_release(o->ticket));
  CALL_ANY(lade_device_checkpoint_destroy(o->state));
  CALL_ANY(lade_pair_destroy(o->pair, true));
  CALL(lade_runtime_close(o->runtime));
}

LADE_TEST(ForkLocks, NoCallOfAChildWaitsForOne) {
  objects o;
  objects_open(&o);
  int status = -1;
  pid_t child = fork();
  if (child == 0) {
    alarm(60); /* one that hangs is a failure */
    runtime_calls(&o);
    pinned_calls(&o);
    block_calls(&o);
    pool_calls(&o);
    look_calls(&o);
    staging_calls(&o);
    other_calls(&o);
    destroying_calls(&o);
    _exit(found == 0 ? 0 : 1);
  }
  LADE_EXPECT_EQ_INT((int)waitpid(child, &status, 0), (int)child);
  LADE_EXPECT_EQ_INT(status, 0);
  objects_close(&o);
}
