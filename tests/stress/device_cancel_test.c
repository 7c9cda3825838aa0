/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Threads that are cancelled (pthread_cancel) in a call of the device allocator. Every driver call, and
 * every callback of a plugin, is a cancellation point here, as it may be: the call comes to its end first, and nothing
 * of the allocator stays behind with the thread.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/cancelled.h"
#include "tests/support/interposer.h"

typedef struct scene scene;

struct scene {
  device_fixture own;
  void *block; /* the test's, or what the call got */
  lade_status status;
  void (*make)(scene *s); /* the call */
};

typedef enum backend { NATIVE, EXPANDABLE, UNCACHED, DRIVER_POOL, PLUGGED, BACKENDS } backend;

static const lade_device_pool_id POOL = {1, 1};

static void alloc_new(scene *s) {
  s->status = lade_device_alloc(s->own.allocator, 8 * MIB, s->own.streams[0], &s->block);
}
/* More than is left beside what is cached. */
static void alloc_last(scene *s) {
  s->status = lade_device_alloc(s->own.allocator, 60 * MIB, s->own.streams[0], &s->block);
}
static void alloc_small(scene *s) {
  s->status = lade_device_alloc(s->own.allocator, 512, s->own.streams[1], &s->block);
}
static void empty_cache(scene *s) { s->status = lade_device_empty_cache(s->own.allocator); }
static void stream_retire(scene *s) { s->status = lade_device_stream_retire(s->own.allocator, s->own.streams[0]); }
static void peer_add(scene *s) { s->status = lade_device_peer_add(s->own.allocator, 1); }

static void free_block(scene *s) {
  s->status = lade_device_free(s->own.allocator, s->block);
  s->block = NULL;
}

static void record_stream(scene *s) {
  s->status = lade_device_record_stream(s->own.allocator, s->block, s->own.streams[1]);
}

static void pool_begin(scene *s) { s->status = lade_device_pool_begin(s->own.allocator, POOL, &s->own.streams[0], 1); }

typedef struct call {
  const char *name;
  void (*make)(scene *s);
  bool has_block, is_used, is_freed; /* before the call: there is a block; another stream uses it; it was freed */
  unsigned on;                       /* bit for each backend */
} call;

enum { ALL = (1 << BACKENDS) - 1, OWN = 1 << NATIVE | 1 << EXPANDABLE };

static const call calls[] = {
    {"alloc of new memory", alloc_new, false, false, false, ALL},
    {"alloc beside what is cached", alloc_last, true, true, true, ALL & ~(1 << UNCACHED)},
    {"alloc that looks at pending blocks", alloc_small, true, true, true, ALL},
    {"free", free_block, true, false, false, ALL},
    {"free of a block in use by a stream", free_block, true, true, false, ALL},
    {"record_stream", record_stream, true, false, false, ALL},
    {"empty_cache", empty_cache, true, true, true, ALL},
    {"stream_retire", stream_retire, true, true, true, ALL},
    {"peer_add", peer_add, true, false, false, OWN},
    {"pool_begin", pool_begin, true, false, false, OWN},
};

/* But for the first question, at which a call has begun nothing: the short way of the native backend asks it unprotected. */
static void cancellation_point(void *user, const char *op) {
  bool *begun = user;
  if (*begun || strcmp(op, "stream_resolve") != 0) pthread_testcancel();
  *begun = true;
}

static lade_status plugin_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  const lade_runtime *runtime = user;
  (void)stream;
  return runtime->ops->device_alloc(runtime->self, device, bytes, out);
}

static lade_status plugin_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  const lade_runtime *runtime = user;
  (void)bytes, (void)stream;
  return runtime->ops->device_free(runtime->self, device, pointer);
}

static void call_make(void *user) {
  scene *s = user;
  s->make(s);
}

static bool scene_open(scene *s, backend which) {
  lade_device_options options;
  lade_device_plugin plugin;
  memset(s, 0, sizeof *s);
  lade_device_options_init(&options);
  options.event_batch = 1;
  options.expandable_segments = which == EXPANDABLE;
  options.flags = which == UNCACHED ? LADE_DEVICE_UNCACHED : 0;
  options.backend = which == DRIVER_POOL ? LADE_DEVICE_CUDA_MALLOC_ASYNC : LADE_DEVICE_NATIVE;
  if (!device_fixture_open(&s->own, "cpu", 64 * MIB, &options)) return false;
  if (which != PLUGGED) return true;
  LADE_EXPECT_OK(lade_device_allocator_destroy(s->own.allocator, true));
  lade_device_plugin_init(&plugin);
  plugin.user = s->own.runtime;
  plugin.alloc = plugin_alloc;
  plugin.free = plugin_free;
  lade_device_options_init(&options);
  options.plugin = &plugin;
  LADE_EXPECT_OK(lade_device_allocator_create(s->own.runtime, 0, &options, &s->own.allocator));
  return true;
}

static void scene_prepare(scene *s, const call *one) {
  if (!one->has_block) return;
  s->block = device_fixture_alloc(&s->own, 8 * MIB, 0);
  if (one->is_used) device_fixture_record(&s->own, s->block, 1);
  if (!one->is_freed) return;
  device_fixture_free(&s->own, s->block);
  s->block = NULL;
}

/* Nothing is held by the thread that is gone: all that needs what it may have held goes on. */
static void scene_check(scene *s, const call *one) {
  if (one->make == pool_begin) {
    LADE_EXPECT_OK(lade_device_pool_end(s->own.allocator, POOL));
    LADE_EXPECT_OK(lade_device_pool_release(s->own.allocator, POOL));
  }
  if (s->block != NULL) device_fixture_free(&s->own, s->block);
  device_fixture_empty_cache(&s->own);
  s->block = device_fixture_alloc(&s->own, 60 * MIB, 2);
  device_fixture_record(&s->own, s->block, 1);
  device_fixture_free(&s->own, s->block);
  LADE_EXPECT_OK(lade_device_stream_retire(s->own.allocator, s->own.streams[2]));
}

static void call_cancelled(const call *one, backend which) {
  scene s;
  if (!scene_open(&s, which)) return;
  scene_prepare(&s, one);
  bool begun = false;
  support_on_call(s.own.runtime, cancellation_point, &begun);
  s.make = one->make;
  bool returned = support_call_cancelled(call_make, &s);
  support_on_call(s.own.runtime, NULL, NULL);
  if (!returned && one->make != record_stream) { /* which asks its questions first, and then notes at one stroke */
    LADE_FAIL("%s: the thread ended inside the call", one->name);
    return; /* what follows may wait for it for ever */
  }
  if (returned) LADE_EXPECT_OK(s.status);
  scene_check(&s, one);
  device_fixture_close(&s.own);
}

static const char *const backends[] = {"native", "expandable", "uncached", "driver_pool", "plugged", NULL};

LADE_TEST_P(DeviceCancellation, CallsComeToTheirEnd, backends, name) {
  int which = 0;
  while (strcmp(backends[which], name) != 0) which++;
  for (size_t i = 0; i < sizeof calls / sizeof calls[0] && !lade_test_has_failed(); i++) {
    if ((calls[i].on & 1U << which) == 0) continue;
    lade_test_context("%s", calls[i].name);
    call_cancelled(&calls[i], (backend)which);
  }
  lade_test_context("%s", "");
}
