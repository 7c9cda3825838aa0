/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Touching the pages of an area ahead of whoever pins them, with threads near a NUMA node.
 *
 *   |-- touched --|== steps in hand ==|-- may be touched --|-- not yet --|
 *                                  position              limit         bytes
 *
 *   ladei_prefault_open(&prefault, &how, address, bytes);
 *   ladei_prefault_allow(&prefault, bytes);
 *   for each part: ladei_prefault_wait(&prefault, end of the part), pin the part   // the next ones are touched meanwhile
 *   ladei_prefault_close(&prefault);
 */
#ifndef LADE_HOST_PREFAULT_H
#define LADE_HOST_PREFAULT_H

#include <pthread.h>

#include "base/lock.h"
#include "host/topology.h"

enum { LADEI_PREFAULT_MAX_THREADS = 64, LADEI_PREFAULT_FIRST_THREADS = 4 };

/* Number of threads that is found while they work: Note [Threads that touch]. Pure. */
typedef struct ladei_prefault_size {
  unsigned threads; /* now */
  unsigned most;
  bool settled;
  unsigned fewer; /* before the doubling that is tried */
  uint64_t rate;  /* bytes per second with those; 0: none is tried */
} ladei_prefault_size;

void ladei_prefault_size_init(ladei_prefault_size *size, unsigned most, bool adapts);
/* So many bytes per second were touched by `threads`. */
void ladei_prefault_size_judge(ladei_prefault_size *size, uint64_t rate);

/* Who touches. */
typedef struct ladei_prefault_crew {
  const ladei_topology *topology; /* the threads are bound near `node` where this is not NULL and node not -1 */
  int node;
  unsigned threads; /* at most, the calling one included; 0: nobody, and ladei_prefault_wait does nothing */
  bool adapts;      /* as many of them as make it faster; else all */
  uint64_t (*now_ns)(void *self); /* for that */
  void *self;
} ladei_prefault_crew;

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
  ladei_condition opened;  /* limit, size.threads or stopping has changed */
  ladei_condition touched; /* a step is done */
  size_t limit, position;
  size_t in_hand[LADEI_PREFAULT_MAX_THREADS]; /* [0] the opener's; begin of the step, SIZE_MAX: none */
  unsigned arrived;                           /* helpers that have begun */
  bool stopping;
  ladei_prefault_size size;
  bool starved; /* since the measurement began somebody found nothing to touch: what counts is not the touching */
  size_t touched_bytes; /* since then */
  uint64_t since_ns;    /* the opener's: when it began; 0: with the next look */
} ladei_prefault;

/* Touches [address, address + bytes), bytes a multiple of 4 KiB, as far as it is allowed, which is nowhere at first.
 * Contents stay zero. Fewer threads do it where the system gives no more or the area is small. */
void ladei_prefault_open(ladei_prefault *prefault, const ladei_prefault_crew *crew, void *address, size_t bytes);
/* The first `end` bytes may be touched; never fewer than before. */
void ladei_prefault_allow(ladei_prefault *prefault, size_t end);
/* Returns when the first `end` bytes, which are allowed, are touched, and helps with them. Pages for which the system has
 * no memory stay as they are: whoever pins them is told. The opener's thread only, as all but helpers are. */
void ladei_prefault_wait(ladei_prefault *prefault, size_t end);
/* Up to there all is touched: at least `end` of the last wait. */
size_t ladei_prefault_touched(ladei_prefault *prefault);
/* Whether somebody touches. */
static inline bool ladei_prefault_is_on(const ladei_prefault *prefault) { return prefault->crew.threads > 0; }
/* Leaves untouched what nobody has in hand, and ends the threads. Before any of the area is unmapped that is allowed and
 * was not waited for. */
void ladei_prefault_close(ladei_prefault *prefault);

/* All of an area at once. */
void ladei_prefault_all(const ladei_prefault_crew *crew, void *address, size_t bytes);

#endif /* LADE_HOST_PREFAULT_H */
