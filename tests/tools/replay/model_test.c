/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade against the plain model on random traces of all kinds, with one driver event per free or per sixteen: streams,
 * oversize blocks, collection by threshold, memory fraction, private pools, checkpoints, expandable segments, too little
 * memory. Any difference in a report, or in what is refused, is shrunk to a few lines and printed as a trace.
 *
 * Every second trace is of version 2, as PyTorch 2.11 decides, with pools as objects.
 *
 * Every third trace has a unit: the device, the limits and most sizes are small multiples of it, and the unit is an
 * oversize block. There sums of blocks hit limits and requests exactly, where a comparison that is off by one shows. In every
 * fourth one some segments lie where the trace says.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lade/device.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/tools/replay/model.h"
#include "tools/replay/replay.h"

enum { OPS_MAX = 400, IDS = 48, STREAMS = 4, POOLS = 3, KEYS = 2, TEXT_MAX = 512 };

#define MI (UINT64_C(1) << 20)

static const uint64_t stream_numbers[STREAMS] = {0, 5, 9, UINT64_MAX};

typedef struct random_trace {
  model_settings settings;
  uint64_t unit; /* bytes; 0: none */
  bool placed;   /* some allocs say where their memory lies */
  char conf[TEXT_MAX];
  trace_op ops[OPS_MAX];
  size_t count;
  uint64_t streams[OPS_MAX][STREAMS]; /* of pool_begin */
  const char *own_conf;               /* settings of lade's own, which must not change a report; NULL: none */
} random_trace;

/* ---- Making a trace ---------------------------------------------------------------------------------------------- */

static void conf_add(random_trace *t, const char *format, uint64_t value) {
  size_t length = strlen(t->conf);
  if (length > 0) t->conf[length++] = ',';
  snprintf(t->conf + length, TEXT_MAX - length, format, value);
}

static void divisions_make(random_trace *t, support_random *random) {
  model_settings *s = &t->settings;
  uint64_t d = UINT64_C(1) << support_random_below(random, 5);
  uint64_t e = UINT64_C(1) << support_random_below(random, 5);
  if (support_random_one_in(random, 2)) {
    for (int i = 0; i < 16; i++) s->divisions[i] = d;
    conf_add(t, "roundup_power2_divisions:%" PRIu64, d);
    return;
  }
  /* Up to 3 MiB d steps, from 4 MiB on e; 16 MiB and more none. */
  for (int i = 0; i < 16; i++) s->divisions[i] = i < 2 ? d : i < 4 ? e : 0;
  conf_add(t, "roundup_power2_divisions:[1:%" PRIu64, d);
  conf_add(t, "2:%" PRIu64, d);
  conf_add(t, "4:%" PRIu64, e);
  conf_add(t, "8:%" PRIu64, e);
  conf_add(t, "16:%" PRIu64, 0);
  conf_add(t, ">:%" PRIu64 "]", 0);
}

static void threshold_make(random_trace *t, uint64_t percent) {
  char text[32];
  snprintf(text, sizeof text, "0.%02" PRIu64, percent);
  t->settings.threshold = strtod(text, NULL);
  conf_add(t, "garbage_collection_threshold:0.%02" PRIu64, percent);
}

static void max_split_make(random_trace *t, uint64_t mebibytes) {
  t->settings.max_split = mebibytes * MI;
  conf_add(t, "max_split_size_mb:%" PRIu64, mebibytes);
}

static void settings_make(random_trace *t, support_random *random) {
  model_settings *s = &t->settings;
  bool newer = s->newer;
  *s = (model_settings){
      .newer = newer, .capacity = MI * support_random_between(random, 40, 600), .max_split = UINT64_MAX};
  t->conf[0] = '\0';
  t->unit = 0;
  if (support_random_one_in(random, 3)) {
    uint64_t mebibytes = 2 * support_random_between(random, 11, 20);
    t->unit = mebibytes * MI;
    s->capacity = t->unit * support_random_between(random, 1, 4) * (support_random_one_in(random, 2) ? 4 : 3);
    max_split_make(t, mebibytes - support_random_below(random, 2));
    if (support_random_one_in(random, 2)) threshold_make(t, 25 * support_random_between(random, 1, 3));
  } else {
    if (support_random_one_in(random, 2)) max_split_make(t, support_random_between(random, 21, 80));
    if (support_random_one_in(random, 2)) threshold_make(t, support_random_between(random, 10, 95));
  }
  if (support_random_one_in(random, t->unit > 0 ? 4 : 2)) {
    s->expandable = true;
    conf_add(t, "expandable_segments:True%.0" PRIu64, 0);
  }
  if (support_random_one_in(random, 3)) divisions_make(t, random);
}

