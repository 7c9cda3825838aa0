/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward calls on a graph tree, in a loop that marks no steps: each forward call begins one, unless a backward call is
 * expected. Every third batch is evaluated alone, and the program says that no backward call comes. The activations that a backward
 * call takes over are watched by another holder, in every second step. The tree says when it warms up, records, or runs eagerly.
 *
 * usage: graph_training [RUNTIME]     cuda, cpu, sim; default: the best one found
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <lade/lade.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    lade_status try_status = (call);                                                                                   \
    if (try_status != LADE_OK) return try_status;                                                                      \
  } while (0)

enum { BATCHES = 61, BYTES = 1 << 16 };
enum { ACTIVATION, LOSS, FORWARD_OUTPUTS };

typedef struct training {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_graph_tree *tree;
  lade_graph_function *forward, *backward;
  void *batch, *weight;            /* on the device */
  unsigned char *in, *loss, *seen; /* pinned */
} training;

static _Noreturn void fail(const char *call, const char *reason) {
  fprintf(stderr, "%s: %s\n", call, reason);
  exit(1);
}

/* Copies stand for kernels here. The activation is kept for the backward call. */
static lade_status forward_body(lade_graph_context *context, void *user) {
  const training *t = user;
  lade_graph_value batch;
  void *activation, *loss;
  TRY(lade_graph_input_get(context, 0, &batch));
  TRY(lade_graph_alloc(context, BYTES, &activation));
  TRY(lade_graph_alloc(context, BYTES, &loss));
  TRY(lade_copy_async(t->runtime, activation, batch.address, BYTES, context->stream));
  TRY(lade_copy_async(t->runtime, loss, activation, BYTES, context->stream));
  TRY(lade_graph_output_memory(context, ACTIVATION, activation, BYTES));
  return lade_graph_output_memory(context, LOSS, loss, BYTES);
}

static lade_status backward_body(lade_graph_context *context, void *user) {
  const training *t = user;
  lade_graph_value activation, weight;
  void *gradient, *scratch;
  TRY(lade_graph_input_get(context, 0, &activation));
  TRY(lade_graph_input_get(context, 1, &weight));
  TRY(lade_graph_alloc(context, BYTES, &gradient));
  TRY(lade_copy_async(t->runtime, gradient, activation.address, BYTES, context->stream));
  TRY(lade_graph_input_drop(context, 0)); /* its last use: what is allocated from here on may lie in its memory */
  TRY(lade_graph_alloc(context, BYTES, &scratch));
  TRY(lade_copy_async(t->runtime, scratch, gradient, BYTES, context->stream));
  return lade_copy_async(t->runtime, weight.address, scratch, BYTES, context->stream);
}

static void run_log(void *user, const lade_graph_run_record *record) {
  static const char *const did[] = {"error", "eager", "warm-up", "recording", "replay"};
  (void)user;
  printf("run %llu, %s: %s\n", (unsigned long long)record->run, record->name, did[record->did]);
}

static void function_run(const training *t, lade_graph_function *function, const lade_graph_value *inputs,
                         uint64_t count, lade_graph_value *outputs) {
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = t->stream;
  call.inputs = inputs;
  call.input_count = count;
  call.flags = LADE_GRAPH_CALL_AUTO;
  LADE(lade_graph_tree_run(t->tree, function, &call, outputs, FORWARD_OUTPUTS, NULL));
}

static void bytes_read(const training *t, lade_graph_buffer buffer, unsigned char *out) {
  void *address;
  LADE(lade_graph_buffer_get(t->tree, buffer, &address, NULL));
  LADE(lade_copy_async(t->runtime, out, address, BYTES, t->stream));
  LADE(lade_graph_buffer_release(t->tree, buffer));
}

