/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/runtime/soft/fixture.h"

#include <string.h>

#include "tests/shim/lade_test.h"

const char *const soft_fixture_clocks[] = {"sim", "cpu", NULL};

enum { STREAM, EVENT, DEVICE_MEMORY_OF_0 = 100, PINNED = 99 };

soft_fixture soft_fixture_open(const char *clock, const lade_soft_options *options) {
  soft_fixture f = {.virtual_time = strcmp(clock, "sim") == 0};
  LADE_EXPECT_OK(ladei_soft_open(f.virtual_time, options, &f.ops, &f.self));
  return f;
}

static void object_note(soft_fixture *f, int kind, void *object) {
  LADE_ASSERT_LT_INT(f->object_count, SOFT_FIXTURE_OBJECTS);
  f->objects[f->object_count].kind = kind;
  f->objects[f->object_count++].object = object;
}

static ladei_stream stream_new(soft_fixture *f, int device, unsigned flags) {
  lade_stream handle = NULL;
  LADE_EXPECT_OK(f->ops->stream_create(f->self, device, 0, flags, &handle));
  object_note(f, STREAM, handle);
  return soft_fixture_resolve(f, handle);
}

ladei_stream soft_fixture_stream(soft_fixture *f, int device) {
  return stream_new(f, device, LADEI_STREAM_NON_BLOCKING);
}

ladei_stream soft_fixture_blocking_stream(soft_fixture *f, int device) { return stream_new(f, device, 0); }

ladei_stream soft_fixture_resolve(soft_fixture *f, lade_stream handle) {
  ladei_stream stream = {0};
  LADE_EXPECT_OK(f->ops->stream_resolve(f->self, handle, &stream));
  return stream;
}

lade_event soft_fixture_event(soft_fixture *f, int device, unsigned flags) {
  uint64_t context = 0;
  lade_event event = NULL;
  LADE_EXPECT_OK(f->ops->device_context(f->self, device, &context));
  LADE_EXPECT_OK(f->ops->event_create(f->self, context, flags, &event));
  object_note(f, EVENT, event);
  return event;
}

void *soft_fixture_device_memory(soft_fixture *f, int device, size_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(f->ops->device_alloc(f->self, device, bytes, &memory));
  object_note(f, DEVICE_MEMORY_OF_0 + device, memory);
  return memory;
}

void *soft_fixture_pinned(soft_fixture *f, size_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(f->ops->host_alloc(f->self, 0, bytes, 0, &memory));
  object_note(f, PINNED, memory);
  return memory;
}

static void object_free(soft_fixture *f, int kind, void *object) {
  if (kind == STREAM)
    LADE_EXPECT_OK(f->ops->stream_destroy(f->self, (lade_stream)object));
  else if (kind == EVENT)
    LADE_EXPECT_OK(f->ops->event_destroy(f->self, (lade_event)object));
  else if (kind == PINNED)
    LADE_EXPECT_OK(f->ops->host_free(f->self, object));
  else
    LADE_EXPECT_OK(f->ops->device_free(f->self, kind - DEVICE_MEMORY_OF_0, object));
}

void soft_fixture_close(soft_fixture *f) {
  int devices = 0;
  LADE_EXPECT_OK(f->ops->device_count(f->self, &devices));
  for (int i = 0; i < devices; i++) {
    lade_status status = f->ops->device_synchronize(f->self, i);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_DEVICE_LOST);
  }
  while (f->object_count != 0) {
    f->object_count--;
    object_free(f, f->objects[f->object_count].kind, f->objects[f->object_count].object);
  }
  LADE_EXPECT_OK(f->ops->close(f->self));
}

void soft_fixture_synchronize(soft_fixture *f, const ladei_stream *stream) {
  LADE_EXPECT_OK(f->ops->stream_synchronize(f->self, stream));
}

uint64_t soft_fixture_now(const soft_fixture *f) { return f->ops->now_ns(f->self); }

lade_soft_report soft_fixture_report(const soft_fixture *f) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(ladei_soft_report(f->self, &report));
  return report;
}

void soft_fixture_expect_no_finding(const soft_fixture *f) {
  lade_soft_report report = soft_fixture_report(f);
  uint64_t findings = report.freed_memory_used + report.unordered_reuse + report.unpinned_copies + report.stale_handles;
  if (findings != 0) LADE_FAIL("%llu findings, last: %s", (unsigned long long)findings, report.last_finding);
}
