/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver: reader threads. Each takes orders from the core and executes them; none is special, so a chunk's copy is
 * queued by the thread that read it, without a hand-over.
 *
 *   order there          take it; if more are there and a thread sleeps, wake one (that one wakes the next), unless
 *                        a thread is on the way already; the last one to fall asleep, so that no more threads work than
 *                        are needed. A submit with much to read wakes all that it takes
 *   requests in storage  one thread, the reaper, waits for them there, and completes their orders
 *   only copies to end   one thread, the poller, asks again and again: at once for a moment, then less and less
 *                        often; also if a block is awaited, at the cap of the pool
 *   nothing              sleep until work is signalled
 *
 * Calls of the program work beside the threads, as one more of them, in a direction that has caller-run transfers alone
 * (api/submit.c): see Note [Calls that work].
 *
 * A READ or WRITE of a file that goes through the storage's engine is over for its thread once it is submitted; it
 * comes back from the engine to the reaper. A thread can be reaper and poller at once. A READ of a remote transfer comes
 * back on the thread of the storage's client, which completes the order itself.
 *
 * Callbacks of the caller may take long, or never return. The first one starts a thread that only watches them. A call
 * that has not returned for 50 ms is stalled: the core hears of it, and when all threads are in calls, and some
 * stalled, another thread is started. So callbacks that hang hold up no other order.
 *
 * I1  At most one thread is the poller, and at most one the reaper. While there is none, and copies are under way that
 *     only POLL can end, or requests that only the reaper can fetch, at least one thread is awake, and passes the task
 *     on before it begins something that takes long. Except for copies whose end is left to calls: then one thread naps.
 * I2  A thread that goes to sleep has seen the core without an order for it, under the lock.
 * I3  Whenever the lock is free, there is an order that is not taken, and a thread waits that could take it, then one
 *     is on the way: a thread that looks at the core next, under the lock, and that waits for nothing but the lock and
 *     a processor until then. Before it starts on the order it takes, it passes further orders on to the next thread
 *     that waits (Note [On the way]). Except for orders that a call takes next: then a thread naps, and finds those within NAP_NS.
 * I4  An order whose request is in storage is kept in `pending`, under its slot's number.
 * I5  A ring keeps blocks that it has no use for only while a thread naps, or is on the way.
 * I6  `calls` are the calls under way, in the order in which they began; stalled ones are marked. While one is not
 *     stalled, the watch (if there is one) is awake, or sleeps no longer than until that call is due.
 * Locks: the pipeline's; it is given up for every order, and once per chunk.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "pipeline/drivers/drivers.h"
#include "pipeline/drivers/execute.h"
#include "pipeline/endpoints/checksum.h"
#include "pipeline/endpoints/chunk.h"
#include "pipeline/endpoints/gather.h"

/*
 * Note [Polling]
 * A copy of 64 KiB takes some microseconds, a sleep at least fifty. So the poller first asks without a pause, for about
 * the time that a sleep would cost; from then on it sleeps a quarter of the time it has waited, so that a copy is found
 * finished at most a quarter late and long copies cost few wake-ups. The longest sleep bounds the delay at the end of a
 * transfer.
 */
enum { SPIN_NS = 50000, SLEEP_LEAST_NS = 50000, SLEEP_MOST_NS = 1000000 };

/*
 * Note [On the way]
 * A thread for each of many small orders would spend more on waking and on the lock than on them. So no thread is woken
 * while one of these is on the way:
 *   - a sleeper that was signalled and has not come back (`waking`).
 *   - a thread that waits awake, or asks for the end of copies by POLL (`looking`). The device driver answers that
 *     without waiting, and the thread looks again after it.
 *   - the reaper that was woken (no longer `reaper_waits`), where no thread sleeps.
 *   - a caller between adding to the core and `kick`, and a thread that completes an order.
 * A thread that reads, writes, calls back or makes any other driver call may be kept for ever: it is not on the way,
 * whatever it has seen, and passes the other orders on before it starts. So each of N orders that hang gets one of N
 * threads (tests/pipeline/threads_test.c).
 */

