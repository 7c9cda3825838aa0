/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pipeline's life: its parts, lade's choices for it, and how it is taken apart.
 *
 *   lade_pipeline --- core (what to do next) --- driver (threads, or virtual time) --- runtime, pinned pool
 *        ^ references: itself until destroyed, and each ticket
 *   lade_ticket (a transfer, its request)      unfinished: the core knows it     released: the caller gave it up
 *
 * I1  The pipeline's memory is freed when it is destroyed and no ticket is left; until then its lock works.
 * I2  Streams and events are destroyed only when no order is out, nothing is in flight on them, and no call on a ticket
 *     counts among `calls` (ticket.c).
 * Locks: pipeline->lock guards the core, `finished`, `released`, `references`. No call of driver, pool or callback is
 * made under it. Fields that are constant after creation are read without it.
 */
#include "lade/pipeline.h"
#include "host/api/ring_alloc.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/call.h"
#include "base/cgroups.h"
#include "base/error.h"
#include "base/living.h"
#include "base/options.h"
#include "base/size.h"
#include "pipeline/api/config_keys.h"
#include "pipeline/api/ticket.h"
#include "pipeline/drivers/drivers.h"
#include "pipeline/drivers/execute.h"
#include "pipeline/endpoints/probe.h"

enum { MAX_READERS = 256, MAX_DEPTH = 1024, DEFAULT_TRANSFERS = 64, BLOCKS_COPIED = 8, BLOCKS_STALLED = 8 };

/* --- checking options --------------------------------------------------------------------------------------------- */

static lade_status option_most_check(const char *field, uint64_t value, uint64_t most) {
  char expected[32];
  if (value <= most) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "at most %llu", (unsigned long long)most);
  return ladei_error_argument("lade_pipeline_create", field, expected, "%llu", (unsigned long long)value);
}

static lade_status options_check(const lade_pipeline_options *options) {
  size_t ring;
  LADEI_TRY(option_most_check("options.readers", options->readers, MAX_READERS));
  LADEI_TRY(option_most_check("options.depth", options->depth, MAX_DEPTH));
  LADEI_TRY(option_most_check("options.timeline_events", options->timeline_events, LADEI_PIPE_TIMELINE_MOST_EVENTS));
  LADEI_TRY(option_most_check("options.url_connect_ms", options->url_connect_ms, LADEI_PIPE_URL_CONNECT_MOST_MS));
  LADEI_TRY(option_most_check("options.url_stall_s", options->url_stall_s, LADEI_PIPE_URL_STALL_MOST_S));
  LADEI_TRY(option_most_check("options.url_attempts", options->url_attempts, LADEI_PIPE_URL_ATTEMPTS_MOST));
  LADEI_TRY(option_most_check("options.url_requests", options->url_requests, LADEI_PIPE_URL_REQUESTS_MOST));
  if (options->no_wait != 0 && options->no_wait != 1)
    return ladei_error_argument("lade_pipeline_create", "options.no_wait", "0 or 1", "%d", options->no_wait);
  if (options->storage < LADE_STORAGE_AUTO || options->storage > LADE_STORAGE_CUFILE)
    return ladei_error_argument("lade_pipeline_create", "options.storage", "a lade_storage", "%d", options->storage);
  if (options->load_cache < LADE_LOAD_CACHE_AUTO || options->load_cache > LADE_LOAD_CACHE_NEVER)
    return ladei_error_argument("lade_pipeline_create", "options.load_cache", "a lade_load_cache", "%d",
                                options->load_cache);
  if (!ladei_size_mul(options->chunk_bytes, options->depth + 1u, &ring) || ring >= LADEI_SIZE_LIMIT) {
    return ladei_error_argument("lade_pipeline_create", "options.chunk_bytes", "less than 2^60 for all blocks together",
                                "%llu", (unsigned long long)options->chunk_bytes);
  }
  return LADE_OK;
}

/* --- what lade chooses -------------------------------------------------------------------------------------------- */

