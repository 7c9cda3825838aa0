/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles of snapshots: what is written reads back; what is broken is refused with its place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/formats/pickle.h"
#include "inspect/formats/pickle_read.h"
#include "tests/inspect/sample.h"
#include "tests/shim/lade_test.h"

/* --- round trips ------------------------------------------------------------------------------------------------------ */

LADE_TEST(Pickle, ReadsBackWhatItWrites) {
  char room[256];
  for (const sample_shape *const *shape = sample_shapes; *shape != NULL; shape++) {
    lade_snapshot *before = sample_create(*shape);
    LADE_ASSERT(before != NULL);
    LADE_EXPECT_EQ_STR(sample_round_trip(before, ladei_inspect_write_pickle, ladei_inspect_read_pickle, 1000, room),
                       "");
    lade_snapshot_destroy(before);
  }
}

LADE_TEST(Pickle, RefusesADeviceThatNoPickleHas) {
  lade_snapshot *snapshot = sample_create(&sample_small);
  size_t bytes;
  LADE_ASSERT(snapshot != NULL);
  snapshot->parts.rows[1].device = 1024;
  LADE_EXPECT(sample_write(snapshot, ladei_inspect_write_pickle, &bytes) == NULL);
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_LIMIT);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "part 1 is of device 1024");
  lade_snapshot_destroy(snapshot);
}

/* Bug: what is 2^63 or more became 2^63 - 1, without a word. */
LADE_TEST(Pickle, KeepsIntegersOf64Bits) {
  char room[256];
  size_t bytes;
  lade_snapshot *snapshot = sample_create(&sample_small), *after = NULL;
  LADE_ASSERT(snapshot != NULL);
  ladei_snapshot_event *events = snapshot->events.rows;
  events[0].stream = UINT64_MAX;
  events[1].stream = INT64_MAX;
  events[2].stream = UINT64_C(1) << 63;
  events[0].bytes = UINT64_C(0x8000000000000001);
  events[1].address = UINT64_C(0xfffffffffffff000);
  snapshot->parts.rows[0].capacity_bytes = UINT64_MAX;
  char *data = sample_write(snapshot, ladei_inspect_write_pickle, &bytes);
  LADE_EXPECT_OK(ladei_inspect_read_pickle(data, bytes, "integers", &after));
  if (after != NULL) LADE_EXPECT_EQ_STR(sample_difference(snapshot, after, 1000, room), "");
  lade_snapshot_destroy(snapshot);
  lade_snapshot_destroy(after);
  free(data);
}

/* --- files made by hand ----------------------------------------------------------------------------------------------- */

typedef struct script {
  char *data;
  size_t bytes, room;
} script;

static void put(script *to, const void *data, size_t bytes) {
  if (to->bytes + bytes > to->room) {
    to->room = (to->bytes + bytes) * 2;
    to->data = realloc(to->data, to->room);
  }
  memcpy(to->data + to->bytes, data, bytes);
  to->bytes += bytes;
}

static void put_op(script *to, int code) {
  char byte = (char)code;
  put(to, &byte, 1);
}

static void put_text(script *to, const char *text) {
  put_op(to, 0x8c);
  put_op(to, (int)strlen(text));
  put(to, text, strlen(text));
}

static void put_little(script *to, int code, uint64_t value, unsigned bytes) {
  put_op(to, code);
  for (unsigned i = 0; i < bytes; i++) put_op(to, (int)(value >> (8 * i)));
}

static void put_key_int(script *to, const char *key, uint32_t value) {
  put_text(to, key);
  put_little(to, 'J', value, 4);
}

static void put_key_text(script *to, const char *key, const char *value) {
  put_text(to, key);
  put_text(to, value);
}

static script begin(int protocol) {
  script file = {NULL, 0, 0};
  put_op(&file, 0x80);
  put_op(&file, protocol);
  return file;
}

/* Reads the file, which ends here; the snapshot, or NULL. */
static lade_snapshot *finish(script *file, lade_status expected, const char *message) {
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_STATUS(expected, ladei_inspect_read_pickle(file->data, file->bytes, "FILE", &snapshot));
  if (expected != LADE_OK) LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, message);
  free(file->data);
  *file = (script){NULL, 0, 0};
  return snapshot;
}

