/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/replay/from_snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "inspect/layout.h"
#include "inspect/pair_map.h"
#include "inspect/snapshot.h"
#include "tools/replay/snapshot_facts.h"
#include "tools/replay/trace.h"

bool from_snapshot_is_one(const char *bytes, size_t count) {
  return count > 0 && ((unsigned char)bytes[0] == 0x80 || bytes[0] == '{');
}

/* One conversion. */
typedef struct conversion {
  const lade_snapshot *snapshot;
  const ladei_snapshot_part *part;
  FILE *out;
  uint64_t *streams; /* handles, ascending: their order decides, so it is kept */
  size_t stream_count;
  ladei_pair_map ids;     /* address -> ID of the live block */
  ladei_pair_map waiters; /* address of a pending block -> the stream made for it */
  ladei_pair_map pools;   /* pool -> its number */
  uint32_t next_id, next_pool, next_waiter;
  snapshot_facts facts;
  uint64_t segment; /* that the next alloc was for; 0: none */
  bool emptied;     /* the last event gave memory of `emptied_pool` back, ... */
  bool for_growth;  /* ... as growing had failed, which it does in the replay too */
  uint32_t emptied_pool;
} conversion;

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory to make a trace of a snapshot");
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static int stream_compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Number of a stream: 0 is the default stream, which is always there. */
static size_t stream_number(const conversion *c, uint64_t handle) {
  const uint64_t *found =
      handle == 0 ? NULL : bsearch(&handle, c->streams, c->stream_count, sizeof handle, stream_compare);
  return found == NULL ? 0 : (size_t)(found - c->streams) + 1;
}

static lade_status streams_collect(conversion *c) {
  size_t most = c->part->event_count + c->part->segment_count, count = 0;
  c->streams = malloc((most + 1) * sizeof *c->streams);
  if (c->streams == NULL) return no_memory();
  for (uint64_t i = 0; i < c->part->event_count; i++)
    c->streams[count++] = c->snapshot->events.rows[c->part->first_event + i].stream;
  for (uint64_t i = 0; i < c->part->segment_count; i++)
    c->streams[count++] = c->snapshot->segments.rows[c->part->first_segment + i].stream;
  qsort(c->streams, count, sizeof *c->streams, stream_compare);
  for (size_t i = 0; i < count; i++)
    if (c->streams[i] != 0 && (c->stream_count == 0 || c->streams[i] != c->streams[c->stream_count - 1]))
      c->streams[c->stream_count++] = c->streams[i];
  return LADE_OK;
}

/* --- the head ----------------------------------------------------------------------------------------------------- */

static const ladei_snapshot_setting *setting_find(const conversion *c, const char *key) {
  for (uint64_t i = 0; i < c->part->setting_count; i++) {
    const ladei_snapshot_setting *setting = &c->snapshot->settings.rows[c->part->first_setting + i];
    if (strcmp(ladei_inspect_string(c->snapshot, setting->key), key) == 0) return setting;
  }
  return NULL;
}

/* "[1:4,2:4,...]" where any entry is not 0. */
static void roundup_write(const conversion *c, const char **between) {
  char text[512] = "";
  bool any = false;
  for (unsigned i = 0; i < 16; i++) {
    char key[64];
    snprintf(key, sizeof key, "roundup_power2_divisions.%u", 1U << i);
    const ladei_snapshot_setting *setting = setting_find(c, key);
    int64_t value = setting == NULL ? 0 : setting->integer;
    any = any || value != 0;
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u:%" PRId64, i == 0 ? "" : ",", 1U << i, value);
  }
  if (!any) return;
  fprintf(c->out, "%sroundup_power2_divisions:[%s]", *between, text);
  *between = ",";
}

