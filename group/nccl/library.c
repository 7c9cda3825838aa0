/* SPDX-License-Identifier: Apache-2.0 */
/* Opens NCCL. Keeps no failure: another path may be tried. */
#include "group/nccl/library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/library_functions.h"

static const ladei_library_function functions[] = {
#define FUNCTION(member, function) LADEI_LIBRARY_FUNCTION(ladei_nccl, member, function),
    LADEI_NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

lade_status ladei_nccl_open(const char *path, ladei_nccl *out) {
  const char *name = path != NULL ? path : LADEI_NCCL_LIBRARY;
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "NCCL: %s", dlerror());
  const char *lacks = ladei_library_functions_find(library, functions, FUNCTIONS, out);
  return lacks == NULL
             ? LADE_OK
             : ladei_error(LADE_ERR_UNSUPPORTED, 0, "NCCL: %s has no %s: version 2.14 or later is needed", name, lacks);
}
