/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of endpoints. pipeline/ accesses the host side of a piece through the table of the piece's kind:
 *
 *   submit        check, is_direct, open    of each piece
 *   READ, WRITE   move                      of each extent of a piece that is neither direct nor one of a file
 *   COPY          copy                      of each extent of a direct piece
 *   FINISH        files.h closes the opened files
 *
 * A new kind is a file kind_NAME.c with such a table, and a line in kinds.h.
 */
#ifndef LADE_PIPELINE_ENDPOINTS_ENDPOINT_H
#define LADE_PIPELINE_ENDPOINTS_ENDPOINT_H

#include "pipeline/state/pieces.h"

typedef struct ladei_pipe_copies ladei_pipe_copies;   /* copy.h */
typedef struct ladei_pipe_opening ladei_pipe_opening; /* files.h */

/* A transfer that is being submitted. */
typedef struct ladei_pipe_request {
  const lade_pipeline *pipeline;
  const lade_transfer *transfer;
  uint64_t index;                    /* of the piece that is looked at, in transfer->pieces */
  void *place;                       /* on the device, of the piece before, if that has no bytes; NULL: not given */
  uint64_t least_direct;             /* shorter pieces are staged */
  uint32_t number_bytes;             /* of numbers that are converted; else 1 */
  uint64_t pinned_begin, pinned_end; /* the pinned range found last: pieces often lie in the same */
} ladei_pipe_request;

struct ladei_pipe_endpoint_kind {
  uint32_t source_flags; /* lade_file_flags that it may have as a source, ... */
  uint32_t sink_flags;   /* ... and as a sink */
  bool calls;            /* moves bytes by a function of the program, which may take for ever */
  bool opens_empty;      /* opened, too, where it has no bytes */
  /* Refuses an unusable endpoint; flags are checked afterwards. LADE_ERR_INVALID_ARGUMENT, LADE_ERR_UNSUPPORTED. */
  lade_status (*check)(const ladei_pipe_request *request, const lade_endpoint *host, uint64_t bytes);
  /* Whether copies reach all of its memory without a staging block; sets the piece's reaches. NULL: they do not. */
  bool (*is_direct)(ladei_pipe_request *request, ladei_pipe_piece *piece);
  /* Opens its file, which the order FINISH ends. NULL: nothing. LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY. */
  lade_status (*open)(ladei_pipe_opening *opening, ladei_pipe_piece *piece);
  /* Moves all bytes of the extent into `buffer`, or out of it. NULL: `open` gives the piece a file. */
  lade_status (*move)(const ladei_pipe_extent *extent, char *buffer, bool reads);
  /* Queues the copies of the extent. NULL where is_direct is. */
  lade_status (*copy)(ladei_pipe_copies *copies, const ladei_pipe_extent *extent);
};

typedef struct ladei_pipe_field {
  char name[64];
} ladei_pipe_field;

/* The name of a field of the piece that is looked at, for messages: "transfer.pieces[7].host.fd". */
ladei_pipe_field ladei_pipe_field_of(const ladei_pipe_request *request, const char *name);

#endif /* LADE_PIPELINE_ENDPOINTS_ENDPOINT_H */
