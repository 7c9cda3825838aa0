/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The happens-before order of work (model in order.c).
 */
#ifndef LADE_RUNTIME_SOFT_STATE_ORDER_H
#define LADE_RUNTIME_SOFT_STATE_ORDER_H

#include "runtime/soft/state/model.h"

/* A caller learned that `stream` has finished up to `number`. Needs no lock. */
void ladei_soft_observe_number(soft_stream *stream, uint64_t number);

/* ... and, under the lock, that the work before it has, too. */
void ladei_soft_observe(soft_stream *stream, uint64_t number);
void ladei_soft_observe_order(const soft_order *order);

/* These three return false without memory. */
bool ladei_soft_order_add(soft_order *order, soft_stream *stream, uint64_t number);
bool ladei_soft_order_merge(soft_order *into, const soft_order *from);
bool ladei_soft_order_copy(soft_order *into, soft_order *from);
bool ladei_soft_order_has(const soft_order *order, const soft_stream *stream, uint64_t number);

#endif /* LADE_RUNTIME_SOFT_STATE_ORDER_H */
