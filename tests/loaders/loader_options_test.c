/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of a loader with all others: which batches there are, and every byte of them, by a model that knows the header
 * alone. The order of shuffled records is taken from a loader of batches of one record.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"
#include "tests/support/guarded.h"
#include "tests/support/pattern.h"

enum { RECORDS = 23, FIELDS = 2, EPOCHS = 4, FILE_BYTES = 8192 };

static const support_option options[] = {
    SUPPORT_OPTION(lade_loader_options, batch_records, 0, 1, 3, 8, 23, 1u << 24),
    SUPPORT_OPTION(lade_loader_options, batch_bytes, 0, 640, 1000, 3333, 1u << 20, UINT64_MAX),
    SUPPORT_OPTION(lade_loader_options, seed, 0, 77, UINT64_MAX),
    SUPPORT_OPTION(lade_loader_options, epochs, 0, 1, 2, UINT64_MAX),
    SUPPORT_OPTION(lade_loader_options, return_timeout_ns, 0, 1, UINT64_MAX),
    SUPPORT_OPTION(lade_loader_options, rank, 0, 0, 1),
    SUPPORT_OPTION(lade_loader_options, world_size, 0, 1, 2, 5, 23),
    SUPPORT_OPTION(lade_loader_options, prefetch, 0, 1, 2, 5, 64),
    SUPPORT_OPTION(lade_loader_options, alignment, 0, 1, 2, 4, 8, 512),
    SUPPORT_OPTION(lade_loader_options, padded, 0, 1),
    SUPPORT_OPTION(lade_loader_options, shuffle, 0, 1),
    SUPPORT_OPTION(lade_loader_options, equal_ranks, 0, 1),
    SUPPORT_OPTION(lade_loader_options, drop_last, 0, 1),
    SUPPORT_OPTION(lade_loader_options, skip_unreadable, 0, 1),
    SUPPORT_CHOICE("own stream", 0, 1),
    SUPPORT_CHOICE("unreadable records", 0, 1),
    SUPPORT_CHOICE("batches before a resume", 0, 1, 3),
    SUPPORT_CHOICE("batches held", 1, 2, 64),
    SUPPORT_CHOICE("newest returned first", 0, 1),
};
static const support_option wrong[] = {
    SUPPORT_OPTION(lade_loader_options, batch_records, (1u << 24) + 1, UINT64_MAX),
    SUPPORT_OPTION(lade_loader_options, batch_bytes, 1),
    SUPPORT_OPTION(lade_loader_options, rank, 24, UINT32_MAX),
    SUPPORT_OPTION(lade_loader_options, prefetch, 65, UINT32_MAX),
    SUPPORT_OPTION(lade_loader_options, alignment, 3, 1024, UINT32_MAX),
    SUPPORT_OPTION(lade_loader_options, padded, 2),
    SUPPORT_OPTION(lade_loader_options, shuffle, UINT32_MAX),
    SUPPORT_OPTION(lade_loader_options, equal_ranks, 2),
    SUPPORT_OPTION(lade_loader_options, drop_last, 2),
    SUPPORT_OPTION(lade_loader_options, skip_unreadable, 3),
    SUPPORT_OPTION(lade_loader_options, reserved, 1),
};

/* --- the data set ------------------------------------------------------------------------------------------------- */

/* Records in two files; what lies in the second one cannot be read while it is cut. */
typedef struct records {
  support_temp_dir dir;
  char *paths[2];
  lade_record_index *index;
  bool cut;
} records;

/* Of lengths up to 295 and 296: the latter fills an allocation of malloc's up to the next one's header, which is not 0. */
static uint64_t length_of(uint64_t record, uint64_t field) {
  if (record == 7) return 295 + field;
  return field == 1 && record % 5 == 0 ? 0 : (record * 97 + field * 61) % 296;
}

static bool is_cut(const records *set, uint64_t record) { return set->cut && record % 6 == 4; }

