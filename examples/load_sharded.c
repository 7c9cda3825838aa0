/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint read once by several processes, each of which gets its slices: tensor parallelism.
 *
 * usage: load_sharded RUNTIME FILE RANKS [PATTERN=DIM]...
 *
 *   RUNTIME       cuda: rank r takes device r; cpu
 *   PATTERN=DIM   tensors whose names fit are sliced along that dimension, as "*.q_proj.weight=0" (column-parallel) and
 *                 "*.o_proj.weight=1" (row-parallel); the last ranks get fewer where it does not divide. All others are replicated
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lade/lade.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

enum { RULES_MOST = 64 };

static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  exit(1);
}

static void slice_print(const lade_safetensors *file, const lade_tensor_load *load, uint32_t rank, uint64_t index) {
  lade_tensor_info info;
  lade_load_slice slice;
  lade_tensor_info_init(&info);
  lade_load_slice_init(&slice);
  LADE(lade_safetensors_tensor(file, index, &info));
  LADE(lade_tensor_load_slice(load, index, &slice));
  printf("rank %u: %-32s %llu of %llu bytes: [%llu, %llu) of dimension %d\n", (unsigned)rank, info.name,
         (unsigned long long)slice.bytes, (unsigned long long)info.bytes, (unsigned long long)slice.begin,
         (unsigned long long)slice.end, (int)slice.dim);
}

/* One process. The runtime is opened here, after the fork. */
static void rank_run(const char *runtime_name, const char *path, const char *name, uint32_t rank, uint32_t ranks,
                     const lade_load_rule *rules, uint64_t rule_count) {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_group *group;
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_group_local_options group_options;
  lade_load_options options;
  LADE(lade_runtime_open(runtime_name, NULL, &runtime));
  int device = strcmp(lade_runtime_name(runtime), "cuda") == 0 ? (int)rank : 0;
  LADE(lade_pair_create(runtime, device, NULL, &pair));
  LADE(lade_stream_create(runtime, device, &stream));

  lade_group_local_options_init(&group_options);
  group_options.name = name;
  group_options.rank = rank;
  group_options.size = ranks;
  group_options.device = device;
  LADE(lade_group_create_local(runtime, &group_options, &group));

  LADE(lade_safetensors_open(path, &file));
  lade_load_target target = lade_load_target_pair(pair, stream);
  lade_load_options_init(&options);
  options.group = group;
  options.rules = rules;
  options.rule_count = rule_count;
  LADE(lade_safetensors_load(file, &target, 1, &options,
                             &load)); /* all is there, on all ranks; or the same error on all */
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) slice_print(file, load, rank, i);

  LADE(lade_group_destroy(group));
  LADE(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  LADE(lade_device_stream_retire(lade_pair_device_allocator(pair), stream));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_pair_destroy(pair, false));
  LADE(lade_runtime_close(runtime));
}

static uint64_t rules_read(int count, char **texts, lade_load_rule *rules) {
  for (int i = 0; i < count; i++) {
    char *equals = strrchr(texts[i], '=');
    if (equals == NULL || i == RULES_MOST) fail(texts[i], "expected PATTERN=DIM, at most 64 of them");
    *equals = '\0';
    memset(&rules[i], 0, sizeof rules[i]);
    rules[i].pattern = texts[i];
    rules[i].spread = LADE_SPREAD_SLICE;
    rules[i].dim = atoi(equals + 1);
    rules[i].uneven = 1;
  }
  return (uint64_t)count;
}

int main(int argc, char **argv) {
  lade_load_rule rules[RULES_MOST];
  char name[64];
  if (argc < 4) fail(argv[0], "usage: RUNTIME FILE RANKS [PATTERN=DIM]...");
  int ranks = atoi(argv[3]), failed = 0;
  uint64_t rule_count = rules_read(argc - 4, argv + 4, rules);
  if (ranks < 1 || ranks > 128) fail(argv[3], "expected from 1 to 128 ranks");
  /* Another one for each job: names of processes repeat in containers, which may share what names are looked up in. */
  snprintf(name, sizeof name, "load-sharded-%ld-%p", (long)getpid(), (void *)name);
  fflush(stdout);
  for (int rank = 0; rank < ranks; rank++) {
    pid_t child = fork();
    if (child < 0) fail("fork", "no process for a rank");
    if (child > 0) continue;
    rank_run(argv[1], argv[2], name, (uint32_t)rank, (uint32_t)ranks, rules, rule_count);
    return 0;
  }
  for (int status; wait(&status) > 0;) failed += status != 0;
  return failed == 0 ? 0 : 1;
}
