/* SPDX-License-Identifier: Apache-2.0 */
/* Model in own_code.h. Locks: none. */
#include "history/own_code.h"

#include <link.h>
#include <string.h>

extern const char __start_lade_text[] __attribute__((weak, visibility("hidden")));
extern const char __stop_lade_text[] __attribute__((weak, visibility("hidden")));

static void range_add(ladei_own_code *own, uintptr_t low, uintptr_t high) {
  if (own->count == LADEI_OWN_CODE_MOST || low >= high) return;
  own->ranges[own->count].low = low;
  own->ranges[own->count++].high = high;
}

/* "libladen.so" is another library. */
static bool path_is_own(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
  return strncmp(name, "_lade.", 6) == 0 || strstr(path, "/lade/torch/_torch_") != NULL ||
         (strncmp(name, "liblade", 7) == 0 && (name[7] == '.' || name[7] == '_') && strstr(name, ".so") != NULL);
}

static int module_see(struct dl_phdr_info *info, size_t bytes, void *user) {
  (void)bytes;
  for (int i = 0; path_is_own(info->dlpi_name) && i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD || (segment->p_flags & PF_X) == 0) continue;
    range_add(user, info->dlpi_addr + segment->p_vaddr, info->dlpi_addr + segment->p_vaddr + segment->p_memsz);
  }
  return 0;
}

void ladei_own_code_find(ladei_own_code *out) {
  *out = (ladei_own_code){.count = 0};
  range_add(out, (uintptr_t)__start_lade_text, (uintptr_t)__stop_lade_text);
  (void)dl_iterate_phdr(module_see, out);
}
