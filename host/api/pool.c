/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pinned pool: options, create, destroy, check.
 *
 *   lade_pinned_pool
 *     |-- nodes[0], nodes[1], ...   a cache per NUMA node that was asked for; one more for memory bound to no node
 *     |     `-- segments -> blocks
 *     |-- map                       address -> segment
 *     |-- retire                    pending blocks
 *     |-- threads                   magazines and counters of each thread
 *     `-- growth.spare              metadata without memory
 *
 * I1  reserved_bytes is the sum of the nodes' segments (while no thread is growing or giving back).
 * I2  in_use_bytes + pending_bytes + free bytes + CACHED bytes = reserved_bytes.
 * Locks: none here; those of the parts that are called. None is held when the driver is called.
 */
#include "host/api/pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroups.h"
#include "base/living.h"
#include "base/options.h"
#include "host/api/adopt.h"
#include "host/budget/limits.h"
#include "host/grow/give_back.h"
#include "host/grow/seek.h"
#include "host/policies/policy_default.h"
#include "host/policies/policy_pytorch.h"
#include "host/state/call.h"
#include "host/state/nodes.h"
#include "host/state/thread_caches.h"
#include "host/state/usage.h"

enum {
  MOST_PREFAULT_THREADS = 16, /* of lade's choice: zeroing has taken all that memory gives before */
  ALL_SOURCES =
      LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER | LADE_PINNED_SOURCE_POOL | LADE_PINNED_SOURCE_PAGEABLE,
  NS_PER_MS = 1000000,
};

#define DEFAULT_SEGMENT_BYTES (64 * LADEI_MIB)
#define FIRST_SEGMENT_BYTES   LADEI_PINNED_HUGE_PAGE_BYTES
#define LEAST_SEGMENT_BYTES                                                                                            \
  LADEI_PINNED_MAGAZINE_MAX_BYTES /* so that blocks in magazines were always split to their class */
#define DEFAULT_MAGAZINE_BYTES (64 * LADEI_MIB)

/* ---- Create ------------------------------------------------------------------------------------------------------ */

/* Segments and chunks. */
static lade_status length_check(const char *field, uint64_t bytes) {
  bool good = bytes % LADEI_PINNED_PAGE_BYTES == 0 && bytes <= LADEI_PINNED_MAX_BYTES;
  if (bytes == 0 || (good && bytes >= LEAST_SEGMENT_BYTES)) return LADE_OK;
  return ladei_error_argument("lade_pinned_pool_create", field, "0, or a multiple of 4 KiB from 1 MiB to 1 TiB", "%llu",
                              (unsigned long long)bytes);
}

static lade_status options_check(const lade_pinned_options *options, int device_count) {
  static const char call[] = "lade_pinned_pool_create";
  const uint32_t all_flags =
      LADE_PINNED_NUMA_STRICT | LADE_PINNED_BACKGROUND | LADE_PINNED_DEBUG | LADE_PINNED_REFERENCE;
  if (options->device < 0 || options->device >= device_count)
    return ladei_error(LADE_ERR_NO_DEVICE, 0, "%s: options.device is %d; expected 0 to %d", call, options->device,
                       device_count - 1);
  if ((options->sources & ~(uint32_t)ALL_SOURCES) != 0)
    return ladei_error_argument(call, "options.sources", "bits of lade_pinned_source", "0x%x", options->sources);
  if ((options->flags & ~all_flags) != 0)
    return ladei_error_argument(call, "options.flags", "bits LADE_PINNED_NUMA_STRICT to LADE_PINNED_REFERENCE", "0x%x",
                                options->flags);
  lade_status status = ladei_options_reserved(call, "options.reserved", options->reserved);
  if (status == LADE_OK) status = ladei_options_reserved(call, "options.reserved_2", options->reserved_2);
  if (status == LADE_OK) status = length_check("options.segment_bytes", options->segment_bytes);
  if (status == LADE_OK) status = ladei_pinned_budget_check(options);
  return status != LADE_OK ? status : length_check("options.register_chunk_bytes", options->register_chunk_bytes);
}

