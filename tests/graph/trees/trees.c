/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a graph-tree trace (README.md) and prints its report as JSON. usage: trees TRACE, or trees - for standard input
 *
 * Exit status: 0; 1 where bytes differed, the tree or the device found something wrong, or reading, writing or memory failed; 2 for
 * an error in the trace or the command line. The report is collected first: a trace with an error prints none.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/graph/trees/session.h"
#include "tools/common/options.h"

static char program[] = "trees";

static int failed(const char *what, const char *name) {
  message_print(program, name, "%s: %s", what, strerror(errno));
  return EXIT_FAILED;
}

static read_result items_run(trees_reader *reader, session *s) {
  trees_item item;
  for (;;) {
    read_result result = trees_read(reader, &item);
    if (result != READ_ITEM) return result;
    result = session_item(s, &item);
    if (result != READ_ITEM) return result;
  }
}

static int trace_execute(trees_reader *reader, trees_report *report, const char *source) {
  session *s = session_create(reader, source, report);
  if (s == NULL) return EXIT_FAILED;
  read_result result = items_run(reader, s);
  int status = result == READ_END ? EXIT_FINE : result == READ_BAD ? EXIT_BAD : EXIT_FAILED;
  if (status != EXIT_FINE) {
    name_print(stderr, trees_error(reader));
    putc('\n', stderr);
  }
  bool right = session_end(s);
  return status == EXIT_FINE && !right ? EXIT_FAILED : status;
}

static int report_print(const char *text, size_t length) {
  if (fwrite(text, 1, length, stdout) == length && fflush(stdout) == 0) return EXIT_FINE;
  return failed("cannot be written", "standard output");
}

static int trace_run(FILE *file, const char *source) {
  char *text = NULL;
  size_t length = 0;
  trees_report report;
  FILE *memory = open_memstream(&text, &length);
  trees_reader *reader = trees_reader_create(file, source);
  int status = memory == NULL || reader == NULL ? failed("no memory", source) : EXIT_FINE;
  if (status == EXIT_FINE) {
    trees_report_begin(&report, memory);
    status = trace_execute(reader, &report, source);
    trees_report_end(&report);
  }
  trees_reader_destroy(reader);
  if (memory != NULL && fclose(memory) != 0 && status != EXIT_BAD) status = failed("no memory for the report", source);
  /* Where bytes differ, the report helps to see why. */
  if (status != EXIT_BAD && length > 0) {
    int printed = report_print(text, length);
    if (status == EXIT_FINE) status = printed;
  }
  free(text);
  return status;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s TRACE, or - for standard input\n", program);
    return EXIT_BAD;
  }
  if (strcmp(argv[1], "-") == 0) return trace_run(stdin, "standard input");
  FILE *file = fopen(argv[1], "r");
  if (file == NULL) return failed("cannot be read", argv[1]);
  int status = trace_run(file, argv[1]);
  fclose(file);
  return status;
}
