/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wall clock ("cpu"): a thread per engine, started when a program first makes something on the device.
 *
 *   engine thread:  take -> (unlock) move the bytes (lock) -> finish, run ready streams -> take ...
 *                   nothing to take: spin for SPIN_NS, then sleep until its condition is signalled
 *
 * I1  Bytes are moved without the lock; a stream's `completed` is stored (release) afterwards. No engine of a lost
 *     device moves any.
 * I2  An engine is signalled only while it sleeps, and only after the lock was dropped: otherwise it would wake to
 *     wait.
 * I3  A waiting thread spins as long as an engine does, then sleeps on its own condition, which the engine that reaches
 *     its number signals.
 * Locks: rt->lock.
 */
#include "runtime/soft/run/cpu.h"

#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/lock.h"

/*
 * On a virtual machine of two cores a sleeping thread wakes 27 us after it was signalled (median; one in ten after 54),
 * and the signal costs 12 us: more than a copy of 64 KiB. Spinning bridges the gaps of a pipeline that keeps its engine
 * busy. Of 5, 20, 60 and 200 us, 20 gave the most in staging_throughput at 64 KiB (5 us: less than the plain loop);
 * more takes the core from readers if threads outnumber cores.
 */
enum { SPIN_NS = 20000, SPINS_PER_LOOK = 32 };

static uint64_t now_ns(soft_runtime *rt) {
  (void)rt;
  return ladei_clock_ns(CLOCK_MONOTONIC);
}

static void spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/* ---- engine threads ---------------------------------------------------------------------------------------------- */

/* Not under the lock. Returns when the queue has work, or the time is over. */
static void engine_spin(soft_runtime *rt, const soft_engine *engine) {
  uint64_t end = now_ns(rt) + SPIN_NS;
  while (now_ns(rt) < end) {
    for (int i = 0; i < SPINS_PER_LOOK; i++) {
      if (atomic_load_explicit(&engine->queued, memory_order_relaxed) != 0) return;
      spin_pause();
    }
    sched_yield(); /* a submitting thread may need this core */
  }
}

static bool lose_is_due(soft_runtime *rt, const soft_device *device) {
  return device->lose_at_ns != UINT64_MAX && now_ns(rt) >= device->lose_at_ns;
}

/* Sleeps until signalled, or until the device is to be lost. */
static void engine_sleep(soft_runtime *rt, soft_engine *engine) {
  uint64_t until_ns = rt->devices[engine->device].lose_at_ns;
  if (until_ns == UINT64_MAX) {
    pthread_cond_wait(&engine->cond, &rt->lock);
  } else {
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(&engine->cond, &rt->lock, &until);
  }
}

/* Under the lock, which is dropped meanwhile. */
static void engine_idle(soft_runtime *rt, soft_engine *engine) {
  ladei_soft_unlock(rt);
  engine_spin(rt, engine);
  ladei_soft_lock(rt);
  while (engine->head == NULL && !rt->stopping && !lose_is_due(rt, &rt->devices[engine->device])) {
    engine->sleeping = true;
    engine_sleep(rt, engine);
    engine->sleeping = false;
  }
}

static void lose_if_due(soft_runtime *rt, soft_device *device) {
  if (!lose_is_due(rt, device)) return;
  ladei_soft_device_drop(rt, device);
  ladei_soft_run_ready(rt);
}

static void engine_work(soft_runtime *rt, soft_engine *engine) {
  soft_work *work = &engine->current->work;
  ladei_soft_work_start(rt, work);
  if (work->moves) {
    engine->moving = work->kind != SOFT_WORK_HOST; /* a host function may take any time */
    ladei_soft_unlock(rt);
    ladei_soft_work_perform(rt, work);
    ladei_soft_lock(rt);
    engine->moving = false;
    if (rt->devices[engine->device].losing) pthread_cond_broadcast(&rt->idle_cond);
  }
  ladei_soft_engine_finish(rt, engine);
  ladei_soft_run_ready(rt);
}

