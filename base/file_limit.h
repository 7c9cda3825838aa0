/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit on the size of files (RLIMIT_FSIZE, ulimit -f). The kernel answers a write or a length beyond it with
 * SIGXFSZ, which ends the process unless the program handles it. That includes memory files (memfd) and files that the
 * program does not know about. So code that writes files of its own accord asks here first.
 */
#ifndef LADE_BASE_FILE_LIMIT_H
#define LADE_BASE_FILE_LIMIT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

/* Whether this process may have a file of this many bytes. False: errno is EFBIG. Threads: any. */
static inline bool ladei_file_may_have(uint64_t bytes) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return true;
  errno = EFBIG;
  return false;
}

#endif /* LADE_BASE_FILE_LIMIT_H */
