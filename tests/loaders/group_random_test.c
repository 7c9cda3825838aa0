/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of chance, loaded by groups of chance by rules of chance: every rank has what the rules say.
 *
 * LADE_TEST_SEED=n runs the loads of one seed alone; LADE_SOAK_SECONDS goes on with others for so long.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/loaders/group_expect.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/soak.h"

enum { MOST_TENSORS = 40, MOST_DIMS = 4, MOST_RANKS = 8 };

typedef struct one_tensor {
  const char *dtype;
  uint64_t bits, dims, shape[MOST_DIMS], bytes;
  lade_load_rule rule;
} one_tensor;

/* One load; the same on all ranks. */
typedef struct one_load {
  uint64_t seed;
  const char *path;
  uint32_t ranks;
  uint64_t files; /* several: with an index */
  uint64_t count; /* of tensors in all of them */
  one_tensor tensors[MOST_TENSORS];
  uint64_t chosen[MOST_TENSORS], chosen_count; /* 0: all, in their order */
  lade_load_options options;
} one_load;

/* ---- Chance ------------------------------------------------------------------------------------------------------ */

/* Larger elements first, as in files. */
static const lade_dtype dtypes[] = {LADE_DTYPE_F64,  LADE_DTYPE_I64,  LADE_DTYPE_F32,
                                    LADE_DTYPE_BF16, LADE_DTYPE_F16,  LADE_DTYPE_F8_E4M3,
                                    LADE_DTYPE_U8,   LADE_DTYPE_BOOL, LADE_DTYPE_F4};

/* Most dimensions are small, some are long, some are 0; in all at most about a MiB. */
static void shape_choose(support_random *random, one_tensor *tensor) {
  uint64_t elements = 1;
  tensor->dims = support_random_below(random, MOST_DIMS + 1);
  for (uint64_t i = 0; i < tensor->dims; i++) {
    uint64_t most = support_random_one_in(random, 4) ? 5000 : 12;
    tensor->shape[i] = support_random_one_in(random, 40) ? 0 : support_random_between(random, 1, most);
    if (support_random_one_in(random, 2)) tensor->shape[i] *= 8; /* that ranks divide */
    if (elements != 0 && tensor->shape[i] > (UINT64_C(1) << 17) / elements) tensor->shape[i] = 2;
    elements *= tensor->shape[i];
  }
  if (elements * tensor->bits % 8 != 0) {
    tensor->dims = 1;
    tensor->shape[0] = elements = 16;
  }
  tensor->bytes = elements * tensor->bits / 8;
}

/* Slices end on bytes: where elements are smaller, whatever lies under the dimension is of a whole number of them. */
static bool slices_are_whole(const one_tensor *tensor, uint64_t dim) {
  uint64_t bits = tensor->bits;
  for (uint64_t i = dim + 1; i < tensor->dims; i++) bits *= tensor->shape[i];
  return bits % 8 == 0;
}

static void rule_choose(support_random *random, uint32_t ranks, one_tensor *tensor) {
  lade_load_rule *rule = &tensor->rule;
  rule->spread = (int32_t)support_random_below(random, 4);
  if (support_random_one_in(random, 2)) rule->spread = LADE_SPREAD_SLICE;
  rule->rank = (uint32_t)support_random_below(random, ranks);
  if (rule->spread != LADE_SPREAD_SLICE) return;
  uint64_t dim = tensor->dims == 0 ? 0 : support_random_below(random, tensor->dims);
  bool from_last = support_random_one_in(random, 2);
  rule->dim = (int32_t)dim - (from_last ? (int32_t)tensor->dims : 0);
  if (tensor->dims == 0 || !slices_are_whole(tensor, dim)) rule->spread = LADE_SPREAD_REPLICATE;
  if (tensor->dims != 0) rule->uneven = tensor->shape[dim] % ranks != 0 || support_random_one_in(random, 4);
}

