/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory: allocated by the driver, or the program's own memory registered. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* Memory of the program's own, whole pages, never NULL. */
static char *own_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    LADE_FAIL("mmap of %zu bytes failed", bytes);
    return NULL;
  }
  return memory;
}

static bool is_pinned(lade_runtime *runtime, const void *pointer) {
  ladei_pointer_attributes attributes;
  LADE_EXPECT_OK(OP(pointer_attributes, pointer, &attributes));
  return attributes.kind == LADEI_MEMORY_PINNED;
}

/* There and back through device memory. */
static void expect_usable(lade_runtime *runtime, int device, char *pinned, size_t bytes) {
  ladei_stream stream = conformance_stream(runtime, device, LADEI_STREAM_NON_BLOCKING);
  void *memory = conformance_device_memory(runtime, device, bytes);
  support_pattern_fill(pinned, bytes, 11, 0);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, pinned, bytes, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  memset(pinned, 0, bytes);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, pinned, memory, bytes, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_PATTERN(pinned, bytes, 11, 0);
  LADE_EXPECT_OK(OP(device_free, device, memory));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Pinned, AllocatedMemoryIsAlignedUsableAndPinned) {
  static const unsigned flags[] = {0, LADEI_HOST_WRITE_COMBINED};
  static const size_t sizes[] = {1, 4095, 4096, 100000, (size_t)3 << 20};
  for (size_t f = 0; f < sizeof flags / sizeof flags[0]; f++) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
      lade_test_context("flags %u, %zu bytes", flags[f], sizes[s]);
      void *memory = NULL;
      LADE_ASSERT_OK(OP(host_alloc, 0, sizes[s], flags[f], &memory));
      LADE_EXPECT_EQ_UINT((uintptr_t)memory % (sizes[s] < LADEI_HOST_OWN_BYTES ? 256 : 4096), 0);
      LADE_EXPECT(is_pinned(runtime, memory));
      expect_usable(runtime, 0, memory, sizes[s]);
      LADE_ASSERT_OK(OP(host_free, memory));
    }
  }
}

CONFORMANCE_TEST(Pinned, MemoryIsPortable) {
  NEEDS_TWO_DEVICES();
  void *allocated = NULL;
  size_t bytes = 16 * page_bytes();
  char *registered = own_memory(bytes);
  LADE_ASSERT_OK(OP(host_alloc, 0, bytes, 0, &allocated));
  LADE_ASSERT_OK(OP(host_register, 0, registered, bytes, 0));
  expect_usable(runtime, 1, allocated, bytes);
  expect_usable(runtime, 1, registered, bytes);
  LADE_ASSERT_OK(OP(host_unregister, registered));
  LADE_ASSERT_OK(OP(host_free, allocated));
  munmap(registered, bytes);
}

CONFORMANCE_TEST(Pinned, RegisteredMemoryIsPinnedUntilUnregistered) {
  size_t bytes = 8 * page_bytes();
  char *memory = own_memory(bytes);
  for (int round = 0; round < 3; round++) {
    LADE_EXPECT(!is_pinned(runtime, memory));
    LADE_ASSERT_OK(OP(host_register, 0, memory, bytes, 0));
    LADE_EXPECT(is_pinned(runtime, memory));
    LADE_EXPECT(is_pinned(runtime, memory + bytes - 1));
    expect_usable(runtime, 0, memory, bytes);
    LADE_ASSERT_OK(OP(host_unregister, memory));
  }
  LADE_EXPECT(!is_pinned(runtime, memory));
  munmap(memory, bytes);
}

/* Bytes that were there before pinning stay, as a prefaulted segment's must. */
CONFORMANCE_TEST(Pinned, RegisteringKeepsTheBytes) {
  size_t bytes = 8 * page_bytes();
  char *memory = own_memory(bytes);
  support_pattern_fill(memory, bytes, 12, 0);
  LADE_ASSERT_OK(OP(host_register, 0, memory, bytes, 0));
  LADE_EXPECT_PATTERN(memory, bytes, 12, 0);
  LADE_ASSERT_OK(OP(host_unregister, memory));
  LADE_EXPECT_PATTERN(memory, bytes, 12, 0);
  munmap(memory, bytes);
}

