/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device allocator on one software device, for tests of device/.
 *
 *   device_fixture f;
 *   if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
 *   char *a = device_fixture_alloc(&f, 1000, 0);        // on stream 0 of four
 *   ...
 *   device_fixture_close(&f);                           // frees nothing: the test has freed what it allocated
 */
#ifndef LADE_TESTS_DEVICE_FIXTURE_H
#define LADE_TESTS_DEVICE_FIXTURE_H

#include "lade/device.h"
#include "lade/runtime.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

enum { FIXTURE_STREAMS = 4 };

typedef struct device_fixture {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream streams[FIXTURE_STREAMS];
} device_fixture;

/* One device with so much memory, as addresses only on "sim". options may be NULL. False with the test failed. */
bool device_fixture_open(device_fixture *f, const char *runtime, size_t memory_bytes,
                         const lade_device_options *options);
/* Checks the invariants, destroys everything; fails the test where something is left. */
void device_fixture_close(device_fixture *f);

/* NULL with the test failed, if it fails. Each checks the invariants afterwards. */
char *device_fixture_alloc(device_fixture *f, size_t bytes, int stream);
void device_fixture_free(device_fixture *f, void *pointer);
void device_fixture_record(device_fixture *f, void *pointer, int stream);
void device_fixture_empty_cache(device_fixture *f);
void device_fixture_check(device_fixture *f);

lade_device_stats device_fixture_stats(device_fixture *f);

/* Work queued on the stream, and its end. */
void device_fixture_hold(device_fixture *f, int stream);
void device_fixture_release(device_fixture *f, int stream);

#endif /* LADE_TESTS_DEVICE_FIXTURE_H */
