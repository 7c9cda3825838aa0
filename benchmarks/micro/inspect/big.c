/* SPDX-License-Identifier: Apache-2.0 */
#include "benchmarks/micro/inspect/big.h"

#include <stdio.h>

#include "base/error.h"
#include "benchmarks/messages.h"

enum { SEGMENT_BLOCKS = 50, BLOCK_STEP = 4096 };
static const uint64_t base_address = 0x7f0000000000, first_time_ns = 1700000000000000000;

static uint32_t draw(uint64_t *state, uint32_t limit) { /* a linear congruential generator, high bits */
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((*state >> 33) % limit);
}

static lade_status frame_make(lade_snapshot *big, uint64_t *random, ladei_snapshot_frame *out) {
  char function[64], file[64];
  uint32_t number = draw(random, 4000);
  snprintf(function, sizeof function, "torch::autograd::layer_%u::forward", number);
  snprintf(file, sizeof file, "/opt/training/model/part_%u/layer_%u.cpp", number % 40, number);
  LADEI_TRY(ladei_inspect_text(big, function, &out->function));
  LADEI_TRY(ladei_inspect_text(big, file, &out->file));
  out->line = draw(random, 2000);
  out->module = LADEI_SNAPSHOT_NONE;
  return LADE_OK;
}

static lade_status stacks_make(lade_snapshot *big, uint64_t *random) {
  for (int i = 0; i < BIG_STACKS; i++) {
    ladei_snapshot_frame frames[BIG_FRAMES] = {{0, 0, 0, 0, 0}};
    uint32_t stack;
    for (int f = 0; f < BIG_FRAMES; f++) LADEI_TRY(frame_make(big, random, &frames[f]));
    LADEI_TRY(ladei_inspect_stack(big, frames, BIG_FRAMES, &stack));
  }
  return LADE_OK;
}

static uint64_t address_of(uint32_t block) { return base_address + (uint64_t)block * BLOCK_STEP; }

static lade_status blocks_make(lade_snapshot *big, uint64_t *random, uint32_t blocks) {
  for (uint32_t i = 0; i < blocks; i++) {
    ladei_snapshot_block *block = LADEI_INSPECT_ADD(&big->blocks);
    if (block == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    bool live = draw(random, 4) != 0;
    *block = (ladei_snapshot_block){.address = address_of(i),
                                    .bytes = BLOCK_STEP,
                                    .requested_bytes = live ? BLOCK_STEP - draw(random, 512) : 0,
                                    .state = live ? LADE_DEVICE_BLOCK_ALLOCATED : LADE_DEVICE_BLOCK_INACTIVE,
                                    .stack = live ? draw(random, BIG_STACKS) : LADEI_SNAPSHOT_NONE};
  }
  for (uint32_t i = 0; i < blocks / SEGMENT_BLOCKS; i++) {
    ladei_snapshot_segment *segment = LADEI_INSPECT_ADD(&big->segments);
    if (segment == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *segment = (ladei_snapshot_segment){.address = address_of(i * SEGMENT_BLOCKS),
                                        .total_bytes = (uint64_t)SEGMENT_BLOCKS * BLOCK_STEP,
                                        .first_block = (uint64_t)i * SEGMENT_BLOCKS,
                                        .block_count = SEGMENT_BLOCKS,
                                        .stack = draw(random, BIG_STACKS),
                                        .numa_node = -1};
  }
  return LADE_OK;
}

/* Blocks are handed out and come back: alloc, later free_requested and free_completed. */
static lade_status events_make(lade_snapshot *big, uint64_t *random, uint32_t share) {
  uint64_t time_ns = first_time_ns;
  for (uint32_t i = 0; i < BIG_EVENTS / share; i++) {
    ladei_snapshot_event *event = LADEI_INSPECT_ADD(&big->events);
    if (event == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    time_ns += 500 + draw(random, 4000);
    *event = (ladei_snapshot_event){.time_ns = time_ns,
                                    .address = address_of(draw(random, BIG_BLOCKS / share)),
                                    .bytes = 1 + draw(random, BLOCK_STEP),
                                    .stream = i % 5 == 0 ? 0x55d012345670 : 0,
                                    .stack = draw(random, BIG_STACKS),
                                    .action = i % 3};
  }
  return LADE_OK;
}

static lade_status big_make(lade_snapshot *big, uint32_t share) {
  uint64_t random = 1;
  LADEI_TRY(stacks_make(big, &random));
  LADEI_TRY(ladei_inspect_part_begin(big, LADE_PART_DEVICE, 0, "device 0"));
  ladei_inspect_part(big)->events = 1;
  ladei_inspect_part(big)->max_entries = BIG_EVENTS / share;
  LADEI_TRY(ladei_inspect_counter(big, "allocated_bytes.all.current", 1 << 30));
  LADEI_TRY(ladei_inspect_bool(big, "expandable_segments", false));
  LADEI_TRY(blocks_make(big, &random, BIG_BLOCKS / share));
  LADEI_TRY(events_make(big, &random, share));
  return ladei_inspect_finish(big);
}

lade_snapshot *big_create(uint32_t share) {
  lade_snapshot *big;
  if (ladei_inspect_create(&big) == LADE_OK) {
    if (big_make(big, share) == LADE_OK) return big;
    lade_snapshot_destroy(big);
  }
  bench_lade_error("a big snapshot");
  return NULL;
}
