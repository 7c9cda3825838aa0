/* SPDX-License-Identifier: Apache-2.0 */
/* Which records make up the batches, and how they lie in them. Touches no file and no device. */
#ifndef LADE_LOADERS_PLAN_H
#define LADE_LOADERS_PLAN_H

#include "loaders/index.h"
#include "loaders/permutation.h"

/* Shared by all batches. Constant after ladei_loader_plan_init. */
typedef struct ladei_loader_plan {
  const lade_record_index *index;
  lade_loader_options options; /* with all defaults put in; resume is not used any more */
  uint64_t share;              /* records of an epoch for this rank */
  ladei_loader_index_identity identity;
  uint64_t *strides; /* room of each field when padded, otherwise NULL */
  char *zeros;       /* enough for any gap (I4): ... */
  size_t zero_bytes; /* ... their number */
} ladei_loader_plan;

/* Where planning is. */
typedef struct ladei_loader_cursor {
  uint64_t epoch, position, batches;
  bool over; /* the last epoch is planned */
  ladei_permutation permutation;
  uint64_t permutation_epoch;
} ladei_loader_cursor;

/* One batch. Its arrays are used again by the next one that is planned into it. */
typedef struct ladei_loader_batch_plan {
  uint64_t number, epoch;
  uint64_t end_position; /* of the cursor after it, in its epoch */
  uint64_t count;
  uint64_t table_offset; /* where the tables begin, in bytes */
  uint64_t bytes;        /* tables included */
  uint64_t *records;     /* count */
  uint64_t *tables;      /* offsets, then lengths: fields * count each, field by field */
  size_t record_capacity, table_capacity;
} ladei_loader_batch_plan;

/* Checks the options and completes them. LADE_ERR_INVALID_ARGUMENT names the option. */
lade_status ladei_loader_plan_init(ladei_loader_plan *plan, const lade_record_index *index,
                                   const lade_loader_options *options);
void ladei_loader_plan_dispose(ladei_loader_plan *plan);

/* Where the options say that planning begins. LADE_ERR_INVALID_ARGUMENT if options.resume is of another order. */
lade_status ladei_loader_cursor_init(ladei_loader_cursor *cursor, const ladei_loader_plan *plan,
                                     const lade_loader_state *resume);

/* Plans the next batch. count 0: there is none, after an error or because the last epoch is over, and `out` has nothing
 * to submit. After LADE_ERR_OUT_OF_HOST_MEMORY the next call plans the same batch. */
lade_status ladei_loader_plan_next(const ladei_loader_plan *plan, ladei_loader_cursor *cursor,
                                   ladei_loader_batch_plan *out);
void ladei_loader_batch_plan_dispose(ladei_loader_batch_plan *batch);

/* Leaves records out of a batch, by place in it; the cursor's position after it stays. */
void ladei_loader_batch_leave_out(const ladei_loader_plan *plan, ladei_loader_batch_plan *batch, const bool *left_out);

static inline const uint64_t *ladei_loader_batch_offsets(const ladei_loader_batch_plan *batch) { return batch->tables; }
static inline const uint64_t *ladei_loader_batch_lengths(const ladei_loader_plan *plan,
                                                         const ladei_loader_batch_plan *batch) {
  return batch->tables + plan->index->field_count * batch->count;
}

/* The batch as ranges that follow each other, gaps and tables included. The caller frees them. LADE_ERR_IO where a file
 * that is not kept open was replaced. */
lade_status ladei_loader_plan_pieces(const ladei_loader_plan *plan, const ladei_loader_batch_plan *batch,
                                     lade_piece **out, uint64_t *out_count);

#endif /* LADE_LOADERS_PLAN_H */
