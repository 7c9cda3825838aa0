/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of what lies on the device. */
#ifndef LADE_BENCHMARKS_STAGING_VERIFY_H
#define LADE_BENCHMARKS_STAGING_VERIFY_H

#include "benchmarks/staging.h"

/* Stages everything once more, window by window, and compares checksums of source, device and (D2H) sink. */
bool staging_verify(staging *s);

#endif /* LADE_BENCHMARKS_STAGING_VERIFY_H */
