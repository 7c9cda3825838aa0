/* SPDX-License-Identifier: Apache-2.0 */
/* A pair: its parts belong to one device, work together, and are taken apart whole or not at all. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/lade.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { BYTES = 300000 };

static lade_transfer transfer_of(lade_direction direction, void *host, void *device) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = lade_endpoint_memory(host);
  transfer.device_memory = device;
  transfer.bytes = BYTES;
  return transfer;
}

static lade_status run(lade_pair *pair, lade_direction direction, void *host, void *device) {
  lade_ticket *ticket;
  lade_transfer transfer = transfer_of(direction, host, device);
  lade_status status = lade_pipeline_submit(lade_pair_pipeline(pair), &transfer, &ticket);
  if (status == LADE_OK) {
    status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
    lade_ticket_release(ticket);
  }
  return status;
}

LADE_TEST_P(Pair, StagesIntoItsAllocatorsMemory, support_soft_runtimes, name) {
  lade_runtime *runtime = support_runtime_open(name);
  lade_pair *pair;
  lade_stream stream;
  void *device;
  char *host = malloc(BYTES);
  if (runtime == NULL) return;
  LADE_ASSERT_OK(lade_pair_create(runtime, 1, NULL, &pair));
  LADE_ASSERT_OK(lade_stream_create(runtime, 1, &stream));
  LADE_ASSERT_OK(lade_device_alloc(lade_pair_device_allocator(pair), BYTES, stream, &device));
  ladei_pointer_attributes attributes;
  LADE_EXPECT_OK(runtime->ops->pointer_attributes(runtime->self, device, &attributes));
  LADE_EXPECT_EQ_INT(attributes.device, 1);
  support_pattern_fill(host, BYTES, 21, 0);
  LADE_EXPECT_OK(run(pair, LADE_TO_DEVICE, host, device));
  memset(host, 0, BYTES);
  LADE_EXPECT_OK(run(pair, LADE_TO_HOST, host, device));
  LADE_EXPECT_PATTERN(host, BYTES, 21, 0);
  /* Memory is still handed out: the rest stays, and works. */
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_pair_destroy(pair, true));
  LADE_EXPECT_OK(lade_device_free(lade_pair_device_allocator(pair), device));
  LADE_EXPECT_OK(lade_device_stream_retire(lade_pair_device_allocator(pair), stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  LADE_EXPECT_OK(lade_pair_destroy(pair, true));
  support_runtime_close(runtime);
  free(host);
}

/* The text counted pools and allocators twice: what tells them when streams are done held the runtime as well. */
LADE_TEST(Pair, CountsAsThreeObjectsOnItsRuntime) {
  lade_runtime *runtime = support_runtime_open("sim");
  lade_pair *pair;
  if (runtime == NULL) return;
  LADE_ASSERT_OK(lade_pair_create(runtime, 0, NULL, &pair));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_runtime_close(runtime));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, ": 3 pools, allocators, pipelines");
  LADE_EXPECT_OK(lade_pair_destroy(pair, false));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(Pair, RefusesOptionsOfAnotherDevice) {
  lade_runtime *runtime = support_runtime_open("sim");
  lade_pair *pair = NULL;
  lade_pair_options options;
  lade_pinned_options pinned;
  lade_pair_options_init(&options);
  lade_pinned_options_init(&pinned);
  pinned.device = 1;
  options.pinned = &pinned;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pair_create(runtime, 0, &options, &pair));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.pinned");
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_pair_create(runtime, 2, NULL, &pair));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pair_create(NULL, 0, NULL, &pair));
  LADE_EXPECT_EQ_PTR(pair, NULL);
  LADE_EXPECT_OK(lade_pair_destroy(NULL, true));
  /* The same device by name is no other one. */
  LADE_EXPECT_OK(lade_pair_create(runtime, 1, &options, &pair));
  LADE_EXPECT_OK(lade_pair_destroy(pair, true));
  support_runtime_close(runtime);
}

/* With transfers of both directions under way, some of them behind a stream of the caller's. */
LADE_TEST_P(Pair, IsTakenApartOnALostDevice, support_soft_runtimes, name) {
  enum { TRANSFERS = 6, ROUNDS = 20 };
  char *host = calloc(TRANSFERS, BYTES);
  for (unsigned round = 0; round < ROUNDS && !lade_test_has_failed(); round++) {
    lade_runtime *runtime = support_runtime_open(name);
    lade_ticket *tickets[TRANSFERS];
    lade_pair *pair;
    lade_stream stream;
    void *device;
    if (runtime == NULL) return;
    LADE_ASSERT_OK(lade_pair_create(runtime, 0, NULL, &pair));
    LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
    LADE_ASSERT_OK(lade_device_alloc(lade_pair_device_allocator(pair), (size_t)TRANSFERS * BYTES, stream, &device));
    for (size_t i = 0; i < TRANSFERS; i++) {
      lade_transfer transfer =
          transfer_of(i % 2 == 0 ? LADE_TO_DEVICE : LADE_TO_HOST, host + i * BYTES, (char *)device + i * BYTES);
      transfer.stream = stream;
      transfer.after_stream = i % 3 == 0;
      LADE_ASSERT_OK(lade_pipeline_submit(lade_pair_pipeline(pair), &transfer, &tickets[i]));
    }
    if (!support_is_virtual(runtime)) usleep(round * 30);
    for (unsigned i = 0; support_is_virtual(runtime) && i < round; i++) (void)lade_soft_advance(runtime, 3000);
    LADE_ASSERT_OK(lade_soft_device_lose(runtime, 0, 0));
    for (size_t i = 0; i < TRANSFERS; i++) {
      lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
      LADE_EXPECT(status == LADE_OK || status == LADE_ERR_DEVICE_LOST);
      lade_ticket_release(tickets[i]);
    }
    LADE_EXPECT_OK(lade_device_free(lade_pair_device_allocator(pair), device));
    LADE_EXPECT_OK(lade_pair_destroy(pair, true));
    LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
    support_runtime_close(runtime);
  }
  free(host);
}

static lade_status scenario(lade_runtime *runtime, void *user) {
  lade_pair *pair;
  (void)user;
  lade_status status = lade_pair_create(runtime, 0, NULL, &pair);
  if (status == LADE_OK) LADE_EXPECT_OK(lade_pair_destroy(pair, true));
  return status;
}

LADE_TEST(Pair, IsMadeWholeOrNotAtAll) { support_for_each_failure("sim", scenario, NULL, NULL); }
