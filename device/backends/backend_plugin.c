/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pluggable backend: memory from callbacks of the program. The ledger keeps size, device and stream of each block
 * for the callbacks, distinguishes wrong pointers, waits for other streams and counts; the program allocates and frees.
 *
 * G1  The table of an allocator has a function for each callback that the program gave, and NULL for the others: so a
 *     call that needs a callback which is missing is refused by name.
 * Locks: those of ledger.h. No callback under one.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "device/backends/backends.h"
#include "device/backends/ledger.h"

typedef struct plugin_state {
  ladei_device_ledger ledger;
  lade_device_plugin plugin;
  ladei_device_backend table; /* the allocator's own */
} plugin_state;

static const lade_device_plugin *plugin_of(const lade_device_allocator *allocator) {
  ladei_lock_assert_none_held();
  const plugin_state *state = allocator->backend_state;
  return &state->plugin;
}

/* ---- Source of the ledger ---------------------------------------------------------------------------------------- */

static lade_status plugin_take(lade_device_allocator *allocator, size_t bytes, const ladei_stream *stream, void **out) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  void *pointer = NULL;
  ladei_lock_assert_none_held();
  lade_status status = plugin->alloc(plugin->user, bytes, allocator->device, stream->handle, &pointer);
  if (status == LADE_OK && pointer == NULL) status = LADE_ERR_OUT_OF_DEVICE_MEMORY;
  if (status != LADE_OK) {
    return ladei_error(status, 0, "the pluggable backend's alloc of %zu bytes gave %s", bytes,
                       lade_status_name(status));
  }
  *out = pointer;
  return LADE_OK;
}

static lade_status plugin_give(lade_device_allocator *allocator, void *pointer, size_t bytes,
                               const ladei_stream *stream, bool idle) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  if (stream == NULL && !idle) {
    return ladei_error(LADE_NOT_READY, 0, "device allocator of device %d: %p goes back when the device is idle",
                       allocator->device, pointer);
  }
  /* Of a stream that is gone nothing is named: all its work is done. */
  lade_stream handle = stream == NULL ? LADE_STREAM_LEGACY : stream->handle;
  ladei_lock_assert_none_held();
  lade_status status = plugin->free(plugin->user, pointer, bytes, allocator->device, handle);
  if (status == LADE_OK) return LADE_OK;
  return ladei_error(status, 0, "the pluggable backend's free of %p gave %s", pointer, lade_status_name(status));
}

static const ladei_device_ledger_source plugin_source = {plugin_take, plugin_give};

/* ---- Calls that callbacks answer --------------------------------------------------------------------------------- */

/* The error record of a callback's failure, which only has its status. */
static lade_status callback_result(const lade_device_allocator *allocator, const char *call, lade_status status) {
  if (status == LADE_OK) return LADE_OK;
  return ladei_error(status, 0, "device allocator of device %d: the pluggable backend's %s gave %s", allocator->device,
                     call, lade_status_name(status));
}

/* The address must lie in a block of ours, whatever the callback would say. */
static lade_status block_check(lade_device_allocator *allocator, const void *pointer, const char *call) {
  ladei_device_record *record = NULL;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_ledger_lookup(allocator, pointer, false, call, &record);
  ladei_lock_release(&allocator->lock);
  return status;
}

static lade_status plugin_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  LADEI_TRY(block_check(allocator, pointer, "lade_device_record_stream"));
  return callback_result(allocator, "record_stream", plugin->record_stream(plugin->user, pointer, stream));
}

static lade_status plugin_empty_cache(lade_device_allocator *allocator) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.counters.sync_all_streams++;
  ladei_lock_release(&allocator->lock);
  lade_status flushed = ladei_device_ledger_flush(allocator);
  if (plugin->empty_cache == NULL || flushed != LADE_OK) return flushed;
  return callback_result(allocator, "empty_cache", plugin->empty_cache(plugin->user, allocator->device));
}

static lade_status plugin_stats_complete(lade_device_allocator *allocator, lade_device_stats *stats) {
  (void)allocator;
  ladei_device_ledger_stats_complete(stats);
  return LADE_OK;
}