/* The copy engines are threads of this machine: its caches count then, not the length of copies on a link. */
static bool engines_are_threads(const lade_runtime *runtime) {
  return runtime->software_device && runtime->ops->step == NULL;
}

static long clamp(long value, long least, long most) { return value < least ? least : value > most ? most : value; }

/*
 * Note [Readers]
 * A processor copies 8 to 10 GB/s out of the page cache, and links take 25 to 55 GB/s: readers are three quarters of
 * the processors that the process may use (its affinity mask; the processors and the quota of its control groups, which
 * the processes of a job on this machine share), between 4 and 16. Unneeded readers sleep. If engines are threads, one
 * processor is theirs.
 */
static uint32_t readers_choose(const lade_runtime *runtime, uint32_t local_ranks) {
  long cpus = ladei_processors("", local_ranks);
  if (runtime->ops->step != NULL) return 4;
  if (engines_are_threads(runtime)) return (uint32_t)clamp(cpus - 1, 1, 4);
  return (uint32_t)clamp(cpus * 3 / 4, clamp(cpus, 1, 4), 16);
}

/* Slots of a COPY order to the device: Note [Joined copies] in core_pick.c. */
enum { JOINED_MOST = 8 };

/*
 * Note [Depth]
 * A limit: a ring grows only while its blocks are all busy. One block for each read or write that may be under way, and
 * eight for copies, which wait for each other and until their end is found. (On an H200 with 12 readers four leave its
 * link idle for a twentieth of the time.) To a GPU two for each reader, so that it finds a block of its own
 * (Note [Readers that stay] in core_pick.c) while others are copied. If the copy engine is a thread, chunks should pass
 * reader to engine through the caches, yet not so fast that a moment without a processor stops the other side: 1 MiB
 * does best from 64 KiB to 16 MiB (benchmarks/run_targets), and chunks that no cache holds anyway get few blocks.
 *
 * Eight more are for chunks of stalled transfers (core_schedule.c, Note [Stalled transfers]): half of all slots then
 * hold a small transfer, which is split into eight chunks, so that all of its copies can be queued after work of a
 * stream that is late, and the caller need not wait for that stream.
 */
static uint32_t blocks_ahead(const lade_pipeline *pipeline, lade_direction direction) {
  const lade_pipeline_options *options = &pipeline->options;
  if (engines_are_threads(pipeline->runtime)) return options->chunk_bytes <= 4 * LADEI_MIB ? 7 : 3;
  if (pipeline->runtime->software_device != NULL || direction == LADE_TO_HOST) return BLOCKS_COPIED;
  uint32_t wanted = 2 * options->readers;
  return wanted > BLOCKS_COPIED ? wanted : BLOCKS_COPIED;
}

static void options_complete(lade_pipeline *pipeline) {
  lade_pipeline_options *options = &pipeline->options;
  bool threads = engines_are_threads(pipeline->runtime);
  if (options->readers == 0) options->readers = readers_choose(pipeline->runtime, options->local_ranks);
  if (options->chunk_bytes == 0) options->chunk_bytes = LADEI_PIPE_CHUNK_FIRST;
  if (options->depth == 0) {
    uint32_t depth =
        options->readers * pipeline->driver->queue + blocks_ahead(pipeline, LADE_TO_DEVICE) + BLOCKS_STALLED;
    options->depth = depth < MAX_DEPTH ? depth : MAX_DEPTH;
  }
  if (options->max_transfers == 0) options->max_transfers = DEFAULT_TRANSFERS;
  if (options->window_bytes == 0 && pipeline->runtime->ops->step != NULL)
    options->window_bytes = LADEI_PIPE_WINDOW_BYTES_SIM;
  if (options->window_bytes == 0)
    options->window_bytes = LADEI_PIPE_WINDOW_BYTES / (options->local_ranks > 1 ? options->local_ranks : 1);
  if (options->storage_bytes_per_s == 0) options->storage_bytes_per_s = UINT64_C(12000000000);
  /* Readers are for each direction; but where engines are threads all of them share few processors. */
  pipeline->threads = threads ? options->readers : 2 * options->readers;
}

