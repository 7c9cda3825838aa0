/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses a device, as the public call tells it: through runtime/cuda on the loopback driver, from the fake library. */
#include <stdlib.h>
#include <string.h>

#include "lade/runtime.h"
#include "runtime/ops.h"
#include "tests/nvml/nvml_fake.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

/* The runtime, and the fake with these processes; NULL with the test failed. */
static nvml_fake *fake_open(lade_runtime **out_runtime, const nvml_fake_process *processes, size_t count) {
  static ladei_device_properties properties;
  nvml_fake *fake = nvml_fake_get();
  lade_runtime *runtime = support_runtime_open("cuda");
  if (fake == NULL || runtime == NULL) {
    LADE_FAIL("no fake library, or no loopback driver");
    return NULL;
  }
  memset(fake, 0, sizeof *fake);
  LADE_EXPECT_OK(runtime->ops->device_properties(runtime->self, 0, &properties));
  fake->pci_bus_id = properties.pci_bus_id;
  fake->processes = processes;
  fake->count = count;
  *out_runtime = runtime;
  return fake;
}

typedef struct processes {
  lade_device_process list[4];
  size_t count;
} processes;

static lade_status process_keep(const lade_device_process *process, void *user) {
  processes *all = user;
  if (all->count == sizeof all->list / sizeof *all->list) return LADE_ERR_LIMIT;
  all->list[all->count++] = *process;
  return LADE_OK;
}

static lade_status process_refuse(const lade_device_process *process, void *user) {
  (void)process;
  ++*(int *)user;
  return LADE_ERR_CANCELLED;
}

/* There the words of an error are the result, an unknown figure breaks the division, the session stays open, those that draw are
 * left out, and the number shown is not the one asked about. */
LADE_TEST(inspect_hazard_HZ13, ProcessesAreDataAndErrorsAreErrors) {
  static const nvml_fake_process computing[] = {{4711, 1610612736}, {12, ~0ull}}, drawing[] = {{99, 1 << 20}};
  lade_runtime *runtime = NULL;
  nvml_fake *fake = fake_open(&runtime, computing, 2);
  if (fake == NULL) return;
  fake->index = 6; /* by the library's order; the device is 0 here */
  fake->drawing = drawing;
  fake->drawing_count = 1;
  processes seen = {.count = 0};
  int calls = 0;
  LADE_ASSERT_OK(lade_device_processes_each(runtime, 0, process_keep, &seen));
  LADE_EXPECT_EQ_INT(fake->running, 0);
  LADE_EXPECT_EQ_SIZE(seen.count, 3);
  LADE_EXPECT_EQ_INT(seen.list[0].management_index, 6);
  LADE_EXPECT_EQ_UINT(seen.list[0].pid, 4711);
  LADE_EXPECT_EQ_UINT(seen.list[0].bytes, 1610612736);
  LADE_EXPECT_EQ_UINT(seen.list[0].bytes_known, 1);
  LADE_EXPECT_EQ_UINT(seen.list[1].bytes_known, 0);
  LADE_EXPECT_EQ_UINT(seen.list[2].kinds, LADE_PROCESS_DRAWS);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_device_processes_each(runtime, 0, process_refuse, &calls));
  LADE_EXPECT_EQ_INT(calls, 1);
  fake->count = fake->drawing_count = 0;
  seen.count = 0;
  LADE_ASSERT_OK(lade_device_processes_each(runtime, 0, process_keep, &seen));
  LADE_EXPECT_EQ_SIZE(seen.count, 0);
  fake->init_code = 9;
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_device_processes_each(runtime, 0, process_keep, &seen));
  fake->init_code = 0;
  fake->processes_code = 999;
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_processes_each(runtime, 0, process_keep, &seen));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "device 0: NVML: processes: code 999");
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_device_processes_each(runtime, 1000, process_keep, &seen));
  LADE_EXPECT_EQ_SIZE(seen.count, 0);
  LADE_EXPECT_EQ_INT(fake->running, 0);
  support_runtime_close(runtime);
}

LADE_TEST(Processes, BadArgumentsAndSoftwareDevicesAreRefused) {
  processes seen = {.count = 0};
  lade_runtime *runtime = support_runtime_open("sim");
  if (runtime == NULL) return;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_processes_each(runtime, 0, process_keep, &seen));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_processes_each(NULL, 0, process_keep, &seen));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_processes_each(runtime, 0, NULL, NULL));
  LADE_EXPECT_EQ_SIZE(seen.count, 0);
  support_runtime_close(runtime);
}