/*
 * Note [Calls that work]
 * A transfer of 4 KiB by hand takes a copy call and a call that waits: 8 us on an H200. To wake a thread for it, and to be
 * woken by that, took 20 to 40 us more. So where a direction has caller-run transfers alone, the submit takes their
 * orders itself, one after the other as a thread does, and so does a wait, which then asks for the end of the copies
 * without a pause, for SPIN_NS. It takes no order that may take long or call back: that it leaves to a thread, before it
 * goes on or sleeps. Whatever goes wrong in an order is its transfer's, and not the call's.
 *
 * Before an order the call wakes no thread for those that it takes next: a thread is there after 30 to 80 us, for a part of
 * 1 MiB, which takes 75 by one thread, and two that copy keep each other waiting in the driver (1 MiB of pageable memory on an H200: 101
 * us with threads that came, of which single copy calls took 33). If the order keeps the call for longer, as a page that does not come, the
 * thread that naps takes the rest.
 *
 *   submit   READ COPY RECORD POLL |           the end of the copies is left
 *   wait                           | POLL POLL POLL FINISH |
 *   a thread    nap ----------------------> looks ----------------------> looks ...
 *
 * Where no call waits, or one sleeps, threads find the end of copies as ever. If all that is left are the ends of caller-run
 * transfers, and no call sleeps for one, a thread naps: it looks once in NAP_NS, so that transfers end that no call asks
 * for. It takes NAPS_MOST more after the last call, so that a call need not wake it. Until then the direction keeps its
 * blocks for what comes next, except those that others wait for: to ask for a block, which may wait, is a thread's, and a
 * block that is given back while a copy uses it takes an event of its own.
 */
enum { CALLER_ORDERS_MOST = 64, NAP_NS = 1000000, NAPS_MOST = 8 };

/*
 * Note [Readers woken together]
 * A woken thread takes 30 to 80 us until it runs, on a virtual machine whose processors rest. If each wakes the next,
 * 12 readers are all at work after 0.8 ms (benchmarks/results/h200/timeline_512M.json.gz); 512 MiB take 10. So a submit
 * wakes one reader for each MiB that can be read at once: less is not worth a wake-up. They are signalled after the
 * lock is released; otherwise they would wait for it, and be woken again one after the other. A sleeper that was
 * signalled is no longer in the list; its place is there until the driver stops, so that the signal may come late.
 */
enum { WAKE_BYTES = 1 << 20, WAKE_MOST = 32 };

/* Threads beside the readers, at most, and how long a callback takes until it counts as stalled. */
enum { SPARES_MOST = 64, STALL_NS = 50000000 };

/* Completions fetched at once, at most. */
enum { REAP_ROOM = 16 };

/* An order whose request is in storage. */
typedef struct threads_pending {
  struct threads_state *state;
  ladei_pipe_storage_request request;
  ladei_pipe_order order;
  uint64_t begun_ns; /* for a timeline */
} threads_pending;

/* A call of the caller's; lies on its thread's stack. */
typedef struct threads_call {
  TAILQ_ENTRY(threads_call) link;
  uint64_t begun_ns;
  ladei_pipe_slot *slot; /* NULL: on_complete */
  bool stalled;
} threads_call;

/* Where a thread sleeps. */
typedef struct threads_bed {
  TAILQ_ENTRY(threads_bed) link; /* while it sleeps and is not signalled */
  ladei_condition woken;
  bool signalled; /* since it went to sleep; guarded by the lock */
} threads_bed;

typedef struct threads_state {
  lade_pipeline *pipeline;
  bool spins;  /* more than one processor: waiting awake does not keep the awaited from running */
  bool yields; /* between two looks: the copy engines are threads of this machine */
  TAILQ_HEAD(threads_bed_list, threads_bed)
  sleeping;          /* the last one to fall asleep is first; guarded by the lock, as is all
                                                        below */
  unsigned waking;   /* threads that have been signalled and have not come back */
  unsigned looking;  /* threads that wait awake or ask for the end of copies */
  bool poller;       /* there is one */
  bool reaper;       /* there is one, */
  bool reaper_waits; /* and it is not woken yet */
  bool napping;      /* a thread naps */
  bool worked;       /* calls have, since it fell asleep */
  unsigned naps;     /* still to take where there is nothing to look for */
  unsigned waiting;  /* calls that sleep until a transfer advances */
  bool end;
  threads_pending *pending; /* two rings of them; each belongs to its order */
  TAILQ_HEAD(threads_call_list, threads_call) calls;
  unsigned calling; /* of them */
  unsigned stalled; /* ... those that are */
  bool watched;     /* there is a thread that watches calls, ... */
  bool watch_rests; /* ... and sleeps until one begins */
  ladei_condition watch_work;
  pthread_t watch;
  threads_bed *beds; /* of each thread that there is room for */
  unsigned beds_taken;
  unsigned most; /* threads that there is room for */
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

static void work_sleep(threads_state *state, threads_bed *bed, uint64_t longest_ns) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  bed->signalled = false;
  if (longest_ns == UINT64_MAX) {
    TAILQ_INSERT_HEAD(&state->sleeping, bed, link);
    ladei_condition_wait(&bed->woken, &pipeline->lock);
  } else {
    TAILQ_INSERT_TAIL(&state->sleeping, bed,
                      link); /* the poller wakes by itself; another would have to take its place */
    (void)ladei_condition_wait_for(&bed->woken, &pipeline->lock, longest_ns);
  }
  if (bed->signalled)
    state->waking--;
  else
    TAILQ_REMOVE(&state->sleeping, bed, link);
}

