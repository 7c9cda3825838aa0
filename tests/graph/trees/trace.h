/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of graph-tree traces, one item at a time (README.md). A function is one item, its body included.
 *
 *   trees_reader *reader = trees_reader_create(file, "decode.trees");
 *   trees_item item;
 *   while ((result = trees_read(reader, &item)) == READ_ITEM) { ... }
 *   if (result == READ_BAD) fprintf(stderr, "%s\n", trees_error(reader));     // "decode.trees:7: unknown operation ..."
 *
 * The reader checks what lines say by themselves, names, and bodies. The session checks what depends on runs: counts, integers,
 * memories that outputs mean, outputs of a run that failed.
 */
#ifndef LADE_TESTS_GRAPH_TREES_TRACE_H
#define LADE_TESTS_GRAPH_TREES_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/common/reader_frame.h"

enum { TREES_NAME_MAX = 32 };

/* Bytes of one memory. */
#define TREES_BYTES_MIN UINT64_C(8)
#define TREES_BYTES_MAX (UINT64_C(1) << 28)

typedef struct trees_options {
  uint64_t warmup;   /* 0 or 1 */
  uint64_t rerecord; /* 0 or 1 */
  uint64_t max_nodes;
  uint64_t max_rerecords;
} trees_options;

typedef enum trees_step_kind { TREES_ALLOC, TREES_FREE, TREES_DROP, TREES_MUTATE } trees_step_kind;

/* A statement of a body. */
typedef struct trees_step {
  trees_step_kind kind;
  size_t index;   /* of the local, or of the input */
  uint64_t bytes; /* TREES_ALLOC */
  bool times_key; /* TREES_ALLOC */
} trees_step;

typedef enum trees_output_kind { TREES_OUT_LOCAL, TREES_OUT_INPUT, TREES_OUT_INTEGER } trees_output_kind;

typedef struct trees_output {
  trees_output_kind kind;
  size_t index;     /* of the local, or of the input */
  uint64_t integer; /* TREES_OUT_INTEGER */
} trees_output;

/* Flags of an input. */
enum { TREES_STATIC = 1 << 0, TREES_MUTATED = 1 << 1 };

typedef enum trees_mode { TREES_INFERENCE, TREES_FORWARD, TREES_BACKWARD } trees_mode;

/* Lives as long as its reader. */
typedef struct trees_function {
  char name[TREES_NAME_MAX + 1];
  uint64_t number; /* functions count from 0 */
  trees_mode mode;
  uint32_t *flags; /* of each input */
  size_t input_count;
  trees_step *steps;
  size_t step_count;
  uint64_t *locals; /* numbers of the locals, in the order of their allocation */
  size_t local_count;
  trees_output *outputs;
  size_t output_count;
  uint64_t times_key_max; /* the largest size that is multiplied by the key; 0: none is */
} trees_function;

/* R.O */
typedef struct trees_reference {
  size_t run; /* runs count from 0 */
  size_t output;
} trees_reference;

typedef struct trees_argument {
  bool is_memory;
  bool taken;
  size_t memory; /* memories count from 0 */
  trees_reference output;
} trees_argument;

typedef enum trees_item_kind {
  TREES_TREE, /* options; the first item if it is there */
  TREES_MEMORY,
  TREES_FUNCTION,
  TREES_RUN,
  TREES_RELEASE,
  TREES_RETAIN,
  TREES_STEP,
  TREES_BACKWARD_DONE,
  TREES_FAIL,
  TREES_READ,
  TREES_SNAPSHOT,
  TREES_KIND_COUNT
} trees_item_kind;

typedef struct trees_item {
  trees_item_kind kind;
  uint64_t line; /* from 1 */
  trees_options options;
  const char *name; /* of a memory, a run, a snapshot; TREES_READ: the output as it is written. Until the next read */
  uint64_t bytes;   /* TREES_MEMORY */
  const trees_function *function;  /* TREES_FUNCTION, TREES_RUN */
  uint64_t key;                    /* TREES_RUN */
  bool automatic;                  /* TREES_RUN */
  const trees_argument *arguments; /* TREES_RUN: as many as the function has inputs; until the next read */
  trees_reference output;          /* TREES_RELEASE, TREES_RETAIN, TREES_READ */
  uint32_t fault;                  /* TREES_FAIL: what fails */
} trees_item;

typedef struct trees_reader trees_reader;

/* Borrows the file; copies the name, which error messages begin with. NULL when there is no memory. */
trees_reader *trees_reader_create(FILE *file, const char *name);
void trees_reader_destroy(trees_reader *reader);

/* The next item. READ_BAD, READ_FAILED: see trees_error(); every later read answers it again. */
read_result trees_read(trees_reader *reader, trees_item *out);

/* "FILE:LINE: what". */
const char *trees_error(const trees_reader *reader);

/* Where errors that only a run can see are noted. */
reader_frame *trees_frame(trees_reader *reader);

#endif /* LADE_TESTS_GRAPH_TREES_TRACE_H */
