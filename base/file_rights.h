/* SPDX-License-Identifier: Apache-2.0 */
/* Rights and attributes of a file that replaces another. */
#ifndef LADE_BASE_FILE_RIGHTS_H
#define LADE_BASE_FILE_RIGHTS_H

#include <stdbool.h>

#include "lade/status.h"

/*
 * Gives the open file `fd`, which belongs to this process, the mode, owner, group, access control lists and extended
 * attributes of the file that `name` leads to. At no time does `fd` allow more access than that file, also if some
 * of these cannot be kept (the log names them). `path` is for messages. *out_there: it exists; false: nothing is done.
 *
 * LADE_ERR_IO: the rights cannot be read, or the file cannot be closed to others; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_file_rights_keep(int folder, const char *name, int fd, const char *path, bool *out_there);

#endif /* LADE_BASE_FILE_RIGHTS_H */
