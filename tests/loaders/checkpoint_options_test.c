/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of saves and of loads with all others: what is in the files, which tensors come where, every byte of them and
 * beside them. The model is a list of tensors.
 */
#include <stdlib.h>
#include <string.h>

#include "lade/group.h"
#include "tests/group/ranks.h"
#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"
#include "tests/support/guarded.h"
#include "tests/support/pattern.h"

enum { TENSORS = 11, LONGEST = 9000 };

/* How `tensors` and `rules` are given. */
enum { ALL, BACKWARDS, SOME, NONE, TWICE, BEYOND, TOO_MANY };
enum { RULES_NONE, RULES_LIST, RULES_CALLBACK, RULES_BOTH };

static const support_option save_options[] = {
    SUPPORT_OPTION(lade_save_options, metadata_count, 0, 1, 3),
    SUPPORT_OPTION(lade_save_options, max_shard_bytes, 0, 1, 9000, 20001, UINT64_MAX),
    SUPPORT_OPTION(lade_save_options, no_sync, 0, 1),
    SUPPORT_OPTION(lade_save_options, empty_metadata, 0, 1),
    SUPPORT_CHOICE("progress", 0, 1, 2),
    SUPPORT_CHOICE("targets", 1, 2),
    SUPPORT_CHOICE("tensors", 0, 1, TENSORS),
    SUPPORT_CHOICE("saved before", 0, 1),
};
static const support_option save_wrong[] = {
    SUPPORT_OPTION(lade_save_options, no_sync, 2, (uint64_t)-1),
    SUPPORT_OPTION(lade_save_options, empty_metadata, 2, (uint64_t)-1),
};
static const support_option load_options[] = {
    SUPPORT_OPTION(lade_load_options, alignment, 0, 1, 8, 64, 512),
    SUPPORT_OPTION(lade_load_options, per_tensor, 0, 1),
    SUPPORT_OPTION(lade_load_options, file_flags, 0, LADE_FILE_DIRECT, LADE_FILE_CACHED),
    SUPPORT_OPTION(lade_load_options, part_bytes, 0, 4096, 1u << 30),
    SUPPORT_CHOICE("tensors", ALL, ALL, BACKWARDS, SOME, NONE, TWICE, BEYOND, TOO_MANY),
    SUPPORT_CHOICE("target_of", 0, 1, 2),
    SUPPORT_CHOICE("targets", 1, 2),
    SUPPORT_CHOICE("group", 0, 1),
    SUPPORT_CHOICE("rules", RULES_NONE, RULES_NONE, RULES_LIST, RULES_CALLBACK, RULES_BOTH),
    SUPPORT_CHOICE("spread", LADE_SPREAD_REPLICATE, LADE_SPREAD_SLICE, LADE_SPREAD_RANK, LADE_SPREAD_BALANCE),
    SUPPORT_CHOICE("sharded", 0, 1),
    SUPPORT_CHOICE("keep memory", 0, 1),
    SUPPORT_CHOICE("parts", 0, 1),
    SUPPORT_CHOICE("dtypes", 0, 1),
};
static const support_option load_wrong[] = {
    SUPPORT_OPTION(lade_load_options, alignment, 3, 1024, UINT64_MAX),
    SUPPORT_OPTION(lade_load_options, per_tensor, 2),
    SUPPORT_OPTION(lade_load_options, file_flags, LADE_FILE_SYNC, LADE_FILE_ATOMIC, LADE_FILE_DIRECT | LADE_FILE_CACHED,
                   16),
};

/* --- tensors ------------------------------------------------------------------------------------------------------ */

typedef struct stage {
  fixture f;
  support_guarded_device guarded[2];
  support_temp_dir dir;
  lade_tensor tensors[TENSORS];
  uint64_t shapes[TENSORS][2];
  char names[TENSORS][8];
  lade_group *group;
  lade_safetensors *files[2];
  uint64_t order[2][TENSORS]; /* which tensor is number i of a file */
} stage;

/* Bytes from 0 to LONGEST, odd ones among them. */
static uint64_t bytes_of(uint64_t i) { return i % 4 == 1 ? 0 : (i * 1777 + 1) % LONGEST; }

static void bytes_write(stage *on, uint64_t i) {
  unsigned char bytes[LONGEST];
  lade_tensor *tensor = &on->tensors[i];
  support_pattern_fill(bytes, bytes_of(i), i, 0);
  fixture_device_write(&on->f, tensor->target, tensor->memory, bytes, bytes_of(i));
}

