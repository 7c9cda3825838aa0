/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver answers as docs/driver-behaviour.md says: a GPU's, and the one made of software devices, but for what differences.h
 * lists.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/ask.h"
#include "tests/driver/differences.h"
#include "tests/shim/lade_test.h"

enum { ROWS = 512 };

/* A row of the page: | number | what is asked | answer | what lade does | */
typedef struct row {
  char number[ASK_NUMBER_ROOM], answer[ASK_ANSWER_ROOM];
} row;

typedef struct page {
  row rows[ROWS];
  size_t count;
} page;

/* The text between the n-th bar and the next one, without blanks around it. */
static void cell_take(const char *line, int n, char *out, size_t room) {
  out[0] = '\0';
  for (; n > 0 && line != NULL; n--) line = strchr(line + 1, '|');
  const char *end = line == NULL ? NULL : strchr(line + 1, '|');
  if (end == NULL) return;
  const char *begin = line + 1;
  while (begin < end && *begin == ' ') begin++;
  while (end > begin && end[-1] == ' ') end--;
  snprintf(out, room, "%.*s", (int)(end - begin), begin);
}

static int bars(const char *line) {
  int count = 0;
  for (; *line != '\0'; line++) count += *line == '|';
  return count;
}

static bool row_read(const char *line, row *out) {
  if (line[0] != '|' || bars(line) != 5) return false;
  cell_take(line, 0, out->number, sizeof out->number);
  cell_take(line, 2, out->answer, sizeof out->answer);
  return strcmp(out->number, "no.") != 0 && strncmp(out->number, "---", 3) != 0;
}

static void page_read(page *out) {
  char line[ASK_ANSWER_ROOM * 2];
  FILE *file = fopen("docs/driver-behaviour.md", "r");
  out->count = 0;
  while (file != NULL && out->count < ROWS && fgets(line, sizeof line, file) != NULL)
    out->count += row_read(line, &out->rows[out->count]);
  if (file != NULL) fclose(file);
}

static const difference *difference_find(const char *number) {
#ifdef LADE_TEST_ON_GPU
  (void)number;
#else
  for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++)
    if (strcmp(differences[i].number, number) == 0) return &differences[i];
#endif
  return NULL;
}

static const row *row_find(const page *of, const char *number) {
  for (size_t i = 0; i < of->count; i++)
    if (strcmp(of->rows[i].number, number) == 0) return &of->rows[i];
  return NULL;
}

static void answer_check(const ask_answer *answer, const row *expected) {
  const difference *other = difference_find(answer->number);
  if (strcmp(answer->text, "?") == 0) return; /* could not be asked here */
  if (expected == NULL) {
    LADE_FAIL("%s: %s, and the page has no such row", answer->number, answer->text);
    return;
  }
  lade_test_context("%s", answer->number);
  LADE_EXPECT_EQ_STR(answer->text, other != NULL ? other->answer : expected->answer);
  if (other != NULL) LADE_EXPECT(strcmp(other->answer, expected->answer) != 0); /* else it is no difference */
  lade_test_context("%s", "");
}

static bool is_of_two(const char *number) {
  return strncmp(number, ASK_TWO_DEVICES " ", strlen(ASK_TWO_DEVICES " ")) == 0;
}

/* All of the page's rows about one device, or about two. */
static void answers_check(const ask_answers *answers, const page *expected, bool of_two) {
  for (size_t i = 0; i < answers->count; i++)
    answer_check(&answers->all[i], row_find(expected, answers->all[i].number));
  for (size_t i = 0; i < expected->count; i++) {
    const char *number = expected->rows[i].number;
    if (is_of_two(number) == of_two && ask_find(answers, number) == NULL)
      LADE_FAIL("%s: the page has an answer, nothing asks", number);
  }
}

LADE_TEST(Driver, AnswersAsThePageSays) {
  static page expected;
  static ask_answers answers;
  page_read(&expected);
  LADE_ASSERT_GT_SIZE(expected.count, 100);
  ask_all(&answers);
  answers_check(&answers, &expected, false);
}

LADE_TEST(Driver, TwoDevicesAnswerAsThePageSays) {
  static page expected;
  static ask_answers answers;
  page_read(&expected);
  ask_two_devices(&answers);
  if (ask_find(&answers, ASK_TWO_DEVICES) != NULL) LADE_SKIP("there is one device");
  answers_check(&answers, &expected, true);
}
