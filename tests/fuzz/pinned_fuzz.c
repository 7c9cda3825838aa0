/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interpreter of operation bytes over a pinned pool on the runtime `sim`.
 *
 * The first bytes choose policy, batch and cap; each further step is an operation. Blocks carry a byte of their own, which
 * every copy out of them must find, however late it runs: a block handed out too early is filled with another byte.
 * Calls of the driver may fail as planned on the way.
 *
 * After every step the pool's invariants are recounted. At the end every copy is looked at, everything is given back,
 * and the runtime must close.
 */
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "lade/soft.h"
#include "tests/fuzz/fuzz.h"

enum { BLOCKS = 24, STREAMS = 3, SLOTS = 128, COPY_BYTES = 64 };

typedef struct block {
  unsigned char *memory; /* NULL: none */
  size_t bytes;
  unsigned char mark;
} block;

typedef struct machine {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream streams[STREAMS];
  bool held[STREAMS];
  block blocks[BLOCKS];
  unsigned char *device;         /* SLOTS pieces of COPY_BYTES */
  unsigned char expected[SLOTS]; /* mark that the copy into the slot must bring */
  size_t copied[SLOTS];          /* bytes */
  unsigned slots;
  unsigned char next_mark;
} machine;

static bool machine_open(machine *own, fuzz_reader *in) {
  lade_pinned_options options;
  void *device = NULL;
  memset(own, 0, sizeof *own);
  if (lade_runtime_open("sim", NULL, &own->runtime) != LADE_OK) return false;
  lade_pinned_options_init(&options);
  options.flags = fuzz_below(in, 4) == 1 ? (uint32_t)LADE_PINNED_REFERENCE : 0;
  options.flags |= fuzz_below(in, 4) == 1 ? (uint32_t)LADE_PINNED_DEBUG : 0;
  options.event_batch = fuzz_below(in, 6);
  options.segment_bytes = (1 + fuzz_below(in, 3)) * LADEI_MIB;
  options.max_bytes = (2 + fuzz_below(in, 8)) * LADEI_MIB;
  options.magazine_bytes = fuzz_below(in, 3) * LADEI_MIB;
  options.sources = LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER | LADE_PINNED_SOURCE_POOL;
  options.register_chunk_bytes = fuzz_below(in, 3) == 1 ? LADEI_MIB : 0;
  for (int i = 0; i < STREAMS; i++) FUZZ_CHECK(lade_stream_create(own->runtime, 0, &own->streams[i]) == LADE_OK);
  FUZZ_CHECK(own->runtime->ops->device_alloc(own->runtime->self, 0, SLOTS * COPY_BYTES, &device) == LADE_OK);
  FUZZ_CHECK(lade_pinned_pool_create(own->runtime, &options, &own->pool) == LADE_OK);
  own->device = device;
  return own->pool != NULL;
}

static void step_alloc(machine *own, fuzz_reader *in) {
  block *at = &own->blocks[fuzz_below(in, BLOCKS)];
  size_t bytes = fuzz_size(in, 65536) << fuzz_below(in, 7);
  void *memory = NULL;
  if (at->memory != NULL) return;
  if (lade_pinned_alloc(own->pool, bytes, &memory) != LADE_OK) return; /* at the cap, or a planned failure */
  *at = (block){memory, bytes, ++own->next_mark};
  memset(memory, at->mark, ladei_size_min(bytes, COPY_BYTES));
}

/* Copies the head out on a stream, and tells the pool in one of two ways. */
static void step_use(machine *own, fuzz_reader *in) {
  const block *at = &own->blocks[fuzz_below(in, BLOCKS)];
  lade_stream stream = own->streams[fuzz_below(in, STREAMS)];
  bool now = fuzz_below(in, 3) == 0;
  if (at->memory == NULL || own->slots == SLOTS) return;
  unsigned char *slot = own->device + (size_t)own->slots * COPY_BYTES;
  size_t bytes = ladei_size_min(at->bytes, COPY_BYTES);
  if (lade_copy_async(own->runtime, slot, at->memory, bytes, stream) != LADE_OK) return;
  own->expected[own->slots] = at->mark;
  own->copied[own->slots++] = bytes;
  lade_status status = now ? lade_pinned_record_use(own->pool, at->memory, stream)
                           : lade_pinned_record_event(own->pool, at->memory, stream);
  if (status != LADE_OK) {
    /* The contract: what could not be noted is waited for. A held stream is let go for that. */
    for (int i = 0; i < STREAMS; i++) {
      if (own->streams[i] == stream && own->held[i]) lade_soft_stream_hold(own->runtime, stream, false);
      own->held[i] = own->streams[i] == stream ? false : own->held[i];
    }
    (void)lade_soft_fault_clear(own->runtime);
    FUZZ_CHECK(lade_stream_synchronize(own->runtime, stream) == LADE_OK);
  }
}

