/* SPDX-License-Identifier: Apache-2.0 */
/* Traces as text: what each operation does to a report, and every error with its line. */
#include "tools/replay/replay.h"

#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"
#include "tools/replay/totals.h"

#define HEAD "lade-trace 1\n"

/* ---- Running a text ---------------------------------------------------------------------------------------------- */

typedef struct output {
  char *json; /* of all snapshots, one line each */
  size_t length;
  FILE *stream;
  char error[512]; /* "" where the trace was fine */
} output;

static void snapshot_write(void *user, const report_entry *entry) {
  output *o = user;
  report_write_json(o->stream, entry);
  fputc('\n', o->stream);
}

static void output_free(output *o) { free(o->json); }

static output run_with(const char *text, size_t length, const char *conf) {
  output o = {.json = NULL};
  o.stream = open_memstream(&o.json, &o.length);
  FILE *file = fmemopen((void *)(uintptr_t)text, length, "r");
  replay_settings settings = {.conf = conf, .snapshot = snapshot_write, .user = &o};
  replay *r = replay_create(&settings);
  trace_reader *reader = trace_reader_create(file, "t");
  if (replay_run(r, reader) == READ_BAD) snprintf(o.error, sizeof o.error, "%s", trace_error(reader));
  replay_destroy(r);
  trace_reader_destroy(reader);
  fclose(file);
  fclose(o.stream);
  return o;
}

static output run(const char *text) { return run_with(text, strlen(text), NULL); }

/* The report of the only snapshot contains each of the texts. */
static void expect_report(const char *trace, const char *const *texts) {
  output o = run(trace);
  lade_test_context("%s", trace);
  LADE_EXPECT_EQ_STR(o.error, "");
  for (; *texts != NULL; texts++) LADE_EXPECT_CONTAINS_STR(o.json, *texts);
  lade_test_context("%s", "");
  output_free(&o);
}

