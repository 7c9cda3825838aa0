/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver.
 *
 * I1  stream->done <= stream->queued; an event is done when its stream has done `position` items.
 * I2  A slot of `streams` is a handle; its id changes when the handle is recycled.
 * I3  A user object lives until its graph and exec are destroyed or its capture ends badly, then its callback runs, once: in that call,
 *     but late, if so planned, behind an exec that was launched. (fake_graph_destroy() stands for the end of such a one.)
 * Locks: fake->mutex guards all fields; hooks and user-object callbacks are called outside it.
 */
#include "tests/runtime/fake_driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "runtime/ops_list.h"
#include "tests/shim/lade_test.h"

enum { STREAMS_MAX = 512, CONTEXT = 77 };

typedef struct fake_stream {
  uint64_t id, queued, done, capture_id;
  int kind;
  ladei_capture_status capture;
  struct fake_graph *graph; /* under construction */
  bool stuck, forbidden, destroyed;
  bool spare; /* of stream_create, destroyed: the next one gets the slot */
} fake_stream;

typedef struct fake_event {
  const fake_stream *stream;
  uint64_t stream_id, position;
  bool recorded, captured;
  uint64_t capture_id;
} fake_event;

typedef struct fake_object {
  ladei_host_function destroy;
  void *user;
  struct fake_object *next;
} fake_object;

/* As a graph, and as the one exec that may be made of it, which gets the objects. */
typedef struct fake_graph {
  fake_object *objects;
  struct fake_graph *exec;
  bool launched;
} fake_graph;

#define OP_INDEX(op, group) OP_##op,
enum { LADEI_OPS_LIST(OP_INDEX) OP_COUNT };
#undef OP_INDEX

typedef struct fake_plan {
  uint64_t calls, skip, times;
  lade_status status;
  void (*hook)(void *user);
  void *hook_user;
} fake_plan;

struct fake_driver {
  pthread_mutex_t mutex;
  lade_runtime_ops ops;
  fake_stream streams[STREAMS_MAX];
  int stream_count;
  uint64_t last_id, last_capture;
  bool other_context; /* streams are of another context than the device's own */
  bool implicit;
  int64_t events, objects, graphs; /* graphs: of capture_end, and execs */
  fake_object *late, **late_end;   /* whose destructors are due when the clock was read late_reads more times */
  uint64_t late_reads;
  uint64_t now_ns, per_read;
  fake_plan plans[OP_COUNT];
};

/* The per-thread stream of a thread that has used one, by driver. */
static _Thread_local struct {
  fake_driver *fake;
  fake_stream *stream;
} own_stream;

static const char *const op_names[] = {
#define OP_NAME(op, group) #op,
    LADEI_OPS_LIST(OP_NAME)
#undef OP_NAME
};

static fake_plan *plan_of(fake_driver *fake, const char *op) {
  for (int i = 0; i < OP_COUNT; i++)
    if (strcmp(op_names[i], op) == 0) return &fake->plans[i];
  LADE_FAIL("no op %s", op);
  abort();
}

/* ---- Entering an op ---------------------------------------------------------------------------------------------- */

/* Entry of every op: hook, count, planned failure. With LADE_OK the mutex is held. */
static lade_status op_begin(fake_driver *fake, int op) {
  ladei_lock_assert_none_held();
  fake_plan *plan = &fake->plans[op];
  pthread_mutex_lock(&fake->mutex);
  plan->calls++;
  void (*hook)(void *) = plan->hook;
  plan->hook = NULL;
  if (hook != NULL) {
    pthread_mutex_unlock(&fake->mutex);
    hook(plan->hook_user);
    pthread_mutex_lock(&fake->mutex);
  }
  if (plan->times > 0 && plan->skip-- == 0) {
    plan->skip = 0;
    plan->times--;
    pthread_mutex_unlock(&fake->mutex);
    return ladei_error(plan->status, 4711, "fake: %s was made to fail", op_names[op]);
  }
  return LADE_OK;
}

