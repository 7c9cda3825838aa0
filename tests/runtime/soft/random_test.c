/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Random programs on software devices: any op with any arguments, also wrong ones, in any state. After
 * each step the invariants hold (ladei_soft_check); at the end everything can be given back and the runtime closes.
 *
 * Such programs race with themselves. With engine threads their devices are therefore addresses only: what runs then are
 * the queues, not the bytes.
 *
 * A failure names the seed, which runs alone with LADE_TEST_SEED=n.
 */
#include <string.h>

#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { SLOTS = 6, STEPS = 250, SEEDS = 60, BYTES = 16384, POOL_BYTES = 4096 };
#define GRANULE ((size_t)2 << 20)

/* Slots hold live objects, stale ones and NULL: ops get them all. */
typedef struct program {
  bool moves_bytes;
  const lade_runtime_ops *ops;
  void *self;
  support_random random;
  lade_stream streams[SLOTS];
  ladei_stream resolved[SLOTS];
  lade_event events[SLOTS];
  void *device[SLOTS], *pinned[SLOTS], *blocks[SLOTS], *reserved[2];
  ladei_vm_handle handles[SLOTS];
  bool stream_live[SLOTS], event_live[SLOTS], device_live[SLOTS], pinned_live[SLOTS], block_live[SLOTS];
  bool reserved_live[2], handle_live[SLOTS], graph_live[SLOTS], exec_live[SLOTS], object_live[SLOTS], pool_live[2];
  size_t mapped[2][2]; /* handle slot + 1 mapped at granule j of reservation i */
  ladei_driver_pool pools[2];
  ladei_graph graphs[SLOTS];
  ladei_graph_exec execs[SLOTS];
  ladei_user_object objects[SLOTS];
} program;

static void ignore_call(void *user) { (void)user; }

static size_t pick(program *p, size_t count) { return support_random_below(&p->random, count); }

static void *at(program *p, void *const *slots) {
  char *base = slots[pick(p, SLOTS)];
  return base == NULL ? NULL : base + pick(p, 4) * 1000;
}

static void do_streams(program *p) {
  size_t i = pick(p, SLOTS);
  if (!p->stream_live[i]) {
    unsigned flags = pick(p, 2) ? LADEI_STREAM_NON_BLOCKING : 0;
    p->stream_live[i] = p->ops->stream_create(p->self, (int)pick(p, 2), 0, flags, &p->streams[i]) == LADE_OK;
    if (p->stream_live[i]) LADE_EXPECT_OK(p->ops->stream_resolve(p->self, p->streams[i], &p->resolved[i]));
  } else if (pick(p, 3) == 0) {
    LADE_EXPECT_OK(p->ops->stream_destroy(p->self, p->streams[i]));
    p->stream_live[i] = false;
  } else if (pick(p, 2) == 0) {
    ladei_soft_stream_hold(p->self, p->streams[i], pick(p, 2) == 0);
  } else {
    const lade_stream special[] = {NULL, LADE_STREAM_LEGACY, LADE_STREAM_PER_THREAD, p->streams[i]};
    p->ops->stream_resolve(p->self, special[pick(p, 4)], &p->resolved[i]);
  }
}

static void do_events(program *p) {
  size_t i = pick(p, SLOTS), j = pick(p, SLOTS);
  if (!p->event_live[i]) {
    unsigned flags = pick(p, 2) ? LADEI_EVENT_TIMING : 0;
    p->event_live[i] = p->ops->event_create(p->self, 1 + pick(p, 2), flags, &p->events[i]) == LADE_OK;
    return;
  }
  uint64_t ns = 0;
  switch (pick(p, 8)) {
  case 0: p->event_live[i] = p->ops->event_destroy(p->self, p->events[i]) != LADE_OK; return;
  case 1: p->ops->event_query(p->self, p->events[i]); return;
  case 2: p->ops->event_elapsed_ns(p->self, p->events[i], p->events[j], &ns); return;
  case 3:
  case 4: p->ops->stream_wait_event(p->self, &p->resolved[j], p->events[i]); return;
  default: p->ops->event_record(p->self, p->events[i], &p->resolved[j]); return;
  }
}

