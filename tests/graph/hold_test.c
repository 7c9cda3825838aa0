/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's thread gives the use of a pool back while the graph is destroyed: whoever comes first, the pool and the allocator are free
 * when lade_graph_destroy() returns.
 *
 * The driver's thread is made slow within lade_device_pool_release() (--wrap), and the destruction of the graphs returns when that
 * thread is there.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "device/state/allocator.h"
#include "lade/graph.h"
#include "runtime/ops.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { BYTES = 100000 };

static pthread_t maker;
static atomic_bool driver_is_there;

lade_status __real_lade_device_pool_release(lade_device_allocator *allocator, lade_device_pool_id id);
lade_status __wrap_lade_device_pool_release(lade_device_allocator *allocator, lade_device_pool_id id);

lade_status __wrap_lade_device_pool_release(lade_device_allocator *allocator, lade_device_pool_id id) {
  if (!pthread_equal(pthread_self(), maker)) {
    atomic_store(&driver_is_there, true);
    (void)usleep(20000);
  }
  return __real_lade_device_pool_release(allocator, id);
}

static const lade_runtime_ops *below;

/* The executable graph, which was launched, is the last that names the object: a driver ends it in a thread of its own. */
static ladei_graph_exec late;

static lade_status exec_destroy_later(void *self, ladei_graph_exec exec) {
  (void)self;
  late = exec;
  return LADE_OK;
}

static lade_status destroy_and_meet(void *self, ladei_graph graph) {
  lade_status status = below->graph_destroy(self, graph);
  LADE_EXPECT_OK(below->graph_exec_destroy(self, late));
  for (int i = 0; i < 2000 && !atomic_load(&driver_is_there); i++) (void)usleep(1000);
  return status;
}

typedef struct work {
  lade_runtime *runtime;
  void *target;
} work;

static lade_status work_run(lade_stream stream, void *user) {
  const work *w = user;
  return lade_fill_async(w->runtime, w->target, 1, BYTES, stream);
}

LADE_TEST(GraphHold, IsGivenBackByTheDriverWhileTheGraphIsDestroyed) {
  device_fixture f;
  lade_graph *graph = NULL;
  lade_graph_options options;
  maker = pthread_self();
  if (!device_fixture_open(&f, "cpu", (size_t)64 << 20, NULL)) return;
  work w = {f.runtime, device_fixture_alloc(&f, BYTES, 0)};
  lade_graph_options_init(&options);
  options.stream = f.streams[0];
  LADE_ASSERT_OK(lade_graph_capture(f.allocator, &options, work_run, &w, &graph));
  LADE_EXPECT_OK(lade_graph_launch(graph, f.streams[1]));
  lade_runtime_ops ops = *f.runtime->ops;
  below = f.runtime->ops;
  ops.graph_exec_destroy = exec_destroy_later;
  ops.graph_destroy = destroy_and_meet;
  f.runtime->ops = &ops;
  LADE_EXPECT_OK(lade_graph_destroy(graph, true));
  LADE_EXPECT(atomic_load(&driver_is_there)); /* and in the middle of it, before this */
  LADE_EXPECT_EQ_UINT(atomic_load(&f.allocator->users), 0);
  f.runtime->ops = below;
  device_fixture_free(&f, w.target);
  device_fixture_close(&f);
}
