/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a read or write of a range is cut into calls: by a kernel made of an array, that moves as little as it likes,
 * interrupts, and insists on what O_DIRECT insists on.
 */
#include "pipeline/storage/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"

enum { ALIGN = 4096, MEMORY_ALIGN = 512, FILE_BYTES = 40 * ALIGN, BLOCK_BYTES = 16 * ALIGN, GUARD = ALIGN };
enum { PLAIN_FD = 100, DIRECT_FD = 101 };

typedef struct fake {
  support_random random;
  unsigned char *file; /* FILE_BYTES, of which `bytes` exist */
  size_t bytes;
  unsigned char way[FILE_BYTES / ALIGN]; /* bits: page written through the page cache (1), past it (2) */
  bool refuse_direct;
  bool whole; /* no short calls and no interruptions */
} fake;

static void expect_aligned(const ladei_pipe_storage_call *call) {
  LADE_EXPECT_EQ_UINT(call->at % ALIGN, 0);
  LADE_EXPECT_EQ_UINT(call->bytes % ALIGN, 0);
  LADE_EXPECT_EQ_UINT((uintptr_t)call->memory % MEMORY_ALIGN, 0);
}

/* Bytes of the call that are moved: some, or all. With O_DIRECT the disk's sectors, of writes whole pages, and the end. */
static size_t some_of(fake *f, size_t bytes, size_t unit) {
  if (f->whole || bytes == 0 || support_random_one_in(&f->random, 2)) return bytes;
  size_t some = (size_t)support_random_between(&f->random, 1, bytes);
  some = (some + unit - 1) / unit * unit;
  return some < bytes ? some : bytes;
}

static int64_t fake_call(fake *f, const ladei_pipe_storage_request *request) {
  const ladei_pipe_storage_call *call = &request->call;
  LADE_EXPECT_GT_UINT(call->bytes, 0);
  LADE_EXPECT_EQ_INT(call->fd, call->direct ? DIRECT_FD : PLAIN_FD);
  if (!f->whole && support_random_one_in(&f->random, 5)) return -EINTR;
  if (call->direct && f->refuse_direct) return -EINVAL;
  if (call->direct) expect_aligned(call);
  if (!request->file->write) {
    size_t there = call->at < f->bytes ? f->bytes - (size_t)call->at : 0;
    size_t moved = some_of(f, call->bytes < there ? call->bytes : there, call->direct ? MEMORY_ALIGN : 1);
    memcpy(call->memory, f->file + call->at, moved);
    return (int64_t)moved;
  }
  size_t moved = some_of(f, call->bytes, call->direct ? ALIGN : 1);
  memcpy(f->file + call->at, call->memory, moved);
  for (size_t i = 0; i < moved; i++) f->way[(call->at + i) / ALIGN] |= call->direct ? 2 : 1;
  return (int64_t)moved;
}

static lade_status request_move(fake *f, ladei_pipe_storage_request *request) {
  lade_status status = LADE_NOT_READY;
  for (unsigned calls = 0; status == LADE_NOT_READY; calls++) {
    ladei_pipe_storage_call_next(request);
    status = ladei_pipe_storage_call_done(request, fake_call(f, request));
    if (calls == 1000000) {
      LADE_FAIL("the request never ends");
      return LADE_ERR_INTERNAL;
    }
  }
  return status;
}

typedef struct bench {
  fake kernel;
  ladei_pipe_storage storage;
  ladei_pipe_storage_file file;
  unsigned char *memory; /* guard, block, guard */
} bench;

static bench *bench_create(uint64_t seed, bool write, bool direct) {
  bench *b = calloc(1, sizeof *b);
  support_random_start_quietly(&b->kernel.random, seed);
  b->kernel.file = malloc(FILE_BYTES);
  b->kernel.bytes = FILE_BYTES;
  b->memory = aligned_alloc(ALIGN, BLOCK_BYTES + 2 * GUARD);
  memset(b->memory, 0xa5, BLOCK_BYTES + 2 * GUARD);
  support_pattern_fill(b->kernel.file, FILE_BYTES, 1, 0);
  b->file.storage = &b->storage;
  b->file.source.name = "data.bin";
  b->file.fd = PLAIN_FD;
  b->file.direct_fd = direct ? DIRECT_FD : -1;
  b->file.align = ALIGN;
  b->file.memory_align = MEMORY_ALIGN;
  b->file.write = write;
  return b;
}

