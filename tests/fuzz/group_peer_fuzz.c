/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile rank writes, into its cell of the shared memory and into messages: whoever reads it neither crashes nor waits for longer
 * than its time.
 *
 * Input: a byte of choices, then the bytes of a message and of the cell of rank 1.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "group/local/messages.h"
#include "group/local/shared.h"
#include "tests/fuzz/fuzz.h"

enum { SIZE = 2, SLOTS = 3, SLOT_BYTES = 4096 };

static void shared_begin(ladei_group_shared *shared) {
  *shared = (ladei_group_shared){
      .name = "fuzz", .size = SIZE, .slots = SLOTS, .slot_bytes = SLOT_BYTES, .life = {-1, -1}, .timeout_ns = 1};
  size_t bytes = ladei_group_shared_bytes(SIZE, SLOTS, SLOT_BYTES);
  int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  FUZZ_CHECK(ladei_group_shared_map(shared, fd) != LADE_OK); /* it could be made shorter */
  FUZZ_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  FUZZ_CHECK(ladei_group_shared_map(shared, fd) == LADE_OK);
  (void)close(fd);
}

static void waits_try(ladei_group_shared *shared, const uint8_t *data, size_t size, uint8_t choice) {
  ladei_group_cell *cell = ladei_group_shared_cell(shared, 1);
  ladei_group_shared_begin(shared, (ladei_group_call)(choice % 5), choice % SIZE, choice);
  memcpy((void *)cell, data, size < sizeof *cell ? size : sizeof *cell);
  uint64_t deadline_ns = ladei_group_shared_deadline(shared);
  ladei_group_counter counter = (ladei_group_counter)(choice % LADEI_GROUP_COUNTERS);
  lade_status status = ladei_group_shared_wait(shared, 1, counter, (uint64_t)choice + 1, deadline_ns);
  if (status == LADE_OK) status = ladei_group_shared_same(shared, 1, &cell->gathered_call[choice % 2]);
  FUZZ_CHECK(status == LADE_OK || memchr(lade_last_error()->text, '\n', sizeof lade_last_error()->text) == NULL);
}

static void messages_try(const ladei_group_shared *shared, const uint8_t *data, size_t size) {
  ladei_group_hello hello;
  ladei_group_answer answer;
  memset(&hello, 0, sizeof hello);
  memset(&answer, 0, sizeof answer);
  memcpy((void *)&hello, data, size < sizeof hello ? size : sizeof hello);
  memcpy((void *)&answer, data, size < sizeof answer ? size : sizeof answer);
  if (ladei_group_hello_check(&hello, shared, 0, 1) == LADE_OK) FUZZ_CHECK(hello.rank > 0 && hello.rank < SIZE);
  (void)ladei_group_answer_check(&answer, size % 4, shared);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ladei_group_shared shared;
  if (size == 0) return 0;
  shared_begin(&shared);
  waits_try(&shared, data + 1, size - 1, data[0]);
  messages_try(&shared, data + 1, size - 1);
  ladei_group_shared_leave(&shared);
  return 0;
}
