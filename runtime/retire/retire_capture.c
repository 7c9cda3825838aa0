/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses inside captures: they end when the captured graph has gone.
 *
 *   graph --retains--> user object --destroyed: capture_gone()--> capture_record --pushed--> box->gone
 *                                                                                              |
 *   retire object: poll drains the box: record->queue is finished, its tickets are done  <-----'
 *
 * A graph may outlive the retire object, which its user object then no longer reaches. So records and box are separate
 * from the retire object and live as long as anything needs them.
 *
 * C1  box->references = records not yet gone + 1 while the retire object lives.
 * C2  A record belongs to its user object until capture_gone, then to the box, then to the thread that drains it.
 * C3  queue->record_live exactly while the record exists and the retire object lives: the record points to the queue,
 *     which is kept. Two threads that meet a new capture at once may make two records; no search finds the second one's
 *     queue, which is freed with its record.
 * C4  A fence has two owners, its user object and its maker; the last one frees it.
 * Locks: box->gone is a stack, pushed to and taken whole without a lock: capture_gone runs at any time, in the call
 * that drops the last reference or on a thread of the driver. The rest is under retire->lock.
 */
#include "runtime/retire/retire_capture.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/switch.h"

typedef struct capture_record {
  struct ladei_retire_capture_box *box;
  ladei_retire_queue *queue;
  struct capture_record *next; /* in box->gone */
} capture_record;

struct ladei_retire_capture_box {
  _Atomic(capture_record *) gone;
  _Atomic(uint64_t) references;
};

/* ---- The box ----------------------------------------------------------------------------------------------------- */

lade_status ladei_retire_capture_box_create(struct ladei_retire_capture_box **out) {
  struct ladei_retire_capture_box *box = calloc(1, sizeof *box);
  if (box == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "retire: no memory for %zu bytes", sizeof *box);
  atomic_init(&box->references, 1);
  *out = box;
  return LADE_OK;
}

static void box_release(struct ladei_retire_capture_box *box) {
  if (atomic_fetch_sub_explicit(&box->references, 1, memory_order_acq_rel) > 1) return;
  for (capture_record *record = atomic_load(&box->gone), *next; record != NULL; record = next) {
    next = record->next;
    free(record);
  }
  free(box);
}

void ladei_retire_capture_box_abandon(struct ladei_retire_capture_box *box) {
  if (box != NULL) box_release(box);
}

/* Destructor of the user object: in any thread, no driver call, no lock. */
static void capture_gone(void *user) {
  capture_record *record = user;
  struct ladei_retire_capture_box *box = record->box;
  capture_record *head = atomic_load_explicit(&box->gone, memory_order_relaxed);
  do {
    ladei_switch_point("capture gone", 0);
    record->next = head;
  } while (
      !atomic_compare_exchange_weak_explicit(&box->gone, &head, record, memory_order_release, memory_order_relaxed));
  box_release(box);
}

/* The stack has the newest on top: reversed, so that captures finish in the order of their end. */
static capture_record *gone_take(struct ladei_retire_capture_box *box) {
  if (atomic_load_explicit(&box->gone, memory_order_relaxed) == NULL) return NULL;
  ladei_switch_point("take gone", 0);
  capture_record *stack = atomic_exchange_explicit(&box->gone, NULL, memory_order_acquire), *list = NULL;
  while (stack != NULL) {
    capture_record *next = stack->next;
    stack->next = list;
    list = stack;
    stack = next;
  }
  return list;
}

/* ---- The queue of a capture -------------------------------------------------------------------------------------- */

/* Frees a record that no user object has. */
static void record_drop(capture_record *record) {
  box_release(record->box);
  free(record);
}

