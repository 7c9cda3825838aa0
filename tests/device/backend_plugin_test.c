/* SPDX-License-Identifier: Apache-2.0 */
/* Pluggable backends: what callbacks are given, when they are called, and what is refused without them. */
#include <string.h>

#include "device/state/backend.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"
#include "tests/support/interposer.h"

enum { BLOCKS = 4, BLOCK_BYTES = 4096 };

/* An allocator of the program's: four blocks of an array, by number. */
typedef struct arena {
  char memory[BLOCKS][BLOCK_BYTES];
  bool used[BLOCKS];
  int allocs, frees, empties;
  size_t freed_bytes; /* as the last free got it */
  lade_stream freed_stream;
  double fraction;
  lade_status refuse_free; /* what free answers */
  lade_device_pool_id pool;
  int recorded;
} arena;

static lade_status arena_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  arena *a = user;
  LADE_EXPECT_EQ_INT(device, 0);
  LADE_EXPECT(stream != NULL);
  if (bytes > BLOCK_BYTES) return LADE_ERR_INVALID_ARGUMENT;
  a->allocs++;
  for (int i = 0; i < BLOCKS; i++) {
    if (a->used[i]) continue;
    a->used[i] = true;
    *out = a->memory[i];
    return LADE_OK;
  }
  return LADE_OK; /* nothing stored: no memory */
}

static lade_status arena_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  arena *a = user;
  LADE_EXPECT_EQ_INT(device, 0);
  if (a->refuse_free != LADE_OK) return a->refuse_free;
  size_t i = (size_t)((char *)pointer - a->memory[0]) / BLOCK_BYTES;
  LADE_EXPECT(i < BLOCKS && a->used[i]);
  a->used[i] = false;
  a->frees++;
  a->freed_bytes = bytes;
  a->freed_stream = stream;
  return LADE_OK;
}

static lade_status arena_empty(void *user, int device) {
  (void)device;
  ((arena *)user)->empties++;
  return LADE_OK;
}

static lade_status arena_fraction(void *user, double fraction, int device) {
  (void)device;
  if (fraction == 0.5) return LADE_ERR_UNSUPPORTED;
  ((arena *)user)->fraction = fraction;
  return LADE_OK;
}

static lade_status arena_record(void *user, void *pointer, lade_stream stream) {
  (void)pointer;
  (void)stream;
  ((arena *)user)->recorded++;
  return LADE_OK;
}

static lade_status arena_pool_begin(void *user, int device, lade_device_pool_id id, const lade_stream *streams,
                                    size_t stream_count) {
  (void)device;
  (void)streams;
  LADE_EXPECT_EQ_SIZE(stream_count, 1);
  ((arena *)user)->pool = id;
  return LADE_OK;
}

static lade_status arena_pool_change(void *user, int device, lade_device_pool_id id) {
  (void)device;
  LADE_EXPECT_EQ_UINT(((arena *)user)->pool.first, id.first);
  return LADE_ERR_CAPTURE;
}

static lade_device_plugin plugin_for(arena *a) {
  lade_device_plugin plugin;
  lade_device_plugin_init(&plugin);
  memset(a, 0, sizeof *a);
  plugin.user = a;
  plugin.alloc = arena_alloc;
  plugin.free = arena_free;
  return plugin;
}

/* The fixture's runtime and streams with an allocator on the plugin. */
static bool open_plugged(device_fixture *f, const lade_device_plugin *plugin, const lade_device_options *options) {
  if (!device_fixture_open(f, "sim", GIB, NULL)) return false;
  LADE_EXPECT_OK(lade_device_allocator_destroy(f->allocator, true));
  f->allocator = NULL;
  lade_device_options plugged;
  lade_device_options_init(&plugged);
  if (options != NULL) plugged = *options;
  plugged.plugin = plugin;
  LADE_EXPECT_OK(lade_device_allocator_create(f->runtime, 0, &plugged, &f->allocator));
  return !lade_test_has_failed();
}

