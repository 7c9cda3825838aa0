/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The helpers that tests rely on: numbers that repeat, patterns that catch what they should, folders
 * that go.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

LADE_TEST(Random, SameSeedSameNumbers) {
  support_random a, b, other;
  support_random_start_quietly(&a, 7);
  support_random_start_quietly(&b, 7);
  support_random_start_quietly(&other, 8);
  int same_as_other = 0;
  for (int i = 0; i < 100; i++) {
    uint64_t number = support_random_next(&a);
    LADE_EXPECT_EQ_UINT(number, support_random_next(&b));
    same_as_other += number == support_random_next(&other);
  }
  LADE_EXPECT_EQ_INT(same_as_other, 0);
}

LADE_TEST(Random, StaysInRangeAndReachesItsEnds) {
  support_random random;
  support_random_start(&random, 1);
  bool seen[5] = {false};
  for (int i = 0; i < 1000; i++) {
    uint64_t number = support_random_between(&random, 10, 14);
    LADE_ASSERT(number >= 10 && number <= 14);
    seen[number - 10] = true;
  }
  for (int i = 0; i < 5; i++) LADE_EXPECT(seen[i]);
}

LADE_TEST(Random, SizesAreSpreadOverMagnitudesAndWithinTheLimit) {
  support_random random;
  support_random_start(&random, 2);
  size_t small = 0, large = 0, limit = 1000000;
  for (int i = 0; i < 10000; i++) {
    size_t size = support_random_size(&random, limit);
    LADE_ASSERT(size >= 1 && size <= limit);
    small += size < 1024;
    large += size >= limit / 2;
  }
  LADE_EXPECT_GT_SIZE(small, 3000);
  LADE_EXPECT_GT_SIZE(large, 300);
  for (int i = 0; i < 100; i++) LADE_EXPECT_EQ_SIZE(support_random_size(&random, 1), 1);
}

LADE_TEST(Random, EnvironmentReplaysASeed) {
  const char *set = getenv("LADE_TEST_SEED");
  char *before = set != NULL ? strdup(set) : NULL;
  setenv("LADE_TEST_SEED", "12345", 1);
  LADE_EXPECT_EQ_UINT(support_seed(1), 12345);
  unsetenv("LADE_TEST_SEED");
  LADE_EXPECT_EQ_UINT(support_seed(1), 1);
  if (before != NULL) setenv("LADE_TEST_SEED", before, 1);
  free(before);
}

LADE_TEST(Pattern, PiecesFitTogetherAtAnyOffset) {
  unsigned char whole[100], pieces[100];
  support_pattern_fill(whole, sizeof whole, 5, 0);
  for (size_t cut = 0; cut <= sizeof whole; cut++) {
    support_pattern_fill(pieces, cut, 5, 0);
    support_pattern_fill(pieces + cut, sizeof pieces - cut, 5, cut);
    LADE_ASSERT_EQ_MEM(whole, pieces, sizeof whole);
    LADE_ASSERT_EQ_SIZE(support_pattern_mismatch(whole + cut, sizeof whole - cut, 5, cut), sizeof whole - cut);
  }
}

LADE_TEST(Pattern, FindsEveryFlippedByteShiftAndForeignSeed) {
  unsigned char bytes[77];
  for (size_t i = 0; i < sizeof bytes; i++) {
    support_pattern_fill(bytes, sizeof bytes, 6, 3);
    bytes[i] ^= 1;
    LADE_EXPECT_EQ_SIZE(support_pattern_mismatch(bytes, sizeof bytes, 6, 3), i);
  }
  support_pattern_fill(bytes, sizeof bytes, 6, 3);
  LADE_EXPECT_LT_SIZE(support_pattern_mismatch(bytes, sizeof bytes, 6, 4), 8);
  LADE_EXPECT_LT_SIZE(support_pattern_mismatch(bytes, sizeof bytes, 7, 3), 8);
}

LADE_TEST(TempDir, GoesWithAllThatIsInIt) {
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *folder = support_temp_dir_path(&dir, "deep"), *file = support_temp_dir_path(&dir, "deep/file");
  LADE_EXPECT_EQ_INT(mkdir(folder, 0700), 0);
  LADE_EXPECT(support_temp_file_write(file, 100000, 9));
  size_t count = 0;
  char *bytes = support_file_read(file, &count);
  LADE_EXPECT_EQ_SIZE(count, 100000);
  LADE_EXPECT_PATTERN(bytes, 100000, 9, 0);
  free(bytes);
  support_temp_dir_remove(&dir);
  LADE_EXPECT_NE_INT(access(dir.path, F_OK), 0);
  free(folder);
  free(file);
}

/* --- crossing ----------------------------------------------------------------------------------------------------- */

typedef struct crossed {
  uint64_t wide;
  uint32_t narrow, next;
} crossed;

static const support_option crossed_options[] = {
    SUPPORT_OPTION(crossed, wide, 0, UINT64_MAX),
    SUPPORT_OPTION(crossed, narrow, 0, 1, UINT32_MAX),
    SUPPORT_CHOICE("choice", 0, 1, 2, 3, 4),
};
static const support_option crossed_wrong[] = {SUPPORT_OPTION(crossed, narrow, 7, 8)};

LADE_TEST(Crossing, MeetsEachPairAndEachWrongValue) {
  support_crossing crossing;
  crossed out = {.next = 99};
  unsigned wide_narrow[2][3] = {{0}}, narrow_choice[3][5] = {{0}}, wrong[2] = {0}, more = 4;
  support_crossing_start(&crossing, SUPPORT_OPTIONS(crossed_options), SUPPORT_OPTIONS(crossed_wrong), 3, more);
  while (support_crossing_next(&crossing, &out)) {
    LADE_EXPECT_EQ_UINT(out.next, 99);
    if (crossing.wrong != NULL) {
      LADE_EXPECT_EQ_STR(crossing.wrong, "narrow");
      wrong[out.narrow - 7]++;
      continue;
    }
    size_t narrow = out.narrow == UINT32_MAX ? 2 : out.narrow;
    wide_narrow[out.wide != 0][narrow]++;
    narrow_choice[narrow][support_crossing_value(&crossing, "choice")]++;
  }
  for (size_t i = 0; i < 3; i++)
    for (size_t j = 0; j < 5; j++) LADE_EXPECT(narrow_choice[i][j] > 0 && wide_narrow[j % 2][i] > 0);
  LADE_EXPECT(wrong[0] == 1 && wrong[1] == 1);
  LADE_EXPECT_LE_SIZE(crossing.number, 15 + 2 + more + 3); /* 30 were all of them */
}

LADE_TEST(Crossing, ReplaysACombination) {
  support_crossing crossing;
  crossed out;
  setenv("LADE_TEST_COMBINATION", "1,2,3/0,1", 1);
  support_crossing_start(&crossing, SUPPORT_OPTIONS(crossed_options), SUPPORT_OPTIONS(crossed_wrong), 3, 4);
  LADE_EXPECT(support_crossing_next(&crossing, &out));
  LADE_EXPECT_EQ_UINT(out.wide, UINT64_MAX);
  LADE_EXPECT_EQ_UINT(out.narrow, 8);
  LADE_EXPECT_EQ_UINT(support_crossing_value(&crossing, "choice"), 3);
  LADE_EXPECT(!support_crossing_next(&crossing, &out));
  unsetenv("LADE_TEST_COMBINATION");
}