static void records_cut(records *set, bool cut) {
  if (cut) LADE_EXPECT(truncate(set->paths[1], 0) == 0);
  if (!cut) LADE_EXPECT(support_temp_file_write(set->paths[1], FILE_BYTES, 1));
  set->cut = cut;
}

static bool records_open(records *set) {
  static const char *const names[] = {"a.bin", "b.bin"};
  uint64_t files[2];
  *set = (records){.cut = false};
  if (!support_temp_dir_create(&set->dir)) return false;
  LADE_EXPECT_OK(lade_index_create("x,y", &set->index));
  for (uint64_t i = 0; i < 2; i++) {
    set->paths[i] = support_temp_dir_path(&set->dir, names[i]);
    LADE_EXPECT(support_temp_file_write(set->paths[i], FILE_BYTES, i));
    LADE_EXPECT_OK(lade_index_add_file(set->index, set->paths[i], &files[i]));
  }
  for (uint64_t i = 0; i < RECORDS; i++) {
    lade_range ranges[FIELDS];
    for (uint64_t f = 0; f < FIELDS; f++)
      ranges[f] = (lade_range){files[i % 6 == 4], i * 300 + f * 11 + 1, length_of(i, f)};
    LADE_EXPECT_OK(lade_index_add(set->index, NULL, ranges));
  }
  return !lade_test_has_failed();
}

