/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables for the library's own output. */
#ifndef LADE_CONFIG_ENVIRONMENT_H
#define LADE_CONFIG_ENVIRONMENT_H

#include "base/config.h"

/* Applies LADE_LOG and LADE_STATS, once per process (lade/config.h). A failure of one leaves it as it was. */
lade_status ladei_environment_apply(void);

/* Logs the keys of a variable that were skipped, each once per process. */
void ladei_environment_skips_log(const char *variable, const ladei_settings_skips *skips);

/* Logs a doubt about the variables of a launcher, in two parts; each text once per process. */
void ladei_environment_ranks_log(const char *doubt, const char *more);

#endif /* LADE_CONFIG_ENVIRONMENT_H */