static void expect_error(const char *trace, const char *error) {
  output o = run(trace);
  lade_test_context("%s", trace);
  LADE_EXPECT_CONTAINS_STR(o.error, error);
  lade_test_context("%s", "");
  output_free(&o);
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

LADE_TEST(Replay, ReportsSegmentsBlocksAndIds) {
  static const char *const texts[] = {
      "{\"label\":\"s\",\"line\":7,\"oom\":[],\"stats\":{", "\"requested_bytes.small_pool.peak\":1500,",
      "\"max_split_size\":-1,",
      "\"segments\":[{\"address\":\"0x700000000000\",\"total_size\":2097152,\"stream\":18446744073709551615,"
      "\"pool\":[0,0],\"is_large\":false,\"is_expandable\":false,\"allocated_size\":512,\"active_size\":512,"
      "\"requested_size\":500,\"blocks\":["
      "{\"offset\":0,\"size\":1024,\"requested_size\":0,\"state\":\"inactive\"},"
      "{\"offset\":1024,\"size\":512,\"requested_size\":500,\"state\":\"active_allocated\",\"id\":18446744073709551614}"
      ","
      "{\"offset\":1536,\"size\":2095616,\"requested_size\":0,\"state\":\"inactive\"}]}]",
      NULL};
  expect_report("lade-trace 1\n"
                "stream 18446744073709551615   # the largest\n"
                "\n"
                "alloc 0 1000 18446744073709551615\n"
                "alloc\t18446744073709551614  500\t18446744073709551615#here\n"
                "free 0\n"
                "snapshot s\n",
                texts);
}

static void summary_write(void *user, const report_entry *entry) {
  output *o = user;
  report_write_summary(o->stream, entry);
  fprintf(o->stream, "  %s\n", entry->segments == NULL && entry->blocks == NULL ? "totals" : "blocks");
}

/* Summaries of all snapshots; the caller frees them. */
static char *summaries(const char *text, bool totals_only) {
  output o = {.json = NULL};
  o.stream = open_memstream(&o.json, &o.length);
  FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
  replay_settings settings = {.snapshot = summary_write, .totals_only = totals_only, .user = &o};
  replay *r = replay_create(&settings);
  trace_reader *reader = trace_reader_create(file, "t");
  LADE_EXPECT_EQ_INT(replay_run(r, reader), READ_END);
  replay_destroy(r);
  trace_reader_destroy(reader);
  fclose(file);
  fclose(o.stream);
  return o.json;
}

/* Segments of both kinds and of pools, blocks freed and pending, requests that ran out of memory, pinned blocks. */
LADE_TEST(Replay, TotalsAreThoseOfTheBlocks) {
  static const char *const confs[] = {"", "conf expandable_segments:True\n"};
  static const char rest[] =
      "stream 1\nsnapshot empty\nalloc 1 1000 0\nalloc 2 3000000 0\nalloc 3 30000000 1\nfree 2\nsnapshot one\n"
      "pool_begin 7 0\nalloc 4 500 0\nalloc 5 12000000 0\npool_end 7\nrecord 5 1\nfree 5\nalloc 6 1152921504606846975 "
      "0\n"
      "halloc 1 5000\nsnapshot two\nempty_cache\nsnapshot three\n";
  for (int i = 0; i < 2; i++) {
    char text[1024];
    snprintf(text, sizeof text, HEAD "device 200000000\n%s%s", confs[i], rest);
    char *blocks = summaries(text, false), *totals = summaries(text, true);
    LADE_EXPECT_CONTAINS_STR(blocks, "segments; driver");
    for (char *at; (at = strstr(blocks, "  blocks\n")) != NULL;) memcpy(at, "  totals", 8);
    LADE_EXPECT_EQ_STR(totals, blocks);
    free(blocks);
    free(totals);
  }
}

LADE_TEST(Replay, ListsWhatRanOutOfMemory) {
  static const char *const texts[] = {"\"oom\":[1,2,3]", "\"num_ooms\":2,", "\"num_alloc_retries\":2,",
                                      "\"num_device_alloc\":0,", NULL};
  expect_report("lade-trace 1\n"
                "device 1000000\n"
                "alloc 1 10 0\n"
                "record 1 0\n"
                "free 1\n"
                "alloc 2 1152921504606846975 0\n"
                "alloc 3 1152921504606846976 0\n"
                "snapshot s\n",
                texts);
}

LADE_TEST(Replay, TheLargestDeviceWorks) {
  static const char *const texts[] = {"\"oom\":[3]", "\"allocation.all.current\":2,", "\"num_alloc_retries\":1,", NULL};
  expect_report("lade-trace 1\ndevice 1152921504606846975\nconf expandable_segments:True\n"
                "alloc 1 1000 0\nalloc 2 30000000 0\nalloc 3 1152921504606846975 0\nsnapshot s\n",
                texts);
  expect_report("lade-trace 1\ndevice 1152921504606846975\n"
                "alloc 1 1000 0\nalloc 2 576460752303423488 0\nalloc 3 1152921504606846975 0\nsnapshot s\n",
                texts);
}

/* A checkpoint may also be taken of a pool that is released, as long as the pool is there. */
LADE_TEST(Replay, ReleasedPoolsHaveCheckpoints) {
  static const char *const texts[] = {"\"allocation.all.current\":1,", NULL};
  expect_report("lade-trace 1\npool_begin 1 0\nalloc 1 1 0\npool_end 1\npool_release 1\ncheckpoint 1 1\nsnapshot s\n",
                texts);
}

LADE_TEST(Replay, EventsCompleteWhenTheTraceSaysSo) {
  static const char *const pending[] = {"\"state\":\"active_pending_free\"", "\"active.all.current\":2,", NULL};
  static const char *const done[] = {"\"active.all.current\":1,", "\"offset\":0,\"size\":512,\"requested_size\":2",
                                     NULL};
  expect_report("lade-trace 1\nstream 1\nalloc 1 1 0\nrecord 1 1\nfree 1\nalloc 2 2 0\nsnapshot s\n", pending);
  expect_report("lade-trace 1\nstream 1\nalloc 1 1 0\nrecord 1 1\nfree 1\ncomplete 1\nalloc 2 2 0\nsnapshot s\n", done);
}

LADE_TEST(Replay, RestoreBringsIdsBack) {
  static const char *const texts[] = {"\"requested_size\":512,\"state\":\"active_allocated\",\"id\":1",
                                      "\"requested_size\":1024,\"state\":\"active_allocated\",\"id\":2",
                                      "\"pool\":[7,0]", "\"allocation.all.current\":2,", NULL};
  expect_report("lade-trace 1\n"
                "pool_begin 7 0\nalloc 1 500 0\nalloc 2 600 0\npool_end 7\n"
                "checkpoint 7 1\n"
                "free 1\npool_begin 7 0\nalloc 3 1 0\npool_end 7\n"
                "restore 7 1\n"
                "snapshot s\n",
                texts);
}

LADE_TEST(Replay, SettingsGoOverThoseOfTheTrace) {
  static const char text[] =
      "lade-trace 1\nconf max_split_size_mb:30,expandable_segments:True\nalloc 1 1 0\nsnapshot s\n";
  output o = run_with(text, sizeof text - 1, "max_split_size_mb:40,device_event_batch:16");
  LADE_EXPECT_EQ_STR(o.error, "");
  LADE_EXPECT_CONTAINS_STR(o.json, "\"max_split_size\":41943040,");
  LADE_EXPECT_CONTAINS_STR(o.json, "\"is_expandable\":true");
  output_free(&o);
  o = run_with(text, sizeof text - 1, "no_such_key:1");
  LADE_EXPECT_CONTAINS_STR(o.error, "unknown key \"no_such_key\"");
  output_free(&o);
}

/* In the trace, over it, and before there is a trace. */
LADE_TEST(Replay, OnlyTheNativeBackendAndItsCacheAreReplayed) {
  static const char *const others[] = {"backend:cudaMallocAsync", "device_uncached:True"};
  static const char plain[] = HEAD "alloc 1 1 0\n", what[] = "needs the native backend and its cache";
  expect_error(HEAD "conf backend:cudaMallocAsync\n", "t:2: conf: configuration: backend: bad value");
  expect_error(HEAD "conf device_uncached:True\n", "t:2: conf: configuration: unknown key");
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    output o = run_with(plain, sizeof plain - 1, others[i]);
    LADE_EXPECT_CONTAINS_STR(o.error, what);
    output_free(&o);
    LADE_EXPECT_STATUS(LADE_ERR_CONFIG, replay_conf_check(others[i]));
  }
  LADE_EXPECT_OK(replay_conf_check("backend:native,device_uncached:False"));
}