static void refuse(script *file, lade_status expected, const char *message) {
  lade_snapshot *snapshot = finish(file, expected, message);
  LADE_EXPECT(snapshot == NULL);
  lade_snapshot_destroy(snapshot);
}

/* A list of one segment of two blocks; `second` is where the second one is said to begin. */
static script segment_file(uint32_t second, uint32_t total) {
  script file = begin(2);
  put_op(&file, ']');
  put_op(&file, '}');
  put_op(&file, '(');
  put_key_int(&file, "address", 4096);
  put_key_int(&file, "total_size", total);
  put_key_int(&file, "device", 3);
  put_text(&file, "blocks");
  put(&file, "](", 2);
  for (int i = 0; i < 2; i++) {
    put(&file, "}(", 2);
    put_key_int(&file, "size", 512);
    put_key_text(&file, "state", i == 0 ? "active_awaiting_free" : "inactive");
    if (i == 1 && second != 0) put_key_int(&file, "address", second);
    put(&file, "u", 1);
  }
  put(&file, "eua.", 4);
  return file;
}

LADE_TEST(PickleOfOthers, IsAListOfSegmentsWithFewKeys) {
  script file = segment_file(0, 1024);
  lade_snapshot *snapshot = finish(&file, LADE_OK, "");
  LADE_ASSERT(snapshot != NULL);
  LADE_EXPECT_EQ_SIZE(snapshot->parts.count, 1);
  LADE_EXPECT_EQ_INT(snapshot->parts.rows[0].device, 3);
  LADE_EXPECT_EQ_SIZE(snapshot->blocks.count, 2);
  LADE_EXPECT_EQ_UINT(snapshot->blocks.rows[1].address, 4096 + 512);
  LADE_EXPECT_EQ_UINT(snapshot->blocks.rows[0].state, LADE_DEVICE_BLOCK_PENDING_FREE);
  LADE_EXPECT_EQ_UINT(snapshot->blocks.rows[0].requested_bytes, 512); /* the file does not say it: all of the block */
  LADE_EXPECT_EQ_UINT(snapshot->blocks.rows[1].requested_bytes, 0);
  lade_snapshot_destroy(snapshot);
}

LADE_TEST(PickleOfOthers, IsRefusedWithABlockOutsideOfItsSegment) {
  script file = segment_file(8192, 1024);
  refuse(&file, LADE_ERR_INVALID_ARGUMENT, "FILE: snapshot: block 1: does not begin where the block before it ends");
  file = segment_file(0, 1000);
  refuse(&file, LADE_ERR_INVALID_ARGUMENT, "its blocks do not add up to its size");
}

LADE_TEST(PickleOfOthers, MayReferToARowTwice) {
  script file = begin(4);
  put(&file, "}(", 2);
  put_text(&file, "device_traces");
  put(&file, "](](", 4);
  put(&file, "}(", 2);
  put_key_text(&file, "action", "alloc");
  put_key_int(&file, "addr", 77);
  put(&file, "u\x94", 2);
  put(&file,
      "h\x00h\x00"
      "eeu.",
      8);
  lade_snapshot *snapshot = finish(&file, LADE_OK, "");
  LADE_ASSERT(snapshot != NULL);
  LADE_EXPECT_EQ_SIZE(snapshot->events.count, 3);
  for (size_t i = 0; i < snapshot->events.count; i++) LADE_EXPECT_EQ_UINT(snapshot->events.rows[i].address, 77);
  lade_snapshot_destroy(snapshot);
}

LADE_TEST(PickleOfOthers, MayBeSetItemByItem) {
  script file = begin(2);
  put(&file, "}", 1);
  put_text(&file, "device_traces");
  put(&file, "]]}", 3);
  put_text(&file, "size");
  put(&file, "K\x05s", 3);
  put_key_text(&file, "action", "oom");
  put(&file, "s", 1);
  put_text(&file, "device_free");
  put(&file, "K\x09s", 3);
  put(&file, "aas.", 4);
  lade_snapshot *snapshot = finish(&file, LADE_OK, "");
  LADE_ASSERT(snapshot != NULL);
  LADE_ASSERT_EQ_SIZE(snapshot->events.count, 1);
  LADE_EXPECT_EQ_UINT(snapshot->events.rows[0].bytes, 5);
  LADE_EXPECT_EQ_UINT(snapshot->events.rows[0].address, 9);
  LADE_EXPECT_EQ_UINT(snapshot->events.rows[0].action, LADE_DEVICE_OOM);
  lade_snapshot_destroy(snapshot);
}

