/* SPDX-License-Identifier: Apache-2.0 */
/* What a pipeline logs: settings, io_uring that is forbidden. */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/deny.h"
#include "tests/support/heard.h"

enum { BYTES = 65536 };

LADE_TEST(PipelineLog, TellsOfPipelines) {
  support_heard heard;
  fixture f;
  lade_pipeline_options options;
  fixture_options(&options);
  support_heard_begin(&heard, LADE_LOG_INFO);
  if (!fixture_open(&f, "sim", BYTES, &options)) return;
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "created on runtime sim, device 0: depth "), 1);
  fixture_close(&f);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "pipeline 0x"), 2);
}

static int without_uring(void) {
  support_heard heard;
  fixture f;
  lade_pipeline_options options;
  alarm(60);
  if (!support_deny(SYS_io_uring_setup, EPERM, false)) return 77;
  fixture_options(&options);
  options.storage = LADE_STORAGE_AUTO;
  support_heard_begin(&heard, LADE_LOG_WARN);
  if (!fixture_open(&f, "cpu", BYTES, &options)) return 1;
  return support_heard_count(&heard, LADE_LOG_WARN, "pipeline: io_uring is not used: ") == 1 ? 0 : 2;
}

LADE_TEST(PipelineLog, WarnsOfASandboxWithoutIoUring) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) _exit(without_uring());
  LADE_ASSERT(waitpid(child, &status, 0) == child && WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) LADE_SKIP("the system has no filters of system calls");
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}
