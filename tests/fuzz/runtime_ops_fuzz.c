/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interpreter of operation bytes over the runtime `sim`.
 *
 * The first byte says what program it plays. The careful one keeps to stream order: a block of memory belongs to one
 * stream at a time and changes hands through an event. It must find the bytes that a model predicts, be told of no
 * misuse by the software device, and be able to give everything back, whatever calls the fault plan lets fail on the
 * way. The careless one frees memory under queued work, copies between blocks of any streams, and uses what is
 * destroyed: all that is asked for is that it lives, and can give everything back.
 *
 * For the careful program:
 * I1  block->model holds what the block will hold when the work queued so far has run.
 * I2  Only work of block->stream touches a block; it is given to another stream by a wait for that work.
 * I3  A block that a graph names stays on the graph's stream and alive until the graph is destroyed.
 * I4  A call fails with INJECTED only after a fault was planned, and otherwise as the step that makes it allows.
 */
#include <string.h>

#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/fuzz/fuzz.h"

enum { BLOCKS = 12, STREAMS = 4, GRAPHS = 3, GRAPH_NODES = 8, BLOCK_BYTES = 512, DEVICES = 2 };
#define INJECTED LADE_ERR_DRIVER

typedef struct block {
  unsigned char *memory; /* NULL: free */
  size_t bytes;
  bool pinned;
  int device; /* of device memory; a pinned block goes with any */
  int stream; /* I2 */
  int graphs; /* I3 */
  unsigned char model[BLOCK_BYTES];
} block;

typedef struct fuzz_stream {
  ladei_stream stream;
  bool held;
  int capturing; /* graph that is being captured on it; -1: none */
} fuzz_stream;

/* A captured graph is a list of fills, by the driver's op or by a kernel: enough to see that launches happen, in order, as
 * often as asked, and what an update has changed. */
typedef struct graph {
  ladei_graph_exec exec; /* NULL: not launchable */
  int stream;            /* -1: unused */
  int nodes;
  struct {
    int block;
    unsigned char value; /* odd: filled by a kernel */
  } node[GRAPH_NODES];
} graph;

typedef struct machine {
  lade_runtime *runtime;
  block blocks[BLOCKS];
  fuzz_stream streams[STREAMS];
  graph graphs[GRAPHS];
  bool faults;           /* some may be pending */
  bool careless;         /* the program keeps no rule */
  lade_event gone_event; /* destroyed at the start, for the careless program */
  ladei_stream gone_stream;
} machine;

#define OP(m, name, ...) ((m)->runtime->ops->name((m)->runtime->self, ##__VA_ARGS__))

/* True if the call succeeded; a failure must be an injected one (I4). Each planned fault hits once, so that a call
 * which must succeed in the end is repeated until it does. */
static bool worked(const machine *m, const char *what, lade_status status) {
  if (status == LADE_OK) return true;
  if (m->careless && status != LADE_ERR_INTERNAL) return false;
  if (status != INJECTED || !m->faults)
    fuzz_fail("%s: %s: %s", what, lade_status_name(status), lade_last_error()->text);
  return false;
}
#define WORKED(m, name, ...) worked(m, #name, OP(m, name, ##__VA_ARGS__))

static bool any_held(const machine *m) {
  for (int i = 0; i < STREAMS; i++)
    if (m->streams[i].held) return true;
  return false;
}

/* --- Blocks ------------------------------------------------------------------------------------------------------- */

static block *block_pick(machine *m, fuzz_reader *in) { return &m->blocks[fuzz_below(in, BLOCKS)]; }

static void step_alloc(machine *m, fuzz_reader *in) {
  block *b = block_pick(m, in);
  size_t bytes = fuzz_size(in, BLOCK_BYTES);
  unsigned char choice = fuzz_byte(in);
  int stream = (int)(choice % STREAMS);
  if (b->memory != NULL) return;
  block fresh = {.bytes = bytes, .pinned = (choice & 0x40) != 0, .stream = stream};
  fresh.device = m->streams[stream].stream.device;
  void *memory = NULL;
  bool got = fresh.pinned ? WORKED(m, host_alloc, fresh.device, bytes, 0, &memory)
                          : WORKED(m, device_alloc, fresh.device, bytes, &memory);
  if (!got) {
    FUZZ_CHECK(memory == NULL);
    return;
  }
  fresh.memory = memory;
  /* Known bytes, put there at once: nothing uses the block yet. */
  memset(fresh.model, choice, bytes);
  if (fresh.pinned) memset(memory, choice, bytes);
  *b = fresh;
  if (!fresh.pinned && !WORKED(m, copy_sync, fresh.device, LADEI_COPY_H2D, memory, fresh.model, bytes)) {
    while (!WORKED(m, device_free, fresh.device, memory)) continue;
    b->memory = NULL;
  }
}