static void do_memory(program *p) {
  size_t i = pick(p, SLOTS);
  if (pick(p, 2) == 0) {
    if (!p->device_live[i])
      p->device_live[i] = p->ops->device_alloc(p->self, (int)(i % 2), BYTES, &p->device[i]) == LADE_OK;
    else if (pick(p, 3) == 0)
      p->device_live[i] = p->ops->device_free(p->self, (int)(i % 2), p->device[i]) != LADE_OK;
  } else if (!p->pinned_live[i]) {
    p->pinned_live[i] = p->ops->host_alloc(p->self, 0, BYTES, 0, &p->pinned[i]) == LADE_OK;
  } else if (pick(p, 3) == 0) {
    p->pinned_live[i] = p->ops->host_free(p->self, p->pinned[i]) != LADE_OK;
  }
}

static void do_work(program *p) {
  const ladei_stream *stream = &p->resolved[pick(p, SLOTS)];
  void *device = at(p, p->device), *pinned = at(p, p->pinned);
  size_t bytes = pick(p, 9000);
  switch (pick(p, 9)) {
  case 0:
  case 1: p->ops->copy(p->self, LADEI_COPY_H2D, device, pinned, bytes, stream); return;
  case 2:
  case 3: p->ops->copy(p->self, LADEI_COPY_D2H, pinned, device, bytes, stream); return;
  case 4: p->ops->copy(p->self, LADEI_COPY_D2D, device, at(p, p->device), bytes, stream); return;
  case 5: p->ops->fill(p->self, at(p, p->moves_bytes && pick(p, 2) ? p->blocks : p->device), 3, bytes, stream); return;
  case 6: p->ops->host_function(p->self, stream, ignore_call, NULL); return;
  case 7: p->ops->stream_write_value(p->self, stream, device, 5, 32); return;
  default: p->ops->copy_peer(p->self, device, (int)pick(p, 2), at(p, p->device), (int)pick(p, 2), bytes, stream);
  }
}

static void do_virtual_memory(program *p) {
  size_t r = pick(p, 2), g = pick(p, 2), h = pick(p, SLOTS);
  if (!p->reserved_live[r]) {
    p->reserved_live[r] = p->ops->vm_reserve(p->self, 0, 2 * GRANULE, 0, &p->reserved[r]) == LADE_OK;
    return;
  }
  char *place = (char *)p->reserved[r] + g * GRANULE;
  if (!p->handle_live[h]) {
    p->handle_live[h] = p->ops->vm_create(p->self, 0, GRANULE, false, &p->handles[h]) == LADE_OK;
  } else if (pick(p, 3) == 0) {
    p->handle_live[h] = p->ops->vm_release(p->self, p->handles[h]) != LADE_OK;
  } else if (p->mapped[r][g] == 0) {
    if (p->ops->vm_map(p->self, place, GRANULE, p->handles[h]) == LADE_OK) p->mapped[r][g] = h + 1;
    p->ops->vm_set_access(p->self, place, GRANULE, (int)pick(p, 2), pick(p, 3) != 0);
  } else if (pick(p, 2) == 0) {
    p->ops->fill(p->self, place, 1, 1 + pick(p, GRANULE), &p->resolved[pick(p, SLOTS)]);
  } else {
    LADE_EXPECT_OK(p->ops->vm_unmap(p->self, place, GRANULE));
    p->mapped[r][g] = 0;
  }
}

