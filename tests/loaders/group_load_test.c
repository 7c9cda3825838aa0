/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints loaded by groups: every rank has what its rules say, every byte is read once, and what fails somewhere fails everywhere. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/loaders/group_expect.h"
#include "tests/shim/lade_test.h"

/* --- a checkpoint ------------------------------------------------------------------------------------------------- */

typedef struct tensor_text {
  const char *name, *dtype, *shape;
  size_t bytes;
} tensor_text;

/* In the format's order: larger elements first. 12 divides by 1, 2, 3, 4, 6; 7 by none but itself. */
static const tensor_text tensors[] = {
    {"layers.0.attention.q.weight", "F32", "[24,40]", 24 * 40 * 4},
    {"layers.0.attention.o.weight", "F32", "[40,24]", 40 * 24 * 4},
    {"layers.0.norm.weight", "F32", "[40]", 160},
    {"layers.0.norm.bias", "F32", "[40]", 160},
    {"layers.1.mlp.down.weight", "F32", "[3,65536]", 3 * 65536 * 4}, /* long runs, of 64 KiB and more, up to 4 ranks */
    {"layers.1.experts.weight", "F32", "[5,12,7]", 5 * 12 * 7 * 4},
    {"layers.1.scalar", "F32", "[]", 4},
    {"layers.1.nothing", "F32", "[0,12]", 0},
    {"embedding.weight", "BF16", "[1000,12]", 1000 * 12 * 2},
    {"odd.weight", "BF16", "[7,9]", 7 * 9 * 2},
    {"head.weight", "BF16", "[30000,12]", 30000 * 12 * 2},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static void checkpoint_write(const char *path) {
  char header[4096];
  size_t length = (size_t)snprintf(header, sizeof header, "{"), total = 0;
  for (size_t i = 0; i < TENSORS; i++) {
    length += (size_t)snprintf(header + length, sizeof header - length,
                               "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", i == 0 ? "" : ",",
                               tensors[i].name, tensors[i].dtype, tensors[i].shape, total, total + tensors[i].bytes);
    total += tensors[i].bytes;
  }
  (void)snprintf(header + length, sizeof header - length, "}");
  fixture_safetensors_write(path, header, total);
  unsigned char *data = malloc(total);
  LADE_ASSERT(data != NULL);
  for (size_t i = 0; i < total; i++) data[i] = (unsigned char)((i * UINT64_C(0x9E3779B97F4A7C15)) >> 53);
  int fd = open(path, O_WRONLY);
  LADE_EXPECT_EQ_INT(pwrite(fd, data, total, (off_t)(8 + length + 1)), (long)total);
  (void)close(fd);
  free(data);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

typedef struct load_case {
  const char *path;
  const lade_load_rule *rules;
  uint64_t rule_count;
  lade_load_rule_callback rule_of;
  uint64_t part_bytes;
  uint32_t per_tensor;
  _Atomic(uint64_t) read_bytes; /* of all ranks */
  _Atomic(uint64_t) wanted;     /* of all ranks: in memory */
} load_case;

static void options_fill(lade_load_options *options, const load_case *c, lade_group *group) {
  lade_load_options_init(options);
  options->group = group;
  options->rules = c->rules;
  options->rule_count = c->rule_count;
  options->rule_of = c->rule_of;
  options->part_bytes = c->part_bytes;
  options->per_tensor = c->per_tensor;
}

/* A load by the group, over. */
typedef struct loaded {
  fixture f;
  lade_safetensors *file;
  lade_tensor_load *load;
} loaded;

static bool loaded_open(const ranks_one *one, const load_case *c, uint32_t file_flags, loaded *l) {
  lade_load_options options;
  l->load = NULL;
  options_fill(&options, c, one->group);
  options.file_flags = file_flags;
  lade_status status = fixture_open_some(&l->f, one->runtime, 1);
  if (status == LADE_OK) status = lade_safetensors_open(c->path, &l->file);
  if (status == LADE_OK) status = lade_safetensors_load(l->file, l->f.targets, 1, &options, &l->load);
  if (status != LADE_OK) LADE_FAIL("rank %u: %s", (unsigned)one->rank, lade_last_error()->text);
  return status == LADE_OK;
}

static lade_pipeline_info loaded_info(const loaded *l) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_pipeline_info_get(lade_pair_pipeline(l->f.pairs[0]), &info));
  return info;
}

