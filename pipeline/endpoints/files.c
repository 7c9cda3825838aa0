/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a transfer: opened with its submit, ended with it.
 *
 *   pieces   a.bin 0..7 | b.bin 3..9 | a.bin 7..8 | memory
 *   files    a.bin ------------------> b.bin                     each once, however many pieces name it
 *
 * I1  piece->file of a piece in a file is in ticket->files; also of pieces without bytes, whose files may have to be
 *     created.
 * I2  The end of a transfer ends all its files, in the order in which they were first named. Atomic files get their
 *     names when all are flushed and closed; if one cannot get its name, those before it have theirs and keep them, and
 *     those after it end as those of a failed transfer.
 * Locks: none taken. ticket->files and pieces are constant from the submit to the order FINISH.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/size.h"
#include "pipeline/endpoints/files.h"

/* Files of the transfer so far, each at a place that follows from its source. */
typedef struct file_table {
  ladei_pipe_storage_file **places; /* twice as many as there are pieces, at least: NULL for most */
  size_t mask;
} file_table;

struct ladei_pipe_opening {
  lade_pipeline *pipeline;
  lade_ticket *ticket;
  ladei_pipe_storage_file *last; /* of the piece before: that of the next one, mostly. NULL: none has a file */
  file_table table;              /* of all files; places NULL: there is none but `last` */
  ladei_pipe_storage_file **end; /* of the ticket's list */
};

static bool same_source(const ladei_pipe_storage_source *a, const ladei_pipe_storage_source *b) {
  return a->by_path == b->by_path && a->by_url == b->by_url && a->fd == b->fd && a->flags == b->flags &&
         a->version == b->version && (a->name == b->name || strcmp(a->name, b->name) == 0);
}

/* Of sources that same_source() holds for the same. Names of descriptors are often the same. */
static uint64_t source_hash(const ladei_pipe_storage_source *source) {
  static const uint64_t prime = UINT64_C(0x100000001b3); /* FNV-1a */
  uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ (uint64_t)(uint32_t)source->fd;
  for (const char *at = source->by_path || source->by_url ? source->name : ""; *at != '\0'; at++)
    hash = (hash ^ (unsigned char)*at) * prime;
  hash *= prime;
  return hash ^ hash >> 32;
}

/* Where the table has the file, or has room for it. */
static ladei_pipe_storage_file **table_find(const file_table *table, const ladei_pipe_storage_source *source) {
  size_t place = source_hash(source) & table->mask;
  while (table->places[place] != NULL && !same_source(&table->places[place]->source, source))
    place = (place + 1) & table->mask;
  return &table->places[place];
}

