/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the benchmarks of loaders: options of their own, a pair on device 0, a folder for their files. */
#ifndef LADE_BENCHMARKS_LOADERS_WORLD_H
#define LADE_BENCHMARKS_LOADERS_WORLD_H

#include "lade/lade.h"

typedef struct world {
  const char *runtime_name; /* --runtime NAME; NULL: the best found */
  uint64_t bytes;           /* --mib N of input; 0: the program's choice */
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  char folder[256]; /* under $TMPDIR; "": not made */
} world;

/* Takes --runtime and --mib out of the arguments. False, with a message, for a bad value. */
bool world_arguments(world *w, int *argc, char **argv);
/* Once; later calls do nothing. False with a message. */
bool world_open(world *w);
/* Removes the folder with its files. */
bool world_close(world *w);

/* False, with lade_last_error() on standard error, unless LADE_OK. */
bool world_succeeded(lade_status status);
/* A path in the folder, in a buffer that the next call but seven uses again. */
const char *world_path(const world *w, const char *name);
/* The loop that people write: reads a range of a file into `buffer` and copies it to the device, synchronously. */
bool world_read_copy(const world *w, int fd, uint64_t offset, uint64_t bytes, void *buffer, void *device);
/* Submits and waits. */
bool world_transfer(const world *w, const lade_transfer *transfer);
/* Whether device memory holds what the file does. */
bool world_verify(const world *w, int fd, uint64_t offset, uint64_t bytes, const void *device);

#endif /* LADE_BENCHMARKS_LOADERS_WORLD_H */
