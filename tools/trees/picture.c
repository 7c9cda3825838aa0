/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures of graph trees.
 *
 *   title
 *   +- 0 prefill(1) ---+     +- 1 decode(4) ----+
 *   | [1.0K] [4.0K]    |-----| [1.0K]           |      a cell is an output: filled while it is alive behind the recording,
 *   | 3 replays        |  |  | ## 2 older       |      empty where it is dead, dashed where it is no memory; marks are older
 *   +------------------+  |  +------------------+
 *                         |  +- 2 decode(8) ----+
 *                         +--| ...              |
 *   legend
 *
 * P1  A leaf has a row of its own; what has children stands in the middle of theirs. So no two boxes overlap.
 */
#include "tools/trees/picture.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/svg.h"

#define MARGIN      24.0
#define TOP         70.0
#define BOX_WIDTH   236.0
#define BOX_HEIGHT  88.0
#define COLUMN      (BOX_WIDTH + 50.0)
#define ROW         (BOX_HEIGHT + 16.0)
#define CELL_WIDTH  48.0
#define CELL_HEIGHT 18.0
#define MARK        8.0
#define LEGEND      46.0

enum {
  CELLS = 4,  /* that a box shows; the rest is counted */
  MARKS = 20, /* of older outputs */
  TITLE_CHARACTERS = 32,
};

/* ---- Places ------------------------------------------------------------------------------------------------------ */

lade_status trees_picture_lay(trees_picture *p) {
  size_t *leaves = calloc(p->node_count + 1, sizeof *leaves);
  double *next = calloc(p->node_count + 1, sizeof *next); /* free row from which on children are put */
  double top = 0.0;
  if (leaves == NULL || next == NULL) {
    free(leaves);
    free(next);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "picture: no memory for %zu recordings", p->node_count);
  }
  for (size_t i = p->node_count; i-- > 0;) { /* children come behind their parents */
    if (leaves[i] == 0) leaves[i] = 1;
    if (p->nodes[i].parent != SIZE_MAX) leaves[p->nodes[i].parent] += leaves[i];
  }
  for (size_t i = 0; i < p->node_count; i++) {
    trees_picture_node *node = &p->nodes[i];
    double *from = node->parent == SIZE_MAX ? &top : &next[node->parent];
    next[i] = *from;
    node->row = *from + (double)(leaves[i] - 1) / 2.0;
    *from += (double)leaves[i];
    node->depth = node->parent == SIZE_MAX ? 0 : p->nodes[node->parent].depth + 1;
    if (node->depth >= p->depth) p->depth = node->depth + 1;
  }
  p->rows = top;
  free(leaves);
  free(next);
  return LADE_OK;
}

void trees_picture_destroy(trees_picture *p) {
  free(p->nodes);
  free(p->outputs);
  free(p->older);
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

static const char *bytes_text(uint64_t bytes, char text[24]) {
  static const char units[] = {'K', 'M', 'G', 'T'};
  if (bytes < 1024) {
    snprintf(text, 24, "%" PRIu64, bytes);
    return text;
  }
  double value = (double)bytes / 1024.0;
  size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < sizeof units; unit++) value /= 1024.0;
  snprintf(text, 24, "%.*f%c", value < 10.0 ? 1 : 0, value, units[unit]);
  return text;
}

void trees_picture_print(const trees_picture *p, FILE *out) {
  char text[24];
  fprintf(out, "state %s, %zu recordings, %" PRIu64 " bytes reserved\n", p->state, p->node_count, p->reserved_bytes);
  for (size_t i = 0; i < p->node_count; i++) {
    const trees_picture_node *node = &p->nodes[i];
    fprintf(out, "%*s%s%s, %" PRIu64 " replays", (int)(2 * node->depth), "", node->title, node->in_path ? " *" : "",
            node->replays);
    for (size_t o = 0; o < node->output_count; o++) {
      const trees_picture_output *output = &p->outputs[node->first_output + o];
      fprintf(out, "%s %s %s%s", o == 0 ? ";" : ",", output->kind, bytes_text(output->bytes, text),
              output->alive || output->bytes == 0 ? "" : " (dead)");
    }
    putc('\n', out);
  }
}

/* ---- The drawing ------------------------------------------------------------------------------------------------- */

static double node_x(const trees_picture_node *node) { return MARGIN + (double)node->depth * COLUMN; }
static double node_y(const trees_picture_node *node) { return TOP + node->row * ROW; }

static void text_draw(ladei_svg *out, double x, double y, const char *class, const char *text, size_t most) {
  ladei_svg_text(out, x, y, &(ladei_svg_look){.class = class}, most, text);
}

/* From the middle of the parent's right side, by two corners. */
static void edge_draw(ladei_svg *out, const trees_picture_node *parent, const trees_picture_node *node) {
  double from_x = node_x(parent) + BOX_WIDTH, middle = from_x + (COLUMN - BOX_WIDTH) / 2.0;
  double from_y = node_y(parent) + BOX_HEIGHT / 2.0, to_y = node_y(node) + BOX_HEIGHT / 2.0;
  const ladei_svg_point points[] = {{from_x, from_y}, {middle, from_y}, {middle, to_y}, {node_x(node), to_y}};
  ladei_svg_polyline(out, points, 4, &(ladei_svg_look){.class = "edge"}, NULL);
}

static const char *cell_class(const trees_picture_output *output) {
  return output->bytes == 0 ? "none" : output->alive ? "alive" : "dead";
}

