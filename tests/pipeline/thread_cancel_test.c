/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Threads that are cancelled (pthread_cancel) in a call of the pipeline: the call comes to its end
 * first, so nothing of the pipeline stays behind with the thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/cancelled.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { BYTES = 20000 };

typedef struct scene scene;

struct scene {
  fixture f;
  const char *path;
  lade_stream stream;
  lade_ticket *ticket;
  lade_status status;
  void (*make)(scene *s); /* the call */
  bool returned;
};

static void ticket_submit(scene *s) {
  lade_transfer transfer = fixture_transfer(&s->f, LADE_TO_DEVICE, lade_endpoint_path(s->path, 0, 0), BYTES);
  s->status = lade_pipeline_submit(s->f.pipeline, &transfer, &s->ticket);
}

static void ticket_wait(scene *s) { s->status = lade_ticket_wait(s->ticket, LADE_WAIT_FOREVER); }

static void ticket_query(scene *s) {
  s->status = lade_ticket_query(s->ticket, NULL);
  s->status = s->status == LADE_NOT_READY ? LADE_OK : s->status;
}

static void stream_wait(scene *s) { s->status = lade_stream_wait_ticket(s->stream, s->ticket); }

static void pipeline_destroy(scene *s) {
  s->status = lade_pipeline_destroy(s->f.pipeline, false);
  s->f.pipeline = NULL;
}

static void call_make(void *user) {
  scene *s = user;
  s->make(s);
}

static void make_cancelled(scene *s, void (*call)(scene *s)) {
  s->make = call;
  s->returned = support_call_cancelled(call_make, s);
  LADE_EXPECT(s->returned);
  LADE_EXPECT_OK(s->status);
}

/* Bug: a thread cancelled in submit took a place among max_transfers with it, one cancelled in a wait (virtual time: reads
 * run there) an order, and the pipeline could never be destroyed. */
LADE_TEST_P(ThreadCancel, LetsTheCallComeToItsEnd, support_soft_runtimes, name) {
  static scene s;
  support_temp_dir dir;
  lade_pipeline_options options;
  memset(&s, 0, sizeof s);
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "source");
  s.path = path;
  fixture_options(&options);
  options.max_transfers = 1;
  options.no_wait = 1;
  if (!support_temp_file_write(path, BYTES, 3) || !fixture_open(&s.f, name, BYTES, &options)) return;
  LADE_ASSERT_OK(lade_stream_create(s.f.runtime, 0, &s.stream));
  make_cancelled(&s, ticket_submit);
  if (s.returned) {
    make_cancelled(&s, ticket_query);
    make_cancelled(&s, stream_wait);
    make_cancelled(&s, ticket_wait);
    lade_ticket_release(s.ticket);
    fixture_expect_device_pattern(&s.f, 0, BYTES, 3, 0);
  }
  ticket_submit(&s); /* the place is free again */
  LADE_EXPECT_OK(s.status);
  if (s.status == LADE_OK) {
    ticket_wait(&s);
    lade_ticket_release(s.ticket);
    make_cancelled(&s, pipeline_destroy);
    LADE_EXPECT_OK(lade_stream_destroy(s.f.runtime, s.stream));
    fixture_close(&s.f);
  }
  support_temp_dir_remove(&dir);
  free(path);
}
