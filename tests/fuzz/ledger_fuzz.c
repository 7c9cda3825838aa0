/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ledger's file as another process may leave it: right, with bytes of it changed, cut, with slots whose owners are gone. A pool
 * that charges and credits meets all of it in memory of the target's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/budget/ledger.h"
#include "host/budget/ledger_file.h"
#include "host/budget/ledger_survey.h"
#include "tests/fuzz/fuzz.h"

enum { SLOTS = 5, FILE_MOST = LADEI_LEDGER_HEADER_BYTES + 16 * LADEI_LEDGER_SLOT_BYTES, FD = 900 };

typedef struct memory_file {
  unsigned char data[FILE_MOST];
  size_t bytes;
  uint32_t owners; /* bit i: slot i has one */
  uint64_t clock;
} memory_file;

static int file_open(void *user, const char *path, int flags, mode_t mode) {
  (void)user;
  (void)path;
  (void)flags;
  (void)mode;
  return FD;
}
static int file_close(void *user, int fd) {
  (void)user;
  (void)fd;
  return 0;
}
static int file_stat(void *user, int fd, struct stat *out) {
  const memory_file *file = user;
  (void)fd;
  memset(out, 0, sizeof *out);
  out->st_size = (off_t)file->bytes;
  out->st_mode = S_IFREG | 0600;
  out->st_uid = geteuid();
  out->st_nlink = 1;
  return 0;
}
static int file_mode(void *user, int fd, mode_t mode) {
  (void)user;
  (void)fd;
  (void)mode;
  return 0;
}
static int file_truncate(void *user, int fd, off_t bytes) {
  memory_file *file = user;
  (void)fd;
  file->bytes = (size_t)bytes;
  return 0;
}
static int file_flock(void *user, int fd, int operation) {
  (void)user;
  (void)fd;
  (void)operation;
  return 0;
}
static int file_lock(void *user, int fd, int command, short type, int64_t byte, short *out_type) {
  const memory_file *file = user;
  int64_t slot = byte - LADEI_LEDGER_SLOT_LOCK;
  bool owned = slot >= 0 && slot < 32 && (file->owners >> slot & 1) != 0;
  (void)fd;
  if (command == F_OFD_GETLK) *out_type = owned ? F_WRLCK : F_UNLCK;
  if (command != F_OFD_SETLK || type == F_UNLCK || !owned) return 0;
  errno = EAGAIN;
  return -1;
}
static ssize_t file_read(void *user, int fd, void *data, size_t bytes, off_t offset) {
  const memory_file *file = user;
  (void)fd;
  size_t at = (size_t)offset, left = at < file->bytes ? file->bytes - at : 0;
  memcpy(data, file->data + (left == 0 ? 0 : at), bytes < left ? bytes : left);
  return (ssize_t)(bytes < left ? bytes : left);
}
static ssize_t file_write(void *user, int fd, const void *data, size_t bytes, off_t offset) {
  memory_file *file = user;
  size_t end = (size_t)offset + bytes;
  (void)fd;
  if (end > sizeof file->data) {
    errno = ENOSPC;
    return -1;
  }
  if ((size_t)offset > file->bytes) memset(file->data + file->bytes, 0, (size_t)offset - file->bytes);
  memcpy(file->data + offset, data, bytes);
  if (end > file->bytes) file->bytes = end;
  return (ssize_t)bytes;
}
static uint64_t file_clock(void *user) { return ((memory_file *)user)->clock += 1000; }
static void file_sleep(void *user, uint64_t ns) { ((memory_file *)user)->clock += ns; }

/* A right one, some of whose slots have any numbers. */
static void file_make(memory_file *file, fuzz_reader *reader) {
  ladei_ledger_header header;
  memset(file, 0, sizeof *file);
  ladei_ledger_header_make(&header, 1 + fuzz_below(reader, 12), 1);
  memcpy(file->data, &header, sizeof header);
  for (size_t i = 0; i < SLOTS; i++) {
    ladei_ledger_slot slot = {.mark = LADEI_LEDGER_TAKEN, .share = fuzz_below(reader, LADEI_LEDGER_SHARES)};
    uint64_t *numbers[] = {&slot.bytes,     &slot.wanted_bytes, &slot.total_bytes, &slot.default_bytes,
                           &slot.cap_bytes, &slot.part_bytes,   &slot.group_id,    &slot.group_bytes};
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
      unsigned shift = fuzz_below(reader, 65);
      *numbers[k] = shift == 64 ? UINT64_MAX : (uint64_t)fuzz_byte(reader) << shift;
    }
    slot.local_ranks = fuzz_byte(reader);
    ladei_ledger_slot_seal(&slot);
    memcpy(file->data + LADEI_LEDGER_HEADER_BYTES + i * sizeof slot, &slot, sizeof slot);
  }
  file->bytes = LADEI_LEDGER_HEADER_BYTES + SLOTS * LADEI_LEDGER_SLOT_BYTES;
  file->owners = fuzz_byte(reader);
  if (fuzz_byte(reader) % 4 == 0) file->bytes = fuzz_size(reader, file->bytes) - 1;
}

static void bytes_change(memory_file *file, fuzz_reader *reader) {
  for (unsigned i = fuzz_below(reader, 4); i > 0 && file->bytes > 0; i--)
    file->data[fuzz_size(reader, file->bytes) - 1] = fuzz_byte(reader);
}

static void state_check(ladei_ledger *pool, uint64_t held) {
  ladei_ledger_state state;
  ladei_ledger_state_get(pool, &state);
  FUZZ_CHECK(state.held_bytes == held);
  FUZZ_CHECK(memchr(state.fault, '\0', sizeof state.fault) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_reader reader = {data, data + size};
  memory_file *file = malloc(sizeof *file);
  ladei_ledger_terms terms = {.default_bytes = 1000, .most_slots = 12};
  uint64_t held = 0;
  size_t count;
  if (file == NULL) return 0;
  file_make(file, &reader);
  bytes_change(file, &reader);
  (void)ladei_ledger_parse(file->data, file->bytes, &count);
  const ladei_ledger_calls calls = {file_open, file_close, file_stat,  file_mode,  file_truncate, file_flock,
                                    file_lock, file_read,  file_write, file_clock, file_sleep,    file};
  terms.share = fuzz_below(&reader, LADEI_LEDGER_SHARES);
  ladei_ledger *pool = ladei_ledger_create("ledger", &terms, &calls);
  for (int i = 0; i < 8 && pool != NULL; i++) {
    ladei_ledger_answer answer;
    uint64_t bytes = fuzz_byte(&reader);
    ladei_ledger_result result = ladei_ledger_charge(pool, bytes, &answer);
    if (result != LADEI_LEDGER_REFUSED) held += bytes;
    if (result == LADEI_LEDGER_GRANTED) FUZZ_CHECK(held <= answer.most_bytes);
    state_check(pool, held);
    if (fuzz_byte(&reader) % 2 == 0) bytes_change(file, &reader);
    uint64_t back = fuzz_byte(&reader) % (held + 1);
    ladei_ledger_credit(pool, back);
    held -= back;
    (void)ladei_ledger_leaves(pool, 1);
    (void)ladei_ledger_asked(pool);
    state_check(pool, held);
  }
  ladei_ledger_destroy(pool);
  ladei_ledger_survey survey;
  if (ladei_ledger_survey_take("ledger", fuzz_byte(&reader) % 2 == 0, &calls, &survey) == LADE_OK)
    ladei_ledger_survey_release(&survey);
  free(file);
  return 0;
}
