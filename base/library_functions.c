/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of functions are copied, since C converts no object pointer into a function pointer. Locks: none. */
#include "base/library_functions.h"

#include <dlfcn.h>
#include <string.h>

bool ladei_library_function_find(void *library, const char *name, void *out_function) {
  void *function = dlsym(library, name);
  memcpy(out_function, &function, sizeof function);
  return function != NULL;
}

const char *ladei_library_functions_find(void *library, const ladei_library_function *functions, size_t count,
                                         void *out_table) {
  for (size_t i = 0; i < count; i++)
    if (!ladei_library_function_find(library, functions[i].name, (char *)out_table + functions[i].offset))
      return functions[i].name;
  return NULL;
}