/* Lets all work of a stream finish; false where that cannot be now. */
static bool settle(machine *m, fuzz_stream *s) {
  if (s->capturing >= 0) return false;
  lade_status status = OP(m, stream_synchronize, &s->stream);
  if (status == LADE_ERR_TIMEOUT && any_held(m)) return false;
  return worked(m, "stream_synchronize", status);
}

static void block_verify(machine *m, block *b) {
  unsigned char seen[BLOCK_BYTES];
  if (m->careless) return;
  if (b->pinned)
    memcpy(seen, b->memory, b->bytes);
  else if (!WORKED(m, copy_sync, b->device, LADEI_COPY_D2H, seen, b->memory, b->bytes))
    return;
  for (size_t i = 0; i < b->bytes; i++) {
    if (seen[i] == b->model[i]) continue;
    fuzz_fail("block %d: byte %zu of %zu is 0x%02x instead of 0x%02x", (int)(b - m->blocks), i, b->bytes, seen[i],
              b->model[i]);
    return;
  }
}

static void step_free(machine *m, fuzz_reader *in) {
  block *b = block_pick(m, in);
  if (b->memory == NULL) return;
  if (!m->careless && (b->graphs != 0 || !settle(m, &m->streams[b->stream]))) return;
  block_verify(m, b);
  bool gone = b->pinned ? WORKED(m, host_free, b->memory) : WORKED(m, device_free, b->device, b->memory);
  if (gone) b->memory = NULL;
}

/* --- Kernels ------------------------------------------------------------------------------------------------------ */

typedef struct mix {
  unsigned char *to;
  const unsigned char *from; /* NULL: zeros */
  size_t bytes;
  unsigned char with;
} mix;

static void mix_bytes(unsigned char *to, const unsigned char *from, size_t bytes, unsigned char with) {
  for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)((from == NULL ? 0 : from[i]) ^ with);
}

static void mix_run(const void *arguments) {
  const mix *own = arguments;
  mix_bytes(own->to, own->from, own->bytes, own->with);
}

static lade_status mix_queue(const machine *m, const mix *arguments, const ladei_stream *stream) {
  const lade_soft_range ranges[] = {{arguments->to, arguments->bytes, LADE_SOFT_WRITE, 0},
                                    {arguments->from, arguments->bytes, LADE_SOFT_READ, 0}};
  return OP(m, kernel, stream, mix_run, arguments, sizeof *arguments, ranges, arguments->from == NULL ? 1 : 2);
}

static bool fill_queue(const machine *m, const block *b, unsigned char value, const ladei_stream *stream) {
  const mix arguments = {b->memory, NULL, b->bytes, value};
  return value % 2 == 1 ? worked(m, "kernel", mix_queue(m, &arguments, stream))
                        : WORKED(m, fill, b->memory, value, b->bytes, stream);
}

/* --- Work --------------------------------------------------------------------------------------------------------- */

static void step_fill(machine *m, fuzz_reader *in) {
  block *b = block_pick(m, in);
  unsigned char value = fuzz_byte(in);
  if (b->memory == NULL) return;
  fuzz_stream *s = &m->streams[b->stream];
  graph *g = s->capturing >= 0 ? &m->graphs[s->capturing] : NULL;
  if (g != NULL && g->nodes == GRAPH_NODES) return;
  if (!fill_queue(m, b, value, &s->stream)) return;
  if (g == NULL) {
    memset(b->model, value, b->bytes);
    return;
  }
  g->node[g->nodes].block = (int)(b - m->blocks);
  g->node[g->nodes++].value = value;
  b->graphs++;
}

