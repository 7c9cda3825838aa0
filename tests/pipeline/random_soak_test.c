/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Random transfers of every kind at once, cancelled, waited for, given back and failed at random: by
 * one thread on "sim", by three on "cpu". What ends well must have every byte right; what does not must end with an
 * error that was asked for. At the end every block is back and nothing is alive.
 *
 * The short form runs in every build. The long one, by LADE_SOAK_SECONDS=600, keeps "cpu" at it for that long and holds
 * that the process has not grown since its first quarter. LADE_TEST_SEED replays a seed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "lade/device.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 8192, MOST_BYTES = 10 * CHUNK, JOBS = 8, WORKERS = 3, PIECES = 12, SUMS = MOST_BYTES / 4096 };

typedef enum way { WAY_MEMORY, WAY_PINNED, WAY_PIECES, WAY_CALLBACK, WAY_FILE, WAY_PEER, WAYS } way;

typedef struct job {
  lade_ticket *ticket; /* NULL: the place is free */
  way how;
  bool down;      /* to the device */
  bool wrong_sum; /* its checksums do not match */
  bool fails;     /* its callback fails */
  bool cancelled;
  bool faulty;          /* faults were about when it began, ... */
  unsigned fault_times; /* ... or since, where this has changed */
  bool allocated;       /* `device` is of the allocator */
  size_t bytes;
  uint64_t seed;
  char *host;   /* MOST_BYTES: pageable, or pinned where `how` says so */
  char *device; /* where its bytes are to be, or are */
  char *place;  /* MOST_BYTES of the device, always its own */
  char *peer;   /* MOST_BYTES of the other device */
  uint64_t sums[SUMS];
  lade_piece pieces[PIECES];
  atomic_uint ends; /* calls of on_complete */
} job;

typedef struct soak soak;

typedef struct worker {
  soak *all;
  support_random random;
  unsigned index;
  lade_stream stream;
  char *pageable; /* JOBS x MOST_BYTES */
  void *pinned;
  job jobs[JOBS];
  uint64_t runs;
} worker;

struct soak {
  fixture f;
  lade_device_allocator *allocator;
  void *peer;
  int source; /* a file of the pattern 1, twice MOST_BYTES */
  int sink;
  support_temp_dir dir;
  atomic_bool faults;      /* some may be pending */
  atomic_uint fault_times; /* that some were added */
  pthread_mutex_t toggle;  /* of the two and of the plan itself, when they change */
  unsigned worker_count;
  uint64_t operations; /* of each worker */
  worker workers[WORKERS];
};

static uint64_t pick(worker *w, uint64_t low, uint64_t high) { return support_random_between(&w->random, low, high); }

static bool one_in(worker *w, uint64_t n) { return support_random_one_in(&w->random, n); }

static lade_status job_call(void *user, uint64_t offset, void *buffer, size_t bytes) {
  job *j = user;
  if (j->fails && offset + bytes > j->bytes / 2) return LADE_ERR_LIMIT;
  if (j->down)
    support_pattern_fill(buffer, bytes, j->seed, offset);
  else
    memcpy(j->host + offset, buffer, bytes);
  return LADE_OK;
}

static lade_status job_end(void *user, lade_ticket *ticket, const lade_error *outcome) {
  (void)ticket;
  (void)outcome;
  atomic_fetch_add(&((job *)user)->ends, 1u);
  return LADE_OK;
}

static off_t sink_offset(const worker *w, const job *j) {
  return (off_t)(((size_t)w->index * JOBS + (size_t)(j - w->jobs)) * MOST_BYTES);
}

