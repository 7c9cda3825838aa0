/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The running launch of an executable graph (model in replay.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_RUN_REPLAY_H
#define LADE_RUNTIME_SOFT_RUN_REPLAY_H

#include "runtime/soft/state/model.h"

/* The launch at the head of its stream may begin. */
void ladei_soft_exec_begin(soft_runtime *rt, soft_node *launch);

/* A node of the running launch has ended. */
void ladei_soft_exec_node_done(soft_runtime *rt, soft_exec *exec, soft_node *node);

/* Frees what the exec owns, and lets its user objects go; with `free` its record too. */
void ladei_soft_exec_clear(soft_runtime *rt, soft_exec *exec);
void ladei_soft_exec_free(soft_runtime *rt, soft_exec *exec);

#endif /* LADE_RUNTIME_SOFT_RUN_REPLAY_H */
