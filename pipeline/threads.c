/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver: reader threads. Each takes orders from the core and executes them; none is special, so a chunk's copy is
 * queued by the thread that read it, without a hand-over.
 *
 *   order there          take it; if more are there and a thread sleeps, wake one (that one wakes the next)
 *   only copies to end   one thread, the poller, asks again and again: at once for a moment, then less and less often
 *   nothing              sleep until work is signalled
 *
 * I1  At most one thread is the poller. While there is none, and copies are under way that only POLL can end, at least
 *     one thread is awake, and passes the task on before it turns to something that takes long.
 * I2  A thread that goes to sleep has seen the core without an order for it, under the lock.
 * Locks: the pipeline's; it is given up for every order, and once per chunk.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "pipeline/internal.h"

/*
 * Note [Polling]
 * A copy of 64 KiB takes some microseconds, a sleep at least fifty. So the poller first asks without a pause, for about
 * the time that a sleep would cost; from then on it sleeps a quarter of the time it has waited, so that a copy is found
 * finished at most a quarter late and long copies cost few wake-ups. The longest sleep bounds what the end of a
 * transfer is found late.
 */
enum { SPIN_NS = 50000, SLEEP_LEAST_NS = 50000, SLEEP_MOST_NS = 1000000 };

typedef struct threads_state {
  lade_pipeline *pipeline;
  bool spins;        /* more than one processor: waiting awake does not keep the awaited from running */
  unsigned sleeping; /* on pipeline->work; guarded by the lock, as is all below */
  bool poller;       /* there is one */
  bool end;
  unsigned count;
  pthread_t threads[];
} threads_state;

/* The runtime's clock; no driver call, so allowed under the lock. */
static uint64_t now_ns(const lade_pipeline *pipeline) {
  return pipeline->runtime->ops->now_ns(pipeline->runtime->self);
}

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void work_sleep(threads_state *state, uint64_t longest_ns) {
  lade_pipeline *pipeline = state->pipeline;
  state->sleeping++;
  if (longest_ns == UINT64_MAX) {
    ladei_condition_wait(&pipeline->work, &pipeline->lock);
  } else {
    (void)ladei_condition_wait_for(&pipeline->work, &pipeline->lock, longest_ns);
  }
  state->sleeping--;
}

/* This thread is busy from here on: somebody else takes what is left, or goes on asking. */
static void work_pass_on(const threads_state *state) {
  const ladei_core *core = &state->pipeline->core;
  if (state->sleeping > 0 &&
      (ladei_core_has_order(core, LADEI_ALLOW_HOST) || (ladei_core_polls(core) && !state->poller))) {
    ladei_condition_signal(&state->pipeline->work);
  }
}

/* Lets time pass, then makes POLL worth while again. `since_ns`: when this thread last did something useful. */
static void poller_pause(threads_state *state, uint64_t since_ns) {
  lade_pipeline *pipeline = state->pipeline;
  uint64_t waited_ns = now_ns(pipeline) - since_ns;
  state->poller = true;
  if (state->spins && waited_ns < SPIN_NS) {
    ladei_lock_release(&pipeline->lock);
    for (int i = 0; i < 20; i++) {
      cpu_relax();
    }
    ladei_lock_acquire(&pipeline->lock);
  } else {
    uint64_t sleep_ns = waited_ns / 4;
    work_sleep(state, sleep_ns < SLEEP_LEAST_NS ? SLEEP_LEAST_NS : sleep_ns > SLEEP_MOST_NS ? SLEEP_MOST_NS : sleep_ns);
  }
  state->poller = false;
  ladei_core_poll_wake(&pipeline->core);
}

static void *thread_main(void *argument) {
  threads_state *state = argument;
  lade_pipeline *pipeline = state->pipeline;
  ladei_order order;
  uint64_t since_ns = 0; /* 0: this thread has just been useful */
  if (pipeline->topology != NULL) {
    ladei_topology_bind_thread(pipeline->topology, pipeline->numa_node);
  }
  ladei_lock_acquire(&pipeline->lock);
  while (!state->end) {
    if (ladei_core_next(&pipeline->core, LADEI_ALLOW_HOST, &order)) {
      work_pass_on(state);
      ladei_execute_locked(pipeline, &order);
      if (order.kind != LADEI_ORDER_POLL || !order.ring->poll_asleep) {
        since_ns = 0;
      }
    } else if (ladei_core_polls(&pipeline->core) && !state->poller) {
      since_ns = since_ns != 0 ? since_ns : now_ns(pipeline);
      poller_pause(state, since_ns);
    } else {
      since_ns = 0;
      work_sleep(state, UINT64_MAX);
    }
  }
  ladei_lock_release(&pipeline->lock);
  return NULL;
}

static void threads_kick(lade_pipeline *pipeline) { ladei_condition_signal(&pipeline->work); }

static lade_status threads_wait(lade_pipeline *pipeline, uint64_t deadline_ns) {
  if (deadline_ns == UINT64_MAX) {
    ladei_condition_wait(&pipeline->changed, &pipeline->lock);
    return LADE_OK;
  }
  uint64_t now = now_ns(pipeline);
  if (now >= deadline_ns) {
    return LADE_ERR_TIMEOUT;
  }
  (void)ladei_condition_wait_for(&pipeline->changed, &pipeline->lock, deadline_ns - now);
  return LADE_OK;
}

static void threads_stop(lade_pipeline *pipeline) {
  threads_state *state = pipeline->driver_state;
  ladei_lock_acquire(&pipeline->lock);
  state->end = true;
  ladei_condition_broadcast(&pipeline->work);
  ladei_lock_release(&pipeline->lock);
  for (unsigned i = 0; i < state->count; i++) {
    pthread_join(state->threads[i], NULL);
  }
  free(state);
  pipeline->driver_state = NULL;
}

static lade_status threads_start(lade_pipeline *pipeline) {
  size_t count = pipeline->options.readers;
  threads_state *state = calloc(1, sizeof *state + count * sizeof state->threads[0]);
  if (state == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu reader threads", count);
  }
  state->pipeline = pipeline;
  state->spins = sysconf(_SC_NPROCESSORS_ONLN) > 1;
  pipeline->driver_state = state;
  sigset_t all;
  sigset_t before;
  sigfillset(&all); /* signals are for the program's own threads */
  for (; state->count < count; state->count++) {
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&state->threads[state->count], NULL, thread_main, state);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
      unsigned started = state->count;
      threads_stop(pipeline);
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, code, "reader thread %u of %zu cannot be started", started + 1,
                         count);
    }
  }
  return LADE_OK;
}

const ladei_pipeline_driver ladei_driver_threads = {
    .start = threads_start,
    .stop = threads_stop,
    .kick = threads_kick,
    .advance = NULL,
    .wait = threads_wait,
};
