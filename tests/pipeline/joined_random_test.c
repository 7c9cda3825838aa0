/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across layers: Random transfers that are long enough for copies of several chunks to be queued together, beside such as never are:
 * pinned memory, mixed and many pieces, callbacks, short and urgent ones, ones behind a stream that is held until all copies are
 * queued, ones to the host; cancelled and waited for by streams, from pools with room for a few blocks, on drivers that refuse batches.
 * What ends well has every byte right; what does not ends with an error that was asked for.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/loopback/hooks.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum {
  MOST_BYTES = 5 << 19,
  JOBS = 8,
  PIPELINES = 2,
  STREAMS = 3,
  PARTS = 512,
  CHUNK_LEAST = 16 << 10,
  BALLAST = 8 << 20
};

typedef enum way { WAY_MEMORY, WAY_PINNED, WAY_MIXED, WAY_PARTS, WAY_SORTED, WAY_CALLBACK, WAY_ORDERED, WAYS } way;

typedef struct job {
  lade_ticket *ticket;
  way how;
  bool down; /* to the device */
  bool cancelled;
  bool slow;    /* its calls take a while */
  bool twinned; /* copied to its second place on the device by a stream that waits for it */
  size_t bytes;
  uint64_t seed;
  char *host;   /* MOST_BYTES, of which ... */
  char *pinned; /* ... or here */
  char *device; /* twice as much */
  lade_piece pieces[PARTS];
  size_t offsets[PARTS]; /* of each piece in the pattern */
  size_t piece_count;    /* 1: no list */
} job;

typedef struct world {
  support_random random;
  fixture f; /* its pool is not capped */
  lade_pinned_pool *capped;
  lade_pipeline *pipelines[PIPELINES];
  lade_stream streams[STREAMS];
  void *pinned;
  void *ballast;     /* pinned; BALLAST bytes, as at the end of the device's memory */
  bool driver_fails; /* batched copies give LADE_ERR_DRIVER */
  char *host;
  job jobs[JOBS];
} world;

/* A software device, or one behind the loopback driver. */
static bool is_soft(const world *w) {
  return strcmp(w->f.runtime->ops->name, "cuda") != 0 || loopback_hooks_get() != NULL;
}

static uint64_t pick(world *w, uint64_t low, uint64_t high) { return support_random_between(&w->random, low, high); }

static bool one_in(world *w, uint64_t n) { return support_random_one_in(&w->random, n); }

static lade_status job_call(void *user, uint64_t offset, void *buffer, size_t bytes) {
  job *j = user;
  if (j->slow) usleep(300);
  if (j->down)
    support_pattern_fill(buffer, bytes, j->seed, offset);
  else
    memcpy(j->host + offset, buffer, bytes);
  return LADE_OK;
}

/* Keeps the copy engine busy: what is read meanwhile waits for it. */
static void engine_load(world *w) {
  char *device = w->f.device + w->f.device_bytes - BALLAST;
  for (uint64_t left = pick(w, 0, 3); left > 0; left--)
    LADE_EXPECT_OK(lade_copy_async(w->f.runtime, device, w->ballast, BALLAST, w->streams[2]));
}

static void piece_add(job *j, char *host, size_t device_offset, size_t offset, size_t bytes) {
  j->offsets[j->piece_count] = offset;
  j->pieces[j->piece_count++] = (lade_piece){lade_endpoint_memory(host + offset), j->device + device_offset, bytes};
}

/* Pieces of 64 KiB at least, one in two pinned. */
static void pieces_mix(world *w, job *j) {
  for (size_t at = 0, bytes; at < j->bytes && j->piece_count < PARTS; at += bytes) {
    bytes = (size_t)pick(w, 64 << 10, 256 << 10);
    bytes = bytes < j->bytes - at ? bytes : j->bytes - at;
    piece_add(j, one_in(w, 2) ? j->pinned : j->host, at, at, bytes);
  }
}