/* Takes the sleeper that went to sleep last; its signal is due. NULL: no thread sleeps. */
static threads_bed *sleeper_take(threads_state *state) {
  ladei_lock_assert_held(&state->pipeline->lock);
  threads_bed *bed = TAILQ_FIRST(&state->sleeping);
  if (bed == NULL) return NULL;
  TAILQ_REMOVE(&state->sleeping, bed, link);
  bed->signalled = true;
  state->waking++;
  return bed;
}

static bool reap_wanted(const threads_state *state) {
  ladei_lock_assert_held(&state->pipeline->lock);
  return !state->reaper && ladei_pipe_storage_in_flight(&state->pipeline->storage) > 0;
}

/* Only the ends of caller-run transfers are left to find, and no call sleeps for them. */
static bool is_left_to_calls(const threads_state *state) {
  ladei_lock_assert_held(&state->pipeline->lock);
  bool left = state->waiting == 0;
  for (unsigned i = 0; i < 2; i++) {
    const ladei_pipe_ring *ring = &state->pipeline->core.rings[i];
    left = left && state->pipeline->sides[i].others == 0 && ring->schedule.unissued == 0 &&
           TAILQ_EMPTY(&ring->lists.ready);
  }
  return left;
}

static bool poll_wanted(const threads_state *state) {
  return !state->poller && ladei_pipe_core_polls(&state->pipeline->core) && !is_left_to_calls(state);
}

static bool nap_wanted(const threads_state *state) {
  ladei_lock_assert_held(&state->pipeline->lock);
  return !state->napping && (state->naps > 0 || (!state->poller && ladei_pipe_core_polls(&state->pipeline->core)));
}

/* Makes a thread look for orders: one on the way, a sleeper, or otherwise the reaper. Called with the lock. */
static void looker_wake(threads_state *state) {
  ladei_lock_assert_held(&state->pipeline->lock);
  if (state->waking > 0 || state->looking > 0) return;
  threads_bed *bed = sleeper_take(state);
  if (bed != NULL) {
    ladei_condition_signal(&bed->woken);
  } else if (state->reaper_waits) {
    state->reaper_waits = false;
    ladei_pipe_storage_wake(&state->pipeline->storage);
  }
}

/* This thread is busy from here on: wakes another one if there is more to take, poll or reap, or none naps. A call's ring keeps the
 * orders that the call takes next: Note [Calls that work]. */
static void work_pass_on_beside(threads_state *state, const ladei_pipe_ring *ring,
                                bool (*accepts)(const ladei_pipe_order *order)) {
  ladei_lock_assert_held(&state->pipeline->lock);
  ladei_pipe_core_set_taker(&state->pipeline->core, 0, false); /* the rest is for others */
  if (TAILQ_EMPTY(&state->sleeping) && !state->reaper_waits) return;
  if (ladei_pipe_core_has_order(&state->pipeline->core, ring, accepts) || poll_wanted(state) || reap_wanted(state) ||
      nap_wanted(state))
    looker_wake(state);
}

static void work_pass_on(threads_state *state) { work_pass_on_beside(state, NULL, NULL); }

/* --- requests in storage ------------------------------------------------------------------------------------------ */

/* A request is over, and the record describes a failure: completes its order. */
static void request_end_locked(const threads_pending *pending, lade_status status) {
  lade_pipeline *pipeline = pending->state->pipeline;
  ladei_lock_assert_held(&pipeline->lock);
  ladei_pipe_order order = pending->order; /* its slot may be used again from the completion on */
  order.by_engine = true;
  if (status != LADE_OK) ladei_pipe_order_explain(&order, status);
  if (pipeline->timeline != NULL) {
    ladei_pipe_timeline_add_order(pipeline->timeline, &order, status, pending->begun_ns,
                                  ladei_pipe_timeline_now(pipeline));
  }
  ladei_pipe_complete_locked(pipeline, &order, status, lade_last_error());
}

