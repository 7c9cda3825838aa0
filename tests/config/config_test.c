/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as text: every key, ranges, the list form, and errors that name key, value and position. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "config/config.h"
#include "lade/log.h"
#include "tests/shim/lade_test.h"
#include "tests/support/comma_locale.h"
#include "tests/support/heard.h"

/* All options, with the settings that go into them. */
typedef struct all_options {
  lade_config config;
  lade_device_options device;
  lade_pinned_options pinned;
  lade_pipeline_options pipeline;
} all_options;

static lade_config *options_init(all_options *all) {
  lade_config_init(&all->config);
  lade_device_options_init(&all->device);
  lade_pinned_options_init(&all->pinned);
  lade_pipeline_options_init(&all->pipeline);
  all->config.device = &all->device;
  all->config.pinned = &all->pinned;
  all->config.pipeline = &all->pipeline;
  return &all->config;
}

/* For looking at: `config` is not that of the copy. */
static all_options parse_ok(const char *text) {
  all_options all;
  lade_test_context("%s", text);
  LADE_EXPECT_OK(lade_config_parse(text, options_init(&all)));
  lade_test_context("%s", "");
  return all;
}

LADE_TEST(Config, ReadsEveryKey) {
  const all_options config =
      parse_ok("backend:native,max_split_size_mb:21,garbage_collection_threshold:0.75,"
               "expandable_segments:True,roundup_power2_divisions:4,release_lock_on_cudamalloc:True,"
               "pinned_use_cuda_host_register:False,pinned_num_register_threads:128,device_max_mb:7,"
               "device_event_batch:1,pinned_max_mb:9,pinned_event_batch:2,pinned_wait_ms:30,"
               "pinned_segment_mb:32,pinned_magazine_mb:3,pinned_max_idle_ms:4,pinned_threads:6,"
               "pinned_numa_strict:True,pinned_background:True,pinned_debug:True,"
               "pinned_register_chunk_mb:16,"
               "pinned_policy:reference,pinned_source:register | pool|pageable,storage:uring");
  LADE_EXPECT_EQ_UINT(config.device.backend, LADE_DEVICE_NATIVE);
  LADE_EXPECT_EQ_UINT(config.device.max_split_bytes, 21 * LADEI_MIB);
  LADE_EXPECT(config.device.collection_threshold == 0.75);
  LADE_EXPECT_EQ_UINT(config.device.expandable_segments, 1);
  for (int i = 0; i < 16; i++) LADE_EXPECT_EQ_UINT(config.device.roundup_divisions[i], 4);
  LADE_EXPECT_EQ_UINT(config.device.max_bytes, 7 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(config.device.event_batch, 1);
  LADE_EXPECT_EQ_UINT(config.pinned.max_bytes, 9 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(config.pinned.event_batch, 2);
  LADE_EXPECT_EQ_UINT(config.pinned.wait_ms, 30);
  LADE_EXPECT_EQ_UINT(config.pinned.segment_bytes, 32 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(config.pinned.magazine_bytes, 3 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(config.pinned.max_idle_ms, 4);
  LADE_EXPECT_EQ_UINT(config.pinned.prefault_threads, 6);
  LADE_EXPECT_EQ_UINT(config.pinned.flags,
                      LADE_PINNED_NUMA_STRICT | LADE_PINNED_BACKGROUND | LADE_PINNED_DEBUG | LADE_PINNED_REFERENCE);
  LADE_EXPECT_EQ_UINT(config.pinned.register_chunk_bytes, 16 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(config.pinned.sources,
                      LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_POOL | LADE_PINNED_SOURCE_PAGEABLE);
  LADE_EXPECT_EQ_INT(config.pipeline.storage, LADE_STORAGE_URING);
}

LADE_TEST(Config, KeysOfOneFieldHaveAnOrder) {
  static const char *const texts[] = {"pinned_source:pool,pinned_use_cuda_host_register:True",
                                      "pinned_use_cuda_host_register:True,pinned_source:pool"};
  for (int i = 0; i < 2; i++) LADE_EXPECT_EQ_UINT(parse_ok(texts[i]).pinned.sources, LADE_PINNED_SOURCE_POOL);
  LADE_EXPECT_EQ_UINT(parse_ok("pinned_use_cuda_host_register:True").pinned.sources, LADE_PINNED_SOURCE_REGISTER);
  LADE_EXPECT_EQ_UINT(parse_ok("pinned_use_hip_host_register:False").pinned.sources, LADE_PINNED_SOURCE_DRIVER);
  LADE_EXPECT_EQ_UINT(parse_ok("pinned_threads:3,pinned_num_register_threads:8").pinned.prefault_threads, 3);
  LADE_EXPECT_EQ_UINT(parse_ok("pinned_num_register_threads:8").pinned.prefault_threads, 8);
}

/* A block of YAML ends with a newline, and may have several lines: PyTorch takes it. */
LADE_TEST(Config, LineEndsAreBlanks) {
  const all_options config = parse_ok("max_split_size_mb:64,\r\n  per_process_memory_fraction:0.5\n");
  LADE_EXPECT_EQ_UINT(config.device.max_split_bytes / LADEI_MIB, 64);
  LADE_EXPECT(config.device.memory_fraction == 0.5);
  LADE_EXPECT_EQ_UINT(parse_ok(" \n").device.max_split_bytes / LADEI_MIB, 0);
}

/* strtod() reads 0 of "0.5" where the locale's numbers have a comma: half of the memory became no limit at all. */
LADE_TEST(Config, NumbersDoNotDependOnTheLocale) {
  if (!support_comma_locale_begin()) LADE_SKIP("no locale with a decimal comma can be had");
  const all_options config = parse_ok("per_process_memory_fraction:0.5,garbage_collection_threshold:0.75");
  support_comma_locale_end();
  LADE_EXPECT(config.device.memory_fraction == 0.5);
  LADE_EXPECT(config.device.collection_threshold == 0.75);
}

/* The least and the greatest number of a range are values, what lies beyond is none; each row says what it is. */
static void setting_check(const ladei_setting *s) {
  char text[128];
  all_options all;
  lade_config config = *options_init(&all);
  lade_test_context("%s", s->key);
  LADE_EXPECT(s->help != NULL && s->default_value != NULL);
  if (s->kind != LADEI_SETTING_NUMBER && s->kind != LADEI_SETTING_POWER_OF_TWO) return;
  LADE_EXPECT(s->bytes == sizeof(uint64_t) || (s->bytes == sizeof(uint32_t) && s->high <= UINT32_MAX));
  snprintf(text, sizeof text, "%s:%llu", s->key, (unsigned long long)s->low);
  LADE_EXPECT_OK(lade_config_parse(text, &config));
  snprintf(text, sizeof text, "%s:%llu", s->key, (unsigned long long)s->high);
  LADE_EXPECT_OK(lade_config_parse(text, &config));
  snprintf(text, sizeof text, "%s:%llu", s->key, (unsigned long long)s->high + 1);
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_parse(text, &config));
}

LADE_TEST(Config, EachKeyHasItsRangeAndHelp) {
  for (size_t t = 0; t < ladei_config_table_count; t++)
    for (size_t i = 0; i < ladei_config_tables[t]->count; i++) setting_check(&ladei_config_tables[t]->settings[i]);
  lade_test_context("%s", "");
}

/* A value that is not the default. */
static void setting_text(const ladei_setting *s, char *text, size_t text_bytes) {
  const ladei_setting_word *word = s->words;
  switch (s->kind) {
  case LADEI_SETTING_THRESHOLD:
  case LADEI_SETTING_FRACTION: snprintf(text, text_bytes, "%s:0.5", s->key); return;
  case LADEI_SETTING_NAME: snprintf(text, text_bytes, "%s:a.b_C-9", s->key); return;
  case LADEI_SETTING_DIVISIONS: snprintf(text, text_bytes, "%s:2", s->key); return;
  case LADEI_SETTING_FLAG:
  case LADEI_SETTING_WORD:
  case LADEI_SETTING_WORD_SET:
    while (word->number == 0) word++;
    snprintf(text, text_bytes, "%s:%s", s->key, word->word);
    return;
  default: snprintf(text, text_bytes, "%s:%llu", s->key, (unsigned long long)s->high);
  }
}

/* Keys of PyTorch's that decide nothing here take what PyTorch takes, in lists too, and leave their neighbours alone. */
LADE_TEST(Config, ValuesWithoutEffectArePassed) {
  const all_options config =
      parse_ok("expandable_segments_reserve:40G,max_split_size_mb:40,"
               "expandable_segments_reserve_by_class:[serving:0.25,other:8G],pinned_event_batch:3,"
               "pinned_free_catch_all:True");
  LADE_EXPECT_EQ_UINT(config.device.max_split_bytes, 40 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(config.pinned.event_batch, 3);
  lade_config other;
  lade_config_init(&other);
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_parse("expandable_segments_reserve:", &other));
  LADE_EXPECT(strstr(lade_last_error()->text, "expected any text") != NULL);
}

LADE_TEST(Config, EachKeyChangesItsOption) {
  all_options before, after;
  char text[128];
  for (size_t t = 0; t < ladei_config_table_count; t++) {
    for (size_t i = 0; i < ladei_config_tables[t]->count; i++) {
      const ladei_setting *s = &ladei_config_tables[t]->settings[i];
      if (s->option == NULL) continue;
      setting_text(s, text, sizeof text);
      memset(&before, 0, sizeof before);
      memset(&after, 0, sizeof after);
      (void)options_init(&before);
      LADE_EXPECT_OK(lade_config_parse(text, options_init(&after)));
      const void *const was[] = {&before.device, &before.pinned, &before.pipeline};
      const void *const is[] = {&after.device, &after.pinned, &after.pipeline};
      const size_t bytes[] = {sizeof before.device, sizeof before.pinned, sizeof before.pipeline};
      lade_test_context("%s", text);
      LADE_EXPECT(memcmp(was[t], is[t], bytes[t]) != 0);
      char written[1200];
      ladei_bounded_text out;
      LADE_EXPECT_OK(ladei_bounded_text_begin(&out, "test", written, sizeof written));
      ladei_settings_write(ladei_config_tables[t], is[t], &out);
      lade_config read = *options_init(&before);
      LADE_EXPECT_OK(lade_config_parse(written, &read)); /* what is written is read as the same */
      if (s->kind != LADEI_SETTING_NAME) LADE_EXPECT(memcmp(was[t], is[t], bytes[t]) == 0);
    }
  }
  lade_test_context("%s", "");
}

/* One that two rooms have is told to both. */
LADE_TEST(Config, NoKeyButThatOfRanksBelongsToTwoRooms) {
  const char *keys[LADEI_SETTINGS_MAX * LADEI_SETTINGS_TABLE_MAX];
  size_t count = 0;
  for (size_t t = 0; t < ladei_config_table_count; t++) {
    for (size_t i = 0; i < ladei_config_tables[t]->count; i++) {
      const char *key = ladei_config_tables[t]->settings[i].key;
      for (size_t k = 0; k < count; k++)
        LADE_EXPECT(strcmp(keys[k], key) != 0 || strcmp(key, "pinned_local_ranks") == 0);
      keys[count++] = key;
    }
  }
  const all_options all = parse_ok("pinned_local_ranks:3");
  LADE_EXPECT_EQ_UINT(all.pinned.local_ranks, 3);
  LADE_EXPECT_EQ_UINT(all.pipeline.local_ranks, 3);
}

LADE_TEST(Config, PutsStorageIntoThePipelinesOptions) {
  static const char *const texts[] = {"storage:auto", "storage:pread", "storage:uring", "storage: cufile"};
  for (int i = 0; i < 4; i++) {
    all_options all;
    lade_config config = *options_init(&all);
    all.pipeline.depth = 7;
    LADE_EXPECT_OK(lade_config_parse(texts[i], &config));
    LADE_EXPECT_EQ_INT(all.pipeline.storage, i);
    LADE_EXPECT_EQ_UINT(all.pipeline.depth, 7);
  }
}

LADE_TEST(Config, AllowsBlanksAndNothing) {
  LADE_EXPECT_EQ_UINT(parse_ok("").device.max_split_bytes / LADEI_MIB, 0);
  LADE_EXPECT_EQ_UINT(parse_ok("  \t ").device.max_split_bytes / LADEI_MIB, 0);
  const all_options config = parse_ok(" max_split_size_mb : 32 ,\texpandable_segments: True ");
  LADE_EXPECT_EQ_UINT(config.device.max_split_bytes / LADEI_MIB, 32);
  LADE_EXPECT_EQ_UINT(config.device.expandable_segments, 1);
}

LADE_TEST(Config, ListFillsItsTable) {
  all_options config = parse_ok("roundup_power2_divisions:[4:2,16:8,>:1]");
  static const uint64_t with_rest[16] = {2, 2, 2, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  LADE_EXPECT_EQ_MEM(config.device.roundup_divisions, with_rest, sizeof with_rest);
  config = parse_ok("roundup_power2_divisions:[ 1:0 , 2:4 , 1048576:8 ]");
  static const uint64_t single[16] = {0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8};
  LADE_EXPECT_EQ_MEM(config.device.roundup_divisions, single, sizeof single);
  config = parse_ok("max_split_size_mb:40,roundup_power2_divisions:[>:2],expandable_segments:False");
  LADE_EXPECT_EQ_UINT(config.device.roundup_divisions[0], 2);
  LADE_EXPECT_EQ_UINT(config.device.roundup_divisions[15], 2);
}

LADE_TEST(Config, LaterTextsGoOverEarlierOnes) {
  all_options all;
  lade_config *config = options_init(&all);
  LADE_EXPECT_OK(lade_config_parse("max_split_size_mb:32,expandable_segments:True", config));
  LADE_EXPECT_OK(lade_config_parse("expandable_segments:False,roundup_power2_divisions:[2:4]", config));
  LADE_EXPECT_EQ_UINT(all.device.max_split_bytes, 32 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(all.device.expandable_segments, 0);
  LADE_EXPECT_EQ_UINT(all.device.roundup_divisions[1], 4);
}

/* Rooms that the program has no options for are read and checked even so. */
LADE_TEST(Config, OptionsMayBeMissing) {
  lade_config config;
  lade_config_init(&config);
  LADE_EXPECT_OK(lade_config_parse("max_split_size_mb:32,pinned_budget_name:a,storage:pread", &config));
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_parse("max_split_size_mb:3", &config));
}

/* A program that was built against an older header has shorter options. */
LADE_TEST(Config, WritesNoMoreThanTheProgramsOptionsHave) {
  all_options all;
  lade_config *config = options_init(&all);
  all.device.struct_size = offsetof(lade_device_options, memory_fraction);
  LADE_EXPECT_OK(lade_config_parse("max_split_size_mb:32,per_process_memory_fraction:0.5", config));
  LADE_EXPECT_EQ_UINT(all.device.max_split_bytes, 32 * LADEI_MIB);
  LADE_EXPECT(all.device.memory_fraction == 0.0);
}

typedef struct bad_text {
  const char *text;
  const char *message;
} bad_text;

LADE_TEST(Config, ErrorsNameKeyValueAndPosition) {
  static const bad_text bad[] = {
      {"max_splt_size_mb:32", "unknown key \"max_splt_size_mb\" at position 1"},
      {"max_split_size_mb:32,foo:1", "unknown key \"foo\" at position 22"},
      {"max_split_size_mb:32,", "unknown key \"\" at position 22"},
      {"max_split_size_mb", "max_split_size_mb: no value at position 1"},
      {"max_split_size_mb:32,max_split_size_mb:33", "max_split_size_mb: given a second time at position 22"},
      {"max_split_size_mb:20", "max_split_size_mb: bad value \"20\" at position 19"},
      {"max_split_size_mb:1099511627776", "bad value \"1099511627776\""},
      {"max_split_size_mb:99999999999999999999", "bad value \"99999999999999999999\""},
      {"max_split_size_mb:-1", "bad value \"-1\""},
      {"max_split_size_mb:", "bad value \"\" at position 19"},
      {"garbage_collection_threshold:0", "garbage_collection_threshold: bad value \"0\""},
      {"garbage_collection_threshold:1.0", "bad value \"1.0\""},
      {"garbage_collection_threshold:.5", "bad value \".5\""},
      {"garbage_collection_threshold:5e-1", "bad value \"5e-1\""},
      {"garbage_collection_threshold:0.5.1", "bad value \"0.5.1\""},
      {"expandable_segments:true", "expandable_segments: bad value \"true\" at position 21"},
      {"max_non_split_rounding_mb:20", "a number from 21 to"},
      {"large_segment_size_mb:10",
       "large_segment_size_mb: bad value \"10\" at position 23: expected a number from 11 to"},
      {"graph_capture_record_stream_reuse:yes", "bad value \"yes\" at position 35"},
      {"throw_on_cudamalloc_oom:no", "bad value \"no\" at position 25"},
      {"pinned_reserve_segment_size_mb:1048577", "a number from 0 to 1048576"},
      {"per_process_memory_fraction:1.01", "bad value \"1.01\" at position 29: expected a number from 0 to 1"},
      {"per_process_memory_fraction:-1", "bad value \"-1\""},
      {"pinned_policy:mine", "default or reference"},
      {"pinned_source:disk", "register, driver, pool, pageable"},
      {"pinned_source:register|", "register, driver, pool, pageable"},
      {"pinned_source:", "register, driver, pool, pageable"},
      {"storage:disk", "auto, uring, pread or cufile"},
      {"pinned_num_register_threads:3", "a power of two from 1 to 128"},
      {"pinned_num_register_threads:256", "bad value \"256\""},
      {"backend:cudaMallocAsync2", "backend: bad value"},
      {"roundup_power2_divisions:3", "roundup_power2_divisions: bad value \"3\""},
      {"roundup_power2_divisions:0", "bad value \"0\""},
      {"roundup_power2_divisions:[]", "bad value \"[]\""},
      {"roundup_power2_divisions:[3:4]", "bad value \"[3:4]\""},
      {"roundup_power2_divisions:[4:3]", "bad value \"[4:3]\""},
      {"roundup_power2_divisions:[4:2,]", "bad value \"[4:2,]\""},
      {"roundup_power2_divisions:[>:2,4:2]", "bad value \"[>:2,4:2]\""},
      {"roundup_power2_divisions:[4:2", "bad value \"[4:2\""},
      {"roundup_power2_divisions:[4]", "bad value \"[4]\""},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    all_options all;
    lade_config config = *options_init(&all);
    all.device.max_split_bytes = 77;
    lade_test_context("%s", bad[i].text);
    LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_parse(bad[i].text, &config));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, bad[i].message);
    LADE_EXPECT_EQ_UINT(all.device.max_split_bytes, 77);
  }
  lade_test_context("%s", "");
}

/* The keys of later versions of the reference, each alone, and what it sets. */
LADE_TEST(Config, KnowsKeysOfLaterVersions) {
  const all_options config = parse_ok("max_non_split_rounding_mb:64,per_process_memory_fraction:0.25");
  LADE_EXPECT_EQ_UINT(config.device.max_unsplit_slack_bytes, 64 * LADEI_MIB);
  LADE_EXPECT(config.device.memory_fraction == 0.25);
  LADE_EXPECT(parse_ok("per_process_memory_fraction:1").device.memory_fraction == 1.0);
  LADE_EXPECT(parse_ok("per_process_memory_fraction:0").device.memory_fraction == 0.0);
  LADE_EXPECT_EQ_UINT(parse_ok("pinned_use_background_threads:True").pinned.flags, LADE_PINNED_BACKGROUND);
  LADE_EXPECT_EQ_UINT(parse_ok("expandable_segments:True,large_segment_size_mb:12").device.large_segment_bytes,
                      12 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(parse_ok("pinned_reserve_segment_size_mb:256").pinned.segment_bytes, 256 * LADEI_MIB);
  LADE_EXPECT_EQ_UINT(parse_ok("graph_capture_record_stream_reuse:False,throw_on_cudamalloc_oom:False").device.flags,
                      0);
  LADE_EXPECT_EQ_UINT(parse_ok("throw_on_cudamalloc_oom:True").device.flags, LADE_DEVICE_REFUSE_BEYOND_LIMIT);
  LADE_EXPECT_EQ_UINT(parse_ok("graph_capture_record_stream_reuse:True").device.flags, LADE_DEVICE_CAPTURE_REUSE);
}

LADE_TEST(Config, ChoosesTheBackend) {
  static const struct {
    const char *text;
    uint32_t flags;
  } flags[] = {{"device_expandable_pools:True,device_expandable_ipc:True",
                LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS | LADE_DEVICE_EXPANDABLE_IPC},
               {"device_newest_pool:True", LADE_DEVICE_NEWEST_POOL},
               {"device_streams_are_retired:True", LADE_DEVICE_STREAMS_ARE_RETIRED},
               {"device_policy:reference", LADE_DEVICE_REFERENCE},
               {"device_policy:older_reference", LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE},
               {"device_policy:threads", LADE_DEVICE_THREAD_CACHES},
               {"backend:native,device_policy:default", 0}};
  const all_options async = parse_ok("backend:cudaMallocAsync,device_uncached:True");
  LADE_EXPECT_EQ_UINT(async.device.backend, LADE_DEVICE_CUDA_MALLOC_ASYNC);
  LADE_EXPECT_EQ_UINT(async.device.flags, LADE_DEVICE_UNCACHED);
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    all_options all;
    lade_config *config = options_init(&all);
    LADE_EXPECT_OK(lade_config_parse(flags[i].text, config));
    LADE_EXPECT_EQ_UINT(all.device.flags, flags[i].flags);
    LADE_EXPECT_EQ_UINT(all.device.backend, LADE_DEVICE_NATIVE);
    LADE_EXPECT_OK(lade_config_parse("device_policy:default", config)); /* the other bits stay */
    LADE_EXPECT_EQ_UINT(
        all.device.flags,
        flags[i].flags & ~(uint32_t)(LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE | LADE_DEVICE_THREAD_CACHES));
  }
  /* A trace's conf line knows one backend. */
  lade_config config;
  lade_config_init(&config);
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, ladei_config_parse_reference("backend:cudaMallocAsync", false, &config));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "bad value \"cudaMallocAsync\" at position 9: expected native");
}

LADE_TEST(Config, ReferenceKnowsNoKeysOfOurs) {
  lade_config config;
  lade_config_init(&config);
  LADE_EXPECT_OK(ladei_config_parse_reference("max_split_size_mb:32", false, &config));
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, ladei_config_parse_reference("device_max_mb:1", false, &config));
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, ladei_config_parse_reference("max_non_split_rounding_mb:64", false, &config));
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, ladei_config_parse_reference("large_segment_size_mb:12", false, &config));
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, ladei_config_parse_reference("throw_on_cudamalloc_oom:False", false, &config));
  LADE_EXPECT_OK(ladei_config_parse_reference("large_segment_size_mb:12,max_split_size_mb:32", true, &config));
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, ladei_config_parse_reference("device_max_mb:1", true, &config));
}

