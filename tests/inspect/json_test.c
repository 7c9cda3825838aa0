/* SPDX-License-Identifier: Apache-2.0 */
/* lade's JSON: what is written reads back; what is broken is refused with its place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/formats/json.h"
#include "inspect/formats/json_parser.h"
#include "inspect/formats/json_read.h"
#include "tests/inspect/sample.h"
#include "tests/shim/lade_test.h"

LADE_TEST(Json, ReadsBackWhatItWrites) {
  char room[256];
  for (const sample_shape *const *shape = sample_shapes; *shape != NULL; shape++) {
    lade_snapshot *before = sample_create(*shape);
    LADE_ASSERT(before != NULL);
    LADE_EXPECT_EQ_STR(sample_round_trip(before, ladei_inspect_write_json, ladei_inspect_read_json, 1, room), "");
    lade_snapshot_destroy(before);
  }
}

/* All 64 bits of numbers, times that fall, reals that have no point. */
LADE_TEST(Json, KeepsEveryBit) {
  char room[256];
  lade_snapshot *before = sample_create(&sample_small);
  LADE_ASSERT(before != NULL);
  before->events.rows[0].stream = before->events.rows[0].bytes = before->events.rows[1].address = UINT64_MAX;
  before->events.rows[2].time_ns = 5;
  before->events.rows[3].pool = (lade_device_pool_id){UINT64_MAX, 1};
  before->events.rows[4].block_bytes = UINT64_C(1) << 55;
  before->events.rows[5].flags = LADEI_SNAPSHOT_SEGMENT_SMALL;
  before->parts.rows[0].max_entries = before->parts.rows[0].capacity_bytes = UINT64_MAX;
  before->settings.rows[2].real = 1e22;
  before->settings.rows[2].integer = 0;
  LADE_EXPECT_EQ_STR(sample_round_trip(before, ladei_inspect_write_json, ladei_inspect_read_json, 1, room), "");
  lade_snapshot_destroy(before);
}

/* --- texts made by hand ----------------------------------------------------------------------------------------------- */

static lade_snapshot *read_text(const char *text, lade_status expected, const char *message) {
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_STATUS(expected, ladei_inspect_read_json(text, strlen(text), "FILE", &snapshot));
  if (expected != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, message);
  return snapshot;
}

#define HEAD "{\"format\":\"lade-snapshot\",\"version\":1"

LADE_TEST(Json, TakesMembersInAnyOrderAndPassesByOthers) {
  lade_snapshot *snapshot = read_text(
      "{\"parts\":[{\"new\":[{\"x\":[1,2,{}]}],\"blocks\":{\"stack\":[0,-1],\"bytes\":[512,1024],\"state\":[1,0],"
      "\"hue\":[7]},"
      "\"segments\":{\"stream\":[1],\"block_count\":[2],\"bytes\":[1536],\"address\":[\"0x1000\"]},\"kind\":\"device\","
      "\"device\":3}],\"frames\":{\"file\":[2],\"function\":[1]},\"stacks\":{\"frame_count\":[1]},"
      "\"texts\":[\"\",\"f\\u00e4\",\"g.c\"],\"streams\":[\"0x0\",\"0x7f\"],\"later\":null,\"version\":1,"
      "\"format\":\"lade-snapshot\"}",
      LADE_OK, "");
  LADE_ASSERT(snapshot != NULL);
  LADE_ASSERT_EQ_SIZE(snapshot->blocks.count, 2);
  LADE_EXPECT_EQ_UINT(snapshot->blocks.rows[1].address, 0x1000 + 512);
  LADE_EXPECT_EQ_UINT(snapshot->segments.rows[0].stream, 0x7f);
  LADE_EXPECT_EQ_UINT(snapshot->blocks.rows[1].stack, LADEI_SNAPSHOT_NONE);
  LADE_ASSERT_EQ_UINT(snapshot->blocks.rows[0].stack, 0);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, snapshot->frames.rows[0].function), "f\xc3\xa4");
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, snapshot->frames.rows[0].file), "g.c");
  lade_snapshot_destroy(snapshot);
}

