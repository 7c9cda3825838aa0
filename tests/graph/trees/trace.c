/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of graph-tree traces: a line is split into fields and handed to the function of its word.
 *
 * G1  Nothing is read after an error was noted (R1 of tools/common/reader_frame.h).
 * G2  `function` is the one whose body is being read; NULL between functions. It is listed when its `end` comes.
 * G3  A name is in its table from the line that declares it on, a run's also if the run fails.
 * Locks: none; one thread reads.
 */
#include "tests/graph/trees/trace.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "graph/tree/tree.h"

/* A thing with a name. */
typedef struct trees_name {
  char name[TREES_NAME_MAX + 1];
  size_t index;             /* of a memory, of a run */
  trees_function *function; /* of a function, of a run */
  UT_hash_handle hh;
} trees_name;

/* A local of the function that is being read. */
typedef struct trees_local {
  uint64_t number;
  size_t index;
  bool freed;
  UT_hash_handle hh;
} trees_local;

struct trees_reader {
  reader_frame frame;
  trees_name *memories, *functions, *runs;
  size_t function_count; /* declared; one that is being read included */
  trees_function *function;
  trees_local *locals;
  bool *dropped; /* of each of its inputs */
  trees_argument *arguments;
  size_t argument_room;
  bool begun; /* a line beside the first has been read */
};

const char *trees_error(const trees_reader *reader) { return reader_frame_error(&reader->frame); }
reader_frame *trees_frame(trees_reader *reader) { return &reader->frame; }

trees_reader *trees_reader_create(FILE *file, const char *name) {
  trees_reader *reader = calloc(1, sizeof *reader);
  if (reader == NULL) return NULL;
  if (reader_frame_open(&reader->frame, file, name)) return reader;
  trees_reader_destroy(reader);
  return NULL;
}

static void function_destroy(trees_function *function) {
  if (function == NULL) return;
  free(function->flags);
  free(function->steps);
  free(function->locals);
  free(function->outputs);
  free(function);
}

static void names_destroy(trees_name **table, bool functions) {
  trees_name *entry, *next;
  HASH_ITER (hh, *table, entry, next) {
    HASH_DEL(*table, entry);
    if (functions) function_destroy(entry->function);
    free(entry);
  }
}

static void locals_destroy(trees_reader *reader) {
  trees_local *entry, *next;
  HASH_ITER (hh, reader->locals, entry, next) {
    HASH_DEL(reader->locals, entry);
    free(entry);
  }
}

void trees_reader_destroy(trees_reader *reader) {
  if (reader == NULL) return;
  names_destroy(&reader->memories, false);
  names_destroy(&reader->runs, false);
  names_destroy(&reader->functions, true);
  locals_destroy(reader);
  function_destroy(reader->function);
  free(reader->dropped);
  free(reader->arguments);
  reader_frame_close(&reader->frame);
  free(reader);
}

#define LINE_REFUSE(reader, ...)     READER_REFUSE(&(reader)->frame, __VA_ARGS__)
#define LINE_NO_MEMORY(reader, what) READER_FAIL(&(reader)->frame, "no memory for %s", what)

/* Ends the calling function where a step of it fails. */
#define READ_OR_RETURN(call)                                                                                           \
  do {                                                                                                                 \
    read_result step_result = (call);                                                                                  \
    if (step_result != READ_ITEM) return step_result;                                                                  \
  } while (0)

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

static read_result fields_want(trees_reader *reader, size_t count) {
  if (reader->frame.fields.count - 1 == count) return READ_ITEM;
  return LINE_REFUSE(reader, "wrong number of fields: \"%s\" takes %zu, here are %zu", reader->frame.fields.list[0],
                     count, reader->frame.fields.count - 1);
}

static read_result number_read(trees_reader *reader, const char *text, uint64_t least, uint64_t most, uint64_t *out) {
  if (!line_number_parse(text, out)) return LINE_REFUSE(reader, "malformed number \"%s\"", text);
  if (*out >= least && *out <= most) return READ_ITEM;
  return LINE_REFUSE(reader, "value out of range: %s; expected %llu to %llu", text, (unsigned long long)least,
                     (unsigned long long)most);
}

