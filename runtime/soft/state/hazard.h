/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses that no order covers (model in hazard.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_HAZARD_H
#define LADE_RUNTIME_SOFT_STATE_HAZARD_H

#include "runtime/soft/state/model.h"

bool ladei_soft_hazards_open(soft_runtime *rt);
void ladei_soft_hazards_close(soft_runtime *rt);

/* Work number `number` of `stream` reads or writes these bytes. Counts a finding if no order covers it. */
void ladei_soft_hazard_access(soft_runtime *rt, soft_stream *stream, uint64_t number, const void *address, size_t bytes,
                              bool write);

/* Forgets the accesses to bytes that were freed. */
void ladei_soft_hazard_forget(soft_runtime *rt, uint64_t address, size_t bytes);

/* Checks the invariants of hazard.c; NULL, or the broken one. */
const char *ladei_soft_hazards_check(const soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_STATE_HAZARD_H */