static bool stage_open(stage *on, const char *name) {
  memset(on, 0, sizeof *on);
  if (!fixture_open(&on->f, name) || !support_temp_dir_create(&on->dir)) return false;
  for (unsigned d = 0; d < 2; d++)
    support_guarded_device_begin(&on->guarded[d], on->f.runtime, on->f.targets[d].allocator);
  for (uint64_t i = 0; i < TENSORS; i++) {
    lade_tensor *tensor = &on->tensors[i];
    on->names[i][0] = (char)('k' - i); /* not in the order of names */
    on->shapes[i][0] = 1;
    on->shapes[i][1] = bytes_of(i);
    *tensor = (lade_tensor){on->names[i], on->shapes[i], 2, NULL, (uint32_t)(i % 2), LADE_DTYPE_U8};
    const lade_load_target *target = &on->f.targets[tensor->target];
    LADE_EXPECT_OK(lade_device_alloc(target->allocator, bytes_of(i), target->stream, &tensor->memory));
    bytes_write(on, i);
  }
  return !lade_test_has_failed();
}

static void stage_close(stage *on) {
  for (uint64_t i = 0; i < TENSORS; i++)
    LADE_EXPECT_OK(lade_device_free(on->f.targets[i % 2].allocator, on->tensors[i].memory));
  LADE_EXPECT_OK(lade_group_destroy(on->group));
  support_temp_dir_remove(&on->dir);
  fixture_close(&on->f);
}

static void guards_expect(const stage *on) {
  for (unsigned d = 0; d < 2; d++) support_guarded_device_check(&on->guarded[d]);
}

/* --- saves -------------------------------------------------------------------------------------------------------- */

typedef struct progress {
  uint64_t calls, done, bytes;
  bool end;
} progress;

static lade_status progress_note(void *user, uint64_t bytes_done, uint64_t bytes) {
  progress *p = user;
  LADE_EXPECT_GE_UINT(bytes_done, p->done);
  LADE_EXPECT_LE_UINT(bytes_done, bytes);
  p->calls++;
  p->done = bytes_done;
  p->bytes = bytes;
  return p->end ? LADE_ERR_FORMAT : LADE_OK;
}

/* The file's own bytes, as it is on the disk. */
static void saved_tensor_expect(const lade_safetensors *file, const stage *on, uint64_t i, uint64_t *shard_bytes,
                                uint64_t *shard_tensors) {
  lade_tensor_info info;
  uint64_t number;
  size_t size;
  lade_tensor_info_init(&info);
  LADE_ASSERT_OK(lade_safetensors_find(file, on->names[i], &number));
  LADE_ASSERT_OK(lade_safetensors_tensor(file, number, &info));
  LADE_EXPECT_EQ_UINT(info.bytes, bytes_of(i));
  LADE_ASSERT_EQ_UINT(info.rank, 2);
  LADE_EXPECT_EQ_UINT(info.shape[1], bytes_of(i));
  LADE_EXPECT_EQ_INT(info.dtype, LADE_DTYPE_U8);
  LADE_ASSERT_LT_UINT(info.file, TENSORS);
  shard_bytes[info.file] += info.bytes;
  shard_tensors[info.file]++;
  char *data = support_file_read(lade_safetensors_file_path(file, info.file), &size);
  LADE_ASSERT(data != NULL && info.offset + info.bytes <= size);
  LADE_EXPECT_PATTERN(data + info.offset, info.bytes, i, 0);
  free(data);
}

static void saved_expect(const stage *on, const char *path, const lade_save_options *given, uint64_t count) {
  lade_safetensors *file = NULL;
  uint64_t shard_bytes[TENSORS] = {0}, shard_tensors[TENSORS] = {0}, total = 0;
  for (uint64_t i = 0; i < count; i++) total += bytes_of(i);
  bool sharded = given->max_shard_bytes != 0 && total > given->max_shard_bytes;
  char *index = support_temp_dir_path(&on->dir, "m.safetensors.index.json");
  LADE_ASSERT_OK(lade_safetensors_open(sharded ? index : path, &file));
  LADE_EXPECT_EQ_UINT(lade_safetensors_count(file), count);
  for (uint64_t i = 0; i < count && !lade_test_has_failed(); i++)
    saved_tensor_expect(file, on, i, shard_bytes, shard_tensors);
  uint64_t files = 0;
  while (lade_safetensors_file_path(file, files) != NULL) files++;
  LADE_EXPECT(sharded ? files > 1 : files == 1);
  for (uint64_t i = 0; i < files && i < TENSORS && given->max_shard_bytes != 0; i++)
    LADE_EXPECT(shard_bytes[i] <= given->max_shard_bytes || shard_tensors[i] == 1);
  LADE_EXPECT_GE_UINT(lade_safetensors_metadata_count(file), given->metadata_count * files);
  for (uint64_t i = 0; i < given->metadata_count; i++) {
    const char *key, *text;
    LADE_ASSERT_OK(lade_safetensors_metadata(file, i, &key, &text));
    if (!sharded) LADE_EXPECT_EQ_STR(key, given->metadata[i].key);
    if (!sharded) LADE_EXPECT_EQ_STR(text, given->metadata[i].value);
  }
  lade_safetensors_close(file);
  free(index);
}