/* Near a value: exactly, one byte or one quantum beside it. */
static uint64_t size_near(support_random *random, uint64_t value) {
  static const int64_t beside[] = {0, 0, 0, -1, 1, -512, 512, -1024};
  return value + (uint64_t)beside[support_random_below(random, sizeof beside / sizeof beside[0])];
}

static uint64_t size_make(const random_trace *t, support_random *random) {
  static const uint64_t edges[] = {512, MI, 2 * MI, 10 * MI, 20 * MI, 21 * MI, 40 * MI};
  if (t->unit > 0 && support_random_one_in(random, 2))
    return size_near(random, t->unit * support_random_between(random, 1, 4));
  switch (support_random_below(random, 9)) {
  case 0: return support_random_below(random, 3) * 300;
  case 1: return size_near(random, edges[support_random_below(random, sizeof edges / sizeof edges[0])]);
  case 2: return support_random_between(random, 10 * MI, 120 * MI);
  case 3: return support_random_between(random, MI, 12 * MI);
  case 4:
    if (t->settings.max_split == UINT64_MAX)
      return MI - 512 * support_random_below(random, 6); /* nearly fills a half */
    return size_near(random, t->settings.max_split + (support_random_one_in(random, 2) ? 20 * MI : 0));
  default: return support_random_size(random, 2 * MI);
  }
}

static uint64_t id_make(support_random *random) { return 1 + support_random_below(random, IDS); }

static uint64_t stream_make(support_random *random) {
  return stream_numbers[support_random_one_in(random, 2) ? 0 : support_random_below(random, STREAMS)];
}

static void pool_begin_make(random_trace *t, trace_op *op, support_random *random) {
  op->kind = TRACE_POOL_BEGIN;
  op->number[0] = 1 + support_random_below(random, POOLS);
  op->stream_count = 1 + support_random_below(random, 2);
  op->streams = t->streams[t->count];
  for (size_t i = 0; i < op->stream_count; i++) t->streams[t->count][i] = stream_make(random);
}

/* Of version 2; whole uses of a pool as use_mem_pool has them are made of their parts. */
static void pool_object_op_make(trace_op *op, support_random *random) {
  op->kind = support_random_one_in(random, 2) ? TRACE_POOL_CREATE : TRACE_POOL_TRIM;
  op->number[0] = 1 + support_random_below(random, POOLS);
  if (op->kind == TRACE_POOL_CREATE)
    op->number[1] =
        support_random_below(random, 2) * TRACE_POOL_NO_SPLIT + support_random_below(random, 2) * TRACE_POOL_USE_ON_OOM;
}

static void pool_op_make(random_trace *t, trace_op *op, support_random *random) {
  static const trace_kind kinds[] = {TRACE_POOL_END,   TRACE_POOL_END,   TRACE_POOL_END, TRACE_POOL_RELEASE,
                                     TRACE_CHECKPOINT, TRACE_CHECKPOINT, TRACE_RESTORE,  TRACE_RESTORE};
  if (t->settings.newer && support_random_one_in(random, 4)) {
    pool_object_op_make(op, random);
    return;
  }
  size_t choice = support_random_below(random, 10);
  /* The model stores no mapped runs. */
  if (choice >= 8 || (choice >= 4 && t->settings.newer && t->settings.expandable)) {
    pool_begin_make(t, op, random);
    return;
  }
  op->kind = kinds[choice];
  op->number[0] = 1 + support_random_below(random, POOLS);
  op->number[1] = support_random_below(random, KEYS);
}

static void rare_op_make(const random_trace *t, trace_op *op, support_random *random) {
  switch (support_random_below(random, 4)) {
  case 0: op->kind = TRACE_RESET_PEAK; break;
  case 1: op->kind = TRACE_RESET_ACCUMULATED; break;
  case 2:
    op->kind = TRACE_FRACTION;
    op->fraction = t->unit > 0 ? (double)support_random_between(random, 1, 4) / 4.0
                               : (double)support_random_below(random, 101) / 100.0;
    break;
  default: op->kind = TRACE_EMPTY_CACHE; break;
  }
}

