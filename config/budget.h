/* SPDX-License-Identifier: Apache-2.0 */
/* LADE_BUDGET: the budget of pinned memory in one variable. For lade_config_from_env(), tools, preload. */
#ifndef LADE_CONFIG_BUDGET_H
#define LADE_CONFIG_BUDGET_H

#include "lade/config.h"

/* Reads the variable's text into the settings; NULL or empty changes nothing. LADE_ERR_CONFIG, naming the variable;
 * then some fields may have been written. */
lade_status ladei_budget_from_env(const char *text, lade_config *config);

#endif /* LADE_CONFIG_BUDGET_H */