static void save_run(stage *on, support_crossing *crossing, lade_save_options *given) {
  static const lade_metadata metadata[] = {{"format", "pt"}, {"b", ""}, {"a", "\xc3\xa4 \" \\"}};
  static const char *const refusal[] = {"target", NULL};
  const uint64_t count = support_crossing_value(crossing, "tensors"),
                 targets = support_crossing_value(crossing, "targets");
  progress seen = {.end = support_crossing_value(crossing, "progress") == 2};
  char *path = support_temp_dir_path(&on->dir, "m.safetensors");
  lade_save_options before;
  lade_save_options_init(&before);
  given->metadata = metadata;
  if (support_crossing_value(crossing, "progress") > 0) given->progress = progress_note;
  given->user = &seen;
  if (support_crossing_value(crossing, "saved before") != 0)
    LADE_ASSERT_OK(lade_safetensors_save(path, on->f.targets, 2, on->tensors, TENSORS, &before));
  bool kept = support_crossing_value(crossing, "saved before") != 0;
  size_t names = support_names_count(on->dir.path);
  lade_status status = lade_safetensors_save(path, on->f.targets, targets, on->tensors, count, given);
  if (crossing->wrong != NULL || (targets == 1 && count > 3)) {
    support_crossing_refused(crossing, status, refusal);
    LADE_EXPECT_EQ_SIZE(support_names_count(on->dir.path), names);
    if (kept) saved_expect(on, path, &before, TENSORS);
  } else if (seen.end && seen.calls > 0) {
    LADE_EXPECT_EQ_INT(status, LADE_ERR_CANCELLED);
    if (kept) saved_expect(on, path, &before, TENSORS);
  } else {
    LADE_EXPECT_OK(status);
    saved_expect(on, path, given, count);
    if (given->progress != NULL) LADE_EXPECT_EQ_UINT(seen.done, seen.bytes);
  }
  guards_expect(on);
  support_temp_dir_remove(&on->dir);
  LADE_EXPECT(support_temp_dir_create(&on->dir));
  free(path);
}

LADE_TEST_P(CheckpointOptions, SavesCrossed, support_soft_runtimes, name) {
  stage on;
  support_crossing crossing;
  lade_save_options given;
  if (!stage_open(&on, name)) return;
  support_crossing_start(&crossing, SUPPORT_OPTIONS(save_options), SUPPORT_OPTIONS(save_wrong), 28, 10);
  for (lade_save_options_init(&given); support_crossing_next(&crossing, &given); lade_save_options_init(&given))
    save_run(&on, &crossing, &given);
  stage_close(&on);
}

/* --- loads -------------------------------------------------------------------------------------------------------- */

/* What a combination asks for. */
typedef struct request {
  uint64_t numbers[TENSORS + 1]; /* of tensors in the file */
  const uint64_t *order;
  uint64_t count, targets;
  uint32_t target_of[TENSORS + 1];
  lade_load_rule rule;
  lade_load_part parts[TENSORS + 1]; /* all whole, ... */
  int32_t dtypes[TENSORS + 1];       /* ... and as in the file */
  const char *refused[8];
} request;

static lade_status rule_give(void *user, const lade_tensor_info *tensor, lade_load_rule *rule) {
  (void)tensor;
  *rule = *(const lade_load_rule *)user;
  return LADE_OK;
}

