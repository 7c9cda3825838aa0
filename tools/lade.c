/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `lade` command: one subcommand per job.
 *
 * Exit status: that of the subcommand; 2 for a command line that is not understood.
 */
#include <stdio.h>
#include <string.h>

#include "tools/common/subcommand.h"

/* LADE_SUBCOMMANDS(X) is X(load) X(replay) and so on: tools/BUILD makes it of its list. */
#define DECLARE(name) extern const subcommand subcommand_##name;
#define ADDRESS(name) &subcommand_##name,
LADE_SUBCOMMANDS(DECLARE)

static const subcommand *const subcommands[] = {LADE_SUBCOMMANDS(ADDRESS)};

static void usage(FILE *out) {
  fputs("usage: lade COMMAND [ARGUMENT...]\n\ncommands:\n", out);
  for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
    fprintf(out, "  %-10s %s\n", subcommands[i]->name, subcommands[i]->what);
  fputs("\n`lade COMMAND --help` explains it.\n", out);
}

int main(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return 2;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    usage(stdout);
    return 0;
  }
  for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
    if (strcmp(argv[1], subcommands[i]->name) == 0) return subcommands[i]->run(argc - 1, argv + 1);
  fprintf(stderr, "lade: unknown command \"%s\"\n", argv[1]);
  usage(stderr);
  return 2;
}
