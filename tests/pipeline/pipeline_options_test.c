/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of a pipeline and all fields of a transfer with all others: every byte at both ends, and beside them, checksums,
 * counts. The model is the bytes themselves, laid out by hand.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"
#include "tests/support/guarded.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { DEVICE_BYTES = 32768, PIECES = 7, MOST_BYTES = 10001, MARK = 0xb7, STREAM_MARK = 0x5a, CALLBACK = 100 };

typedef struct crossed {
  lade_pipeline_options options;
  lade_transfer transfer;
} crossed;

/* Kinds of endpoints beyond those of the library. */
enum { CONCURRENT_CALLBACK = 6, ATOMIC_PATH = 7 };

static const support_option options[] = {
    SUPPORT_OPTION(crossed, options.readers, 0, 1, 2, 17),
    SUPPORT_OPTION(crossed, options.chunk_bytes, 0, 16, 4096, 5001, 1u << 20),
    SUPPORT_OPTION(crossed, options.depth, 0, 1, 2, 1024),
    SUPPORT_OPTION(crossed, options.max_transfers, 0, 1, UINT32_MAX),
    SUPPORT_OPTION(crossed, options.no_wait, 0, 1),
    SUPPORT_OPTION(crossed, options.storage, 0, 1, 2, 3),
    SUPPORT_OPTION(crossed, options.drain_timeout_ns, 0, UINT64_C(30000000000), UINT64_MAX),
    SUPPORT_OPTION(crossed, options.timeline_events, 0, 1, 1000),
    SUPPORT_OPTION(crossed, options.window_bytes, 0, 1, UINT64_MAX),
    SUPPORT_OPTION(crossed, options.local_ranks, 0, 3, UINT32_MAX),
    SUPPORT_OPTION(crossed, options.storage_total_bytes_per_s, 0, 1u << 30),
    SUPPORT_OPTION(crossed, options.url_connect_ms, 0, 3600000),
    SUPPORT_OPTION(crossed, options.url_stall_s, 0, 86400),
    SUPPORT_OPTION(crossed, options.url_attempts, 0, 1000),
    SUPPORT_OPTION(crossed, options.url_requests, 0, 1, 1024),
    SUPPORT_OPTION(crossed, transfer.direction, 1, 2),
    SUPPORT_OPTION(crossed, transfer.after_stream, 0, 1),
    SUPPORT_OPTION(crossed, transfer.priority, (uint64_t)-1, 0, 1),
    SUPPORT_OPTION(crossed, transfer.submitter, 0, 1, UINT64_MAX),
    SUPPORT_OPTION(crossed, transfer.on_complete_in_calls, 0, 1),
    SUPPORT_OPTION(crossed, transfer.checksum, 0, 1, 2),
    SUPPORT_OPTION(crossed, transfer.bytes, 0, 1, 4096, MOST_BYTES),
    SUPPORT_CHOICE("checksum_bytes", 4096, 8192, 1u << 24),
    SUPPORT_CHOICE("kind", 1, 2, 3, 4, 5, CONCURRENT_CALLBACK, ATOMIC_PATH),
    SUPPORT_CHOICE("flags", 0, LADE_FILE_DIRECT, LADE_FILE_SYNC, LADE_FILE_DIRECT | LADE_FILE_SYNC),
    SUPPORT_CHOICE("pieces", 0, 1, 2, PIECES),
    SUPPORT_CHOICE("scattered", 0, 1),
    SUPPORT_CHOICE("allocator", 0, 1),
    SUPPORT_CHOICE("stream", 0, 1),
};
static const support_option wrong[] = {
    SUPPORT_OPTION(crossed, options.readers, 257, UINT32_MAX),
    SUPPORT_OPTION(crossed, options.chunk_bytes, (uint64_t)1 << 60, UINT64_MAX),
    SUPPORT_OPTION(crossed, options.depth, 1025),
    SUPPORT_OPTION(crossed, options.no_wait, 2),
    SUPPORT_OPTION(crossed, options.storage, 4, (uint64_t)-1),
    SUPPORT_OPTION(crossed, options.timeline_events, (1u << 24) + 1),
    SUPPORT_OPTION(crossed, options.load_cache, 3, (uint64_t)-1),
    SUPPORT_OPTION(crossed, options.url_connect_ms, 3600001),
    SUPPORT_OPTION(crossed, options.url_stall_s, 86401),
    SUPPORT_OPTION(crossed, options.url_attempts, 1001),
    SUPPORT_OPTION(crossed, options.url_requests, 1025, UINT32_MAX),
    SUPPORT_OPTION(crossed, transfer.direction, 0, 3),
    SUPPORT_OPTION(crossed, transfer.after_stream, 2),
    SUPPORT_OPTION(crossed, transfer.priority, (uint64_t)-2, 2),
    SUPPORT_OPTION(crossed, transfer.checksum, 3),
    SUPPORT_OPTION(crossed, transfer.on_complete_in_calls, 2),
    SUPPORT_OPTION(crossed, transfer.bytes, (uint64_t)1 << 60, UINT64_MAX),
    SUPPORT_OPTION(crossed, transfer.host_dtype, 1, 21, (uint64_t)-1),
};

