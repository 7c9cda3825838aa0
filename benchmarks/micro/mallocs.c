/* SPDX-License-Identifier: Apache-2.0 */
/* Opening mimalloc: see mallocs.h. */
#include "benchmarks/micro/mallocs.h"

#include <dlfcn.h>
#include <string.h>

#include "benchmarks/messages.h"

void *(*mimalloc_alloc)(size_t bytes);
void (*mimalloc_free)(void *pointer);

bool mimalloc_open(void) {
  if (mimalloc_free != NULL) return true;
  void *library = dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL);
  void *alloc = library == NULL ? NULL : dlsym(library, "mi_malloc");
  void *release = library == NULL ? NULL : dlsym(library, "mi_free");
  if (alloc == NULL || release == NULL) {
    bench_error("mimalloc cannot be opened: %s", dlerror());
    return false;
  }
  memcpy(&mimalloc_alloc, &alloc, sizeof alloc);
  memcpy(&mimalloc_free, &release, sizeof release);
  return true;
}