/* Cut anywhere, each piece at the right place of its own. */
static void pieces_cut(worker *w, job *j, lade_transfer *transfer) {
  size_t at = 0;
  size_t count = 0;
  for (; at < j->bytes && count < PIECES; count++) {
    size_t left = j->bytes - at;
    size_t bytes = count == PIECES - 1 ? left : (size_t)pick(w, 0, left);
    lade_endpoint host = lade_endpoint_memory(j->host + at);
    if (j->down && one_in(w, 4)) {
      host = lade_endpoint_callback(job_call, j);
      host.concurrent = (int32_t)pick(w, 0, 1);
      /* A callback gets offsets within its piece: right only for the first. */
      if (at != 0) host = lade_endpoint_memory(j->host + at);
    }
    j->pieces[count] = (lade_piece){host, one_in(w, 2) && !j->allocated ? j->device + at : NULL, bytes};
    at += bytes;
  }
  memset(&transfer->host, 0, sizeof transfer->host);
  transfer->bytes = 0;
  transfer->pieces = j->pieces;
  transfer->piece_count = count;
}

static void host_choose(worker *w, job *j, lade_transfer *transfer) {
  switch (j->how) {
  case WAY_MEMORY:
  case WAY_PINNED: transfer->host = lade_endpoint_memory(j->host); break;
  case WAY_PIECES: pieces_cut(w, j, transfer); break;
  case WAY_CALLBACK:
    transfer->host = lade_endpoint_callback(job_call, j);
    transfer->host.concurrent = (int32_t)pick(w, 0, 1);
    break;
  case WAY_FILE:
    transfer->host = j->down ? lade_endpoint_file(w->all->source, j->seed % MOST_BYTES, "source")
                             : lade_endpoint_file(w->all->sink, (uint64_t)sink_offset(w, j), "sink");
    transfer->host.flags = one_in(w, 3) ? LADE_FILE_DIRECT : 0;
    break;
  case WAY_PEER:
  case WAYS: transfer->host = lade_endpoint_device(1, j->peer); break;
  }
}

/* The bytes that the job is to move, where it starts from. */
static void bytes_prepare(worker *w, job *j) {
  const lade_runtime_ops *ops = w->all->f.runtime->ops;
  void *self = w->all->f.runtime->self;
  char *copy = j->how == WAY_PINNED ? j->host : w->pageable + (size_t)(j - w->jobs) * MOST_BYTES;
  uint64_t seed = j->how == WAY_FILE && j->down ? 1 : j->seed;
  support_pattern_fill(copy, j->bytes, seed, j->how == WAY_FILE && j->down ? j->seed % MOST_BYTES : 0);
  if (!j->down)
    LADE_EXPECT_OK(ops->copy_sync(self, 0, LADEI_COPY_H2D, j->device, copy, j->bytes));
  else if (j->how == WAY_PEER)
    LADE_EXPECT_OK(ops->copy_sync(self, 1, LADEI_COPY_H2D, j->peer, copy, j->bytes));
  for (size_t i = 0; i * 4096 < j->bytes; i++) {
    size_t left = j->bytes - i * 4096;
    j->sums[i] = XXH3_64bits(copy + i * 4096, left < 4096 ? left : 4096) ^ (j->wrong_sum ? 1 : 0);
  }
  if (!j->down) memset(copy, 0, j->bytes);
}

