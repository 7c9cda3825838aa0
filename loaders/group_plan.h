/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks that read and get each byte when a group loads a checkpoint. No file, device or group is touched. */
#ifndef LADE_LOADERS_GROUP_PLAN_H
#define LADE_LOADERS_GROUP_PLAN_H

#include "loaders/tensor_load.h"

/* How one piece of the load is spread: a rule, made definite. */
typedef struct ladei_loader_cut {
  int32_t spread; /* lade_load_spread */
  uint32_t dim;
  uint32_t owner;  /* RANK, BALANCE */
  uint32_t uneven; /* SLICE */
  /* SLICE: the tensor is `outer` rows of `size` units of `unit_bits` bits. */
  uint64_t outer, size, unit_bits;
} ladei_loader_cut;

/* The bytes that one rank reads and the others get in one operation of the group. */
typedef struct ladei_loader_part {
  size_t first,
      count;     /* pieces, by their place in the order: one that is scattered, or those of them that are broadcast */
  bool scatters; /* rows [begin, end) of the piece; or the memory from byte `begin` of the first piece on, ... */
  uint64_t begin, end; /* ... to byte `end` of the last one: of one that is cut; otherwise all of them */
  uint64_t bytes;      /* to read */
  uint32_t root;
} ladei_loader_part;

typedef struct ladei_loader_group_plan {
  uint32_t rank, size;
  uint64_t part_bytes;
  ladei_loader_cut *cuts; /* by piece */
  ladei_loader_part *parts;
  size_t part_count, part_capacity;
  uint64_t scatter_bytes; /* of the longest scattered part that this rank reads */
  size_t scatter_count;   /* of those */
  uint64_t *read_bytes;   /* by rank: all its reads */
} ladei_loader_group_plan;

/*
 * Plans the load of `load`, whose tensors are listed, for one rank, and sets the pieces' bytes, runs and carried. Parts
 * are the same on all ranks, in the same order; each round of `size` of them has each rank as root once at most.
 *
 * LADE_ERR_INVALID_ARGUMENT: a rule that does not fit its tensor; LADE_ERR_CALLBACK; LADE_ERR_OUT_OF_HOST_MEMORY. The
 * plan, also a partial one, is at load->plan in every case.
 */
lade_status ladei_loader_group_plan_make(lade_tensor_load *load, const lade_load_options *options, uint32_t rank,
                                         uint32_t size);
void ladei_loader_group_plan_free(ladei_loader_group_plan *plan);

/* Elements [*out_begin, *out_end) along the dimension that a rank gets of a sliced piece. */
void ladei_loader_cut_range(const ladei_loader_cut *cut, uint32_t rank, uint32_t size, uint64_t *out_begin,
                            uint64_t *out_end);
/* Bytes of one row of a sliced piece, all slices together. */
static inline uint64_t ladei_loader_cut_row(const ladei_loader_cut *cut) { return cut->size * cut->unit_bits / 8; }
/* Bytes of one row of a rank's slice, and from the row's beginning to it. */
uint64_t ladei_loader_cut_run(const ladei_loader_cut *cut, uint32_t rank, uint32_t size, uint64_t *out_before);

/* A checksum of all that ranks must agree about. */
uint64_t ladei_loader_group_plan_checksum(const lade_tensor_load *load, uint64_t alignment);
/* The same of the headers of all files: names, types, shapes, places, metadata, lengths; of URLs their versions, too. */
uint64_t ladei_loader_headers_checksum(const lade_safetensors *file);

#endif /* LADE_LOADERS_GROUP_PLAN_H */
