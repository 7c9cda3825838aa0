/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meaning of the slots of a ledger: the format of its file (docs/formats.md, "Ledger of pinned memory"), and how
 * much each pool may charge. No calls, no clock, no locks: ledger_file.c reads the slots and acts.
 *
 *   file:   header | slot 0 | slot 1 | ...           a slot per pool, and one per piece of memory that pools share; free ones at the
 *                                                    end are cut off
 *
 * R1  The parts that pools are entitled to add up to no more than the budget.
 * R2  A charge that is granted leaves the sum of all charges at most at the budget, and that of a control group at most
 *     at the group's limit, however much the others were granted before.
 * R3  What a pool may charge depends on the slots alone: two processes that read the same file decide the same.
 */
#ifndef LADE_HOST_BUDGET_LEDGER_RULES_H
#define LADE_HOST_BUDGET_LEDGER_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LADEI_LEDGER_MAGIC "LADELDGR"

enum {
  LADEI_LEDGER_VERSION = 2,
  LADEI_LEDGER_HEADER_BYTES = 128,
  LADEI_LEDGER_SLOT_BYTES = 128,
  LADEI_LEDGER_MOST_SLOTS = 8192, /* of a file that lade makes */
  LADEI_LEDGER_TAKEN = 0x544f4c53 /* "SLOT" */
};

typedef struct ladei_ledger_header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint32_t slot_bytes;
  uint32_t most_slots;
  uint64_t made_ns;  /* wall clock; for people */
  uint64_t checksum; /* of all before */
  uint64_t requests; /* times that a pool was refused and asked the others to trim; not in the checksum */
  uint64_t reserved[10];
} ladei_ledger_header;

/* How a pool shares. */
typedef enum ladei_ledger_share {
  LADEI_LEDGER_FIRST_COME = 0,
  LADEI_LEDGER_FAIR = 1,
  LADEI_LEDGER_PART = 2,
  LADEI_LEDGER_SHARES
} ladei_ledger_share;

/* All zero: free. */
typedef struct ladei_ledger_slot {
  uint32_t mark; /* LADEI_LEDGER_TAKEN, or 0 */
  uint32_t share;
  uint64_t bytes;         /* charged */
  uint64_t wanted_bytes;  /* of the last charge, if it was refused; otherwise 0 */
  uint64_t since_ns;      /* wall clock; for people */
  uint64_t total_bytes;   /* the budget, as the pool's options say it; 0: they do not */
  uint64_t default_bytes; /* the budget where no options say it, as the first pool found it */
  uint64_t cap_bytes;     /* the pool's own cap, if its options have it; otherwise 0 */
  uint64_t part_bytes;    /* of share PART */
  uint64_t group_id;      /* control group whose limit is the smallest; 0: none */
  uint64_t group_bytes;   /* bytes that that group may charge */
  uint64_t process_start; /* as /proc/PID/stat has it; for people; of shared memory its id */
  uint32_t process_id;    /* in its own namespace; for people; 0: of shared memory */
  uint32_t namespace_id;  /* inode of that namespace */
  uint32_t pool_id;
  uint32_t local_ranks; /* of share FAIR: pools that there will be at least */
  char command[16];     /* may lack a 0 at its end */
  uint64_t checksum;    /* of all before */
} ladei_ledger_slot;

_Static_assert(sizeof(ladei_ledger_header) == LADEI_LEDGER_HEADER_BYTES, "as docs/formats.md says");
_Static_assert(sizeof(ladei_ledger_slot) == LADEI_LEDGER_SLOT_BYTES, "as docs/formats.md says");

void ladei_ledger_header_make(ladei_ledger_header *out, uint32_t most_slots, uint64_t made_ns);
/* NULL: it is one of this version. Otherwise its error, a static text. */
const char *ladei_ledger_header_check(const ladei_ledger_header *header);

void ladei_ledger_slot_seal(ladei_ledger_slot *slot);
/* Free or sealed, with fields that can be. False: torn, or damaged. */
bool ladei_ledger_slot_is_sound(const ladei_ledger_slot *slot);
static inline bool ladei_ledger_slot_is_taken(const ladei_ledger_slot *slot) { return slot->mark != 0; }
/* Of memory that several pools hold together. For a decision it is a part: nothing else counts it, and fair shares are of the rest. */
static inline bool ladei_ledger_slot_is_shared(const ladei_ledger_slot *slot) {
  return slot->mark != 0 && slot->process_id == 0 && slot->process_start != 0;
}

/* A file's bytes as they were read: their error, a static text; NULL: a ledger of `*out_count` slots, each of which may
 * be unsound. */
const char *ladei_ledger_parse(const void *data, size_t bytes, size_t *out_count);

/* The limit of a charge. */
typedef enum ladei_ledger_limit {
  LADEI_LEDGER_BY_BUDGET,
  LADEI_LEDGER_BY_SHARE, /* the pool's own share or part is used up */
  LADEI_LEDGER_BY_GROUP
} ladei_ledger_limit;

typedef struct ladei_ledger_answer {
  uint64_t budget_bytes;
  uint64_t held_bytes;  /* by all pools, before */
  uint64_t most_bytes;  /* that this pool may hold now */
  uint64_t group_bytes; /* limit of the pool's group; UINT64_MAX: none */
  uint32_t pools;
  ladei_ledger_limit limit;
} ladei_ledger_answer;

/* Bytes that the pool of slot `self`, which is taken, may hold. All slots are sound. */
ladei_ledger_answer ladei_ledger_decide(const ladei_ledger_slot *slots, size_t count, size_t self);

#endif /* LADE_HOST_BUDGET_LEDGER_RULES_H */