/* What all combinations share. */
typedef struct stage {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_device_allocator *allocator;
  support_guarded_device guarded;
  lade_stream stream;
  char *device, *peer; /* DEVICE_BYTES each */
  support_temp_dir dir;
} stage;

/* One combination as a transfer. */
typedef struct job {
  const support_crossing *crossing;
  stage *on;
  lade_pipeline *pipeline;
  lade_transfer transfer;
  uint64_t total, count; /* of bytes, of places: 1 without pieces */
  uint64_t begin[PIECES + 1], host_at[PIECES], device_at[PIECES];
  lade_piece pieces[PIECES];
  char *host[PIECES]; /* of memory and callbacks */
  char *path;
  int file;
  unsigned char *bytes; /* the transfer's, one piece behind the other */
  void *block;
  uint64_t *checksums;
  size_t sums;
  uint64_t next[PIECES]; /* offset that an ordered callback gets next */
  int completions;
  lade_status outcome;
} job;

static uint64_t value(const job *j, const char *name) { return support_crossing_value(j->crossing, name); }
static bool to_host(const job *j) { return j->transfer.direction == LADE_TO_HOST; }
static bool in_file(const job *j) {
  uint64_t kind = value(j, "kind");
  return kind == LADE_ENDPOINT_FILE || kind == LADE_ENDPOINT_PATH || kind == ATOMIC_PATH;
}

static void device_copy(const stage *on, ladei_copy_direction direction, void *to, const void *from, size_t bytes) {
  if (bytes > 0) LADE_EXPECT_OK(on->runtime->ops->copy_sync(on->runtime->self, 0, direction, to, from, bytes));
}

/* --- endpoints ---------------------------------------------------------------------------------------------------- */

typedef struct callback_user {
  job *of;
  uint64_t piece;
} callback_user;
static callback_user callback_users[PIECES];

static lade_status callback_move(void *user, uint64_t offset, void *buffer, size_t bytes) {
  const callback_user *u = user;
  job *j = u->of;
  uint64_t whole = j->begin[u->piece + 1] - j->begin[u->piece];
  bool ordered = value(j, "kind") == LADE_ENDPOINT_CALLBACK;
  if (offset + bytes > whole || (ordered && offset != j->next[u->piece])) return LADE_ERR_FORMAT;
  if (ordered) j->next[u->piece] += bytes;
  char *here = j->host[u->piece] + offset;
  if (to_host(j)) memcpy(here, buffer, bytes);
  if (!to_host(j)) memcpy(buffer, here, bytes);
  return LADE_OK;
}

static lade_endpoint endpoint_of(job *j, uint64_t i) {
  uint64_t kind = value(j, "kind");
  uint32_t flags = (uint32_t)value(j, "flags") & (to_host(j) ? UINT32_MAX : (uint32_t)LADE_FILE_DIRECT);
  lade_endpoint endpoint = lade_endpoint_memory(j->host[i]);
  if (kind == LADE_ENDPOINT_FILE) {
    endpoint = lade_endpoint_file(j->file, j->host_at[i], "a file");
    endpoint.flags = flags;
  }
  if (kind == LADE_ENDPOINT_PATH || kind == ATOMIC_PATH) {
    bool atomic = kind == ATOMIC_PATH && to_host(j);
    endpoint = lade_endpoint_path(j->path, j->host_at[i], flags | (atomic ? LADE_FILE_ATOMIC : 0u));
  }
  if (kind == LADE_ENDPOINT_DEVICE) endpoint = lade_endpoint_device(1, j->on->peer + j->host_at[i]);
  if (kind == LADE_ENDPOINT_CALLBACK || kind == CONCURRENT_CALLBACK) {
    callback_users[i] = (callback_user){j, i};
    endpoint = lade_endpoint_callback(callback_move, &callback_users[i]);
    endpoint.concurrent = kind == CONCURRENT_CALLBACK;
  }
  return endpoint;
}