static void job_start(worker *w, job *j) {
  lade_transfer transfer;
  void *allocated = NULL;
  *j = (job){.how = (way)pick(w, 0, WAYS - 1),
             .down = one_in(w, 2),
             .bytes = (size_t)pick(w, 1, MOST_BYTES),
             .seed = pick(w, 2, 1 << 20),
             .place = j->place,
             .peer = j->peer,
             .device = j->place};
  size_t index = (size_t)(j - w->jobs);
  j->host = (j->how == WAY_PINNED ? (char *)w->pinned : w->pageable) + index * MOST_BYTES;
  j->fails = (j->how == WAY_CALLBACK) && one_in(w, 8);
  j->fault_times = atomic_load(&w->all->fault_times);
  j->faulty = atomic_load(&w->all->faults);
  j->allocated = j->down && one_in(w, 4);
  bool summed = j->how != WAY_PEER && one_in(w, 3);
  j->wrong_sum = summed && one_in(w, 6);
  bytes_prepare(w, j);
  lade_transfer_init(&transfer);
  transfer.direction = j->down ? LADE_TO_DEVICE : LADE_TO_HOST;
  transfer.bytes = j->bytes;
  transfer.stream = w->stream;
  transfer.after_stream = j->allocated || one_in(w, 6);
  transfer.device_memory = j->allocated ? NULL : j->device;
  transfer.allocator = j->allocated ? w->all->allocator : NULL;
  transfer.out_device_memory = j->allocated ? &allocated : NULL;
  transfer.priority = (int32_t)pick(w, 0, 2) - 1;
  transfer.submitter = pick(w, 0, 3);
  transfer.on_complete = job_end;
  transfer.on_complete_user = j;
  transfer.checksum = summed ? LADE_CHECKSUM_VERIFY : LADE_CHECKSUM_NONE;
  transfer.checksum_bytes = summed ? 4096 : 0;
  transfer.checksums = summed ? j->sums : NULL;
  host_choose(w, j, &transfer);
  lade_status status = lade_pipeline_submit(w->all->f.pipeline, &transfer, &j->ticket);
  LADE_EXPECT(status == LADE_OK || j->faulty || atomic_load(&w->all->fault_times) != j->fault_times);
  j->device = j->allocated ? allocated : j->device;
  w->runs++;
}

/* What arrived. */
static void job_check(worker *w, job *j) {
  const lade_runtime_ops *ops = w->all->f.runtime->ops;
  char copy[MOST_BYTES];
  const char *arrived = copy;
  bool from_file = j->how == WAY_FILE && j->down;
  if (j->down)
    LADE_EXPECT_OK(ops->copy_sync(w->all->f.runtime->self, 0, LADEI_COPY_D2H, copy, j->device, j->bytes));
  else if (j->how == WAY_PEER)
    LADE_EXPECT_OK(ops->copy_sync(w->all->f.runtime->self, 1, LADEI_COPY_D2H, copy, j->peer, j->bytes));
  else if (j->how == WAY_FILE)
    LADE_EXPECT_EQ_INT(pread(w->all->sink, copy, j->bytes, sink_offset(w, j)), (ssize_t)j->bytes);
  else
    arrived = j->host;
  LADE_EXPECT_PATTERN(arrived, j->bytes, from_file ? 1 : j->seed, from_file ? j->seed % MOST_BYTES : 0);
}

static void job_over(worker *w, job *j, lade_status status) {
  bool expected = status == LADE_OK || (status == LADE_ERR_CANCELLED && j->cancelled) ||
                  (status == LADE_ERR_CALLBACK && j->fails) || (status == LADE_ERR_CHECKSUM && j->wrong_sum) ||
                  (status == LADE_ERR_DRIVER && (j->faulty || atomic_load(&w->all->fault_times) != j->fault_times));
  if (!expected) LADE_FAIL("a transfer ended with %s", lade_last_error()->text);
  LADE_EXPECT(status != LADE_OK || (!j->fails && !j->wrong_sum));
  LADE_EXPECT_EQ_UINT(atomic_load(&j->ends), 1);
  if (status == LADE_OK) job_check(w, j);
  if (j->allocated) LADE_EXPECT_OK(lade_device_free(w->all->allocator, j->device));
  lade_ticket_release(j->ticket);
  j->ticket = NULL;
}

/* Faults of the calls that transfers make, for a while. Jobs that run meanwhile may fail by them. */
static void faults_toggle(worker *w) {
  static const char *const ops[] = {"copy",         "copy_batch",  "copy_peer",
                                    "event_record", "event_query", "stream_wait_event"};
  lade_runtime *runtime = w->all->f.runtime;
  pthread_mutex_lock(&w->all->toggle);
  if (atomic_load(&w->all->faults)) {
    LADE_EXPECT_OK(lade_soft_fault_clear(runtime));
    atomic_store(&w->all->faults, false);
  } else {
    atomic_fetch_add(&w->all->fault_times, 1u);
    atomic_store(&w->all->faults, true);
    LADE_EXPECT_OK(lade_soft_fault_add(runtime, ops[pick(w, 0, 5)], pick(w, 1, 20), LADE_ERR_DRIVER));
  }
  pthread_mutex_unlock(&w->all->toggle);
}

