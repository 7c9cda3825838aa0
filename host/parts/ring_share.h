/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of rings in a pool: which rings of pipelines hold blocks of it, and which wait for one at its cap.
 *
 *   ring A   3 blocks   |   ring B   1 block   |   waiting: ring C, ring D
 *
 * A ring gives its blocks back when it has no more to begin; the program may keep its own. So at the cap a ring without
 * a block waits while others hold any or some are pending, and fails at once if the program has all.
 *
 * While a ring waits, the others give up their blocks beyond one each, as soon as these have no chunk. If all have one
 * block or none, there are more rings than blocks: they take turns, and each gives its block up after a chunk.
 *
 * I1  blocks is the sum over the shares, holders the number of those with any. A block counts from before it is asked
 *     for until after it was given back.
 * I2  A share is in `waiting` exactly while it `waits`; those that came first are first, and the first asks the pool.
 * I3  wanted follows from the rest: nothing while no ring waits, otherwise spare blocks, or all if no ring has spare
 *     ones.
 * Locks: `lock` guards the counts and `waiting`; nothing is called under it. `listeners_lock` guards the listeners, and
 * is held while they are woken, except for virtual time, where one thread at a time is here and waking runs a pipeline.
 */
#ifndef LADE_HOST_PARTS_RING_SHARE_H
#define LADE_HOST_PARTS_RING_SHARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "lade/status.h"

/* Blocks of a ring; zero at first. */
typedef struct ladei_pinned_ring_share {
  TAILQ_ENTRY(ladei_pinned_ring_share) link;
  unsigned blocks;
  _Atomic(bool) waits;
} ladei_pinned_ring_share;

/* A callback for when rings wait, or have waited for blocks that were given back. */
typedef struct ladei_pinned_ring_listener {
  TAILQ_ENTRY(ladei_pinned_ring_listener) link;
  void (*wake)(void *user);
  void *user;
} ladei_pinned_ring_listener;

/* Blocks that rings give up. */
typedef enum ladei_pinned_wanted {
  LADEI_PINNED_WANTED_NONE = 0,
  LADEI_PINNED_WANTED_SPARE, /* their blocks beyond one */
  LADEI_PINNED_WANTED_ALL,   /* that one too, after a chunk */
} ladei_pinned_wanted;

typedef struct ladei_pinned_ring_shares {
  bool virtual_time;
  ladei_lock lock;
  TAILQ_HEAD(ladei_pinned_ring_share_list, ladei_pinned_ring_share) waiting;
  unsigned blocks;
  unsigned holders;
  uint64_t gives;  /* blocks given back so far */
  unsigned passed; /* times that others left the first its turn since it asked last */
  _Atomic(unsigned) wanted;
  ladei_lock listeners_lock;
  TAILQ_HEAD(ladei_pinned_ring_listener_list, ladei_pinned_ring_listener) listeners;
  uint64_t changes; /* of the listeners */
} ladei_pinned_ring_shares;

void ladei_pinned_ring_shares_init(ladei_pinned_ring_shares *shares, bool virtual_time);

void ladei_pinned_ring_listener_add(ladei_pinned_ring_shares *shares, ladei_pinned_ring_listener *listener);
/* After this it is not woken. */
void ladei_pinned_ring_listener_remove(ladei_pinned_ring_shares *shares, ladei_pinned_ring_listener *listener);
/* Wakes all listeners. No lock of rank PIPELINE or above is held. */
void ladei_pinned_ring_listeners_wake(ladei_pinned_ring_shares *shares);

static inline ladei_pinned_wanted ladei_pinned_ring_shares_wanted(const ladei_pinned_ring_shares *shares) {
  return (ladei_pinned_wanted)atomic_load_explicit(&shares->wanted, memory_order_relaxed);
}

/* Blocks of the other rings. */
typedef struct ladei_pinned_ring_shares_view {
  uint64_t gives;
  unsigned others; /* blocks of other rings */
  bool spare;      /* a ring has more than one */
} ladei_pinned_ring_shares_view;

ladei_pinned_ring_shares_view ladei_pinned_ring_shares_look(ladei_pinned_ring_shares *shares,
                                                            const ladei_pinned_ring_share *share);

/* Before a ring asks the pool for a block. True: no other ring came before it, and it holds a block from here on;
 * otherwise it waits. `only`: it has no other block. No lock held, here and below. */
bool ladei_pinned_ring_share_begin(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share, bool only);
/* The outcome: the ring has a block, or none more and waits (LADE_NOT_READY), or does not (any other failure). */
void ladei_pinned_ring_share_end(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share, lade_status status);
/* The ring has given a block back. */
void ladei_pinned_ring_share_gave(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share);
/* The ring waits no longer. */
void ladei_pinned_ring_share_stop_waiting(ladei_pinned_ring_shares *shares, ladei_pinned_ring_share *share);

#endif /* LADE_HOST_PARTS_RING_SHARE_H */
