/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of public calls that call the driver. */
#ifndef LADE_BASE_CALL_H
#define LADE_BASE_CALL_H

#include "base/cancellation.h"
#include "base/log.h"

/* The call's value. The thread's cancellation waits until it is done; lines of the log that the call kept come after it. */
#define LADEI_HELD(call)                                                                                               \
  __extension__({                                                                                                      \
    lade_status ladei_held_status = LADEI_UNCANCELLED(call);                                                           \
    ladei_log_flush();                                                                                                 \
    ladei_held_status;                                                                                                 \
  })

#endif /* LADE_BASE_CALL_H */
