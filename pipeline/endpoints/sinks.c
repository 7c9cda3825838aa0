/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths of a transfer to the host that name one file.
 *
 *   pieces     out.bin 0..7 | ./out.bin 7..9 | out.bin 9..12
 *   sinks      out.bin ------------------------------------> ./out.bin      one for each spelling
 *   files      folder 17, "out.bin"                                         one: refused if a sink is atomic
 *
 * A file with LADE_FILE_ATOMIC is a new one each time that it is opened, and the last one renamed stays. So other bytes
 * of the transfer for that name would be lost.
 *
 * I1  Pieces of one spelling have the same flags if any of them is atomic, so they share one open file (files.c).
 * I2  Two spellings mean the same file if they have the same folder (device and inode) and the same last component. A
 *     sink written in place follows symbolic links first; an atomic sink replaces them.
 * Locks: none.
 */
#include "pipeline/endpoints/sinks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/save.h"
#include "base/size.h"
#include "pipeline/storage/open_files.h"

static const char call[] = "lade_pipeline_submit";

typedef struct named_sink {
  const char *name; /* the program's */
  uint64_t index;   /* of a piece that names it so */
  uint32_t flags;
  bool known;                      /* the rest is filled in; otherwise opening it will fail */
  ladei_pipe_file_identity folder; /* that `last` is looked up in */
  const char *last;                /* last component, of `name` or of `resolved` */
  char *resolved;                  /* without symbolic links, or NULL */
} named_sink;

static bool is_atomic(const named_sink *s) { return (s->flags & LADE_FILE_ATOMIC) != 0; }

static bool same_name(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }

/* Pieces with a path, except those with the same name as the one before. out NULL: only counts them. */
static size_t sinks_gather(const lade_transfer *transfer, named_sink *out) {
  const lade_endpoint *before = NULL;
  size_t count = 0;
  for (uint64_t i = 0; i < transfer->piece_count; i++) {
    const lade_endpoint *host = &transfer->pieces[i].host;
    if (host->kind != LADE_ENDPOINT_PATH) continue;
    if (before != NULL && before->flags == host->flags && same_name(before->name, host->name)) continue;
    if (out != NULL) out[count] = (named_sink){.name = host->name, .index = i, .flags = host->flags};
    count++;
    before = host;
  }
  return count;
}

static int order_of(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }

static int spelling_compare(const void *a, const void *b) {
  const named_sink *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  return order != 0 ? order : order_of(x->index, y->index);
}

static int folder_compare(const named_sink *x, const named_sink *y) {
  int order = order_of(x->folder.device, y->folder.device);
  return order != 0 ? order : order_of(x->folder.inode, y->folder.inode);
}

static int file_compare(const void *a, const void *b) {
  const named_sink *x = a, *y = b;
  if (x->known != y->known) return x->known ? -1 : 1;
  int order = x->known ? folder_compare(x, y) : 0;
  if (order == 0 && x->known) order = strcmp(x->last, y->last);
  return order != 0 ? order : order_of(x->index, y->index);
}

static lade_status flags_error(ladei_pipe_request *request, const named_sink *first, const named_sink *other) {
  char expected[96];
  (void)snprintf(expected, sizeof expected, "0x%x, as transfer.pieces[%llu] has for the same file", first->flags,
                 (unsigned long long)first->index);
  request->index = other->index;
  return ladei_error_argument(call, ladei_pipe_field_of(request, "host.flags").name, expected, "0x%x", other->flags);
}

/* The part of a path that fits into a message: its end, where spellings differ. */
static const char *name_end(const char *name) {
  enum { SHOWN = 60 };
  size_t length = strlen(name);
  return length > SHOWN ? name + length - SHOWN : name;
}

static lade_status spelling_error(ladei_pipe_request *request, const named_sink *first, const named_sink *other) {
  char expected[192];
  (void)snprintf(expected, sizeof expected,
                 "one spelling for a file with LADE_FILE_ATOMIC; transfer.pieces[%llu] has %s",
                 (unsigned long long)first->index, name_end(first->name));
  request->index = other->index;
  return ladei_error_argument(call, ladei_pipe_field_of(request, "host.name").name, expected, "%s",
                              name_end(other->name));
}

/* One of each spelling stays, in front. */
static lade_status spellings_check(ladei_pipe_request *request, named_sink *sinks, size_t *count) {
  size_t kept = 0;
  qsort(sinks, *count, sizeof *sinks, spelling_compare);
  for (size_t i = 1; i < *count; i++)
    if (!same_name(sinks[kept].name, sinks[i].name))
      sinks[++kept] = sinks[i];
    else if (sinks[kept].flags != sinks[i].flags && (is_atomic(&sinks[kept]) || is_atomic(&sinks[i])))
      return flags_error(request, &sinks[kept], &sinks[i]);
  *count = kept + 1;
  return LADE_OK;
}

static lade_status file_find(named_sink *s) {
  struct stat facts;
  if (!is_atomic(s)) s->resolved = realpath(s->name, NULL); /* NULL: it is not there yet */
  const char *path = s->resolved != NULL ? s->resolved : s->name;
  s->last = ladei_file_name(path);
  char *folder = s->last > path ? strndup(path, (size_t)(s->last - path)) : strdup(".");
  if (folder == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for paths");
  s->known = stat(folder, &facts) == 0;
  if (s->known) s->folder = ladei_pipe_file_identity_of(&facts);
  free(folder);
  return LADE_OK;
}

static lade_status files_check(ladei_pipe_request *request, named_sink *sinks, size_t count) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) status = file_find(&sinks[i]);
  if (status != LADE_OK) return status;
  qsort(sinks, count, sizeof *sinks, file_compare);
  for (size_t i = 1; i < count && sinks[i].known; i++) {
    const named_sink *a = &sinks[i - 1], *b = &sinks[i];
    bool same = folder_compare(a, b) == 0 && strcmp(a->last, b->last) == 0;
    if (same && (is_atomic(a) || is_atomic(b))) return spelling_error(request, a, b);
  }
  return LADE_OK;
}

/* Otherwise nothing that goes to one file is lost. */
static bool any_atomic(const lade_transfer *transfer) {
  bool any = false;
  for (uint64_t i = 0; i < transfer->piece_count && !any; i++) {
    const lade_endpoint *host = &transfer->pieces[i].host;
    any = host->kind == LADE_ENDPOINT_PATH && (host->flags & LADE_FILE_ATOMIC) != 0;
  }
  return any;
}

lade_status ladei_pipe_sinks_check(ladei_pipe_request *request) {
  size_t bytes, count = any_atomic(request->transfer) ? sinks_gather(request->transfer, NULL) : 0;
  if (count < 2) return LADE_OK;
  named_sink *sinks = ladei_size_mul(count, sizeof *sinks, &bytes) ? malloc(bytes) : NULL;
  if (sinks == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for paths");
  (void)sinks_gather(request->transfer, sinks);
  lade_status status = spellings_check(request, sinks, &count);
  if (status == LADE_OK) {
    status = files_check(request, sinks, count);
    for (size_t i = 0; i < count; i++) free(sinks[i].resolved);
  }
  free(sinks);
  return status;
}
