/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors file of 300 tensors in the page cache, loaded into one segment: against its bytes as one plain transfer,
 * and against the loop that people write (read a tensor, copy it, next). And the time to the first tensor.
 *
 * usage: checkpoint [--runtime NAME] [--mib N] and the options of every benchmark (benchmarks/frame.h)
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/loaders/world.h"

enum { TENSORS = 300 };

static struct {
  world w;
  const char *path;
  char path_text[512];
  int fd;
  uint64_t bytes;  /* of all tensors */
  uint64_t offset; /* of the first one in the file */
  uint64_t largest;
  void *device; /* NULL: not open yet */
  void *buffer; /* pinned, as large as the largest tensor */
} set = {.fd = -1};

/* --- input -------------------------------------------------------------------------------------------------------- */

/* Sizes as in a model: large matrices with small vectors between them. Elements of two bytes. */
static uint64_t tensor_elements(unsigned i, uint64_t bytes) {
  uint64_t matrix = bytes / (TENSORS / 2) / 2;
  return i % 2 == 1 ? 4096 : matrix - matrix % 2048 - 2048;
}

/* The tensors share one block of device memory, which needs only the size of the largest of them. */
static bool file_make(uint64_t bytes, void *block) {
  static lade_tensor tensors[TENSORS];
  static uint64_t shapes[TENSORS];
  static char names[TENSORS][40];
  const lade_load_target target = lade_load_target_pair(set.w.pair, set.w.stream);
  for (unsigned i = 0; i < TENSORS; i++) {
    snprintf(names[i], sizeof names[i], "model.layers.%03u.%s", i / 2, i % 2 == 0 ? "weight" : "norm");
    shapes[i] = tensor_elements(i, bytes);
    tensors[i] = (lade_tensor){names[i], &shapes[i], 1, block, 0, LADE_DTYPE_BF16};
  }
  lade_save_options options;
  lade_save_options_init(&options);
  options.no_sync = 1;
  return world_succeeded(lade_safetensors_save(set.path, &target, 1, tensors, TENSORS, &options));
}

/* Varied bytes on the device, for the tensors to be made of. */
static bool block_fill(uint64_t bytes, void *block) {
  uint32_t *noise = malloc(bytes), state = 1;
  lade_transfer transfer;
  if (noise == NULL) return false;
  for (uint64_t i = 0; i < bytes / 4; i++) noise[i] = state = state * 1664525 + 1013904223;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(noise);
  transfer.device_memory = block;
  transfer.bytes = bytes;
  bool good = world_transfer(&set.w, &transfer);
  free(noise);
  return good;
}

static bool facts_read(void) {
  lade_safetensors *file;
  lade_tensor_info info;
  lade_tensor_info_init(&info);
  if (!world_succeeded(lade_safetensors_open(set.path, &file))) return false;
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) {
    if (!world_succeeded(lade_safetensors_tensor(file, i, &info))) return false;
    if (i == 0) set.offset = info.offset;
    set.bytes += info.bytes;
  }
  lade_safetensors_close(file);
  set.fd = open(set.path, O_RDONLY);
  return set.fd >= 0;
}

static bool set_open(bench *b) {
  if (set.device != NULL) return true;
  uint64_t bytes = set.w.bytes != 0 ? set.w.bytes : bench_is_quick(b) ? 16 << 20 : UINT64_C(4096) << 20;
  void *block;
  if (!world_open(&set.w)) return false;
  lade_device_allocator *allocator = lade_pair_device_allocator(set.w.pair);
  snprintf(set.path_text, sizeof set.path_text, "%s", world_path(&set.w, "model.safetensors"));
  set.path = set.path_text;
  set.largest = 2 * tensor_elements(0, bytes);
  if (!world_succeeded(lade_device_alloc(allocator, set.largest, set.w.stream, &block))) return false;
  bool good = block_fill(set.largest, block) && file_make(bytes, block) && facts_read();
  return world_succeeded(lade_device_free(allocator, block)) && good &&
         world_succeeded(lade_pinned_alloc(lade_pair_pinned_pool(set.w.pair), set.largest, &set.buffer)) &&
         world_succeeded(lade_device_alloc(allocator, set.bytes, set.w.stream, &set.device));
}

static bool set_close(void) {
  bool good = true;
  if (set.fd >= 0) close(set.fd);
  if (set.buffer != NULL) good = world_succeeded(lade_pinned_free(lade_pair_pinned_pool(set.w.pair), set.buffer));
  if (set.device != NULL)
    good = world_succeeded(lade_device_free(lade_pair_device_allocator(set.w.pair), set.device)) && good;
  return world_close(&set.w) && good;
}

