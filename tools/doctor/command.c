/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade doctor`: the parts of the machine that lade finds, and remedies for the rest.
 *
 * All checks are made before anything is printed.
 */
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/subcommand.h"
#include "tools/doctor/checks.h"

enum { KEY_JSON = 256 };

static const char documentation[] = "Looks at what lade needs on this machine: driver, GPU, limits, kernel, libraries, "
                                    "settings in the environment. Says what it "
                                    "found and, where something holds lade up, what to do."
                                    "\vExit status: 0 if there is nothing to do; 1 if there is, or if output or memory "
                                    "failed; 2 for the command line. What is "
                                    "optional does not count.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON (docs/formats.md) instead of text", 0}, {0}};

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  bool *json = state->input;
  switch (key) {
  case KEY_JSON: *json = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", argument); return EINVAL;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const char *const state_names[] = {
    [FINDING_GOOD] = "ok", [FINDING_OPTIONAL] = "optional", [FINDING_TO_DO] = "to do"};

static void text_write(FILE *out, const finding *findings) {
  for (size_t i = 0; i < check_count; i++) {
    fprintf(out, "%-13s %-9s %s\n", checks[i].name, state_names[findings[i].state], findings[i].found);
    if (findings[i].advice[0] != '\0') fprintf(out, "%-13s %-9s -> %s\n", "", "", findings[i].advice);
  }
}

/* NULL: no memory. */
static json_t *json_make(const finding *findings) {
  json_t *array = json_array();
  bool made = array != NULL;
  for (size_t i = 0; made && i < check_count; i++) {
    const finding *f = &findings[i];
    json_t *entry = json_pack("{ss ss ss ss?}", "name", checks[i].name, "state", state_names[f->state], "found",
                              f->found, "advice", f->advice[0] != '\0' ? f->advice : NULL);
    made = json_array_append_new(array, entry) == 0;
  }
  json_t *report = made ? json_pack("{si sO}", "version", 1, "checks", array) : NULL;
  json_decref(array);
  return report;
}

static int report_write(const char *name, const finding *findings, bool json) {
  int status = json ? report_print(name, json_make(findings), JSON_INDENT(2)) : EXIT_FINE;
  if (!json) text_write(stdout, findings);
  return output_end(name, status);
}

static int command_doctor(int argc, char **argv) {
  static char name[] = "lade doctor";
  const struct argp argp = {option_table, option_parse, NULL, documentation, NULL, NULL, NULL};
  bool json = false;
  options_read(&argp, name, argc, argv, &json);
  finding *findings = calloc(check_count, sizeof *findings);
  if (findings == NULL) {
    message_print(name, NULL, "no memory for the report");
    return EXIT_FAILED;
  }
  int status = EXIT_FINE;
  for (size_t i = 0; i < check_count; i++) {
    checks[i].look(&findings[i]);
    ladei_text_tame(findings[i].found); /* paths and keys of the environment */
    if (findings[i].state == FINDING_TO_DO) status = EXIT_FAILED;
  }
  int written = report_write(name, findings, json);
  free(findings);
  return written != EXIT_FINE ? written : status;
}

const subcommand subcommand_doctor = {"doctor", "show what lade finds on this machine, and what to do about the rest",
                                      command_doctor};