static void request_tensors(const support_crossing *crossing, request *r, lade_load_options *given) {
  const uint64_t how = support_crossing_value(crossing, "tensors");
  r->count = how == SOME ? 5 : how == NONE ? 0 : how == TOO_MANY ? TENSORS + 1 : TENSORS;
  for (uint64_t i = 0; i < r->count; i++)
    r->numbers[i] = how == BACKWARDS ? TENSORS - 1 - i : how == SOME ? 2 * i : i % TENSORS;
  if (how == TWICE) r->numbers[4] = 1;
  if (how == BEYOND) r->numbers[4] = TENSORS;
  if (how != ALL) {
    given->tensors = r->numbers;
    given->tensor_count = r->count;
  }
}

static void request_make(stage *on, const support_crossing *crossing, request *r, lade_load_options *given) {
  const uint64_t rules = support_crossing_value(crossing, "rules"), how = support_crossing_value(crossing, "tensors");
  const uint64_t target_of = support_crossing_value(crossing, "target_of");
  const bool group = support_crossing_value(crossing, "group") != 0;
  const char **refused = r->refused;
  *r = (request){.targets = support_crossing_value(crossing, "targets"),
                 .order = on->order[support_crossing_value(crossing, "sharded")]};
  request_tensors(crossing, r, given);
  r->rule = (lade_load_rule){.pattern = "*", .spread = (int32_t)support_crossing_value(crossing, "spread"), .dim = -1};
  for (uint64_t i = 0; i < r->count; i++) r->target_of[i] = target_of == 2 ? 1 : (uint32_t)(i % r->targets);
  if (target_of > 0) given->target_of = r->target_of;
  if (group) given->group = on->group;
  if (rules == RULES_LIST || rules == RULES_BOTH) {
    given->rules = &r->rule;
    given->rule_count = 1;
  }
  if (rules == RULES_CALLBACK || rules == RULES_BOTH) {
    given->rule_of = rule_give;
    given->rule_user = &r->rule;
  }
  if (support_crossing_value(crossing, "parts") != 0) given->parts = r->parts;
  if (support_crossing_value(crossing, "dtypes") != 0) given->dtypes = r->dtypes;
  if (group && given->parts != NULL) *refused++ = "options.parts";
  if (group && given->dtypes != NULL) *refused++ = "options.dtypes";
  if (how == TWICE || how == BEYOND) *refused++ = "options.tensors[";
  if (how == TOO_MANY) *refused++ = "options.tensor_count";
  if (target_of == 2 && r->targets == 1 && r->count > 0) *refused++ = "options.target_of[";
  if (group && r->targets > 1) *refused++ = "target_count";
  if (!group && rules != RULES_NONE) *refused++ = "options.group";
  if (rules == RULES_BOTH) *refused++ = "options.rule";
}

static void loaded_tensor_expect(const stage *on, lade_tensor_load *load, const request *r,
                                 const lade_load_options *given, uint64_t i) {
  const uint64_t alignment = given->alignment != 0 ? given->alignment : 256, order = r->order[r->numbers[i]];
  unsigned char bytes[LONGEST];
  void *memory;
  uint32_t target;
  lade_load_slice slice;
  lade_load_slice_init(&slice);
  LADE_ASSERT_OK(lade_tensor_load_address(load, i, &memory, &target));
  LADE_ASSERT_LT_UINT(target, r->targets);
  if (given->target_of != NULL) LADE_EXPECT_EQ_UINT(target, r->target_of[i]);
  LADE_EXPECT_OK(lade_tensor_load_slice(load, i, &slice));
  LADE_EXPECT_EQ_UINT(slice.bytes, bytes_of(order));
  if (bytes_of(order) == 0) {
    LADE_EXPECT_EQ_PTR(memory, NULL);
    return;
  }
  LADE_EXPECT_EQ_UINT((uintptr_t)memory % alignment, 0);
  fixture_device_read(&on->f, target, memory, bytes, bytes_of(order));
  LADE_EXPECT_PATTERN(bytes, bytes_of(order), order, 0);
}

static void kept_free(const stage *on, void *const *addresses, const uint32_t *targets, uint64_t count,
                      const lade_load_options *given, const request *r) {
  bool freed[2] = {false, false};
  for (uint64_t step = 0; step < TENSORS; step++) { /* in the order of the file, which has the first of each target */
    for (uint64_t i = 0; i < count; i++) {
      if (r->numbers[i] != step || addresses[i] == NULL || (!given->per_tensor && freed[targets[i]])) continue;
      LADE_EXPECT_OK(lade_device_free(on->f.targets[targets[i]].allocator, addresses[i]));
      freed[targets[i]] = true;
    }
  }
}

