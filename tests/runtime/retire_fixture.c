/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/runtime/retire_fixture.h"

#include <string.h>

static void fixture_done(void *owner, ladei_retire_ticket *list) {
  fixture *own = owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) {
    fixture_block *block = (fixture_block *)(void *)ticket; /* its first member */
    LADE_EXPECT(block->pending);
    block->pending = false;
    own->done[own->done_count++] = (int)(block - own->blocks);
  }
}

lade_stream fixture_open(fixture *own, const ladei_retire_options *options) {
  memset(own, 0, sizeof *own);
  ladei_retire_options all = options == NULL ? (ladei_retire_options){.event_batch = 0} : *options;
  all.owner = own;
  all.done = fixture_done;
  own->fake = fake_open(&own->runtime);
  LADE_EXPECT_OK(ladei_retire_create(own->runtime, &all, &own->retire));
  ladei_retire_buffer_init(&own->buffer);
  return fake_stream_create(own->fake);
}

lade_stream fixture_open_laned(fixture *own) {
  lade_stream stream = fixture_open(own, NULL);
  own->buffered = true;
  return stream;
}

void fixture_close(fixture *own) {
  ladei_retire_buffer_close(own->retire, &own->buffer);
  LADE_EXPECT_OK(ladei_retire_check(own->retire));
  LADE_EXPECT_OK(ladei_retire_destroy(own->retire, true));
  fake_close(own->fake, own->runtime);
}

void fixture_note(fixture *own, int block, lade_stream stream) {
  ladei_retire_ticket *ticket = &own->blocks[block].ticket;
  LADE_EXPECT_OK(own->buffered ? ladei_retire_buffer_note(own->retire, &own->buffer, ticket, stream)
                               : ladei_retire_note(own->retire, ticket, stream, 0));
}

void fixture_note_now(fixture *own, int block, lade_stream stream) {
  LADE_EXPECT_OK(ladei_retire_note(own->retire, &own->blocks[block].ticket, stream, LADEI_NOTE_NOW));
}

bool fixture_add(fixture *own, int block) {
  own->blocks[block].pending = true;
  ladei_retire_ticket *ticket = &own->blocks[block].ticket;
  if (own->forgetful) ladei_retire_forget(own->retire, ticket);
  bool pending = own->buffered
                     ? ladei_retire_buffer_add(own->retire, &own->buffer, ticket) == LADEI_RETIRE_ADDED_PENDING
                     : ladei_retire_add(own->retire, ticket, false);
  if (!pending) own->blocks[block].pending = false;
  return pending;
}

void fixture_use(fixture *own, int block, lade_stream stream) {
  fixture_note(own, block, stream);
  LADE_EXPECT(fixture_add(own, block));
}

void fixture_work_and_use(fixture *own, int block, lade_stream stream) {
  fake_work(own->fake, stream, 1);
  fixture_use(own, block, stream);
}

uint64_t fixture_poll(fixture *own, unsigned flags) {
  uint64_t done = 0;
  LADE_EXPECT_OK(ladei_retire_poll(own->retire, flags, &done));
  LADE_EXPECT_OK(ladei_retire_check(own->retire));
  return done;
}

ladei_retire_counters fixture_counters(fixture *own) {
  ladei_retire_counters counters;
  ladei_retire_counters_get(own->retire, &counters);
  return counters;
}

bool fixture_is_done(const fixture *own, int block) {
  for (int i = 0; i < own->done_count; i++)
    if (own->done[i] == block) return true;
  return false;
}