static bool name_good(const char *text, size_t length) {
  if (length == 0 || length > TREES_NAME_MAX) return false;
  for (size_t i = 0; i < length; i++) {
    char c = text[i];
    bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!good) return false;
  }
  return true;
}

static read_result name_check(trees_reader *reader, const char *text) {
  if (name_good(text, strlen(text))) return READ_ITEM;
  return LINE_REFUSE(reader, "malformed name \"%s\": expected 1 to 32 letters, digits or _", text);
}

static trees_name *name_find(trees_name *table, const char *text, size_t length) {
  trees_name *found = NULL;
  HASH_FIND(hh, table, text, length, found);
  return found;
}

/* A name that is new in its table. */
static read_result name_new(trees_reader *reader, trees_name *table, const char *what, const char *text) {
  READ_OR_RETURN(name_check(reader, text));
  if (name_find(table, text, strlen(text)) == NULL) return READ_ITEM;
  return LINE_REFUSE(reader, "%s \"%s\" a second time", what, text);
}

static read_result name_add(trees_reader *reader, trees_name **table, const char *text, trees_function *function) {
  trees_name *entry = calloc(1, sizeof *entry);
  if (entry == NULL) return LINE_NO_MEMORY(reader, "a name");
  memcpy(entry->name, text, strlen(text));
  entry->index = HASH_COUNT(*table);
  entry->function = function;
  HASH_ADD(hh, *table, name[0], strlen(entry->name), entry);
  return READ_ITEM;
}

/* "R.O", `length` characters of it. */
static read_result reference_read(trees_reader *reader, const char *text, size_t length, trees_reference *out) {
  char number[32] = "";
  const char *dot = memchr(text, '.', length);
  if (dot == NULL) return LINE_REFUSE(reader, "\"%.*s\" is no output: expected RUN.OUTPUT", (int)length, text);
  size_t digits = length - (size_t)(dot - text) - 1;
  if (digits < sizeof number) memcpy(number, dot + 1, digits);
  uint64_t output = 0;
  READ_OR_RETURN(number_read(reader, number, 0, UINT64_MAX, &output));
  const trees_name *run = name_find(reader->runs, text, (size_t)(dot - text));
  if (run == NULL) return LINE_REFUSE(reader, "unknown run \"%.*s\"", (int)(dot - text), text);
  if (output >= run->function->output_count)
    return LINE_REFUSE(reader, "unknown output %llu: run \"%s\" has %zu", (unsigned long long)output, run->name,
                       run->function->output_count);
  *out = (trees_reference){run->index, (size_t)output};
  return READ_ITEM;
}

/* Room for one element more in an array of `count`, whose room is the next power of two. */
static bool array_grow(void *array, size_t count, size_t size) {
  void **place = array;
  if (count != 0 && (count & (count - 1)) != 0) return true;
  void *larger = realloc(*place, (count == 0 ? 1 : 2 * count) * size);
  if (larger == NULL) return false;
  *place = larger;
  return true;
}

/* ---- Declarations ------------------------------------------------------------------------------------------------ */

/* "KEY:VALUE", a part of the line that it may write into. */
static read_result option_read(trees_reader *reader, char *text, trees_options *options, unsigned *seen) {
  const struct {
    const char *name;
    uint64_t most;
    uint64_t *value;
  } keys[] = {{"warmup", 1, &options->warmup},
              {"rerecord", 1, &options->rerecord},
              {"max_nodes", UINT64_MAX, &options->max_nodes},
              {"max_rerecords", UINT64_MAX, &options->max_rerecords}};
  char *colon = strchr(text, ':');
  if (colon == NULL) return LINE_REFUSE(reader, "malformed setting \"%s\": expected KEY:VALUE", text);
  *colon = '\0';
  for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    if (strcmp(text, keys[i].name) != 0) continue;
    if ((*seen >> i & 1) != 0) return LINE_REFUSE(reader, "key \"%s\" a second time", text);
    *seen |= 1u << i;
    return number_read(reader, colon + 1, 0, keys[i].most, keys[i].value);
  }
  return LINE_REFUSE(reader, "unknown key \"%s\"", text);
}

