/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a replay: a "sim" device of addresses only, on which work ends exactly when the trace says so.
 *
 * Device memory is addresses and a capacity (memory.h). Streams and events are counters: an event is the number of
 * events recorded on its stream so far, and is complete when the trace (replay_device_complete) has completed that
 * many, or it was waited for. Pinned memory is only addresses, too, without limit.
 *
 * One replay device exists at a time in a process: the ops table has no place for a second owner beside "sim".
 */
#ifndef LADE_TOOLS_REPLAY_REPLAY_DEVICE_H
#define LADE_TOOLS_REPLAY_REPLAY_DEVICE_H

#include <stdbool.h>

#include "lade/runtime.h"

typedef struct replay_device replay_device;

/* LADE_ERR_BUSY while another one exists. Caller owns it until replay_device_close(). */
lade_status replay_device_open(uint64_t capacity_bytes, replay_device **out);
/* Nothing lives on its runtime any more. NULL does nothing. */
lade_status replay_device_close(replay_device *device);

lade_runtime *replay_device_runtime(replay_device *device);

/* The stream of a number, made at its first mention; never a special handle. NULL when there is no memory. */
lade_stream replay_device_stream(replay_device *device, uint64_t number);
uint64_t replay_stream_number(lade_stream stream);

/* The next driver memory begins at the address, unless a live range overlaps it; placed() ends that. False: it would
 * have ended beyond 2^64. */
void replay_device_place(replay_device *device, uint64_t address);
bool replay_device_placed(replay_device *device);

/* All work queued on the stream so far has finished. */
void replay_device_complete(lade_stream stream);

/* Records an event, as a runtime's user does; done() says whether the event of that position is complete. */
uint64_t replay_device_record(lade_stream stream);
bool replay_device_done(lade_stream stream, uint64_t position);

#endif /* LADE_TOOLS_REPLAY_REPLAY_DEVICE_H */
