/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of stated shapes; see shapes.h. */
#include "benchmarks/replay/shapes.h"

#include <inttypes.h>
#include <stdlib.h>

enum { STREAMS = 4, LAYERS = 200 };

#define KIB UINT64_C(1024)

typedef struct writer {
  FILE *out;
  uint64_t left;   /* operations still to write */
  uint64_t random; /* state of xorshift64 */
  uint64_t next_id;
} writer;

static uint64_t below(writer *w, uint64_t limit) {
  w->random ^= w->random << 13;
  w->random ^= w->random >> 7;
  w->random ^= w->random << 17;
  return w->random % limit;
}

/* Counts an operation; false when there were enough. */
static int more(writer *w) { return w->left > 0 && w->left-- > 0; }

static uint64_t alloc_write(writer *w, uint64_t bytes, unsigned stream) {
  fprintf(w->out, "alloc %" PRIu64 " %" PRIu64 " %u\n", w->next_id, bytes, stream);
  return w->next_id++;
}

static uint64_t bytes_random(writer *w) {
  uint64_t kind = below(w, 10);
  return 1 + below(w, kind < 6 ? 64 * KIB : kind < 9 ? KIB * KIB : 16 * KIB * KIB);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static void step_write(writer *w, const uint64_t sizes[LAYERS]) {
  uint64_t ids[LAYERS];
  size_t made = 0;
  while (made < LAYERS && more(w)) {
    ids[made] = alloc_write(w, sizes[made], 0);
    if (more(w)) {
      uint64_t temporary = alloc_write(w, sizes[made] / 2 + 1, 0);
      if (more(w)) fprintf(w->out, "free %" PRIu64 "\n", temporary);
    }
    made++;
  }
  while (made > 0 && more(w)) fprintf(w->out, "free %" PRIu64 "\n", ids[--made]);
}

static void steps_write(writer *w) {
  uint64_t sizes[LAYERS];
  for (size_t i = 0; i < LAYERS; i++) sizes[i] = (UINT64_C(512) << below(w, 18)) - below(w, 500);
  while (w->left > 0) step_write(w, sizes);
}

/* ---- Random ------------------------------------------------------------------------------------------------------ */

static void use_write(writer *w, uint64_t id, unsigned stream) {
  if (below(w, 4) == 0 && more(w)) fprintf(w->out, "record %" PRIu64 " %u\n", id, (stream + 1) % STREAMS);
  if (below(w, 8) == 0 && more(w)) fprintf(w->out, "complete %" PRIu64 "\n", below(w, STREAMS));
}

static void random_write(writer *w, size_t live, unsigned streams) {
  uint64_t *ids = calloc(live, sizeof *ids);
  size_t count = 0;
  while (ids != NULL && more(w)) {
    if (count < live && (count == 0 || w->next_id <= live || below(w, 2) == 0)) {
      unsigned stream = (unsigned)below(w, streams);
      ids[count] = alloc_write(w, bytes_random(w), stream);
      if (streams > 1) use_write(w, ids[count], stream);
      count++;
    } else {
      size_t place = below(w, count);
      fprintf(w->out, "free %" PRIu64 "\n", ids[place]);
      ids[place] = ids[--count];
    }
  }
  free(ids);
}

void shape_write(FILE *out, shape what, uint64_t operations, size_t live) {
  writer w = {.out = out, .left = operations, .random = 88172645463325252, .next_id = 1};
  fprintf(out, "lade-trace 1\ndevice %" PRIu64 "\n", UINT64_C(1) << 50);
  if (what == SHAPE_STEPS) {
    steps_write(&w);
  } else if (what == SHAPE_RANDOM) {
    random_write(&w, live, 1);
  } else {
    for (unsigned s = 1; s < STREAMS; s++) fprintf(out, "stream %u\n", s);
    random_write(&w, live, STREAMS);
  }
  fputs("snapshot end\n", out);
}