/* State of a creation. */
typedef struct creation {
  const lade_pinned_options *options;
  const ladei_pinned_hooks *hooks;
  const char *root; /* of the hooks */
  int device_count;
  unsigned processors; /* that the process may use; 0: not read */
  bool looks_often;    /* for pending blocks of all threads: Note [Shards] */
} creation;

/* On "sim" nothing depends on other processes, unless it is asked for. */
static bool has_budget(const lade_runtime *runtime, const lade_pinned_options *options) {
  return options->budget == LADE_PINNED_BUDGET_ON ||
         (options->budget == LADE_PINNED_BUDGET_DEFAULT && runtime->ops->step == NULL);
}

/* The pool's own cap, and the budget that it shares. In no budget, the ranks of a job divide the default cap. */
static lade_status cap_set(lade_pinned_pool *pool, creation *with) {
  const lade_pinned_options *options = with->options;
  ladei_pinned_limits limits;
  ladei_pinned_limits_read(with->root, &limits);
  uint64_t cap = ladei_pinned_limits_default_cap(&limits);
  bool in_budget = has_budget(pool->runtime, options);
  if (!in_budget && options->local_ranks > 1 && cap != LADEI_PINNED_NO_LIMIT) cap /= options->local_ranks;
  pool->settings.max_bytes = options->max_bytes == 0 ? cap : options->max_bytes;
  with->looks_often = pool->settings.max_bytes < cap || (options->flags & LADE_PINNED_BACKGROUND) != 0;
  ladei_pinned_budget_none(&pool->budget, options);
  if (!in_budget) return LADE_OK;
  const ladei_pinned_budget_origin origin = {
      .root = with->root, .pool_id = pool->id, .limits = &limits, .max_bytes = pool->settings.max_bytes};
  return ladei_pinned_budget_open(&pool->budget, options, &origin);
}

/* Read from the control groups' files, once, where something follows from it. */
static unsigned processors_of(creation *with) {
  if (with->processors == 0) with->processors = ladei_processors(with->root, 1);
  return with->processors;
}

/* As many as the process may run at once: Note [Threads that touch] in prefault.c. */
static void prefault_choose(ladei_pinned_sources *sources, creation *with) {
  uint32_t threads = with->options->prefault_threads;
  sources->prefault_threads = threads;
  sources->prefault_chosen = threads == 0 && !sources->runtime->software_device;
  if (sources->prefault_chosen)
    sources->prefault_threads = (uint32_t)ladei_size_min(processors_of(with), MOST_PREFAULT_THREADS);
}

static size_t magazine_bytes(uint64_t wanted, uint64_t max_bytes) {
  uint64_t usual = max_bytes / 8 < DEFAULT_MAGAZINE_BYTES ? max_bytes / 8 : DEFAULT_MAGAZINE_BYTES;
  return (size_t)(wanted == 0 ? usual : wanted);
}

/* No longer than a chunk of a registration: Note [Chunks] in source.h. */
static size_t segment_bytes(const lade_pinned_options *options) {
  size_t bytes = options->segment_bytes == 0 ? DEFAULT_SEGMENT_BYTES : (size_t)options->segment_bytes;
  size_t chunk = (size_t)options->register_chunk_bytes;
  return chunk == 0 ? bytes : ladei_size_min(bytes, chunk);
}

/* A size that the program names is that of all segments. */
static void segments_choose(ladei_pinned_settings *own, const lade_pinned_options *options) {
  own->segments_chosen = options->segment_bytes == 0;
  own->segment_bytes = segment_bytes(options);
  own->first_segment_bytes =
      own->segments_chosen ? ladei_size_min(own->segment_bytes, FIRST_SEGMENT_BYTES) : own->segment_bytes;
}