static void bench_destroy(bench *b) {
  free(b->kernel.file);
  free(b->memory);
  free(b);
}

/* A range as a pipeline makes it: the lead of its first block, or anywhere in the block, or a buffer alone. */
static ladei_pipe_storage_request request_random(bench *b) {
  support_random *random = &b->kernel.random;
  unsigned char *block = b->memory + GUARD;
  ladei_pipe_storage_request request = {.file = &b->file, .block_index = -1};
  request.offset = support_random_below(random, FILE_BYTES - BLOCK_BYTES);
  size_t lead = (size_t)(request.offset % ALIGN);
  if (support_random_one_in(random, 4)) lead = (size_t)support_random_below(random, ALIGN);
  request.buffer = (char *)block + lead;
  request.bytes = support_random_size(random, BLOCK_BYTES - lead);
  if (!support_random_one_in(random, 4)) {
    request.block = (char *)block;
    request.block_bytes = BLOCK_BYTES;
  }
  return request;
}

static void expect_guards_whole(const bench *b) {
  for (size_t i = 0; i < GUARD; i++) {
    if (b->memory[i] != 0xa5 || b->memory[GUARD + BLOCK_BYTES + i] != 0xa5) {
      LADE_FAIL("bytes outside the block were written, at %zu", i);
      return;
    }
  }
}

static void run_seeds(void (*body)(uint64_t seed)) {
  uint64_t first = support_seed(0);
  uint64_t count = first == 0 ? 400 : 1;
  for (uint64_t seed = first; seed < first + count && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu", (unsigned long long)seed);
    body(seed);
  }
}

static void read_once(uint64_t seed) {
  bench *b = bench_create(seed, false, seed % 3 != 0);
  b->kernel.refuse_direct = seed % 7 == 0;
  ladei_pipe_storage_request request = request_random(b);
  LADE_EXPECT_OK(request_move(&b->kernel, &request));
  LADE_EXPECT_PATTERN(request.buffer, request.bytes, 1, request.offset);
  expect_guards_whole(b);
  if (request.block_bytes == 0) LADE_EXPECT_EQ_INT((unsigned char)request.buffer[request.bytes], 0xa5);
  if (b->file.direct_off) {
    LADE_EXPECT(b->kernel.refuse_direct);
    LADE_EXPECT_EQ_UINT(b->storage.direct_refused, 1);
  }
  bench_destroy(b);
}

LADE_TEST(StorageRequest, ReadsEveryByteOfAnyRange) { run_seeds(read_once); }

static void write_once(uint64_t seed) {
  bench *b = bench_create(seed, true, seed % 3 != 0);
  b->kernel.refuse_direct = seed % 7 == 0;
  ladei_pipe_storage_request request = request_random(b);
  support_pattern_fill(request.buffer, request.bytes, 2, request.offset);
  LADE_EXPECT_OK(request_move(&b->kernel, &request));
  LADE_EXPECT_PATTERN(b->kernel.file, request.offset, 1, 0);
  LADE_EXPECT_PATTERN(b->kernel.file + request.offset, request.bytes, 2, request.offset);
  uint64_t end = request.offset + request.bytes;
  LADE_EXPECT_PATTERN(b->kernel.file + end, FILE_BYTES - end, 1, end);
  for (size_t page = 0; page < FILE_BYTES / ALIGN && !b->kernel.refuse_direct; page++)
    LADE_EXPECT_NE_INT(b->kernel.way[page], 3); /* page written both ways */
  bench_destroy(b);
}

LADE_TEST(StorageRequest, WritesEveryByteOfAnyRangeAndNoOther) { run_seeds(write_once); }

