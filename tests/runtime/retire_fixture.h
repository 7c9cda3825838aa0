/* SPDX-License-Identifier: Apache-2.0 */
/* A retire object over the fake driver, its blocks, and the record of what came back. */
#ifndef LADE_TESTS_RUNTIME_RETIRE_FIXTURE_H
#define LADE_TESTS_RUNTIME_RETIRE_FIXTURE_H

#include "runtime/retire.h"
#include "tests/runtime/fake_driver.h"
#include "tests/shim/lade_test.h"

enum { FIXTURE_BLOCKS = 256 };

typedef struct fixture_block {
  ladei_ticket ticket;
  bool pending; /* added, not yet given to done() */
} fixture_block;

typedef struct fixture {
  fake_driver *fake;
  lade_runtime *runtime;
  ladei_retire *retire;
  fixture_block blocks[FIXTURE_BLOCKS];
  int done[8 * FIXTURE_BLOCKS]; /* blocks given to done(), in order */
  int done_count;
} fixture;

/* `options` may be NULL; owner and done are set here. */
void fixture_open(fixture *own, const ladei_retire_options *options);
/* Destroys the retire object, waiting, and expects nothing left over. */
void fixture_close(fixture *own);

void fixture_note(fixture *own, int block, lade_stream stream);
/* Adds, and says whether the block is pending. */
bool fixture_add(fixture *own, int block);
/* Notes and adds a block that must be pending then. */
void fixture_use(fixture *own, int block, lade_stream stream);
/* Polls without failure, checks the invariants, and returns how many tickets were done. */
uint64_t fixture_poll(fixture *own, unsigned flags);
ladei_retire_counters fixture_counters(fixture *own);
/* Whether the block came back. */
bool fixture_is_done(const fixture *own, int block);

#endif /* LADE_TESTS_RUNTIME_RETIRE_FIXTURE_H */