static void sources_take(lade_pinned_pool *pool, creation *with) {
  const lade_pinned_options *options = with->options;
  ladei_pinned_sources *sources = &pool->sources;
  sources->runtime = pool->runtime;
  sources->device = options->device;
  sources->sources = options->sources == 0 ? pool->policy->sources : options->sources;
  sources->root = with->root;
  sources->strict = (options->flags & LADE_PINNED_NUMA_STRICT) != 0;
  prefault_choose(sources, with);
  sources->register_chunk_bytes = (size_t)options->register_chunk_bytes;
  ladei_pinned_driver_pools_init(&sources->driver_pools, pool->runtime, options->device);
  ladei_topologies_init(&sources->topologies, with->hooks->topology_kind, with->hooks->topology);
}

static void settings_take(ladei_pinned_settings *own, const lade_pinned_options *options,
                          const ladei_pinned_policy *policy) {
  own->device = options->device;
  own->event_batch = options->event_batch == 0 ? LADEI_EVENT_BATCH_DEFAULT : options->event_batch;
  own->event_batch = policy->event_batch != 0 ? policy->event_batch : own->event_batch;
  own->wait_ns = (uint64_t)options->wait_ms * NS_PER_MS;
  own->max_idle_ns = (uint64_t)options->max_idle_ms * NS_PER_MS;
  segments_choose(own, options);
}

static lade_status devices_create(lade_pinned_pool *pool, int device_count) {
  pool->nodes.of_devices = malloc((size_t)device_count * sizeof *pool->nodes.of_devices);
  if (pool->nodes.of_devices == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for %d devices", device_count);
  for (int i = 0; i < device_count; i++) atomic_init(&pool->nodes.of_devices[i], LADEI_PINNED_NODE_UNRESOLVED);
  pool->nodes.device_count = device_count;
  return LADE_OK;
}

/* Ends all parts that create made, without the retire object; each may be missing. */
static void pool_dispose(lade_pinned_pool *pool) {
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool); i++) {
    ladei_pinned_node_destroy(ladei_pinned_pool_node(pool, i));
    free(ladei_pinned_pool_exited(pool, i));
  }
  while (pool->growth.spare != NULL) {
    ladei_pinned_segment *segment = pool->growth.spare;
    pool->growth.spare = segment->next;
    ladei_pinned_segment_destroy(segment);
  }
  ladei_pagemap_destroy(&pool->map);
  ladei_topologies_destroy(&pool->sources.topologies);
  ladei_pinned_background_destroy(&pool->background);
  ladei_pinned_debug_destroy(pool->debug);
  ladei_pinned_history_destroy(atomic_load(&pool->history.made));
  pool->policy->close(pool);
  ladei_pinned_driver_pools_dispose(&pool->sources.driver_pools);
  ladei_pinned_budget_close(&pool->budget);
  ladei_pinned_cap_wait_destroy(&pool->cap_wait);
  ladei_condition_destroy(&pool->growth.grown);
  ladei_pinned_fast_path_destroy(&pool->fast);
  ladei_lock_destroy(&pool->lock);
  ladei_lock_destroy(&pool->threads.lock);
  free(pool->nodes.of_devices);
  free(pool);
}

/*
 * Note [Shards]
 *   Threads with streams of their own retire their blocks in shards (runtime/retire/retire_shards.h): each of 16
 *   threads on an H200 machine paid 1.9 us for a recorded cycle where they shared one, 0.25 with a shard each, before
 *   they shared no counters (benchmarks/results/h200/pinned_crowd.json, pinned_crowd_before.json). A look at the
 *   pending blocks of all threads costs a barrier of all processors in each shard with open batches. That is often
 *   where the program has set a cap below the one that lade takes, for misses at the cap, and where a background thread
 *   looks. There is one shard then.
 */
static uint32_t shards_choose(const lade_pinned_pool *pool, creation *with, const ladei_retire_options *retire) {
  if (with->hooks->shards != 0) return with->hooks->shards;
  bool several = !with->looks_often && ladei_retire_shards_allowed(pool->runtime, retire);
  return several ? ladei_retire_shards_useful(processors_of(with)) : 1;
}

