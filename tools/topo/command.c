/* SPDX-License-Identifier: Apache-2.0 */
/* `lade topo`: command line, output, exit status. */
#include <errno.h>

#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/subcommand.h"
#include "tools/topo/survey.h"

enum { KEY_JSON = 256, KEY_RUNTIME, KEY_TRY };

typedef struct topo_arguments {
  const char *runtime; /* NULL: the best found */
  bool json;
  bool try_pinning;
} topo_arguments;

static const char documentation[] =
    "Shows where pinned memory would come from on this machine: devices, NUMA nodes, which node is near which device, "
    "the limits on this process, and what a pinned pool with default settings makes of them."
    "\vExit status: 0; 1 if the runtime, a file or memory failed; 2 for the command line.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON (docs/formats.md) instead of a table", 0},
    OPTION_RUNTIME(KEY_RUNTIME),
    {"try", KEY_TRY, NULL, 0,
     "Pin a block near each device, and show from which source it came; on cuda this makes a context on each", 0},
    {0}};

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  topo_arguments *a = state->input;
  switch (key) {
  case KEY_JSON: a->json = true; return 0;
  case KEY_RUNTIME: a->runtime = option_runtime(argument, state); return 0;
  case KEY_TRY: a->try_pinning = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", argument); return EINVAL;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static char command_name[] = "lade topo";

static int lade_failed(const char *what) {
  message_print(command_name, what, "%s", lade_last_error()->text);
  return EXIT_FAILED;
}

static int survey_show(const topo_arguments *a, lade_runtime *runtime) {
  static const ladei_pinned_hooks this_machine = {LADEI_TOPOLOGY_SYSTEM, NULL, NULL, 0, 0};
  survey s;
  if (survey_make(runtime, &this_machine, a->try_pinning, &s) != LADE_OK) return lade_failed("looking");
  int status = a->json ? report_print(command_name, survey_json(&s), JSON_INDENT(2)) : EXIT_FINE;
  if (!a->json) survey_write_text(stdout, &s);
  survey_dispose(&s);
  return status;
}

static int command_topo(int argc, char **argv) {
  const struct argp argp = {option_table, option_parse, NULL, documentation, NULL, NULL, NULL};
  topo_arguments a = {0};
  lade_runtime *runtime = NULL;
  options_read(&argp, command_name, argc, argv, &a);
  if (lade_runtime_open(a.runtime, NULL, &runtime) != LADE_OK) return lade_failed("no runtime");
  int status = survey_show(&a, runtime);
  if (lade_runtime_close(runtime) != LADE_OK && status == EXIT_FINE) status = lade_failed("closing");
  return status;
}

const subcommand subcommand_topo = {"topo", "show devices, NUMA nodes and limits as a pinned pool sees them",
                                    command_topo};
