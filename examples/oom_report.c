/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A report for when device memory is out: a summary, a page for the browser and a pickle for PyTorch's viewer, written
 * by an observer before the allocation that failed returns. An earlier snapshot is there to compare with.
 *
 * The program is a training with a leak: the loss of each step is kept, and with it a buffer on the device. docs/inspect.md follows
 * it from "out of memory" to this cause.
 *
 * usage: oom_report RUNTIME FOLDER
 */
#include <stdio.h>
#include <stdlib.h>

#include <lade/lade.h>

enum { LAYERS = 6, MOST_STEPS = 100, EARLY_STEP = 4, MIB = 1 << 20 };

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  exit(1);
}

/* --- the report --------------------------------------------------------------------------------------------------- */

typedef struct report {
  lade_part parts[2];
  const char *folder;
  lade_runtime *runtime;
} report;

static void file_save(const report *r, const lade_snapshot *snapshot, uint32_t format, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", r->folder, name);
  if (lade_snapshot_save(snapshot, format, NULL, path) != LADE_OK)
    fprintf(stderr, "%s\n", lade_last_error()->text);
  else
    printf("wrote %s\n", path);
}

static lade_snapshot *snapshot_take(const report *r) {
  lade_snapshot *snapshot;
  if (lade_snapshot_take(r->parts, 2, NULL, &snapshot) == LADE_OK) return snapshot;
  fprintf(stderr, "%s\n", lade_last_error()->text);
  return NULL;
}

static lade_status process_print(const lade_device_process *process, void *user) {
  (void)user;
  printf("process %u holds %llu bytes\n", process->pid, (unsigned long long)process->bytes);
  return LADE_OK;
}

/* Called in the thread whose allocation fails, with no lock held. */
static void out_of_memory(void *user, const lade_device_oom *oom) {
  const report *r = user;
  lade_device_stats stats;
  char summary[LADE_SUMMARY_BYTES];
  lade_device_stats_init(&stats);
  printf("%llu bytes were asked for\n", (unsigned long long)oom->requested_bytes);
  if (lade_device_stats_get(r->parts[0].object, &stats) == LADE_OK &&
      lade_device_summary_write(&stats, oom->device, LADE_SUMMARY_ABBREVIATED, summary, sizeof summary, NULL) ==
          LADE_OK)
    fputs(summary, stdout);
  (void)lade_device_processes_each(r->runtime, oom->device, process_print, NULL); /* of a GPU */
  lade_snapshot *snapshot = snapshot_take(r);
  if (snapshot == NULL) return;
  file_save(r, snapshot, LADE_SNAPSHOT_HTML, "oom.html");
  file_save(r, snapshot, LADE_SNAPSHOT_PICKLE, "oom.pickle");
  lade_snapshot_destroy(snapshot);
}

/* --- the program -------------------------------------------------------------------------------------------------- */

typedef struct training {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_pinned_pool *pool;
  lade_stacks *stacks;
  lade_stream stream;
  void *weights[LAYERS], *activations[LAYERS], *losses[MOST_STEPS];
  lade_error failure; /* of the allocation that failed: calls of the clean-up after it may fail as well */
} training;

static lade_status weights_load(training *t) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < LAYERS && status == LADE_OK; i++)
    status = lade_device_alloc(t->allocator, 5 * MIB, t->stream, &t->weights[i]);
  return status;
}

static lade_status layer_forward(training *t, size_t layer) {
  return lade_device_alloc(t->allocator, (2 + layer) * MIB, t->stream, &t->activations[layer]);
}

static void layer_backward(training *t, size_t layer) {
  void *gradient;
  if (lade_device_alloc(t->allocator, MIB + MIB / 2, t->stream, &gradient) == LADE_OK)
    LADE(lade_device_free(t->allocator, gradient));
  LADE(lade_device_free(t->allocator, t->activations[layer]));
}

/* The leak: the loss would do, and the buffer that it lies in stays. */
static lade_status loss_keep(training *t, size_t step) {
  return lade_device_alloc(t->allocator, 3 * MIB, t->stream, &t->losses[step]);
}

