/* SPDX-License-Identifier: Apache-2.0 */
/* Opening NCCL. A failure is not kept: another path may be tried. */
#include "group/nccl/library.h"

#include <dlfcn.h>
#include <string.h>

#include "base/error.h"

/* The first function that the library lacks; NULL: it has all. */
static const char *functions_find(void *library, ladei_nccl *out) {
  static const struct {
    const char *name;
    size_t offset;
  } functions[] = {
#define FUNCTION(member, function) {#function, offsetof(ladei_nccl, member)},
      LADEI_NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *function = dlsym(library, functions[i].name);
    if (function == NULL) return functions[i].name;
    memcpy((char *)out + functions[i].offset, &function, sizeof function);
  }
  return NULL;
}

lade_status ladei_nccl_open(const char *path, ladei_nccl *out) {
  const char *name = path != NULL ? path : LADEI_NCCL_LIBRARY;
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "NCCL: %s", dlerror());
  const char *lacks = functions_find(library, out);
  return lacks == NULL
             ? LADE_OK
             : ladei_error(LADE_ERR_UNSUPPORTED, 0, "NCCL: %s has no %s: version 2.14 or later is needed", name, lacks);
}
