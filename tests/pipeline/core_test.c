/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine on its own: a driver that takes, completes and fails orders at random, and checks after every step
 * that the core's books are right and that no block is touched while a copy may still use it.
 */
#include "pipeline/core/core.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { MAX_TRANSFERS = 12, MAX_CHUNKS = 24, MAX_OUT = 6, MAX_BLOCKS = 16 };

typedef struct model_transfer {
  ladei_pipe_core_transfer transfer; /* first member */
  unsigned chunks;
  unsigned host[MAX_CHUNKS];   /* completed reads or writes of each chunk */
  unsigned copied[MAX_CHUNKS]; /* completed copies */
  unsigned next_host;          /* ordered: chunk that must come next */
  unsigned dependencies;
  bool waits; /* its dependency was not passed when it was asked, and no copy was seen to be over */
  const ladei_pipe_copy_stream *copy_stream; /* of its first copy */
  unsigned finishes;
  bool hangs; /* its calls do not return, or its server does not answer */
} model_transfer;

typedef struct model_block {
  bool alive;
  bool in_flight; /* a copy that no successful POLL has covered */
} model_block;

typedef struct model {
  support_random random;
  ladei_pipe_core core;
  model_transfer transfers[MAX_TRANSFERS];
  unsigned transfer_count;
  model_block blocks[MAX_BLOCKS * 4];
  unsigned alive;
  ladei_pipe_order out[MAX_OUT];
  unsigned out_count;
  ladei_pipe_order hung[2 * MAX_BLOCKS]; /* calls that do not return */
  unsigned hung_count;
  bool some_hang;
  unsigned failure_one_in; /* 0: nothing fails */
  bool acquire_fails;
  unsigned depth;
  uint64_t scale; /* bytes of chunks are multiples of it: 1, and all transfers are short, or 1 MiB */
} model;

static const lade_error injected = {LADE_ERR_DRIVER, 7, "injected"};

static model_transfer *model_of(ladei_pipe_core_transfer *transfer) { return (model_transfer *)(void *)transfer; }

static unsigned chunk_of(const ladei_pipe_slot *slot) {
  return (unsigned)((slot->offset + slot->transfer->lead_bytes) / slot->transfer->chunk_bytes);
}

/* An unstaged chunk has none: one that no ring has. */
static model_block *block_of(void *block) {
  static model_block unstaged;
  unstaged = (model_block){.alive = true};
  return block != NULL ? (model_block *)block : &unstaged;
}

static void *block_new(model *m) {
  for (unsigned i = 0; i < sizeof m->blocks / sizeof m->blocks[0]; i++) {
    if (!m->blocks[i].alive) {
      m->blocks[i] = (model_block){.alive = true};
      m->alive++;
      return &m->blocks[i];
    }
  }
  LADE_FAIL("more blocks than the ring may have");
  return NULL;
}

static void check_copied_slot(const ladei_pipe_slot *slot) {
  model_transfer *t = model_of(slot->transfer);
  LADE_EXPECT(!block_of(slot->block)->in_flight);
  /* Copies that wait for the caller's stream are on copy streams for that, and all such of a transfer's are in one. */
  LADE_EXPECT(t->transfer.dependency == LADEI_PIPE_DEPENDENCY_NONE ||
              t->transfer.dependency == LADEI_PIPE_DEPENDENCY_AWAITED);
  unsigned index = slot->copy_stream->index;
  LADE_EXPECT_EQ_INT(index > 0 && index < LADEI_PIPE_COPY_STREAM_SHORT, t->waits);
  bool first = index == 0 || index == LADEI_PIPE_COPY_STREAM_SECOND;
  bool passes = t->transfer.bytes <= 1 << 20 || t->transfer.level > LADEI_PIPE_PRIORITY_NORMAL;
  LADE_EXPECT(t->waits || (passes ? index == LADEI_PIPE_COPY_STREAM_SHORT : first));
  LADE_EXPECT(!t->waits || t->copy_stream == NULL || t->copy_stream == slot->copy_stream);
  t->copy_stream = slot->copy_stream;
  if (slot->ring->direction == LADE_TO_DEVICE && !t->transfer.no_host) LADE_EXPECT_EQ_UINT(t->host[chunk_of(slot)], 1);
}

/* Those that are joined wait for nothing, and have a host half that is over. */
static void check_copy(const ladei_pipe_order *order) {
  const ladei_pipe_ring *ring = order->ring;
  unsigned count = 0;
  size_t bytes = 0;
  for (const ladei_pipe_slot *slot = order->slot; slot != NULL; slot = slot->joined) {
    check_copied_slot(slot);
    count++;
    bytes += slot->bytes;
    if (order->slot->joined == NULL) continue;
    LADE_EXPECT(slot->transfer->joins && !slot->transfer->unstaged);
    LADE_EXPECT_EQ_PTR(slot->copy_stream, order->slot->copy_stream);
    LADE_EXPECT(slot->copy_stream->index == 0 || slot->copy_stream->index == LADEI_PIPE_COPY_STREAM_SECOND);
    LADE_EXPECT_EQ_INT(ring->direction, LADE_TO_DEVICE);
  }
  LADE_EXPECT(count == 1 || (count <= ring->joined.most && bytes <= ring->joined.bytes));
}

static void check_taken(const model *m, const ladei_pipe_order *order) {
  for (unsigned i = 0; order->kind == LADEI_PIPE_ORDER_FINISH && i < m->out_count; i++) {
    /* Once it is finished its owner may take it away. */
    LADE_EXPECT_NE_PTR(m->out[i].transfer, order->transfer);
  }
  if (order->kind == LADEI_PIPE_ORDER_READ || order->kind == LADEI_PIPE_ORDER_WRITE) {
    model_transfer *t = model_of(order->transfer);
    /* Chunks end where multiples of the chunk's size do, counted from the lead on; none leaves its block. */
    LADE_EXPECT_EQ_UINT((order->slot->offset + t->transfer.lead_bytes) % t->transfer.chunk_bytes,
                        order->slot->lead_bytes);
    LADE_EXPECT_LE_UINT(order->slot->lead_bytes + order->slot->bytes, t->transfer.chunk_bytes);
    /* A block that a copy still uses must not be read into. */
    LADE_EXPECT(!block_of(order->slot->block)->in_flight);
    /* What a READ writes to the device itself must come after the dependency. */
    if (t->transfer.read_arrives) LADE_EXPECT_EQ_INT(t->transfer.dependency, LADEI_PIPE_DEPENDENCY_NONE);
    if (t->transfer.ordered) {
      LADE_EXPECT_EQ_UINT(chunk_of(order->slot), t->next_host);
      t->next_host++;
    }
    if (order->kind == LADEI_PIPE_ORDER_WRITE && t->transfer.writers != 0 && !t->transfer.ordered)
      LADE_EXPECT_LE_UINT(t->transfer.host_out, t->transfer.writers);
  }
  if (order->kind == LADEI_PIPE_ORDER_COPY) check_copy(order);
  if (order->kind == LADEI_PIPE_ORDER_RELEASE && !order->in_flight)
    LADE_EXPECT(!block_of(order->slot->block)->in_flight);
}

static lade_status outcome(model *m, const ladei_pipe_order *order) {
  bool fails = m->failure_one_in != 0 && support_random_one_in(&m->random, m->failure_one_in);
  switch (order->kind) {
  case LADEI_PIPE_ORDER_ACQUIRE:
    if (order->only && support_random_one_in(&m->random, 8)) return LADE_NOT_READY;
    return m->acquire_fails && fails ? LADE_ERR_DRIVER : LADE_OK;
  case LADEI_PIPE_ORDER_RELEASE: return order->in_flight && !order->last_resort && fails ? LADE_ERR_DRIVER : LADE_OK;
  case LADEI_PIPE_ORDER_POLL:
    if (support_random_one_in(&m->random, 2)) return LADE_NOT_READY;
    break;
  default: break;
  }
  return fails ? LADE_ERR_DRIVER : LADE_OK;
}

/* What the completion of an order means for the bytes, noted before the core hears of it. */
static void note_effect(model *m, ladei_pipe_order *order, lade_status status) {
  ladei_pipe_slot *slot = order->slot;
  if (order->kind == LADEI_PIPE_ORDER_FINISH) model_of(order->transfer)->finishes++;
  if (status != LADE_OK) return;
  switch (order->kind) {
  case LADEI_PIPE_ORDER_FINISH: break;
  case LADEI_PIPE_ORDER_ACQUIRE: order->block = block_new(m); break;
  case LADEI_PIPE_ORDER_READ:
  case LADEI_PIPE_ORDER_WRITE: model_of(order->transfer)->host[chunk_of(slot)]++; break;
  case LADEI_PIPE_ORDER_DEPENDENCY:
    order->passed = support_random_one_in(&m->random, 3);
    model_of(order->transfer)->dependencies++;
    model_of(order->transfer)->waits = !order->passed && order->copy_stream != NULL;
    break;
  case LADEI_PIPE_ORDER_COPY:
    for (; slot != NULL; slot = slot->joined) {
      model_of(slot->transfer)->copied[chunk_of(slot)]++;
      block_of(slot->block)->in_flight = true;
    }
    break;
  case LADEI_PIPE_ORDER_RECORD: break;
  case LADEI_PIPE_ORDER_POLL:
    TAILQ_FOREACH (slot, &order->batch->slots, link) {
      if (slot->block != NULL) block_of(slot->block)->in_flight = false;
      model_of(slot->transfer)->waits = false;
    }
    break;
  case LADEI_PIPE_ORDER_RELEASE:
    LADE_EXPECT(block_of(slot->block)->alive);
    block_of(slot->block)->alive = false;
    m->alive--;
    break;
  }
}

