/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lists of sizes that pinned_cache plays: what data loaders and servers ask for.
 *
 *   image    float32 of 3 x 224 x 224 x B, B from 1 to 256      token   4 KiB to 2 MiB, log-uniform
 *   dali     2^4 to 2^24, log-uniform
 */
#ifndef LADE_BENCHMARKS_MICRO_SIZES_H
#define LADE_BENCHMARKS_MICRO_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* Deterministic: the same seed, the same sizes. */
typedef struct sizes_random {
  uint64_t state;
} sizes_random;

uint64_t sizes_next(sizes_random *random);
static inline uint64_t sizes_below(sizes_random *random, uint64_t bound) { return sizes_next(random) % bound; }

typedef size_t (*sizes_draw)(sizes_random *random);

typedef struct sizes_list {
  const char *name;
  sizes_draw draw;
  unsigned live; /* blocks in use at once */
} sizes_list;

enum { SIZES_IMAGE, SIZES_TOKEN, SIZES_DALI, SIZES_RANDOM_LISTS };
enum { SIZES_LISTS = SIZES_RANDOM_LISTS + 3 };

/* The three random ones, then 129.5 MB x 40, 609 MiB x 8 and 20.4 GiB x 1. */
extern const sizes_list sizes_lists[SIZES_LISTS];

/* Replacements, one after the other: a block of the size takes the place of the one in the slot. */
enum { SIZES_PLAN_STEPS = 4096, SIZES_LIVE_MOST = 64 };

typedef struct sizes_plan {
  unsigned live; /* slots */
  size_t sizes[SIZES_PLAN_STEPS];
  unsigned slots[SIZES_PLAN_STEPS];
} sizes_plan;

void sizes_plan_draw(sizes_plan *plan, const sizes_list *list);

#endif /* LADE_BENCHMARKS_MICRO_SIZES_H */