/* What a pipeline's chunks look like: then nothing but the ends of a write goes through the page cache. */
LADE_TEST(StorageRequest, MovesWholeBlocksPastThePageCache) {
  for (int write = 0; write < 2; write++) {
    bench *b = bench_create(1, write != 0, true);
    b->kernel.whole = true;
    char *block = (char *)b->memory + GUARD;
    ladei_pipe_storage_request request = {.file = &b->file,
                                          .offset = 3 * ALIGN + 100,
                                          .buffer = block + 100,
                                          .bytes = 8 * ALIGN,
                                          .block = block,
                                          .block_bytes = BLOCK_BYTES,
                                          .block_index = -1};
    unsigned direct = 0;
    unsigned plain = 0;
    lade_status status = LADE_NOT_READY;
    while (status == LADE_NOT_READY) {
      ladei_pipe_storage_call_next(&request);
      direct += request.call.direct ? 1 : 0;
      plain += request.call.direct ? 0 : 1;
      status = ladei_pipe_storage_call_done(&request, fake_call(&b->kernel, &request));
    }
    LADE_EXPECT_OK(status);
    LADE_EXPECT_EQ_UINT(direct, 1);
    LADE_EXPECT_EQ_UINT(plain, write ? 2 : 0);
    bench_destroy(b);
  }
}

static void truncated_once(uint64_t seed) {
  bench *b = bench_create(seed, false, seed % 2 != 0);
  ladei_pipe_storage_request request = request_random(b);
  b->kernel.bytes = (size_t)support_random_below(&b->kernel.random, request.offset + request.bytes);
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, request_move(&b->kernel, &request));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "data.bin");
  size_t there = b->kernel.bytes > request.offset ? b->kernel.bytes - (size_t)request.offset : 0;
  char at[64];
  snprintf(at, sizeof at, "ends at byte %llu, %zu bytes", (unsigned long long)(request.offset + there),
           request.bytes - there);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, at);
  LADE_EXPECT_PATTERN(request.buffer, there, 1, request.offset);
  bench_destroy(b);
}

LADE_TEST(StorageRequest, FindsTheEndOfTheFileToTheByte) { run_seeds(truncated_once); }

LADE_TEST(StorageRequest, NamesFileAndByteOfAnError) {
  bench *b = bench_create(1, false, false);
  ladei_pipe_storage_request request = {
      .file = &b->file, .offset = 1000, .buffer = (char *)b->memory, .bytes = 500, .block_index = -1};
  ladei_pipe_storage_call_next(&request);
  LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_pipe_storage_call_done(&request, 200));
  ladei_pipe_storage_call_next(&request);
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_pipe_storage_call_done(&request, -EIO));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EIO);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "reading data.bin at byte 1200");
  bench_destroy(b);
}

/* A descriptor that came with O_DIRECT, and no second one: what cannot be aligned is an error, not a loop. */
LADE_TEST(StorageRequest, SaysThatADirectFileCannotBeWrittenInPart) {
  bench *b = bench_create(1, true, true);
  b->file.fd = -1;
  ladei_pipe_storage_request request = {
      .file = &b->file, .offset = 10, .buffer = (char *)b->memory, .bytes = 20, .block_index = -1};
  ladei_pipe_storage_call_next(&request);
  LADE_EXPECT_EQ_INT(request.call.fd, DIRECT_FD);
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_pipe_storage_call_done(&request, -EINVAL));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EINVAL);
  bench_destroy(b);
}

/* The call under way is the last one. */
LADE_TEST(StorageRequest, EndsEarlyWhenItsFileIsCancelled) {
  bench *b = bench_create(1, false, false);
  ladei_pipe_storage_request request = {
      .file = &b->file, .offset = 0, .buffer = (char *)b->memory, .bytes = 500, .block_index = -1};
  ladei_pipe_storage_file_cancel(&b->file);
  ladei_pipe_storage_call_next(&request);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, ladei_pipe_storage_call_done(&request, 200));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, ladei_pipe_storage_call_done(&request, -ECANCELED));
  bench_destroy(b);
}

/* The kernel gave one call up without being asked to: it is repeated. */
LADE_TEST(StorageRequest, RepeatsWhatWasInterrupted) {
  bench *b = bench_create(1, false, false);
  ladei_pipe_storage_request request = {
      .file = &b->file, .offset = 0, .buffer = (char *)b->memory, .bytes = 500, .block_index = -1};
  static const int codes[] = {EINTR, ECANCELED};
  for (size_t i = 0; i < 2; i++) {
    ladei_pipe_storage_call_next(&request);
    LADE_EXPECT_STATUS(LADE_NOT_READY, ladei_pipe_storage_call_done(&request, -codes[i]));
    LADE_EXPECT_EQ_UINT(request.done, 0);
  }
  bench_destroy(b);
}
