/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One graph around existing stream code: a picture is copied to the device, set into a border in scratch memory, and copied back.
 * The code is called once, while its stream captures; from then on a launch does all of it. Another border is an update in place.
 * Pictures of more rows are other work: the graph is replaced under the same handle. A graph of another library is adopted.
 *
 * usage: graph_capture [RUNTIME]     cuda, cpu, sim; default: the best one found
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lade/device.h>
#include <lade/graph.h>
#include <lade/pinned.h>
#include <lade/runtime.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    lade_status try_status = (call);                                                                                   \
    if (try_status != LADE_OK) return try_status;                                                                      \
  } while (0)

enum { WIDTH = 256, ROWS_MOST = 8, EDGE = 16, FRAME = WIDTH + 2 * EDGE, PICTURES = 5 };

static _Noreturn void fail(const char *call, const char *reason) {
  fprintf(stderr, "%s: %s\n", call, reason);
  exit(1);
}

typedef struct job {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_pinned_pool *pinned;
  unsigned char *in, *out; /* pinned: rows of WIDTH, and of FRAME with the border */
  unsigned char border;
  int rows;
} job;

/* The existing code. It knows nothing of graphs: it allocates, queues and frees on its stream. */
static lade_status frame_set(lade_stream stream, void *user) {
  const job *j = user;
  size_t in_bytes = (size_t)j->rows * WIDTH, out_bytes = (size_t)j->rows * FRAME;
  void *picture, *frame;
  TRY(lade_device_alloc(j->allocator, in_bytes, stream, &picture));
  TRY(lade_device_alloc(j->allocator, out_bytes, stream, &frame));
  TRY(lade_copy_async(j->runtime, picture, j->in, in_bytes, stream));
  TRY(lade_fill_async(j->runtime, frame, j->border, out_bytes, stream));
  for (int row = 0; row < j->rows; row++)
    TRY(lade_copy_async(j->runtime, (char *)frame + row * FRAME + EDGE, (const char *)picture + row * WIDTH, WIDTH,
                        stream));
  TRY(lade_copy_async(j->runtime, j->out, frame, out_bytes, stream));
  TRY(lade_pinned_record_event(j->pinned, j->in, stream)); /* both stay in use as long as the graph may use them */
  TRY(lade_pinned_record_event(j->pinned, j->out, stream));
  TRY(lade_device_free(j->allocator, frame));
  return lade_device_free(j->allocator, picture);
}

static void expect_frame(const job *j, unsigned char pixel) {
  for (int at = 0; at < j->rows * FRAME; at++) {
    bool inside = at % FRAME >= EDGE && at % FRAME < EDGE + WIDTH;
    if (j->out[at] != (inside ? pixel : j->border)) fail("a frame", "it has a wrong byte");
  }
}

/* New pictures are new bytes at the same addresses. */
static void pictures_run(const job *j, lade_graph *graph, lade_stream stream) {
  for (int i = 0; i < PICTURES; i++) {
    unsigned char pixel = (unsigned char)(j->border + i + 1);
    memset(j->in, pixel, (size_t)j->rows * WIDTH);
    LADE(lade_graph_launch(graph, stream));
    LADE(lade_stream_synchronize(j->runtime, stream));
    expect_frame(j, pixel);
  }
}

/* A graph that is built elsewhere; here another one of lade's gives its handle. It uses memory of its pool, and stays its maker's. */
static void others_run(const job *j, lade_graph *maker, lade_stream stream) {
  void *native;
  lade_graph *adopted;
  lade_graph_info info;
  lade_graph_options options;
  lade_graph_info_init(&info);
  lade_graph_options_init(&options);
  options.flags = LADE_GRAPH_BORROW_NATIVE;
  LADE(lade_graph_info_get(maker, &info));
  LADE(lade_graph_native(maker, &native, NULL));
  LADE(lade_graph_adopt(j->allocator, info.pool, native, &options, &adopted));
  pictures_run(j, adopted, stream);
  LADE(lade_graph_update_native(adopted, info.pool, native, NULL)); /* when its maker has built it anew */
  pictures_run(j, adopted, stream);
  LADE(lade_graph_destroy(adopted, true));
}

/* Code that fails on its way: nothing is left of what it queued. */
static void capture_give_up(const job *j, const lade_graph_options *options) {
  lade_graph_capture_state *state;
  LADE(lade_graph_capture_begin(j->allocator, options, &state));
  LADE(lade_fill_async(j->runtime, j->out, 0, FRAME, options->stream));
  LADE(lade_graph_capture_abort(state));
}

int main(int argc, char **argv) {
  job j = {.border = 10, .rows = 4};
  lade_stream stream;
  lade_graph *graph;
  void *in, *out;
  LADE(lade_runtime_open(argc > 1 ? argv[1] : NULL, NULL, &j.runtime));
  LADE(lade_stream_create(j.runtime, 0, &stream));
  LADE(lade_device_allocator_create(j.runtime, 0, NULL, &j.allocator));
  LADE(lade_pinned_pool_create(j.runtime, NULL, &j.pinned));
  LADE(lade_pinned_alloc(j.pinned, ROWS_MOST * WIDTH, &in));
  LADE(lade_pinned_alloc(j.pinned, ROWS_MOST * FRAME, &out));
  j.in = in;
  j.out = out;

  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = stream;
  LADE(lade_graph_capture(j.allocator, &options, frame_set, &j, &graph));
  LADE(lade_graph_upload(graph, stream)); /* else the first launch does it */
  pictures_run(&j, graph, stream);

  bool in_place;
  j.border = 90; /* the same work with another value */
  LADE(lade_graph_update(graph, frame_set, &j, &in_place));
  printf("another border: %s\n", in_place ? "updated in place" : "replaced");
  pictures_run(&j, graph, stream);
  lade_graph_capture_state *state;
  j.rows = ROWS_MOST;                           /* more copies: another graph */
  LADE(lade_graph_update_begin(graph, &state)); /* for code that is no function */
  LADE(frame_set(stream, &j));
  LADE(lade_graph_capture_end(state, NULL));
  pictures_run(&j, graph, stream);
  capture_give_up(&j, &options);
  others_run(&j, graph, stream);

  lade_graph_info info;
  lade_graph_info_init(&info);
  LADE(lade_graph_info_get(graph, &info));
  printf("more rows: %s\n", info.replacements > 0 ? "replaced" : "updated in place");
  lade_device_pool_info pool;
  lade_device_pool_info_init(&pool);
  LADE(lade_device_pool_info_get(j.allocator, info.pool, &pool));
  printf("%llu nodes, launched %llu times, memory for all of it: %llu bytes\n", (unsigned long long)info.node_count,
         (unsigned long long)info.launches, (unsigned long long)pool.reserved_bytes);

  LADE(lade_graph_destroy(graph, true));
  LADE(lade_pinned_free(j.pinned, in));
  LADE(lade_pinned_free(j.pinned, out));
  LADE(lade_pinned_pool_destroy(j.pinned, true));
  LADE(lade_device_allocator_destroy(j.allocator, true));
  LADE(lade_stream_destroy(j.runtime, stream));
  LADE(lade_runtime_close(j.runtime));
  return 0;
}
