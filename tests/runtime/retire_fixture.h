/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A retire object over the fake driver, its blocks, and the record of what came back.
 *
 *   static fixture own;
 *   lade_stream stream = fixture_open(&own, NULL);
 *   fixture_work_and_use(&own, 0, stream);
 *   LADE_EXPECT_EQ_UINT(fixture_poll(&own, LADEI_POLL_CLOSE), 0);
 *   fake_run_all(own.fake);
 *   LADE_EXPECT_EQ_UINT(fixture_poll(&own, 0), 1);
 *   fixture_close(&own);
 */
#ifndef LADE_TESTS_RUNTIME_RETIRE_FIXTURE_H
#define LADE_TESTS_RUNTIME_RETIRE_FIXTURE_H

#include "runtime/retire/retire.h"
#include "runtime/retire/retire_buffer.h"
#include "tests/runtime/fake_driver.h"
#include "tests/shim/lade_test.h"

enum { FIXTURE_BLOCKS = 256 };

typedef struct fixture_block {
  ladei_retire_ticket ticket;
  bool pending; /* added, not yet given to done() */
} fixture_block;

typedef struct fixture {
  fake_driver *fake;
  lade_runtime *runtime;
  ladei_retire *retire;
  ladei_retire_buffer buffer;
  bool forgetful; /* fixture_add forgets what was noted: blocks come back too early */
  bool buffered;  /* fixture_note and fixture_add go by the buffer */
  fixture_block blocks[FIXTURE_BLOCKS];
  int done[8 * FIXTURE_BLOCKS]; /* blocks given to done(), in order */
  int done_count;
} fixture;

/* `options` may be NULL; owner and done are set here. Returns a first stream of the driver. */
lade_stream fixture_open(fixture *own, const ladei_retire_options *options);
lade_stream fixture_open_laned(fixture *own);
/* Closes the buffer, destroys the retire object, waiting, and expects nothing left over. */
void fixture_close(fixture *own);

void fixture_note(fixture *own, int block, lade_stream stream);
/* A use that ends with the work queued so far; never by the buffer. */
void fixture_note_now(fixture *own, int block, lade_stream stream);
/* Adds, and says whether the block is pending. */
bool fixture_add(fixture *own, int block);
/* Notes and adds a block that must be pending then. */
void fixture_use(fixture *own, int block, lade_stream stream);
/* The same behind one more item of work on the stream. */
void fixture_work_and_use(fixture *own, int block, lade_stream stream);
/* Polls without failure, checks the invariants, and returns how many tickets were done. */
uint64_t fixture_poll(fixture *own, unsigned flags);
ladei_retire_counters fixture_counters(fixture *own);
/* Whether the block came back. */
bool fixture_is_done(const fixture *own, int block);

#endif /* LADE_TESTS_RUNTIME_RETIRE_FIXTURE_H */