static lade_status parts_create(lade_pinned_pool *pool, creation *with) {
  bool debug = (with->options->flags & LADE_PINNED_DEBUG) != 0;
  lade_status status = devices_create(pool, with->device_count);
  if (status == LADE_OK) status = ladei_pagemap_init(&pool->map);
  if (status == LADE_OK) status = pool->policy->open(pool);
  if (status == LADE_OK) {
    ladei_retire_options retire = {
        .owner = pool, .done = pool->policy->retired, .event_batch = pool->settings.event_batch};
    retire.events_only = pool->policy->events_only;
    status = ladei_retire_shards_create(pool->runtime, &retire, shards_choose(pool, with, &retire), &pool->retire);
  }
  if (status == LADE_OK && debug && (pool->debug = ladei_pinned_debug_create()) == NULL) {
    (void)ladei_retire_shards_destroy(pool->retire, false); /* holds nothing yet */
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for debug mode");
  }
  return status;
}

/* A failure that repeats is one line. */
static void background_log(lade_pinned_pool *pool, lade_status status) {
  bool failed = status != LADE_OK && status != LADE_NOT_READY;
  ladei_log_flush();
  if (failed && status != pool->background.failure)
    ladei_log(LADE_LOG_ERROR, "pinned pool %llu: background thread: %s", (unsigned long long)pool->id,
              lade_last_error()->text);
  pool->background.failure = failed ? status : LADE_OK;
}

/* Unused segments go back while the system is short of memory, at most once a second: a pool that needs them again
 * pins them again. */
static lade_status pool_relieve(lade_pinned_pool *pool) {
  const uint64_t least_ns = UINT64_C(1000000000);
  uint64_t now_ns = ladei_pinned_pool_now_ns(pool);
  if (!ladei_pressure_look(&pool->pressure, now_ns) || now_ns - pool->pressure.relieved_ns < least_ns) return LADE_OK;
  pool->pressure.relieved_ns = now_ns;
  return ladei_pinned_pool_return(pool, UINT64_MAX, &pool->counters.pressure_returns);
}

/* The background thread's work. Failures stay with the blocks (quarantine), and show to callers that look
 * themselves. */
static uint64_t pool_look(void *user) {
  lade_pinned_pool *pool = user;
  uint64_t done = 0;
  lade_status polled = ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, &done);
  lade_status aged = ladei_pinned_pool_age(pool);
  lade_status answered = ladei_pinned_pool_answer(pool);
  lade_status relieved = pool_relieve(pool);
  lade_status returned = aged != LADE_OK ? aged : answered != LADE_OK ? answered : relieved;
  background_log(pool, polled != LADE_OK ? polled : returned);
  return done;
}

static lade_status background_start(lade_pinned_pool *pool) {
  if (pool->runtime->ops->step != NULL)
    return ladei_error(
        LADE_ERR_UNSUPPORTED, 0,
        "lade_pinned_pool_create: options.flags has LADE_PINNED_BACKGROUND; expected none on virtual time");
  return ladei_pinned_background_start(&pool->background, pool_look, pool);
}

static const ladei_pinned_policy *policy_of(uint32_t flags) {
  return (flags & LADE_PINNED_REFERENCE) != 0 ? &ladei_pinned_policy_pytorch : &ladei_pinned_policy_default;
}

static void created_log(const lade_pinned_pool *pool) {
  ladei_log(
      LADE_LOG_INFO,
      "pinned pool %llu: created on runtime %s, device %d: sources 0x%x, at most %llu bytes, segments of %zu bytes, "
      "magazines of %zu bytes, %u frees per event, wait %llu ms, policy %s",
      (unsigned long long)pool->id, pool->runtime->ops->name, pool->settings.device, pool->sources.sources,
      (unsigned long long)pool->settings.max_bytes, pool->settings.segment_bytes, pool->settings.magazine_bytes,
      (unsigned)pool->settings.event_batch, (unsigned long long)(pool->settings.wait_ns / NS_PER_MS),
      pool->policy == &ladei_pinned_policy_pytorch ? "reference" : "default");
}

