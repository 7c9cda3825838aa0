/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranges that a transfer consists of, and which of them a chunk covers.
 *
 *   transfer   0                                                  bytes
 *   pieces     [ a.bin 0..7 ][ b.bin 3..9 ][ memory ][ c.bin ... ]        each with its own place on the device
 *   a chunk           [ extent |----- extent ----|- extent -]
 */
#ifndef LADE_PIPELINE_STATE_PIECES_H
#define LADE_PIPELINE_STATE_PIECES_H

#include "lade/pipeline.h"

struct ladei_pipe_storage_file;
typedef struct ladei_pipe_endpoint_kind ladei_pipe_endpoint_kind; /* endpoints/endpoint.h */

typedef struct ladei_pipe_piece {
  lade_endpoint host;
  const ladei_pipe_endpoint_kind *kind; /* of `host` */
  struct ladei_pipe_storage_file *file; /* that `host` is a range of, once it is open; NULL: of none */
  char *device;
  uint64_t begin; /* in the transfer */
  uint64_t bytes; /* not 0 */
  bool direct;    /* copies leave or reach host.memory itself: nothing to read or write */
  /* Of direct host memory: */
  uint64_t first_reach; /* bytes to the end of the pinned range that it begins in */
  uint64_t next_reach;  /* length of each further one, the last perhaps longer than its bytes; 0: there is none */
} ladei_pipe_piece;

/* Constant while its transfer lives. */
typedef struct ladei_pipe_pieces {
  ladei_pipe_piece *list; /* in the order of `begin`, without gaps; &one for a single one */
  size_t count;
  ladei_pipe_piece *empty; /* without bytes, yet opened, or created; after the list */
  size_t empty_count;
  uint64_t bytes;
  size_t direct;                    /* of the list, those that are copied from where they are, or to there */
  int32_t host_dtype, device_dtype; /* lade_dtype of numbers that the copies convert; 0: bytes, copied as they are */
  uint32_t host_unit, device_unit;  /* bytes of a number at each end; of bytes 1 */
  bool calls;                       /* one of them is moved by a function of the program, ... */
  bool ordered;                     /* ... one that is called in order, a call at a time */
  ladei_pipe_piece one;
} ladei_pipe_pieces;

/* The bytes of a chunk that lie in one piece. All zero: before the first. */
typedef struct ladei_pipe_extent {
  const ladei_pipe_piece *piece;
  uint64_t offset; /* in the piece */
  char *device;    /* of its first byte */
  size_t at;       /* in the chunk */
  size_t bytes;
} ladei_pipe_extent;

/* Size on the device of `bytes` of the host. All other sizes and offsets of a transfer are the host's. */
static inline uint64_t ladei_pipe_device_bytes(const ladei_pipe_pieces *pieces, uint64_t bytes) {
  return pieces->host_dtype == 0 ? bytes : bytes / pieces->host_unit * pieces->device_unit;
}

void ladei_pipe_pieces_free(ladei_pipe_pieces *pieces);

/* Places pieces without a place of their own one after the other, from `device` on. */
void ladei_pipe_pieces_place(ladei_pipe_pieces *pieces, void *device);

/* The next extent of the chunk [offset, offset + bytes); false after the last. */
bool ladei_pipe_pieces_next(const ladei_pipe_pieces *pieces, uint64_t offset, size_t bytes, ladei_pipe_extent *extent);

#endif /* LADE_PIPELINE_STATE_PIECES_H */