static uint64_t blocks_of(const stage *on) {
  uint64_t blocks = 0;
  for (unsigned d = 0; d < 2; d++) {
    lade_device_stats stats;
    lade_device_stats_init(&stats);
    LADE_EXPECT_OK(lade_device_stats_get(on->f.targets[d].allocator, &stats));
    blocks += stats.allocation.all.current;
  }
  return blocks;
}

static void load_judge(const stage *on, const support_crossing *crossing, lade_tensor_load *load, const request *r,
                       const lade_load_options *given) {
  lade_load_info info;
  void *addresses[TENSORS] = {NULL};
  uint32_t targets[TENSORS] = {0};
  uint64_t total = 0;
  const bool keep = support_crossing_value(crossing, "keep memory") != 0;
  lade_load_info_init(&info);
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  for (uint64_t i = 0; i < r->count && !lade_test_has_failed(); i++) {
    loaded_tensor_expect(on, load, r, given, i);
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &addresses[i], &targets[i]));
    total += bytes_of(r->order[r->numbers[i]]);
  }
  LADE_EXPECT_OK(lade_tensor_load_query(load, &info));
  LADE_EXPECT_EQ_UINT(info.bytes, total);
  LADE_EXPECT_EQ_UINT(info.bytes_done, total);
  guards_expect(on);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, keep));
  if (keep) kept_free(on, addresses, targets, r->count, given, r);
}

static void load_run(stage *on, support_crossing *crossing, lade_load_options *given) {
  request r;
  lade_tensor_load *load = NULL;
  lade_safetensors *file = on->files[support_crossing_value(crossing, "sharded")];
  request_make(on, crossing, &r, given);
  uint64_t blocks = blocks_of(on);
  lade_status status = lade_safetensors_load(file, on->f.targets, r.targets, given, &load);
  if (crossing->wrong != NULL || r.refused[0] != NULL) {
    support_crossing_refused(crossing, status, r.refused);
    LADE_EXPECT_EQ_PTR(load, NULL);
    if (given->group != NULL && lade_group_check(on->group) != LADE_OK) LADE_FAIL("the group is broken");
  } else {
    LADE_ASSERT_OK(status);
    load_judge(on, crossing, load, &r, given);
  }
  LADE_EXPECT_EQ_UINT(blocks_of(on), blocks);
}

/* The tensors in the order of their files. */
static void file_make(stage *on, uint64_t which, uint64_t max_shard_bytes) {
  lade_save_options save;
  lade_safetensors *file = NULL;
  lade_save_options_init(&save);
  save.max_shard_bytes = max_shard_bytes;
  char *path = support_temp_dir_path(&on->dir, max_shard_bytes != 0 ? "s.safetensors" : "m.safetensors");
  char *index = support_temp_dir_path(&on->dir, "s.safetensors.index.json");
  LADE_EXPECT_OK(lade_safetensors_save(path, on->f.targets, 2, on->tensors, TENSORS, &save));
  LADE_EXPECT_OK(lade_safetensors_open(max_shard_bytes != 0 ? index : path, &file));
  for (uint64_t i = 0; i < TENSORS && file != NULL; i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    LADE_EXPECT_OK(lade_safetensors_tensor(file, i, &info));
    on->order[which][i] = (uint64_t)('k' - info.name[0]);
  }
  on->files[which] = file;
  free(path);
  free(index);
}

static void group_make(stage *on) {
  char name[64];
  lade_group_local_options local;
  lade_group_local_options_init(&local);
  ranks_name(name, sizeof name);
  local.name = name;
  local.size = 1;
  local.slot_bytes = 4096;
  LADE_EXPECT_OK(lade_group_create_local(on->f.runtime, &local, &on->group));
}

LADE_TEST_P(CheckpointOptions, LoadsCrossed, support_soft_runtimes, name) {
  stage on;
  support_crossing crossing;
  lade_load_options given;
  if (!stage_open(&on, name)) return;
  group_make(&on);
  file_make(&on, 0, 0);
  file_make(&on, 1, 9000);
  support_crossing_start(&crossing, SUPPORT_OPTIONS(load_options), SUPPORT_OPTIONS(load_wrong), 29, 40);
  for (lade_load_options_init(&given); support_crossing_next(&crossing, &given); lade_load_options_init(&given))
    load_run(&on, &crossing, &given);
  for (int i = 0; i < 2; i++) lade_safetensors_close(on.files[i]);
  stage_close(&on);
}