static void complete_one(model *m) {
  unsigned i = (unsigned)support_random_below(&m->random, m->out_count);
  ladei_pipe_order order = m->out[i];
  m->out[i] = m->out[--m->out_count];
  lade_status status = outcome(m, &order);
  note_effect(m, &order, status);
  ladei_pipe_core_complete(&m->core, &order, status, &injected);
}

static bool take_one(model *m) {
  ladei_pipe_order order;
  unsigned allow = support_random_one_in(&m->random, 4) ? 0 : LADEI_PIPE_ALLOW_HOST;
  if (m->out_count == MAX_OUT) return false;
  bool expected = ladei_pipe_core_has_order(&m->core, NULL, NULL);
  bool taken = ladei_pipe_core_next(&m->core, allow, &order);
  if (allow != 0) LADE_EXPECT_EQ_INT(taken, expected);
  if (taken) {
    if (allow == 0) LADE_EXPECT(order.kind != LADEI_PIPE_ORDER_READ && order.kind != LADEI_PIPE_ORDER_WRITE);
    check_taken(m, &order);
    bool host = order.kind == LADEI_PIPE_ORDER_READ || order.kind == LADEI_PIPE_ORDER_WRITE;
    if (host && model_of(order.transfer)->hangs)
      m->hung[m->hung_count++] = order;
    else
      m->out[m->out_count++] = order;
  }
  return taken;
}

static void stall(const ladei_pipe_order *order) {
  bool host = order->kind == LADEI_PIPE_ORDER_READ || order->kind == LADEI_PIPE_ORDER_WRITE;
  if (host && order->transfer->calls && !order->slot->stalled) ladei_pipe_core_stall(order->slot);
}

/* Some call is overdue, one that returns or one that does not. */
static void stall_one(model *m) {
  if (m->out_count > 0) stall(&m->out[support_random_below(&m->random, m->out_count)]);
  if (m->hung_count > 0) stall(&m->hung[support_random_below(&m->random, m->hung_count)]);
}

static void submit_one(model *m) {
  model_transfer *t = &m->transfers[m->transfer_count++];
  uint64_t chunk = support_random_between(&m->random, 1, 5) * m->scale;
  t->transfer.chunk_bytes = (size_t)chunk;
  t->transfer.bytes = support_random_below(&m->random, chunk * (MAX_CHUNKS - 1));
  t->transfer.ordered = support_random_one_in(&m->random, 3);
  t->transfer.unstaged = !t->transfer.ordered && support_random_one_in(&m->random, 3);
  t->transfer.no_host = t->transfer.unstaged && support_random_one_in(&m->random, 2);
  t->transfer.calls = t->transfer.ordered || (!t->transfer.no_host && support_random_one_in(&m->random, 4));
  t->transfer.read_arrives =
      t->transfer.unstaged && !t->transfer.no_host && !t->transfer.calls && support_random_one_in(&m->random, 2);
  t->transfer.remote = !t->transfer.unstaged && support_random_one_in(&m->random, 4);
  t->hangs = m->some_hang && (t->transfer.calls || t->transfer.remote) && support_random_one_in(&m->random, 2);
  t->transfer.level = (unsigned)support_random_below(&m->random, LADEI_PIPE_PRIORITIES);
  t->transfer.fair_queue = (unsigned)support_random_below(&m->random, 3);
  t->transfer.dependency =
      support_random_one_in(&m->random, 3) ? LADEI_PIPE_DEPENDENCY_UNKNOWN : LADEI_PIPE_DEPENDENCY_NONE;
  t->transfer.after = support_random_below(&m->random, 4);
  t->transfer.lead_bytes = (size_t)support_random_below(&m->random, chunk);
  t->transfer.writers = (unsigned)support_random_below(&m->random, 4);
  t->transfer.joins = support_random_one_in(&m->random, 2);
  uint64_t covered = t->transfer.bytes > 0 ? t->transfer.bytes + t->transfer.lead_bytes : 0;
  t->chunks = (unsigned)((covered + chunk - 1) / chunk);
  ladei_pipe_core_submit(&m->core, &t->transfer, support_random_one_in(&m->random, 2) ? LADE_TO_DEVICE : LADE_TO_HOST);
}

static void check_end(model *m) {
  for (unsigned i = 0; i < m->transfer_count; i++) {
    const model_transfer *t = &m->transfers[i];
    LADE_EXPECT(t->transfer.finished);
    LADE_EXPECT_EQ_UINT(t->finishes, 1);
    if (m->failure_one_in == 0) LADE_EXPECT_OK(t->transfer.error.status);
    for (unsigned c = 0; c < t->chunks && t->transfer.error.status == LADE_OK; c++) {
      LADE_EXPECT_EQ_UINT(t->host[c], t->transfer.no_host ? 0 : 1);
      LADE_EXPECT_EQ_UINT(t->copied[c], 1);
    }
    if (t->transfer.error.status == LADE_OK) LADE_EXPECT_EQ_UINT(t->transfer.done_bytes, t->transfer.bytes);
  }
  LADE_EXPECT_EQ_UINT(m->alive, 0);
  LADE_EXPECT_EQ_UINT(m->core.counters.blocks, 0);
  LADE_EXPECT_EQ_UINT(m->core.unfinished, 0);
  LADE_EXPECT_LE_UINT(m->core.counters.blocks_peak, 2 * m->depth);
}

static void step(model *m) {
  if (support_random_one_in(&m->random, 20))
    ladei_pipe_core_set_single(&m->core.rings[support_random_below(&m->random, 2)],
                               support_random_one_in(&m->random, 2));
  switch (support_random_below(&m->random, 10)) {
  case 0:
    if (m->transfer_count < MAX_TRANSFERS) submit_one(m);
    break;
  case 1: ladei_pipe_core_poll_wake(&m->core); break;
  case 8: stall_one(m); break;
  case 9: ladei_pipe_core_set_yield(&m->core, (ladei_pipe_yield)support_random_below(&m->random, 3)); break;
  case 2:
  case 3:
  case 4:
    if (m->out_count > 0) complete_one(m);
    break;
  default: (void)take_one(m); break;
  }
}

/* Until nothing is left to do, which must come: the core never waits for something that does not come. */
static void drain(model *m) {
  for (unsigned i = 0; m->core.unfinished > 0 || m->core.counters.blocks > 0 || m->out_count > 0; i++) {
    ladei_pipe_core_poll_wake(&m->core);
    bool taken = take_one(m);
    if (!taken && m->out_count > 0) complete_one(m);
    LADE_ASSERT_LT_UINT(i, 100000);
    LADE_ASSERT_OK(ladei_pipe_core_check(&m->core));
  }
}

static bool hang_goes_on(model *m) {
  ladei_pipe_core_poll_wake(&m->core);
  if (take_one(m)) return true;
  if (m->out_count > 0) {
    complete_one(m);
    return true;
  }
  return false;
}

/* Until no more can happen while the calls hang that do. What needs none of them, or has shown that it answers, is over. */
static void drain_beside_hanging(model *m) {
  bool must[MAX_TRANSFERS];
  for (unsigned i = 0; i < m->transfer_count; i++) {
    const ladei_pipe_core_transfer *t = &m->transfers[i].transfer;
    bool source = t->calls && t->ring->direction == LADE_TO_DEVICE;
    bool answers = source && t->answered && t->stalled == 0 && !m->transfers[i].hangs;
    /* Two slots cannot hold a call, what waits for a stream, and what waits for nothing. */
    must[i] = t->remote  ? false
              : t->calls ? answers && m->depth >= 3
                         : t->dependency == LADEI_PIPE_DEPENDENCY_NONE || m->depth >= 3;
  }
  ladei_pipe_core_set_yield(&m->core, LADEI_PIPE_YIELD_NONE);
  /* A POLL or an ACQUIRE in vain leaves nothing to do for once, not for good. */
  for (unsigned idle = 0; idle < 50;) {
    idle = hang_goes_on(m) ? 0 : idle + 1;
    for (unsigned i = 0; i < m->hung_count; i++) stall(&m->hung[i]);
    LADE_ASSERT_OK(ladei_pipe_core_check(&m->core));
  }
  for (unsigned i = 0; i < m->transfer_count; i++) LADE_EXPECT(!must[i] || m->transfers[i].transfer.finished);
  while (m->hung_count > 0) {
    ladei_pipe_order order = m->hung[--m->hung_count];
    note_effect(m, &order, LADE_OK);
    ladei_pipe_core_complete(&m->core, &order, LADE_OK, NULL);
    LADE_ASSERT_OK(ladei_pipe_core_check(&m->core));
  }
  for (unsigned i = 0; i < m->transfer_count; i++) m->transfers[i].hangs = false;
}

