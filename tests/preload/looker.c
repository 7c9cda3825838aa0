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

LOOKER_EXPORT void *looker_next(const char *name) { return dlsym(RTLD_NEXT, name); }
LOOKER_EXPORT void *looker_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }
LOOKER_EXPORT void *looker_next_version(const char *name, const char *version) {
  return dlvsym(RTLD_NEXT, name, version);
}
