/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs of values, met by combinations.
 *
 *   values    0 1 2 | 3 4 | 5 ...     those of all options, numbered; pairs[a * values + b]
 *
 * A combination begins with a pair that is left and gets, option by option in a random order, the value that makes the most
 * pairs that are left. (Cohen, Dalal, Fredman, Patton: The AETG system, 1997.)
 */
#include "tests/support/crossing.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

enum { PAIR_TRIES = 4 };

/* --- what a failure says ------------------------------------------------------------------------------------------ */

static char at_hand[4096];
static struct sigaction before[NSIG];

static void say_at_hand(void) {
  ssize_t written = write(STDERR_FILENO, at_hand, strlen(at_hand));
  (void)written;
}

static void say_and_go_on(int signal) {
  say_at_hand();
  sigaction(signal, &before[signal], NULL); /* what raised the signal raises it again */
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void say_when_program_ends(void) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
  const struct sigaction action = {.sa_handler = say_and_go_on};
  static bool done;
  if (done) return;
  done = true;
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, &before[signals[i]]);
  if (__sanitizer_set_death_callback != NULL) __sanitizer_set_death_callback(say_at_hand);
}

static size_t say(size_t at, const char *format, ...) __attribute__((format(printf, 2, 3)));
static size_t say(size_t at, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = at < sizeof at_hand ? vsnprintf(at_hand + at, sizeof at_hand - at, format, arguments) : 0;
  va_end(arguments);
  return at + (size_t)written;
}

static void note(const support_crossing *crossing, const support_option *wrong, size_t wrong_value) {
  size_t at = say(0, "LADE_TEST_SEED=%" PRIu64 " LADE_TEST_COMBINATION=", crossing->seed);
  for (size_t i = 0; i < crossing->count; i++) at = say(at, "%s%u", i == 0 ? "" : ",", (unsigned)crossing->choice[i]);
  if (wrong != NULL) at = say(at, "/%zu,%zu", (size_t)(wrong - crossing->wrong_options), wrong_value);
  at = say(at, " replays this:");
  for (size_t i = 0; i < crossing->count; i++) {
    const support_option *option = &crossing->options[i];
    at = say(at, " %s=%" PRId64, option->name, (int64_t)option->values[crossing->choice[i]]);
  }
  if (wrong != NULL) at = say(at, ", but %s=%" PRId64, wrong->name, (int64_t)wrong->values[wrong_value]);
  (void)say(at, "\n");
  lade_test_context("%s", at_hand);
}

/* --- combinations ------------------------------------------------------------------------------------------------- */

static size_t value_number(const support_crossing *crossing, size_t option, size_t value) {
  for (size_t i = 0; i < option; i++) value += crossing->options[i].count;
  return value;
}

static uint8_t *pair_at(const support_crossing *crossing, size_t a, size_t a_value, size_t b, size_t b_value) {
  size_t first = a < b ? value_number(crossing, a, a_value) : value_number(crossing, b, b_value);
  size_t second = a < b ? value_number(crossing, b, b_value) : value_number(crossing, a, a_value);
  return &crossing->pairs[first * crossing->values + second];
}

/* Stores one of the pairs that are left, any; false: there is none. */
static bool pair_find(support_crossing *crossing, size_t *a, size_t *b) {
  size_t found = 0;
  for (size_t i = 0; i < crossing->count; i++) {
    for (size_t j = i + 1; j < crossing->count; j++) {
      for (size_t v = 0; v < crossing->options[i].count; v++) {
        for (size_t w = 0; w < crossing->options[j].count; w++) {
          if (*pair_at(crossing, i, v, j, w) == 0 || !support_random_one_in(&crossing->random, ++found)) continue;
          *a = i;
          *b = j;
          crossing->choice[i] = (uint8_t)v;
          crossing->choice[j] = (uint8_t)w;
        }
      }
    }
  }
  return found > 0;
}

/* The value of an option that makes the most pairs which are left with the options that are `set`. */
static uint8_t value_choose(support_crossing *crossing, size_t option, const bool *set) {
  size_t most = 0, equal = 0;
  uint8_t chosen = 0;
  for (size_t v = 0; v < crossing->options[option].count; v++) {
    size_t made = 1;
    for (size_t i = 0; i < crossing->count; i++)
      if (set[i]) made += *pair_at(crossing, option, v, i, crossing->choice[i]) != 0;
    if (made < most) continue;
    equal = made > most ? 1 : equal + 1;
    most = made;
    if (support_random_one_in(&crossing->random, equal)) chosen = (uint8_t)v;
  }
  return chosen;
}

static void pairs_met(support_crossing *crossing) {
  memcpy(crossing->tries, crossing->pairs, crossing->values * crossing->values);
  for (size_t i = 0; i < crossing->count; i++)
    for (size_t j = i + 1; j < crossing->count; j++)
      *pair_at(crossing, i, crossing->choice[i], j, crossing->choice[j]) = 0;
}

static bool combination_of_pairs(support_crossing *crossing) {
  bool set[SUPPORT_CROSSED_OPTIONS] = {false};
  size_t a, b;
  if (!pair_find(crossing, &a, &b)) return false;
  set[a] = set[b] = true;
  for (size_t left = crossing->count - 2; left > 0; left--) {
    size_t nth = support_random_below(&crossing->random, left), option = 0;
    while (set[option] || nth-- > 0) option++;
    crossing->choice[option] = value_choose(crossing, option, set);
    set[option] = true;
  }
  pairs_met(crossing);
  return true;
}

