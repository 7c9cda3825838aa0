/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual clock: exact times, when copies touch memory, what makes time pass, and that nothing else does. */
#include <string.h>

#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

#define MIB ((size_t)1 << 20)

/* 1 GB/s link and 10 GB/s memory: a byte takes 1 ns over the link, ten bytes take 1 ns within the device. */
static lade_soft_device round_numbers(void) {
  lade_soft_device device = {.memory_bytes = 64 * MIB,
                             .link_bytes_per_s = 1000000000,
                             .memory_bytes_per_s = 10000000000,
                             .peer_bytes_per_s = 2000000000,
                             .copy_launch_ns = 500};
  return device;
}

static soft_fixture open_described(lade_soft_device *devices, uint64_t count) {
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = devices;
  options.device_count = count;
  return soft_fixture_open("sim", &options);
}

static soft_fixture open_round(void) {
  static lade_soft_device device;
  device = round_numbers();
  return open_described(&device, 1);
}

LADE_TEST(SimTime, CopyTakesLaunchAndBytesOverTheLink) {
  soft_fixture f = open_round();
  ladei_stream stream = soft_fixture_stream(&f, 0);
  void *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 1000, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 1500);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2D, (char *)device + 4096, device, 1000, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 1500 + 600);
  LADE_EXPECT_OK(f.ops->fill(f.self, device, 1, 1000, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 2100 + 100);
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, OddSizesRoundUpToTheNanosecond) {
  lade_soft_device device = round_numbers();
  device.link_bytes_per_s = 3000000000;
  soft_fixture f = open_described(&device, 1);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  void *memory = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, memory, host, 10, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 504); /* 10/3 ns */
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, EnginesOfTheTwoDirectionsOverlap) {
  soft_fixture f = open_round();
  ladei_stream in = soft_fixture_stream(&f, 0), out = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 10000, &in));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, host + 65536, device + 65536, 10000, &out));
  LADE_EXPECT_OK(f.ops->device_synchronize(f.self, 0));
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 10500);
  soft_fixture_close(&f);
}

/* Up to 16 KiB, as on an H200; what goes to the host waits for what goes there, however small. */
LADE_TEST(SimTime, SmallCopiesToTheDeviceGoByLongOnes) {
  static const struct {
    ladei_copy_direction direction;
    size_t bytes;
    uint64_t ends_at_ns; /* in bytes and launches: the long one has 500000 + 500 */
  } cases[] = {{LADEI_COPY_H2D, 16384, 16884}, {LADEI_COPY_H2D, 16385, 517385}, {LADEI_COPY_D2H, 4096, 505096}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_test_context("case %zu", i);
    soft_fixture f = open_round();
    ladei_stream a = soft_fixture_stream(&f, 0), b = soft_fixture_stream(&f, 0);
    char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
    bool in = cases[i].direction == LADEI_COPY_H2D;
    LADE_EXPECT_OK(f.ops->copy(f.self, cases[i].direction, in ? device : host, in ? host : device, 500000, &a));
    LADE_EXPECT_OK(f.ops->copy(f.self, cases[i].direction, (in ? device : host) + 600000, (in ? host : device) + 600000,
                               cases[i].bytes, &b));
    soft_fixture_synchronize(&f, &b);
    LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), cases[i].ends_at_ns);
    soft_fixture_synchronize(&f, &a);
    soft_fixture_close(&f);
  }
  lade_test_context("%s", "");
}

