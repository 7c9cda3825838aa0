/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of pinned memory: one file per user and host, which the pools of all processes charge before they pin, and credit
 * after they unpin. docs/formats.md, "Ledger of pinned memory", has its bytes; ledger_rules.h what they mean.
 *
 *   file lock    (flock())                                        held for each change: read all slots, decide, write the own one
 *   slot lock    (F_OFD_SETLK, byte LADEI_LEDGER_SLOT_LOCK + i)   held by the pool of slot i from taking it until its end
 *
 * Both are locks of the open file, which the kernel releases when the process ends, however it ends. So a slot whose lock is
 * free has no owner: what it charges counts no more. Process ids would tell less: they mean nothing in other namespaces, and
 * are given anew. They only say where to look first.
 *
 * The kernel keeps the two kinds apart, and walks all locks of a file's bytes for each question about one. So the file lock,
 * which every change needs, costs the same with thousands of slots; what a slot's lock costs grows with them, and few are asked for:
 * a few where a pool joins, one in each charge, and many only where the budget would refuse or the file is full.
 *
 * A slot says what its pool holds, not what changed. So a write that failed is made good by the next one; and a pool that lost
 * the ledger (its file was removed, damaged, cut) takes a slot of a new one with all that it holds.
 *
 * The ledger is no gate: whatever is wrong with the file, a pool goes on under its own cap. The answer is a fault then, which
 * names what is wrong. The next charge tries again.
 */
#ifndef LADE_HOST_BUDGET_LEDGER_H
#define LADE_HOST_BUDGET_LEDGER_H

#include <sys/stat.h>
#include <sys/types.h>

#include "host/budget/ledger_rules.h"
#include "lade/status.h"

#define LADEI_LEDGER_SLOT_LOCK (INT64_C(1) << 40)

enum {
  LADEI_LEDGER_PATH_BYTES = 256,
  LADEI_LEDGER_NAME_BYTES = 64, /* of a name, with its 0 */
  LADEI_LEDGER_FAULT_BYTES = 400,
};

/*
 * How long a process is waited for that holds the file lock, which takes some microseconds unless it is stopped. Who joins waits
 * longer: where thousands of processes start at once, the one that has the lock gets a processor only after all of them have
 * had one. Where the file changes meanwhile nobody is stopped: others were first, and are waited for up to LADEI_LEDGER_QUEUE
 * times as long.
 */
#define LADEI_LEDGER_PATIENCE_NS      UINT64_C(500000000)
#define LADEI_LEDGER_JOIN_PATIENCE_NS UINT64_C(2000000000)
#define LADEI_LEDGER_QUEUE            8

/* What a ledger asks the system. Tests put faults and other clocks in place of it. Each as the call of its name; failures in
 * errno. */
typedef struct ladei_ledger_calls {
  int (*open)(void *user, const char *path, int flags, mode_t mode);
  int (*close)(void *user, int fd);
  int (*fstat)(void *user, int fd, struct stat *out);
  int (*fchmod)(void *user, int fd, mode_t mode);
  int (*ftruncate)(void *user, int fd, off_t bytes);
  int (*flock)(void *user, int fd, int operation);
  int (*lock)(void *user, int fd, int command, short type, int64_t byte, short *out_type); /* one byte; fcntl */
  ssize_t (*pread)(void *user, int fd, void *data, size_t bytes, off_t offset);
  ssize_t (*pwrite)(void *user, int fd, const void *data, size_t bytes, off_t offset);
  uint64_t (*monotonic_ns)(void *user);
  void (*sleep)(void *user, uint64_t ns);
  void *user;
} ladei_ledger_calls;

extern const ladei_ledger_calls ladei_ledger_system_calls;

/* What a pool says about itself: the fields of a slot that stay. */
typedef struct ladei_ledger_terms {
  uint64_t total_bytes, default_bytes, cap_bytes, part_bytes, group_id, group_bytes;
  uint32_t share; /* ladei_ledger_share */
  uint32_t local_ranks;
  uint32_t pool_id;
  uint32_t most_slots; /* of a file that is made; 0: LADEI_LEDGER_MOST_SLOTS */
} ladei_ledger_terms;

typedef struct ladei_ledger ladei_ledger;

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
 * Before `bytes` are pinned. A fault counts them, too: what it holds goes into the ledger as soon as that can be had. REFUSED
 * changes what the pool holds in nothing, and asks the others to trim.
 */
ladei_ledger_result ladei_ledger_charge(ladei_ledger *ledger, uint64_t bytes, ladei_ledger_answer *out);
/* After they were unpinned, or a charge whose memory could not be had. */
void ladei_ledger_credit(ladei_ledger *ledger, uint64_t bytes);
/* Whether a charge of `bytes` would be granted now; false where the ledger cannot be asked. Nothing changes. */
bool ladei_ledger_leaves(ladei_ledger *ledger, uint64_t bytes);
/* What others were refused, and ask for, since the last call; 0 at most times, which costs a look at the file and a read of 8
 * bytes. Also brings what the ledger could not be told before, and what a file that was removed meanwhile had. */
uint64_t ladei_ledger_asked(ladei_ledger *ledger);

/* What is known of it. */
typedef struct ladei_ledger_state {
  bool attached;                        /* the pool has a slot */
  uint64_t held_bytes;                  /* of this pool */
  ladei_ledger_answer answer;           /* the last one; all 0: none yet */
  uint64_t faults;                      /* charges and credits that the ledger could not be told at once */
  char fault[LADEI_LEDGER_FAULT_BYTES]; /* the last one; "": none since the ledger was asked last */
} ladei_ledger_state;
void ladei_ledger_state_get(ladei_ledger *ledger, ladei_ledger_state *out);
/* The fault, if it is another one than at the last call: for a log. False: none, or the same. */
bool ladei_ledger_fault_is_new(ladei_ledger *ledger, char out[LADEI_LEDGER_FAULT_BYTES]);

/* ---- From outside ------------------------------------------------------------------------------------------------ */

typedef struct ladei_ledger_row {
  ladei_ledger_slot slot; /* taken */
  uint32_t index;
  bool sound;
  bool has_owner; /* its lock is held */
  bool is_orphan; /* its lock is held, by a child of its process, which has ended itself; where that can be told */
} ladei_ledger_row;

typedef struct ladei_ledger_survey {
  ladei_ledger_header header;
  ladei_ledger_row *rows; /* released by ladei_ledger_survey_release */
  size_t count;
  ladei_ledger_answer answer; /* of what has an owner; all 0: none has */
  bool busy;                  /* a process holds the file lock for longer than others wait: read without it */
  size_t released;            /* slots that were released */
  uint64_t released_bytes;
} ladei_ledger_survey;

/*
 * Reads a ledger, and with `release_dead` frees slots that have no owner. LADE_NOT_READY: there is no such file. LADE_ERR_IO: it cannot be
 * opened or read; LADE_ERR_INVALID_ARGUMENT: it is no ledger that pools would take. LADE_ERR_BUSY: nothing can be released now.
 */
lade_status ladei_ledger_survey_take(const char *path, bool release_dead, const ladei_ledger_calls *calls,
                                     ladei_ledger_survey *out);
void ladei_ledger_survey_release(ladei_ledger_survey *survey);

/* A file's bytes as they were read: what is wrong with them, static; NULL: a ledger of `*out_count` slots, each of which may be
 * unsound. For whoever parses one. */
const char *ladei_ledger_parse(const void *data, size_t bytes, size_t *out_count);

#endif /* LADE_HOST_BUDGET_LEDGER_H */