LADE_TEST(Config, EnvironmentPrefersOurVariable) {
  all_options all;
  lade_config config = *options_init(&all);
  unsetenv("LADE_ALLOC_CONF");
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_EXPECT_EQ_UINT(all.device.max_split_bytes / LADEI_MIB, 0);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30", 1);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_EXPECT_EQ_UINT(all.device.max_split_bytes / LADEI_MIB, 30);
  setenv("LADE_ALLOC_CONF", "max_split_size_mb:31", 1);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_EXPECT_EQ_UINT(all.device.max_split_bytes / LADEI_MIB, 31);
  LADE_EXPECT_EQ_UINT(all.device.flags, 0);
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0", 1);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_EXPECT_EQ_UINT(all.device.flags, LADE_DEVICE_UNCACHED);
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  setenv("LADE_ALLOC_CONF", "nonsense", 1);
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_from_env(&config));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "LADE_ALLOC_CONF: configuration: unknown key \"nonsense\"");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_config_from_env(NULL));
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "lade_config_from_env: config is NULL");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_config_parse(NULL, &config));
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "lade_config_parse: text is NULL");
  unsetenv("LADE_ALLOC_CONF");
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
}

static void environment_clear(void) {
  static const char *const names[] = {"LADE_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
                                      "PYTORCH_NO_CUDA_MEMORY_CACHING", "LADE_LOG"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

LADE_TEST(Config, EnvironmentHasTheNewNameBeforeTheOlder) {
  all_options all;
  lade_config config = *options_init(&all);
  environment_clear();
  setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30", 1);
  setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", 1);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_EXPECT_EQ_UINT(all.device.expandable_segments, 1);
  LADE_EXPECT_EQ_UINT(all.device.max_split_bytes / LADEI_MIB, 0);
  setenv("LADE_ALLOC_CONF", "", 1);
  config = *options_init(&all);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_EXPECT_EQ_UINT(all.device.expandable_segments, 0);
  environment_clear();
}

/* A process that is set up for PyTorch has keys that are no business of lade's; those of lade's own variable are typos. */
LADE_TEST(Config, UnknownKeysOfPyTorchsVariablesArePassedOver) {
  static const char *const names[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
  static const char text[] = "pinned_max_cached_size_mb:512,max_split_size_mb:33,some_list:[1:2,>:3],flag,"
                             "throw_on_cudamalloc_oom:True,expandable_segments:True";
  for (int i = 0; i < 2; i++) {
    all_options all;
    lade_config config = *options_init(&all);
    environment_clear();
    setenv(names[i], text, 1);
    LADE_EXPECT_OK(lade_config_from_env(&config));
    LADE_EXPECT_EQ_UINT(all.device.max_split_bytes / LADEI_MIB, 33);
    LADE_EXPECT_EQ_UINT(all.device.expandable_segments, 1);
    LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_parse(text, &config));
  }
  all_options all;
  lade_config config = *options_init(&all);
  environment_clear();
  setenv("LADE_ALLOC_CONF", "max_splt_size_mb:33", 1);
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_from_env(&config));
  environment_clear();
}

/* Bug: programs that PyTorch runs with were stopped. What it makes of such texts was judged by its parser. */
LADE_TEST(Config, PyTorchsVariablesMayEndWithACommaAndRepeatKeys) {
  all_options all;
  lade_config config = *options_init(&all);
  environment_clear();
  static const char *const ends[] = {"max_split_size_mb:33,", "max_split_size_mb:33 , ",
                                     "max_split_size_mb:32,foo:1,max_split_size_mb:33,"};
  for (size_t i = 0; i < 3; i++) {
    config = *options_init(&all);
    setenv("PYTORCH_CUDA_ALLOC_CONF", ends[i], 1);
    LADE_EXPECT_OK(lade_config_from_env(&config));
    LADE_EXPECT_EQ_UINT(all.device.max_split_bytes / LADEI_MIB, 33);
    LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_parse(ends[i], &config));
  }
  config = *options_init(&all);
  all.device.roundup_divisions[15] = 16; /* of before: goes, as the text names the key */
  setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:[4:2,8:4,],roundup_power2_divisions:[2:8,32:1]", 1);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  static const uint64_t wanted[16] = {8, 8, 2, 4, 0, 1};
  LADE_EXPECT_EQ_MEM(all.device.roundup_divisions, wanted, sizeof wanted);
  environment_clear();
}

