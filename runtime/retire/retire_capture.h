/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses inside captures (model in retire_capture.c).
 */
#ifndef LADE_RUNTIME_RETIRE_CAPTURE_H
#define LADE_RUNTIME_RETIRE_CAPTURE_H

#include "runtime/retire/retire_queue.h"

/* Meeting place of user objects and retire object; lives until that and the last graph are gone. */
lade_status ladei_retire_capture_box_create(struct ladei_retire_capture_box **out);

/* The retire object is gone, or was never made. */
void ladei_retire_capture_box_abandon(struct ladei_retire_capture_box *box);

/* Not under the lock: the queue of a capture under way on the device, pinned; made and tied to the graph if needed. */
lade_status ladei_retire_capture_queue_need(ladei_retire *retire, int device, const ladei_capture_info *info,
                                            ladei_retire_queue **out);

/* Whether drain has work. Needs no lock. */
bool ladei_retire_capture_any_gone(ladei_retire *retire);

/* Under the lock: finishes the uses of captures whose graphs have gone. */
void ladei_retire_capture_drain(ladei_retire *retire, ladei_retire_done_list *done);

/*
 * A user object that takes the longest way to its end. A graph that was never launched ends in the call that destroys
 * it. An executable graph that was launched ends later, on a driver thread, which a host function of the program may
 * block. So the fence is the end of such an executable graph, made for it: once it has passed, earlier ones have too,
 * if that thread keeps their order. CUDA promises no order, and launches that still run end later.
 */
typedef struct ladei_retire_fence ladei_retire_fence;

/* Not under the lock. NULL without memory, or if the driver makes none; leaves the error record alone. */
ladei_retire_fence *ladei_retire_fence_make(ladei_retire *retire);
bool ladei_retire_fence_passed(const ladei_retire_fence *fence);
/* At any time. NULL does nothing. */
void ladei_retire_fence_drop(ladei_retire_fence *fence);

#endif /* LADE_RUNTIME_RETIRE_CAPTURE_H */
