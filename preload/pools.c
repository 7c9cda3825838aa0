/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, using and ending the pools of devices.
 *
 * I1  Every call of lade runs between ladei_preload_begin() and ladei_preload_end(), so that its look-ups find the
 *     driver itself.
 * Locks: sums_lock guards the sums of pools that have ended.
 */
#include "preload/pools.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pause.h"
#include "preload/settings.h"
#include "preload/streams.h"

static preload_device devices[PRELOAD_DEVICES_MAX];
static atomic_int devices_opened; /* highest ordinal that was ever opened, plus 1 */
static atomic_bool forked;

static pthread_mutex_t sums_lock = PTHREAD_MUTEX_INITIALIZER;
static preload_sums ended; /* of pools that have ended */

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

bool ladei_preload_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

static void child_begins(void) { atomic_store(&forked, true); }
static void fork_watch(void) { pthread_atfork(NULL, NULL, child_begins); }

void ladei_preload_watch_fork(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fork_watch);
}

/* Every hook calls one of these two functions first. */
bool ladei_preload_passes(void) {
  if (ladei_preload_inside() || ladei_preload_forked() || ladei_preload_settings()->mode == PRELOAD_OFF) return true;
  ladei_preload_real_find_all(); /* D5 */
  return false;
}

bool ladei_preload_heaps_pass(void) {
  if (ladei_preload_settings()->device == PRELOAD_DEVICE_OFF || ladei_preload_inside() || ladei_preload_forked())
    return true;
  ladei_preload_real_find_all(); /* D5 */
  return false;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* LADE_BUDGET, and the launchers' variables on ranks. Keys of LADE_ALLOC_CONF and of PyTorch's variables are for pools
 * that a program makes. */
static lade_status budget_read(const preload_lade *lade, lade_config *out, lade_pinned_options *options) {
  lade_pinned_options all;
  lade_pinned_options_init(&all);
  lade_config_init(out);
  out->pinned = &all;
  lade_status status = lade->lade_config_from_env(out);
  if (status != LADE_OK) return status;
  options->budget = all.budget;
  options->budget_share = all.budget_share;
  options->budget_name = all.budget_name;
  options->budget_bytes = all.budget_bytes;
  options->budget_part_bytes = all.budget_part_bytes;
  options->local_ranks = all.local_ranks;
  return LADE_OK;
}

static lade_status pool_open(preload_device *device, int ordinal) {
  const preload_settings *settings = ladei_preload_settings();
  lade_config config; /* has the budget's name */
  lade_pinned_options options;
  assert(ladei_preload_inside() && device->pool == NULL); /* I1 */
  lade_pinned_options_init(&options);
  lade_status status = budget_read(device->lade, &config, &options);
  if (status != LADE_OK) return status;
  options.device = ordinal;
  options.max_bytes = settings->max_bytes;
  options.segment_bytes = settings->segment_bytes;
  options.sources = LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER;
  status = device->lade->lade_runtime_open("cuda", NULL, &device->runtime);
  if (status != LADE_OK) return status;
  status = device->lade->lade_pinned_pool_create(device->runtime, &options, &device->pool);
  if (status == LADE_OK) return LADE_OK;
  device->pool = NULL;
  (void)device->lade->lade_runtime_close(device->runtime);
  return status;
}

static void pinned_give_back(void *user, void *pointer) {
  preload_device *device = user;
  assert(ladei_preload_inside()); /* I1 */
  (void)device->lade->lade_pinned_free(device->pool, pointer);
}

static void heap_give_back(void *user, void *pointer) {
  preload_device *device = user;
  assert(ladei_preload_inside()); /* I1 */
  (void)device->lade->lade_device_free(device->heap, pointer);
}

/* Plain segments: peers to which the program gives access to its context reach no other kind. */
static lade_status heap_open(preload_device *device, int ordinal) {
  const preload_lade *lade = device->lade;
  lade_device_options options;
  assert(ladei_preload_inside() && device->heap == NULL); /* I1, O3 */
  lade_device_options_init(&options);
  lade_status status = lade->lade_stream_create(device->runtime, ordinal, &device->home);
  if (status != LADE_OK) return status;
  status = lade->lade_device_allocator_create(device->runtime, ordinal, &options, &device->heap);
  if (status == LADE_OK) {
    ladei_preload_pending_init(&device->heap_pending, heap_give_back, device);
    return LADE_OK;
  }
  device->heap = NULL;
  (void)lade->lade_stream_destroy(device->runtime, device->home);
  return status;
}

static void opened_note(int ordinal) {
  int seen = atomic_load(&devices_opened);
  assert(ordinal >= 0 && ordinal < PRELOAD_DEVICES_MAX);
  while (seen <= ordinal && !atomic_compare_exchange_weak(&devices_opened, &seen, ordinal + 1)) continue;
}

static void refusal_tell(const preload_device *device, int ordinal, const char *memory) {
  static atomic_bool told;
  if (!atomic_exchange(&told, true))
    fprintf(stderr, "liblade_preload: device %d: %s; its %s memory is the driver's\n", ordinal,
            device->lade->lade_last_error()->text, memory);
}

static preload_device_state device_open(preload_device *device, int ordinal) {
  bool busy;
  assert(atomic_load(&device->state) != PRELOAD_DEVICE_OPEN); /* one thread opens */
  ladei_preload_watch_fork();
  device->lade = ladei_preload_lade(&busy);
  device->ordinal = ordinal;
  if (device->lade == NULL) return busy ? PRELOAD_DEVICE_NONE : PRELOAD_DEVICE_FAILED;
  ladei_preload_begin();
  lade_status status = pool_open(device, ordinal);
  if (status != LADE_OK) refusal_tell(device, ordinal, "pinned and device");
  if (status == LADE_OK && ladei_preload_settings()->device != PRELOAD_DEVICE_OFF &&
      heap_open(device, ordinal) != LADE_OK)
    refusal_tell(device, ordinal, "device");
  ladei_preload_end();
  if (status != LADE_OK) return PRELOAD_DEVICE_FAILED;
  ladei_preload_pending_init(&device->pending, pinned_give_back, device);
  opened_note(ordinal);
  return PRELOAD_DEVICE_OPEN;
}

static preload_device_state device_end(preload_device *device, int ordinal, bool idle);

/* One thread opens. Others go to the driver meanwhile: they may hold the loader's lock (lade.h). O2: not inside. */
static void device_open_once(preload_device *device, int ordinal) {
  preload_device_state state = PRELOAD_DEVICE_NONE;
  if (!atomic_compare_exchange_strong(&device->state, &state, PRELOAD_DEVICE_OPENING)) return;
  preload_device_state outcome = atomic_load(&device->ending) ? PRELOAD_DEVICE_NONE : device_open(device, ordinal);
  state = PRELOAD_DEVICE_OPENING;
  if (atomic_compare_exchange_strong(&device->state, &state, outcome)) return;
  atomic_store(&device->state,
               outcome == PRELOAD_DEVICE_OPEN ? device_end(device, ordinal, true) : PRELOAD_DEVICE_NONE); /* given up */
}

preload_device *ladei_preload_device_enter(int ordinal, bool open) {
  if (ordinal < 0 || ordinal >= PRELOAD_DEVICES_MAX) return NULL;
  preload_device *device = &devices[ordinal];
  if (open && atomic_load(&device->state) == PRELOAD_DEVICE_NONE) device_open_once(device, ordinal);
  ladei_preload_gate_enter_waiting(&device->gate); /* O2 */
  if (atomic_load(&device->state) == PRELOAD_DEVICE_OPEN) return device;
  ladei_preload_gate_leave(&device->gate);
  return NULL;
}

void ladei_preload_device_leave(preload_device *device) { ladei_preload_gate_leave(&device->gate); }

bool ladei_preload_opened(void) { return atomic_load_explicit(&devices_opened, memory_order_relaxed) != 0; }

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

void ladei_preload_range_widen(preload_range *range, const void *pointer, size_t bytes, size_t segment_bytes) {
  uintptr_t first = (uintptr_t)pointer, last = first + bytes;
  uintptr_t begin = first > segment_bytes ? first - segment_bytes : 1;
  uintptr_t end = last < UINTPTR_MAX - segment_bytes ? last + segment_bytes : UINTPTR_MAX;
  uintptr_t high = atomic_load(&range->high);
  uintptr_t low = atomic_load(&range->low);
  while ((low == 0 || begin < low) && !atomic_compare_exchange_weak(&range->low, &low, begin)) continue;
  while (end > high && !atomic_compare_exchange_weak(&range->high, &high, end)) continue;
}

static bool in_range(preload_range *range, const void *address) {
  return (uintptr_t)address < atomic_load_explicit(&range->high, memory_order_relaxed) &&
         (uintptr_t)address >= atomic_load_explicit(&range->low, memory_order_relaxed);
}

bool ladei_preload_may_own(const void *address) {
  int count = atomic_load_explicit(&devices_opened, memory_order_relaxed);
  for (int i = 0; i < count; i++)
    if (in_range(&devices[i].pinned_range, address)) return true;
  return false;
}

bool ladei_preload_heap_may_own(const void *address) {
  int count = atomic_load_explicit(&devices_opened, memory_order_relaxed);
  for (int i = 0; i < count; i++)
    if (in_range(&devices[i].heap_range, address)) return true;
  return false;
}

static bool pool_finds(preload_device *device, const void *address, lade_pinned_info *out_info) {
  lade_pinned_info_init(out_info);
  ladei_preload_begin();
  lade_status status = device->lade->lade_pinned_find(device->pool, address, out_info);
  ladei_preload_end();
  return status == LADE_OK;
}

preload_device *ladei_preload_device_of(const void *address, lade_pinned_info *out_info) {
  int count = atomic_load(&devices_opened);
  for (int i = 0; i < count; i++) {
    preload_device *device = in_range(&devices[i].pinned_range, address) ? ladei_preload_device_enter(i, false) : NULL;
    if (device == NULL) continue;
    if (pool_finds(device, address, out_info)) return device;
    ladei_preload_device_leave(device);
  }
  return NULL;
}

static bool heap_finds(preload_device *device, const void *address, lade_device_block_info *out_info) {
  lade_device_block_info_init(out_info);
  if (device->heap == NULL) return false;
  ladei_preload_begin();
  lade_status status = device->lade->lade_device_find(device->heap, address, out_info);
  ladei_preload_end();
  return status == LADE_OK;
}

preload_device *ladei_preload_heap_of(const void *address, lade_device_block_info *out_info) {
  int count = atomic_load(&devices_opened);
  for (int i = 0; i < count; i++) {
    preload_device *device = in_range(&devices[i].heap_range, address) ? ladei_preload_device_enter(i, false) : NULL;
    if (device == NULL) continue;
    if (heap_finds(device, address, out_info)) return device;
    ladei_preload_device_leave(device);
  }
  return NULL;
}

/* ---- All pools --------------------------------------------------------------------------------------------------- */

/* The next open device from number `*at` on, which the caller leaves; NULL: there is none. */
static preload_device *device_next(int *at) {
  preload_device *device = NULL;
  int count = atomic_load(&devices_opened);
  while (device == NULL && *at < count) device = ladei_preload_device_enter((*at)++, false);
  return device;
}

void ladei_preload_collect(void) {
  preload_device *device;
  for (int at = 0; (device = device_next(&at)) != NULL; ladei_preload_device_leave(device)) {
    ladei_preload_pending_collect(&device->pending);
    if (device->heap != NULL) ladei_preload_pending_collect(&device->heap_pending);
  }
}

bool ladei_preload_give_back(void) {
  bool any = false;
  preload_device *device;
  for (int at = 0; (device = device_next(&at)) != NULL; ladei_preload_device_leave(device)) {
    ladei_preload_pending_wait(&device->pending, 0);
    ladei_preload_begin();
    (void)device->lade->lade_pinned_empty_cache(device->pool);
    ladei_preload_end();
    any = true;
  }
  return any;
}

bool ladei_preload_heaps_give_back(void) {
  bool any = false;
  preload_device *device;
  for (int at = 0; (device = device_next(&at)) != NULL; ladei_preload_device_leave(device)) {
    if (device->heap != NULL) {
      ladei_preload_pending_wait(&device->heap_pending, 0);
      ladei_preload_begin();
      (void)device->lade->lade_device_empty_cache(device->heap);
      ladei_preload_end();
      any = true;
    }
  }
  return any;
}

bool ladei_preload_stream_retire(CUstream stream) {
  bool retired = true;
  bool is_fast = ladei_preload_settings()->mode == PRELOAD_FAST;
  preload_device *device;
  for (int at = 0; (device = device_next(&at)) != NULL; ladei_preload_device_leave(device)) {
    ladei_preload_begin();
    if (is_fast) retired = device->lade->lade_pinned_stream_retire(device->pool, stream) == LADE_OK && retired;
    if (device->heap != NULL)
      retired = device->lade->lade_device_stream_retire(device->heap, stream) == LADE_OK && retired;
    ladei_preload_end();
  }
  return retired;
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static void heap_sums_add(preload_sums *sums, const preload_device *device) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  ladei_preload_begin();
  lade_status status = device->lade->lade_device_stats_get(device->heap, &stats);
  ladei_preload_end();
  if (status != LADE_OK) return;
  sums->heap_driver_allocs += stats.device_allocs;
  sums->heap_driver_frees += stats.device_frees;
  sums->heap_peak_in_use_bytes += stats.allocated_bytes.all.peak;
  sums->heap_peak_reserved_bytes += stats.reserved_bytes.all.peak;
}

static void sums_add(preload_sums *sums, const preload_device *device) {
  if (device->heap != NULL) heap_sums_add(sums, device);
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  ladei_preload_begin();
  lade_status status = device->lade->lade_pinned_stats_get(device->pool, &stats);
  ladei_preload_end();
  if (status != LADE_OK) return;
  sums->hits += stats.hits;
  sums->misses += stats.misses;
  sums->driver_allocs += stats.driver_allocs;
  sums->driver_alloc_ns += stats.driver_alloc_ns;
  sums->driver_free_ns += stats.driver_free_ns;
  sums->pinned_bytes += stats.reserved_bytes.allocated;
  sums->peak_in_use_bytes += stats.in_use_bytes.peak;
  sums->peak_reserved_bytes += stats.reserved_bytes.peak;
}

void ladei_preload_sums(preload_sums *out) {
  pthread_mutex_lock(&sums_lock);
  *out = ended;
  pthread_mutex_unlock(&sums_lock);
  preload_device *device;
  for (int at = 0; (device = device_next(&at)) != NULL; ladei_preload_device_leave(device)) sums_add(out, device);
}

/* ---- Fast mode --------------------------------------------------------------------------------------------------- */

static uint64_t pool_pending_bytes(preload_device *device) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  ladei_preload_begin();
  lade_status status = device->lade->lade_pinned_process_events(device->pool);
  if (status == LADE_OK) status = device->lade->lade_pinned_stats_get(device->pool, &stats);
  ladei_preload_end();
  return status == LADE_OK ? stats.pending_bytes.current : 0;
}