static void do_pools(program *p) {
  size_t i = pick(p, SLOTS), q = pick(p, 2);
  const ladei_stream *stream = &p->resolved[pick(p, SLOTS)];
  if (!p->pool_live[q]) {
    const ladei_pool_properties properties = {q == 0 ? LADEI_POOL_DEVICE : LADEI_POOL_HOST, 0, 0};
    p->pool_live[q] = p->ops->pool_create(p->self, &properties, &p->pools[q]) == LADE_OK;
  } else if (pick(p, 20) == 0) {
    p->pool_live[q] = p->ops->pool_destroy(p->self, p->pools[q]) != LADE_OK;
  } else if (pick(p, 10) == 0) {
    p->ops->pool_trim(p->self, p->pools[q], pick(p, 3) * POOL_BYTES);
  } else if (!p->block_live[i]) {
    size_t bytes = 1 + pick(p, POOL_BYTES);
    p->block_live[i] = p->ops->pool_alloc(p->self, p->pools[q], bytes, stream, &p->blocks[i]) == LADE_OK;
  } else {
    p->block_live[i] = p->ops->pool_free(p->self, p->blocks[i], stream) != LADE_OK;
  }
}

static void do_graphs(program *p) {
  size_t i = pick(p, SLOTS), j = pick(p, SLOTS);
  const ladei_stream *stream = &p->resolved[j];
  switch (pick(p, 6)) {
  case 0: p->ops->capture_begin(p->self, stream, (ladei_capture_mode)pick(p, 3)); return;
  case 1:
  case 2:
    if (!p->graph_live[i]) p->graph_live[i] = p->ops->capture_end(p->self, stream, &p->graphs[i]) == LADE_OK;
    return;
  case 3:
    if (p->graph_live[i] && !p->exec_live[j])
      p->exec_live[j] = p->ops->graph_instantiate(p->self, p->graphs[i], &p->execs[j]) == LADE_OK;
    else if (p->graph_live[i])
      p->graph_live[i] = p->ops->graph_destroy(p->self, p->graphs[i]) != LADE_OK;
    return;
  case 4:
    if (p->exec_live[i] && pick(p, 4) == 0)
      p->exec_live[i] = p->ops->graph_exec_destroy(p->self, p->execs[i]) != LADE_OK;
    else
      p->ops->graph_launch(p->self, p->execs[i], stream);
    return;
  default:
    if (!p->object_live[i])
      p->object_live[i] = p->ops->user_object_create(p->self, ignore_call, NULL, &p->objects[i]) == LADE_OK;
    else if (pick(p, 2) == 0 && p->graph_live[j])
      p->object_live[i] = p->ops->graph_retain_user_object(p->self, p->graphs[j], p->objects[i]) != LADE_OK;
    else
      p->object_live[i] = p->ops->user_object_release(p->self, p->objects[i]) != LADE_OK;
  }
}

static void do_time(program *p, bool virtual_time) {
  const ladei_stream *stream = &p->resolved[pick(p, SLOTS)];
  if (pick(p, 3) == 0) p->ops->stream_query(p->self, stream);
  if (virtual_time) {
    if (pick(p, 3) == 0) p->ops->stream_synchronize(p->self, stream); /* a held one: LADE_ERR_TIMEOUT */
    ladei_soft_advance(p->self, pick(p, 5000));
  }
}

static void step(program *p, bool virtual_time) {
  switch (pick(p, 12)) {
  case 0: do_streams(p); return;
  case 1:
  case 2: do_events(p); return;
  case 3: do_memory(p); return;
  case 4: do_virtual_memory(p); return;
  case 5: do_pools(p); return;
  case 6: do_graphs(p); return;
  case 7: do_time(p, virtual_time); return;
  default: do_work(p); return;
  }
}

/* ---- giving everything back -------------------------------------------------------------------------------------- */

/* A stream that goes takes its capture along; the thread's own one stays and must end it. */
static void captures_end(program *p) {
  for (int i = 0; i < SLOTS; i++)
    if (p->stream_live[i]) LADE_EXPECT_OK(p->ops->stream_destroy(p->self, p->streams[i]));
  ladei_stream own = {0};
  ladei_graph graph = NULL;
  LADE_EXPECT_OK(p->ops->stream_resolve(p->self, LADE_STREAM_PER_THREAD, &own));
  bool captured = p->ops->capture_end(p->self, &own, &graph) == LADE_OK;
  if (captured) LADE_EXPECT_OK(p->ops->graph_destroy(p->self, graph));
}