static ladei_copy_direction direction_of(const block *from, const block *to) {
  if (from->pinned) return to->pinned ? LADEI_COPY_H2H : LADEI_COPY_H2D;
  return to->pinned ? LADEI_COPY_D2H : LADEI_COPY_D2D;
}

static void step_copy(machine *m, fuzz_reader *in) {
  block *from = block_pick(m, in), *to = block_pick(m, in);
  size_t bytes = fuzz_size(in, BLOCK_BYTES);
  if (from == to || from->memory == NULL || to->memory == NULL) return;
  if (from->stream != to->stream && !m->careless) return;
  fuzz_stream *s = &m->streams[from->stream];
  if (s->capturing >= 0 || bytes > from->bytes || bytes > to->bytes) return;
  ladei_copy_direction direction = direction_of(from, to);
  size_t from_offset = from->bytes - bytes, to_offset = (to->bytes - bytes) / 2;
  lade_status status;
  if (direction == LADEI_COPY_D2D && from->device != to->device) {
    status = OP(m, copy_peer, to->memory + to_offset, to->device, from->memory + from_offset, from->device, bytes,
                &s->stream);
  } else {
    status = OP(m, copy, direction, to->memory + to_offset, from->memory + from_offset, bytes, &s->stream);
  }
  if (worked(m, "copy", status)) memcpy(to->model + to_offset, from->model + from_offset, bytes);
}

static void step_kernel(machine *m, fuzz_reader *in) {
  block *from = block_pick(m, in), *to = block_pick(m, in);
  unsigned char with = fuzz_byte(in);
  if (from->memory == NULL || to->memory == NULL || (from->stream != to->stream && !m->careless)) return;
  fuzz_stream *s = &m->streams[to->stream];
  if (s->capturing >= 0) return;
  size_t bytes = from->bytes < to->bytes ? from->bytes : to->bytes;
  const mix arguments = {to->memory, from->memory, bytes, with};
  if (worked(m, "kernel", mix_queue(m, &arguments, &s->stream))) mix_bytes(to->model, from->model, bytes, with);
}

/* Hands a block to another stream: record on the old one, wait on the new one. */
static void step_move(machine *m, fuzz_reader *in) {
  block *b = block_pick(m, in);
  int target = (int)fuzz_below(in, STREAMS);
  if (b->memory == NULL || b->graphs != 0 || target == b->stream) return;
  if (m->careless) {
    b->stream = target;
    return;
  }
  fuzz_stream *old = &m->streams[b->stream], *new = &m->streams[target];
  if (old->capturing >= 0 || new->capturing >= 0) return;
  lade_event event = NULL;
  if (!WORKED(m, event_create, old->stream.context, 0, &event)) return;
  if (WORKED(m, event_record, event, &old->stream) && WORKED(m, stream_wait_event, &new->stream, event))
    b->stream = target;
  while (!WORKED(m, event_destroy, event)) continue;
}

static void step_synchronize(machine *m, fuzz_reader *in) {
  int index = (int)fuzz_below(in, STREAMS);
  fuzz_stream *s = &m->streams[index];
  if (!settle(m, s)) return;
  for (int i = 0; i < BLOCKS; i++)
    if (m->blocks[i].memory != NULL && m->blocks[i].stream == index) block_verify(m, &m->blocks[i]);
}

/* Questions: their answers change nothing. */
static void step_ask(machine *m, fuzz_reader *in) {
  if (m->careless) return;
  fuzz_stream *s = &m->streams[fuzz_below(in, STREAMS)];
  block *b = block_pick(m, in);
  ladei_capture_info info;
  ladei_pointer_attributes attributes;
  size_t free_bytes, total_bytes;
  if (s->capturing < 0) { /* asking a stream that captures ends its capture */
    lade_status status = OP(m, stream_query, &s->stream);
    if (status != LADE_NOT_READY) (void)worked(m, "stream_query", status);
  }
  if (WORKED(m, stream_capture_info, &s->stream, &info))
    FUZZ_CHECK(info.status == (s->capturing >= 0 ? LADEI_CAPTURE_ACTIVE : LADEI_CAPTURE_NONE));
  if (b->memory != NULL && WORKED(m, pointer_attributes, b->memory + b->bytes - 1, &attributes)) {
    FUZZ_CHECK(attributes.kind == (b->pinned ? LADEI_MEMORY_PINNED : LADEI_MEMORY_DEVICE));
    FUZZ_CHECK(attributes.base == (uintptr_t)b->memory);
  }
  (void)WORKED(m, memory_info, b->device, &free_bytes, &total_bytes);
}

