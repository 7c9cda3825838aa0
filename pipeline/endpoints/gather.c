/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks with bytes of URLs.
 *
 *   chunk      [ a 5..9 | a 12..14 | memory | a 17..20 | b 3..4 ]
 *   requests   [ a 5 .... 14 ................... 20 ]  [ b 3..4 ]      bytes 9 to 12 and 14 to 17 of a are not kept
 *
 * Note [Gaps]
 * A request costs a round trip, and stores charge for each; the bytes of a gap cost the time that they take. Rows of a
 * part of a tensor, and records of a shard, would be thousands of requests of some KiB. So a request goes across gaps of
 * up to 512 KiB: what one read from the socket takes (sources/exchange.c). On the loopback 128 rows of 4 KiB take as long
 * joined as apart where the gaps are of 256 KiB, and twice as long at 512 KiB; at 1 Gbit/s these are 4 ms, less than most
 * round trips to a store.
 *
 * G1  Each extent of a URL is in one place of one request. A request is of one object; its places go up in the object.
 * G2  `left` is the number of requests that are not over, and the client's thread's once the first is begun. The end of
 *     the last one frees all. No request begins unless all can.
 * Locks: none.
 */
#include "pipeline/endpoints/gather.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "pipeline/endpoints/chains.h"
#include "pipeline/endpoints/chunk.h"
#include "pipeline/endpoints/endpoint.h"

enum { GAP_MOST = 512 << 10 };

typedef struct gather gather;

typedef struct gather_request {
  ladei_source_read read;
  gather *of;
  size_t kept; /* bytes of its places */
} gather_request;

struct gather {
  ladei_pipe_storage *storage;
  ladei_pipe_gathered done;
  void *user;
  size_t left;               /* G2 */
  lade_error error;          /* the first; status LADE_OK: none */
  gather_request requests[]; /* then their places */
};

/* A walk over the extents. It counts requests and places; with `of` it also fills them in. */
typedef struct walk {
  const ladei_pipe_slot *slot;
  bool sorts; /* `chains` say where extents lie */
  ladei_pipe_chains chains;
  gather *of; /* NULL: the first walk */
  ladei_source_place *places;
  size_t requests, place_count;
  const ladei_pipe_storage_file *last; /* of the request at hand; NULL: none */
  uint64_t end;                        /* of its range */
} walk;

static void request_open(walk *w, const ladei_pipe_storage_file *file, uint64_t offset) {
  w->last = file;
  w->end = offset;
  if (w->of != NULL)
    w->of->requests[w->requests] = (gather_request){
        .of = w->of, .read = {.object = file->object, .offset = offset, .places = &w->places[w->place_count]}};
  w->requests++;
}

static void place_add(walk *w, const ladei_pipe_extent *extent, size_t at) {
  uint64_t offset = extent->piece->host.offset + extent->offset;
  const ladei_pipe_storage_file *file = extent->piece->file;
  if (w->last != file || offset < w->end || offset - w->end > GAP_MOST) request_open(w, file, offset);
  if (w->of != NULL) {
    gather_request *request = &w->of->requests[w->requests - 1];
    w->places[w->place_count] = (ladei_source_place){.skip = (size_t)(offset - w->end),
                                                     .bytes = extent->bytes,
                                                     .memory = (char *)ladei_pipe_slot_data(w->slot) + at};
    request->kept += extent->bytes;
    request->read.bytes = (size_t)(offset - request->read.offset) + extent->bytes;
  }
  w->place_count++;
  w->end = offset + extent->bytes;
}

/* All extents in order. Those of no URL are moved here, by the walk that fills in. */
static lade_status extents_walk(walk *w) {
  const ladei_pipe_pieces *pieces = &ladei_pipe_ticket_of(w->slot->transfer)->pieces;
  lade_status status = LADE_OK;
  w->sorts = ladei_pipe_chains_find(w->slot, &w->chains);
  w->requests = w->place_count = 0;
  w->last = NULL;
  for (ladei_pipe_extent extent = {0};
       status == LADE_OK && ladei_pipe_pieces_next(pieces, w->slot->offset, w->slot->bytes, &extent);) {
    size_t at = w->sorts ? ladei_pipe_chains_take(&w->chains, &extent) : extent.at;
    if (extent.piece->file != NULL && extent.piece->file->object != NULL)
      place_add(w, &extent, at);
    else if (w->of != NULL && !extent.piece->direct)
      status = ladei_pipe_chunk_extent_read(w->slot, &extent, at);
  }
  return status;
}

/* The chunk's requests, free() it; `left` of them. */
static lade_status gather_make(const ladei_pipe_order *order, gather **out) {
  walk w = {.slot = order->slot};
  (void)extents_walk(&w);
  size_t requests = w.requests, places = w.place_count;
  gather *g = calloc(1, sizeof *g + requests * sizeof *g->requests + places * sizeof *w.places);
  if (g == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu requests", requests);
  g->left = requests;
  w.of = g;
  w.places = (ladei_source_place *)&g->requests[requests];
  lade_status status = extents_walk(&w);
  assert(status != LADE_OK || (w.requests == requests && w.place_count == places)); /* G1 */
  if (status != LADE_OK)
    free(g);
  else
    *out = g;
  return status;
}

static void bytes_note(const gather_request *request, lade_status status) {
  if (status != LADE_OK) return;
  ladei_pipe_storage *storage = request->of->storage;
  atomic_fetch_add_explicit(&storage->bytes_url, request->kept, memory_order_relaxed);
}

static void request_ended(ladei_source_read *read, lade_status status) {
  gather_request *request = read->user;
  gather *g = request->of;
  assert(g->left > 0); /* G2 */
  bytes_note(request, status);
  if (status != LADE_OK && g->error.status == LADE_OK) ladei_error_save(&g->error);
  if (--g->left > 0) return;
  gather over = {.done = g->done, .user = g->user, .error = g->error};
  free(g);
  if (over.error.status != LADE_OK) ladei_error_restore(&over.error);
  over.done(over.user, over.error.status);
}

lade_status ladei_pipe_gather_begin(const ladei_pipe_order *order, ladei_pipe_gathered done, void *user,
                                    bool *out_begun) {
  gather *g;
  *out_begun = false;
  LADEI_TRY(gather_make(order, &g));
  size_t count = g->left;
  g->storage = &ladei_pipe_ticket_of(order->transfer)->pipeline->storage;
  g->done = done;
  g->user = user;
  *out_begun = count > 0;
  if (count == 0) free(g);
  for (size_t i = 0; i < count; i++) { /* after the last one begins, `g` may be gone */
    g->requests[i].read.complete = request_ended;
    g->requests[i].read.user = &g->requests[i];
    ladei_source_read_begin(&g->requests[i].read);
  }
  return LADE_OK;
}

lade_status ladei_pipe_gather_run(const ladei_pipe_order *order) {
  gather *g;
  LADEI_TRY(gather_make(order, &g));
  g->storage = &ladei_pipe_ticket_of(order->transfer)->pipeline->storage;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < g->left && status == LADE_OK; i++) {
    status = ladei_source_read_run(&g->requests[i].read, NULL);
    bytes_note(&g->requests[i], status);
  }
  free(g);
  return status;
}
