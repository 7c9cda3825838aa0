/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decoding loop on a graph tree: prompts are prefilled, then each step feeds the last token back. Batches are rounded up to buckets;
 * each bucket has one recording of either function, all in one pool. The "model" is a hash, so that the host can check each token; its
 * kernels, for a GPU and for software devices, are in graph_decode_kernels.c.
 *
 * usage: graph_decode [RUNTIME]     cuda, cpu, sim; default: the best one found
 */
#include <stdio.h>
#include <stdlib.h>

#include "graph_decode_kernels.h"
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

enum { PROMPT = 8, STEPS = DECODE_CONTEXT - PROMPT, ROWS = 8, BUCKETS = 4 };
enum { STATE, TABLE, CACHE, INPUTS }; /* of both functions */

typedef struct memory { /* log: what each step gave */
  uint32_t table[DECODE_VOCABULARY], prompts[ROWS * (PROMPT + 1)];
  uint32_t cache[ROWS][DECODE_CONTEXT], log[STEPS + 1][2 * ROWS];
} memory;

typedef struct model {
  decode_kernels kernels;
  lade_stream stream;
  lade_graph_tree *tree;
  lade_graph_function *prefill, *decode;
  memory *device, *host; /* the log is on the host alone, the cache on the device */
} model;

static _Noreturn void fail(const char *call, const char *reason) {
  fprintf(stderr, "%s: %s\n", call, reason);
  exit(1);
}

/* Of both functions. Each key {rows, tokens of a row} is warmed up once, and recorded once. */
static lade_status body(lade_graph_context *context, void *user) {
  const model *m = user;
  const uint64_t *key = context->key;
  lade_graph_value in[INPUTS];
  void *scores, *out;
  for (size_t i = 0; i < INPUTS; i++) TRY(lade_graph_input_get(context, i, &in[i]));
  TRY(lade_graph_alloc(context, key[0] * 4, &scores));
  TRY(lade_graph_alloc(context, key[0] * 8, &out));
  decode_work work = {in[STATE].address, in[TABLE].address, in[CACHE].address, scores,           out,
                      (uint32_t)key[0],  (uint32_t)key[1],  DECODE_CONTEXT,    DECODE_VOCABULARY};
  TRY(decode_kernels_queue(&m->kernels, context->stream, &work));
  TRY(lade_graph_free(context, scores));
  return lade_graph_output_memory(context, 0, out, key[0] * 8);
}

/* Each token is a step: what came before may go, except the state that goes in, so one recording serves all tokens. Nothing waits. */
static lade_graph_value step_run(const model *m, lade_graph_value state, uint64_t rows, uint64_t count, void *log) {
  lade_graph_value out, inputs[INPUTS] = {state,
                                          {.address = m->device->table, .bytes = sizeof m->device->table},
                                          {.address = m->device->cache, .bytes = sizeof m->device->cache}};
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = m->stream;
  call.key = (uint64_t[]){rows, count};
  call.key_count = 2;
  call.inputs = inputs;
  call.input_count = INPUTS;
  LADE(lade_graph_tree_step(m->tree));
  LADE(lade_graph_tree_run(m->tree, count == 1 ? m->decode : m->prefill, &call, &out, 1, NULL));
  LADE(lade_copy_async(m->kernels.runtime, log, out.address, rows * 8, m->stream));
  return (lade_graph_value){.kind = LADE_GRAPH_BUFFER_TAKEN, .buffer = out.buffer}; /* the next step takes it over */
}

static void tokens_check(const model *m, uint32_t row) {
  uint32_t hash = 0;
  for (uint32_t i = 1; i <= PROMPT; i++) hash = hash * 31 + m->host->table[m->host->prompts[row * (PROMPT + 1) + i]];
  for (uint32_t step = 0; step <= STEPS; step++) {
    const uint32_t *got = &m->host->log[step][2 * row], token = hash % DECODE_VOCABULARY;
    if (got[0] != PROMPT + step || got[1] != token) fail("a token", "it is not what the host computes");
    hash = hash * 31 + m->host->table[token];
  }
}