LADE_TEST(Config, BadValuesOfPyTorchsVariablesAreErrors) {
  static const bad_text bad[] = {
      {"expandable_segments:yes", "PYTORCH_ALLOC_CONF: configuration: expandable_segments: bad value \"yes\""},
      {"throw_on_cudamalloc_oom:yes", "throw_on_cudamalloc_oom: bad value \"yes\""},
      {"foo:1,,bar:2", "unknown key \"\" at position 7"},
      {"foo:[1,max_split_size_mb:33", "unknown key \"foo\" at position 1"},
      {",", "unknown key \"\" at position 1"},
      {"foo:1,,", "unknown key \"\" at position 7"},
      {"roundup_power2_divisions:[,]", "bad value \"[,]\""},
      {"max_split_size_mb:33,max_split_size_mb:3", "bad value \"3\" at position 40"},
  };
  environment_clear();
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    all_options all;
    lade_config config = *options_init(&all);
    all.device.max_split_bytes = 77;
    lade_test_context("%s", bad[i].text);
    setenv("PYTORCH_ALLOC_CONF", bad[i].text, 1);
    LADE_EXPECT_STATUS(LADE_ERR_CONFIG, lade_config_from_env(&config));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, bad[i].message);
    LADE_EXPECT_EQ_UINT(all.device.max_split_bytes, 77);
  }
  lade_test_context("%s", "");
  environment_clear();
}

