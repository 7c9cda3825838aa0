/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/map.h"

#include <assert.h>
#include <inttypes.h>

#include "base/decimal.h"
#include "base/error.h"

static const uint64_t page_bytes = UINT64_C(20) << 20;

typedef struct map_sums {
  uint64_t reserved, requested, inside, outside;
} map_sums;

/* One page of a segment while its blocks pass by. */
typedef struct map_page {
  uint64_t used;  /* bytes of blocks in use */
  unsigned count; /* blocks that have some */
  uint64_t block; /* number of the last of them in its segment */
} map_page;

static const char *size_text(uint64_t bytes, char room[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1024.0;
  ladei_decimal_print(room, 32, "%.1f %s", value, units[unit]);
  return room;
}

static char page_character(const map_page *page, uint64_t bytes) {
  if (page->count == 0) return ' ';
  if (page->count == 1) return (char)('a' + page->block % 26);
  uint64_t tenths = page->used / (bytes / 10 + (bytes < 10));
  return tenths >= 10 ? '*' : (char)('0' + tenths);
}

/* Writes pages up to (not including) the one that `offset` lies in. */
static void pages_pass(ladei_output *output, uint64_t *page_start, map_page *page, uint64_t offset, uint64_t end) {
  while (offset - *page_start >= page_bytes) {
    uint64_t bytes = end - *page_start < page_bytes ? end - *page_start : page_bytes;
    ladei_output_byte(output, page_character(page, bytes));
    *page = (map_page){.count = 0};
    *page_start += page_bytes;
  }
}

static void block_pass(ladei_output *output, uint64_t *page_start, map_page *page, uint64_t begin, uint64_t bytes,
                       uint64_t number, uint64_t end) {
  while (bytes > 0) {
    pages_pass(output, page_start, page, begin, end);
    uint64_t left = *page_start + page_bytes - begin;
    uint64_t here = bytes < left ? bytes : left;
    page->used += here;
    page->count++;
    page->block = number;
    begin += here;
    bytes -= here;
  }
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A file may claim segments of any size: what is shown of one ends at MOST_PAGES. */
static void pages_write(const lade_snapshot *snapshot, const lade_snapshot_segment *segment, ladei_output *output) {
  enum { MOST_PAGES = 20000 };
  map_page page = {.count = 0};
  uint64_t page_start = 0, offset = 0, number = 0, end = smaller(segment->total_bytes, MOST_PAGES * page_bytes);
  ladei_output_byte(output, '[');
  for (uint64_t i = 0; i < segment->block_count && offset < end; i++) {
    const lade_snapshot_block *block = &snapshot->blocks.rows[segment->first_block + i];
    if (block->state == LADE_DEVICE_BLOCK_ALLOCATED) {
      uint64_t used = smaller(smaller(block->requested_bytes, block->bytes), end - offset);
      block_pass(output, &page_start, &page, offset, used, number++, end);
    }
    offset += block->bytes;
  }
  if (page_start < end) /* the page that was begun, and those behind it */
    pages_pass(output, &page_start, &page, (end + page_bytes - 1) / page_bytes * page_bytes, end);
  ladei_output_text(output, end < segment->total_bytes ? "...]" : "]");
}

static map_sums segment_sums(const lade_snapshot *snapshot, const lade_snapshot_segment *segment) {
  map_sums sums = {.reserved = segment->total_bytes};
  for (uint64_t i = 0; i < segment->block_count; i++) {
    const lade_snapshot_block *block = &snapshot->blocks.rows[segment->first_block + i];
    uint64_t used = block->requested_bytes < block->bytes ? block->requested_bytes : block->bytes;
    if (block->state != LADE_DEVICE_BLOCK_ALLOCATED) {
      sums.outside += block->bytes;
      continue;
    }
    sums.requested += used;
    sums.inside += block->bytes - used;
  }
  assert(segment->block_count == 0 || sums.requested + sums.inside + sums.outside == sums.reserved); /* S2 */
  return sums;
}

static void free_write(ladei_output *output, const map_sums *sums) {
  char room[32];
  uint64_t all = sums->inside + sums->outside;
  ladei_output_text(output, size_text(all, room));
  ladei_output_text(output, " free");
  if (all == 0) return;
  ladei_decimal_print(room, sizeof room, "%.1f", 100.0 * (double)sums->inside / (double)all);
  ladei_output_format(output, " (%s%% inside blocks)", room);
}

static void part_write(const lade_snapshot *snapshot, const lade_snapshot_part *part, ladei_output *output) {
  map_sums all = {0, 0, 0, 0};
  char room[32];
  const char *name = ladei_inspect_string(snapshot, part->name);
  for (size_t bytes; *name != '\0'; name += bytes == 0 ? 1 : bytes) {
    bytes = ladei_text_character(name); /* 0: a terminal may obey it */
    ladei_output_bytes(output, bytes == 0 ? "?" : name, bytes == 0 ? 1 : bytes);
  }
  ladei_output_byte(output, '\n');
  for (uint64_t i = part->first_segment; i < part->first_segment + part->segment_count; i++) {
    const lade_snapshot_segment *segment = &snapshot->segments.rows[i];
    map_sums sums = segment_sums(snapshot, segment);
    all.reserved += sums.reserved;
    all.requested += sums.requested;
    all.inside += sums.inside;
    all.outside += sums.outside;
    pages_write(snapshot, segment, output);
    ladei_output_format(output, " %s reserved, ", size_text(sums.reserved, room));
    free_write(output, &sums);
    if (segment->stream != 0) ladei_output_format(output, " stream %" PRIu64, segment->stream);
    ladei_output_byte(output, '\n');
  }
  ladei_output_format(output, "%" PRIu64 " segments, %s reserved, ", part->segment_count,
                      size_text(all.reserved, room));
  ladei_output_format(output, "%s requested, ", size_text(all.requested, room));
  free_write(output, &all);
  ladei_output_text(output, "\n\n");
}

lade_status ladei_inspect_write_map(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                    ladei_output *output) {
  (void)options;
  for (size_t i = 0; i < snapshot->parts.count; i++)
    if (snapshot->parts.rows[i].kind != LADE_PART_PIPELINE) part_write(snapshot, &snapshot->parts.rows[i], output);
  ladei_output_text(output,
                    "A character is 20 MiB. Blank: free. a-z: one block. 0-9: tenths filled by several. *: full.\n");
  return LADE_OK;
}
