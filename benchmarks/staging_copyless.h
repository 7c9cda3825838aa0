/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime with the copies left out. */
#ifndef LADE_BENCHMARKS_STAGING_COPYLESS_H
#define LADE_BENCHMARKS_STAGING_COPYLESS_H

#include "benchmarks/staging.h"

/* False: said why. */
bool staging_copyless_open(staging *s);
/* Opens the pipeline on it, at its first use. False: said why. */
bool staging_reads_alone_open(staging *s);
/* Closes both. */
bool staging_copyless_close(staging *s);

#endif /* LADE_BENCHMARKS_STAGING_COPYLESS_H */