static trace_op *op_append(random_trace *t, trace_kind kind) {
  trace_op *op = &t->ops[t->count];
  *op = (trace_op){.line = t->count + 3, .kind = kind};
  t->count++;
  return op;
}

static void alloc_append(random_trace *t, uint64_t id, uint64_t bytes, uint64_t stream) {
  trace_op *op = op_append(t, TRACE_ALLOC);
  op->number[0] = id;
  op->number[1] = bytes;
  op->number[2] = stream;
}

static void free_append(random_trace *t, uint64_t id) { op_append(t, TRACE_FREE)->number[0] = id; }

/* Several blocks of one unit become free on one stream; then some units are wanted at once. */
static void burst_make(random_trace *t, support_random *random) {
  enum { MOST = 6, BURST_OPS = 3 * MOST + 3 };
  if (t->count + BURST_OPS > OPS_MAX) return;
  uint64_t stream = stream_make(random);
  uint64_t first = id_make(random);
  uint64_t count = support_random_between(random, 3, MOST);
  for (uint64_t i = 0; i < count; i++) {
    free_append(t, first + i);
    alloc_append(t, first + i, t->unit, stream);
  }
  bool ages = support_random_one_in(random, 2); /* a search in between makes the first ones older */
  for (uint64_t i = 0; i < count; i++) {
    if (ages && i == count / 2) {
      free_append(t, first + count);
      alloc_append(t, first + count, 2 * MI, stream_make(random));
    }
    free_append(t, first + i);
  }
  alloc_append(t, first, t->unit * support_random_between(random, 2, 4), stream);
}

static void pool_begin_append(random_trace *t, uint64_t pool, uint64_t stream) {
  t->streams[t->count][0] = stream;
  trace_op *op = op_append(t, TRACE_POOL_BEGIN);
  op->number[0] = pool;
  op->streams = t->streams[t->count - 1];
  op->stream_count = 1;
}

/* A pool that lends has a free block, and the device is full but for what is cached. */
static void lend_make(random_trace *t, support_random *random) {
  enum { FILLS = 6, LEND_OPS = FILLS + 9 };
  if (t->count + LEND_OPS > OPS_MAX) return;
  uint64_t id = id_make(random), bytes = size_make(t, random), stream = stream_make(random);
  uint64_t pool = 1 + support_random_below(random, POOLS), other = 1 + support_random_below(random, POOLS);
  trace_op *create = op_append(t, TRACE_POOL_CREATE);
  create->number[0] = pool;
  create->number[1] = TRACE_POOL_USE_ON_OOM + support_random_below(random, 2) * TRACE_POOL_NO_SPLIT;
  pool_begin_append(t, pool, stream);
  free_append(t, id);
  alloc_append(t, id, bytes, stream);
  free_append(t, id);
  op_append(t, TRACE_POOL_END)->number[0] = pool;
  uint64_t fill = t->settings.capacity / 2;
  for (uint64_t i = 1; i <= FILLS; i++, fill = fill / 2 / MI * MI + 2 * MI) alloc_append(t, id + i, fill, stream);
  if (support_random_one_in(random, 2)) free_append(t, id + 1 + support_random_below(random, FILLS));
  if (support_random_one_in(random, 4)) pool_begin_append(t, other, stream); /* its requests borrow nothing */
  alloc_append(t, id, bytes - support_random_below(random, bytes / 2 + 1), stream);
}

/* One block freed and allocated again, some times, as programs do most. */
static void pairs_make(random_trace *t, support_random *random) {
  enum { MOST = 4, PAIR_OPS = 2 * MOST + 1 };
  if (t->count + PAIR_OPS > OPS_MAX) return;
  uint64_t id = id_make(random);
  uint64_t bytes = size_make(t, random);
  uint64_t stream = stream_make(random);
  free_append(t, id);
  for (uint64_t left = support_random_between(random, 1, MOST); left > 0; left--) {
    alloc_append(t, id, bytes, stream);
    free_append(t, id);
  }
}

