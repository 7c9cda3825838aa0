/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a transfer: opened with its submit, ended with it.
 *
 *   parts    a.bin 0..7 | b.bin 3..9 | a.bin 7..8 | memory
 *   files    a.bin ------------------> b.bin                     each once, however many parts name it
 *
 * I1  part->file is the file of every part that is one of a file or path, and is in ticket->files.
 * I2  The end of a transfer ends all its files, in the order in which they were first named. When the end of one fails,
 *     those after it end as those of a failed transfer.
 * Locks: none taken. ticket->files and parts are constant from the submit to the order FINISH.
 */
#include <string.h>

#include "base/error.h"
#include "pipeline/internal.h"

static bool same_name(const char *a, const char *b) { return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0); }

static bool same_file(const ladei_part *a, const lade_endpoint *host) {
  return a->file != NULL && a->host.kind == host->kind && a->host.fd == host->fd && a->host.flags == host->flags &&
         same_name(a->host.name, host->name);
}

/* The file of another part that is the same, NULL: none yet. Most transfers name one file after the other. */
static ladei_storage_file *file_find(const ladei_parts *parts, const ladei_part *part) {
  if (part > parts->list && same_file(part - 1, &part->host)) {
    return part[-1].file;
  }
  for (const ladei_part *other = parts->list; other < part; other++) {
    if (same_file(other, &part->host)) {
      return other->file;
    }
  }
  return NULL;
}

static lade_status file_add(lade_pipeline *pipeline, lade_ticket *ticket, const lade_endpoint *host,
                            ladei_storage_file ***end, ladei_storage_file **out) {
  ladei_storage_file *file;
  lade_status status = ladei_storage_attach(&pipeline->storage, host, !ticket->to_device, &file);
  if (status == LADE_OK) {
    **end = file;
    *end = &file->next;
    *out = file;
  }
  return status;
}

/* All parts are one range of one file. */
static bool is_one_range(const ladei_parts *parts) {
  const ladei_part *first = &parts->list[0];
  bool one = parts->count > 0 && first->file != NULL;
  for (size_t i = 1; i < parts->count && one; i++) {
    const ladei_part *part = &parts->list[i];
    one = part->file == first->file && part->host.offset == first->host.offset + part->begin;
  }
  return one;
}

/* Chunks that suit O_DIRECT, where all is one range; else that is for parts which begin with whole blocks. */
static void chunks_suit(lade_ticket *ticket) {
  ladei_core_transfer *transfer = &ticket->transfer;
  const ladei_parts *parts = &ticket->parts;
  if (is_one_range(parts)) {
    ladei_storage_file *file = parts->list[0].file;
    transfer->lead_bytes = ladei_storage_layout(file, parts->list[0].host.offset, parts->bytes, &transfer->chunk_bytes);
    transfer->unit_bytes = file->align;
    return;
  }
  for (size_t i = 0; i < parts->count; i++) {
    const ladei_part *part = &parts->list[i];
    if (part->file != NULL && (part->host.offset % part->file->align != 0 || part->begin % part->file->align != 0)) {
      ladei_storage_buffer(part->file);
    }
  }
}

/*
 * Note [GPUDirect Storage]
 * cuFile moves bytes between file and device memory while its caller waits: the host half of a chunk is then all of it,
 * there is no block, and no copy. To the device such a read knows nothing of streams, so a transfer that must run after
 * work on one is staged instead. To the host the order COPY still brings the stream's order: the write begins when the
 * event behind it has passed.
 */
static bool cufile_suits(const lade_ticket *ticket, const lade_transfer *request) {
  bool gated = request->after_stream != 0 || request->allocator != NULL;
  bool suits = ticket->parts.count > 0 && request->checksum == LADE_CHECKSUM_NONE && !(ticket->to_device && gated);
  for (size_t i = 0; i < ticket->parts.count && suits; i++) {
    const ladei_storage_file *file = ticket->parts.list[i].file;
    suits = file != NULL && file->cufile_handle != NULL;
  }
  return suits;
}

static void cufile_use(lade_ticket *ticket) {
  ladei_core_transfer *transfer = &ticket->transfer;
  ticket->cufile = true;
  transfer->unstaged = true;
  transfer->no_host = false;
  transfer->lead_bytes = 0;
  transfer->unit_bytes = ticket->parts.list[0].file->align;
}

lade_status ladei_files_attach(lade_pipeline *pipeline, lade_ticket *ticket, const lade_transfer *request) {
  const lade_endpoint *host = &request->host;
  ladei_storage_file **end = &ticket->files;
  ladei_storage_file *file;
  lade_status status = LADE_OK;
  if (ticket->parts.count == 0 && host->kind == LADE_ENDPOINT_PATH) {
    return file_add(pipeline, ticket, host, &end, &file); /* it may have to be created */
  }
  for (size_t i = 0; i < ticket->parts.count && status == LADE_OK; i++) {
    ladei_part *part = &ticket->parts.list[i];
    if (part->host.kind != LADE_ENDPOINT_FILE && part->host.kind != LADE_ENDPOINT_PATH) {
      continue;
    }
    part->file = file_find(&ticket->parts, part);
    if (part->file == NULL) {
      status = file_add(pipeline, ticket, &part->host, &end, &part->file);
    }
  }
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    (void)ladei_files_detach(ticket, false);
    ladei_error_restore(&first);
    return status;
  }
  chunks_suit(ticket);
  if (cufile_suits(ticket, request)) {
    cufile_use(ticket);
  }
  return LADE_OK;
}

lade_status ladei_files_detach(lade_ticket *ticket, bool good) {
  lade_status status = LADE_OK;
  lade_error first;
  ladei_storage_file *next;
  for (ladei_storage_file *file = ticket->files; file != NULL; file = next) {
    next = file->next;
    lade_status ended = ladei_storage_detach(file, good && status == LADE_OK);
    if (status == LADE_OK && ended != LADE_OK) {
      status = ended;
      ladei_error_save(&first);
    }
  }
  ticket->files = NULL;
  if (status != LADE_OK) {
    ladei_error_restore(&first);
  }
  return status;
}

void ladei_files_cancel_locked(lade_ticket *ticket) {
  for (ladei_storage_file *file = ticket->transfer.settled ? NULL : ticket->files; file != NULL; file = file->next) {
    ladei_storage_cancel(file);
  }
}
