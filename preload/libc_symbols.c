/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks a function up in the dynamic symbol tables of libc.so.6 and libdl.so.2.
 *
 * I1  Reads only memory that the loader has mapped and relocated. The number of symbols comes from a hash table, since
 *     the symbol table does not mark its end.
 * Locks: the loader's own, inside dl_iterate_phdr().
 */
#include "preload/libc_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct libc_search {
  const char *name;
  void *found;
} libc_search;

typedef struct libc_tables {
  const ElfW(Sym) * symbols;
  const char *names;
  const uint32_t *gnu_hash;
  const uint32_t *hash; /* the older one: bucket count, chain count */
} libc_tables;

static bool is_searched(const char *path) {
  const char *slash = path == NULL ? NULL : strrchr(path, '/');
  const char *base = slash == NULL ? path : slash + 1;
  return base != NULL && (strcmp(base, "libc.so.6") == 0 || strcmp(base, "libdl.so.2") == 0);
}

/* glibc relocates the pointers of a dynamic section in place; a value below the base is not relocated. */
static const void *table_at(ElfW(Addr) base, ElfW(Addr) value) {
  return (const void *)(value < base ? base + value : value); /* NOLINT: addresses of the loader */
}

static libc_tables tables_of(const struct dl_phdr_info *object) {
  libc_tables tables = {NULL, NULL, NULL, NULL};
  const ElfW(Dyn) *entry = NULL;
  for (int i = 0; i < object->dlpi_phnum && entry == NULL; i++)
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
    const void *table = table_at(object->dlpi_addr, entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) tables.symbols = table;
    if (entry->d_tag == DT_STRTAB) tables.names = table;
    if (entry->d_tag == DT_GNU_HASH) tables.gnu_hash = table;
    if (entry->d_tag == DT_HASH) tables.hash = table;
  }
  return tables;
}

/* The GNU hash table lists symbols bucket by bucket; the last of the last chain is the last symbol. */
static uint32_t gnu_symbol_count(const uint32_t *hash) {
  uint32_t bucket_count = hash[0], first = hash[1], bloom_words = hash[2];
  const uint32_t *buckets = hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chains = buckets + bucket_count;
  uint32_t last = 0;
  for (uint32_t i = 0; i < bucket_count; i++) last = buckets[i] > last ? buckets[i] : last;
  if (last < first) return first;
  while ((chains[last - first] & 1) == 0) last++;
  return last + 1;
}

static int search_object(struct dl_phdr_info *object, size_t bytes, void *user) {
  libc_search *search = user;
  (void)bytes;
  if (!is_searched(object->dlpi_name)) return 0;
  libc_tables tables = tables_of(object);
  if (tables.symbols == NULL || tables.names == NULL) return 0;
  uint32_t count = tables.hash != NULL       ? tables.hash[1]
                   : tables.gnu_hash != NULL ? gnu_symbol_count(tables.gnu_hash)
                                             : 0;
  for (uint32_t i = 0; i < count && search->found == NULL; i++) {
    const ElfW(Sym) *symbol = &tables.symbols[i];
    if (symbol->st_shndx != SHN_UNDEF && (symbol->st_info & 0xf) == STT_FUNC &&
        strcmp(tables.names + symbol->st_name, search->name) == 0)
      search->found = (void *)(object->dlpi_addr + symbol->st_value);
  }
  return search->found != NULL;
}

void *ladei_preload_libc_symbol(const char *name) {
  libc_search search = {name, NULL};
  dl_iterate_phdr(search_object, &search);
  return search.found;
}

void *ladei_preload_dlsym(void *handle, const char *name) {
  typedef void *dlsym_function(void *, const char *);
  static _Atomic(void *) found;
  void *function = atomic_load_explicit(&found, memory_order_relaxed);
  if (function == NULL) {
    function = ladei_preload_libc_symbol("dlsym");
    atomic_store_explicit(&found, function, memory_order_relaxed);
  }
  return function == NULL ? NULL : ((dlsym_function *)function)(handle, name);
}
