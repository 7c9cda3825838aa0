/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the ranks of a local group share: the slots, and a cell for each rank, written by that rank only. */
#ifndef LADE_GROUP_LOCAL_SHARED_H
#define LADE_GROUP_LOCAL_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/group.h"

enum {
  LADEI_GROUP_LOCAL_RANKS = 128,
  LADEI_GROUP_LOCAL_SLOTS = 16,
  LADEI_GROUP_LOCAL_NAME = 80,
  LADEI_GROUP_LOCAL_CELL = 8192, /* bytes from one cell to the next: whole pages */
};

typedef enum ladei_group_call {
  LADEI_GROUP_NOTHING = 0,
  LADEI_GROUP_BROADCAST = 1,
  LADEI_GROUP_SCATTER = 2,
  LADEI_GROUP_BARRIER = 3,
  LADEI_GROUP_GATHER = 4,
} ladei_group_call;

/* Counters of a cell, each of which only grows. */
typedef enum ladei_group_counter {
  LADEI_GROUP_GATHERED = 0, /* records posted */
  LADEI_GROUP_FILLED = 1,   /* pieces before this one, as far as this rank filled them, are in their slots */
  LADEI_GROUP_TAKEN = 2,    /* this rank no longer needs the pieces before this one */
  LADEI_GROUP_CLOSED = 3,   /* 1: this rank has no window of another one open */
  LADEI_GROUP_COUNTERS
} ladei_group_counter;

/* A process that may be wrong or hostile writes all of it: readers copy a value once, and check it. */
typedef struct ladei_group_cell {
  _Atomic(uint32_t) bell;  /* all write it: it changes when something that the owner may wait for has changed */
  _Atomic(uint32_t) state; /* ladei_group_state */
  _Atomic(uint64_t) counters[LADEI_GROUP_COUNTERS];
  /* The call that the owner is in, or was in last: its number, from 1 on, and at [number % 2] its kind and bytes. */
  _Atomic(uint64_t) call_number;
  _Atomic(uint64_t) call_kind[2]; /* ladei_group_call, in the upper half the root */
  _Atomic(uint64_t) call_bytes[2];
  /* The signature of the call that the record or piece belongs to. */
  _Atomic(uint64_t) gathered_call[2];
  _Atomic(uint64_t) filled_call[LADEI_GROUP_LOCAL_SLOTS];
  /* Times on the owner's clock, of the current record or piece. */
  _Atomic(uint64_t) gathered_ns[2];
  _Atomic(uint64_t) filled_ns[LADEI_GROUP_LOCAL_SLOTS];
  _Atomic(uint64_t) taken_ns[LADEI_GROUP_LOCAL_SLOTS];
  /* The failure of the group that the owner found; constant once the state says so. */
  int32_t failed_status;
  char failed_text[sizeof((lade_error *)0)->text];
  unsigned char records[2][LADE_GROUP_RECORD_BYTES];
} ladei_group_cell;
_Static_assert(sizeof(ladei_group_cell) <= LADEI_GROUP_LOCAL_CELL, "a cell has its pages");

typedef enum ladei_group_state {
  LADEI_GROUP_WORKS = 0,
  LADEI_GROUP_LEFT = 1,
  LADEI_GROUP_FAILED = 2,
} ladei_group_state;

/* One rank's view. */
typedef struct ladei_group_shared {
  char name[LADEI_GROUP_LOCAL_NAME + 1];
  uint32_t rank, size;
  uint32_t slots;
  uint64_t slot_bytes;
  uint64_t timeout_ns;
  unsigned char *base; /* the mapping: cells, then slots */
  size_t bytes;
  int life[LADEI_GROUP_LOCAL_RANKS];    /* pidfd of each rank's process; -1: unknown */
  int32_t pid[LADEI_GROUP_LOCAL_RANKS]; /* as rank 0 sees them; 0: unknown */
  atomic_flag posted;                   /* this rank's failure is in its cell, or is being written */
  /* Only for the thread that has the turn. */
  uint64_t call_number;
  ladei_group_call call;
  uint64_t signature; /* of its number, kind, root and bytes: the same on all ranks */
  uint64_t gathers;
} ladei_group_shared;

/* Bytes of the memory, and where the slots begin in it. */
size_t ladei_group_shared_bytes(uint32_t size, uint32_t slots, uint64_t slot_bytes);
size_t ladei_group_shared_slots_at(uint32_t size);

/* Maps the memory; `size`, `slots` and `slot_bytes` are set. Refuses a file that is too short, or that another process
 * could make shorter: a read beyond its end would kill this process. */
lade_status ladei_group_shared_map(ladei_group_shared *shared, int fd);
/* Posts that this rank leaves, unmaps the memory, closes the descriptors. */
void ladei_group_shared_leave(ladei_group_shared *shared);

ladei_group_cell *ladei_group_shared_cell(const ladei_group_shared *shared, uint32_t rank);

/* This rank is in its next call from now on. */
void ladei_group_shared_begin(ladei_group_shared *shared, ladei_group_call call, uint32_t root, uint64_t bytes);

/* Raises a counter of this rank and wakes one rank; or, with LADEI_GROUP_ALL, all others. */
#define LADEI_GROUP_ALL UINT32_MAX
void ladei_group_shared_post(ladei_group_shared *shared, ladei_group_counter counter, uint64_t value, uint32_t whom);

/* The time of the wall clock in timeout_ns from now. */
uint64_t ladei_group_shared_deadline(const ladei_group_shared *shared);

/*
 * Waits until a counter of `peer` has reached `value`. Otherwise posts and returns the failure that ends the wait: of
 * any rank that failed, left or died, of `peer` if it is in another call, or of the time limit.
 */
lade_status ladei_group_shared_wait(ladei_group_shared *shared, uint32_t peer, ladei_group_counter counter,
                                    uint64_t value, uint64_t deadline_ns);

/* Checks by its signature that a record or piece of `peer` is of this rank's call. Otherwise posts LADE_ERR_PEER. */
lade_status ladei_group_shared_same(ladei_group_shared *shared, uint32_t peer, const _Atomic(uint64_t) *signature);

/* Posts this rank's failure, for all other ranks and for a wait of another thread. Only the first one counts. */
void ladei_group_shared_fail(ladei_group_shared *shared, lade_status status, const char *text);

#endif /* LADE_GROUP_LOCAL_SHARED_H */
