/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before memory goes back: is the work over that may still use it?
 *
 * Note [Free memory in use]. A cached block may still be used by work queued on its own stream: that is what lets it be
 * reused there at once. Before its memory goes, that work must be over; a driver's free may wait for it, but need not.
 *
 *   stream of the segment        asked, or waited for
 *   alive, ordinary or legacy    an event recorded on it: of a blocking stream that is after the legacy stream's work, too, which the
 *                                stream itself does not show (the driver of CUDA 13.0 on an H200)
 *   retired                      the event that stream_retire recorded on it: `last`, shared by the stream's segments
 *   a thread's own               an event recorded on the legacy stream of its context, which is ordered after all of them
 *   destroyed without retire     the device, where the driver notices; asked before the first call and after the record
 *
 * The last one is help for programs that break the contract (lade_device_stream_retire() in lade/device.h), and no
 * more: the question names a stale handle, on which a driver may crash. Nothing that is known here tells such a stream
 * from one that lives, and waiting for the device in every case would break captures. A stream that may be gone by
 * right is never named (I6 in graph/single/single.c); of that kind there are none here.
 *
 * Note [Captures and giving back]. A capturing stream is neither asked nor waited for, and so a segment of such a
 * stream, or of a thread's own while the legacy stream cannot be used, stays cached: LADE_ERR_CAPTURE. That is also so
 * where the device would have to be waited for while this allocator knows of a capture, as that would break it. No call
 * says whether others capture on the device; so a program retires its streams, and then no device is waited for. The
 * race between asking and calling (Note [Asking and capturing] in runtime/ops.h) is not there for streams that a
 * private pool's begin names: their memory stays without a question until its end (P3 in private_pool.c).
 *
 * F1  A last event is recorded once, and covers all work of its stream. It goes with the last segment that refers to
 *     it. One that the driver does not take back lies among the spent ones, and is offered again.
 * Locks: none are held here; `last` of a segment is set under the allocator's lock, while no thread gives memory back,
 * and does not change as long as the segment lives.
 */
#include "device/native/finish.h"

#include <stdlib.h>

#include "base/error.h"

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* An event that covers the work of a stream so far. LADE_ERR_CAPTURE while that cannot be. */
static lade_status event_make(lade_device_allocator *allocator, const ladei_stream *stream, lade_event *out) {
  void *self = allocator->runtime->self;
  lade_event event;
  lade_status status = ladei_stream_uncaptured(allocator->runtime, stream, "event_record");
  if (status == LADE_OK) status = ladei_device_ops(allocator)->event_create(self, stream->context, 0, &event);
  if (status != LADE_OK) return status;
  status = ladei_device_ops(allocator)->event_record(self, event, stream);
  if (status == LADE_OK) status = ladei_stream_confirm(allocator->runtime, stream, "event_record");
  if (status == LADE_OK) {
    *out = event;
    return LADE_OK;
  }
  LADEI_ASIDE((void)ladei_device_ops(allocator)->event_destroy(self, event));
  return status;
}

static lade_status event_finish(lade_device_allocator *allocator, lade_event event) {
  void *self = allocator->runtime->self;
  lade_status status = ladei_device_ops(allocator)->event_query(self, event);
  return status == LADE_NOT_READY ? ladei_device_ops(allocator)->event_synchronize(self, event) : status;
}

lade_status ladei_device_last_event_make(lade_device_allocator *allocator, const ladei_stream *stream,
                                         ladei_device_last_event **out) {
  ladei_lock_assert_none_held();
  ladei_device_last_event *last = calloc(1, sizeof *last);
  if (last == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for %zu bytes", sizeof *last);
  lade_status status = event_make(allocator, stream, &last->event);
  if (status == LADE_OK)
    *out = last;
  else
    free(last);
  return status;
}

void ladei_device_last_event_destroy(lade_device_allocator *allocator, ladei_device_last_event *list) {
  ladei_device_last_event *next;
  lade_error error;
  ladei_error_save(&error);
  for (; list != NULL; list = next) {
    next = list->next;
    lade_status status = ladei_device_ops(allocator)->event_destroy(allocator->runtime->self, list->event);
    if (status == LADE_OK || status == LADE_ERR_DEVICE_LOST) {
      free(list);
      continue;
    }
    ladei_lock_acquire(&allocator->lock);
    list->next = allocator->heap.spent_events; /* F1 */
    allocator->heap.spent_events = list;
    ladei_lock_release(&allocator->lock);
  }
  ladei_error_restore(&error);
}

void ladei_device_last_events_drop(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_last_event *spent = allocator->heap.spent_events;
  allocator->heap.spent_events = NULL;
  ladei_lock_release(&allocator->lock);
  ladei_device_last_event_destroy(allocator, spent);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

lade_status ladei_device_finish(lade_device_allocator *allocator) {
  if (atomic_load(&allocator->routes.captures) > 0) {
    return ladei_error(LADE_ERR_CAPTURE, 0,
                       "device allocator of device %d: waiting for the device would break the capture under way",
                       allocator->device);
  }
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = ladei_device_ops(allocator)->device_synchronize(allocator->runtime->self, allocator->device);
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status;
}

static lade_status stream_finish(lade_device_allocator *allocator, const ladei_stream *stream, bool wait) {
  ladei_device_last_event *last = NULL;
  lade_status status = ladei_stream_verify(allocator->runtime, stream);
  if (status == LADE_OK && wait) status = ladei_stream_wait(allocator->runtime, stream);
  if (status == LADE_OK) status = ladei_device_last_event_make(allocator, stream, &last);
  if (status != LADE_OK) return status;
  status = event_finish(allocator, last->event);
  ladei_device_last_event_destroy(allocator, last);
  return status;
}

static lade_status work_finish(lade_device_allocator *allocator, const ladei_device_heap_segment *segment, bool wait) {
  const ladei_device_last_event *last = segment->last;
  if (last != NULL) return event_finish(allocator, last->event);
  if (segment->stream.kind != LADEI_STREAM_PER_THREAD) return stream_finish(allocator, &segment->stream, wait);
  if (segment->legacy.context != segment->stream.context) return ladei_device_finish(allocator);
  return stream_finish(allocator, &segment->legacy, false);
}

lade_status ladei_device_segment_finish(lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                        bool wait) {
  ladei_lock_assert_none_held();
  lade_status status = work_finish(allocator, segment, wait);
  if (status != LADE_OK && status != LADE_ERR_CAPTURE && status != LADE_ERR_DEVICE_LOST)
    status = ladei_device_finish(allocator);
  return status == LADE_ERR_DEVICE_LOST ? LADE_OK : status; /* nothing runs on it any more */
}

void ladei_device_segment_legacy_resolve(lade_device_allocator *allocator, ladei_device_heap_segment *segment) {
  if (segment->stream.kind != LADEI_STREAM_PER_THREAD) return;
  LADEI_ASIDE((void)ladei_device_ops(allocator)->stream_resolve(allocator->runtime->self, LADE_STREAM_LEGACY,
                                                                &segment->legacy));
}
