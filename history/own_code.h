/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where lade's own code lies, so that a stack begins with the function of the program that called lade, whatever the
 * compiler made of the functions in between, and without any symbol.
 *
 *   shared:  the mappings of liblade.so, liblade_preload.so and other files that are named liblade.* or liblade_*,
 *            and of the Python package's _lade.* and torch/_torch_*
 *   static:  a section of its own, from __start_lade_text to __stop_lade_text: CMakeLists.txt renames the sections of
 *            code in liblade.a, and every linker defines both names
 *
 * A program that holds lade's objects without that section has no range: its stacks begin with lade's functions.
 */
#ifndef LADE_HISTORY_OWN_CODE_H
#define LADE_HISTORY_OWN_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LADEI_OWN_CODE_MOST = 8 };

typedef struct ladei_own_code {
  size_t count;
  struct {
    uintptr_t low, high; /* [low, high) */
  } ranges[LADEI_OWN_CODE_MOST];
} ladei_own_code;

/* Those that are loaded now. No lock held. */
void ladei_own_code_find(ladei_own_code *out);

/* Whether the call that returns to `address` was made there. */
static inline bool ladei_own_code_has(const ladei_own_code *own, const void *address) {
  for (size_t i = 0; i < own->count; i++)
    if ((uintptr_t)address > own->ranges[i].low && (uintptr_t)address <= own->ranges[i].high) return true;
  return false;
}

#endif /* LADE_HISTORY_OWN_CODE_H */
