/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranges that a transfer consists of, and which of them a chunk covers.
 *
 *   transfer   0                                                  bytes
 *   parts      [ a.bin 0..7 ][ b.bin 3..9 ][ memory ][ c.bin ... ]        each with its own place on the device
 *   a chunk            [- span -|---- span ----|- span -]
 */
#ifndef LADE_PIPELINE_ENDPOINTS_PARTS_H
#define LADE_PIPELINE_ENDPOINTS_PARTS_H

#include "lade/pipeline.h"

struct ladei_storage_file;

typedef struct ladei_pipe_part {
  lade_endpoint host;
  struct ladei_storage_file *file; /* of a file or path, once it is attached */
  char *device;
  uint64_t begin; /* in the transfer */
  uint64_t bytes; /* not 0 */
  bool direct;    /* copies leave or reach host.memory itself: nothing to read or write */
  /* Of direct host memory: */
  uint64_t first_reach; /* bytes to the end of the pinned range that it begins in */
  uint64_t next_reach;  /* length of each further one, the last perhaps longer than what it holds; 0: there is none */
} ladei_pipe_part;

/* Constant while its transfer lives. */
typedef struct ladei_pipe_parts {
  ladei_pipe_part *list; /* in the order of `begin`, without gaps; &one for a single one */
  size_t count;
  ladei_pipe_part *empty; /* paths of which no byte is moved, yet which are opened, or created; behind the list */
  size_t empty_count;
  uint64_t bytes;
  bool calls; /* one of them is a callback */
  ladei_pipe_part one;
} ladei_pipe_parts;

/* A piece of a chunk that lies in one part. All zero: before the first. */
typedef struct ladei_pipe_span {
  const ladei_pipe_part *part;
  uint64_t offset; /* in the part */
  size_t at;       /* in the chunk */
  size_t bytes;
} ladei_pipe_span;

/*
 * Checks and copies what the transfer consists of, into zeroed `out`, which must stay where it is. On success
 * ladei_pipe_parts_free is due. LADE_ERR_INVALID_ARGUMENT names the field, LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_pipe_parts_make(const lade_transfer *request, ladei_pipe_parts *out);
void ladei_pipe_parts_free(ladei_pipe_parts *parts);

/* Gives parts without a place of their own one behind the other, from `device` on. */
void ladei_pipe_parts_place(ladei_pipe_parts *parts, void *device);

/* The next span of the chunk [offset, offset + bytes); false behind the last. */
bool ladei_pipe_parts_next(const ladei_pipe_parts *parts, uint64_t offset, size_t bytes, ladei_pipe_span *span);

#endif /* LADE_PIPELINE_ENDPOINTS_PARTS_H */
