/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the loopback driver remembers: the software devices, primary contexts, context stacks, faults, counts.
 *
 *   thread's stack   [ context of device 0 | context of device 1 ]  <- top is current
 *
 * I1  The software devices exist from the first cuInit until reset.
 * I2  A context is alive while retained > 0; its handle never changes.
 * Locks: `lock` guards all of `state` but the constant and atomic fields; stacks are thread-local.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/soft/soft.h"
#include "tests/loopback/hooks.h"
#include "tests/loopback/loopback.h"

enum { MAX_CREATED = 8, MAX_STREAMS = 1024, MAX_EVENTS = 4096 };
enum { MAX_FAULTS = 16, MAX_HIDDEN = 16, MAX_STACK = 32, DEFAULT_DEVICES = 2, DEFAULT_VERSION = 13000 };
#define DEVICE_BYTES ((uint64_t)1 << 30)

typedef struct loop_fault {
  char symbol[64];    /* "" for a free entry */
  uint64_t countdown; /* 0: every call */
  CUresult code;
} loop_fault;

static struct {
  pthread_mutex_t lock;
  _Atomic(const lade_runtime_ops *) ops;
  void *self;
  int device_count; /* 0: the default */
  int version;      /* 0: the default */
  CUresult broken;  /* answer of every call on a context; CUDA_SUCCESS: none */
  loop_context contexts[LOOP_MAX_DEVICES];
  loop_context created[MAX_CREATED]; /* of the program's own */
  struct {
    CUstream handle; /* NULL for a free entry */
    loop_stream_made made;
  } streams[MAX_STREAMS];
  struct {
    CUevent handle; /* NULL for a free entry */
    const loop_context *context;
  } events[MAX_EVENTS];
  _Atomic(bool) program;
  _Atomic(bool) contexts_made;
  loop_fault faults[MAX_FAULTS];
  char hidden[MAX_HIDDEN][64];
  int hidden_count;
  uint64_t calls[LOOP_ROW_COUNT];
  struct {
    const char *symbol;
    int version;
  } asked[2 * LOOP_ROW_COUNT];
  size_t asked_count;
  struct {
    char symbol[64]; /* "" for none */
    void (*function)(void *user);
    void *user;
  } interruption;
  _Atomic(size_t) misaligned_below;
  CUstream recycled, recycled_as; /* written while one thread is at work */
  _Atomic(uint64_t) graph_memory[4];
  int attribute, attribute_value; /* 0: none; written while one thread is at work */
  char violations[1024];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A child of fork() calls the driver, too: no other thread holds a lock in it. */
static void state_lock(void) { pthread_mutex_lock(&state.lock); }
static void state_unlock(void) { pthread_mutex_unlock(&state.lock); }
__attribute__((constructor)) static void fork_watch(void) { pthread_atfork(state_lock, state_unlock, state_unlock); }

static _Thread_local struct {
  loop_context *contexts[MAX_STACK];
  int depth;
} stack;

const loop_row_info loop_rows[LOOP_ROW_COUNT] = {
#define LOOP_INFO(symbol, version, demands) {#symbol, version, demands},
    LOOPBACK_SYMBOLS(LOOP_INFO)
#undef LOOP_INFO
};

/* ---- Software devices -------------------------------------------------------------------------------------------- */

const lade_runtime_ops *loop_ops(void) { return atomic_load(&state.ops); }
void *loop_self(void) { return state.self; }
int loop_device_count(void) { return state.device_count == 0 ? DEFAULT_DEVICES : state.device_count; }
int loop_driver_version(void) { return state.version == 0 ? DEFAULT_VERSION : state.version; }

CUresult loop_start(void) {
  if (loop_ops() != NULL && ladei_soft_of_parent(loop_self())) return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&state.lock);
  lade_status status = LADE_OK;
  if (atomic_load(&state.ops) == NULL) {
    lade_soft_device devices[LOOP_MAX_DEVICES] = {{0}};
    lade_soft_options options;
    const lade_runtime_ops *ops = NULL;
    lade_soft_options_init(&options);
    options.devices = devices;
    options.device_count = (uint64_t)loop_device_count();
    for (int i = 0; i < LOOP_MAX_DEVICES; i++) {
      devices[i].memory_bytes = DEVICE_BYTES;
      state.contexts[i].device = i;
    }
    status = ladei_soft_open(false, &options, &ops, &state.self);
    if (status == LADE_OK) atomic_store(&state.ops, ops);
  }
  pthread_mutex_unlock(&state.lock);
  return status == LADE_OK ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

loop_context *loop_current(void) { return stack.depth == 0 ? NULL : stack.contexts[stack.depth - 1]; }

loop_context *loop_context_of_device(int device) {
  return device >= 0 && device < loop_device_count() ? &state.contexts[device] : NULL;
}

loop_context *loop_context_find(CUcontext handle) {
  for (int i = 0; i < loop_device_count(); i++)
    if (loop_context_handle(&state.contexts[i]) == handle) return &state.contexts[i];
  for (int i = 0; i < MAX_CREATED; i++)
    if (loop_context_handle(&state.created[i]) == handle) return &state.created[i];
  return NULL;
}

bool loop_context_usable(const loop_context *context) {
  pthread_mutex_lock(&state.lock);
  bool usable = context->retained > 0 && !context->reset;
  pthread_mutex_unlock(&state.lock);
  return usable;
}

/* A handle that a program may make current. */
static CUresult context_take(CUcontext handle, loop_context **out) {
  loop_context *context = loop_context_find(handle);
  if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&state.lock);
  bool retained = context->retained > 0;
  pthread_mutex_unlock(&state.lock);
  if (!retained) {
    loop_violation("context of device %d made current while nobody retains it", context->device);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *out = context;
  return CUDA_SUCCESS;
}

/* ---- Events that are alive --------------------------------------------------------------------------------------- */

void loop_event_note(CUevent event, const loop_context *context) {
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_EVENTS; i++) {
    if (state.events[i].handle != NULL) continue;
    state.events[i].handle = event;
    state.events[i].context = context;
    break;
  }
  pthread_mutex_unlock(&state.lock);
}

