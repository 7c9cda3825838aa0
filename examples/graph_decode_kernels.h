/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of graph_decode.c: PTX that the driver compiles for a GPU, the same as C functions for software devices. */
#ifndef EXAMPLES_GRAPH_DECODE_KERNELS_H
#define EXAMPLES_GRAPH_DECODE_KERNELS_H

#include <stdint.h>

#include <lade/runtime.h>

enum { DECODE_CONTEXT = 32, DECODE_VOCABULARY = 997 };

/* Arguments of both kernels. A row of `in` has its position in the cache and `count` tokens, a row of `out` position and token. */
typedef struct decode_work {
  const uint32_t *in, *table; /* table: a value for each token */
  uint32_t *cache, *scores, *out;
  uint32_t rows, count, context, vocabulary;
} decode_work;

/* attend puts the tokens' values into the cache; its scores are a hash of all that a row has there. choose makes tokens of them. */
typedef struct decode_kernels {
  lade_runtime *runtime;
  void *module, *attend, *choose; /* the driver's; NULL on software devices */
} decode_kernels;

/* On device 0; the calling thread then has its primary context. */
lade_status decode_kernels_open(lade_runtime *runtime, decode_kernels *out);
lade_status decode_kernels_close(decode_kernels *kernels);
/* Both, one after the other. The work is copied. */
lade_status decode_kernels_queue(const decode_kernels *kernels, lade_stream stream, const decode_work *work);

#endif
