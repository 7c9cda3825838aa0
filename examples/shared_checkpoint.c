/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes, one copy of a checkpoint on the host: each reads its part of the file into memory that all share, pinned in
 * each of them, and then copies the tensors from there to its device.
 *
 *   shared_checkpoint RUNTIME FILE RANKS        for example: shared_checkpoint cuda model.safetensors 4
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/device.h"
#include "lade/group.h"
#include "lade/pinned.h"
#include "lade/safetensors.h"

static void must(lade_status status, const char *what) {
  if (status == LADE_OK) return;
  fprintf(stderr, "%s: %s\n", what, lade_last_error()->text);
  exit(1);
}

/* This rank's part of the file. */
static uint64_t part_read(const char *path, char *memory, uint64_t bytes, uint32_t rank, uint32_t ranks) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  uint64_t begin = bytes / ranks * rank, end = rank + 1 == ranks ? bytes : bytes / ranks * (rank + 1);
  for (uint64_t at = begin; at < end;) {
    ssize_t read = file < 0 ? -1 : pread(file, memory + at, end - at, (off_t)at);
    if (read <= 0) {
      perror(path);
      exit(1);
    }
    at += (uint64_t)read;
  }
  close(file);
  return end - begin;
}

/* All tensors from the shared memory to this rank's device. */
static uint64_t tensors_copy(lade_runtime *runtime, const char *path, const char *memory) {
  lade_safetensors *checkpoint;
  lade_device_allocator *allocator;
  lade_stream stream;
  uint64_t copied = 0;
  must(lade_safetensors_open(path, &checkpoint), "opening");
  must(lade_device_allocator_create(runtime, 0, NULL, &allocator), "an allocator");
  must(lade_stream_create(runtime, 0, &stream), "a stream");
  for (uint64_t i = 0; i < lade_safetensors_count(checkpoint); i++) {
    lade_tensor_info info;
    void *tensor;
    lade_tensor_info_init(&info);
    must(lade_safetensors_tensor(checkpoint, i, &info), "a tensor");
    must(lade_device_alloc(allocator, info.bytes, stream, &tensor), "device memory");
    must(lade_copy_async(runtime, tensor, memory + info.offset, info.bytes, stream), "a copy");
    copied += info.bytes;
    must(lade_device_free(allocator, tensor), "device memory"); /* a program would keep it */
  }
  must(lade_stream_synchronize(runtime, stream), "the copies"); /* before the memory is disowned */
  must(lade_device_allocator_destroy(allocator, true), "the allocator");
  must(lade_stream_destroy(runtime, stream), "a stream");
  lade_safetensors_close(checkpoint);
  return copied;
}

static int rank_run(const char *name, const char *path, const char *group_name, uint32_t rank, uint32_t ranks) {
  lade_runtime *runtime;
  lade_group *group;
  lade_pinned_pool *pool;
  struct stat info;
  char *memory;
  lade_group_local_options options;
  lade_group_local_options_init(&options);
  options.name = group_name;
  options.rank = rank;
  options.size = ranks;
  if (stat(path, &info) != 0) {
    perror(path);
    return 1;
  }
  must(lade_runtime_open(name, NULL, &runtime), "runtime");
  must(lade_group_create_local(runtime, &options, &group), "group");
  must(lade_pinned_pool_create(runtime, NULL, &pool), "pool");
  must(lade_pinned_shared_create(pool, group, (uint64_t)info.st_size, (void **)&memory), "shared memory");
  uint64_t read = part_read(path, memory, (uint64_t)info.st_size, rank, ranks);
  must(lade_group_barrier(group), "the other ranks");
  uint64_t copied = tensors_copy(runtime, path, memory);
  printf("rank %" PRIu32 ": %" PRIu64 " bytes read, %" PRIu64 " copied\n", rank, read, copied);
  must(lade_pinned_disown(pool, memory), "shared memory");
  must(lade_pinned_pool_destroy(pool, true), "pool");
  must(lade_group_destroy(group), "group");
  must(lade_runtime_close(runtime), "runtime");
  return 0;
}

int main(int argc, char **argv) {
  char group_name[64];
  int failed = 0;
  if (argc != 4 || atoi(argv[3]) < 1) {
    fprintf(stderr, "usage: %s cuda|cpu|sim FILE RANKS\n", argv[0]);
    return 2;
  }
  uint32_t ranks = (uint32_t)atoi(argv[3]);
  (void)snprintf(group_name, sizeof group_name, "shared-checkpoint-%ld", (long)getpid());
  for (uint32_t rank = 0; rank < ranks; rank++) /* before a runtime is open: processes do not inherit one */
    if (fork() == 0) exit(rank_run(argv[1], argv[2], group_name, rank, ranks));
  for (int status; wait(&status) > 0;) failed += status != 0;
  return failed != 0;
}
