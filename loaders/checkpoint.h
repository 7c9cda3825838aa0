/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by opening, loading and saving of checkpoints. */
#ifndef LADE_LOADERS_CHECKPOINT_H
#define LADE_LOADERS_CHECKPOINT_H

#include "lade/safetensors.h"
#include "loaders/header.h"
#include "loaders/names.h"
#include "loaders/remote.h"
#include "pipeline/storage/open_files.h"

/* One file of a checkpoint. */
typedef struct ladei_loader_checkpoint_file {
  char *path;                   /* of a URL for messages alone */
  const char *name;             /* as the index names it, and the index's; NULL: there is none */
  char *url;                    /* NULL: it is none; otherwise ... */
  ladei_source_version version; /* ... all its bytes are of this one, and what follows up to `stamp` does not count */
  int fd;                       /* -1: by late_path, as too many are open; see Note [Open files] */
  char *late_path;              /* does not depend on the working directory; NULL: fd is open */
  ladei_pipe_file_identity identity;
  ladei_pipe_file_stamp stamp; /* before its header was read; of a URL its size */
  uint64_t data_offset;        /* of the first tensor byte */
  ladei_loader_header header;
} ladei_loader_checkpoint_file;

typedef struct ladei_loader_checkpoint_tensor {
  const ladei_loader_entry *entry;
  size_t file;
} ladei_loader_checkpoint_tensor;

/* Constant once it is open. */
struct lade_safetensors {
  ladei_loader_checkpoint_file *files;
  size_t file_count;
  ladei_loader_checkpoint_tensor *tensors; /* file by file, in the order of their bytes */
  size_t tensor_count;
  ladei_loader_names names; /* of the tensors */
  json_t *index;            /* NULL for a single file */
  size_t open_count;
};

/*
 * Opens a file of a checkpoint and reads its header; *file is reset, except path and name. `name` is looked up in the
 * open folder, or AT_FDCWD. The caller disposes of *file after a failure, too. As lade_safetensors_open().
 */
lade_status ladei_loader_checkpoint_file_read(int folder, const char *name, ladei_loader_checkpoint_file *file);
/* The same of an open object; takes its URL. */
lade_status ladei_loader_checkpoint_file_read_remote(const ladei_loader_remote *remote, char *url,
                                                     ladei_loader_checkpoint_file *file);
/* Whether the bytes read since then are of the file that was opened. LADE_ERR_IO: it was written to, or replaced. */
lade_status ladei_loader_checkpoint_file_recheck(const ladei_loader_checkpoint_file *file);
void ladei_loader_checkpoint_file_dispose(ladei_loader_checkpoint_file *file);
/* An index as JSON; json_decref() it. LADE_ERR_IO with *out_absent: there is no such file. */
lade_status ladei_loader_index_read(int folder, const char *name, json_t **out, bool *out_absent);
lade_status ladei_loader_index_read_remote(const ladei_loader_remote *remote, json_t **out);
/* The id of the save that wrote the index, or NULL. The index's. */
const char *ladei_loader_index_save_id(const json_t *index);

/* Transfers of one job, in the order of submission. */
typedef struct ladei_loader_ticket_list {
  lade_ticket **tickets;
  size_t count, capacity;
} ladei_loader_ticket_list;

/*
 * Submits a transfer and keeps its ticket. Where the pipeline has no room, waits for transfers of the
 * list first.
 */
lade_status ladei_loader_ticket_list_submit(ladei_loader_ticket_list *list, lade_pipeline *pipeline,
                                            const lade_transfer *transfer);
/* Waits for tickets [first, end), `timeout_ns` at most; the first error in order. */
lade_status ladei_loader_ticket_list_wait(const ladei_loader_ticket_list *list, size_t first, size_t end,
                                          lade_runtime *runtime, uint64_t timeout_ns);
/* The same of all, until their copies are over. */
lade_status ladei_loader_ticket_list_wait_copied(const ladei_loader_ticket_list *list, lade_runtime *runtime,
                                                 uint64_t timeout_ns);
/* LADE_NOT_READY while any is under way, otherwise the first error in order. */
lade_status ladei_loader_ticket_list_query(const ladei_loader_ticket_list *list, uint64_t *out_bytes_done);
/* Cancels tickets under way, waits for them and releases all. LADE_ERR_TIMEOUT, LADE_ERR_FORKED: the list stays. */
lade_status ladei_loader_ticket_list_end(ladei_loader_ticket_list *list);

#endif /* LADE_LOADERS_CHECKPOINT_H */
