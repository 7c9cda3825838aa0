/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a graph-tree trace, plain or as words of its language (first byte odd), read to its end or its first error: what the
 * reader gives keeps to the format, names are what was declared before, lines ascend, and an error names its line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/graph/trees/trace.h"

enum { TEXT_MAX = 4096 };

static const char *const words[] = {
    "tree warmup:0\n",
    "tree max_nodes:2,max_rerecords:18446744073709551615\n",
    "memory",
    "memory p 8\n",
    "memory auto 268435456\n",
    "function",
    "function f forward\n",
    "function f backward s m\n",
    "function g inference -\n",
    "alloc",
    "alloc 0 8\n",
    "alloc 1 512*\n",
    "free",
    "free 0\n",
    "drop 0\n",
    "mutate",
    "mutate 1\n",
    "out local 1\n",
    "out input",
    "out integer 18446744073709551615\n",
    "end\n",
    "end\n",
    "run r f 1 p p\n",
    "run s g 4294967295 auto auto\n",
    "run",
    "auto",
    "r.0",
    "r.0!",
    "s.1",
    "release r.0\n",
    "retain",
    "step\n",
    "backward_done\n",
    "fail callback\n",
    "fail",
    "read r.0\n",
    "snapshot a\n",
    "p",
    "0",
    "1",
    "8",
    "18446744073709551616",
    "#",
    "\n",
    "\n",
    "\n",
    "\t",
    "lade-trees 1\n",
    "-",
    "*",
};

static size_t text_make(const uint8_t *data, size_t size, char text[TEXT_MAX]) {
  size_t length = 0;
  bool of_words = size > 0 && data[0] % 2 == 1;
  if (of_words) length = (size_t)sprintf(text, "lade-trees 1\n");
  for (size_t i = 1; i < size && length + 64 < TEXT_MAX; i++)
    if (of_words)
      length += (size_t)sprintf(text + length, "%s ", words[data[i] % (sizeof words / sizeof words[0])]);
    else
      text[length++] = (char)data[i];
  return length;
}

static bool bytes_good(uint64_t bytes) { return bytes >= TREES_BYTES_MIN && bytes <= TREES_BYTES_MAX; }

static void function_check(const trees_function *f) {
  FUZZ_CHECK(strlen(f->name) >= 1 && strlen(f->name) <= TREES_NAME_MAX);
  for (size_t i = 0; i < f->step_count; i++) {
    const trees_step *step = &f->steps[i];
    bool of_locals = step->kind == TREES_ALLOC || step->kind == TREES_FREE;
    FUZZ_CHECK(step->index < (of_locals ? f->local_count : f->input_count));
    FUZZ_CHECK(step->kind != TREES_ALLOC || bytes_good(step->bytes));
    FUZZ_CHECK(step->kind != TREES_MUTATE || (f->flags[step->index] & TREES_MUTATED) != 0);
  }
  for (size_t i = 0; i < f->output_count; i++) {
    const trees_output *output = &f->outputs[i];
    FUZZ_CHECK(output->kind != TREES_OUT_LOCAL || output->index < f->local_count);
    FUZZ_CHECK(output->kind != TREES_OUT_INPUT || output->index < f->input_count);
  }
}

/* What the items so far have declared. */
typedef struct declared {
  size_t memories, functions, runs, items;
  uint64_t line;
} declared;

static void run_check(const trees_item *item, const declared *d) {
  FUZZ_CHECK(item->key >= 1 && item->key <= UINT32_MAX);
  FUZZ_CHECK(item->function->times_key_max * item->key <= TREES_BYTES_MAX);
  for (size_t i = 0; i < item->function->input_count; i++) {
    const trees_argument *argument = &item->arguments[i];
    FUZZ_CHECK(!argument->is_memory || (argument->memory < d->memories && !argument->taken));
    FUZZ_CHECK(argument->is_memory || argument->output.run < d->runs);
  }
}

static void item_check(const trees_item *item, declared *d) {
  FUZZ_CHECK(item->line > d->line && item->line > 1);
  d->line = item->line;
  switch (item->kind) {
  case TREES_TREE: FUZZ_CHECK(d->items == 0 && item->options.warmup <= 1 && item->options.rerecord <= 1); break;
  case TREES_MEMORY: FUZZ_CHECK(bytes_good(item->bytes)); break;
  case TREES_FUNCTION:
    FUZZ_CHECK(item->function->number == d->functions);
    function_check(item->function);
    break;
  case TREES_RUN: run_check(item, d); break;
  case TREES_RELEASE:
  case TREES_RETAIN:
  case TREES_READ: FUZZ_CHECK(item->output.run < d->runs); break;
  case TREES_FAIL: FUZZ_CHECK(item->fault != 0); break;
  default: FUZZ_CHECK(item->kind < TREES_KIND_COUNT);
  }
  d->memories += item->kind == TREES_MEMORY;
  d->functions += item->kind == TREES_FUNCTION;
  d->runs += item->kind == TREES_RUN;
  d->items++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[TEXT_MAX];
  size_t length = text_make(data, size, text);
  FILE *file = length > 0 ? fmemopen(text, length, "r") : fopen("/dev/null", "r");
  if (file == NULL) return 0;
  trees_reader *reader = trees_reader_create(file, "t");
  declared d = {0, 0, 0, 0, 0};
  trees_item item;
  read_result result;
  while ((result = trees_read(reader, &item)) == READ_ITEM) item_check(&item, &d);
  if (result == READ_BAD) {
    const char *error = trees_error(reader);
    FUZZ_CHECK(strncmp(error, "t:", 2) == 0 && strtoull(error + 2, NULL, 10) > d.line);
    FUZZ_CHECK(trees_read(reader, &item) == READ_BAD);
  }
  trees_reader_destroy(reader);
  fclose(file);
  return 0;
}