static void step_advance(machine *m, fuzz_reader *in) {
  uint64_t before = m->runtime->ops->now_ns(m->runtime->self), ns = fuzz_size(in, 20000);
  FUZZ_CHECK(lade_soft_advance(m->runtime, ns) == LADE_OK);
  FUZZ_CHECK(m->runtime->ops->now_ns(m->runtime->self) == before + ns);
}

static void step_hold(machine *m, fuzz_reader *in) {
  fuzz_stream *s = &m->streams[fuzz_below(in, STREAMS)];
  lade_stream handle = s->stream.handle;
  lade_status status =
      s->held ? lade_soft_stream_hold(m->runtime, handle, false) : lade_soft_stream_hold(m->runtime, handle, true);
  if (worked(m, "hold or release", status)) s->held = !s->held;
}

/* --- Graphs ------------------------------------------------------------------------------------------------------- */

static void graph_forget(machine *m, graph *g) {
  for (int i = 0; i < g->nodes; i++) m->blocks[g->node[i].block].graphs--;
  *g = (graph){.stream = -1};
}

static void step_capture_begin(machine *m, fuzz_reader *in) {
  int index = (int)fuzz_below(in, GRAPHS), stream = (int)fuzz_below(in, STREAMS);
  fuzz_stream *s = &m->streams[stream];
  graph *g = &m->graphs[index];
  if (g->stream >= 0 || s->capturing >= 0) return;
  if (!WORKED(m, capture_begin, &s->stream, LADEI_CAPTURE_RELAXED)) return;
  g->stream = stream;
  s->capturing = index;
}

static void capture_finish(machine *m, fuzz_stream *s) {
  graph *g = &m->graphs[s->capturing];
  ladei_graph native = NULL;
  if (!WORKED(m, capture_end, &s->stream, &native)) return;
  s->capturing = -1;
  if (!WORKED(m, graph_instantiate, native, &g->exec)) graph_forget(m, g);
  while (!WORKED(m, graph_destroy, native)) continue;
}

static void step_capture_end(machine *m, fuzz_reader *in) {
  fuzz_stream *s = &m->streams[fuzz_below(in, STREAMS)];
  if (s->capturing >= 0) capture_finish(m, s);
}

static void step_launch(machine *m, fuzz_reader *in) {
  graph *g = &m->graphs[fuzz_below(in, GRAPHS)];
  if (g->exec == NULL || m->streams[g->stream].capturing >= 0) return;
  if (!WORKED(m, graph_launch, g->exec, &m->streams[g->stream].stream)) return;
  for (int i = 0; i < g->nodes; i++) {
    block *b = &m->blocks[g->node[i].block];
    memset(b->model, g->node[i].value, b->bytes);
  }
}

/* Captures the graph's fills again: with other values, with one less, or with one of the other kind. NULL: a call failed. */
static ladei_graph graph_capture_again(const machine *m, const graph *g, int nodes, int flipped, unsigned char change) {
  const ladei_stream *stream = &m->streams[g->stream].stream;
  ladei_graph native = NULL;
  bool complete = true;
  if (!WORKED(m, capture_begin, stream, LADEI_CAPTURE_RELAXED)) return NULL;
  for (int i = 0; i < nodes && complete; i++) {
    unsigned char value = (unsigned char)(g->node[i].value ^ change ^ (i == flipped));
    complete = fill_queue(m, &m->blocks[g->node[i].block], value, stream);
  }
  while (!WORKED(m, capture_end, stream, &native)) continue;
  if (complete) return native;
  while (!WORKED(m, graph_destroy, native)) continue;
  return NULL;
}