static lade_graph_tree_stats batch_decode(const model *m, uint32_t size, lade_graph_tree_stats before) {
  uint32_t rows = size <= 2 ? size : size <= 4 ? 4 : ROWS; /* the bucket */
  for (uint32_t i = 0; i < rows * (PROMPT + 1); i++)
    m->host->prompts[i] = i % (PROMPT + 1) == 0 ? 0 : ((uint32_t)before.runs + i) * 7919 % DECODE_VOCABULARY;
  lade_graph_value state = {.address = m->device->prompts, .bytes = rows * (PROMPT + 1) * 4};
  LADE(lade_copy_async(m->kernels.runtime, state.address, m->host->prompts, state.bytes, m->stream));
  state = step_run(m, state, rows, PROMPT, m->host->log[0]);
  for (int step = 1; step <= STEPS; step++) state = step_run(m, state, rows, 1, m->host->log[step]);
  LADE(lade_graph_buffer_release(m->tree, state.buffer)); /* the last one goes nowhere */
  LADE(lade_stream_synchronize(m->kernels.runtime, m->stream));
  for (uint32_t row = 0; row < size; row++) tokens_check(m, row);
  lade_graph_tree_stats now = {.struct_size = sizeof now};
  LADE(lade_graph_tree_stats_get(m->tree, &now));
#define MORE(field) (int)(now.field - before.field)
  printf("%u rows as %u: %d recordings, %d replays, %d bytes copied per step\n", size, rows, MORE(recordings),
         MORE(replays), (MORE(copied_bytes) + MORE(carried_bytes)) / (STEPS + 1));
  return now;
}

int main(int argc, char **argv) {
  static const uint32_t sizes[] = {3, 8, 1, 2, 4, 7, 1, 2, 5, 3, 1, 2, 8, 6};
  void *device, *host;
  lade_runtime *runtime;
  lade_pair *pair;
  model m;
  LADE(lade_runtime_open(argc > 1 ? argv[1] : NULL, NULL, &runtime));
  LADE(lade_pair_create(runtime, 0, NULL, &pair));
  LADE(lade_stream_create(runtime, 0, &m.stream));
  if (decode_kernels_open(runtime, &m.kernels) != LADE_OK) fail("decode_kernels_open", "the driver takes no kernels");
  LADE(lade_device_alloc(lade_pair_device_allocator(pair), sizeof *m.device, m.stream, &device));
  LADE(lade_pinned_alloc(lade_pair_pinned_pool(pair), sizeof *m.host, &host));
  m.device = device;
  m.host = host;
  for (uint32_t i = 0; i < DECODE_VOCABULARY; i++) m.host->table[i] = i * 2654435761u;
  LADE(lade_copy_async(runtime, m.device->table, m.host->table, sizeof m.host->table, m.stream));
  LADE(lade_graph_tree_create(lade_pair_device_allocator(pair), NULL, &m.tree));
  static const uint32_t flags[INPUTS] = {[TABLE] = LADE_GRAPH_STATIC, [CACHE] = LADE_GRAPH_STATIC | LADE_GRAPH_MUTATED};
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = &m;
  options.input_count = INPUTS;
  options.input_flags = flags;
  options.output_count = 1;
  options.name = "prefill";
  LADE(lade_graph_tree_function_add(m.tree, &options, &m.prefill));
  options.name = "decode";
  LADE(lade_graph_tree_function_add(m.tree, &options, &m.decode));
  lade_graph_tree_stats stats = {0};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) stats = batch_decode(&m, sizes[i], stats);
  if (stats.recordings != 2 * BUCKETS || stats.eager_runs != 0) fail("the tree", "it has recorded too often");
  LADE(lade_graph_tree_destroy(m.tree, true));
  LADE(lade_pinned_free(lade_pair_pinned_pool(pair), host));
  LADE(lade_device_free(lade_pair_device_allocator(pair), device));
  if (decode_kernels_close(&m.kernels) != LADE_OK) fail("decode_kernels_close", "the driver refused it");
  LADE(lade_pair_destroy(pair, true));
  LADE(lade_stream_destroy(runtime, m.stream));
  LADE(lade_runtime_close(runtime));
  return 0;
}
