/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across layers: Machines where host and device memory are one, played by the loopback driver: bytes that the host can write to where
 * the device has them are, without a block or a copy; the page cache is left behind reads.
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lade/device.h"
#include "loaders/page_cache.h"
#include "runtime/unified.h"
#include "tests/loopback/hooks.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { BYTES = 1 << 20, SEED = 36, CHUNK = 64 << 10 };

typedef struct scene {
  support_temp_dir dir;
  char *path, *host, *pinned;
  int fd;
  fixture f;
} scene;

/* Of a device that has the attribute. */
static bool scene_open(scene *s, int attribute) {
  lade_pipeline_options options;
  *s = (scene){.fd = -1, .host = malloc(BYTES)};
  lade_pipeline_options_init(&options);
  options.chunk_bytes = CHUNK;
  if (!(s->host != NULL && support_temp_dir_create(&s->dir))) return LADE_EXPECT(false), false;
  s->path = support_temp_dir_path(&s->dir, "bytes");
  support_pattern_fill(s->host, BYTES, SEED, 0);
  if (!(support_temp_file_write(s->path, BYTES, SEED))) return LADE_EXPECT(false), false;
  s->fd = open(s->path, O_RDONLY);
  loopback_hooks_get()->set_attribute(attribute, 1);
  bool good = fixture_open(&s->f, "cuda", BYTES, &options);
  if (!(good && lade_pinned_alloc(s->f.pool, BYTES, (void **)&s->pinned) == LADE_OK)) return LADE_EXPECT(false), false;
  memset(s->pinned, 0, BYTES);
  return true;
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(lade_pinned_free(s->f.pool, s->pinned));
  fixture_close(&s->f);
  loopback_hooks_get()->set_attribute(0, 0);
  close(s->fd);
  free(s->path);
  free(s->host);
  support_temp_dir_remove(&s->dir);
}

static lade_transfer transfer_to(const scene *s, void *memory, lade_endpoint source) {
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, source, BYTES - 8);
  transfer.device_memory = memory;
  return transfer;
}

/* From byte 8 on. */
static lade_endpoint source_of(const scene *s, unsigned i) {
  switch (i) {
  case 0: return lade_endpoint_file(s->fd, 8, "bytes");
  case 1: return lade_endpoint_path(s->path, 8, 0);
  case 2: return lade_endpoint_path(s->path, 8, LADE_FILE_DIRECT);
  default: return lade_endpoint_memory(s->host + 8);
  }
}

static void written_check(int attribute, bool own) {
  scene s;
  if (!scene_open(&s, attribute)) return;
  char *ordinary = own ? malloc(BYTES) : NULL, *memory = own ? ordinary : s.pinned;
  for (unsigned i = 0; i < 4; i++) {
    lade_test_context("source %u", i);
    memset(memory, 0, BYTES);
    lade_transfer transfer = transfer_to(&s, memory, source_of(&s, i));
    LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
    LADE_EXPECT_EQ_MEM(memory, s.host + 8, BYTES - 8);
    LADE_EXPECT_EQ_MEM(memory + BYTES - 8, "\0\0\0\0\0\0\0", 8);
  }
  for (size_t bytes = 1; bytes < BYTES; bytes = 16 * bytes + 1) { /* the short ones by the calls themselves */
    lade_transfer transfer = transfer_to(&s, memory, lade_endpoint_memory(s.host));
    transfer.bytes = bytes;
    memset(memory, 0, BYTES);
    LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
    LADE_EXPECT_EQ_MEM(memory, s.host, bytes);
    LADE_EXPECT_EQ_INT(memory[bytes], 0);
  }
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).blocks_peak, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).copies, 0);
  scene_close(&s);
  free(ordinary);
}

LADE_TEST(Unified, AnIntegratedDeviceIsReadIntoPinnedMemory) { written_check(CU_DEVICE_ATTRIBUTE_INTEGRATED, false); }

LADE_TEST(Unified, HostPageTablesLetAnyMemoryBeReadInto) {
  written_check(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, false);
  written_check(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, true);
}