/* Mostly where other segments lie, or did, or will. */
static uint64_t address_make(support_random *random) {
  if (support_random_one_in(random, 4)) return 2 * MI * support_random_between(random, 1, 1000);
  return UINT64_C(0x700000000000) + 2 * MI * support_random_below(random, 600);
}

static void op_make(random_trace *t, support_random *random) {
  trace_op *op = &t->ops[t->count];
  *op = (trace_op){.line = t->count + 3};
  uint64_t choice = support_random_below(random, 100);
  if (choice < 42) {
    op->kind = TRACE_ALLOC;
    op->number[0] = id_make(random);
    op->number[1] = size_make(t, random);
    op->number[2] = stream_make(random);
    if (t->placed && support_random_one_in(random, 3)) op->at = address_make(random);
  } else if (choice < 72) {
    op->kind = TRACE_FREE;
    op->number[0] = id_make(random);
  } else if (choice < 84) {
    op->kind = TRACE_RECORD;
    op->number[0] = id_make(random);
    op->number[1] = stream_numbers[support_random_below(random, STREAMS)];
  } else if (choice < 90) {
    op->kind = TRACE_COMPLETE;
    op->number[0] = stream_numbers[support_random_below(random, STREAMS)];
  } else if (choice < 98) {
    pool_op_make(t, op, random);
  } else {
    rare_op_make(t, op, random);
  }
  t->count++;
}

static void trace_make(random_trace *t, uint64_t seed) {
  support_random random;
  support_random_start_quietly(&random, seed);
  t->count = 0;
  t->placed = seed % 4 == 3;
  t->own_conf = seed % 2 == 0 ? "device_event_batch:16" : NULL; /* one driver event for many frees */
  t->settings.newer = seed % 4 >= 2;
  if (t->settings.newer)
    t->own_conf = seed % 2 == 0 ? "device_policy:reference,device_event_batch:16" : "device_policy:reference";
  settings_make(t, &random);
  if (t->settings.threshold > 0.0 && support_random_one_in(&random, 2))
    op_append(t, TRACE_FRACTION)->fraction = (double)support_random_between(&random, 1, 4) / 4.0;
  while (t->count < OPS_MAX) {
    if (t->unit > 0 && support_random_one_in(&random, 25)) burst_make(t, &random);
    if (t->settings.newer && support_random_one_in(&random, 25)) lend_make(t, &random);
    if (support_random_one_in(&random, 8)) pairs_make(t, &random);
    if (t->count < OPS_MAX) op_make(t, &random);
  }
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  model *m;
  const char *difference; /* NULL: none */
} comparison;

static void difference_note(comparison *c, const char *what) {
  if (c->difference == NULL) c->difference = what;
}

typedef struct stat_list {
  int64_t values[122];
  const char *keys[122];
  size_t count;
} stat_list;

static lade_status stat_collect(const char *key, int64_t value, void *user) {
  stat_list *list = user;
  (void)key;
  list->values[list->count++] = value;
  return LADE_OK;
}

static void report_compare(void *user, const report_entry *got) {
  comparison *c = user;
  const report_entry *want = model_report(c->m);
  stat_list a = {.count = 0};
  stat_list b = {.count = 0};
  (void)lade_device_stats_each(got->stats, stat_collect, &a);
  (void)lade_device_stats_each(want->stats, stat_collect, &b);
  if (a.count != 122 || memcmp(a.values, b.values, sizeof a.values) != 0) difference_note(c, "statistics");
  bool same_oom = got->oom_count == want->oom_count;
  for (size_t i = 0; same_oom && i < got->oom_count; i++) same_oom = got->oom[i] == want->oom[i];
  if (!same_oom) difference_note(c, "failed IDs");
  if (got->segment_count != want->segment_count) {
    difference_note(c, "number of segments");
    return;
  }
  size_t blocks = 0;
  for (size_t i = 0; i < got->segment_count; i++) {
    const report_segment *g = &got->segments[i];
    const report_segment *w = &want->segments[i];
    bool same = g->address == w->address && g->total_size == w->total_size && g->stream == w->stream &&
                g->pool == w->pool && g->is_large == w->is_large && g->is_expandable == w->is_expandable &&
                g->allocated_size == w->allocated_size && g->active_size == w->active_size &&
                g->requested_size == w->requested_size && g->block_count == w->block_count;
    if (!same) {
      difference_note(c, "segments");
      return;
    }
    blocks += g->block_count;
  }
  for (size_t i = 0; i < blocks; i++) {
    const report_block *g = &got->blocks[i];
    const report_block *w = &want->blocks[i];
    if (g->offset != w->offset || g->size != w->size || g->requested_size != w->requested_size ||
        g->state != w->state || g->id != w->id) {
      difference_note(c, "blocks");
      return;
    }
  }
}