/* A pool with all that cannot fail; NULL when there is no memory. */
static lade_pinned_pool *pool_make(lade_runtime *runtime, creation *with) {
  lade_pinned_pool *pool = aligned_alloc(_Alignof(lade_pinned_pool), sizeof *pool);
  if (pool == NULL) return NULL;
  memset(pool, 0, sizeof *pool);
  pool->id = ladei_pinned_thread_pool_id();
  pool->runtime = runtime;
  pool->policy = policy_of(with->options->flags);
  settings_take(&pool->settings, with->options, pool->policy);
  sources_take(pool, with);
  atomic_init(&pool->nodes.home, LADEI_PINNED_NODE_UNRESOLVED);
  ladei_lock_init(&pool->threads.lock, LADEI_RANK_THREADS);
  ladei_lock_init(&pool->lock, LADEI_RANK_POOL);
  ladei_condition_init(&pool->growth.grown);
  ladei_pinned_cap_wait_init(&pool->cap_wait);
  bool thread_caches = pool->policy->uses_thread_caches && (with->options->flags & LADE_PINNED_DEBUG) == 0;
  ladei_pinned_fast_path_init(&pool->fast, thread_caches ? pool->id : UINT64_MAX);
  ladei_pinned_background_init(&pool->background, with->hooks->longest_wait_ns);
  ladei_pressure_init(&pool->pressure, with->root);
  ladei_pinned_timer_init(&pool->counters.driver_allocs);
  ladei_pinned_timer_init(&pool->counters.driver_frees);
  ladei_pinned_ring_shares_init(&pool->ring_shares, runtime->ops->step != NULL);
  return pool;
}

lade_status ladei_pinned_pool_create(lade_runtime *runtime, const lade_pinned_options *options,
                                     const ladei_pinned_hooks *hooks, lade_pinned_pool **out) {
  lade_pinned_options own;
  creation with = {.options = &own, .hooks = hooks, .root = hooks->root == NULL ? "" : hooks->root};
  LADEI_TRY(ladei_options_read("lade_pinned_options", options, &own, sizeof own));
  LADEI_TRY(ladei_runtime_acquire(runtime));
  lade_status status = runtime->ops->device_count(runtime->self, &with.device_count);
  if (status == LADE_OK) status = options_check(&own, with.device_count);
  if (status != LADE_OK) goto fail_runtime;
  lade_pinned_pool *pool = pool_make(runtime, &with);
  if (pool == NULL) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no memory for %zu bytes", sizeof *pool);
    goto fail_runtime;
  }
  status = cap_set(pool, &with);
  pool->settings.magazine_bytes = magazine_bytes(own.magazine_bytes, pool->settings.max_bytes);
  if (status == LADE_OK) status = parts_create(pool, &with);
  if (status != LADE_OK) goto fail_pool;
  if ((own.flags & LADE_PINNED_BACKGROUND) != 0) status = background_start(pool);
  if (status != LADE_OK) goto fail_retire;
  ladei_log_flush();
  created_log(pool);
  ladei_living_add(&pool->living, LADEI_LIVING_PINNED, pool);
  *out = pool;
  return LADE_OK;

fail_retire:
  (void)ladei_retire_shards_destroy(pool->retire, false); /* holds nothing yet */
fail_pool:
  pool_dispose(pool);
fail_runtime:
  ladei_runtime_release(runtime);
  return status;
}