bool loop_contexts_made(void) { return atomic_load(&state.contexts_made); }

const loop_context *loop_event_context(CUevent event) {
  const loop_context *context = NULL;
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_EVENTS && context == NULL; i++)
    if (state.events[i].handle == event) context = state.events[i].context;
  pthread_mutex_unlock(&state.lock);
  return context;
}

void loop_event_forget(CUevent event) {
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_EVENTS; i++)
    if (state.events[i].handle == event) state.events[i].handle = NULL;
  pthread_mutex_unlock(&state.lock);
}

/* The context has ended. */
static void objects_end(const loop_context *context) {
  for (int i = 0; i < MAX_EVENTS && loop_plays_program(); i++) {
    CUevent ended = NULL;
    pthread_mutex_lock(&state.lock);
    if (state.events[i].context == context) {
      ended = state.events[i].handle;
      state.events[i].handle = NULL;
    }
    pthread_mutex_unlock(&state.lock);
    if (ended != NULL) (void)loop_ops()->event_destroy(loop_self(), ended);
  }
  loop_pinned_end(context);
}

/* Access ends with either of the two contexts. */
static void peers_end(loop_context *context) {
  for (int i = 0; i < LOOP_MAX_DEVICES; i++) {
    if (atomic_exchange(&context->peers[i], false)) (void)loop_ops()->peer_disable(loop_self(), context->device, i);
    if (atomic_exchange(&state.contexts[i].peers[context->device], false))
      (void)loop_ops()->peer_disable(loop_self(), i, context->device);
  }
}

/* ---- Primary contexts -------------------------------------------------------------------------------------------- */

CUresult loop_cuDevicePrimaryCtxRetain_v7000(CUcontext *out, CUdevice device) {
  LOOP_ENTER(cuDevicePrimaryCtxRetain, 7000);
  loop_context *context = loop_context_of_device(device);
  uint64_t identity;
  if (context == NULL || out == NULL) return context == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
  lade_status status = loop_ops()->device_context(loop_self(), device, &identity);
  if (status != LADE_OK) return loop_code(status);
  pthread_mutex_lock(&state.lock);
  if (context->retained++ == 0 || (context->reset && loop_plays_program())) {
    context->created++;
    context->reset = false;
  }
  pthread_mutex_unlock(&state.lock);
  *out = loop_context_handle(context);
  return CUDA_SUCCESS;
}