/* --- hazards ------------------------------------------------------------------------------------------------------------ */

/* HZ11: nothing in a snapshot is executed; what names code is refused by its name. */
LADE_TEST(Pickle, Hz11RefusesEveryOpcodeThatCallsOrNamesCode) {
  static const struct {
    int code;
    const char *name;
  } codes[] = {{'c', "GLOBAL"},      {0x93, "STACK_GLOBAL"}, {'R', "REDUCE"},          {'b', "BUILD"},
               {'i', "INST"},        {'o', "OBJ"},           {0x81, "NEWOBJ"},         {0x92, "NEWOBJ_EX"},
               {0x82, "EXT1"},       {0x83, "EXT2"},         {0x84, "EXT4"},           {'P', "PERSID"},
               {'Q', "BINPERSID"},   {0x8f, "EMPTY_SET"},    {0x90, "ADDITEMS"},       {0x91, "FROZENSET"},
               {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"},  {0x98, "READONLY_BUFFER"}};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    char message[64];
    script file = begin(4);
    put(&file, "}", 1);
    put_op(&file, codes[i].code);
    put(&file, "os\nsystem\n.", 11);
    snprintf(message, sizeof message, "FILE: byte 3: opcode %s,", codes[i].name);
    refuse(&file, LADE_ERR_INVALID_ARGUMENT, message);
  }
}

LADE_TEST(Pickle, RefusesWhatIsNone) {
  static const struct {
    const char *text;
    size_t bytes;
    const char *message;
  } files[] = {
      {"\x80\x01}.", 4, "byte 0: protocol 1; expected 2 to 5"},
      {"\x80\x06}.", 4, "byte 0: protocol 6"},
      {"\x80\x04\xff.", 4, "byte 2: opcode 0xff, which is none"},
      {"\x80\x04.", 3, "byte 2: nothing is left on the stack"},
      {"\x80\x04"
       "e.",
       4, "byte 2: the end of items that began nowhere"},
      {"\x80\x04"
       "h\x07.",
       5, "byte 2: memo number 7, which was never kept"},
      {"\x80\x04\x94.", 4, "byte 2: nothing is on the stack to be kept"},
      {"\x80\x04r\xff\xff\xff\xff.", 8, "nothing is on the stack"},
      {"\x80\x04Nr\xff\xff\xff\xff.", 9, "byte 3: memo number 4294967295 in a file of 9 bytes"},
      {"\x80\x04(Ne.", 6, "byte 4: items for what is no list"},
      {"\x80\x04}(Nu.", 7, "byte 5: a key without a value"},
      {"\x80\x04]N(u.", 7, "byte 5: items for what is no map"},
      {"\x80\x04\x8a\x0cxxxxxxxxxxxx.", 17, "byte 2: an integer of 12 bytes; at most 8"},
      {"\x80\x04\x8a\x09xxxxxxxxx.", 14, "byte 2: an integer of more than 64 bits"},
      {"\x80\x04N.", 4, "is no snapshot"},
      {"\x80\x04}.", 4, "is no snapshot"},
      {"\x80\x04]]"
       "a.",
       6, "segments has an element that is none"},
      {"\x80\x04}\x8c\x08segments\x8c\x01\x1bs.", 18, "segments is no list"},
      {"\x80\x04}\x8c\x06"
       "actionK\x01s.",
       15, "key 'action' is an integer; expected a text"},
  };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    script file = {NULL, 0, 0};
    put(&file, files[i].text, files[i].bytes);
    refuse(&file, LADE_ERR_INVALID_ARGUMENT, files[i].message);
  }
}