/* Sets the core's limits: sizes of blocks, and reads and writes at once. */
static void limits_set(lade_pipeline *pipeline) {
  const lade_pipeline_options *options = &pipeline->options;
  size_t chunk = (size_t)options->chunk_bytes;
  ladei_pipe_core_set_blocks(&pipeline->core, chunk, pipeline->chunk_chosen ? LADEI_PIPE_CHUNK_LEAST : chunk);
  if (!engines_are_threads(pipeline->runtime) && pipeline->runtime->ops->copy_batch != NULL)
    ladei_pipe_core_set_joined(&pipeline->core.rings[0], JOINED_MOST, LADEI_PIPE_JOINED_FIRST);
  pipeline->core.rings[0].host.paces = pipeline->driver->threads && !engines_are_threads(pipeline->runtime);
  for (unsigned i = 0; i < 2; i++) {
    ladei_pipe_window *window = &pipeline->sides[i].window;
    ladei_pipe_window_init(window, options->readers, options->readers * pipeline->driver->queue);
    ladei_pipe_core_set_window(&pipeline->core.rings[i], window->size);
    pipeline->core.rings[i].blocks.last_first = !engines_are_threads(pipeline->runtime);
    if (!engines_are_threads(pipeline->runtime))
      ladei_pipe_core_set_turn(&pipeline->core.rings[i], LADEI_PIPE_TURN_FIRST);
    if (pipeline->depth_chosen)
      pipeline->core.rings[i].blocks.ahead = blocks_ahead(pipeline, i == 0 ? LADE_TO_DEVICE : LADE_TO_HOST);
  }
  ladei_pipe_ring *ring = &pipeline->core.rings[0];
  if (pipeline->chunk_adapts && pipeline->runtime->software_device == NULL)
    ladei_pipe_core_set_bulk(
        ring, ladei_pipe_core_chunk_in_window(ring, LADEI_PIPE_CHUNK_BULK, options->readers, options->window_bytes));
}

/* --- looking on --------------------------------------------------------------------------------------------------- */

lade_status lade_pipeline_info_get(lade_pipeline *pipeline, lade_pipeline_info *info) {
  if (pipeline == NULL) return ladei_error_null("lade_pipeline_info_get", "pipeline");
  LADEI_TRY(ladei_runtime_check_process(pipeline->runtime));
  lade_pipeline_info own = {.struct_size = sizeof own,
                            .depth = pipeline->options.depth,
                            .readers = pipeline->options.readers,
                            .device = pipeline->options.device,
                            .numa_node = pipeline->topology != NULL ? pipeline->numa_node : -1};
  ladei_lock_acquire(&pipeline->lock);
  ladei_pipe_core_counters counters = pipeline->core.counters;
  own.callbacks_stalled = pipeline->callbacks_stalled;
  own.callbacks_stalled_sum = pipeline->callbacks_stalled_sum;
  own.requests_to_device = pipeline->core.rings[0].host.window;
  own.requests_to_host = pipeline->core.rings[1].host.window;
  own.chunk_bytes = ladei_size_max(pipeline->core.rings[0].blocks.bytes, pipeline->core.rings[1].blocks.bytes);
  ladei_lock_release(&pipeline->lock);
  own.transfers_submitted = counters.transfers_submitted;
  own.transfers_completed = counters.transfers_completed;
  own.transfers_failed = counters.transfers_failed;
  own.bytes_completed = counters.bytes_completed;
  own.copies = counters.copies;
  own.events_recorded = counters.events_recorded;
  own.events_queried = counters.events_queried;
  own.blocks = counters.blocks;
  own.blocks_peak = counters.blocks_peak;
  own.block_waits = counters.block_waits;
  ladei_pipe_storage_info(&pipeline->storage, &own);
  return ladei_stats_write("lade_pipeline_info", &own, sizeof own, info);
}

