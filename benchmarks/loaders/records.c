/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shuffled records of 16 KiB to 128 KiB from 64 tar shards in the page cache, in batches of 256, against the loop that
 * people write (read a record, copy it, next) and against the same shards read one after the other as plain files.
 *
 * usage: records [--runtime NAME] [--mib N] and the options of every benchmark (benchmarks/frame.h)
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/loaders/world.h"
#include "benchmarks/messages.h"

enum { SHARDS = 64, BATCH = 256, RECORD_LEAST = 16 << 10, RECORD_MOST = 128 << 10, VERIFIED_BATCHES = 4 };

static struct {
  world w;
  lade_record_index *index;
  int fds[SHARDS];
  uint64_t shard_bytes[SHARDS];
  uint64_t bytes; /* of all records */
  void *buffer;   /* pinned */
  void *device;   /* as large as a shard, and as a batch may be */
} set;

/* A small generator is enough: sizes and bytes only have to vary. */
static uint64_t random_next(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state >> 33;
}

/* --- input -------------------------------------------------------------------------------------------------------- */

static bool member_write(struct archive *archive, const char *name, const char *data, size_t bytes) {
  struct archive_entry *entry = archive_entry_new();
  archive_entry_set_pathname(entry, name);
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_size(entry, (la_int64_t)bytes);
  bool good = archive_write_header(archive, entry) == ARCHIVE_OK &&
              archive_write_data(archive, data, bytes) == (la_ssize_t)bytes;
  archive_entry_free(entry);
  return good;
}

static bool shard_write(const char *path, uint64_t bytes, uint64_t *random, const char *noise) {
  struct archive *archive = archive_write_new();
  bool good =
      archive_write_set_format_ustar(archive) == ARCHIVE_OK && archive_write_open_filename(archive, path) == ARCHIVE_OK;
  for (uint64_t i = 0, written = 0; good && written < bytes; i++) {
    char name[32];
    size_t size = RECORD_LEAST + random_next(random) % (RECORD_MOST - RECORD_LEAST + 1);
    snprintf(name, sizeof name, "%08llu.bin", (unsigned long long)i);
    good = member_write(archive, name, noise + random_next(random) % RECORD_MOST, size);
    written += size;
  }
  good = archive_write_close(archive) == ARCHIVE_OK && good;
  archive_write_free(archive);
  return good;
}

static bool shard_add(unsigned i, const char *path) {
  struct stat facts;
  set.fds[i] = open(path, O_RDONLY);
  if (set.fds[i] < 0 || fstat(set.fds[i], &facts) != 0) return false;
  set.shard_bytes[i] = (uint64_t)facts.st_size;
  return world_succeeded(lade_index_add_tar(set.index, path, NULL));
}

static bool shards_make(uint64_t bytes) {
  uint64_t random = 1;
  char *noise = malloc(2 * RECORD_MOST);
  bool good = noise != NULL && world_succeeded(lade_index_create("bin", &set.index));
  for (size_t i = 0; good && i < 2 * RECORD_MOST; i++) noise[i] = (char)random_next(&random);
  for (unsigned i = 0; good && i < SHARDS; i++) {
    char name[32];
    snprintf(name, sizeof name, "shard-%06u.tar", i);
    const char *path = world_path(&set.w, name);
    good = shard_write(path, bytes / SHARDS, &random, noise) && shard_add(i, path);
  }
  free(noise);
  if (!good) bench_error("the shards cannot be made");
  return good;
}

static bool set_open(bench *b) {
  if (set.device != NULL) return true;
  uint64_t bytes = set.w.bytes != 0    ? set.w.bytes
                   : bench_is_quick(b) ? 16 << 20
                                       : 1024 << 20,
           largest = BATCH * RECORD_MOST;
  if (!world_open(&set.w) || !shards_make(bytes)) return false;
  for (uint64_t i = 0; i < lade_index_count(set.index); i++) {
    lade_range range;
    if (!world_succeeded(lade_index_range(set.index, i, 0, &range))) return false;
    set.bytes += range.bytes;
  }
  for (unsigned i = 0; i < SHARDS; i++) largest = set.shard_bytes[i] > largest ? set.shard_bytes[i] : largest;
  return world_succeeded(lade_pinned_alloc(lade_pair_pinned_pool(set.w.pair), RECORD_MOST, &set.buffer)) &&
         world_succeeded(lade_device_alloc(lade_pair_device_allocator(set.w.pair), largest, set.w.stream, &set.device));
}

static bool set_close(void) {
  bool good = true;
  lade_index_destroy(set.index);
  for (unsigned i = 0; i < SHARDS; i++)
    if (set.shard_bytes[i] > 0) close(set.fds[i]);
  if (set.buffer != NULL) good = world_succeeded(lade_pinned_free(lade_pair_pinned_pool(set.w.pair), set.buffer));
  if (set.device != NULL)
    good = world_succeeded(lade_device_free(lade_pair_device_allocator(set.w.pair), set.device)) && good;
  return world_close(&set.w) && good;
}