/* The bytes of a remote transfer's chunk are there, or its requests have failed. Sums them where that is due. When the
 * lock is released the pipeline may stop. */
static void chunk_gathered(void *user, lade_status status) {
  const threads_pending *pending = user;
  threads_state *state = pending->state;
  lade_pipeline *pipeline = state->pipeline;
  if (status == LADE_OK) status = ladei_pipe_checksum_chunk(&pending->order);
  ladei_lock_acquire(&pipeline->lock);
  request_end_locked(pending, status);
  work_pass_on(state);
  ladei_lock_release(&pipeline->lock);
}

/* Begins the requests of a remote transfer's chunk. Called with the lock, which is released meanwhile. */
static void chunk_gather_locked(threads_state *state, const ladei_pipe_order *order) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  bool begun;
  ladei_lock_release(&pipeline->lock);
  threads_pending *pending = &state->pending[ladei_pipe_block_number(order->slot)];
  *pending = (threads_pending){.state = state, .order = *order, .begun_ns = ladei_pipe_timeline_now(pipeline)};
  lade_status status = ladei_pipe_gather_begin(order, chunk_gathered, pending, &begun);
  if (!begun) chunk_gathered(pending, status);
  ladei_lock_acquire(&pipeline->lock);
}

/* Hands a request to storage, the order's. Called with the lock, which is released meanwhile. */
static void request_submit_locked(threads_state *state, const ladei_pipe_order *order,
                                  const ladei_pipe_storage_request *request) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  ladei_lock_release(&pipeline->lock);
  threads_pending *pending = &state->pending[ladei_pipe_block_number(order->slot)];
  *pending = (threads_pending){state, *request, *order, ladei_pipe_timeline_now(pipeline)};
  pending->request.user = pending;
  ladei_pipe_storage_submit(&pending->request);
  ladei_lock_acquire(&pipeline->lock);
}

/* The reaper's task: waits in storage, completes finished requests. The caller's lock is released meanwhile. */
static unsigned requests_reap(threads_state *state, uint64_t wait_ns) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  ladei_pipe_storage_request *done[REAP_ROOM];
  state->reaper = true;
  state->reaper_waits = wait_ns > 0;
  ladei_lock_release(&pipeline->lock);
  unsigned count = ladei_pipe_storage_reap(&pipeline->storage, wait_ns, done, REAP_ROOM);
  ladei_lock_acquire(&pipeline->lock);
  state->reaper = false;
  state->reaper_waits = false;
  for (unsigned i = 0; i < count; i++) {
    if (done[i]->status != LADE_OK) ladei_error_restore(&done[i]->error);
    request_end_locked(done[i]->user, done[i]->status);
  }
  return count;
}

/* --- waiting for work --------------------------------------------------------------------------------------------- */

static void looker_spin(threads_state *state, unsigned pauses) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  state->looking++;
  ladei_lock_release(&pipeline->lock);
  if (state->yields) (void)sched_yield();
  for (unsigned i = 0; i < pauses && !state->yields; i++) cpu_relax();
  ladei_lock_acquire(&pipeline->lock);
  state->looking--;
}

static void idle_note(threads_state *state, uint64_t begin_ns) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  if (pipeline->timeline != NULL)
    ladei_pipe_timeline_add(pipeline->timeline, LADE_TIMELINE_IDLE, begin_ns, ladei_pipe_timeline_now(pipeline));
}

/* As poller, reaper or both: lets time pass, then makes POLL worth while again. `since_ns`: when this thread last did
 * something useful. Whether it has just done so. */
static bool idle_wait(threads_state *state, threads_bed *bed, uint64_t since_ns, bool polls) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  bool reaps = reap_wanted(state);
  uint64_t waited_ns = polls ? now_ns(pipeline) - since_ns : 0;
  uint64_t sleep_ns = UINT64_MAX;
  unsigned reaped = 0;
  bool spins = polls && state->spins && waited_ns < SPIN_NS;
  if (polls) {
    sleep_ns = waited_ns / 4;
    sleep_ns = sleep_ns < SLEEP_LEAST_NS ? SLEEP_LEAST_NS : sleep_ns > SLEEP_MOST_NS ? SLEEP_MOST_NS : sleep_ns;
    if (ladei_pipe_core_turn_awaited(&pipeline->core)) sleep_ns = SLEEP_LEAST_NS; /* Note [Turns] in core_pick.c */
    state->poller = true;
  }
  if (reaps) reaped = requests_reap(state, spins ? 0 : sleep_ns);
  if (spins)
    looker_spin(state, 20);
  else if (!reaps)
    work_sleep(state, bed, sleep_ns);
  if (polls) {
    state->poller = false;
    ladei_pipe_core_poll_wake(&pipeline->core);
  }
  return reaped > 0;
}

