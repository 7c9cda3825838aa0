/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a ledger: opening it if it may be trusted, its locks, its bytes. Knows slots and no pools.
 *
 * L1  A file descriptor is used only while it is the file that was opened: a program may close descriptors that are not
 *     its own (closefrom), and another file gets the number.
 * L2  No wait is longer than the patience of its caller while the file stays as it is, and LADEI_LEDGER_QUEUE times
 *     that while others change it.
 * L3  After fork() the child has closed its copies of all descriptors: a copy would keep the locks of a parent that
 *     ended.
 */
#ifndef LADE_HOST_BUDGET_LEDGER_FILE_H
#define LADE_HOST_BUDGET_LEDGER_FILE_H

#include <stdatomic.h>

#include "host/budget/ledger_calls.h"
#include "host/budget/ledger_rules.h"

#define LADEI_LEDGER_SLOT_LOCK (INT64_C(1) << 40)

/*
 * How long a process is waited for that holds the file lock, which takes some microseconds unless it is stopped. A pool
 * that joins waits longer: where thousands of processes start at once, the one that has the lock gets a processor only
 * after all of them have had one. Where the file changes meanwhile no process is stopped: others were first, and are
 * waited for up to LADEI_LEDGER_QUEUE times as long.
 */
#define LADEI_LEDGER_PATIENCE_NS      UINT64_C(500000000)
#define LADEI_LEDGER_JOIN_PATIENCE_NS UINT64_C(2000000000)
#define LADEI_LEDGER_QUEUE            8

/* The open file; part of its user. Its user keeps threads apart. */
typedef struct ladei_ledger_file {
  const ladei_ledger_calls *calls;
  int fd;           /* below 0: not open */
  atomic_bool lost; /* L1: the descriptor is that of another ladei_ledger_file */
  dev_t device;
  ino_t inode;
  char *data; /* the file as read last */
  size_t bytes, room;
  struct ladei_ledger_file *next, *before; /* open files of the process, for L3 */
} ladei_ledger_file;

/* The fault, for people: written by each function that fails, with the path before it. */
typedef struct ladei_ledger_fault {
  char text[LADEI_LEDGER_FAULT_BYTES];
  bool timed_out; /* the file lock was not free */
  bool is_absent; /* there is no such file */
} ladei_ledger_fault;

void ladei_ledger_fault_set(ladei_ledger_fault *fault, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void ladei_ledger_file_init(ladei_ledger_file *file, const ladei_ledger_calls *calls);
/* Opens the file, with `make` makes it where there is none; only a regular file of this user's alone (mode 0600). */
bool ladei_ledger_file_open(ladei_ledger_file *file, const char *path, bool make, ladei_ledger_fault *fault);
/* Locks end. Open or not. */
void ladei_ledger_file_close(ladei_ledger_file *file);
/* L1. Of an open file whose lock was taken. If it was removed, or the descriptor is another file's, it is not open any
 * more (fd); otherwise *out_bytes is its length. False: that is unknown. */
bool ladei_ledger_file_is_there(ladei_ledger_file *file, const char *path, size_t *out_bytes,
                                ladei_ledger_fault *fault);

/* L1. Whether the file was removed, or the descriptor is another file's: as far as can be told, and without its
 * lock. */
bool ladei_ledger_file_is_gone(const ladei_ledger_file *file);

/* Takes the file lock; waits as L2 says. L1: where the program has closed the descriptor, the file is not open any
 * more. */
bool ladei_ledger_file_lock(ladei_ledger_file *file, const char *path, uint64_t patience_ns, ladei_ledger_fault *fault);
void ladei_ledger_file_unlock(ladei_ledger_file *file);
/* Takes a slot's lock, which ends with the file. False: another open file has it. */
bool ladei_ledger_slot_lock(ladei_ledger_file *file, size_t index);
/* The same together with other open files; instead of the lock alone, if that is held. */
bool ladei_ledger_slot_lock_shared(ladei_ledger_file *file, size_t index);
void ladei_ledger_slot_unlock(ladei_ledger_file *file, size_t index);
/* Whether another open file has a slot's lock, alone or with others; where the system does not say, it has. */
bool ladei_ledger_slot_has_owner(ladei_ledger_file *file, size_t index);

/* Before the lock is taken: reads the file, so that memory for it is there and touched when the lock is held. */
void ladei_ledger_file_read_ahead(ladei_ledger_file *file);
/* Reads all of its `bytes`. An empty file gets a header first, with `most_slots`, where that is not 0. */
bool ladei_ledger_file_read(ladei_ledger_file *file, const char *path, size_t bytes, uint32_t most_slots,
                            ladei_ledger_fault *fault);
bool ladei_ledger_slot_write(ladei_ledger_file *file, const char *path, size_t index, const ladei_ledger_slot *slot,
                             ladei_ledger_fault *fault);
/* Makes the file end after its first `count` slots, if possible; those after them are free. The file lock is held. */
void ladei_ledger_file_cut(ladei_ledger_file *file, size_t count);
/* The header's count of requests; as far as it can be had. */
uint64_t ladei_ledger_requests_read(ladei_ledger_file *file);
void ladei_ledger_requests_add(ladei_ledger_file *file);

static inline ladei_ledger_header *ladei_ledger_file_header(ladei_ledger_file *file) {
  return (ladei_ledger_header *)(void *)file->data;
}
static inline ladei_ledger_slot *ladei_ledger_file_slots(ladei_ledger_file *file) {
  return (ladei_ledger_slot *)(void *)(file->data + LADEI_LEDGER_HEADER_BYTES);
}
static inline size_t ladei_ledger_file_count(const ladei_ledger_file *file) {
  return (file->bytes - LADEI_LEDGER_HEADER_BYTES) / LADEI_LEDGER_SLOT_BYTES;
}

#endif /* LADE_HOST_BUDGET_LEDGER_FILE_H */
