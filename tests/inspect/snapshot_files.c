/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a sample snapshot in a format, for the judges beside this file and for comparisons.
 *
 * usage: snapshot_files small|long|big|FILE FORMAT OUT      FORMAT: a name of the table of formats in inspect/api/write.c
 *
 * FILE, which has a slash in its name, is read instead of a sample.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "inspect/formats/format.h"
#include "tests/inspect/sample.h"

static const struct {
  const char *name;
  const sample_shape *shape;
} shapes[] = {{"small", &sample_small}, {"long", &sample_long}, {"big", &sample_big}};

static const sample_shape *shape_find(const char *name) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    if (strcmp(shapes[i].name, name) == 0) return shapes[i].shape;
  return NULL;
}

static sample_format format_find(const char *name) {
  const ladei_inspect_format *format;
  for (size_t i = 0; (format = ladei_inspect_format_at(i)) != NULL; i++)
    if (strcmp(format->name, name) == 0) return format->write;
  return NULL;
}

static int file_write(const char *path, const char *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  if (file == NULL) return 1;
  size_t written = fwrite(data, 1, bytes, file);
  return fclose(file) == 0 && written == bytes ? 0 : 1;
}

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* NULL, with the reason printed. */
static lade_snapshot *snapshot_make(const char *name) {
  const sample_shape *shape = shape_find(name);
  lade_snapshot *snapshot = NULL;
  if (shape != NULL) return sample_create(shape);
  if (lade_snapshot_open(name, &snapshot) != LADE_OK) fprintf(stderr, "%s\n", lade_last_error()->text);
  return snapshot;
}

int main(int argc, char **argv) {
  sample_format format = argc == 4 ? format_find(argv[2]) : NULL;
  if (format == NULL || (shape_find(argv[1]) == NULL && strchr(argv[1], '/') == NULL)) {
    fprintf(stderr, "usage: snapshot_files small|long|big|FILE FORMAT OUT\n");
    return 2;
  }
  size_t bytes = 0;
  lade_snapshot *snapshot = snapshot_make(argv[1]);
  if (snapshot == NULL) return 1;
  double start = seconds_now();
  char *data = sample_write(snapshot, format, &bytes);
  fprintf(stderr, "%zu bytes in %.3f s\n", bytes, seconds_now() - start);
  int status = data == NULL ? 1 : file_write(argv[3], data, bytes);
  free(data);
  lade_snapshot_destroy(snapshot);
  return status;
}
