/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Software devices under the ops table of runtime/ops.h. The public controls (faults, holds, reports, virtual time) are
 * in lade/soft.h.
 */
#ifndef LADE_RUNTIME_SOFT_SOFT_H
#define LADE_RUNTIME_SOFT_SOFT_H

#include "lade/soft.h"
#include "runtime/ops.h"
#include "runtime/soft/state/native.h"

/*
 * Makes software devices; `*out_self` belongs to `*out_ops` and lives until its close op. virtual_time: the clock of
 * "sim", otherwise that of "cpu". options NULL: one default device. LADE_ERR_INVALID_ARGUMENT for a bad description,
 * LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_UNSUPPORTED for unknown options.
 */
lade_status ladei_soft_open(bool virtual_time, const struct lade_soft_options *options,
                            const lade_runtime_ops **out_ops, void **out_self);

/*
 * CUDA's rule on potentially unsafe calls, which the ops that R9 of runtime/ops.h allows everywhere do not apply:
 * LADE_ERR_CAPTURE, and the affected captures become invalid, if the calling thread's capture mode forbids an unsafe
 * call now. LADE_ERR_FORKED in a child of fork(). For a driver built on these ops, whose entry points are stricter than
 * the ops.
 */
lade_status ladei_soft_unsafe_call(void *self, const char *what);

/*
 * More for such a driver, besides runtime/soft/ops/ops.h: whether the calling thread is in a host function or a
 * destructor; whether the devices belong to the parent of this process; how many threads wait for a stream ("cpu").
 */
bool ladei_soft_in_host_function(void);
bool ladei_soft_of_parent(void *self);
unsigned ladei_soft_waiting(void *self);

/* The controls of lade/soft.h, on the `self` of the table: for drivers and tests without a lade_runtime. */
lade_status ladei_soft_fault_add(void *self, const char *op, uint64_t nth, lade_status status);
lade_status ladei_soft_fault_clear(void *self);
lade_status ladei_soft_call_count(void *self, const char *op, uint64_t *out_count);
lade_status ladei_soft_stream_hold(void *self, lade_stream stream, bool hold);
lade_status ladei_soft_device_lose(void *self, int device, uint64_t at_ns);
lade_status ladei_soft_report(void *self, lade_soft_report *report);
lade_status ladei_soft_advance(void *self, uint64_t ns);

/*
 * Recounts the invariants of runtime/soft/state/model.h: LADE_ERR_INTERNAL names a broken one. For tests, after each
 * step; takes time proportional to the number of living objects.
 */
lade_status ladei_soft_check(void *self);

#endif /* LADE_RUNTIME_SOFT_SOFT_H */
