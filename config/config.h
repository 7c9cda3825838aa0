/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of all rooms together. */
#ifndef LADE_CONFIG_CONFIG_H
#define LADE_CONFIG_CONFIG_H

#include "base/config.h"
#include "lade/config.h"

/* The tables of the rooms; their fields are those of lade_config. */
extern const ladei_settings_table *const ladei_config_tables[];
extern const size_t ladei_config_table_count;

/* As lade_config_parse() for the settings in a trace: keys and values of lade or later versions are unknown. */
lade_status ladei_config_parse_reference(const char *text, lade_config *config);

/*
 * The variable from which lade_config_from_env() would take settings, and its keys that are skipped. NULL: none is set,
 * or its text is bad.
 */
const char *ladei_config_variable(ladei_settings_skips *skips);

#endif /* LADE_CONFIG_CONFIG_H */