/* One driver event for sixteen frees must not change what a replay reports. */
LADE_TEST(Replay, BatchesOfEventsChangeNothing) {
  static const char text[] = "lade-trace 1\nstream 1\nstream 2\n"
                             "alloc 1 1000 0\nalloc 2 1000 0\nalloc 3 3000000 0\nrecord 1 1\nrecord 2 2\nrecord 3 1\n"
                             "free 1\nfree 2\nsnapshot a\ncomplete 2\nfree 3\nalloc 4 900 0\nsnapshot b\ncomplete 1\n"
                             "alloc 5 2000000 0\nsnapshot c\nempty_cache\nsnapshot d\n";
  output one = run_with(text, sizeof text - 1, "device_event_batch:1");
  output many = run_with(text, sizeof text - 1, "device_event_batch:16");
  LADE_EXPECT_EQ_STR(one.error, "");
  LADE_EXPECT_EQ_STR(one.json, many.json);
  output_free(&one);
  output_free(&many);
}

LADE_TEST(Replay, PinnedBlocksAreCounted) {
  static const char *const texts[] = {"\"pinned\":{\"in_use_blocks\":1,\"requested_bytes\":5000,",
                                      "\"pending_blocks\":1}", NULL};
  expect_report("lade-trace 1\nstream 1\nhalloc 1 5000\nhalloc 2 70000\nhalloc 3 0\nhrecord 3 1\nhrecord 2 1\nhfree 2\n"
                "hfree 3\ncomplete 1\nhempty\nhalloc 4 9\nhrecord 4 1\nhfree 4\nsnapshot s\n",
                texts);
}

static void expect_pinned(const char *text, const char *conf, const char *pinned) {
  output o = run_with(text, strlen(text), conf);
  lade_test_context("%s", text);
  LADE_EXPECT_EQ_STR(o.error, "");
  LADE_EXPECT_CONTAINS_STR(o.json, pinned);
  lade_test_context("%s", "");
  output_free(&o);
}

/* 1000 bytes take 1024 from the driver; a request for 9 takes that block; the event of stream 1 delays that of stream
 * 2; an alloc sees what is complete, an hfree does not. */
