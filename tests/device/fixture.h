/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device allocator, for tests of device/: on one software device, or on a runtime that moves bytes.
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
#include "runtime/ops.h"
#include "tests/support/runtimes.h"

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
/* On device 0 of the named runtime as tests/support/runtimes.h opens it, with bytes; the device is current. */
bool device_fixture_open_bytes(device_fixture *f, const char *runtime, const lade_device_options *options);
/* Checks the invariants, destroys everything that is not NULL; fails the test where something is left. */
void device_fixture_close(device_fixture *f);

/* Takes LADE_DEVICE_UNCACHED out of the settings in force, or adds it. */
void device_fixture_caching(lade_device_allocator *allocator, bool enabled);

/* NULL with the test failed, if it fails. Each checks the invariants afterwards. */
char *device_fixture_alloc(device_fixture *f, size_t bytes, int stream);
void device_fixture_free(device_fixture *f, void *pointer);
void device_fixture_record(device_fixture *f, void *pointer, int stream);
void device_fixture_empty_cache(device_fixture *f);
void device_fixture_check(device_fixture *f);

lade_device_stats device_fixture_stats(device_fixture *f);

/* Whether the blocks handed out from a private pool are exactly these; false for a pool that is unknown. */
bool device_fixture_pool_has(lade_device_allocator *allocator, lade_device_pool_id id, void *const *blocks,
                             size_t count);

ladei_stream device_fixture_resolve(const device_fixture *f, int stream);
/* Bytes of memory of the device: written by work on a stream; and compared, once the stream has finished. */
void device_fixture_fill(const device_fixture *f, void *block, unsigned char value, size_t bytes, int stream);
void device_fixture_expect_bytes(const device_fixture *f, const void *block, unsigned char value, size_t bytes,
                                 int stream);

/* Work queued on the stream, and its end. */
void device_fixture_hold(device_fixture *f, int stream);
void device_fixture_release(device_fixture *f, int stream);

/*
 * Opens as device_fixture_open_bytes, events in each free, with two blocks of stream 0 in one segment, the second one free;
 * work on stream 1, which uses the first one, waits for the hold. False with the test failed.
 */
bool device_fixture_use_open(device_fixture *f, const char *runtime, support_stream_hold *hold, char **out_used,
                             char **out_free);
/* While stream 1 is held, the block that it uses must not come back; afterwards it must. Closes all. */
void device_fixture_use_close(device_fixture *f, support_stream_hold *hold, char *used, char *other);

#endif /* LADE_TESTS_DEVICE_FIXTURE_H */
