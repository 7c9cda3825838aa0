/* SPDX-License-Identifier: Apache-2.0 */
#include "benchmarks/staging_messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "lade/status.h"

volatile sig_atomic_t staging_interrupted;

static void interrupt(int number) {
  (void)number;
  staging_interrupted = 1;
}

void staging_interrupts_catch(void) {
  struct sigaction action = {.sa_handler = interrupt};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  /* A reader of the output that is gone shows as EPIPE; a file size limit as EFBIG. */
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGXFSZ, &action, NULL);
}

void staging_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%sstaging_throughput: ", isatty(STDERR_FILENO) ? "\r\033[K" : "");
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

void staging_lade_error(const char *what) {
  staging_error("%s: %s (%s)", what, lade_last_error()->text, lade_status_name(lade_last_error()->status));
}