LADE_TEST(Json, RefusesWhatIsNoSnapshot) {
  static const struct {
    const char *text, *message;
    lade_status status;
  } files[] = {
      {"", "byte 0: the text ends too early", LADE_ERR_TRUNCATED},
      {"{}", "byte 2: is no snapshot", LADE_ERR_INVALID_ARGUMENT},
      {"[]", "byte 0: expected an object", LADE_ERR_INVALID_ARGUMENT},
      {"{\"format\":\"other\"}", "byte 10: expected \"lade-snapshot\"", LADE_ERR_INVALID_ARGUMENT},
      {"{\"format\":\"lade-snapshot\",\"version\":2}", "version 2; this library reads version 1", LADE_ERR_UNSUPPORTED},
      {HEAD ",\"parts\":[{\"kind\":\"host\"}]}", "expected \"device\", \"pinned\"", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"device\":5000}]}", "byte 57: expected a whole number in its range",
       LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"streams\":[\"12\"]}", "byte 49: expected a text such as \"0x7f00\"", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"streams\":[\"0x10000000000000000\"]}", "expected a text such as", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"pools\":[[\"0x1\"]]}", "expected a text such as", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"time_ns\":5}", "byte 48: expected nanoseconds in quotes", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"stacks\":{\"frame_count\":[1]}}", "the stacks have more frames than there are",
       LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"frames\":{\"function\":[0]}}", "the stacks have fewer frames", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"frames\":{\"function\":[1]},\"stacks\":{\"frame_count\":[1]}}",
       "row 0 of all frames: its function is not there", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"frames\":{\"function\":[0],\"module\":[0]},\"stacks\":{\"frame_count\":[1]}}",
       "row 0 of all frames: its module is not there", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"events\":{\"action\":[0,0],\"elapsed_ns\":[1]}}]}",
       "column 'elapsed_ns' does not have the 2 rows", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"events\":{\"action\":[0]}}]}", "column 'elapsed_ns' does not have",
       LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"events\":{\"action\":[0],\"elapsed_ns\":[1],\"stack\":[0]}}]}",
       "row 0 of all events: its stack is not there", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"events\":{\"action\":[0],\"elapsed_ns\":[1],\"label\":[4294967295]}}]}", "none too great",
       LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"segments\":{\"address\":[\"0x1\"],\"bytes\":[5],\"block_count\":[1]}}]}",
       "a segment has more blocks than its part", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"blocks\":{\"bytes\":[5]}}]}", "FILE: snapshot: part 0: blocks without a segment",
       LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"segments\":{\"address\":[\"0x1\"],\"bytes\":[6],\"block_count\":[1]},\"blocks\":{\"bytes\":"
            "[5]}}]}",
       "its blocks do not add up to its size", LADE_ERR_INVALID_ARGUMENT},
      {HEAD ",\"parts\":[{\"counters\":{\"a\":9223372036854775808}}]}", "in its range", LADE_ERR_INVALID_ARGUMENT},
      {HEAD "} x", "byte 39: something after the end", LADE_ERR_INVALID_ARGUMENT},
  };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    lade_test_context("%s", files[i].text);
    LADE_EXPECT(read_text(files[i].text, files[i].status, files[i].message) == NULL);
  }
  lade_test_context("%s", "");
}

LADE_TEST(Json, RefusesEveryBeginningOfAFile) {
  size_t bytes;
  lade_snapshot *snapshot = sample_create(&sample_small), *read = NULL;
  LADE_ASSERT(snapshot != NULL);
  char *data = sample_write(snapshot, ladei_inspect_write_json, &bytes);
  for (size_t cut = 0; cut + 1 < bytes; cut += cut < 300 || cut > bytes - 200 ? 1 : 97) { /* it ends in a newline */
    char *part = malloc(cut + 1);
    memcpy(part, data, cut);
    LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, ladei_inspect_read_json(part, cut, "FILE", &read));
    free(part);
  }
  LADE_EXPECT(read == NULL);
  lade_snapshot_destroy(snapshot);
  free(data);
}

LADE_TEST(Json, GetsOverChangedBytes) {
  static const sample_shape tiny = {
      .seed = 3, .segments = 1, .blocks = 3, .events = 12, .stacks = 2, .frames = 2, .devices = 2, .pools = 1};
  size_t bytes, refused = 0;
  lade_snapshot *snapshot = sample_create(&tiny);
  LADE_ASSERT(snapshot != NULL);
  char *data = sample_write(snapshot, ladei_inspect_write_json, &bytes);
  for (size_t i = 0; i < bytes; i += 3) {
    lade_snapshot *read = NULL;
    char kept = data[i];
    data[i] = (char)(kept ^ (1 << i % 8));
    if (ladei_inspect_read_json(data, bytes, "FILE", &read) != LADE_OK) refused++;
    lade_snapshot_destroy(read);
    data[i] = kept;
  }
  LADE_EXPECT_GT_SIZE(refused, 100);
  lade_snapshot_destroy(snapshot);
  free(data);
}

