/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of an allocator that runtime/retire keeps. */
#ifndef LADE_DEVICE_OBSERVE_REPORT_H
#define LADE_DEVICE_OBSERVE_REPORT_H

#include "device/state/allocator.h"

/* Fills in what runtime/retire counts, if the backend uses it, and struct_size. No lock held. */
void ladei_device_report_retire_counters(lade_device_allocator *allocator, lade_device_stats *stats);

#endif /* LADE_DEVICE_OBSERVE_REPORT_H */
