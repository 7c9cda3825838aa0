/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the preload library's hooks share.
 *
 * Locks: none; a test's main thread starts and finishes.
 */
#include "tests/preload/fixture.h"

#include <stdlib.h>
#include <unistd.h>

#ifdef TEST_LINKED
#include "preload/blocks.h"
#include "preload/driver.h"
#include "preload/streams.h"
#endif

/* Small segments and limits. Bazel's own shell must not run with the library, so the program runs itself again. */
__attribute__((constructor)) static void environment_set(int argc, char **argv) {
  (void)argc;
  (void)argv;
  setenv("LADE_PRELOAD_LIBRARY", "./liblade.so.0", 0);
  setenv("LADE_PRELOAD_SEGMENT_BYTES", "4M", 0);
  setenv("LADE_PRELOAD_PENDING_BYTES", "16M", 0);
  setenv("LADE_PRELOAD_MAX_BYTES", "512M", 0);
#ifndef TEST_LINKED
  if (getenv("LD_PRELOAD") != NULL) return;
  setenv("LD_PRELOAD", "preload/liblade_preload.so", 1);
  execv("/proc/self/exe", argv);
#endif
}

const loopback_hooks *hooks;
program cuda, cuda_ptsz;

int driver_version(void) {
  const char *version = getenv("TEST_DRIVER_VERSION");
  return version == NULL ? 13000 : atoi(version);
}

program_look_up *first_look_up(void) {
#ifdef TEST_LINKED
  return (program_look_up *)hook_get_proc_address_2;
#else
  return program_first_look_up();
#endif
}

void start_without_context(void) {
  hooks = loopback_hooks_get();
  LADE_ASSERT(hooks != NULL);
  LADE_ASSERT_OK(hooks->reset());
  hooks->play_program();
  hooks->set_version(driver_version());
  const char *missing = program_resolve(&cuda, first_look_up(), 12000, 0);
  LADE_ASSERT_EQ_STR(missing == NULL ? "" : missing, "");
  missing = program_resolve(&cuda_ptsz, first_look_up(), 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  LADE_ASSERT_EQ_STR(missing == NULL ? "" : missing, "");
}

void start(void) {
  CUcontext context;
  start_without_context();
  if (lade_test_has_failed()) return;
  LADE_CU(cuda.init(0));
  LADE_CU(cuda.primary_retain(&context, 0));
  LADE_CU(cuda.ctx_set_current(context));
}

lade_soft_report soft_report(void) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(hooks->report(&report));
  return report;
}

/* What the library's tables say of themselves; "": they are right. */
static const char *tables_check(void) {
  const char *wrong = NULL;
#ifdef TEST_LINKED
  wrong = ladei_preload_blocks_check(&ladei_preload_pinned_blocks);
  if (wrong == NULL) wrong = ladei_preload_blocks_check(&ladei_preload_device_blocks);
  if (wrong == NULL) wrong = ladei_preload_contexts_check();
  if (wrong == NULL) wrong = ladei_preload_streams_check();
#endif
  return wrong == NULL ? "" : wrong;
}

void finish_after_lost_streams(void) {
  LADE_EXPECT_EQ_STR(tables_check(), "");
  hooks->fail_clear();
  LADE_CU(cuda.ctx_set_current(NULL));
  LADE_CU(cuda.primary_release(0));
  lade_soft_report report = soft_report();
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
  LADE_EXPECT_EQ_UINT(report.unordered_reuse, 0);
  LADE_EXPECT_EQ_UINT(report.unpinned_copies, 0);
  LADE_EXPECT_EQ_UINT(report.pinned_ranges, 0);
  LADE_EXPECT_EQ_UINT(report.device_allocations, 0);
  LADE_EXPECT_EQ_UINT(report.events, 0);
  LADE_EXPECT_EQ_UINT(report.streams, 0);
  LADE_EXPECT_EQ_UINT(hooks->retained(0), 0);
  LADE_EXPECT_EQ_STR(hooks->violations(), "");
  LADE_EXPECT_EQ_STR(tables_check(), "");
}

void finish(void) {
  finish_after_lost_streams();
  LADE_EXPECT_EQ_UINT(soft_report().stale_handles, 0);
}

CUstream stream_make(void) {
  CUstream stream = NULL;
  LADE_CU(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

/* ---- Holding a stream -------------------------------------------------------------------------------------------- */

static void hold_wait(void *user) {
  hold *own = user;
  while (sem_wait(&own->released) != 0) continue;
}

/* Work queued on the stream from now on waits for hold_end(). */
void hold_begin(hold *own, const program *as, CUstream stream) {
  sem_init(&own->released, 0, 0);
  atomic_store(&own->is_released, false);
  LADE_CU(as->host_function(stream, hold_wait, own));
}

void hold_end(hold *own) {
  atomic_store(&own->is_released, true);
  sem_post(&own->released);
}

void *hold_end_later(void *user) {
  usleep(20000);
  hold_end(user);
  return NULL;
}
