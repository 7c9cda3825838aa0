/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of contexts, and recording in them. One state machine with streams.c (contexts.h).
 *
 * Locks: contexts_lock, as contexts.h says.
 */
#include "preload/contexts.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "preload/driver.h"
#include "preload/pause.h"
#include "preload/streams.h"

typedef struct known_context {
  CUcontext handle; /* NULL: a free slot */
  int device;       /* ordinal if it is a primary context, otherwise -1 */
  unsigned generation;
  CUevent *events; /* no longer needed, for reuse */
  size_t event_count, event_room;
} known_context;

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static known_context contexts[PRELOAD_CONTEXTS_MAX];
static bool overflow;             /* a context found no slot: C1 no longer holds, so nothing is recorded */
static atomic_uint changes;       /* of the table: threads drop their remembered answer when it grows */
static _Atomic(int) device_count; /* 0: not asked yet */
static CUdevice natives[PRELOAD_DEVICES_MAX];

/* A thread's last answer; a context usually stays current for long. */
static _Thread_local struct {
  CUcontext handle;
  unsigned changes;
  int device;
} remembered __attribute__((tls_model("initial-exec"))) = {NULL, 0, -1};

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static int devices_count(void) {
  int count = atomic_load(&device_count);
  if (count != 0) return count;
  if (DRIVER_CALL(device_get_count)(&count) != CUDA_SUCCESS) return 0;
  count = count < PRELOAD_DEVICES_MAX ? count : PRELOAD_DEVICES_MAX;
  for (int i = 0; i < count; i++)
    if (DRIVER_CALL(device_get)(&natives[i], i) != CUDA_SUCCESS) return 0;
  atomic_store(&device_count, count);
  return count;
}

