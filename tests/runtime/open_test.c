/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a runtime by name. */
#include <string.h>

#include "lade/soft.h"
#include "tests/shim/lade_test.h"

static const char *const software[] = {"cpu", "sim", NULL};

LADE_TEST_P(RuntimeOpen, OpensSoftwareDevicesByName, software, name) {
  lade_runtime *runtime;
  LADE_ASSERT_OK(lade_runtime_open(name, NULL, &runtime));
  LADE_EXPECT_EQ_STR(lade_runtime_name(runtime), name);
  int count = 0;
  LADE_EXPECT_OK(lade_runtime_device_count(runtime, &count));
  LADE_EXPECT_EQ_INT(count, 1);
  lade_device_info info;
  lade_device_info_init(&info);
  LADE_EXPECT_OK(lade_runtime_device_info(runtime, 0, &info));
  LADE_EXPECT_EQ_INT(info.software, 1);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(RuntimeOpen, RefusesAnUnknownNameAndNullOut) {
  lade_runtime *runtime = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_runtime_open("gpu", NULL, &runtime));
  LADE_EXPECT_EQ_STR(lade_last_error()->text,
                     "lade_runtime_open: name is \"gpu\"; expected one of \"cuda\", \"cpu\", \"sim\"");
  LADE_EXPECT_EQ_PTR(runtime, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_runtime_open("sim", NULL, NULL));
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "lade_runtime_open: out is NULL");
}

LADE_TEST(RuntimeOpen, WithoutANameFindsADeviceAnywhere) {
  lade_runtime *runtime;
  LADE_ASSERT_OK(lade_runtime_open(NULL, NULL, &runtime));
  const char *name = lade_runtime_name(runtime);
  LADE_EXPECT(strcmp(name, "cuda") == 0 || strcmp(name, "cpu") == 0);
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

LADE_TEST(RuntimeOpen, RefusesOptionsOfANewerProgram) {
  struct {
    lade_runtime_options known;
    uint64_t added_later;
  } newer;
  lade_runtime_options_init(&newer.known);
  newer.known.struct_size = sizeof newer;
  newer.added_later = 1;
  lade_runtime *runtime = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_runtime_open("sim", &newer.known, &runtime));
  newer.added_later = 0;
  LADE_ASSERT_OK(lade_runtime_open("sim", &newer.known, &runtime));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}