/* --- variants ----------------------------------------------------------------------------------------------------- */

static bool batch_verify(const lade_batch *batch) {
  bool good = true;
  if (!world_succeeded(lade_stream_synchronize(set.w.runtime, set.w.stream))) return false;
  for (uint64_t i = 0; good && i < batch->count; i++) {
    lade_range range;
    good = world_succeeded(lade_index_range(set.index, batch->records[i], 0, &range)) &&
           world_verify(&set.w, set.fds[range.file], range.offset, range.bytes,
                        (const char *)batch->memory + batch->offsets[i]);
  }
  return good;
}

static bool loader_create(lade_loader **out) {
  lade_loader_options options;
  lade_loader_options_init(&options);
  options.batch_records = BATCH;
  options.shuffle = 1;
  options.seed = 1;
  options.epochs = 1;
  options.stream = set.w.stream;
  return world_succeeded(lade_loader_create(set.index, lade_pair_pipeline(set.w.pair),
                                            lade_pair_device_allocator(set.w.pair), &options, out));
}

/* Goes through an epoch, or `most` batches of it; out_bytes: of records that were handed out. */
static bool epoch_run(uint64_t most, bool verify, uint64_t *out_bytes) {
  lade_loader *loader;
  bool good = loader_create(&loader);
  if (!good) return false;
  *out_bytes = 0;
  for (uint64_t i = 0; good && i < most; i++) {
    lade_batch batch;
    lade_batch_init(&batch);
    good = world_succeeded(lade_loader_next(loader, set.w.stream, LADE_WAIT_FOREVER, &batch));
    if (!good || batch.count == 0) break;
    for (uint64_t j = 0; j < batch.count; j++) *out_bytes += batch.lengths[j];
    if (verify) good = batch_verify(&batch);
    good = world_succeeded(lade_loader_return(loader, &batch, set.w.stream)) && good;
  }
  good = world_succeeded(lade_stream_synchronize(set.w.runtime, set.w.stream)) && good;
  return world_succeeded(lade_loader_destroy(loader)) && good;
}

static double loader_run(void *user) {
  uint64_t bytes;
  (void)user;
  double begun = bench_seconds();
  bool good = epoch_run(UINT64_MAX, false, &bytes) && bytes == set.bytes;
  return good ? (double)bytes / (bench_seconds() - begun) / 1e9 : (double)NAN;
}

/* Record after record, to the places that they have in a batch. */
static double loop_run(void *user) {
  bool good = true;
  uint64_t at = 0, count = lade_index_count(set.index), step = 0x9e3779b1 % count;
  (void)user;
  while (count > 1 && step % 2 == 0) step++;
  double begun = bench_seconds();
  for (uint64_t i = 0; good && i < count; i++) { /* a large step takes the records out of their order */
    lade_range range;
    at = i % BATCH == 0 ? 0 : at;
    good = world_succeeded(lade_index_range(set.index, i * step % count, 0, &range)) &&
           world_read_copy(&set.w, set.fds[range.file], range.offset, range.bytes, set.buffer, (char *)set.device + at);
    at += range.bytes;
  }
  return good ? (double)set.bytes / (bench_seconds() - begun) / 1e9 : (double)NAN;
}

static double sequential_run(void *user) {
  bool good = true;
  uint64_t bytes = 0;
  (void)user;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < SHARDS; i++) {
    lade_transfer transfer;
    lade_transfer_init(&transfer);
    transfer.direction = LADE_TO_DEVICE;
    transfer.host = lade_endpoint_file(set.fds[i], 0, "shard");
    transfer.device_memory = set.device;
    transfer.bytes = set.shard_bytes[i];
    good = world_transfer(&set.w, &transfer);
    bytes += set.shard_bytes[i];
  }
  return good ? (double)bytes / (bench_seconds() - begun) / 1e9 : (double)NAN;
}

static bool shuffled_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {
      {"lade", loader_run, NULL}, {"pread_copy_sync", loop_run, NULL}, {"sequential", sequential_run, NULL}};
  uint64_t bytes;
  if (!set_open(b) || !epoch_run(VERIFIED_BATCHES, true, &bytes)) return false;
  json_t *params = json_pack("{s:s, s:I, s:I, s:i, s:i}", "runtime", lade_runtime_name(set.w.runtime), "bytes",
                             (json_int_t)set.bytes, "records", (json_int_t)lade_index_count(set.index), "shards",
                             SHARDS, "batch", BATCH);
  return bench_measure(b, self->name, params, "GB/s", variants, 3);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"shuffled_records", "records of 16 to 128 KiB from 64 shards, batches of 256", shuffled_case, NULL},
  };
  if (!world_arguments(&set.w, &argc, argv)) return 2;
  int exit_status = bench_main(argc, argv, "Are shuffled records as fast as files?", cases, 1);
  return set_close() ? exit_status : 1;
}