static void blocks_keep(threads_state *state, ladei_pipe_ring *ring, bool keeps) {
  ladei_lock_assert_held(&state->pipeline->lock);
  ladei_pipe_core_set_keeps(ring, keeps && !state->pipeline->stopping);
}

static void blocks_let_go(threads_state *state) {
  for (unsigned i = 0; i < 2; i++) blocks_keep(state, &state->pipeline->core.rings[i], false);
}

/* Note [Calls that work]: the thread looks for all orders after it. */
static void nap(threads_state *state, threads_bed *bed) {
  ladei_lock_assert_held(&state->pipeline->lock);
  ladei_pipe_core *core = &state->pipeline->core;
  state->napping = true;
  state->worked = false;
  work_sleep(state, bed, NAP_NS);
  state->napping = false;
  ladei_pipe_core_poll_wake(core);
  if (!state->worked && !ladei_pipe_core_polls(core) && state->naps > 0 && --state->naps == 0) blocks_let_go(state);
}

/* --- the threads -------------------------------------------------------------------------------------------------- */

/* Whether the order calls back. */
static bool order_calls(const ladei_pipe_order *order) {
  if (order->kind == LADEI_PIPE_ORDER_FINISH) return ladei_pipe_ticket_of(order->transfer)->on_complete != NULL;
  return ladei_pipe_order_is_host(order) && ladei_pipe_ticket_of(order->transfer)->pieces.calls;
}

static void *thread_main(void *argument);

/* Before there are other threads; later called by the watch alone, which holds the lock. */
static int thread_start(threads_state *state) {
  int code = ladei_thread_start(&state->threads[state->count], thread_main, state);
  state->count += code == 0 ? 1 : 0;
  return code;
}

/* --- watching calls ----------------------------------------------------------------------------------------------- */

static void call_stall(threads_state *state, threads_call *call) {
  ladei_lock_assert_held(&state->pipeline->lock);
  call->stalled = true;
  state->stalled++;
  state->pipeline->callbacks_stalled = state->stalled;
  state->pipeline->callbacks_stalled_sum++;
  if (call->slot != NULL) ladei_pipe_core_stall(call->slot);
}

static bool needs_spare(const threads_state *state) {
  return state->stalled > 0 && state->calling == state->count && state->count < state->most;
}

/* Marks calls that are overdue, and starts a thread where all others are in calls. How long nothing more of that
 * kind can happen; UINT64_MAX: until a call begins. */
static uint64_t calls_look(threads_state *state) {
  ladei_lock_assert_held(&state->pipeline->lock);
  uint64_t now = now_ns(state->pipeline);
  uint64_t wait_ns = UINT64_MAX;
  threads_call *call;
  bool marked = false;
  TAILQ_FOREACH (call, &state->calls, link) {
    if (!call->stalled && now - call->begun_ns < STALL_NS) {
      wait_ns = call->begun_ns + STALL_NS - now;
      break;
    }
    if (!call->stalled) {
      call_stall(state, call);
      marked = true;
    }
  }
  if (needs_spare(state) && thread_start(state) != 0) wait_ns = STALL_NS; /* none to be had: tried again */
  if (marked) looker_wake(state);
  return wait_ns;
}

static void *watch_main(void *argument) {
  threads_state *state = argument;
  lade_pipeline *pipeline = state->pipeline;
  ladei_lock_acquire(&pipeline->lock);
  while (!state->end) {
    uint64_t wait_ns = calls_look(state);
    state->watch_rests = wait_ns == UINT64_MAX;
    if (state->watch_rests)
      ladei_condition_wait(&state->watch_work, &pipeline->lock);
    else
      (void)ladei_condition_wait_for(&state->watch_work, &pipeline->lock, wait_ns);
    state->watch_rests = false;
  }
  ladei_lock_release(&pipeline->lock);
  return NULL;
}

