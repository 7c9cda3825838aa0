/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files: each rule of the format is checked, and its breach named. */
#include "loaders/header_parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

static lade_status parse(const char *text, uint64_t data_bytes, ladei_loader_header *out) {
  return ladei_loader_header_parse(text, strlen(text), data_bytes, out);
}

typedef struct bad_header {
  const char *text;
  uint64_t data_bytes;
  const char *reason;
} bad_header;

#define F32_4 "\"dtype\":\"F32\",\"shape\":[4]"

static const bad_header bad_headers[] = {
    /* JSON */
    {"", 0, "does not begin with '{'"},
    {" \n", 0, "does not begin with '{'"},
    {"\v{}", 0, "does not begin with '{'"},
    {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
    {" []", 0, "does not begin with '{'"},
    {"{", 0, "no JSON"},
    {"{}x", 0, "goes on after its end, at byte 2"},
    {" {}\n\v", 0, "goes on after its end, at byte 4"},
    {"{} {}", 0, "goes on after its end, at byte 3"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]},}", 16, "no JSON"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]},\"a\":{" F32_4 ",\"data_offsets\":[16,32]}}", 32, "duplicate"},
    {"{\"a\":{" F32_4 ",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "duplicate"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]},\"\\u0061\":{" F32_4 ",\"data_offsets\":[16,32]}}", 32, "duplicate"},
    {"{\"\xff\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "no JSON"},
    {"{\"\xc0\xaf\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "no JSON"},         /* overlong */
    {"{\"\xed\xa0\x80\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "no JSON"},     /* half of a pair */
    {"{\"\xf4\x90\x80\x80\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "no JSON"}, /* beyond the last character */
    {"{\"\xc3", 0, "no JSON"},
    {"{\"\\ud800\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "no JSON"},
    {"{\"a\\u0000b\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "no JSON"},
    /* an entry's parts */
    {"{\"a\":1}", 0, "not made of dtype, shape and data_offsets"},
    {"{\"a\":[]}", 0, "not made of dtype, shape and data_offsets"},
    {"{\"a\":null}", 0, "not made of dtype, shape and data_offsets"},
    {"{\"a\":{\"b\":{" F32_4 ",\"data_offsets\":[0,16]}}}", 16, "not made of dtype, shape and data_offsets"},
    {"{\"a\":{" F32_4 "}}", 16, "not made of dtype, shape and data_offsets"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16],\"strides\":[1]}}", 16, "not made of dtype, shape and data_offsets"},
    {"{\"a\":{" F32_4 ",\"offsets\":[0,16]}}", 16, "not made of dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "dtype is unknown"},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "dtype is unknown"},
    {"{\"a\":{\"dtype\":18,\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "dtype is unknown"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}", 16, "shape is no array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", 16, "no whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}}", 16, "no whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"4\"],\"data_offsets\":[0,16]}}", 16, "no whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[4]],\"data_offsets\":[0,16]}}", 16, "no whole number"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0]}}", 16, "not two whole numbers"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16,16]}}", 16, "not two whole numbers"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,1.6e1]}}", 16, "not two whole numbers"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":{\"0\":16}}}", 16, "not two whole numbers"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[-16,0]}}", 16, "not two whole numbers"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[00,16]}}", 16, "no JSON"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,+16]}}", 16, "no JSON"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[16,0]}}", 16, "end before they begin"},
    /* sizes */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,16]}}", 16, "no JSON"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,9223372036854775808]}}", 16, "no JSON"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,9223372036854775807]}}", 16, "dtype F32 and shape ask for 16"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}}", 16,
     "its shape is too large"},
    {"{\"a\":{\"dtype\":\"U64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "its shape is too large"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16, "dtype F64 and shape ask for 32"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, "dtype F32 and shape ask for 4"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "its shape is not of whole bytes"},
    {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, "its shape is not of whole bytes"},
    /* places */
    {"{}", 1, "tensors end at byte 0, the file at byte 1"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]}}", 17, "tensors end at byte 16, the file at byte 17"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]}}", 15, "ends beyond the end of the file"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[4611686018427387904,4611686018427387920]}}", 16,
     "beyond the end of the file"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]},\"b\":{" F32_4 ",\"data_offsets\":[8,24]}}", 24,
     "\"b\", bytes 8 to 24 of 24, overlaps"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[0,16]},\"b\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, "overlaps"},
    {"{\"b\":{" F32_4 ",\"data_offsets\":[0,16]},\"a\":{" F32_4 ",\"data_offsets\":[20,36]}}", 36,
     "\"a\", bytes 20 to 36 of 36, leaves a hole"},
    {"{\"a\":{" F32_4 ",\"data_offsets\":[4,20]}}", 20, "leaves a hole"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]},\"b\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16,
     "overlaps"},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
    {"{\"__metadata__\":\"pt\"}", 0, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "metadata \"format\" is no text"},
    {"{\"__metadata__\":{\"format\":{\"a\":\"b\"}}}", 0, "metadata \"format\" is no text"},
    {"{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, "duplicate"},
};