/* The second file: from now on there is a table, which has room for one of each piece. */
static lade_status table_begin(ladei_pipe_opening *opening) {
  const ladei_pipe_pieces *pieces = &opening->ticket->pieces;
  file_table *table = &opening->table;
  size_t places = 4;
  while (places < 2 * (pieces->count + pieces->empty_count)) places *= 2;
  table->places = calloc(places, sizeof *table->places);
  if (table->places == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for files");
  table->mask = places - 1;
  *table_find(table, &opening->last->source) = opening->last;
  return LADE_OK;
}

lade_status ladei_pipe_file_open(ladei_pipe_opening *opening, const ladei_pipe_storage_source *source,
                                 ladei_pipe_storage_file **out) {
  ladei_pipe_storage_file *first = NULL, **place = &first;
  if (opening->last != NULL && same_source(&opening->last->source, source)) {
    *out = opening->last;
    return LADE_OK;
  }
  if (opening->last != NULL && opening->table.places == NULL) LADEI_TRY(table_begin(opening));
  if (opening->last != NULL) place = table_find(&opening->table, source);
  if (*place == NULL) {
    LADEI_TRY(ladei_pipe_storage_file_open(&opening->pipeline->storage, source, !opening->ticket->to_device, place));
    *opening->end = *place;
    opening->end = &(*place)->next;
  }
  *out = opening->last = *place;
  return LADE_OK;
}

/* All pieces are one range of one file. */
static bool is_one_range(const ladei_pipe_pieces *pieces) {
  const ladei_pipe_piece *first = &pieces->list[0];
  bool one = pieces->count > 0 && first->file != NULL;
  for (size_t i = 1; i < pieces->count && one; i++) {
    const ladei_pipe_piece *piece = &pieces->list[i];
    one = piece->file == first->file && piece->host.offset == first->host.offset + piece->begin;
  }
  return one;
}

/* Chunks that suit O_DIRECT, if all is one range; otherwise pieces that begin with whole blocks use it. */
static void chunks_suit(lade_ticket *ticket) {
  ladei_pipe_core_transfer *transfer = &ticket->transfer;
  const ladei_pipe_pieces *pieces = &ticket->pieces;
  if (is_one_range(pieces)) {
    ladei_pipe_storage_file *file = pieces->list[0].file;
    transfer->lead_bytes =
        ladei_pipe_storage_file_layout(file, pieces->list[0].host.offset, pieces->bytes, &transfer->chunk_bytes);
    transfer->unit_bytes = file->align;
    return;
  }
  for (size_t i = 0; i < pieces->count; i++) {
    const ladei_pipe_piece *piece = &pieces->list[i];
    if (piece->file != NULL && (piece->host.offset % piece->file->align != 0 || piece->begin % piece->file->align != 0))
      ladei_pipe_storage_file_set_buffered(piece->file);
  }
}

/*
 * Note [GPUDirect Storage]
 * cuFile moves bytes between file and device memory while its caller waits: the host half of a chunk is then all of it,
 * without a block or a copy. To the device such a read knows nothing of streams: in a transfer that must run after work
 * on a stream it begins when that work is over, which is asked again and again. To the host the order COPY still brings
 * the stream's order: the write begins when the event after that work has passed.
 */
static bool cufile_suits(const lade_ticket *ticket, const lade_transfer *request) {
  bool suits = ticket->pieces.count > 0 && request->checksum == LADE_CHECKSUM_NONE && ticket->pieces.host_dtype == 0;
  for (size_t i = 0; i < ticket->pieces.count && suits; i++) {
    const ladei_pipe_storage_file *file = ticket->pieces.list[i].file;
    suits = file != NULL && file->cufile_handle != NULL;
  }
  return suits;
}

static void straight_use(lade_ticket *ticket) {
  ladei_pipe_core_transfer *transfer = &ticket->transfer;
  ticket->straight = true;
  transfer->unstaged = true;
  transfer->no_host = false;
  transfer->read_arrives = ticket->to_device;
  transfer->lead_bytes = 0;
}

static void cufile_use(lade_ticket *ticket) {
  ladei_pipe_core_transfer *transfer = &ticket->transfer;
  straight_use(ticket);
  transfer->unit_bytes = ticket->pieces.list[0].file->align;
}

/*
 * Note [Memory that the host writes]
 * Where host and device memory are one, bytes of files and of pageable memory need no block: they are read and copied to where the device
 * has them, as by cuFile. Pinned sources stay copies of the device, and what has a checksum or is converted, called for or fetched by
 * a request is staged.
 */
static bool is_written(const lade_pipeline *pipeline, const ladei_pipe_piece *piece) {
  const ladei_pipe_storage_file *file = piece->file;
  bool any_bytes = file != NULL && (file->fd >= 0 || file->direct_fd < 0); /* not whole blocks of the file alone */
  bool moves = file != NULL ? file->object == NULL && any_bytes : piece->host.kind == LADE_ENDPOINT_MEMORY;
  return moves && !piece->direct &&
         ladei_unified_is_written(pipeline->runtime, &pipeline->unified, piece->device, piece->bytes);
}

void ladei_pipe_files_write_through(const lade_pipeline *pipeline, lade_ticket *ticket, const lade_transfer *request) {
  bool all = pipeline->unified.writes_pinned && ticket->to_device && !ticket->straight && ticket->pieces.count > 0 &&
             request->checksum == LADE_CHECKSUM_NONE && ticket->pieces.host_dtype == 0;
  for (size_t i = 0; i < ticket->pieces.count && all; i++) all = is_written(pipeline, &ticket->pieces.list[i]);
  if (!all) return;
  straight_use(ticket);
  ticket->written = true;
}

static lade_status pieces_open(ladei_pipe_opening *opening, ladei_pipe_piece *list, size_t count) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++)
    if (list[i].kind->open != NULL) status = list[i].kind->open(opening, &list[i]);
  return status;
}

static void range_note(ladei_pipe_storage_file *file, uint64_t begin, uint64_t bytes) {
  if (file->range_bytes == 0 || begin < file->begin) file->begin = begin;
  if (begin + bytes > file->end) file->end = begin + bytes;
  file->range_bytes += bytes;
}

/* The bytes between the ranges stay a hole: ranges with less than all bytes from the first to the last have gaps. If a
 * range without bytes lies after all others the file ends there. */
static void files_preallocate(const lade_ticket *ticket) {
  if (ticket->to_device) return;
  for (size_t i = 0; i < ticket->pieces.count; i++) {
    const ladei_pipe_piece *piece = &ticket->pieces.list[i];
    if (piece->file != NULL) range_note(piece->file, piece->host.offset, piece->bytes);
  }
  for (ladei_pipe_storage_file *file = ticket->files; file != NULL; file = file->next)
    if (file->range_bytes >= file->end - file->begin) ladei_pipe_storage_file_preallocate(file, file->begin, file->end);
  for (size_t i = 0; i < ticket->pieces.empty_count; i++) {
    const ladei_pipe_piece *piece = &ticket->pieces.empty[i];
    piece->file->end = ladei_size_max(piece->file->end, piece->host.offset);
  }
}

/* Of the file: the same for all of its descriptors. 0: not known; as for two files of one number, fewer write then. */
static uint64_t sink_number(const struct stat *facts) {
  return (((uint64_t)facts->st_dev << 40) ^ (uint64_t)facts->st_ino) | UINT64_C(1) << 63;
}

