/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scripted bodies of graph-tree traces: their work on the software device, and what it means.
 *
 * A memory holds one 64-bit value, repeated, little-endian; the last repetition may be cut. trees_hash() says which value follows
 * from which words. trees_body_run() queues the work of a body; trees_truth_run() does the same to numbers alone.
 */
#ifndef LADE_TESTS_GRAPH_TREES_BODY_H
#define LADE_TESTS_GRAPH_TREES_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/graph.h"
#include "tests/graph/trees/trace.h"

/* FNV-1a with 64 bits: of no words, and of words after others. */
#define TREES_HASH_BEGIN UINT64_C(14695981039346656037)
static inline uint64_t trees_hash(uint64_t hash, uint64_t word) {
  for (int i = 0; i < 8; i++) {
    hash ^= word >> (8 * i) & 0xff;
    hash *= UINT64_C(1099511628211);
  }
  return hash;
}

/* Fills memory with a value. */
void trees_memory_fill(void *at, uint64_t bytes, uint64_t value);
/* The first byte that is not as the value has it; `bytes`: all are. */
uint64_t trees_memory_compare(const void *at, uint64_t bytes, uint64_t value);
/* The value of a memory of TREES_BYTES_MIN bytes or more: its first eight. */
uint64_t trees_memory_value(const void *at);

/* One call of a body. */
typedef struct trees_call {
  lade_runtime *runtime;
  const trees_function *function;
  uint64_t key;
  lade_graph_value *inputs; /* room for the function's inputs */
  void **locals;            /* room for the function's locals */
  bool *dropped;            /* room for the function's inputs */
  bool begun;               /* the body was called, ... */
  lade_graph_stage stage;   /* ... for this, ... */
  size_t steps_done;        /* ... and came so far */
} trees_call;

/* Of a call that has no room yet; false: no memory. */
bool trees_call_create(trees_call *call, lade_runtime *runtime, const trees_function *function, uint64_t key);
void trees_call_destroy(trees_call *call);

/* The body, of the call that `user` points to. */
lade_status trees_body_run(lade_graph_context *context, void *user);

/* Bytes of a local. */
uint64_t trees_local_bytes(const trees_step *step, uint64_t key);

/* The first `steps` statements of the body, on values: inputs[i] points to the value of input i, `locals` has room for all. */
void trees_truth_run(const trees_function *function, uint64_t key, size_t steps, uint64_t *const *inputs, bool *dropped,
                     uint64_t *locals);

#endif /* LADE_TESTS_GRAPH_TREES_BODY_H */