static void step(worker *w) {
  job *j = &w->jobs[pick(w, 0, JOBS - 1)];
  uint64_t what = pick(w, 0, 99);
  if (j->ticket == NULL) {
    job_start(w, j);
  } else if (what < 10) {
    j->cancelled = true;
    LADE_EXPECT_OK(lade_ticket_cancel(j->ticket));
  } else if (what < 20) {
    (void)lade_stream_wait_ticket_prefix(w->stream, j->ticket, pick(w, 0, j->bytes));
  } else if (what < 22) {
    faults_toggle(w);
  } else if (what < 30 && support_is_virtual(w->all->f.runtime)) {
    (void)lade_soft_advance(w->all->f.runtime, pick(w, 0, 5000));
  } else {
    lade_status status = lade_ticket_wait(j->ticket, one_in(w, 2) ? LADE_WAIT_FOREVER : pick(w, 0, 20000));
    if (status != LADE_ERR_TIMEOUT) job_over(w, j, status);
  }
}

static void *worker_main(void *user) {
  worker *w = user;
  for (uint64_t i = 0; i < w->all->operations && !lade_test_has_failed(); i++) step(w);
  for (size_t i = 0; i < JOBS; i++) {
    job *j = &w->jobs[i];
    if (j->ticket != NULL) job_over(w, j, lade_ticket_wait(j->ticket, LADE_WAIT_FOREVER));
  }
  return NULL;
}

static bool worker_open(soak *s, unsigned index, uint64_t seed) {
  worker *w = &s->workers[index];
  w->all = s;
  w->index = index;
  support_random_start_quietly(&w->random, seed * WORKERS + index);
  w->pageable = malloc((size_t)JOBS * MOST_BYTES);
  for (size_t i = 0; i < JOBS; i++) {
    size_t place = (index * JOBS + i) * MOST_BYTES;
    w->jobs[i].place = s->f.device + place;
    w->jobs[i].peer = (char *)s->peer + place;
  }
  return w->pageable != NULL && lade_stream_create(s->f.runtime, 0, &w->stream) == LADE_OK &&
         lade_pinned_alloc(s->f.pool, (size_t)JOBS * MOST_BYTES, &w->pinned) == LADE_OK;
}

static bool soak_open(soak *s, const char *runtime, uint64_t seed, unsigned workers, uint64_t operations) {
  lade_pipeline_options options;
  size_t bytes = (size_t)WORKERS * JOBS * MOST_BYTES;
  memset(s, 0, sizeof *s);
  pthread_mutex_init(&s->toggle, NULL);
  s->worker_count = workers;
  s->operations = operations;
  lade_pipeline_options_init(&options);
  options.chunk_bytes = seed % 3 == 0 ? 0 : CHUNK;
  options.depth = (uint32_t)(seed % 5) * 2;
  options.readers = (uint32_t)(seed % 4);
  options.storage_latency_ns = seed % 2 * 3000;
  if (!support_temp_dir_create(&s->dir) || !fixture_open(&s->f, runtime, bytes, &options)) return false;
  char *source = support_temp_dir_path(&s->dir, "source");
  char *sink = support_temp_dir_path(&s->dir, "sink");
  bool good = support_temp_file_write(source, (size_t)2 * MOST_BYTES, 1);
  s->source = open(source, O_RDONLY);
  s->sink = open(sink, O_RDWR | O_CREAT, 0600);
  free(source);
  free(sink);
  good = good && lade_device_allocator_create(s->f.runtime, 0, NULL, &s->allocator) == LADE_OK &&
         s->f.runtime->ops->device_alloc(s->f.runtime->self, 1, bytes, &s->peer) == LADE_OK;
  for (unsigned i = 0; good && i < workers; i++) good = worker_open(s, i, seed);
  LADE_EXPECT(good);
  return good;
}

