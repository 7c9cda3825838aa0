/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of threads: see thread_key.h. Locks: none. */
#include "base/thread_key.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Opens the library's own file once more, and never closes it. The program itself has no name. */
static void file_keep(void) {
  Dl_info info;
  struct link_map *file = NULL;
  if (dladdr1(&once, &info, (void **)&file, RTLD_DL_LINKMAP) != 0 && file != NULL && file->l_name[0] != '\0')
    (void)dlopen(file->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

void ladei_stay_loaded(void) { (void)pthread_once(&once, file_keep); }

int ladei_thread_key_create(pthread_key_t *out, void (*at_exit)(void *value)) {
  ladei_stay_loaded();
  return pthread_key_create(out, at_exit);
}
