/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program without CUDA that looks symbols up, itself and through a third library. Prints what is wrong; exit status 0: nothing.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/preload/looker.h"

static int wrong;

static void expect(int condition, const char *what) {
  if (condition) return;
  printf("wrong: %s\n", what);
  wrong++;
}

/* Who asks decides what RTLD_NEXT is: behind the program comes the third library, behind that the C library. */
static void look_next(void) {
  void *libc = dlopen("libc.so.6", RTLD_NOW);
  void *of_libc = dlsym(libc, "labs");
  void *of_looker = dlsym(RTLD_NEXT, "labs");
  expect(of_libc != NULL && of_looker != NULL && of_looker != of_libc,
         "RTLD_NEXT of the program is the third library's");
  expect(looker_next("labs") == of_libc, "RTLD_NEXT of the third library is the C library's");
  expect(looker_default("labs") == of_looker, "RTLD_DEFAULT is the first in the process");
  expect(dlsym(RTLD_DEFAULT, "labs") == of_looker, "RTLD_DEFAULT of the program is the same");
  expect(looker_next("no_such_function") == NULL && dlerror() != NULL, "a symbol that is nowhere has a text");
  expect(dlvsym(libc, "labs", "NO_SUCH_VERSION") == NULL && dlerror() != NULL, "so has a version that is nowhere");
#ifdef __x86_64__
  expect(dlvsym(libc, "labs", "GLIBC_2.2.5") == of_libc, "dlvsym of a handle");
  expect(looker_next_version("labs", "GLIBC_2.2.5") == of_libc, "dlvsym of RTLD_NEXT is the caller's");
#endif
}

/* There is no driver here: its names are nowhere, also through a handle of the whole program. */
static void look_for_driver(void) {
  void *program = dlopen(NULL, RTLD_NOW);
  expect(dlsym(RTLD_DEFAULT, "cuInit") == NULL && dlerror() != NULL, "no cuInit without a driver");
  expect(looker_default("cuMemHostAlloc") == NULL && dlerror() != NULL, "nor for the third library");
  expect(dlsym(program, "cuGetProcAddress_v2") == NULL && dlerror() != NULL, "nor through the program's handle");
}

int main(void) {
  look_next();
  look_for_driver();
  return wrong == 0 ? 0 : 1;
}
