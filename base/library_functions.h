/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of a library that is opened at run time (dlopen), into pointers or a table of them. The caller opens the
 * library and reports a failure; it decides on name, RTLD_NODELETE, and which code may see the symbols.
 *
 *   static const ladei_library_function functions[] = {LADEI_LIBRARY_FUNCTION(nvml_api, init, nvmlInit_v2), ...};
 *   const char *lacks = ladei_library_functions_find(library, functions, count, &table);
 *
 * Threads: any. No error record is written.
 */
#ifndef LADE_BASE_LIBRARY_FUNCTIONS_H
#define LADE_BASE_LIBRARY_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* A member of a table, which points to a function. */
typedef struct ladei_library_function {
  const char *name;
  size_t offset;
} ladei_library_function;

#define LADEI_LIBRARY_FUNCTION(table, member, function)                                                                \
  { #function, offsetof(table, member) }

/* Stores a function's address in the pointer at `out_function`; NULL, and false, if the library does not have it. */
bool ladei_library_function_find(void *library, const char *name, void *out_function);

/* Fills the members of `out_table` in order, up to the first that the library lacks: returns its name; or NULL. */
const char *ladei_library_functions_find(void *library, const ladei_library_function *functions, size_t count,
                                         void *out_table);

#endif /* LADE_BASE_LIBRARY_FUNCTIONS_H */
