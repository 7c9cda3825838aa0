/* SPDX-License-Identifier: Apache-2.0 */
/* Versioned structs: programs built against older and newer headers than the library's. */
#include "base/options.h"

#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"

/* The same struct as an old header, the library and a new header know it. */
typedef struct old_options {
  size_t struct_size;
  uint64_t depth;
} old_options;

typedef struct own_options {
  size_t struct_size;
  uint64_t depth;
  uint64_t width;
} own_options;

typedef struct new_options {
  size_t struct_size;
  uint64_t depth;
  uint64_t width;
  uint64_t colour;
} new_options;

LADE_TEST(Options, NullMeansAllDefaults) {
  own_options own;
  memset(&own, 0xa5, sizeof own);
  LADE_ASSERT_OK(ladei_options_read("options", NULL, &own, sizeof own));
  LADE_EXPECT_EQ_SIZE(own.struct_size, sizeof own);
  LADE_EXPECT_EQ_UINT(own.depth, 0);
  LADE_EXPECT_EQ_UINT(own.width, 0);
}

LADE_TEST(Options, SameLayoutIsCopied) {
  own_options caller = {sizeof caller, 4, 9}, own;
  LADE_ASSERT_OK(ladei_options_read("options", &caller, &own, sizeof own));
  LADE_EXPECT_EQ_MEM(&own, &caller, sizeof own);
}

/* Exactly its own bytes are read: on the heap the address sanitiser sees one more. */
LADE_TEST(Options, OlderProgramGetsZeroForWhatItDoesNotKnow) {
  old_options *caller = malloc(sizeof *caller);
  *caller = (old_options){sizeof *caller, 4};
  own_options own;
  memset(&own, 0xa5, sizeof own);
  LADE_ASSERT_OK(ladei_options_read("options", caller, &own, sizeof own));
  LADE_EXPECT_EQ_SIZE(own.struct_size, sizeof own);
  LADE_EXPECT_EQ_UINT(own.depth, 4);
  LADE_EXPECT_EQ_UINT(own.width, 0);
  free(caller);
}

LADE_TEST(Options, NewerProgramIsAcceptedWhileItSetsNothingNew) {
  new_options caller = {sizeof caller, 4, 9, 0};
  own_options own;
  LADE_ASSERT_OK(ladei_options_read("options", &caller, &own, sizeof own));
  LADE_EXPECT_EQ_SIZE(own.struct_size, sizeof own);
  LADE_EXPECT_EQ_UINT(own.width, 9);
}

LADE_TEST(Options, NewerProgramThatSetsAnUnknownFieldIsRefusedByName) {
  new_options caller = {sizeof caller, 4, 9, 1};
  own_options own;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, ladei_options_read("ship_options", &caller, &own, sizeof own));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "ship_options");
  /* The last byte of the tail counts as much as its first. */
  caller.colour = (uint64_t)1 << 63;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, ladei_options_read("ship_options", &caller, &own, sizeof own));
}

LADE_TEST(Options, ForgottenInitialiserIsRefused) {
  own_options caller = {0, 4, 9}, own;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_options_read("options", &caller, &own, sizeof own));
  caller.struct_size = sizeof(size_t) - 1;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_options_read("options", &caller, &own, sizeof own));
}

LADE_TEST(Options, StructOfNothingButItsSizeIsAllDefaults) {
  size_t caller = sizeof caller;
  own_options own;
  LADE_ASSERT_OK(ladei_options_read("options", &caller, &own, sizeof own));
  LADE_EXPECT_EQ_UINT(own.depth, 0);
}

LADE_TEST(Stats, AreWrittenUpToTheCallersSize) {
  own_options own = {sizeof own, 4, 9};
  old_options *older = malloc(sizeof *older);
  *older = (old_options){sizeof *older, 0};
  LADE_ASSERT_OK(ladei_stats_write("stats", &own, sizeof own, older));
  LADE_EXPECT_EQ_SIZE(older->struct_size, sizeof *older);
  LADE_EXPECT_EQ_UINT(older->depth, 4);
  free(older);

  new_options newer = {sizeof newer, 1, 2, 77};
  LADE_ASSERT_OK(ladei_stats_write("stats", &own, sizeof own, &newer));
  LADE_EXPECT_EQ_SIZE(newer.struct_size, sizeof newer);
  LADE_EXPECT_EQ_UINT(newer.width, 9);
  LADE_EXPECT_EQ_UINT(newer.colour, 77);
}

LADE_TEST(Stats, NullAndForgottenInitialiserAreRefused) {
  own_options own = {sizeof own, 4, 9}, caller = {0, 1, 2};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_stats_write("ship_stats", &own, sizeof own, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "ship_stats");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_stats_write("ship_stats", &own, sizeof own, &caller));
  LADE_EXPECT_EQ_UINT(caller.depth, 1);
}
