/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned blocks larger than a pinned pool can hold. Traces may ask for anything below 2^60 bytes; a pool refuses from
 * 1 TiB on, which no machine has. The replay keeps such blocks itself, by the pool's rules and apart from its others:
 *
 *   alloc     the smallest cached giant that fits, at most 1/8 larger; or a new one from the driver, of whole pages
 *   free      one event per stream noted; pending until all are found done
 *   poll      at each allocation and each emptying; cached giants go back at the latter
 *
 * PyTorch's policy: sizes are powers of two, any cached giant that is large enough fits, and events are asked in
 * the order of the frees until the first that is not done.
 *
 * G1  A giant is allocated, or pending (waits > 0), or cached.
 * Locks: none; a replay has one thread.
 */
#ifndef LADE_TOOLS_REPLAY_GIANTS_H
#define LADE_TOOLS_REPLAY_GIANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/device.h"
#include "tools/replay/report.h"

typedef struct giant giant;
typedef struct giant_event giant_event;

typedef struct giants {
  giant **list; /* by number */
  size_t count;
  size_t room;
  giant_event *events; /* not found done, oldest first */
  bool pytorch_policy;
  uint64_t max_bytes; /* cap on the bytes of giants */
  uint64_t reserved_bytes;
  uint64_t driver_allocs;
  uint64_t driver_frees;
  uint64_t events_recorded;
} giants;

/* Whether a request is one of these. */
bool giants_take(uint64_t bytes);

void giants_destroy(giants *all);

typedef enum giants_result { GIANTS_DONE, GIANTS_NO_MEMORY, GIANTS_OVER_CAP } giants_result;

/* *out_number names the block until it is freed. */
giants_result giants_alloc(giants *all, uint64_t bytes, size_t *out_number);
/* False where there is no memory: nothing changed. */
bool giants_record(giants *all, size_t number, lade_stream stream);
bool giants_free(giants *all, size_t number);
void giants_poll(giants *all);
void giants_empty(giants *all);

/* Adds the giants' figures. */
void giants_report(const giants *all, report_pinned *out);

#endif /* LADE_TOOLS_REPLAY_GIANTS_H */
