/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of every thread of the pipeline and of the link in one pass: one more, or the process's first (--timeline-first). As a Chrome
 * trace (chrome://tracing, Perfetto).
 */
#include "benchmarks/staging_timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/staging_messages.h"
#include "benchmarks/staging_passes.h"

enum { KINDS = LADE_TIMELINE_FLIGHT + 1 };

static const char *const kind_names[KINDS] = {
    [0] = "?",
    [LADE_TIMELINE_ACQUIRE] = "acquire",
    [LADE_TIMELINE_READ] = "read",
    [LADE_TIMELINE_DEPENDENCY] = "dependency",
    [LADE_TIMELINE_COPY] = "queue copy",
    [LADE_TIMELINE_RECORD] = "record",
    [LADE_TIMELINE_POLL] = "poll",
    [LADE_TIMELINE_WRITE] = "write",
    [LADE_TIMELINE_RELEASE] = "release",
    [LADE_TIMELINE_FINISH] = "finish",
    [LADE_TIMELINE_LOCK] = "lock",
    [LADE_TIMELINE_IDLE] = "idle",
    [LADE_TIMELINE_FLIGHT] = "copies",
};

typedef staging_recorded recorded;

static const char *direction_name(int direction) { return direction == STAGING_H2D ? "h2d" : "d2h"; }

/* --- recording ---------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(const staging *s) { return s->runtime->ops->now_ns(s->runtime->self); }

static bool pass_record(staging *s, int direction, recorded *pass) {
  *pass = (recorded){.direction = direction, .begin_ns = now_ns(s)};
  if (!staging_pass(s, direction)) return false;
  pass->end_ns = now_ns(s);
  return staging_recorded_read(s, pass);
}

/* --- in numbers --------------------------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
  const lade_timeline_event *left = a, *right = b;
  return (left->begin_ns > right->begin_ns) - (left->begin_ns < right->begin_ns);
}

/* Time in which copies of any chunk were under way; the events are sorted by their begin. */
static uint64_t link_busy_ns(const recorded *pass) {
  uint64_t busy = 0, until = pass->begin_ns;
  for (size_t i = 0; i < pass->count; i++) {
    const lade_timeline_event *event = &pass->events[i];
    if (event->kind != LADE_TIMELINE_FLIGHT || event->end_ns <= until) continue;
    busy += event->end_ns - (event->begin_ns > until ? event->begin_ns : until);
    until = event->end_ns;
  }
  return busy;
}

static void summary_print(const recorded *pass) {
  double kinds[KINDS] = {0};
  double length = (double)(pass->end_ns - pass->begin_ns);
  for (size_t i = 0; i < pass->count; i++) {
    const lade_timeline_event *event = &pass->events[i];
    kinds[event->kind < KINDS ? event->kind : 0] += (double)(event->end_ns - event->begin_ns);
  }
  printf("timeline  %s %.2f ms, copies under way %.1f %%; a thread, on average:", direction_name(pass->direction),
         length * 1e-6, 100 * (double)link_busy_ns(pass) / length);
  for (int kind = 1; kind < LADE_TIMELINE_FLIGHT; kind++) {
    double share = 100 * kinds[kind] / length / (pass->threads > 0 ? pass->threads : 1);
    if (share >= 0.05) printf(" %s %.1f %%", kind_names[kind], share);
  }
  printf("\n");
}

/* --- Chrome trace ------------------------------------------------------------------------------------------------- */

/* Flights overlap, so each is an asynchronous pair; what a thread does is nested in nothing. Times are microseconds. */
static void trace_event_write(FILE *out, const recorded *pass, const lade_timeline_event *event, size_t number) {
  double begin = (double)event->begin_ns * 1e-3, end = (double)event->end_ns * 1e-3;
  const char *name = kind_names[event->kind < KINDS ? event->kind : 0];
  if (event->kind == LADE_TIMELINE_FLIGHT) {
    fprintf(out,
            ",\n{\"ph\":\"b\",\"cat\":\"link\",\"name\":\"%s copies\",\"pid\":1,\"tid\":0,\"id\":%zu,\"ts\":%.3f,"
            "\"args\":{\"transfer\":%llu,\"offset\":%llu,\"bytes\":%llu}}",
            direction_name(pass->direction), number, begin, (unsigned long long)event->transfer,
            (unsigned long long)event->offset, (unsigned long long)event->bytes);
    fprintf(out, ",\n{\"ph\":\"e\",\"cat\":\"link\",\"name\":\"%s copies\",\"pid\":1,\"tid\":0,\"id\":%zu,\"ts\":%.3f}",
            direction_name(pass->direction), number, end);
    return;
  }
  fprintf(out,
          ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":1,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
          "\"args\":{\"transfer\":%llu,\"offset\":%llu,\"bytes\":%llu,\"status\":%d}}",
          direction_name(pass->direction), name, event->thread, begin, end - begin, (unsigned long long)event->transfer,
          (unsigned long long)event->offset, (unsigned long long)event->bytes, event->status);
}

static void trace_names_write(FILE *out, const recorded *passes, size_t count) {
  uint32_t threads = 0;
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < passes[i].count; k++)
      if (passes[i].events[k].kind != LADE_TIMELINE_FLIGHT && passes[i].events[k].thread >= threads)
        threads = passes[i].events[k].thread + 1;
  for (uint32_t i = 1; i < threads; i++) /* 0: none */
    fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":%u,\"args\":{\"name\":\"thread %u\"}}", i,
            i);
}

static void trace_write(FILE *out, const recorded *passes, size_t count) {
  size_t number = 0;
  fprintf(out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
               "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"lade pipeline\"}}");
  trace_names_write(out, passes, count);
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < passes[i].count; k++) trace_event_write(out, &passes[i], &passes[i].events[k], number++);
  fprintf(out, "\n]}\n");
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static bool file_write(const char *path, const recorded *passes, size_t count) {
  FILE *out = fopen(path, "w");
  bool good = out != NULL;
  if (good) {
    trace_write(out, passes, count);
    good = !ferror(out);
    good = fclose(out) == 0 && good;
  }
  if (!good) staging_error("%s: %s", path, strerror(errno));
  return good;
}

bool staging_timeline_write(staging *s) {
  recorded passes[STAGING_DIRECTIONS];
  size_t count = 0;
  bool good = true;
  for (int direction = 0; good && direction < STAGING_DIRECTIONS; direction++) {
    if (!s->settings.directions[direction]) continue;
    passes[count] = (recorded){.direction = direction};
    if (s->settings.timeline_first)
      passes[count] = *s->first_passes[direction]; /* which keeps the events */
    else
      good = pass_record(s, direction, &passes[count]);
    count++;
    if (good) {
      qsort(passes[count - 1].events, passes[count - 1].count, sizeof(lade_timeline_event), by_begin);
      summary_print(&passes[count - 1]);
    }
  }
  good = good && file_write(s->settings.timeline_path, passes, count);
  for (size_t i = 0; i < count && !s->settings.timeline_first; i++) free(passes[i].events);
  return good;
}
