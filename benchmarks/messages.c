/* SPDX-License-Identifier: Apache-2.0 */
#include "benchmarks/messages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "lade/status.h"

void bench_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s: ", program_invocation_short_name);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

void bench_lade_error(const char *what) { bench_error("%s: %s", what, lade_last_error()->text); }
