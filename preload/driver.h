/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's own functions that hooks call, and the look-ups that hand out hooks in their place.
 *
 *   program --dlsym("cuGetProcAddress_v2")--> hook_get_proc_address_2 --"cuMemHostAlloc"--> hook_mem_host_alloc
 *   lade, this library                    --> the driver's own functions
 *
 * D1  A hook is handed out only if the driver has the function, and in the prototype of the hook: the driver gives the
 *     same function for the requested version and for the version that the hook was written for.
 * D2  Between ladei_preload_begin() and ladei_preload_end() the calling thread is inside this library or lade: look-ups
 *     are the driver's own, and every hook passes its call on.
 * D3  All functions that hooks call lie in one driver library, the first that was seen. Functions of another one are
 *     handed out as they are.
 * D4  That library stays when the program closes it: hooks call it, and opened again it must be the same.
 * D5  The driver's functions are looked up before a hook is inside any gate: a look-up takes the loader's lock. Another
 *     thread may hold this lock, in a constructor of the program, and wait for the threads inside.
 * Locks: none; a function, once found, stays.
 */
#ifndef LADE_PRELOAD_DRIVER_H
#define LADE_PRELOAD_DRIVER_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "preload/calls.h"

/* The driver's function of a row. DRIVER_CALL never gives NULL: without a driver, or if the driver lacks the function,
 * it gives one that returns CUDA_ERROR_NOT_FOUND. */
#define DRIVER_CALL(field) ((preload_call_##field *)ladei_preload_real(PRELOAD_ROW_##field))
#define DRIVER_HAS(field)  (ladei_preload_real_find(PRELOAD_ROW_##field) != NULL)
void *ladei_preload_real(preload_row row);
void *ladei_preload_real_find(preload_row row);

/* D5. Once there is a driver, the first call looks up everything. */
void ladei_preload_real_find_all(void);

/* The hook for what a look-up by cuGetProcAddress found, or `found`. */
void *ladei_preload_hook_for(const char *symbol, int version, cuuint64_t flags, void *found);
/* The hook for what a look-up by the exported name found in a library, or `found`. */
void *ladei_preload_hook_named(const char *exported, void *found);
/* Whether a driver function of that name has a hook; cheap for names that do not begin with "cu". */
bool ladei_preload_name_known(const char *exported);
/* Whether an address is one of this library's hooks. */
bool ladei_preload_owns(const void *address);

extern _Thread_local int ladei_preload_depth __attribute__((tls_model("initial-exec")));
static inline bool ladei_preload_inside(void) { return ladei_preload_depth != 0; }
static inline void ladei_preload_begin(void) { ladei_preload_depth++; }
static inline void ladei_preload_end(void) {
  assert(ladei_preload_inside()); /* D2 */
  ladei_preload_depth--;
}

/* Calls in between break no capture under way, the thread's own included. */
static inline bool ladei_preload_relax(CUstreamCaptureMode *out_before) {
  *out_before = CU_STREAM_CAPTURE_MODE_RELAXED;
  return DRIVER_CALL(thread_exchange_mode)(out_before) == CUDA_SUCCESS;
}
static inline void ladei_preload_restore(CUstreamCaptureMode before, bool relaxed) {
  if (relaxed) (void)DRIVER_CALL(thread_exchange_mode)(&before);
}

#endif /* LADE_PRELOAD_DRIVER_H */