static void *engine_main(void *argument) {
  static const char *const names[SOFT_ENGINE_COUNT] = {"lade-h2d",  "lade-d2h",  "lade-compute",
                                                       "lade-peer", "lade-host", "lade-small"};
  soft_engine *engine = argument;
  soft_runtime *rt = engine->runtime;
  pthread_setname_np(pthread_self(), names[engine->kind]);
  ladei_soft_lock(rt);
  while (!rt->stopping || engine->head != NULL) {
    lose_if_due(rt, &rt->devices[engine->device]);
    if (ladei_soft_engine_take(rt, engine) != NULL)
      engine_work(rt, engine);
    else
      engine_idle(rt, engine);
  }
  ladei_soft_unlock(rt);
  return NULL;
}

static bool engine_start(soft_runtime *rt, soft_engine *engine) {
  engine->runtime = rt;
  if (!engine->has_thread) engine->has_thread = ladei_thread_start(&engine->thread, engine_main, engine) == 0;
  return engine->has_thread;
}

static bool device_start(soft_runtime *rt, soft_device *device) {
  bool started = true;
  for (int i = 0; i < SOFT_ENGINE_COUNT && started; i++) started = engine_start(rt, &device->engines[i]);
  return started;
}

static void engine_kick(soft_runtime *rt, soft_engine *engine) {
  if (!engine->sleeping || engine->waking) return;
  engine->waking = true;
  engine->wake_next = rt->wake_list;
  rt->wake_list = engine;
}

void ladei_soft_cpu_stop(soft_runtime *rt) {
  ladei_soft_lock(rt);
  rt->stopping = true;
  ladei_soft_unlock(rt);
  for (int32_t i = 0; i < rt->device_count * SOFT_ENGINE_COUNT; i++) {
    soft_engine *engine = &rt->devices[i / SOFT_ENGINE_COUNT].engines[i % SOFT_ENGINE_COUNT];
    if (!engine->has_thread) continue;
    ladei_soft_lock(rt);
    pthread_cond_signal(&engine->cond);
    ladei_soft_unlock(rt);
    pthread_join(engine->thread, NULL);
  }
}

/* ---- waiting threads --------------------------------------------------------------------------------------------- */

static bool reached(const soft_stream *stream, uint64_t number) {
  return atomic_load_explicit(&stream->completed, memory_order_acquire) >= number;
}

static void wait_spin(soft_runtime *rt, const soft_stream *stream, uint64_t number) {
  uint64_t end = now_ns(rt) + SPIN_NS;
  while (now_ns(rt) < end) {
    for (int i = 0; i < SPINS_PER_LOOK; i++) {
      if (reached(stream, number)) return;
      spin_pause();
    }
  }
}

static void wait_sleep(soft_runtime *rt, soft_stream *stream, uint64_t number) {
  soft_host_waiter waiter = {.number = number, .next = stream->host_waiters};
  pthread_cond_init(&waiter.cond, NULL);
  stream->host_waiters = &waiter;
  while (!reached(stream, number)) pthread_cond_wait(&waiter.cond, &rt->lock);
  soft_host_waiter **place = &stream->host_waiters;
  while (*place != &waiter) place = &(*place)->next;
  *place = waiter.next;
  pthread_cond_destroy(&waiter.cond);
}

static lade_status wait(soft_runtime *rt, soft_stream *stream, uint64_t number, const char *op) {
  (void)op; /* a wait on a held stream lasts until another thread releases it */
  if (reached(stream, number)) return LADE_OK;
  atomic_fetch_add_explicit(&rt->waiting, 1, memory_order_relaxed);
  ladei_soft_unlock(rt);
  wait_spin(rt, stream, number);
  ladei_soft_lock(rt);
  wait_sleep(rt, stream, number);
  atomic_fetch_sub_explicit(&rt->waiting, 1, memory_order_relaxed);
  return LADE_OK;
}

const soft_clock ladei_soft_cpu_clock = {now_ns, device_start, engine_kick, wait};
