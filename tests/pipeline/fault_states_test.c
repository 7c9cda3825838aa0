/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: In virtual time a transfer goes through the same states every time. So it can be cancelled, and its
 * device lost, in each of them: after no step of the clock, after one, after two ... until it is over before that.
 * Beside it runs another transfer, which a cancelled one must not harm. After each run every block is back and nothing
 * is alive.
 */
#include <string.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 4096, BYTES = 4 * CHUNK + 5, STEPS_MOST = 400 };

/* The sanitised builds are many times slower; every third state shows them enough. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 3 };
#else
enum { STRIDE = 1 };
#endif

typedef enum kind { STAGED, CALLBACK, SCATTERED, PINNED, AFTER_STREAM, SUMMED, KINDS } kind;

typedef struct world {
  fixture f;
  void *block;
  char host[BYTES];
  char other[BYTES];
  uint64_t sums[BYTES / CHUNK + 1];
  lade_piece pieces[8];
  lade_stream stream;
  lade_ticket *tickets[2];
} world;

static lade_status move(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  (void)offset;
  memset(buffer, 1, bytes);
  return LADE_OK;
}

static lade_transfer transfer_of(world *w, kind k, lade_direction direction) {
  lade_transfer transfer = fixture_transfer(&w->f, direction, lade_endpoint_memory(w->host), BYTES);
  switch (k) {
  case CALLBACK: transfer.host = lade_endpoint_callback(move, NULL); break;
  case PINNED: transfer.host = lade_endpoint_memory(w->block); break;
  case SCATTERED:
    for (size_t i = 0; i < 8; i++)
      w->pieces[i] = (lade_piece){lade_endpoint_memory(w->host + i * 100), w->f.device + (8 - i) * 200, 100};
    memset(&transfer.host, 0, sizeof transfer.host);
    transfer.bytes = 0;
    transfer.pieces = w->pieces;
    transfer.piece_count = 8;
    break;
  case AFTER_STREAM:
    transfer.after_stream = 1;
    transfer.stream = w->stream;
    break;
  case SUMMED:
    transfer.checksum = LADE_CHECKSUM_RETURN;
    transfer.checksum_bytes = CHUNK;
    transfer.checksums = w->sums;
    break;
  case STAGED:
  case KINDS: break;
  }
  return transfer;
}

/* The transfer in question and another one beside it, some steps into both. False: they were over before. */
static bool world_open(world *w, kind k, lade_direction direction, unsigned steps) {
  memset(w, 0, sizeof *w);
  if (!fixture_open(&w->f, "sim", 3 * BYTES, NULL)) return false;
  LADE_EXPECT_OK(lade_stream_create(w->f.runtime, 0, &w->stream));
  LADE_EXPECT_OK(lade_pinned_alloc(w->f.pool, BYTES, &w->block));
  support_pattern_fill(w->other, BYTES, 7, 0);
  /* Work that the gated transfer has to wait for. */
  LADE_EXPECT_OK(lade_copy_async(w->f.runtime, w->f.device + BYTES, w->f.device, BYTES, w->stream));
  lade_transfer transfer = transfer_of(w, k, direction);
  LADE_EXPECT_OK(lade_pipeline_submit(w->f.pipeline, &transfer, &w->tickets[0]));
  lade_transfer beside = fixture_transfer(&w->f, LADE_TO_DEVICE, lade_endpoint_memory(w->other), BYTES);
  beside.device_memory = w->f.device + 2 * BYTES;
  LADE_EXPECT_OK(lade_pipeline_submit(w->f.pipeline, &beside, &w->tickets[1]));
  for (unsigned i = 0; i < steps; i++) {
    if (lade_ticket_query(w->tickets[0], NULL) != LADE_NOT_READY) return false;
    (void)w->f.runtime->ops->step(w->f.runtime->self);
  }
  return true;
}

static void world_close(world *w) {
  for (int i = 0; i < 2; i++) lade_ticket_release(w->tickets[i]);
  (void)lade_stream_synchronize(w->f.runtime, w->stream);
  LADE_EXPECT_OK(lade_stream_destroy(w->f.runtime, w->stream));
  LADE_EXPECT_OK(lade_pinned_free(w->f.pool, w->block));
  fixture_close(&w->f);
}

