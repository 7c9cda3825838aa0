/* SPDX-License-Identifier: Apache-2.0 */
/* LADE_BUDGET: off, on, or some of the keys pinned_budget_... without that prefix, which turns the budget on. */
#include "config/budget.h"

#include <string.h>

#include "base/config.h"
#include "base/error.h"

static const ladei_setting_word shares[] = {{"first_come", LADE_PINNED_BUDGET_FIRST_COME, true},
                                            {"fair", LADE_PINNED_BUDGET_FAIR, true},
                                            {"part", LADE_PINNED_BUDGET_PART, true},
                                            {NULL, 0, false}};

static const ladei_setting settings[] = {
    {.key = "name", .kind = LADEI_SETTING_NAME, LADEI_SETTING_FIELD(lade_config, pinned_budget_name)},
    {.key = "mb", LADEI_SETTING_RANGE(lade_config, pinned_budget_mb, 0, LADEI_SETTING_MIB_MAX)},
    {.key = "share",
     .kind = LADEI_SETTING_WORD,
     LADEI_SETTING_FIELD(lade_config, pinned_budget_share),
     .words = shares},
    {.key = "part_mb", LADEI_SETTING_RANGE(lade_config, pinned_budget_part_mb, 0, LADEI_SETTING_MIB_MAX)},
};

static const ladei_settings_table table = {"config", "Budget", "lade_pinned_options", settings,
                                           sizeof settings / sizeof settings[0]};

lade_status ladei_budget_from_env(const char *text, lade_config *config) {
  const ladei_settings_table *const tables[] = {&table};
  if (text == NULL || text[0] == '\0') return LADE_OK;
  bool off = strcmp(text, "off") == 0;
  config->pinned_budget = off ? LADE_PINNED_BUDGET_OFF : LADE_PINNED_BUDGET_ON;
  if (off || strcmp(text, "on") == 0) return LADE_OK;
  lade_status status = ladei_settings_read(tables, 1, text, false, NULL, config);
  return status == LADE_OK ? LADE_OK
                           : ladei_error_prefix(status, "LADE_BUDGET (off, on, or keys name, mb, share, part_mb): ");
}
