/* SPDX-License-Identifier: Apache-2.0 */
/* A load of tensors and the steps of which it is made, for the process alone and for groups. */
#ifndef LADE_LOADERS_TENSOR_LOAD_H
#define LADE_LOADERS_TENSOR_LOAD_H

#include <stdatomic.h>

#include "loaders/checkpoint.h"

#define LADEI_LOADER_NO_TICKET SIZE_MAX

/* One tensor of a load, or the slice of it that this process gets. */
typedef struct ladei_loader_piece {
  size_t tensor; /* number in the checkpoint */
  size_t ticket;
  lade_load_part part; /* of the tensor, of options.parts, `dim` not negative; begin and end 0: whole */
  int32_t dtype;       /* lade_dtype in memory, where it is converted on the way; 0: as in the file */
  uint32_t target;
  bool carried;         /* by a group: no transfer of its own; ... */
  bool broadcast;       /* ... all of it to all ranks: such pieces lie together in memory, so that many go at once */
  uint64_t bytes;       /* of the file; ladei_loader_piece_memory_bytes() in memory */
  uint64_t begin;       /* of its first byte, in the tensor */
  uint64_t runs;        /* of run_bytes each, which lie side by side in memory, and in the file ... */
  uint64_t run_bytes;   /* */
  uint64_t run_stride;  /* ... so far from each other */
  size_t offset;        /* in the segment of its target */
  uint64_t ready_bytes; /* of its transfer, when it is there */
  char *memory;
} ladei_loader_piece;

typedef struct ladei_loader_segment {
  void *memory;
  uint32_t target;
} ladei_loader_segment;

struct ladei_loader_group_plan;

struct lade_tensor_load {
  const lade_safetensors *file;
  lade_load_target *targets;
  size_t target_count;
  ladei_loader_piece *pieces;
  size_t piece_count;
  size_t *order; /* numbers of pieces by tensor, that is by place in the files */
  ladei_loader_segment *segments;
  size_t segment_count;
  ladei_loader_ticket_list tickets;
  uint64_t bytes;
  bool per_tensor;
  uint32_t file_flags;                  /* lade_file_flags: of all files, or ... */
  bool *file_direct;                    /* ... by number, whether it is read past the page cache; NULL: not chosen */
  uint64_t direct_bytes, cached_bytes;  /* as in lade_load_info */
  atomic_bool intact;                   /* all is there, and of the files that were opened */
  struct ladei_loader_group_plan *plan; /* NULL: without a group */
  uint64_t arrived_bytes;               /* with a group: all that this rank has; its tickets are over and gone */
  uint64_t transfers;                   /* ... and their number */
};

/* Names the call in messages. */
extern const char ladei_loader_load_call[];

lade_status ladei_loader_load_memory_error(void);

/* Bytes of a piece in memory. */
uint64_t ladei_loader_piece_memory_bytes(const lade_tensor_load *load, const ladei_loader_piece *p);
/* Lists the tensors with the options' part, type and target, otherwise the first one, and orders them. */
lade_status ladei_loader_load_list(lade_tensor_load *load, const lade_load_options *options);
/* Chooses for each file whether it is read past the page cache. */
lade_status ladei_loader_load_choose(lade_tensor_load *load);
/* Allocates the memory of all pieces, whose bytes are known, or takes the caller's. */
lade_status ladei_loader_load_alloc(lade_tensor_load *load, const lade_load_options *options);
/* Whether two pieces are one range of a file, at the end of the first and the beginning of the second. */
bool ladei_loader_piece_adjoins(const lade_tensor_load *load, const ladei_loader_piece *before,
                                const ladei_loader_piece *p);
/* The bytes of a tensor from `at` on, in their file. One that is not kept open must still be there, and the same. */
lade_status ladei_loader_load_endpoint(const lade_tensor_load *load, size_t tensor, uint64_t at, lade_endpoint *out);

/* Transfers of pieces with transfers of their own, of one target, in the order of the file. Make it all zero, except
 * `target` and `priority`. */
typedef struct ladei_loader_submission {
  uint32_t target;
  int32_t priority;
  size_t next;        /* place in the order */
  uint64_t bytes;     /* of pieces taken */
  lade_piece *ranges; /* room for the longest transfer; free() it in the end */
  size_t range_count;
  uint64_t range_bytes;
  const ladei_loader_piece *last;
  uint64_t limit;
} ladei_loader_submission;

/* Submits pieces until `bytes` of them are submitted, or all; a started transfer's rest goes only when all are. */
lade_status ladei_loader_load_submit(lade_tensor_load *load, ladei_loader_submission *s, uint64_t bytes);

/* Checks that the files read are still those that were opened, after the last read. */
lade_status ladei_loader_load_recheck(lade_tensor_load *load);

void ladei_loader_load_memory_free(lade_tensor_load *load);

#endif /* LADE_LOADERS_TENSOR_LOAD_H */