/* Both with the lock. */
static void call_begin(threads_state *state, const ladei_pipe_order *order, threads_call *call) {
  ladei_lock_assert_held(&state->pipeline->lock);
  call->begun_ns = now_ns(state->pipeline);
  call->slot = ladei_pipe_order_is_host(order) ? order->slot : NULL;
  call->stalled = false;
  TAILQ_INSERT_TAIL(&state->calls, call, link);
  state->calling++;
  if (!state->watched) {
    state->watched = ladei_thread_start(&state->watch, watch_main, state) == 0; /* otherwise with the next call */
  } else if (state->watch_rests) {
    state->watch_rests = false;
    ladei_condition_signal(&state->watch_work);
  }
}

static void call_end(threads_state *state, threads_call *call) {
  ladei_lock_assert_held(&state->pipeline->lock);
  TAILQ_REMOVE(&state->calls, call, link);
  state->calling--;
  state->stalled -= call->stalled ? 1 : 0;
  state->pipeline->callbacks_stalled = state->stalled;
}

/* --- the orders --------------------------------------------------------------------------------------------------- */

/* An order that waits for nothing, as a question for the end of copies: this thread stays on the way, and keeps its tasks. */
static void order_run_looking(threads_state *state, ladei_pipe_order *order) {
  state->looking++;
  ladei_pipe_execute_locked(state->pipeline, order);
  state->looking--;
}

/* Whether the thread has read by itself. */
static bool order_run(threads_state *state, ladei_pipe_order *order) {
  ladei_lock_assert_held(&state->pipeline->lock);
  ladei_pipe_storage_request request;
  if (order->kind == LADEI_PIPE_ORDER_POLL) {
    order_run_looking(state, order);
    return false;
  }
  work_pass_on(state);
  if (ladei_pipe_chunk_request(order, &request)) {
    request_submit_locked(state, order, &request);
    return false;
  }
  if (order->kind == LADEI_PIPE_ORDER_READ && order->transfer->remote && !order_calls(order)) {
    chunk_gather_locked(state, order);
    return false;
  }
  if (!order_calls(order)) {
    ladei_pipe_execute_locked(state->pipeline, order);
    return order->kind == LADEI_PIPE_ORDER_READ;
  }
  threads_call call;
  call_begin(state, order, &call);
  ladei_pipe_execute_locked(state->pipeline, order);
  call_end(state, &call);
  return false;
}

/* Keeps a place of the window for this thread, or lets it go. Note [Readers that stay] in core_pick.c */
static void stay(threads_state *state, bool *stays, bool now) {
  if (*stays != now) ladei_pipe_core_stay(&state->pipeline->core, now);
  *stays = now;
}

static void *thread_main(void *argument) {
  threads_state *state = argument;
  lade_pipeline *pipeline = state->pipeline;
  ladei_pipe_order order;
  uint64_t since_ns = 0; /* 0: this thread has just been useful */
  if (pipeline->topology != NULL) ladei_topology_bind_thread(pipeline->topology, pipeline->numa_node);
  ladei_lock_acquire(&pipeline->lock);
  threads_bed *bed = &state->beds[state->beds_taken++];
  unsigned number = state->beds_taken;
  bool stays = false;
  while (!state->end) {
    ladei_pipe_core_set_taker(&pipeline->core, number, stays);
    if (ladei_pipe_order_take_locked(pipeline, &order)) {
      if (!ladei_pipe_order_is_short(&order)) stay(state, &stays, false);
      if (order_run(state, &order)) stay(state, &stays, pipeline->core.rings[0].blocks.last_first);
      bool in_vain = order.kind == LADEI_PIPE_ORDER_POLL         ? order.batch->copy_stream->poll_asleep
                     : order.kind == LADEI_PIPE_ORDER_ACQUIRE    ? order.ring->blocks.asleep
                     : order.kind == LADEI_PIPE_ORDER_DEPENDENCY ? order.transfer->asks
                                                                 : false;
      since_ns = in_vain ? since_ns : 0;
      continue;
    }
    stay(state, &stays, false);
    bool polls = poll_wanted(state);
    uint64_t idle_ns = ladei_pipe_timeline_now(pipeline);
    if (polls || reap_wanted(state)) {
      since_ns = since_ns != 0 ? since_ns : now_ns(pipeline);
      since_ns = idle_wait(state, bed, since_ns, polls) ? 0 : since_ns;
    } else {
      since_ns = 0;
      if (nap_wanted(state))
        nap(state, bed);
      else
        work_sleep(state, bed, UINT64_MAX);
    }
    idle_note(state, idle_ns);
  }
  ladei_lock_release(&pipeline->lock);
  return NULL;
}

/* --- calls that work ---------------------------------------------------------------------------------------------- */

