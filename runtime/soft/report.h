/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of living objects and findings. Under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_REPORT_H
#define LADE_RUNTIME_SOFT_REPORT_H

#include "runtime/soft/state/model.h"

/* Both under the lock. */
void ladei_soft_report_fill(const soft_runtime *rt, lade_soft_report *report);

/* LADE_ERR_BUSY with the living objects; LADE_OK if there are none. */
lade_status ladei_soft_close_check(const soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_REPORT_H */
