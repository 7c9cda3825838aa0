/* SPDX-License-Identifier: Apache-2.0 */
/* One save, step by step: safetensors_save.c has model and invariants. */
#ifndef LADE_LOADERS_SAVE_H
#define LADE_LOADERS_SAVE_H

#include <stdatomic.h>

#include "base/save.h"
#include "loaders/checkpoint.h"
#include "loaders/generation.h"

typedef struct ladei_loader_remote_save ladei_loader_remote_save; /* save_remote.c */

typedef struct ladei_loader_saved_shard {
  const lade_tensor **tensors;
  ladei_loader_entry *entries;
  size_t count;
  char *name; /* of the file, without folder */
  ladei_save *file;
  uint64_t data_offset; /* of the first tensor byte in the file */
  size_t ticket_end;    /* its transfers are before it in save.tickets */
} ladei_loader_saved_shard;

typedef struct ladei_loader_save {
  const char *call; /* for messages */
  const char *path;
  const lade_load_target *targets;
  uint64_t target_count;
  const lade_tensor *tensors; /* their names and shapes are used until the save has begun */
  size_t tensor_count;
  lade_save_options options;
  uint64_t bytes;
  uint64_t device_bytes;    /* of these, not of host memory */
  uint64_t host_bytes;      /* written of host memory */
  uint64_t host_bytes_told; /* of these, at the last call of options.progress */
  ladei_loader_saved_shard *shards;
  size_t shard_count;
  size_t begun, written, finished;    /* shards, from the first on; written: what they have in host memory */
  size_t waited;                      /* tickets, from the first on */
  ladei_loader_generation generation; /* of several files */
  const lade_metadata *metadata;      /* of each file */
  size_t metadata_count;
  lade_metadata *own_metadata; /* after `metadata`, if it is not the caller's */
  int folder;                  /* the generation's, with several files; -1: not open */
  ladei_save *index;
  ladei_loader_ticket_list tickets; /* to objects: one of each target, over when its stream is as far as at the begin */
  bool stages;                      /* goes on by itself */
  ladei_loader_remote_save *remote; /* NULL: to files */
  atomic_bool cancelled;            /* by another thread */
} ladei_loader_save;

/* Checks the caller's request and divides it into files. `s` has call, path, targets, tensors and their counts, folder -1, and
 * nothing else; ladei_loader_save_dispose() after a failure, too. */
lade_status ladei_loader_save_plan(ladei_loader_save *s, const lade_save_options *options);
/* Begins the files and submits the transfers of device tensors. With more files than may be open, it finishes the first ones. */
lade_status ladei_loader_save_begin(ladei_loader_save *s);
/* Writes tensors in host memory, and waits until the copies of all others are over. LADE_ERR_TIMEOUT: call it again. */
lade_status ladei_loader_save_stage(ladei_loader_save *s, uint64_t timeout_ns);
/* Waits for the transfers, and names the files: afterwards the new checkpoint is in place. */
lade_status ladei_loader_save_commit(ladei_loader_save *s);
/* Ends it; not `good`: without a trace. */
void ladei_loader_save_dispose(ladei_loader_save *s, bool good);

/* Of a tensor that was checked. */
uint64_t ladei_loader_save_tensor_bytes(const lade_tensor *tensor);
/* The text of the index; the caller frees it. */
lade_status ladei_loader_save_index_text(const ladei_loader_save *s, char **out, size_t *out_bytes);
/* Copies from a device; none for no ranges. `after_stream`: after the work on its target's stream. */
lade_status ladei_loader_save_ranges_submit(const ladei_loader_save *s, ladei_loader_ticket_list *tickets,
                                            uint32_t target, const lade_piece *ranges, uint64_t count,
                                            bool after_stream);
/* LADE_ERR_CANCELLED: it was. */
lade_status ladei_loader_save_cancel_check(const ladei_loader_save *s);
/* The same, and tells progress. */
lade_status ladei_loader_save_look(ladei_loader_save *s);

#endif /* LADE_LOADERS_SAVE_H */