lade_status lade_pipeline_timeline_read(lade_pipeline *pipeline, lade_timeline_event *out, size_t capacity,
                                        size_t *out_count, uint64_t *out_lost) {
  uint64_t lost;
  if (pipeline == NULL) return ladei_error_null("lade_pipeline_timeline_read", "pipeline");
  if (out == NULL && capacity > 0) return ladei_error_null("lade_pipeline_timeline_read", "out");
  if (out_count == NULL) return ladei_error_null("lade_pipeline_timeline_read", "out_count");
  LADEI_TRY(ladei_runtime_check_process(pipeline->runtime));
  if (pipeline->timeline == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "pipeline: made without options.timeline_events, keeps no timeline");
  ladei_lock_acquire(&pipeline->lock);
  *out_count = ladei_pipe_timeline_copy(pipeline->timeline, out, capacity, &lost);
  ladei_lock_release(&pipeline->lock);
  if (out_lost != NULL) *out_lost = lost;
  return LADE_OK;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Retires the stream in the pool. LADE_ERR_DEVICE_LOST: it may be destroyed all the same. */
static lade_status stream_retire(lade_pipeline *pipeline, const ladei_stream *stream) {
  const lade_runtime *runtime = pipeline->runtime;
  lade_status status = lade_pinned_stream_retire(pipeline->pool, stream->handle);
  if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST) {
    /* When nothing runs on it any more, its blocks need no event. */
    status = runtime->ops->stream_synchronize(runtime->self, stream);
    status = status == LADE_OK ? lade_pinned_stream_retire(pipeline->pool, stream->handle) : status;
  }
  if (status == LADE_ERR_DEVICE_LOST) {
    /* Nothing runs on a lost device, but no stream of it can be retired. The pool learns of the loss when it asks, and
     * that the uses are over when it then waits; both while the handle still means this stream. */
    (void)lade_pinned_process_events(pipeline->pool);
    (void)lade_pinned_empty_cache(pipeline->pool);
  }
  return status;
}

static lade_status copy_stream_destroy(lade_pipeline *pipeline, ladei_pipe_stream *copy_stream) {
  const lade_runtime *runtime = pipeline->runtime;
  if (copy_stream->live) {
    lade_status status = stream_retire(pipeline, &copy_stream->stream);
    if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST)
      status = runtime->ops->stream_destroy(runtime->self, copy_stream->stream.handle);
    if (status != LADE_OK) return status;
    copy_stream->live = false;
  }
  for (unsigned i = 0; i < LADEI_PIPE_BATCHES; i++) {
    if (copy_stream->events[i] != NULL) {
      ladei_event_pool_release(pipeline->events, copy_stream->events[i]);
      copy_stream->events[i] = NULL;
    }
  }
  return LADE_OK;
}

/* Undoes side_create; the next call tries failed steps again. */
static lade_status side_destroy(lade_pipeline *pipeline, ladei_pipe_side *side) {
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS; i++)
    LADEI_TRY(copy_stream_destroy(pipeline, &side->copy_streams[i]));
  return ladei_pipe_probe_destroy(pipeline->runtime, &side->probe);
}

static lade_status copy_stream_create(lade_pipeline *pipeline, ladei_pipe_stream *copy_stream) {
  const lade_runtime *runtime = pipeline->runtime;
  lade_stream handle;
  lade_status status =
      runtime->ops->stream_create(runtime->self, pipeline->options.device, 0, LADEI_STREAM_NON_BLOCKING, &handle);
  if (status != LADE_OK) return status;
  status = runtime->ops->stream_resolve(runtime->self, handle, &copy_stream->stream);
  if (status != LADE_OK) {
    LADEI_ASIDE((void)runtime->ops->stream_destroy(runtime->self, handle));
    return status;
  }
  copy_stream->live = true;
  return LADE_OK;
}

/* The side's link, of the runtime where that has it, for all pipelines. */
static ladei_link *link_of(lade_pipeline *pipeline, ladei_pipe_side *side) {
  int device = pipeline->options.device;
  return device < LADEI_RUNTIME_LINKS ? &pipeline->runtime->links[device][side - pipeline->sides] : &side->own_link;
}