/* What the driver allocates for the device is the device's alone there, too. */
LADE_TEST(Unified, MemoryOfTheDeviceIsCopiedTo) {
  scene s;
  if (!scene_open(&s, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return;
  lade_transfer transfer = transfer_to(&s, s.f.device, source_of(&s, 0));
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  fixture_expect_device_pattern(&s.f, 0, BYTES - 8, SEED, 8);
  LADE_EXPECT_GT_UINT(fixture_info(&s.f).blocks_peak, 0);
  scene_close(&s);
}

static lade_status segment_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  (void)device;
  (void)stream;
  return lade_pinned_alloc(user, bytes, out);
}

static lade_status segment_free(void *user, void *memory, size_t bytes, int device, lade_stream stream) {
  (void)bytes;
  (void)device;
  (void)stream;
  return lade_pinned_free(user, memory);
}

/* An allocator whose segments are pinned memory: what is loaded is there once, and the budget of pinned memory counts it once. */
LADE_TEST(Unified, AnAllocatorOverPinnedMemoryIsReadInto) {
  scene s;
  lade_device_options options;
  lade_device_plugin plugin;
  lade_device_allocator *allocator;
  void *memory = NULL;
  if (!scene_open(&s, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return;
  lade_device_options_init(&options);
  lade_device_plugin_init(&plugin);
  plugin.user = s.f.pool;
  plugin.alloc = segment_alloc;
  plugin.free = segment_free;
  options.provider = &plugin;
  LADE_ASSERT_OK(lade_runtime_set_device(s.f.runtime, 0)); /* whose legacy stream is NULL */
  LADE_ASSERT_OK(lade_device_allocator_create(s.f.runtime, 0, &options, &allocator));
  lade_transfer transfer = transfer_to(&s, NULL, source_of(&s, 0));
  transfer.allocator = allocator;
  transfer.out_device_memory = &memory;
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  LADE_EXPECT_EQ_MEM(memory, s.host + 8, BYTES - 8);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).blocks_peak, 0);
  LADE_EXPECT_OK(lade_device_free(allocator, memory));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  scene_close(&s);
}

LADE_TEST(Unified, ManyPiecesAreReadToTheirPlaces) {
  enum { PIECES = 40, EACH = 8191 };
  scene s;
  lade_piece pieces[PIECES];
  if (!scene_open(&s, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return;
  for (unsigned i = 0; i < PIECES; i++)
    pieces[i] = (lade_piece){i % 2 == 0 ? lade_endpoint_file(s.fd, (uint64_t)i * EACH, "bytes")
                                        : lade_endpoint_memory(s.host + (size_t)i * EACH),
                             s.pinned + (size_t)(PIECES - 1 - i) * EACH, EACH};
  lade_transfer transfer = {
      .struct_size = sizeof transfer, .direction = LADE_TO_DEVICE, .pieces = pieces, .piece_count = PIECES};
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  for (unsigned i = 0; i < PIECES; i++)
    LADE_EXPECT_EQ_MEM(s.pinned + (size_t)(PIECES - 1 - i) * EACH, s.host + (size_t)i * EACH, EACH);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).blocks_peak, 0);
  scene_close(&s);
}

/* Reads know nothing of streams: they begin when the work before is over. */
LADE_TEST(Unified, BytesComeAfterTheWorkOnTheStream) {
  scene s;
  lade_stream stream;
  support_stream_hold hold;
  lade_ticket *ticket;
  if (!scene_open(&s, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &stream));
  lade_transfer transfer = transfer_to(&s, s.pinned, source_of(&s, 0));
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT(support_stream_hold_begin(&hold, s.f.runtime, stream));
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, 20000000));
  LADE_EXPECT_EQ_INT(s.pinned[0] | s.pinned[BYTES - 9], 0);
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_MEM(s.pinned, s.host + 8, BYTES - 8);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, stream));
  scene_close(&s);
}

