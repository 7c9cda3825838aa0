/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in a trace: the keys that the reference knows, and no others. */
#ifndef LADE_BASE_CONFIG_H
#define LADE_BASE_CONFIG_H

#include "lade/config.h"

/* As lade_config_parse(), but keys of lade's own are unknown. */
lade_status ladei_config_parse_reference(const char *text, lade_config *config);

#endif /* LADE_BASE_CONFIG_H */
