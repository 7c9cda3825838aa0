/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver that costs next to nothing: see model_driver.h.
 *
 * I1  stream->done <= stream->queued; an event is finished when its stream has done `position` items.
 * I2  An address is given out once in the driver's life, so addresses of different segments never touch by chance.
 * Locks: none; what threads share is atomic.
 */
#include "benchmarks/micro/model_driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "runtime/ops_list.h"

enum { STREAMS_MAX = 10240, CONTEXT = 77 };

/* Where addresses begin that nothing lies at: below where Linux maps anything, above what programs are linked to. */
#define ADDRESSES_BEGIN ((uint64_t)1 << 44)
#define ADDRESSES_GAP   ((uint64_t)1 << 21)

/* On a cache line of its own, as objects of a driver are. */
typedef struct model_event {
  _Alignas(64) model_stream *stream;
  uint64_t position;
} model_event;

struct model_driver {
  lade_runtime_ops ops;
  lade_runtime *runtime;
  bool locks_pages;
  _Atomic(uint64_t) record_ns, query_ns;
  _Atomic(uint64_t) next_address;
  model_stream streams[STREAMS_MAX];
  unsigned stream_count;
};

_Thread_local model_calls model_thread_calls;

static uint64_t clock_ns(void) { return (uint64_t)(bench_seconds() * 1e9); }

static inline void cost_pay(_Atomic(uint64_t) *cost) {
  uint64_t ns = atomic_load_explicit(cost, memory_order_relaxed);
  if (ns > 0) {
    for (uint64_t begin = clock_ns(); clock_ns() - begin < ns;) {
    }
  }
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

static lade_status op_stream_resolve(void *self, lade_stream handle, ladei_stream *out) {
  (void)self;
  model_thread_calls.resolves++;
  const model_stream *stream = (const model_stream *)(const void *)handle;
  *out = (ladei_stream){.context = CONTEXT, .id = stream->id, .handle = handle, .kind = LADEI_STREAM_ORDINARY};
  return LADE_OK;
}

static lade_status progress(const model_stream *stream, uint64_t position) {
  return atomic_load_explicit(&stream->done, memory_order_relaxed) >= position ? LADE_OK : LADE_NOT_READY;
}

static lade_status op_stream_query(void *self, const ladei_stream *resolved) {
  model_driver *driver = self;
  model_thread_calls.stream_queries++;
  cost_pay(&driver->query_ns);
  const model_stream *stream = (const model_stream *)(const void *)resolved->handle;
  return progress(stream, atomic_load_explicit(&stream->queued, memory_order_relaxed));
}

static lade_status op_stream_synchronize(void *self, const ladei_stream *resolved) {
  (void)self;
  model_thread_calls.others++;
  model_finish((model_stream *)(void *)resolved->handle);
  return LADE_OK;
}

static lade_status op_stream_capture_info(void *self, const ladei_stream *stream, ladei_capture_info *out) {
  (void)self;
  (void)stream;
  model_thread_calls.captures++;
  *out = (ladei_capture_info){.status = LADEI_CAPTURE_NONE};
  return LADE_OK;
}

static lade_status op_event_create(void *self, uint64_t context, unsigned flags, lade_event *out) {
  (void)self;
  (void)context;
  (void)flags;
  model_thread_calls.others++;
  model_event *event = aligned_alloc(_Alignof(model_event), sizeof *event);
  if (event == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "model: no memory for an event");
  *event = (model_event){NULL, 0};
  *out = (lade_event)(void *)event;
  return LADE_OK;
}

static lade_status op_event_destroy(void *self, lade_event event) {
  (void)self;
  model_thread_calls.others++;
  free(event);
  return LADE_OK;
}

static lade_status op_event_record(void *self, lade_event handle, const ladei_stream *resolved) {
  model_driver *driver = self;
  model_thread_calls.records++;
  cost_pay(&driver->record_ns);
  model_stream *stream = (model_stream *)(void *)resolved->handle;
  model_event *event = (model_event *)(void *)handle;
  *event = (model_event){stream, atomic_load_explicit(&stream->queued, memory_order_relaxed)};
  return LADE_OK;
}

static lade_status op_event_query(void *self, lade_event handle) {
  model_driver *driver = self;
  model_thread_calls.event_queries++;
  cost_pay(&driver->query_ns);
  const model_event *event = (const model_event *)(const void *)handle;
  return event->stream == NULL ? LADE_OK : progress(event->stream, event->position);
}

static lade_status op_event_synchronize(void *self, lade_event handle) {
  (void)self;
  model_thread_calls.others++;
  const model_event *event = (const model_event *)(const void *)handle;
  if (event->stream != NULL) model_finish(event->stream);
  return LADE_OK;
}

static lade_status op_capture_mode_exchange(void *self, ladei_capture_mode *mode) {
  (void)self;
  (void)mode;
  model_thread_calls.others++;
  return LADE_OK;
}

/* ---- Memory, devices, clock -------------------------------------------------------------------------------------- */

static lade_status op_host_alloc(void *self, int device, size_t bytes, unsigned flags, void **out) {
  model_driver *driver = self;
  (void)device;
  (void)flags;
  model_thread_calls.others++;
  uint64_t step = (bytes + ADDRESSES_GAP - 1) / ADDRESSES_GAP * ADDRESSES_GAP;
  *out = (void *)(uintptr_t)atomic_fetch_add_explicit(&driver->next_address, step, memory_order_relaxed);
  return LADE_OK;
}

static lade_status op_host_free(void *self, void *pointer) {
  (void)self;
  (void)pointer;
  model_thread_calls.others++;
  return LADE_OK;
}

static lade_status op_host_register(void *self, int device, void *pointer, size_t bytes, unsigned flags) {
  const model_driver *driver = self;
  (void)device;
  (void)flags;
  model_thread_calls.others++;
  if (driver->locks_pages && mlock(pointer, bytes) != 0)
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0, "model: mlock of %zu bytes was refused", bytes);
  return LADE_OK;
}