typedef struct heard {
  int count;
  char texts[8][160];
} heard;

static void hear(void *user, lade_log_level level, const char *text) {
  heard *h = user;
  if (level == LADE_LOG_WARN && h->count < 8) snprintf(h->texts[h->count++], sizeof h->texts[0], "%s", text);
}

static void hear_last(void *user, lade_log_level level, const char *text) {
  heard *h = user;
  (void)level;
  snprintf(h->texts[0], sizeof h->texts[0], "%s", text);
}

LADE_TEST(Config, KeysThatArePassedOverAreLoggedOnce) {
  heard h = {.count = 0};
  all_options all;
  lade_config config = *options_init(&all);
  environment_clear();
  setenv("PYTORCH_ALLOC_CONF", "alien:[1,2],max_split_size_mb:33,other:True", 1);
  LADE_ASSERT_OK(lade_log_set(hear, &h, LADE_LOG_WARN));
  for (int i = 0; i < 2; i++) {
    config = *options_init(&all);
    LADE_EXPECT_OK(lade_config_from_env(&config));
  }
  LADE_ASSERT_OK(lade_log_set(NULL, NULL, LADE_LOG_OFF));
  LADE_ASSERT_EQ_INT(h.count, 2);
  LADE_EXPECT_EQ_STR(h.texts[0], "PYTORCH_ALLOC_CONF: alien is a key that lade does not know; passed over");
  LADE_EXPECT_EQ_STR(h.texts[1], "PYTORCH_ALLOC_CONF: other is a key that lade does not know; passed over");
  environment_clear();
}