static lade_status job_completed(void *user, lade_ticket *ticket, const lade_error *outcome) {
  job *j = user;
  (void)ticket;
  j->completions++;
  j->outcome = outcome->status;
  return LADE_OK;
}

/* --- laying out --------------------------------------------------------------------------------------------------- */

/* Places: on the device one behind the other, or with gaps; on the host with gaps where it is one space. */
static void job_place(job *j) {
  const uint64_t pieces = value(j, "pieces"), scattered = value(j, "scattered");
  uint64_t host = 13, device = 1024;
  j->count = pieces > 0 ? pieces : 1;
  for (uint64_t i = 0; i < j->count; i++) {
    bool empty = j->count == PIECES && i == 2; /* one piece without bytes */
    uint64_t bytes = i + 1 == j->count ? j->total - j->begin[i] : empty ? 0 : j->total / j->count;
    j->begin[i + 1] = j->begin[i] + bytes;
    j->host_at[i] = host;
    j->device_at[i] = device;
    host += bytes + 7 * i;
    device += bytes + (scattered ? 64 * i + 3 : 0);
  }
}

static void job_pieces(job *j) {
  bool own = value(j, "allocator") == 0, scattered = value(j, "scattered") != 0;
  j->transfer.device_memory = own ? j->on->device + j->device_at[0] : NULL;
  if (value(j, "pieces") == 0) {
    j->transfer.host = endpoint_of(j, 0);
    return;
  }
  for (uint64_t i = 0; i < j->count; i++) {
    j->pieces[i].host = endpoint_of(j, i);
    j->pieces[i].bytes = j->begin[i + 1] - j->begin[i];
    j->pieces[i].device_memory = own && scattered && i > 0 ? j->on->device + j->device_at[i] : NULL;
  }
  j->transfer.pieces = j->pieces;
  j->transfer.piece_count = j->count;
}

/* The host's bytes of a piece, as they are or shall be. */
static void host_write(job *j, uint64_t i) {
  const unsigned char *bytes = j->bytes + j->begin[i];
  size_t count = j->begin[i + 1] - j->begin[i];
  if (j->host[i] != NULL) memcpy(j->host[i], bytes, count);
  if (j->file >= 0) LADE_EXPECT(pwrite(j->file, bytes, count, (off_t)j->host_at[i]) == (ssize_t)count);
  if (value(j, "kind") == LADE_ENDPOINT_DEVICE)
    device_copy(j->on, LADEI_COPY_H2D, j->on->peer + j->host_at[i], bytes, count);
}