/* Short pieces: in reverse on the device, or by turns in two chains. */
static void pieces_cut(job *j, bool sorted) {
  enum { CHAINS = 2 };
  size_t bytes = j->bytes / PARTS;
  j->bytes = bytes * PARTS;
  for (size_t i = 0; i < PARTS; i++) {
    size_t place = sorted ? i % CHAINS * (PARTS / CHAINS) + i / CHAINS : PARTS - 1 - i;
    piece_add(j, j->host, place * bytes, i * bytes, bytes);
  }
}

static void job_prepare(world *w, size_t index) {
  job *j = &w->jobs[index];
  /* The first ones take a while: beside them reads are over with another one out. */
  *j = (job){.how = index < 2      ? WAY_CALLBACK
                    : one_in(w, 2) ? WAY_MEMORY
                                   : (way)pick(w, 0, WAYS - 1),
             .down = !one_in(w, 4),
             .slow = (index < 2 || one_in(w, 2)) && !support_is_virtual(w->f.runtime),
             .bytes = (size_t)(one_in(w, 4) ? pick(w, 1 << 10, 1 << 20) : pick(w, 1 << 20, MOST_BYTES)),
             .seed = pick(w, 1, 1 << 30),
             .host = w->host + index * MOST_BYTES,
             .pinned = (char *)w->pinned + index * MOST_BYTES,
             .device = w->f.device + 2 * index * MOST_BYTES};
  if (j->how == WAY_MIXED)
    pieces_mix(w, j);
  else if (j->how == WAY_PARTS || j->how == WAY_SORTED)
    pieces_cut(j, j->how == WAY_SORTED);
  else
    piece_add(j, j->how == WAY_PINNED ? j->pinned : j->host, 0, 0, j->bytes);
  if (j->how == WAY_CALLBACK || j->how == WAY_ORDERED) {
    j->pieces[0].host = lade_endpoint_callback(job_call, j);
    j->pieces[0].host.concurrent = j->how == WAY_CALLBACK;
  }
  support_pattern_fill(j->host, j->bytes, j->seed, 0);
  if (!j->down)
    for (size_t i = 0; i < j->piece_count; i++)
      fixture_device_write(&w->f, (size_t)((char *)j->pieces[i].device_memory - w->f.device), j->host + j->offsets[i],
                           j->pieces[i].bytes);
  memcpy(j->pinned, j->host, j->bytes);
  if (!j->down) {
    memset(j->host, 0, j->bytes);
    memset(j->pinned, 0, j->bytes);
  }
}

static void job_submit(world *w, job *j, lade_stream after) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = j->down ? LADE_TO_DEVICE : LADE_TO_HOST;
  if (j->piece_count > 1) {
    transfer.pieces = j->pieces;
    transfer.piece_count = j->piece_count;
  } else {
    transfer.host = j->pieces[0].host;
    transfer.device_memory = j->device;
    transfer.bytes = j->bytes;
  }
  transfer.priority = (int32_t)pick(w, 0, 2) - 1;
  transfer.after_stream = after != NULL;
  transfer.stream = after;
  LADE_ASSERT_OK(lade_pipeline_submit(w->pipelines[pick(w, 0, PIPELINES - 1)], &transfer, &j->ticket));
}

/* The stream waits for the transfer, and copies what has arrived. */
static void job_twin(world *w, job *j) {
  lade_status status = lade_stream_wait_ticket(w->streams[1], j->ticket);
  if (status == LADE_OK)
    LADE_EXPECT_OK(lade_copy_async(w->f.runtime, j->device + MOST_BYTES, j->device, j->bytes, w->streams[1]));
  else
    LADE_EXPECT(j->cancelled || w->driver_fails);
  j->twinned = status == LADE_OK;
}

/* Until its copies are queued nothing lets go of the stream that they wait for. A GPU's driver may wait for it to pin a block. */
static void job_behind_held_stream(world *w, size_t index) {
  support_stream_hold hold;
  job *j = &w->jobs[index];
  job_prepare(w, index);
  if (j->piece_count == 1 && j->bytes > CHUNK_LEAST) { /* a shorter one has no pattern further on */
    j->bytes = CHUNK_LEAST;
    j->pieces[0].bytes = CHUNK_LEAST;
  }
  bool held =
      j->down && j->how == WAY_MEMORY && is_soft(w) && support_stream_hold_begin(&hold, w->f.runtime, w->streams[0]);
  job_submit(w, j, held ? w->streams[0] : NULL);
  if (!lade_test_has_failed() && held) job_twin(w, j);
  if (held) support_stream_hold_end(&hold);
}

