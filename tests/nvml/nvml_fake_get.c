/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the state of the fake in the library that lade opens, by name. */
#include <dlfcn.h>

#include "tests/nvml/nvml_fake.h"

nvml_fake *nvml_fake_get(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return NULL;
  nvml_fake *fake = dlsym(library, "lade_nvml_fake");
  dlclose(library);
  return fake;
}
