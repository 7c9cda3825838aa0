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
  nvml_fake *fake = fake_new(processes, 2);
  fake->index = 5;
  ladei_nvml_answer answer;
  LADE_ASSERT_OK(ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &answer));
  LADE_EXPECT_EQ_SIZE(answer.count, 2);
  LADE_EXPECT_EQ_INT(answer.index, 5);
  LADE_EXPECT_EQ_UINT(answer.list[0].pid, 10);
  LADE_EXPECT(answer.list[0].bytes_known && answer.list[0].computes && !answer.list[0].draws);
  LADE_EXPECT_EQ_UINT(answer.list[0].bytes, 1000);
  LADE_EXPECT_EQ_UINT(answer.list[1].pid, 11);
  LADE_EXPECT(!answer.list[1].bytes_known);
  free(answer.list);
  LADE_EXPECT_EQ_INT(fake->running, 0);
}

/* One that does both is one, and a device that has no graphics still has its list. */
LADE_TEST(Nvml, ListsThoseThatDrawToo) {
  static const nvml_fake_process processes[] = {{10, 1000}, {11, ~0ull}}, drawing[] = {{12, 5}, {11, 70}, {10, 900}};
  nvml_fake *fake = fake_new(processes, 2);
  fake->drawing = drawing;
  fake->drawing_count = 3;
  for (int refused = 0; refused < 2; refused++) {
    ladei_nvml_answer answer;
    fake->drawing_code = refused ? 3 : 0;
    LADE_ASSERT_OK(ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &answer));
    LADE_EXPECT_EQ_SIZE(answer.count, refused ? 2 : 3);
    LADE_EXPECT_EQ_UINT(answer.list[0].bytes, 1000);
    LADE_EXPECT_EQ_UINT(answer.list[1].bytes, refused ? 0 : 70);
    LADE_EXPECT_EQ_INT(answer.list[1].draws, refused == 0);
    if (!refused) LADE_EXPECT(answer.list[2].pid == 12 && answer.list[2].draws && !answer.list[2].computes);
    free(answer.list);
    LADE_EXPECT_EQ_INT(fake->running, 0);
  }
}

/* Eight fit into the first question; more come while the second one is asked. */
LADE_TEST(Nvml, AsksAgainUntilAllFit) {
  nvml_fake_process processes[MANY];
  for (unsigned i = 0; i < MANY; i++) processes[i] = (nvml_fake_process){i + 1, i};
  nvml_fake *fake = fake_new(processes, 20);
  fake->appearing = 10;
  ladei_nvml_answer answer;
  LADE_ASSERT_OK(ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &answer));
  LADE_EXPECT_EQ_SIZE(answer.count, MANY);
  LADE_EXPECT_EQ_INT(fake->questions, 3);
  LADE_EXPECT_EQ_UINT(answer.list[MANY - 1].pid, MANY);
  free(answer.list);
}

LADE_TEST(Nvml, EachWayToFailHasItsStatus) {
  ladei_nvml_answer answer = {NULL, 77, 77};
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED,
                     ladei_nvml_processes("libnvidia-ml-is-absent.so.1", "0000:41:00.0", &answer));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED,
                     ladei_nvml_processes("libc.so.6", "0000:41:00.0", &answer)); /* no such calls */
  nvml_fake *fake = fake_new(NULL, 0);
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:42:00.0", &answer));
  fake->processes_code = 3;
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &answer));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, 3);
  LADE_EXPECT_EQ_INT(fake->running, 0);
  fake->init_code = 9;
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &answer));
  fake->init_code = 4;
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_nvml_processes(LADEI_NVML_LIBRARY, "0000:41:00.0", &answer));
  LADE_EXPECT_EQ_INT(fake->running, 0);
  LADE_EXPECT_EQ_PTR(answer.list, NULL);
  LADE_EXPECT_EQ_SIZE(answer.count, 77);
}