lade_status lade_pinned_pool_create(lade_runtime *runtime, const lade_pinned_options *options, lade_pinned_pool **out) {
  static const ladei_pinned_hooks no_hooks = {LADEI_TOPOLOGY_SYSTEM, NULL, NULL, 0, 0};
  if (runtime == NULL || out == NULL) return ladei_error_null(__func__, runtime == NULL ? "runtime" : "out");
  return LADEI_UNCANCELLED(ladei_pinned_pool_create(runtime, options, &no_hooks, out));
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

/* A pool created with them acts as this one; so fields that lade chooses request by request stay 0. */
lade_status lade_pinned_settings_get(lade_pinned_pool *pool, lade_pinned_options *settings) {
  lade_pinned_options own;
  LADEI_TRY(ladei_pinned_enter_with(pool, settings != NULL, "settings", __func__));
  lade_pinned_options_init(&own);
  own.device = pool->settings.device;
  own.sources = pool->sources.sources;
  own.max_bytes = pool->settings.max_bytes;
  own.event_batch = pool->settings.event_batch;
  own.wait_ms = (uint32_t)(pool->settings.wait_ns / NS_PER_MS);
  own.segment_bytes = pool->settings.segments_chosen ? 0 : pool->settings.segment_bytes;
  own.prefault_threads = pool->sources.prefault_chosen ? 0 : pool->sources.prefault_threads;
  own.flags = pool->sources.strict ? (uint32_t)LADE_PINNED_NUMA_STRICT : 0;
  own.flags |= pool->policy == &ladei_pinned_policy_pytorch ? (uint32_t)LADE_PINNED_REFERENCE : 0;
  own.flags |= pool->debug != NULL ? (uint32_t)LADE_PINNED_DEBUG : 0;
  own.flags |= pool->background.running ? (uint32_t)LADE_PINNED_BACKGROUND : 0;
  own.magazine_bytes = pool->settings.magazine_bytes;
  own.max_idle_ms = (uint32_t)(pool->settings.max_idle_ns / NS_PER_MS);
  own.register_chunk_bytes = pool->sources.register_chunk_bytes;
  ladei_pinned_budget_settings(&pool->budget, &own);
  return ladei_stats_write("lade_pinned_options", &own, sizeof own, settings);
}

/* ---- Destroy ----------------------------------------------------------------------------------------------------- */

/* LADE_OK: no block is in use or pending. */
static lade_status pool_is_idle(lade_pinned_pool *pool, bool wait) {
  ladei_pinned_usage usage;
  ladei_pinned_usage_read(pool, &usage);
  if (usage.allocs != usage.frees) {
    return ladei_error(LADE_ERR_BUSY, 0, "pinned pool: destroy: %llu blocks with %llu bytes are in use",
                       (unsigned long long)(usage.allocs - usage.frees),
                       (unsigned long long)(usage.bytes_allocated - usage.bytes_freed));
  }
  uint64_t adopted = ladei_pinned_adopted_bytes(pool);
  if (adopted > 0)
    return ladei_error(LADE_ERR_BUSY, 0, "pinned pool: destroy: %llu bytes of the program's are adopted",
                       (unsigned long long)adopted);
  ladei_pinned_pool_put(pool, ladei_pinned_thread_caches_take(pool)); /* destroy excludes other calls */
  if (ladei_pinned_pending_read(pool).blocks == 0) return LADE_OK;
  lade_status status =
      wait ? ladei_pinned_pool_synchronize(pool) : ladei_pinned_pool_poll(pool, LADEI_POLL_CLOSE, NULL);
  ladei_pinned_amount pending = ladei_pinned_pending_read(pool);
  if (pending.blocks == 0) return LADE_OK; /* a failure that nothing waits for any more */
  if (status == LADE_OK || status == LADE_NOT_READY) {
    return ladei_error(LADE_NOT_READY, 0, "pinned pool: destroy: %llu blocks with %llu bytes are pending",
                       (unsigned long long)pending.blocks, (unsigned long long)pending.bytes);
  }
  return status;
}

/* All but the last step, which cannot fail. The pool is whole after a failure. */
static lade_status pool_wind_up(lade_pinned_pool *pool, bool wait) {
  uint64_t released;
  LADEI_TRY(pool_is_idle(pool, wait));
  ladei_pinned_thread_caches_wait_for_exits(pool); /* from here on no thread has a block of the pool */
  ladei_pinned_pool_drain(pool);                   /* after that: their blocks may be kept as idle runs */
  lade_status status = ladei_pinned_pool_release(pool, UINT64_MAX, UINT64_MAX, &released);
  assert(status != LADE_OK || ladei_pinned_gauge_current(&pool->counters.reserved_bytes) == 0);
  if (status == LADE_OK) status = ladei_pinned_adopted_finish(pool);
  if (status == LADE_OK) status = ladei_pinned_registration_close(&pool->sources);
  if (status == LADE_OK) status = ladei_pinned_driver_pools_close(&pool->sources.driver_pools);
  if (status != LADE_OK) return status;
  ladei_pinned_thread_caches_close_retire_buffers(pool, true); /* threads may exit meanwhile */
  status = ladei_retire_shards_destroy(pool->retire, wait);
  if (status != LADE_OK) ladei_pinned_thread_caches_close_retire_buffers(pool, false);
  return status;
}

static lade_status pool_destroy(lade_pinned_pool *pool, bool wait) {
  ladei_lock_assert_none_held();
  lade_runtime *runtime = pool->runtime;
  bool had_background = pool->background.running;
  ladei_living_remove(&pool->living);
  ladei_pinned_background_stop(&pool->background);
  lade_status status = pool_wind_up(pool, wait);
  if (status != LADE_OK) {
    lade_error saved;
    ladei_error_save(&saved);
    if (had_background && ladei_pinned_background_start(&pool->background, pool_look, pool) != LADE_OK)
      ladei_error_restore(&saved); /* goes on without: the callers look themselves */
    ladei_living_add(&pool->living, LADEI_LIVING_PINNED, pool);
    return status;
  }
  ladei_pinned_thread_caches_abandon(pool);
  pool_dispose(pool);
  ladei_runtime_release(runtime);
  return LADE_OK;
}

lade_status lade_pinned_pool_destroy(lade_pinned_pool *pool, bool wait) {
  if (pool == NULL) return LADE_OK;
  lade_status status = ladei_runtime_check_process(pool->runtime);
  if (status == LADE_OK) {
    int cancellation = ladei_cancellation_hold();
    uint64_t id = pool->id;
    status = pool_destroy(pool, wait);
    ladei_cancellation_resume(cancellation);
    ladei_log_flush();
    if (status == LADE_OK) ladei_log(LADE_LOG_INFO, "pinned pool %llu: destroyed", (unsigned long long)id);
  }
  return status;
}

/* ---- Check ------------------------------------------------------------------------------------------------------- */

static lade_status broken(const char *invariant, uint64_t found, uint64_t expected) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "pinned pool: %s: %llu instead of %llu", invariant,
                     (unsigned long long)found, (unsigned long long)expected);
}

