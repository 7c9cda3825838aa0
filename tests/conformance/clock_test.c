/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: The clock, timers of virtual time, texts of native codes. */
#include <string.h>

#include "tests/conformance/conformance.h"

static uint64_t now(lade_runtime *runtime) { return runtime->ops->now_ns(runtime->self); }

CONFORMANCE_TEST(Clock, NeverGoesBack) {
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  char *pinned = conformance_pinned(runtime, 4096);
  uint64_t last = now(runtime);
  for (int i = 0; i < 100; i++) {
    LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &stream));
    LADE_EXPECT_OK(OP(stream_synchronize, &stream));
    uint64_t next = now(runtime);
    LADE_ASSERT_GE_UINT(next, last);
    last = next;
  }
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Clock, VirtualTimeStandsStillUnlessSomebodyWaits) {
  NEEDS(support_is_virtual(runtime), "real time");
  enum { BYTES = 1 << 20 };
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  char *pinned = conformance_pinned(runtime, BYTES);
  void *memory = conformance_device_memory(runtime, 0, BYTES);
  uint64_t start = now(runtime);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, pinned, BYTES, &stream));
  for (int i = 0; i < 100; i++) LADE_ASSERT_STATUS(LADE_NOT_READY, OP(stream_query, &stream));
  LADE_EXPECT_EQ_UINT(now(runtime), start);
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  /* The standard device: 3 us to launch, 55 GB/s. */
  LADE_EXPECT_NEAR(now(runtime) - start, 3000.0 + BYTES / 55.0, 2.0);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

typedef struct timer_note {
  lade_runtime *runtime;
  conformance_log *log;
  int number;
  uint64_t fired_at;
} timer_note;

static void note_timer(void *user) {
  timer_note *note = user;
  note->fired_at = now(note->runtime);
  conformance_log_entry entry = {note->log, note->number};
  conformance_log_append(&entry);
}

CONFORMANCE_TEST(Timers, FireAtTheirTimeAndInOrder) {
  NEEDS_OP(timer_add);
  conformance_log log = {0};
  uint64_t start = now(runtime);
  /* Two share a time and keep their order; the last is past already. */
  const uint64_t times[] = {start + 3000, start + 1000, start + 2000, start + 1000, start};
  timer_note notes[5];
  for (int i = 0; i < 5; i++) {
    notes[i] = (timer_note){runtime, &log, i, 0};
    LADE_ASSERT_OK(OP(timer_add, times[i], note_timer, &notes[i]));
  }
  LADE_EXPECT_EQ_INT(log.count, 0);
  while (OP(step) == LADE_OK) continue;
  static const int order[] = {4, 1, 3, 2, 0};
  LADE_ASSERT_EQ_INT(log.count, 5);
  for (int i = 0; i < 5; i++) LADE_EXPECT_EQ_INT(log.numbers[i], order[i]);
  for (int i = 0; i < 5; i++) LADE_EXPECT_EQ_UINT(notes[i].fired_at, times[i]);
  LADE_EXPECT_EQ_UINT(now(runtime), start + 3000);
}

/* A timer that makes calls and adds another timer: how simulated readers work. */
typedef struct reader {
  lade_runtime *runtime;
  ladei_stream stream;
  char *pinned;
  void *memory;
  int rounds;
} reader;

static void read_piece(void *user) {
  reader *r = user;
  lade_runtime *runtime = r->runtime;
  support_pattern_fill(r->pinned, 4096, (uint64_t)r->rounds, 0);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, r->memory, r->pinned, 4096, &r->stream));
  if (--r->rounds > 0) LADE_EXPECT_OK(OP(timer_add, now(runtime) + 100000, read_piece, r));
}

CONFORMANCE_TEST(Timers, MayCallOpsAndAddTimers) {
  NEEDS_OP(timer_add);
  reader r = {runtime, conformance_stream(runtime, 0, 0), conformance_pinned(runtime, 4096),
              conformance_device_memory(runtime, 0, 4096), 5};
  uint64_t start = now(runtime);
  LADE_ASSERT_OK(OP(timer_add, start + 50000, read_piece, &r));
  while (OP(step) == LADE_OK) continue;
  LADE_EXPECT_EQ_INT(r.rounds, 0);
  LADE_EXPECT_GE_UINT(now(runtime), start + 450000);
  conformance_expect_device_pattern(runtime, 0, r.memory, 4096, 1);
  LADE_ASSERT_OK(OP(host_free, r.pinned));
  LADE_ASSERT_OK(OP(device_free, 0, r.memory));
  LADE_ASSERT_OK(OP(stream_destroy, r.stream.handle));
}

CONFORMANCE_TEST(Timers, StepSaysWhenNothingWillHappen) {
  NEEDS_OP(step);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(step));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(fill, pinned, 1, 4096, &stream));
  LADE_EXPECT_STATUS(LADE_NOT_READY, OP(step));
  EXPECT_REFUSED(LADE_ERR_TIMEOUT, "stream_synchronize", NULL, OP(stream_synchronize, &stream));
  support_stream_hold_end(&hold);
  while (OP(step) == LADE_OK) continue;
  LADE_EXPECT_OK(OP(stream_query, &stream));
  LADE_EXPECT_EQ_INT(pinned[0], 1);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Texts, EveryNativeCodeHasOne) {
  static const int64_t codes[] = {0, 1, 2, 100, 201, 700, 719, 900, 999, -1, 123456, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
    const char *text = runtime->ops->native_error_text(runtime->self, codes[i]);
    LADE_ASSERT(text != NULL);
    LADE_EXPECT_GT_SIZE(strlen(text), 0);
  }
}
