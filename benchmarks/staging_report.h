/* SPDX-License-Identifier: Apache-2.0 */
/* Table, JSON. */
#ifndef LADE_BENCHMARKS_STAGING_REPORT_H
#define LADE_BENCHMARKS_STAGING_REPORT_H

#include "benchmarks/staging.h"

void staging_report_print(const staging *s);
/* False: said why. */
bool staging_report_json(const staging *s);

#endif /* LADE_BENCHMARKS_STAGING_REPORT_H */