static void loaded_close(loaded *l, bool keep_memory) {
  LADE_EXPECT_OK(lade_tensor_load_destroy(l->load, keep_memory));
  lade_safetensors_close(l->file);
}

static void load_body(ranks_one *one) {
  load_case *c = one->plan->user;
  loaded l;
  lade_load_info info;
  if (!loaded_open(one, c, 0, &l)) return;
  LADE_EXPECT_OK(lade_tensor_load_wait(l.load, LADE_LOAD_ALL, 0));
  lade_load_info_init(&info);
  LADE_EXPECT_OK(lade_tensor_load_query(l.load, &info));
  LADE_EXPECT_EQ_UINT(info.bytes_done, info.bytes);
  c->wanted += info.bytes;
  c->read_bytes += loaded_info(&l).bytes_completed;
  for (uint64_t i = 0; i < lade_safetensors_count(l.file); i++) group_expect_tensor(one, &l.f, l.file, l.load, i, i);
  loaded_close(&l, false);
  fixture_close_on(&l.f);
}

static uint64_t checkpoint_bytes(void) {
  uint64_t total = 0;
  for (size_t i = 0; i < TENSORS; i++) total += tensors[i].bytes;
  return total;
}

/* Gives `c` the path of a checkpoint and runs the plan. */
static void checkpoint_run(const ranks_plan *plan, load_case *c) {
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "model.safetensors");
  checkpoint_write(path);
  c->path = path;
  ranks_run(plan);
  free(path);
  support_temp_dir_remove(&dir);
}

static void load_run(const char *runtime, uint32_t size, load_case *c) {
  c->read_bytes = 0;
  c->wanted = 0;
  checkpoint_run(&(ranks_plan){.runtime = runtime, .size = size, .body = load_body, .user = c}, c);
  LADE_EXPECT_EQ_UINT(c->read_bytes, checkpoint_bytes()); /* each byte once */
}

/* As for a model with tensor parallelism: column-parallel, row-parallel, experts in the middle, the rest everywhere. */
static const lade_load_rule tensor_parallel[] = {
    {.pattern = "*.q.weight", .spread = LADE_SPREAD_SLICE, .dim = 0},
    {.pattern = "*.o.weight", .spread = LADE_SPREAD_SLICE, .dim = 1},
    {.pattern = "*.down.weight", .spread = LADE_SPREAD_SLICE, .dim = -1},
    {.pattern = "*.experts.*", .spread = LADE_SPREAD_SLICE, .dim = 1},
    {.pattern = "head.weight", .spread = LADE_SPREAD_SLICE, .dim = 1},
    {.pattern = "*.nothing", .spread = LADE_SPREAD_SLICE, .dim = 1},
};
enum { TENSOR_PARALLEL = sizeof tensor_parallel / sizeof *tensor_parallel };

LADE_TEST_P(GroupLoad, ReplicatesAll, support_soft_runtimes, runtime) {
  load_case c = {.part_bytes = 0};
  load_run(runtime, 3, &c);
  load_case small = {.part_bytes = 4096};
  load_run(runtime, 2, &small);
}

LADE_TEST_P(GroupLoad, SlicesForTensorParallelism, support_soft_runtimes, runtime) {
  static const uint32_t sizes[] = {1, 2, 4};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    load_case c = {.rules = tensor_parallel, .rule_count = TENSOR_PARALLEL, .part_bytes = i == 1 ? 8192 : 0};
    load_run(runtime, sizes[i], &c);
  }
}

