/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on events.
 *
 * I1  An event belongs to the context that was current at its creation and is recorded only under that one; asking,
 *     waiting and destroying work under any context of the process.
 * I2  Creating, recording, asking and waiting run in the relaxed capture mode (R9). A captured event answers
 *     CUDA_ERROR_CAPTURED_EVENT in every mode, and that invalidates its capture; only the driver knows which events
 *     were captured. Once that capture is over the event answers CUDA_ERROR_INVALID_VALUE to queries, waits of threads
 *     and streams, and comparisons of times. No other event of lade's answers that: without a record it has finished; a
 *     handle of no event is an invalid handle.
 * Locks: none.
 */
#include <assert.h>

#include "base/error.h"
#include "runtime/cuda/driver.h"

static lade_status event_create(void *self, uint64_t context, unsigned flags, lade_event *out) {
  cuda_call call = {.runtime = self, .op = "event_create", .relaxed = true};
  CUevent event = NULL;
  if ((flags & ~(unsigned)(LADEI_EVENT_TIMING | LADEI_EVENT_INTERPROCESS)) != 0)
    return ladei_error_argument("event_create", "flags", "LADEI_EVENT_TIMING, LADEI_EVENT_INTERPROCESS", "%#x", flags);
  if (context == 0) return ladei_error_argument("event_create", "context", "the context of a device", "0");
  unsigned native = (flags & LADEI_EVENT_TIMING) != 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  native |= (flags & LADEI_EVENT_INTERPROCESS) != 0 ? CU_EVENT_INTERPROCESS : 0u;
  if (!ladei_cuda_enter_context(&call, context)) return call.status;
  CUresult code = call.runtime->api.event_create(&event, native);
  if (ladei_cuda_leave(&call, code, "flags %#x", flags) == LADE_OK) *out = event;
  return call.status;
}

static lade_status event_destroy(void *self, lade_event event) {
  cuda_call call = {.runtime = self, .op = "event_destroy", .releases = true};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  return ladei_cuda_leave(&call, call.runtime->api.event_destroy(event), "event %p", (void *)event);
}

static lade_status event_record(void *self, lade_event event, const ladei_stream *stream) {
  cuda_call call = {.runtime = self, .op = "event_record", .relaxed = true};
  if (!ladei_cuda_enter_context(&call, stream->context)) return call.status;
  assert(call.switched && stream->context != 0); /* I1, I2 */
  CUresult code = call.runtime->api.event_record(event, stream->handle);
  return ladei_cuda_leave(&call, code, "event %p on stream %p", (void *)event, (void *)stream->handle);
}

static lade_status event_query(void *self, lade_event event) {
  cuda_call call = {.runtime = self, .op = "event_query", .relaxed = true};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  assert(call.switched); /* I2 */
  return ladei_cuda_leave(&call, cuda_event_answer(call.runtime->api.event_query(event)), "event %p", (void *)event);
}

static lade_status event_synchronize(void *self, lade_event event) {
  cuda_call call = {.runtime = self, .op = "event_synchronize", .relaxed = true};
  if (!ladei_cuda_enter_any(&call)) return call.status;
  assert(call.switched); /* I2 */
  return ladei_cuda_leave(&call, cuda_event_answer(call.runtime->api.event_synchronize(event)), "event %p",
                          (void *)event);
}

/* The driver gives milliseconds as a float, with a resolution of about half a microsecond. */
static lade_status event_elapsed_ns(void *self, lade_event start, lade_event end, uint64_t *out_ns) {
  cuda_call call = {.runtime = self, .op = "event_elapsed_ns"};
  float milliseconds = 0.0f;
  if (!ladei_cuda_enter_any(&call)) return call.status;
  CUresult code = cuda_event_answer(call.runtime->api.event_elapsed_time(&milliseconds, start, end));
  if (ladei_cuda_leave(&call, code, "events %p and %p", (void *)start, (void *)end) == LADE_OK)
    *out_ns = milliseconds > 0.0f ? (uint64_t)((double)milliseconds * 1e6 + 0.5) : 0;
  return call.status;
}

void ladei_cuda_fill_event_ops(lade_runtime_ops *ops) {
  ops->event_create = event_create;
  ops->event_destroy = event_destroy;
  ops->event_record = event_record;
  ops->event_query = event_query;
  ops->event_synchronize = event_synchronize;
  ops->event_elapsed_ns = event_elapsed_ns;
}