LADE_TEST(SimTime, HalfDuplexDirectionsShareOneEngine) {
  lade_soft_device description = round_numbers();
  description.half_duplex = 1;
  soft_fixture f = open_described(&description, 1);
  ladei_stream in = soft_fixture_stream(&f, 0), out = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 10000, &in));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, host + 65536, device + 65536, 10000, &out));
  LADE_EXPECT_OK(f.ops->device_synchronize(f.self, 0));
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 21000);
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, StreamsShareAnEngineInOrderOfReadiness) {
  soft_fixture f = open_round();
  ladei_stream a = soft_fixture_stream(&f, 0), b = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  lade_event events[3];
  for (int i = 0; i < 3; i++) events[i] = soft_fixture_event(&f, 0, LADEI_EVENT_TIMING);
  /* a's second copy becomes ready when its first has ended, and b's only one was ready before that. */
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 1000, &a));
  LADE_EXPECT_OK(f.ops->event_record(f.self, events[0], &a));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device + 8192, host, 1000, &a));
  LADE_EXPECT_OK(f.ops->event_record(f.self, events[1], &a));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device + 16384, host, 1000, &b));
  LADE_EXPECT_OK(f.ops->event_record(f.self, events[2], &b));
  LADE_EXPECT_OK(f.ops->device_synchronize(f.self, 0));
  uint64_t to_b = 0, to_second = 0;
  LADE_EXPECT_OK(f.ops->event_elapsed_ns(f.self, events[0], events[2], &to_b));
  LADE_EXPECT_OK(f.ops->event_elapsed_ns(f.self, events[0], events[1], &to_second));
  LADE_EXPECT_EQ_UINT(to_b, 1500);
  LADE_EXPECT_EQ_UINT(to_second, 3000);
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, BatchIsLaunchedOnce) {
  soft_fixture f = open_round();
  ladei_stream stream = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  void *dsts[3] = {device, device + 4096, device + 8192};
  const void *srcs[3] = {host, host + 4096, host + 8192};
  size_t sizes[3] = {1000, 2000, 3000};
  memset(host, 5, 16384);
  LADE_EXPECT_OK(f.ops->copy_batch(f.self, LADEI_COPY_H2D, 3, dsts, srcs, sizes, &stream));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 6500);
  LADE_EXPECT_EQ_INT(device[8192 + 2999], 5);
  LADE_EXPECT_EQ_INT(device[8192 + 3000], 0);
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, NothingHappensWithoutAWait) {
  soft_fixture f = open_round();
  ladei_stream stream = soft_fixture_stream(&f, 0);
  lade_event event = soft_fixture_event(&f, 0, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 1000, &stream));
  LADE_EXPECT_OK(f.ops->event_record(f.self, event, &stream));
  for (int i = 0; i < 100; i++) LADE_EXPECT_STATUS(LADE_NOT_READY, f.ops->event_query(f.self, event));
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 0);
  LADE_EXPECT_OK(ladei_soft_advance(f.self, 1499));
  LADE_EXPECT_STATUS(LADE_NOT_READY, f.ops->event_query(f.self, event));
  LADE_EXPECT_OK(ladei_soft_advance(f.self, 1));
  LADE_EXPECT_OK(f.ops->event_query(f.self, event));
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 1500);
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, CopyReadsItsSourceWhenItEnds) {
  soft_fixture f = open_round();
  ladei_stream stream = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  memset(host, 1, 1000);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 1000, &stream));
  LADE_EXPECT_OK(ladei_soft_advance(f.self, 1400));
  memset(host, 2, 1000); /* reused too early */
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_INT(device[0], 2);
  LADE_EXPECT_EQ_INT(device[999], 2);
  memset(host, 3, 1000); /* reused in time */
  LADE_EXPECT_EQ_INT(device[0], 2);
  soft_fixture_close(&f);
}

LADE_TEST(SimTime, CallsCostWhatTheDescriptionSays) {
  lade_soft_device device = round_numbers();
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = &device;
  options.device_count = 1;
  options.costs.submit_ns = 7;
  options.costs.event_record_ns = 11;
  options.costs.host_pin_ns = 1000;
  options.costs.host_pin_bytes_per_s = 1000000000;
  soft_fixture f = soft_fixture_open("sim", &options);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  void *memory = soft_fixture_device_memory(&f, 0, MIB);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 0);
  void *host = soft_fixture_pinned(&f, 4096);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 5096);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, memory, host, 4096, &stream));
  lade_event event = soft_fixture_event(&f, 0, 0);
  LADE_EXPECT_OK(f.ops->event_record(f.self, event, &stream));
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 5096 + 18);
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 5096 + 7 + 4596);
  soft_fixture_close(&f);
}

typedef struct timer_log {
  soft_fixture *f;
  uint64_t times[8];
  int numbers[8];
  int count;
} timer_log;

static timer_log timers;

static void timer_note(int number) {
  timers.times[timers.count] = soft_fixture_now(timers.f);
  timers.numbers[timers.count++] = number;
}

static void timer_first(void *user) {
  (void)user;
  timer_note(1);
}

static void timer_second(void *user) {
  (void)user;
  timer_note(2);
}

LADE_TEST(SimTimers, FireInOrderOfTimeThenOfAddition) {
  soft_fixture f = open_round();
  timers = (timer_log){.f = &f};
  LADE_EXPECT_OK(f.ops->timer_add(f.self, 200, timer_first, NULL));
  LADE_EXPECT_OK(f.ops->timer_add(f.self, 100, timer_second, NULL));
  LADE_EXPECT_OK(f.ops->timer_add(f.self, 200, timer_second, NULL));
  LADE_EXPECT_OK(f.ops->timer_add(f.self, 200, timer_first, NULL));
  for (int i = 0; i < 4; i++) LADE_EXPECT_OK(f.ops->step(f.self));
  LADE_EXPECT_STATUS(LADE_NOT_READY, f.ops->step(f.self));
  const int numbers[4] = {2, 1, 2, 1};
  const uint64_t times[4] = {100, 200, 200, 200};
  LADE_EXPECT_EQ_INT(timers.count, 4);
  LADE_EXPECT_EQ_MEM(timers.numbers, numbers, sizeof numbers);
  LADE_EXPECT_EQ_MEM(timers.times, times, sizeof times);
  LADE_EXPECT_OK(f.ops->timer_add(f.self, 50, timer_first, NULL)); /* past: in the next step, time does not go back */
  LADE_EXPECT_OK(f.ops->step(f.self));
  LADE_EXPECT_EQ_UINT(timers.times[4], 200);
  soft_fixture_close(&f);
}