CONFORMANCE_TEST(Pinned, ReadOnlyMemoryCanBeRegisteredForReading) {
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_HOST_REGISTER_READ_ONLY_SUPPORTED), "no read-only registration");
  size_t bytes = 4 * page_bytes();
  char *memory = own_memory(bytes);
  support_pattern_fill(memory, bytes, 13, 0);
  LADE_ASSERT_EQ_INT(mprotect(memory, bytes, PROT_READ), 0);
  LADE_ASSERT_OK(OP(host_register, 0, memory, bytes, LADEI_HOST_READ_ONLY));
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  void *device_memory = conformance_device_memory(runtime, 0, bytes);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, device_memory, memory, bytes, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  conformance_expect_device_pattern(runtime, 0, device_memory, bytes, 13);
  LADE_EXPECT_OK(OP(device_free, 0, device_memory));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
  LADE_ASSERT_OK(OP(host_unregister, memory));
  munmap(memory, bytes);
}

CONFORMANCE_TEST(Pinned, CrookedRangesAreRefused) {
  size_t page = page_bytes();
  char *memory = own_memory(4 * page);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL, OP(host_register, 0, memory + 1, page, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL, OP(host_register, 0, memory + 64, page, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL, OP(host_register, 0, memory, page - 1, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL, OP(host_register, 0, memory, 0, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL, OP(host_register, 0, NULL, page, 0));
  LADE_EXPECT(!is_pinned(runtime, memory));
  munmap(memory, 4 * page);
}

CONFORMANCE_TEST(Pinned, OverlapWithARegisteredRangeIsRefused) {
  size_t page = page_bytes();
  char *memory = own_memory(6 * page);
  LADE_ASSERT_OK(OP(host_register, 0, memory + 2 * page, 2 * page, 0));
  static const struct { size_t first, count; } overlaps[] = {{2, 2}, {2, 1}, {3, 1}, {1, 2}, {3, 2}, {0, 6}};
  for (size_t i = 0; i < sizeof overlaps / sizeof overlaps[0]; i++) {
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL,
                   OP(host_register, 0, memory + overlaps[i].first * page, overlaps[i].count * page, 0));
  }
  /* Side by side is no overlap. */
  LADE_ASSERT_OK(OP(host_register, 0, memory, 2 * page, 0));
  LADE_ASSERT_OK(OP(host_register, 0, memory + 4 * page, 2 * page, 0));
  for (size_t i = 0; i < 6; i += 2) LADE_ASSERT_OK(OP(host_unregister, memory + i * page));
  munmap(memory, 6 * page);
}

CONFORMANCE_TEST(Pinned, FreeAndUnregisterRefuseWhatIsNotTheirs) {
  conformance_allow_findings();
  size_t page = page_bytes();
  char *registered = own_memory(2 * page), *allocated = conformance_pinned(runtime, 2 * page);
  void *device_memory = conformance_device_memory(runtime, 0, 4096);
  LADE_ASSERT_OK(OP(host_register, 0, registered, 2 * page, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_free", NULL, OP(host_free, NULL));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_free", NULL, OP(host_free, registered));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_free", NULL, OP(host_free, allocated + page));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_free", NULL, OP(host_free, device_memory));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_unregister", NULL, OP(host_unregister, NULL));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_unregister", NULL, OP(host_unregister, allocated));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_unregister", NULL, OP(host_unregister, registered + page));
  LADE_ASSERT_OK(OP(host_unregister, registered));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_unregister", NULL, OP(host_unregister, registered));
  LADE_ASSERT_OK(OP(host_free, allocated));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_free", NULL, OP(host_free, allocated));
  LADE_ASSERT_OK(OP(device_free, 0, device_memory));
  munmap(registered, 2 * page);
}

CONFORMANCE_TEST(Pinned, UnknownFlagsAreRefused) {
  void *memory = &memory;
  size_t page = page_bytes();
  char *own = own_memory(page);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_alloc", NULL, OP(host_alloc, 0, 4096, 1u << 20, &memory));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_alloc", NULL, OP(host_alloc, 0, 4096, LADEI_HOST_READ_ONLY, &memory));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL,
                 OP(host_register, 0, own, page, LADEI_HOST_WRITE_COMBINED));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_register", NULL, OP(host_register, 0, own, page, 1u << 20));
  LADE_EXPECT_EQ_PTR(memory, &memory);
  munmap(own, page);
}

CONFORMANCE_TEST(Pinned, TooMuchIsOutOfPinnedMemory) {
  void *memory = &memory;
  EXPECT_REFUSED(LADE_ERR_OUT_OF_PINNED_MEMORY, "host_alloc", "1125899906842624",
                 OP(host_alloc, 0, (size_t)1 << 50, 0, &memory));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, OP(host_alloc, 0, SIZE_MAX, 0, &memory));
  LADE_EXPECT_EQ_PTR(memory, &memory);
  /* No error sticks: the next call works. */
  memory = conformance_pinned(runtime, 4096);
  LADE_ASSERT_OK(OP(host_free, memory));
}

/* ---- Ranges that reach over the end of a registration ------------------------------------------------------------ */