LADE_TEST(Unified, AFileThatEndsEarlyIsTold) {
  scene s;
  if (!scene_open(&s, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return;
  LADE_ASSERT_EQ_INT(truncate(s.path, BYTES / 2), 0);
  lade_transfer transfer = transfer_to(&s, s.pinned, source_of(&s, 0));
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, fixture_run(&s.f, &transfer));
  scene_close(&s);
}

/* Its owner may have no second descriptor, without O_DIRECT: a block has room for whole ones of the file, the destination has not. */
LADE_TEST(Unified, AFileThatTakesWholeBlocksAloneIsStaged) {
  scene s;
  struct rlimit limit, none;
  if (!scene_open(&s, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return;
  int fd = open(s.path, O_RDONLY | O_DIRECT);
  bool whole_blocks = fd >= 0 && pread(fd, s.pinned + 1, 512, 8) < 0; /* of file systems that have O_DIRECT */
  LADE_ASSERT_EQ_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
  none = limit;
  none.rlim_cur = 0;
  lade_transfer transfer = transfer_to(&s, s.pinned + 1, lade_endpoint_file(fd, 8, "bytes"));
  if (whole_blocks) {
    lade_ticket *ticket = NULL;
    memset(s.pinned, 0, BYTES);
    LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
    lade_status submitted = lade_pipeline_submit(s.f.pipeline, &transfer, &ticket);
    LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    LADE_ASSERT_OK(submitted);
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    LADE_EXPECT_EQ_MEM(s.pinned + 1, s.host + 8, BYTES - 8);
    lade_ticket_release(ticket);
  }
  if (fd >= 0) close(fd);
  scene_close(&s);
}

/* ---- The policy, of a driver that says what the test says -------------------------------------------------------- */

typedef struct driver {
  int64_t attributes[LADEI_ATTR_COUNT];
  lade_status answer;
  ladei_pointer_attributes place;
} driver;

static lade_status driver_attribute(void *self, int device, ladei_device_attribute attribute, int64_t *out) {
  (void)device;
  *out = ((driver *)self)->attributes[attribute];
  return ((driver *)self)->answer;
}

static lade_status driver_pointer(void *self, const void *pointer, ladei_pointer_attributes *out) {
  (void)pointer;
  *out = ((driver *)self)->place;
  return ((driver *)self)->answer;
}

/* What the host writes to: bits of ladei_memory_kind. */
static unsigned written_kinds(driver *d, const lade_runtime *runtime) {
  ladei_unified unified;
  unsigned kinds = 0;
  ladei_unified_find(runtime, 0, &unified);
  LADE_EXPECT_EQ_INT(unified.memory_is_systems, d->answer == LADE_OK && d->attributes[LADEI_ATTR_INTEGRATED] != 0);
  for (int kind = LADEI_MEMORY_UNKNOWN; kind <= LADEI_MEMORY_MANAGED; kind++) {
    d->place = (ladei_pointer_attributes){.kind = (ladei_memory_kind)kind};
    if (kind != LADEI_MEMORY_UNKNOWN) d->place.base = 4096, d->place.bytes = 100;
    bool all = ladei_unified_is_written(runtime, &unified, (void *)(uintptr_t)4100, 96);
    bool beyond = ladei_unified_is_written(runtime, &unified, (void *)(uintptr_t)4100, 97);
    LADE_EXPECT_EQ_INT(beyond, all && kind == LADEI_MEMORY_UNKNOWN); /* one allocation has them all */
    kinds |= (unsigned)all << kind;
  }
  return kinds;
}

LADE_TEST(Unified, WhatTheHostWritesFollowsFromAttributes) {
  enum { PINNED = 1 << LADEI_MEMORY_PINNED, MANAGED = 1 << LADEI_MEMORY_MANAGED, ORDINARY = 1 << LADEI_MEMORY_UNKNOWN };
  driver d = {.answer = LADE_OK};
  lade_runtime_ops ops = {.device_attribute = driver_attribute, .pointer_attributes = driver_pointer};
  lade_runtime runtime = {.ops = &ops, .self = &d};
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), 0);
  d.attributes[LADEI_ATTR_CONCURRENT_MANAGED_ACCESS] = 1; /* as of an H200 */
  d.attributes[LADEI_ATTR_PAGEABLE_MEMORY_ACCESS] = 1;
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), 0);
  d.attributes[LADEI_ATTR_INTEGRATED] = 1;
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), PINNED | MANAGED);
  d.attributes[LADEI_ATTR_CONCURRENT_MANAGED_ACCESS] = 0;
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), PINNED);
  d.attributes[LADEI_ATTR_INTEGRATED] = 0;
  d.attributes[LADEI_ATTR_HOST_PAGE_TABLES] = 1;
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), PINNED | ORDINARY);
  d.attributes[LADEI_ATTR_INTEGRATED] = d.attributes[LADEI_ATTR_CONCURRENT_MANAGED_ACCESS] = 1;
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), PINNED | MANAGED | ORDINARY);
  d.answer = LADE_ERR_DRIVER;
  LADE_EXPECT_EQ_UINT(written_kinds(&d, &runtime), 0);
}

/* Reads the file into the page cache. Whether its pages are left there, and can be made to leave. */
static bool cache_fill(scene *s) {
  LADE_EXPECT_EQ_INT(fdatasync(s->fd), 0);
  LADE_EXPECT_EQ_INT(posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  bool leaves = ladei_loader_cached_bytes(s->fd, 0, BYTES) == 0;
  LADE_EXPECT_EQ_INT((int)pread(s->fd, s->host, BYTES, 0), BYTES);
  return leaves;
}

LADE_TEST(Unified, ReadsLeaveThePageCache) {
  static const struct {
    int attribute;
    uint32_t flags;
    bool stays;
  } cases[] = {{CU_DEVICE_ATTRIBUTE_INTEGRATED, 0, false},
               {CU_DEVICE_ATTRIBUTE_INTEGRATED, LADE_FILE_CACHED, true},
               {0, 0, true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    scene s;
    if (!scene_open(&s, cases[i].attribute)) return;
    for (int pinned = 0; pinned < 2; pinned++) {
      if (pinned && cases[i].attribute == 0) continue;
      bool leaves = cache_fill(&s); /* not of files in memory */
      lade_transfer transfer =
          transfer_to(&s, pinned ? s.pinned : s.f.device, lade_endpoint_path(s.path, 0, cases[i].flags));
      transfer.bytes = BYTES;
      LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
      uint64_t cached = ladei_loader_cached_bytes(s.fd, 0, BYTES);
      if (leaves) LADE_EXPECT_EQ_INT(cached > BYTES / 8, cases[i].stays);
    }
    scene_close(&s);
  }
}