LADE_TEST(Replay, PinnedPartCanBeTheReferences) {
  static const char policy[] = "pinned_policy:reference";
#define STREAMS "lade-trace 1\nstream 1\nstream 2\n"
  expect_pinned(STREAMS "halloc 1 1000\nhalloc 2 0\nhfree 1\nhfree 2\nhalloc 3 9\nsnapshot s\n", policy,
                "\"pinned\":{\"in_use_blocks\":1,\"requested_bytes\":9,\"reserved_bytes\":1024,"
                "\"driver_allocs\":1,\"driver_frees\":0,\"events_recorded\":0,\"pending_blocks\":0}");
  expect_pinned(STREAMS "halloc 1 1000\nhalloc 2 1025\nhrecord 1 1\nhrecord 1 1\nhrecord 2 2\nhfree 1\nhfree 2\n"
                        "complete 2\nhempty\nsnapshot s\n",
                policy,
                "\"reserved_bytes\":3072,\"driver_allocs\":2,\"driver_frees\":0,\"events_recorded\":2,"
                "\"pending_blocks\":2}");
  expect_pinned(STREAMS "halloc 1 1000\nhalloc 2 1025\nhrecord 1 1\nhrecord 1 2\nhrecord 2 2\nhfree 1\nhfree 2\n"
                        "complete 2\ncomplete 1\nsnapshot s\n",
                policy, "\"driver_frees\":0,\"events_recorded\":3,\"pending_blocks\":2}");
  expect_pinned(STREAMS "halloc 1 1000\nhrecord 1 1\nhfree 1\ncomplete 1\nhalloc 2 1024\nhalloc 3 1024\nhfree 3\n"
                        "hempty\nsnapshot s\n",
                policy,
                "\"reserved_bytes\":1024,\"driver_allocs\":2,\"driver_frees\":1,\"events_recorded\":1,"
                "\"pending_blocks\":0}");
#undef STREAMS
}

/* A free by restore (block 1 lies outside the saved segments) records its event at once, so before that of the pinned
 * block: the flush, which waits for the first, does not complete the second. */
LADE_TEST(Replay, FreesOfARestoreRecordTheirEventsThere) {
  expect_pinned("lade-trace 1\nstream 1\npool_begin 1 0\npool_end 1\ncheckpoint 1 1\n"
                "pool_begin 1 0\nalloc 1 10 0\npool_end 1\nrecord 1 1\nhalloc 1 10\nhrecord 1 1\nrestore 1 1\n"
                "hfree 1\nempty_cache\nhempty\nsnapshot s\n",
                NULL, "\"driver_frees\":0,\"events_recorded\":1,\"pending_blocks\":1}");
}

LADE_TEST(Replay, NumbersMayHaveManyDigits) {
  static const char text[] =
      HEAD "conf garbage_collection_threshold:0.5000000000000000000000000000000000000000000000000"
           "00000000000000000000000000000000001,max_split_size_mb:0000000000000000000000021\n"
           "fraction 0000000000.50000000000000000000000000000000000000000000000000000000000000000\n"
           "alloc 0000000000000000000000000000007 1 0\nsnapshot s\n";
  expect_pinned(text, NULL, "\"id\":7}");
}

/* A line in plain form and the same line with what makes it none (a comment, a second blank, many zeros). */
LADE_TEST(Replay, ReadsTheSameInWhateverForm) {
  output plain = run(HEAD "stream 7\nalloc 1 1000 7\nrecord 1 0\nalloc 0 5 0\nfree 0\nhalloc 3 9\nhrecord 3 7\n"
                          "hfree 3\nfree 1\nsnapshot s\n");
  output other = run(HEAD "stream 7\nalloc  1 1000 7\nrecord 1 0#\nalloc 00000000000000000000000000 5 0\n free 0\n"
                          "halloc 3\t9\nhrecord 3 0000000000000000000000000007\nhfree 3 \nfree 1 # x\nsnapshot s\n");
  LADE_EXPECT_EQ_STR(plain.error, "");
  LADE_EXPECT_EQ_STR(plain.json, other.json);
  output_free(&plain);
  output_free(&other);
}

LADE_TEST(Replay, LabelsAreUtf8) {
  static const char *const wrong[] = {"\xff",
                                      "a\xc3",
                                      "\xc0\xaf",
                                      "\xe0\x80\xaf",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\xaf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\x80",
                                      "\xe2\x82"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    char text[64];
    snprintf(text, sizeof text, HEAD "\nsnapshot %s\n", wrong[i]);
    expect_error(text, "t:3: malformed label: it is not UTF-8");
  }
  expect_report(HEAD "snapshot \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"\\\x01 # \xff\n",
                (const char *const[]){"{\"label\":\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\x7f\\\"\\\\\\u0001\",", NULL});
}

/* A line longer than any buffer to begin with. */
LADE_TEST(Replay, LinesMayBeLong) {
  enum { LENGTH = 300000 };
  char *text = malloc(LENGTH + 64);
  LADE_ASSERT(text != NULL);
  int head = sprintf(text, HEAD "alloc 1 5 ");
  memset(text + head, '0', LENGTH);
  sprintf(text + head + LENGTH, "\nfree 1\nfree 1 #no newline");
  output o = run(text);
  LADE_EXPECT_EQ_STR(o.error, "t:4: free: ID 1 is not live");
  output_free(&o);
  free(text);
}

