/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines of subcommands. */
#include "tools/common/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"

void name_print(FILE *out, const char *name) {
  while (*name != '\0') {
    size_t length = ladei_text_character(name);
    fwrite(length == 0 ? "?" : name, 1, length == 0 ? 1 : length, out);
    name += length == 0 ? 1 : length;
  }
}

/* As it was typed. */
static const char *program = "lade";

void program_name_set(const char *typed) {
  const char *slash = strrchr(typed, '/');
  program = slash == NULL ? typed : slash + 1;
}

const char *program_name(void) { return program; }

/* The name of a command after "lade": "" or " load". */
static const char *command_rest(const char *command) {
  static const char own[] = "lade";
  return strncmp(command, own, sizeof own - 1) == 0 ? command + sizeof own - 1 : NULL;
}

void message_print(const char *command, const char *name, const char *format, ...) {
  va_list arguments;
  const char *rest = command_rest(command);
  fprintf(stderr, "%s%s: ", rest != NULL ? program : command, rest != NULL ? rest : "");
  if (name != NULL) {
    name_print(stderr, name);
    fputs(": ", stderr);
  }
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

int output_end(const char *command, int exit_status) {
  errno = 0;
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return exit_status;
  if (errno == 0 && fputc('\n', stdout) != EOF)
    (void)fflush(stdout); /* stdio forgets why a write failed; one more says it */
  message_print(command, "standard output", "cannot be written: %s",
                errno != 0 ? strerror(errno) : "an earlier write failed");
  return EXIT_FAILED;
}

const char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes / 1024.0;
  size_t unit = 0;
  if (bytes == UINT64_MAX) return strcpy(out, "no limit");
  for (; value >= 999.95 && unit + 1 < sizeof units / sizeof units[0]; unit++) value /= 1024.0;
  if (bytes < 1024)
    snprintf(out, SIZE_TEXT_BYTES, "%u B", (unsigned)bytes);
  else
    snprintf(out, SIZE_TEXT_BYTES, "%.1f %s", value, units[unit]);
  return out;
}

void interval_sleep(double seconds) {
  struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
  }
}

static void parse(const struct argp *argp, char *name, int argc, char **argv, unsigned flags, void *input) {
  static char typed[256]; /* argp keeps it */
  const char *rest = command_rest(name);
  if (rest != NULL && snprintf(typed, sizeof typed, "%s%s", program, rest) < (int)sizeof typed) name = typed;
  argv[0] = name;
  argp_err_exit_status = EXIT_BAD;
  argp_parse(argp, argc, argv, flags, NULL, input);
}

void options_read(const struct argp *argp, char *name, int argc, char **argv, void *input) {
  parse(argp, name, argc, argv, 0, input);
}

void options_read_in_order(const struct argp *argp, char *name, int argc, char **argv, void *input) {
  parse(argp, name, argc, argv, ARGP_IN_ORDER, input);
}

uint64_t option_number(const char *option, const char *argument, uint64_t least, uint64_t most,
                       const struct argp_state *state) {
  char *end;
  errno = 0;
  unsigned long long number = strtoull(argument, &end, 10);
  if (*end != '\0' || *argument < '0' || *argument > '9' || errno != 0 || number < least || number > most)
    argp_error(state, "%s: '%s' is not from %" PRIu64 " to %" PRIu64, option, argument, least, most);
  return number;
}

double option_seconds(const char *option, const char *argument, const struct argp_state *state) {
  char *end;
  double seconds = strtod(argument, &end);
  if (*end != '\0' || !(seconds >= 0.05 && seconds <= 3600))
    argp_error(state, "%s: '%s' is not from 0.05 to 3600", option, argument);
  return seconds;
}

const char *option_runtime_find(const char *text, size_t length) {
  static const char *const names[] = {"cuda", "cpu", "sim"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0) return names[i];
  return NULL;
}

const char *option_runtime(const char *argument, const struct argp_state *state) {
  const char *name = option_runtime_find(argument, strlen(argument));
  if (name == NULL) argp_error(state, "--runtime: '%s' is none of cuda, cpu, sim", argument);
  return name;
}