static void run_seed(uint64_t seed, unsigned failure_one_in, unsigned cancel_one_in, bool some_hang) {
  model *m = calloc(1, sizeof *m);
  LADE_ASSERT(m != NULL);
  support_random_start_quietly(&m->random, seed);
  m->depth = (unsigned)support_random_between(&m->random, some_hang ? 2 : 1, MAX_BLOCKS);
  m->failure_one_in = failure_one_in;
  m->some_hang = some_hang;
  m->acquire_fails = support_random_one_in(&m->random, 2);
  m->scale = support_random_one_in(&m->random, 2) ? 1 : 1 << 20;
  LADE_ASSERT_OK(ladei_pipe_core_init(&m->core, m->depth));
  m->core.rings[0].blocks.last_first = m->core.rings[1].blocks.last_first = seed % 2 == 0;
  m->core.rings[0].host.paces = support_random_one_in(&m->random, 2);
  if (support_random_one_in(&m->random, 2))
    for (unsigned i = 0; i < 2; i++) /* half of it no shorter than a chunk */
      ladei_pipe_core_set_turn(&m->core.rings[i], support_random_between(&m->random, 10, 30) * m->scale);
  if (support_random_one_in(&m->random, 2)) {
    ladei_pipe_core_set_blocks(&m->core, (size_t)(5 * m->scale), (size_t)(5 * m->scale));
    ladei_pipe_core_set_joined(&m->core.rings[0], (unsigned)support_random_between(&m->random, 1, 4),
                               (size_t)(support_random_between(&m->random, 1, 20) * m->scale));
    ladei_pipe_core_set_bulk(&m->core.rings[0], (size_t)(support_random_below(&m->random, 12) * m->scale));
  }
  for (unsigned i = 0; i < 400 && !lade_test_has_failed(); i++) {
    step(m);
    if (cancel_one_in != 0 && m->transfer_count > 0 && support_random_one_in(&m->random, cancel_one_in)) {
      model_transfer *t = &m->transfers[support_random_below(&m->random, m->transfer_count)];
      ladei_pipe_core_fail(&m->core, &t->transfer, &injected);
    }
    LADE_ASSERT_OK(ladei_pipe_core_check(&m->core));
  }
  if (cancel_one_in != 0 && m->failure_one_in == 0)
    m->failure_one_in = UINT32_MAX; /* check_end: transfers may have failed */
  if (some_hang) drain_beside_hanging(m);
  drain(m);
  if (!lade_test_has_failed()) check_end(m);
  ladei_pipe_core_destroy(&m->core);
  free(m);
}

/* Fewer where each takes ten times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 100 };
#else
enum { SEEDS = 400 };
#endif

static void run_seeds_with(unsigned failure_one_in, unsigned cancel_one_in, bool some_hang) {
  uint64_t first = support_seed(0);
  uint64_t count = first == 0 ? SEEDS : 1;
  for (uint64_t seed = first; seed < first + count && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu", (unsigned long long)seed);
    run_seed(seed, failure_one_in, cancel_one_in, some_hang);
  }
}

static void run_seeds(unsigned failure_one_in, unsigned cancel_one_in) {
  run_seeds_with(failure_one_in, cancel_one_in, false);
}

LADE_TEST(PipelineCore, MovesEveryChunkOnceInAnyOrderOfCompletions) { run_seeds(0, 0); }

LADE_TEST(PipelineCore, LosesNothingWhenOrdersFail) { run_seeds(10, 0); }

LADE_TEST(PipelineCore, LosesNothingWhenMostOrdersFail) { run_seeds(2, 0); }

LADE_TEST(PipelineCore, LosesNothingWhenTransfersAreCancelled) { run_seeds(0, 30); }

LADE_TEST(PipelineCore, LosesNothingWhenBothHappen) { run_seeds(10, 30); }

/* Bug: calls that hang took all slots of sources, and no transfer to the device went on. */
LADE_TEST(PipelineCore, GoesOnBesideCallsThatHang) { run_seeds_with(0, 0, true); }

LADE_TEST(PipelineCore, LosesNothingBesideCallsThatHang) { run_seeds_with(0, 30, true); }

/* Requests to a server that does not answer take neither the window of reads nor the slots of other transfers. */
LADE_TEST(PipelineCore, RequestsAreNotInTheWindow) {
  enum { MIB = 1 << 20, DEPTH = 8 };
  ladei_pipe_core core;
  ladei_pipe_order order;
  char blocks[DEPTH];
  unsigned requests = 0, reads = 0;
  ladei_pipe_core_transfer remote = {.bytes = 64 * MIB, .chunk_bytes = MIB, .level = 1, .remote = true};
  ladei_pipe_core_transfer local = {.bytes = 64 * MIB, .chunk_bytes = MIB, .level = 1, .fair_queue = 1};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, DEPTH));
  ladei_pipe_core_set_blocks(&core, MIB, MIB);
  ladei_pipe_core_set_window(&core.rings[0], 2);
  ladei_pipe_core_submit(&core, &remote, LADE_TO_DEVICE);
  ladei_pipe_core_submit(&core, &local, LADE_TO_DEVICE);
  for (unsigned given = 0; ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order);) {
    if (order.kind == LADEI_PIPE_ORDER_ACQUIRE) {
      order.block = &blocks[given++];
      (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
    } else {
      LADE_ASSERT_EQ_INT(order.kind, LADEI_PIPE_ORDER_READ);
      requests += order.transfer == &remote ? 1 : 0;
      reads += order.transfer == &local ? 1 : 0;
    }
    LADE_ASSERT_OK(ladei_pipe_core_check(&core));
  }
  LADE_EXPECT_EQ_UINT(reads, 2);    /* the window */
  LADE_EXPECT_EQ_UINT(requests, 3); /* half of the slots, except two for others */
  ladei_pipe_core_destroy(&core);
}

/* How many readers a submit wakes: what is left to read, the window and the blocks each limit them. */
LADE_TEST(PipelineCore, CountsTheReadsThatCanBegin) {
  enum { MIB = 1 << 20 };
  ladei_pipe_core core;
  ladei_pipe_order order;
  ladei_pipe_core_transfer transfer = {.bytes = 64 * MIB, .chunk_bytes = 4 * MIB, .level = 1};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 8));
  ladei_pipe_core_set_blocks(&core, 4 * MIB, 4 * MIB);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, MIB), 0);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, MIB), 8);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, 32 * MIB), 2);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, 65 * MIB), 0);
  ladei_pipe_core_set_window(&core.rings[0], 3);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, MIB), 3);
  LADE_ASSERT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order) && order.kind == LADEI_PIPE_ORDER_ACQUIRE);
  order.block = &core;
  (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  LADE_ASSERT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order) && order.kind == LADEI_PIPE_ORDER_READ);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, MIB), 2);
  (void)ladei_pipe_core_complete(&core, &order, LADE_ERR_IO, &injected); /* failed: nothing left to read */
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, MIB), 0);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order))
    (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  LADE_EXPECT(transfer.finished);
  ladei_pipe_core_destroy(&core);
}

/* Takes an order that must be of this kind, and completes it, with that block where it asks for one. */
static void *order_pass(ladei_pipe_core *core, unsigned allow, ladei_pipe_order_kind kind, void *block) {
  ladei_pipe_order order;
  LADE_EXPECT(ladei_pipe_core_next(core, allow, &order) && order.kind == kind);
  void *used = order.slot != NULL ? order.slot->block : NULL;
  order.block = block;
  (void)ladei_pipe_core_complete(core, &order, LADE_OK, NULL);
  return used;
}

/* Takes the order that acquires a block, which must be next, and leaves it out. */
static ladei_pipe_order acquire_take(ladei_pipe_core *core) {
  ladei_pipe_order order = {0};
  LADE_EXPECT(ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, &order) && order.kind == LADEI_PIPE_ORDER_ACQUIRE);
  return order;
}

/* Ends the ring's transfers with what is left of them. */
static void core_end(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer) {
  ladei_pipe_order order;
  ladei_pipe_core_fail(core, transfer, &injected);
  while (ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, &order))
    (void)ladei_pipe_core_complete(core, &order, LADE_OK, NULL);
  LADE_EXPECT(transfer->finished);
  LADE_EXPECT_OK(ladei_pipe_core_check(core));
  ladei_pipe_core_destroy(core);
}

static void bulk_open(ladei_pipe_core *core, ladei_pipe_core_transfer *transfer, uint64_t bytes) {
  enum { MIB = 1 << 20 };
  *transfer = (ladei_pipe_core_transfer){.bytes = bytes, .chunk_bytes = 16 * MIB, .level = 1};
  LADE_EXPECT_OK(ladei_pipe_core_init(core, 4));
  ladei_pipe_core_set_blocks(core, MIB, MIB / 4);
  ladei_pipe_core_set_bulk(&core->rings[0], 2 * MIB);
  ladei_pipe_core_submit(core, transfer, LADE_TO_DEVICE);
}

/* Whether there is a COPY to take; takes and completes it, and records its event. */
static bool copy_pass(ladei_pipe_core *core) {
  ladei_pipe_order order;
  while (ladei_pipe_core_next(core, 0, &order)) {
    bool copy = order.kind == LADEI_PIPE_ORDER_COPY;
    LADE_EXPECT(copy || order.kind == LADEI_PIPE_ORDER_RECORD || order.kind == LADEI_PIPE_ORDER_POLL);
    (void)ladei_pipe_core_complete(core, &order, order.kind == LADEI_PIPE_ORDER_POLL ? LADE_NOT_READY : LADE_OK, NULL);
    if (copy) return true;
  }
  return false;
}