LADE_TEST(GroupLoad, EachTensorAllocatedByItself) {
  load_case c = {.rules = tensor_parallel, .rule_count = TENSOR_PARALLEL, .per_tensor = 1};
  load_run("sim", 2, &c);
}

LADE_TEST(GroupLoad, SplitsByTensors) {
  static const lade_load_rule rules[] = {
      {.pattern = "layers.0.*", .spread = LADE_SPREAD_RANK, .rank = 2},
      {.pattern = "odd.*", .spread = LADE_SPREAD_REPLICATE},
      {.spread = LADE_SPREAD_BALANCE},
  };
  load_case c = {.rules = rules, .rule_count = 3};
  load_run("sim", 3, &c);
}

/* Of sizes that ranks do not divide: as torch.chunk(), whose last chunks are short or missing. */
LADE_TEST(GroupLoad, CutsUnevenSlices) {
  static const lade_load_rule rules[] = {
      {.pattern = "layers.1.scalar", .spread = LADE_SPREAD_REPLICATE},
      {.pattern = "layers.*", .spread = LADE_SPREAD_SLICE, .dim = -1, .uneven = 1},
      {.pattern = "odd.*", .spread = LADE_SPREAD_SLICE, .dim = 0, .uneven = 1},
      {.spread = LADE_SPREAD_SLICE, .dim = 1, .uneven = 1},
  };
  static const uint32_t sizes[] = {5, 8, 13};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    load_case c = {.rules = rules, .rule_count = 4, .part_bytes = 65536};
    load_run("sim", sizes[i], &c);
  }
}

/* Another dimension for each tensor, by a callback. */
static lade_status rule_by_shape(void *user, const lade_tensor_info *tensor, lade_load_rule *rule) {
  (void)user;
  if (tensor->rank < 2 || lade_dtype_bits((lade_dtype)tensor->dtype) < 8) return LADE_OK;
  rule->spread = LADE_SPREAD_SLICE;
  rule->dim = (int32_t)(strlen(tensor->name) % tensor->rank);
  rule->uneven = 1;
  return LADE_OK;
}

LADE_TEST(GroupLoad, AsksACallback) {
  load_case c = {.rule_of = rule_by_shape};
  load_run("sim", 4, &c);
}

/* Files that the safetensors package wrote: all types; several files with an index. */
LADE_TEST(GroupLoad, FilesOfThePackage) {
  load_case all = {.path = FIXTURE_GOLDEN "all.safetensors", .rule_of = rule_by_shape};
  ranks_run(&(ranks_plan){.runtime = "sim", .size = 3, .body = load_body, .user = &all});
  load_case several = {.path = FIXTURE_GOLDEN "sharded.safetensors.index.json", .rule_of = rule_by_shape};
  ranks_run(&(ranks_plan){.runtime = "sim", .size = 4, .body = load_body, .user = &several});
}

LADE_TEST(GroupLoad, ManyRanks) {
  load_case c = {.rule_of = rule_by_shape};
  load_run("sim", RANKS_MANY / 2, &c);
}

/* --- what fails somewhere fails everywhere ------------------------------------------------------------------------ */

typedef struct failing failing;
struct failing {
  const char *paths[2]; /* the second one: of rank 1 */
  lade_status status;
  const char *words[2]; /* in each rank's text; NULL: any */
  void (*change)(const ranks_one *one, const failing *f, lade_load_options *options);
  bool truncates;    /* the file loses its end once all have opened it */
  const char *fault; /* an op of rank 1's driver, whose call ... */
  uint64_t nth;      /* ... of this number from the load on fails */
  _Atomic(uint32_t) failed;
};

