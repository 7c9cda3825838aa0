/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual clock ("sim"): a heap of future moments.
 *
 *   moment = (time, order): the end of an engine's current work | a timer | the loss of a device
 *
 * I1  Time moves only in step and run_until, never back. Moments of one time happen in the order of adding.
 * I2  Work takes effect as a whole at its end: it reads its source and writes its destination then, not when it starts.
 *     So a change of the source before the copy has ended shows in the bytes.
 * I3  An engine starts work the moment it has some and is free: its k-th piece of work ends at max(end of the previous
 *     one, ready) + its duration, exactly.
 * I4  Nothing happens inside an op that does not wait, except that its cost moves the clock.
 * Locks: none; one thread at a time owns the runtime.
 */
#include "runtime/soft/run/sim.h"

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/run.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/lock.h"

/* ---- heap -------------------------------------------------------------------------------------------------------- */

static bool moment_before(const soft_moment *a, const soft_moment *b) {
  return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_push(soft_runtime *rt, soft_moment moment) {
  size_t place = rt->moment_count++;
  while (place != 0 && moment_before(&moment, &rt->moments[(place - 1) / 2])) {
    rt->moments[place] = rt->moments[(place - 1) / 2];
    place = (place - 1) / 2;
  }
  rt->moments[place] = moment;
  assert(rt->moment_count <= rt->moment_capacity);
}

static soft_moment heap_pop(soft_runtime *rt) {
  soft_moment first = rt->moments[0], last = rt->moments[--rt->moment_count];
  size_t place = 0;
  for (;;) {
    size_t child = place * 2 + 1;
    if (child >= rt->moment_count) break;
    if (child + 1 < rt->moment_count && moment_before(&rt->moments[child + 1], &rt->moments[child])) child++;
    if (!moment_before(&rt->moments[child], &last)) break;
    rt->moments[place] = rt->moments[child];
    place = child;
  }
  rt->moments[place] = last;
  return first;
}

/* Keeps room for one moment per engine beyond the requested ones, so that starting work needs no memory. */
static bool heap_reserve(soft_runtime *rt) {
  size_t engines = (size_t)rt->device_count * SOFT_ENGINE_COUNT;
  return LADEI_ARRAY_ROOM(rt->moments, rt->moment_capacity, rt->moment_count + engines + 1);
}

bool ladei_soft_sim_open(soft_runtime *rt) { return heap_reserve(rt); }

bool ladei_soft_sim_add(soft_runtime *rt, const soft_moment *moment) {
  if (!heap_reserve(rt)) return false;
  soft_moment added = *moment;
  added.order = rt->next_moment++;
  heap_push(rt, added);
  return true;
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

static void engine_kick(soft_runtime *rt, soft_engine *engine) {
  if (engine->current != NULL) return;
  soft_node *node = ladei_soft_engine_take(rt, engine);
  if (node == NULL) return;
  uint64_t end_ns = rt->now_ns + ladei_soft_work_duration_ns(rt, &node->work);
  heap_push(rt, (soft_moment){.at_ns = end_ns, .order = rt->next_moment++, .engine = engine});
}

static void engine_end(soft_runtime *rt, soft_engine *engine) {
  soft_work *work = &engine->current->work;
  ladei_soft_work_start(rt, work);
  rt->dispatching++;
  ladei_soft_work_perform(rt, work);
  rt->dispatching--;
  ladei_soft_engine_finish(rt, engine);
  if (rt->devices[engine->device].description.engine_stays) ladei_soft_run_ready(rt); /* the stream's next copy */
  engine_kick(rt, engine);
  ladei_soft_run_ready(rt);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

bool ladei_soft_sim_step(soft_runtime *rt) {
  if (rt->moment_count == 0) return false;
  soft_moment moment = heap_pop(rt);
  assert(rt->moment_count == 0 || !moment_before(&rt->moments[0], &moment)); /* I1 */
  if (moment.at_ns > rt->now_ns) rt->now_ns = moment.at_ns;
  if (moment.engine != NULL) {
    engine_end(rt, moment.engine);
  } else if (moment.lost != NULL) {
    ladei_soft_device_drop(rt, moment.lost);
    ladei_soft_run_ready(rt);
  } else if (!rt->stopping) {
    rt->dispatching++;
    moment.function(moment.user);
    rt->dispatching--;
  }
  ladei_soft_unlock(rt); /* unmaps ranges that only this work still named */
  return true;
}

void ladei_soft_sim_run_until(soft_runtime *rt, uint64_t until_ns) {
  while (rt->moment_count != 0 && rt->moments[0].at_ns <= until_ns) ladei_soft_sim_step(rt);
  if (until_ns > rt->now_ns) rt->now_ns = until_ns;
}

static uint64_t now_ns(soft_runtime *rt) { return rt->now_ns; }

static lade_status wait(soft_runtime *rt, soft_stream *stream, uint64_t number, const char *op) {
  while (atomic_load_explicit(&stream->completed, memory_order_relaxed) < number) {
    if (!ladei_soft_sim_step(rt)) {
      return ladei_error(LADE_ERR_TIMEOUT, LADEI_SOFT_NATIVE_NOT_READY,
                         "%s: stream %p (id %llu) never reaches %llu, stays at %llu%s", op, (void *)stream->handle,
                         (unsigned long long)stream->id, (unsigned long long)number,
                         (unsigned long long)atomic_load(&stream->completed), stream->held ? ": it is held" : "");
    }
  }
  return LADE_OK;
}

static bool device_start(soft_runtime *rt, soft_device *device) {
  (void)rt;
  (void)device; /* engines are records here */
  return true;
}

const soft_clock ladei_soft_sim_clock = {now_ns, device_start, engine_kick, wait};