LADE_TEST(Header, NamesTheRuleThatIsBroken) {
  for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
    const bad_header *bad = &bad_headers[i];
    ladei_loader_header header;
    lade_test_context("header %zu: %s", i, bad->text);
    LADE_EXPECT_STATUS(LADE_ERR_FORMAT, parse(bad->text, bad->data_bytes, &header));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, bad->reason);
    LADE_EXPECT_EQ_PTR(header.root, NULL);
  }
}

/* Bug: only spaces behind it were taken. */
LADE_TEST(Header, TakesTheBlanksOfJson) {
  static const char *const texts[] = {
      " {}", "\n{}", "\t{}", "\r{}", "{} ", "{}\n", "{}\t", "{}\r", " \t\n\r\n{ }\r\n \t"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    ladei_loader_header header;
    LADE_EXPECT_OK(parse(texts[i], 0, &header));
    ladei_loader_header_dispose(&header);
  }
}

static size_t allocations, failing;

static void *counted_alloc(size_t bytes) {
  if (++allocations == failing) {
    errno = ENOMEM; /* as malloc() */
    return NULL;
  }
  return malloc(bytes);
}

/* Bug: JSON that could not be kept for want of memory was no JSON, or its names missed a character. */
LADE_TEST(Header, TellsWantOfMemoryFromBadText) {
  static const char text[] =
      " {\"__metadata__\":{\"a key of more than thirty-two characters\":\"and a value of more than "
      "sixty-four characters, so that its room is made anew twice\"},"
      "\"model.layers.10.attention.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
      "\"\\u00e4\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}\n";
  failing = 0;
  for (size_t k = 1; failing < k; k++) {
    ladei_loader_header header;
    allocations = 0;
    failing = k;
    json_set_alloc_funcs(counted_alloc, free);
    lade_status status = parse(text, 9, &header);
    json_set_alloc_funcs(malloc, free);
    lade_test_context("allocation %zu of %zu", k, allocations);
    if (allocations < k) {
      LADE_EXPECT_OK(status);
      LADE_EXPECT_GE_UINT(k, 20);
      LADE_EXPECT_EQ_STR(header.entries[0].name, "model.layers.10.attention.weight");
      ladei_loader_header_dispose(&header);
      break;
    }
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_HOST_MEMORY, status);
    LADE_EXPECT_EQ_PTR(header.root, NULL);
    failing = 0;
  }
}

LADE_TEST(Header, RefusesNestingWithoutEnd) {
  enum { DEPTH = 100000 };
  char *text = malloc(DEPTH + 16);
  ladei_loader_header header;
  LADE_ASSERT(text != NULL);
  strcpy(text, "{\"a\":");
  memset(text + 5, '[', DEPTH);
  text[5 + DEPTH] = '\0';
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, parse(text, 0, &header));
  free(text);
}

LADE_TEST(Header, TakesEachDtypeWithItsSize) {
  for (int dtype = 1; lade_dtype_name((lade_dtype)dtype) != NULL; dtype++) {
    char text[200];
    ladei_loader_header header;
    unsigned bytes = lade_dtype_bits((lade_dtype)dtype); /* of eight elements */
    snprintf(text, sizeof text, "{\"a\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
             lade_dtype_name((lade_dtype)dtype), bytes);
    LADE_ASSERT_OK(parse(text, bytes, &header));
    LADE_EXPECT_EQ_INT(header.entries[0].dtype, dtype);
    ladei_loader_header_dispose(&header);
  }
  LADE_EXPECT_EQ_STR(lade_dtype_name((lade_dtype)22), "U64");
  LADE_EXPECT_EQ_PTR(lade_dtype_name((lade_dtype)0), NULL);
  LADE_EXPECT_EQ_PTR(lade_dtype_name((lade_dtype)23), NULL);
  LADE_EXPECT_EQ_UINT(lade_dtype_bits((lade_dtype)23), 0);
}

