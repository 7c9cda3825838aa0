/* SPDX-License-Identifier: Apache-2.0 */
/* --ranks: one table, and one JSON document, for all ranks. */
#ifndef LADE_BENCHMARKS_STAGING_RANKS_REPORT_H
#define LADE_BENCHMARKS_STAGING_RANKS_REPORT_H

#include "benchmarks/staging.h"

/* Of rank 0, after staging_ranks_gather(). */
void staging_ranks_print(const staging *s);
/* To settings.json_path. False: said why. */
bool staging_ranks_json(const staging *s);

#endif /* LADE_BENCHMARKS_STAGING_RANKS_REPORT_H */