/* Note [Turns] in core_pick.c: of six chunks that are read, two are a turn, and two streams take turns. */
LADE_TEST(PipelineCore, QueuesNoMoreThanItsTurn) {
  enum { MIB = 1 << 20, CHUNKS = 6 };
  char blocks[CHUNKS];
  for (unsigned streams = 1; streams <= 2; streams++) {
    ladei_pipe_core core;
    ladei_pipe_order order, reads[CHUNKS];
    ladei_pipe_core_transfer transfer = {.bytes = 2 * CHUNKS * MIB, .chunk_bytes = MIB, .level = 1};
    LADE_ASSERT_OK(ladei_pipe_core_init(&core, CHUNKS));
    ladei_pipe_core_set_blocks(&core, MIB, MIB);
    ladei_pipe_core_set_turn(&core.rings[0], 2 * MIB);
    ladei_pipe_core_set_single(&core.rings[0], streams == 1);
    ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
    for (int i = 0; i < CHUNKS; i++) {
      (void)order_pass(&core, LADEI_PIPE_ALLOW_HOST, LADEI_PIPE_ORDER_ACQUIRE, &blocks[i]);
      LADE_ASSERT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &reads[i]) &&
                  reads[i].kind == LADEI_PIPE_ORDER_READ);
    }
    for (int i = 0; i < CHUNKS; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
    for (unsigned i = 0; i < 2 * streams; i++) LADE_EXPECT(copy_pass(&core));
    LADE_EXPECT(!copy_pass(&core));
    LADE_EXPECT_EQ_UINT(core.rings[0].copy_streams[0].under_way_bytes, 2 * MIB);
    LADE_EXPECT_EQ_UINT(core.rings[0].copy_streams[LADEI_PIPE_COPY_STREAM_SECOND].under_way_bytes,
                        (streams - 1) * 2 * MIB);
    LADE_EXPECT(ladei_pipe_core_turn_awaited(&core));
    LADE_EXPECT_OK(ladei_pipe_core_check(&core));
    ladei_pipe_core_poll_wake(&core);
    unsigned copies = 0;
    for (bool over = false; ladei_pipe_core_next(&core, 0, &order);) { /* the first chunk is over, the second not */
      bool late = order.kind == LADEI_PIPE_ORDER_POLL && over;
      over = over || order.kind == LADEI_PIPE_ORDER_POLL;
      copies += order.kind == LADEI_PIPE_ORDER_COPY;
      (void)ladei_pipe_core_complete(&core, &order, late ? LADE_NOT_READY : LADE_OK, NULL);
    }
    LADE_EXPECT_EQ_UINT(copies, 0);
    ladei_pipe_core_poll_wake(&core); /* all of it is over: the next turn */
    while (ladei_pipe_core_next(&core, 0, &order)) {
      copies += order.kind == LADEI_PIPE_ORDER_COPY;
      (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
    }
    LADE_EXPECT_EQ_UINT(copies, CHUNKS - 2 * streams);
    LADE_EXPECT(!ladei_pipe_core_copies(&core.rings[0]));
    core_end(&core, &transfer);
  }
}

/* A caller may wait until all copies of a transfer are queued, and only then let the stream go on that they wait for. */
LADE_TEST(PipelineCore, QueuesAllThatWaitsForAStreamOfTheCallers) {
  enum { MIB = 1 << 20, CHUNKS = 4 };
  char blocks[CHUNKS];
  ladei_pipe_core core;
  ladei_pipe_order order;
  unsigned acquired = 0;
  ladei_pipe_core_transfer transfer = {
      .bytes = CHUNKS * MIB, .chunk_bytes = MIB, .level = 1, .dependency = LADEI_PIPE_DEPENDENCY_UNKNOWN, .after = 7};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 2 * CHUNKS));
  ladei_pipe_core_set_blocks(&core, MIB, MIB);
  ladei_pipe_core_set_turn(&core.rings[0], MIB);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    LADE_ASSERT(acquired < CHUNKS || order.kind != LADEI_PIPE_ORDER_ACQUIRE);
    order.block = order.kind == LADEI_PIPE_ORDER_ACQUIRE ? &blocks[acquired++] : NULL;
    (void)ladei_pipe_core_complete(&core, &order, order.kind == LADEI_PIPE_ORDER_POLL ? LADE_NOT_READY : LADE_OK, NULL);
  }
  LADE_EXPECT(ladei_pipe_core_all_queued(&transfer));
  ladei_pipe_core_poll_wake(&core);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order))
    (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  LADE_EXPECT(transfer.finished);
  ladei_pipe_core_destroy(&core);
}

/* With work for half of the blocks; and each order says what is still to come, whoever else asks at the same time. */
LADE_TEST(PipelineCore, BlocksForABulkAreLongAtOnce) {
  enum { MIB = 1 << 20 };
  char blocks[4];
  ladei_pipe_core core;
  ladei_pipe_core_transfer transfer;
  ladei_pipe_order orders[3], reads[2];
  bulk_open(&core, &transfer, 64 * MIB);
  for (int i = 0; i < 2; i++) {
    orders[i] = acquire_take(&core);
    LADE_EXPECT_EQ_SIZE(orders[i].bytes, 2 * MIB);
    LADE_EXPECT_EQ_UINT(orders[i].ahead, 8 * MIB);
  }
  for (int i = 0; i < 2; i++) {
    orders[i].block = &blocks[i];
    (void)ladei_pipe_core_complete(&core, &orders[i], LADE_OK, NULL);
  }
  for (int i = 0; i < 2; i++)
    LADE_EXPECT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &reads[i]) &&
                reads[i].kind == LADEI_PIPE_ORDER_READ);
  orders[2] = acquire_take(&core);
  LADE_EXPECT_EQ_UINT(orders[2].ahead, 4 * MIB);
  orders[2].block = &blocks[2];
  (void)ladei_pipe_core_complete(&core, &orders[2], LADE_OK, NULL);
  for (int i = 0; i < 2; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_ERR_IO, &injected);
  core_end(&core, &transfer);
}

LADE_TEST(PipelineCore, BlocksForLittleWorkAreShort) {
  enum { MIB = 1 << 20 };
  char block;
  ladei_pipe_core core;
  ladei_pipe_core_transfer transfer;
  bulk_open(&core, &transfer, 3 * MIB);
  ladei_pipe_order order = acquire_take(&core);
  LADE_EXPECT_EQ_SIZE(order.bytes, MIB);
  LADE_EXPECT_EQ_UINT(order.ahead, 3 * MIB);
  order.block = &block;
  (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  core_end(&core, &transfer);
}

/* A refused size is not asked for again. */
LADE_TEST(PipelineCore, RefusedBlocksForABulkBecomeShorter) {
  enum { MIB = 1 << 20 };
  char block;
  ladei_pipe_core core;
  ladei_pipe_core_transfer transfer;
  bulk_open(&core, &transfer, 64 * MIB);
  for (size_t bytes = 2 * MIB; bytes > MIB / 4; bytes /= 2) {
    ladei_pipe_order order = acquire_take(&core);
    LADE_EXPECT_EQ_SIZE(order.bytes, bytes);
    LADE_EXPECT(!order.smallest);
    (void)ladei_pipe_core_complete(&core, &order, LADE_ERR_LIMIT, &injected);
    LADE_EXPECT_OK(ladei_pipe_core_check(&core));
  }
  ladei_pipe_order order = acquire_take(&core);
  LADE_EXPECT_EQ_SIZE(order.bytes, MIB / 4);
  LADE_EXPECT(order.smallest);
  order.block = &block;
  (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  core_end(&core, &transfer);
}

/* Two blocks are free; the second one was used last. Where a processor's cache holds it, it is the better one. */
LADE_TEST(PipelineCore, TakesTheBlockThatWasUsedLastOrRestedLongest) {
  enum { MIB = 1 << 20 };
  for (int last_first = 0; last_first < 2; last_first++) {
    char blocks[2];
    ladei_pipe_core core;
    ladei_pipe_order order, reads[2];
    ladei_pipe_core_transfer transfer = {.bytes = 8 * MIB, .chunk_bytes = MIB, .level = 1};
    LADE_ASSERT_OK(ladei_pipe_core_init(&core, 2));
    core.rings[0].blocks.last_first = last_first != 0;
    ladei_pipe_core_set_blocks(&core, MIB, MIB);
    ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
    for (int i = 0; i < 2; i++) {
      (void)order_pass(&core, LADEI_PIPE_ALLOW_HOST, LADEI_PIPE_ORDER_ACQUIRE, &blocks[i]);
      LADE_ASSERT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &reads[i]) &&
                  reads[i].kind == LADEI_PIPE_ORDER_READ);
    }
    for (int i = 0; i < 2; i++) {
      (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
      (void)order_pass(&core, 0, LADEI_PIPE_ORDER_COPY, NULL);
      (void)order_pass(&core, 0, LADEI_PIPE_ORDER_RECORD, NULL);
      (void)order_pass(&core, 0, LADEI_PIPE_ORDER_POLL, NULL);
    }
    void *next = order_pass(&core, LADEI_PIPE_ALLOW_HOST, LADEI_PIPE_ORDER_READ, NULL);
    LADE_EXPECT_EQ_PTR(next, &blocks[last_first]);
    LADE_EXPECT_OK(ladei_pipe_core_check(&core));
    while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
      order.block = &blocks[0];
      (void)ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
    }
    LADE_EXPECT(transfer.finished);
    ladei_pipe_core_destroy(&core);
  }
}

/* Takes orders, and completes all but the writes, until there is none; returns the writes that are out then. */
static unsigned writes_gather(ladei_pipe_core *core, ladei_pipe_order *writes, unsigned count) {
  static char blocks[64];
  static unsigned acquired;
  ladei_pipe_order order;
  while (ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, &order)) {
    if (order.kind == LADEI_PIPE_ORDER_WRITE) {
      writes[count++] = order;
      continue;
    }
    order.block = &blocks[acquired++ % 64];
    (void)ladei_pipe_core_complete(core, &order, LADE_OK, NULL);
  }
  LADE_EXPECT_OK(ladei_pipe_core_check(core));
  return count;
}

