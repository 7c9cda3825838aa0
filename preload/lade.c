/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens liblade.so.0: the file that LADE_PRELOAD_LIBRARY names, otherwise the one beside this library, otherwise the
 * one that the loader finds.
 *
 * I1  Only this library sees its symbols (RTLD_LOCAL), and it stays loaded (docs/design.md, "Unloading").
 * Locks: none; one thread changes `state` to LIBRARY_OPENING, and opens.
 */
#include "preload/lade.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "preload/driver.h"
#include "preload/libc_symbols.h"
#include "preload/settings.h"

#define LIBRARY_NAME "liblade.so.0"

static preload_lade functions;
enum { LIBRARY_CLOSED, LIBRARY_OPENING, LIBRARY_OPEN, LIBRARY_MISSING };
static atomic_int state = LIBRARY_CLOSED;

static void *library_open(void) {
  char path[4096];
  Dl_info own;
  if (ladei_preload_settings()->library != NULL)
    return dlopen(ladei_preload_settings()->library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const char *slash = dladdr(&functions, &own) != 0 && own.dli_fname != NULL ? strrchr(own.dli_fname, '/') : NULL;
  if (slash != NULL && (size_t)(slash - own.dli_fname) < sizeof path - sizeof "/" LIBRARY_NAME) {
    snprintf(path, sizeof path, "%.*s/" LIBRARY_NAME, (int)(slash - own.dli_fname), own.dli_fname);
    void *beside = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (beside != NULL) return beside;
  }
  return dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static bool functions_load(void *library) {
  void *address;
#define FUNCTION_LOAD(name)                                                                                            \
  address = ladei_preload_dlsym(library, #name);                                                                       \
  if (address == NULL) return false;                                                                                   \
  memcpy(&functions.name, &address, sizeof address);
  PRELOAD_LADE_FUNCTIONS(FUNCTION_LOAD)
#undef FUNCTION_LOAD
  return true;
}

static int library_load(void) {
  ladei_preload_begin();
  void *library = library_open();
  int outcome = library != NULL && functions_load(library) ? LIBRARY_OPEN : LIBRARY_MISSING;
  if (outcome == LIBRARY_MISSING) {
    const char *why = dlerror();
    fprintf(stderr, "liblade_preload: %s; all memory is the driver's\n", why != NULL ? why : LIBRARY_NAME);
  }
  ladei_preload_end();
  return outcome;
}

const preload_lade *ladei_preload_lade(bool *out_busy) {
  int closed = LIBRARY_CLOSED;
  if (atomic_compare_exchange_strong(&state, &closed, LIBRARY_OPENING)) atomic_store(&state, library_load());
  *out_busy = atomic_load(&state) == LIBRARY_OPENING;
  return atomic_load(&state) == LIBRARY_OPEN ? &functions : NULL;
}
