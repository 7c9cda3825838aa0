/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph tree on a software device, and functions whose bodies are scripts.
 *
 *   graph_fixture f;
 *   if (!graph_fixture_open(&f, "sim", NULL)) return;
 *   graph_script script = {{{GRAPH_ALLOC, 0, 1 << 20}, {GRAPH_FILL, 0, 7}, {GRAPH_OUT_LOCAL, 0}}};
 *   lade_graph_function *function = graph_fixture_function(&f, &script, 0, NULL, 1);
 *   lade_graph_value out;
 *   graph_fixture_run(&f, function, NULL, 0, &out);                 // LADE_EXPECT_OKs
 *   graph_fixture_expect(&f, &out, 7);                              // its bytes
 *   graph_fixture_close(&f);                                        // no buffer is valid any more
 */
#ifndef LADE_TESTS_GRAPH_FIXTURE_H
#define LADE_TESTS_GRAPH_FIXTURE_H

#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/support/runtimes.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

typedef enum graph_step_kind {
  GRAPH_END,         /* of the script */
  GRAPH_ALLOC,       /* local a, of b bytes */
  GRAPH_FREE,        /* local a */
  GRAPH_DROP,        /* input a */
  GRAPH_FILL,        /* local a with byte b */
  GRAPH_FILL_INPUT,  /* input a with byte b */
  GRAPH_COPY,        /* input a to local b, as many bytes as the shorter one has */
  GRAPH_OUT_LOCAL,   /* the next output is local a */
  GRAPH_OUT_PART,    /* the next output is the upper half of local a */
  GRAPH_OUT_INPUT,   /* ... input a */
  GRAPH_OUT_INTEGER, /* ... the number a */
  GRAPH_OUT_ADDRESS, /* ... memory at address a, of b bytes */
  GRAPH_FAIL,        /* return status a */
  GRAPH_CALL,        /* call script->call(context, a) */
} graph_step_kind;

typedef struct graph_script_step {
  graph_step_kind kind;
  uint64_t a, b;
} graph_script_step;

enum { GRAPH_SCRIPT_STEPS = 24, GRAPH_SCRIPT_LOCALS = 16, GRAPH_RECORD_LISTS = 80 };

typedef struct graph_fixture graph_fixture;

typedef struct graph_script {
  graph_script_step steps[GRAPH_SCRIPT_STEPS];
  lade_status (*call)(graph_fixture *f, lade_graph_context *context, uint64_t a);
  graph_fixture *fixture;
  size_t calls; /* of the body so far */
} graph_script;

/* The last run, its lists copied. */
typedef struct graph_last {
  lade_graph_run_record record;
  uint32_t why[GRAPH_RECORD_LISTS], carried[GRAPH_RECORD_LISTS], classes[GRAPH_RECORD_LISTS], kinds[GRAPH_RECORD_LISTS];
  lade_graph_lost lost[GRAPH_RECORD_LISTS];
  size_t told;
} graph_last;

struct graph_fixture {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_graph_tree *tree;
  lade_stream streams[2];
  graph_last last;
};

bool graph_fixture_open(graph_fixture *f, const char *runtime, const lade_graph_tree_options *options);
/* With an allocator of these options. */
bool graph_fixture_open_device(graph_fixture *f, const char *runtime, const lade_graph_tree_options *options,
                               const lade_device_options *device);
/* Releases nothing: fails the test where buffers are valid. Also checks that the device found nothing. */
void graph_fixture_close(graph_fixture *f);

lade_graph_function *graph_fixture_function(graph_fixture *f, graph_script *script, size_t inputs,
                                            const uint32_t *flags, size_t outputs);
lade_graph_function *graph_fixture_function_mode(graph_fixture *f, graph_script *script, size_t inputs,
                                                 const uint32_t *flags, size_t outputs, lade_graph_mode mode);
/* On stream 0, with key {1}. */
lade_status graph_fixture_call(graph_fixture *f, lade_graph_function *function, const lade_graph_value *inputs,
                               size_t count, lade_graph_value *outputs);
lade_status graph_fixture_call_with(graph_fixture *f, lade_graph_function *function, const lade_graph_call *call,
                                    lade_graph_value *outputs);
/* The same, which must succeed, and do so. */
void graph_fixture_run(graph_fixture *f, lade_graph_function *function, const lade_graph_value *inputs, size_t count,
                       lade_graph_value *outputs, lade_graph_did did);
void graph_fixture_step(graph_fixture *f);
void graph_fixture_release(graph_fixture *f, lade_graph_value value);
bool graph_fixture_valid(graph_fixture *f, lade_graph_value value);
/* All bytes of the value are `byte`, once stream 0 has finished. */
void graph_fixture_expect(graph_fixture *f, const lade_graph_value *value, unsigned char byte);
lade_graph_state graph_fixture_state(graph_fixture *f);
lade_graph_tree_stats graph_fixture_stats(graph_fixture *f);
lade_device_pool_id graph_fixture_pool(graph_fixture *f);
/* The program's own memory, filled. */
lade_graph_value graph_fixture_memory(graph_fixture *f, size_t bytes, unsigned char byte);
void graph_fixture_memory_free(graph_fixture *f, lade_graph_value memory);
lade_graph_value graph_taken(lade_graph_value value);

#endif /* LADE_TESTS_GRAPH_FIXTURE_H */