static bool is_right(const world *w, const job *j, size_t piece, size_t second) {
  static char copy[MOST_BYTES];
  const char *arrived = (char *)j->pieces[piece].host.memory;
  if (j->how == WAY_CALLBACK || j->how == WAY_ORDERED) arrived = j->host;
  if (j->down) {
    size_t at = (size_t)((char *)j->pieces[piece].device_memory - w->f.device);
    if (j->piece_count == 1) at = (size_t)(j->device - w->f.device);
    fixture_device_read(&w->f, at + second, copy, j->pieces[piece].bytes);
    arrived = copy;
  }
  return support_pattern_mismatch(arrived, j->pieces[piece].bytes, j->seed, j->offsets[piece]) ==
         j->pieces[piece].bytes;
}

static void job_end(world *w, job *j) {
  lade_status status = lade_ticket_wait(j->ticket, UINT64_C(30000000000));
  bool expected = status == LADE_OK || (status == LADE_ERR_CANCELLED && j->cancelled) ||
                  (status == LADE_ERR_DRIVER && w->driver_fails && j->piece_count > 1);
  if (!expected) LADE_FAIL("a transfer ended with %s", lade_last_error()->text);
  if (status == LADE_ERR_TIMEOUT) abort(); /* nothing could be taken apart */
  lade_ticket_release(j->ticket);
  LADE_EXPECT_OK(lade_stream_synchronize(w->f.runtime, w->streams[1]));
  for (size_t i = 0; status == LADE_OK && i < j->piece_count && !lade_test_has_failed(); i++)
    LADE_EXPECT(is_right(w, j, i, 0) && (!j->twinned || is_right(w, j, i, MOST_BYTES)));
}

/* Batched copies fail: one of them or all, for good or not. */
static void fault_add(world *w) {
  const loopback_hooks *hooks = loopback_hooks_get();
  bool soft = strcmp(w->f.runtime->ops->name, "cuda") != 0;
  w->driver_fails = one_in(w, 2);
  uint64_t nth = one_in(w, 2) ? 0 : pick(w, 1, 10);
  if (soft)
    LADE_EXPECT_OK(
        lade_soft_fault_add(w->f.runtime, "copy_batch", nth, w->driver_fails ? LADE_ERR_DRIVER : LADE_ERR_UNSUPPORTED));
  else if (hooks != NULL)
    hooks->fail("cuMemcpyBatchAsync", nth, w->driver_fails ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_NOT_SUPPORTED);
}

static void fault_clear(world *w) {
  const loopback_hooks *hooks = loopback_hooks_get();
  if (strcmp(w->f.runtime->ops->name, "cuda") != 0)
    LADE_EXPECT_OK(lade_soft_fault_clear(w->f.runtime));
  else if (hooks != NULL)
    hooks->fail_clear();
}

static bool pipelines_open(world *w) {
  lade_pinned_options pinned;
  lade_pipeline_options options;
  bool good = true;
  lade_pinned_options_init(&pinned);
  lade_pipeline_options_init(&options);
  options.chunk_bytes = one_in(w, 4) ? 0 : (uint64_t)CHUNK_LEAST << pick(w, 0, 2);
  if (options.chunk_bytes != 0 && one_in(w, 3)) pinned.max_bytes = pick(w, 1, 16) * options.chunk_bytes;
  good = lade_pinned_pool_create(w->f.runtime, &pinned, &w->capped) == LADE_OK;
  for (unsigned i = 0; good && i < PIPELINES; i++) {
    options.depth = (uint32_t)(one_in(w, 4) ? pick(w, 1, 8) : pick(w, 12, 48));
    options.readers = (uint32_t)(one_in(w, 4) ? pick(w, 1, 2) : pick(w, 3, 12));
    options.storage_latency_ns = one_in(w, 2) ? 0 : pick(w, 0, 100000);
    good = lade_pipeline_create(w->f.runtime, w->capped, &options, &w->pipelines[i]) == LADE_OK;
  }
  return good;
}

