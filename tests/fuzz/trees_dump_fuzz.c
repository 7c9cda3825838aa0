/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as the dump of a graph tree: what is read is drawn, each recording in a place of its own. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "tools/trees/picture.h"

static void picture_check(const trees_picture *p) {
  for (size_t i = 0; i < p->node_count; i++) {
    const trees_picture_node *node = &p->nodes[i];
    FUZZ_CHECK(node->parent == SIZE_MAX || node->parent < i);
    FUZZ_CHECK(node->depth < p->depth && node->row >= 0.0 && node->row < p->rows);
    FUZZ_CHECK(node->first_output + node->output_count <= p->output_count);
    FUZZ_CHECK(node->first_older + node->older_alive + node->older_dead <= p->older_count);
    for (size_t j = 0; j < i && i < 64; j++)
      FUZZ_CHECK(p->nodes[j].depth != node->depth || p->nodes[j].row + 1.0 <= node->row ||
                 node->row + 1.0 <= p->nodes[j].row);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  trees_picture picture;
  if (trees_picture_read(&picture, (const char *)data, size) != LADE_OK) return 0;
  picture_check(&picture);
  FILE *nothing = fopen("/dev/null", "w");
  if (nothing != NULL) {
    trees_picture_print(&picture, nothing);
    FUZZ_CHECK(trees_picture_draw(&picture, nothing, "t") == LADE_OK);
    fclose(nothing);
  }
  trees_picture_destroy(&picture);
  return 0;
}
