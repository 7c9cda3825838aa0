/* SPDX-License-Identifier: Apache-2.0 */
/* The list of processes on a device, from the fake management library. */
#include "runtime/nvml.h"

#include <stdlib.h>
#include <string.h>

#include "tests/nvml/nvml_fake.h"
#include "tests/shim/lade_test.h"

enum { MANY = 30 };

static nvml_fake *fake_new(const nvml_fake_process *processes, size_t count) {
  nvml_fake *fake = nvml_fake_get();
  if (fake == NULL) {
    LADE_FAIL("the fake library was not found");
    abort();
  }
  memset(fake, 0, sizeof *fake);
  fake->pci_bus_id = "0000:41:00.0";
  fake->processes = processes;
  fake->count = count;
  return fake;
}

LADE_TEST(Nvml, ListsProcessesAndWhatTheyUse) {
  static const nvml_fake_process processes[] = {{10, 1000}, {11, ~0ull}};
  const nvml_fake *fake = fake_new(processes, 2);
  ladei_process_use *list = NULL;
  size_t count = 0;
  LADE_ASSERT(ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &list, &count));
  LADE_EXPECT_EQ_SIZE(count, 2);
  LADE_EXPECT_EQ_UINT(list[0].pid, 10);
  LADE_EXPECT(list[0].bytes_known);
  LADE_EXPECT_EQ_UINT(list[0].bytes, 1000);
  LADE_EXPECT_EQ_UINT(list[1].pid, 11);
  LADE_EXPECT(!list[1].bytes_known);
  free(list);
  LADE_EXPECT_EQ_INT(fake->running, 0);
}

/* Eight fit into the first question; more come while the second one is asked. */
LADE_TEST(Nvml, AsksAgainUntilAllFit) {
  nvml_fake_process processes[MANY];
  for (unsigned i = 0; i < MANY; i++) processes[i] = (nvml_fake_process){i + 1, i};
  nvml_fake *fake = fake_new(processes, 20);
  fake->appearing = 10;
  ladei_process_use *list = NULL;
  size_t count = 0;
  LADE_ASSERT(ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &list, &count));
  LADE_EXPECT_EQ_SIZE(count, MANY);
  LADE_EXPECT_EQ_INT(fake->questions, 3);
  LADE_EXPECT_EQ_UINT(list[MANY - 1].pid, MANY);
  free(list);
}

LADE_TEST(Nvml, NothingIsKnownWithoutLibraryDeviceOrAnswer) {
  ladei_process_use *list = NULL;
  size_t count = 77;
  LADE_EXPECT(!ladei_nvml_processes("libnvidia-ml-is-absent.so.1", "0000:41:00.0", &list, &count));
  LADE_EXPECT(!ladei_nvml_processes("libc.so.6", "0000:41:00.0", &list, &count)); /* a library without the calls */
  nvml_fake *fake = fake_new(NULL, 0);
  LADE_EXPECT(!ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:42:00.0", &list, &count));
  fake->processes_code = 3;
  LADE_EXPECT(!ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &list, &count));
  LADE_EXPECT_EQ_INT(fake->running, 0);
  fake->init_code = 9;
  LADE_EXPECT(!ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &list, &count));
  LADE_EXPECT_EQ_INT(fake->running, 0);
  LADE_EXPECT_EQ_PTR(list, NULL);
  LADE_EXPECT_EQ_SIZE(count, 77);
}