/*
 * Reading the statistics costs microseconds, so it is done once per quarter of the limit.
 *
 * The wait ends with the work that was queued before it: a longer wait would not free blocks that are still pending
 * then. Examples are uses of a stream that was destroyed by a call without a hook; they stay pending until the pool
 * lacks memory and waits for the device.
 */
void ladei_preload_recorded_wait(preload_device *device, uint64_t bytes, uint64_t limit) {
  preload_point point;
  if (atomic_fetch_add(&device->unseen_bytes, bytes) + bytes <= limit / 4) return;
  atomic_store(&device->unseen_bytes, 0);
  assert(atomic_load(&device->gate.inside) > 0); /* O2 */
  if (pool_pending_bytes(device) <= limit || !ladei_preload_point_record(&point)) return;
  ladei_preload_count(PRELOAD_LIMIT_WAITS, 1);
  while (pool_pending_bytes(device) > limit && ladei_preload_point_progress(&point) == PRELOAD_UNDER_WAY)
    ladei_preload_pause(PRELOAD_POLL_NS);
  ladei_preload_point_discard(&point);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static void ended_add(const preload_device *device) {
  pthread_mutex_lock(&sums_lock);
  sums_add(&ended, device);
  pthread_mutex_unlock(&sums_lock);
}

/* The program's blocks end with the context, as the driver's own memory does. */
static void blocks_end(preload_blocks *all, int ordinal, preload_give_back *give_back, preload_device *device) {
  preload_block *next;
  for (preload_block *block = ladei_preload_blocks_take_all(all, ordinal); block != NULL; block = next) {
    next = block->next;
    if (give_back != NULL) give_back(device, block->pointer);
    free(block);
  }
}

static bool pending_any(preload_device *device) {
  return atomic_load(&device->pending.bytes) != 0 ||
         (device->heap != NULL && atomic_load(&device->heap_pending.bytes) != 0);
}

static void pending_end(preload_pending *pending) {
  ladei_preload_pending_drop(pending);
  pthread_mutex_destroy(&pending->lock);
}

static lade_status heap_end(preload_device *device, int ordinal) {
  const preload_lade *lade = device->lade;
  if (device->heap == NULL) return LADE_OK;
  assert(ladei_preload_inside()); /* I1 */
  pending_end(&device->heap_pending);
  blocks_end(&ladei_preload_device_blocks, ordinal, heap_give_back, device);
  lade_status status = lade->lade_device_allocator_destroy(device->heap, true);
  if (status != LADE_OK) return status;
  device->heap = NULL;
  return lade->lade_stream_destroy(device->runtime, device->home);
}

static lade_status pinned_end(preload_device *device, int ordinal) {
  assert(ladei_preload_inside()); /* I1 */
  pending_end(&device->pending);
  blocks_end(&ladei_preload_pinned_blocks, ordinal, pinned_give_back, device);
  return device->lade->lade_pinned_pool_destroy(device->pool, true);
}

/* A pool that cannot end is left as it is: its addresses must not get another meaning. */
static preload_device_state device_end(preload_device *device, int ordinal, bool idle) {
  ended_add(device);
  if (!idle) {
    blocks_end(&ladei_preload_pinned_blocks, ordinal, NULL, device);
    blocks_end(&ladei_preload_device_blocks, ordinal, NULL, device);
    return PRELOAD_DEVICE_FAILED;
  }
  ladei_preload_begin();
  lade_status heap_status = heap_end(device, ordinal);
  lade_status status = pinned_end(device, ordinal);
  if (status == LADE_OK) status = heap_status;
  if (status == LADE_OK) status = device->lade->lade_runtime_close(device->runtime);
  ladei_preload_end();
  if (status != LADE_OK) return PRELOAD_DEVICE_FAILED;
  device->pool = NULL;
  return PRELOAD_DEVICE_NONE;
}

void ladei_preload_device_settle(int ordinal) {
  preload_device *device = ladei_preload_device_enter(ordinal, false);
  if (device == NULL) return;
  for (int i = 0; i < PRELOAD_END_POLLS && pending_any(device) && !ladei_preload_captures_any(); i++) {
    ladei_preload_pending_poll(&device->pending);
    if (device->heap != NULL) ladei_preload_pending_poll(&device->heap_pending);
    if (pending_any(device)) ladei_preload_pause(PRELOAD_END_POLL_NS);
  }
  ladei_preload_device_leave(device);
}

void ladei_preload_device_close(int ordinal, preload_progress work) {
  if (ordinal < 0 || ordinal >= PRELOAD_DEVICES_MAX) return;
  preload_device *device = &devices[ordinal];
  atomic_store(&device->ending, true); /* before the state is read: of a concurrent open and close one sees the other */
  ladei_preload_gate_close(&device->gate);
  preload_device_state state = PRELOAD_DEVICE_OPENING;
  (void)atomic_compare_exchange_strong(&device->state, &state,
                                       PRELOAD_DEVICE_GIVEN_UP); /* otherwise `state` gets the current one */
  if (state == PRELOAD_DEVICE_OPEN) {
    bool idle = work == PRELOAD_LOST || (work == PRELOAD_DONE && !pending_any(device));
    atomic_store(&device->state, device_end(device, ordinal, idle));
  }
  if (state == PRELOAD_DEVICE_FAILED && device->pool == NULL) atomic_store(&device->state, PRELOAD_DEVICE_NONE);
  ladei_preload_gate_open(&device->gate);
}

void ladei_preload_device_closed(int ordinal) {
  if (ordinal >= 0 && ordinal < PRELOAD_DEVICES_MAX) atomic_store(&devices[ordinal].ending, false);
}
