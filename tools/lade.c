/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `lade` command: one subcommand per job.
 *
 * Exit status: that of the subcommand; 2 for a command line that is not understood.
 */
#include <stdio.h>
#include <string.h>

#include "tools/load/command.h"
#include "tools/replay/command.h"
#include "tools/save/command.h"
#include "tools/settings/command.h"
#include "tools/topo/command.h"

typedef struct subcommand {
  const char *name;
  const char *what;
  int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name */
} subcommand;

static const subcommand subcommands[] = {
    {"load", "load checkpoints and other files to device memory, with rate and verification", command_load},
    {"replay", "replay an allocation trace, and try other settings on it", command_replay},
    {"save", "save a checkpoint from device memory, in one file or several", command_save},
    {"settings", "show the keys of settings as text: values, defaults, effects", command_settings},
    {"topo", "show devices, NUMA nodes and limits as a pinned pool sees them", command_topo},
};

static void usage(FILE *out) {
  fputs("usage: lade COMMAND [ARGUMENT...]\n\ncommands:\n", out);
  for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++) {
    fprintf(out, "  %-10s %s\n", subcommands[i].name, subcommands[i].what);
  }
  fputs("\n`lade COMMAND --help` tells more.\n", out);
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
  for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++) {
    if (strcmp(argv[1], subcommands[i].name) == 0) return subcommands[i].run(argc - 1, argv + 1);
  }
  fprintf(stderr, "lade: unknown command \"%s\"\n", argv[1]);
  usage(stderr);
  return 2;
}
