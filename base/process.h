/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that made an object: a forked child has a copy of it, but not of the driver's threads and contexts.
 *
 * The check costs one load, because every call makes it: getpid() is a system call (249 ns where this was measured, ten
 * times a cached allocation).
 */
#ifndef LADE_BASE_PROCESS_H
#define LADE_BASE_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct ladei_process {
  _Atomic(uint32_t) *mark; /* a page that the kernel clears in children; NULL: it cannot */
  pid_t id;
} ladei_process;

/* Takes the calling process. Cannot fail: without the kernel's help (Linux 4.14) each check is a system call. */
void ladei_process_take(ladei_process *process);
void ladei_process_release(ladei_process *process);

bool ladei_process_compare(const ladei_process *process);

/* Whether the mark says so; false also without a mark. */
static inline bool ladei_process_is_own_by_mark(const ladei_process *process) {
  return process->mark != NULL && atomic_load_explicit(process->mark, memory_order_relaxed) != 0;
}

/* Whether the calling process is the one that was taken. */
static inline bool ladei_process_is_own(const ladei_process *process) {
  return ladei_process_is_own_by_mark(process) || (process->mark == NULL && ladei_process_compare(process));
}

#endif /* LADE_BASE_PROCESS_H */