/* On an error what the step allocated is given back, and the losses of former steps are not. */
static lade_status step_train(training *t, size_t step) {
  void *batch;
  size_t layers = 0;
  lade_status status = LADE_OK;
  LADE(lade_pinned_alloc(t->pool, MIB, &batch));
  LADE(lade_pinned_annotate(t->pool, batch, "batch")); /* its words in the history and in snapshots */
  while (layers < LAYERS && (status = layer_forward(t, layers)) == LADE_OK) {
    lade_soft_advance(t->runtime, 300000); /* time passes; on other runtimes than "sim" it does so by itself */
    layers++;
  }
  if (status == LADE_OK) status = loss_keep(t, step);
  if (status != LADE_OK) t->failure = *lade_last_error();
  while (layers > 0) {
    layer_backward(t, --layers);
    lade_soft_advance(t->runtime, 300000);
  }
  LADE(lade_pinned_free(t->pool, batch));
  return status;
}

static void history_on(training *t) {
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  history.level = LADE_CONTEXT_ALLOC;
  history.max_bytes = 16 * MIB;
  LADE(lade_stacks_create(NULL, &t->stacks));
  lade_stacks_use(t->stacks, &history);
  LADE(lade_device_history_set(t->allocator, &history));
  LADE(lade_pinned_history_set(t->pool, &history));
}

static void training_open(training *t, const char *runtime) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = 160 * MIB; /* so that the end comes soon */
  LADE(lade_runtime_open(runtime, NULL, &t->runtime));
  LADE(lade_stream_create(t->runtime, 0, &t->stream));
  LADE(lade_device_allocator_create(t->runtime, 0, &options, &t->allocator));
  LADE(lade_pinned_pool_create(t->runtime, NULL, &t->pool));
  history_on(t);
}

static void blocks_free(training *t, void **blocks, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (blocks[i] != NULL) LADE(lade_device_free(t->allocator, blocks[i]));
}

static void training_close(training *t) {
  blocks_free(t, t->weights, LAYERS);
  blocks_free(t, t->losses, MOST_STEPS);
  LADE(lade_device_allocator_destroy(t->allocator, true));
  LADE(lade_pinned_pool_destroy(t->pool, false));
  LADE(lade_stacks_destroy(t->stacks));
  LADE(lade_stream_destroy(t->runtime, t->stream));
  LADE(lade_runtime_close(t->runtime));
}

static lade_status train(training *t, const report *r) {
  for (size_t step = 0; step < MOST_STEPS; step++) {
    char scope[32];
    snprintf(scope, sizeof scope, "step %zu", step);
    LADE(lade_history_scope_push(scope));
    lade_status status = step_train(t, step);
    LADE(lade_history_scope_pop());
    if (status != LADE_OK) return status;
    if (step != EARLY_STEP) continue;
    lade_snapshot *snapshot = snapshot_take(r);
    if (snapshot != NULL) file_save(r, snapshot, LADE_SNAPSHOT_PICKLE, "early.pickle");
    lade_snapshot_destroy(snapshot);
  }
  return LADE_OK;
}

int main(int argc, char **argv) {
  if (argc != 3) fail(argv[0], "usage: RUNTIME FOLDER");
  training t = {.runtime = NULL};
  training_open(&t, argv[1]);
  report r = {
      .parts = {lade_part_device(t.allocator), lade_part_pinned(t.pool)}, .folder = argv[2], .runtime = t.runtime};
  lade_device_listener listener;
  lade_device_listener_init(&listener);
  listener.observe_oom = out_of_memory;
  listener.user = &r;
  LADE(lade_device_listener_add(t.allocator, &listener));
  LADE(weights_load(&t));
  if (train(&t, &r) != LADE_OK) printf("out of memory: %s\n", t.failure.text);
  LADE(lade_device_listener_remove(t.allocator, &listener)); /* before `r`, its user, is gone */
  training_close(&t);
  return 0;
}
