/* SPDX-License-Identifier: Apache-2.0 */
/*
 * (e), what an expert writes instead of using lade: threads that each have a stream and a few pinned buffers of their own,
 * and take the next chunk of the input until none is left.
 *
 *   thread 1   read A | queue copy A | read B | queue copy B | wait for A | read A ...
 *   thread 2   the same, with buffers and a stream of its own
 *
 * Threads, streams, events and buffers are made before anything is timed. How many threads, how large and how many
 * buffers is found out by trying, for each direction, in passes that do not count.
 *
 * H1  A buffer is written again only after the event after its last copy, on the same stream, was waited for.
 * H2  The threads of a crew run only between pass_begin and the last of them saying that it is done.
 */
#include "benchmarks/staging_by_hand.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "benchmarks/staging_host_io.h"
#include "benchmarks/staging_messages.h"

enum { MOST_THREADS = 16, MOST_BUFFERS = 4 };

/* The input is divided into chunks once for each size. */
typedef struct task {
  staging_piece piece; /* bytes: of the chunk; offset: in the file; place: in the window */
} task;

typedef struct buffer {
  char *memory;
  lade_event event;
  const task *task; /* D2H: copied into it and not written yet; H2D: being copied */
} buffer;

typedef struct crew crew;

typedef struct worker {
  crew *crew;
  pthread_t thread;
  bool started;
  lade_stream handle;
  ladei_stream stream;
  buffer buffers[MOST_BUFFERS];
} worker;

struct crew {
  staging *s;
  staging_by_hand choice;
  int direction;
  task *tasks;
  size_t task_count, task_end; /* all; those of the pass */
  _Atomic(size_t) next;
  _Atomic(bool) failed;
  char *memory; /* of all buffers, in huge pages where there are any, registered */
  size_t memory_bytes;
  bool registered;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned pass, running; /* guard: mutex, as is end */
  bool end;
  worker workers[MOST_THREADS];
};

/* --- one thread --------------------------------------------------------------------------------------------------- */

static const lade_runtime_ops *ops_of(const crew *c) { return c->s->runtime->ops; }

static bool driver_good(lade_status status) {
  if (status != LADE_OK) staging_lade_error("by hand");
  return status == LADE_OK;
}

/* The last use of the buffer is over. */
static bool buffer_settle(crew *c, buffer *b) {
  if (b->task == NULL) return true;
  const task *settled = b->task;
  b->task = NULL;
  if (!driver_good(ops_of(c)->event_synchronize(c->s->runtime->self, b->event))) return false;
  return c->direction == STAGING_H2D ||
         staging_host_move(c->s, c->direction, &settled->piece, 0, b->memory, (size_t)settled->piece.bytes);
}

static bool chunk_move(worker *w, buffer *b, const task *t) {
  crew *c = w->crew;
  void *self = c->s->runtime->self;
  char *device = c->s->window + t->piece.place;
  size_t bytes = (size_t)t->piece.bytes;
  bool to_device = c->direction == STAGING_H2D;
  if (!buffer_settle(c, b)) return false;
  if (to_device && !staging_host_move(c->s, c->direction, &t->piece, 0, b->memory, bytes)) return false;
  lade_status status = to_device ? ops_of(c)->copy(self, LADEI_COPY_H2D, device, b->memory, bytes, &w->stream)
                                 : ops_of(c)->copy(self, LADEI_COPY_D2H, b->memory, device, bytes, &w->stream);
  if (!driver_good(status)) return false;
  b->task = t;
  return driver_good(ops_of(c)->event_record(self, b->event, &w->stream));
}

