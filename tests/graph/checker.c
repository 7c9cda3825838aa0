/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs: model in checker.h.
 *
 * A program has some functions and a step: a list of places, each with a call or two that may stand there. The step is run again and
 * again with small changes, so that recordings match, miss for every reason, and paths end in every way.
 */
#include "tests/graph/checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/graph.h"
#include "tests/graph/trees/session.h"
#include "tests/support/random.h"

enum { FUNCTIONS = 6, INPUTS = 4, STEPS = 8, LOCALS = 8, OUTPUTS = 4, PLACES = 6, CHOICES = 3, MEMORIES = 4, BACK = 8 };

typedef struct checker_source {
  bool memory;
  size_t index; /* of the memory, or of the output */
  size_t back;  /* runs before this one */
  bool taken;
} checker_source;

typedef struct checker_call {
  size_t function;
  uint64_t key;
  bool automatic;
  size_t release; /* so many runs back, outputs are released afterwards; 0: none */
  checker_source sources[INPUTS];
} checker_call;

typedef struct checker_function {
  trees_function f;
  uint32_t flags[INPUTS];
  trees_step steps[STEPS];
  uint64_t locals[LOCALS];
  trees_output outputs[OUTPUTS];
} checker_function;

typedef struct checker {
  support_random random;
  trees_reader *reader;
  session *session;
  FILE *text;
  uint64_t line;
  checker_function functions[FUNCTIONS];
  size_t function_count, memory_count, run_count;
  checker_call calls[PLACES][CHOICES];
  size_t choices[PLACES], place_count;
  unsigned percent_foreign, percent_taken, percent_change, percent_release, percent_mutated, percent_auto, percent_fail;
  unsigned percent_step, percent_clear;
} checker;

static bool chance(checker *c, unsigned percent) { return support_random_below(&c->random, 100) < percent; }
static size_t below(checker *c, size_t limit) { return (size_t)support_random_below(&c->random, limit); }

static unsigned one_of(checker *c, unsigned a, unsigned b, unsigned d) {
  const unsigned choices[] = {a, b, d};
  return choices[below(c, 3)];
}

/* ---- Items, and their text --------------------------------------------------------------------------------------- */

/* The item is done, and stands in the text. */
static bool item_do(checker *c, trees_item *item) {
  item->line = ++c->line;
  if (session_item(c->session, item) == READ_ITEM) return true;
  c->line--;
  return false;
}

static void options_add(checker *c) {
  trees_item item = {.kind = TREES_TREE, .options = {1, 1, 0, 128}};
  if (chance(c, 70)) item.options.warmup = 0;
  if (chance(c, 10)) item.options.rerecord = 0;
  if (chance(c, 30)) item.options.max_nodes = 1 + below(c, 6);
  if (chance(c, 30)) item.options.max_rerecords = below(c, 3);
  if (item_do(c, &item))
    fprintf(c->text, "tree warmup:%" PRIu64 ",rerecord:%" PRIu64 ",max_nodes:%" PRIu64 ",max_rerecords:%" PRIu64 "\n",
            item.options.warmup, item.options.rerecord, item.options.max_nodes, item.options.max_rerecords);
}

static uint64_t bytes_choose(checker *c) {
  static const uint64_t sizes[] = {8,    8,    64,    512,    513,     1000,    1000,    4096,
                                   5000, 9999, 65536, 300000, 1048576, 1048577, 1500000, 3000000};
  return sizes[below(c, chance(c, 80) ? 10 : sizeof sizes / sizeof sizes[0])];
}

static void memory_add(checker *c) {
  char name[16];
  snprintf(name, sizeof name, "p%zu", c->memory_count);
  trees_item item = {.kind = TREES_MEMORY, .name = name, .bytes = bytes_choose(c)};
  if (!item_do(c, &item)) return;
  fprintf(c->text, "memory %s %" PRIu64 "\n", name, item.bytes);
  c->memory_count++;
}