static capture_record *record_make(ladei_retire *retire, uint64_t capture_id) {
  capture_record *record = calloc(1, sizeof *record);
  ladei_retire_queue *queue = ladei_retire_queue_alloc();
  if (record == NULL || queue == NULL) {
    free(record);
    free(queue);
    return NULL;
  }
  const ladei_stream identity = {.id = capture_id};
  ladei_retire_queue_init(queue, LADEI_RETIRE_QUEUE_CAPTURE, &identity, 0);
  queue->refs = 1;
  queue->record_live = true;
  record->queue = queue;
  record->box = retire->captures;
  atomic_fetch_add(&record->box->references, 1);
  return record;
}

/* Ties `user` to the graph: `destroy` runs once the graph and all that was made from it are gone. After a failure only
 * the caller has `user`, or `destroy` has run. */
static lade_status object_tie(ladei_retire *retire, ladei_host_function destroy, void *user, ladei_graph graph,
                              bool *out_known) {
  ladei_user_object object;
  void *self = retire->runtime->self;
  lade_status status = ladei_retire_driver(retire)->user_object_create(self, destroy, user, &object);
  *out_known = status == LADE_OK;
  if (status != LADE_OK) return status;
  status = ladei_retire_driver(retire)->graph_retain_user_object(self, graph, object);
  if (status != LADE_OK) LADEI_ASIDE((void)ladei_retire_driver(retire)->user_object_release(self, object));
  return status;
}

/* Under the lock. Adds the queue to all: as that of its capture, or under a name that no search uses. */
static void queue_publish(ladei_retire *retire, ladei_retire_queue *queue, bool findable) {
  ladei_lock_assert_held(&retire->lock);
  if (!findable || ladei_retire_queue_find(retire, LADEI_RETIRE_QUEUE_CAPTURE, 0, queue->stream.id) != NULL)
    queue->stream.context = ++retire->unnamed_captures;
  ladei_retire_queue_register(retire, queue);
}

static lade_status queue_make(ladei_retire *retire, int device, const ladei_capture_info *info,
                              ladei_retire_queue **out) {
  capture_record *record = record_make(retire, info->id);
  if (record == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "retire: no memory for a capture's queue of %zu bytes",
                       sizeof(ladei_retire_queue));
  }
  ladei_retire_queue *queue = record->queue; /* once known, the record may be drained at any time */
  bool known = false;
  lade_status status = object_tie(retire, capture_gone, record, info->graph, &known);
  ladei_lock_acquire(&retire->lock);
  retire->capture_device = device;
  if (!known) {
    queue->record_live = false;
    record_drop(record);
  }
  queue_publish(retire, queue, status == LADE_OK);
  if (status == LADE_OK)
    *out = queue;
  else
    ladei_retire_queue_unpin(retire, queue);
  ladei_lock_release(&retire->lock);
  return status;
}

lade_status ladei_retire_capture_queue_need(ladei_retire *retire, int device, const ladei_capture_info *info,
                                            ladei_retire_queue **out) {
  ladei_lock_acquire(&retire->lock);
  ladei_retire_queue *queue = ladei_retire_queue_find(retire, LADEI_RETIRE_QUEUE_CAPTURE, 0, info->id);
  if (queue != NULL) ladei_retire_queue_pin(retire, queue);
  ladei_lock_release(&retire->lock);
  if (queue != NULL) {
    *out = queue;
    return LADE_OK;
  }
  return queue_make(retire, device, info, out);
}

bool ladei_retire_capture_any_gone(ladei_retire *retire) {
  return atomic_load_explicit(&retire->captures->gone, memory_order_relaxed) != NULL;
}

/* ---- Fences ------------------------------------------------------------------------------------------------------ */

struct ladei_retire_fence {
  atomic_bool passed;
  atomic_int owners;
};

static void fence_release(ladei_retire_fence *fence) {
  if (atomic_fetch_sub_explicit(&fence->owners, 1, memory_order_acq_rel) == 1) free(fence);
}

/* Destructor of the user object. Has no switch point: on "sim" it runs in a step, in which no other thread can step. */
static void fence_pass(void *user) {
  ladei_retire_fence *fence = user;
  atomic_store_explicit(&fence->passed, true, memory_order_release);
  fence_release(fence);
}