static void choose(support_random *random, one_load *load) {
  static const uint64_t parts[] = {0, 4096, 8192, 65536, 1 << 20}, alignments[] = {0, 1, 16, 512};
  load->ranks = (uint32_t)support_random_between(random, 1, MOST_RANKS);
  load->count = support_random_below(random, MOST_TENSORS + 1);
  uint64_t type = 0;
  for (uint64_t i = 0; i < load->count; i++) {
    one_tensor *tensor = &load->tensors[i];
    *tensor = (one_tensor){0};
    /* In the file larger elements come first. */
    if (support_random_one_in(random, 4) && type + 1 < sizeof dtypes / sizeof *dtypes) type++;
    tensor->dtype = lade_dtype_name(dtypes[type]);
    tensor->bits = lade_dtype_bits(dtypes[type]);
    shape_choose(random, tensor);
    rule_choose(random, load->ranks, tensor);
  }
  load->files = load->count < 3 ? 1 : support_random_between(random, 1, 3);
  load->chosen_count = 0;
  if (load->count > 0 && support_random_one_in(random, 2)) { /* some of them, in any order */
    load->chosen_count = support_random_between(random, 1, load->count);
    uint64_t all[MOST_TENSORS];
    for (uint64_t i = 0; i < load->count; i++) all[i] = i;
    for (uint64_t i = 0; i < load->chosen_count; i++) {
      uint64_t other = support_random_between(random, i, load->count - 1), kept = all[i];
      load->chosen[i] = all[other];
      all[other] = kept;
    }
  }
  lade_load_options_init(&load->options);
  load->options.part_bytes = parts[support_random_below(random, sizeof parts / sizeof *parts)];
  load->options.alignment = alignments[support_random_below(random, sizeof alignments / sizeof *alignments)];
  load->options.per_tensor = support_random_one_in(random, 4);
  load->options.file_flags = support_random_one_in(random, 4) ? LADE_FILE_DIRECT : 0;
}

/* ---- The files --------------------------------------------------------------------------------------------------- */

/* Tensor i is in file i * files / count. */
static uint64_t file_of(const one_load *load, uint64_t i) { return i * load->files / load->count; }

static void file_write(support_random *random, const one_load *load, uint64_t number, const char *path) {
  char header[16384];
  size_t room = sizeof header, length = (size_t)snprintf(header, room, "{"), total = 0;
  for (uint64_t i = 0; i < load->count; i++) {
    const one_tensor *tensor = &load->tensors[i];
    if (file_of(load, i) != number) continue;
    length += (size_t)snprintf(header + length, room - length, "%s\"t%llu\":{\"dtype\":\"%s\",\"shape\":[",
                               length == 1 ? "" : ",", (unsigned long long)i, tensor->dtype);
    for (uint64_t k = 0; k < tensor->dims; k++)
      length += (size_t)snprintf(header + length, room - length, "%s%llu", k == 0 ? "" : ",",
                                 (unsigned long long)tensor->shape[k]);
    length += (size_t)snprintf(header + length, room - length, "],\"data_offsets\":[%zu,%zu]}", total,
                               total + (size_t)tensor->bytes);
    total += tensor->bytes;
  }
  length += (size_t)snprintf(header + length, room - length, "}");
  LADE_ASSERT(length < room);
  fixture_safetensors_write(path, header, total);
  FILE *file = fopen(path, "r+b");
  LADE_ASSERT(file != NULL && fseek(file, (long)(8 + length), SEEK_SET) == 0);
  for (size_t at = 0; at < total; at += 8) {
    uint64_t next = support_random_next(random);
    LADE_EXPECT_EQ_UINT(fwrite(&next, 1, total - at < 8 ? total - at : 8, file), total - at < 8 ? total - at : 8);
  }
  LADE_EXPECT_EQ_INT(fclose(file), 0);
}

