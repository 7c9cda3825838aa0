/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/loaders/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/shim/lade_test.h"

/* A call that fails once, because the test made it, leaves things whole for a second attempt. */
#define TWICE(call) LADE_EXPECT_OK((call) == LADE_OK ? LADE_OK : (call))

static lade_status device_open(fixture *f, int device) {
  lade_pipeline_options pipeline;
  lade_pair_options options;
  lade_pipeline_options_init(&pipeline);
  lade_pair_options_init(&options);
  pipeline.chunk_bytes = 4096;
  pipeline.depth = 3;
  pipeline.readers = 2;
  options.pipeline = &pipeline;
  lade_status status = lade_pair_create(f->runtime, device, &options, &f->pairs[device]);
  if (status == LADE_OK) status = lade_stream_create(f->runtime, device, &f->streams[device]);
  if (status == LADE_OK) f->targets[device] = lade_load_target_pair(f->pairs[device], f->streams[device]);
  return status;
}

lade_status fixture_open_some(fixture *f, lade_runtime *runtime, int devices) {
  *f = (fixture){.runtime = runtime};
  lade_status status = LADE_OK;
  for (int i = 0; i < devices && status == LADE_OK; i++) status = device_open(f, i);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    fixture_close_on(f);
    ladei_error_restore(&first);
  }
  return status;
}

lade_status fixture_open_on(fixture *f, lade_runtime *runtime) {
  return fixture_open_some(f, runtime, SUPPORT_DEVICE_COUNT);
}

static void device_close(fixture *f, int device) {
  lade_stream stream = f->streams[device];
  lade_status retired = LADE_OK;
  if (stream != NULL) {
    lade_device_allocator *allocator = lade_pair_device_allocator(f->pairs[device]);
    retired = lade_device_stream_retire(allocator, stream);
    if (retired != LADE_OK) retired = lade_device_stream_retire(allocator, stream);
    /* A lost device's streams cannot be distinguished from others any more: its allocator keeps what it knows of them. */
    if (retired != LADE_OK) LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, retired);
    if (retired == LADE_OK) TWICE(lade_stream_destroy(f->runtime, stream));
  }
  TWICE(lade_pair_destroy(f->pairs[device], true));
  if (retired != LADE_OK) LADE_EXPECT_OK(lade_stream_destroy(f->runtime, stream));
}

void fixture_close_on(fixture *f) {
  for (int i = 0; i < SUPPORT_DEVICE_COUNT; i++) device_close(f, i);
}

bool fixture_open(fixture *f, const char *runtime) {
  lade_runtime *opened = support_runtime_open(runtime);
  if (opened == NULL) return false;
  lade_status status = fixture_open_on(f, opened);
  LADE_EXPECT_OK(status);
  return status == LADE_OK;
}

void fixture_close(fixture *f) {
  fixture_close_on(f);
  support_runtime_close(f->runtime);
}

void fixture_device_read(const fixture *f, unsigned device, const void *memory, void *out, size_t bytes) {
  if (bytes > 0) TWICE(f->runtime->ops->copy_sync(f->runtime->self, (int)device, LADEI_COPY_D2H, out, memory, bytes));
}

void fixture_device_write(const fixture *f, unsigned device, void *memory, const void *data, size_t bytes) {
  if (bytes > 0) TWICE(f->runtime->ops->copy_sync(f->runtime->self, (int)device, LADEI_COPY_H2D, memory, data, bytes));
}

void fixture_safetensors_write(const char *path, const char *header, size_t data_bytes) {
  size_t length = strlen(header);
  char *whole = calloc(1, 8 + length + data_bytes);
  LADE_ASSERT(whole != NULL);
  for (unsigned i = 0; i < 8; i++) whole[i] = (char)(length >> (8 * i));
  memcpy(whole + 8, header, length);
  support_file_write(path, whole, 8 + length + data_bytes);
  free(whole);
}