/* --- variants ----------------------------------------------------------------------------------------------------- */

static bool tensors_verify(const lade_safetensors *file, const lade_tensor_load *load) {
  bool good = true;
  for (uint64_t i = 0; good && i < lade_safetensors_count(file); i++) {
    lade_tensor_info info;
    void *memory;
    lade_tensor_info_init(&info);
    good = world_succeeded(lade_safetensors_tensor(file, i, &info)) &&
           world_succeeded(lade_tensor_load_address(load, i, &memory, NULL)) &&
           world_verify(&set.w, set.fd, info.offset, info.bytes, memory);
  }
  return good;
}

/* Seconds from opening the file to the last tensor, or only to the first; NAN after a failure. */
static double load_time(bool first_only, bool verify) {
  const lade_load_target target = lade_load_target_pair(set.w.pair, set.w.stream);
  lade_safetensors *file;
  lade_tensor_load *load;
  double begun = bench_seconds();
  if (!world_succeeded(lade_safetensors_open(set.path, &file))) return (double)NAN;
  bool good = world_succeeded(lade_safetensors_load(file, &target, 1, NULL, &load));
  double seconds = (double)NAN;
  if (good) {
    good = world_succeeded(first_only ? lade_tensor_load_wait(load, 0, LADE_WAIT_FOREVER)
                                      : lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
    seconds = bench_seconds() - begun;
    good = good && (!verify || tensors_verify(file, load));
    good = world_succeeded(lade_tensor_load_destroy(load, false)) && good;
  }
  lade_safetensors_close(file);
  return good ? seconds : (double)NAN;
}

static double load_run(void *user) {
  (void)user;
  return (double)set.bytes / load_time(false, false) / 1e9;
}

static double first_run(void *user) {
  (void)user;
  return 1e3 * load_time(true, false);
}

static double plain_run(void *user) {
  lade_transfer transfer;
  (void)user;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_file(set.fd, set.offset, set.path);
  transfer.device_memory = set.device;
  transfer.bytes = set.bytes;
  double begun = bench_seconds();
  bool good = world_transfer(&set.w, &transfer);
  return good ? (double)set.bytes / (bench_seconds() - begun) / 1e9 : (double)NAN;
}

/* Seconds for the loop over the first `count` tensors. */
static double loop_time(uint64_t count) {
  lade_safetensors *file;
  uint64_t at = 0;
  double begun = bench_seconds();
  if (!world_succeeded(lade_safetensors_open(set.path, &file))) return (double)NAN;
  bool good = true;
  for (uint64_t i = 0; good && i < count; i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    good = world_succeeded(lade_safetensors_tensor(file, i, &info)) &&
           world_read_copy(&set.w, set.fd, info.offset, info.bytes, set.buffer, (char *)set.device + at);
    at += info.bytes;
  }
  double seconds = bench_seconds() - begun;
  lade_safetensors_close(file);
  return good ? seconds : (double)NAN;
}

static double loop_run(void *user) {
  (void)user;
  return (double)set.bytes / loop_time(TENSORS) / 1e9;
}

static double loop_first_run(void *user) {
  (void)user;
  return 1e3 * loop_time(1);
}

static json_t *params_make(void) {
  return json_pack("{s:s, s:I, s:i}", "runtime", lade_runtime_name(set.w.runtime), "bytes", (json_int_t)set.bytes,
                   "tensors", TENSORS);
}

static bool load_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {
      {"lade", load_run, NULL}, {"file_to_device", plain_run, NULL}, {"pread_copy_sync", loop_run, NULL}};
  if (!set_open(b) || isnan(load_time(false, true))) return false;
  return bench_measure(b, self->name, params_make(), "GB/s", variants, 3);
}

static bool first_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {{"lade", first_run, NULL}, {"pread_copy_sync", loop_first_run, NULL}};
  return set_open(b) && bench_measure(b, self->name, params_make(), "ms", variants, 2);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"load", "300 tensors into one segment", load_case, NULL},
      {"first_tensor", "from opening the file until the first tensor is on the device", first_case, NULL},
  };
  if (!world_arguments(&set.w, &argc, argv)) return 2;
  int exit_status = bench_main(argc, argv, "Is a checkpoint loaded as fast as its file is read?", cases, 2);
  return set_close() ? exit_status : 1;
}