/* Twelve threads wrote one file, and eleven of them waited for its lock. */
LADE_TEST(PipelineCore, WritesNoMoreAtOnceThanTheTransferMay) {
  enum { DEPTH = 16, WINDOW = 12, AHEAD = 3 };
  ladei_pipe_core core;
  ladei_pipe_order writes[DEPTH];
  ladei_pipe_core_transfer transfer = {.bytes = 100, .chunk_bytes = 1, .writers = 2};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, DEPTH));
  ladei_pipe_core_set_window(&core.rings[1], WINDOW);
  core.rings[1].blocks.ahead = AHEAD;
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_HOST);
  unsigned out = writes_gather(&core, writes, 0);
  LADE_EXPECT_EQ_UINT(out, 2);
  LADE_EXPECT_EQ_UINT(core.counters.blocks_peak, 2 + AHEAD); /* no more only for chunks that wait */
  transfer.writers = 4;
  out = writes_gather(&core, writes, out);
  LADE_EXPECT_EQ_UINT(out, 4);
  transfer.writers = 2; /* a doubling that is taken back */
  (void)ladei_pipe_core_complete(&core, &writes[--out], LADE_OK, NULL);
  LADE_EXPECT_EQ_UINT(writes_gather(&core, writes, out), 3);
  transfer.writers = 0;
  out = writes_gather(&core, writes, out);
  LADE_EXPECT_EQ_UINT(out, WINDOW);
  while (out > 0) {
    (void)ladei_pipe_core_complete(&core, &writes[--out], LADE_OK, NULL);
    if (out == 0) out = writes_gather(&core, writes, 0);
  }
  LADE_EXPECT(transfer.finished);
  ladei_pipe_core_destroy(&core);
}

/* Transfers of 64 MiB that wrote one file, several ahead, had two writers each. */
LADE_TEST(PipelineCore, TransfersToOneSinkShareItsWriters) {
  enum { DEPTH = 16, WINDOW = 12 };
  for (uint64_t same = 0; same < 2; same++) {
    ladei_pipe_core core;
    ladei_pipe_order writes[DEPTH];
    ladei_pipe_core_transfer first = {.bytes = 4, .chunk_bytes = 1, .writers = 2, .sink = 7};
    ladei_pipe_core_transfer second = {.bytes = 4, .chunk_bytes = 1, .writers = 2, .sink = same ? 7 : 8};
    LADE_ASSERT_OK(ladei_pipe_core_init(&core, DEPTH));
    ladei_pipe_core_set_window(&core.rings[1], WINDOW);
    ladei_pipe_core_submit(&core, &first, LADE_TO_HOST);
    ladei_pipe_core_submit(&core, &second, LADE_TO_HOST);
    unsigned out = writes_gather(&core, writes, 0);
    LADE_EXPECT_EQ_UINT(out, same ? 2 : 4);
    LADE_EXPECT_EQ_UINT(second.host_out, same ? 0 : 2);
    while (out > 0) {
      (void)ladei_pipe_core_complete(&core, &writes[--out], LADE_OK, NULL);
      out = writes_gather(&core, writes, out);
      LADE_EXPECT_LE_UINT(first.host_out + second.host_out, same ? 2 : 4);
    }
    LADE_EXPECT(first.finished && second.finished);
    ladei_pipe_core_destroy(&core);
  }
}

/* Of several transfers to one file, queued behind each other, each had as many blocks as there are threads. */
LADE_TEST(PipelineCore, TransfersToOneSinkNeedNoMoreBlocksThanOne) {
  enum { DEPTH = 16, WINDOW = 12, AHEAD = 3 };
  for (uint64_t same = 0; same < 2; same++) {
    ladei_pipe_core core;
    ladei_pipe_order writes[DEPTH];
    ladei_pipe_core_transfer first = {.bytes = 100, .chunk_bytes = 1, .writers = 2, .sink = 7};
    ladei_pipe_core_transfer second = {.bytes = 100, .chunk_bytes = 1, .writers = 2, .sink = same ? 7 : 8};
    LADE_ASSERT_OK(ladei_pipe_core_init(&core, DEPTH));
    ladei_pipe_core_set_window(&core.rings[1], WINDOW);
    core.rings[1].blocks.ahead = AHEAD;
    ladei_pipe_core_submit(&core, &first, LADE_TO_HOST);
    ladei_pipe_core_submit(&core, &second, LADE_TO_HOST);
    unsigned out = writes_gather(&core, writes, 0);
    LADE_EXPECT_EQ_UINT(core.counters.blocks_peak, same ? 2 + AHEAD : WINDOW + AHEAD);
    while (out > 0) {
      (void)ladei_pipe_core_complete(&core, &writes[--out], LADE_OK, NULL);
      out = writes_gather(&core, writes, out);
    }
    LADE_EXPECT(first.finished && second.finished);
    ladei_pipe_core_destroy(&core);
  }
}

/* Blocks that are kept for what comes next are given up all the same where others wait for them. */
LADE_TEST(PipelineCore, KeepsBlocksForTransfersToCome) {
  ladei_pipe_core core;
  ladei_pipe_core_transfer transfer;
  ladei_pipe_order order;
  bulk_open(&core, &transfer, 4096);
  ladei_pipe_core_set_keeps(&core.rings[0], true);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    LADE_EXPECT_NE_INT(order.kind, LADEI_PIPE_ORDER_RELEASE);
    if (order.kind == LADEI_PIPE_ORDER_ACQUIRE) order.block = &core;
    (void)ladei_pipe_core_complete(&core, &order, LADE_OK, &injected);
  }
  LADE_EXPECT(transfer.finished);
  LADE_EXPECT_EQ_UINT(core.counters.blocks, 1);
  ladei_pipe_core_set_yield(&core, LADEI_PIPE_YIELD_ALL);
  LADE_EXPECT(ladei_pipe_core_has_order(&core, NULL, NULL));
  ladei_pipe_core_set_yield(&core, LADEI_PIPE_YIELD_NONE);
  LADE_EXPECT(!ladei_pipe_core_has_order(&core, NULL, NULL));
  ladei_pipe_core_set_keeps(&core.rings[0], false);
  LADE_EXPECT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order));
  LADE_EXPECT_EQ_INT(order.kind, LADEI_PIPE_ORDER_RELEASE);
  (void)ladei_pipe_core_complete(&core, &order, LADE_OK, &injected);
  LADE_EXPECT_EQ_UINT(core.counters.blocks, 0);
  ladei_pipe_core_destroy(&core);
}

static bool accepts_it(const ladei_pipe_order *order) { return order->kind == LADEI_PIPE_ORDER_ACQUIRE; }
static bool refuses_it(const ladei_pipe_order *order) { return order->kind != LADEI_PIPE_ORDER_ACQUIRE; }

/* Bug: threads that a call woke for the chunks that it copied next kept it waiting in the driver, 28 of 101 us. */
LADE_TEST(PipelineCore, WhatACallTakesNextIsForNoThread) {
  ladei_pipe_core core;
  ladei_pipe_core_transfer transfer;
  ladei_pipe_order order;
  bulk_open(&core, &transfer, 4096); /* the first order is for a block */
  LADE_EXPECT(ladei_pipe_core_has_order(&core, NULL, NULL));
  LADE_EXPECT(!ladei_pipe_core_has_order(&core, &core.rings[0], accepts_it));
  LADE_EXPECT(ladei_pipe_core_has_order(&core, &core.rings[0], refuses_it));
  LADE_EXPECT(ladei_pipe_core_has_order(&core, &core.rings[1], accepts_it)); /* a call of the other direction */
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    if (order.kind == LADEI_PIPE_ORDER_ACQUIRE) order.block = &core;
    (void)ladei_pipe_core_complete(&core, &order, LADE_OK, &injected);
  }
  LADE_EXPECT(!ladei_pipe_core_has_order(&core, NULL, NULL));
  ladei_pipe_core_destroy(&core);
}

/* A ring grows only when its slots are all busy: with each copy done at once, one block serves a whole transfer. */
LADE_TEST(PipelineCore, UsesOneBlockWhenCopiesAreInstant) {
  ladei_pipe_core core;
  ladei_pipe_order order;
  ladei_pipe_core_transfer transfer = {.bytes = 100, .chunk_bytes = 1};
  char block;
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 8));
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    order.block = &block;
    ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  }
  LADE_EXPECT(transfer.finished);
  LADE_EXPECT_EQ_UINT(core.counters.blocks_peak, 1);
  LADE_EXPECT_EQ_UINT(core.counters.copies, 100);
  ladei_pipe_core_destroy(&core);
}

/* Takes reads as long as there are some, and completes all else but copies, which must not come. How many are out then. */
static unsigned reads_fill(ladei_pipe_core *core, ladei_pipe_order *reads, unsigned out) {
  static char blocks[64];
  static unsigned acquired;
  ladei_pipe_order order;
  ladei_pipe_core_poll_wake(core);
  while (ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, &order)) {
    if (order.kind == LADEI_PIPE_ORDER_READ) {
      reads[out++] = order;
      continue;
    }
    LADE_EXPECT_NE_INT(order.kind, LADEI_PIPE_ORDER_COPY);
    order.block = &blocks[acquired++ % 64];
    (void)ladei_pipe_core_complete(core, &order, order.kind == LADEI_PIPE_ORDER_POLL ? LADE_NOT_READY : LADE_OK, NULL);
  }
  return out;
}

/* The next COPY, not completed; how many slots it takes. 0: there is none, and POLL finds nothing. */
static unsigned copy_take(ladei_pipe_core *core, ladei_pipe_order *out) {
  while (ladei_pipe_core_next(core, 0, out)) {
    unsigned count = 0;
    for (const ladei_pipe_slot *slot = out->slot; slot != NULL; slot = slot->joined) count++;
    if (out->kind == LADEI_PIPE_ORDER_COPY) return count;
    lade_status status =
        out->kind == LADEI_PIPE_ORDER_POLL || out->kind == LADEI_PIPE_ORDER_ACQUIRE ? LADE_NOT_READY : LADE_OK;
    (void)ladei_pipe_core_complete(core, out, status, NULL);
  }
  return 0;
}

/* `count` reads are over, one after the other, and each is copied by itself. */
static void reads_copy(ladei_pipe_core *core, const ladei_pipe_order *reads, unsigned count) {
  ladei_pipe_order copy;
  for (unsigned i = 0; i < count; i++) {
    (void)ladei_pipe_core_complete(core, &reads[i], LADE_OK, NULL);
    LADE_ASSERT_EQ_UINT(copy_take(core, &copy), 1);
    (void)ladei_pipe_core_complete(core, &copy, LADE_OK, NULL);
  }
}