static void batch_run(const training *t, int number) {
  bool evaluated = number % 3 == 2, watched = number % 2 == 0;
  lade_graph_value out[FORWARD_OUTPUTS], batch = {.address = t->batch, .bytes = BYTES};
  for (int i = 0; i < BYTES; i++) t->in[i] = (unsigned char)(number + i);
  LADE(lade_copy_async(t->runtime, t->batch, t->in, BYTES, t->stream));
  function_run(t, t->forward, &batch, 1, out);
  bytes_read(t, out[LOSS].buffer, t->loss);
  if (evaluated) { /* the activation stays valid until the next forward call begins a step, which no backward call is to put off */
    LADE(lade_graph_tree_backward_done(t->tree));
  } else {
    lade_graph_value inputs[] = {{.kind = LADE_GRAPH_BUFFER_TAKEN, .buffer = out[ACTIVATION].buffer},
                                 {.address = t->weight, .bytes = BYTES}};
    if (watched) LADE(lade_graph_buffer_retain(t->tree, out[ACTIVATION].buffer)); /* its memory outlives the call */
    function_run(t, t->backward, inputs, 2, NULL);
    if (watched) bytes_read(t, out[ACTIVATION].buffer, t->seen);
    LADE(lade_copy_async(t->runtime, t->in, t->weight, BYTES, t->stream));
  }
  LADE(lade_stream_synchronize(t->runtime, t->stream));
  for (int i = 0; i < BYTES; i++) {
    unsigned char expected = (unsigned char)(number + i);
    if (t->loss[i] != expected || t->in[i] != expected) fail("a batch", "a byte is not the batch's");
    if (watched && !evaluated && t->seen[i] != expected) fail("an activation", "it was written to while it was held");
  }
}

static void functions_add(training *t) {
  static const uint32_t flags[] = {0, LADE_GRAPH_STATIC | LADE_GRAPH_MUTATED};
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.user = t;
  options.name = "forward";
  options.body = forward_body;
  options.mode = LADE_GRAPH_FORWARD;
  options.input_count = 1;
  options.output_count = FORWARD_OUTPUTS;
  LADE(lade_graph_tree_function_add(t->tree, &options, &t->forward));
  options.name = "backward";
  options.body = backward_body;
  options.mode = LADE_GRAPH_BACKWARD;
  options.input_count = 2;
  options.input_flags = flags;
  options.output_count = 0;
  LADE(lade_graph_tree_function_add(t->tree, &options, &t->backward));
}

int main(int argc, char **argv) {
  training t;
  void *pinned;
  LADE(lade_runtime_open(argc > 1 ? argv[1] : NULL, NULL, &t.runtime));
  LADE(lade_pair_create(t.runtime, 0, NULL, &t.pair));
  LADE(lade_stream_create(t.runtime, 0, &t.stream));
  lade_device_allocator *allocator = lade_pair_device_allocator(t.pair);
  LADE(lade_device_alloc(allocator, BYTES, t.stream, &t.batch));
  LADE(lade_device_alloc(allocator, BYTES, t.stream, &t.weight));
  LADE(lade_pinned_alloc(lade_pair_pinned_pool(t.pair), 3 * BYTES, &pinned));
  t.in = pinned;
  t.loss = t.in + BYTES;
  t.seen = t.loss + BYTES;
  LADE(lade_graph_tree_create(allocator, NULL, &t.tree));
  LADE(lade_graph_tree_log_set(t.tree, run_log, NULL, LADE_GRAPH_LOG_CHANGES));
  functions_add(&t);

  for (int number = 0; number < BATCHES; number++) batch_run(&t, number);

  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  LADE(lade_graph_tree_stats_get(t.tree, &stats));
  printf("%llu recordings, %llu replays, %llu of memory\n", (unsigned long long)stats.recordings,
         (unsigned long long)stats.replays, (unsigned long long)stats.pool_reserved_bytes);
  if (stats.eager_runs != 0 || stats.recordings > 3) fail("the tree", "it has recorded too often");
  LADE(lade_graph_tree_destroy(t.tree, true));
  LADE(lade_pinned_free(lade_pair_pinned_pool(t.pair), pinned));
  LADE(lade_device_free(allocator, t.weight));
  LADE(lade_device_free(allocator, t.batch));
  LADE(lade_pair_destroy(t.pair, true));
  LADE(lade_stream_destroy(t.runtime, t.stream));
  LADE(lade_runtime_close(t.runtime));
  return 0;
}
