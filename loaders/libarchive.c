/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libarchive. A failure is not kept: the package may be installed while the program runs. */
#include "loaders/libarchive.h"

#include <dlfcn.h>
#include <string.h>

#include "base/error.h"

static const char soname[] = "libarchive.so.13";

/* The first function that the library lacks; NULL: it has all. */
static const char *functions_find(void *library, ladei_libarchive *out) {
  static const struct {
    const char *name;
    size_t offset;
  } functions[] = {
#define FUNCTION(member, function) {#function, offsetof(ladei_libarchive, member)},
      LADEI_LIBARCHIVE_FUNCTIONS(FUNCTION)
#undef FUNCTION
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *function = dlsym(library, functions[i].name);
    if (function == NULL) return functions[i].name;
    memcpy((char *)out + functions[i].offset, &function, sizeof function);
  }
  return NULL;
}

lade_status ladei_libarchive_open(ladei_libarchive *out) {
  void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "tar shards: %s; it is in the package libarchive13 (Debian) or libarchive (Fedora)", dlerror());
  }
  const char *lacks = functions_find(library, out);
  return lacks == NULL ? LADE_OK
                       : ladei_error(LADE_ERR_UNSUPPORTED, 0,
                                     "tar shards: %s has no %s: version 3.0 or later is needed", soname, lacks);
}
