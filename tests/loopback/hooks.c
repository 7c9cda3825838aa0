/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the loopback's controls in the driver library that lade opens, by name.
 *
 * Locks: none; a test asks from its main thread.
 */
#include "tests/loopback/hooks.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <string.h>

static PFN_cuGetProcAddress_v12000 get_proc_address;

static void *entry_point(const char *symbol, int version) {
  void *function = NULL;
  CUdriverProcAddressQueryResult found;
  CUresult code = get_proc_address(symbol, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  return code == CUDA_SUCCESS ? function : NULL;
}

static int load(void *library, const char *symbol, void *out_function) {
  void *address = dlsym(library, symbol);
  memcpy(out_function, &address, sizeof address);
  return address != NULL;
}

const loopback_hooks *loopback_hooks_get(void) {
  static loopback_hooks hooks;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return NULL;
  int complete = load(library, "cuGetProcAddress_v2", &get_proc_address);
#define HOOK_LOAD(name) complete &= load(library, "lade_loopback_" #name, &hooks.name);
  LOOPBACK_HOOKS(HOOK_LOAD)
#undef HOOK_LOAD
  hooks.entry_point = entry_point;
  dlclose(library);
  return complete ? &hooks : NULL;
}
