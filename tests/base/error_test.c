/* SPDX-License-Identifier: Apache-2.0 */
/* Status names and the thread's error record: there whatever fails, always terminated, one per thread. */
#include "base/error.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/shim/lade_test.h"

LADE_TEST(Status, EveryCodeHasItsNumberNameAndText) {
  static const struct {
    lade_status status;
    int number;
    const char *name, *text;
  } codes[] = {
#define CODE(name, number, text) {name, number, #name, text},
      LADE_STATUS_TABLE(CODE)
#undef CODE
  };
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
    LADE_EXPECT_EQ_INT(codes[i].status, codes[i].number);
    LADE_EXPECT_EQ_STR(lade_status_name(codes[i].status), codes[i].name);
    LADE_EXPECT_EQ_STR(lade_status_text(codes[i].status), codes[i].text);
  }
}

/* Programs store these numbers; a new code takes the next free one. */
LADE_TEST(Status, NumbersNeverChange) {
  LADE_EXPECT_EQ_INT(LADE_OK, 0);
  LADE_EXPECT_EQ_INT(LADE_NOT_READY, 1);
  LADE_EXPECT_EQ_INT(LADE_ERR_INVALID_ARGUMENT, 2);
  LADE_EXPECT_EQ_INT(LADE_ERR_OUT_OF_DEVICE_MEMORY, 5);
  LADE_EXPECT_EQ_INT(LADE_ERR_LIMIT, 6);
  LADE_EXPECT_EQ_INT(LADE_ERR_DEVICE_LOST, 9);
  LADE_EXPECT_EQ_INT(LADE_ERR_INTERNAL, 25);
  LADE_EXPECT_EQ_INT(LADE_ERR_FORMAT, 26);
}

LADE_TEST(Status, UnknownNumbersHaveAnAnswerToo) {
  LADE_EXPECT_EQ_STR(lade_status_name((lade_status)12345), "LADE_ERR_UNKNOWN");
  LADE_EXPECT_EQ_STR(lade_status_name((lade_status)-1), "LADE_ERR_UNKNOWN");
  LADE_EXPECT_GT_SIZE(strlen(lade_status_text((lade_status)12345)), 0);
}

LADE_TEST(Status, VersionIsThatOfTheHeader) {
  LADE_EXPECT_EQ_UINT(lade_version(), LADE_VERSION_MAJOR * 1000000 + LADE_VERSION_MINOR * 1000 + LADE_VERSION_PATCH);
}

LADE_TEST(Error, RecordsStatusNativeCodeAndText) {
  LADE_EXPECT_EQ_INT(ladei_error(LADE_ERR_IO, 5, "reading %d bytes of %s", 4096, "cargo"), LADE_ERR_IO);
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_IO);
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, 5);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "reading 4096 bytes of cargo");
}

LADE_TEST(Error, CutsALongTextAndTerminatesIt) {
  char longer[2000];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  (void)ladei_error(LADE_ERR_IO, 0, "%s", longer);
  LADE_EXPECT_EQ_SIZE(strnlen(lade_last_error()->text, sizeof lade_last_error()->text),
                      sizeof lade_last_error()->text - 1);
}

LADE_TEST(Error, ArgumentNamesFieldValueAndWhatWasExpected) {
  char expected[64] = "4 KiB to 1 TiB";
  LADE_EXPECT_EQ_INT(ladei_error_argument("lade_x", "options.bytes", expected, "%d", 7), LADE_ERR_INVALID_ARGUMENT);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "lade_x: options.bytes is 7; expected 4 KiB to 1 TiB");
  LADE_EXPECT_EQ_INT(ladei_error_null("lade_x", "out"), LADE_ERR_INVALID_ARGUMENT);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "lade_x: out is NULL");
}

LADE_TEST(Error, PrefixGoesBeforeTheCalleesWords) {
  (void)ladei_error(LADE_ERR_LIMIT, 7, "cap of 1 MiB");
  LADE_EXPECT_EQ_INT(ladei_error_prefix(LADE_ERR_LIMIT, "pool %d: ", 3), LADE_ERR_LIMIT);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "pool 3: cap of 1 MiB");
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, 7);
}

/* Whatever the lengths of prefix and text, the result is their start, cut to fit. */
LADE_TEST(Error, PrefixOfAnyLengthCutsToFit) {
  enum { ROOM = sizeof(((lade_error *)NULL)->text) };
  char text[2 * ROOM], prefix[2 * ROOM], whole[4 * ROOM];
  for (size_t prefix_length = 0; prefix_length < sizeof prefix; prefix_length += 31) {
    for (size_t length = 0; length < sizeof text; length += 37) {
      memset(text, 't', length);
      memset(prefix, 'p', prefix_length);
      text[length] = prefix[prefix_length] = '\0';
      (void)ladei_error(LADE_ERR_IO, 0, "%s", text);
      (void)ladei_error_prefix(LADE_ERR_IO, "%s", prefix);
      snprintf(whole, sizeof whole, "%s%s", prefix, text);
      whole[ROOM - 1] = '\0';
      LADE_ASSERT_EQ_STR(lade_last_error()->text, whole);
    }
  }
}