/* All that is left is done as it comes, to the end. */
static void work_end(ladei_pipe_core *core) {
  static char block;
  ladei_pipe_order order;
  for (unsigned i = 0; core->unfinished > 0 || core->counters.blocks > 0; i++) {
    ladei_pipe_core_poll_wake(core);
    LADE_ASSERT_LT_UINT(i, 10000);
    while (ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, &order)) {
      order.block = &block;
      (void)ladei_pipe_core_complete(core, &order, LADE_OK, NULL);
    }
    LADE_ASSERT_OK(ladei_pipe_core_check(core));
  }
}

enum { JOIN_MIB = 1 << 20 };

/* A ring of blocks of 1 MiB that joins four. */
static void joining_core_init(ladei_pipe_core *core, unsigned depth) {
  LADE_ASSERT_OK(ladei_pipe_core_init(core, depth));
  ladei_pipe_core_set_blocks(core, JOIN_MIB, JOIN_MIB);
  ladei_pipe_core_set_joined(&core->rings[0], 4, 16 * JOIN_MIB);
}

static ladei_pipe_core_transfer joining_transfer(uint64_t mib) {
  return (ladei_pipe_core_transfer){.bytes = mib * JOIN_MIB, .chunk_bytes = JOIN_MIB, .level = 1, .joins = true};
}