int ladei_preload_device_ordinal(CUdevice native) {
  int count = devices_count();
  for (int i = 0; i < count; i++)
    if (natives[i] == native) return i;
  return -1;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static known_context *context_find(CUcontext handle) {
  for (int i = 0; i < PRELOAD_CONTEXTS_MAX; i++)
    if (contexts[i].handle == handle) return &contexts[i];
  return NULL;
}

static void context_add(CUcontext handle, int device) {
  pthread_mutex_lock(&contexts_lock);
  known_context *known = context_find(handle);
  if (known == NULL) {
    known = context_find(NULL);
    overflow = overflow || known == NULL;
    if (known != NULL) {
      known->handle = handle;
      known->device = -1;
    }
  }
  if (known != NULL && device >= 0) known->device = device;
  pthread_mutex_unlock(&contexts_lock);
}

void ladei_preload_context_note(CUcontext handle) {
  if (handle != NULL) context_add(handle, -1);
}

void ladei_preload_context_note_primary(CUcontext handle, int device) {
  if (handle != NULL) context_add(handle, device);
}

/* Device of a context known as primary; -1: it is not known as such; -2: the context is not known. */
static int context_device(CUcontext handle) {
  pthread_mutex_lock(&contexts_lock);
  const known_context *known = context_find(handle);
  int device = known == NULL ? -2 : known->device;
  pthread_mutex_unlock(&contexts_lock);
  return device;
}

static bool primary_known(int device) {
  bool found = false;
  pthread_mutex_lock(&contexts_lock);
  for (int i = 0; i < PRELOAD_CONTEXTS_MAX && !found; i++)
    found = contexts[i].handle != NULL && contexts[i].device == device;
  pthread_mutex_unlock(&contexts_lock);
  return found;
}

/* Notes the device's primary context if it is active, and holds it only meanwhile. Runs inside the gate, which is
 * closed while a context ends: otherwise the context could be noted after its end. */
static void primary_learn_inside(int device) {
  unsigned flags;
  int active = 0;
  assert(atomic_load(&ladei_preload_recording.inside) > 0);
  CUcontext handle = NULL;
  if (primary_known(device) || DRIVER_CALL(primary_ctx_get_state)(natives[device], &flags, &active) != CUDA_SUCCESS ||
      active == 0 || DRIVER_CALL(primary_ctx_retain)(&handle, natives[device]) != CUDA_SUCCESS)
    return;
  ladei_preload_context_note_primary(handle, device);
  (void)DRIVER_CALL(primary_ctx_release)(natives[device]);
}

/* False: not possible now, since a context ends or a stream captures. */
static bool primary_learn(int device) {
  if (primary_known(device)) return true;
  if (!ladei_preload_gate_enter(&ladei_preload_recording)) return false;
  primary_learn_inside(device);
  ladei_preload_gate_leave(&ladei_preload_recording);
  return true;
}

/* Remembers only final answers. */
static int device_remember(CUcontext handle, unsigned now, int device, bool is_final) {
  if (is_final) {
    remembered.handle = handle;
    remembered.changes = now;
    remembered.device = device;
  }
  return device;
}

int ladei_preload_current_device(void) {
  CUcontext handle = NULL;
  CUdevice native;
  unsigned now = atomic_load(&changes);
  if (DRIVER_CALL(ctx_get_current)(&handle) != CUDA_SUCCESS || handle == NULL) return -1;
  if (handle == remembered.handle && now == remembered.changes) return remembered.device;
  int device = context_device(handle);
  bool learned = true;
  if (device < 0 && DRIVER_CALL(ctx_get_device)(&native) == CUDA_SUCCESS) {
    int ordinal = ladei_preload_device_ordinal(native);
    if (ordinal >= 0) learned = primary_learn(ordinal);
    ladei_preload_context_note(handle);
    device = context_device(handle);
  }
  return device_remember(handle, now, device, learned);
}

/* An unknown context may be a primary one that was made by a call without a hook. */
static int handle_device(CUcontext handle) {
  unsigned now = atomic_load(&changes);
  if (handle == remembered.handle && now == remembered.changes) return remembered.device;
  int device = context_device(handle);
  int count = device == -2 ? devices_count() : 0;
  bool learned = true;
  for (int i = 0; i < count; i++) learned = primary_learn(i) && learned;
  if (count > 0) device = context_device(handle);
  return device_remember(handle, now, device < 0 ? -1 : device, learned);
}

CUresult ladei_preload_stream_device(CUstream stream, int *out_device) {
  CUcontext handle = NULL;
  bool is_special = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  CUresult code = is_special ? DRIVER_CALL(ctx_get_current)(&handle) : DRIVER_CALL(stream_get_ctx)(stream, &handle);
  if (code != CUDA_SUCCESS) return code;
  if (handle == NULL) return CUDA_ERROR_INVALID_CONTEXT;
  *out_device = handle_device(handle);
  return CUDA_SUCCESS;
}

bool ladei_preload_stream_is_of(CUstream stream, int device) {
  int own = -1;
  return ladei_preload_stream_device(stream, &own) == CUDA_SUCCESS && own == device;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static CUevent event_reuse(unsigned slot, unsigned generation) {
  CUevent event = NULL;
  pthread_mutex_lock(&contexts_lock);
  known_context *known = &contexts[slot];
  assert(slot < PRELOAD_CONTEXTS_MAX && known->event_count <= known->event_room);
  if (known->generation == generation && known->event_count > 0) event = known->events[--known->event_count];
  pthread_mutex_unlock(&contexts_lock);
  return event;
}

/* An event of the context, or the driver's code if it refuses: the context may be gone. */
static CUresult event_take(const preload_slot *slot, CUevent *out) {
  CUcontext popped;
  *out = event_reuse(slot->index, slot->generation);
  CUresult code = *out == NULL ? DRIVER_CALL(ctx_push_current)(slot->handle) : CUDA_SUCCESS;
  if (*out != NULL || code != CUDA_SUCCESS) return code;
  CUstreamCaptureMode before;
  bool relaxed = ladei_preload_relax(&before);
  code = DRIVER_CALL(event_create)(out, CU_EVENT_DISABLE_TIMING);
  ladei_preload_restore(before, relaxed);
  (void)DRIVER_CALL(ctx_pop_current)(&popped);
  return code;
}

/* Keeps the event for reuse; without memory for that it goes back to the driver. */
static void event_give(const preload_mark *mark) {
  pthread_mutex_lock(&contexts_lock);
  known_context *known = &contexts[mark->slot];
  assert(mark->slot < PRELOAD_CONTEXTS_MAX && mark->event != NULL);
  bool current = known->generation == mark->generation;
  bool kept = !current;
  if (current && known->event_count == known->event_room) {
    size_t room = known->event_room == 0 ? 32 : 2 * known->event_room;
    CUevent *events = realloc(known->events, room * sizeof *events);
    if (events != NULL) {
      known->events = events;
      known->event_room = room;
    }
  }
  if (current && known->event_count < known->event_room) {
    known->events[known->event_count++] = mark->event;
    kept = true;
  }
  pthread_mutex_unlock(&contexts_lock);
  if (!kept) (void)DRIVER_CALL(event_destroy)(mark->event);
}

/* ---- Points ------------------------------------------------------------------------------------------------------ */

static bool mark_add(preload_point *point, unsigned slot, unsigned generation, CUevent event) {
  if (point->count == point->room) {
    bool inside = point->marks == point->few;
    preload_mark *marks = realloc(inside ? NULL : point->marks, 2 * point->room * sizeof *marks);
    if (marks == NULL) return false;
    for (size_t i = 0; i < point->count && inside; i++) marks[i] = point->few[i];
    point->marks = marks;
    point->room *= 2;
  }
  assert(point->count < point->room);
  point->marks[point->count++] = (preload_mark){slot, generation, event};
  return true;
}

/* Records an event on the stream, or in the whole context (NULL), and adds it to the point. */
static CUresult mark_record(preload_point *point, const preload_slot *slot, CUstream stream) {
  CUevent event;
  CUresult code = event_take(slot, &event);
  if (code != CUDA_SUCCESS) return code;
  code = stream == NULL ? DRIVER_CALL(ctx_record_event)(slot->handle, event) : DRIVER_CALL(event_record)(event, stream);
  if (code == CUDA_SUCCESS && mark_add(point, slot->index, slot->generation, event)) return CUDA_SUCCESS;
  preload_mark mark = {slot->index, slot->generation, event};
  event_give(&mark);
  return code == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : code;
}

/* C2, for drivers before 12.5. */
static CUresult streams_record(preload_point *point, const preload_slot *slot) {
  CUcontext popped;
  CUstream streams[PRELOAD_STREAMS_MAX];
  size_t count;
  CUresult code = ladei_preload_streams_of(slot->index, slot->generation, streams, &count) ? CUDA_SUCCESS
                                                                                           : CUDA_ERROR_NOT_SUPPORTED;
  if (code == CUDA_SUCCESS) code = DRIVER_CALL(ctx_push_current)(slot->handle);
  if (code != CUDA_SUCCESS) return code;
  code = mark_record(point, slot, CU_STREAM_LEGACY);
  for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++) code = mark_record(point, slot, streams[i]);
  (void)DRIVER_CALL(ctx_pop_current)(&popped);
  return code;
}

static bool context_is_gone(CUresult code) {
  return code == CUDA_ERROR_INVALID_CONTEXT || code == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void slot_clear(known_context *known) {
  assert(known->handle != NULL); /* C5: a generation ends once */
  known->handle = NULL;
  known->generation++;
  known->event_count = 0;
  atomic_fetch_add(&changes, 1);
}

static size_t slots_copy(preload_slot slots[PRELOAD_CONTEXTS_MAX], bool *out_complete) {
  size_t count = 0;
  pthread_mutex_lock(&contexts_lock);
  for (unsigned i = 0; i < PRELOAD_CONTEXTS_MAX; i++)
    if (contexts[i].handle != NULL) slots[count++] = (preload_slot){i, contexts[i].generation, contexts[i].handle};
  *out_complete = !overflow;
  pthread_mutex_unlock(&contexts_lock);
  return count;
}

/* A context that was ended by calls without hooks holds no work any more. */
static CUresult slot_record(preload_point *point, const preload_slot *slot) {
  assert(atomic_load(&ladei_preload_recording.inside) > 0); /* C4: no capture begins meanwhile */
  CUresult code = DRIVER_HAS(ctx_record_event) ? mark_record(point, slot, NULL) : streams_record(point, slot);
  if (!context_is_gone(code)) return code;
  pthread_mutex_lock(&contexts_lock);
  if (contexts[slot->index].generation == slot->generation) slot_clear(&contexts[slot->index]);
  pthread_mutex_unlock(&contexts_lock);
  return CUDA_SUCCESS;
}

static bool point_record(preload_point *point) {
  preload_slot slots[PRELOAD_CONTEXTS_MAX];
  bool complete;
  int devices = devices_count();
  for (int i = 0; i < devices; i++) primary_learn_inside(i);
  size_t count = slots_copy(slots, &complete);
  CUresult code = complete ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++) code = slot_record(point, &slots[i]);
  point->orphans = ladei_preload_orphans_now();
  return code == CUDA_SUCCESS;
}

bool ladei_preload_point_record(preload_point *out) {
  out->count = 0;
  out->room = PRELOAD_MARKS_INLINE;
  out->marks = out->few;
  if (!ladei_preload_gate_enter(&ladei_preload_recording)) return false;
  bool recorded = point_record(out);
  ladei_preload_gate_leave(&ladei_preload_recording);
  if (!recorded) ladei_preload_point_discard(out);
  return recorded;
}

/* NULL: the context has ended. */
static CUcontext mark_context(const preload_mark *mark) {
  pthread_mutex_lock(&contexts_lock);
  assert(mark->slot < PRELOAD_CONTEXTS_MAX);
  const known_context *known = &contexts[mark->slot];
  CUcontext handle = known->generation == mark->generation ? known->handle : NULL;
  pthread_mutex_unlock(&contexts_lock);
  return handle;
}

/* Without a current context the driver may refuse for that reason; then the query is made in the event's context. */
static CUresult mark_query(const preload_mark *mark, CUcontext handle) {
  CUcontext popped;
  CUresult code = DRIVER_CALL(event_query)(mark->event);
  if (code != CUDA_ERROR_INVALID_CONTEXT || DRIVER_CALL(ctx_push_current)(handle) != CUDA_SUCCESS) return code;
  code = DRIVER_CALL(event_query)(mark->event);
  (void)DRIVER_CALL(ctx_pop_current)(&popped);
  return code;
}

/* Codes that say nothing of the context's work, including those of captures that were not noted. */
static bool is_refusal(CUresult code) {
  bool is_of_capture = code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return is_of_capture || code == CUDA_ERROR_OUT_OF_MEMORY || code == CUDA_ERROR_NOT_SUPPORTED ||
         code == CUDA_ERROR_NOT_PERMITTED;
}

preload_progress ladei_preload_mark_progress(const preload_mark *mark) {
  CUcontext handle = mark_context(mark);
  if (handle == NULL) return PRELOAD_DONE; /* C5 */
  CUresult code = mark_query(mark, handle);
  if (code == CUDA_SUCCESS || context_is_gone(code)) return PRELOAD_DONE;
  if (code == CUDA_ERROR_NOT_READY) return PRELOAD_UNDER_WAY;
  return is_refusal(code) ? PRELOAD_UNKNOWN : PRELOAD_LOST;
}

void ladei_preload_mark_discard(const preload_mark *mark) {
  pthread_mutex_lock(&contexts_lock);
  bool current = contexts[mark->slot].generation == mark->generation;
  pthread_mutex_unlock(&contexts_lock);
  if (current) event_give(mark);
}

/* Works also while another stream captures. */
bool ladei_preload_mark_stream(CUstream stream, preload_mark *out) {
  CUcontext handle = NULL;
  CUcontext popped;
  preload_slot slot;
  preload_point point = {.room = PRELOAD_MARKS_INLINE};
  point.marks = point.few;
  if (DRIVER_CALL(stream_get_ctx)(stream, &handle) != CUDA_SUCCESS) return false;
  ladei_preload_context_note(handle);
  if (!ladei_preload_context_slot(handle, &slot) || DRIVER_CALL(ctx_push_current)(handle) != CUDA_SUCCESS) return false;
  CUstreamCaptureMode before;
  bool relaxed = ladei_preload_relax(&before);
  CUresult code = mark_record(&point, &slot, stream);
  ladei_preload_restore(before, relaxed);
  (void)DRIVER_CALL(ctx_pop_current)(&popped);
  *out = point.few[0];
  return code == CUDA_SUCCESS;
}

static preload_progress marks_progress(preload_point *point) {
  assert(atomic_load(&ladei_preload_recording.inside) > 0); /* C4 */
  while (point->count > 0) {
    preload_progress progress = ladei_preload_mark_progress(&point->marks[point->count - 1]);
    if (progress != PRELOAD_DONE) return progress;
    ladei_preload_mark_discard(&point->marks[--point->count]);
  }
  return ladei_preload_orphans_progress(point->orphans);
}

preload_progress ladei_preload_point_progress(preload_point *point) {
  if (!ladei_preload_gate_enter(&ladei_preload_recording)) return PRELOAD_UNKNOWN;
  preload_progress progress = marks_progress(point);
  ladei_preload_gate_leave(&ladei_preload_recording);
  return progress;
}

void ladei_preload_point_discard(preload_point *point) {
  for (size_t i = 0; i < point->count; i++) ladei_preload_mark_discard(&point->marks[i]);
  if (point->marks != point->few) free(point->marks);
  point->marks = point->few;
  point->count = 0;
}

/* ---- The end of a context ---------------------------------------------------------------------------------------- */

/* The context of that handle, or the primary one of a device for NULL. */
static bool context_of(CUcontext handle, int device, preload_slot *out) {
  bool found = false;
  pthread_mutex_lock(&contexts_lock);
  for (unsigned i = 0; i < PRELOAD_CONTEXTS_MAX && !found; i++) {
    found =
        contexts[i].handle != NULL && (handle != NULL ? contexts[i].handle == handle : contexts[i].device == device);
    if (found) *out = (preload_slot){i, contexts[i].generation, contexts[i].handle};
  }
  pthread_mutex_unlock(&contexts_lock);
  return found;
}

/* Waits while ends of streams and of other contexts close the gate for a moment. False: a stream captures. */
static bool gate_enter_for_end(void) {
  for (int i = 0; i < PRELOAD_END_POLLS; i++) {
    if (ladei_preload_gate_enter(&ladei_preload_recording)) return true;
    if (ladei_preload_captures_any()) return false;
    ladei_preload_pause(PRELOAD_END_POLL_NS);
  }
  return false;
}

/* Stops at a failure, too: nothing runs in a lost context. */
static preload_progress point_wait(preload_point *point) {
  for (int i = 0; i < PRELOAD_END_POLLS; i++) {
    if (!gate_enter_for_end()) return PRELOAD_UNDER_WAY;
    preload_progress progress = marks_progress(point);
    ladei_preload_gate_leave(&ladei_preload_recording);
    if (progress == PRELOAD_DONE || progress == PRELOAD_LOST) return progress;
    ladei_preload_pause(PRELOAD_END_POLL_NS);
  }
  return PRELOAD_UNDER_WAY;
}

preload_progress ladei_preload_context_wait(CUcontext handle, int device) {
  preload_slot found;
  preload_point point = {.room = PRELOAD_MARKS_INLINE};
  point.marks = point.few;
  if (!context_of(handle, device, &found)) return PRELOAD_DONE;
  if (!gate_enter_for_end()) return PRELOAD_UNDER_WAY;
  CUresult code = slot_record(&point, &found);
  point.orphans = ladei_preload_orphans_now();
  ladei_preload_gate_leave(&ladei_preload_recording);
  preload_progress progress = code == CUDA_SUCCESS ? point_wait(&point)
                              : is_refusal(code)   ? PRELOAD_UNDER_WAY
                                                   : PRELOAD_LOST;
  ladei_preload_point_discard(&point);
  return progress;
}

static void events_destroy(const preload_slot *slot) {
  CUcontext popped;
  CUevent event;
  if (DRIVER_CALL(ctx_push_current)(slot->handle) != CUDA_SUCCESS) return; /* they go with the context */
  while ((event = event_reuse(slot->index, slot->generation)) != NULL) (void)DRIVER_CALL(event_destroy)(event);
  (void)DRIVER_CALL(ctx_pop_current)(&popped);
}

void ladei_preload_context_clear(CUcontext handle, int device) {
  preload_slot found;
  assert(atomic_load(&ladei_preload_recording.closed) > 0); /* no other thread records */
  if (!context_of(handle, device, &found)) return;
  ladei_preload_orphans_drop(found.index, found.generation);
  events_destroy(&found);
}

void ladei_preload_context_forget(CUcontext handle, int device) {
  preload_slot found;
  assert(atomic_load(&ladei_preload_recording.closed) > 0); /* it opens when the context is forgotten */
  if (!context_of(handle, device, &found)) return;
  ladei_preload_orphans_drop(found.index, found.generation);
  ladei_preload_streams_drop(found.index, found.generation);
  pthread_mutex_lock(&contexts_lock);
  if (contexts[found.index].generation == found.generation) slot_clear(&contexts[found.index]);
  pthread_mutex_unlock(&contexts_lock);
}

bool ladei_preload_context_slot(CUcontext handle, preload_slot *out) {
  pthread_mutex_lock(&contexts_lock);
  const known_context *known = context_find(handle);
  if (known != NULL) *out = (preload_slot){(unsigned)(known - contexts), known->generation, handle};
  pthread_mutex_unlock(&contexts_lock);
  return known != NULL;
}

const char *ladei_preload_contexts_check(void) {
  const char *wrong = NULL;
  pthread_mutex_lock(&contexts_lock);
  for (int i = 0; i < PRELOAD_CONTEXTS_MAX; i++) {
    const known_context *known = &contexts[i];
    bool is_free = known->handle == NULL;
    if (!is_free && context_find(known->handle) != known) wrong = "contexts: one is there twice";
    if (known->event_count > known->event_room || (is_free && known->event_count > 0))
      wrong = "contexts: events of one that has ended, or more than there is room for";
    if (!is_free && known->device >= PRELOAD_DEVICES_MAX) wrong = "contexts: one is of no device";
  }
  pthread_mutex_unlock(&contexts_lock);
  return wrong;
}
