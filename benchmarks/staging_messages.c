/* SPDX-License-Identifier: Apache-2.0 */
#include "benchmarks/staging_messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "lade/status.h"

volatile sig_atomic_t staging_interrupted;

static int own_rank = -1;
static char last_message[1024];

void staging_messages_rank(unsigned rank) { own_rank = (int)rank; }

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

/* In one piece, so that lines of several ranks do not mix. */
void staging_error(const char *format, ...) {
  char rank[32] = "";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_message, sizeof last_message, format, arguments);
  va_end(arguments);
  if (own_rank >= 0) snprintf(rank, sizeof rank, "rank %d: ", own_rank);
  fprintf(stderr, "%sstaging_throughput: %s%s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", rank, last_message);
}

const char *staging_last_message(void) { return last_message; }

void staging_lade_error(const char *what) {
  staging_error("%s: %s (%s)", what, lade_last_error()->text, lade_status_name(lade_last_error()->status));
}
