/* SPDX-License-Identifier: Apache-2.0 */
/* Drivers that register no memory, as in confidential computing: Note [Registration refused for good] in host/source/source.h. */
#include "tests/host/fixture.h"
#include "tests/loopback/hooks.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

static const loopback_hooks *hooks;

static bool open_refusing(pinned_fixture *own, CUresult code) {
  lade_pinned_options options = pinned_fixture_options();
  hooks = loopback_hooks_get();
  if (hooks == NULL) return false;
  LADE_EXPECT_OK(hooks->reset());
  if (code != CUDA_SUCCESS) hooks->fail("cuMemHostRegister", 0, code);
  return pinned_fixture_open(own, support_interposer_open("cuda", NULL), &options);
}

static int grow(const pinned_fixture *own) {
  void *block = pinned_fixture_alloc(own, PINNED_FIXTURE_SEGMENT_BYTES);
  int source = pinned_fixture_info(own, block).source;
  pinned_fixture_free(own, block);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool));
  return source;
}

/* Each segment was mapped, touched and refused. */
LADE_TEST(Registration, OnePageIsAskedForBeforeMemoryIsMapped) {
  static const CUresult codes[] = {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED};
  for (int i = 0; i < 2; i++) {
    pinned_fixture own;
    if (!open_refusing(&own, codes[i])) return;
    for (int round = 0; round < 3; round++) LADE_EXPECT_EQ_INT(grow(&own), LADE_PINNED_SOURCE_DRIVER);
    LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostRegister"), 1);
    pinned_fixture_close(&own);
  }
}

LADE_TEST(Registration, WantOfMemoryIsAskedAgainByOnePage) {
  pinned_fixture own;
  if (!open_refusing(&own, CUDA_ERROR_OUT_OF_MEMORY)) return;
  for (int round = 0; round < 3; round++) LADE_EXPECT_EQ_INT(grow(&own), LADE_PINNED_SOURCE_DRIVER);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostRegister"), 3);
  hooks->fail_clear();
  for (int round = 0; round < 3; round++) LADE_EXPECT_EQ_INT(grow(&own), LADE_PINNED_SOURCE_REGISTER);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostRegister"), 3 + 1 + 3);
  pinned_fixture_close(&own);
}

/* The page was given back at once: the driver waits for all work of the device then, and so did the first request. */
LADE_TEST(Registration, PageStaysAsLongAsThePool) {
  pinned_fixture own;
  if (!open_refusing(&own, CUDA_SUCCESS)) return;
  LADE_EXPECT_EQ_INT(grow(&own), LADE_PINNED_SOURCE_REGISTER);
  LADE_EXPECT_EQ_UINT(hooks->calls("cuMemHostUnregister"), 1); /* the segment's */
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 1);
  hooks->fail("cuMemHostUnregister", 1, CUDA_ERROR_UNKNOWN);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_pinned_pool_destroy(own.pool, true)); /* the pool is whole */
  LADE_EXPECT_EQ_INT(grow(&own), LADE_PINNED_SOURCE_REGISTER);
  pinned_fixture_close(&own);
}
