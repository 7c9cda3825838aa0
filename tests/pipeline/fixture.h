/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline with its pool on a software device, and a piece of device memory, for tests. */
#ifndef LADE_TESTS_PIPELINE_FIXTURE_H
#define LADE_TESTS_PIPELINE_FIXTURE_H

#include "lade/pipeline.h"
#include "runtime/ops.h"

typedef struct fixture {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_pipeline *pipeline;
  char *device; /* device_bytes of memory on device 0 */
  size_t device_bytes;
} fixture;

/* Small chunks, three blocks, two readers: little memory and many turns of the ring. */
void fixture_options(lade_pipeline_options *options);

/* False, with the test failed. options NULL: fixture_options. */
bool fixture_open(fixture *f, const char *runtime, size_t device_bytes, const lade_pipeline_options *options);
/* The same with a pool of these options. */
bool fixture_open_pool(fixture *f, const char *runtime, size_t device_bytes, const lade_pinned_options *pool,
                       const lade_pipeline_options *options);
/* The same on a runtime that is open already, and stays the caller's. */
bool fixture_open_on(fixture *f, lade_runtime *runtime, size_t device_bytes, const lade_pipeline_options *options);
/* Destroys what is there, and closes the runtime if it is the fixture's; the test fails if anything is left alive. */
void fixture_close(fixture *f);

/* A transfer over the first `bytes` of the device memory. */
lade_transfer fixture_transfer(const fixture *f, lade_direction direction, lade_endpoint host, size_t bytes);
/* Submits, waits, releases; the ticket's outcome. */
lade_status fixture_run(fixture *f, const lade_transfer *transfer);
/* Both of these: moves the first `bytes` of the device memory. */
lade_status fixture_move(fixture *f, lade_direction direction, lade_endpoint host, size_t bytes);
/* Fails the test unless submit refuses it with this status and an error text that has the words. */
void fixture_expect_refused(fixture *f, const lade_transfer *transfer, lade_status status, const char *words);

lade_pipeline_info fixture_info(const fixture *f);

/* Reads device memory by a synchronous copy, and writes it. */
void fixture_device_read(const fixture *f, size_t offset, void *out, size_t bytes);
void fixture_device_write(const fixture *f, size_t offset, const void *data, size_t bytes);
/* Fails the test unless device bytes [offset, offset + bytes) hold the seed's pattern from `position` on. */
void fixture_expect_device_pattern(const fixture *f, size_t offset, size_t bytes, uint64_t seed, uint64_t position);

#endif /* LADE_TESTS_PIPELINE_FIXTURE_H */