/* An order that a call may take: it calls nothing back, and takes no longer than the driver calls of one copy. */
static bool caller_accepts(const ladei_pipe_order *order) {
  switch (order->kind) {
  case LADEI_PIPE_ORDER_READ:
  case LADEI_PIPE_ORDER_WRITE:
  case LADEI_PIPE_ORDER_FINISH: return ladei_pipe_ticket_of(order->transfer)->caller_run;
  case LADEI_PIPE_ORDER_COPY:
    return ladei_pipe_ticket_of(order->transfer)->caller_run && ladei_pipe_order_is_short(order);
  default: return ladei_pipe_order_is_short(order);
  }
}

static void caller_order_run(threads_state *state, ladei_pipe_order *order) {
  ladei_lock_assert_held(&state->pipeline->lock);
  if (order->kind == LADEI_PIPE_ORDER_POLL || order->kind == LADEI_PIPE_ORDER_FINISH) {
    order_run_looking(state, order);
    return;
  }
  work_pass_on_beside(state, order->ring, caller_accepts);
  ladei_pipe_execute_locked(state->pipeline, order);
}

/* Takes the ring's orders for this call, if it has caller-run transfers alone. Whether that did anything useful. */
static bool caller_work(threads_state *state, ladei_pipe_ring *ring) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  ladei_pipe_order order;
  lade_error before;
  bool useful = false;
  if (ladei_pipe_side_of(pipeline, ring)->others > 0) return false;
  ladei_error_save(&before);
  state->naps = NAPS_MOST; /* before it leaves orders to the thread that naps */
  for (unsigned i = 0; i < CALLER_ORDERS_MOST && ladei_pipe_side_of(pipeline, ring)->others == 0; i++) {
    ladei_pipe_yield_look_locked(pipeline);
    ladei_pipe_core_set_taker(&pipeline->core, 0, false);
    blocks_keep(state, ring, true);
    if (!ladei_pipe_core_next_of(&pipeline->core, ring, caller_accepts, &order)) break;
    caller_order_run(state, &order);
    useful = useful || order.kind != LADEI_PIPE_ORDER_POLL || !order.batch->copy_stream->poll_asleep;
  }
  ladei_error_restore(&before);
  state->worked = state->worked || useful;
  work_pass_on(state);
  return useful;
}

/* The same, and asks for the end of copies anew. */
static bool caller_ask(threads_state *state, ladei_pipe_ring *ring) {
  if (ladei_pipe_side_of(state->pipeline, ring)->others == 0) ladei_pipe_core_ask_again(ring);
  return caller_work(state, ring);
}

static void threads_advance(lade_pipeline *pipeline, ladei_pipe_ring *ring) {
  ladei_lock_acquire(&pipeline->lock);
  (void)caller_ask(pipeline->driver_state, ring);
  ladei_lock_release(&pipeline->lock);
}

/* Readers that can begin at once: Note [Readers woken together]. Requests of storage's engine, and for URLs, take no
 * thread each. */
static uint64_t readers_wanted(const ladei_pipe_core *core) {
  ladei_pipe_core_transfer *transfer = core->rings[0].schedule.issuing;
  const ladei_pipe_storage_file *file = transfer != NULL ? ladei_pipe_ticket_of(transfer)->files : NULL;
  return file != NULL && (file->async || file->object != NULL) ? 0 : ladei_pipe_core_reads_possible(core, WAKE_BYTES);
}

static void threads_kick(lade_pipeline *pipeline, ladei_pipe_ring *ring) {
  threads_state *state = pipeline->driver_state;
  threads_bed *woken[WAKE_MOST];
  unsigned count = 0;
  ladei_lock_acquire(&pipeline->lock);
  if (ring != NULL && ladei_pipe_side_of(pipeline, ring)->others == 0) {
    (void)caller_work(state, ring);
    ladei_lock_release(&pipeline->lock);
    return;
  }
  looker_wake(state);
  uint64_t wanted = readers_wanted(&pipeline->core);
  while (state->waking + state->looking < wanted && count < WAKE_MOST && (woken[count] = sleeper_take(state)) != NULL)
    count++;
  ladei_lock_release(&pipeline->lock);
  for (unsigned i = 0; i < count; i++) ladei_condition_signal(&woken[i]->woken);
}

/* Until a transfer advances. Threads find the end of copies meanwhile. */
static void caller_sleep(threads_state *state, uint64_t longest_ns) {
  ladei_lock_assert_held(&state->pipeline->lock);
  lade_pipeline *pipeline = state->pipeline;
  state->waiting++;
  if (pipeline->stopping) blocks_let_go(state);
  work_pass_on(state);
  if (longest_ns == UINT64_MAX)
    ladei_condition_wait(&pipeline->changed, &pipeline->lock);
  else
    (void)ladei_condition_wait_for(&pipeline->changed, &pipeline->lock, longest_ns);
  state->waiting--;
}