static void cell_draw(ladei_svg *out, double x, double y, const trees_picture_output *output, size_t index) {
  char title[128], text[24];
  snprintf(title, sizeof title, "output %zu: %s, %" PRIu64 " bytes at 0x%" PRIx64 ", %s", index, output->kind,
           output->bytes, output->address, output->alive ? "alive" : "not alive");
  ladei_svg_rect(out, x, y, CELL_WIDTH, CELL_HEIGHT, &(ladei_svg_look){.class = cell_class(output), .radius = 2},
                 title);
  ladei_svg_text(out, x + CELL_WIDTH / 2.0, y + 13, &(ladei_svg_look){.class = "small", .anchor = "middle"}, 0,
                 output->bytes == 0 ? output->kind : bytes_text(output->bytes, text));
}

static void cells_draw(ladei_svg *out, const trees_picture *p, const trees_picture_node *node) {
  double x = node_x(node) + 8, y = node_y(node) + 26;
  for (size_t i = 0; i < node->output_count && i < CELLS; i++, x += CELL_WIDTH + 4)
    cell_draw(out, x, y, &p->outputs[node->first_output + i], i);
  if (node->output_count <= CELLS) return;
  char more[32];
  snprintf(more, sizeof more, "+%zu", node->output_count - CELLS);
  text_draw(out, x, y + 13, "small", more, 0);
}

/* A mark for each output of the ancestors, oldest first. */
static void older_draw(ladei_svg *out, const trees_picture *p, const trees_picture_node *node) {
  size_t count = node->older_alive + node->older_dead;
  double x = node_x(node) + 8, y = node_y(node) + 51;
  char title[96];
  for (size_t i = 0; i < count && i < MARKS; i++, x += MARK + 2) {
    const trees_picture_older *older = &p->older[node->first_older + i];
    snprintf(title, sizeof title, "of %" PRId64 ": %" PRIu64 " bytes, %s", older->node, p->outputs[older->output].bytes,
             older->alive ? "alive" : "dead");
    ladei_svg_rect(out, x, y, MARK, MARK, &(ladei_svg_look){.class = older->alive ? "alive" : "dead"}, title);
  }
  if (count <= MARKS) return;
  snprintf(title, sizeof title, "+%zu", count - MARKS);
  text_draw(out, x, y + MARK, "small", title, 0);
}

static void node_draw(ladei_svg *out, const trees_picture *p, const trees_picture_node *node) {
  char text[128], bytes[24];
  double x = node_x(node), y = node_y(node);
  ladei_svg_rect(out, x, y, BOX_WIDTH, BOX_HEIGHT,
                 &(ladei_svg_look){.class = node->in_path ? "path" : "node", .radius = 4}, node->title);
  text_draw(out, x + 8, y + 17, "name", node->title, TITLE_CHARACTERS);
  cells_draw(out, p, node);
  older_draw(out, p, node);
  snprintf(text, sizeof text, "%" PRIu64 " replays; older: %zu alive (%s), %zu dead", node->replays, node->older_alive,
           bytes_text(node->older_alive_bytes, bytes), node->older_dead);
  text_draw(out, x + 8, y + 76, "small", text, 0);
}

static void legend_draw(ladei_svg *out, double y) {
  static const struct {
    const char *class, *text;
  } rows[] = {
      {"alive", "alive behind it"}, {"dead", "dead"}, {"none", "no memory"}, {"path", "of the path, as it is now"}};
  double x = MARGIN;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++, x += 130) {
    ladei_svg_rect(out, x, y, 14, 12, &(ladei_svg_look){.class = rows[i].class, .radius = 2}, NULL);
    text_draw(out, x + 20, y + 10, "small", rows[i].text, 0);
  }
}

static const char style[] = "text{font:12px sans-serif}.name{font-weight:bold}.small{font-size:11px}"
                            ".node{fill:#f6f8fa;stroke:#8c959f}.path{fill:#fff8c5;stroke:#9a6700}"
                            ".edge{fill:none;stroke:#8c959f}.alive{fill:#9be9a8;stroke:#2da44e}"
                            ".dead{fill:#fff;stroke:#8c959f}.none{fill:#eaeef2;stroke:#d0d7de;stroke-dasharray:3 2}";

lade_status trees_picture_draw(const trees_picture *p, FILE *file, const char *title) {
  double width = 2 * MARGIN + (p->depth < 3 ? 3.0 : (double)p->depth) * COLUMN - (COLUMN - BOX_WIDTH);
  double height = TOP + p->rows * ROW + LEGEND;
  char text[200], reserved[24], peak[24], alone[24];
  ladei_svg out;
  ladei_svg_begin(&out, ladei_svg_to_file, file, width, height, style);
  text_draw(&out, MARGIN, 26, "name", title, 100);
  snprintf(text, sizeof text,
           "%zu recordings, state %s; pool: %s reserved, %s at most handed out; a pool for each recording: %s",
           p->node_count, p->state, bytes_text(p->reserved_bytes, reserved), bytes_text(p->peak_bytes, peak),
           bytes_text(p->alone_bytes, alone));
  text_draw(&out, MARGIN, 48, "small", text, 0);
  for (size_t i = 0; i < p->node_count; i++)
    if (p->nodes[i].parent != SIZE_MAX) edge_draw(&out, &p->nodes[p->nodes[i].parent], &p->nodes[i]);
  for (size_t i = 0; i < p->node_count; i++) node_draw(&out, p, &p->nodes[i]);
  legend_draw(&out, height - 28);
  return ladei_svg_end(&out);
}
