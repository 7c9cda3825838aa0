/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a tar shard, for libarchive and by place: of a file, or of an object that a URL names. */
#ifndef LADE_LOADERS_TAR_INPUT_H
#define LADE_LOADERS_TAR_INPUT_H

#include <sys/types.h>

#include "lade/status.h"
#include "loaders/libarchive.h"
#include "loaders/remote.h"

/* All zero, except fd or remote; dispose of it. */
typedef struct ladei_loader_tar_input {
  int fd;                            /* of a file */
  const ladei_loader_remote *remote; /* NULL: a file */
  char *window;                      /* bytes of the object, ... */
  uint64_t window_at;                /* ... from this one on, ... */
  size_t window_bytes;               /* ... so many */
  size_t ahead;                      /* to read next */
  uint64_t at;                       /* libarchive's next byte */
  lade_error error;                  /* of the read that failed last; status LADE_OK: none */
} ladei_loader_tar_input;

void ladei_loader_tar_input_dispose(ladei_loader_tar_input *input);

/* Reads up to `bytes` at `at`; the number read, less at the end alone; -1 with `error`. */
ssize_t ladei_loader_tar_input_read(ladei_loader_tar_input *input, uint64_t at, void *out, size_t bytes);

/* Opens the archive that begins at `at`. ARCHIVE_OK, or its failure. */
int ladei_loader_tar_input_open(ladei_loader_tar_input *input, const ladei_libarchive *lib, struct archive *archive,
                                uint64_t at);

#endif /* LADE_LOADERS_TAR_INPUT_H */
