/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots to test with, made from tables, and a comparison that says what differs. */
#ifndef LADE_TESTS_INSPECT_SAMPLE_H
#define LADE_TESTS_INSPECT_SAMPLE_H

#include "base/output.h"
#include "inspect/snapshot.h"

/* How much of everything a snapshot has; the same shape and seed give the same snapshot. */
typedef struct sample_shape {
  uint64_t seed;
  uint32_t segments; /* of the first device; others and pinned pools have fewer */
  uint32_t blocks;   /* of it, all segments together */
  uint32_t events;   /* of it */
  uint32_t stacks;
  uint32_t frames;  /* of a stack */
  uint32_t devices; /* device allocators; the last one has the ordinal of the first */
  uint32_t pools;   /* pinned pools, each with half of what a device has */
} sample_shape;

/* All of the format in few rows: every action and state, notes, labels, pools, modules, awkward texts, every kind of setting. */
extern const sample_shape sample_small;
/* Lists of some thousand rows. */
extern const sample_shape sample_long;
/* 100,000 blocks, 1,000,000 events, 2,000 stacks of 16 frames, of one device. */
extern const sample_shape sample_big;

/* NULL where memory is missing. lade_snapshot_destroy() frees it. */
lade_snapshot *sample_create(const sample_shape *shape);

/* What in b is not as in a: "" where nothing is. Times are compared in units of `time_unit_ns`. Texts are compared by what they
 * say, stacks by their frames. */
const char *sample_difference(const lade_snapshot *a, const lade_snapshot *b, uint64_t time_unit_ns, char room[256]);

/* A snapshot as a file in memory; malloc(), the caller frees it. NULL on an error, which lade_last_error() tells. */
typedef lade_status (*sample_format)(const lade_snapshot *, const lade_snapshot_write_options *, ladei_output *);
char *sample_write(const lade_snapshot *snapshot, sample_format format, size_t *out_bytes);

/* Writes it in a format and reads that: what is not as before, as sample_difference() tells, or why it cannot be done. */
typedef lade_status (*sample_reader)(const void *data, size_t bytes, const char *name, lade_snapshot **out);
const char *sample_round_trip(const lade_snapshot *before, sample_format format, sample_reader reader,
                              uint64_t time_unit_ns, char room[256]);

/* Shapes of all kinds, NULL behind the last: for round trips. */
extern const sample_shape *const sample_shapes[];

#endif /* LADE_TESTS_INSPECT_SAMPLE_H */
