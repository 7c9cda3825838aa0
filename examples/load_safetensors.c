/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint to the device: work on its first tensor begins while the others are still on their way.
 *
 * usage: load_safetensors RUNTIME FILE [TENSOR]     RUNTIME: cuda, cpu, sim; FILE: .safetensors or .safetensors.index.json;
 *        TENSOR: the name of one of its tensors, which alone is waited for and shown
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

/* A row of a checkpoint's list. */
static void tensor_print(const lade_safetensors *file, const lade_tensor_load *load, uint64_t index) {
  lade_tensor_info info;
  void *memory;
  lade_tensor_info_init(&info);
  LADE(lade_safetensors_tensor(file, index, &info));
  LADE(lade_tensor_load_address(load, index, &memory, NULL));
  printf("%-40s %-5s %10llu bytes at %p\n", info.name, lade_dtype_name((lade_dtype)info.dtype),
         (unsigned long long)info.bytes, memory);
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) fail(argv[0], "usage: RUNTIME FILE [TENSOR]");
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_safetensors *file;
  lade_tensor_load *load;
  LADE(lade_runtime_open(argv[1], NULL, &runtime));
  LADE(lade_pair_create(runtime, 0, NULL, &pair));
  LADE(lade_stream_create(runtime, 0, &stream));

  LADE(lade_safetensors_open(argv[2], &file));
  lade_load_target target = lade_load_target_pair(pair, stream);
  LADE(lade_safetensors_load(file, &target, 1, NULL, &load));
  uint64_t first = 0, end = lade_safetensors_count(file);
  if (argc == 4) {
    LADE(lade_safetensors_find(file, argv[3], &first));
    end = first + 1;
  }
  for (uint64_t i = first; i < end; i++) {
    LADE(lade_tensor_load_stream_wait(load, i, stream)); /* kernels queued from here on see tensor i */
    tensor_print(file, load, i);
  }
  LADE(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER)); /* a copy that failed is found here */

  LADE(lade_stream_synchronize(runtime, stream));
  LADE(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  LADE(lade_device_stream_retire(lade_pair_device_allocator(pair), stream));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_pair_destroy(pair, false));
  LADE(lade_runtime_close(runtime));
  return 0;
}
