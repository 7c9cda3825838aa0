/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade save`: loads a checkpoint to devices and saves it from there, in one file or several.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loaders/generation.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/subcommand.h"
#include "tools/load/stage.h"

enum { KEY_JSON = 256, KEY_NO_SYNC, KEY_ON, KEY_RUNTIME, KEY_SHARD };

typedef struct save_arguments {
  const char *runtime; /* NULL: the best found */
  const char *on;
  const char *from, *to;
  uint64_t max_shard_bytes;
  bool json, no_sync;
} save_arguments;

/* A checkpoint on devices, as lade_safetensors_save() takes it. */
typedef struct checkpoint {
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_tensor *tensors;
  lade_metadata *metadata;
  uint64_t metadata_count, bytes;
} checkpoint;

static const char documentation[] =
    "Loads the checkpoint FROM (.safetensors, .safetensors.index.json) to device memory and saves it from there as TO: "
    "the same bytes that the safetensors package would write. A save that fails leaves what was there before. In "
    "several "
    "files TO-1-00001-of-00003, the first number counting the saves, and TO.index.json; the files of the save before "
    "are removed."
    "\vSIZE is a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB after it.\n"
    "LADE_ALLOC_CONF holds settings, such as storage:pread (docs/tuning.md).\n"
    "Exit status: 0; 1 if anything failed; 2 for the command line.";

static const struct argp_option option_table[] = {
    {"max-shard-size", KEY_SHARD, "SIZE", 0, "Several files of at most so many bytes of tensors each, and an index", 0},
    {"on", KEY_ON, "DEVICE", 0, "Devices to save from, as --to of `lade load` (default: 0)", 0},
    {"no-sync", KEY_NO_SYNC, NULL, 0, "Do not wait for stable storage", 0},
    {"json", KEY_JSON, NULL, 0, "Print JSON (docs/formats.md)", 0},
    OPTION_RUNTIME(KEY_RUNTIME),
    {0}};

/* 0 if it is no size. */
static uint64_t size_read(const char *text) {
  static const struct {
    const char *suffix;
    uint64_t factor;
  } units[] = {{"", 1},
               {"kB", 1000},
               {"MB", 1000000},
               {"GB", 1000000000},
               {"KiB", UINT64_C(1) << 10},
               {"MiB", UINT64_C(1) << 20},
               {"GiB", UINT64_C(1) << 30}};
  char *end;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *text < '0' || *text > '9') return 0;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strcmp(end, units[i].suffix) == 0 && number < (UINT64_C(1) << 60) / units[i].factor)
      return number * units[i].factor;
  return 0;
}

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  save_arguments *a = state->input;
  switch (key) {
  case KEY_JSON: a->json = true; return 0;
  case KEY_NO_SYNC: a->no_sync = true; return 0;
  case KEY_SHARD:
    a->max_shard_bytes = size_read(argument);
    if (a->max_shard_bytes == 0)
      argp_error(
          state,
          "--max-shard-size: '%s' is no size; expected a number of bytes from 1 on, or one with kB, MB, GB, KiB, "
          "MiB or GiB after it",
          argument);
    return 0;
  case KEY_ON:
    if (!stage_devices_are_good(argument))
      argp_error(state, "--on: '%s' is no list of devices; expected " STAGE_DEVICES_EXPECTED, argument);
    a->on = argument;
    return 0;
  case KEY_RUNTIME: a->runtime = option_runtime(argument, state); return 0;
  case ARGP_KEY_ARG:
    if (state->arg_num >= 2) argp_error(state, "FROM and TO only; what is '%s'?", argument);
    if (state->arg_num == 0) a->from = argument;
    if (state->arg_num == 1) a->to = argument;
    return 0;
  case ARGP_KEY_END:
    if (state->arg_num < 2) argp_error(state, "FROM and TO are needed");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* --- the checkpoint ----------------------------------------------------------------------------------------------- */

static bool tensors_describe(checkpoint *c) {
  uint64_t count = lade_safetensors_count(c->file);
  c->tensors = calloc(count + 1, sizeof *c->tensors);
  bool good = c->tensors != NULL;
  for (uint64_t i = 0; i < count && good; i++) {
    lade_tensor *tensor = &c->tensors[i];
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    good = lade_safetensors_tensor(c->file, i, &info) == LADE_OK &&
           lade_tensor_load_address(c->load, i, &tensor->memory, &tensor->target) == LADE_OK;
    tensor->name = info.name;
    tensor->shape = info.shape;
    tensor->rank = info.rank;
    tensor->dtype = info.dtype;
    c->bytes += info.bytes;
  }
  return good;
}

static int metadata_compare(const void *a, const void *b, void *user) {
  const lade_metadata *metadata = user;
  size_t left = *(const size_t *)a, right = *(const size_t *)b;
  int order = strcmp(metadata[left].key, metadata[right].key);
  return order != 0 ? order : (left < right ? -1 : left > right);
}

/* Of entries with one key the first one stays. `order` has room for all. */
static void metadata_thin(checkpoint *c, size_t *order) {
  size_t count = c->metadata_count;
  for (size_t i = 0; i < count; i++) order[i] = i;
  qsort_r(order, count, sizeof *order, metadata_compare, c->metadata);
  const char *last = NULL;
  for (size_t i = 0; i < count; i++) {
    lade_metadata *entry = &c->metadata[order[i]];
    if (last != NULL && strcmp(last, entry->key) == 0) entry->value = NULL;
    last = entry->key;
  }
  c->metadata_count = 0;
  for (size_t i = 0; i < count; i++)
    if (c->metadata[i].value != NULL) c->metadata[c->metadata_count++] = c->metadata[i];
}

/* Files of one checkpoint say the same, as a rule. */
static bool metadata_describe(checkpoint *c) {
  uint64_t count = lade_safetensors_metadata_count(c->file);
  c->metadata = calloc(count + 1, sizeof *c->metadata);
  size_t *order = calloc(count + 1, sizeof *order);
  bool good = c->metadata != NULL && order != NULL;
  for (uint64_t i = 0; i < count && good; i++) {
    lade_metadata *entry = &c->metadata[c->metadata_count++];
    good = lade_safetensors_metadata(c->file, i, &entry->key, &entry->value) == LADE_OK;
  }
  if (good) metadata_thin(c, order);
  free(order);
  return good;
}

static void checkpoint_close(checkpoint *c) {
  (void)lade_tensor_load_destroy(c->load, false);
  lade_safetensors_close(c->file);
  free(c->tensors);
  free(c->metadata);
}

static bool checkpoint_open(const stage *s, const char *path, checkpoint *out) {
  checkpoint c = {0};
  bool good = lade_safetensors_open(path, &c.file) == LADE_OK &&
              lade_safetensors_load(c.file, s->targets, s->count, NULL, &c.load) == LADE_OK &&
              lade_tensor_load_wait(c.load, LADE_LOAD_ALL, LADE_WAIT_FOREVER) == LADE_OK;
  if (!good) {
    stage_failed(s, "loading");
  } else if (!tensors_describe(&c) || !metadata_describe(&c)) {
    message_print(s->command, NULL, "no memory for the list of tensors");
    good = false;
  }
  *out = c;
  if (!good) checkpoint_close(&c);
  return good;
}

/* --- saving ------------------------------------------------------------------------------------------------------- */

typedef struct watch {
  const stage *s;
  progress bar;
} watch;

static lade_status watch_look(void *user, uint64_t bytes_done, uint64_t bytes) {
  watch *w = user;
  progress_show(&w->bar, w->s, bytes_done, bytes);
  return LADE_OK;
}

static bool saved_print(const stage *s, const save_arguments *a, const checkpoint *c, double seconds) {
  double rate = seconds > 0 ? (double)c->bytes / seconds : 0;
  uint64_t tensors = lade_safetensors_count(c->file);
  if (!a->json) {
    name_print(stdout, a->to);
    printf(": %llu tensors, %llu bytes in %.3f s, %.2f GB/s%s\n", (unsigned long long)tensors,
           (unsigned long long)c->bytes, seconds, rate / 1e9, a->no_sync ? "" : ", synced");
    return true;
  }
  json_t *report = json_pack("{s:i, s:s, s:I, s:I, s:f, s:f, s:b}", "version", 1, "runtime",
                             lade_runtime_name(s->runtime), "tensors", (json_int_t)tensors, "bytes",
                             (json_int_t)c->bytes, "seconds", seconds, "bytes_per_s", rate, "synced", !a->no_sync);
  bool good = report != NULL && path_json_put(report, a->to) &&
              (json_dumpf(report, stdout, JSON_INDENT(2)) == 0 || ferror(stdout) != 0);
  json_decref(report);
  puts("");
  if (!good) message_print(s->command, a->to, "saved, but no memory for the report");
  return good;
}

static bool checkpoint_save(const stage *s, const save_arguments *a, const checkpoint *c) {
  watch w = {.s = s};
  lade_save_options options;
  lade_save_options_init(&options);
  options.metadata = c->metadata;
  options.metadata_count = c->metadata_count;
  options.max_shard_bytes = a->max_shard_bytes;
  options.progress = watch_look;
  options.user = &w;
  options.no_sync = a->no_sync;
  progress_begin(&w.bar, s, a->to);
  lade_status status =
      lade_safetensors_save(a->to, s->targets, s->count, c->tensors, lade_safetensors_count(c->file), &options);
  progress_end(&w.bar);
  if (status != LADE_OK) return stage_failed(s, "saving");
  return saved_print(s, a, c, stage_seconds(s) - w.bar.began);
}

static int command_save(int argc, char **argv) {
  static char name[] = "lade save";
  const struct argp argp = {option_table, option_parse, "FROM TO", documentation, NULL, NULL, NULL};
  save_arguments a = {.on = "0"};
  stage s;
  checkpoint c;
  options_read(&argp, name, argc, argv, &a);
  if (!stage_open(&s, name, a.runtime, a.on, "")) return EXIT_FAILED;
  /* A target that is no good is found before anything is read. */
  bool good = ladei_loader_generation_check(a.to, a.max_shard_bytes > 0) == LADE_OK || stage_failed(&s, "saving");
  good = good && checkpoint_open(&s, a.from, &c);
  if (good) {
    good = checkpoint_save(&s, &a, &c);
    checkpoint_close(&c);
  }
  return stage_close(&s) && good ? EXIT_FINE : EXIT_FAILED;
}

const subcommand subcommand_save = {"save", "save a checkpoint from device memory, in one file or several",
                                    command_save};
