/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data set read by the ranks of an MPI job, each its share, and the proof that together they read all of it.
 *
 * Each rank takes the device of its number on its host, goes through one epoch of its share, and notes for each record how
 * often it came and what its bytes add up to. The notes of all ranks together are looked at by rank 0: the content that it
 * prints depends on the data set alone, not on the number of ranks.
 *
 * Where the number of ranks does not divide that of the records, the first ranks get one record more; with --equal the last
 * records of the epoch's order are left out, fewer than there are ranks.
 *
 * usage: mpirun -n 4 loader_mpi [--equal] RUNTIME FIELDS SHARD...     such as: cuda jpg,cls train-{000000..000063}.tar
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lade/lade.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

typedef struct rank_run {
  int rank, world;
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_record_index *index;
  uint64_t records; /* of the index */
  uint64_t *seen;   /* of each record, how often; then of each, the sum of its bytes */
} rank_run;

/* All ranks end: none waits for this one. */
static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* By the rank's number on its host; ranks share a device where there are more of them than devices. */
static int device_choose(lade_runtime *runtime) {
  MPI_Comm host;
  int local_rank, devices;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local_rank);
  MPI_Comm_free(&host);
  LADE(lade_runtime_device_count(runtime, &devices));
  return local_rank % devices;
}

static void rank_open(rank_run *run, char **arguments, int count) {
  MPI_Comm_rank(MPI_COMM_WORLD, &run->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &run->world);
  LADE(lade_runtime_open(arguments[0], NULL, &run->runtime));
  int device = device_choose(run->runtime);
  LADE(lade_pair_create(run->runtime, device, NULL, &run->pair));
  LADE(lade_stream_create(run->runtime, device, &run->stream));
  LADE(lade_index_create(arguments[1], &run->index));
  for (int i = 2; i < count; i++) LADE(lade_index_add_tar(run->index, arguments[i], NULL));
  run->records = lade_index_count(run->index);
  run->seen = calloc(2 * run->records + 1, sizeof *run->seen);
  if (run->seen == NULL) fail("notes of the records", "no memory");
}

static void rank_close(rank_run *run) {
  free(run->seen);
  lade_index_destroy(run->index);
  LADE(lade_device_stream_retire(lade_pair_device_allocator(run->pair), run->stream));
  LADE(lade_pinned_stream_retire(lade_pair_pinned_pool(run->pair), run->stream));
  LADE(lade_stream_destroy(run->runtime, run->stream));
  LADE(lade_pair_destroy(run->pair, true));
  LADE(lade_runtime_close(run->runtime));
}

/* A program would give the batch to a kernel; this one looks at what arrived. */
static void batch_note(rank_run *run, const lade_batch *batch) {
  void *host;
  LADE(lade_pinned_alloc(lade_pair_pinned_pool(run->pair), batch->bytes, &host));
  LADE(lade_copy_async(run->runtime, host, batch->memory, batch->bytes, run->stream));
  LADE(lade_stream_synchronize(run->runtime, run->stream));
  for (uint64_t i = 0; i < batch->count; i++) run->seen[batch->records[i]]++;
  for (uint64_t at = 0; at < batch->field_count * batch->count; at++) {
    const unsigned char *bytes = (const unsigned char *)host + batch->offsets[at];
    uint64_t *sum = &run->seen[run->records + batch->records[at % batch->count]];
    for (uint64_t i = 0; i < batch->lengths[at]; i++) *sum = *sum * 31 + bytes[i];
  }
  LADE(lade_pinned_free(lade_pair_pinned_pool(run->pair), host));
}

static void share_read(rank_run *run, bool equal) {
  lade_loader *loader;
  lade_loader_options options;
  lade_loader_options_init(&options);
  options.batch_records = 2;
  options.shuffle = 1;
  options.seed = 42;
  options.epochs = 1;
  options.rank = (uint32_t)run->rank;
  options.world_size = (uint32_t)run->world;
  options.equal_ranks = equal;
  LADE(lade_loader_create(run->index, lade_pair_pipeline(run->pair), lade_pair_device_allocator(run->pair), &options,
                          &loader));
  for (;;) {
    lade_batch batch;
    lade_batch_init(&batch);
    LADE(lade_loader_next(loader, run->stream, LADE_WAIT_FOREVER, &batch));
    if (batch.count == 0) break;
    batch_note(run, &batch);
    LADE(lade_loader_return(loader, &batch, run->stream));
  }
  LADE(lade_loader_destroy(loader));
}

/* Each record once, or with --equal at most once and fewer left out than there are ranks. */
static bool shares_check(const rank_run *run, const uint64_t *all, bool equal) {
  uint64_t left_out = 0, expected = equal ? run->records % (uint64_t)run->world : 0, content = 0;
  bool good = true;
  for (uint64_t i = 0; i < run->records; i++) {
    if (all[i] > 1) {
      fprintf(stderr, "record %llu was read %llu times\n", (unsigned long long)i, (unsigned long long)all[i]);
      good = false;
    }
    left_out += all[i] == 0;
    content += all[run->records + i] * (i + 1);
  }
  if (left_out != expected)
    fprintf(stderr, "%llu records were left out; expected %llu\n", (unsigned long long)left_out,
            (unsigned long long)expected);
  printf("%llu of %llu records, content %016llx\n", (unsigned long long)(run->records - left_out),
         (unsigned long long)run->records, (unsigned long long)content);
  return good && left_out == expected;
}

static bool shares_compare(rank_run *run, bool equal) {
  uint64_t *all = calloc(2 * run->records + 1, sizeof *all);
  int good = 1;
  if (all == NULL) fail("notes of all ranks", "no memory");
  MPI_Reduce(run->seen, all, (int)(2 * run->records), MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (run->rank == 0) good = shares_check(run, all, equal);
  free(all);
  MPI_Bcast(&good, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return good;
}

int main(int argc, char **argv) {
  rank_run run = {0};
  MPI_Init(&argc, &argv);
  bool equal = argc > 1 && strcmp(argv[1], "--equal") == 0;
  char **arguments = argv + 1 + equal;
  int count = argc - 1 - equal;
  if (count < 3) fail(argv[0], "usage: [--equal] RUNTIME FIELDS SHARD...");
  rank_open(&run, arguments, count);
  share_read(&run, equal);
  bool good = shares_compare(&run, equal);
  rank_close(&run);
  MPI_Finalize();
  return good ? 0 : 1;
}