CUresult loop_cuDevicePrimaryCtxRelease_v11000(CUdevice device) {
  LOOP_ENTER(cuDevicePrimaryCtxRelease, 11000);
  loop_context *context = loop_context_of_device(device);
  if (context == NULL) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&state.lock);
  CUresult code = context->retained > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  context->retained -= context->retained > 0 ? 1u : 0u;
  bool ends = code == CUDA_SUCCESS && context->retained == 0;
  pthread_mutex_unlock(&state.lock);
  if (ends) objects_end(context);
  if (ends) peers_end(context);
  if (code != CUDA_SUCCESS) loop_violation("context of device %d released more often than retained", device);
  return code;
}

CUresult loop_cuDevicePrimaryCtxGetState_v7000(CUdevice device, unsigned int *flags, int *active) {
  LOOP_ENTER(cuDevicePrimaryCtxGetState, 7000);
  loop_context *context = loop_context_of_device(device);
  if (context == NULL) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = loop_context_usable(context) ? 1 : 0;
  return CUDA_SUCCESS;
}

/* What the program and lade had in it is theirs to have given back. */
CUresult loop_cuDevicePrimaryCtxReset_v11000(CUdevice device) {
  LOOP_ENTER(cuDevicePrimaryCtxReset, 11000);
  loop_context *context = loop_context_of_device(device);
  if (context == NULL) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&state.lock);
  context->reset = true; /* references stay, until they are released */
  pthread_mutex_unlock(&state.lock);
  objects_end(context);
  peers_end(context);
  return CUDA_SUCCESS;
}

/* On the software device it shares the memory and the default stream of the primary one. */
CUresult loop_cuCtxCreate_v3020(CUcontext *out, unsigned int flags, CUdevice device) {
  LOOP_ENTER(cuCtxCreate, 3020);
  loop_context *made = NULL;
  if (flags != 0 || loop_context_of_device(device) == NULL) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_CREATED && made == NULL; i++)
    if (state.created[i].retained == 0) made = &state.created[i];
  if (made != NULL) {
    made->device = device;
    made->retained = 1;
  }
  pthread_mutex_unlock(&state.lock);
  if (made == NULL || stack.depth == MAX_STACK) return CUDA_ERROR_OUT_OF_MEMORY;
  stack.contexts[stack.depth++] = made;
  atomic_store(&state.contexts_made, true);
  *out = loop_context_handle(made);
  return CUDA_SUCCESS;
}