static void records_close(records *set) {
  lade_index_destroy(set->index);
  for (int i = 0; i < 2; i++) free(set->paths[i]);
  support_temp_dir_remove(&set->dir);
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

typedef struct model {
  const records *set;
  lade_loader_options options;
  uint64_t share, stride[FIELDS];
  uint64_t order[EPOCHS][RECORDS];
  uint64_t epoch, position, number; /* of the next batch */
  uint64_t batches, handed_out, skipped_records, skipped_batches;
} model;

typedef struct wanted {
  uint64_t number, epoch, count, records[RECORDS];
  bool unreadable, over;
} wanted;

static uint64_t up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
static uint64_t or_else(uint64_t value, uint64_t otherwise) { return value != 0 ? value : otherwise; }

static uint64_t room_of(const model *m, uint64_t record) {
  uint64_t room = 0;
  for (uint64_t f = 0; f < FIELDS; f++)
    room += m->options.padded ? m->stride[f] : up(length_of(record, f), m->options.alignment);
  return room;
}

/* Fills `refused` with the names of the fields that are wrong together. */
static void model_start(model *m, const records *set, const lade_loader_options *given, const char **refused) {
  const uint64_t world = or_else(given->world_size, 1);
  *m = (model){.set = set, .options = *given};
  m->options.alignment = (uint32_t)or_else(given->alignment, 64);
  m->share = RECORDS / world + (!given->equal_ranks && given->rank < RECORDS % world);
  for (uint64_t f = 0; f < FIELDS; f++)
    for (uint64_t i = 0; i < RECORDS; i++)
      m->stride[f] = up(length_of(i, f), m->options.alignment) > m->stride[f]
                         ? up(length_of(i, f), m->options.alignment)
                         : m->stride[f];
  if (given->batch_records == 0 && given->batch_bytes == 0) *refused++ = "batch_records";
  if (given->rank >= world) *refused++ = "rank";
  if (given->drop_last && given->batch_records == 0) *refused++ = "drop_last";
  if (given->drop_last && m->share < given->batch_records) *refused++ = "batch_records";
  if (m->share == 0) *refused++ = "world_size";
  for (uint64_t i = 0; i < RECORDS && given->batch_bytes != 0; i++) {
    if (room_of(m, i) <= given->batch_bytes) continue;
    *refused++ = "batch_bytes";
    break;
  }
  *refused = NULL;
}

/* The batch at a position, drop_last apart; false: the epoch is over. */
static bool batch_at(const model *m, wanted *out) {
  const uint64_t world = or_else(m->options.world_size, 1);
  uint64_t bytes = 0;
  *out = (wanted){.number = m->number, .epoch = m->epoch};
  for (uint64_t i = m->position; i < m->share; i++) {
    uint64_t record = m->order[m->epoch][i * world + m->options.rank];
    bytes += room_of(m, record);
    if (m->options.batch_records != 0 && out->count == m->options.batch_records) break;
    if (m->options.batch_bytes != 0 && bytes > m->options.batch_bytes) break;
    out->unreadable = out->unreadable || is_cut(m->set, record);
    out->records[out->count++] = record;
  }
  bool last = m->position + out->count == m->share;
  return out->count > 0 && !(last && m->options.drop_last && out->count < m->options.batch_records);
}

static void batch_skip_records(model *m, wanted *out) {
  uint64_t kept = 0;
  for (uint64_t i = 0; i < out->count; i++)
    if (!is_cut(m->set, out->records[i])) out->records[kept++] = out->records[i];
  m->skipped_records += out->count - kept;
  out->count = kept;
}

/* The next batch to be handed out; count 0: there is none. Batches that lose all records are passed over, but where that goes
 * on for an epoch's records in endless epochs. */
static void model_next(model *m, wanted *out) {
  for (uint64_t passed = 0;;) {
    if (m->options.epochs != 0 && m->epoch >= m->options.epochs) break;
    if (m->epoch == EPOCHS) break;
    if (!batch_at(m, out)) {
      m->epoch++;
      m->position = 0;
      continue;
    }
    if (out->unreadable && !m->options.skip_unreadable) return; /* it stays the next one */
    m->position += out->count;
    m->number++;
    passed += out->count;
    batch_skip_records(m, out);
    if (out->count == 0) {
      m->skipped_batches++;
      if (m->options.epochs == 0 && passed >= m->share) return;
      continue;
    }
    m->batches++;
    m->handed_out += out->count;
    return;
  }
  *out = (wanted){.over = true};
}

/* --- what a loader hands out -------------------------------------------------------------------------------------- */

static void part_expect(const unsigned char *bytes, const lade_batch *batch, uint64_t part, uint64_t at, uint64_t end) {
  uint64_t record = batch->records[part % batch->count], field = part / batch->count, length = length_of(record, field);
  LADE_ASSERT_EQ_UINT(batch->offsets[part], at);
  LADE_ASSERT_EQ_UINT(batch->lengths[part], length);
  LADE_EXPECT_PATTERN(bytes + at, length, record % 6 == 4, record * 300 + field * 11 + 1);
  while (length < end - at && bytes[at + length] == 0) length++;
  if (length < end - at) LADE_FAIL("byte %llu of a gap is not 0", (unsigned long long)(at + length));
}

static void batch_expect(const fixture *f, const model *m, const wanted *want, const lade_batch *batch) {
  const uint64_t parts = want->count * FIELDS;
  LADE_ASSERT_EQ_UINT(batch->count, want->count);
  LADE_EXPECT_EQ_UINT(batch->number, want->number);
  LADE_EXPECT_EQ_UINT(batch->epoch, want->epoch);
  LADE_EXPECT_EQ_UINT(batch->field_count, FIELDS);
  LADE_ASSERT_EQ_MEM(batch->records, want->records, want->count * sizeof(uint64_t));
  LADE_EXPECT_EQ_UINT((uintptr_t)batch->memory % 256, 0);
  uint64_t at = 0, starts[FIELDS * RECORDS + 1];
  for (uint64_t i = 0; i < parts; i++) {
    uint64_t length = length_of(want->records[i % want->count], i / want->count);
    starts[i] = at;
    at += m->options.padded ? m->stride[i / want->count] : up(length, m->options.alignment);
  }
  if (m->options.batch_bytes != 0) LADE_EXPECT_LE_UINT(at, m->options.batch_bytes);
  starts[parts] = up(at, 8);
  LADE_ASSERT_EQ_UINT(batch->bytes, starts[parts] + 2 * parts * sizeof(uint64_t));
  unsigned char *bytes = support_guarded_host(batch->bytes);
  LADE_ASSERT(bytes != NULL);
  fixture_device_read(f, 0, batch->memory, bytes, batch->bytes);
  for (uint64_t i = 0; i < parts && !lade_test_has_failed(); i++)
    part_expect(bytes, batch, i, starts[i], starts[i + 1]);
  LADE_EXPECT_EQ_PTR(batch->device_offsets, (char *)batch->memory + starts[parts]);
  LADE_EXPECT_EQ_PTR(batch->device_lengths, batch->device_offsets + parts);
  LADE_EXPECT_EQ_MEM(bytes + starts[parts], batch->offsets, parts * sizeof(uint64_t));
  LADE_EXPECT_EQ_MEM(bytes + starts[parts] + parts * 8, batch->lengths, parts * sizeof(uint64_t));
  support_guarded_host_free(bytes, batch->bytes);
}

static void counts_expect(lade_loader *loader, const model *m) {
  lade_loader_state state;
  lade_loader_stats stats;
  lade_loader_state_init(&state);
  lade_loader_stats_init(&stats);
  LADE_EXPECT_OK(lade_loader_state_get(loader, &state));
  LADE_EXPECT_OK(lade_loader_stats_get(loader, &stats));
  LADE_EXPECT_EQ_UINT(state.batches, m->number);
  LADE_EXPECT_EQ_UINT(stats.batches, m->batches);
  LADE_EXPECT_EQ_UINT(stats.records, m->handed_out);
  LADE_EXPECT_EQ_UINT(stats.skipped_records, m->skipped_records);
  LADE_EXPECT_EQ_UINT(stats.skipped_batches, m->skipped_batches);
}

/* What the consumer has. */
typedef struct consumer {
  lade_batch batches[64];
  size_t count;
} consumer;

static void consumer_return(const fixture *f, lade_loader *loader, consumer *has, bool newest) {
  size_t which = newest ? has->count - 1 : 0;
  LADE_EXPECT_OK(lade_loader_return(loader, &has->batches[which], f->streams[0]));
  has->count--;
  memmove(&has->batches[which], &has->batches[which + 1], (has->count - which) * sizeof has->batches[0]);
}

/* Takes up to `limit` batches; false: there are no more, or the next one is an error. */
static bool loader_run(const fixture *f, const support_crossing *crossing, lade_loader *loader, model *m,
                       uint64_t limit) {
  const uint64_t prefetch = or_else(m->options.prefetch, 4), held = support_crossing_value(crossing, "batches held");
  consumer has = {.count = 0};
  wanted want = {.count = 1};
  bool more = true;
  for (uint64_t i = 0; i < limit && more && !lade_test_has_failed(); i++) {
    lade_batch batch;
    lade_batch_init(&batch);
    model_next(m, &want);
    more = want.count > 0 && !(want.unreadable && !m->options.skip_unreadable);
    if (m->epoch == EPOCHS && m->options.epochs != EPOCHS) break; /* it goes on, and the order known does not */
    lade_status status = lade_loader_next(loader, f->streams[0], LADE_WAIT_FOREVER, &batch);
    LADE_EXPECT_EQ_INT(status, want.over || more ? LADE_OK : LADE_ERR_TRUNCATED);
    if (status != LADE_OK || want.over) {
      LADE_EXPECT_EQ_UINT(batch.count, 0);
      break;
    }
    LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[0]));
    batch_expect(f, m, &want, &batch);
    counts_expect(loader, m);
    has.batches[has.count++] = batch;
    if (has.count == held || has.count == prefetch)
      consumer_return(f, loader, &has, support_crossing_value(crossing, "newest returned first") != 0);
  }
  while (has.count > 0) consumer_return(f, loader, &has, false);
  return more;
}