LADE_TEST(PipelineCore, JoinsCopiesWhileTheLinkHasWork) {
  ladei_pipe_core core;
  ladei_pipe_order reads[15], copy;
  ladei_pipe_core_transfer first = joining_transfer(8), second = joining_transfer(7);
  joining_core_init(&core, 16);
  ladei_pipe_core_submit(&core, &first, LADE_TO_DEVICE);
  ladei_pipe_core_submit(&core, &second, LADE_TO_DEVICE);
  LADE_ASSERT_EQ_UINT(reads_fill(&core, reads, 0), 15);
  reads_copy(&core, reads, 6); /* until six blocks are under way */
  for (unsigned i = 6; i < 9; i++) {
    (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
    LADE_EXPECT_EQ_UINT(copy_take(&core, &copy), 0);
  }
  (void)ladei_pipe_core_complete(&core, &reads[9], LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 4); /* of both transfers */
  LADE_EXPECT_OK(ladei_pipe_core_check(&core));
  LADE_EXPECT_EQ_UINT(first.queued_bytes, 6 * JOIN_MIB);
  copy.copies = 1;
  uint64_t copies = core.counters.copies;
  unsigned changed = ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  LADE_EXPECT_EQ_UINT(core.counters.copies, copies + 1);
  LADE_EXPECT((changed & LADEI_PIPE_CHANGED_QUEUED) != 0); /* all of the first one's */
  LADE_EXPECT_EQ_UINT(second.queued_bytes, 2 * JOIN_MIB);
  for (unsigned i = 10; i < 14; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
  ladei_pipe_core_set_joined(&core.rings[0], 4, 2 * JOIN_MIB);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 2); /* no more bytes than that */
  (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 2);
  (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  (void)ladei_pipe_core_complete(&core, &reads[14], LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 1); /* no read is out that could bring another */
  (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(first.error.status);
  LADE_EXPECT_EQ_UINT(second.done_bytes, 7 * JOIN_MIB);
  ladei_pipe_core_destroy(&core);
}

/* A link that has copied what was under way must not wait for readers. */
LADE_TEST(PipelineCore, WhatWaitsToBeJoinedGoesWhenCopiesEnd) {
  ladei_pipe_core core;
  ladei_pipe_order reads[12], copy, poll;
  ladei_pipe_core_transfer transfer = joining_transfer(12);
  joining_core_init(&core, 16);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  LADE_ASSERT_EQ_UINT(reads_fill(&core, reads, 0), 12);
  reads_copy(&core, reads, 6);
  for (unsigned i = 6; i < 8; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 0);
  ladei_pipe_core_poll_wake(&core);
  LADE_ASSERT(ladei_pipe_core_next(&core, 0, &poll) && poll.kind == LADEI_PIPE_ORDER_POLL);
  (void)ladei_pipe_core_complete(&core, &poll, LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 2);
  (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  for (unsigned i = 8; i < 12; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(transfer.error.status);
  ladei_pipe_core_destroy(&core);
}

/* One of two transfers cannot be copied: the other one has no part in it. */
LADE_TEST(PipelineCore, ThoseThatCannotBeJoinedAreCopiedOneByOne) {
  ladei_pipe_core core;
  ladei_pipe_order reads[12], copy;
  ladei_pipe_core_transfer good = joining_transfer(8), bad = joining_transfer(4);
  joining_core_init(&core, 16);
  ladei_pipe_core_submit(&core, &good, LADE_TO_DEVICE);
  ladei_pipe_core_submit(&core, &bad, LADE_TO_DEVICE);
  LADE_ASSERT_EQ_UINT(reads_fill(&core, reads, 0), 12);
  reads_copy(&core, reads, 6);
  for (unsigned i = 6; i < 10; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 4);
  (void)ladei_pipe_core_complete(&core, &copy, LADE_ERR_DRIVER, &injected);
  LADE_EXPECT_OK(ladei_pipe_core_check(&core));
  LADE_EXPECT_OK(good.error.status);
  LADE_EXPECT_OK(bad.error.status);
  for (unsigned i = 0; i < 4; i++) {
    LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 1);
    bool fails = copy.transfer == &bad;
    (void)ladei_pipe_core_complete(&core, &copy, fails ? LADE_ERR_DRIVER : LADE_OK, &injected);
    if (fails) break; /* and with it what else the transfer has */
  }
  for (unsigned i = 10; i < 12; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(good.error.status);
  LADE_EXPECT_EQ_UINT(good.done_bytes, 8 * JOIN_MIB);
  LADE_EXPECT_EQ_INT(bad.error.status, LADE_ERR_DRIVER);
  ladei_pipe_core_destroy(&core);
}

/* A caller may wait until the copies behind its stream are queued before it lets the stream go on. */
LADE_TEST(PipelineCore, CopiesBehindAStreamOfTheCallersDoNotWaitToBeJoined) {
  ladei_pipe_core core;
  ladei_pipe_order reads[14], copy;
  ladei_pipe_core_transfer bulk = joining_transfer(8), behind = joining_transfer(6);
  behind.dependency = LADEI_PIPE_DEPENDENCY_UNKNOWN;
  joining_core_init(&core, 16);
  ladei_pipe_core_submit(&core, &bulk, LADE_TO_DEVICE);
  ladei_pipe_core_submit(&core, &behind, LADE_TO_DEVICE);
  LADE_ASSERT_EQ_UINT(reads_fill(&core, reads, 0), 14);
  reads_copy(&core, reads, 6);
  (void)ladei_pipe_core_complete(&core, &reads[6], LADE_OK, NULL);
  LADE_EXPECT_EQ_UINT(copy_take(&core, &copy), 0); /* the bulk's waits */
  for (unsigned i = 8; i < 14; i++) {
    LADE_EXPECT_EQ_PTR(reads[i].transfer, &behind);
    (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
    LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 1);
    LADE_EXPECT_EQ_PTR(copy.transfer, &behind);
    (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  }
  LADE_EXPECT_EQ_INT(behind.dependency, LADEI_PIPE_DEPENDENCY_AWAITED);
  LADE_EXPECT_EQ_UINT(behind.queued_bytes, behind.bytes);
  (void)ladei_pipe_core_complete(&core, &reads[7], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(bulk.error.status);
  LADE_EXPECT_OK(behind.error.status);
  ladei_pipe_core_destroy(&core);
}

/* Seven chunks of the bulk are read, six of them under way, and a READ is out: the seventh waits. What comes for the same stream then
 * and cannot be joined does not pass it. */
static void expect_not_passed(ladei_pipe_core_transfer *other, const char *what) {
  ladei_pipe_core core;
  ladei_pipe_order reads[10], copy;
  ladei_pipe_core_transfer bulk = joining_transfer(8);
  lade_test_context("%s", what);
  joining_core_init(&core, 16);
  ladei_pipe_core_submit(&core, &bulk, LADE_TO_DEVICE);
  LADE_ASSERT_EQ_UINT(reads_fill(&core, reads, 0), 8);
  reads_copy(&core, reads, 6);
  (void)ladei_pipe_core_complete(&core, &reads[6], LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 0);
  ladei_pipe_core_submit(&core, other, LADE_TO_DEVICE);
  if (!other->no_host) {
    LADE_ASSERT_EQ_UINT(reads_fill(&core, &reads[8], 0), 2);
    for (unsigned i = 8; i < 10; i++) (void)ladei_pipe_core_complete(&core, &reads[i], LADE_OK, NULL);
  }
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 1);
  LADE_EXPECT_EQ_PTR(copy.transfer, &bulk);
  (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  LADE_ASSERT_EQ_UINT(copy_take(&core, &copy), 1);
  LADE_EXPECT_EQ_PTR(copy.transfer, other);
  (void)ladei_pipe_core_complete(&core, &copy, LADE_OK, NULL);
  (void)ladei_pipe_core_complete(&core, &reads[7], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(bulk.error.status);
  LADE_EXPECT_OK(other->error.status);
  ladei_pipe_core_destroy(&core);
}

/* Bug: copies that cannot be joined went before those that wait to be, and kept the link at work: for as long as there were more of
 * them, and a READ took, those that waited waited on. */
LADE_TEST(PipelineCore, WhatWaitsToBeJoinedIsNotPassedOnItsStream) {
  ladei_pipe_core_transfer direct = joining_transfer(8), mixed = joining_transfer(2);
  direct.joins = mixed.joins = false;
  direct.unstaged = direct.no_host = true;
  expect_not_passed(&direct, "pinned memory");
  expect_not_passed(&mixed, "staged, but not to be joined");
}

/* Readers that were faster than the link filled every block, and took longer for each byte beside each other. */
LADE_TEST(PipelineCore, FewerReadWhileTheLinkHasWorkForLong) {
  enum { WINDOW = 4, MOST_UNDER_WAY = 8 };
  ladei_pipe_core core;
  ladei_pipe_order reads[WINDOW];
  ladei_pipe_core_transfer transfer = joining_transfer(64);
  unsigned out = 0;
  joining_core_init(&core, 32);
  ladei_pipe_core_set_joined(&core.rings[0], 1, 0);
  ladei_pipe_core_set_window(&core.rings[0], WINDOW);
  core.rings[0].host.paces = true;
  core.rings[0].blocks.ahead = 6;
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  for (unsigned under_way = 0; under_way <= MOST_UNDER_WAY; under_way++) {
    static const unsigned expected[MOST_UNDER_WAY + 1] = {4, 4, 4, 4, 4, 4, 3, 3, 2};
    out = reads_fill(&core, reads, out);
    LADE_ASSERT_EQ_UINT(out, expected[under_way]);
    LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, JOIN_MIB),
                        0); /* a submit wakes none of those that rest */
    reads_copy(&core, &reads[--out], 1);
  }
  while (out > 0) (void)ladei_pipe_core_complete(&core, &reads[--out], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(transfer.error.status);
  ladei_pipe_core_destroy(&core);
}

/* Bug: short and urgent transfers, whose copies pass those that are queued, waited for readers that rested because of these. */
LADE_TEST(PipelineCore, ReadsOfTransfersThatPassDoNotRest) {
  enum { WINDOW = 4, UNDER_WAY = 12 };
  ladei_pipe_core core;
  ladei_pipe_order reads[WINDOW];
  ladei_pipe_core_transfer bulk = joining_transfer(64), urgent = joining_transfer(4);
  unsigned out = 0;
  urgent.level = 2;
  joining_core_init(&core, 32);
  ladei_pipe_core_set_joined(&core.rings[0], 1, 0);
  ladei_pipe_core_set_window(&core.rings[0], WINDOW);
  core.rings[0].host.paces = true;
  core.rings[0].blocks.ahead = 12;
  ladei_pipe_core_submit(&core, &bulk, LADE_TO_DEVICE);
  for (unsigned under_way = 0; under_way < UNDER_WAY; under_way++) {
    out = reads_fill(&core, reads, out);
    reads_copy(&core, &reads[--out], 1);
  }
  out = reads_fill(&core, reads, out);
  LADE_ASSERT_EQ_UINT(out, WINDOW / 2);
  ladei_pipe_core_submit(&core, &urgent, LADE_TO_DEVICE);
  out = reads_fill(&core, reads, out);
  LADE_ASSERT_EQ_UINT(out, WINDOW);
  LADE_EXPECT_EQ_PTR(reads[WINDOW - 1].transfer, &urgent);
  LADE_EXPECT_EQ_PTR(reads[WINDOW - 2].transfer, &urgent);
  while (out > 0) (void)ladei_pipe_core_complete(&core, &reads[--out], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(bulk.error.status);
  LADE_EXPECT_OK(urgent.error.status);
  ladei_pipe_core_destroy(&core);
}

/* Bug: a short transfer waited for a block of the bulk that its copies pass, with joined copies for several of them. */
LADE_TEST(PipelineCore, ShortTransfersHaveABlockOfTheirOwn) {
  enum { WINDOW = 3, AHEAD = 3 };
  ladei_pipe_core core;
  ladei_pipe_order reads[WINDOW], order;
  ladei_pipe_core_transfer bulk = joining_transfer(64), shorts[2] = {joining_transfer(1), joining_transfer(1)};
  unsigned out = 0;
  joining_core_init(&core, 16);
  ladei_pipe_core_set_joined(&core.rings[0], 1, 0);
  ladei_pipe_core_set_window(&core.rings[0], WINDOW);
  core.rings[0].blocks.ahead = AHEAD;
  ladei_pipe_core_submit(&core, &bulk, LADE_TO_DEVICE);
  for (unsigned i = 0; i < AHEAD + 1; i++) {
    out = reads_fill(&core, reads, out);
    reads_copy(&core, &reads[--out], 1);
  }
  out = reads_fill(&core, reads, out);
  LADE_ASSERT_EQ_UINT(out, 2); /* all blocks are in use: two are read into, four copied from */
  LADE_EXPECT_EQ_UINT(core.rings[0].blocks.count, WINDOW + AHEAD);
  for (unsigned i = 0; i < 2; i++) {
    shorts[i].fair_queue = 1;
    shorts[i].bytes = JOIN_MIB / 16; /* less than the bulk's last chunk: it is this queue's turn */
    ladei_pipe_core_submit(&core, &shorts[i], LADE_TO_DEVICE);
    out = reads_fill(&core, reads, out);
    LADE_ASSERT_EQ_UINT(out, 3);
    LADE_EXPECT_EQ_PTR(reads[2].transfer, &shorts[i]);
    reads_copy(&core, &reads[--out], 1);
    /* Its copy ends. The block stays for the next one: the bulk has what it may have. */
    ladei_pipe_core_poll_wake(&core);
    while (!shorts[i].finished) {
      LADE_ASSERT(ladei_pipe_core_next(&core, 0, &order));
      bool of_bulk = order.kind == LADEI_PIPE_ORDER_POLL && order.batch->copy_stream->index == 0;
      (void)ladei_pipe_core_complete(&core, &order, of_bulk ? LADE_NOT_READY : LADE_OK, NULL);
    }
    LADE_EXPECT_EQ_UINT(reads_fill(&core, reads, out), out);
    LADE_EXPECT_EQ_UINT(core.rings[0].blocks.count, WINDOW + AHEAD + 1);
  }
  while (out > 0) (void)ladei_pipe_core_complete(&core, &reads[--out], LADE_OK, NULL);
  work_end(&core);
  LADE_EXPECT_OK(bulk.error.status);
  LADE_EXPECT_OK(shorts[1].error.status);
  ladei_pipe_core_destroy(&core);
}

/* A second transfer may begin while the first one's copies are under way, but not before it in the same ring. */
LADE_TEST(PipelineCore, BeginsTransfersInTheOrderOfSubmission) {
  ladei_pipe_core core;
  ladei_pipe_order order;
  ladei_pipe_core_transfer first = {.bytes = 2, .chunk_bytes = 1};
  ladei_pipe_core_transfer second = {.bytes = 2, .chunk_bytes = 1};
  char blocks[4];
  unsigned acquired = 0;
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 4));
  ladei_pipe_core_submit(&core, &first, LADE_TO_DEVICE);
  ladei_pipe_core_submit(&core, &second, LADE_TO_DEVICE);
  const ladei_pipe_core_transfer *expected[] = {&first, &first, &second, &second};
  unsigned reads = 0;
  while (reads < 4 && ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    if (order.kind == LADEI_PIPE_ORDER_READ) {
      LADE_EXPECT_EQ_PTR(order.transfer, expected[reads]);
      reads++;
    }
    order.block = order.kind == LADEI_PIPE_ORDER_ACQUIRE ? &blocks[acquired++] : NULL;
    ladei_pipe_core_complete(&core, &order, order.kind == LADEI_PIPE_ORDER_POLL ? LADE_NOT_READY : LADE_OK, NULL);
  }
  LADE_EXPECT_EQ_UINT(reads, 4);
  LADE_EXPECT(!first.finished);
  while (!second.finished) {
    ladei_pipe_core_poll_wake(&core);
    LADE_ASSERT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order));
    ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  }
  LADE_EXPECT(first.finished);
  ladei_pipe_core_destroy(&core);
}

/* Takes what can be taken; copies stay under way. Events recorded. */
static uint64_t events_while_copying(size_t chunk_bytes) {
  ladei_pipe_core core;
  ladei_pipe_order order;
  ladei_pipe_core_transfer transfer = {.bytes = 16 * chunk_bytes, .chunk_bytes = chunk_bytes};
  char blocks[16];
  unsigned acquired = 0;
  LADE_EXPECT_OK(ladei_pipe_core_init(&core, 16));
  ladei_pipe_core_set_blocks(&core, chunk_bytes, chunk_bytes);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    order.block = order.kind == LADEI_PIPE_ORDER_ACQUIRE ? &blocks[acquired++] : NULL;
    ladei_pipe_core_complete(&core, &order, order.kind == LADEI_PIPE_ORDER_POLL ? LADE_NOT_READY : LADE_OK, NULL);
  }
  uint64_t recorded = core.counters.events_recorded;
  while (!transfer.finished || core.counters.blocks > 0) {
    ladei_pipe_core_poll_wake(&core);
    if (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order))
      ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
  }
  ladei_pipe_core_destroy(&core);
  return recorded;
}

/* Blocks of long copies come back one by one, as far as there are events; short copies do not cost an event each. */
LADE_TEST(PipelineCore, CoversLongCopiesByAnEventEach) {
  LADE_EXPECT_EQ_UINT(events_while_copying(1 << 20), LADEI_PIPE_BATCHES);
  LADE_EXPECT_EQ_UINT(events_while_copying(64 << 10),
                      4); /* one copy that nothing covered, then four each; three are left */
}

/* A READ of `taker`; NULL: there is none for it. Everything else is done as it comes, but POLL, which finds nothing. */
static ladei_pipe_slot *read_take(ladei_pipe_core *core, unsigned taker, ladei_pipe_order *out) {
  static char blocks[8];
  static unsigned acquired;
  ladei_pipe_core_set_taker(core, taker, false);
  while (ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, out)) {
    if (out->kind == LADEI_PIPE_ORDER_READ) return out->slot;
    out->block = out->kind == LADEI_PIPE_ORDER_ACQUIRE ? &blocks[acquired++ % 8] : NULL;
    ladei_pipe_core_complete(core, out, out->kind == LADEI_PIPE_ORDER_POLL ? LADE_NOT_READY : LADE_OK, NULL);
  }
  return NULL;
}

/* All copies end. */
static void copies_end(ladei_pipe_core *core) {
  ladei_pipe_order order;
  ladei_pipe_core_poll_wake(core);
  while (ladei_pipe_core_next(core, 0, &order)) {
    if (order.kind == LADEI_PIPE_ORDER_ACQUIRE) {
      ladei_pipe_core_complete(core, &order, LADE_ERR_LIMIT, &injected);
      return;
    }
    ladei_pipe_core_complete(core, &order, LADE_OK, NULL);
  }
}

/* Nothing is under way any more, and all blocks are given back. `order`: a READ that fails, and with it the transfer. */
static void transfer_end(ladei_pipe_core *core, const ladei_pipe_core_transfer *transfer, ladei_pipe_order *order) {
  ladei_pipe_core_complete(core, order, LADE_ERR_IO, &injected);
  while (!transfer->finished || core->counters.blocks > 0) {
    ladei_pipe_core_poll_wake(core);
    while (ladei_pipe_core_next(core, LADEI_PIPE_ALLOW_HOST, order))
      ladei_pipe_core_complete(core, order, LADE_OK, NULL);
  }
}

LADE_TEST(PipelineCore, AReaderTakesTheBlockThatItUsedLast) {
  ladei_pipe_core core;
  ladei_pipe_order orders[3], order;
  ladei_pipe_slot *slots[3];
  ladei_pipe_core_transfer transfer = {.bytes = 100, .chunk_bytes = 1};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 3));
  core.rings[0].blocks.last_first = true;
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  for (unsigned i = 0; i < 3; i++) slots[i] = read_take(&core, i + 1, &orders[i]);
  for (unsigned i = 0; i < 3; i++) ladei_pipe_core_complete(&core, &orders[i], LADE_OK, NULL);
  copies_end(&core); /* 3 was used last */
  LADE_EXPECT(read_take(&core, 2, &orders[1]) == slots[1]);
  LADE_EXPECT(read_take(&core, 1, &orders[0]) == slots[0]);
  ladei_pipe_core_complete(&core, &orders[1], LADE_OK, NULL);
  copies_end(&core);
  LADE_EXPECT(read_take(&core, 4, &orders[1]) ==
              slots[1]); /* of those that others used the one used last; now it is its own */
  LADE_EXPECT(read_take(&core, 2, &orders[2]) == slots[2]);
  LADE_EXPECT(read_take(&core, 2, &order) == NULL);
  for (unsigned i = 1; i < 3; i++) ladei_pipe_core_complete(&core, &orders[i], LADE_OK, NULL);
  transfer_end(&core, &transfer, &orders[0]);
  ladei_pipe_core_destroy(&core);
}

