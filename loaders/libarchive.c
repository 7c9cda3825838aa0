/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libarchive. A failure is not kept: the package may be installed while the program runs. */
#include "loaders/libarchive.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/library_functions.h"

static const char soname[] = "libarchive.so.13";

static const ladei_library_function functions[] = {
#define FUNCTION(member, function) LADEI_LIBRARY_FUNCTION(ladei_libarchive, member, function),
    LADEI_LIBARCHIVE_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

lade_status ladei_libarchive_open(ladei_libarchive *out) {
  void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "tar shards: %s; it is in the package libarchive13 (Debian) or libarchive (Fedora)", dlerror());
  }
  const char *lacks = ladei_library_functions_find(library, functions, FUNCTIONS, out);
  return lacks == NULL ? LADE_OK
                       : ladei_error(LADE_ERR_UNSUPPORTED, 0,
                                     "tar shards: %s has no %s: version 3.0 or later is needed", soname, lacks);
}
