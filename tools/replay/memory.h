/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver memory of a replay: addresses and a capacity.
 *
 *   0x700000000000 | used, live | used | never used ... | used by an `at` | never used ...
 *
 * A range lies at the lowest address, in steps of 2 MiB, that was never used; or where the trace says (`at`), unless a
 * live range overlaps it there. It counts as used in both cases.
 *
 * M1  Live ranges do not overlap. `used` covers each of them, and each that was live once, in whole steps.
 * M2  The runs of `used` neither overlap nor touch.
 * Locks: none; a replay has one thread.
 */
#ifndef LADE_TOOLS_REPLAY_MEMORY_H
#define LADE_TOOLS_REPLAY_MEMORY_H

#include <stdbool.h>

#include "base/ordered_set.h"
#include "lade/status.h"
#include "tools/replay/number_map.h"

typedef struct replay_memory {
  uint64_t capacity;
  uint64_t charged; /* of the capacity */
  ladei_ordered_set live;
  ladei_ordered_set used;
  number_map handles; /* of physical memory -> bytes */
  uint64_t last_handle;
  uint64_t at;    /* where the next range lies; 0: not given */
  bool at_beyond; /* one given so would have ended beyond 2^64, and lies elsewhere */
} replay_memory;

void replay_memory_init(replay_memory *memory, uint64_t capacity);
void replay_memory_destroy(replay_memory *memory);

/* A range of addresses, backed by memory (`charged`) or not. LADE_ERR_OUT_OF_DEVICE_MEMORY,
 * LADE_ERR_OUT_OF_HOST_MEMORY: nothing changed, and `at` is unchanged. */
lade_status replay_memory_take(replay_memory *memory, uint64_t bytes, bool charged, uint64_t *out_address);
/* Gives a range back; LADE_ERR_INVALID_ARGUMENT where none begins at the address. */
lade_status replay_memory_give(replay_memory *memory, uint64_t address, bool charged);

/* Physical memory without addresses. Errors as above. */
lade_status replay_memory_create(replay_memory *memory, uint64_t bytes, uint64_t *out_handle);
lade_status replay_memory_release(replay_memory *memory, uint64_t handle);

#endif /* LADE_TOOLS_REPLAY_MEMORY_H */
