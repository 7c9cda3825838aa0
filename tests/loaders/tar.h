/* SPDX-License-Identifier: Apache-2.0 */
/* Tar archives for tests. */
#ifndef LADE_TESTS_LOADERS_TAR_H
#define LADE_TESTS_LOADERS_TAR_H

#include <stddef.h>

typedef struct tar_member {
  const char *name;
  const char *data; /* NULL: a folder; with `link`, a hard link to it */
  size_t bytes;
  const char *link;
} tar_member;

/* `format`: "gnutar", "pax", "ustar", or one with "+gzip" behind it. The test fails if it cannot. */
void tar_write(const char *path, const char *format, const tar_member *members, size_t count);

#endif /* LADE_TESTS_LOADERS_TAR_H */
