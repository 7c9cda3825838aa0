/* SPDX-License-Identifier: Apache-2.0 */
/* The publisher's side of control; control_packet.h has the protocol. */
#ifndef LADE_INSPECT_LIVE_CONTROL_H
#define LADE_INSPECT_LIVE_CONTROL_H

#include "inspect/live/control_packet.h"

typedef struct ladei_control ladei_control;

/* `parts` are borrowed until ladei_control_destroy(). `manual`: requests wait for ladei_control_serve(). */
lade_status ladei_control_create(const lade_part *parts, size_t count, bool manual, ladei_control **out);
const char *ladei_control_name(const ladei_control *control);
/* Does a client's job, in the calling thread. */
void ladei_control_serve(ladei_control *control);
/* NULL does nothing. `forked`: this is a child's copy, which has no thread. */
void ladei_control_destroy(ladei_control *control, bool forked);

#endif /* LADE_INSPECT_LIVE_CONTROL_H */
