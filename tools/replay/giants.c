/* SPDX-License-Identifier: Apache-2.0 */
/* Giants; model in giants.h. */
#include "tools/replay/giants.h"

#include <stdlib.h>

#include "base/size.h"
#include "tools/replay/replay_device.h"

struct giant {
  uint64_t bytes; /* 0: given back */
  uint64_t requested;
  bool allocated;
  size_t waits;         /* its events not found done */
  lade_stream *streams; /* noted, each once, by ascending number */
  size_t stream_count;
};

struct giant_event {
  giant_event *next;
  giant *block;
  lade_stream stream;
  uint64_t position;
};

/* A pool takes requests below 1 TiB; with guards after its blocks, some bytes less. */
#define POOL_MAX_BYTES (((uint64_t)1 << 40) - 4096)

bool giants_take(uint64_t bytes) { return bytes > POOL_MAX_BYTES; }

static void giant_destroy(giant *block) {
  free(block->streams);
  free(block);
}

static void events_free(giant_event *event) {
  while (event != NULL) {
    giant_event *next = event->next;
    free(event);
    event = next;
  }
}

void giants_destroy(giants *all) {
  events_free(all->events);
  for (size_t i = 0; i < all->count; i++) giant_destroy(all->list[i]);
  free(all->list);
  *all = (giants){.list = NULL};
}

/* ---- Allocating -------------------------------------------------------------------------------------------------- */

static uint64_t bytes_reserved_for(const giants *all, uint64_t bytes) {
  enum { PAGE = 4096 };
  if (!all->pytorch_policy) return (bytes + PAGE - 1) / PAGE * PAGE;
  return (uint64_t)1 << (ladei_log2_floor(bytes - 1) + 1);
}

static bool giant_fits(const giants *all, const giant *block, uint64_t bytes) {
  if (block->bytes < bytes || block->allocated || block->waits > 0) return false;
  return all->pytorch_policy || block->bytes - bytes <= bytes / 8;
}

/* The smallest cached one that fits, of equals the oldest; count if there is none. */
static size_t giant_find(const giants *all, uint64_t bytes) {
  size_t best = all->count;
  for (size_t i = 0; i < all->count; i++) {
    bool smaller = best == all->count || all->list[i]->bytes < all->list[best]->bytes;
    if (smaller && giant_fits(all, all->list[i], bytes)) best = i;
  }
  return best;
}

static bool giants_grow(giants *all) {
  if (all->count == all->room) {
    size_t room = all->room == 0 ? 8 : 2 * all->room;
    giant **larger = realloc(all->list, room * sizeof *larger);
    if (larger == NULL) return false;
    all->list = larger;
    all->room = room;
  }
  giant *block = calloc(1, sizeof *block);
  if (block == NULL) return false;
  all->list[all->count++] = block;
  return true;
}

giants_result giants_alloc(giants *all, uint64_t bytes, size_t *out_number) {
  giants_poll(all);
  size_t number = giant_find(all, bytes);
  if (number == all->count) {
    uint64_t reserved = bytes_reserved_for(all, bytes);
    if (all->reserved_bytes > all->max_bytes || reserved > all->max_bytes - all->reserved_bytes) return GIANTS_OVER_CAP;
    if (!giants_grow(all)) return GIANTS_NO_MEMORY;
    all->list[number]->bytes = reserved;
    all->reserved_bytes += reserved;
    all->driver_allocs++;
  }
  all->list[number]->allocated = true;
  all->list[number]->requested = bytes;
  *out_number = number;
  return GIANTS_DONE;
}

/* ---- Uses -------------------------------------------------------------------------------------------------------- */

bool giants_record(giants *all, size_t number, lade_stream stream) {
  giant *block = all->list[number];
  size_t place = 0;
  while (place < block->stream_count && replay_stream_number(block->streams[place]) < replay_stream_number(stream))
    place++;
  if (place < block->stream_count && block->streams[place] == stream) return true;
  lade_stream *larger = realloc(block->streams, (block->stream_count + 1) * sizeof(lade_stream));
  if (larger == NULL) return false;
  block->streams = larger;
  for (size_t i = block->stream_count; i > place; i--) larger[i] = larger[i - 1];
  larger[place] = stream;
  block->stream_count++;
  return true;
}

/* As many as asked for, in a list; NULL where there is no memory, or none is asked for. */
static giant_event *events_make(size_t count) {
  giant_event *first = NULL;
  for (size_t i = 0; i < count; i++) {
    giant_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
      events_free(first);
      return NULL;
    }
    event->next = first;
    first = event;
  }
  return first;
}

bool giants_free(giants *all, size_t number) {
  giant *block = all->list[number];
  giant_event *event = events_make(block->stream_count);
  if (event == NULL && block->stream_count > 0) return false;
  giant_event **end = &all->events;
  while (*end != NULL) end = &(*end)->next;
  *end = event;
  for (size_t i = 0; i < block->stream_count; i++, event = event->next) {
    event->block = block;
    event->stream = block->streams[i];
    event->position = replay_device_record(event->stream);
  }
  block->waits = block->stream_count;
  all->events_recorded += block->stream_count;
  block->stream_count = 0;
  block->allocated = false;
  return true;
}

/* In the order of the frees; PyTorch's queue ends at the first event that is not done. */
void giants_poll(giants *all) {
  for (giant_event **link = &all->events; *link != NULL;) {
    giant_event *event = *link;
    if (!replay_device_done(event->stream, event->position)) {
      if (all->pytorch_policy) return;
      link = &event->next;
      continue;
    }
    *link = event->next;
    event->block->waits--;
    free(event);
  }
}

void giants_empty(giants *all) {
  giants_poll(all);
  for (size_t i = 0; i < all->count; i++) {
    giant *block = all->list[i];
    if (block->bytes == 0 || block->allocated || block->waits > 0) continue;
    all->reserved_bytes -= block->bytes;
    all->driver_frees++;
    block->bytes = 0;
  }
}

void giants_report(const giants *all, report_pinned *out) {
  for (size_t i = 0; i < all->count; i++) {
    const giant *block = all->list[i];
    if (block->allocated) {
      out->in_use_blocks++;
      out->requested_bytes += block->requested;
    } else if (block->waits > 0) {
      out->pending_blocks++;
    }
  }
  out->reserved_bytes += all->reserved_bytes;
  out->driver_allocs += all->driver_allocs;
  out->driver_frees += all->driver_frees;
  out->events_recorded += all->events_recorded;
}
