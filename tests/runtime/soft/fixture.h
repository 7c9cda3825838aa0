/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Software devices for tests that call the ops table directly.
 *
 *   soft_fixture f = soft_fixture_open("sim", NULL);
 *   ladei_stream stream = soft_fixture_stream(&f, 0);
 *   LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, device, host, bytes, &stream));
 *   ...
 *   soft_fixture_close(&f);        // frees what the fixture made; fails the test if anything else is alive
 */
#ifndef LADE_TESTS_RUNTIME_SOFT_FIXTURE_H
#define LADE_TESTS_RUNTIME_SOFT_FIXTURE_H

#include "runtime/soft/soft.h"

extern const char *const soft_fixture_clocks[]; /* "sim", "cpu": for LADE_TEST_P */

enum { SOFT_FIXTURE_OBJECTS = 64 };

typedef struct soft_fixture {
  const lade_runtime_ops *ops;
  void *self;
  bool virtual_time;
  struct {
    int kind; /* of this fixture */
    void *object;
  } objects[SOFT_FIXTURE_OBJECTS]; /* made by the functions below, freed in reverse by close */
  int object_count;
} soft_fixture;

soft_fixture soft_fixture_open(const char *clock, const lade_soft_options *options);
/* Waits until all work has ended, frees, closes. */
void soft_fixture_close(soft_fixture *f);

/* Streams do not block the legacy one, unless asked for. Memory of the device or pinned memory, all zero. */
ladei_stream soft_fixture_stream(soft_fixture *f, int device);
ladei_stream soft_fixture_blocking_stream(soft_fixture *f, int device);
lade_event soft_fixture_event(soft_fixture *f, int device, unsigned flags);
void *soft_fixture_device_memory(soft_fixture *f, int device, size_t bytes);
void *soft_fixture_pinned(soft_fixture *f, size_t bytes);

/* The special stream of the calling thread's current device. */
ladei_stream soft_fixture_resolve(soft_fixture *f, lade_stream handle);

void soft_fixture_synchronize(soft_fixture *f, const ladei_stream *stream);
uint64_t soft_fixture_now(const soft_fixture *f);
lade_soft_report soft_fixture_report(const soft_fixture *f);
/* Fails the test, naming the finding, unless nothing was found. */
void soft_fixture_expect_no_finding(const soft_fixture *f);

#endif /* LADE_TESTS_RUNTIME_SOFT_FIXTURE_H */