LADE_TEST(Config, ManyKeysThatArePassedOverAreCounted) {
  heard h = {.count = 0};
  all_options all;
  lade_config config = *options_init(&all);
  char text[512] = "", *at = text;
  for (int i = 0; i < 40; i++) at += sprintf(at, "%sunknown_%d:1", i > 0 ? "," : "", i);
  environment_clear();
  setenv("PYTORCH_ALLOC_CONF", text, 1);
  LADE_ASSERT_OK(lade_log_set(hear_last, &h, LADE_LOG_WARN));
  config = *options_init(&all);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  LADE_ASSERT_OK(lade_log_set(NULL, NULL, LADE_LOG_OFF));
  LADE_EXPECT_EQ_STR(h.texts[0], "PYTORCH_ALLOC_CONF: 8 more keys that lade does not know; passed over");
  environment_clear();
}

/* --- LADE_LOG, in children: it is obeyed once per process --------------------------------------------------------- */

static int child_run(int (*body)(const char *path), const char *path) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) _exit(body(path));
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool file_has(const char *path, const char *words) {
  char text[1024] = "";
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = '\0';
  return strstr(text, words) != NULL;
}

static int log_into_file(const char *path) {
  char variable[300];
  all_options all;
  lade_config config = *options_init(&all);
  snprintf(variable, sizeof variable, "warn:%s", path);
  setenv("LADE_LOG", variable, 1);
  setenv("PYTORCH_ALLOC_CONF", "from_a_file:1", 1);
  if (lade_config_from_env(&config) != LADE_OK) return 1;
  setenv("PYTORCH_ALLOC_CONF", "from_the_second_call:1", 1);
  if (lade_config_from_env(&config) != LADE_OK) return 2;
  if (!file_has(path, "]: warn: PYTORCH_ALLOC_CONF: from_a_file is")) return 3;
  return file_has(path, "]: warn: PYTORCH_ALLOC_CONF: from_the_second_call is") ? 0 : 4;
}

