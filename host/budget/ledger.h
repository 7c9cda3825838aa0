/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of pinned memory: one file per user and host, which the pools of all processes charge before they pin, and
 * credit after they unpin. docs/formats.md, "Ledger of pinned memory", has its bytes; ledger_rules.h their meaning.
 *
 *   file lock    (flock())
 *                held for each change: read all slots, decide, write the own one
 *   slot lock    (F_OFD_SETLK, byte LADEI_LEDGER_SLOT_LOCK + i)
 *                held by the pool of slot i from taking it until its end; of memory that pools share, for reading, by each of them
 *
 * Both are locks of the open file, which the kernel releases when the process ends in any way. So a slot whose lock is
 * free has no owner: its charges count no more. Process ids would tell less: they mean nothing in other namespaces, and
 * are given anew. They only say where to look first.
 *
 * The kernel keeps the two kinds apart, and walks all locks of a file's bytes for each question about one. So the file
 * lock, which every change needs, costs the same with thousands of slots; the cost of a slot's lock grows with them,
 * and few are asked for: a few when a pool joins, one in each charge, and many only if the budget would refuse or the
 * file is full.
 *
 * A slot has the bytes that its pool holds, not the changes. So the next write mends a failed one; and a pool that lost
 * the ledger (its file was removed, damaged, cut) takes a slot of a new one with all that it holds.
 *
 * The ledger is no gate: with any error of the file a pool goes on under its own cap. The answer is a fault then, which
 * names the error. The next charge tries again.
 */
#ifndef LADE_HOST_BUDGET_LEDGER_H
#define LADE_HOST_BUDGET_LEDGER_H

#include "host/budget/ledger_calls.h"
#include "host/budget/ledger_rules.h"
#include "lade/status.h"

enum {
  LADEI_LEDGER_PATH_BYTES = 256,
  LADEI_LEDGER_NAME_BYTES = 64, /* of a name, with its 0 */
};

/* Terms of a pool: the fields of a slot that stay. */
typedef struct ladei_ledger_terms {
  uint64_t total_bytes, default_bytes, cap_bytes, part_bytes, group_id, group_bytes;
  uint32_t share; /* ladei_ledger_share */
  uint32_t local_ranks;
  uint32_t pool_id;
  uint32_t most_slots; /* of a file that is made; 0: LADEI_LEDGER_MOST_SLOTS */
} ladei_ledger_terms;

typedef struct ladei_ledger ladei_ledger;

/* A pool's part in memory that several pools hold together. The caller keeps it, with id and bytes set, from ladei_ledger_hold_add() to
 * ladei_ledger_hold_remove(). */
typedef struct ladei_ledger_hold {
  struct ladei_ledger_hold *next;
  uint64_t id;    /* the same in all pools, and in no other memory's; not 0 */
  uint64_t bytes; /* the same in all pools */
  size_t index;   /* of the slot; SIZE_MAX: none yet, or none any more */
} ladei_ledger_hold;

/* How a charge ended. FAULT: the ledger could not be asked; the caller decides by itself. */
typedef enum ladei_ledger_result { LADEI_LEDGER_GRANTED, LADEI_LEDGER_REFUSED, LADEI_LEDGER_FAULT } ladei_ledger_result;

/* The file of a user's ledger: "ROOT/dev/shm/lade-budget-UID" or, with a name, "...-UID-NAME". False: too long. */
bool ladei_ledger_path(const char *root, uint32_t user, const char *name, char out[LADEI_LEDGER_PATH_BYTES]);
/* Letters, digits, '-', '_', '.', not empty, shorter than LADEI_LEDGER_NAME_BYTES. */
bool ladei_ledger_name_is_good(const char *name);

/* A pool's part in the ledger at `path`, which is opened by the first charge. `calls` is borrowed. NULL: no memory. */
ladei_ledger *ladei_ledger_create(const char *path, const ladei_ledger_terms *terms, const ladei_ledger_calls *calls);
/* Gives up the slot. NULL does nothing. */
void ladei_ledger_destroy(ladei_ledger *ledger);

/*
 * Before `bytes` are pinned. A fault counts them, too: they go into the ledger as soon as it can be had. REFUSED leaves
 * the pool's bytes as they are, and asks the others to trim.
 */
ladei_ledger_result ladei_ledger_charge(ladei_ledger *ledger, uint64_t bytes, ladei_ledger_answer *out);
/* After they were unpinned, or a charge whose memory could not be had. */
void ladei_ledger_credit(ladei_ledger *ledger, uint64_t bytes);
/*
 * Charges memory that several pools hold together, once: the first of them brings it into the ledger, if that is granted, and it is there
 * until the last one has called ladei_ledger_hold_remove() or ended in any way. A fault counts it, too, as that of a charge.
 */
ladei_ledger_result ladei_ledger_hold_add(ladei_ledger *ledger, ladei_ledger_hold *hold, ladei_ledger_answer *out);
void ladei_ledger_hold_remove(ladei_ledger *ledger, ladei_ledger_hold *hold);
/* Whether a charge of `bytes` would be granted now; false where the ledger cannot be asked. Nothing changes. */
bool ladei_ledger_leaves(ladei_ledger *ledger, uint64_t bytes);
/* Bytes that others were refused, and ask for, since the last call; 0 at most times, which costs a look at the file and
 * a read of 8 bytes. Also brings bytes that the ledger could not be told before, and those of a file that was removed
 * meanwhile. */
uint64_t ladei_ledger_asked(ladei_ledger *ledger);

/* Facts about it. */
typedef struct ladei_ledger_state {
  bool attached;                        /* the pool has a slot */
  uint64_t held_bytes;                  /* of this pool alone */
  uint64_t shared_bytes;                /* of what it holds with others */
  ladei_ledger_answer answer;           /* the last one; all 0: none yet */
  uint64_t faults;                      /* charges and credits that the ledger could not be told at once */
  char fault[LADEI_LEDGER_FAULT_BYTES]; /* the last one; "": none since the ledger was asked last */
} ladei_ledger_state;
void ladei_ledger_state_get(ladei_ledger *ledger, ladei_ledger_state *out);
/* The fault, if it is another one than at the last call: for a log. False: none, or the same. */
bool ladei_ledger_fault_is_new(ladei_ledger *ledger, char out[LADEI_LEDGER_FAULT_BYTES]);

#endif /* LADE_HOST_BUDGET_LEDGER_H */