static void step_free(machine *own, fuzz_reader *in) {
  block *at = &own->blocks[fuzz_below(in, BLOCKS)];
  bool quiet = fuzz_below(in, 4) == 0;
  if (at->memory == NULL) return;
  FUZZ_CHECK(at->memory[0] == at->mark);
  if (at->bytes > 1) FUZZ_CHECK(lade_pinned_free(own->pool, at->memory + 1) == LADE_ERR_NOT_BLOCK_START);
  lade_status status = quiet ? lade_pinned_free_quiet(own->pool, at->memory) : lade_pinned_free(own->pool, at->memory);
  FUZZ_CHECK(status == LADE_OK);
  FUZZ_CHECK(lade_pinned_free(own->pool, at->memory) != LADE_OK);
  at->memory = NULL;
}

static void step_hold(machine *own, fuzz_reader *in) {
  unsigned i = fuzz_below(in, STREAMS);
  own->held[i] = !own->held[i];
  (void)(own->held[i] ? lade_soft_stream_hold(own->runtime, own->streams[i], true)
                      : lade_soft_stream_hold(own->runtime, own->streams[i], false));
}

static void step_fault(machine *own, fuzz_reader *in) {
  static const char *const ops[] = {"host_register", "host_alloc",  "pool_alloc",  "pool_create",
                                    "event_record",  "event_query", "event_create"};
  unsigned op = fuzz_below(in, 7);
  lade_status status = op < 3 ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_ERR_DRIVER;
  FUZZ_CHECK(lade_soft_fault_add(own->runtime, ops[op], 1 + fuzz_below(in, 3), status) == LADE_OK);
}

static void step(machine *own, fuzz_reader *in) {
  switch (fuzz_below(in, 10)) {
  case 0:
  case 1:
  case 2: step_alloc(own, in); break;
  case 3:
  case 4: step_use(own, in); break;
  case 5:
  case 6: step_free(own, in); break;
  case 7:
    if (fuzz_below(in, 2) == 0)
      step_hold(own, in);
    else
      step_fault(own, in);
    break;
  case 8: FUZZ_CHECK(lade_soft_advance(own->runtime, (uint64_t)fuzz_byte(in) * 100) == LADE_OK); break;
  default:
    (void)(fuzz_below(in, 2) == 0 ? lade_pinned_process_events(own->pool)
                                  : lade_pinned_trim(own->pool, fuzz_below(in, 4) * LADEI_MIB));
    break;
  }
  FUZZ_CHECK(ladei_pinned_pool_check(own->pool) == LADE_OK);
}

static void machine_close(machine *own) {
  unsigned char bytes[COPY_BYTES];
  const lade_runtime *runtime = own->runtime;
  FUZZ_CHECK(lade_soft_fault_clear(own->runtime) == LADE_OK);
  for (int i = 0; i < STREAMS; i++) {
    if (own->held[i]) FUZZ_CHECK(lade_soft_stream_hold(own->runtime, own->streams[i], false) == LADE_OK);
    FUZZ_CHECK(lade_stream_synchronize(own->runtime, own->streams[i]) == LADE_OK);
  }
  for (unsigned i = 0; i < own->slots; i++) {
    FUZZ_CHECK(runtime->ops->copy_sync(runtime->self, 0, LADEI_COPY_D2H, bytes, own->device + (size_t)i * COPY_BYTES,
                                       own->copied[i]) == LADE_OK);
    for (size_t at = 0; at < own->copied[i]; at++) FUZZ_CHECK(bytes[at] == own->expected[i]);
  }
  for (int i = 0; i < BLOCKS; i++) FUZZ_CHECK(lade_pinned_free(own->pool, own->blocks[i].memory) == LADE_OK);
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  FUZZ_CHECK(lade_pinned_stats_get(own->pool, &stats) == LADE_OK);
  FUZZ_CHECK(stats.in_use_blocks.current == 0 && stats.requested_bytes.current == 0);
  if (stats.debug_findings > 0) fuzz_fail("%s", lade_pinned_debug_last(own->pool));
  FUZZ_CHECK(lade_pinned_pool_destroy(own->pool, true) == LADE_OK);
  FUZZ_CHECK(runtime->ops->device_free(runtime->self, 0, own->device) == LADE_OK);
  for (int i = 0; i < STREAMS; i++) FUZZ_CHECK(lade_stream_destroy(own->runtime, own->streams[i]) == LADE_OK);
  FUZZ_CHECK(lade_runtime_close(own->runtime) == LADE_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_reader in = {data, data + size};
  static machine own;
  if (!machine_open(&own, &in)) return 0;
  for (int steps = 0; !fuzz_done(&in) && steps < 2000; steps++) step(&own, &in);
  machine_close(&own);
  return 0;
}