/* Whether the call asks again without a pause. */
static bool caller_spins(const threads_state *state, ladei_pipe_waiting *waiting) {
  uint64_t now = now_ns(state->pipeline);
  if (!state->spins || waiting->ring == NULL || ladei_pipe_side_of(state->pipeline, waiting->ring)->others > 0)
    return false;
  waiting->since_ns = waiting->since_ns != 0 ? waiting->since_ns : now;
  return now - waiting->since_ns < SPIN_NS;
}

static lade_status threads_wait(lade_pipeline *pipeline, ladei_pipe_waiting *waiting) {
  ladei_lock_assert_held(&pipeline->lock);
  threads_state *state = pipeline->driver_state;
  if (waiting->ring != NULL && caller_ask(state, waiting->ring)) {
    waiting->since_ns = 0;
    return LADE_OK;
  }
  uint64_t now = waiting->deadline_ns == UINT64_MAX ? 0 : now_ns(pipeline);
  if (now >= waiting->deadline_ns) return LADE_ERR_TIMEOUT;
  if (caller_spins(state, waiting)) {
    looker_spin(state, 1);
    work_pass_on(state);
  } else {
    caller_sleep(state, waiting->deadline_ns == UINT64_MAX ? UINT64_MAX : waiting->deadline_ns - now);
  }
  return LADE_OK;
}

static void threads_stop(lade_pipeline *pipeline) {
  ladei_lock_assert_none_held();
  threads_state *state = pipeline->driver_state;
  ladei_lock_acquire(&pipeline->lock);
  state->end = true;
  for (threads_bed *bed; (bed = sleeper_take(state)) != NULL;) ladei_condition_signal(&bed->woken);
  ladei_condition_broadcast(&state->watch_work);
  ladei_lock_release(&pipeline->lock);
  ladei_pipe_storage_wake(&pipeline->storage);
  for (unsigned i = 0; i < state->count; i++) pthread_join(state->threads[i], NULL);
  if (state->watched) pthread_join(state->watch, NULL);
  ladei_condition_destroy(&state->watch_work);
  for (unsigned i = 0; i < state->most; i++) ladei_condition_destroy(&state->beds[i].woken);
  free(state->beds);
  free(state->pending);
  free(state);
  pipeline->driver_state = NULL;
}

static lade_status threads_start(lade_pipeline *pipeline) {
  size_t count = pipeline->threads;
  threads_state *state = calloc(1, sizeof *state + (count + SPARES_MOST) * sizeof state->threads[0]);
  if (state != NULL) {
    state->pending = calloc((size_t)2 * pipeline->options.depth, sizeof *state->pending);
    state->beds = calloc(count + SPARES_MOST, sizeof *state->beds);
  }
  if (state == NULL || state->pending == NULL || state->beds == NULL) {
    if (state != NULL) {
      free(state->pending);
      free(state->beds);
    }
    free(state);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu reader threads", count);
  }
  state->pipeline = pipeline;
  state->most = (unsigned)count + SPARES_MOST;
  TAILQ_INIT(&state->calls);
  TAILQ_INIT(&state->sleeping);
  ladei_condition_init(&state->watch_work);
  for (unsigned i = 0; i < state->most; i++) ladei_condition_init(&state->beds[i].woken);
  for (unsigned i = 0; i < 2; i++)
    ladei_pipe_core_set_calls(&pipeline->core.rings[i], (state->most - 1) / 2); /* one is left for all other orders */
  state->spins = sysconf(_SC_NPROCESSORS_ONLN) > 1;
  state->yields = pipeline->runtime->software_device != NULL;
  pipeline->driver_state = state;
  while (state->count < count) {
    int code = thread_start(state);
    if (code != 0) {
      unsigned started = state->count;
      threads_stop(pipeline);
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, code, "reader thread %u of %zu cannot be started", started + 1,
                         count);
    }
  }
  return LADE_OK;
}

/* Requests in storage need no thread of their own; those of pread do, and stay as few as there are threads. */
const ladei_pipe_driver ladei_pipe_driver_threads = {
    .queue = 4,
    .threads = true,
    .start = threads_start,
    .stop = threads_stop,
    .kick = threads_kick,
    .advance = threads_advance,
    .wait = threads_wait,
};