/* The shuffled order, from batches of one record that all are for one rank. */
static void order_find(const fixture *f, const records *set, model *m) {
  lade_loader *loader;
  lade_batch batch;
  lade_loader_options plain;
  lade_loader_options_init(&plain);
  plain.batch_records = 1;
  plain.shuffle = m->options.shuffle;
  plain.seed = m->options.seed;
  LADE_ASSERT_OK(lade_loader_create(set->index, f->targets[1].pipeline, f->targets[1].allocator, &plain, &loader));
  for (uint64_t i = 0; i < (uint64_t)EPOCHS * RECORDS; i++) {
    lade_batch_init(&batch);
    LADE_ASSERT_OK(lade_loader_next(loader, f->streams[1], LADE_WAIT_FOREVER, &batch));
    m->order[i / RECORDS][i % RECORDS] = batch.records[0];
    if (!plain.shuffle) LADE_EXPECT_EQ_UINT(batch.records[0], i % RECORDS);
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f->streams[1]));
  }
  LADE_EXPECT_OK(lade_loader_destroy(loader));
}

static lade_status loader_open(const fixture *f, const records *set, const lade_loader_options *given,
                               lade_loader **out) {
  return lade_loader_create(set->index, f->targets[0].pipeline, f->targets[0].allocator, given, out);
}

