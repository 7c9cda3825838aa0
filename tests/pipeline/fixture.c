/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/pipeline/fixture.h"

#include <stdlib.h>

#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

void fixture_options(lade_pipeline_options *options) {
  lade_pipeline_options_init(options);
  options->chunk_bytes = 4096;
  options->depth = 3;
  options->readers = 2;
}

static bool open_on(fixture *f, lade_runtime *runtime, size_t device_bytes, const lade_pinned_options *pool,
                    const lade_pipeline_options *options) {
  lade_pipeline_options standard;
  fixture_options(&standard);
  void *device = NULL;
  *f = (fixture){.runtime = runtime, .device_bytes = device_bytes};
  bool good = lade_pinned_pool_create(runtime, pool, &f->pool) == LADE_OK &&
              lade_pipeline_create(runtime, f->pool, options != NULL ? options : &standard, &f->pipeline) == LADE_OK &&
              runtime->ops->device_alloc(runtime->self, 0, device_bytes, &device) == LADE_OK;
  f->device = device;
  if (!good) LADE_FAIL("fixture: %s", lade_last_error()->text);
  return good;
}

bool fixture_open_on(fixture *f, lade_runtime *runtime, size_t device_bytes, const lade_pipeline_options *options) {
  return open_on(f, runtime, device_bytes, NULL, options);
}

bool fixture_open_pool(fixture *f, const char *runtime, size_t device_bytes, const lade_pinned_options *pool,
                       const lade_pipeline_options *options) {
  lade_runtime *opened = support_runtime_open(runtime);
  return opened != NULL && open_on(f, opened, device_bytes, pool, options);
}

bool fixture_open(fixture *f, const char *runtime, size_t device_bytes, const lade_pipeline_options *options) {
  return fixture_open_pool(f, runtime, device_bytes, NULL, options);
}

void fixture_close(fixture *f) {
  LADE_EXPECT_OK(lade_pipeline_destroy(f->pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(f->pool, true));
  if (f->device != NULL) LADE_EXPECT_OK(f->runtime->ops->device_free(f->runtime->self, 0, f->device));
  support_runtime_close(f->runtime);
}

lade_transfer fixture_transfer(const fixture *f, lade_direction direction, lade_endpoint host, size_t bytes) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = host;
  transfer.device_memory = f->device;
  transfer.bytes = bytes;
  return transfer;
}

lade_status fixture_run(fixture *f, const lade_transfer *transfer) {
  lade_ticket *ticket;
  lade_status status = lade_pipeline_submit(f->pipeline, transfer, &ticket);
  if (status != LADE_OK) return status;
  status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  lade_ticket_release(ticket);
  return status;
}

lade_status fixture_move(fixture *f, lade_direction direction, lade_endpoint host, size_t bytes) {
  lade_transfer transfer = fixture_transfer(f, direction, host, bytes);
  return fixture_run(f, &transfer);
}

void fixture_expect_refused(fixture *f, const lade_transfer *transfer, lade_status status, const char *words) {
  lade_ticket *ticket = NULL;
  LADE_EXPECT_STATUS(status, lade_pipeline_submit(f->pipeline, transfer, &ticket));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT_EQ_PTR(ticket, NULL);
}

lade_pipeline_info fixture_info(const fixture *f) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_pipeline_info_get(f->pipeline, &info));
  return info;
}

void fixture_device_read(const fixture *f, size_t offset, void *out, size_t bytes) {
  if (bytes > 0)
    LADE_EXPECT_OK(f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, out, f->device + offset, bytes));
}

void fixture_device_write(const fixture *f, size_t offset, const void *data, size_t bytes) {
  if (bytes > 0)
    LADE_EXPECT_OK(f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_H2D, f->device + offset, data, bytes));
}

void fixture_expect_device_pattern(const fixture *f, size_t offset, size_t bytes, uint64_t seed, uint64_t position) {
  char *copy = malloc(bytes + 1);
  LADE_ASSERT(copy != NULL);
  fixture_device_read(f, offset, copy, bytes);
  LADE_EXPECT_PATTERN(copy, bytes, seed, position);
  free(copy);
}
