/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the controls of the fake in the library that lade opens, too. */
#include <dlfcn.h>
#include <stddef.h>

#include "group/nccl/library.h"
#include "tests/group/nccl_fake.h"

nccl_fake *nccl_fake_get(void) {
  void *library = dlopen(LADEI_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return library != NULL ? dlsym(library, "lade_nccl_fake") : NULL;
}