static int log_refused(const char *path) {
  static const char *const bad[] = {"loud", "warn:", "warning", ":", "warn:/no/such/folder/file"};
  (void)path;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    all_options all;
    lade_config config = *options_init(&all);
    setenv("LADE_LOG", bad[i], 1);
    setenv("LADE_ALLOC_CONF", "max_split_size_mb:33", 1);
    lade_status wanted = i + 1 < sizeof bad / sizeof bad[0] ? LADE_ERR_CONFIG : LADE_ERR_IO;
    if (lade_config_from_env(&config) != wanted || all.device.max_split_bytes / LADEI_MIB != 0) return 1 + (int)i;
    if (strncmp(lade_last_error()->text, "LADE_LOG", 8) != 0) return 11 + (int)i;
  }
  return 0;
}

static int log_of_the_program(const char *path) {
  heard h = {.count = 0};
  char variable[300];
  all_options all;
  lade_config config = *options_init(&all);
  snprintf(variable, sizeof variable, "debug:%s", path);
  setenv("LADE_LOG", variable, 1);
  setenv("PYTORCH_ALLOC_CONF", "of_the_program:1", 1);
  if (lade_log_set(hear, &h, LADE_LOG_WARN) != LADE_OK || lade_config_from_env(&config) != LADE_OK) return 1;
  return h.count == 1 && access(path, F_OK) != 0 ? 0 : 2;
}