static void declarations_run(const random_trace *t, replay *r, trace_reader *reader) {
  trace_op device = {.kind = TRACE_DEVICE, .number = {t->settings.capacity}};
  trace_op conf = {.kind = TRACE_CONF, .text = t->conf};
  (void)replay_step(r, reader, &device);
  if (t->conf[0] != '\0' && replay_step(r, reader, &conf) != READ_ITEM) LADE_FAIL("%s", trace_error(reader));
}

/* Runs the trace on both; NULL if they agree. Reports are compared after each `stride` operations and at the end. */
static const char *trace_compare(const random_trace *t, size_t stride, size_t *out_refused,
                                 lade_device_stats *out_stats) {
  comparison c = {.m = model_create(&t->settings)};
  replay_settings settings = {.conf = t->own_conf, .snapshot = report_compare, .user = &c};
  replay *r = replay_create(&settings);
  trace_reader *reader = trace_reader_create(stdin, "random trace");
  declarations_run(t, r, reader);
  for (size_t i = 0; i < t->count && c.difference == NULL; i++) {
    bool got = replay_step(r, reader, &t->ops[i]) == READ_ITEM;
    bool want = model_step(c.m, &t->ops[i]);
    if (got != want) difference_note(&c, got ? "done, but should be refused" : "refused, but should be done");
    if (!want) *out_refused += 1;
    if (c.difference == NULL && (i % stride == 0 || i + 1 == t->count)) {
      trace_op snapshot = {.kind = TRACE_SNAPSHOT, .line = t->ops[i].line, .text = "compare"};
      (void)replay_step(r, reader, &snapshot);
      model_snapshot_done(c.m);
    }
  }
  *out_stats = *model_report(c.m)->stats;
  replay_destroy(r);
  trace_reader_destroy(reader);
  model_destroy(c.m);
  return c.difference;
}

/* ---- Shrinking --------------------------------------------------------------------------------------------------- */

static bool still_differs(const random_trace *t) {
  size_t refused = 0;
  lade_device_stats stats;
  return trace_compare(t, 1, &refused, &stats) != NULL;
}

/* Takes out ever smaller runs of operations for as long as the two still differ. */
static void trace_shrink(random_trace *t) {
  random_trace *attempt = malloc(sizeof *attempt);
  if (attempt == NULL) return;
  for (size_t run = t->count / 2; run > 0; run /= 2) {
    for (size_t at = 0; at + run <= t->count;) {
      *attempt = *t;
      memmove(&attempt->ops[at], &attempt->ops[at + run], (t->count - at - run) * sizeof attempt->ops[0]);
      attempt->count -= run;
      if (still_differs(attempt))
        *t = *attempt; /* streams of pool_begin stay where they are: ops point into the array of the first trace */
      else
        at += run;
    }
  }
  free(attempt);
}

static void op_print(char *out, size_t room, const trace_op *op) {
  static const int numbers[TRACE_KIND_COUNT] = {
      [TRACE_ALLOC] = 3,        [TRACE_FREE] = 1,     [TRACE_RECORD] = 2,    [TRACE_COMPLETE] = 1,
      [TRACE_POOL_BEGIN] = 1,   [TRACE_POOL_END] = 1, [TRACE_POOL_TRIM] = 1, [TRACE_CHECKPOINT] = 2,
      [TRACE_POOL_RELEASE] = 1, [TRACE_RESTORE] = 2};
  size_t used = (size_t)snprintf(out, room, "%s", trace_kind_name(op->kind));
  if (op->kind == TRACE_POOL_CREATE)
    used += (size_t)snprintf(out + used, room - used, " %" PRIu64 "%s%s", op->number[0],
                             (op->number[1] & TRACE_POOL_NO_SPLIT) != 0 ? " no_split" : "",
                             (op->number[1] & TRACE_POOL_USE_ON_OOM) != 0 ? " use_on_oom" : "");
  for (int i = 0; i < numbers[op->kind]; i++)
    used += (size_t)snprintf(out + used, room - used, " %" PRIu64, op->number[i]);
  for (size_t i = 0; i < op->stream_count; i++)
    used += (size_t)snprintf(out + used, room - used, " %" PRIu64, op->streams[i]);
  if (op->at != 0) snprintf(out + used, room - used, " # at %" PRIu64, op->at);
  if (op->kind == TRACE_FRACTION) snprintf(out + used, room - used, " %.2f", op->fraction);
}