static void host_open(job *j) {
  uint64_t kind = value(j, "kind");
  j->file = -1;
  for (uint64_t i = 0;
       i < j->count && (kind == LADE_ENDPOINT_MEMORY || kind == LADE_ENDPOINT_CALLBACK || kind == CONCURRENT_CALLBACK);
       i++) {
    j->host[i] = support_guarded_host(j->begin[i + 1] - j->begin[i]);
    memset(j->host[i], MARK, j->begin[i + 1] - j->begin[i]);
  }
  if (!in_file(j)) return;
  j->path = support_temp_dir_path(&j->on->dir, "file");
  j->file = open(j->path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  LADE_ASSERT(j->file >= 0);
}

/* Fills both ends with marks, the source with the transfer's bytes. */
static void ends_fill(job *j) {
  static unsigned char marks[DEVICE_BYTES];
  memset(marks, MARK, sizeof marks);
  device_copy(j->on, LADEI_COPY_H2D, j->on->device, marks, sizeof marks);
  device_copy(j->on, LADEI_COPY_H2D, j->on->peer, marks, sizeof marks);
  for (uint64_t i = 0; i < j->count; i++) {
    if (!to_host(j)) host_write(j, i);
    if (to_host(j))
      device_copy(j->on, LADEI_COPY_H2D, j->on->device + j->device_at[i], j->bytes + j->begin[i],
                  j->begin[i + 1] - j->begin[i]);
  }
}

/* Work that the copies come after: of a source that is written yet, of a destination that the transfer writes over. */
static void stream_queue(job *j) {
  for (uint64_t i = 0; i < j->count && j->transfer.after_stream != 0 && value(j, "allocator") == 0; i++) {
    size_t count = j->begin[i + 1] - j->begin[i];
    if (count == 0) continue;
    LADE_EXPECT_OK(
        lade_fill_async(j->on->runtime, j->on->device + j->device_at[i], STREAM_MARK, count, j->transfer.stream));
    if (to_host(j)) memset(j->bytes + j->begin[i], STREAM_MARK, count);
  }
}

static void sums_open(job *j) {
  uint64_t unit = value(j, "checksum_bytes");
  if (j->transfer.checksum == LADE_CHECKSUM_NONE) return;
  j->sums = (j->total + unit - 1) / unit;
  j->checksums = support_guarded_host(j->sums * sizeof(uint64_t));
  j->transfer.checksum_bytes = unit;
  j->transfer.checksums = j->checksums;
}

static uint64_t sum_of(const job *j, uint64_t i) {
  uint64_t unit = value(j, "checksum_bytes"), left = j->total - i * unit;
  return XXH3_64bits(j->bytes + i * unit, left < unit ? left : unit);
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

static void image_expect(const stage *on, const char *device, const unsigned char *want) {
  static unsigned char got[DEVICE_BYTES];
  device_copy(on, LADEI_COPY_D2H, got, device, sizeof got);
  LADE_EXPECT_EQ_MEM(got, want, sizeof got);
}

/* All of the device's memory: the transfer's bytes, and marks beside them. `here`, `there`: the pipeline's device has them, its peer. */
static void device_expect(const job *j, bool here, bool there) {
  static unsigned char want[DEVICE_BYTES];
  memset(want, MARK, sizeof want);
  for (uint64_t i = 0; i < j->count && here && (to_host(j) || value(j, "allocator") == 0); i++)
    memcpy(want + j->device_at[i], j->bytes + j->begin[i], j->begin[i + 1] - j->begin[i]);
  image_expect(j->on, j->on->device, want);
  memset(want, MARK, sizeof want);
  for (uint64_t i = 0; i < j->count && there && value(j, "kind") == LADE_ENDPOINT_DEVICE; i++)
    memcpy(want + j->host_at[i], j->bytes + j->begin[i], j->begin[i + 1] - j->begin[i]);
  image_expect(j->on, j->on->peer, want);
  if (j->block == NULL) return;
  unsigned char *got = support_guarded_host(j->total);
  device_copy(j->on, LADEI_COPY_D2H, got, j->block, j->total);
  LADE_EXPECT_EQ_MEM(got, j->bytes, j->total);
  support_guarded_host_free(got, j->total);
}

/* A file has the bytes at their places, zeros between them, and no byte behind. */
static void file_expect(const job *j) {
  static unsigned char want[2 * MOST_BYTES];
  size_t size, end = j->host_at[j->count - 1] + j->begin[j->count] - j->begin[j->count - 1];
  memset(want, 0, sizeof want);
  for (uint64_t i = 0; i < j->count; i++)
    memcpy(want + j->host_at[i], j->bytes + j->begin[i], j->begin[i + 1] - j->begin[i]);
  unsigned char *got = (unsigned char *)support_file_read(j->path, &size);
  if (j->total > 0) LADE_EXPECT_EQ_SIZE(size, end);
  if (got != NULL && size <= sizeof want) LADE_EXPECT_EQ_MEM(got, want, size);
  free(got);
}

static void host_expect(const job *j) {
  if (in_file(j)) file_expect(j);
  for (uint64_t i = 0; i < j->count; i++)
    if (j->host[i] != NULL) LADE_EXPECT_EQ_MEM(j->host[i], j->bytes + j->begin[i], j->begin[i + 1] - j->begin[i]);
}

static void info_expect(const job *j, lade_ticket *ticket) {
  lade_pipeline_info info;
  lade_ticket_info how;
  lade_ticket_info_init(&how);
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_ticket_query(ticket, &how));
  LADE_EXPECT_OK(lade_pipeline_info_get(j->pipeline, &info));
  LADE_EXPECT_EQ_UINT(how.bytes, j->total);
  LADE_EXPECT_EQ_UINT(how.bytes_done, j->total);
  LADE_EXPECT_EQ_UINT(how.bytes_ready, j->total);
  LADE_EXPECT_EQ_UINT(info.transfers_submitted, 1);
  LADE_EXPECT_EQ_UINT(info.transfers_completed, 1);
  LADE_EXPECT_EQ_UINT(info.bytes_completed, j->total);
  LADE_EXPECT_EQ_INT(j->completions, 1);
  LADE_EXPECT_EQ_INT(j->outcome, LADE_OK);
}

/* The fields that are wrong together. */
static void job_refusals(const job *j, const lade_pipeline_options *given, const char **refused) {
  uint64_t unit = value(j, "checksum_bytes");
  bool sums = j->transfer.checksum != LADE_CHECKSUM_NONE;
  if (value(j, "allocator") != 0 && to_host(j)) *refused++ = "transfer.direction";
  if (sums && given->chunk_bytes != 0 && unit > given->chunk_bytes) *refused++ = "transfer.checksum_bytes";
  if (sums && unit > (1u << 24)) *refused++ = "transfer.checksum_bytes";
  *refused = NULL;
}

/* --- a combination ------------------------------------------------------------------------------------------------ */

static void job_open(job *j, const crossed *given) {
  j->transfer = given->transfer;
  j->total = given->transfer.bytes <= MOST_BYTES ? given->transfer.bytes : 100;
  j->bytes = malloc(j->total + 1);
  LADE_ASSERT(j->bytes != NULL);
  support_pattern_fill(j->bytes, j->total, j->crossing->number, 0);
  job_place(j);
  host_open(j);
  if (value(j, "stream") != 0) j->transfer.stream = j->on->stream;
  if (value(j, "allocator") != 0) {
    j->transfer.allocator = j->on->allocator;
    j->transfer.out_device_memory = &j->block;
  }
  sums_open(j);
  job_pieces(j);
  j->transfer.on_complete = job_completed;
  j->transfer.on_complete_user = j;
  ends_fill(j);
  for (uint64_t i = 0; i < j->sums; i++) j->checksums[i] = sum_of(j, i);
}

static void job_close(job *j) {
  for (uint64_t i = 0; i < j->count; i++) support_guarded_host_free(j->host[i], j->begin[i + 1] - j->begin[i]);
  if (j->file >= 0) LADE_EXPECT(close(j->file) == 0 && unlink(j->path) == 0);
  LADE_EXPECT_EQ_SIZE(support_names_count(j->on->dir.path), 0);
  LADE_EXPECT_OK(lade_device_free(j->on->allocator, j->block));
  if (j->checksums != NULL) support_guarded_host_free(j->checksums, j->sums * sizeof(uint64_t));
  free(j->path);
  free(j->bytes);
}

static void job_run(job *j) {
  lade_ticket *ticket;
  stream_queue(j);
  for (uint64_t i = 0; i < j->sums; i++)
    j->checksums[i] = j->transfer.checksum == LADE_CHECKSUM_VERIFY ? sum_of(j, i) : 0;
  LADE_ASSERT_OK(lade_pipeline_submit(j->pipeline, &j->transfer, &ticket));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  device_expect(j, true, true);
  host_expect(j);
  for (uint64_t i = 0; i < j->sums; i++) LADE_EXPECT_EQ_UINT(j->checksums[i], sum_of(j, i));
  info_expect(j, ticket);
  lade_ticket_release(ticket);
}

static void job_refuse(job *j, support_crossing *crossing, const char *const *refused) {
  lade_ticket *ticket = NULL;
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  bool sums_of_device =
      j->transfer.checksum != 0 && value(j, "kind") == LADE_ENDPOINT_DEVICE && crossing->wrong == NULL;
  lade_status status = lade_pipeline_submit(j->pipeline, &j->transfer, &ticket);
  if (sums_of_device && status == LADE_ERR_UNSUPPORTED) status = LADE_ERR_INVALID_ARGUMENT;
  support_crossing_refused(crossing, status, refused);
  LADE_EXPECT_EQ_PTR(ticket, NULL);
  LADE_EXPECT_EQ_PTR(j->block, NULL);
  LADE_EXPECT_OK(lade_pipeline_info_get(j->pipeline, &info));
  LADE_EXPECT_EQ_UINT(info.transfers_submitted, 0);
  LADE_EXPECT_EQ_INT(j->completions, 0);
  device_expect(j, to_host(j), !to_host(j));
}

static void pipeline_refuse(const stage *on, support_crossing *crossing, const lade_pipeline_options *given) {
  static const char *const none[] = {NULL};
  lade_pipeline *pipeline = NULL;
  lade_soft_report before, after;
  lade_soft_report_init(&before);
  lade_soft_report_init(&after);
  LADE_EXPECT_OK(lade_soft_report_get(on->runtime, &before));
  support_crossing_refused(crossing, lade_pipeline_create(on->runtime, on->pool, given, &pipeline), none);
  LADE_EXPECT_EQ_PTR(pipeline, NULL);
  LADE_EXPECT_OK(lade_soft_report_get(on->runtime, &after));
  LADE_EXPECT_EQ_MEM(&before, &after, sizeof before);
}

static void combination(stage *on, support_crossing *crossing, const crossed *given) {
  job j = {.crossing = crossing, .on = on};
  const char *refused[5];
  if (crossing->wrong != NULL && strncmp(crossing->wrong, "options.", 8) == 0) {
    pipeline_refuse(on, crossing, &given->options);
    return;
  }
  LADE_ASSERT_OK(lade_pipeline_create(on->runtime, on->pool, &given->options, &j.pipeline));
  job_open(&j, given);
  job_refusals(&j, &given->options, refused);
  if (j.transfer.checksum != 0 && j.total > 0 && value(&j, "kind") == LADE_ENDPOINT_DEVICE) {
    refused[refused[0] != NULL] = "transfer.checksum";
    refused[refused[1] != NULL ? 2 : 1] = NULL;
  }
  if (crossing->wrong != NULL || refused[0] != NULL)
    job_refuse(&j, crossing, refused);
  else
    job_run(&j);
  LADE_EXPECT_OK(lade_pipeline_destroy(j.pipeline, false));
  job_close(&j);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static bool stage_open(stage *on, const char *name) {
  void *device = NULL, *peer = NULL;
  *on = (stage){.runtime = support_runtime_open(name)};
  if (on->runtime == NULL || !support_temp_dir_create(&on->dir)) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(on->runtime, 0)); /* whose legacy stream is NULL */
  LADE_EXPECT_OK(lade_pinned_pool_create(on->runtime, NULL, &on->pool));
  LADE_EXPECT_OK(lade_device_allocator_create(on->runtime, 0, NULL, &on->allocator));
  LADE_EXPECT_OK(lade_stream_create(on->runtime, 0, &on->stream));
  LADE_EXPECT_OK(on->runtime->ops->device_alloc(on->runtime->self, 0, DEVICE_BYTES, &device));
  LADE_EXPECT_OK(on->runtime->ops->device_alloc(on->runtime->self, 1, DEVICE_BYTES, &peer));
  on->device = device;
  on->peer = peer;
  support_guarded_device_begin(&on->guarded, on->runtime, on->allocator);
  return !lade_test_has_failed();
}

static void stage_close(stage *on) {
  LADE_EXPECT_OK(lade_device_stream_retire(on->allocator, on->stream));
  LADE_EXPECT_OK(lade_stream_destroy(on->runtime, on->stream));
  LADE_EXPECT_OK(lade_device_allocator_destroy(on->allocator, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(on->pool, true));
  LADE_EXPECT_OK(on->runtime->ops->device_free(on->runtime->self, 0, on->device));
  LADE_EXPECT_OK(on->runtime->ops->device_free(on->runtime->self, 1, on->peer));
  support_temp_dir_remove(&on->dir);
  support_runtime_close(on->runtime);
}

static void given_init(crossed *given) {
  lade_pipeline_options_init(&given->options);
  lade_transfer_init(&given->transfer);
}

LADE_TEST_P(PipelineOptions, Crossed, support_soft_runtimes, name) {
  stage on;
  support_crossing crossing;
  crossed given;
  if (!stage_open(&on, name)) return;
  support_crossing_start(&crossing, SUPPORT_OPTIONS(options), SUPPORT_OPTIONS(wrong), 27, 60);
  for (given_init(&given); support_crossing_next(&crossing, &given); given_init(&given))
    combination(&on, &crossing, &given);
  stage_close(&on);
}
