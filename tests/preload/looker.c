/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The third party: RTLD_NEXT means the libraries behind this one.
 */
#include "tests/preload/looker.h"

#include <dlfcn.h>
#include <stdlib.h>

#define LOOKER_EXPORT __attribute__((visibility("default")))

/* Before the C library's: RTLD_NEXT from the program finds this one, from here the C library's. */
LOOKER_EXPORT long labs(long number) { return number; }

/* Who asks is found by the return address: a jump to dlsym() in place of a call would be the program's. */
static void *asked_here(void *found) {
  void *volatile own = found;
  return own;
}

LOOKER_EXPORT void *looker_next(const char *name) { return asked_here(dlsym(RTLD_NEXT, name)); }
LOOKER_EXPORT void *looker_default(const char *name) { return asked_here(dlsym(RTLD_DEFAULT, name)); }
LOOKER_EXPORT void *looker_next_version(const char *name, const char *version) {
  return asked_here(dlvsym(RTLD_NEXT, name, version));
}
