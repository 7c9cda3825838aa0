/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drawing: one room per NUMA node with the devices near it, the distances as a matrix, the facts beside it.
 *
 *   title
 *   +-- node 0 ----+  +-- node 1 ----+  +- no node -----+     COLUMNS rooms in a row, as high as its fullest
 *   | memory [##  ]|  | memory [#   ]|  |               |
 *   | CPUs         |  | CPUs         |  |               |
 *   | [ device 0 ] |  | [ device 1 ] |  | [ device 2 ]  |
 *   +--------------+  +--------------+  +---------------+
 *   facts                                distances
 *
 * D1  Nothing overlaps, and all lies within the picture; texts are shortened to the letters of usual width that fit.
 */

#include "base/svg.h"
#include "tools/topo/survey.h"

enum {
  MARGIN = 28,
  COLUMNS = 4,
  ROOM_WIDTH = 236,
  GAP = 20,
  ROOM_TOP = 118, /* of a room: title, memory, CPUs */
  DEVICE_HEIGHT = 58,
  DEVICE_GAP = 10,
  TITLE_HEIGHT = 64,
  LABEL_WIDTH = 170,
  FACTS_WIDTH = 560,
  LINE_HEIGHT = 22,
  CELL = 36,
  MOST_CELLS = 10,      /* beside the facts */
  ROOM_CHARACTERS = 28, /* that fit into a room at 13 px */
};

#define WIDTH (2 * MARGIN + COLUMNS * ROOM_WIDTH + (COLUMNS - 1) * GAP)

/* The node "none" comes last. */
typedef struct picture_layout {
  const survey *survey;
  size_t room_count;
  int facts_top, height;
} picture_layout;

/* `class` is one of the style sheet's. */
static void text_draw(ladei_svg *out, double x, double y, const char *class, const char *text, size_t most) {
  ladei_svg_text(out, x, y, &(ladei_svg_look){.class = class}, most, text);
}

/* ---- Rooms ------------------------------------------------------------------------------------------------------- */

static bool device_is_in(const survey *s, const survey_device *device, size_t room) {
  int position = survey_node_position(s, device->near_node);
  return position < 0 ? room == s->node_count : (size_t)position == room;
}

static size_t room_devices(const survey *s, size_t room) {
  size_t count = 0;
  for (size_t i = 0; i < s->device_count; i++) count += device_is_in(s, &s->devices[i], room) ? 1 : 0;
  return count;
}

static void device_draw(ladei_svg *out, const survey_device *device, size_t index, int x, int y) {
  char line[160], size[SURVEY_SIZE_BYTES];
  ladei_svg_rect(out, x, y, ROOM_WIDTH - 24, DEVICE_HEIGHT, &(ladei_svg_look){.class = "device", .radius = 4}, NULL);
  snprintf(line, sizeof line, "device %zu, %s", index, survey_size_text(device->info.total_bytes, size));
  text_draw(out, x + 10, y + 18, "strong light", line, ROOM_CHARACTERS - 4);
  text_draw(out, x + 10, y + 35, "light", device->info.name, ROOM_CHARACTERS - 2);
  snprintf(line, sizeof line, "%s", device->info.pci_bus_id);
  if (device->pinned_node != device->near_node && device->pinned_node >= 0)
    snprintf(line, sizeof line, "%s, pins on %d", device->info.pci_bus_id, device->pinned_node);
  text_draw(out, x + 10, y + 51, "light", line, ROOM_CHARACTERS - 2);
}

/* A bar of the room's memory, with what is in use filled. */
static void memory_draw(ladei_svg *out, const survey_node *node, int x, int y) {
  char line[80], memory[SURVEY_SIZE_BYTES], unused[SURVEY_SIZE_BYTES];
  int width = ROOM_WIDTH - 24;
  survey_size_text(node->node.memory_bytes, memory);
  if (node->free_bytes == PAGES_UNKNOWN || node->free_bytes > node->node.memory_bytes) {
    snprintf(line, sizeof line, "%s", memory);
  } else {
    double used = (double)(node->node.memory_bytes - node->free_bytes);
    double share = node->node.memory_bytes == 0 ? 0 : used / (double)node->node.memory_bytes;
    snprintf(line, sizeof line, "%s, %s free", memory, survey_size_text(node->free_bytes, unused));
    ladei_svg_rect(out, x, y, width * share, 12, &(ladei_svg_look){.class = "used"}, NULL);
  }
  ladei_svg_rect(out, x, y, width, 12, &(ladei_svg_look){.class = "bar"}, NULL);
  text_draw(out, x, y + 29, "plain", line, ROOM_CHARACTERS);
}

static void node_draw(ladei_svg *out, const survey_node *node, int x, int y) {
  char line[128];
  snprintf(line, sizeof line, "node %d%s", node->node.os_index, node->node.usable ? "" : " (not usable)");
  text_draw(out, x, y + 26, "strong", line, ROOM_CHARACTERS);
  memory_draw(out, node, x, y + 38);
  snprintf(line, sizeof line, "%u CPUs: %s", node->node.cpu_count, node->node.cpus);
  text_draw(out, x, y + 88, "plain", node->node.cpu_count == 0 ? "no CPUs" : line, ROOM_CHARACTERS);
}

static int row_height(const picture_layout *l, size_t row) {
  size_t most = 0;
  for (size_t room = row * COLUMNS; room < (row + 1) * COLUMNS && room < l->room_count; room++) {
    size_t count = room_devices(l->survey, room);
    most = count > most ? count : most;
  }
  return ROOM_TOP + (int)most * (DEVICE_HEIGHT + DEVICE_GAP);
}

/* Of the row after the last: where the rooms end. */
static int row_top(const picture_layout *l, size_t row) {
  int top = TITLE_HEIGHT;
  for (size_t above = 0; above < row; above++) top += row_height(l, above) + GAP;
  return top;
}

static void room_draw(ladei_svg *out, const picture_layout *l, size_t room) {
  const survey *s = l->survey;
  size_t row = room / COLUMNS;
  int x = MARGIN + (int)(room % COLUMNS) * (ROOM_WIDTH + GAP);
  int y = row_top(l, row);
  bool is_node = room < s->node_count;
  const char *class = is_node && s->nodes[room].node.usable ? "room" : "room outside";
  ladei_svg_rect(out, x, y, ROOM_WIDTH, row_height(l, row), &(ladei_svg_look){.class = class, .radius = 8}, NULL);
  if (is_node) {
    node_draw(out, &s->nodes[room], x + 12, y);
  } else {
    text_draw(out, x + 12, y + 26, "strong", "near no node", ROOM_CHARACTERS);
    text_draw(out, x + 12, y + 50, "plain", "or it is not known which", ROOM_CHARACTERS);
  }
  int device_y = y + ROOM_TOP - DEVICE_GAP;
  for (size_t i = 0; i < s->device_count; i++) {
    if (device_is_in(s, &s->devices[i], room)) {
      device_draw(out, &s->devices[i], i, x + 12, device_y);
      device_y += DEVICE_HEIGHT + DEVICE_GAP;
    }
  }
}

/* ---- Facts and distances ----------------------------------------------------------------------------------------- */

static int facts_draw(ladei_svg *out, const survey_fact *facts, const char *title, int y) {
  text_draw(out, MARGIN, y, "strong", title, SURVEY_FACT_BYTES);
  for (size_t i = 0; i < SURVEY_FACTS; i++) {
    y += LINE_HEIGHT;
    text_draw(out, MARGIN, y, "quiet", facts[i].label, SURVEY_FACT_BYTES);
    text_draw(out, MARGIN + LABEL_WIDTH, y, "plain", facts[i].value, SURVEY_FACT_BYTES);
  }
  return y + 2 * LINE_HEIGHT;
}

static size_t matrix_cells(const survey *s) {
  bool known = false;
  for (size_t i = 0; i < s->node_count * s->node_count; i++) known = known || s->distances[i] != 0;
  if (!known) return 0;
  return s->node_count < MOST_CELLS ? s->node_count : MOST_CELLS;
}

static unsigned long distance_most(const survey *s) {
  unsigned long most = 0;
  for (size_t i = 0; i < s->node_count * s->node_count; i++) most = s->distances[i] > most ? s->distances[i] : most;
  return most;
}

/* Farther is darker. */
static void cell_draw(ladei_svg *out, unsigned long distance, unsigned long most, int x, int y) {
  char number[24];
  double shade = most <= 10 || distance <= 10 ? 0.0 : (double)(distance - 10) / (double)(most - 10);
  snprintf(number, sizeof number, "%lu", distance);
  ladei_svg_rect(out, x, y, CELL - 2, CELL - 2,
                 &(ladei_svg_look){.class = "cell", .radius = 3, .fill_opacity = 0.10 + 0.60 * shade}, NULL);
  text_draw(out, x + CELL / 2 - 1, y + CELL / 2 + 4, "middle", distance == 0 ? "-" : number, 4);
}

static void distances_draw(ladei_svg *out, const picture_layout *l) {
  const survey *s = l->survey;
  size_t cells = matrix_cells(s);
  int left = MARGIN + FACTS_WIDTH + 2 * CELL, top = l->facts_top;
  if (cells == 0) return;
  text_draw(out, MARGIN + FACTS_WIDTH, top, "strong",
            cells == s->node_count ? "distance between nodes, from row to column" : "distance between the first nodes",
            48);
  for (size_t i = 0; i < cells; i++) {
    char number[16];
    snprintf(number, sizeof number, "%d", s->nodes[i].node.os_index);
    int along = (int)i * CELL + CELL / 2;
    text_draw(out, left + along - 1, top + CELL - 8, "middle quiet", number, 6);
    text_draw(out, left - CELL / 2, top + CELL + along + 4, "middle quiet", number, 6);
    for (size_t k = 0; k < cells; k++) {
      cell_draw(out, s->distances[i * s->node_count + k], distance_most(s), left + (int)k * CELL,
                top + CELL + (int)i * CELL);
    }
  }
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

static picture_layout layout_make(const survey *s) {
  picture_layout l = {.survey = s, .room_count = s->node_count};
  if (room_devices(s, s->node_count) > 0) l.room_count++;
  l.facts_top = row_top(&l, (l.room_count + COLUMNS - 1) / COLUMNS) + LINE_HEIGHT;
  int facts_height = (2 * SURVEY_FACTS + 3) * LINE_HEIGHT, matrix_height = ((int)matrix_cells(s) + 1) * CELL;
  l.height = l.facts_top + (facts_height > matrix_height ? facts_height : matrix_height) + MARGIN;
  return l;
}

static const char style[] =
    "text{font:13px sans-serif;fill:#222}.title{font-size:20px}.strong{font-weight:bold}.quiet{fill:#667}\n"
    ".light{fill:white}.middle{text-anchor:middle}.room{fill:#f3f6fa;stroke:#1f4e79;stroke-width:1.5}\n"
    ".outside{fill:#fafafa;stroke:#999;stroke-dasharray:5 4}.device{fill:#3a7d44}.used{fill:#9db8d2}\n"
    ".bar{fill:none;stroke:#1f4e79}.cell{fill:#c05a00}";

void survey_write_svg(FILE *file, const survey *s) {
  picture_layout l = layout_make(s);
  survey_fact facts[SURVEY_FACTS];
  ladei_svg out;
  char title[96];
  ladei_svg_begin(&out, ladei_svg_to_file, file, WIDTH, l.height, style);
  snprintf(title, sizeof title, "Devices and NUMA nodes, runtime %s%s", s->runtime,
           s->software ? " (software device, no GPU)" : "");
  text_draw(&out, MARGIN, MARGIN + 14, "title", title, sizeof title);
  for (size_t room = 0; room < l.room_count; room++) room_draw(&out, &l, room);
  survey_machine_facts(s, facts);
  int y = facts_draw(&out, facts, "this process and machine", l.facts_top);
  survey_pool_facts(s, facts);
  (void)facts_draw(&out, facts, "pinned pool with default settings", y);
  distances_draw(&out, &l);
  (void)ladei_svg_end(&out); /* the file keeps the error */
}