static read_result tree_read(trees_reader *reader, trees_item *out) {
  READ_OR_RETURN(fields_want(reader, 1));
  out->options = (trees_options){1, 1, 0, 128};
  unsigned seen = 0;
  char *at = reader->frame.fields.list[1];
  for (;;) {
    char *comma = strchr(at, ',');
    if (comma != NULL) *comma = '\0';
    READ_OR_RETURN(option_read(reader, at, &out->options, &seen));
    if (comma == NULL) return READ_ITEM;
    at = comma + 1;
  }
}

static read_result memory_read(trees_reader *reader, trees_item *out) {
  READ_OR_RETURN(fields_want(reader, 2));
  out->name = reader->frame.fields.list[1];
  READ_OR_RETURN(name_new(reader, reader->memories, "memory", out->name));
  READ_OR_RETURN(number_read(reader, reader->frame.fields.list[2], TREES_BYTES_MIN, TREES_BYTES_MAX, &out->bytes));
  return name_add(reader, &reader->memories, out->name, NULL);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static read_result mode_read(trees_reader *reader, const char *text, trees_mode *out) {
  static const char *const names[] = {"inference", "forward", "backward"};
  for (unsigned i = 0; i < 3; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *out = (trees_mode)i;
    return READ_ITEM;
  }
  return LINE_REFUSE(reader, "unknown mode \"%s\": expected forward, backward or inference", text);
}

static read_result flag_read(trees_reader *reader, const char *text, uint32_t *out) {
  static const char *const names[] = {"-", "s", "m", "sm"};
  for (uint32_t i = 0; i < 4; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *out = i;
    return READ_ITEM;
  }
  return LINE_REFUSE(reader, "unknown flag \"%s\": expected -, s, m or sm", text);
}

static read_result function_begin(trees_reader *reader) {
  if (reader->frame.fields.count < 3)
    return LINE_REFUSE(reader, "wrong number of fields: \"function\" takes 2 or more");
  const char *name = reader->frame.fields.list[1];
  READ_OR_RETURN(name_new(reader, reader->functions, "function", name));
  size_t inputs = reader->frame.fields.count - 3;
  trees_function *function = calloc(1, sizeof *function);
  if (function == NULL) return LINE_NO_MEMORY(reader, "a function");
  reader->function = function;
  memcpy(function->name, name, strlen(name));
  function->number = reader->function_count++;
  function->input_count = inputs;
  function->flags = calloc(inputs + 1, sizeof *function->flags);
  free(reader->dropped);
  reader->dropped = calloc(inputs + 1, sizeof *reader->dropped);
  if (function->flags == NULL || reader->dropped == NULL) return LINE_NO_MEMORY(reader, "a function's inputs");
  READ_OR_RETURN(mode_read(reader, reader->frame.fields.list[2], &function->mode));
  for (size_t i = 0; i < inputs; i++)
    READ_OR_RETURN(flag_read(reader, reader->frame.fields.list[3 + i], &function->flags[i]));
  return READ_ITEM;
}

static read_result step_add(trees_reader *reader, const trees_step *step) {
  trees_function *function = reader->function;
  if (function->output_count > 0) return LINE_REFUSE(reader, "\"%s\" after \"out\"", reader->frame.fields.list[0]);
  if (!array_grow(&function->steps, function->step_count, sizeof *step)) return LINE_NO_MEMORY(reader, "a body");
  function->steps[function->step_count++] = *step;
  return READ_ITEM;
}

/* "BYTES" or "BYTES*", which it may write into. */
static read_result body_bytes_read(trees_reader *reader, char *text, trees_step *step) {
  size_t length = strlen(text);
  step->times_key = length > 0 && text[length - 1] == '*';
  if (step->times_key) text[length - 1] = '\0';
  READ_OR_RETURN(number_read(reader, text, TREES_BYTES_MIN, TREES_BYTES_MAX, &step->bytes));
  if (step->times_key && step->bytes > reader->function->times_key_max) reader->function->times_key_max = step->bytes;
  return READ_ITEM;
}

static read_result body_alloc(trees_reader *reader) {
  trees_function *function = reader->function;
  trees_step step = {.kind = TREES_ALLOC, .index = function->local_count};
  uint64_t number = 0;
  trees_local *entry = NULL;
  READ_OR_RETURN(fields_want(reader, 2));
  READ_OR_RETURN(number_read(reader, reader->frame.fields.list[1], 0, UINT64_MAX, &number));
  READ_OR_RETURN(body_bytes_read(reader, reader->frame.fields.list[2], &step));
  HASH_FIND(hh, reader->locals, &number, sizeof number, entry);
  if (entry != NULL) return LINE_REFUSE(reader, "local %llu a second time", (unsigned long long)number);
  READ_OR_RETURN(step_add(reader, &step));
  if (!array_grow(&function->locals, function->local_count, sizeof number)) return LINE_NO_MEMORY(reader, "a local");
  entry = calloc(1, sizeof *entry);
  if (entry == NULL) return LINE_NO_MEMORY(reader, "a local");
  function->locals[function->local_count++] = number;
  entry->number = number;
  entry->index = step.index;
  HASH_ADD(hh, reader->locals, number, sizeof entry->number, entry);
  return READ_ITEM;
}

/* A local that is not freed. */
static read_result local_read(trees_reader *reader, const char *text, trees_local **out) {
  uint64_t number = 0;
  READ_OR_RETURN(number_read(reader, text, 0, UINT64_MAX, &number));
  HASH_FIND(hh, reader->locals, &number, sizeof number, *out);
  if (*out != NULL && !(*out)->freed) return READ_ITEM;
  return LINE_REFUSE(reader, "local %s is %s", text, *out == NULL ? "unknown" : "freed");
}

static read_result body_free(trees_reader *reader) {
  trees_local *entry = NULL;
  READ_OR_RETURN(fields_want(reader, 1));
  READ_OR_RETURN(local_read(reader, reader->frame.fields.list[1], &entry));
  READ_OR_RETURN(step_add(reader, &(trees_step){.kind = TREES_FREE, .index = entry->index}));
  entry->freed = true;
  return READ_ITEM;
}

/* An input that was not dropped. */
static read_result input_read(trees_reader *reader, const char *text, size_t *out) {
  uint64_t index = 0;
  READ_OR_RETURN(number_read(reader, text, 0, UINT64_MAX, &index));
  if (index >= reader->function->input_count)
    return LINE_REFUSE(reader, "input %s is unknown: the function has %zu", text, reader->function->input_count);
  if (reader->dropped[index]) return LINE_REFUSE(reader, "input %s is dropped", text);
  *out = (size_t)index;
  return READ_ITEM;
}

static read_result body_drop(trees_reader *reader) {
  size_t index = 0;
  READ_OR_RETURN(fields_want(reader, 1));
  READ_OR_RETURN(input_read(reader, reader->frame.fields.list[1], &index));
  READ_OR_RETURN(step_add(reader, &(trees_step){.kind = TREES_DROP, .index = index}));
  reader->dropped[index] = true;
  return READ_ITEM;
}

static read_result body_mutate(trees_reader *reader) {
  size_t index = 0;
  READ_OR_RETURN(fields_want(reader, 1));
  READ_OR_RETURN(input_read(reader, reader->frame.fields.list[1], &index));
  if ((reader->function->flags[index] & TREES_MUTATED) == 0)
    return LINE_REFUSE(reader, "input %zu is not flagged m", index);
  return step_add(reader, &(trees_step){.kind = TREES_MUTATE, .index = index});
}

static read_result output_read(trees_reader *reader, trees_output *out) {
  const char *kind = reader->frame.fields.list[1], *text = reader->frame.fields.list[2];
  if (strcmp(kind, "local") == 0) {
    trees_local *entry = NULL;
    READ_OR_RETURN(local_read(reader, text, &entry));
    *out = (trees_output){.kind = TREES_OUT_LOCAL, .index = entry->index};
    return READ_ITEM;
  }
  if (strcmp(kind, "input") == 0) {
    out->kind = TREES_OUT_INPUT;
    return input_read(reader, text, &out->index);
  }
  if (strcmp(kind, "integer") != 0)
    return LINE_REFUSE(reader, "unknown output \"%s\": expected local, input or integer", kind);
  out->kind = TREES_OUT_INTEGER;
  return number_read(reader, text, 0, UINT64_MAX, &out->integer);
}

static read_result body_out(trees_reader *reader) {
  trees_function *function = reader->function;
  trees_output output = {0};
  READ_OR_RETURN(fields_want(reader, 2));
  READ_OR_RETURN(output_read(reader, &output));
  if (!array_grow(&function->outputs, function->output_count, sizeof output))
    return LINE_NO_MEMORY(reader, "an output");
  function->outputs[function->output_count++] = output;
  return READ_ITEM;
}

/* READ_ITEM, and `function` NULL, at its end. */
static read_result body_line(trees_reader *reader, trees_item *out) {
  static const struct {
    const char *word;
    read_result (*read)(trees_reader *reader);
  } words[] = {
      {"alloc", body_alloc}, {"free", body_free}, {"drop", body_drop}, {"mutate", body_mutate}, {"out", body_out}};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strcmp(reader->frame.fields.list[0], words[i].word) == 0) return words[i].read(reader);
  if (strcmp(reader->frame.fields.list[0], "end") != 0)
    return LINE_REFUSE(reader, "unknown operation \"%s\" in a function", reader->frame.fields.list[0]);
  READ_OR_RETURN(fields_want(reader, 0));
  trees_function *function = reader->function;
  READ_OR_RETURN(name_add(reader, &reader->functions, function->name, function));
  locals_destroy(reader);
  reader->function = NULL;
  out->function = function;
  return READ_ITEM;
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static read_result argument_read(trees_reader *reader, const char *text, trees_argument *out) {
  size_t length = strlen(text);
  if (strchr(text, '.') == NULL) {
    const trees_name *memory = name_find(reader->memories, text, length);
    if (memory == NULL) return LINE_REFUSE(reader, "unknown memory \"%s\"", text);
    *out = (trees_argument){.is_memory = true, .memory = memory->index};
    return READ_ITEM;
  }
  *out = (trees_argument){.taken = text[length - 1] == '!'};
  return reference_read(reader, text, length - (out->taken ? 1 : 0), &out->output);
}

static read_result arguments_read(trees_reader *reader, size_t first, trees_item *out) {
  size_t count = reader->frame.fields.count - first;
  if (count != out->function->input_count)
    return LINE_REFUSE(reader, "wrong number of inputs: function \"%s\" has %zu, here are %zu", out->function->name,
                       out->function->input_count, count);
  if (count > reader->argument_room) {
    trees_argument *larger = realloc(reader->arguments, count * sizeof *larger);
    if (larger == NULL) return LINE_NO_MEMORY(reader, "the inputs of a run");
    reader->arguments = larger;
    reader->argument_room = count;
  }
  for (size_t i = 0; i < count; i++)
    READ_OR_RETURN(argument_read(reader, reader->frame.fields.list[first + i], &reader->arguments[i]));
  out->arguments = reader->arguments;
  return READ_ITEM;
}

static read_result run_read(trees_reader *reader, trees_item *out) {
  char **fields = reader->frame.fields.list;
  if (reader->frame.fields.count < 4) return LINE_REFUSE(reader, "wrong number of fields: \"run\" takes 3 or more");
  out->name = fields[1];
  READ_OR_RETURN(name_new(reader, reader->runs, "run", out->name));
  const trees_name *function = name_find(reader->functions, fields[2], strlen(fields[2]));
  if (function == NULL) return LINE_REFUSE(reader, "unknown function \"%s\"", fields[2]);
  out->function = function->function;
  READ_OR_RETURN(number_read(reader, fields[3], 1, UINT32_MAX, &out->key));
  out->automatic = reader->frame.fields.count > 4 && strcmp(fields[4], "auto") == 0;
  READ_OR_RETURN(arguments_read(reader, out->automatic ? 5 : 4, out));
  if (out->function->times_key_max * out->key > TREES_BYTES_MAX)
    return LINE_REFUSE(reader, "a local of %llu times %llu bytes: expected at most %llu",
                       (unsigned long long)out->function->times_key_max, (unsigned long long)out->key,
                       (unsigned long long)TREES_BYTES_MAX);
  return name_add(reader, &reader->runs, out->name, function->function);
}

/* ---- Other lines ------------------------------------------------------------------------------------------------- */

static read_result function_read(trees_reader *reader, trees_item *out) {
  (void)out;
  return function_begin(reader);
}

static read_result reference_item_read(trees_reader *reader, trees_item *out) {
  READ_OR_RETURN(fields_want(reader, 1));
  out->name = reader->frame.fields.list[1];
  return reference_read(reader, out->name, strlen(out->name), &out->output);
}

static read_result mark_read(trees_reader *reader, trees_item *out) {
  (void)out;
  return fields_want(reader, 0);
}

static read_result fail_read(trees_reader *reader, trees_item *out) {
  static const struct {
    const char *name;
    uint32_t fault;
  } ops[] = {{"callback", LADEI_TREE_FAULT_CALLBACK},
             {"instantiate", LADEI_TREE_FAULT_INSTANTIATE},
             {"checkpoint_get", LADEI_TREE_FAULT_CHECKPOINT_GET},
             {"checkpoint_set", LADEI_TREE_FAULT_CHECKPOINT_SET},
             {"copy", LADEI_TREE_FAULT_COPY},
             {"launch", LADEI_TREE_FAULT_LAUNCH}};
  READ_OR_RETURN(fields_want(reader, 1));
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    if (strcmp(reader->frame.fields.list[1], ops[i].name) != 0) continue;
    out->fault = ops[i].fault;
    return READ_ITEM;
  }
  return LINE_REFUSE(reader, "unknown op \"%s\"", reader->frame.fields.list[1]);
}