LADE_TEST(SimHold, SynchroniseOfAHeldStreamNamesItAndQueuesNothing) {
  soft_fixture f = open_round();
  ladei_stream stream = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, true));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 1000, &stream));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, f.ops->stream_synchronize(f.self, &stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "held");
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, false));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 1500);
  soft_fixture_close(&f);
}

LADE_TEST(SimHold, TakesBackWorkThatWaitsForItsEngine) {
  soft_fixture f = open_round();
  ladei_stream a = soft_fixture_stream(&f, 0), b = soft_fixture_stream(&f, 0);
  char *device = soft_fixture_device_memory(&f, 0, MIB), *host = soft_fixture_pinned(&f, MIB);
  memset(host, 1, 4096);
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, 1000, &a));
  LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device + 4096, host, 1000, &b)); /* ready, behind a's */
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, b.handle, true));
  LADE_EXPECT_OK(ladei_soft_advance(f.self, 100000));
  LADE_EXPECT_EQ_INT(device[0], 1);
  LADE_EXPECT_EQ_INT(device[4096], 0);
  LADE_EXPECT_STATUS(LADE_NOT_READY, f.ops->stream_query(f.self, &b));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, b.handle, false));
  soft_fixture_synchronize(&f, &b);
  LADE_EXPECT_EQ_INT(device[4096], 1);
  LADE_EXPECT_EQ_UINT(soft_fixture_now(&f), 101500);
  soft_fixture_close(&f);
}

LADE_TEST(SimHold, AnEventRecordedOnAnIdleHeldStreamIsPending) {
  soft_fixture f = open_round();
  ladei_stream stream = soft_fixture_stream(&f, 0);
  lade_event event = soft_fixture_event(&f, 0, 0);
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, true));
  LADE_EXPECT_OK(f.ops->event_record(f.self, event, &stream));
  LADE_EXPECT_STATUS(LADE_NOT_READY, f.ops->event_query(f.self, event));
  LADE_EXPECT_OK(ladei_soft_stream_hold(f.self, stream.handle, false));
  LADE_EXPECT_OK(f.ops->event_query(f.self, event));
  soft_fixture_close(&f);
}

/* ---- the same input gives the same run --------------------------------------------------------------------------- */

enum { RUN_STEPS = 400, RUN_STREAMS = 4 };

typedef struct run_trace {
  uint64_t times[RUN_STEPS];
  void *addresses[RUN_STEPS];
  unsigned char bytes[64 * 1024];
} run_trace;

static uint64_t run_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void run(uint64_t seed, run_trace *trace) {
  soft_fixture f = open_round();
  memset(trace, 0, sizeof *trace);
  ladei_stream streams[RUN_STREAMS];
  lade_event events[RUN_STREAMS];
  for (int i = 0; i < RUN_STREAMS; i++) {
    streams[i] = soft_fixture_stream(&f, 0);
    events[i] = soft_fixture_event(&f, 0, 0);
  }
  char *device = soft_fixture_device_memory(&f, 0, sizeof trace->bytes);
  unsigned char *host = soft_fixture_pinned(&f, sizeof trace->bytes);
  for (int i = 0; i < RUN_STEPS; i++) {
    const ladei_stream *stream = &streams[run_random(&seed) % RUN_STREAMS];
    size_t at = run_random(&seed) % 60000, bytes = 1 + run_random(&seed) % 5000;
    uint64_t what = run_random(&seed) % 6;
    if (what == 0) LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device + at, host + at, bytes, stream));
    if (what == 1) LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_D2H, host + at, device + at, bytes, stream));
    if (what == 2) LADE_EXPECT_OK(f.ops->fill(f.self, device + at, (unsigned char)i, bytes, stream));
    if (what == 3) LADE_EXPECT_OK(f.ops->event_record(f.self, events[i % RUN_STREAMS], stream));
    if (what == 4) LADE_EXPECT_OK(f.ops->stream_wait_event(f.self, stream, events[i % RUN_STREAMS]));
    if (what == 5) LADE_EXPECT_OK(ladei_soft_advance(f.self, run_random(&seed) % 3000));
    void *memory = NULL;
    LADE_EXPECT_OK(f.ops->device_alloc(f.self, 0, bytes, &memory));
    LADE_EXPECT_OK(f.ops->device_free(f.self, 0, memory));
    trace->times[i] = soft_fixture_now(&f);
    trace->addresses[i] = memory;
  }
  LADE_EXPECT_OK(f.ops->device_synchronize(f.self, 0));
  trace->times[RUN_STEPS - 1] = soft_fixture_now(&f);
  memcpy(trace->bytes, host, sizeof trace->bytes);
  soft_fixture_close(&f);
}

LADE_TEST(SimDeterminism, EqualInputGivesEqualTimesAddressesAndBytes) {
  static run_trace first, second;
  for (uint64_t seed = 1; seed <= 10; seed++) {
    run(seed, &first);
    run(seed, &second);
    LADE_ASSERT_EQ_MEM(&first, &second, sizeof first);
  }
}