/*
 *   pageable | registered | registered | pageable        four stretches of one mapping, side by side
 */
enum { STRETCH = 1 << 20, STRETCHES = 4 };

typedef struct stretches {
  char *memory;
  char *device; /* as long */
  ladei_stream stream;
} stretches;

static bool stretches_make(lade_runtime *runtime, stretches *s) {
  s->memory = own_memory((size_t)STRETCHES * STRETCH);
  s->device = conformance_device_memory(runtime, 0, (size_t)STRETCHES * STRETCH);
  s->stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  for (size_t i = 1; i < 3; i++) LADE_EXPECT_OK(OP(host_register, 0, s->memory + i * STRETCH, STRETCH, 0));
  return !lade_test_has_failed();
}

static void stretches_end(lade_runtime *runtime, const stretches *s) {
  for (size_t i = 1; i < 3; i++) LADE_EXPECT_OK(OP(host_unregister, s->memory + i * STRETCH));
  LADE_EXPECT_OK(OP(device_free, 0, s->device));
  LADE_EXPECT_OK(OP(stream_destroy, s->stream.handle));
  munmap(s->memory, (size_t)STRETCHES * STRETCH);
}

static lade_status batch_of_one(lade_runtime *runtime, const stretches *s, ladei_copy_direction direction, void *dst,
                                const void *src, size_t bytes) {
  return OP(copy_batch, direction, 1, &dst, &src, &bytes, &s->stream);
}

static void expect_no_batch(lade_runtime *runtime, const stretches *s, char *host, size_t bytes) {
  if (runtime->ops->copy_batch == NULL) return;
  lade_status status = batch_of_one(runtime, s, LADEI_COPY_H2D, s->device, host, bytes);
  if (status == LADE_ERR_UNSUPPORTED) return; /* the driver has none */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, status);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, batch_of_one(runtime, s, LADEI_COPY_D2H, host, s->device, bytes));
}

/* A refused copy leaves no node, and the capture as it was. */
static void expect_no_node(lade_runtime *runtime, const stretches *s, char *host, size_t bytes) {
  ladei_graph graph = NULL;
  if (runtime->ops->capture_begin == NULL) return;
  LADE_ASSERT_OK(OP(capture_begin, &s->stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy, LADEI_COPY_H2D, s->device, host, bytes, &s->stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy, LADEI_COPY_D2H, host, s->device, bytes, &s->stream));
  LADE_ASSERT_OK(OP(capture_end, &s->stream, &graph));
  LADE_EXPECT_OK(OP(graph_destroy, graph));
}

static void expect_refused_everywhere(lade_runtime *runtime, const stretches *s, char *host, size_t bytes) {
  char *other = conformance_pinned(runtime, bytes);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy", NULL, OP(copy, LADEI_COPY_H2D, s->device, host, bytes, &s->stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy", NULL, OP(copy, LADEI_COPY_D2H, host, s->device, bytes, &s->stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy", NULL, OP(copy, LADEI_COPY_H2H, host, other, bytes, &s->stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy", NULL, OP(copy, LADEI_COPY_H2H, other, host, bytes, &s->stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy_sync", NULL,
                 OP(copy_sync, 0, LADEI_COPY_H2D, s->device, host, bytes));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy_sync", NULL,
                 OP(copy_sync, 0, LADEI_COPY_D2H, host, s->device, bytes));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "fill", NULL, OP(fill, host, 1, bytes, &s->stream));
  expect_no_batch(runtime, s, host, bytes);
  expect_no_node(runtime, s, host, bytes);
  LADE_EXPECT_OK(OP(stream_synchronize, &s->stream));
  LADE_EXPECT_OK(OP(host_free, other));
}

/*
 * Seen on an H200 and an H100 (driver 580): a range that begins in a registration and ends behind it is
 * CUDA_ERROR_INVALID_VALUE, whether the next one begins there or pageable memory; software devices took both.
 */
CONFORMANCE_TEST(Pinned, RangesOverTheEndOfARegistrationAreRefused) {
  static const struct {
    size_t begin, bytes;
  } ranges[] = {{STRETCH, STRETCH + 1}, {STRETCH + 4097, STRETCH}, {STRETCH, 2 * STRETCH}, {2 * STRETCH + 5, STRETCH}};
  stretches s;
  if (!stretches_make(runtime, &s)) return;
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
    lade_test_context("%zu bytes from %zu", ranges[i].bytes, ranges[i].begin);
    expect_refused_everywhere(runtime, &s, s.memory + ranges[i].begin, ranges[i].bytes);
  }
  lade_test_context("%s", "");
  EXPECT_BYTES(s.memory, (size_t)STRETCHES * STRETCH, 0);
  expect_usable(runtime, 0, s.memory + STRETCH, STRETCH);
  stretches_end(runtime, &s);
}