static lade_status side_create(lade_pipeline *pipeline, ladei_pipe_side *side) {
  lade_status status = LADE_OK;
  side->probe.link = link_of(pipeline, side);
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS && status == LADE_OK; i++)
    status = copy_stream_create(pipeline, &side->copy_streams[i]);
  return status == LADE_OK && pipeline->chunk_adapts
             ? ladei_pipe_probe_create(pipeline->runtime, &side->copy_streams[0].stream, &side->probe)
             : status;
}

/* Releases all parts of a drained or half-made pipeline except its memory. After a failure it may be called again; with
 * `force` it goes on instead, since no caller could repeat it. */
static lade_status pipeline_dismantle(lade_pipeline *pipeline, bool force) {
  for (unsigned i = 0; i < 2; i++) {
    lade_status status = side_destroy(pipeline, &pipeline->sides[i]);
    if (status != LADE_OK && !force) return status;
    ladei_pipe_link_tell(&pipeline->sides[i], false);
  }
  ladei_pipe_storage_close(&pipeline->storage);
  /* An event that the driver will not destroy stays with the driver; nothing more can be done about it here. */
  (void)ladei_event_pool_destroy(pipeline->events);
  pipeline->events = NULL;
  ladei_pipe_core_destroy(&pipeline->core);
  ladei_runtime_release(pipeline->runtime);
  return LADE_OK;
}

/* Reads the pool's settings that copies depend on. */
static lade_status pool_settings_read(lade_pipeline *pipeline) {
  lade_pinned_options settings;
  lade_pinned_options_init(&settings);
  lade_status status = lade_pinned_settings_get(pipeline->pool, &settings);
  pipeline->register_chunk_bytes = settings.register_chunk_bytes;
  return status;
}

/* Other pipelines may know the links. */
static void links_look(lade_pipeline *pipeline) {
  ladei_lock_acquire(&pipeline->lock);
  for (unsigned i = 0; i < 2; i++) ladei_pipe_blocks_grow_locked(pipeline, &pipeline->core.rings[i]);
  ladei_lock_release(&pipeline->lock);
}

static lade_status pipeline_build(lade_pipeline *pipeline) {
  lade_status status = ladei_pipe_core_init(&pipeline->core, pipeline->options.depth);
  if (status == LADE_OK && pipeline->options.timeline_events > 0) {
    status =
        ladei_pipe_timeline_create(pipeline->options.timeline_events, pipeline->options.depth, &pipeline->timeline);
  }
  if (status == LADE_OK) status = pool_settings_read(pipeline);
  if (status == LADE_OK) ladei_unified_find(pipeline->runtime, pipeline->options.device, &pipeline->unified);
  if (status == LADE_OK) {
    limits_set(pipeline);
    status = ladei_event_pool_create(pipeline->runtime, &pipeline->events);
  }
  for (unsigned i = 0; i < 2 && status == LADE_OK; i++) status = side_create(pipeline, &pipeline->sides[i]);
  if (status == LADE_OK) {
    links_look(pipeline);
    ladei_pipe_storage_open(
        &pipeline->storage, pipeline->driver->threads ? (lade_storage)pipeline->options.storage : LADE_STORAGE_PREAD,
        pipeline->runtime->software_device != NULL, 2 * pipeline->options.depth, 2 * pipeline->options.depth);
    pipeline->storage.url_limits = (ladei_source_options){.connect_ms = pipeline->options.url_connect_ms,
                                                          .stall_s = pipeline->options.url_stall_s,
                                                          .attempts = pipeline->options.url_attempts,
                                                          .requests = pipeline->options.url_requests};
    pipeline->numa_node = -1;
    if (pipeline->driver->threads)
      pipeline->numa_node = ladei_pinned_ring_place(pipeline->pool, pipeline->options.device, &pipeline->topology);
    status = pipeline->driver->start(pipeline);
  }
  return status;
}