CUresult loop_cuCtxDestroy_v4000(CUcontext handle) {
  LOOP_ENTER(cuCtxDestroy, 4000);
  loop_context *context = loop_context_find(handle);
  if (context == NULL || context < state.created || context >= state.created + MAX_CREATED || context->retained == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&state.lock);
  context->retained = 0;
  pthread_mutex_unlock(&state.lock);
  objects_end(context);
  stack.depth -= loop_current() == context ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult loop_cuCtxGetCurrent_v4000(CUcontext *out) {
  LOOP_ENTER(cuCtxGetCurrent, 4000);
  loop_context *current = loop_current();
  *out = current == NULL ? NULL : loop_context_handle(current);
  return CUDA_SUCCESS;
}

CUresult loop_cuCtxPushCurrent_v4000(CUcontext handle) {
  LOOP_ENTER(cuCtxPushCurrent, 4000);
  loop_context *context;
  CUresult code = context_take(handle, &context);
  if (code != CUDA_SUCCESS) return code;
  if (stack.depth == MAX_STACK) {
    loop_violation("%d contexts pushed in one thread", MAX_STACK);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  stack.contexts[stack.depth++] = context;
  return CUDA_SUCCESS;
}

CUresult loop_cuCtxPopCurrent_v4000(CUcontext *out) {
  LOOP_ENTER(cuCtxPopCurrent, 4000);
  if (stack.depth == 0) {
    loop_violation("a context popped from an empty stack");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *out = loop_context_handle(stack.contexts[--stack.depth]);
  return CUDA_SUCCESS;
}

/* Replaces the top; NULL takes it away. */
CUresult loop_cuCtxSetCurrent_v4000(CUcontext handle) {
  LOOP_ENTER(cuCtxSetCurrent, 4000);
  loop_context *context = NULL;
  CUresult code = handle == NULL ? CUDA_SUCCESS : context_take(handle, &context);
  if (code != CUDA_SUCCESS) return code;
  stack.depth -= stack.depth > 0 ? 1 : 0;
  if (context != NULL) stack.contexts[stack.depth++] = context;
  return CUDA_SUCCESS;
}

/* ---- Streams that are alive -------------------------------------------------------------------------------------- */

void loop_stream_note(CUstream stream, const loop_stream_made *made) {
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_STREAMS; i++) {
    if (state.streams[i].handle != NULL) continue;
    state.streams[i].handle = stream;
    state.streams[i].made = *made;
    break;
  }
  pthread_mutex_unlock(&state.lock);
}

void loop_stream_forget(CUstream stream) {
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_STREAMS; i++)
    if (state.streams[i].handle == stream) state.streams[i].handle = NULL;
  pthread_mutex_unlock(&state.lock);
}

bool loop_stream_find(CUstream stream, loop_stream_made *out) {
  bool found = false;
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_STREAMS && !found; i++) {
    found = state.streams[i].handle == stream && stream != NULL;
    if (found) *out = state.streams[i].made;
  }
  pthread_mutex_unlock(&state.lock);
  return found;
}

size_t loop_streams_of(int device, CUstream *streams, size_t room) {
  size_t count = 0;
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_STREAMS && count < room; i++)
    if (state.streams[i].handle != NULL && state.streams[i].made.device == device)
      streams[count++] = state.streams[i].handle;
  pthread_mutex_unlock(&state.lock);
  return count;
}

/* ---- Entering a call --------------------------------------------------------------------------------------------- */

void loop_violation(const char *format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&state.lock);
  size_t used = strlen(state.violations);
  snprintf(state.violations + used, sizeof state.violations - used, "%s; ", text);
  pthread_mutex_unlock(&state.lock);
}

/* The fault due on this call. Under the lock. */
static CUresult fault_due(const char *symbol) {
  for (int i = 0; i < MAX_FAULTS; i++) {
    loop_fault *fault = &state.faults[i];
    if (strcmp(fault->symbol, symbol) != 0) continue;
    if (fault->countdown == 0) return fault->code;
    if (--fault->countdown == 0) {
      fault->symbol[0] = '\0';
      return fault->code;
    }
  }
  return CUDA_SUCCESS;
}