static void failing_body(ranks_one *one) {
  failing *c = one->plan->user;
  fixture f;
  lade_safetensors *file;
  lade_tensor_load *load = NULL;
  lade_load_options options;
  LADE_ASSERT_OK(fixture_open_some(&f, one->runtime, 1));
  LADE_ASSERT_OK(lade_safetensors_open(c->paths[one->rank == 1], &file));
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  if (c->truncates && one->rank == 0) LADE_EXPECT_EQ_INT(truncate(c->paths[0], 1000000), 0);
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  lade_load_options_init(&options);
  options.group = one->group;
  options.rules = tensor_parallel;
  options.rule_count = TENSOR_PARALLEL;
  if (c->change != NULL) c->change(one, c, &options);
  if (c->fault != NULL && one->rank == 1)
    LADE_EXPECT_OK(lade_soft_fault_add(one->runtime, c->fault, c->nth, LADE_ERR_DRIVER));
  lade_status status = lade_safetensors_load(file, f.targets, 1, &options, &load);
  lade_error error = *lade_last_error();
  LADE_EXPECT_OK(lade_soft_fault_clear(one->runtime));
  c->failed += status != LADE_OK;
  if (status != LADE_OK) LADE_EXPECT(load == NULL);
  if (c->status != LADE_OK) LADE_EXPECT_EQ_INT(status, c->status);
  for (int i = 0; i < 2 && status != LADE_OK; i++)
    if (c->words[i] != NULL && strstr(error.text, c->words[i]) == NULL)
      LADE_FAIL("rank %u says \"%s\"; expected \"%s\" in it", (unsigned)one->rank, error.text, c->words[i]);
  /* What the ranks find out by themselves leaves the group whole. */
  if (c->fault == NULL) LADE_EXPECT_OK(lade_group_barrier(one->group));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  fixture_close_on(&f);
}

static void failing_run(failing *c) {
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "model.safetensors"),
       *other = support_temp_dir_path(&dir, "other.safetensors");
  checkpoint_write(path);
  fixture_safetensors_write(other, "{\"one\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}", 100);
  c->paths[0] = path;
  if (c->paths[1] == NULL) c->paths[1] = path;
  ranks_run(&(ranks_plan){.runtime = "sim", .size = 4, .body = failing_body, .user = c});
  free(path);
  free(other);
  support_temp_dir_remove(&dir);
}

static void other_rules(const ranks_one *one, const failing *f, lade_load_options *options) {
  (void)f;
  if (one->rank == 1) options->rule_count--;
}

static void other_tensors(const ranks_one *one, const failing *f, lade_load_options *options) {
  static const uint64_t few[] = {0, 2};
  (void)f;
  if (one->rank == 1) options->tensors = few, options->tensor_count = 2;
}

static void bad_alignment(const ranks_one *one, const failing *f, lade_load_options *options) {
  (void)f;
  if (one->rank == 1) options->alignment = 3;
}

/* What a load by one process has, and one by a group has not: its tensors lie as broadcasts need them. */
static void own_memory(const ranks_one *one, const failing *f, lade_load_options *options) {
  static void *memory[16];
  (void)f;
  if (one->rank == 1) options->memory = memory;
}

static void own_parts(const ranks_one *one, const failing *f, lade_load_options *options) {
  static const lade_load_part parts[16];
  (void)f;
  if (one->rank == 1) options->parts = parts;
}

static void own_dtypes(const ranks_one *one, const failing *f, lade_load_options *options) {
  static const int32_t dtypes[16];
  (void)f;
  if (one->rank == 1) options->dtypes = dtypes;
}

static lade_status refusing_rule(void *user, const lade_tensor_info *tensor, lade_load_rule *rule) {
  (void)user, (void)rule;
  return tensor->rank == 3 ? LADE_ERR_LIMIT : LADE_OK;
}

static void bad_callback(const ranks_one *one, const failing *f, lade_load_options *options) {
  (void)f;
  if (one->rank != 1) return;
  options->rules = NULL;
  options->rule_count = 0;
  options->rule_of = refusing_rule;
}