/* Launches that were queued before keep what they do: their blocks' models have it already. */
static void step_update(machine *m, fuzz_reader *in) {
  graph *g = &m->graphs[fuzz_below(in, GRAPHS)];
  unsigned char change = fuzz_byte(in) & 0xfe, defect = fuzz_byte(in) % 4;
  if (m->careless || g->exec == NULL || m->streams[g->stream].capturing >= 0) return;
  ladei_graph_update expected = LADEI_GRAPH_UPDATED, result = LADEI_GRAPH_NOT_UPDATABLE;
  if (defect == 1 && g->nodes > 0) expected = LADEI_GRAPH_TOPOLOGY_CHANGED;
  if (defect == 2 && g->nodes > 0) expected = LADEI_GRAPH_KIND_CHANGED;
  ladei_graph native = graph_capture_again(m, g, expected == LADEI_GRAPH_TOPOLOGY_CHANGED ? g->nodes - 1 : g->nodes,
                                           expected == LADEI_GRAPH_KIND_CHANGED ? g->nodes - 1 : -1, change);
  if (native == NULL) return;
  if (WORKED(m, graph_exec_update, g->exec, native, &result)) {
    FUZZ_CHECK(result == expected);
    for (int i = 0; i < g->nodes && result == LADEI_GRAPH_UPDATED; i++) g->node[i].value ^= change;
  } else {
    FUZZ_CHECK(result == LADEI_GRAPH_NOT_UPDATABLE);
  }
  while (!WORKED(m, graph_destroy, native)) continue;
}

static void step_upload(machine *m, fuzz_reader *in) {
  const graph *g = &m->graphs[fuzz_below(in, GRAPHS)];
  const fuzz_stream *s = &m->streams[fuzz_below(in, STREAMS)];
  if (g->exec != NULL && s->capturing < 0) (void)WORKED(m, graph_upload, g->exec, &s->stream);
}

static void step_graph_destroy(machine *m, fuzz_reader *in) {
  graph *g = &m->graphs[fuzz_below(in, GRAPHS)];
  if (g->exec != NULL && WORKED(m, graph_exec_destroy, g->exec)) graph_forget(m, g);
}

/* Uses of what is gone, and frees of what was never handed out. */
static void step_misuse(machine *m, fuzz_reader *in) {
  unsigned which = fuzz_below(in, 8);
  fuzz_stream *s = &m->streams[fuzz_below(in, STREAMS)];
  if (!m->careless) return;
  switch (which) {
  case 0: (void)WORKED(m, event_query, m->gone_event); break;
  case 1: (void)WORKED(m, event_record, m->gone_event, &s->stream); break;
  case 2: (void)WORKED(m, stream_wait_event, &s->stream, m->gone_event); break;
  case 3: (void)WORKED(m, stream_query, &m->gone_stream); break;
  case 4: FUZZ_CHECK(!WORKED(m, event_destroy, m->gone_event)); break;
  case 5: FUZZ_CHECK(!WORKED(m, stream_destroy, m->gone_stream.handle)); break;
  case 6: FUZZ_CHECK(!WORKED(m, device_free, 0, &which)); break;
  default: FUZZ_CHECK(!WORKED(m, host_free, &which)); break;
  }
}

/* --- Faults ------------------------------------------------------------------------------------------------------- */

static void step_fault(machine *m, fuzz_reader *in) {
  static const char *const ops[] = {
      "device_alloc",  "device_free",       "host_alloc",         "host_free",     "copy",
      "fill",          "copy_sync",         "copy_peer",          "event_create",  "event_record",
      "event_destroy", "stream_wait_event", "stream_synchronize", "stream_query",  "capture_begin",
      "capture_end",   "graph_instantiate", "graph_launch",       "graph_destroy", "graph_exec_destroy",
      "kernel",        "graph_exec_update", "graph_upload",
  };
  const char *op = ops[fuzz_below(in, sizeof ops / sizeof ops[0])];
  FUZZ_CHECK(lade_soft_fault_add(m->runtime, op, 1 + fuzz_below(in, 3), INJECTED) == LADE_OK);
  m->faults = true;
}

/* --- A run -------------------------------------------------------------------------------------------------------- */

static void machine_make_gone(machine *m) {
  lade_stream handle = NULL;
  FUZZ_CHECK(OP(m, stream_create, 0, 0, 0, &handle) == LADE_OK);
  FUZZ_CHECK(OP(m, stream_resolve, handle, &m->gone_stream) == LADE_OK);
  FUZZ_CHECK(OP(m, event_create, m->gone_stream.context, 0, &m->gone_event) == LADE_OK);
  FUZZ_CHECK(OP(m, event_destroy, m->gone_event) == LADE_OK);
  FUZZ_CHECK(OP(m, stream_destroy, handle) == LADE_OK);
}

