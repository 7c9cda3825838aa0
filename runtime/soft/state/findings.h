/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of a program's mistakes: findings, counted by the report of lade/soft.h, and refusals with the op's name.
 */
#ifndef LADE_RUNTIME_SOFT_STATE_FINDINGS_H
#define LADE_RUNTIME_SOFT_STATE_FINDINGS_H

#include "runtime/soft/state/model.h"

const char *ladei_soft_op_name(soft_op op);
void ladei_soft_finding(soft_runtime *rt, uint64_t *counter, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A finding and a refusal: no living object has the handle. */
lade_status ladei_soft_stale(soft_runtime *rt, soft_op op, lade_status status, const char *what, uint64_t handle);
lade_status ladei_soft_lost(soft_op op, int device);

/* LADE_ERR_INVALID_ARGUMENT with the driver's code, in the words of ladei_error_argument. */
lade_status ladei_soft_refuse(soft_op op, int native, const char *field, const char *expected, const char *value_format,
                              ...) __attribute__((format(printf, 5, 6)));

/* LADE_ERR_INVALID_ARGUMENT for flag bits that the op does not know. */
lade_status ladei_soft_flags(soft_op op, unsigned flags, unsigned known);

#endif /* LADE_RUNTIME_SOFT_STATE_FINDINGS_H */
