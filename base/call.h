/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of public calls that call the driver. */
#ifndef LADE_BASE_CALL_H
#define LADE_BASE_CALL_H

#include "base/cancellation.h"
#include "base/log.h"

/* The thread's cancellation waits until the call is done; lines of the log that the call kept come after it. */
#define LADEI_HELD(status, call)                                                                                       \
  do {                                                                                                                 \
    int cancellation = ladei_cancellation_hold();                                                                      \
    (status) = (call);                                                                                                 \
    ladei_cancellation_resume(cancellation);                                                                           \
    ladei_log_flush();                                                                                                 \
  } while (0)

#endif /* LADE_BASE_CALL_H */
