/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walking stacks.
 *
 * libunwind is opened apart from the program's symbols (RTLD_LOCAL): it defines a backtrace() of its own, which must
 * not replace the program's. It is never closed, since threads keep caches of it.
 */
#include "history/unwind.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>

#include "base/error.h"
#include "base/library_functions.h"
#include "history/threads.h"

/* ---- Frame pointers ---------------------------------------------------------------------------------------------- */

/* The calling thread's stack; empty if unknown. */
static void stack_find(uintptr_t *low, uintptr_t *high) {
  pthread_attr_t attributes;
  void *begin = NULL;
  size_t bytes = 0;
  *low = *high = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  if (pthread_attr_getstack(&attributes, &begin, &bytes) == 0) {
    *low = (uintptr_t)begin;
    *high = *low + bytes;
  }
  (void)pthread_attr_destroy(&attributes);
}

/* A frame is two words: the calling frame, and the return address. */
static int frames_walk(void **addresses, int most) {
  ladei_history_thread *thread = ladei_history_thread_get();
  uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
  int count = 0;
  if (thread == NULL) return 0;
  if (thread->stack_high == 0) stack_find(&thread->stack_low, &thread->stack_high);
  uintptr_t low = frame < thread->stack_low ? thread->stack_low : frame;
  while (count < most && frame >= low && frame % sizeof frame == 0 && frame + 2 * sizeof frame <= thread->stack_high) {
    const uintptr_t *words = (const uintptr_t *)frame;
    if (words[1] == 0) break;
    addresses[count++] = (void *)words[1];
    low = frame + 2 * sizeof frame;
    frame = words[0];
  }
  return count;
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

static ladei_unwind libunwind_open(void) {
  void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  ladei_unwind function = NULL;
  if (library != NULL) (void)ladei_library_function_find(library, "unw_backtrace", &function);
  return function;
}

static ladei_unwind walker_of(uint32_t method) {
  if (method == LADE_STACKS_LIBUNWIND) return libunwind_open();
  return method == LADE_STACKS_FRAME_POINTERS ? frames_walk : backtrace;
}

lade_status ladei_unwind_choose(uint32_t method, uint32_t *out_method, ladei_unwind *out) {
  void *primed[4];
  ladei_unwind walker = walker_of(method == LADE_STACKS_BEST ? LADE_STACKS_LIBUNWIND : method);
  *out_method = method == LADE_STACKS_BEST ? LADE_STACKS_LIBUNWIND : method;
  if (walker == NULL && method == LADE_STACKS_BEST) {
    walker = backtrace;
    *out_method = LADE_STACKS_BACKTRACE;
  }
  if (walker == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_stacks_create: there is no libunwind.so.8; expected it for %s",
                       "options.method LADE_STACKS_LIBUNWIND");
  (void)walker(primed, 4); /* the first walk may open files and allocate */
  *out = walker;
  return LADE_OK;
}