/* Blocks of the pool were given back, or are waited for. */
static void pipeline_wake(void *user) {
  lade_pipeline *pipeline = user;
  ladei_lock_acquire(&pipeline->lock);
  ladei_pipe_core_poll_wake(&pipeline->core);
  ladei_lock_release(&pipeline->lock);
  pipeline->driver->kick(pipeline, NULL);
}

static lade_status pipeline_new(lade_runtime *runtime, lade_pinned_pool *pool, const lade_pipeline_options *options,
                                int devices, lade_pipeline **out) {
  lade_pipeline *pipeline = calloc(1, sizeof *pipeline);
  if (pipeline == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pipeline: no memory");
  lade_status status = ladei_runtime_acquire(runtime); /* pipeline_dismantle() releases it */
  if (status != LADE_OK) {
    free(pipeline);
    return status;
  }
  pipeline->runtime = runtime;
  pipeline->pool = pool;
  pipeline->ring_shares = ladei_pinned_ring_shares_of(pool);
  pipeline->listener = (ladei_pinned_ring_listener){.wake = pipeline_wake, .user = pipeline};
  pipeline->devices = devices;
  pipeline->options = *options;
  pipeline->chunk_chosen = options->chunk_bytes == 0;
  pipeline->chunk_adapts = pipeline->chunk_chosen && !engines_are_threads(runtime);
  pipeline->depth_chosen = options->depth == 0;
  pipeline->readers_chosen = options->readers == 0;
  pipeline->driver = runtime->ops->step != NULL ? &ladei_pipe_driver_virtual : &ladei_pipe_driver_threads;
  pipeline->references = 1;
  ladei_process_take(&pipeline->owner);
  options_complete(pipeline);
  ladei_lock_init(&pipeline->lock, LADEI_RANK_PIPELINE);
  ladei_condition_init(&pipeline->changed);
  status = pipeline_build(pipeline);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    (void)pipeline_dismantle(pipeline, true);
    ladei_lock_acquire(&pipeline->lock);
    ladei_pipe_unref_unlock(pipeline);
    ladei_error_restore(&first);
    return ladei_error_prefix(status, "pipeline: ");
  }
  ladei_pinned_ring_listener_add(pipeline->ring_shares, &pipeline->listener);
  *out = pipeline;
  return LADE_OK;
}

static void created_log(const lade_pipeline *pipeline) {
  ladei_log(
      LADE_LOG_INFO, "pipeline %p: created on runtime %s, device %d: depth %u, %u readers, NUMA node %d, storage %d",
      (const void *)pipeline, pipeline->runtime->ops->name, pipeline->options.device, (unsigned)pipeline->options.depth,
      (unsigned)pipeline->options.readers, pipeline->numa_node, (int)pipeline->options.storage);
}

lade_status lade_pipeline_create(lade_runtime *runtime, lade_pinned_pool *pool, const lade_pipeline_options *options,
                                 lade_pipeline **out) {
  lade_pipeline_options own;
  int devices;
  if (runtime == NULL) return ladei_error_null("lade_pipeline_create", "runtime");
  if (pool == NULL) return ladei_error_null("lade_pipeline_create", "pool");
  if (out == NULL) return ladei_error_null("lade_pipeline_create", "out");
  lade_status status = ladei_options_read("lade_pipeline_options", options, &own, sizeof own);
  if (status == LADE_OK) status = options_check(&own);
  if (status == LADE_OK) status = lade_runtime_device_count(runtime, &devices);
  if (status == LADE_OK && (own.device < 0 || own.device >= devices))
    status = ladei_error(LADE_ERR_NO_DEVICE, 0, "pipeline: device %d of %d", own.device, devices);
  if (status == LADE_OK) {
    status = LADEI_HELD(pipeline_new(runtime, pool, &own, devices, out));
    if (status == LADE_OK) {
      ladei_living_add(&(*out)->living, LADEI_LIVING_PIPELINE, *out);
      created_log(*out);
    }
  }
  return status;
}

/* Called with the lock, which is released meanwhile to ask the kernel to give up its requests. Callbacks that wait in
 * submit for a place are woken: their transfers cannot end before they do. */
