/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libarchive, opened at the first tar shard: it brings 36 MB of libraries, which programs without shards need not load.
 *
 * I1  Once open it stays open, so a table stays good. A table is complete: a library lacking a function is refused.
 * Threads: any; each caller has a table of its own.
 */
#ifndef LADE_LOADERS_LIBARCHIVE_H
#define LADE_LOADERS_LIBARCHIVE_H

#include <archive.h>
#include <archive_entry.h>

#include "lade/status.h"

/* X(member, function) */
#define LADEI_LIBARCHIVE_FUNCTIONS(X)                                                                                  \
  X(entry_filetype, archive_entry_filetype)                                                                            \
  X(entry_hardlink, archive_entry_hardlink)                                                                            \
  X(entry_pathname, archive_entry_pathname)                                                                            \
  X(entry_pathname_utf8, archive_entry_pathname_utf8)                                                                  \
  X(entry_size, archive_entry_size)                                                                                    \
  X(entry_sparse_count, archive_entry_sparse_count)                                                                    \
  X(entry_symlink, archive_entry_symlink)                                                                              \
  X(error_number, archive_errno)                                                                                       \
  X(error_string, archive_error_string)                                                                                \
  X(filter_bytes, archive_filter_bytes)                                                                                \
  X(read_data_skip, archive_read_data_skip)                                                                            \
  X(read_free, archive_read_free)                                                                                      \
  X(read_header_position, archive_read_header_position)                                                                \
  X(read_new, archive_read_new)                                                                                        \
  X(read_next_header, archive_read_next_header)                                                                        \
  X(read_open2, archive_read_open2)                                                                                    \
  X(read_open_fd, archive_read_open_fd)                                                                                \
  X(read_support_format_tar, archive_read_support_format_tar)

typedef struct ladei_libarchive {
#define LADEI_LIBARCHIVE_MEMBER(member, function) __typeof__(&(function)) member;
  LADEI_LIBARCHIVE_FUNCTIONS(LADEI_LIBARCHIVE_MEMBER)
#undef LADEI_LIBARCHIVE_MEMBER
} ladei_libarchive;

/* LADE_ERR_UNSUPPORTED: it is not on this machine, or too old; the message names the package to install. */
lade_status ladei_libarchive_open(ladei_libarchive *out);

#endif /* LADE_LOADERS_LIBARCHIVE_H */
