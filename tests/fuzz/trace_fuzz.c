/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as an allocation trace, plain or as words of its language (first byte odd), read to its end or its first error:
 * what the reader gives is within the ranges of the format, lines ascend, and an error names its line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "tests/fuzz/fuzz.h"
#include "tools/replay/trace.h"

enum { TEXT_MAX = 4096 };

static const char *const words[] = {
    "alloc",
    "free",
    "record",
    "complete",
    "empty_cache",
    "fraction",
    "pool_begin",
    "pool_end",
    "pool_release",
    "checkpoint",
    "restore",
    "pool_create",
    "pool_trim",
    "no_split",
    "use_on_oom",
    "reset_peak",
    "reset_accumulated",
    "halloc",
    "hfree",
    "hrecord",
    "hempty",
    "snapshot",
    "device",
    "conf",
    "stream",
    "stream 7\n",
    "at",
    "at 2097152\n",
    "at 18446744073707454464\nalloc 1 1 0\n",
    "0",
    "1",
    "7",
    "18446744073709551615",
    "18446744073709551616",
    "1152921504606846976",
    "0.5",
    "1.0",
    "1.5",
    "#",
    "\n",
    "\n",
    "\n",
    "\t",
    "lade-trace 1\n",
    "-",
    "x",
};

static size_t text_make(const uint8_t *data, size_t size, char text[TEXT_MAX]) {
  size_t length = 0;
  bool of_words = size > 0 && data[0] % 2 == 1;
  if (of_words) length = (size_t)sprintf(text, "lade-trace %d\n", 1 + (data[0] >> 1) % 2);
  for (size_t i = 1; i < size && length + 40 < TEXT_MAX; i++)
    if (of_words)
      length += (size_t)sprintf(text + length, "%s ", words[data[i] % (sizeof words / sizeof words[0])]);
    else
      text[length++] = (char)data[i];
  return length;
}

static void op_check(const trace_op *op, uint64_t last_line) {
  FUZZ_CHECK(op->line > last_line && op->line > 1);
  FUZZ_CHECK(op->kind != TRACE_DEVICE || (op->number[0] >= 1 && op->number[0] < LADEI_SIZE_LIMIT));
  FUZZ_CHECK(op->kind != TRACE_STREAM || op->number[0] != 0);
  FUZZ_CHECK(op->kind != TRACE_HALLOC || op->number[1] < LADEI_SIZE_LIMIT);
  FUZZ_CHECK(op->kind != TRACE_AT);
  FUZZ_CHECK(op->at % TRACE_ADDRESS_ALIGN == 0 && (op->at == 0 || op->kind == TRACE_ALLOC));
  FUZZ_CHECK(op->fraction >= 0.0 && op->fraction <= 1.0);
  FUZZ_CHECK((op->kind == TRACE_POOL_BEGIN) == (op->stream_count > 0));
  FUZZ_CHECK((op->kind == TRACE_CONF || op->kind == TRACE_SNAPSHOT) == (op->text != NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[TEXT_MAX];
  size_t length = text_make(data, size, text);
  FILE *file = length > 0 ? fmemopen(text, length, "r") : fopen("/dev/null", "r");
  if (file == NULL) return 0;
  trace_reader *reader = trace_reader_create(file, "t");
  uint64_t last_line = 0;
  trace_op op;
  read_result result;
  while ((result = trace_read(reader, &op)) == READ_ITEM) {
    op_check(&op, last_line);
    last_line = op.line;
  }
  if (result == READ_BAD) {
    const char *error = trace_error(reader);
    FUZZ_CHECK(strncmp(error, "t:", 2) == 0 && strtoull(error + 2, NULL, 10) > last_line);
    FUZZ_CHECK(trace_read(reader, &op) == READ_BAD);
  }
  trace_reader_destroy(reader);
  fclose(file);
  return 0;
}