static void combination_random(support_crossing *crossing) {
  for (size_t i = 0; i < crossing->count; i++)
    crossing->choice[i] = (uint8_t)support_random_below(&crossing->random, crossing->options[i].count);
}

/* Reads what note() has written; false: that is no combination of these options. */
static bool combination_read(support_crossing *crossing, const char *text, const support_option **wrong,
                             size_t *wrong_value) {
  char *end = NULL;
  for (size_t i = 0; i < crossing->count; i++) {
    unsigned long value = strtoul(text, &end, 10);
    bool last = i + 1 == crossing->count;
    if (end == text || value >= crossing->options[i].count || (!last && *end != ',')) return false;
    crossing->choice[i] = (uint8_t)value;
    text = end + 1;
  }
  *wrong = NULL;
  if (*end == '\0') return true;
  size_t option = strtoul(text, &end, 10);
  if (option >= crossing->wrong_count || *end != ',') return false;
  *wrong = &crossing->wrong_options[option];
  *wrong_value = strtoul(end + 1, &end, 10);
  return *wrong_value < (*wrong)->count && *end == '\0';
}

static void field_store(void *out, const support_option *option, uint64_t value) {
  const uint32_t narrow = (uint32_t)value;
  if (option->bytes != 0)
    memcpy((char *)out + option->offset, option->bytes == 4 ? (const void *)&narrow : &value, option->bytes);
}

/* Chooses the next combination. */
static bool combination_next(support_crossing *crossing, const support_option **wrong, size_t *wrong_value) {
  const char *replay = getenv("LADE_TEST_COMBINATION");
  *wrong = NULL;
  if (replay != NULL) {
    bool first = !crossing->replayed;
    crossing->replayed = true;
    if (first && !combination_read(crossing, replay, wrong, wrong_value)) {
      LADE_FAIL("LADE_TEST_COMBINATION=%s is none of this test", replay);
      return false;
    }
    return first;
  }
  if (combination_of_pairs(crossing)) return true;
  combination_random(crossing);
  if (crossing->more > 0) {
    crossing->more--;
    memset(crossing->tries, 0, crossing->values * crossing->values);
    return true;
  }
  if (crossing->next_wrong == crossing->wrong_count) return false;
  *wrong = &crossing->wrong_options[crossing->next_wrong];
  *wrong_value = crossing->next_wrong_value++;
  if (crossing->next_wrong_value == (*wrong)->count) {
    crossing->next_wrong++;
    crossing->next_wrong_value = 0;
  }
  return true;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void crossing_end(support_crossing *crossing) {
  free(crossing->pairs);
  free(crossing->tries);
  crossing->pairs = crossing->tries = NULL;
  at_hand[0] = '\0';
}

void support_crossing_start(support_crossing *crossing, const support_option *options, size_t count,
                            const support_option *wrong, size_t wrong_count, uint64_t seed, size_t more) {
  *crossing = (support_crossing){
      .options = options, .count = count, .wrong_options = wrong, .wrong_count = wrong_count, .more = more};
  LADE_ASSERT(count >= 2 && count <= SUPPORT_CROSSED_OPTIONS);
  crossing->seed = support_seed(seed);
  support_random_start_quietly(&crossing->random, crossing->seed);
  crossing->values = value_number(crossing, count, 0);
  crossing->pairs = calloc(crossing->values, crossing->values);
  crossing->tries = calloc(crossing->values, crossing->values);
  LADE_ASSERT(crossing->pairs != NULL && crossing->tries != NULL);
  for (size_t i = 0; i < count; i++)
    for (size_t j = i + 1; j < count; j++)
      for (size_t v = 0; v < options[i].count; v++)
        for (size_t w = 0; w < options[j].count; w++) *pair_at(crossing, i, v, j, w) = PAIR_TRIES;
  say_when_program_ends();
}

bool support_crossing_next(support_crossing *crossing, void *out) {
  const support_option *wrong = NULL;
  size_t wrong_value = 0;
  if (crossing->pairs == NULL || lade_test_has_failed() || !combination_next(crossing, &wrong, &wrong_value)) {
    crossing_end(crossing);
    return false;
  }
  crossing->number++;
  crossing->wrong = wrong != NULL ? wrong->name : NULL;
  for (size_t i = 0; i < crossing->count; i++)
    field_store(out, &crossing->options[i], crossing->options[i].values[crossing->choice[i]]);
  if (wrong != NULL) field_store(out, wrong, wrong->values[wrong_value]);
  note(crossing, wrong, wrong_value);
  return true;
}

uint64_t support_crossing_value(const support_crossing *crossing, const char *name) {
  for (size_t i = 0; i < crossing->count; i++)
    if (strcmp(crossing->options[i].name, name) == 0) return crossing->options[i].values[crossing->choice[i]];
  LADE_FAIL("no option %s is crossed", name);
  return 0;
}

void support_crossing_refused(support_crossing *crossing, lade_status status, const char *const *fields) {
  const char *text = lade_last_error()->text;
  bool named = crossing->wrong != NULL && strstr(text, crossing->wrong) != NULL;
  for (size_t i = 0; fields[i] != NULL; i++) named = named || strstr(text, fields[i]) != NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, status);
  if (!named) LADE_FAIL("'%s' does not name %s", text, crossing->wrong != NULL ? crossing->wrong : fields[0]);
  for (size_t i = 0; i < crossing->values * crossing->values; i++)
    if (crossing->tries[i] > crossing->pairs[i]) crossing->pairs[i] = (uint8_t)(crossing->tries[i] - 1);
  memset(crossing->tries, 0, crossing->values * crossing->values);
}