static read_result snapshot_read(trees_reader *reader, trees_item *out) {
  READ_OR_RETURN(fields_want(reader, 1));
  out->name = reader->frame.fields.list[1];
  return name_check(reader, out->name);
}

static read_result item_line(trees_reader *reader, trees_item *out) {
  static const struct {
    const char *word;
    read_result (*read)(trees_reader *reader, trees_item *out);
  } words[TREES_KIND_COUNT] = {
      [TREES_TREE] = {"tree", tree_read},
      [TREES_MEMORY] = {"memory", memory_read},
      [TREES_FUNCTION] = {"function", function_read},
      [TREES_RUN] = {"run", run_read},
      [TREES_RELEASE] = {"release", reference_item_read},
      [TREES_RETAIN] = {"retain", reference_item_read},
      [TREES_STEP] = {"step", mark_read},
      [TREES_BACKWARD_DONE] = {"backward_done", mark_read},
      [TREES_FAIL] = {"fail", fail_read},
      [TREES_READ] = {"read", reference_item_read},
      [TREES_SNAPSHOT] = {"snapshot", snapshot_read},
  };
  bool first = !reader->begun;
  reader->begun = true;
  for (int kind = 0; kind < TREES_KIND_COUNT; kind++) {
    if (strcmp(reader->frame.fields.list[0], words[kind].word) != 0) continue;
    if (kind == TREES_TREE && !first) return LINE_REFUSE(reader, "\"tree\" is not the first line after the header");
    *out = (trees_item){.kind = (trees_item_kind)kind, .line = reader->frame.line_number};
    return words[kind].read(reader, out);
  }
  return LINE_REFUSE(reader, "unknown operation \"%s\"", reader->frame.fields.list[0]);
}

/* The next line in fields, empty ones included; READ_END after the last. */
static read_result line_next(trees_reader *reader) {
  char *line = NULL;
  size_t length = 0;
  READ_OR_RETURN(reader_frame_line(&reader->frame, &line, &length));
  return reader_frame_cut(&reader->frame, line, length);
}

read_result trees_read(trees_reader *reader, trees_item *out) {
  if (reader->frame.outcome != READ_ITEM) return reader->frame.outcome;
  unsigned version;
  if (reader->frame.line_number == 0) READ_OR_RETURN(reader_frame_header(&reader->frame, "lade-trees", 1, &version));
  for (;;) {
    read_result result = line_next(reader);
    if (result == READ_END && reader->function != NULL) return LINE_REFUSE(reader, "\"end\" is missing");
    if (result != READ_ITEM) return result;
    if (reader->frame.fields.count == 0) continue;
    bool in_function = reader->function != NULL;
    READ_OR_RETURN(in_function ? body_line(reader, out) : item_line(reader, out));
    if (reader->function == NULL) return READ_ITEM;
  }
}