static void soak_close(soak *s) {
  LADE_EXPECT_OK(lade_soft_fault_clear(s->f.runtime));
  for (unsigned i = 0; i < s->worker_count; i++) {
    worker *w = &s->workers[i];
    LADE_EXPECT_OK(lade_pinned_free(s->f.pool, w->pinned));
    LADE_EXPECT_OK(lade_stream_synchronize(s->f.runtime, w->stream));
    free(w->pageable);
  }
  /* Everything that transfers took is back. */
  LADE_EXPECT_OK(lade_pipeline_destroy(s->f.pipeline, false));
  s->f.pipeline = NULL;
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(s->f.pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.in_use_bytes.current, 0);
  LADE_EXPECT_OK(lade_device_allocator_destroy(s->allocator, true));
  for (unsigned i = 0; i < s->worker_count; i++)
    LADE_EXPECT_OK(lade_stream_destroy(s->f.runtime, s->workers[i].stream));
  LADE_EXPECT_OK(s->f.runtime->ops->device_free(s->f.runtime->self, 1, s->peer));
  close(s->source);
  close(s->sink);
  fixture_close(&s->f);
  support_temp_dir_remove(&s->dir);
}

static uint64_t run_soak(const char *runtime, uint64_t seed, unsigned workers, uint64_t operations) {
  soak *s = malloc(sizeof *s);
  pthread_t threads[WORKERS];
  uint64_t runs = 0;
  if (s == NULL || !soak_open(s, runtime, seed, workers, operations)) return 0;
  for (unsigned i = 1; i < workers; i++)
    if (pthread_create(&threads[i], NULL, worker_main, &s->workers[i]) != 0) abort();
  (void)worker_main(&s->workers[0]);
  for (unsigned i = 1; i < workers; i++) pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < workers; i++) runs += s->workers[i].runs;
  soak_close(s);
  pthread_mutex_destroy(&s->toggle);
  free(s);
  return runs;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 4 };
#else
enum { SEEDS = 12 };
#endif

static void run_seeds(const char *runtime, unsigned workers) {
  uint64_t first = support_seed(1);
  uint64_t count = first == 1 ? SEEDS : 1;
  for (uint64_t seed = first; seed < first + count && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu on %s", (unsigned long long)seed, runtime);
    LADE_EXPECT_GE_UINT(run_soak(runtime, seed, workers, 300), 1);
  }
}

LADE_TEST(Soak, IsRightInVirtualTime) { run_seeds("sim", 1); }

LADE_TEST(Soak, IsRightWithThreads) { run_seeds("cpu", WORKERS); }

static size_t resident_bytes(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file != NULL) {
    if (fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
    fclose(file);
  }
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The address sanitiser keeps so much of what was freed. */
#ifdef __SANITIZE_ADDRESS__
static const size_t quarantine_bytes = (size_t)256 << 20;
#else
static const size_t quarantine_bytes = 0;
#endif

LADE_TEST(Soak, LastsAsLongAsAsked) {
  double seconds = support_soak_seconds(0);
  struct timespec begun;
  struct timespec now;
  size_t early = 0;
  uint64_t runs = 0;
  clock_gettime(CLOCK_MONOTONIC, &begun);
  double past = 0;
  for (uint64_t seed = 1000; past < seconds && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu on cpu", (unsigned long long)seed);
    runs += run_soak("cpu", seed, WORKERS, 3000);
    clock_gettime(CLOCK_MONOTONIC, &now);
    past = (double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) * 1e-9;
    early = early == 0 && past >= seconds / 4 ? resident_bytes() : early;
  }
  if (seconds > 0) {
    printf("%llu transfers in %.0f s; resident %.1f MiB after a quarter, %.1f at the end\n", (unsigned long long)runs,
           past, (double)early / (1 << 20), (double)resident_bytes() / (1 << 20));
    LADE_EXPECT_LE_UINT(resident_bytes(), early + early / 10 + (8 << 20) + quarantine_bytes);
  }
}
