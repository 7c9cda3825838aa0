/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The running launch of an executable graph (model in replay.c). All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_RUN_REPLAY_H
#define LADE_RUNTIME_SOFT_RUN_REPLAY_H

#include "runtime/soft/state/model.h"

/* The launch at the head of its stream may begin. */
void ladei_soft_body_begin(soft_runtime *rt, soft_node *launch);

/* A node of the running launch has ended. */
void ladei_soft_body_node_done(soft_runtime *rt, soft_body *body, soft_node *node);

/* Frees a body that no launch holds, and drops its user objects. */
void ladei_soft_body_free(soft_runtime *rt, soft_body *body);

/* No exec names the body any more: it is freed with its last launch. */
void ladei_soft_body_retire(soft_runtime *rt, soft_body *body);

#endif /* LADE_RUNTIME_SOFT_RUN_REPLAY_H */
