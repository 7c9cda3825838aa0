/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory is the same bytes of one file, by what the kernel shows of mappings. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "host/budget/ledger_mapping.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

enum { PAGE = 4096, BYTES = 16 * PAGE };

static int file_of(size_t bytes) {
  int fd = memfd_create("lade mapping test", MFD_CLOEXEC);
  LADE_EXPECT(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  return fd;
}

static char *map(int fd, size_t bytes, size_t offset, int flags) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
  LADE_EXPECT(memory != MAP_FAILED);
  return memory;
}

LADE_TEST(LedgerMapping, TheSameBytesOfAFileHaveOneIdAndOthersAnother) {
  int fd = file_of(2 * BYTES), other = file_of(2 * BYTES);
  char *a = map(fd, BYTES, 0, MAP_SHARED), *b = map(fd, BYTES, 0, MAP_SHARED),
       *next = map(fd, BYTES, BYTES, MAP_SHARED);
  char *all = map(fd, 2 * BYTES, 0, MAP_SHARED), *its = map(other, BYTES, 0, MAP_SHARED);
  const uint64_t id = ladei_ledger_mapping_id(a, BYTES);
  LADE_EXPECT(id != 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(b, BYTES), id);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(all, BYTES), id);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(all + BYTES, BYTES), ladei_ledger_mapping_id(next, BYTES));
  LADE_EXPECT(ladei_ledger_mapping_id(next, BYTES) != id);
  LADE_EXPECT(ladei_ledger_mapping_id(a, BYTES - PAGE) != id && ladei_ledger_mapping_id(a, BYTES - PAGE) != 0);
  LADE_EXPECT(ladei_ledger_mapping_id(its, BYTES) != id && ladei_ledger_mapping_id(its, BYTES) != 0);
  munmap(a, BYTES);
  munmap(b, BYTES);
  munmap(next, BYTES);
  munmap(all, 2 * BYTES);
  munmap(its, BYTES);
  close(fd);
  close(other);
}

/* Other rights, or advice, split a mapping; what lies in the middle of it stays the same bytes. */
LADE_TEST(LedgerMapping, PartsOfAMappingAreOne) {
  int fd = file_of(BYTES);
  char *whole = map(fd, BYTES, 0, MAP_SHARED), *split = map(fd, BYTES, 0, MAP_SHARED);
  LADE_EXPECT_EQ_INT(mprotect(split + 3 * PAGE, 2 * PAGE, PROT_READ), 0);
  LADE_EXPECT_EQ_INT(mprotect(split + 9 * PAGE, PAGE, PROT_NONE), 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(split, BYTES), ladei_ledger_mapping_id(whole, BYTES));
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(split + 4 * PAGE, 7 * PAGE),
                      ladei_ledger_mapping_id(whole + 4 * PAGE, 7 * PAGE));
  munmap(split, BYTES);
  munmap(whole, BYTES);
  close(fd);
}

LADE_TEST(LedgerMapping, WhatIsOfOneProcessAloneHasNone) {
  int fd = file_of(BYTES), other = file_of(BYTES);
  char *anonymous = map(-1, BYTES, 0, MAP_PRIVATE | MAP_ANONYMOUS), *copied = map(fd, BYTES, 0, MAP_PRIVATE);
  char *mixed = map(fd, BYTES, 0, MAP_SHARED), *heap = malloc(BYTES);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(anonymous, BYTES), 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(copied, BYTES), 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(heap, BYTES), 0);
  LADE_EXPECT(ladei_ledger_mapping_id(mixed, BYTES) != 0);
  /* Another file, the same one from elsewhere, a private page or none in the midst of it. */
  LADE_EXPECT(mmap(mixed + PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, other, PAGE) == mixed + PAGE);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(mixed, BYTES), 0);
  LADE_EXPECT(mmap(mixed + PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == mixed + PAGE);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(mixed, BYTES), 0);
  LADE_EXPECT(mmap(mixed + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, PAGE) == mixed + PAGE);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(mixed, BYTES), 0);
  LADE_EXPECT_EQ_INT(munmap(mixed + PAGE, PAGE), 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(mixed, BYTES), 0);
  LADE_EXPECT_EQ_UINT(ladei_ledger_mapping_id(mixed + PAGE, PAGE), 0);
  free(heap);
  munmap(anonymous, BYTES);
  munmap(copied, BYTES);
  munmap(mixed, BYTES);
  close(fd);
  close(other);
}

/* Memory that a child inherits is a file of the kernel's. */
LADE_TEST(LedgerMapping, AChildFindsTheSame) {
  char *memory = map(-1, BYTES, 0, MAP_SHARED | MAP_ANONYMOUS), *other = map(-1, BYTES, 0, MAP_SHARED | MAP_ANONYMOUS);
  const uint64_t id = ladei_ledger_mapping_id(memory, BYTES);
  int status = -1;
  LADE_EXPECT(id != 0 && ladei_ledger_mapping_id(other, BYTES) != id);
  pid_t child = fork();
  if (child == 0) _exit(ladei_ledger_mapping_id(memory, BYTES) != id);
  LADE_EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  munmap(memory, BYTES);
  munmap(other, BYTES);
}