static void virtual_memory_free(program *p) {
  for (int r = 0; r < 2; r++) {
    for (size_t g = 0; g < 2; g++) {
      char *place = (char *)p->reserved[r] + g * GRANULE;
      if (p->mapped[r][g] != 0) LADE_EXPECT_OK(p->ops->vm_unmap(p->self, place, GRANULE));
    }
    if (p->reserved_live[r]) LADE_EXPECT_OK(p->ops->vm_address_free(p->self, p->reserved[r], 2 * GRANULE));
  }
}

static void program_end(program *p) {
  lade_stream last = NULL;
  ladei_stream stream = {0};
  for (int i = 0; i < SLOTS; i++)
    if (p->stream_live[i]) LADE_EXPECT_OK(ladei_soft_stream_hold(p->self, p->streams[i], false));
  captures_end(p);
  LADE_EXPECT_OK(p->ops->stream_create(p->self, 0, 0, LADEI_STREAM_NON_BLOCKING, &last));
  LADE_EXPECT_OK(p->ops->stream_resolve(p->self, last, &stream));
  virtual_memory_free(p);
  for (int i = 0; i < SLOTS; i++) {
    if (p->event_live[i]) LADE_EXPECT_OK(p->ops->event_destroy(p->self, p->events[i]));
    if (p->device_live[i]) LADE_EXPECT_OK(p->ops->device_free(p->self, i % 2, p->device[i]));
    if (p->pinned_live[i]) LADE_EXPECT_OK(p->ops->host_free(p->self, p->pinned[i]));
    if (p->block_live[i]) LADE_EXPECT_OK(p->ops->pool_free(p->self, p->blocks[i], &stream));
    if (p->handle_live[i]) LADE_EXPECT_OK(p->ops->vm_release(p->self, p->handles[i]));
    if (p->exec_live[i]) LADE_EXPECT_OK(p->ops->graph_exec_destroy(p->self, p->execs[i]));
    if (p->graph_live[i]) LADE_EXPECT_OK(p->ops->graph_destroy(p->self, p->graphs[i]));
    if (p->object_live[i]) LADE_EXPECT_OK(p->ops->user_object_release(p->self, p->objects[i]));
    if (i < 2 && p->pool_live[i]) LADE_EXPECT_OK(p->ops->pool_destroy(p->self, p->pools[i]));
  }
  LADE_EXPECT_OK(p->ops->stream_destroy(p->self, last));
  LADE_EXPECT_OK(ladei_soft_check(p->self));
}

static void run(const char *clock, uint64_t seed) {
  bool threads = strcmp(clock, "cpu") == 0;
  const lade_soft_device device = {.memory_bytes = 64 << 20, .copy_launch_ns = 100, .addresses_only = threads};
  const lade_soft_device devices[2] = {device, device};
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = devices;
  options.device_count = 2;
  soft_fixture f = soft_fixture_open(clock, &options);
  static program p;
  memset(&p, 0, sizeof p);
  p.ops = f.ops;
  p.moves_bytes = !threads;
  p.self = f.self;
  support_random_start_quietly(&p.random, seed);
  lade_test_context("seed %llu", (unsigned long long)seed);
  LADE_EXPECT_OK(f.ops->current_device_set(f.self, 0));
  for (int i = 0; i < SLOTS; i++) LADE_EXPECT_OK(f.ops->stream_resolve(f.self, NULL, &p.resolved[i]));
  for (int i = 0; i < STEPS && !lade_test_has_failed(); i++) {
    step(&p, f.virtual_time);
    LADE_EXPECT_OK(ladei_soft_check(f.self));
  }
  program_end(&p);
  soft_fixture_close(&f);
}

LADE_TEST_P(RandomPrograms, KeepTheInvariantsAndCanBeUndone, soft_fixture_clocks, clock) {
  uint64_t one = support_seed(0), first = one != 0 ? one : 1, last = one != 0 ? one : SEEDS;
  for (uint64_t seed = first; seed <= last && !lade_test_has_failed(); seed++) run(clock, seed);
}