static void mark_add(checker *c, trees_item_kind kind, const char *word) {
  trees_item item = {.kind = kind};
  if (item_do(c, &item)) fprintf(c->text, "%s\n", word);
}

static void fault_add(checker *c) {
  static const char *const names[] = {"callback", "instantiate", "checkpoint_get", "checkpoint_set", "copy", "launch"};
  size_t which = below(c, 6);
  trees_item item = {.kind = TREES_FAIL, .fault = 1u << which};
  if (item_do(c, &item)) fprintf(c->text, "fail %s\n", names[which]);
}

static void count_change(checker *c, size_t run, size_t output, bool more) {
  session_seen seen = session_look(c->session, run, output);
  if (!seen.handle || seen.count == 0) return;
  trees_item item = {.kind = more ? TREES_RETAIN : TREES_RELEASE, .output = {run, output}};
  if (item_do(c, &item)) fprintf(c->text, "%s r%zu.%zu\n", more ? "retain" : "release", run, output);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static void function_text(checker *c, const trees_function *f) {
  static const char *const modes[] = {"inference", "forward", "backward"};
  static const char *const flags[] = {"-", "s", "m", "sm"};
  static const char *const outputs[] = {"local", "input", "integer"};
  fprintf(c->text, "function %s %s", f->name, modes[f->mode]);
  for (size_t i = 0; i < f->input_count; i++) fprintf(c->text, " %s", flags[f->flags[i]]);
  putc('\n', c->text);
  for (size_t i = 0; i < f->step_count; i++) {
    const trees_step *step = &f->steps[i];
    if (step->kind == TREES_ALLOC)
      fprintf(c->text, "alloc %zu %" PRIu64 "%s\n", step->index, step->bytes, step->times_key ? "*" : "");
    else
      fprintf(c->text, "%s %zu\n",
              step->kind == TREES_FREE   ? "free"
              : step->kind == TREES_DROP ? "drop"
                                         : "mutate",
              step->index);
  }
  for (size_t i = 0; i < f->output_count; i++)
    fprintf(c->text, "out %s %" PRIu64 "\n", outputs[f->outputs[i].kind],
            f->outputs[i].kind == TREES_OUT_INTEGER ? f->outputs[i].integer : (uint64_t)f->outputs[i].index);
  fprintf(c->text, "end\n");
}

/* A statement that the body may have; false: none came to mind. */
static bool step_choose(checker *c, trees_function *f, bool *freed, bool *dropped, trees_step *out) {
  size_t word = below(c, 10);
  if (word < 6 && f->local_count < LOCALS) {
    *out = (trees_step){TREES_ALLOC, f->local_count++, bytes_choose(c), false};
    out->times_key = out->bytes < 10000 && chance(c, 20);
    return true;
  }
  size_t index = below(c, word < 7 ? LOCALS : INPUTS);
  if (word < 7) {
    *out = (trees_step){TREES_FREE, index, 0, false};
    return index < f->local_count && !freed[index] && (freed[index] = true);
  }
  if (index >= f->input_count || dropped[index]) return false;
  *out = (trees_step){word < 9 ? TREES_DROP : TREES_MUTATE, index, 0, false};
  return word < 9 ? (dropped[index] = true) : (f->flags[index] & TREES_MUTATED) != 0;
}

static bool output_choose(checker *c, const trees_function *f, const bool *freed, const bool *dropped,
                          trees_output *out) {
  size_t word = below(c, 10);
  *out = (trees_output){word < 6 ? TREES_OUT_LOCAL : word < 9 ? TREES_OUT_INPUT : TREES_OUT_INTEGER, 0, 0};
  out->index = below(c, word < 6 ? LOCALS : INPUTS);
  if (out->kind == TREES_OUT_LOCAL) return out->index < f->local_count && !freed[out->index];
  if (out->kind == TREES_OUT_INPUT) return out->index < f->input_count && !dropped[out->index];
  out->integer = 7;
  return true;
}

static void function_add(checker *c) {
  checker_function *own = &c->functions[c->function_count];
  trees_function *f = &own->f;
  bool freed[LOCALS] = {false}, dropped[INPUTS] = {false};
  *own = (checker_function){.f = {.number = c->function_count}};
  f->flags = own->flags;
  f->steps = own->steps;
  f->locals = own->locals;
  f->outputs = own->outputs;
  snprintf(f->name, sizeof f->name, "f%zu", c->function_count);
  f->mode = (trees_mode)below(c, 3);
  f->input_count = below(c, INPUTS + 1);
  for (size_t i = 0; i < f->input_count; i++)
    f->flags[i] = (chance(c, 30) ? TREES_STATIC : 0) | (chance(c, c->percent_mutated) ? TREES_MUTATED : 0);
  for (size_t i = 0; i < LOCALS; i++) f->locals[i] = i;
  for (size_t tries = below(c, STEPS); tries > 0; tries--)
    f->step_count += step_choose(c, f, freed, dropped, &f->steps[f->step_count]);
  for (size_t tries = below(c, OUTPUTS + 1); tries > 0; tries--)
    f->output_count += output_choose(c, f, freed, dropped, &f->outputs[f->output_count]);
  trees_item item = {.kind = TREES_FUNCTION, .function = f};
  if (!item_do(c, &item)) return;
  function_text(c, f);
  c->line += f->step_count + f->output_count + 1;
  c->function_count++;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static checker_source source_choose(checker *c, size_t place) {
  checker_source source = {.memory = chance(c, place == 0 ? 80 : c->percent_foreign), .index = below(c, OUTPUTS)};
  if (source.memory) source.index = below(c, c->memory_count);
  source.back = 1 + below(c, place > 0 && chance(c, 80) ? place : BACK);
  source.taken = chance(c, c->percent_taken);
  return source;
}

static checker_call call_choose(checker *c, size_t place) {
  checker_call call = {.function = below(c, c->function_count), .key = 1 + below(c, chance(c, 70) ? 1 : 3)};
  call.automatic = chance(c, c->percent_auto);
  call.release = chance(c, c->percent_release) ? 1 + below(c, place + 1) : 0;
  for (size_t i = 0; i < INPUTS; i++) call.sources[i] = source_choose(c, place);
  return call;
}

/* What the source means now: an output that is there, else any that is, else a memory. */
static trees_argument argument_find(checker *c, const checker_source *source) {
  trees_argument argument = {.is_memory = true, .memory = source->memory ? source->index : below(c, c->memory_count)};
  if (source->memory || source->back > c->run_count) return argument;
  size_t run = c->run_count - source->back;
  for (size_t i = 0; i < OUTPUTS; i++) {
    size_t output = (source->index + i) % OUTPUTS;
    session_seen seen = session_look(c->session, run, output);
    if (!seen.memory && (!seen.handle || seen.count == 0 || (seen.lost && !chance(c, 2)))) continue;
    return (trees_argument){.taken = seen.handle && source->taken, .output = {run, output}};
  }
  return argument;
}

static void run_text(checker *c, const trees_item *item) {
  fprintf(c->text, "run %s %s %" PRIu64 "%s", item->name, item->function->name, item->key,
          item->automatic ? " auto" : "");
  for (size_t i = 0; i < item->function->input_count; i++) {
    const trees_argument *argument = &item->arguments[i];
    if (argument->is_memory)
      fprintf(c->text, " p%zu", argument->memory);
    else
      fprintf(c->text, " r%zu.%zu%s", argument->output.run, argument->output.output, argument->taken ? "!" : "");
  }
  putc('\n', c->text);
}

/* A call of what may stand at the place, with other inputs where those are not allowed. */
static void run_add(checker *c, size_t place) {
  checker_call call = c->calls[place][below(c, c->choices[place])];
  trees_argument arguments[INPUTS];
  char name[24];
  snprintf(name, sizeof name, "r%zu", c->run_count);
  trees_item item = {.kind = TREES_RUN,
                     .name = name,
                     .function = &c->functions[call.function].f,
                     .key = call.key,
                     .automatic = call.automatic,
                     .arguments = arguments};
  for (int attempt = 0; attempt < 4; attempt++) {
    for (size_t i = 0; i < INPUTS; i++) {
      if (attempt > 0 || chance(c, c->percent_change)) call.sources[i] = source_choose(c, place);
      arguments[i] = argument_find(c, &call.sources[i]);
    }
    if (!item_do(c, &item)) continue;
    run_text(c, &item);
    c->run_count++;
    break;
  }
  if (call.release > 0 && call.release <= c->run_count && !chance(c, 10))
    for (size_t i = 0; i < OUTPUTS; i++) count_change(c, c->run_count - call.release, i, false);
}

static void noise_add(checker *c) {
  size_t run = c->run_count > 0 ? c->run_count - 1 - below(c, c->run_count < BACK ? c->run_count : BACK) : 0;
  size_t word = below(c, 10);
  if (word < 4) count_change(c, run, below(c, OUTPUTS), false);
  if (word == 4) count_change(c, run, below(c, OUTPUTS), true);
  if (word == 5) mark_add(c, TREES_STEP, "step");
  if (word == 6) mark_add(c, TREES_BACKWARD_DONE, "backward_done");
  if (word == 7 && c->function_count < FUNCTIONS) function_add(c);
  size_t place = below(c, c->place_count);
  if (word > 7 && c->choices[place] < CHOICES) c->calls[place][c->choices[place]++] = call_choose(c, place);
}

static void handles_clear(checker *c, size_t first) {
  for (size_t run = first; run < c->run_count; run++)
    for (size_t i = 0; i < OUTPUTS; i++)
      while (session_look(c->session, run, i).count > 0) count_change(c, run, i, false);
}

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

static void program_choose(checker *c) {
  c->percent_foreign = one_of(c, 10, 30, 60);
  c->percent_taken = one_of(c, 0, 30, 80);
  c->percent_change = one_of(c, 0, 3, 20);
  c->percent_release = one_of(c, 0, 40, 90);
  c->percent_mutated = one_of(c, 0, 10, 40);
  c->percent_auto = one_of(c, 0, 0, 40);
  c->percent_fail = one_of(c, 0, 2, 20);
  c->percent_step = one_of(c, 20, 80, 100);
  c->percent_clear = one_of(c, 0, 30, 80);
  fprintf(c->text, "lade-trees 1\n");
  c->line = 1;
  options_add(c);
  for (size_t i = 1 + below(c, MEMORIES); i > 0; i--) memory_add(c);
  for (size_t i = 1 + below(c, 4); i > 0; i--) function_add(c);
  c->place_count = 1 + below(c, PLACES);
  for (size_t place = 0; place < c->place_count; place++) {
    c->choices[place] = 1 + below(c, 2);
    for (size_t i = 0; i < c->choices[place]; i++) c->calls[place][i] = call_choose(c, place);
  }
}

static void program_run(checker *c, size_t calls) {
  program_choose(c);
  size_t kept = 0;
  for (size_t attempts = 0; c->run_count < calls && attempts < 2 * calls && !session_wrong(c->session); attempts++) {
    size_t place = attempts % c->place_count;
    if (chance(c, c->percent_fail)) fault_add(c);
    run_add(c, place);
    if (chance(c, 15)) noise_add(c);
    if (place + 1 < c->place_count) continue;
    if (chance(c, c->percent_clear)) {
      handles_clear(c, kept);
      kept = c->run_count;
    }
    if (chance(c, c->percent_step)) mark_add(c, TREES_STEP, "step");
  }
}

/* What a session needs beside items. */
typedef struct checker_rooms {
  FILE *nothing;
  trees_reader *reader;
  trees_report report;
} checker_rooms;

static bool rooms_open(checker_rooms *rooms, FILE *source) {
  rooms->nothing = fopen("/dev/null", "w");
  rooms->reader = trees_reader_create(source, "program");
  if (rooms->nothing != NULL) trees_report_begin(&rooms->report, rooms->nothing);
  return rooms->nothing != NULL && rooms->reader != NULL;
}

static void rooms_close(checker_rooms *rooms) {
  trees_reader_destroy(rooms->reader);
  if (rooms->nothing != NULL) fclose(rooms->nothing);
}

static void counts_add(session_counts *sum, const session_counts *more) {
  for (size_t i = 0; i < 5; i++) sum->did[i] += more->did[i];
  for (size_t i = 0; i < LADE_GRAPH_REASON_COUNT; i++) sum->mismatches[i] += more->mismatches[i];
  sum->ended += more->ended;
  sum->restored += more->restored;
  sum->carried += more->carried;
}

bool checker_program(uint64_t seed, size_t calls, checker_counts *counts, char **out_text) {
  checker *c = calloc(1, sizeof *c);
  size_t length = 0;
  checker_rooms rooms = {NULL, NULL, {NULL, false}};
  bool right = false;
  *out_text = NULL;
  if (c != NULL && rooms_open(&rooms, stdin) && (c->text = open_memstream(out_text, &length)) != NULL &&
      (c->session = session_create(rooms.reader, "program", &rooms.report)) != NULL) {
    support_random_start_quietly(&c->random, seed);
    session_overlap(c->session, 1 + seed % SESSION_STREAMS);
    program_run(c, calls);
    counts->programs++;
    counts->calls += c->run_count;
    counts_add(&counts->runs, session_counts_get(c->session));
    right = session_end(c->session);
  }
  if (c != NULL && c->text != NULL) fclose(c->text);
  rooms_close(&rooms);
  free(c);
  return right;
}

bool checker_text_right(const char *text, uint64_t seed, bool *out_whole) {
  checker_rooms rooms = {NULL, NULL, {NULL, false}};
  FILE *source = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
  if (source == NULL) return true;
  bool right = true;
  session *s = NULL;
  if (rooms_open(&rooms, source) && (s = session_create(rooms.reader, NULL, &rooms.report)) != NULL) {
    trees_item item;
    session_overlap(s, 1 + seed % SESSION_STREAMS);
    read_result result;
    do {
      result = trees_read(rooms.reader, &item);
      if (result == READ_ITEM) result = session_item(s, &item);
    } while (result == READ_ITEM && !session_wrong(s));
    if (out_whole != NULL) *out_whole = result == READ_END;
    right = session_end(s);
  }
  rooms_close(&rooms);
  fclose(source);
  return right;
}

/* ---- Shrinking --------------------------------------------------------------------------------------------------- */

/* The text without `count` of its lines from line `first` on, lines counted from 0. */
static char *lines_drop(const char *text, size_t first, size_t count) {
  char *out = calloc(1, strlen(text) + 1), *to = out;
  size_t line = 0;
  for (const char *from = text; out != NULL && *from != '\0'; line += *from++ == '\n')
    if (line < first || line >= first + count) *to++ = *from;
  return out;
}

static size_t lines_count(const char *text) {
  size_t count = 0;
  for (; *text != '\0'; text++) count += *text == '\n';
  return count;
}

char *checker_shrink(const char *text, uint64_t seed) {
  char *best = strdup(text);
  for (size_t chunk = best != NULL ? lines_count(best) / 2 : 0; chunk > 0;) {
    bool smaller = false;
    for (size_t at = 1; at < lines_count(best);) {
      char *fewer = lines_drop(best, at, chunk);
      if (fewer == NULL) return best;
      bool fails = !checker_text_right(fewer, seed, NULL);
      free(fails ? best : fewer);
      if (fails)
        best = fewer;
      else
        at += chunk;
      smaller = smaller || fails;
    }
    if (!smaller || chunk > 1) chunk /= 2;
  }
  return best;
}
