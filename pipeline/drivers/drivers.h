/* SPDX-License-Identifier: Apache-2.0 */
/* The drivers there are. */
#ifndef LADE_PIPELINE_DRIVERS_DRIVERS_H
#define LADE_PIPELINE_DRIVERS_DRIVERS_H

#include "pipeline/state/state.h"

extern const ladei_pipe_driver ladei_pipe_driver_threads;
extern const ladei_pipe_driver ladei_pipe_driver_virtual;

#endif /* LADE_PIPELINE_DRIVERS_DRIVERS_H */