static lade_status plugin_memory_fraction_set(lade_device_allocator *allocator, double fraction) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  return callback_result(allocator, "set_memory_fraction",
                         plugin->set_memory_fraction(plugin->user, fraction, allocator->device));
}

static lade_status plugin_pool_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                     const lade_stream *streams, size_t stream_count) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  return callback_result(allocator, "pool_begin",
                         plugin->pool_begin(plugin->user, allocator->device, id, streams, stream_count));
}

static lade_status plugin_pool_end(lade_device_allocator *allocator, lade_device_pool_id id) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  return callback_result(allocator, "pool_end", plugin->pool_end(plugin->user, allocator->device, id));
}

static lade_status plugin_pool_release(lade_device_allocator *allocator, lade_device_pool_id id) {
  const lade_device_plugin *plugin = plugin_of(allocator);
  return callback_result(allocator, "pool_release", plugin->pool_release(plugin->user, allocator->device, id));
}

/* ---- Open, close ------------------------------------------------------------------------------------------------- */

static lade_status plugin_check(const lade_device_plugin *plugin) {
  static const char call[] = "lade_device_allocator_create";
  if (plugin->alloc == NULL || plugin->free == NULL)
    return ladei_error_null(call, plugin->alloc == NULL ? "options.plugin.alloc" : "options.plugin.free");
  bool begin = plugin->pool_begin != NULL, end = plugin->pool_end != NULL, release = plugin->pool_release != NULL;
  if (begin == end && end == release) return LADE_OK;
  return ladei_error_argument(call,
                              !begin ? "options.plugin.pool_begin"
                              : !end ? "options.plugin.pool_end"
                                     : "options.plugin.pool_release",
                              "all or none of pool_begin, pool_end and pool_release", "NULL");
}

/* G1 */
static void table_fill(plugin_state *state) {
  const lade_device_plugin *plugin = &state->plugin;
  ladei_device_backend *table = &state->table;
  *table = ladei_device_backend_plugin;
  table->record_stream = plugin->record_stream != NULL ? plugin_record_stream : ladei_device_ledger_record_stream;
  if (plugin->set_memory_fraction != NULL) table->memory_fraction_set = plugin_memory_fraction_set;
  if (plugin->pool_begin == NULL) return;
  table->pool_begin = plugin_pool_begin;
  table->pool_end = plugin_pool_end;
  table->pool_release = plugin_pool_release;
}

static lade_status plugin_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup) {
  plugin_state *state = calloc(1, sizeof *state);
  if (state == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for its backend");
  lade_status status =
      ladei_options_read("lade_device_plugin", setup->options->plugin, &state->plugin, sizeof state->plugin);
  if (status == LADE_OK) status = plugin_check(&state->plugin);
  if (status == LADE_OK) {
    table_fill(state);
    allocator->backend_state = state;
    allocator->backend = &state->table;
    status = ladei_device_ledger_open(allocator, &plugin_source, setup->options->event_batch);
  }
  if (status == LADE_OK && allocator->limits.fraction_set && state->plugin.set_memory_fraction != NULL) {
    status = plugin_memory_fraction_set(allocator, setup->options->memory_fraction);
    if (status != LADE_OK) (void)ladei_device_ledger_close(allocator, false); /* it is empty */
  }
  if (status != LADE_OK) free(state);
  return status;
}

static lade_status plugin_close(lade_device_allocator *allocator, bool wait) {
  lade_status status = ladei_device_ledger_close(allocator, wait);
  if (status == LADE_OK) free(allocator->backend_state);
  return status;
}

const ladei_device_backend ladei_device_backend_plugin = {
    .name = "pluggable",
    .open = plugin_open,
    .close = plugin_close,
    .check = ladei_device_ledger_check,
    .alloc = ladei_device_ledger_alloc,
    .free = ladei_device_ledger_free,
    .empty_cache = plugin_empty_cache,
    .stream_retire = ladei_device_ledger_stream_retire,
    .stats_complete = plugin_stats_complete,
};
