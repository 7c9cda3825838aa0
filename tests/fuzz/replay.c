/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target as a regular test: the stored inputs, then random ones of a seed.
 *
 * The folder of stored inputs is $LADE_FUZZ_CORPUS, relative to the working folder; its files are visited by name, so
 * that runs are alike. $LADE_FUZZ_RUNS sets the number of random inputs.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { DEFAULT_RUNS = 300, LONGEST_INPUT = 600 };

void fuzz_fail(const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  LADE_FAIL("%s", text);
}

static void replay_file(const char *folder, const char *name) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    LADE_FAIL("cannot read %s", path);
    return;
  }
  static uint8_t bytes[1 << 20];
  size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  lade_test_context("input %s", path);
  LLVMFuzzerTestOneInput(bytes, size);
}

static int is_input(const struct dirent *entry) { return entry->d_name[0] != '.'; }

LADE_TEST(Fuzz, StoredInputsPass) {
  const char *folder = getenv("LADE_FUZZ_CORPUS");
  if (folder == NULL || *folder == '\0') LADE_SKIP("no stored inputs");
  struct dirent **entries;
  int count = scandir(folder, &entries, is_input, alphasort);
  LADE_ASSERT_GT_INT(count, 0);
  for (int i = 0; i < count; i++) {
    replay_file(folder, entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
}

static uint64_t run_count(void) {
  const char *text = getenv("LADE_FUZZ_RUNS");
  return text != NULL ? strtoull(text, NULL, 10) : DEFAULT_RUNS;
}

LADE_TEST(Fuzz, RandomInputsPass) {
  uint64_t first = support_seed(1), runs = getenv("LADE_TEST_SEED") != NULL ? 1 : run_count();
  for (uint64_t seed = first; seed < first + runs && !lade_test_has_failed(); seed++) {
    support_random random;
    support_random_start_quietly(&random, seed);
    uint8_t bytes[LONGEST_INPUT];
    size_t size = support_random_between(&random, 0, sizeof bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)support_random_next(&random);
    lade_test_context("LADE_TEST_SEED=%" PRIu64 " replays this input of %zu bytes", seed, size);
    LLVMFuzzerTestOneInput(bytes, size);
  }
}