static void combination_refuse(const fixture *f, const records *set, support_crossing *crossing,
                               const lade_loader_options *given, const char *const *refused) {
  lade_loader *loader = NULL;
  lade_soft_report before, after;
  lade_pipeline_info info_before, info;
  lade_soft_report_init(&before);
  lade_soft_report_init(&after);
  lade_pipeline_info_init(&info_before);
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_soft_report_get(f->runtime, &before));
  LADE_EXPECT_OK(lade_pipeline_info_get(f->targets[0].pipeline, &info_before));
  support_crossing_refused(crossing, loader_open(f, set, given, &loader), refused);
  LADE_EXPECT_EQ_PTR(loader, NULL);
  LADE_EXPECT_OK(lade_soft_report_get(f->runtime, &after));
  LADE_EXPECT_OK(lade_pipeline_info_get(f->targets[0].pipeline, &info));
  LADE_EXPECT_EQ_MEM(&before, &after, sizeof before);
  LADE_EXPECT_EQ_UINT(info.transfers_submitted, info_before.transfers_submitted);
}

static void combination_run(const fixture *f, records *set, const support_guarded_device *guarded,
                            const support_crossing *crossing, lade_loader_options *given, model *m) {
  lade_loader *loader;
  lade_loader_state state;
  order_find(f, set, m);
  records_cut(set, support_crossing_value(crossing, "unreadable records") != 0);
  if (support_crossing_value(crossing, "own stream") == 0) given->stream = f->streams[0];
  LADE_ASSERT_OK(loader_open(f, set, given, &loader));
  uint64_t first = support_crossing_value(crossing, "batches before a resume");
  if (first > 0 && loader_run(f, crossing, loader, m, first)) {
    lade_loader_state_init(&state);
    LADE_EXPECT_OK(lade_loader_state_get(loader, &state));
    LADE_EXPECT_OK(lade_loader_destroy(loader));
    given->resume = &state;
    LADE_ASSERT_OK(loader_open(f, set, given, &loader));
    m->batches = m->handed_out = m->skipped_records = m->skipped_batches = 0;
    first = 0;
  }
  if (first == 0) (void)loader_run(f, crossing, loader, m, UINT64_MAX);
  support_guarded_device_check(guarded);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  records_cut(set, false);
}

LADE_TEST_P(LoaderOptions, Crossed, support_soft_runtimes, name) {
  fixture f;
  records set;
  support_guarded_device guarded;
  support_crossing crossing;
  lade_loader_options given;
  if (!fixture_open(&f, name) || !records_open(&set)) return;
  support_guarded_device_begin(&guarded, f.runtime, f.targets[0].allocator);
  support_crossing_start(&crossing, SUPPORT_OPTIONS(options), SUPPORT_OPTIONS(wrong), 25, 60);
  for (lade_loader_options_init(&given); support_crossing_next(&crossing, &given); lade_loader_options_init(&given)) {
    model m;
    const char *refused[8];
    model_start(&m, &set, &given, refused);
    if (crossing.wrong != NULL || refused[0] != NULL)
      combination_refuse(&f, &set, &crossing, &given, refused);
    else
      combination_run(&f, &set, &guarded, &crossing, &given, &m);
  }
  records_close(&set);
  fixture_close(&f);
}
