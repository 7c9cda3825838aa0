/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader's shorter way for plain lines against the other (T3 of trace.c): two blanks behind the word send a line there.
 * And lines that the end of what is read cuts off.
 */
#include "tools/replay/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"

#define HEAD "lade-trace 1\n"

typedef struct outcome {
  read_result result;
  trace_op op;
  char error[256];
} outcome;

/* The first operation of a text. */
static outcome read_first(const char *text, size_t length) {
  outcome o = {.error = ""};
  FILE *file = fmemopen((void *)(uintptr_t)text, length, "r");
  trace_reader *reader = trace_reader_create(file, "t");
  o.result = trace_read(reader, &o.op);
  if (o.result == READ_BAD) snprintf(o.error, sizeof o.error, "%s", trace_error(reader));
  trace_reader_destroy(reader);
  fclose(file);
  return o;
}

/* A word and what follows it, read both ways. */
static void expect_alike(const char *word, const char *rest, size_t rest_length) {
  char text[256];
  outcome ways[2];
  for (int blanks = 1; blanks <= 2; blanks++) {
    size_t begin = (size_t)snprintf(text, sizeof text, HEAD "%s%.*s", word, blanks, "  ");
    memcpy(text + begin, rest, rest_length);
    text[begin + rest_length] = '\n';
    ways[blanks - 1] = read_first(text, begin + rest_length + 1);
  }
  lade_test_context("%s %.*s", word, (int)rest_length, rest);
  LADE_EXPECT_EQ_INT(ways[0].result, ways[1].result);
  LADE_EXPECT_EQ_STR(ways[0].error, ways[1].error);
  if (ways[0].result == READ_ITEM && ways[1].result == READ_ITEM) {
    LADE_EXPECT_EQ_INT(ways[0].op.kind, ways[1].op.kind);
    LADE_EXPECT_EQ_UINT(ways[0].op.line, ways[1].op.line);
    for (int i = 0; i < 3; i++) LADE_EXPECT_EQ_UINT(ways[0].op.number[i], ways[1].op.number[i]);
  }
  lade_test_context("%s", "");
}

static void expect_text_alike(const char *word, const char *rest) { expect_alike(word, rest, strlen(rest)); }

/* Seven digits come at once, eight and more one by one, and 64 bits hold some of twenty. */
LADE_TEST(Trace, NumbersOfAnyLengthAreReadAlike) {
  static const char digits[] = "9081726354918273645051";
  char rest[128];
  for (int length = 0; length <= 22; length++) {
    for (int zeros = 0; zeros <= 22 - length; zeros += 7) {
      snprintf(rest, sizeof rest, "%.*s%.*s", zeros, "0000000000000000000000", length, digits);
      expect_text_alike("free", rest);
      snprintf(rest, sizeof rest, "%.*s %.*s 0", length, digits, length, digits + 1);
      expect_text_alike("alloc", rest);
      snprintf(rest, sizeof rest, "7 %.*s", length, digits + 2);
      expect_text_alike("halloc", rest);
    }
  }
  expect_text_alike("free", "18446744073709551615");
  expect_text_alike("free", "18446744073709551616");
  expect_text_alike("halloc", "1 1152921504606846975");
  expect_text_alike("halloc", "1 1152921504606846976");
  outcome o = read_first(HEAD "alloc 1234567 12345678 0\n", strlen(HEAD "alloc 1234567 12345678 0\n"));
  LADE_EXPECT_EQ_INT(o.result, READ_ITEM);
  LADE_EXPECT_EQ_UINT(o.op.number[0], 1234567);
  LADE_EXPECT_EQ_UINT(o.op.number[1], 12345678);
}

/* Each byte at each place of a number, and behind it. */
LADE_TEST(Trace, OtherBytesAmongDigitsAreReadAlike) {
  for (int byte = 0; byte < 256; byte++) {
    for (size_t place = 0; place <= 9; place++) {
      char rest[] = "0123456789";
      rest[place] = (char)byte;
      expect_alike("free", rest, 10);
      expect_alike("free", rest, place + 1);
      char two[] = "0123456789 0123456789";
      two[11 + place] = (char)byte;
      expect_alike("halloc", two, sizeof two - 1);
    }
  }
}

LADE_TEST(Trace, WordsAndStreamsAreReadAlike) {
  static const char *const words[] = {"alloc", "free", "record", "halloc", "hfree", "hrecord", "complete", "frees"};
  static const char *const rests[] = {"1",     "1 2",  "1 2 0", "1 0",      "1 2 3", "1 2 0 0", "1 ",   "1\t",
                                      "1 2\r", "1 #x", "#",     "1 2 0 #1", "",      "1 2  0",  "1 2x", "-1"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    for (size_t j = 0; j < sizeof rests / sizeof rests[0]; j++) expect_text_alike(words[i], rests[j]);
}

/* ---- Ends of what is read ---------------------------------------------------------------------------------------- */

/* Reads lines "free N" with the numbers that the text has, its last one perhaps without a newline. */
static void expect_frees(const char *text, size_t length) {
  FILE *file = fmemopen((void *)(uintptr_t)text, length, "r");
  trace_reader *reader = trace_reader_create(file, "t");
  const char *line = text + strlen(HEAD);
  uint64_t number = 1;
  for (trace_op op; trace_read(reader, &op) == READ_ITEM;) {
    LADE_ASSERT(line < text + length);
    number++;
    LADE_ASSERT_EQ_UINT(op.line, number);
    LADE_ASSERT_EQ_UINT(op.number[0], strtoull(line + strlen("free "), NULL, 10));
    const char *newline = memchr(line, '\n', (size_t)(text + length - line));
    line = newline == NULL ? text + length : newline + 1;
  }
  LADE_EXPECT(line == text + length);
  trace_reader_destroy(reader);
  fclose(file);
}

/*
 * The text ends at each place of some lines, behind the first 64 KiB and behind the second: what is read last is short, and
 * behind it lies what was read before, digits and newlines among it.
 */
LADE_TEST(Trace, LinesEndWhereTheFileDoes) {
  enum { ROOM = 64 * 1024, LINES = 20000 };
  char *text = malloc(LINES * 16);
  size_t length = (size_t)snprintf(text, LINES * 16, HEAD);
  for (int i = 0; i < LINES; i++)
    length += (size_t)snprintf(text + length, 16, "free %0*d\n", 1 + i % 8, (i * 7919) % 10000);
  LADE_ASSERT(length > 2 * ROOM + 100);
  char *cut = malloc(length + 1);
  for (size_t block = 1; block <= 2; block++) {
    for (size_t more = 0; more < 60; more++) {
      size_t end = block * ROOM + more;
      memcpy(cut, text, end);
      while (cut[end - 1] < '0' && cut[end - 1] != '\n') end--; /* "free " alone is an error */
      if (cut[end - 1] > '9') continue;
      cut[end] = '\0';
      lade_test_context("%zu bytes", end);
      expect_frees(cut, end);
    }
  }
  lade_test_context("%s", "");
  free(cut);
  free(text);
}