LADE_TEST(Pickle, RefusesEveryBeginningOfAFile) {
  size_t bytes;
  lade_snapshot *snapshot = sample_create(&sample_small), *read = NULL;
  LADE_ASSERT(snapshot != NULL);
  char *data = sample_write(snapshot, ladei_inspect_write_pickle, &bytes);
  for (size_t cut = 0; cut < bytes; cut += cut < 500 || cut > bytes - 200 ? 1 : 97) {
    char *part = malloc(cut + 1); /* so that a sanitiser sees a read behind it */
    memcpy(part, data, cut);
    LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, ladei_inspect_read_pickle(part, cut, "FILE", &read));
    free(part);
  }
  LADE_EXPECT(read == NULL);
  lade_snapshot_destroy(snapshot);
  free(data);
}

LADE_TEST(Pickle, TakesNoMemoryForSizesThatAreOnlyClaimed) {
  static const int codes[] = {0x8d, 0x8e, 0x95};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    script file = begin(4);
    put_little(&file, codes[i], 1ull << 60, 8);
    refuse(&file, LADE_ERR_TRUNCATED, "FILE: byte 11:");
  }
}

LADE_TEST(Pickle, RefusesDeepNests) {
  enum { DEPTH = 1000000 };
  static const struct {
    const char *text;
    size_t bytes;
  } nests[] = {{"](", 2}, {"]", 1}, {"}N", 2}, {"(", 1}};
  for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
    script file = begin(4);
    for (int depth = 0; depth < DEPTH; depth++) put(&file, nests[i].text, nests[i].bytes);
    refuse(&file, LADE_ERR_INVALID_ARGUMENT, "nested deeper than 1000 lists or maps");
  }
}

LADE_TEST(Pickle, GetsOverCyclesOfTheMemo) {
  script file = begin(4);
  put(&file,
      "]\x94h\x00"
      "a.",
      6);
  refuse(&file, LADE_ERR_INVALID_ARGUMENT, "segments has an element that is none");
  file = begin(4);
  put(&file, "}\x94", 2);
  put_text(&file, "device_traces");
  put(&file,
      "]\x94h\x01"
      "as.",
      7);
  refuse(&file, LADE_ERR_INVALID_ARGUMENT, "a trace has an element without the key 'action'");
  file = begin(4);
  put(&file, "}\x94", 2);
  put_text(&file, "lade");
  put(&file, "h\x00s", 3);
  put_text(&file, "segments");
  put(&file, "]s.", 3);
  refuse(&file, LADE_ERR_UNSUPPORTED, "lade: version 0");
}

/* References of 2 bytes to rows of 72; values of 16 bytes from opcodes of one. */
LADE_TEST(Pickle, BoundsTheMemoryOfAFile) {
  enum { TIMES = 5 << 20 };
  script file = begin(4);
  put(&file, "(", 1);
  for (int i = 0; i < TIMES; i++) put(&file, "N", 1);
  refuse(&file, LADE_ERR_LIMIT, "takes more than 2 x its size of memory");
  file = begin(4);
  put(&file, "}(", 2);
  put_text(&file, "device_traces");
  put(&file, "](](", 4);
  put(&file, "}(", 2);
  put_key_text(&file, "action", "alloc");
  put(&file, "u\x94", 2);
  for (int i = 0; i < TIMES / 4; i++) put(&file, "h\x00", 2);
  put(&file, "eeu.", 4);
  refuse(&file, LADE_ERR_LIMIT, "its size of memory");
}

/* Every file of one changed byte is read or refused. */
LADE_TEST(Pickle, GetsOverEveryChangedByte) {
  static const sample_shape tiny = {
      .seed = 3, .segments = 1, .blocks = 3, .events = 12, .stacks = 2, .frames = 2, .devices = 2, .pools = 1};
  size_t bytes, refused = 0;
  lade_snapshot *snapshot = sample_create(&tiny);
  LADE_ASSERT(snapshot != NULL);
  char *data = sample_write(snapshot, ladei_inspect_write_pickle, &bytes);
  for (size_t i = 0; i < bytes; i++) {
    lade_snapshot *read = NULL;
    char kept = data[i];
    data[i] = (char)(kept ^ (1 << i % 8));
    if (ladei_inspect_read_pickle(data, bytes, "FILE", &read) != LADE_OK) refused++;
    lade_snapshot_destroy(read);
    data[i] = kept;
  }
  LADE_EXPECT_GT_SIZE(refused, 100);
  lade_snapshot_destroy(snapshot);
  free(data);
}
