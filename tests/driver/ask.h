/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks questions, each in a process of its own, and collects the answers.
 *
 * Locks: none.
 */
#ifndef LADE_TESTS_DRIVER_ASK_H
#define LADE_TESTS_DRIVER_ASK_H

#include <stdbool.h>
#include <stddef.h>

enum { ASK_NUMBER_ROOM = 64, ASK_ANSWER_ROOM = 2048, ASK_ANSWERS = 256 };

typedef struct ask_answer {
  char number[ASK_NUMBER_ROOM];
  char text[ASK_ANSWER_ROOM];
} ask_answer;

typedef struct ask_answers {
  ask_answer all[ASK_ANSWERS];
  size_t count;
} ask_answers;

/* Asks all questions about one device. One that ends otherwise than by returning is an answer of the number "ended". */
void ask_all(ask_answers *out);
/* Those about two, whose numbers begin with ASK_TWO_DEVICES; that alone is the number of an answer where there is one device. */
#define ASK_TWO_DEVICES "II"
void ask_two_devices(ask_answers *out);

/* From a question's process, or a child of it: an answer. */
void ask_send(const char *number, const char *text);

const char *ask_find(const ask_answers *answers, const char *number);

#endif /* LADE_TESTS_DRIVER_ASK_H */