static void settings_write(conversion *c) {
  const double LEAST_THRESHOLD = 1e-17; /* that is not 0 as it is written */
  const char *between = "conf ";
  const ladei_snapshot_setting *split = setting_find(c, "max_split_size");
  const ladei_snapshot_setting *threshold = setting_find(c, "garbage_collection_threshold");
  const ladei_snapshot_setting *expandable = setting_find(c, "expandable_segments");
  if (split != NULL && split->integer >= 21 << 20 && split->integer < INT64_MAX) {
    fprintf(c->out, "%smax_split_size_mb:%" PRId64, between, split->integer >> 20);
    between = ",";
  }
  c->facts.found.fraction_missing = threshold != NULL && threshold->real > LEAST_THRESHOLD;
  if (threshold != NULL && threshold->real > LEAST_THRESHOLD && threshold->real < 1) {
    fprintf(c->out, "%sgarbage_collection_threshold:%.17f", between, threshold->real);
    between = ",";
  }
  if (expandable != NULL && expandable->integer != 0) {
    fprintf(c->out, "%sexpandable_segments:True", between);
    between = ",";
  }
  roundup_write(c, &between);
  if (*between == ',') fputc('\n', c->out);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static lade_status pool_begin(conversion *c, lade_device_pool_id pool, uint64_t stream, uint32_t *out) {
  *out = 0;
  if (pool.first == 0 && pool.second == 0) return LADE_OK;
  uint32_t *number = ladei_pair_map_value(&c->pools, pool.first, pool.second);
  if (number == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*number == LADEI_SNAPSHOT_NONE) *number = ++c->next_pool;
  *out = *number;
  fprintf(c->out, "pool_begin %u %zu\n", *number, stream_number(c, stream));
  return LADE_OK;
}

/* The first block of a new segment lies at its begin. */
static void at_write(conversion *c, uint64_t address) {
  uint64_t segment = c->segment;
  c->segment = 0;
  if (segment == 0 || segment != address) return;
  if (segment % TRACE_ADDRESS_ALIGN == 0)
    fprintf(c->out, "at %" PRIu64 "\n", segment);
  else
    c->facts.found.misplaced++;
}

static lade_status alloc_write(conversion *c, uint64_t address, uint64_t bytes, uint64_t stream,
                               lade_device_pool_id pool, bool fails) {
  uint32_t number, id = ++c->next_id;
  LADEI_TRY(pool_begin(c, pool, stream, &number));
  at_write(c, address);
  fprintf(c->out, "alloc %u %" PRIu64 " %zu\n", id, bytes, stream_number(c, stream));
  if (number != 0) fprintf(c->out, "pool_end %u\n", number);
  if (fails) {
    fprintf(c->out, "free %u\n", id); /* with other settings it may be there */
    return LADE_OK;
  }
  uint32_t *live = ladei_pair_map_value(&c->ids, address, 0);
  if (live == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*live != LADEI_SNAPSHOT_NONE) fprintf(c->out, "free %u\n", *live); /* its free was lost */
  *live = id;
  return LADE_OK;
}

/* Made streams come after all others, and are used again once the free that waits for them is complete. */
static lade_status waiter_make(conversion *c, uint64_t address, uint32_t id) {
  uint32_t *waiter = ladei_pair_map_value(&c->waiters, address, 0);
  if (waiter == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*waiter == LADEI_SNAPSHOT_NONE) {
    *waiter = ++c->next_waiter;
    fprintf(c->out, "stream %zu\n", c->stream_count + *waiter);
  }
  fprintf(c->out, "record %u %zu\n", id, c->stream_count + *waiter);
  return LADE_OK;
}

static bool is_completed_by(const ladei_snapshot_event *event, const ladei_snapshot_event *next) {
  return next != NULL && next->action == LADE_DEVICE_FREE_COMPLETED && next->address == event->address;
}

static lade_status free_write(conversion *c, const ladei_snapshot_event *event, const ladei_snapshot_event *next) {
  uint32_t *id = ladei_pair_map_value(&c->ids, event->address, 0);
  if (id == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*id == LADEI_SNAPSHOT_NONE) return LADE_OK; /* its alloc was lost */
  if (!is_completed_by(event, next)) LADEI_TRY(waiter_make(c, event->address, *id));
  fprintf(c->out, "free %u\n", *id);
  *id = LADEI_SNAPSHOT_NONE;
  return LADE_OK;
}

static lade_status complete_write(conversion *c, const ladei_snapshot_event *event,
                                  const ladei_snapshot_event *before) {
  bool at_once = before != NULL && before->action == LADE_DEVICE_FREE_REQUESTED && before->address == event->address;
  if (at_once) return LADE_OK;
  uint32_t *waiter = ladei_pair_map_value(&c->waiters, event->address, 0);
  if (waiter == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*waiter != LADEI_SNAPSHOT_NONE) fprintf(c->out, "complete %zu\n", c->stream_count + *waiter);
  return LADE_OK;
}

/* Memory of a pool that never had a block in the trace is the default pools'. */
static void give_back_write(conversion *c, const snapshot_event_facts *facts) {
  const uint32_t *known = ladei_pair_map_find(&c->pools, facts->pool.first, facts->pool.second);
  uint32_t number = known == NULL ? 0 : *known;
  if (!c->emptied) {
    c->for_growth = c->facts.capacity_bytes > 0 && facts->needed_bytes > c->facts.capacity_bytes;
    c->facts.found.partial_flushes = c->facts.found.partial_flushes || (facts->partial && !c->for_growth);
  }
  if (c->for_growth || (c->emptied && c->emptied_pool == number)) return;
  if (number == 0)
    fputs("empty_cache\n", c->out);
  else
    fprintf(c->out, "pool_trim %u\n", number);
  c->emptied_pool = number;
}

static lade_status event_write(conversion *c, uint64_t i) {
  const ladei_snapshot_event *event = &c->snapshot->events.rows[c->part->first_event + i];
  const ladei_snapshot_event *before = i == 0 ? NULL : event - 1;
  const ladei_snapshot_event *next = i + 1 < c->part->event_count ? event + 1 : NULL;
  lade_device_pool_id pool = c->facts.events[i].pool;
  bool gives_back = event->action == LADE_DEVICE_SEGMENT_FREE || event->action == LADE_DEVICE_SEGMENT_UNMAP;
  if (gives_back) give_back_write(c, &c->facts.events[i]);
  c->emptied = gives_back;
  switch ((lade_device_action)event->action) {
  case LADE_DEVICE_SEGMENT_ALLOC: c->segment = event->address; return LADE_OK;
  case LADE_DEVICE_ALLOC: return alloc_write(c, event->address, event->bytes, event->stream, pool, false);
  case LADE_DEVICE_FREE_REQUESTED: return free_write(c, event, next);
  case LADE_DEVICE_FREE_COMPLETED: return complete_write(c, event, before);
  case LADE_DEVICE_OOM: return alloc_write(c, 0, event->bytes, event->stream, pool, true);
  default: return LADE_OK;
  }
}

/* Blocks that were there at the history's begin. */
static lade_status start_write(conversion *c) {
  const ladei_inspect_layout *layout = &c->facts.start;
  const ladei_inspect_layout_segment *segment = NULL;
  const ladei_inspect_layout_block *block = ladei_inspect_layout_next_block(layout, NULL);
  while ((segment = ladei_inspect_layout_next_segment(layout, segment)) != NULL) {
    uint64_t end = segment->row.address + segment->row.total_bytes;
    for (; block != NULL && block->row.address < end; block = ladei_inspect_layout_next_block(layout, block)) {
      if (block->row.state == LADE_DEVICE_BLOCK_INACTIVE || block->row.requested_bytes == 0) continue;
      LADEI_TRY(alloc_write(c, block->row.address, block->row.requested_bytes, segment->row.stream, segment->row.pool,
                            false));
    }
  }
  return LADE_OK;
}

/* Where no limit is known, twice what was needed: other settings may need more. */
static void capacity_write(const conversion *c) {
  const uint64_t DEFAULT = UINT64_C(80) << 30;
  uint64_t bytes = c->facts.capacity_bytes, peak = c->facts.found.peak_bytes;
  if (bytes == 0 && peak > DEFAULT / 2) bytes = 2 * peak;
  if (bytes > 0) fprintf(c->out, "device %" PRIu64 "\n", bytes);
}

static lade_status trace_write(conversion *c) {
  fprintf(c->out, "lade-trace %d\n", TRACE_VERSION);
  capacity_write(c);
  settings_write(c);
  for (size_t i = 1; i <= c->stream_count; i++) fprintf(c->out, "stream %zu\n", i);
  LADEI_TRY(start_write(c));
  for (uint64_t i = 0; i < c->part->event_count; i++) LADEI_TRY(event_write(c, i));
  fputs("snapshot end\n", c->out);
  c->facts.found.pools = c->next_pool;
  return LADE_OK;
}

static lade_status part_write(conversion *c) {
  LADEI_TRY(snapshot_facts_find(c->snapshot, (uint32_t)(c->part - c->snapshot->parts.rows), &c->facts));
  lade_status status = streams_collect(c);
  if (status == LADE_OK) status = trace_write(c);
  snapshot_facts_destroy(&c->facts);
  return status;
}

lade_status from_snapshot_write(const lade_snapshot *snapshot, FILE *out, replay_differences *differences) {
  conversion c = {.snapshot = snapshot, .out = out};
  for (size_t i = 0; i < snapshot->parts.count && c.part == NULL; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    if (part->kind == LADE_PART_DEVICE && part->event_count > 0) c.part = part;
  }
  if (c.part == NULL)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                       "no device allocator in it has a history: there is nothing to replay");
  lade_status status = part_write(&c);
  *differences = c.facts.found;
  free(c.streams);
  ladei_pair_map_clear(&c.ids);
  ladei_pair_map_clear(&c.waiters);
  ladei_pair_map_clear(&c.pools);
  return status;
}
