/* SPDX-License-Identifier: Apache-2.0 */
/* A context for a call of the program. */
#ifndef LADE_HISTORY_CAPTURE_H
#define LADE_HISTORY_CAPTURE_H

#include "history/contexts.h"

/* Asks the program for a context; NULL for none. *lost counts those for which there was no memory. No lock held. */
ladei_history_context *ladei_history_context_capture(const lade_history_options *options, atomic_ullong *lost);

#endif /* LADE_HISTORY_CAPTURE_H */
