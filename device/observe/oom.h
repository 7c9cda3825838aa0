/* SPDX-License-Identifier: Apache-2.0 */
/* The report of an allocation that found no memory. */
#ifndef LADE_DEVICE_OBSERVE_OOM_H
#define LADE_DEVICE_OBSERVE_OOM_H

#include "device/state/allocator.h"

/* The error of a request that no step of the slow path could serve; `status` is that of the last step, with its text in
 * the thread's error record. No lock held. */
lade_status ladei_device_report_exhausted(lade_device_allocator *allocator, const ladei_device_request *request,
                                          lade_status status);

#endif /* LADE_DEVICE_OBSERVE_OOM_H */
