/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The published data: one piece of memory, laid out once, in which only the values change.
 *
 *   header | parts | keys: offsets of texts | texts, each with its NUL | values
 *
 * L1  The header's offsets and counts are set before the memory is sealed, and never change.
 * L2  `sequence` is odd while values are written; a reader that finds it even and equal before and after has copied
 *     values of one refresh.
 * L3  The memory is sealed against shrinking, growing and writing by others, so that no publisher can kill a reader,
 *     and no reader can disturb the memory.
 * L4  A reader's work and memory are bounded for any content of the page: parts, values, texts and the length of a key
 *     have a maximum, and a value belongs to one part.
 */
#ifndef LADE_INSPECT_LIVE_PUBLISHED_H
#define LADE_INSPECT_LIVE_PUBLISHED_H

#include <stdatomic.h>

#include "inspect/snapshot.h"

#define LADEI_PUBLISHED_NAME "lade-published" /* as /proc/PID/fd shows it: "/memfd:lade-published (deleted)" */
enum {
  LADEI_PUBLISHED_VERSION = 1,
  LADEI_PUBLISHED_CONTROL_BYTES = 64, /* of the name of a socket, with its NUL */
  LADEI_PUBLISHED_MOST_PARTS = 1000,
  LADEI_PUBLISHED_MOST_TEXTS = 16 << 20, /* bytes of all of them */
};

typedef struct ladei_published_header {
  char magic[8]; /* "LADEPUB\n" */
  uint32_t version;
  uint32_t header_bytes;
  uint64_t bytes; /* all of it */
  uint64_t process_id;
  uint64_t started_ns;  /* wall clock */
  uint32_t interval_ms; /* 0: by hand */
  uint32_t part_count;
  uint64_t value_count;
  uint64_t parts_at, keys_at, texts_at, texts_bytes, values_at; /* from the header's begin */
  _Atomic(uint64_t) sequence;
  _Atomic(uint64_t) refreshed_ns; /* wall clock */
  /* Absent in earlier versions; `header_bytes` tells. */
  char control[LADEI_PUBLISHED_CONTROL_BYTES]; /* name of the abstract socket, without its first 0; "": none */
} ladei_published_header;

/* The header of the first release: later fields may be missing. */
enum { LADEI_PUBLISHED_LEAST_BYTES = offsetof(ladei_published_header, control) };

typedef struct ladei_published_part {
  uint32_t kind; /* lade_part_kind */
  int32_t device;
  uint32_t name; /* in the texts */
  uint32_t reserved;
  uint64_t first_value, value_count;
} ladei_published_part;

/* Facts for a reader beside the counters. */
typedef struct ladei_published_about {
  uint64_t process_id; /* as the process itself knows it: in a container, that of its namespace */
  uint64_t started_ns;
  uint32_t interval_ms; /* 0: by hand */
  char control[LADEI_PUBLISHED_CONTROL_BYTES];
} ladei_published_about;

/*
 * Makes a snapshot of the memory published in [data, data + bytes), which may change meanwhile and may be anything.
 * `process_id` is its process: another one in the header is LADE_NOT_READY, since a fork inherits published memory.
 */
lade_status ladei_published_copy(const void *data, size_t bytes, uint64_t process_id, ladei_published_about *out_about,
                                 lade_snapshot **out);

/* lade_published_read() with the rest. `out_about` may be NULL. */
lade_status ladei_published_find(uint64_t process_id, uint32_t index, ladei_published_about *out_about,
                                 lade_snapshot **out);

/* Whether counters last refreshed at `refreshed_ns` were not for three intervals, and at least a second. Never of
 * counters that are refreshed by hand. */
bool ladei_published_is_stale(uint32_t interval_ms, uint64_t refreshed_ns, uint64_t now_ns);

/* The last number of the line "NSpid:" in the text of /proc/PID/status: the process's id as it knows it. `otherwise`:
 * there is no such line. */
uint64_t ladei_published_own_id(const char *status_text, uint64_t otherwise);

#endif /* LADE_INSPECT_LIVE_PUBLISHED_H */