LADE_TEST(DevicePlugin, CallbacksGetWhatTheLedgerKept) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  device_fixture f;
  if (!open_plugged(&f, &plugin, NULL)) return;
  LADE_EXPECT_EQ_STR(f.allocator->backend->name, "pluggable");
  char *x = device_fixture_alloc(&f, 1000, 1);
  char *y = device_fixture_alloc(&f, 10, 2);
  LADE_EXPECT_EQ_PTR(x, a.memory[0]);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).allocated_bytes.all.current, 1010);
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, x + 1));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, x + 1000));
  device_fixture_free(&f, x);
  LADE_EXPECT_EQ_SIZE(a.freed_bytes, 1000);
  LADE_EXPECT_EQ_PTR(a.freed_stream, f.streams[1]);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, x));
  device_fixture_free(&f, y);
  device_fixture_close(&f);
}

/* Without a record_stream callback lade waits; with one it is the program's matter. */
LADE_TEST(DevicePlugin, OtherStreamsAreWaitedForUnlessTheProgramDoes) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  for (int own = 0; own < 2; own++) {
    plugin.record_stream = own ? arena_record : NULL;
    device_fixture f;
    if (!open_plugged(&f, &plugin, NULL)) return;
    a.frees = 0;
    char *x = device_fixture_alloc(&f, 1000, 0);
    device_fixture_hold(&f, 1);
    device_fixture_record(&f, x, 1);
    device_fixture_free(&f, x);
    LADE_EXPECT_EQ_INT(a.frees, own);
    LADE_EXPECT_EQ_INT(a.recorded, own);
    device_fixture_release(&f, 1);
    device_fixture_empty_cache(&f);
    LADE_EXPECT_EQ_INT(a.frees, 1);
    device_fixture_close(&f);
  }
}

/* No memory: everything is waited for, the program empties its cache, and the error counts. */
LADE_TEST(DevicePlugin, ShortageEmptiesTheCacheOnce) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  plugin.empty_cache = arena_empty;
  device_fixture f;
  if (!open_plugged(&f, &plugin, NULL)) return;
  char *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) blocks[i] = device_fixture_alloc(&f, 100, 0);
  void *more = NULL;
  support_heard heard;
  support_heard_begin(&heard, LADE_LOG_DEBUG);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 100, f.streams[0], &more));
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "100 bytes: no memory, the cache was given back"), 1);
  LADE_EXPECT_EQ_INT(a.empties, 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).ooms, 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).alloc_retries, 1);
  /* Another error is passed on at once. */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_alloc(f.allocator, BLOCK_BYTES + 1, f.streams[0], &more));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "alloc of 4097 bytes");
  LADE_EXPECT_EQ_INT(a.empties, 1);
  for (int i = 0; i < BLOCKS; i++) device_fixture_free(&f, blocks[i]);
  device_fixture_close(&f);
}

/* A refused free leaves the block with the allocator, which offers it again. */
LADE_TEST(DevicePlugin, RefusedFreesAreOfferedAgain) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  device_fixture f;
  if (!open_plugged(&f, &plugin, NULL)) return;
  support_heard heard;
  support_heard_begin(&heard, LADE_LOG_ERROR);
  char *x = device_fixture_alloc(&f, 1000, 0);
  a.refuse_free = LADE_ERR_DRIVER;
  device_fixture_free(&f, x);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, x));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_empty_cache(f.allocator));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "pluggable backend's free");
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_allocator_destroy(f.allocator, true));
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_ERROR, "does not take back 1000 bytes at 0x"), 1);
  LADE_EXPECT_EQ_INT(heard.count, 1);
  a.refuse_free = LADE_OK;
  device_fixture_free(&f, device_fixture_alloc(&f, 8, 0));
  LADE_EXPECT_EQ_INT(a.frees, 2);
  device_fixture_close(&f);
}

/* Whose free calls the allocator that it serves. */
typedef struct nesting {
  arena a; /* first, as the arena's callbacks take it */
  device_fixture *f;
  int depth;
  int flushed; /* frees that the nested empty_cache made */
} nesting;

static lade_status nesting_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  nesting *n = user;
  if (n->depth++ == 0) {
    int frees = n->a.frees;
    void *none = NULL;
    LADE_EXPECT_OK(lade_device_empty_cache(n->f->allocator));
    n->flushed += n->a.frees - frees;
    LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_device_alloc(n->f->allocator, 2 * BLOCK_BYTES, stream, &none));
    for (int i = 0; i < FIXTURE_STREAMS; i++)
      LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_stream_retire(n->f->allocator, n->f->streams[i]));
  }
  n->depth--;
  return arena_free(user, pointer, bytes, device, stream);
}

