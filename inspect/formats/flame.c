/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/flame.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/error.h"
#include "base/svg.h"
#include "inspect/formats/folded.h"

/* A word of a line, below those before it. */
typedef struct flame_node {
  char *word;
  uint64_t bytes;
  uint32_t parent, first_child, next_sibling; /* indices; 0: none */
  unsigned depth;
} flame_node;

/* Lines come as bytes, in pieces. */
typedef struct flame {
  flame_node *nodes; /* [0] is the root */
  size_t count, room;
  char *line;
  size_t line_used, line_room;
  unsigned depth;
} flame;

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for a flame graph");
}

/* --- the tree ----------------------------------------------------------------------------------------------------- */

static lade_status node_add(flame *f, uint32_t parent, const char *word, size_t bytes, uint32_t *out) {
  if (f->count == f->room) {
    size_t room = f->room * 2 + 64;
    flame_node *grown = realloc(f->nodes, room * sizeof *grown);
    if (grown == NULL) return no_memory();
    f->nodes = grown;
    f->room = room;
  }
  char *copy = malloc(bytes + 1);
  if (copy == NULL) return no_memory();
  memcpy(copy, word, bytes);
  copy[bytes] = '\0';
  uint32_t index = (uint32_t)f->count++;
  f->nodes[index] = (flame_node){.word = copy, .parent = parent};
  if (index > 0) {
    flame_node *above = &f->nodes[parent];
    f->nodes[index].depth = above->depth + 1;
    f->nodes[index].next_sibling = above->first_child;
    above->first_child = index;
    if (f->depth < f->nodes[index].depth) f->depth = f->nodes[index].depth;
  }
  *out = index;
  return LADE_OK;
}

/* The last child found comes first in its row, since lines with the same words follow each other. */
static lade_status child_find(flame *f, uint32_t parent, const char *word, size_t bytes, uint32_t *out) {
  uint32_t before = 0;
  for (uint32_t i = f->nodes[parent].first_child; i != 0; before = i, i = f->nodes[i].next_sibling) {
    if (strncmp(f->nodes[i].word, word, bytes) != 0 || f->nodes[i].word[bytes] != '\0') continue;
    if (before != 0) {
      f->nodes[before].next_sibling = f->nodes[i].next_sibling;
      f->nodes[i].next_sibling = f->nodes[parent].first_child;
      f->nodes[parent].first_child = i;
    }
    *out = i;
    return LADE_OK;
  }
  return node_add(f, parent, word, bytes, out);
}

/* word;word;word BYTES. Counts below 0 are of blocks that are smaller than what was asked for: no picture has them. */
static lade_status line_add(flame *f, const char *line, size_t bytes) {
  size_t end = bytes;
  while (end > 0 && line[end - 1] != ' ') end--;
  if (end == 0 || line[end] == '-') return LADE_OK;
  uint64_t value = strtoull(line + end, NULL, 10);
  if (value == 0) return LADE_OK;
  uint32_t node = 0;
  f->nodes[0].bytes += value;
  for (const char *word = line, *stop = line + end - 1; word <= stop;) {
    const char *semicolon = memchr(word, ';', (size_t)(stop - word));
    size_t word_bytes = (size_t)((semicolon == NULL ? stop : semicolon) - word);
    LADEI_TRY(child_find(f, node, word, word_bytes, &node));
    f->nodes[node].bytes += value;
    word += word_bytes + 1;
  }
  return LADE_OK;
}

static lade_status line_keep(flame *f, const char *bytes, size_t count) {
  if (f->line_used + count + 1 > f->line_room) {
    size_t room = (f->line_used + count + 1) * 2;
    char *grown = realloc(f->line, room);
    if (grown == NULL) return no_memory();
    f->line = grown;
    f->line_room = room;
  }
  memcpy(f->line + f->line_used, bytes, count);
  f->line_used += count;
  f->line[f->line_used] = '\0';
  return LADE_OK;
}

static lade_status lines_take(void *user, const void *data, size_t bytes) {
  flame *f = user;
  const char *at = data;
  while (bytes > 0) {
    const char *newline = memchr(at, '\n', bytes);
    size_t count = newline == NULL ? bytes : (size_t)(newline - at);
    LADEI_TRY(line_keep(f, at, count));
    if (newline == NULL) return LADE_OK;
    LADEI_TRY(line_add(f, f->line, f->line_used));
    f->line_used = 0;
    at += count + 1;
    bytes -= count + 1;
  }
  return LADE_OK;
}

/* --- the picture -------------------------------------------------------------------------------------------------- */