LADE_TEST(GroupLoad, RanksThatDisagreeAreRefused) {
  failing rules = {
      .status = LADE_ERR_PEER, .words = {"ranks disagree about the load", "on rank 1"}, .change = other_rules};
  failing_run(&rules);
  failing tensors_differ = {.status = LADE_ERR_PEER, .words = {"2 tensors", "on rank 1"}, .change = other_tensors};
  failing_run(&tensors_differ);
}

LADE_TEST(GroupLoad, ARefusedArgumentIsRefusedEverywhere) {
  failing alignment = {
      .status = LADE_ERR_INVALID_ARGUMENT, .words = {"rank 1 of 4", "options.alignment"}, .change = bad_alignment};
  failing_run(&alignment);
  failing callback = {.status = LADE_ERR_CALLBACK, .words = {"rank 1 of 4", "experts"}, .change = bad_callback};
  failing_run(&callback);
}

LADE_TEST(GroupLoad, TensorsThatAreThereAndPartsAndOtherTypesAreRefusedByName) {
  static const struct {
    void (*change)(const ranks_one *one, const failing *f, lade_load_options *options);
    const char *words;
  } cases[] = {{own_memory, "options.memory"}, {own_parts, "options.parts"}, {own_dtypes, "options.dtypes"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    failing c = {
        .status = LADE_ERR_INVALID_ARGUMENT, .words = {"rank 1 of 4", cases[i].words}, .change = cases[i].change};
    failing_run(&c);
    LADE_EXPECT_EQ_UINT(c.failed, 4);
  }
}

/* A rank whose file is another one: by size, and of the same size by its header. */
LADE_TEST(GroupLoad, AnotherFileIsRefused) {
  static const char *const headers[] = {"{\"one\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}",
                                        "{\"two\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}"};
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *other = support_temp_dir_path(&dir, "other.safetensors"),
       *third = support_temp_dir_path(&dir, "third.safetensors");
  fixture_safetensors_write(other, headers[0], 100);
  fixture_safetensors_write(third, headers[1], 100);
  failing size = {.paths = {NULL, other},
                  .status = LADE_ERR_PEER,
                  .words = {"ranks disagree about the checkpoint", "bytes in 1 files"}};
  failing_run(&size);
  failing header = {
      .paths = {other, third}, .status = LADE_ERR_PEER, .words = {"checksum of the headers", "on rank 1"}};
  ranks_run(&(ranks_plan){.runtime = "sim", .size = 4, .body = failing_body, .user = &header});
  free(other);
  free(third);
  support_temp_dir_remove(&dir);
}

LADE_TEST(GroupLoad, AReadThatFailsFailsEverywhere) {
  failing c = {.status = LADE_ERR_TRUNCATED, .words = {"rank ", "model.safetensors"}, .truncates = true};
  failing_run(&c);
  LADE_EXPECT_EQ_UINT(c.failed, 4);
}

/* A call of one rank's driver fails: all ranks fail or none does, and nothing is left alive in any. */
LADE_TEST(GroupLoad, AnyDriverCallFailsInOneRank) {
  static const char *const ops[] = {"device_alloc", "copy", "copy_2d", "copy_batch", "event_record", "event_create"};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    for (uint64_t nth = 1; nth <= 100; nth = nth * 4 + 1) {
      failing c = {.fault = ops[i], .nth = nth};
      lade_test_context("call %u of %s", (unsigned)nth, ops[i]);
      failing_run(&c);
      LADE_EXPECT(c.failed == 0 || c.failed == 4);
    }
  }
  lade_test_context("%s", "");
}

/* --- what goes together ------------------------------------------------------------------------------------------- */

typedef struct together {
  load_case load;
  _Atomic(uint64_t) transfers; /* of all ranks */
} together;

