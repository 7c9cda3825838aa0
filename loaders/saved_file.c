/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a checkpoint that is being saved. Locks: none; a file belongs to one thread.
 */
#include "loaders/saved_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "loaders/text.h"

static lade_status file_error(const char *doing, const ladei_save *file, int reason) {
  return ladei_error(LADE_ERR_IO, reason, "%s %s: %s", doing, ladei_loader_path_text(ladei_save_path(file)),
                     strerror(reason));
}

lade_status ladei_loader_saved_file_create(int folder, const char *path, const char *like, uint64_t bytes,
                                           ladei_save **out) {
  ladei_save *file = NULL;
  lade_status status = ladei_save_begin_in(folder, path, like, &file);
  /* A disk that is full is better found now than at the end. A file system that promises nothing is no error. */
  int reason = status == LADE_OK && bytes > 0 ? ladei_file_reserve(ladei_save_fd(file), 0, 0, bytes) : 0;
  if (reason == ENOSPC || reason == EFBIG || reason == EDQUOT) {
    status = file_error("making room for", file, reason);
    (void)ladei_save_end(file, false);
  }
  if (status == LADE_OK) *out = file;
  return status;
}
