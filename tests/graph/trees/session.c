/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions; model in session.h.
 *
 *   trace          R.O            P
 *                   |             |
 *   results    [handle]        [memory]            one of each output of each run, in order of creation
 *                   \             |
 *   storages         [value]      |                handles of one memory share its storage
 *                                 v
 *   memories                   [value]
 *
 * E1  result.count is the number of references that the trace holds of a handle; 0 of others.
 * E2  storage.counts is the sum of the counts of its handles.
 * E3  A handle is `lost` from the run on after which the tree first calls it overwritten. Lost handles keep their counts.
 * E4  `value` of a storage or memory is what its bytes must be while it is alive: the calls one after another, on numbers.
 * E5  `segments` are those of the tree's pool, in order of allocation: addresses of the software device ascend.
 * Memory outside of the pool comes from an allocator that asks the device each time, whose addresses are never used again.
 * Locks: none; a session has one thread.
 */
#include "tests/graph/trees/session.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "graph/tree/tree.h"
#include "lade/soft.h"
#include "tests/graph/trees/body.h"
#include "tools/common/options.h"

/* More than any trace names; it costs nothing until it is touched. */
#define TREES_DEVICE_BYTES (UINT64_C(1) << 46)

typedef enum session_output_kind { OUTPUT_INTEGER, OUTPUT_MEMORY, OUTPUT_HANDLE } session_output_kind;

/* An output of a run. */
typedef struct session_output {
  session_output_kind kind;
  size_t run;     /* whose it is */
  size_t output;  /* which one */
  size_t memory;  /* OUTPUT_MEMORY */
  size_t storage; /* OUTPUT_HANDLE, and what follows */
  lade_graph_buffer buffer;
  const void *address;
  uint64_t count;
  bool lost;
  bool checked_lost; /* in the tree's own list of this run */
} session_output;

typedef struct session_storage {
  uint64_t value;
  uint64_t bytes;
  uint64_t counts;
  bool compared; /* in this round */
} session_storage;

typedef struct session_memory {
  void *address;
  uint64_t bytes;
  uint64_t value;
} session_memory;

typedef struct session_run {
  char name[TREES_NAME_MAX + 1];
  size_t first; /* of its results */
  size_t count; /* 0 of a run that failed */
} session_run;

typedef struct session_function {
  lade_graph_function *handle;
} session_function;

/* The tree's record of the last run. */
typedef struct session_told {
  bool given;
  uint32_t did, ended, restored;
  uint32_t *why, *carried, *classes, *kinds; /* `kinds`: of outputs */
  size_t why_count, carried_count, class_count, kind_count, lost_count;
} session_told;