static CUresult context_demand(void) {
  loop_context *current = loop_current();
  if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
  return loop_context_usable(current) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void interruption_run(const char *symbol) {
  void (*function)(void *) = NULL;
  pthread_mutex_lock(&state.lock);
  if (strcmp(state.interruption.symbol, symbol) == 0) {
    function = state.interruption.function;
    state.interruption.symbol[0] = '\0';
  }
  void *user = state.interruption.user;
  pthread_mutex_unlock(&state.lock);
  if (function != NULL) function(user);
}

CUresult loop_enter(loop_row row) {
  const loop_row_info *info = &loop_rows[row];
  interruption_run(info->symbol);
  pthread_mutex_lock(&state.lock);
  state.calls[row]++;
  CUresult code = fault_due(info->symbol);
  if (code == CUDA_SUCCESS && state.broken != CUDA_SUCCESS &&
      ((info->demands & LOOP_CONTEXT) != 0 ||
       (state.broken == CUDA_ERROR_DEINITIALIZED && (info->demands & LOOP_INIT) != 0)))
    code = state.broken;
  pthread_mutex_unlock(&state.lock);
  bool calls = code == CUDA_SUCCESS && (info->demands & LOOP_INIT) != 0;
  if (calls && (loop_ops() == NULL || ladei_soft_of_parent(loop_self()))) return CUDA_ERROR_NOT_INITIALIZED;
  if (calls && ladei_soft_in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  if (code == CUDA_SUCCESS && (info->demands & LOOP_CONTEXT) != 0) code = context_demand();
  if (code == CUDA_SUCCESS && (info->demands & LOOP_UNSAFE) != 0)
    code = loop_code(ladei_soft_unsafe_call(loop_self(), info->symbol));
  return code;
}

bool loop_symbol_hidden(const char *symbol) {
  bool hidden = false;
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < state.hidden_count; i++) hidden = hidden || strcmp(state.hidden[i], symbol) == 0;
  pthread_mutex_unlock(&state.lock);
  return hidden;
}

void loop_symbol_asked(const char *symbol, int version) {
  const char *known = NULL;
  for (size_t i = 0; i < LOOP_ROW_COUNT; i++)
    known = strcmp(loop_rows[i].symbol, symbol) == 0 ? loop_rows[i].symbol : known;
  pthread_mutex_lock(&state.lock);
  if (known != NULL && state.asked_count < sizeof state.asked / sizeof state.asked[0]) {
    state.asked[state.asked_count].symbol = known;
    state.asked[state.asked_count++].version = version;
  }
  pthread_mutex_unlock(&state.lock);
}

/* ---- Hooks ------------------------------------------------------------------------------------------------------- */

#define LOOP_HOOK_DECLARE(name) LOOP_EXPORT __typeof__(*((loopback_hooks *)0)->name) lade_loopback_##name;
LOOPBACK_HOOKS(LOOP_HOOK_DECLARE)
#undef LOOP_HOOK_DECLARE

lade_status lade_loopback_reset(void) {
  const lade_runtime_ops *ops = loop_ops();
  lade_status status = ops == NULL ? LADE_OK : ops->close(state.self);
  if (status != LADE_OK) return status;
  pthread_mutex_lock(&state.lock);
  atomic_store(&state.ops, NULL);
  state.self = NULL;
  state.device_count = 0;
  state.version = 0;
  state.broken = CUDA_SUCCESS;
  state.hidden_count = 0;
  state.asked_count = 0;
  state.violations[0] = '\0';
  atomic_store(&state.misaligned_below, 0);
  state.recycled = NULL;
  for (int i = 0; i < 4; i++) atomic_store(&state.graph_memory[i], 0);
  state.attribute = 0;
  state.interruption.symbol[0] = '\0';
  loop_made_graphs_reset();
  memset(state.contexts, 0, sizeof state.contexts);
  memset(state.created, 0, sizeof state.created);
  memset(state.streams, 0, sizeof state.streams);
  memset(state.events, 0, sizeof state.events);
  atomic_store(&state.program, false);
  atomic_store(&state.contexts_made, false);
  memset(state.faults, 0, sizeof state.faults);
  memset(state.calls, 0, sizeof state.calls);
  pthread_mutex_unlock(&state.lock);
  stack.depth = 0;
  return LADE_OK;
}

void lade_loopback_set_devices(int count) { state.device_count = count < LOOP_MAX_DEVICES ? count : LOOP_MAX_DEVICES; }
void lade_loopback_set_version(int version) { state.version = version; }

void lade_loopback_hide(const char *symbol) {
  pthread_mutex_lock(&state.lock);
  if (state.hidden_count < MAX_HIDDEN)
    snprintf(state.hidden[state.hidden_count++], sizeof state.hidden[0], "%s", symbol);
  pthread_mutex_unlock(&state.lock);
}

void lade_loopback_fail(const char *symbol, uint64_t nth, CUresult code) {
  pthread_mutex_lock(&state.lock);
  for (int i = 0; i < MAX_FAULTS; i++) {
    loop_fault *fault = &state.faults[i];
    if (fault->symbol[0] == '\0') {
      snprintf(fault->symbol, sizeof fault->symbol, "%s", symbol);
      fault->countdown = nth;
      fault->code = code;
      break;
    }
  }
  pthread_mutex_unlock(&state.lock);
}

void lade_loopback_fail_clear(void) {
  pthread_mutex_lock(&state.lock);
  memset(state.faults, 0, sizeof state.faults);
  state.broken = CUDA_SUCCESS;
  pthread_mutex_unlock(&state.lock);
}

void lade_loopback_play_program(void) { atomic_store(&state.program, true); }
bool loop_plays_program(void) { return atomic_load(&state.program); }

void lade_loopback_misalign(size_t below_bytes) { atomic_store(&state.misaligned_below, below_bytes); }
size_t loop_misaligned_below(void) { return atomic_load(&state.misaligned_below); }

void lade_loopback_recycle(CUstream handle, CUstream made) {
  state.recycled = handle;
  state.recycled_as = made;
}

CUstream loop_recycled(CUstream handle) {
  return handle != NULL && handle == state.recycled ? state.recycled_as : handle;
}

void lade_loopback_set_graph_memory(const uint64_t *values) {
  for (int i = 0; i < 4; i++) atomic_store(&state.graph_memory[i], values[i]);
}
void lade_loopback_set_attribute(int attribute, int value) {
  state.attribute = attribute;
  state.attribute_value = value;
}
bool loop_attribute(int attribute, int *out) {
  if (attribute == 0 || attribute != state.attribute) return false;
  *out = state.attribute_value;
  return true;
}

uint64_t loop_graph_memory(int attribute) { return atomic_load(&state.graph_memory[attribute]); }
void loop_graph_memory_trim(void) {
  atomic_store(&state.graph_memory[CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT],
               atomic_load(&state.graph_memory[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT]));
}

void lade_loopback_interrupt(const char *symbol, void (*function)(void *user), void *user) {
  pthread_mutex_lock(&state.lock);
  snprintf(state.interruption.symbol, sizeof state.interruption.symbol, "%s", symbol);
  state.interruption.function = function;
  state.interruption.user = user;
  pthread_mutex_unlock(&state.lock);
}

void lade_loopback_break_all(CUresult code) {
  pthread_mutex_lock(&state.lock);
  state.broken = code;
  pthread_mutex_unlock(&state.lock);
}

void lade_loopback_reset_device(int device) {
  pthread_mutex_lock(&state.lock);
  state.contexts[device].reset = true;
  pthread_mutex_unlock(&state.lock);
}

void lade_loopback_end_stream(CUstream stream) {
  if (loop_cuStreamDestroy_v4000(stream) != CUDA_SUCCESS) loop_violation("a test ended a stream that is none");
}

uint64_t lade_loopback_calls(const char *symbol) {
  uint64_t calls = 0;
  pthread_mutex_lock(&state.lock);
  for (size_t i = 0; i < LOOP_ROW_COUNT; i++)
    calls += symbol == NULL || strcmp(loop_rows[i].symbol, symbol) == 0 ? state.calls[i] : 0;
  pthread_mutex_unlock(&state.lock);
  return calls;
}

int lade_loopback_asked_version(const char *symbol, int at_least) {
  int version = 0;
  pthread_mutex_lock(&state.lock);
  for (size_t i = 0; i < state.asked_count; i++)
    if (strcmp(state.asked[i].symbol, symbol) == 0 && state.asked[i].version >= at_least &&
        (version == 0 || state.asked[i].version < version))
      version = state.asked[i].version;
  pthread_mutex_unlock(&state.lock);
  return version;
}

unsigned lade_loopback_retained(int device) { return state.contexts[device].retained; }
unsigned lade_loopback_contexts_created(int device) { return state.contexts[device].created; }
int lade_loopback_stack_depth(void) { return stack.depth; }
const char *lade_loopback_violations(void) { return state.violations; }

unsigned lade_loopback_waiting(void) { return loop_ops() == NULL ? 0 : ladei_soft_waiting(loop_self()); }

lade_status lade_loopback_report(lade_soft_report *out) {
  return loop_ops() == NULL ? LADE_ERR_NO_DEVICE : ladei_soft_report(loop_self(), out);
}