static void together_body(ranks_one *one) {
  static const char *const replicated[] = {"layers.0.norm.weight", "layers.0.norm.bias", "layers.1.scalar",
                                           "embedding.weight", "odd.weight"};
  together *c = one->plan->user;
  loaded l;
  const char *end = NULL;
  if (!loaded_open(one, &c->load, 0, &l)) return;
  for (size_t i = 0; i < sizeof replicated / sizeof *replicated; i++) {
    lade_tensor_info info;
    uint64_t index;
    void *memory;
    lade_tensor_info_init(&info);
    LADE_ASSERT_OK(lade_safetensors_find(l.file, replicated[i], &index));
    LADE_ASSERT_OK(lade_safetensors_tensor(l.file, index, &info));
    LADE_ASSERT_OK(lade_tensor_load_address(l.load, index, &memory, NULL));
    if (end != NULL) LADE_EXPECT((char *)memory >= end && (char *)memory < end + 256); /* padding alone between them */
    end = (char *)memory + info.bytes;
  }
  c->transfers += loaded_info(&l).transfers_completed;
  loaded_close(&l, false);
  fixture_close_on(&l.f);
}

/* Five tensors that are broadcast, with sliced ones between them in the file, are one transfer; three that are scattered are one each, and
 * each rank has one for what it reads for itself. */
LADE_TEST(GroupLoad, WhatIsBroadcastGoesTogether) {
  together c = {.load = {.rules = tensor_parallel, .rule_count = TENSOR_PARALLEL}};
  checkpoint_run(&(ranks_plan){.runtime = "sim", .size = 2, .body = together_body, .user = &c}, &c.load);
  LADE_EXPECT_EQ_UINT(c.transfers, 1u + 3u + 2u);
}

/* --- what is kept, what is read directly -------------------------------------------------------------------------- */

/* The bug: what is broadcast lay before the first tensor, whose address stands for all of the memory. */
static void keep_body(ranks_one *one) {
  loaded l;
  void *memory = NULL;
  if (!loaded_open(one, one->plan->user, 0, &l)) return;
  for (uint64_t i = 0; i < lade_safetensors_count(l.file) && memory == NULL; i++)
    LADE_EXPECT_OK(lade_tensor_load_address(l.load, i, &memory, NULL));
  loaded_close(&l, true);
  LADE_EXPECT_OK(lade_device_free(l.f.targets[0].allocator, memory));
  fixture_close_on(&l.f);
}

LADE_TEST(GroupLoad, KeptMemoryIsFreedByItsFirstTensor) {
  load_case c = {.rules = tensor_parallel, .rule_count = TENSOR_PARALLEL};
  checkpoint_run(&(ranks_plan){.runtime = "sim", .size = 2, .body = keep_body, .user = &c}, &c);
}

/* The bug: tensors that are broadcast together, with a sliced one between them in the file, went through the page cache. */
static void direct_body(ranks_one *one) {
  loaded l;
  if (!loaded_open(one, one->plan->user, LADE_FILE_DIRECT, &l)) return;
  lade_pipeline_info moved = loaded_info(&l);
  LADE_EXPECT_EQ_UINT(moved.direct_refused, 0u);
  LADE_EXPECT(moved.bytes_direct > moved.bytes_completed * 9 / 10);
  loaded_close(&l, false);
  fixture_close_on(&l.f);
}

LADE_TEST(GroupLoad, BroadcastsAreReadDirectly) {
  static const lade_load_rule rules[] = {{.pattern = "b*", .spread = LADE_SPREAD_SLICE, .dim = 1}};
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "model.safetensors");
  fixture_safetensors_write(path,
                            "{\"a\":{\"dtype\":\"U8\",\"shape\":[400000],\"data_offsets\":[0,400000]},"
                            "\"b\":{\"dtype\":\"U8\",\"shape\":[100,1000],\"data_offsets\":[400000,500000]},"
                            "\"c\":{\"dtype\":\"U8\",\"shape\":[400000],\"data_offsets\":[500000,900000]}}",
                            900000);
  load_case c = {.path = path, .rules = rules, .rule_count = 1};
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = 1, .body = direct_body, .user = &c});
  free(path);
  support_temp_dir_remove(&dir);
}