LADE_TEST(Config, LogOfTheEnvironment) {
  const char *folder = getenv("TEST_TMPDIR");
  char path[256];
  snprintf(path, sizeof path, "%s/log_%d", folder != NULL ? folder : "/tmp", (int)getpid());
  environment_clear();
  LADE_EXPECT_EQ_INT(child_run(log_refused, path), 0);
  LADE_EXPECT_EQ_INT(child_run(log_of_the_program, path), 0);
  LADE_EXPECT_EQ_INT(child_run(log_into_file, path), 0);
  unlink(path);
}

LADE_TEST(Config, FillsTheOptions) {
  const all_options config =
      parse_ok("max_split_size_mb:32,garbage_collection_threshold:0.5,expandable_segments:True,"
               "roundup_power2_divisions:[1:2],device_max_mb:3,device_event_batch:4,"
               "pinned_use_cuda_host_register:True,pinned_max_mb:5,pinned_event_batch:6,pinned_wait_ms:7,"
               "pinned_segment_mb:8,pinned_magazine_mb:2,pinned_max_idle_ms:9,pinned_num_register_threads:4,"
               "pinned_numa_strict:True,pinned_background:True,pinned_debug:True,"
               "pinned_register_chunk_mb:3");
  LADE_EXPECT_EQ_UINT(config.device.max_split_bytes, UINT64_C(32) << 20);
  LADE_EXPECT(config.device.collection_threshold == 0.5);
  LADE_EXPECT_EQ_UINT(config.device.expandable_segments, 1);
  LADE_EXPECT_EQ_UINT(config.device.roundup_divisions[0], 2);
  LADE_EXPECT_EQ_UINT(config.device.max_bytes, UINT64_C(3) << 20);
  LADE_EXPECT_EQ_UINT(config.device.event_batch, 4);
  LADE_EXPECT_EQ_UINT(config.pinned.sources, LADE_PINNED_SOURCE_REGISTER);
  LADE_EXPECT_EQ_UINT(config.pinned.max_bytes, UINT64_C(5) << 20);
  LADE_EXPECT_EQ_UINT(config.pinned.event_batch, 6);
  LADE_EXPECT_EQ_UINT(config.pinned.wait_ms, 7);
  LADE_EXPECT_EQ_UINT(config.pinned.segment_bytes, UINT64_C(8) << 20);
  LADE_EXPECT_EQ_UINT(config.pinned.magazine_bytes, UINT64_C(2) << 20);
  LADE_EXPECT_EQ_UINT(config.pinned.max_idle_ms, 9);
  LADE_EXPECT_EQ_UINT(config.pinned.prefault_threads, 4);
  LADE_EXPECT_EQ_UINT(config.pinned.flags, LADE_PINNED_NUMA_STRICT | LADE_PINNED_BACKGROUND | LADE_PINNED_DEBUG);
  LADE_EXPECT_EQ_UINT(config.pinned.register_chunk_bytes, UINT64_C(3) << 20);
}