static const int PICTURE_WIDTH = 1200, ROW_HEIGHT = 17, TOP = 40, MARGIN = 10, CHARACTER = 7; /* pixels */

/* Warm colours, equal for equal words. */
static void colour_of(const char *word, char out[8]) {
  uint32_t hash = 2166136261u;
  for (const char *c = word; *c != '\0'; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
  snprintf(out, 8, "#%02x%02x%02x", 205 + hash % 50, 90 + hash / 64 % 120, 40 + hash / 8192 % 40);
}

static void node_draw(const flame *f, uint32_t index, double x, double width, ladei_svg *svg) {
  const flame_node *node = &f->nodes[index];
  double y = TOP + (double)(f->depth - node->depth) * ROW_HEIGHT;
  char title[512], colour[8];
  double share = f->nodes[0].bytes == 0 ? 0.0 : 100.0 * (double)node->bytes / (double)f->nodes[0].bytes;
  ladei_decimal_print(title, sizeof title, "%.400s: %" PRIu64 " bytes, %.2f %%", node->word, node->bytes, share);
  colour_of(node->word, colour);
  ladei_svg_rect(svg, x, y, width, ROW_HEIGHT - 1, &(ladei_svg_look){.fill = colour, .radius = 1}, title);
  size_t most = (size_t)(width / CHARACTER);
  if (most >= 3) ladei_svg_text(svg, x + 3, y + 12, NULL, most - 1, node->word);
}

/* Children lie beside each other, widest first as far as lines came so; those below a tenth of a pixel are not drawn. */
static void tree_draw(const flame *f, ladei_svg *svg) {
  double scale = f->nodes[0].bytes == 0 ? 0.0 : (double)(PICTURE_WIDTH - 2 * MARGIN) / (double)f->nodes[0].bytes;
  double *left = calloc(f->count, sizeof *left); /* where the next child of a node begins */
  if (left == NULL) {
    svg->status = no_memory();
    return;
  }
  left[0] = MARGIN;
  node_draw(f, 0, MARGIN, PICTURE_WIDTH - 2 * MARGIN, svg);
  for (uint32_t i = 1; i < f->count; i++) { /* parents come before their children */
    double x = left[f->nodes[i].parent], width = (double)f->nodes[i].bytes * scale;
    assert(f->nodes[i].parent < i);
    left[f->nodes[i].parent] += width;
    left[i] = x;
    if (width >= 0.1) node_draw(f, i, x, width, svg);
  }
  free(left);
}

static lade_status svg_take(void *user, const char *bytes, size_t count) {
  ladei_output_bytes(user, bytes, count);
  return ((ladei_output *)user)->status;
}

static lade_status picture_write(const flame *f, const char *title, ladei_output *output) {
  static const char style[] = "text{font:12px monospace}text.title{font:bold 15px sans-serif}";
  ladei_svg *svg = malloc(sizeof *svg);
  if (svg == NULL) return no_memory();
  double height = TOP + (double)(f->depth + 1) * ROW_HEIGHT + MARGIN;
  ladei_svg_begin(svg, svg_take, output, PICTURE_WIDTH, height, style);
  ladei_svg_text(svg, MARGIN, 24, &(ladei_svg_look){.class = "title"}, 0, title);
  tree_draw(f, svg);
  lade_status status = ladei_svg_end(svg);
  free(svg);
  return status;
}

static void flame_free(flame *f) {
  for (size_t i = 0; i < f->count; i++) free(f->nodes[i].word);
  free(f->nodes);
  free(f->line);
}

static lade_status flame_write(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                               ladei_inspect_writer folded, ladei_output *output) {
  flame f = {.count = 0};
  uint32_t root;
  ladei_output *lines = malloc(sizeof *lines);
  lade_status status = lines == NULL ? no_memory() : node_add(&f, 0, "all", 3, &root);
  if (status == LADE_OK) {
    ladei_output_init(lines, lines_take, &f);
    status = folded(snapshot, options, lines);
  }
  if (status == LADE_OK) status = ladei_output_flush(lines);
  const char *title = options->title != NULL ? options->title : "Memory by call stack: width is bytes";
  if (status == LADE_OK) status = picture_write(&f, title, output);
  flame_free(&f);
  free(lines);
  return status;
}

lade_status ladei_inspect_write_flame(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                      ladei_output *output) {
  return flame_write(snapshot, options, ladei_inspect_write_folded, output);
}

lade_status ladei_inspect_write_flame_segments(const lade_snapshot *snapshot,
                                               const lade_snapshot_write_options *options, ladei_output *output) {
  return flame_write(snapshot, options, ladei_inspect_write_folded_segments, output);
}