/* What counts is where the range begins: from pageable memory it may reach over registrations, and is staged as a whole. */
CONFORMANCE_TEST(Pinned, RangesThatBeginInPageableMemoryMayReachIntoRegistrations) {
  static const size_t sizes[] = {STRETCH, 2 * STRETCH, STRETCHES * STRETCH - STRETCH / 2};
  stretches s;
  conformance_allow_findings();
  if (!stretches_make(runtime, &s)) return;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    lade_test_context("%zu bytes", sizes[i]);
    expect_usable(runtime, 0, s.memory + STRETCH / 2, sizes[i]);
  }
  lade_test_context("%s", "");
  stretches_end(runtime, &s);
}

typedef struct helper_copy {
  size_t begin, bytes;
} helper_copy;

/* There and back by the public helper, from an odd place over one end or more. */
static void expect_helper_copies(lade_runtime *runtime, const stretches *s, char *host, size_t bytes) {
  support_pattern_fill(host, bytes, 14, 0);
  LADE_EXPECT_OK(lade_copy_async(runtime, s->device, host, bytes, s->stream.handle));
  LADE_ASSERT_OK(OP(stream_synchronize, &s->stream));
  conformance_expect_device_pattern(runtime, 0, s->device, bytes, 14);
  memset(host, 0, bytes);
  LADE_EXPECT_OK(lade_copy_async(runtime, host, s->device, bytes, s->stream.handle));
  LADE_ASSERT_OK(OP(stream_synchronize, &s->stream));
  LADE_EXPECT_PATTERN(host, bytes, 14, 0);
}

/* On an H200 a block in several registrations could not be copied: LADE_ERR_INVALID_ARGUMENT. */
CONFORMANCE_TEST(Pinned, CopyHelperCutsAtTheEndsOfRegistrations) {
  static const helper_copy copies[] = {{STRETCH, 2 * STRETCH},
                                       {STRETCH + 511, STRETCH},
                                       {2 * STRETCH - 1, 2},
                                       {STRETCH + 3, 3 * STRETCH - 3},
                                       {STRETCH / 2, STRETCHES * STRETCH - STRETCH / 2}};
  stretches s;
  conformance_allow_findings();
  if (!stretches_make(runtime, &s)) return;
  for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
    lade_test_context("%zu bytes from %zu", copies[i].bytes, copies[i].begin);
    expect_helper_copies(runtime, &s, s.memory + copies[i].begin, copies[i].bytes);
  }
  lade_test_context("%s", "");
  stretches_end(runtime, &s);
}

/* Host to host: both sides have ends, in different places. */
CONFORMANCE_TEST(Pinned, CopyHelperCutsAtTheEndsOfBothSides) {
  stretches from, to;
  if (!stretches_make(runtime, &from) || !stretches_make(runtime, &to)) return;
  char *src = from.memory + STRETCH + 1000, *dst = to.memory + STRETCH + 333;
  size_t bytes = 2 * STRETCH - 1000;
  support_pattern_fill(src, bytes, 15, 0);
  LADE_EXPECT_OK(lade_copy_async(runtime, dst, src, bytes, from.stream.handle));
  LADE_ASSERT_OK(OP(stream_synchronize, &from.stream));
  LADE_EXPECT_PATTERN(dst, bytes, 15, 0);
  stretches_end(runtime, &from);
  stretches_end(runtime, &to);
}

/* A node for each stretch, all of them replayed. */
CONFORMANCE_TEST(Pinned, CopyHelperCutsInACaptureToo) {
  NEEDS_OP(capture_begin);
  stretches s;
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  if (!stretches_make(runtime, &s)) return;
  char *host = s.memory + STRETCH + 77;
  size_t bytes = 2 * STRETCH - 77;
  LADE_ASSERT_OK(OP(capture_begin, &s.stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(lade_copy_async(runtime, s.device, host, bytes, s.stream.handle));
  LADE_ASSERT_OK(OP(capture_end, &s.stream, &graph));
  LADE_ASSERT_OK(OP(graph_instantiate, graph, &exec));
  for (uint64_t round = 0; round < 2; round++) {
    support_pattern_fill(host, bytes, round, 0);
    LADE_EXPECT_OK(OP(graph_launch, exec, &s.stream));
    LADE_ASSERT_OK(OP(stream_synchronize, &s.stream));
    conformance_expect_device_pattern(runtime, 0, s.device, bytes, round);
  }
  LADE_EXPECT_OK(OP(graph_exec_destroy, exec));
  LADE_EXPECT_OK(OP(graph_destroy, graph));
  stretches_end(runtime, &s);
}