static void worker_pass(worker *w) {
  crew *c = w->crew;
  bool good = true;
  size_t at;
  unsigned next = 0;
  while (good && !staging_interrupted && !atomic_load(&c->failed) &&
         (at = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->task_end)
    good = chunk_move(w, &w->buffers[next++ % c->choice.buffers], &c->tasks[at]);
  for (unsigned i = 0; i < c->choice.buffers; i++)
    good = buffer_settle(c, &w->buffers[(next + i) % c->choice.buffers]) && good;
  if (!good) atomic_store(&c->failed, true);
}

static void *worker_main(void *user) {
  worker *w = user;
  crew *c = w->crew;
  unsigned seen = 0;
  pthread_mutex_lock(&c->mutex);
  for (;;) {
    while (c->pass == seen && !c->end) pthread_cond_wait(&c->changed, &c->mutex);
    if (c->end) break;
    seen = c->pass;
    pthread_mutex_unlock(&c->mutex);
    worker_pass(w);
    pthread_mutex_lock(&c->mutex);
    if (--c->running == 0) pthread_cond_broadcast(&c->changed);
  }
  pthread_mutex_unlock(&c->mutex);
  return NULL;
}

/* Over the first chunks up to `most_bytes`. */
static bool crew_pass(crew *c, uint64_t most_bytes) {
  atomic_store(&c->next, 0);
  uint64_t chunks = most_bytes / c->choice.bytes;
  c->task_end = chunks < c->task_count ? (size_t)chunks : c->task_count;
  pthread_mutex_lock(&c->mutex);
  c->pass++;
  c->running = c->choice.threads;
  pthread_cond_broadcast(&c->changed);
  while (c->running > 0) pthread_cond_wait(&c->changed, &c->mutex);
  pthread_mutex_unlock(&c->mutex);
  return !atomic_load(&c->failed) && !staging_interrupted;
}

/* --- a crew ------------------------------------------------------------------------------------------------------- */

/* Divides the inputs' pieces into chunks; all pieces of the window but the last are multiples of a chunk. */
static bool tasks_make(crew *c) {
  staging_cursor cursor = {0};
  staging_piece piece;
  size_t room = 0;
  while (staging_piece_next(c->s, &cursor, &piece)) {
    for (uint64_t at = 0; at < piece.bytes; at += c->choice.bytes) {
      if (c->task_count == room) {
        room = room * 2 + 256;
        task *larger = realloc(c->tasks, room * sizeof *larger);
        if (larger == NULL) return false;
        c->tasks = larger;
      }
      uint64_t left = piece.bytes - at;
      task *t = &c->tasks[c->task_count++];
      t->piece = piece;
      t->piece.offset += at;
      t->piece.place += at;
      t->piece.bytes = left < c->choice.bytes ? left : c->choice.bytes;
    }
  }
  return true;
}

static bool worker_open(crew *c, worker *w, unsigned number) {
  void *self = c->s->runtime->self;
  w->crew = c;
  if (!driver_good(ops_of(c)->stream_create(self, c->s->settings.device, 0, LADEI_STREAM_NON_BLOCKING, &w->handle)) ||
      !driver_good(ops_of(c)->stream_resolve(self, w->handle, &w->stream)))
    return false;
  for (unsigned i = 0; i < c->choice.buffers; i++) {
    w->buffers[i].memory = c->memory + (size_t)(number * c->choice.buffers + i) * c->choice.bytes;
    if (!driver_good(ops_of(c)->event_create(self, w->stream.context, 0, &w->buffers[i].event))) return false;
  }
  w->started = pthread_create(&w->thread, NULL, worker_main, w) == 0;
  return w->started;
}

static bool crew_close(crew *c) {
  bool good = true;
  if (c == NULL) return true;
  void *self = c->s->runtime->self;
  pthread_mutex_lock(&c->mutex);
  c->end = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->mutex);
  for (unsigned i = 0; i < c->choice.threads; i++) {
    worker *w = &c->workers[i];
    if (w->started) pthread_join(w->thread, NULL);
    for (unsigned k = 0; k < c->choice.buffers; k++)
      if (w->buffers[k].event != NULL) good = driver_good(ops_of(c)->event_destroy(self, w->buffers[k].event)) && good;
    if (w->handle != NULL) good = driver_good(ops_of(c)->stream_destroy(self, w->handle)) && good;
  }
  if (c->registered) good = driver_good(ops_of(c)->host_unregister(self, c->memory)) && good;
  if (c->memory != NULL) munmap(c->memory, c->memory_bytes);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->mutex);
  free(c->tasks);
  free(c);
  return good;
}

static bool memory_pin(crew *c) {
  size_t bytes = (size_t)c->choice.threads * c->choice.buffers * c->choice.bytes;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  c->memory = memory;
  c->memory_bytes = bytes;
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  memset(memory, 1, bytes);
  c->registered = driver_good(ops_of(c)->host_register(c->s->runtime->self, c->s->settings.device, memory, bytes, 0));
  return c->registered;
}