/* The unmapping that follows unlocks. */
static lade_status op_host_unregister(void *self, void *pointer) {
  (void)self;
  (void)pointer;
  model_thread_calls.others++;
  return LADE_OK;
}

static lade_status op_device_count(void *self, int *out) {
  (void)self;
  *out = 1;
  return LADE_OK;
}

static lade_status op_device_properties(void *self, int device, ladei_device_properties *out) {
  (void)self;
  (void)device;
  *out = (ladei_device_properties){.name = "model", .numa_node = -1, .total_bytes = (uint64_t)1 << 40};
  return LADE_OK;
}

static lade_status op_device_alloc(void *self, int device, size_t bytes, void **out) {
  return op_host_alloc(self, device, bytes, 0, out);
}

static lade_status op_device_free(void *self, int device, void *pointer) {
  (void)device;
  return op_host_free(self, pointer);
}

static uint64_t op_now_ns(void *self) {
  (void)self;
  return clock_ns();
}

static lade_status op_close(void *self) {
  (void)self;
  return LADE_OK;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static void never_called(void) {
  bench_error("an op was called that the model driver does not have");
  abort();
}

static void table_fill(lade_runtime_ops *ops) {
  void (*unused)(void) = never_called;
  *ops = (lade_runtime_ops){.struct_size = sizeof *ops, .name = "model"};
#define FILL(op, group)                                                                                                \
  if (strcmp(#group, "VIRTUAL_TIME") != 0) memcpy(&ops->op, &unused, sizeof unused);
  LADEI_OPS_LIST(FILL)
#undef FILL
#define HAVE(op) ops->op = op_##op;
  HAVE(close)
  HAVE(device_count)
  HAVE(device_properties)
  HAVE(device_alloc)
  HAVE(device_free)
  HAVE(host_alloc)
  HAVE(host_free)
  HAVE(host_register)
  HAVE(host_unregister)
  HAVE(stream_resolve)
  HAVE(stream_query)
  HAVE(stream_synchronize)
  HAVE(stream_capture_info)
  HAVE(capture_mode_exchange)
  HAVE(event_create)
  HAVE(event_destroy)
  HAVE(event_record)
  HAVE(event_query)
  HAVE(event_synchronize)
  HAVE(now_ns)
#undef HAVE
}

model_driver *model_open(bool locks_pages) {
  model_driver *driver = aligned_alloc(_Alignof(model_driver), sizeof *driver);
  if (driver == NULL) {
    bench_error("no memory for the model driver");
    return NULL;
  }
  memset(driver, 0, sizeof *driver);
  driver->locks_pages = locks_pages;
  atomic_init(&driver->next_address, ADDRESSES_BEGIN);
  table_fill(&driver->ops);
  if (ladei_runtime_adopt(&driver->ops, driver, NULL, &driver->runtime) != LADE_OK) {
    bench_lade_error("model driver");
    free(driver);
    return NULL;
  }
  return driver;
}

void model_close(model_driver *driver) {
  if (driver == NULL) return;
  if (lade_runtime_close(driver->runtime) != LADE_OK) bench_lade_error("model driver");
  free(driver);
}

lade_runtime *model_runtime(model_driver *driver) { return driver->runtime; }

void model_costs_set(model_driver *driver, uint64_t record_ns, uint64_t query_ns) {
  atomic_store_explicit(&driver->record_ns, record_ns, memory_order_relaxed);
  atomic_store_explicit(&driver->query_ns, query_ns, memory_order_relaxed);
}

model_stream *model_stream_create(model_driver *driver, uint64_t lag) {
  if (driver->stream_count == STREAMS_MAX) never_called();
  model_stream *stream = &driver->streams[driver->stream_count++];
  stream->id = driver->stream_count;
  stream->lag = lag;
  return stream;
}

void model_finish(model_stream *stream) {
  uint64_t queued = atomic_load_explicit(&stream->queued, memory_order_relaxed);
  atomic_store_explicit(&stream->done, queued, memory_order_relaxed);
}

/* ---- What the calls cost ----------------------------------------------------------------------------------------- */

typedef struct call_costs {
  double record, event_query, stream_query, resolve, capture;
} call_costs;

/* The best of several rounds: what a call takes where nothing disturbs it, as little as can be subtracted for it. */
#define COST_MEASURE(out, call)                                                                                        \
  do {                                                                                                                 \
    enum { ROUNDS = 9, CALLS = 20000 };                                                                                \
    double best = 1e9;                                                                                                 \
    for (int round = 0; round < ROUNDS; round++) {                                                                     \
      double begin = bench_seconds();                                                                                  \
      for (int i = 0; i < CALLS; i++) (void)(call);                                                                    \
      double ns = (bench_seconds() - begin) * 1e9 / CALLS;                                                             \
      best = ns < best ? ns : best;                                                                                    \
    }                                                                                                                  \
    *(out) = best;                                                                                                     \
  } while (0)

static void costs_measure(call_costs *costs) {
  model_driver *driver = model_open(false);
  lade_event event = NULL;
  ladei_stream stream;
  ladei_capture_info capture;
  *costs = (call_costs){0};
  if (driver == NULL) return;
  /* Through the table, as a cache calls them. */
  const lade_runtime *volatile runtime = driver->runtime;
  lade_stream handle = model_handle(model_stream_create(driver, 0));
  if (op_stream_resolve(driver, handle, &stream) == LADE_OK && op_event_create(driver, CONTEXT, 0, &event) == LADE_OK) {
    COST_MEASURE(&costs->resolve, runtime->ops->stream_resolve(runtime->self, handle, &stream));
    COST_MEASURE(&costs->record, runtime->ops->event_record(runtime->self, event, &stream));
    COST_MEASURE(&costs->event_query, runtime->ops->event_query(runtime->self, event));
    COST_MEASURE(&costs->stream_query, runtime->ops->stream_query(runtime->self, &stream));
    COST_MEASURE(&costs->capture, runtime->ops->stream_capture_info(runtime->self, &stream, &capture));
    op_event_destroy(driver, event);
  }
  model_close(driver);
}

double model_calls_ns(const model_calls *calls) {
  static _Thread_local call_costs costs;
  static _Thread_local bool measured;
  if (!measured) {
    model_calls before = model_thread_calls;
    costs_measure(&costs);
    model_thread_calls = before;
    measured = true;
  }
  return (double)calls->records * costs.record + (double)calls->event_queries * costs.event_query +
         (double)calls->stream_queries * costs.stream_query + (double)calls->resolves * costs.resolve +
         (double)calls->captures * costs.capture;
}

model_calls model_calls_since(const model_calls *before) {
  const model_calls *now = &model_thread_calls;
  return (model_calls){now->records - before->records,
                       now->event_queries - before->event_queries,
                       now->stream_queries - before->stream_queries,
                       now->resolves - before->resolves,
                       now->captures - before->captures,
                       now->others - before->others};
}
