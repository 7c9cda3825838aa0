/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A picture of a graph tree: its recordings from left to right, what each one gives out, and what is alive behind it.
 *
 *   trees_picture_read(&picture, text, length); // a document of lade_graph_tree_dump()
 *   trees_picture_draw(&picture, file, "decode.trees");
 */
#ifndef LADE_TOOLS_TREES_PICTURE_H
#define LADE_TOOLS_TREES_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lade/status.h"

typedef struct trees_picture_output {
  char kind[12];
  uint64_t bytes;   /* 0 of numbers */
  uint64_t address; /* 0: none */
  bool alive;       /* behind the recording; of a path's node: now */
} trees_picture_output;

/* An output of an ancestor, as a recording leaves it. */
typedef struct trees_picture_older {
  size_t output; /* in the picture's outputs */
  int64_t node;
  bool alive;
} trees_picture_older;

typedef struct trees_picture_node {
  int64_t id;
  char title[96];
  size_t parent; /* its place in the list; SIZE_MAX: a root */
  size_t depth;
  uint64_t replays;
  uint64_t alone_bytes;
  size_t first_output, output_count; /* in the picture's outputs */
  uint64_t older_alive_bytes;        /* of ancestors' outputs, behind it */
  size_t older_alive, older_dead;
  size_t first_older; /* in the picture's; as many as the two together */
  bool in_path;
  double row; /* its place from the top, in rows */
} trees_picture_node;

typedef struct trees_picture {
  trees_picture_node *nodes; /* by id, so parents come first */
  size_t node_count;
  trees_picture_output *outputs;
  size_t output_count;
  trees_picture_older *older;
  size_t older_count;
  size_t depth; /* of the deepest node, and one */
  double rows;
  char state[16];
  uint64_t reserved_bytes, peak_bytes, alone_bytes;
} trees_picture;

/* Finds depths and rows of nodes whose parents are known. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status trees_picture_lay(trees_picture *p);

/* A document of lade_graph_tree_dump(). LADE_ERR_INVALID_ARGUMENT, with the reason in lade_last_error(), where it is none;
 * LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status trees_picture_read(trees_picture *out, const char *text, size_t length);
void trees_picture_destroy(trees_picture *p);

/* One screen of text. */
void trees_picture_print(const trees_picture *p, FILE *out);

/* LADE_ERR_IO. */
lade_status trees_picture_draw(const trees_picture *p, FILE *out, const char *title);

#endif /* LADE_TOOLS_TREES_PICTURE_H */
