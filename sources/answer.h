/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head of an HTTP answer to a request for a range, and the verdict on it before the first byte of its body is taken.
 *
 * A1  A body is accepted only of a 206 whose Content-Range is the range that was asked for, whose total is known, whose
 *     length fits, that is not encoded, and that is of the version of the object that the answers before were of.
 * A2  The version is the ETag, Last-Modified where that is absent or weak, and the size. The first accepted answer sets it.
 *
 * Note [Servers and versions]
 * A server may send any ETag twice for different bytes: nginx makes it of the second of the change and the size. Then
 * a replacement within that second is not seen. Apache calls a young file's ETag weak, and gives it as a strong one
 * later: the mark W/ does not count in comparisons; If-Match takes strong ones alone.
 * Pure. Threads: any.
 */
#ifndef LADE_SOURCES_ANSWER_H
#define LADE_SOURCES_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_source_answer {
  int status; /* 0: no status line yet */
  bool has_range, has_length, encoded, bad_range;
  bool keyed;                  /* encrypted with a key of the user's: the ETag is no MD5 */
  uint64_t first, last, total; /* of Content-Range; last < first: it says the total alone */
  uint64_t length;
  uint32_t retry_after_s; /* 0: not said */
  char etag[160];         /* with its quotes, and its W/; "": none, or one that is too long */
  char modified[40];
  char date[40];
  char region[40]; /* of the bucket, if the server says so */
} ladei_source_answer;

typedef struct ladei_source_version {
  bool known;
  uint64_t total;
  char etag[160];
  char modified[40];
} ladei_source_version;

/* A line of the head, with or without its end. A status line begins a new answer. True: it is the empty line after the head. */
bool ladei_source_answer_line(ladei_source_answer *answer, const char *line, size_t bytes);

/*
 * Of a 2xx: whether its body is bytes [offset, offset + bytes) of the version; with may_end those up to the object's end.
 * The text of a refusal says what was expected. LADE_ERR_IO, with ESTALE for another version; LADE_ERR_TRUNCATED: the
 * object ends within the range.
 */
lade_status ladei_source_answer_check(const ladei_source_answer *answer, uint64_t offset, uint64_t bytes, bool may_end,
                                      ladei_source_version *version);

/* The end of an object of `total` bytes lies before the end of a range: LADE_ERR_TRUNCATED. */
lade_status ladei_source_answer_truncated(uint64_t total, uint64_t end);

/* The same for two readers of one version: the ETag without W/, or Last-Modified. The version's. */
const char *ladei_source_version_tag(const ladei_source_version *version);

/* Whether a request may ask for this version alone. */
bool ladei_source_version_is_strong(const ladei_source_version *version);

#endif /* LADE_SOURCES_ANSWER_H */