static void index_write(const one_load *load, const char *path) {
  FILE *file = fopen(path, "wb");
  LADE_ASSERT(file != NULL);
  fprintf(file, "{\"metadata\":{},\"weight_map\":{");
  for (uint64_t i = 0; i < load->count; i++)
    fprintf(file, "%s\"t%llu\":\"%llu.safetensors\"", i == 0 ? "" : ",", (unsigned long long)i,
            (unsigned long long)file_of(load, i));
  fprintf(file, "}}");
  LADE_EXPECT_EQ_INT(fclose(file), 0);
}

/* The path of what is loaded, which the caller frees. */
static char *files_write(support_random *random, const one_load *load, const support_temp_dir *dir) {
  char name[64];
  char *path = NULL;
  for (uint64_t i = 0; i < load->files; i++) {
    (void)snprintf(name, sizeof name, "%llu.safetensors", (unsigned long long)i);
    free(path);
    path = support_temp_dir_path(dir, name);
    file_write(random, load, i, path);
  }
  if (load->files == 1) return path;
  free(path);
  path = support_temp_dir_path(dir, "model.safetensors.index.json");
  index_write(load, path);
  return path;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static lade_status rule_of(void *user, const lade_tensor_info *tensor, lade_load_rule *rule) {
  const one_load *load = user;
  *rule = load->tensors[strtoull(tensor->name + 1, NULL, 10)].rule;
  return LADE_OK;
}

static void load_body(ranks_one *one) {
  const one_load *load = one->plan->user;
  lade_load_options options = load->options;
  lade_safetensors *file = NULL;
  lade_tensor_load *loaded = NULL;
  fixture f;
  options.group = one->group;
  options.rule_of = rule_of;
  options.rule_user = one->plan->user;
  options.tensors = load->chosen_count == 0 ? NULL : load->chosen;
  options.tensor_count = load->chosen_count;
  lade_status status = fixture_open_some(&f, one->runtime, 1);
  if (status == LADE_OK) status = lade_safetensors_open(load->path, &file);
  if (status == LADE_OK) status = lade_safetensors_load(file, f.targets, 1, &options, &loaded);
  if (status == LADE_OK) status = lade_tensor_load_wait(loaded, LADE_LOAD_ALL, 0);
  if (status != LADE_OK)
    LADE_FAIL("LADE_TEST_SEED=%llu, rank %u: %s", (unsigned long long)load->seed, (unsigned)one->rank,
              lade_last_error()->text);
  uint64_t count = load->chosen_count == 0 ? load->count : load->chosen_count;
  for (uint64_t i = 0; status == LADE_OK && i < count; i++) {
    uint64_t tensor = load->chosen_count == 0 ? i : load->chosen[i];
    group_expect_tensor(one, &f, file, loaded, tensor, i);
  }
  LADE_EXPECT_OK(lade_tensor_load_destroy(loaded, false));
  lade_safetensors_close(file);
  fixture_close_on(&f);
}

static void run_seed(const char *runtime, const support_temp_dir *dir, uint64_t seed) {
  support_random random;
  one_load load = {.seed = seed};
  support_random_start_quietly(&random, seed);
  choose(&random, &load);
  char *path = files_write(&random, &load, dir);
  load.path = path;
  lade_test_context("LADE_TEST_SEED=%llu: %u ranks, %llu tensors in %llu files, parts of %llu bytes",
                    (unsigned long long)seed, (unsigned)load.ranks, (unsigned long long)load.count,
                    (unsigned long long)load.files, (unsigned long long)load.options.part_bytes);
  ranks_run(&(ranks_plan){.runtime = runtime, .size = load.ranks, .body = load_body, .user = &load});
  free(path);
}

LADE_TEST_P(GroupRandom, EveryRankHasWhatTheRulesSay, support_soft_runtimes, runtime) {
  enum { SEEDS = 15 };
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  support_soak soak = support_soak_begin(0);
  bool alone = getenv("LADE_TEST_SEED") != NULL;
  uint64_t first = support_seed(1), seed = first;
  while (seed == first || (!alone && (seed < first + SEEDS || support_soak_goes_on(&soak))))
    run_seed(runtime, &dir, seed++);
  support_temp_dir_remove(&dir);
}
