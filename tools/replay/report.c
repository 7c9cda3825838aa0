/* SPDX-License-Identifier: Apache-2.0 */
/* Writing of replay reports: JSON by docs/formats.md, and a summary. Integers are written exactly, with all 64 bits. */
#include "tools/replay/report.h"

#include <inttypes.h>

#include "tools/common/options.h"

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void string_write(FILE *out, const char *text) {
  putc('"', out);
  for (; *text != '\0'; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      fprintf(out, "\\%c", c);
    else if (c < 0x20)
      fprintf(out, "\\u%04x", c);
    else
      putc(c, out);
  }
  putc('"', out);
}

typedef struct stat_writer {
  FILE *out;
  const char *separator;
} stat_writer;

static lade_status stat_write(const char *key, int64_t value, void *user) {
  stat_writer *w = user;
  fprintf(w->out, "%s\"%s\":%" PRId64, w->separator, key, value);
  w->separator = ",";
  return LADE_OK;
}

static void block_write(FILE *out, const report_block *block) {
  static const char *const states[] = {"inactive", "active_allocated", "active_pending_free"};
  fprintf(out, "{\"offset\":%" PRIu64 ",\"size\":%" PRIu64 ",\"requested_size\":%" PRIu64 ",\"state\":\"%s\"",
          block->offset, block->size, block->requested_size, states[block->state]);
  if (block->state == REPORT_ALLOCATED) fprintf(out, ",\"id\":%" PRIu64, block->id);
  putc('}', out);
}

static void segment_write(FILE *out, const report_segment *segment, const report_block *blocks) {
  fprintf(out,
          "{\"address\":\"0x%" PRIx64 "\",\"total_size\":%" PRIu64 ",\"stream\":%" PRIu64 ",\"pool\":[%" PRIu64
          ",0],\"is_large\":%s,\"is_expandable\":%s,\"allocated_size\":%" PRIu64 ",\"active_size\":%" PRIu64
          ",\"requested_size\":%" PRIu64 ",\"blocks\":[",
          segment->address, segment->total_size, segment->stream, segment->pool, segment->is_large ? "true" : "false",
          segment->is_expandable ? "true" : "false", segment->allocated_size, segment->active_size,
          segment->requested_size);
  for (size_t i = 0; i < segment->block_count; i++) {
    if (i > 0) putc(',', out);
    block_write(out, &blocks[segment->first_block + i]);
  }
  fputs("]}", out);
}

void report_write_json(FILE *out, const report_entry *entry) {
  fputs("{\"label\":", out);
  string_write(out, entry->label);
  fprintf(out, ",\"line\":%" PRIu64 ",\"oom\":[", entry->line);
  for (size_t i = 0; i < entry->oom_count; i++) fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", entry->oom[i]);
  fputs("],\"stats\":{", out);
  stat_writer writer = {out, ""};
  (void)lade_device_stats_each(entry->stats, stat_write, &writer);
  fputs("},\"segments\":[", out);
  for (size_t i = 0; i < entry->segment_count; i++) {
    if (i > 0) putc(',', out);
    segment_write(out, &entry->segments[i], entry->blocks);
  }
  const report_pinned *p = &entry->pinned;
  fprintf(out,
          "],\"pinned\":{\"in_use_blocks\":%" PRIu64 ",\"requested_bytes\":%" PRIu64 ",\"reserved_bytes\":%" PRIu64
          ",\"driver_allocs\":%" PRIu64 ",\"driver_frees\":%" PRIu64 ",\"events_recorded\":%" PRIu64
          ",\"pending_blocks\":%" PRIu64 "}}",
          p->in_use_blocks, p->requested_bytes, p->reserved_bytes, p->driver_allocs, p->driver_frees,
          p->events_recorded, p->pending_blocks);
}

/* ---- Summary ----------------------------------------------------------------------------------------------------- */

static double mib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024.0); }

static void bytes_row(FILE *out, const char *name, const lade_device_gauge *gauge) {
  fprintf(out, "  %-16s %14.2f MiB   peak %14.2f MiB\n", name, mib(gauge->current), mib(gauge->peak));
}

void report_write_summary(FILE *out, const report_entry *entry) {
  const lade_device_stats *s = entry->stats;
  name_print(out, entry->label);
  fprintf(out, " (line %" PRIu64 ")\n", entry->line);
  bytes_row(out, "reserved", &s->reserved_bytes.all);
  bytes_row(out, "active", &s->active_bytes.all);
  bytes_row(out, "allocated", &s->allocated_bytes.all);
  bytes_row(out, "requested", &s->requested_bytes.all);
  bytes_row(out, "not releasable", &s->inactive_split_bytes.all);
  fprintf(out,
          "  blocks %" PRIu64 " of %" PRIu64 " segments; driver allocations %" PRIu64 ", frees %" PRIu64
          "; retries %" PRIu64 ", out of memory %" PRIu64 " (%zu since the last)\n",
          s->allocation.all.current, (uint64_t)entry->segment_count, s->device_allocs, s->device_frees,
          s->alloc_retries, s->ooms, entry->oom_count);
  if (entry->pinned.driver_allocs > 0) {
    fprintf(out, "  pinned: %" PRIu64 " blocks in use, %.2f MiB asked for, %.2f MiB reserved\n",
            entry->pinned.in_use_blocks, mib(entry->pinned.requested_bytes), mib(entry->pinned.reserved_bytes));
  }
}
