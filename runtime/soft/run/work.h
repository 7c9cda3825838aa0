/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One piece of work: its memory, its effect, its time (model in work.c).
 */
#ifndef LADE_RUNTIME_SOFT_RUN_WORK_H
#define LADE_RUNTIME_SOFT_RUN_WORK_H

#include "runtime/soft/state/model.h"

void ladei_soft_work_bind(soft_work *work);
void ladei_soft_work_unbind(soft_runtime *rt, soft_work *work);

/* Decides whether the work has an effect, and pins its memory. */
void ladei_soft_work_start(soft_runtime *rt, soft_work *work);

/* Moves the bytes, calls the function. Not under the lock. */
void ladei_soft_work_perform(soft_runtime *rt, soft_work *work);

/* Copies work of a graph, with what it owns. False: no memory, and nothing to dispose of. */
bool ladei_soft_work_clone(const soft_work *work, soft_work *out);

/* Frees what the work owns. */
void ladei_soft_work_dispose(soft_work *work);
uint64_t ladei_soft_work_duration_ns(const soft_runtime *rt, const soft_work *work);

/* Whether its effect may show the program that it, and all before it, has ended: a host function, a written value. */
bool ladei_soft_work_tells(const soft_work *work);

/* Looks up the memory of a graph's piece again: NULL if the captured memory is gone. */
void ladei_soft_piece_find_ranges(const soft_runtime *rt, soft_piece *piece);

/* Runs a function of the program in which runtime calls are refused. Not under the lock. */
void ladei_soft_call_out(soft_runtime *rt, ladei_host_function function, void *user);

/* Whether the calling thread is in a function that ladei_soft_call_out called. */
bool ladei_soft_in_callback(void);

#endif /* LADE_RUNTIME_SOFT_RUN_WORK_H */
