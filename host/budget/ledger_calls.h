/* SPDX-License-Identifier: Apache-2.0 */
/* The system as a ledger sees it. */
#ifndef LADE_HOST_BUDGET_LEDGER_CALLS_H
#define LADE_HOST_BUDGET_LEDGER_CALLS_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Of a text that names the error of a ledger. */
enum { LADEI_LEDGER_FAULT_BYTES = 400 };

/* Calls of a ledger to the system. Tests put faults and other clocks in place of it. Each as the call of its name;
 * failures in errno. */
typedef struct ladei_ledger_calls {
  int (*open)(void *user, const char *path, int flags, mode_t mode);
  int (*close)(void *user, int fd);
  int (*fstat)(void *user, int fd, struct stat *out);
  int (*fchmod)(void *user, int fd, mode_t mode);
  int (*ftruncate)(void *user, int fd, off_t bytes);
  int (*flock)(void *user, int fd, int operation);
  int (*lock)(void *user, int fd, int command, short type, int64_t byte, short *out_type); /* one byte; fcntl */
  ssize_t (*pread)(void *user, int fd, void *data, size_t bytes, off_t offset);
  ssize_t (*pwrite)(void *user, int fd, const void *data, size_t bytes, off_t offset);
  uint64_t (*monotonic_ns)(void *user);
  void (*sleep)(void *user, uint64_t ns);
  void *user;
} ladei_ledger_calls;

extern const ladei_ledger_calls ladei_ledger_system_calls;

#endif /* LADE_HOST_BUDGET_LEDGER_CALLS_H */
