/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory with guards around it, so that a byte written beside a result shows.
 *
 *   support_guarded_device guarded;
 *   support_guarded_device_begin(&guarded, runtime, allocator);   // before the allocator's first use
 *   ... the allocator's blocks now lie alone, between guards ...
 *   support_guarded_device_check(&guarded);                       // all that are alive
 *
 * Host memory lies between pages that nobody may touch: what reads or writes beside it stops the program.
 */
#ifndef LADE_TESTS_SUPPORT_GUARDED_H
#define LADE_TESTS_SUPPORT_GUARDED_H

#include "lade/device.h"

enum { SUPPORT_GUARD_BYTES = 4096, SUPPORT_GUARDED_BLOCKS = 256 };

/* A provider of an allocator whose caching is off. It outlives the allocator. One thread at a time is in the allocator. */
typedef struct support_guarded_device {
  lade_runtime *runtime;
  struct support_guarded_block {
    char *memory; /* of the program; NULL: this place is free */
    size_t bytes;
    int device;
  } blocks[SUPPORT_GUARDED_BLOCKS];
} support_guarded_device;

void support_guarded_device_begin(support_guarded_device *guarded, lade_runtime *runtime,
                                  lade_device_allocator *allocator);
/* Fails the test where a guard of a block that is alive was written. A block that goes back is checked, too. */
void support_guarded_device_check(const support_guarded_device *guarded);

/* Host memory of these bytes whose last one is followed by a guard. NULL, with the test failed: none. Not NULL for 0 bytes. */
void *support_guarded_host(size_t bytes);
void support_guarded_host_free(void *memory, size_t bytes);

#endif /* LADE_TESTS_SUPPORT_GUARDED_H */
