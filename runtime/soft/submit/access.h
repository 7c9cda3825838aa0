/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory accesses of work. Under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_SUBMIT_ACCESS_H
#define LADE_RUNTIME_SOFT_SUBMIT_ACCESS_H

#include "runtime/soft/state/model.h"

/* All accesses of a piece of work. */
void ladei_soft_hazard_work(soft_runtime *rt, soft_stream *stream, uint64_t number, soft_work *work);

#endif /* LADE_RUNTIME_SOFT_SUBMIT_ACCESS_H */
