/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting and failing runtime.
 *
 *   lade_runtime (ours) --ops--> interposer_<op>() --ops--> the runtime below
 *
 * I1  Each op but close, now_ns and native_error_text is in SUPPORT_OPS once, so each is counted and can fail.
 * I2  A call that is made to fail, or answered with a lie, does not reach the runtime below and changes no live count.
 * I3  An op that the runtime below lacks is missing here too.
 * I4  The calling thread holds no lade lock: a call that breaks this stops the program (base/lock.h).
 * I5  hold.state goes NONE -> PLANNED -> (AFTER: STARTED ->) HELD -> NONE.
 * Locks: counts and plans are atomic, since ops may be called from any thread; `hold` has a mutex of its own.
 */
#include "tests/support/interposer.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/op_signatures.h"
#include "tests/support/runtimes.h"

enum {
#define OP_ENUMERATOR(name, params, args, kind, amount) OP_##name,
  SUPPORT_OPS(OP_ENUMERATOR)
#undef OP_ENUMERATOR
      OP_COUNT
};

/* I1. The table holds its size, its name, close, now_ns and native_error_text besides. */
_Static_assert(sizeof(lade_runtime_ops) == sizeof(size_t) + sizeof(char *) + (OP_COUNT + 3) * sizeof(void (*)(void)),
               "an op of ops.h is missing in op_signatures.h");

enum { SUPPORT_LIVE_NONE = -1 };

static const struct {
  const char *name;
  support_live_kind kind; /* SUPPORT_LIVE_NONE where it makes or destroys nothing */
} op_table[OP_COUNT] = {
#define OP_ENTRY(name, params, args, kind, amount) {#name, (support_live_kind)SUPPORT_LIVE_##kind},
    SUPPORT_OPS(OP_ENTRY)
#undef OP_ENTRY
};

static const char *const live_texts[SUPPORT_LIVE_COUNT] = {
#define LIVE_TEXT(name, text) text,
    SUPPORT_LIVE_KINDS(LIVE_TEXT)
#undef LIVE_TEXT
};

typedef struct op_state {
  _Atomic(uint64_t) calls;
  _Atomic(uint64_t) fail_first; /* number of the first call to fail; 0: none */
  _Atomic(uint64_t) fail_end;   /* ... and the first one after it that does not */
} op_state;

/* The call that is to be held, or is. */
typedef struct hold_plan {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  enum { HOLD_NONE, HOLD_PLANNED, HOLD_STARTED, HOLD_HELD } state;
  support_hold_place place;
  int op;
  uint64_t number;  /* of the call, among those of the op */
  pthread_t thread; /* that makes the call, from STARTED on */
} hold_plan;

typedef struct interposer {
  lade_runtime_ops ops; /* what the runtime around it uses */
  lade_runtime *inner;
  op_state states[OP_COUNT];
  _Atomic(int64_t) live[SUPPORT_LIVE_COUNT];
  _Atomic(uint64_t) failed_calls;
  atomic_bool lies;
  atomic_bool hold_planned; /* hold.state is not NONE */
  hold_plan hold;
  void (*hook)(void *user, const char *op);
  void *hook_user;
} interposer;

static lade_status injected_status(int op) {
  switch ((int)op_table[op].kind) {
  case SUPPORT_LIVE_DEVICE_MEMORY:
  case SUPPORT_LIVE_VM_HANDLES:
  case SUPPORT_LIVE_POOL_MEMORY: return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  case SUPPORT_LIVE_HOST_MEMORY:
  case SUPPORT_LIVE_HOST_REGISTRATIONS: return LADE_ERR_OUT_OF_PINNED_MEMORY;
  default: return LADE_ERR_DRIVER;
  }
}

/* ---- Holding ----------------------------------------------------------------------------------------------------- */

/* With the mutex: until the test lets go. */
static void hold_wait(hold_plan *hold) {
  hold->state = HOLD_HELD;
  pthread_cond_broadcast(&hold->changed);
  while (hold->state == HOLD_HELD) pthread_cond_wait(&hold->changed, &hold->mutex);
}

static void hold_begin(interposer *self, int op, uint64_t number) {
  if (!atomic_load(&self->hold_planned)) return;
  hold_plan *hold = &self->hold;
  pthread_mutex_lock(&hold->mutex);
  if (hold->state == HOLD_PLANNED && hold->op == op && hold->number == number) {
    hold->thread = pthread_self();
    hold->state = HOLD_STARTED;
    if (hold->place == SUPPORT_HOLD_BEFORE) hold_wait(hold);
  }
  pthread_mutex_unlock(&hold->mutex);
}

