/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules; model in modules.h.
 */
#include "history/modules.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Result of one look. */
typedef struct look {
  ladei_module *first;
  uint64_t generation;
  bool short_of_memory;
} look;

static void module_destroy(ladei_module *module) {
  free(module->path);
  free(module);
}

static void list_destroy(ladei_module *module) {
  while (module != NULL) {
    ladei_module *next = module->next;
    module_destroy(module);
    module = next;
  }
}

void ladei_modules_init(ladei_modules *modules) {
  *modules = (ladei_modules){.first = NULL};
  atomic_init(&modules->generation, UINT64_MAX);
  ladei_lock_init(&modules->lock, LADEI_RANK_LEAF);
}

void ladei_modules_destroy(ladei_modules *modules) {
  list_destroy(modules->first);
  ladei_lock_destroy(&modules->lock);
}

/* ---- A look ------------------------------------------------------------------------------------------------------ */

static void build_id_write(const unsigned char *id, size_t bytes, ladei_module *out) {
  if (bytes > (sizeof out->build_id - 1) / 2) bytes = (sizeof out->build_id - 1) / 2;
  for (size_t i = 0; i < bytes; i++) snprintf(&out->build_id[2 * i], 3, "%02x", id[i]);
}

static size_t note_align(size_t bytes) { return (bytes + 3) & ~(size_t)3; }

/* Reads the build id from the notes of a loaded segment. */
static void build_id_read(const char *notes, size_t bytes, ladei_module *out) {
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    memcpy(&note, notes, sizeof note);
    size_t name = sizeof note, text = name + note_align(note.n_namesz), end = text + note_align(note.n_descsz);
    if (end > bytes) return;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes + name, "GNU", 4) == 0)
      build_id_write((const unsigned char *)notes + text, note.n_descsz, out);
    notes += end;
    bytes -= end;
  }
}

static void segments_read(const struct dl_phdr_info *info, ladei_module *out) {
  out->low = UINT64_MAX;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    uint64_t begin = info->dlpi_addr + segment->p_vaddr, end = begin + segment->p_memsz;
    if (segment->p_type == PT_LOAD && begin < out->low) out->low = begin;
    if (segment->p_type == PT_LOAD && end > out->high) out->high = end;
    if (segment->p_type == PT_NOTE) build_id_read((const char *)(uintptr_t)begin, segment->p_memsz, out);
  }
}

/* The loader has no name for the program, and relative names for some libraries, which a chdir() makes wrong. */
static char *path_of(const struct dl_phdr_info *info, bool is_first) {
  bool is_relative = info->dlpi_name[0] != '/' && strchr(info->dlpi_name, '/') != NULL;
  char *absolute = is_relative ? realpath(info->dlpi_name, NULL) : NULL;
  if (absolute != NULL) return absolute;
  if (!is_first || info->dlpi_name[0] != '\0') return strdup(info->dlpi_name);
  char *path = realpath("/proc/self/exe", NULL);
  return path != NULL ? path : strdup("");
}

static int module_see(struct dl_phdr_info *info, size_t bytes, void *user) {
  look *l = user;
  (void)bytes;
  l->generation = info->dlpi_adds + info->dlpi_subs;
  ladei_module *module = calloc(1, sizeof *module);
  if (module != NULL) module->path = path_of(info, l->first == NULL);
  if (module == NULL || module->path == NULL) {
    free(module);
    l->short_of_memory = true;
    return 1;
  }
  module->base = info->dlpi_addr;
  segments_read(info, module);
  module->next = l->first;
  l->first = module;
  return 0;
}

static bool modules_equal(const ladei_module *a, const ladei_module *b) {
  return a->base == b->base && a->low == b->low && a->high == b->high && strcmp(a->path, b->path) == 0 &&
         strcmp(a->build_id, b->build_id) == 0;
}

/* Moves new modules out of the look's list. Lock held. */
static void look_merge(ladei_modules *modules, look *l) {
  for (ladei_module *known = modules->first; known != NULL; known = known->next) known->seen = false;
  for (ladei_module **link = &l->first; *link != NULL;) {
    ladei_module *module = *link, *known = modules->first;
    while (known != NULL && !(atomic_load(&known->until) == UINT64_MAX && modules_equal(known, module)))
      known = known->next;
    if (known != NULL) {
      known->seen = true;
      link = &module->next;
      continue;
    }
    *link = module->next;
    module->since = l->generation;
    module->seen = true;
    atomic_init(&module->until, UINT64_MAX);
    module->next = modules->first;
    modules->first = module;
    modules->count++;
  }
  for (ladei_module *known = modules->first; known != NULL; known = known->next)
    if (!known->seen && atomic_load(&known->until) == UINT64_MAX) atomic_store(&known->until, l->generation);
  atomic_store(&modules->generation, l->generation);
}

static int generation_see(struct dl_phdr_info *info, size_t bytes, void *user) {
  (void)bytes;
  *(uint64_t *)user = info->dlpi_adds + info->dlpi_subs;
  return 1;
}

bool ladei_modules_look(ladei_modules *modules, uint64_t *out_generation) {
  look l = {.first = NULL};
  ladei_lock_assert_none_held();
  (void)dl_iterate_phdr(generation_see, out_generation);
  if (atomic_load(&modules->generation) == *out_generation) return true;
  (void)dl_iterate_phdr(module_see, &l);
  *out_generation = l.generation;
  if (!l.short_of_memory) {
    ladei_lock_acquire(&modules->lock);
    uint64_t known = atomic_load(&modules->generation);
    if (known == UINT64_MAX || known < l.generation) look_merge(modules, &l);
    ladei_lock_release(&modules->lock);
  }
  list_destroy(l.first);
  return !l.short_of_memory;
}

ladei_module *ladei_modules_find(ladei_modules *modules, uint64_t address, uint64_t generation) {
  ladei_lock_acquire(&modules->lock);
  ladei_module *module = modules->first;
  while (module != NULL && !ladei_module_has(module, address, generation)) module = module->next;
  ladei_lock_release(&modules->lock);
  return module;
}