static crew *crew_open(staging *s, int direction, staging_by_hand choice) {
  crew *c = calloc(1, sizeof *c);
  if (c == NULL) {
    staging_error("no memory for %u threads", choice.threads);
    return NULL;
  }
  c->s = s;
  c->choice = choice;
  c->direction = direction;
  pthread_mutex_init(&c->mutex, NULL);
  pthread_cond_init(&c->changed, NULL);
  bool good = tasks_make(c) && memory_pin(c);
  for (unsigned i = 0; good && i < choice.threads; i++) good = worker_open(c, &c->workers[i], i);
  if (!good) {
    staging_error("by hand: %u threads with %u buffers of %llu bytes cannot be set up", choice.threads, choice.buffers,
                  (unsigned long long)choice.bytes);
    (void)crew_close(c);
    return NULL;
  }
  return c;
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

typedef struct candidate {
  staging_by_hand choice;
  double rate;
} candidate;

enum { MOST_CANDIDATES = 64, FINALISTS = 4, FINAL_PASSES = 3 };

/* GB/s: the median of so many passes over at most `most_bytes`, after one that does not count. 0: failed. */
static double choice_try(staging *s, int direction, staging_by_hand choice, uint64_t most_bytes, unsigned passes) {
  uint64_t bytes = s->inputs.bytes < most_bytes ? s->inputs.bytes : most_bytes;
  bench_samples rates = {.count = 0};
  crew *c = crew_open(s, direction, choice);
  bool good = c != NULL && crew_pass(c, bytes);
  while (good && rates.count < passes) {
    uint64_t begun_ns = lade_runtime_now_ns(s->runtime);
    good = crew_pass(c, bytes);
    rates.values[rates.count++] = (double)bytes / (double)(lade_runtime_now_ns(s->runtime) - begun_ns + 1);
  }
  return crew_close(c) && good ? bench_median(&rates) : 0;
}

static size_t candidates_list(int direction, candidate *out) {
  static const unsigned threads[] = {1, 2, 4, 8, 12, 16};
  static const uint64_t sizes[] = {UINT64_C(1) << 20, UINT64_C(2) << 20, UINT64_C(4) << 20, UINT64_C(8) << 20};
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  size_t count = 0;
  for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
    /* Few threads on many processors are no contest towards the device; to one file they are. */
    if ((long)threads[t] > cpus || (direction == STAGING_H2D && (long)threads[t] * 4 < cpus)) continue;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
      for (unsigned buffers = 2; buffers <= MOST_BUFFERS; buffers += 2)
        out[count++] = (candidate){{threads[t], buffers, sizes[i]}, 0};
  }
  return count;
}

static int by_rate(const void *a, const void *b) {
  double x = ((const candidate *)a)->rate, y = ((const candidate *)b)->rate;
  return (x < y) - (x > y);
}

/* All once, over what takes a tenth of a second on a fast link or a quarter for a file; then the best ones again. One pass
 * alone differs by a tenth from the next. */
static bool choose(staging *s, int direction, staging_by_hand *out) {
  candidate all[MOST_CANDIDATES];
  uint64_t most = UINT64_C(1) << (direction == STAGING_H2D ? 32 : 30);
  size_t count = candidates_list(direction, all);
  for (size_t i = 0; i < count; i++) {
    all[i].rate = choice_try(s, direction, all[i].choice, most, 1);
    if (all[i].rate == 0) return false;
  }
  qsort(all, count, sizeof all[0], by_rate);
  count = count < FINALISTS ? count : FINALISTS;
  for (size_t i = 0; i < count; i++) {
    all[i].rate = choice_try(s, direction, all[i].choice, 2 * most, FINAL_PASSES);
    if (all[i].rate == 0) return false;
  }
  qsort(all, count, sizeof all[0], by_rate);
  *out = all[0].choice;
  return true;
}

/* --- for staging_passes.c ----------------------------------------------------------------------------------------- */

bool staging_by_hand_open(staging *s, int direction) {
  crew *present = s->crew;
  if (present != NULL && present->direction == direction) return true;
  s->crew = NULL;
  if (!crew_close(present) || !choose(s, direction, &s->by_hand[direction])) return false;
  s->crew = crew_open(s, direction, s->by_hand[direction]);
  return s->crew != NULL;
}

bool staging_by_hand_pass(staging *s) {
  bool good = crew_pass(s->crew, UINT64_MAX);
  staging_progress_add(&s->progress, s->inputs.bytes);
  return good;
}

bool staging_by_hand_close(staging *s) {
  crew *present = s->crew;
  s->crew = NULL;
  return crew_close(present);
}
