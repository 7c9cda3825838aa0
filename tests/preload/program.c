/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves the calls of a program.
 *
 * Locks: none.
 */
#include "tests/preload/program.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef struct program_row {
  const char *symbol;
  int version;
  size_t offset;
} program_row;

static const program_row rows[] = {
#define PROGRAM_ROW(field, symbol, version, parameters) {#symbol, version, offsetof(program, field)},
    PROGRAM_CALLS(PROGRAM_ROW)
#undef PROGRAM_ROW
};

/* Symbols that have had another prototype since are asked for at their own version. */
static int version_of(const program_row *row, int version) {
  static const char *const changed[] = {"cuCtxCreate", "cuCtxSynchronize", "cuMemHostGetFlags"};
  for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++)
    if (strcmp(row->symbol, changed[i]) == 0) return row->version;
  return version > row->version ? version : row->version;
}

const char *program_resolve(program *out, program_look_up *first, int version, cuuint64_t flags) {
  void *found = NULL;
  int status = 0;
  program_look_up *look_up;
  if (first("cuGetProcAddress", &found, 12000, flags, &status) != CUDA_SUCCESS || found == NULL)
    return "cuGetProcAddress";
  memcpy(&look_up, &found, sizeof found);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CUresult code = look_up(rows[i].symbol, &found, version_of(&rows[i], version), flags, &status);
    if (code != CUDA_SUCCESS || found == NULL) return rows[i].symbol;
    memcpy((char *)out + rows[i].offset, &found, sizeof found);
  }
  return NULL;
}

program_look_up *program_first_look_up(void) {
  program_look_up *look_up = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *symbol = library == NULL ? NULL : dlsym(library, "cuGetProcAddress_v2");
  memcpy(&look_up, &symbol, sizeof symbol);
  return look_up;
}