static void nothing(void *user) { (void)user; }

/* A graph of one node, so that every driver really launches it. */
static lade_status graph_capture(ladei_retire *retire, const ladei_stream *stream, ladei_graph *out) {
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  void *self = retire->runtime->self;
  LADEI_TRY(driver->capture_begin(self, stream, LADEI_CAPTURE_RELAXED));
  lade_status noted = driver->host_function(self, stream, nothing, NULL);
  lade_status status = driver->capture_end(self, stream, out);
  if (status == LADE_OK && noted != LADE_OK) (void)driver->graph_destroy(self, *out);
  return noted != LADE_OK ? noted : status;
}

/* Launches an executable graph that holds only the fence, and destroys it. */
static lade_status fence_send(ladei_retire *retire, const ladei_stream *stream, ladei_retire_fence *fence,
                              bool *out_known) {
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  void *self = retire->runtime->self;
  ladei_graph graph;
  ladei_graph_exec exec = NULL;
  LADEI_TRY(graph_capture(retire, stream, &graph));
  lade_status status = object_tie(retire, fence_pass, fence, graph, out_known);
  if (status == LADE_OK) status = driver->graph_instantiate(self, graph, &exec);
  if (status == LADE_OK) status = driver->graph_launch(self, exec, stream);
  (void)driver->graph_destroy(self, graph);
  if (exec != NULL && driver->graph_exec_destroy(self, exec) != LADE_OK && status == LADE_OK) status = LADE_ERR_DRIVER;
  return status;
}

static lade_status fence_make(ladei_retire *retire, int device, ladei_retire_fence *fence, bool *out_known) {
  const lade_runtime_ops *driver = ladei_retire_driver(retire);
  void *self = retire->runtime->self;
  lade_stream handle;
  ladei_stream stream;
  LADEI_TRY(driver->stream_create(self, device, 0, LADEI_STREAM_NON_BLOCKING, &handle));
  lade_status status = driver->stream_resolve(self, handle, &stream);
  if (status == LADE_OK) status = fence_send(retire, &stream, fence, out_known);
  (void)driver->stream_destroy(self, handle);
  return status;
}

ladei_retire_fence *ladei_retire_fence_make(ladei_retire *retire) {
  ladei_lock_assert_none_held();
  ladei_retire_fence *fence = calloc(1, sizeof *fence);
  if (fence == NULL) return NULL;
  atomic_init(&fence->passed, false);
  atomic_init(&fence->owners, 2);
  ladei_lock_acquire(&retire->lock);
  int device = retire->capture_device;
  ladei_lock_release(&retire->lock);
  lade_error callers;
  ladei_error_save(&callers);
  bool known = false;
  ladei_capture_mode mode = ladei_capture_mode_relax(retire->runtime);
  bool sent = fence_make(retire, device, fence, &known) == LADE_OK;
  ladei_capture_mode_restore(retire->runtime, mode);
  ladei_error_restore(&callers);
  if (!known) fence_release(fence); /* a user object that was made releases its own */
  if (!sent) fence_release(fence);
  return sent ? fence : NULL;
}

bool ladei_retire_fence_passed(const ladei_retire_fence *fence) {
  return atomic_load_explicit(&fence->passed, memory_order_acquire);
}

void ladei_retire_fence_drop(ladei_retire_fence *fence) {
  if (fence != NULL) fence_release(fence);
}

/* ---- The end of captures ----------------------------------------------------------------------------------------- */

void ladei_retire_capture_drain(ladei_retire *retire, ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  for (capture_record *record = gone_take(retire->captures), *next; record != NULL; record = next) {
    next = record->next;
    ladei_retire_queue *queue = record->queue;
    free(record);
    queue->record_live = false;
    queue->finished = true;
    ladei_retire_queue_pin(retire, queue);
    ladei_retire_queue_finish(retire, queue, TAILQ_LAST(&queue->uses, ladei_retire_use_list), done);
    ladei_retire_queue_unpin(retire, queue);
  }
}