LADE_TEST(Header, OrdersTensorsByTheirBytes) {
  ladei_loader_header header;
  LADE_ASSERT_OK(parse("{\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                       "\"__metadata__\":{\"k\":\"v\",\"\":\"w\"},"
                       "\"y\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,5]},"
                       "\"b\":{\"shape\":[3],\"data_offsets\":[2,5],\"dtype\":\"I8\"},"
                       "\"x\":{\"dtype\":\"F64\",\"shape\":[7,0],\"data_offsets\":[2,2]}}   ",
                       5, &header));
  static const char *const expected[] = {"z", "x", "b", "y"};
  LADE_ASSERT_EQ_SIZE(header.entry_count, 4);
  for (size_t i = 0; i < 4; i++) LADE_EXPECT_EQ_STR(header.entries[i].name, expected[i]);
  LADE_EXPECT_EQ_UINT(header.entries[1].rank, 2);
  LADE_EXPECT_EQ_UINT(header.entries[1].shape[0], 7);
  LADE_ASSERT_EQ_SIZE(header.metadata_count, 2);
  LADE_EXPECT_EQ_STR(header.metadata[0].value, "v");
  LADE_EXPECT_EQ_STR(header.metadata[1].key, "");
  ladei_loader_header_dispose(&header);
}

LADE_TEST(Header, NullMetadataIsNone) {
  ladei_loader_header header;
  LADE_ASSERT_OK(
      parse("{\"__metadata__\":null,\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, &header));
  LADE_EXPECT_EQ_SIZE(header.metadata_count, 0);
  LADE_EXPECT_EQ_SIZE(header.entry_count, 1);
  ladei_loader_header_dispose(&header);
}

LADE_TEST(Header, WritesWhatItReads) {
  const uint64_t shape[] = {3, 1};
  const ladei_loader_entry entries[] = {{"\"\\\b\f\n\r\t\x01\x1f\x7f/\xc3\xa4", shape, 2, 0, 3, LADE_DTYPE_F8_E8M0},
                                        {"", NULL, 0, 3, 4, LADE_DTYPE_BOOL}};
  const lade_metadata metadata[] = {{"a\n", "\xe2\x82\xac"}};
  char *text;
  size_t bytes;
  ladei_loader_header header;
  LADE_ASSERT_OK(ladei_loader_header_write(entries, 2, metadata, 1, &text, &bytes));
  LADE_EXPECT_EQ_SIZE(bytes % 8, 0);
  LADE_EXPECT_EQ_SIZE((unsigned char)text[0], bytes - 8);
  LADE_ASSERT_OK(ladei_loader_header_parse(text + 8, bytes - 8, 4, &header));
  LADE_EXPECT_EQ_STR(header.entries[0].name, entries[0].name);
  LADE_EXPECT_EQ_STR(header.entries[1].name, "");
  LADE_EXPECT_EQ_UINT(header.entries[1].rank, 0);
  LADE_EXPECT_EQ_STR(header.metadata[0].key, "a\n");
  LADE_EXPECT_EQ_STR(header.metadata[0].value, "\xe2\x82\xac");
  ladei_loader_header_dispose(&header);
  free(text);
}

LADE_TEST(Header, ShowsNamesInOneShortLine) {
  char shown[LADEI_LOADER_NAME_TEXT_BYTES], name[400];
  LADE_EXPECT_EQ_STR(ladei_loader_name_text("a\nb\x7f", shown), "a?b?");
  memset(name, 'x', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  name[67] = '\xc3'; /* a character across the cut goes as a whole */
  name[68] = '\xa4';
  LADE_EXPECT_EQ_SIZE(strlen(ladei_loader_name_text(name, shown)), 67 + 3);
}

/* A header that is read in one pass says what its JSON says, whatever is done to its text: byte by byte, and in pieces. */
LADE_TEST(Header, PlainHeadersSayWhatTheirJsonSays) {
  static const char text[] =
      "{\"__metadata__\":{\"format\":\"pt\",\"lade_save\":\"12\"},\"a.b\":{\"dtype\":\"F32\",\"shape\":[2,"
      "3],\"data_offsets\":[0,24]}, \"b\" : {\"shape\":[],\"dtype\":\"BF16\",\"data_offsets\" : [24 ,26]},"
      "\"c\":{\"dtype\":\"F4\",\"shape\":[0],\"data_offsets\":[24,24]},\"d\":{\"data_offsets\":[26,36],"
      "\"shape\":[10],\"dtype\":\"U8\"}}\n";
  static const char signs[] = "{}[]\",:0123456789 \n\tabcdefBF_e-.\\\x7f\xc3\xa4";
  support_random random;
  support_random_start(&random, 33);
  unsigned plain_count = 0, good_count = 0;
  for (int i = 0; i < 40000; i++) {
    char changed[2 * sizeof text];
    size_t bytes = sizeof text - 1, changes = support_random_below(&random, 4);
    memcpy(changed, text, sizeof text);
    for (size_t j = 0; j < changes; j++) {
      size_t at = support_random_below(&random, bytes), from = support_random_below(&random, bytes);
      size_t count = ladei_size_min(support_random_below(&random, 40), bytes - ladei_size_max(at, from));
      if (support_random_one_in(&random, 4) && bytes + count < sizeof changed) {
        memmove(changed + at + count, changed + at, bytes - at);
        memmove(changed + at, changed + from, count);
        bytes += count;
      } else if (support_random_below(&random, 3) == 0) {
        memmove(changed + at, changed + from, count);
      } else if (support_random_below(&random, 3) == 0) {
        memmove(changed + at, changed + at + count, bytes - at - count);
        bytes -= count;
      } else {
        changed[at] = signs[support_random_below(&random, sizeof signs - 1)];
      }
      if (bytes == 0) break;
    }
    ladei_loader_header header, by_json;
    lade_status status = ladei_loader_header_parse(changed, bytes, 36, &header);
    char told[sizeof lade_last_error()->text];
    strcpy(told, lade_last_error()->text);
    lade_status status_by_json = ladei_loader_header_parse_json(changed, bytes, 36, &by_json);
    lade_test_context("text %d: %.*s", i, (int)bytes, changed);
    LADE_ASSERT_STATUS(status_by_json, status);
    if (status != LADE_OK) {
      LADE_EXPECT_EQ_STR(told, lade_last_error()->text);
      continue;
    }
    good_count++;
    plain_count += header.root == NULL;
    LADE_EXPECT_EQ_PTR(by_json.names, NULL);
    LADE_ASSERT_EQ_SIZE(header.entry_count, by_json.entry_count);
    LADE_ASSERT_EQ_SIZE(header.metadata_count, by_json.metadata_count);
    for (size_t j = 0; j < header.entry_count; j++) {
      const ladei_loader_entry *a = &header.entries[j], *b = &by_json.entries[j];
      LADE_EXPECT_EQ_STR(a->name, b->name);
      LADE_EXPECT(a->dtype == b->dtype && a->rank == b->rank && a->begin == b->begin && a->end == b->end);
      LADE_EXPECT(memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0);
    }
    for (size_t j = 0; j < header.metadata_count; j++) {
      LADE_EXPECT_EQ_STR(header.metadata[j].key, by_json.metadata[j].key);
      LADE_EXPECT_EQ_STR(header.metadata[j].value, by_json.metadata[j].value);
    }
    ladei_loader_header_dispose(&header);
    ladei_loader_header_dispose(&by_json);
  }
  LADE_EXPECT_GE_UINT(plain_count, 5000); /* a quarter is not changed at all */
  LADE_EXPECT_GE_UINT(good_count, plain_count);
}

LADE_TEST(Header, PlainHeadersAreReadWithoutATree) {
  ladei_loader_header header;
  LADE_ASSERT_OK(parse("{\"a\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, &header));
  LADE_EXPECT_EQ_PTR(header.root, NULL);
  ladei_loader_header_dispose(&header);
  LADE_ASSERT_OK(parse("{\"\xc3\xa4\":{" F32_4 ",\"data_offsets\":[0,16]}}", 16, &header));
  LADE_EXPECT_NE_PTR(header.root, NULL);
  LADE_EXPECT_EQ_STR(header.entries[0].name, "\xc3\xa4");
  ladei_loader_header_dispose(&header);
}