static bool world_open(world *w, const char *name, uint64_t seed) {
  support_description description;
  void *device = NULL;
  memset(w, 0, sizeof *w);
  support_random_start_quietly(&w->random, seed);
  support_description_init(&description);
  description.devices[0].link_bytes_per_s = pick(w, 1, 20) * 1000000000; /* of "sim" */
  w->f.runtime =
      strcmp(name, "cuda") == 0 ? support_runtime_open(name) : support_runtime_open_with(name, &description.options);
  w->host = malloc((size_t)JOBS * MOST_BYTES);
  if (w->f.runtime == NULL || w->host == NULL) return false;
  w->f.device_bytes = (size_t)2 * JOBS * MOST_BYTES + BALLAST;
  bool good = w->f.runtime->ops->device_alloc(w->f.runtime->self, 0, w->f.device_bytes, &device) == LADE_OK &&
              lade_pinned_pool_create(w->f.runtime, NULL, &w->f.pool) == LADE_OK &&
              lade_pinned_alloc(w->f.pool, BALLAST, &w->ballast) == LADE_OK &&
              lade_pinned_alloc(w->f.pool, (size_t)JOBS * MOST_BYTES, &w->pinned) == LADE_OK;
  w->f.device = device;
  for (unsigned i = 0; good && i < STREAMS; i++) good = lade_stream_create(w->f.runtime, 0, &w->streams[i]) == LADE_OK;
  good = good && pipelines_open(w);
  LADE_EXPECT(good);
  return good;
}

static void world_close(world *w) {
  for (unsigned i = 0; i < PIPELINES; i++) LADE_EXPECT_OK(lade_pipeline_destroy(w->pipelines[i], false));
  for (unsigned i = 0; i < STREAMS; i++) {
    LADE_EXPECT_OK(lade_stream_synchronize(w->f.runtime, w->streams[i]));
    LADE_EXPECT_OK(lade_pinned_stream_retire(w->f.pool, w->streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(w->f.runtime, w->streams[i]));
  }
  LADE_EXPECT_OK(lade_pinned_free(w->f.pool, w->pinned));
  LADE_EXPECT_OK(lade_pinned_free(w->f.pool, w->ballast));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(w->capped, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(w->f.pool, true));
  LADE_EXPECT_OK(w->f.runtime->ops->device_free(w->f.runtime->self, 0, w->f.device));
  support_runtime_close(w->f.runtime);
  free(w->host);
}

static void run_seed(const char *name, uint64_t seed) {
  static world w;
  if (!world_open(&w, name, seed)) return;
  for (size_t i = 0; i < JOBS - 1; i++) job_prepare(&w, i);
  if (one_in(&w, 3)) fault_add(&w);
  for (size_t i = 0; i < JOBS - 1 && !lade_test_has_failed(); i++) {
    engine_load(&w);
    job_submit(&w, &w.jobs[i], NULL);
    if (one_in(&w, 8)) {
      w.jobs[i].cancelled = true;
      LADE_EXPECT_OK(lade_ticket_cancel(w.jobs[i].ticket));
    }
    if (w.jobs[i].down && one_in(&w, 4)) job_twin(&w, &w.jobs[i]);
  }
  if (!lade_test_has_failed()) job_behind_held_stream(&w, JOBS - 1);
  for (size_t i = 0; i < JOBS && w.jobs[i].ticket != NULL; i++) job_end(&w, &w.jobs[i]);
  fault_clear(&w);
  world_close(&w);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 5 };
#else
enum { SEEDS = 12 };
#endif

LADE_TEST_P(JoinedRandom, BringsEachByteToItsPlace, SUPPORT_RUNTIMES, name) {
  uint64_t first = support_seed(1);
  uint64_t count = first == 1 ? SEEDS : 1;
  for (uint64_t seed = first; seed < first + count && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu on %s", (unsigned long long)seed, name);
    run_seed(name, seed);
  }
}
