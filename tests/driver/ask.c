/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process for each question, since a driver cannot be begun anew in one:
 *
 *   test  --fork-->  question --ask_send: "number\ttext\n"--> pipe --> test
 *
 * Locks: none.
 */
#include "tests/driver/ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/driver/probe.h"

static int answers_fd = -1; /* of a question's process */

/* A line is less than PIPE_BUF, so that it arrives as one. */
void ask_send(const char *number, const char *text) {
  char line[ASK_NUMBER_ROOM + ASK_ANSWER_ROOM + 2];
  int length = snprintf(line, sizeof line, "%.*s\t%s\n", ASK_NUMBER_ROOM - 1, number, text);
  if (write(answers_fd, line, (size_t)length) != length) _exit(1);
}

static void answer_add(ask_answers *out, const char *number, const char *text) {
  if (out->count == ASK_ANSWERS) return;
  ask_answer *answer = &out->all[out->count++];
  snprintf(answer->number, sizeof answer->number, "%.*s", ASK_NUMBER_ROOM - 1, number);
  snprintf(answer->text, sizeof answer->text, "%.*s", ASK_ANSWER_ROOM - 1, text);
}

static void answers_read(int fd, ask_answers *out) {
  char line[ASK_NUMBER_ROOM + ASK_ANSWER_ROOM + 2];
  FILE *file = fdopen(fd, "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *tab = strchr(line, '\t');
    line[strcspn(line, "\n")] = '\0';
    if (tab == NULL) continue;
    *tab = '\0';
    answer_add(out, line, tab + 1);
  }
  if (file != NULL) fclose(file);
}

static void question_ask(const probe_question *question, ask_answers *out) {
  int fds[2], status = 0;
  char text[ASK_ANSWER_ROOM];
  if (pipe(fds) != 0) return answer_add(out, "ended", "no pipe");
  pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    answers_fd = fds[1];
    question->ask();
    _exit(0); /* the driver goes with the process: what a question made is not given back */
  }
  close(fds[1]);
  answers_read(fds[0], out);
  if (child < 0 || waitpid(child, &status, 0) != child || status == 0) return;
  snprintf(text, sizeof text, "%s: %s %d", question->name, WIFEXITED(status) ? "exit status" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  answer_add(out, "ended", text);
}

static void room_ask(const probe_question *questions, ask_answers *out) {
  for (const probe_question *question = questions; question->name != NULL; question++) question_ask(question, out);
}

void ask_all(ask_answers *out) {
  const probe_question *rooms[] = {probe_memory_questions, probe_order_questions, probe_capture_questions,
                                   probe_graph_questions};
  out->count = 0;
  for (size_t room = 0; room < sizeof rooms / sizeof rooms[0]; room++) room_ask(rooms[room], out);
}

void ask_two_devices(ask_answers *out) {
  out->count = 0;
  room_ask(probe_two_device_questions, out);
}

const char *ask_find(const ask_answers *answers, const char *number) {
  for (size_t i = 0; i < answers->count; i++)
    if (strcmp(answers->all[i].number, number) == 0) return answers->all[i].text;
  return NULL;
}
