/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Touching the pages of an area before they are pinned, with threads near a NUMA node.
 *
 *   |-- touched --|== steps in hand ==|-- may be touched --|-- not yet --|
 *                                  position              limit         bytes
 *
 *   ladei_prefault_open(&prefault, &how, address, bytes);
 *   ladei_prefault_allow(&prefault, bytes);
 *   for each part: ladei_prefault_wait(&prefault, end of the part), pin the part   // later ones are touched meanwhile
 *   ladei_prefault_close(&prefault);
 */
#ifndef LADE_HOST_SOURCE_PREFAULT_H
#define LADE_HOST_SOURCE_PREFAULT_H

#include <pthread.h>

#include "base/lock.h"
#include "base/size.h"
#include "host/source/topology.h"

enum { LADEI_PREFAULT_MAX_THREADS = 64, LADEI_PREFAULT_LEAST_THREADS = 4 };

#define LADEI_PREFAULT_SHARE_BYTES (16 * LADEI_MIB)

/* The threads that touch. */
typedef struct ladei_prefault_crew {
  const ladei_topology *topology; /* the threads are bound near `node` where this is not NULL and node not -1 */
  int node;
  unsigned threads;     /* at most, the calling one included; 0: none, and ladei_prefault_wait does nothing */
  bool fewer_for_small; /* one for each LADEI_PREFAULT_SHARE_BYTES at most, but LADEI_PREFAULT_LEAST_THREADS */
} ladei_prefault_crew;

/* Threads that touch an area of `bytes`, the calling one included: Note [Threads that touch]. Pure. */
unsigned ladei_prefault_threads(const ladei_prefault_crew *crew, size_t bytes);

typedef struct ladei_prefault {
  /* Constant. */
  ladei_prefault_crew crew;
  char *address;
  size_t bytes;
  /* The opener's alone. */
  pthread_t helpers[LADEI_PREFAULT_MAX_THREADS];
  unsigned helper_count;
  /* Guard: lock. */
  ladei_lock lock;
  ladei_condition opened;  /* limit or stopping has changed */
  ladei_condition touched; /* a step is done */
  size_t limit, position;
  size_t in_hand[LADEI_PREFAULT_MAX_THREADS]; /* [0] the opener's; begin of the step, SIZE_MAX: none */
  unsigned arrived;                           /* helpers that have begun */
  bool stopping;
} ladei_prefault;

/* Touches [address, address + bytes), bytes a multiple of 4 KiB, as far as it is allowed, which is nowhere at first.
 * Contents stay zero. Fewer threads do it where the system gives no more or the area is small. */
void ladei_prefault_open(ladei_prefault *prefault, const ladei_prefault_crew *crew, void *address, size_t bytes);
/* The first `end` bytes may be touched; never fewer than before. */
void ladei_prefault_allow(ladei_prefault *prefault, size_t end);
/* Returns when the first `end` bytes, which are allowed, are touched, and helps with them. Pages for which the system
 * has no memory stay as they are: pinning them fails. The opener's thread only, as all but helpers are. */
void ladei_prefault_wait(ladei_prefault *prefault, size_t end);
/* Up to there all is touched: at least `end` of the last wait. */
size_t ladei_prefault_touched(ladei_prefault *prefault);
/* Whether threads touch. */
static inline bool ladei_prefault_is_on(const ladei_prefault *prefault) { return prefault->crew.threads > 0; }
/* Leaves steps untouched that no thread has begun, and ends the threads. Called before any of the area is unmapped that
 * is allowed and was not waited for. */
void ladei_prefault_close(ladei_prefault *prefault);

/* All of an area at once. */
void ladei_prefault_all(const ladei_prefault_crew *crew, void *address, size_t bytes);

#endif /* LADE_HOST_SOURCE_PREFAULT_H */
