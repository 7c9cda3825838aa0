/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace that is read some operations ahead of the current one, so that memory for these is brought into the cache
 * meanwhile. Frees look at old blocks, so they are counted apart.
 *
 *   alloc   free 7   alloc   free 9   free 4   alloc ...     not read yet ...
 *           taken             +1       +2                    ahead_free(queue, 1)->id is 9
 *
 * Texts and lists of streams are valid until the next read only, so nothing is read after an operation that has one
 * before it was taken. An error of the trace is returned in its place.
 */
#ifndef LADE_TOOLS_REPLAY_AHEAD_H
#define LADE_TOOLS_REPLAY_AHEAD_H

#include <stdbool.h>

#include "tools/replay/trace.h"

enum { AHEAD_ROOM = 16 };

/* A free to come, and its lookups; the caller's except for the ID. */
typedef struct ahead_target {
  uint64_t id;
  uint64_t address;  /* of its block; 0: not known */
  const void *block; /* NULL: not known */
} ahead_target;

typedef struct ahead {
  trace_reader *reader;
  trace_op ops[AHEAD_ROOM];
  uint64_t read;   /* operations read so far; number i is in ops[i % AHEAD_ROOM] */
  uint64_t taken;  /* of those, that ahead_next has returned, the current one included */
  read_result end; /* the reader's result after the last of them; READ_ITEM: none yet */
  bool held;       /* the last one read has a text or a list */

  ahead_target frees[AHEAD_ROOM]; /* those among them, in the same way */
  uint64_t frees_read;
  uint64_t frees_taken;
} ahead;

/* Borrows the reader. */
void ahead_init(ahead *queue, trace_reader *reader);

/* The next operation, valid until the following call; results as trace_read. */
read_result ahead_next(ahead *queue, const trace_op **out);

/* The operation that was read last; there is one. */
static inline const trace_op *ahead_newest(const ahead *queue) { return &queue->ops[(queue->read - 1) % AHEAD_ROOM]; }

/* The free that comes `distance` frees after the latest one; NULL if it is not read yet. */
static inline ahead_target *ahead_free(ahead *queue, uint64_t distance) {
  uint64_t number = queue->frees_taken - 1 + distance;
  return number < queue->frees_read ? &queue->frees[number % AHEAD_ROOM] : NULL;
}

#endif /* LADE_TOOLS_REPLAY_AHEAD_H */
