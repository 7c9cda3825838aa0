/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of calls.h as data, the driver's function of each, and the choice of a hook.
 *
 * Locks: none. Two threads that look up one function find the same address and store it twice.
 */
#include "preload/driver.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "preload/libc_symbols.h"
#include "preload/settings.h"

enum { FLAVOUR_LEGACY = 1, FLAVOUR_PER_THREAD = 2 }; /* CU_GET_PROC_ADDRESS_LEGACY_STREAM, _PER_THREAD_DEFAULT_STREAM */
enum { GROUP_CALLED, GROUP_ALWAYS, GROUP_WATCH, GROUP_DEVICE };

typedef struct driver_row {
  const char *symbol;
  const char *exported;
  int since;
  int flavour;
  int group;
  void *hook; /* NULL: called only */
} driver_row;

static const driver_row rows[PRELOAD_ROWS] = {
#define CALLED_ROW(field, symbol, since, exported, parameters)                                                         \
  {symbol, exported, since, FLAVOUR_LEGACY, GROUP_CALLED, NULL},
    PRELOAD_CALLS(CALLED_ROW)
#undef CALLED_ROW
#define HOOK_ROW(field, symbol, since, exported, flavour, group, parameters)                                           \
  {symbol, exported, since, FLAVOUR_##flavour, GROUP_##group, (void *)hook_##field},
        PRELOAD_HOOKS(HOOK_ROW)
#undef HOOK_ROW
};

static _Atomic(void *) reals[PRELOAD_ROWS];
static _Atomic(void *) driver_base; /* D3: where the driver library begins */

_Thread_local int ladei_preload_depth __attribute__((tls_model("initial-exec")));

/* ---- The driver's own functions ---------------------------------------------------------------------------------- */

/* Called with any arguments: on both processors a caller may pass more than the callee takes. */
static CUresult driver_lacks(void) { return CUDA_ERROR_NOT_FOUND; }

/* D4. A failure here leaves no text for dlerror(), as the program's look-up has succeeded. */
static void library_keep(const char *path) {
  void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
  if (library != NULL)
    dlclose(library);
  else
    (void)dlerror();
}

/* D3: the driver library is the first library in which a function of the driver is found. */
static bool of_driver(void *function) {
  Dl_info object;
  void *none = NULL;
  if (dladdr(function, &object) == 0) return false;
  if (!atomic_compare_exchange_strong(&driver_base, &none, object.dli_fbase)) return none == object.dli_fbase;
  library_keep(object.dli_fname);
  return true;
}

static void *driver_library(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
  return library != NULL ? library : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

/* From the driver that the program was linked with; otherwise from libcuda.so.1. */
static void *exported_find(const char *exported) {
  void *found = ladei_preload_dlsym(RTLD_NEXT, exported);
  if (found != NULL) return found;
  void *library = driver_library();
  if (library == NULL) return NULL;
  found = ladei_preload_dlsym(library, exported);
  dlclose(library); /* RTLD_NODELETE keeps it in place */
  return found;
}

static void *exported_real(preload_row row) {
  void *found = atomic_load_explicit(&reals[row], memory_order_acquire);
  if (found == NULL) {
    found = exported_find(rows[row].exported);
    assert(found != rows[row].hook || found == NULL); /* D2: otherwise it would call itself */
    if (found != NULL && of_driver(found)) atomic_store_explicit(&reals[row], found, memory_order_release);
  }
  return found;
}

/* By the driver's own look-up, at a version; NULL: not there. */
static void *versioned_find(const char *symbol, int version, cuuint64_t flags) {
  preload_call_get_proc_address_2 *newer =
      (preload_call_get_proc_address_2 *)exported_real(PRELOAD_ROW_get_proc_address_2);
  preload_call_get_proc_address *older = (preload_call_get_proc_address *)exported_real(PRELOAD_ROW_get_proc_address);
  void *found = NULL;
  int status = 0;
  if (newer != NULL) return newer(symbol, &found, version, flags, &status) == CUDA_SUCCESS ? found : NULL;
  return older != NULL && older(symbol, &found, version, flags) == CUDA_SUCCESS ? found : NULL;
}

static void *real_look_up(preload_row row) {
  const driver_row *wanted = &rows[row];
  void *found = versioned_find(wanted->symbol, wanted->since, (cuuint64_t)wanted->flavour);
  return found != NULL ? found : exported_find(wanted->exported);
}

void *ladei_preload_real_find(preload_row row) {
  void *found = atomic_load_explicit(&reals[row], memory_order_acquire);
  if (found != NULL) return found == (void *)driver_lacks ? NULL : found;
  if (row == PRELOAD_ROW_get_proc_address || row == PRELOAD_ROW_get_proc_address_2) return exported_real(row);
  ladei_preload_begin();
  found = real_look_up(row);
  ladei_preload_end();
  /* A loaded driver that lacks the function will not get it later. */
  if (found == NULL && atomic_load(&driver_base) != NULL) found = (void *)driver_lacks;
  if (found != NULL) atomic_store_explicit(&reals[row], found, memory_order_release);
  return found == (void *)driver_lacks ? NULL : found;
}

void *ladei_preload_real(preload_row row) {
  void *found = atomic_load_explicit(&reals[row], memory_order_acquire);
  if (found == NULL) found = ladei_preload_real_find(row);
  return found != NULL ? found : (void *)driver_lacks;
}

/* Concurrent threads all look up the functions: waiting for another thread could deadlock on the loader's lock. */
void ladei_preload_real_find_all(void) {
  static atomic_bool done;
  if (atomic_load_explicit(&done, memory_order_acquire)) return;
  for (int row = 0; row < PRELOAD_ROWS; row++) (void)ladei_preload_real_find((preload_row)row);
  if (atomic_load(&driver_base) != NULL) atomic_store_explicit(&done, true, memory_order_release);
}

/* ---- Hooks ------------------------------------------------------------------------------------------------------- */

static bool group_enabled(int group) {
  const preload_settings *settings = ladei_preload_settings();
  if (group == GROUP_WATCH) return settings->mode == PRELOAD_FAST;
  if (group == GROUP_DEVICE) return settings->device != PRELOAD_DEVICE_OFF;
  return group == GROUP_ALWAYS;
}

/* In mode off look-ups find the driver's own functions, except cuInit, whose hook reports a wrong setting. */
static bool row_enabled(preload_row row) {
  if (rows[row].hook == NULL) return false;
  if (ladei_preload_settings()->mode == PRELOAD_OFF)
    return row == PRELOAD_ROW_init || row == PRELOAD_ROW_get_proc_address || row == PRELOAD_ROW_get_proc_address_2;
  return group_enabled(rows[row].group);
}

/* The hook of a row, if it is enabled; `found` becomes the function that the hook calls, if none was known before. */
static void *hook_take(preload_row row, void *found) {
  void *none = NULL;
  if (!row_enabled(row) || !of_driver(found)) return found; /* D3 */
  atomic_compare_exchange_strong(&reals[row], &none, found);
  return rows[row].hook;
}

/* Most symbols are the same for per-thread streams, and have no second row. */
static int row_flavour(const char *symbol, cuuint64_t flags) {
  for (int row = 0; row < PRELOAD_ROWS && (flags & FLAVOUR_PER_THREAD) != 0; row++)
    if (rows[row].flavour == FLAVOUR_PER_THREAD && strcmp(rows[row].symbol, symbol) == 0) return FLAVOUR_PER_THREAD;
  return FLAVOUR_LEGACY;
}

/* The row whose prototype cuGetProcAddress gives at a version; PRELOAD_ROWS: none. */
static preload_row row_at(const char *symbol, int version, int flavour) {
  preload_row best = PRELOAD_ROWS;
  for (int row = 0; row < PRELOAD_ROWS; row++)
    if (rows[row].hook != NULL && rows[row].flavour == flavour && rows[row].since <= version &&
        strcmp(rows[row].symbol, symbol) == 0 && (best == PRELOAD_ROWS || rows[row].since > rows[best].since))
      best = (preload_row)row;
  return best;
}

void *ladei_preload_hook_for(const char *symbol, int version, cuuint64_t flags, void *found) {
  if (symbol[0] != 'c' || symbol[1] != 'u') return found;
  preload_row row = row_at(symbol, version, row_flavour(symbol, flags));
  if (row == PRELOAD_ROWS) return ladei_preload_hook_named(symbol, found); /* asked by the exported name */
  /* D1: a later prototype that this library does not know is another function. */
  if (rows[row].since != version && versioned_find(symbol, rows[row].since, flags) != found) return found;
  return hook_take(row, found);
}

static preload_row row_named(const char *exported) {
  for (int row = 0; row < PRELOAD_ROWS; row++)
    if (rows[row].hook != NULL && strcmp(rows[row].exported, exported) == 0) return (preload_row)row;
  return PRELOAD_ROWS;
}

void *ladei_preload_hook_named(const char *exported, void *found) {
  preload_row row = row_named(exported);
  return row == PRELOAD_ROWS ? found : hook_take(row, found);
}

bool ladei_preload_name_known(const char *exported) { return row_named(exported) != PRELOAD_ROWS; }

bool ladei_preload_owns(const void *address) {
  for (int row = 0; row < PRELOAD_ROWS; row++)
    if (address != NULL && rows[row].hook == address) return true;
  return false;
}

/* ---- Look-ups by the program ------------------------------------------------------------------------------------- */

static void look_up_replace(const char *symbol, void **out, int version, cuuint64_t flags) {
  if (symbol == NULL || out == NULL || *out == NULL || ladei_preload_inside()) return;
  *out = ladei_preload_hook_for(symbol, version, flags, *out);
}

CUresult hook_get_proc_address(const char *symbol, void **out, int version, cuuint64_t flags) {
  CUresult code = DRIVER_CALL(get_proc_address)(symbol, out, version, flags);
  if (code == CUDA_SUCCESS) look_up_replace(symbol, out, version, flags);
  return code;
}

CUresult hook_get_proc_address_2(const char *symbol, void **out, int version, cuuint64_t flags, void *status) {
  CUresult code = DRIVER_CALL(get_proc_address_2)(symbol, out, version, flags, status);
  if (code == CUDA_SUCCESS) look_up_replace(symbol, out, version, flags);
  return code;
}
