/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program and all libraries that were ever seen loaded, so that a captured address can be named later.
 *
 * X1  A module is in the set before a stack with one of its addresses is kept, and stays as long as the set.
 * X2  `since` and `until` are counts of loads and unloads at the module's first look, and at the first look without it.
 *     So of two modules that had one address, a search finds the one of the time of capture.
 * Locks: `lock` (LADEI_RANK_LEAF) guards the list. The loader is asked without it: code that runs while a library is
 * loaded may capture stacks.
 */
#ifndef LADE_HISTORY_MODULES_H
#define LADE_HISTORY_MODULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

typedef struct ladei_module {
  struct ladei_module *next;
  uint64_t base, low, high; /* it has the addresses [low, high) */
  uint64_t since;           /* constant, as those above */
  _Atomic(uint64_t) until;  /* UINT64_MAX: loaded at the last look */
  char *path;
  char build_id[2 * 64 + 1]; /* hexadecimal; "": none */
  bool seen;                 /* guard: `lock` */
  void *symbols;             /* guard: the lock of symbols.c */
  bool symbols_tried;
} ladei_module;

typedef struct ladei_modules {
  ladei_lock lock;
  ladei_module *first;
  uint64_t count;
  _Atomic(uint64_t) generation; /* of the last look */
} ladei_modules;

void ladei_modules_init(ladei_modules *modules);
/* The symbols of a module (symbols.h) are closed before. */
void ladei_modules_destroy(ladei_modules *modules);

/* Looks again if there were loads or unloads since; gives the generation. False: there is no memory. No lock held. */
bool ladei_modules_look(ladei_modules *modules, uint64_t *out_generation);
/* Whether the module had the address at a generation. */
static inline bool ladei_module_has(const ladei_module *module, uint64_t address, uint64_t generation) {
  return address >= module->low && address < module->high && module->since <= generation &&
         generation < atomic_load(&module->until);
}
/* The module that had the address at a generation; NULL: none. It stays as long as the set. */
ladei_module *ladei_modules_find(ladei_modules *modules, uint64_t address, uint64_t generation);

#endif /* LADE_HISTORY_MODULES_H */