static unsigned cancel_everywhere(kind k, lade_direction direction) {
  unsigned steps = 0;
  for (bool inside = true; inside && steps < STEPS_MOST && !lade_test_has_failed(); steps += STRIDE) {
    world w;
    lade_test_context("kind %d, direction %d, cancelled after %u steps", (int)k, (int)direction, steps);
    inside = world_open(&w, k, direction, steps);
    uint64_t now = lade_runtime_now_ns(w.f.runtime);
    LADE_EXPECT_OK(lade_ticket_cancel(w.tickets[0]));
    lade_status status = lade_ticket_wait(w.tickets[0], LADE_WAIT_FOREVER);
    LADE_EXPECT(status == LADE_ERR_CANCELLED || status == LADE_OK);
    LADE_EXPECT(status == LADE_ERR_CANCELLED || !inside || steps > 3);
    /* Prompt: no more than what was under way, of this transfer and of the other, a chunk for each slot. */
    LADE_EXPECT_LE_UINT(lade_runtime_now_ns(w.f.runtime) - now, 3 * (3000 + CHUNK) + 3000);
    LADE_EXPECT_OK(lade_ticket_wait(w.tickets[1], LADE_WAIT_FOREVER));
    fixture_expect_device_pattern(&w.f, 2 * BYTES, BYTES, 7, 0);
    world_close(&w);
  }
  LADE_EXPECT_LT_UINT(steps, STEPS_MOST);
  return steps;
}

LADE_TEST(Cancel, IsRightInEveryState) {
  for (kind k = STAGED; k < KINDS; k++) {
    unsigned down = cancel_everywhere(k, LADE_TO_DEVICE);
    unsigned up = cancel_everywhere(k, LADE_TO_HOST);
    LADE_EXPECT_GE_UINT(down, 3);
    LADE_EXPECT_GE_UINT(up, 3);
  }
}

static unsigned lose_everywhere(kind k, lade_direction direction) {
  unsigned steps = 0;
  for (bool inside = true; inside && steps < STEPS_MOST && !lade_test_has_failed(); steps += STRIDE) {
    world w;
    lade_test_context("kind %d, direction %d, device lost after %u steps", (int)k, (int)direction, steps);
    inside = world_open(&w, k, direction, steps);
    LADE_EXPECT_OK(lade_soft_device_lose(w.f.runtime, 0, 0));
    for (int i = 0; i < 2; i++) {
      lade_status status = lade_ticket_wait(w.tickets[i], LADE_WAIT_FOREVER);
      LADE_EXPECT(status == LADE_ERR_DEVICE_LOST || (status == LADE_OK && (i == 1 || !inside || steps > 3)));
    }
    world_close(&w);
  }
  LADE_EXPECT_LT_UINT(steps, STEPS_MOST);
  return steps;
}

LADE_TEST(LostDevice, IsSurvivedInEveryState) {
  for (kind k = STAGED; k < KINDS; k++) {
    LADE_EXPECT_GE_UINT(lose_everywhere(k, LADE_TO_DEVICE), 3);
    LADE_EXPECT_GE_UINT(lose_everywhere(k, LADE_TO_HOST), 3);
  }
}

static unsigned destroy_everywhere(kind k, lade_direction direction, bool cancel) {
  unsigned steps = 0;
  for (bool inside = true; inside && steps < STEPS_MOST && !lade_test_has_failed(); steps += STRIDE) {
    world w;
    lade_test_context("kind %d, direction %d, destroyed after %u steps", (int)k, (int)direction, steps);
    inside = world_open(&w, k, direction, steps);
    LADE_EXPECT_OK(lade_pipeline_destroy(w.f.pipeline, cancel));
    w.f.pipeline = NULL;
    for (int i = 0; i < 2; i++) {
      /* Over, and readable without the pipeline. */
      lade_status status = lade_ticket_wait(w.tickets[i], 0);
      LADE_EXPECT(status == LADE_OK || (cancel && status == LADE_ERR_CANCELLED));
    }
    world_close(&w);
  }
  return steps;
}

LADE_TEST(Destroy, DrainsOrCancelsInEveryState) {
  for (kind k = STAGED; k < KINDS; k++) {
    for (int cancel = 0; cancel < 2; cancel++) {
      LADE_EXPECT_GE_UINT(destroy_everywhere(k, LADE_TO_DEVICE, cancel), 3);
      LADE_EXPECT_GE_UINT(destroy_everywhere(k, LADE_TO_HOST, cancel), 3);
    }
  }
}