static bool nesting_open(nesting *n, device_fixture *f) {
  lade_device_plugin plugin = plugin_for(&n->a);
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = 2 * BLOCK_BYTES;
  plugin.free = nesting_free;
  n->f = f;
  n->depth = n->flushed = 0;
  if (!open_plugged(f, &plugin, &options)) return false;
  for (int stream = 1; stream <= 2;
       stream++) { /* two freed blocks: the use of the first has ended, that of the second will */
    char *block = device_fixture_alloc(f, 1000, 0);
    device_fixture_hold(f, stream);
    device_fixture_record(f, block, stream);
    device_fixture_free(f, block);
  }
  device_fixture_release(f, 1);
  LADE_EXPECT_OK(lade_soft_stream_hold(f->runtime, f->streams[2], false));
  return !lade_test_has_failed();
}

/* Such a call waited for the poll, or the give, that it was in. */
LADE_TEST(DevicePlugin, AFreeThatCallsItsAllocatorWaitsForNothingOfItsOwn) {
  static nesting n;
  device_fixture f;
  if (!nesting_open(&n, &f)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 8, 0)); /* polls */
  LADE_EXPECT_EQ_INT(n.flushed, 1);
  LADE_EXPECT_EQ_INT(n.a.frees, 3);
  device_fixture_close(&f);
  if (!nesting_open(&n, &f)) return;
  device_fixture_empty_cache(&f); /* waits for the second use */
  LADE_EXPECT_EQ_INT(n.flushed, 0);
  LADE_EXPECT_EQ_INT(n.a.frees, 2);
  device_fixture_close(&f);
}

static lade_status same_block(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  (void)bytes;
  (void)device;
  (void)stream;
  *out = ((arena *)user)->memory[0];
  return LADE_OK;
}

LADE_TEST(DevicePlugin, MemoryGivenTwiceIsNoticed) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  plugin.alloc = same_block;
  device_fixture f;
  if (!open_plugged(&f, &plugin, NULL)) return;
  char *x = device_fixture_alloc(&f, 1000, 0);
  a.used[0] = true;
  void *again = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, lade_device_alloc(f.allocator, 1, f.streams[0], &again));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "handed out already");
  device_fixture_free(&f, x);
  device_fixture_close(&f);
}

LADE_TEST(DevicePlugin, OptionalCallbacksAnswerTheirCalls) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  plugin.set_memory_fraction = arena_fraction;
  plugin.pool_begin = arena_pool_begin;
  plugin.pool_end = arena_pool_change;
  plugin.pool_release = arena_pool_change;
  lade_device_options options;
  lade_device_options_init(&options);
  options.memory_fraction = 0.75;
  device_fixture f;
  if (!open_plugged(&f, &plugin, &options)) return;
  LADE_EXPECT(a.fraction == 0.75);
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_set_memory_fraction(f.allocator, 0.5));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 1.0));
  LADE_EXPECT(a.fraction == 1.0);
  char *x = device_fixture_alloc(&f, 100, 0);
  lade_device_pool_id id = {7, 0};
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, &f.streams[0], 1));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_pool_end(f.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_pool_release(f.allocator, id));
  device_fixture_free(&f, x);
  device_fixture_close(&f);
}

LADE_TEST(DevicePlugin, MissingCallbacksAreRefused) {
  arena a;
  lade_device_plugin plugin = plugin_for(&a);
  device_fixture f;
  if (!open_plugged(&f, &plugin, NULL)) return;
  char *x = device_fixture_alloc(&f, 100, 0);
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_peer_add(f.allocator, 1));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "peer_add: the backend pluggable");
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_pool_end(f.allocator, (lade_device_pool_id){1, 1}));
  device_fixture_free(&f, x);
  lade_device_allocator *none = NULL;
  plugin.pool_end = arena_pool_change;
  lade_device_options options;
  lade_device_options_init(&options);
  options.plugin = &plugin;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  plugin.pool_end = NULL;
  plugin.free = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  plugin = plugin_for(&a);
  options.backend = LADE_DEVICE_CUDA_MALLOC_ASYNC;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.plugin");
  LADE_EXPECT_EQ_PTR(none, NULL);
  device_fixture_close(&f);
}