/* A reader that queues its copies comes back to the place that it had; who lets it go gives it to others. */
LADE_TEST(PipelineCore, APlaceIsKeptForAReaderThatStays) {
  ladei_pipe_core core;
  ladei_pipe_order orders[2], other;
  ladei_pipe_core_transfer transfer = {.bytes = 100, .chunk_bytes = 1};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 8));
  ladei_pipe_core_set_window(&core.rings[0], 2);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  for (unsigned i = 0; i < 2; i++) LADE_EXPECT(read_take(&core, i + 1, &orders[i]) != NULL);
  ladei_pipe_core_complete(&core, &orders[0], LADE_OK, NULL);
  ladei_pipe_core_stay(&core, true);
  LADE_EXPECT(read_take(&core, 3, &other) == NULL);
  LADE_EXPECT_EQ_UINT(ladei_pipe_core_reads_possible(&core, 1), 0u);
  ladei_pipe_core_set_taker(&core, 1, true);
  LADE_EXPECT(ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &orders[0]) &&
              orders[0].kind == LADEI_PIPE_ORDER_READ);
  ladei_pipe_core_stay(&core, false); /* it has its READ */
  LADE_EXPECT(read_take(&core, 3, &other) == NULL);
  ladei_pipe_core_complete(&core, &orders[0], LADE_OK, NULL);
  ladei_pipe_core_stay(&core, true);
  ladei_pipe_core_stay(&core, false); /* it has something longer to do */
  LADE_EXPECT(read_take(&core, 3, &other) != NULL);
  ladei_pipe_core_complete(&core, &orders[1], LADE_OK, NULL);
  transfer_end(&core, &transfer, &other);
  ladei_pipe_core_destroy(&core);
}

LADE_TEST(PipelineCore, AReaderDoesNotWaitForItsBlockThatBecameTooSmall) {
  ladei_pipe_core core;
  ladei_pipe_order orders[2];
  ladei_pipe_slot *slots[2];
  ladei_pipe_core_transfer transfer = {.bytes = 8, .chunk_bytes = 2};
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 2));
  core.rings[0].blocks.last_first = true;
  ladei_pipe_core_set_blocks(&core, 1, 1);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  slots[0] = read_take(&core, 1, &orders[0]);
  LADE_EXPECT(ladei_pipe_core_grow_blocks(&core.rings[0], 2));
  slots[1] = read_take(&core, 2, &orders[1]);
  for (unsigned i = 0; i < 2; i++) ladei_pipe_core_complete(&core, &orders[i], LADE_OK, NULL);
  copies_end(&core); /* that of 2 was used last: it keeps the smaller one from being given back */
  LADE_EXPECT(read_take(&core, 1, &orders[0]) == slots[1]);
  LADE_EXPECT(slots[0] != slots[1]);
  transfer_end(&core, &transfer, &orders[0]);
  ladei_pipe_core_destroy(&core);
}

/* A READ order that is completed twice. */
static void complete_twice(void) {
  ladei_pipe_core core;
  ladei_pipe_order order;
  ladei_pipe_core_transfer transfer = {.bytes = 8, .chunk_bytes = 2};
  char block;
  (void)ladei_pipe_core_init(&core, 2);
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    order.block = &block;
    ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
    if (order.kind == LADEI_PIPE_ORDER_READ) break;
  }
  ladei_pipe_core_complete(&core, &order, LADE_OK, NULL);
}

/* I10: the slot is READY, and READY does not follow READY. */
LADE_TEST(PipelineCore, StopsAtAStateThatCannotFollow) {
#ifdef NDEBUG
  LADE_SKIP("this build does not check states");
#endif
  pid_t child = fork();
  if (child == 0) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGABRT, SIG_DFL);
    (void)!freopen("/dev/null", "w", stderr);
    complete_twice();
    _exit(0);
  }
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* What fails while a transfer is brought to its end (a flush, a rename) is the transfer's outcome. */
LADE_TEST(PipelineCore, TakesAFailureAtTheEndAsTheOutcome) {
  ladei_pipe_core core;
  ladei_pipe_order order;
  ladei_pipe_core_transfer transfer = {.bytes = 4, .chunk_bytes = 2};
  char block;
  LADE_ASSERT_OK(ladei_pipe_core_init(&core, 1));
  ladei_pipe_core_submit(&core, &transfer, LADE_TO_HOST);
  while (ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
    order.block = &block;
    ladei_pipe_core_complete(&core, &order, order.kind == LADEI_PIPE_ORDER_FINISH ? LADE_ERR_IO : LADE_OK, &injected);
  }
  LADE_EXPECT(transfer.finished);
  LADE_EXPECT_EQ_UINT(transfer.done_bytes, 4);
  LADE_EXPECT_EQ_INT(transfer.error.status, injected.status);
  LADE_EXPECT_EQ_UINT(core.counters.transfers_failed, 1);
  LADE_EXPECT_EQ_UINT(core.counters.transfers_completed, 0);
  ladei_pipe_core_destroy(&core);
}

/* Fewer blocks than asked for are slower, not wrong; none at all ends the transfer with the pool's error. */
LADE_TEST(PipelineCore, GoesOnWithTheBlocksThereAre) {
  for (unsigned granted = 0; granted < 2; granted++) {
    ladei_pipe_core core;
    ladei_pipe_order order;
    ladei_pipe_core_transfer transfer = {.bytes = 20, .chunk_bytes = 1};
    unsigned acquires = 0;
    char block;
    LADE_ASSERT_OK(ladei_pipe_core_init(&core, 4));
    ladei_pipe_core_submit(&core, &transfer, LADE_TO_DEVICE);
    for (unsigned i = 0; i < 1000 && !transfer.finished; i++) {
      if (!ladei_pipe_core_next(&core, LADEI_PIPE_ALLOW_HOST, &order)) {
        ladei_pipe_core_poll_wake(&core);
        continue;
      }
      lade_status status = LADE_OK;
      if (order.kind == LADEI_PIPE_ORDER_ACQUIRE) {
        status = acquires++ < granted ? LADE_OK : LADE_ERR_LIMIT;
        order.block = &block;
      } else if (order.kind == LADEI_PIPE_ORDER_POLL && i % 3 != 0) {
        status = LADE_NOT_READY;
      }
      ladei_pipe_core_complete(&core, &order, status, &injected);
    }
    LADE_EXPECT(transfer.finished);
    LADE_EXPECT_EQ_INT(transfer.error.status, granted == 0 ? LADE_ERR_DRIVER : LADE_OK);
    LADE_EXPECT_EQ_UINT(acquires, granted + 1);
    ladei_pipe_core_destroy(&core);
  }
}