static lade_status op_end(fake_driver *fake, lade_status status) {
  pthread_mutex_unlock(&fake->mutex);
  return status < LADE_ERR_INVALID_ARGUMENT ? status : ladei_error(status, 0, "fake: %s", lade_status_name(status));
}

#define BEGIN(fake, op)                                                                                                \
  do {                                                                                                                 \
    lade_status begun = op_begin(fake, OP_##op);                                                                       \
    if (begun != LADE_OK) return begun;                                                                                \
  } while (0)

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static fake_stream *stream_add(fake_driver *fake, int kind) {
  if (fake->stream_count == STREAMS_MAX) abort();
  fake_stream *stream = &fake->streams[fake->stream_count++];
  *stream = (fake_stream){.id = ++fake->last_id, .kind = kind};
  return stream;
}

/* Under the mutex. The first stream is the legacy one. */
static fake_stream *stream_at(fake_driver *fake, lade_stream handle) {
  if (handle == NULL || handle == LADE_STREAM_LEGACY) return &fake->streams[0];
  if (handle != LADE_STREAM_PER_THREAD) return (fake_stream *)(void *)handle;
  if (own_stream.fake != fake) {
    own_stream.fake = fake;
    own_stream.stream = stream_add(fake, LADEI_STREAM_PER_THREAD);
  }
  return own_stream.stream;
}

static ladei_stream stream_describe(fake_stream *stream) {
  lade_stream handle = (lade_stream)(void *)stream;
  if (stream->kind == LADEI_STREAM_LEGACY) handle = LADE_STREAM_LEGACY;
  if (stream->kind == LADEI_STREAM_PER_THREAD) handle = LADE_STREAM_PER_THREAD;
  return (ladei_stream){.context = CONTEXT, .id = stream->id, .handle = handle, .kind = stream->kind};
}

/* Under the mutex. What an op was given; its handle must not be forbidden. */
static fake_stream *stream_named(fake_driver *fake, const ladei_stream *stream) {
  fake_stream *named = stream_at(fake, stream->handle);
  if (named->forbidden || named->destroyed) LADE_FAIL("a driver call on a stream that is retired or destroyed");
  if (named->kind == LADEI_STREAM_PER_THREAD && named->id != stream->id)
    LADE_FAIL("a driver call on the per-thread stream of another thread");
  return named;
}

static ladei_capture_status stream_capture(const fake_driver *fake, const fake_stream *stream) {
  bool implicit = stream->kind == LADEI_STREAM_LEGACY && fake->implicit;
  return implicit ? LADEI_CAPTURE_IMPLICIT : stream->capture;
}

static lade_status op_stream_resolve(void *self, lade_stream handle, ladei_stream *out) {
  fake_driver *fake = self;
  BEGIN(fake, stream_resolve);
  fake_stream *stream = stream_at(fake, handle);
  if (stream->forbidden) LADE_FAIL("a retired stream was resolved");
  if (stream->destroyed) return op_end(fake, LADE_ERR_INVALID_ARGUMENT);
  *out = stream_describe(stream);
  return op_end(fake, LADE_OK);
}

static lade_status op_stream_query(void *self, const ladei_stream *resolved) {
  fake_driver *fake = self;
  BEGIN(fake, stream_query);
  const fake_stream *stream = stream_named(fake, resolved);
  if (stream_capture(fake, stream) != LADEI_CAPTURE_NONE) LADE_FAIL("a capture was broken by asking its stream");
  return op_end(fake, stream->done == stream->queued ? LADE_OK : LADE_NOT_READY);
}

static lade_status op_stream_synchronize(void *self, const ladei_stream *resolved) {
  fake_driver *fake = self;
  BEGIN(fake, stream_synchronize);
  fake_stream *stream = stream_named(fake, resolved);
  if (stream_capture(fake, stream) != LADEI_CAPTURE_NONE) LADE_FAIL("a capture was broken by synchronising");
  if (stream->stuck && stream->done < stream->queued) return op_end(fake, LADE_ERR_TIMEOUT);
  stream->done = stream->queued;
  return op_end(fake, LADE_OK);
}

static lade_status op_device_context(void *self, int device, uint64_t *out_context) {
  fake_driver *fake = self;
  (void)device;
  BEGIN(fake, device_context);
  *out_context = fake->other_context ? CONTEXT + 1 : CONTEXT;
  return op_end(fake, LADE_OK);
}

static lade_status op_device_synchronize(void *self, int device) {
  fake_driver *fake = self;
  (void)device;
  BEGIN(fake, device_synchronize);
  lade_status status = LADE_OK;
  for (int i = 0; i < fake->stream_count; i++) {
    if (fake->streams[i].stuck && fake->streams[i].done < fake->streams[i].queued) status = LADE_ERR_TIMEOUT;
    if (!fake->streams[i].stuck) fake->streams[i].done = fake->streams[i].queued;
  }
  return op_end(fake, status);
}

static lade_status op_stream_capture_info(void *self, const ladei_stream *resolved, ladei_capture_info *out) {
  fake_driver *fake = self;
  BEGIN(fake, stream_capture_info);
  const fake_stream *stream = stream_named(fake, resolved);
  *out = (ladei_capture_info){.status = stream_capture(fake, stream)};
  if (out->status == LADEI_CAPTURE_ACTIVE || out->status == LADEI_CAPTURE_INVALIDATED) out->id = stream->capture_id;
  if (out->status == LADEI_CAPTURE_ACTIVE) out->graph = (ladei_graph)(void *)stream->graph;
  return op_end(fake, LADE_OK);
}

static lade_status op_capture_mode_exchange(void *self, ladei_capture_mode *mode) {
  static _Thread_local ladei_capture_mode current;
  fake_driver *fake = self;
  BEGIN(fake, capture_mode_exchange);
  ladei_capture_mode former = current;
  current = *mode;
  *mode = former;
  return op_end(fake, LADE_OK);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static lade_status op_event_create(void *self, uint64_t context, unsigned flags, lade_event *out) {
  fake_driver *fake = self;
  BEGIN(fake, event_create);
  LADE_EXPECT_EQ_UINT(context, CONTEXT);
  LADE_EXPECT_EQ_UINT(flags, 0);
  *out = (lade_event)calloc(1, sizeof(fake_event));
  fake->events++;
  return op_end(fake, LADE_OK);
}

static lade_status op_event_destroy(void *self, lade_event event) {
  fake_driver *fake = self;
  BEGIN(fake, event_destroy);
  free(event);
  fake->events--;
  return op_end(fake, LADE_OK);
}

static lade_status op_event_record(void *self, lade_event handle, const ladei_stream *resolved) {
  fake_driver *fake = self;
  fake_event *event = (fake_event *)(void *)handle;
  BEGIN(fake, event_record);
  const fake_stream *stream = stream_named(fake, resolved);
  ladei_capture_status capture = stream_capture(fake, stream);
  if (capture == LADEI_CAPTURE_IMPLICIT) LADE_FAIL("a capture was broken by recording on the legacy stream");
  if (capture == LADEI_CAPTURE_INVALIDATED) return op_end(fake, LADE_ERR_CAPTURE);
  *event = (fake_event){stream, stream->id, stream->queued, true, capture == LADEI_CAPTURE_ACTIVE, stream->capture_id};
  return op_end(fake, LADE_OK);
}

/* Under the mutex. Work of a recycled stream goes on where nobody sees it: until the device is waited for. */
static bool event_done(const fake_event *event) {
  const fake_stream *stream = event->stream;
  return !event->recorded || stream->id != event->stream_id || stream->done >= event->position;
}

static lade_status op_event_query(void *self, lade_event handle) {
  fake_driver *fake = self;
  const fake_event *event = (const fake_event *)(const void *)handle;
  BEGIN(fake, event_query);
  if (event->captured && event->stream->capture_id == event->capture_id && event->stream->capture != LADEI_CAPTURE_NONE)
    LADE_FAIL("a capture was broken by asking about its event");
  if (event->captured) return op_end(fake, LADE_ERR_CAPTURE);
  return op_end(fake, event_done(event) ? LADE_OK : LADE_NOT_READY);
}

static lade_status op_event_synchronize(void *self, lade_event handle) {
  fake_driver *fake = self;
  const fake_event *event = (const fake_event *)(const void *)handle;
  BEGIN(fake, event_synchronize);
  if (event->captured) LADE_FAIL("a capture was broken by waiting for a captured event");
  if (event_done(event)) return op_end(fake, LADE_OK);
  if (event->stream->stuck) return op_end(fake, LADE_ERR_TIMEOUT);
  fake_stream *stream = (fake_stream *)event->stream;
  stream->done = event->position;
  return op_end(fake, LADE_OK);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* Not under the mutex. */
static void object_end(fake_driver *fake, fake_object *object) {
  object->destroy(object->user);
  free(object);
  pthread_mutex_lock(&fake->mutex);
  fake->objects--;
  pthread_mutex_unlock(&fake->mutex);
}

/* Not under the mutex: at once, or behind those that are late. */
static void object_destroy(fake_driver *fake, fake_object *object, bool launched) {
  pthread_mutex_lock(&fake->mutex);
  bool late = launched && fake->late_reads > 0;
  if (late) {
    object->next = NULL;
    *fake->late_end = object;
    fake->late_end = &object->next;
  }
  pthread_mutex_unlock(&fake->mutex);
  if (!late) object_end(fake, object);
}

void fake_objects_late(fake_driver *fake, uint64_t reads) {
  pthread_mutex_lock(&fake->mutex);
  fake->late_reads = reads;
  pthread_mutex_unlock(&fake->mutex);
}

/* Under the mutex: the clock is read. Returns the objects that are due. */
static fake_object *late_take(fake_driver *fake) {
  if (fake->late_reads == 0 || --fake->late_reads > 0) return NULL;
  fake_object *due = fake->late;
  fake->late = NULL;
  fake->late_end = &fake->late;
  return due;
}

static lade_status op_user_object_create(void *self, ladei_host_function destroy, void *user, ladei_user_object *out) {
  fake_driver *fake = self;
  BEGIN(fake, user_object_create);
  fake_object *object = calloc(1, sizeof *object);
  object->destroy = destroy;
  object->user = user;
  fake->objects++;
  *out = (ladei_user_object)(void *)object;
  return op_end(fake, LADE_OK);
}

static lade_status op_user_object_release(void *self, ladei_user_object object) {
  fake_driver *fake = self;
  BEGIN(fake, user_object_release);
  op_end(fake, LADE_OK);
  object_destroy(fake, (fake_object *)(void *)object, false);
  return LADE_OK;
}

static lade_status op_graph_retain_user_object(void *self, ladei_graph handle, ladei_user_object object) {
  fake_driver *fake = self;
  BEGIN(fake, graph_retain_user_object);
  fake_graph *graph = (fake_graph *)(void *)handle;
  fake_object *retained = (fake_object *)(void *)object;
  retained->next = graph->objects;
  graph->objects = retained;
  return op_end(fake, LADE_OK);
}

/* Not under the mutex. */
static void graph_end(fake_driver *fake, fake_graph *graph, bool launched) {
  for (fake_object *object = graph->objects, *next; object != NULL; object = next) {
    next = object->next;
    object_destroy(fake, object, launched);
  }
  free(graph);
  pthread_mutex_lock(&fake->mutex);
  fake->graphs--;
  pthread_mutex_unlock(&fake->mutex);
}

uint64_t fake_capture_begin(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  fake_stream *stream = stream_at(fake, handle);
  stream->capture = LADEI_CAPTURE_ACTIVE;
  stream->capture_id = ++fake->last_capture;
  stream->graph = calloc(1, sizeof *stream->graph);
  fake->graphs++;
  uint64_t id = stream->capture_id;
  pthread_mutex_unlock(&fake->mutex);
  return id;
}

void fake_capture_invalidate(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  stream_at(fake, handle)->capture = LADEI_CAPTURE_INVALIDATED;
  pthread_mutex_unlock(&fake->mutex);
}

ladei_graph fake_capture_end(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  fake_stream *stream = stream_at(fake, handle);
  ladei_graph graph = (ladei_graph)(void *)stream->graph;
  bool valid = stream->capture == LADEI_CAPTURE_ACTIVE;
  stream->capture = LADEI_CAPTURE_NONE;
  stream->graph = NULL;
  pthread_mutex_unlock(&fake->mutex);
  if (valid) return graph;
  graph_end(fake, (fake_graph *)(void *)graph, false);
  return NULL;
}

void fake_graph_destroy(fake_driver *fake, ladei_graph handle) { graph_end(fake, (fake_graph *)(void *)handle, true); }

/* ---- Graphs of lade's own ---------------------------------------------------------------------------------------- */

static lade_status op_stream_create(void *self, int device, int priority, unsigned flags, lade_stream *out) {
  fake_driver *fake = self;
  (void)device;
  (void)priority;
  (void)flags;
  BEGIN(fake, stream_create);
  fake_stream *stream = NULL;
  for (int i = 0; i < fake->stream_count && stream == NULL; i++)
    stream = fake->streams[i].spare ? &fake->streams[i] : NULL;
  if (stream == NULL) stream = stream_add(fake, LADEI_STREAM_ORDINARY);
  *stream = (fake_stream){.id = ++fake->last_id, .kind = LADEI_STREAM_ORDINARY};
  *out = (lade_stream)(void *)stream;
  return op_end(fake, LADE_OK);
}

static lade_status op_stream_destroy(void *self, lade_stream handle) {
  fake_driver *fake = self;
  BEGIN(fake, stream_destroy);
  fake_stream *stream = stream_at(fake, handle);
  stream->destroyed = stream->spare = true;
  return op_end(fake, LADE_OK);
}

static lade_status op_capture_begin(void *self, const ladei_stream *stream, ladei_capture_mode mode) {
  fake_driver *fake = self;
  (void)mode;
  BEGIN(fake, capture_begin);
  (void)op_end(fake, LADE_OK);
  fake_capture_begin(fake, stream->handle);
  return LADE_OK;
}

static lade_status op_host_function(void *self, const ladei_stream *stream, ladei_host_function function, void *user) {
  fake_driver *fake = self;
  (void)function;
  (void)user;
  BEGIN(fake, host_function);
  LADE_EXPECT_EQ_INT(stream_capture(fake, stream_named(fake, stream)), LADEI_CAPTURE_ACTIVE);
  return op_end(fake, LADE_OK);
}

static lade_status op_capture_end(void *self, const ladei_stream *stream, ladei_graph *out) {
  fake_driver *fake = self;
  lade_status begun = op_begin(fake, OP_capture_end);
  if (begun == LADE_OK) (void)op_end(fake, LADE_OK);
  *out = fake_capture_end(fake, stream->handle); /* a failed one is over, too */
  if (begun != LADE_OK) graph_end(fake, (fake_graph *)(void *)*out, false);
  return begun;
}

static lade_status op_graph_instantiate(void *self, ladei_graph handle, ladei_graph_exec *out) {
  fake_driver *fake = self;
  fake_graph *graph = (fake_graph *)(void *)handle;
  BEGIN(fake, graph_instantiate);
  graph->exec = calloc(1, sizeof *graph);
  fake->graphs++;
  *out = (ladei_graph_exec)(void *)graph->exec;
  return op_end(fake, LADE_OK);
}

static lade_status op_graph_launch(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  fake_driver *fake = self;
  BEGIN(fake, graph_launch);
  (void)stream_named(fake, stream);
  ((fake_graph *)(void *)exec)->launched = true;
  return op_end(fake, LADE_OK);
}

static lade_status op_graph_destroy(void *self, ladei_graph handle) {
  fake_driver *fake = self;
  fake_graph *graph = (fake_graph *)(void *)handle;
  BEGIN(fake, graph_destroy);
  if (graph->exec != NULL) {
    graph->exec->objects = graph->objects;
    graph->objects = NULL;
  }
  (void)op_end(fake, LADE_OK);
  graph_end(fake, graph, false);
  return LADE_OK;
}

static lade_status op_graph_exec_destroy(void *self, ladei_graph_exec handle) {
  fake_driver *fake = self;
  fake_graph *exec = (fake_graph *)(void *)handle;
  BEGIN(fake, graph_exec_destroy);
  (void)op_end(fake, LADE_OK);
  graph_end(fake, exec, exec->launched);
  return LADE_OK;
}

void fake_other_context(fake_driver *fake, bool other) {
  pthread_mutex_lock(&fake->mutex);
  fake->other_context = other;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_legacy_implicit(fake_driver *fake, bool implicit) {
  pthread_mutex_lock(&fake->mutex);
  fake->implicit = implicit;
  pthread_mutex_unlock(&fake->mutex);
}

/* ---- What tests do ----------------------------------------------------------------------------------------------- */

lade_stream fake_stream_create(fake_driver *fake) {
  pthread_mutex_lock(&fake->mutex);
  fake_stream *stream = stream_add(fake, LADEI_STREAM_ORDINARY);
  pthread_mutex_unlock(&fake->mutex);
  return (lade_stream)(void *)stream;
}

void fake_stream_recycle(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  fake_stream *stream = stream_at(fake, handle);
  *stream = (fake_stream){.id = ++fake->last_id, .kind = LADEI_STREAM_ORDINARY};
  pthread_mutex_unlock(&fake->mutex);
}

void fake_stream_destroy(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  stream_at(fake, handle)->destroyed = true;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_stream_forbid(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  stream_at(fake, handle)->forbidden = true;
  pthread_mutex_unlock(&fake->mutex);
}

ladei_stream fake_resolve(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  ladei_stream resolved = stream_describe(stream_at(fake, handle));
  pthread_mutex_unlock(&fake->mutex);
  return resolved;
}

void fake_work(fake_driver *fake, lade_stream handle, uint64_t count) {
  pthread_mutex_lock(&fake->mutex);
  stream_at(fake, handle)->queued += count;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_run(fake_driver *fake, lade_stream handle, uint64_t count) {
  pthread_mutex_lock(&fake->mutex);
  fake_stream *stream = stream_at(fake, handle);
  stream->done = stream->queued - stream->done < count ? stream->queued : stream->done + count;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_run_all(fake_driver *fake) {
  pthread_mutex_lock(&fake->mutex);
  for (int i = 0; i < fake->stream_count; i++) fake->streams[i].done = fake->streams[i].queued;
  pthread_mutex_unlock(&fake->mutex);
}

uint64_t fake_queued(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t queued = stream_at(fake, handle)->queued;
  pthread_mutex_unlock(&fake->mutex);
  return queued;
}

uint64_t fake_finished(fake_driver *fake, lade_stream handle) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t done = stream_at(fake, handle)->done;
  pthread_mutex_unlock(&fake->mutex);
  return done;
}

void fake_stick(fake_driver *fake, lade_stream handle, bool stuck) {
  pthread_mutex_lock(&fake->mutex);
  stream_at(fake, handle)->stuck = stuck;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_fail(fake_driver *fake, const char *op, lade_status status, uint64_t skip, uint64_t times) {
  fake_plan *plan = plan_of(fake, op);
  pthread_mutex_lock(&fake->mutex);
  plan->status = status;
  plan->skip = skip;
  plan->times = times;
  pthread_mutex_unlock(&fake->mutex);
}

uint64_t fake_calls(fake_driver *fake, const char *op) {
  uint64_t sum = 0;
  pthread_mutex_lock(&fake->mutex);
  for (int i = 0; i < OP_COUNT; i++)
    if (op == NULL ? i != OP_now_ns : strcmp(op, op_names[i]) == 0) sum += fake->plans[i].calls;
  pthread_mutex_unlock(&fake->mutex);
  return sum;
}

void fake_hook(fake_driver *fake, const char *op, void (*hook)(void *user), void *user) {
  fake_plan *plan = plan_of(fake, op);
  pthread_mutex_lock(&fake->mutex);
  plan->hook = hook;
  plan->hook_user = user;
  pthread_mutex_unlock(&fake->mutex);
}

static uint64_t op_now_ns(void *self) {
  fake_driver *fake = self;
  pthread_mutex_lock(&fake->mutex);
  uint64_t now = fake->now_ns;
  fake->now_ns += fake->per_read;
  fake_object *due = late_take(fake);
  pthread_mutex_unlock(&fake->mutex);
  for (fake_object *next; due != NULL; due = next) {
    next = due->next;
    object_end(fake, due);
  }
  return now;
}

void fake_clock(fake_driver *fake, uint64_t now_ns, uint64_t per_read) {
  pthread_mutex_lock(&fake->mutex);
  fake->now_ns = now_ns;
  fake->per_read = per_read;
  pthread_mutex_unlock(&fake->mutex);
}

lade_event fake_event_create(fake_driver *fake) {
  lade_event event = NULL;
  LADE_EXPECT_OK(fake->ops.event_create(fake, CONTEXT, 0, &event));
  return event;
}

void fake_event_record(fake_driver *fake, lade_event event, lade_stream stream) {
  ladei_stream resolved = fake_resolve(fake, stream);
  LADE_EXPECT_OK(fake->ops.event_record(fake, event, &resolved));
}

void fake_event_destroy(fake_driver *fake, lade_event event) { LADE_EXPECT_OK(fake->ops.event_destroy(fake, event)); }

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static void never_called(void) { LADE_FAIL("an op was called that the fake driver does not have"); }

static lade_status op_close(void *self) {
  (void)self;
  return LADE_OK;
}

static void table_fill(lade_runtime_ops *ops) {
  void (*unused)(void) = never_called;
  *ops = (lade_runtime_ops){.struct_size = sizeof *ops, .name = "fake"};
#define FILL(op, group)                                                                                                \
  if (strcmp(#group, "VIRTUAL_TIME") != 0) memcpy(&ops->op, &unused, sizeof unused);
  LADEI_OPS_LIST(FILL)
#undef FILL
#define HAVE(op) ops->op = op_##op;
  HAVE(close)
  HAVE(stream_resolve)
  HAVE(stream_query)
  HAVE(stream_synchronize)
  HAVE(device_context)
  HAVE(device_synchronize)
  HAVE(stream_capture_info)
  HAVE(capture_mode_exchange)
  HAVE(event_create)
  HAVE(event_destroy)
  HAVE(event_record)
  HAVE(event_query)
  HAVE(event_synchronize)
  HAVE(user_object_create)
  HAVE(user_object_release)
  HAVE(graph_retain_user_object)
  HAVE(stream_create)
  HAVE(stream_destroy)
  HAVE(host_function)
  HAVE(capture_begin)
  HAVE(capture_end)
  HAVE(graph_instantiate)
  HAVE(graph_launch)
  HAVE(graph_destroy)
  HAVE(graph_exec_destroy)
  HAVE(now_ns)
#undef HAVE
}

fake_driver *fake_open(lade_runtime **out) {
  fake_driver *fake = calloc(1, sizeof *fake);
  pthread_mutex_init(&fake->mutex, NULL);
  fake->late_end = &fake->late;
  table_fill(&fake->ops);
  stream_add(fake, LADEI_STREAM_LEGACY);
  LADE_EXPECT_OK(ladei_runtime_adopt(&fake->ops, fake, NULL, out));
  return fake;
}

void fake_close(fake_driver *fake, lade_runtime *runtime) {
  LADE_EXPECT_EQ_INT(fake->events, 0);
  LADE_EXPECT_EQ_INT(fake->objects, 0);
  LADE_EXPECT_EQ_INT(fake->graphs, 0);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
  pthread_mutex_destroy(&fake->mutex);
  if (own_stream.fake == fake) own_stream.fake = NULL;
  free(fake);
}
