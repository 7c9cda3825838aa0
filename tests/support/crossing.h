/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options crossed pairwise: each value of an option meets each value of every other one.
 *
 *   static const support_option options[] = {
 *       SUPPORT_OPTION(lade_loader_options, prefetch, 0, 1, 3, 64),
 *       SUPPORT_OPTION(lade_loader_options, padded, 0, 1),
 *       SUPPORT_CHOICE("files", 1, 7),                   // no field: support_crossing_value() gives it
 *   };
 *   static const support_option wrong[] = {SUPPORT_OPTION(lade_loader_options, prefetch, 65)};
 *   support_crossing crossing;
 *   support_crossing_start(&crossing, SUPPORT_OPTIONS(options), SUPPORT_OPTIONS(wrong), 7, 20);
 *   for (lade_loader_options_init(&o); support_crossing_next(&crossing, &o); lade_loader_options_init(&o)) {
 *     ... create and use, or, where crossing.wrong is the name of a field, expect that it is refused ...
 *   }
 *
 * After the pairs come some random combinations, then each wrong value once, amid random good ones. Every failure prints seed
 * and combination, also one that ends the program: LADE_TEST_SEED and LADE_TEST_COMBINATION replay it.
 */
#ifndef LADE_TESTS_SUPPORT_CROSSING_H
#define LADE_TESTS_SUPPORT_CROSSING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"
#include "tests/support/random.h"

enum { SUPPORT_OPTION_VALUES = 8, SUPPORT_CROSSED_OPTIONS = 32 };

typedef struct support_option {
  const char *name;     /* as messages have it */
  size_t offset, bytes; /* of the field; 0 bytes: there is none */
  size_t count;         /* of values */
  uint64_t values[SUPPORT_OPTION_VALUES];
} support_option;

#define SUPPORT_VALUES(...) .count = sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), .values = {__VA_ARGS__}
#define SUPPORT_OPTION(type, field, ...)                                                                               \
  {                                                                                                                    \
    .name = #field, .offset = offsetof(type, field), .bytes = sizeof(((type *)NULL)->field),                           \
    SUPPORT_VALUES(__VA_ARGS__)                                                                                        \
  }
#define SUPPORT_CHOICE(text, ...)                                                                                      \
  { .name = text, SUPPORT_VALUES(__VA_ARGS__) }
#define SUPPORT_OPTIONS(array) array, sizeof(array) / sizeof(array)[0]

typedef struct support_crossing {
  const support_option *options, *wrong_options;
  size_t count, wrong_count;
  uint64_t seed;
  support_random random;
  uint8_t *pairs; /* tries left of each pair of values; 0: it was met */
  uint8_t *tries; /* what they were before the combination at hand */
  size_t values;  /* of all options */
  size_t more;    /* random combinations still to come */
  size_t next_wrong, next_wrong_value;
  bool replayed;
  size_t number; /* of the combination at hand, from 1 */
  uint8_t choice[SUPPORT_CROSSED_OPTIONS];
  const char *wrong; /* the field that has a wrong value; NULL: none */
} support_crossing;

/* The arrays live as long as the crossing. */
void support_crossing_start(support_crossing *crossing, const support_option *options, size_t count,
                            const support_option *wrong, size_t wrong_count, uint64_t seed, size_t more);

/* Stores the next combination in the fields of `out`. False: there is none, or the test has failed; the crossing is over. */
bool support_crossing_next(support_crossing *crossing, void *out);

/* Value of an option of the combination at hand, by its name. */
uint64_t support_crossing_value(const support_crossing *crossing, const char *name);

/*
 * A call was, or should have been, refused: fails the test unless `status` is LADE_ERR_INVALID_ARGUMENT and the text of
 * lade_last_error() has the name of a field that is wrong: one of `fields`, which ends with NULL, or crossing.wrong. Options
 * that exclude each other are tried again with others, a few times.
 */
void support_crossing_refused(support_crossing *crossing, lade_status status, const char *const *fields);

#endif /* LADE_TESTS_SUPPORT_CROSSING_H */
