/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the command lines of the `lade` subcommands. */
#ifndef LADE_TOOLS_COMMON_OPTIONS_H
#define LADE_TOOLS_COMMON_OPTIONS_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit status of every subcommand. BAD: the command line, or a trace. */
enum { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_BAD = 2 };

/* Prints a name of a file or in a file: control characters, which a terminal would obey, become '?'. */
void name_print(FILE *out, const char *name);

/* The program's name in help and messages: the last part of `typed`. In the source commands begin with "lade". */
void program_name_set(const char *typed);
const char *program_name(void);

/* Prints "COMMAND: NAME: ..." on standard error, the name as name_print does; "COMMAND: ..." where it is NULL. */
void message_print(const char *command, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Standard output is whole, or the exit status says so, with a message printed. `lade` ends each command so that says
 * EXIT_FINE. */
int output_end(const char *command, int exit_status);

/* A size for people, at most nine characters: "512 B", "64.0 MiB"; UINT64_MAX: "no limit". Returns `out`. */
enum { SIZE_TEXT_BYTES = 16 };
const char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]);

/* Sleeps, through signals. */
void interval_sleep(double seconds);

/* Reads argv, as ARGP says, into `input`; a mistake ends the program with EXIT_BAD. `name`: the command. */
void options_read(const struct argp *argp, char *name, int argc, char **argv, void *input);
/* The same, with options and other words in the order of the command line. */
void options_read_in_order(const struct argp *argp, char *name, int argc, char **argv, void *input);

/* The number of an option, a whole one or one of seconds (0.05 to 3600): a mistake ends the program. */
uint64_t option_number(const char *option, const char *argument, uint64_t least, uint64_t most,
                       const struct argp_state *state);
double option_seconds(const char *option, const char *argument, const struct argp_state *state);

/* The option --runtime, for a table of options, and the check of its argument: a mistake ends the program. */
#define OPTION_RUNTIME(key)                                                                                            \
  { "runtime", key, "NAME", 0, "cuda, cpu or sim (default: cuda where there is a GPU, else cpu)", 0 }
const char *option_runtime(const char *argument, const struct argp_state *state);

/* The runtime that the first `length` characters name; NULL if they name none. */
const char *option_runtime_find(const char *text, size_t length);

#endif /* LADE_TOOLS_COMMON_OPTIONS_H */