/* Clean-up code that fails must not hide what failed first. */
LADE_TEST(Error, SavedRecordComesBack) {
  lade_error saved;
  (void)ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 2, "first");
  ladei_error_save(&saved);
  (void)ladei_error(LADE_ERR_DRIVER, 3, "while cleaning up");
  ladei_error_restore(&saved);
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_OUT_OF_DEVICE_MEMORY);
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, 2);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "first");
}

static void *fail_elsewhere(void *user) {
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_OK);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "");
  (void)ladei_error(LADE_ERR_BUSY, 0, "elsewhere");
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "elsewhere");
  return user;
}

LADE_TEST(Error, EachThreadHasItsOwnRecord) {
  (void)ladei_error(LADE_ERR_TIMEOUT, 0, "here");
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_TIMEOUT);
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "here");
}

/* Texts quote what files say, and terminals obey control characters. */
LADE_TEST(Error, TextsAreTamedForTerminals) {
  static const struct {
    const char *text, *tamed;
  } cases[] = {{"plain", "plain"},
               {"\033[31mred\x7f\n\t", "?[31mred???"},
               {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x9a\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x9a\x80"},
               {"c1 \xc2\x9b.", "c1 ??."},
               {"turned \xe2\x80\xae.", "turned ???."},
               {"alone \x9b\xff.", "alone ??."},
               {"long \xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf.", "long ?? ??? ????."},
               {"surrogate \xed\xa0\x80 beyond \xf4\x90\x80\x80.", "surrogate ??? beyond ????."},
               {"cut \xe2\x82", "cut ??"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    (void)ladei_error(LADE_ERR_FORMAT, 0, "%s", cases[i].text);
    LADE_EXPECT_EQ_STR(lade_last_error()->text, cases[i].tamed);
  }
}

/* --- no memory for the record ------------------------------------------------------------------------------------- */

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

static _Thread_local bool memory_is_out;

void *__wrap_malloc(size_t bytes) { return memory_is_out ? NULL : __real_malloc(bytes); }

enum { MORE_THREADS_THAN_EMERGENCY_BLOCKS = 40 };

typedef struct starved {
  pthread_t thread;
  pthread_barrier_t *together; /* NULL: alone */
  lade_error seen;
} starved;

/* Fails without memory, and with it once all have failed. */
static void *starved_run(void *user) {
  starved *s = user;
  memory_is_out = true;
  (void)ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 12, "64 bytes asked");
  (void)ladei_error_prefix(LADE_ERR_OUT_OF_HOST_MEMORY, "pool: ");
  s->seen = *lade_last_error();
  if (s->together != NULL) pthread_barrier_wait(s->together);
  memory_is_out = false;
  (void)ladei_error(LADE_ERR_IO, 5, "later");
  LADE_EXPECT_EQ_STR(lade_last_error()->text, "later");
  return NULL;
}

static void starved_expect_text(starved *s) {
  LADE_ASSERT_EQ_INT(pthread_create(&s->thread, NULL, starved_run, s), 0);
  pthread_join(s->thread, NULL);
  LADE_EXPECT_EQ_INT(s->seen.status, LADE_ERR_OUT_OF_HOST_MEMORY);
  LADE_EXPECT_EQ_INT(s->seen.native_code, 12);
  LADE_EXPECT_EQ_STR(s->seen.text, "pool: 64 bytes asked");
}

/* One after the other: each gives its emergency block back. */
LADE_TEST(Error, TextIsThereWithoutMemory) {
  for (int i = 0; i < MORE_THREADS_THAN_EMERGENCY_BLOCKS; i++) {
    starved s = {.together = NULL};
    starved_expect_text(&s);
  }
}

LADE_TEST(Error, StatusIsThereWhereTheEmergencyBlocksAreTaken) {
  starved all[MORE_THREADS_THAN_EMERGENCY_BLOCKS] = {0};
  pthread_barrier_t together;
  int whole = 0, bare = 0;
  pthread_barrier_init(&together, NULL, MORE_THREADS_THAN_EMERGENCY_BLOCKS);
  for (int i = 0; i < MORE_THREADS_THAN_EMERGENCY_BLOCKS; i++) {
    all[i].together = &together;
    LADE_ASSERT_EQ_INT(pthread_create(&all[i].thread, NULL, starved_run, &all[i]), 0);
  }
  for (int i = 0; i < MORE_THREADS_THAN_EMERGENCY_BLOCKS; i++) {
    pthread_join(all[i].thread, NULL);
    LADE_EXPECT_EQ_INT(all[i].seen.status, LADE_ERR_OUT_OF_HOST_MEMORY);
    whole += strcmp(all[i].seen.text, "pool: 64 bytes asked") == 0;
    bare += strcmp(all[i].seen.text, "out of ordinary host memory (no memory for more)") == 0;
  }
  pthread_barrier_destroy(&together);
  LADE_EXPECT_EQ_INT(whole, 16);
  LADE_EXPECT_EQ_INT(bare, MORE_THREADS_THAN_EMERGENCY_BLOCKS - 16);
  starved after = {.together = NULL};
  starved_expect_text(&after);
}
