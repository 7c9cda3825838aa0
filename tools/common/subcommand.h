/* SPDX-License-Identifier: Apache-2.0 */
/* A subcommand of `lade`. tools/NAME/command.c defines subcommand_NAME; tools/BUILD lists the names. */
#ifndef LADE_TOOLS_COMMON_SUBCOMMAND_H
#define LADE_TOOLS_COMMON_SUBCOMMAND_H

typedef struct subcommand {
  const char *name;
  const char *what;                  /* one line for `lade --help` */
  int (*run)(int argc, char **argv); /* argv[0] is the name; returns the exit status: tools/common/options.h */
} subcommand;

#endif /* LADE_TOOLS_COMMON_SUBCOMMAND_H */