LADE_TEST(Json, RefusesDeepNests) {
  enum { DEPTH = 1000000 };
  char *text = malloc(DEPTH + 1);
  LADE_ASSERT(text != NULL);
  memset(text, '[', DEPTH);
  memcpy(text, "{\"x\":", 5);
  text[DEPTH] = '\0';
  LADE_EXPECT(read_text(text, LADE_ERR_INVALID_ARGUMENT, "byte 516: nested deeper than 512 objects and arrays") ==
              NULL);
  free(text);
}

LADE_TEST(Json, BoundsTheMemoryOfAFile) {
  enum { ROWS = 1300000 };
  static const char head[] = HEAD ",\"parts\":[{\"events\":{\"action\":[1";
  char *text = malloc(sizeof head + 2 * ROWS);
  LADE_ASSERT(text != NULL);
  size_t bytes = (size_t)sprintf(text, "%s", head);
  for (int i = 0; i < ROWS; i++, bytes += 2) memcpy(text + bytes, ",1", 3);
  LADE_EXPECT(read_text(text, LADE_ERR_LIMIT, "more than 8 x its size of memory") == NULL);
  free(text);
}

/* --- the parser ----------------------------------------------------------------------------------------------------------- */

LADE_TEST(JsonParser, TakesEscapesOutOfTexts) {
  static const struct {
    const char *text, *expected;
  } strings[] = {
      {"\"a\\n\\t\\\"\\\\\\/\\b\\f\\r\"", "a\n\t\"\\/\b\f\r"},
      {"\"\\u0041\\u00e4\\u20ac\\ud83d\\ude00\"", "A\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
      {"\"\\ud83dx\\ude00\"", "\xef\xbf\xbdx\xef\xbf\xbd"},
      {"\"\\ud83d\\u0041\"", "\xef\xbf\xbd"
                             "A"},
  };
  for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
    ladei_json_parser parser;
    ladei_json_token token;
    char room[128];
    ladei_json_parser_init(&parser, strings[i].text, strlen(strings[i].text), "TEXT");
    LADE_ASSERT_OK(ladei_json_next(&parser, &token));
    LADE_ASSERT_EQ_INT(token.kind, LADEI_JSON_STRING);
    size_t bytes = ladei_json_unescape(&token, room);
    LADE_EXPECT_LE_SIZE(bytes, token.bytes);
    room[bytes] = '\0';
    LADE_EXPECT_EQ_STR(room, strings[i].expected);
  }
}

LADE_TEST(JsonParser, ReadsIntegersOf64Bits) {
  static const struct {
    const char *text;
    bool is_uint, is_int;
    int64_t value;
  } numbers[] = {
      {"0", true, true, 0},
      {"-0", false, true, 0},
      {"9223372036854775807", true, true, INT64_MAX},
      {"9223372036854775808", true, false, INT64_MIN},
      {"-9223372036854775808", false, true, INT64_MIN},
      {"-9223372036854775809", false, false, 0},
      {"18446744073709551615", true, false, -1},
      {"18446744073709551616", false, false, 0},
      {"1.0", false, false, 0},
      {"1e3", false, false, 0},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    ladei_json_parser parser;
    ladei_json_token token;
    uint64_t without_sign = 0;
    int64_t with_sign = 0;
    lade_test_context("%s", numbers[i].text);
    ladei_json_parser_init(&parser, numbers[i].text, strlen(numbers[i].text), "TEXT");
    LADE_ASSERT_OK(ladei_json_next(&parser, &token));
    LADE_EXPECT_EQ_INT(ladei_json_uint(&token, &without_sign), numbers[i].is_uint);
    LADE_EXPECT_EQ_INT(ladei_json_int(&token, &with_sign), numbers[i].is_int);
    if (numbers[i].is_uint) LADE_EXPECT_EQ_UINT(without_sign, (uint64_t)numbers[i].value);
    if (numbers[i].is_int) LADE_EXPECT_EQ_INT(with_sign, numbers[i].value);
  }
  lade_test_context("%s", "");
}