static bool file_stat(const ladei_pipe_storage_file *file, struct stat *out) {
  return file->fd >= 0 && fstat(file->fd, out) == 0;
}

/* Note [Writers] in pipeline/core/adapt.c. Threads and chunks that the program chose are used as they are. */
static void write_place_find(const lade_pipeline *pipeline, lade_ticket *ticket) {
  struct stat facts = {.st_dev = 0};
  unsigned files = 0;
  if (ticket->to_device || ticket->straight || !pipeline->readers_chosen || !pipeline->driver->threads) return;
  for (const ladei_pipe_storage_file *file = ticket->files; file != NULL; file = file->next) {
    bool buffered = file->direct_fd < 0 || file->direct_off;
    if (!buffered || file->async) return;
    files++;
  }
  if (files == 0) return;
  bool known = file_stat(ticket->files, &facts);
  if (pipeline->chunk_adapts)
    ticket->transfer.chunk_bytes = ladei_size_min(ticket->transfer.chunk_bytes, LADEI_PIPE_CHUNK_TO_FILE);
  ticket->write_place = (ladei_pipe_write_place){
      .number = ((uint64_t)facts.st_dev << 20) ^ files, .files = files, .most = pipeline->options.readers};
  ticket->transfer.sink = known && files == 1 ? sink_number(&facts) : 0;
}

lade_status ladei_pipe_files_open(lade_pipeline *pipeline, lade_ticket *ticket, const lade_transfer *request) {
  ladei_pipe_pieces *pieces = &ticket->pieces;
  ladei_pipe_opening opening = {.pipeline = pipeline, .ticket = ticket, .end = &ticket->files};
  lade_status status = pieces_open(&opening, pieces->list, pieces->count);
  if (status == LADE_OK) status = pieces_open(&opening, pieces->empty, pieces->empty_count);
  free(opening.table.places);
  if (status != LADE_OK) {
    LADEI_ASIDE((void)ladei_pipe_files_close(ticket, false));
    return status;
  }
  for (const ladei_pipe_storage_file *file = ticket->files; file != NULL; file = file->next)
    ticket->transfer.remote = ticket->transfer.remote || file->object != NULL;
  for (ladei_pipe_storage_file *file = ticket->files; file != NULL; file = file->next)
    file->drops =
        ticket->to_device && pipeline->unified.memory_is_systems && (file->source.flags & LADE_FILE_CACHED) == 0;
  chunks_suit(ticket);
  if (cufile_suits(ticket, request)) cufile_use(ticket);
  write_place_find(pipeline, ticket);
  files_preallocate(ticket);
  return LADE_OK;
}

static size_t saves_count(const lade_ticket *ticket) {
  size_t count = 0;
  for (const ladei_pipe_storage_file *file = ticket->files; file != NULL; file = file->next)
    count += file->save != NULL ? 1 : 0;
  return count;
}

static lade_status files_finish(const lade_ticket *ticket) {
  lade_status status = LADE_OK;
  for (ladei_pipe_storage_file *file = ticket->files; file != NULL && status == LADE_OK; file = file->next)
    status = ladei_pipe_storage_file_finish(file);
  return status;
}

/* One renaming after the other; where one fails, the error says how many files are new. */
static lade_status files_name(const lade_ticket *ticket) {
  lade_status status = LADE_OK;
  size_t named = 0;
  for (ladei_pipe_storage_file *file = ticket->files; file != NULL && status == LADE_OK; file = file->next) {
    status = ladei_pipe_storage_file_rename(file);
    named += status == LADE_OK && file->save != NULL ? 1 : 0;
  }
  if (status != LADE_OK && saves_count(ticket) > 1) {
    return ladei_error_prefix(status, "the first %zu of %zu files are new, the others as they were: ", named,
                              saves_count(ticket));
  }
  return status;
}

lade_status ladei_pipe_files_close(lade_ticket *ticket, bool good) {
  lade_error first;
  ladei_pipe_storage_file *next;
  lade_status status = good ? files_finish(ticket) : LADE_OK;
  if (good && status == LADE_OK) status = files_name(ticket);
  ladei_error_save(&first);
  for (ladei_pipe_storage_file *file = ticket->files; file != NULL; file = next) {
    next = file->next;
    lade_status ended = ladei_pipe_storage_file_close(file);
    if (good && status == LADE_OK && ended != LADE_OK) {
      status = ended;
      ladei_error_save(&first);
    }
  }
  ticket->files = NULL;
  if (status != LADE_OK) ladei_error_restore(&first);
  return status;
}

void ladei_pipe_files_cancel_locked(lade_ticket *ticket) {
  ladei_lock_assert_held(&ticket->pipeline->lock);
  for (ladei_pipe_storage_file *file = ticket->transfer.settled ? NULL : ticket->files; file != NULL; file = file->next)
    ladei_pipe_storage_file_cancel(file);
}
