/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of streams and engines (model in run.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_RUN_RUN_H
#define LADE_RUNTIME_SOFT_RUN_RUN_H

#include "runtime/soft/state/model.h"

/* Moves every stream on as far as possible. */
void ladei_soft_run_ready(soft_runtime *rt);

/* The engine's current work has ended: frees it, moves its stream or graph on. */
void ladei_soft_engine_finish(soft_runtime *rt, soft_engine *engine);

/* Marks a device as lost once none of its engines moves bytes any more, and lets its queued work end without effect.
 * Under the lock, which is dropped meanwhile. */
void ladei_soft_device_drop(soft_runtime *rt, soft_device *device);

#endif /* LADE_RUNTIME_SOFT_RUN_RUN_H */
