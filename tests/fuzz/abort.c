/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_fail for libFuzzer programs: it keeps the input of a process that ends in an abort. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

void fuzz_fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  abort();
}