struct session {
  trees_reader *reader; /* for errors of the trace */
  const char *name;
  trees_report *report;
  uint64_t line;
  bool wrong;
  lade_runtime *runtime;
  lade_device_allocator *pool, *outside;
  lade_stream streams[SESSION_STREAMS];
  size_t stream_count;
  bool overlap;          /* runs are waited for now and then */
  lade_graph_tree *tree; /* NULL before the first item */
  session_memory *memories;
  size_t memory_count;
  session_function *functions;
  size_t function_count;
  session_run *runs;
  size_t run_count;
  session_output *results;
  size_t result_count;
  session_storage *storages;
  size_t storage_count;
  uint64_t *segments, *segment_bytes;
  size_t segment_count;
  trees_report_block *live;
  size_t live_count;
  trees_call *call; /* the one under way */
  session_told told;
  uint64_t findings; /* of the device, so far */
  uint32_t faults;   /* of the next run */
  bool fixed_statics;
  session_counts counts;
};

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static void wrong_print(session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wrong_print(session *s, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  s->wrong = true;
  if (s->name == NULL) return;
  fprintf(stderr, "%s: ", program_name());
  name_print(stderr, s->name);
  fprintf(stderr, ":%" PRIu64 ": %s\n", s->line, text);
}

#define RUN_REFUSE(s, ...)  READER_REFUSE_AT(trees_frame((s)->reader), (s)->line, __VA_ARGS__)
#define RUN_NO_MEMORY(s)    READER_FAIL_AT(trees_frame((s)->reader), (s)->line, "no memory")
#define RUN_FAILED(s, what) READER_FAIL_AT(trees_frame((s)->reader), (s)->line, "%s: %s", what, lade_last_error()->text)

/* Room for `more` elements after `count`; the room is the next power of two. */
static bool array_reserve(void *array, size_t count, size_t more, size_t size) {
  void **place = array;
  size_t room = 1, wanted = 1, bytes;
  while (room < count) room *= 2;
  while (wanted < count + more) wanted *= 2;
  if (*place != NULL && wanted == room) return true;
  if (!ladei_size_mul(wanted, size, &bytes)) return false;
  void *larger = realloc(*place, bytes);
  if (larger == NULL) return false;
  *place = larger;
  return true;
}

/* ---- What the tree says of a run --------------------------------------------------------------------------------- */

static bool list_copy(uint32_t **list, size_t *count, const uint32_t *from, size_t from_count) {
  uint32_t *larger = realloc(*list, (from_count + 1) * sizeof *larger);
  if (larger == NULL) return false;
  *list = larger;
  if (from_count > 0) memcpy(larger, from, from_count * sizeof *larger);
  *count = from_count;
  return true;
}

static bool buffer_equal(lade_graph_buffer a, lade_graph_buffer b) {
  return a.slot == b.slot && a.generation == b.generation;
}

/* Marks what the tree lists as lost; the session finds out by itself and compares. */
static void lost_note(session *s, const lade_graph_run_record *record) {
  for (size_t i = 0; i < record->lost_count; i++)
    for (size_t j = 0; j < s->result_count; j++)
      if (s->results[j].kind == OUTPUT_HANDLE && buffer_equal(s->results[j].buffer, record->lost[i].buffer))
        s->results[j].checked_lost = true;
}

static void run_told(void *user, const lade_graph_run_record *record) {
  session *s = user;
  session_told *t = &s->told;
  t->given = list_copy(&t->why, &t->why_count, record->why, record->why_count) &&
             list_copy(&t->carried, &t->carried_count, record->carried, record->carried_count) &&
             list_copy(&t->classes, &t->class_count, record->classes, record->class_count) &&
             list_copy(&t->kinds, &t->kind_count, record->output_kinds, record->output_count);
  t->did = record->did;
  t->ended = record->ended;
  t->restored = record->restored;
  t->lost_count = record->lost_count;
  lost_note(s, record);
}

/* Nothing, as of a run that the tree refused before it looked. */
static void told_clear(session_told *t) {
  t->given = false;
  t->did = LADE_GRAPH_DID_ERROR;
  t->ended = LADE_GRAPH_ENDED_NOT;
  t->restored = 0;
  t->why_count = t->carried_count = t->class_count = t->kind_count = t->lost_count = 0;
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

static lade_status device_open(session *s) {
  lade_soft_device description = {.memory_bytes = TREES_DEVICE_BYTES};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = &description;
  soft.device_count = 1;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  lade_status status = lade_runtime_open("sim", &options, &s->runtime);
  if (status != LADE_OK) return status;
  lade_device_options allocator;
  lade_device_options_init(&allocator);
  status = lade_device_allocator_create(s->runtime, 0, &allocator, &s->pool);
  allocator.flags = LADE_DEVICE_UNCACHED;
  if (status == LADE_OK) status = lade_device_allocator_create(s->runtime, 0, &allocator, &s->outside);
  for (size_t i = 0; i < s->stream_count && status == LADE_OK; i++)
    status = lade_stream_create(s->runtime, 0, &s->streams[i]);
  return status;
}

/* A limit of the trace's as an option, where 0 is the default. */
static uint64_t limit_option(uint64_t limit) {
  return limit == 0 ? LADE_GRAPH_NONE : limit == LADE_GRAPH_NONE ? limit - 1 : limit;
}

static lade_status tree_open(session *s, const trees_options *wanted) {
  lade_status status = device_open(s);
  if (status != LADE_OK) return status;
  s->fixed_statics = wanted->rerecord == 0;
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.outside = s->outside;
  options.warmups = limit_option(wanted->warmup);
  options.max_nodes = wanted->max_nodes;
  options.max_rerecords = limit_option(wanted->max_rerecords);
  options.flags = wanted->rerecord == 0 ? LADE_GRAPH_TREE_FIXED_STATICS : 0;
  status = lade_graph_tree_create(s->pool, &options, &s->tree);
  return status == LADE_OK ? lade_graph_tree_log_set(s->tree, run_told, s, LADE_GRAPH_LOG_ALL) : status;
}

static const trees_options defaults = {1, 1, 0, 128};

session *session_create(trees_reader *reader, const char *name, trees_report *report) {
  session *s = calloc(1, sizeof *s);
  if (s == NULL) {
    message_print("trees", name, "no memory");
    return NULL;
  }
  s->reader = reader;
  s->name = name;
  s->report = report;
  s->stream_count = 1;
  return s;
}

void session_overlap(session *s, size_t streams) {
  s->stream_count = streams;
  s->overlap = true;
}

const session_counts *session_counts_get(const session *s) { return &s->counts; }

bool session_wrong(const session *s) { return s->wrong; }

/* ---- Declarations ------------------------------------------------------------------------------------------------ */

static read_result item_memory(session *s, const trees_item *item) {
  session_memory m = {.bytes = item->bytes, .value = trees_hash(TREES_HASH_BEGIN, s->memory_count)};
  if (!array_reserve(&s->memories, s->memory_count, 1, sizeof m)) return RUN_NO_MEMORY(s);
  if (lade_device_alloc(s->outside, m.bytes, s->streams[0], &m.address) != LADE_OK) return RUN_FAILED(s, "memory");
  trees_memory_fill(m.address, m.bytes, m.value);
  s->memories[s->memory_count++] = m;
  return READ_ITEM;
}

/* The tree calls every function alike: the call under way says which one. */
static lade_status function_run(lade_graph_context *context, void *user) {
  session *s = user;
  return trees_body_run(context, s->call);
}

static read_result item_function(session *s, const trees_item *item) {
  static const uint32_t modes[] = {LADE_GRAPH_INFERENCE, LADE_GRAPH_FORWARD, LADE_GRAPH_BACKWARD};
  const trees_function *f = item->function;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = function_run;
  options.user = s;
  options.name = f->name;
  options.mode = modes[f->mode];
  options.input_count = f->input_count;
  options.input_flags = f->flags;
  options.output_count = f->output_count;
  if (!array_reserve(&s->functions, s->function_count, 1, sizeof(session_function))) return RUN_NO_MEMORY(s);
  session_function *added = &s->functions[s->function_count];
  if (lade_graph_tree_function_add(s->tree, &options, &added->handle) != LADE_OK) return RUN_FAILED(s, "function");
  s->function_count++;
  return READ_ITEM;
}

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/* The kind of R.O. */
static read_result result_find(session *s, const trees_reference *reference, session_output **out) {
  const session_run *r = &s->runs[reference->run];
  if (reference->output >= r->count) return RUN_REFUSE(s, "run \"%s\" failed: it has no outputs", r->name);
  *out = &s->results[r->first + reference->output];
  if ((*out)->kind == OUTPUT_INTEGER) return RUN_REFUSE(s, "%s.%zu is an integer", r->name, reference->output);
  if ((*out)->kind == OUTPUT_HANDLE && (*out)->count == 0)
    return RUN_REFUSE(s, "%s.%zu has been given up", r->name, reference->output);
  return READ_ITEM;
}

static read_result handle_find(session *s, const trees_reference *reference, session_output **out) {
  read_result found = result_find(s, reference, out);
  if (found != READ_ITEM || (*out)->kind == OUTPUT_HANDLE) return found;
  return RUN_REFUSE(s, "%s.%zu is a memory: it has no count", s->runs[reference->run].name, reference->output);
}

session_seen session_look(const session *s, size_t index, size_t output) {
  session_seen seen = {false, false, false, 0};
  if (index >= s->run_count || output >= s->runs[index].count) return seen;
  const session_output *r = &s->results[s->runs[index].first + output];
  seen.handle = r->kind == OUTPUT_HANDLE;
  seen.memory = r->kind == OUTPUT_MEMORY;
  seen.lost = r->lost;
  seen.count = r->count;
  return seen;
}

static void count_add(session *s, session_output *handle, int by) {
  handle->count += (uint64_t)by;
  s->storages[handle->storage].counts += (uint64_t)by;
}

static read_result item_release(session *s, const trees_item *item) {
  session_output *handle = NULL;
  read_result found = handle_find(s, &item->output, &handle);
  if (found != READ_ITEM) return found;
  count_add(s, handle, -1);
  lade_status status = lade_graph_buffer_release(s->tree, handle->buffer);
  if (status != (handle->lost ? LADE_ERR_OVERWRITTEN : LADE_OK))
    wrong_print(s, "release: %s: %s", lade_status_name(status), lade_last_error()->text);
  return READ_ITEM;
}

static read_result item_retain(session *s, const trees_item *item) {
  session_output *handle = NULL;
  read_result found = handle_find(s, &item->output, &handle);
  if (found != READ_ITEM) return found;
  count_add(s, handle, 1);
  lade_status status = lade_graph_buffer_retain(s->tree, handle->buffer);
  if (status != (handle->lost ? LADE_ERR_OVERWRITTEN : LADE_OK))
    wrong_print(s, "retain: %s: %s", lade_status_name(status), lade_last_error()->text);
  return READ_ITEM;
}

static read_result item_read(session *s, const trees_item *item) {
  session_output *found = NULL;
  read_result result = result_find(s, &item->output, &found);
  if (result != READ_ITEM) return result;
  trees_report_read entry = {.line = item->line, .name = item->name};
  if (found->kind == OUTPUT_MEMORY) {
    entry.value = trees_memory_value(s->memories[found->memory].address);
  } else {
    void *address = NULL;
    lade_status status = lade_graph_buffer_get(s->tree, found->buffer, &address, NULL);
    entry.lost = status == LADE_ERR_OVERWRITTEN;
    if (status != LADE_OK && !entry.lost) return RUN_FAILED(s, "read");
    if (!entry.lost) entry.value = trees_memory_value(address);
  }
  trees_report_read_write(s->report, &entry);
  return READ_ITEM;
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

static trees_place place_of(const session *s, const void *address) {
  uint64_t at = (uint64_t)(uintptr_t)address;
  for (size_t i = 0; i < s->segment_count; i++)
    if (at >= s->segments[i] && at - s->segments[i] < s->segment_bytes[i])
      return (trees_place){true, i, at - s->segments[i]};
  return (trees_place){false, 0, 0};
}

/* Segments that are new, and the blocks handed out. */
static bool pool_note(session *s, const lade_device_snapshot *snapshot) {
  if (!array_reserve(&s->segments, s->segment_count, snapshot->segment_count, sizeof *s->segments) ||
      !array_reserve(&s->segment_bytes, s->segment_count, snapshot->segment_count, sizeof *s->segment_bytes))
    return false;
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    const lade_device_snapshot_segment *segment = &snapshot->segments[i];
    if (place_of(s, (const void *)(uintptr_t)segment->address).inside) continue;
    s->segments[s->segment_count] = segment->address;
    s->segment_bytes[s->segment_count++] = segment->total_bytes;
  }
  trees_report_block *larger = realloc(s->live, (snapshot->block_count + 1) * sizeof *larger);
  if (larger == NULL) return false;
  s->live = larger;
  s->live_count = 0;
  for (size_t i = 0; i < snapshot->block_count; i++) {
    const lade_device_snapshot_block *block = &snapshot->blocks[i];
    if (block->state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
    s->live[s->live_count++] = (trees_report_block){place_of(s, (const void *)(uintptr_t)block->address), block->bytes};
  }
  return true;
}

/* The allocator serves the tree alone, so all of its memory is the pool's. */
static read_result pool_look(session *s) {
  lade_device_snapshot *snapshot = NULL;
  if (lade_device_snapshot_take(s->pool, NULL, &snapshot) != LADE_OK) return RUN_FAILED(s, "the pool");
  bool noted = pool_note(s, snapshot);
  lade_device_snapshot_destroy(snapshot);
  return noted ? READ_ITEM : RUN_NO_MEMORY(s);
}

static read_result item_snapshot(session *s, const trees_item *item) {
  read_result looked = pool_look(s);
  if (looked != READ_ITEM) return looked;
  trees_report_snapshot entry = {item->line, item->name, s->tree, s->segment_bytes, s->segment_count};
  trees_report_snapshot_write(s->report, &entry);
  return READ_ITEM;
}

/* ---- Runs: the line ---------------------------------------------------------------------------------------------- */

/* Inputs of a run: results of handles, NULL for memories, whose numbers are in `memories`. */
typedef struct session_inputs {
  session_output **handles;
  size_t *memories;
  lade_graph_value *values;
} session_inputs;

static void inputs_destroy(session_inputs *in) {
  free(in->handles);
  free(in->memories);
  free(in->values);
}

static bool inputs_create(session_inputs *in, size_t count) {
  in->handles = calloc(count + 1, sizeof *in->handles);
  in->memories = calloc(count + 1, sizeof *in->memories);
  in->values = calloc(count + 1, sizeof *in->values);
  return in->handles != NULL && in->memories != NULL && in->values != NULL;
}

static read_result input_find(session *s, const trees_argument *argument, session_inputs *in, size_t i) {
  session_output *found = NULL;
  in->memories[i] = argument->memory;
  if (!argument->is_memory) {
    read_result result =
        argument->taken ? handle_find(s, &argument->output, &found) : result_find(s, &argument->output, &found);
    if (result != READ_ITEM) return result;
    in->memories[i] = found->memory;
    if (found->kind == OUTPUT_HANDLE) in->handles[i] = found;
  }
  if (in->handles[i] != NULL)
    in->values[i] = (lade_graph_value){.kind = argument->taken ? LADE_GRAPH_BUFFER_TAKEN : LADE_GRAPH_BUFFER,
                                       .buffer = in->handles[i]->buffer};
  else
    in->values[i] = (lade_graph_value){.kind = LADE_GRAPH_MEMORY,
                                       .address = s->memories[in->memories[i]].address,
                                       .bytes = s->memories[in->memories[i]].bytes};
  return READ_ITEM;
}

/* No more takes of a handle than it has counts; one more where it is lent as well. */
static read_result takes_check(session *s, const trees_item *item, const session_inputs *in, size_t i) {
  uint64_t takes = 0;
  bool lent = false;
  for (size_t j = 0; j < item->function->input_count; j++) {
    if (in->handles[j] != in->handles[i]) continue;
    if (item->arguments[j].taken)
      takes++;
    else
      lent = true;
  }
  const session_output *handle = in->handles[i];
  if (takes == 0 || takes + (lent ? 1 : 0) <= handle->count) return READ_ITEM;
  return RUN_REFUSE(s, "%s.%zu is taken %" PRIu64 " times%s and held %" PRIu64 " times", s->runs[handle->run].name,
                    handle->output, takes, lent ? ", lent," : "", handle->count);
}

static bool same_memory(const session_inputs *in, size_t i, size_t j) {
  if (in->handles[i] == NULL || in->handles[j] == NULL)
    return in->handles[i] == in->handles[j] && in->memories[i] == in->memories[j];
  return in->handles[i]->storage == in->handles[j]->storage;
}

static read_result inputs_check(session *s, const trees_item *item, const session_inputs *in) {
  const trees_function *f = item->function;
  for (size_t i = 0; i < f->input_count; i++) {
    if (in->handles[i] != NULL) {
      read_result result = takes_check(s, item, in, i);
      if (result != READ_ITEM) return result;
    }
    if ((f->flags[i] & TREES_MUTATED) == 0) continue;
    for (size_t j = 0; j < f->input_count; j++)
      if (j != i && same_memory(in, i, j)) return RUN_REFUSE(s, "input %zu is mutated, and input %zu too", i, j);
  }
  return READ_ITEM;
}

/* ---- Runs: what must be true after one --------------------------------------------------------------------------- */

static uint64_t *value_of(session *s, const session_inputs *in, size_t i) {
  return in->handles[i] != NULL ? &s->storages[in->handles[i]->storage].value : &s->memories[in->memories[i]].value;
}

/* Does to the values what the body did to memory, `steps` statements of it. */
static bool truth_follow(session *s, const trees_item *item, const session_inputs *in, size_t steps, uint64_t *locals) {
  const trees_function *f = item->function;
  uint64_t **values = calloc(f->input_count + 1, sizeof *values);
  bool *dropped = calloc(f->input_count + 1, sizeof *dropped);
  bool done = values != NULL && dropped != NULL;
  for (size_t i = 0; i < f->input_count && done; i++) values[i] = value_of(s, in, i);
  if (done) trees_truth_run(f, item->key, steps, values, dropped, locals);
  free(values);
  free(dropped);
  return done;
}

static bool was_carried(const session_told *t, size_t input) {
  for (size_t i = 0; i < t->carried_count; i++)
    if (t->carried[i] == input) return true;
  return false;
}

/* The storage of an output: an input's, or one that outputs of this run share which name the same thing. */
static size_t output_storage(session *s, const trees_item *item, const session_inputs *in, size_t first, size_t index,
                             uint64_t bytes, const uint64_t *locals) {
  const trees_output *output = &item->function->outputs[index];
  uint32_t kind = s->told.kinds[index];
  bool in_place = kind == LADE_GRAPH_OUTPUT_PRIOR || kind == LADE_GRAPH_OUTPUT_INPUT;
  if (output->kind == TREES_OUT_INPUT && in_place && !was_carried(&s->told, output->index))
    return in->handles[output->index]->storage;
  for (size_t i = 0; i < index; i++) {
    const trees_output *other = &item->function->outputs[i];
    if (other->kind == output->kind && other->index == output->index) return s->results[first + i].storage;
  }
  uint64_t value = output->kind == TREES_OUT_LOCAL ? locals[output->index] : *value_of(s, in, output->index);
  s->storages[s->storage_count] = (session_storage){.value = value, .bytes = bytes};
  return s->storage_count++;
}

static void result_add(session *s, const trees_item *item, const session_inputs *in, size_t first, size_t index,
                       const lade_graph_value *value, const uint64_t *locals) {
  const trees_output *output = &item->function->outputs[index];
  session_output r = {.run = s->run_count - 1, .output = index};
  if (output->kind != TREES_OUT_INTEGER && value->kind == LADE_GRAPH_MEMORY) {
    r.kind = OUTPUT_MEMORY;
    r.memory = in->memories[output->index];
  } else if (output->kind != TREES_OUT_INTEGER) {
    r.kind = OUTPUT_HANDLE;
    r.buffer = value->buffer;
    r.address = value->address;
    r.storage = output_storage(s, item, in, first, index, value->bytes, locals);
    r.count = 1;
    s->storages[r.storage].counts++;
  }
  s->results[s->result_count++] = r;
}

/* An output must be of the kind that the body named. */
static bool outputs_plausible(const session *s, const trees_item *item, const session_inputs *in,
                              const lade_graph_value *values) {
  if (s->told.kind_count != item->function->output_count) return false;
  for (size_t i = 0; i < item->function->output_count; i++) {
    const trees_output *output = &item->function->outputs[i];
    if ((output->kind == TREES_OUT_INTEGER) != (values[i].kind == LADE_GRAPH_INTEGER)) return false;
    if (output->kind == TREES_OUT_INTEGER && values[i].integer != output->integer) return false;
    bool handle = output->kind == TREES_OUT_INPUT && in->handles[output->index] != NULL;
    if (output->kind == TREES_OUT_LOCAL && values[i].kind != LADE_GRAPH_BUFFER) return false;
    if (handle && values[i].kind != LADE_GRAPH_BUFFER) return false;
    bool in_place = s->told.kinds[i] == LADE_GRAPH_OUTPUT_PRIOR || s->told.kinds[i] == LADE_GRAPH_OUTPUT_INPUT;
    if (output->kind == TREES_OUT_INPUT && !handle && in_place != (values[i].kind == LADE_GRAPH_MEMORY)) return false;
    if (output->kind == TREES_OUT_LOCAL && in_place) return false;
  }
  return true;
}

/* Counts and values after a run that succeeded. */
static read_result run_succeed(session *s, const trees_item *item, session_inputs *in, const lade_graph_value *values) {
  const trees_function *f = item->function;
  if (!s->told.given || !outputs_plausible(s, item, in, values))
    return READER_FAIL_AT(trees_frame(s->reader), s->line,
                          "the tree's log and the outputs of the run do not fit the function");
  uint64_t *locals = calloc(f->local_count + 1, sizeof *locals);
  /* Results move when their array grows; handles of inputs are found again by their places. */
  size_t *places = calloc(f->input_count + 1, sizeof *places);
  for (size_t i = 0; i < f->input_count && places != NULL; i++)
    if (in->handles[i] != NULL) places[i] = (size_t)(in->handles[i] - s->results);
  bool room = locals != NULL && places != NULL &&
              array_reserve(&s->results, s->result_count, f->output_count, sizeof *s->results) &&
              array_reserve(&s->storages, s->storage_count, f->output_count, sizeof *s->storages);
  for (size_t i = 0; i < f->input_count && room; i++)
    if (in->handles[i] != NULL) in->handles[i] = &s->results[places[i]];
  free(places);
  if (room) room = truth_follow(s, item, in, f->step_count, locals);
  session_run *r = &s->runs[s->run_count - 1];
  r->first = s->result_count;
  for (size_t i = 0; i < f->output_count && room; i++) result_add(s, item, in, r->first, i, &values[i], locals);
  if (room) r->count = f->output_count;
  for (size_t i = 0; i < f->input_count && room; i++)
    if (item->arguments[i].taken) count_add(s, in->handles[i], -1);
  free(locals);
  return room ? READ_ITEM : RUN_NO_MEMORY(s);
}

/* Of a warm-up or eager run whose body came to its end and failed there, what it has done stands. */
static read_result run_fail(session *s, const trees_item *item, session_inputs *in, const trees_call *call) {
  if (!call->begun || call->stage == LADE_GRAPH_STAGE_RECORD) return READ_ITEM;
  uint64_t *locals = calloc(item->function->local_count + 1, sizeof *locals);
  bool done = locals != NULL && truth_follow(s, item, in, call->steps_done, locals);
  free(locals);
  for (size_t i = 0; i < item->function->input_count && done; i++)
    if (call->dropped[i] && item->arguments[i].taken) count_add(s, in->handles[i], -1);
  return done ? READ_ITEM : RUN_NO_MEMORY(s);
}

/* ---- Runs: comparison -------------------------------------------------------------------------------------------- */

static void memory_compare(session *s, const char *what, const void *address, uint64_t bytes, uint64_t value) {
  uint64_t at = trees_memory_compare(address, bytes, value);
  if (at < bytes)
    wrong_print(
        s, "%s differs at byte %" PRIu64 " of %" PRIu64 ": the value there is %016" PRIx64 ", expected %016" PRIx64,
        what, at, bytes, at + 8 <= bytes ? trees_memory_value((const char *)address + at) : 0, value);
}

/* Handles that the run has lost, and bytes of those that are alive. */
static void handles_compare(session *s) {
  char what[TREES_NAME_MAX + 32];
  for (size_t i = 0; i < s->storage_count; i++) s->storages[i].compared = false;
  for (size_t i = 0; i < s->result_count; i++) {
    session_output *r = &s->results[i];
    if (r->kind != OUTPUT_HANDLE || r->count == 0 || r->lost) continue;
    session_storage *own = &s->storages[r->storage];
    void *address = NULL;
    size_t bytes = 0;
    lade_status status = lade_graph_buffer_get(s->tree, r->buffer, &address, &bytes);
    snprintf(what, sizeof what, "%s.%zu", s->runs[r->run].name, r->output);
    if (status == LADE_ERR_OVERWRITTEN) continue;
    if (status != LADE_OK || address != r->address || bytes != own->bytes) {
      wrong_print(s, "%s is not where it was: %s", what, lade_status_name(status));
      continue;
    }
    if (!own->compared) memory_compare(s, what, address, bytes, own->value);
    own->compared = true;
  }
}

static void memories_compare(session *s) {
  for (size_t i = 0; i < s->memory_count; i++) {
    char what[40];
    snprintf(what, sizeof what, "memory %zu", i);
    memory_compare(s, what, s->memories[i].address, s->memories[i].bytes, s->memories[i].value);
  }
}

/* The device's findings, and the tree's. */
static void selves_check(session *s) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  if (lade_soft_report_get(s->runtime, &report) != LADE_OK) return;
  uint64_t findings = report.freed_memory_used + report.unordered_reuse + report.stale_handles;
  if (findings != s->findings) wrong_print(s, "the device reports: %s", report.last_finding);
  s->findings = findings;
  if (ladei_tree_verify(s->tree) != LADE_OK) wrong_print(s, "the tree: %s", lade_last_error()->text);
}

/* Handles with counts that this run has lost, in order of creation; their names are "R.O". */
static bool lost_find(session *s, char ***out, size_t *out_count) {
  char **names = calloc(s->result_count + 1, sizeof *names);
  size_t count = 0;
  for (size_t i = 0; i < s->result_count && names != NULL; i++) {
    session_output *r = &s->results[i];
    if (r->kind != OUTPUT_HANDLE || r->lost) continue;
    if (r->count == 0 && !r->checked_lost) continue;
    bool lost = r->count > 0 && lade_graph_buffer_get(s->tree, r->buffer, NULL, NULL) == LADE_ERR_OVERWRITTEN;
    if (lost != r->checked_lost)
      wrong_print(s, "%s.%zu is %slost, and %s the tree's list", s->runs[r->run].name, r->output, lost ? "" : "not ",
                  r->checked_lost ? "in" : "not in");
    r->checked_lost = false;
    if (!lost) continue;
    r->lost = true;
    if (asprintf(&names[count], "%s.%zu", s->runs[r->run].name, r->output) < 0) names[count] = NULL;
    if (names[count] == NULL) break;
    count++;
  }
  *out = names;
  *out_count = count;
  return names != NULL;
}

/* ---- Runs: all of it --------------------------------------------------------------------------------------------- */

static bool run_report(session *s, const trees_item *item, lade_status status, const lade_graph_value *values) {
  const session_told *t = &s->told;
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  char **lost = NULL;
  size_t lost_count = 0, output_count = status == LADE_OK ? item->function->output_count : 0;
  trees_report_output *outputs = calloc(output_count + 1, sizeof *outputs);
  bool done =
      outputs != NULL && lost_find(s, &lost, &lost_count) && lade_graph_tree_stats_get(s->tree, &state) == LADE_OK;
  for (size_t i = 0; i < output_count && done; i++) {
    outputs[i].kind = t->kinds[i];
    if (values[i].kind == LADE_GRAPH_BUFFER) outputs[i].at = place_of(s, values[i].address);
  }
  trees_report_run entry = {.line = item->line,
                            .name = item->name,
                            .function = item->function->name,
                            .key = item->key,
                            .status = status,
                            .did = t->did,
                            .ended = t->ended,
                            .state = state.state,
                            .restored = t->restored != 0,
                            .node = state.node,
                            .why = t->why,
                            .why_count = t->why_count,
                            .carried = t->carried,
                            .carried_count = t->carried_count,
                            .classes = t->classes,
                            .class_count = t->class_count,
                            .outputs = outputs,
                            .output_count = output_count,
                            .lost = (const char *const *)lost,
                            .lost_count = lost_count,
                            .live = s->live,
                            .live_count = s->live_count};
  if (done) trees_report_run_write(s->report, &entry);
  for (size_t i = 0; i < lost_count; i++) free(lost[i]);
  free(lost);
  free(outputs);
  return done;
}

static lade_status tree_run(session *s, const trees_item *item, const session_inputs *in, lade_graph_value *values,
                            trees_call *call) {
  lade_graph_call options;
  lade_graph_call_init(&options);
  options.stream = s->streams[s->run_count % s->stream_count];
  options.key = &item->key;
  options.key_count = 1;
  options.inputs = in->values;
  options.input_count = item->function->input_count;
  options.flags = item->automatic ? LADE_GRAPH_CALL_AUTO : 0;
  told_clear(&s->told);
  s->call = call;
  lade_status status = lade_graph_tree_run(s->tree, s->functions[item->function->number].handle, &options, values,
                                           item->function->output_count, NULL);
  s->call = NULL;
  return status;
}

/* An error that the trace has not asked for is the tree's. */
static bool error_expected(const session *s, lade_status status, const session_inputs *in, size_t count) {
  bool lost = false;
  for (size_t i = 0; i < count; i++) lost = lost || (in->handles[i] != NULL && in->handles[i]->lost);
  switch (status) {
  case LADE_OK: return !lost;
  case LADE_ERR_OVERWRITTEN: return lost;
  case LADE_ERR_CALLBACK: return (s->faults & LADEI_TREE_FAULT_CALLBACK) != 0;
  case LADE_ERR_DRIVER:
    return (s->faults & (LADEI_TREE_FAULT_INSTANTIATE | LADEI_TREE_FAULT_COPY | LADEI_TREE_FAULT_LAUNCH)) != 0;
  case LADE_ERR_INVALID_ARGUMENT: return s->fixed_statics;
  default: return false;
  }
}

static read_result streams_wait(session *s) {
  for (size_t i = 0; i < s->stream_count; i++)
    if (lade_stream_synchronize(s->runtime, s->streams[i]) != LADE_OK) return RUN_FAILED(s, "synchronize");
  return READ_ITEM;
}

static void run_count(session *s) {
  const session_told *t = &s->told;
  s->counts.did[t->did]++;
  s->counts.ended += t->ended != LADE_GRAPH_ENDED_NOT;
  s->counts.restored += t->restored != 0;
  s->counts.carried += t->carried_count;
  for (size_t i = 0; i < t->why_count; i++) s->counts.mismatches[t->why[i]]++;
}

static read_result run_do(session *s, const trees_item *item, session_inputs *in, lade_graph_value *values) {
  trees_call call;
  if (!trees_call_create(&call, s->runtime, item->function, item->key)) {
    trees_call_destroy(&call);
    return RUN_NO_MEMORY(s);
  }
  lade_status status = tree_run(s, item, in, values, &call);
  if (!error_expected(s, status, in, item->function->input_count))
    wrong_print(s, "the run: %s%s%s", lade_status_name(status), status == LADE_OK ? " in spite of a lost input" : ": ",
                status == LADE_OK ? "" : lade_last_error()->text);
  s->faults = 0;
  read_result result = status == LADE_OK ? run_succeed(s, item, in, values) : run_fail(s, item, in, &call);
  trees_call_destroy(&call);
  run_count(s);
  if (result != READ_ITEM) return result;
  bool whole = !s->overlap || s->run_count % 4 == 0;
  if (whole) result = streams_wait(s);
  if (result == READ_ITEM) result = pool_look(s);
  if (result != READ_ITEM) return result;
  if (whole) {
    handles_compare(s);
    memories_compare(s);
  }
  selves_check(s);
  return run_report(s, item, status, values) ? READ_ITEM : RUN_NO_MEMORY(s);
}

static read_result item_run(session *s, const trees_item *item) {
  session_inputs in = {NULL, NULL, NULL};
  lade_graph_value *values = calloc(item->function->output_count + 1, sizeof *values);
  read_result result = READ_ITEM;
  if (values == NULL || !inputs_create(&in, item->function->input_count) ||
      !array_reserve(&s->runs, s->run_count, 1, sizeof(session_run)))
    result = RUN_NO_MEMORY(s);
  for (size_t i = 0; i < item->function->input_count && result == READ_ITEM; i++)
    result = input_find(s, &item->arguments[i], &in, i);
  if (result == READ_ITEM) result = inputs_check(s, item, &in);
  if (result == READ_ITEM) {
    s->runs[s->run_count] = (session_run){.first = s->result_count};
    memcpy(s->runs[s->run_count++].name, item->name, strlen(item->name));
    result = run_do(s, item, &in, values);
  }
  inputs_destroy(&in);
  free(values);
  return result;
}

/* ---- Items ------------------------------------------------------------------------------------------------------- */

static read_result done(session *s, lade_status status, const char *what) {
  return status == LADE_OK ? READ_ITEM : RUN_FAILED(s, what);
}

read_result session_item(session *s, const trees_item *item) {
  s->line = item->line;
  if (s->tree == NULL) {
    read_result opened = done(s, tree_open(s, item->kind == TREES_TREE ? &item->options : &defaults), "the tree");
    if (opened != READ_ITEM) return opened;
  }
  switch (item->kind) {
  case TREES_MEMORY: return item_memory(s, item);
  case TREES_FUNCTION: return item_function(s, item);
  case TREES_RUN: return item_run(s, item);
  case TREES_RELEASE: return item_release(s, item);
  case TREES_RETAIN: return item_retain(s, item);
  case TREES_STEP: return done(s, lade_graph_tree_step(s->tree), "step");
  case TREES_BACKWARD_DONE: return done(s, lade_graph_tree_backward_done(s->tree), "backward_done");
  case TREES_FAIL: s->faults |= item->fault; return done(s, ladei_tree_fail_next(s->tree, item->fault), "fail");
  case TREES_READ: return item_read(s, item);
  case TREES_SNAPSHOT: return item_snapshot(s, item);
  default: return READ_ITEM;
  }
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static void end_check(session *s, const char *what, lade_status status) {
  if (status != LADE_OK) wrong_print(s, "at the end: %s: %s", what, lade_last_error()->text);
}

static void handles_release(session *s) {
  for (size_t i = 0; i < s->result_count; i++) {
    const session_output *r = &s->results[i];
    for (uint64_t n = 0; r->kind == OUTPUT_HANDLE && !r->lost && n < r->count; n++)
      end_check(s, "release", lade_graph_buffer_release(s->tree, r->buffer));
  }
}

static void device_close(session *s) {
  if (s->tree != NULL) end_check(s, "destroy", lade_graph_tree_destroy(s->tree, false));
  for (size_t i = 0; i < s->memory_count; i++)
    end_check(s, "memory", lade_device_free(s->outside, s->memories[i].address));
  for (size_t i = 0; i < s->stream_count; i++)
    if (s->streams[i] != NULL) end_check(s, "stream", lade_stream_destroy(s->runtime, s->streams[i]));
  end_check(s, "pool", lade_device_allocator_destroy(s->pool, false));
  end_check(s, "memory outside", lade_device_allocator_destroy(s->outside, true));
  if (s->runtime != NULL) end_check(s, "device", lade_runtime_close(s->runtime));
}

bool session_end(session *s) {
  if (s == NULL) return true;
  if (s->tree != NULL && s->overlap) (void)streams_wait(s);
  handles_release(s);
  device_close(s);
  bool right = !s->wrong;
  free(s->memories);
  free(s->functions);
  free(s->runs);
  free(s->results);
  free(s->storages);
  free(s->segments);
  free(s->segment_bytes);
  free(s->live);
  free(s->told.why);
  free(s->told.carried);
  free(s->told.classes);
  free(s->told.kinds);
  free(s);
  return right;
}
