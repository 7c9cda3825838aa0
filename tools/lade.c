/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `lade` command: one subcommand per job.
 *
 * Exit status: that of the subcommand; 1 if standard output did not take all of it; 2 for a bad command line or
 * LADE_LOG.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/environment.h"
#include "lade/status.h"
#include "tools/common/options.h"
#include "tools/common/subcommand.h"

/* LADE_SUBCOMMANDS(X) is X(load) X(replay) and so on: tools/BUILD makes it of its list. */
#define DECLARE(name) extern const subcommand subcommand_##name;
#define ADDRESS(name) &subcommand_##name,
LADE_SUBCOMMANDS(DECLARE)

static const subcommand *const subcommands[] = {LADE_SUBCOMMANDS(ADDRESS)};

static const subcommand *subcommand_find(const char *name) {
  for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
    if (strcmp(name, subcommands[i]->name) == 0) return subcommands[i];
  return NULL;
}

static bool is_one_of(const char *word, const char *a, const char *b) {
  return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

static void usage(FILE *out) {
  fprintf(out, "usage: %s COMMAND [ARGUMENT...]\n\ncommands:\n", program_name());
  for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
    fprintf(out, "  %-10s %s\n", subcommands[i]->name, subcommands[i]->what);
  fprintf(out, "\n`%s COMMAND --help` or `%s help COMMAND` explains it; `%s --version` prints the version.\n",
          program_name(), program_name(), program_name());
}

static int unknown(const char *name) {
  fprintf(stderr, "%s: unknown command \"%s\"\n", program_name(), name);
  usage(stderr);
  return 2;
}

static int help(const char *name) {
  char option[] = "--help";
  char *arguments[] = {(char[]){"lade"}, option, NULL};
  if (name == NULL) {
    usage(stdout);
    return 0;
  }
  const subcommand *found = subcommand_find(name);
  return found != NULL ? found->run(2, arguments) : unknown(name);
}

/* With the log that LADE_LOG asks for. */
static int subcommand_run(const subcommand *found, int argc, char **argv) {
  if (ladei_environment_apply() == LADE_OK) return found->run(argc, argv);
  fprintf(stderr, "lade: %s\n", lade_last_error()->text);
  return 2;
}

/* The library's, which may be another than that of the headers. */
static int version(void) {
  uint32_t v = lade_version();
  printf("lade %u.%u.%u\n", v / 1000000, v / 1000 % 1000, v % 1000);
  return 0;
}

static int command_run(int argc, char **argv) {
  if (argc > 0) program_name_set(argv[0]);
  if (argc < 2) {
    usage(stderr);
    return 2;
  }
  bool is_help = strcmp(argv[1], "help") == 0, is_version = is_one_of(argv[1], "--version", "-V");
  if (is_help || is_version || is_one_of(argv[1], "--help", "-h")) {
    int words = is_help ? 3 : 2;
    if (argc > words) {
      message_print("lade", argv[words], "is one word too many after %s", argv[1]);
      return EXIT_BAD;
    }
    return is_version ? version() : help(argc > 2 ? argv[2] : NULL);
  }
  const subcommand *found = subcommand_find(argv[1]);
  return found != NULL ? subcommand_run(found, argc - 1, argv + 1) : unknown(argv[1]);
}

/* A subcommand's --help ends the program within argp. */
static bool returned;

static void help_end(void) {
  if (!returned && output_end("lade", EXIT_FINE) != EXIT_FINE) _exit(EXIT_FAILED);
}

int main(int argc, char **argv) {
  (void)atexit(help_end);
  int status = command_run(argc, argv);
  if (status == EXIT_FINE) status = output_end("lade", status); /* a failed command has printed its message */
  returned = true;
  return status;
}
