/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver made of counters, for tests of what stands on streams and events alone.
 *
 *   stream: | done | done | queued | queued |        fake_work appends, fake_run finishes the oldest
 *                          ^event recorded here is done when two more have run
 *
 * Nothing happens by itself. Every op checks that its caller holds no lade lock. Any thread may call anything.
 */
#ifndef LADE_TESTS_RUNTIME_FAKE_DRIVER_H
#define LADE_TESTS_RUNTIME_FAKE_DRIVER_H

#include "runtime/ops.h"

typedef struct fake_driver fake_driver;

fake_driver *fake_open(lade_runtime **out);
/* Closes the runtime and frees the driver; fails the test where events, user objects or the runtime are left over. */
void fake_close(fake_driver *fake, lade_runtime *runtime);

lade_stream fake_stream_create(fake_driver *fake);
/* Destroys the stream and makes a new one that gets the same handle. */
void fake_stream_recycle(fake_driver *fake, lade_stream stream);
/* Its handle answers no more, not even whose it was; its work goes on, and its events are done in time. */
void fake_stream_destroy(fake_driver *fake, lade_stream stream);
/* Streams are of a context of the program's own, for which waiting for the device does nothing. */
void fake_other_context(fake_driver *fake, bool other);
/* From now on any op that names the handle fails the test. */
void fake_stream_forbid(fake_driver *fake, lade_stream stream);
/* Resolved here, as an owner would. */
ladei_stream fake_resolve(fake_driver *fake, lade_stream stream);

/* Special handles mean those of the calling thread. */
void fake_work(fake_driver *fake, lade_stream stream, uint64_t count);
void fake_run(fake_driver *fake, lade_stream stream, uint64_t count);
void fake_run_all(fake_driver *fake);
/* Items queued and done on the stream so far. */
uint64_t fake_queued(fake_driver *fake, lade_stream stream);
uint64_t fake_finished(fake_driver *fake, lade_stream stream);
/* Waiting for the stream, its events or its device ends with LADE_ERR_TIMEOUT while its work is not done. */
void fake_stick(fake_driver *fake, lade_stream stream, bool stuck);

/* Captures. The id is that of the capture. */
uint64_t fake_capture_begin(fake_driver *fake, lade_stream stream);
void fake_capture_invalidate(fake_driver *fake, lade_stream stream);
/* NULL, and its user objects gone, if the capture is invalid. Caller destroys the graph. */
ladei_graph fake_capture_end(fake_driver *fake, lade_stream stream);
/* As the end of an exec of it that was launched. */
void fake_graph_destroy(fake_driver *fake, ladei_graph graph);
/* Destructors of user objects of execs that were launched do not run before the clock has been read so many times; then all, in
 * order. */
void fake_objects_late(fake_driver *fake, uint64_t reads);
void fake_legacy_implicit(fake_driver *fake, bool implicit);

/* The next `times` calls of the op, after `skip` more, return `status` and do nothing. */
void fake_fail(fake_driver *fake, const char *op, lade_status status, uint64_t skip, uint64_t times);
/* Calls of an op so far, failed ones included; NULL: of all ops but the clock. */
uint64_t fake_calls(fake_driver *fake, const char *op);
/* Called at the next call of the op, before it does anything; once. */
void fake_hook(fake_driver *fake, const char *op, void (*hook)(void *user), void *user);
/* Moves the clock, which otherwise stands still; `per_read` lets each reading move it. */
void fake_clock(fake_driver *fake, uint64_t now_ns, uint64_t per_read);

lade_event fake_event_create(fake_driver *fake);
void fake_event_record(fake_driver *fake, lade_event event, lade_stream stream);
void fake_event_destroy(fake_driver *fake, lade_event event);

#endif /* LADE_TESTS_RUNTIME_FAKE_DRIVER_H */
