/* SPDX-License-Identifier: Apache-2.0 */
/* Output through a callback: pieces, the first failure, numbers, escapes. */
#include "base/output.h"

#include <stdlib.h>

#include "tests/shim/lade_test.h"

typedef struct sink {
  char *bytes;
  size_t used, most;
  unsigned calls;
} sink;

static lade_status sink_write(void *user, const void *data, size_t bytes) {
  sink *s = user;
  s->calls++;
  if (bytes > s->most - s->used) return LADE_ERR_IO;
  memcpy(s->bytes + s->used, data, bytes);
  s->used += bytes;
  s->bytes[s->used] = '\0';
  return LADE_OK;
}

typedef struct scene {
  sink sink;
  ladei_output *output;
} scene;

static void scene_open(scene *s, size_t most) {
  *s = (scene){.sink = {.bytes = calloc(1, most + 1), .most = most}, .output = malloc(sizeof *s->output)};
  ladei_output_init(s->output, sink_write, &s->sink);
}

static void scene_close(scene *s) {
  free(s->sink.bytes);
  free(s->output);
}

/* O1: in pieces of at most the buffer, in their order, whatever the lengths. */
LADE_TEST(Output, GivesEveryByteInOrder) {
  enum { BYTES = 300000 };
  scene s;
  scene_open(&s, BYTES * 2);
  char *data = malloc(BYTES);
  for (size_t i = 0; i < BYTES; i++) data[i] = (char)(i * 31 % 251);
  size_t at = 0;
  for (size_t step = 1; at < BYTES; step = step * 3 % 100003) {
    size_t bytes = step < BYTES - at ? step : BYTES - at;
    ladei_output_bytes(s.output, data + at, bytes);
    at += bytes;
  }
  LADE_EXPECT_OK(ladei_output_flush(s.output));
  LADE_ASSERT_EQ_UINT(s.sink.used, BYTES);
  LADE_EXPECT(memcmp(s.sink.bytes, data, BYTES) == 0);
  LADE_EXPECT_EQ_UINT(s.output->given, BYTES);
  free(data);
  scene_close(&s);
}

/* O2 */
LADE_TEST(Output, KeepsTheFirstFailureAndCallsNoMore) {
  scene s;
  scene_open(&s, 10);
  for (int i = 0; i < 200000; i++) ladei_output_text(s.output, "x");
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_output_flush(s.output));
  LADE_EXPECT_EQ_UINT(s.sink.calls, 1);
  scene_close(&s);
}

LADE_TEST(Output, WritesNumbersAtTheirEnds) {
  scene s;
  scene_open(&s, 1000);
  ladei_output_uint(s.output, 0);
  ladei_output_byte(s.output, ' ');
  ladei_output_uint(s.output, UINT64_MAX);
  ladei_output_byte(s.output, ' ');
  ladei_output_int(s.output, INT64_MIN);
  ladei_output_format(s.output, " %.1f", 2.5);
  LADE_EXPECT_OK(ladei_output_flush(s.output));
  LADE_EXPECT_EQ_STR(s.sink.bytes, "0 18446744073709551615 -9223372036854775808 2.5");
  scene_close(&s);
}

/* What could end a string, a tag or a script, what a terminal obeys, and what is no UTF-8. */
LADE_TEST(Output, EscapesWhatMeansSomething) {
  scene s;
  scene_open(&s, 1000);
  ladei_output_json(s.output, "a\"\\\n</script>\x1b[31m\xff\xc3\xa9\xed\xa0\x80");
  ladei_output_byte(s.output, '|');
  ladei_output_xml(s.output, "a\"<b>&\x1b\xf0\x9f\x98\x80\xc0\x80");
  LADE_EXPECT_OK(ladei_output_flush(s.output));
  LADE_EXPECT_EQ_STR(
      s.sink.bytes,
      "\"a\\\"\\\\\\n\\u003c/script\\u003e\\u001b[31m\xEF\xBF\xBD\xc3\xa9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"|"
      "a&quot;&lt;b&gt;&amp;\xEF\xBF\xBD\xf0\x9f\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD");
  scene_close(&s);
  scene_open(&s, 1000);
  ladei_output_plain_json(s.output, "vector<int> & \"\x1b\xff");
  LADE_EXPECT_OK(ladei_output_flush(s.output));
  LADE_EXPECT_EQ_STR(s.sink.bytes, "\"vector<int> & \\\"\\u001b\xEF\xBF\xBD\"");
  scene_close(&s);
}
