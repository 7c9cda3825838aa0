/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wall clock (model in cpu.c).
 */
#ifndef LADE_RUNTIME_SOFT_RUN_CPU_H
#define LADE_RUNTIME_SOFT_RUN_CPU_H

#include "runtime/soft/state/model.h"

extern const soft_clock ladei_soft_cpu_clock;

/* Stops and joins the engines' threads. */
void ladei_soft_cpu_stop(soft_runtime *rt);

#endif /* LADE_RUNTIME_SOFT_RUN_CPU_H */