lade_status ladei_pinned_pool_check(lade_pinned_pool *pool) {
  uint64_t reserved = 0, available = 0;
  lade_status status = ladei_retire_shards_check(pool->retire);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(pool) && status == LADE_OK; i++) {
    ladei_pinned_node *node = ladei_pinned_pool_node(pool, i);
    status = node->index == i ? ladei_pinned_node_check(node) : broken("N1 (index of a node)", node->index, i);
    reserved += ladei_pinned_gauge_current(&node->reserved);
    available += ladei_pinned_node_free_bytes(node) + ladei_pinned_bins_bytes(&node->bins) +
                 ladei_pinned_depot_bytes(node->depot);
  }
  if (status != LADE_OK) return status;
  const ladei_pinned_pool_counters *counters = &pool->counters;
  if (reserved != ladei_pinned_gauge_current(&counters->reserved_bytes))
    return broken("I1 (reserved bytes)", ladei_pinned_gauge_current(&counters->reserved_bytes), reserved);
  ladei_pinned_usage usage;
  ladei_pinned_usage_read(pool, &usage);
  uint64_t taken = usage.bytes_allocated - usage.bytes_freed + ladei_pinned_pending_read(pool).bytes;
  available += ladei_pinned_thread_caches_bytes(pool);
  if (taken + available != reserved)
    return broken("I2 (in use, pending, cached and free bytes)", taken + available, reserved);
  return LADE_OK;
}
