/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/symbols.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Looks for the name among those of the sections. */
static bool section_is_there(FILE *file, const Elf64_Ehdr *header, const char *name) {
  Elf64_Shdr names;
  if (header->e_shstrndx == SHN_UNDEF) return false;
  if (fseek(file, (long)(header->e_shoff + (uint64_t)header->e_shstrndx * header->e_shentsize), SEEK_SET) != 0)
    return false;
  if (fread(&names, sizeof names, 1, file) != 1 || fseek(file, (long)names.sh_offset, SEEK_SET) != 0) return false;
  char *texts = malloc(names.sh_size);
  bool found = texts != NULL && fread(texts, names.sh_size, 1, file) == 1 &&
               memmem(texts, names.sh_size, name, strlen(name) + 1) != NULL;
  free(texts);
  return found;
}

bool support_has_symbols(void) {
  Elf64_Ehdr header;
  FILE *file = fopen("/proc/self/exe", "rb");
  if (file == NULL) return false;
  bool found = fread(&header, sizeof header, 1, file) == 1 && section_is_there(file, &header, ".symtab");
  fclose(file);
  return found;
}