static bool machine_open(machine *m) {
  memset(m, 0, sizeof *m);
  lade_soft_device devices[DEVICES] = {{.memory_bytes = 1 << 20}, {.memory_bytes = 1 << 20}};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = devices;
  soft.device_count = DEVICES;
  soft.graph_node_bytes = 1;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  if (lade_runtime_open("sim", &options, &m->runtime) != LADE_OK) {
    fuzz_fail("open: %s", lade_last_error()->text);
    return false;
  }
  FUZZ_CHECK(OP(m, peer_enable, 0, 1) == LADE_OK && OP(m, peer_enable, 1, 0) == LADE_OK);
  for (int i = 0; i < STREAMS; i++) {
    lade_stream handle = NULL;
    FUZZ_CHECK(OP(m, stream_create, i % DEVICES, 0, LADEI_STREAM_NON_BLOCKING, &handle) == LADE_OK);
    FUZZ_CHECK(OP(m, stream_resolve, handle, &m->streams[i].stream) == LADE_OK);
    m->streams[i].capturing = -1;
  }
  for (int i = 0; i < GRAPHS; i++) m->graphs[i].stream = -1;
  machine_make_gone(m);
  return true;
}

static void machine_give_back(machine *m) {
  FUZZ_CHECK(lade_soft_fault_clear(m->runtime) == LADE_OK);
  m->faults = false;
  for (int i = 0; i < STREAMS; i++) {
    fuzz_stream *s = &m->streams[i];
    if (s->held) FUZZ_CHECK(lade_soft_stream_hold(m->runtime, s->stream.handle, false) == LADE_OK);
    s->held = false;
    if (s->capturing >= 0) capture_finish(m, s);
  }
  for (int i = 0; i < DEVICES; i++) FUZZ_CHECK(OP(m, device_synchronize, i) == LADE_OK);
  for (int i = 0; i < GRAPHS; i++)
    if (m->graphs[i].exec != NULL) FUZZ_CHECK(OP(m, graph_exec_destroy, m->graphs[i].exec) == LADE_OK);
  for (int i = 0; i < BLOCKS; i++) {
    block *b = &m->blocks[i];
    if (b->memory == NULL) continue;
    block_verify(m, b);
    FUZZ_CHECK((b->pinned ? OP(m, host_free, b->memory) : OP(m, device_free, b->device, b->memory)) == LADE_OK);
  }
  for (int i = 0; i < STREAMS; i++) FUZZ_CHECK(OP(m, stream_destroy, m->streams[i].stream.handle) == LADE_OK);
}

static void machine_close(machine *m) {
  machine_give_back(m);
  lade_soft_report report;
  lade_soft_report_init(&report);
  FUZZ_CHECK(lade_soft_report_get(m->runtime, &report) == LADE_OK);
  uint64_t findings = report.freed_memory_used + report.unordered_reuse + report.stale_handles + report.unpinned_copies;
  if (findings != 0 && !m->careless) fuzz_fail("the software device reports: %s", report.last_finding);
  FUZZ_CHECK(report.device_bytes == 0 && report.pinned_bytes == 0 && report.device_allocations == 0);
  FUZZ_CHECK(report.pinned_ranges == 0 && report.streams == 0 && report.events == 0 && report.graphs == 0);
  if (lade_runtime_close(m->runtime) != LADE_OK) fuzz_fail("close: %s", lade_last_error()->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const steps[])(machine * m, fuzz_reader * in) = {
      step_alloc,         step_alloc,  step_free,        step_fill,   step_fill,    step_copy,          step_copy,
      step_copy,          step_move,   step_synchronize, step_ask,    step_advance, step_hold,          step_fault,
      step_capture_begin, step_fill,   step_capture_end, step_launch, step_launch,  step_graph_destroy, step_misuse,
      step_kernel,        step_update, step_update,      step_upload,
  };
  machine m;
  if (!machine_open(&m)) return 0;
  fuzz_reader in = {data, data + size};
  m.careless = fuzz_byte(&in) % 2 == 1;
  while (!fuzz_done(&in)) steps[fuzz_below(&in, sizeof steps / sizeof steps[0])](&m, &in);
  machine_close(&m);
  return 0;
}