/* ---- LADE_BUDGET, and what launchers say ------------------------------------------------------------------------- */

static lade_status budget_read(const char *text, all_options *all) {
  setenv("LADE_BUDGET", text, 1);
  lade_status status = lade_config_from_env(options_init(all));
  unsetenv("LADE_BUDGET");
  return status;
}

LADE_TEST(Config, BudgetOfTheEnvironment) {
  all_options all;
  LADE_EXPECT_OK(budget_read("off", &all));
  LADE_EXPECT_EQ_UINT(all.pinned.budget, LADE_PINNED_BUDGET_OFF);
  LADE_EXPECT_OK(budget_read("on", &all));
  LADE_EXPECT_EQ_UINT(all.pinned.budget, LADE_PINNED_BUDGET_ON);
  LADE_EXPECT_OK(budget_read("", &all));
  LADE_EXPECT_EQ_UINT(all.pinned.budget, LADE_PINNED_BUDGET_DEFAULT);
  LADE_EXPECT_OK(budget_read("name:train, mb:4096, share:part, part_mb:5", &all));
  LADE_EXPECT_EQ_UINT(all.pinned.budget, LADE_PINNED_BUDGET_ON);
  LADE_EXPECT_EQ_STR(all.pinned.budget_name, "train");
  LADE_EXPECT_EQ_UINT(all.pinned.budget_bytes, UINT64_C(4096) << 20);
  LADE_EXPECT_EQ_UINT(all.pinned.budget_share, LADE_PINNED_BUDGET_PART);
  LADE_EXPECT_EQ_UINT(all.pinned.budget_part_bytes, UINT64_C(5) << 20);
}

LADE_TEST(Config, BudgetOfTheEnvironmentIsRefusedByName) {
  static const char *const bad[] = {"no",        "OFF",       "mb:x", "name:",  "name:a/b",
                                    "share:all", "mb:1,mb:2", "mb",   "size:4", ","};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    all_options all, before;
    (void)options_init(&before);
    LADE_EXPECT_STATUS(LADE_ERR_CONFIG, budget_read(bad[i], &all));
    LADE_EXPECT(strncmp(lade_last_error()->text, "LADE_BUDGET (", 13) == 0);
    LADE_EXPECT(memcmp(&all.pinned, &before.pinned, sizeof all.pinned) == 0);
  }
  char name[80] = "name:";
  all_options all;
  memset(name + 5, 'n', 64); /* one too many */
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, budget_read(name, &all));
  name[5 + 63] = '\0';
  LADE_EXPECT_OK(budget_read(name, &all));
}

/* The environment says it in a way that the log names, and that stops no program. */
static void expect_one_rank(const char *variable) {
  support_heard lines;
  all_options all;
  lade_config config = *options_init(&all);
  support_heard_begin(&lines, LADE_LOG_WARN);
  LADE_EXPECT_OK(lade_config_from_env(&config));
  support_heard_end();
  LADE_EXPECT_EQ_UINT(all.pinned.local_ranks, 0);
  LADE_EXPECT_EQ_INT(support_heard_count(&lines, LADE_LOG_WARN, "processes of this machine: "), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&lines, LADE_LOG_WARN, variable), 1);
}

/* A variable of a launcher that makes no sense stopped every program that reads the environment, and the command. */
LADE_TEST(Config, DoubtfulLaunchersAreNamedAndStopNothing) {
  setenv("LOCAL_RANK", "1", 1);
  expect_one_rank("LOCAL_RANK is set without a count beside it");
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  expect_one_rank("LOCAL_RANK is 1 and LOCAL_WORLD_SIZE is 1; expected a rank below the count");
  unsetenv("LOCAL_RANK");
  unsetenv("LOCAL_WORLD_SIZE");
}

LADE_TEST(Config, LaunchersSayTheLocalRanks) {
  static const char *const launchers[][2] = {{"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                             {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                                             {"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
    all_options all;
    setenv(launchers[i][0], "1", 1);
    setenv(launchers[i][1], "4", 1);
    LADE_EXPECT_OK(lade_config_from_env(options_init(&all)));
    LADE_EXPECT_EQ_UINT(all.pinned.local_ranks, 4);
    LADE_EXPECT_EQ_UINT(all.pipeline.local_ranks, 4);
    setenv("LADE_ALLOC_CONF", "pinned_local_ranks:2", 1); /* comes first */
    LADE_EXPECT_OK(lade_config_from_env(options_init(&all)));
    LADE_EXPECT_EQ_UINT(all.pinned.local_ranks, 2);
    unsetenv("LADE_ALLOC_CONF");
    setenv(launchers[i][1], "four", 1);
    expect_one_rank(launchers[i][1]);
    unsetenv(launchers[i][0]);
    unsetenv(launchers[i][1]);
  }
}