LADE_TEST(Replay, PeaksAndSumsStartAnew) {
  static const char *const texts[] = {"\"allocation.all.allocated\":0,\"allocation.all.current\":0,",
                                      "\"allocation.all.freed\":0,\"allocation.all.peak\":0,", NULL};
  expect_report("lade-trace 1\nalloc 1 5 0\nfree 1\nreset_peak\nreset_accumulated\nsnapshot s\n", texts);
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* 20 MiB segments: at the address given, then where nothing was used before: below it, as far as that has room. */
LADE_TEST(ReplayAt, SegmentsLieWhereTheTraceSays) {
  static const char *const texts[] = {
      "\"segments\":[{\"address\":\"0x700000000000\",\"total_size\":20971520,\"stream\":1,",
      "{\"address\":\"0x700002000000\",\"total_size\":20971520,\"stream\":0,",
      "{\"address\":\"0x700003400000\",\"total_size\":20971520,\"stream\":2,", NULL};
  expect_report(HEAD "stream 1\nstream 2\nat 123145335865344\nalloc 1 2000000 0\nalloc 2 2000000 1\n"
                     "alloc 3 2000000 2\nsnapshot s\n",
                texts);
}

/* Memory that went back frees its addresses for an `at`, not for others. */
LADE_TEST(ReplayAt, AddressesMayComeBack) {
  static const char *const texts[] = {
      "\"segments\":[{\"address\":\"0x700000200000\",\"total_size\":2097152,\"stream\":1,",
      "{\"address\":\"0x7000a0000000\",", NULL};
  expect_report(HEAD
                "stream 1\nat 123147986665472\nalloc 1 5 0\nfree 1\nempty_cache\nalloc 4 5 0\nfree 4\nempty_cache\n"
                "alloc 2 5 1\nat 123147986665472 # again\n\nalloc 3 5 0\nsnapshot s\n",
                texts);
}

/* Where something lives, and where the alloc gets no memory, the address says nothing, and is forgotten. */
LADE_TEST(ReplayAt, AddressesThatCannotBeTakenAreForgotten) {
  static const char *const texts[] = {
      "\"segments\":[{\"address\":\"0x700000000000\",\"total_size\":20971520,\"stream\":0,",
      "{\"address\":\"0x700001400000\",\"total_size\":20971520,\"stream\":1,",
      "{\"address\":\"0x700002800000\",\"total_size\":20971520,\"stream\":2,", NULL};
  expect_report(
      HEAD "stream 1\nstream 2\nalloc 1 2000000 0\nat 123145304408064\nalloc 2 2000000 1\n"
           "at 140737488355328\nalloc 3 2000000 0\nat 140737488355328\nalloc 5 0 0\nalloc 4 2000000 2\nsnapshot s\n",
      texts);
}

LADE_TEST(ReplayAt, ReservationsLieThereToo) {
  static const char *const texts[] = {
      "\"segments\":[{\"address\":\"0x7f0000000000\",\"total_size\":20971520,\"stream\":0,"
      "\"pool\":[0,0],\"is_large\":true,\"is_expandable\":true,",
      NULL};
  expect_report(HEAD "conf expandable_segments:True\nat 139637976727552\nalloc 1 2000000 0\nsnapshot s\n", texts);
}

/* ---- Version 2 --------------------------------------------------------------------------------------------------- */

#define HEAD2 "lade-trace 2\n"

/* The trace had no words for pools as objects, so lending, no_split and the end of a pool could not be replayed. */
LADE_TEST(Replay, PoolsAsObjectsHaveFlagsAndAnEnd) {
  static const char *const lent[] = {"\"oom\":[]", "\"reserved_bytes.all.current\":33554432", "\"num_alloc_retries\":0",
                                     NULL};
  static const char *const gone[] = {"\"reserved_bytes.all.current\":20971520", NULL};
  static const char *const uncut[] = {"\"allocated_bytes.all.current\":2097152", NULL};
  expect_report(HEAD2
                "device 33554432\npool_create 1 use_on_oom\npool_begin 1 0\nalloc 1 1000000 0\nfree 1\npool_end 1\n"
                "pool_release 1\nalloc 2 20971520 0\nalloc 3 10485760 0\nfree 2\nalloc 4 500000 0\nsnapshot s\n",
                lent);
  expect_report(HEAD2
                "alloc 1 3000000 0\nfree 1\npool_create 1\npool_begin 1 0\nalloc 1 3000000 0\nfree 1\npool_end 1\n"
                "pool_release 1\npool_release 1\npool_trim 1\nsnapshot s\n",
                gone);
  expect_report(HEAD2 "pool_create 1 no_split use_on_oom\npool_begin 1 0\nalloc 1 512 0\nsnapshot s\n", uncut);
}

/* As PyTorch 2.11 decides; traces of version 1 replay as before. */
LADE_TEST(Replay, VersionsDecideAsThePyTorchOfTheirTime) {
  static const char *const newest[] = {"\"pool\":[2,0]", NULL}, *const oldest[] = {"\"pool\":[1,0]", NULL};
  static const char *const expandable[] = {"\"is_expandable\":true", NULL}, *const plain[] = {"\"is_expandable\":false",
                                                                                              NULL};
  static const char nested[] = "pool_begin 1 0\npool_begin 2 0\nalloc 1 1 0\nsnapshot s\n";
  static const char pool[] = "conf expandable_segments:True\npool_begin 1 0\nalloc 1 1 0\nsnapshot s\n";
  char text[256];
  for (int version = 1; version <= 2; version++) {
    snprintf(text, sizeof text, "lade-trace %d\n%s", version, nested);
    expect_report(text, version == 1 ? oldest : newest);
    snprintf(text, sizeof text, "lade-trace %d\n%s", version, pool);
    expect_report(text, version == 1 ? plain : expandable);
  }
  static const char *const larger[] = {"\"total_size\":33554432", NULL};
  expect_report(HEAD2 "conf large_segment_size_mb:32\nalloc 1 3000000 0\nsnapshot s\n", larger);
  expect_error(HEAD "conf large_segment_size_mb:32\n", "t:2: conf: ");
  static const char *const kept[] = {"\"reserved_bytes.all.current\":2097152", NULL};
  expect_report(HEAD2 "alloc 1 1 0\nfree 1\npool_begin 1 0\nempty_cache\nsnapshot s\n", kept);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

LADE_TEST(ReplayErrors, FirstLineMustNameTheFormat) {
  expect_error("# comment\nlade-trace 1\n", "t:1: the first line");
  expect_error("lade-trace 3\n", "t:1: the first line is not \"lade-trace 1\" to \"lade-trace 2\"");
  expect_error("lade-trace 02\n", "t:1: ");
  expect_error("\n", "t:1: ");
}

LADE_TEST(ReplayErrors, PoolsAsObjectsAreOfVersion2) {
  expect_error(HEAD "pool_create 1\n", "t:2: unknown operation \"pool_create\"");
  expect_error(HEAD "pool_trim 1\n", "t:2: unknown operation \"pool_trim\"");
  expect_error(HEAD2 "pool_create\n", "t:2: wrong number of fields: \"pool_create\" takes 1 or more, here are 0");
  expect_error(HEAD2 "pool_create 0\n", "t:2: value out of range");
  expect_error(HEAD2 "pool_create 1 use_on_oom split\n", "t:2: unknown flag \"split\"");
  expect_error(HEAD2 "pool_create 1\npool_create 1\n", "t:3: pool_create: ");
  expect_error(HEAD2 "pool_trim 1\n", "t:2: pool_trim: ");
  expect_error(HEAD2 "pool_begin 1 0\npool_trim 1\n", "t:3: pool_trim: ");
}

LADE_TEST(ReplayErrors, LinesThatAreNoOperation) {
  expect_error(HEAD "\nalloc 1 2\n", "t:3: wrong number of fields");
  expect_error(HEAD "free 1 2\n", "t:2: wrong number of fields");
  expect_error(HEAD "snapshot\n", "t:2: wrong number of fields");
  expect_error(HEAD "snapshot a b\n", "t:2: wrong number of fields");
  expect_error(HEAD "pool_begin 1\n", "t:2: wrong number of fields");
  expect_error(HEAD "Alloc 1 2 0\n", "t:2: unknown operation \"Alloc\"");
  expect_error(HEAD "alloc 1 -2 0\n", "t:2: malformed number \"-2\"");
  expect_error(HEAD "alloc 1 0x2 0\n", "t:2: malformed number");
  expect_error(HEAD "alloc 18446744073709551616 2 0\n", "t:2: malformed number");
  expect_error(HEAD "fraction 0.5.1\n", "t:2: malformed number");
  expect_error(HEAD "fraction 1.\n", "t:2: malformed number");
  expect_error(HEAD "fraction 1.5\n", "t:2: value out of range");
  expect_error(HEAD "device 0\n", "t:2: value out of range");
  expect_error(HEAD "device 1152921504606846976\n", "t:2: value out of range");
  expect_error(HEAD "stream 0\n", "t:2: value out of range");
  expect_error(HEAD "pool_begin 0 0\n", "t:2: value out of range");
  expect_error(HEAD "halloc 1 1099511627776\n", "t:2: value out of range");
}

LADE_TEST(ReplayErrors, AddressesWithoutAnAllocOrOutOfRange) {
  expect_error(HEAD "at 2097152\n", "t:2: at: no \"alloc\" follows directly");
  expect_error(HEAD "\nat 2097152\nfree 1\n", "t:3: at: no \"alloc\" follows directly");
  expect_error(HEAD "at 2097152\nat 4194304\nalloc 1 1 0\n", "t:2: at: no \"alloc\" follows directly");
  expect_error(HEAD "at 2097152\nstream 1\nalloc 1 1 0\n", "t:2: at: no \"alloc\" follows directly");
  expect_error(HEAD "at 2097152\nhalloc 1 1\n", "t:2: at: no \"alloc\" follows directly");
  expect_error(HEAD "at 2097152\nalloc 1 x 0\n", "t:3: malformed number \"x\"");
  expect_error(HEAD "at 0\nalloc 1 1 0\n", "t:2: value out of range: 0; an address is a multiple of 2097152 and not 0");
  expect_error(HEAD "at 2097153\nalloc 1 1 0\n", "t:2: value out of range: 2097153");
  expect_error(HEAD "at 18446744073709551616\nalloc 1 1 0\n", "t:2: malformed number \"18446744073709551616\"");
  expect_error(HEAD "at 0x200000\nalloc 1 1 0\n", "t:2: malformed number");
  expect_error(HEAD "at\nalloc 1 1 0\n", "t:2: wrong number of fields");
  expect_error(HEAD "at 2097152 0\nalloc 1 1 0\n", "t:2: wrong number of fields");
  expect_error(HEAD "at 18446744073707454464\nalloc 1 1 0\n",
               "t:3: alloc: driver memory at 18446744073707454464 would end beyond 2^64");
}

LADE_TEST(ReplayErrors, DeclarationsTwiceOrTooLate) {
  expect_error(HEAD "device 5\ndevice 5\n", "t:3: \"device\" a second time");
  expect_error(HEAD "conf backend:native\nconf backend:native\n", "t:3: \"conf\" a second time");
  expect_error(HEAD "reset_peak\ndevice 5\n", "t:3: \"device\" after the first operation");
  expect_error(HEAD "alloc 1 1 0\nconf backend:native\n", "t:3: \"conf\" after the first operation");
  expect_error(HEAD "stream 3\nstream 3\n", "t:3: stream 3 a second time");
  expect_error(HEAD "alloc 1 1 4\nstream 4\n", "t:2: unknown stream 4");
  expect_error(HEAD "pool_begin 1 0 6\n", "t:2: unknown stream 6");
  expect_error(HEAD "conf nonsense:1\n", "t:2: conf: configuration: unknown key \"nonsense\"");
  expect_error(HEAD "conf device_max_mb:1\n", "t:2: conf: configuration: unknown key \"device_max_mb\"");
  expect_error(HEAD "conf max_split_size_mb:20\n", "t:2: conf: configuration: max_split_size_mb: bad value");
}

LADE_TEST(ReplayErrors, IdsThatAreNotLive) {
  expect_error(HEAD "alloc 1 1 0\nalloc 1 1 0\n", "t:3: alloc: ID 1 is live");
  expect_error(HEAD "alloc 1 0 0\nalloc 1 1 0\n", "t:3: alloc: ID 1 is live");
  expect_error(HEAD "free 1\n", "t:2: free: ID 1 is not live");
  expect_error(HEAD "alloc 1 1 0\nfree 1\nfree 1\n", "t:4: free: ID 1 is not live");
  expect_error(HEAD "alloc 1 1 0\nfree 1\nrecord 1 0\n", "t:4: record: ID 1 is not live");
  expect_error(HEAD "device 1\nalloc 1 1 0\nfree 1\nfree 1\n", "t:5: free: ID 1 is not live");
  expect_error(HEAD "halloc 1 1\nhalloc 1 1\n", "t:3: halloc: ID 1 is live");
  expect_error(HEAD "alloc 1 1 0\nhfree 1\n", "t:3: hfree: ID 1 is not live");
  expect_error(HEAD "hrecord 1 0\n", "t:2: hrecord: ID 1 is not live");
}

LADE_TEST(ReplayErrors, WhatTheAllocatorRefuses) {
  expect_error(HEAD "pool_begin 1 0\npool_begin 1 0\n", "t:3: pool_begin: ");
  expect_error(HEAD "pool_begin 1 0\npool_end 1\npool_release 1\npool_begin 1 0\n", "t:5: pool_begin: ");
  expect_error(HEAD "pool_end 1\n", "t:2: pool_end: ");
  expect_error(HEAD "pool_release 1\n", "t:2: pool_release: ");
  expect_error(HEAD "pool_begin 1 0\npool_release 1\npool_release 1\n", "t:4: pool_release: ");
  expect_error(HEAD "pool_begin 1 0\nempty_cache\n", "t:3: empty_cache: ");
  expect_error(HEAD "pool_begin 1 0\ncheckpoint 1 1\n", "t:3: checkpoint: ");
  expect_error(HEAD "checkpoint 1 1\n", "t:2: checkpoint: ");
  expect_error(HEAD "restore 1 1\n", "t:2: restore: pool 1 has no key 1");
  expect_error(HEAD "stream 1\npool_begin 1 0\nalloc 1 1 0\npool_end 1\nrecord 1 1\nfree 1\ncheckpoint 1 1\n",
               "t:8: checkpoint: ");
  expect_error(HEAD "pool_begin 1 0\nalloc 1 1 0\npool_end 1\ncheckpoint 1 1\nfree 1\nalloc 1 1 0\nrestore 1 1\n",
               "t:8: restore: ID 1 is live outside the pool");
  expect_error(HEAD "stream 1\npool_begin 1 0\nalloc 1 1 0\npool_end 1\ncheckpoint 1 1\nrecord 1 1\nrestore 1 1\n",
               "t:8: restore: ");
}

/* A replay reads on while it works: the error that is told is the first one all the same. */
LADE_TEST(ReplayErrors, TheFirstErrorIsTold) {
  expect_error(HEAD "alloc 1 512 0\nfree 2\nalloc 3 x 0\nnonsense\n", "t:3: free: ID 2 is not live");
  expect_error(HEAD "alloc 1 512 0\nalloc 2 x 0\nfree 3\n", "t:3: malformed number");
  expect_error(HEAD "alloc 1 512 0\nsnapshot a\nfree 2\nsnapshot \xff\n", "t:4: free: ID 2 is not live");
  expect_error(HEAD "stream 1\npool_begin 1 1\npool_begin 1 0\nstream 1\n", "t:4: pool_begin");
}

LADE_TEST(ReplayErrors, ZeroBytesAreMalformed) {
  static const char text[] = HEAD "alloc 1\0 1 0\n";
  output o = run_with(text, sizeof text - 1, NULL);
  LADE_EXPECT_CONTAINS_STR(o.error, "t:2: malformed line");
  output_free(&o);
}

/* ---- Totals ------------------------------------------------------------------------------------------------------ */

LADE_TEST(ReplayTotals, KeepTheFirstPeak) {
  replay_totals t = {0};
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  for (uint64_t i = 1; i <= 1000; i++) {
    stats.reserved_bytes.all.current = i == 777 ? 1000000 : i;
    stats.active_bytes.all.current = stats.reserved_bytes.all.current / 4;
    replay_totals_add(&t, &stats);
  }
  LADE_EXPECT_EQ_UINT(t.peak_reserved, 1000000);
  LADE_EXPECT_NEAR(replay_totals_fragmentation(&t), 0.75, 1e-9);
}

LADE_TEST(ReplayTotals, SumsGoOnOverResets) {
  replay_totals t = {0};
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  static const uint64_t counts[] = {0, 3, 5, 0, 0, 1, 7, 2}; /* 5 before the first reset, 7, and 2 after the second */
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    stats.device_allocs = stats.alloc_retries = stats.ooms = counts[i];
    stats.active_bytes.all.peak = i == 2 ? 100 : 10;
    replay_totals_add(&t, &stats);
  }
  LADE_EXPECT_EQ_UINT(t.device_allocs.total, 14);
  LADE_EXPECT_EQ_UINT(t.alloc_retries.total, 14);
  LADE_EXPECT_EQ_UINT(t.ooms.total, 14);
  LADE_EXPECT_EQ_UINT(t.peak_active, 100);
}
