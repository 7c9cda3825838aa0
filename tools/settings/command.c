/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade settings`: the keys of settings as text, out of the tables of the rooms.
 *
 * The text and the tables of docs/tuning.md go out as they are made; JSON is built whole first.
 */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "config/config.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/subcommand.h"

enum { KEY_JSON = 256, KEY_MARKDOWN };
enum { VALUES_BYTES = 256 };

typedef struct settings_arguments {
  bool json;
  bool markdown;
} settings_arguments;

static const char documentation[] =
    "Shows the keys that LADE_ALLOC_CONF and PYTORCH_ALLOC_CONF may have, as KEY:VALUE[,KEY:VALUE...]: for each "
    "what values it takes, what holds without it, and what it does."
    "\vExit status: 0; 1 if output or memory failed; 2 for the command line.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON (docs/formats.md) instead of text", 0},
    {"markdown", KEY_MARKDOWN, NULL, 0, "Print the tables of docs/tuning.md instead of text", 0},
    {0}};

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  settings_arguments *a = state->input;
  switch (key) {
  case KEY_JSON: a->json = true; return 0;
  case KEY_MARKDOWN: a->markdown = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "'%s' is no option", argument); return EINVAL;
  case ARGP_KEY_END:
    if (a->json && a->markdown) argp_error(state, "--json and --markdown exclude each other");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const char *origin_name(const ladei_setting *s) {
  static const char *const names[] = {[LADEI_SETTING_OF_LADE] = "lade",
                                      [LADEI_SETTING_OF_PYTORCH] = "PyTorch",
                                      [LADEI_SETTING_OF_LATER_PYTORCH] = "later PyTorch"};
  return names[s->origin];
}

/* The values with their unit: "a number from 0 to 65536 (frees)". */
static void values_write(const ladei_setting *s, char *text, size_t text_bytes) {
  ladei_setting_values(s, LADEI_SETTINGS_ALL, text, text_bytes);
  size_t length = strlen(text);
  if (s->unit != NULL) snprintf(text + length, text_bytes - length, " (%s)", s->unit);
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

static void text_write_setting(FILE *out, const ladei_setting *s) {
  char values[VALUES_BYTES];
  values_write(s, values, sizeof values);
  fprintf(out, "  %s  [%s]\n      %s\n      values:  %s\n      default: %s\n", s->key, origin_name(s), s->help, values,
          s->default_value);
}

static void text_write(FILE *out) {
  for (size_t t = 0; t < ladei_config_table_count; t++) {
    const ladei_settings_table *table = ladei_config_tables[t];
    fprintf(out, "%s%s (%s/, %s)\n", t == 0 ? "" : "\n", table->title, table->room, table->options);
    for (size_t i = 0; i < table->count; i++) text_write_setting(out, &table->settings[i]);
  }
}

/* ---- Markdown ---------------------------------------------------------------------------------------------------- */

/* A bar ends a cell, in code too. */
static void cell_write(FILE *out, const char *text) {
  for (; *text != '\0'; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static void markdown_write_setting(FILE *out, const ladei_setting *s) {
  char values[VALUES_BYTES];
  values_write(s, values, sizeof values);
  const char *const cells[] = {values, s->default_value, s->help, origin_name(s)};
  fprintf(out, "| `%s` |", s->key);
  fprintf(out, s->option == NULL ? " |" : " `%s` |", s->option);
  for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
    fputc(' ', out);
    cell_write(out, cells[i]);
    fputs(" |", out);
  }
  fputc('\n', out);
}

static void markdown_write(FILE *out) {
  for (size_t t = 0; t < ladei_config_table_count; t++) {
    const ladei_settings_table *table = ladei_config_tables[t];
    fprintf(out, "%s### %s (`%s`)\n\n", t == 0 ? "" : "\n", table->title, table->options);
    fputs("| key | option | values | default | effect | known to |\n|---|---|---|---|---|---|\n", out);
    for (size_t i = 0; i < table->count; i++) markdown_write_setting(out, &table->settings[i]);
  }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* NULL where memory is short. */
static json_t *json_make_setting(const ladei_settings_table *table, const ladei_setting *s) {
  char values[VALUES_BYTES];
  ladei_setting_values(s, LADEI_SETTINGS_ALL, values, sizeof values);
  return json_pack("{ss ss ss ss? ss ss ss? ss ss}", "key", s->key, "room", table->room, "options", table->options,
                   "option", s->option, "origin", origin_name(s), "values", values, "unit", s->unit, "default",
                   s->default_value, "help", s->help);
}

/* Whether one of the first `table_count` tables has the key: two rooms may obey one. */
static bool key_is_known(const char *key, size_t table_count) {
  for (size_t t = 0; t < table_count; t++)
    for (size_t i = 0; i < ladei_config_tables[t]->count; i++)
      if (strcmp(ladei_config_tables[t]->settings[i].key, key) == 0) return true;
  return false;
}

static json_t *json_make(void) {
  json_t *settings = json_array();
  bool made = settings != NULL;
  for (size_t t = 0; made && t < ladei_config_table_count; t++) {
    const ladei_settings_table *table = ladei_config_tables[t];
    for (size_t i = 0; made && i < table->count; i++)
      if (!key_is_known(table->settings[i].key, t))
        made = json_array_append_new(settings, json_make_setting(table, &table->settings[i])) == 0;
  }
  if (made) return json_pack("{si so}", "version", 1, "settings", settings);
  json_decref(settings);
  return NULL;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int command_settings(int argc, char **argv) {
  static char name[] = "lade settings";
  const struct argp argp = {option_table, option_parse, NULL, documentation, NULL, NULL, NULL};
  settings_arguments a = {0};
  options_read(&argp, name, argc, argv, &a);
  int status = a.json ? report_print(name, json_make(), JSON_INDENT(2)) : EXIT_FINE;
  if (a.markdown) markdown_write(stdout);
  if (!a.json && !a.markdown) text_write(stdout);
  return status;
}

const subcommand subcommand_settings = {"settings", "show the keys of settings as text: values, defaults, effects",
                                        command_settings};
