/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade trees`: command line, output, exit status.
 *
 * What is printed is collected first: a trace with an error prints no report.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/options.h"
#include "tools/common/subcommand.h"
#include "tools/trees/picture.h"
#include "tools/trees/session.h"

static const char documentation[] = "Runs a graph-tree trace (docs/formats.md): functions with scripted bodies, called "
                                    "through one graph tree on a software device "
                                    "with real bytes. Prints what each run did and why, and checks after each that "
                                    "every byte that is alive is what it must be. "
                                    "TRACE may be - for standard input; DUMP is JSON of lade_graph_tree_dump()."
                                    "\vExit status: 0; 1 if bytes differed, the tree or the device found something "
                                    "wrong, or reading, writing or memory failed; 2 "
                                    "for an error in the trace or the command line.";

static char command_name[] = "lade trees";

typedef struct trees_arguments {
  const char *source;
  const char *plot;
  bool json;
} trees_arguments;

enum { OPTION_JSON = 256, OPTION_PLOT };

static const struct argp_option option_table[] = {
    {"json", OPTION_JSON, NULL, 0, "Print the report of a trace as JSON; else a line for each entry", 0},
    {"plot", OPTION_PLOT, "FILE.svg", 0,
     "Draw the recordings at the end: their outputs, what is alive behind each, bytes", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  trees_arguments *a = state->input;
  switch (key) {
  case OPTION_JSON: a->json = true; return 0;
  case OPTION_PLOT:
    if (*argument == '\0') argp_error(state, "--plot needs a file");
    a->plot = argument;
    return 0;
  case ARGP_KEY_ARG:
    if (a->source != NULL) argp_error(state, "one trace only; what is \"%s\"?", argument);
    a->source = argument;
    return 0;
  case ARGP_KEY_END:
    if (a->source == NULL) argp_error(state, "which trace?");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static int failed(const char *what, const char *name) {
  message_print(command_name, name, "%s: %s", what, strerror(errno));
  return EXIT_FAILED;
}

/* ---- Pictures ---------------------------------------------------------------------------------------------------- */

static int picture_write(const trees_picture *p, const trees_arguments *a) {
  FILE *file = fopen(a->plot, "w");
  if (file == NULL) return failed("cannot be written", a->plot);
  lade_status status = trees_picture_draw(p, file, a->source);
  if (fclose(file) != 0 && status == LADE_OK) return failed("cannot be written", a->plot);
  if (status == LADE_OK) return EXIT_FINE;
  message_print(command_name, a->plot, "cannot be written: %s", lade_last_error()->text);
  return EXIT_FAILED;
}

/* Draws and, of a dump, prints. */
static int document_show(const char *text, size_t length, const trees_arguments *a, bool print) {
  trees_picture picture;
  lade_status status = trees_picture_read(&picture, text, length);
  if (status != LADE_OK) {
    message_print(command_name, a->source, "%s", lade_last_error()->text);
    return status == LADE_ERR_INVALID_ARGUMENT ? EXIT_BAD : EXIT_FAILED;
  }
  if (print) trees_picture_print(&picture, stdout);
  int result = a->plot != NULL ? picture_write(&picture, a) : EXIT_FINE;
  trees_picture_destroy(&picture);
  return result;
}

/* All of the file, into `memory`. */
static bool file_copy(FILE *file, FILE *memory) {
  char block[4096];
  size_t got;
  while ((got = fread(block, 1, sizeof block, file)) > 0)
    if (fwrite(block, 1, got, memory) != got) return false;
  return !ferror(file);
}

static int dump_run(FILE *file, const trees_arguments *a) {
  char *text = NULL;
  size_t length = 0;
  if (a->json) {
    message_print(command_name, a->source, "it is a dump, which is JSON already: --json is for traces");
    return EXIT_BAD;
  }
  FILE *memory = open_memstream(&text, &length);
  bool copied = memory != NULL && file_copy(file, memory);
  if (memory != NULL) copied = fclose(memory) == 0 && copied;
  int result = copied ? document_show(text, length, a, true) : failed("cannot be read", a->source);
  free(text);
  return result;
}

/* The tree that a trace has left. */
static int session_plot(session *s, const trees_arguments *a) {
  char *text = NULL;
  size_t length = 0;
  FILE *memory = open_memstream(&text, &length);
  if (memory == NULL) return failed("no memory for the picture", a->source);
  lade_status status = session_dump(s, memory);
  int result = fclose(memory) == 0 ? EXIT_FINE : failed("no memory for the picture", a->source);
  if (status != LADE_OK) {
    message_print(command_name, a->source, "no picture: %s", lade_last_error()->text);
    result = EXIT_FAILED;
  }
  if (result == EXIT_FINE) result = document_show(text, length, a, false);
  free(text);
  return result;
}

/* ---- Traces ------------------------------------------------------------------------------------------------------ */

static read_result items_run(trees_reader *reader, session *s) {
  trees_item item;
  for (;;) {
    read_result result = trees_read(reader, &item);
    if (result != READ_ITEM) return result;
    result = session_item(s, &item);
    if (result != READ_ITEM) return result;
  }
}

/* What the trace asks for, in `report`; and its picture. */
static int trace_execute(trees_reader *reader, trees_report *report, const trees_arguments *a) {
  session *s = session_create(reader, a->source, report);
  if (s == NULL) return EXIT_FAILED;
  read_result result = items_run(reader, s);
  int status = result == READ_END ? EXIT_FINE : result == READ_BAD ? EXIT_BAD : EXIT_FAILED;
  if (status != EXIT_FINE) {
    name_print(stderr, trees_error(reader));
    putc('\n', stderr);
  }
  if (status == EXIT_FINE && a->plot != NULL) status = session_plot(s, a);
  bool right = session_end(s);
  return status == EXIT_FINE && !right ? EXIT_FAILED : status;
}

static int report_print(const char *text, size_t length) {
  if (fwrite(text, 1, length, stdout) == length && fflush(stdout) == 0) return EXIT_FINE;
  return failed("cannot be written", "standard output");
}

static int trace_run(FILE *file, const trees_arguments *a) {
  char *text = NULL;
  size_t length = 0;
  trees_report report;
  FILE *memory = open_memstream(&text, &length);
  trees_reader *reader = trees_reader_create(file, a->source);
  int status = memory == NULL || reader == NULL ? failed("no memory", a->source) : EXIT_FINE;
  if (status == EXIT_FINE) {
    trees_report_begin(&report, memory, a->json);
    status = trace_execute(reader, &report, a);
    trees_report_end(&report);
  }
  trees_reader_destroy(reader);
  if (memory != NULL && fclose(memory) != 0 && status != EXIT_BAD)
    status = failed("no memory for the report", a->source);
  /* Where bytes differ, the report helps to see why. */
  if (status != EXIT_BAD && length > 0) {
    int printed = report_print(text, length);
    if (status == EXIT_FINE) status = printed;
  }
  free(text);
  return status;
}

/* A document begins with a brace, a trace with a word. */
static int file_run(FILE *file, const trees_arguments *a) {
  int first = getc(file);
  if (first != EOF) ungetc(first, file);
  return first == '{' ? dump_run(file, a) : trace_run(file, a);
}

static int command_trees(int argc, char **argv) {
  const struct argp argp = {option_table, option_parse, "TRACE\nDUMP", documentation, NULL, NULL, NULL};
  trees_arguments a = {NULL, NULL, false};
  options_read(&argp, command_name, argc, argv, &a);
  if (strcmp(a.source, "-") == 0) {
    a.source = "standard input"; /* as `lade replay` names it */
    return file_run(stdin, &a);
  }
  FILE *file = fopen(a.source, "r");
  if (file == NULL) return failed("cannot be read", a.source);
  int status = file_run(file, &a);
  fclose(file);
  return status;
}

const subcommand subcommand_trees = {"trees", "run a graph-tree trace, and look at graph trees", command_trees};