static void cancel_all(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  for (unsigned i = 0; i < 2; i++) {
    ladei_pipe_core_transfer *next;
    ladei_pipe_core_transfer *transfer = TAILQ_FIRST(&pipeline->core.rings[i].schedule.queue);
    for (; transfer != NULL; transfer = next) {
      next = TAILQ_NEXT(transfer, link);
      ladei_pipe_ticket_cancel_locked(pipeline, ladei_pipe_ticket_of(transfer));
    }
  }
  ladei_condition_broadcast(&pipeline->changed);
  ladei_lock_release(&pipeline->lock);
  ladei_pipe_storage_push(&pipeline->storage);
  pipeline->driver->kick(pipeline, NULL);
  ladei_lock_acquire(&pipeline->lock);
}

/* Called with the lock. Where all transfers are over, threads that worked for them are still on their way out. */
static lade_status drain_error(const lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  const ladei_pipe_core *core = &pipeline->core;
  bool never = pipeline->options.drain_timeout_ns == 0 || pipeline->runtime->ops->step != NULL;
  return ladei_error(LADE_ERR_TIMEOUT, 0, "%u transfers, %u orders and %u blocks %s", core->unfinished,
                     core->orders_out, (unsigned)core->counters.blocks,
                     never ? "can never end" : "had not ended when the time was over");
}

/* Called with the lock. A call of submit from a callback is part of an order. */
static bool is_busy(const lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  const ladei_pipe_core *core = &pipeline->core;
  return core->unfinished > 0 || core->orders_out > 0 || core->counters.blocks > 0 || pipeline->calls > 0;
}

/* Until no transfer, no order, no block and no call on a ticket is left. */
static lade_status pipeline_drain(lade_pipeline *pipeline, bool cancel) {
  lade_status status = LADE_OK;
  uint64_t timeout_ns = pipeline->options.drain_timeout_ns;
  ladei_pipe_waiting waiting = {
      .deadline_ns = ladei_pipe_deadline_after(pipeline, timeout_ns != 0 ? timeout_ns : LADE_WAIT_FOREVER)};
  ladei_lock_acquire(&pipeline->lock);
  pipeline->stopping = true; /* every completion wakes us */
  pipeline->closed = cancel; /* nothing would cancel later submits of callbacks */
  if (cancel) cancel_all(pipeline);
  while (is_busy(pipeline) && status == LADE_OK) status = pipeline->driver->wait(pipeline, &waiting);
  if (status == LADE_ERR_TIMEOUT) drain_error(pipeline);
  pipeline->closed = status == LADE_OK;
  if (status != LADE_OK) pipeline->stopping = false;
  ladei_lock_release(&pipeline->lock);
  return status;
}

static lade_status pipeline_destroy(lade_pipeline *pipeline, bool cancel) {
  lade_status status = ladei_runtime_check_process(pipeline->runtime);
  if (status != LADE_OK) return ladei_error_prefix(status, "pipeline: destroy: ");
  ladei_living_remove(&pipeline->living);
  if (pipeline->driver_state != NULL) {
    status = pipeline_drain(pipeline, cancel);
    if (status == LADE_OK) {
      ladei_pinned_ring_listener_remove(pipeline->ring_shares, &pipeline->listener);
      pipeline->driver->stop(pipeline);
    }
  }
  if (status == LADE_OK) status = pipeline_dismantle(pipeline, false);
  if (status != LADE_OK) {
    ladei_living_add(&pipeline->living, LADEI_LIVING_PIPELINE, pipeline);
    return ladei_error_prefix(status, "pipeline: destroy: ");
  }
  ladei_log_later(LADE_LOG_INFO, "pipeline %p: destroyed", (void *)pipeline);
  ladei_lock_acquire(&pipeline->lock);
  ladei_pipe_unref_unlock(pipeline);
  return LADE_OK;
}

lade_status lade_pipeline_destroy(lade_pipeline *pipeline, bool cancel) {
  if (pipeline == NULL) return LADE_OK;
  return LADEI_HELD(pipeline_destroy(pipeline, cancel));
}