static void difference_tell(random_trace *t, uint64_t seed, const char *difference) {
  trace_shrink(t);
  static char text[OPS_MAX * 80];
  size_t used = 0;
  for (size_t i = 0; i < t->count && used + 160 < sizeof text; i++) {
    op_print(text + used, 120, &t->ops[i]);
    used += strlen(text + used);
    text[used++] = '\n';
    text[used] = '\0';
  }
  LADE_FAIL("seed %" PRIu64 ": lade and the model differ in %s. Shrunk:\nlade-trace %d\ndevice %" PRIu64 "\n%s%s\n%s",
            seed, difference, 1 + t->settings.newer, t->settings.capacity, t->conf[0] != '\0' ? "conf " : "# no conf",
            t->conf, text);
}

/* Each build has its own seeds. The default one runs more than a million operations, those under sanitisers, which take
 * ten times as long, a quarter of that. */
#if defined(__SANITIZE_ADDRESS__)
enum { SEEDS = 160, FIRST_SEED = 1000001 };
#elif defined(__SANITIZE_THREAD__)
enum { SEEDS = 160, FIRST_SEED = 2000001 };
#else
enum { SEEDS = 640, FIRST_SEED = 1 };
#endif

/* What the traces of one test came to, so that none of their kinds dies out unnoticed. */
static void coverage_expect(const lade_device_stats *sums) {
  LADE_EXPECT_GT_UINT(sums->ooms, SEEDS);
  LADE_EXPECT_GT_UINT(sums->alloc_retries, SEEDS);
  LADE_EXPECT_GT_UINT(sums->sync_all_streams, sums->alloc_retries);
  LADE_EXPECT_GT_UINT(sums->device_frees, SEEDS);
  LADE_EXPECT_GT_UINT(sums->oversize_allocations.peak, SEEDS / 2);
  LADE_EXPECT_GT_UINT(sums->inactive_split.all.peak, SEEDS);
}

static void coverage_add(lade_device_stats *sums, const lade_device_stats *of_trace) {
  sums->ooms += of_trace->ooms;
  sums->alloc_retries += of_trace->alloc_retries;
  sums->sync_all_streams += of_trace->sync_all_streams;
  sums->device_frees += of_trace->device_frees;
  sums->oversize_allocations.peak += of_trace->oversize_allocations.peak;
  sums->inactive_split.all.peak += of_trace->inactive_split.all.peak;
}

static void seeds_run(uint64_t first) {
  static random_trace t;
  size_t refused = 0;
  lade_device_stats sums;
  lade_device_stats_init(&sums);
  for (uint64_t seed = first; seed < first + SEEDS; seed++) {
    lade_device_stats stats;
    trace_make(&t, seed);
    const char *difference = trace_compare(&t, 8, &refused, &stats);
    if (difference != NULL) {
      difference_tell(&t, seed, difference);
      return;
    }
    coverage_add(&sums, &stats);
  }
  LADE_EXPECT_GT_SIZE(refused, 0);
  LADE_EXPECT_LT_SIZE(refused, (size_t)SEEDS * OPS_MAX / 2);
  coverage_expect(&sums);
}

LADE_TEST(ReplayModel, AgreesOnRandomTraces1) { seeds_run(FIRST_SEED); }
LADE_TEST(ReplayModel, AgreesOnRandomTraces2) { seeds_run(FIRST_SEED + 10000); }
LADE_TEST(ReplayModel, AgreesOnRandomTraces3) { seeds_run(FIRST_SEED + 20000); }
LADE_TEST(ReplayModel, AgreesOnRandomTraces4) { seeds_run(FIRST_SEED + 30000); }
