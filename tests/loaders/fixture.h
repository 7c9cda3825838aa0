/* SPDX-License-Identifier: Apache-2.0 */
/* Both software devices, each with a pair and a stream, and files, for tests of the loaders. */
#ifndef LADE_TESTS_LOADERS_FIXTURE_H
#define LADE_TESTS_LOADERS_FIXTURE_H

#include "lade/lade.h"
#include "runtime/ops.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

#define FIXTURE_GOLDEN "tests/loaders/golden/"

typedef struct fixture {
  lade_runtime *runtime;
  lade_pair *pairs[SUPPORT_DEVICE_COUNT];
  lade_stream streams[SUPPORT_DEVICE_COUNT];
  lade_load_target targets[SUPPORT_DEVICE_COUNT];
} fixture;

/* The pipelines have chunks of 4 KiB, three blocks and two readers. LADE_OK, or the first error with all undone. */
lade_status fixture_open_on(fixture *f, lade_runtime *runtime);
/* The same with the first `devices` devices only. */
lade_status fixture_open_some(fixture *f, lade_runtime *runtime, int devices);
/* All but the runtime. The test fails if anything is left alive. */
void fixture_close_on(fixture *f);
/* The same with a runtime of its own; false with the test failed. */
bool fixture_open(fixture *f, const char *runtime);
void fixture_close(fixture *f);

/* Device memory, by a synchronous copy. */
void fixture_device_read(const fixture *f, unsigned device, const void *memory, void *out, size_t bytes);
void fixture_device_write(const fixture *f, unsigned device, void *memory, const void *data, size_t bytes);

/* A safetensors file with this header and `data_bytes` bytes of zeros after it. */
void fixture_safetensors_write(const char *path, const char *header, size_t data_bytes);

#endif /* LADE_TESTS_LOADERS_FIXTURE_H */