static void hold_after(interposer *self, int op) {
  if (!atomic_load(&self->hold_planned)) return;
  hold_plan *hold = &self->hold;
  pthread_mutex_lock(&hold->mutex);
  if (hold->state == HOLD_STARTED && hold->op == op && pthread_equal(hold->thread, pthread_self())) hold_wait(hold);
  pthread_mutex_unlock(&hold->mutex);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Counts the call; an error if the plan says that it fails. */
static lade_status call_begin(interposer *self, int op) {
  ladei_lock_assert_none_held();
  if (self->hook != NULL) self->hook(self->hook_user, op_table[op].name);
  op_state *state = &self->states[op];
  uint64_t number = atomic_fetch_add(&state->calls, 1) + 1;
  hold_begin(self, op, number);
  uint64_t first = atomic_load(&state->fail_first);
  if (first == 0 || number < first || number >= atomic_load(&state->fail_end)) return LADE_OK;
  atomic_fetch_add(&self->failed_calls, 1);
  return ladei_error(injected_status(op), 999, "%s: call %" PRIu64 " made to fail by the test", op_table[op].name,
                     number);
}

static bool call_lies(interposer *self, int op) {
  return (op == OP_stream_query || op == OP_event_query) && atomic_load_explicit(&self->lies, memory_order_relaxed);
}

static lade_status call_end(interposer *self, int op, lade_status status, int64_t amount) {
  int kind = (int)op_table[op].kind;
  if (status == LADE_OK && kind != SUPPORT_LIVE_NONE) atomic_fetch_add(&self->live[kind], amount);
  hold_after(self, op);
  return status;
}

#define SELF (interposed->inner->self)
#define OP_FUNCTION(name, params, args, kind, amount)                                                                  \
  static lade_status interposer_##name params {                                                                        \
    interposer *interposed = self;                                                                                     \
    lade_status status = call_begin(interposed, OP_##name);                                                            \
    if (status != LADE_OK || call_lies(interposed, OP_##name)) return status;                                          \
    return call_end(interposed, OP_##name, interposed->inner->ops->name args, amount);                                 \
  }
SUPPORT_OPS(OP_FUNCTION)
#undef OP_FUNCTION
#undef SELF

static uint64_t interposer_now_ns(void *self) {
  interposer *interposed = self;
  return interposed->inner->ops->now_ns(interposed->inner->self);
}

static const char *interposer_native_error_text(void *self, int64_t native_code) {
  interposer *interposed = self;
  return interposed->inner->ops->native_error_text(interposed->inner->self, native_code);
}

static lade_status interposer_close(void *self) {
  interposer *interposed = self;
  lade_status status = lade_runtime_close(interposed->inner);
  if (status != LADE_OK) return status;
  pthread_cond_destroy(&interposed->hold.changed);
  pthread_mutex_destroy(&interposed->hold.mutex);
  free(interposed);
  return LADE_OK;
}

static void table_fill(interposer *self) {
  const lade_runtime_ops *below = self->inner->ops;
  self->ops.struct_size = sizeof self->ops;
  self->ops.name = below->name;
  self->ops.close = interposer_close;
  self->ops.now_ns = interposer_now_ns;
  self->ops.native_error_text = interposer_native_error_text;
#define OP_FILL(op, params, args, kind, amount) self->ops.op = below->op != NULL ? interposer_##op : NULL;
  SUPPORT_OPS(OP_FILL)
#undef OP_FILL
}

lade_runtime *support_interposer_open(const char *name, const lade_runtime_options *options) {
  lade_runtime *inner = support_runtime_open_with(name, options);
  if (inner == NULL) return NULL;
  interposer *self = calloc(1, sizeof *self);
  if (self == NULL) abort();
  self->inner = inner;
  pthread_mutex_init(&self->hold.mutex, NULL);
  pthread_cond_init(&self->hold.changed, NULL);
  table_fill(self);
  lade_runtime *runtime;
  if (ladei_runtime_adopt(&self->ops, self, inner->software_device, &runtime) != LADE_OK) {
    LADE_FAIL("the interposer's table was refused: %s", lade_last_error()->text);
    support_runtime_close(inner);
    free(self);
    return NULL;
  }
  return runtime;
}

static interposer *interposer_of(lade_runtime *runtime) {
  /* Another runtime's `self` would be read as ours. */
  if (runtime->ops->close != interposer_close) {
    LADE_FAIL("this runtime was not opened by support_interposer_open");
    abort();
  }
  return runtime->self;
}

static int op_find(const char *name) {
  for (int op = 0; op < OP_COUNT; op++)
    if (strcmp(op_table[op].name, name) == 0) return op;
  LADE_FAIL("no op is called %s", name);
  abort();
}

lade_runtime *support_inner(lade_runtime *runtime) {
  return runtime->ops->close == interposer_close ? interposer_of(runtime)->inner : runtime;
}

int64_t support_live(lade_runtime *runtime, support_live_kind kind) {
  return atomic_load(&interposer_of(runtime)->live[kind]);
}

void support_expect_nothing_live(lade_runtime *runtime) {
  for (int kind = 0; kind < SUPPORT_LIVE_COUNT; kind++) {
    int64_t live = support_live(runtime, (support_live_kind)kind);
    if (live != 0) LADE_FAIL("leaked: %" PRId64 " %s", live, live_texts[kind]);
  }
}

void support_fail(lade_runtime *runtime, const char *op, uint64_t nth, uint64_t times) {
  op_state *state = &interposer_of(runtime)->states[op_find(op)];
  uint64_t first = atomic_load(&state->calls) + nth;
  uint64_t end = times > UINT64_MAX - first ? UINT64_MAX : first + times;
  atomic_store(&state->fail_first, 0);
  atomic_store(&state->fail_end, end);
  atomic_store(&state->fail_first, times == 0 ? 0 : first);
}

void support_hold(lade_runtime *runtime, const char *op, uint64_t nth, support_hold_place place) {
  interposer *self = interposer_of(runtime);
  int found = op_find(op);
  pthread_mutex_lock(&self->hold.mutex);
  LADE_EXPECT_EQ_INT(self->hold.state, HOLD_NONE);
  self->hold.op = found;
  self->hold.number = atomic_load(&self->states[found].calls) + nth;
  self->hold.place = place;
  self->hold.state = HOLD_PLANNED;
  atomic_store(&self->hold_planned, true);
  pthread_mutex_unlock(&self->hold.mutex);
}

void support_hold_await(lade_runtime *runtime) {
  hold_plan *hold = &interposer_of(runtime)->hold;
  pthread_mutex_lock(&hold->mutex);
  while (hold->state != HOLD_HELD) pthread_cond_wait(&hold->changed, &hold->mutex);
  pthread_mutex_unlock(&hold->mutex);
}

void support_hold_end(lade_runtime *runtime) {
  interposer *self = interposer_of(runtime);
  pthread_mutex_lock(&self->hold.mutex);
  self->hold.state = HOLD_NONE;
  atomic_store(&self->hold_planned, false);
  pthread_cond_broadcast(&self->hold.changed);
  pthread_mutex_unlock(&self->hold.mutex);
}

void support_lie_done(lade_runtime *runtime, bool lie) { atomic_store(&interposer_of(runtime)->lies, lie); }

uint64_t support_failed_calls(lade_runtime *runtime) { return atomic_load(&interposer_of(runtime)->failed_calls); }

uint64_t support_call_count(lade_runtime *runtime, const char *op) {
  return atomic_load(&interposer_of(runtime)->states[op_find(op)].calls);
}

void support_on_call(lade_runtime *runtime, void (*hook)(void *user, const char *op), void *user) {
  interposer_of(runtime)->hook = hook;
  interposer_of(runtime)->hook_user = user;
}

size_t support_op_count(void) { return OP_COUNT; }

const char *support_op_name(size_t index) { return op_table[index].name; }

bool support_op_releases(size_t index) {
  static const char *const releasing[] = {
      "device_free",   "vm_address_free",    "vm_release",          "vm_unmap",       "pool_destroy",
      "pool_free",     "host_free",          "host_unregister",     "stream_destroy", "event_destroy",
      "graph_destroy", "graph_exec_destroy", "user_object_release", "peer_disable",   "ipc_close",
  };
  for (size_t i = 0; i < sizeof releasing / sizeof releasing[0]; i++)
    if (strcmp(op_table[index].name, releasing[i]) == 0) return true;
  return false;
}
