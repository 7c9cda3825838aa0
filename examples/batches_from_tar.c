/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of tar shards as shuffled batches in device memory, for two epochs.
 *
 * usage: batches_from_tar RUNTIME FIELDS SHARD...     such as: cuda jpg,cls train-{000000..000063}.tar
 */
#include <stdio.h>
#include <stdlib.h>

#include <lade/lade.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  exit(1);
}

static void batch_use(const lade_record_index *index, const lade_batch *batch) {
  /* A kernel would read batch->memory + batch->device_offsets[i], batch->device_lengths[i] bytes long. */
  printf("epoch %llu, batch %llu: %llu samples, %llu bytes at %p; the first is %s\n", (unsigned long long)batch->epoch,
         (unsigned long long)batch->number, (unsigned long long)batch->count, (unsigned long long)batch->bytes,
         batch->memory, lade_index_key(index, batch->records[0]));
}

int main(int argc, char **argv) {
  if (argc < 4) fail(argv[0], "usage: RUNTIME FIELDS SHARD...");
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_record_index *index;
  lade_loader *loader;
  lade_loader_options options;
  LADE(lade_runtime_open(argv[1], NULL, &runtime));
  LADE(lade_pair_create(runtime, 0, NULL, &pair));
  LADE(lade_stream_create(runtime, 0, &stream));

  LADE(lade_index_create(argv[2], &index));
  for (int i = 3; i < argc; i++) LADE(lade_index_add_tar(index, argv[i], NULL));
  lade_loader_options_init(&options);
  options.batch_records = 256;
  options.shuffle = 1;
  options.seed = 42;
  options.epochs = 2;
  LADE(lade_loader_create(index, lade_pair_pipeline(pair), lade_pair_device_allocator(pair), &options, &loader));
  for (;;) {
    lade_batch batch;
    lade_batch_init(&batch);
    LADE(lade_loader_next(loader, stream, LADE_WAIT_FOREVER, &batch)); /* `stream` waits for its bytes */
    if (batch.count == 0) break;
    batch_use(index, &batch);
    LADE(lade_loader_return(loader, &batch, stream)); /* used again when `stream` has passed */
  }

  LADE(lade_loader_destroy(loader));
  lade_index_destroy(index);
  LADE(lade_device_stream_retire(lade_pair_device_allocator(pair), stream));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_pair_destroy(pair, false));
  LADE(lade_runtime_close(runtime));
  return 0;
}
