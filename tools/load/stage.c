/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runtime and devices of a command, and its progress bar.
 *
 * S1  Pairs and streams exist for devices 0 .. count-1 of the list, or are NULL.
 */
#include "tools/load/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tools/common/options.h"

enum { BAR_COLUMNS = 30, BAR_NAME_BYTES = 31 };

bool stage_failed(const stage *s, const char *what) {
  message_print(s->command, what, "%s", lade_last_error()->text);
  return false;
}

double stage_seconds(const stage *s) { return (double)lade_runtime_now_ns(s->runtime) / 1e9; }

bool stage_is_virtual(const stage *s) { return strcmp(lade_runtime_name(s->runtime), "sim") == 0; }

/* --- devices ------------------------------------------------------------------------------------------------------ */

/* The list after "NAME:", and that name; the whole text and NULL without one. False for an unknown name. */
static bool runtime_split(const char *text, const char **out_name, const char **out_list) {
  const char *colon = strchr(text, ':');
  *out_name = colon == NULL ? NULL : option_runtime_find(text, (size_t)(colon - text));
  *out_list = colon == NULL ? text : colon + 1;
  return colon == NULL || *out_name != NULL;
}

/* Ordinals with commas between them, none twice; 0 for other texts. */
static size_t list_read(const char *list, int out[STAGE_MAX_DEVICES]) {
  size_t count = 0;
  for (const char *at = list;;) {
    char *end;
    long value = strtol(at, &end, 10);
    bool good = end != at && *at >= '0' && *at <= '9' && value < 4096 && count < STAGE_MAX_DEVICES;
    for (size_t i = 0; i < count; i++) good = good && out[i] != value;
    if (!good || (*end != ',' && *end != '\0')) return 0;
    out[count++] = (int)value;
    if (*end == '\0') return count;
    at = end + 1;
  }
}

bool stage_devices_are_good(const char *text) {
  const char *name, *list;
  int devices[STAGE_MAX_DEVICES];
  return runtime_split(text, &name, &list) && (strcmp(list, "all") == 0 || list_read(list, devices) > 0);
}

static bool devices_find(stage *s, const char *list) {
  int present;
  if (strcmp(list, "all") != 0) {
    s->count = list_read(list, s->devices);
    return true;
  }
  if (lade_runtime_device_count(s->runtime, &present) != LADE_OK) return stage_failed(s, "counting devices");
  for (; s->count < (size_t)present && s->count < STAGE_MAX_DEVICES; s->count++) s->devices[s->count] = (int)s->count;
  return true;
}

/* With the settings of the environment. */
static lade_status pair_open(const stage *s, int device, lade_pair **out) {
  lade_pair_options options;
  lade_pair_options_init(&options);
  options.pinned = &s->pinned;
  options.device = &s->memory;
  options.pipeline = &s->transfers;
  return lade_pair_create(s->runtime, device, &options, out);
}

static bool device_open(stage *s, size_t i) {
  if (pair_open(s, s->devices[i], &s->pairs[i]) != LADE_OK ||
      lade_stream_create(s->runtime, s->devices[i], &s->streams[i]) != LADE_OK)
    return stage_failed(s, "opening a device");
  s->targets[i] = lade_load_target_pair(s->pairs[i], s->streams[i]);
  return true;
}

bool stage_open(stage *s, const char *command, const char *runtime, const char *devices, const char *settings) {
  const char *name, *list;
  *s = (stage){.command = command};
  if (!runtime_split(devices, &name, &list)) return false; /* checked with the command line */
  lade_pinned_options_init(&s->pinned);
  lade_device_options_init(&s->memory);
  lade_pipeline_options_init(&s->transfers);
  lade_config_init(&s->settings);
  s->settings.pinned = &s->pinned;
  s->settings.device = &s->memory;
  s->settings.pipeline = &s->transfers;
  if (lade_config_from_env(&s->settings) != LADE_OK ||
      (settings[0] != '\0' && lade_config_parse(settings, &s->settings) != LADE_OK))
    return stage_failed(s, "settings");
  if (lade_runtime_open(name != NULL ? name : runtime, NULL, &s->runtime) != LADE_OK)
    return stage_failed(s, "no runtime");
  if (name == NULL && runtime == NULL && strcmp(lade_runtime_name(s->runtime), "cuda") != 0)
    message_print(command, "the software device", "no GPU can be used; its figures prove nothing about one");
  bool good = devices_find(s, list);
  for (size_t i = 0; i < s->count && good; i++) good = device_open(s, i);
  if (!good) (void)stage_close(s);
  return good;
}

bool stage_close(stage *s) {
  bool good = true;
  for (size_t i = 0; i < s->count; i++) {
    if (s->streams[i] != NULL) {
      good = lade_device_stream_retire(s->targets[i].allocator, s->streams[i]) == LADE_OK && good;
      good = lade_stream_destroy(s->runtime, s->streams[i]) == LADE_OK && good;
    }
    good = lade_pair_destroy(s->pairs[i], true) == LADE_OK && good;
  }
  good = lade_runtime_close(s->runtime) == LADE_OK && good;
  return good || stage_failed(s, "closing");
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

void progress_begin(progress *p, const stage *s, const char *what) {
  const char *slash = strrchr(what, '/');
  *p = (progress){slash != NULL ? slash + 1 : what, stage_seconds(s), false};
}

/* " 1:05 left" once a hundredth is done; before, a guess would be worth nothing. */
static void left_print(double seconds, double done) {
  if (done < 0.01) return;
  double left = seconds * (1 - done) / done + 0.5;
  if (left >= 360000) return;
  unsigned all = (unsigned)left;
  if (all >= 3600)
    fprintf(stderr, "  %u:%02u:%02u left", all / 3600, all / 60 % 60, all % 60);
  else
    fprintf(stderr, "  %u:%02u left", all / 60, all % 60);
}

void progress_show(progress *p, const stage *s, uint64_t bytes_done, uint64_t bytes) {
  char bar[BAR_COLUMNS + 1];
  double done = bytes > 0 ? (double)bytes_done / (double)bytes : 1.0, seconds = stage_seconds(s) - p->began;
  if (!isatty(STDERR_FILENO)) return;
  for (int i = 0; i < BAR_COLUMNS; i++) bar[i] = (double)i < done * (double)BAR_COLUMNS ? '#' : '.';
  bar[BAR_COLUMNS] = '\0';
  char what[BAR_NAME_BYTES];
  snprintf(what, sizeof what, "%s", p->what);
  ladei_text_tame(what);
  fprintf(stderr, "\r\033[K%-30s [%s] %3.0f %%  %6.2f GB/s", what, bar, 100 * done,
          seconds > 0 ? (double)bytes_done / seconds / 1e9 : 0);
  left_print(seconds, done);
  fflush(stderr);
  p->shown = true;
}

void progress_end(progress *p) {
  if (p->shown) fputs("\r\033[K", stderr);
  p->shown = false;
}
