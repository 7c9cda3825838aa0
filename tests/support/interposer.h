/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A runtime around another one that counts calls and live objects, and fails or holds the calls it is told to.
 *
 *   lade_runtime *runtime = support_interposer_open("sim", NULL);
 *   support_fail(runtime, "event_record", 3, 1);      // the third call from now on fails, once
 *   ... code under test ...
 *   support_expect_nothing_live(runtime);
 *   support_runtime_close(runtime);
 *
 * The result is a runtime like any other, under the name of the one below; the lade_soft_... functions work on it too.
 * A call made under a lade lock stops the program, in builds without NDEBUG: every test that runs on it also holds the
 * library to the rule that the driver is called without locks.
 * A failed call does not reach the runtime below, whose error record it imitates.
 */
#ifndef LADE_TESTS_SUPPORT_INTERPOSER_H
#define LADE_TESTS_SUPPORT_INTERPOSER_H

#include "lade/runtime.h"

/* What an op's success makes or destroys. */
#define SUPPORT_LIVE_KINDS(X)                                                                                          \
  X(DEVICE_MEMORY, "device allocations")                                                                               \
  X(VM_RESERVED_BYTES, "bytes of reserved addresses")                                                                  \
  X(VM_HANDLES, "virtual-memory handles")                                                                              \
  X(VM_MAPPED_BYTES, "bytes of mapped memory")                                                                         \
  X(DRIVER_POOLS, "driver pools")                                                                                      \
  X(POOL_MEMORY, "driver pool allocations")                                                                            \
  X(HOST_MEMORY, "pinned host allocations")                                                                            \
  X(HOST_REGISTRATIONS, "host registrations")                                                                          \
  X(STREAMS, "streams")                                                                                                \
  X(EVENTS, "events")                                                                                                  \
  X(GRAPHS, "graphs")                                                                                                  \
  X(GRAPH_EXECS, "executable graphs")                                                                                  \
  X(USER_OBJECTS, "references to user objects")                                                                        \
  X(IPC_MAPPINGS, "IPC mappings")

typedef enum support_live_kind {
#define SUPPORT_LIVE_ENUMERATOR(name, text) SUPPORT_LIVE_##name,
  SUPPORT_LIVE_KINDS(SUPPORT_LIVE_ENUMERATOR)
#undef SUPPORT_LIVE_ENUMERATOR
      SUPPORT_LIVE_COUNT
} support_live_kind;

/* NULL, with the test failed or skipped, where the runtime below cannot be opened. Names and options: runtimes.h. */
lade_runtime *support_interposer_open(const char *name, const lade_runtime_options *options);

/* The runtime below; borrowed. A runtime that is no interposer is its own. */
lade_runtime *support_inner(lade_runtime *runtime);

/* Live objects of a kind, bytes for the kinds named so. */
int64_t support_live(lade_runtime *runtime, support_live_kind kind);

/* Fails the test, naming kinds and counts, unless nothing at all is live. */
void support_expect_nothing_live(lade_runtime *runtime);

/*
 * Lets calls `nth` to `nth + times - 1` of an op fail, counted from now on: 1 is the next one. Replaces the op's former
 * plan; times 0 cancels it. What the call returns follows from the op: out of device or pinned memory for ops that
 * allocate them, LADE_ERR_DRIVER for others.
 */
void support_fail(lade_runtime *runtime, const char *op, uint64_t nth, uint64_t times);

/*
 * Holds the `nth` call of an op from now on, 1 being the next one, in its thread: before it reaches the runtime below, or
 * after it came back from there. One call can be held at a time. support_hold_await() returns once it is held; support_hold_end()
 * lets it go, or cancels the plan. So a test says what other threads do in the middle of a driver call, without sleeping.
 */
typedef enum support_hold_place { SUPPORT_HOLD_BEFORE, SUPPORT_HOLD_AFTER } support_hold_place;
void support_hold(lade_runtime *runtime, const char *op, uint64_t nth, support_hold_place place);
void support_hold_await(lade_runtime *runtime);
void support_hold_end(lade_runtime *runtime);

/*
 * While it lies, every question whether a stream or an event is done is answered with yes, without asking. What must wait for
 * work then does not, and a test that is to notice that can show that it does.
 */
void support_lie_done(lade_runtime *runtime, bool lie);

/* Calls that were made to fail so far. */
uint64_t support_failed_calls(lade_runtime *runtime);

/* Calls of an op so far, failed ones included. */
uint64_t support_call_count(lade_runtime *runtime, const char *op);

/* Called at the beginning of each call from now on, with the op's name; NULL: no longer. No call is under way. */
void support_on_call(lade_runtime *runtime, void (*hook)(void *user, const char *op), void *user);

/* The ops: names in table order, 0 .. count-1; whether an op only destroys, frees, releases, unmaps or unregisters. */
size_t support_op_count(void);
const char *support_op_name(size_t index);
bool support_op_releases(size_t index);

#endif /* LADE_TESTS_SUPPORT_INTERPOSER_H */
