/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging_throughput: how fast do bytes of files get on and off the device, compared with the loops that people write?
 *
 *   open inputs -> open runtime, pair, window -> per direction: passes, interleaved -> verify -> report
 *
 * With --ranks several processes do so, and meet before the inputs are opened, before each pass and before the report.
 *
 * I1  What can be wrong with the command line or the inputs is found before anything is measured.
 * I2  However it ends, no file is left over: the temporary ones have no names.
 *
 * Exit status: 0 measured (and verified); 1 failed; 2 bad usage; 130 interrupted.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "benchmarks/staging_by_hand.h"
#include "benchmarks/staging_copyless.h"
#include "benchmarks/staging_inputs.h"
#include "benchmarks/staging_messages.h"
#include "benchmarks/staging_passes.h"
#include "benchmarks/staging_ranks.h"
#include "benchmarks/staging_ranks_report.h"
#include "benchmarks/staging_report.h"
#include "benchmarks/staging_timeline.h"
#include "benchmarks/staging_verify.h"

enum {
  KEY_INPUT = 'i',
  KEY_RUNTIME = 256,
  KEY_DEVICE,
  KEY_DIRECTION,
  KEY_CHUNK,
  KEY_DEPTH,
  KEY_READERS,
  KEY_PASSES,
  KEY_NO_VERIFY,
  KEY_SLOW_PASSES,
  KEY_JSON,
  KEY_WINDOW,
  KEY_DIRECT,
  KEY_STORAGE,
  KEY_TIMELINE,
  KEY_TIMELINE_FIRST,
  KEY_UNDER_WAY,
  KEY_RANKS,
  KEY_RANK_TIMEOUT,
};

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130, DEVICE_NOT_GIVEN = -1 };

static const struct argp_option option_table[] = {
    {"input", KEY_INPUT, "FILE|DIR|URL", 0,
     "What to stage; may be repeated (default: 1 GiB of random data in $TMPDIR). Of a URL there is a copy in $TMPDIR, "
     "which the baselines "
     "read",
     0},
    {"runtime", KEY_RUNTIME, "NAME", 0, "cuda, cpu or sim (default: cuda where there is a GPU, else cpu)", 0},
    {"device", KEY_DEVICE, "N", 0, "Device ordinal (default 0)", 0},
    {"ranks", KEY_RANKS, "N", OPTION_ARG_OPTIONAL,
     "Measure with several processes, each with its share of the inputs and the device of its number on its host: "
     "those "
     "that torchrun, mpirun or srun started, or N of them, 1 to 128, on this host",
     0},
    {"rank-timeout", KEY_RANK_TIMEOUT, "SECONDS", 0, "Longest wait for another rank (default 120)", 0},
    {"direction", KEY_DIRECTION, "h2d|d2h|both", 0, "To the device, to the host (default both)", 0},
    {"chunk", KEY_CHUNK, "BYTES", 0, "Bytes per read and copy (default: chosen by lade)", 0},
    {"depth", KEY_DEPTH, "N", 0, "Pinned blocks in use at once (default: chosen by lade)", 0},
    {"readers", KEY_READERS, "N", 0, "Reader threads (default: chosen by lade)", 0},
    {"passes", KEY_PASSES, "N", 0, "Timed passes per variant (default 5)", 0},
    {"slow-passes", KEY_SLOW_PASSES, "N", 0, "... of (b) and (c), which take most of the time (default: as many)", 0},
    {"direct", KEY_DIRECT, NULL, 0, "Files past the page cache (O_DIRECT)", 0},
    {"storage", KEY_STORAGE, "NAME", 0, "auto, uring, pread or cufile (default auto)", 0},
    {"under-way", KEY_UNDER_WAY, "BYTES", 0, "Pinned blocks in use at once, together (default: chosen by lade)", 0},
    {"window", KEY_WINDOW, "BYTES", 0, "Device memory that the inputs pass through (default 256M)", 0},
    {"no-verify", KEY_NO_VERIFY, NULL, 0, "Do not compare checksums", 0},
    {"json", KEY_JSON, "FILE", 0, "Also write the results as JSON", 0},
    {"timeline", KEY_TIMELINE, "FILE.json", 0,
     "Also write one more pass as a Chrome trace, for ui.perfetto.dev: what each thread and the link do when", 0},
    {"timeline-first", KEY_TIMELINE_FIRST, NULL, 0, "... of the first pass, while blocks are pinned", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

static const char documentation[] =
    "Stage files to the device and back; report GB/s beside a ceiling and two baselines of the same run."
    "\vBYTES may end in K, M or G (powers of 1024).";

/* --- command line ------------------------------------------------------------------------------------------------- */

/* A number from 1 to `most`, with a suffix if `sized`; anything else ends the program. */
static uint64_t number_parse(const char *name, const char *text, uint64_t least, uint64_t most, bool sized,
                             struct argp_state *state) {
  static const char suffixes[] = "KMG";
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  bool good = errno == 0 && end != text && text[0] >= '0' && text[0] <= '9';
  if (good && sized && *end != '\0') {
    const char *suffix = strchr(suffixes, *end);
    unsigned shift = suffix != NULL ? 10u * (unsigned)(suffix - suffixes + 1) : 0;
    good = suffix != NULL && value <= UINT64_MAX >> shift;
    value <<= shift;
    end++;
  }
  if (!good || *end != '\0' || value < least || value > most) {
    argp_error(state, "--%s: '%s' is not a number from %llu to %llu", name, text, (unsigned long long)least,
               (unsigned long long)most);
  }
  return value;
}

static void direction_parse(staging_settings *settings, const char *text, struct argp_state *state) {
  bool both = strcmp(text, "both") == 0;
  settings->directions[STAGING_H2D] = both || strcmp(text, "h2d") == 0;
  settings->directions[STAGING_D2H] = both || strcmp(text, "d2h") == 0;
  if (!settings->directions[STAGING_H2D] && !settings->directions[STAGING_D2H])
    argp_error(state, "--direction: '%s' is none of h2d, d2h, both", text);
}

static void ranks_parse(staging_settings *settings, const char *text, struct argp_state *state) {
  settings->ranked = true;
  if (text != NULL) settings->rank_count = (uint32_t)number_parse("ranks", text, 1, 128, false, state);
}

/* The N of "--ranks N". */
static bool is_rank_count(const staging_settings *settings, const char *text, const struct argp_state *state) {
  return settings->ranked && settings->rank_count == 0 && state->next >= 2 && text[0] >= '0' && text[0] <= '9' &&
         strcmp(state->argv[state->next - 2], "--ranks") == 0;
}

static void settings_check(const staging_settings *settings, struct argp_state *state) {
  if (settings->timeline_first && settings->timeline_path == NULL)
    argp_error(state, "--timeline-first needs --timeline");
  if (!settings->ranked) return;
  if (settings->device != DEVICE_NOT_GIVEN)
    argp_error(state, "--ranks: each rank takes its device, --device is no use");
  if (settings->timeline_path != NULL) argp_error(state, "--ranks: --timeline shows one process");
}

static uint32_t storage_parse(const char *text, struct argp_state *state) {
  char setting[64];
  lade_config config;
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  lade_config_init(&config);
  config.pipeline = &options;
  int length = snprintf(setting, sizeof setting, "storage:%s", text);
  if (length < 0 || (size_t)length >= sizeof setting || strpbrk(text, ":,") != NULL ||
      lade_config_parse(setting, &config) != LADE_OK)
    argp_error(state, "--storage: '%s' is none of auto, uring, pread, cufile", text);
  return (uint32_t)options.storage;
}

static void input_add(staging_settings *settings, char *path) {
  char **inputs = realloc(settings->inputs, (settings->input_count + 1) * sizeof *inputs);
  if (inputs == NULL) {
    staging_error("no memory for the list of inputs");
    exit(EXIT_FAILED);
  }
  settings->inputs = inputs;
  inputs[settings->input_count++] = path;
}

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  staging_settings *settings = state->input;
  const uint64_t most_bytes = (UINT64_C(1) << 60) - 1;
  switch (key) {
  case KEY_INPUT: input_add(settings, argument); return 0;
  case KEY_RUNTIME: settings->runtime = argument; return 0;
  case KEY_DEVICE: settings->device = (int)number_parse("device", argument, 0, 1023, false, state); return 0;
  case KEY_DIRECTION: direction_parse(settings, argument, state); return 0;
  case KEY_CHUNK: settings->chunk_bytes = number_parse("chunk", argument, 1, most_bytes, true, state); return 0;
  case KEY_DEPTH: settings->depth = (uint32_t)number_parse("depth", argument, 1, 1024, false, state); return 0;
  case KEY_READERS: settings->readers = (uint32_t)number_parse("readers", argument, 1, 256, false, state); return 0;
  case KEY_PASSES:
    settings->passes = (uint32_t)number_parse("passes", argument, 1, BENCH_MAX_REPEATS, false, state);
    return 0;
  case KEY_SLOW_PASSES:
    settings->slow_passes = (uint32_t)number_parse("slow-passes", argument, 1, BENCH_MAX_REPEATS, false, state);
    return 0;
  case KEY_WINDOW: settings->window_bytes = number_parse("window", argument, 1, most_bytes, true, state); return 0;
  case KEY_UNDER_WAY:
    settings->under_way_bytes = number_parse("under-way", argument, 1, most_bytes, true, state);
    return 0;
  case KEY_DIRECT: settings->direct = true; return 0;
  case KEY_STORAGE: settings->storage = storage_parse(argument, state); return 0;
  case KEY_NO_VERIFY: settings->verify = false; return 0;
  case KEY_JSON: settings->json_path = argument; return 0;
  case KEY_TIMELINE_FIRST: settings->timeline_first = true; return 0;
  case KEY_TIMELINE: settings->timeline_path = argument; return 0;
  case KEY_RANKS: ranks_parse(settings, argument, state); return 0;
  case KEY_RANK_TIMEOUT:
    settings->rank_timeout_s = (uint32_t)number_parse("rank-timeout", argument, 1, 3600, false, state);
    return 0;
  case ARGP_KEY_ARG:
    if (is_rank_count(settings, argument, state)) {
      ranks_parse(settings, argument, state);
      return 0;
    }
    argp_error(state, "'%s' is no option; inputs are given with --input", argument);
    return EINVAL;
  case ARGP_KEY_END:
    settings_check(settings, state);
    if (settings->device == DEVICE_NOT_GIVEN) settings->device = 0;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* --- the order of events ------------------------------------------------------------------------------------------ */

/* One pipeline is all that pins memory here: no more than its ring needs. */
static const uint64_t pinned_segment_bytes = UINT64_C(8) << 20;

/* Before anything is measured, so that the table needs no study. */
static void ratios_explain(void) {
  printf("Bytes of files to the device and back, in GB/s: the median of several passes. \"0.9 of\" (a) is lade's share "
         "of what\n"
         "the link gives at best; \"5 x\" (b) and (c) is how many times as fast lade is as what people write without "
         "it.\n");
}

static bool runtime_open(staging *s) {
  if (lade_runtime_open(s->settings.runtime, NULL, &s->runtime) == LADE_OK) return true;
  staging_lade_error("opening the device");
  return false;
}

static bool device_open(staging *s) {
  lade_pinned_options pinned;
  lade_pipeline_options pipeline;
  lade_pair_options options;
  lade_pinned_options_init(&pinned);
  pinned.segment_bytes = pinned_segment_bytes;
  lade_pipeline_options_init(&pipeline);
  pipeline.chunk_bytes = s->settings.chunk_bytes;
  pipeline.depth = s->settings.depth;
  pipeline.window_bytes = s->settings.under_way_bytes;
  pipeline.readers = s->settings.readers;
  pipeline.local_ranks = s->ranks.local_count; /* 0 without --ranks */
  pipeline.storage = (int32_t)s->settings.storage;
  pipeline.timeline_events = staging_recorded_most(&s->settings);
  lade_pair_options_init(&options);
  options.pinned = &pinned;
  options.pipeline = &pipeline;
  if (lade_pair_create(s->runtime, s->settings.device, &options, &s->pair) != LADE_OK ||
      lade_stream_create(s->runtime, s->settings.device, &s->stream) != LADE_OK ||
      s->runtime->ops->stream_resolve(s->runtime->self, s->stream, &s->resolved) != LADE_OK) {
    staging_lade_error("opening the device");
    return false;
  }
  lade_pipeline_info_init(&s->info);
  (void)lade_pipeline_info_get(lade_pair_pipeline(s->pair), &s->info);
  return staging_copyless_open(s);
}

/* The window, no longer than needed, and the pieces it is used in: whole chunks, a quarter of it if that is enough. */
static bool window_open(staging *s) {
  uint64_t chunk = s->info.chunk_bytes;
  void *window;
  s->window_bytes = s->settings.window_bytes;
  s->piece_bytes = s->window_bytes / 4;
  s->piece_bytes = s->piece_bytes > chunk ? s->piece_bytes - s->piece_bytes % chunk : chunk;
  s->piece_bytes = s->piece_bytes > s->window_bytes ? s->window_bytes : s->piece_bytes;
  if (lade_device_alloc(lade_pair_device_allocator(s->pair), (size_t)s->window_bytes, s->stream, &window) != LADE_OK) {
    staging_lade_error("device memory for the window");
    return false;
  }
  s->window = window;
  if (s->settings.directions[STAGING_D2H]) {
    s->sink_fd = staging_temporary_file();
    if (s->sink_fd >= 0 && s->settings.direct)
      s->sink_direct_fd = staging_reopen_direct(s->sink_fd, O_WRONLY, "temporary output file");
    return s->sink_fd >= 0 && (!s->settings.direct || s->sink_direct_fd >= 0);
  }
  return true;
}

static bool measure_all(staging *s) {
  uint64_t rounds = (uint64_t)(s->settings.passes + 1u) * STAGING_VARIANTS;
  bool good = true;
  for (int direction = 0; good && direction < STAGING_DIRECTIONS; direction++) {
    if (s->settings.directions[direction]) {
      staging_progress_start(&s->progress, rounds * s->inputs.bytes);
      good = staging_measure(s, direction);
      staging_progress_end(&s->progress);
    }
  }
  if (good && s->settings.verify) {
    staging_progress_start(&s->progress, s->inputs.bytes);
    good = staging_verify(s);
    staging_progress_end(&s->progress);
  }
  /* The chunk that the pipeline has come to; the baselines' chunks are those it began with. */
  (void)lade_pipeline_info_get(lade_pair_pipeline(s->pair), &s->info);
  return good;
}

static bool ranks_report(staging *s) {
  if (!staging_ranks_gather(s)) return false;
  if (!staging_ranks_speaks(s)) return true;
  staging_ranks_print(s);
  bool good = fflush(stdout) == 0;
  if (!good) staging_error("standard output: %s", strerror(errno));
  return (s->settings.json_path == NULL || staging_ranks_json(s)) && good;
}

static bool report_all(staging *s) {
  if (s->ranks.count > 0) return ranks_report(s);
  staging_report_print(s);
  bool good = fflush(stdout) == 0;
  if (!good) staging_error("standard output: %s", strerror(errno));
  good = (s->settings.json_path == NULL || staging_report_json(s)) && good;
  return (s->settings.timeline_path == NULL || staging_timeline_write(s)) && good;
}

/* In reverse; each of them may be missing. */
static bool all_close(staging *s) {
  bool good = true;
  staging_ranks_close(s);
  if (s->window != NULL) good = lade_device_free(lade_pair_device_allocator(s->pair), s->window) == LADE_OK;
  if (s->stream != NULL) {
    if (s->pair != NULL)
      good = lade_device_stream_retire(lade_pair_device_allocator(s->pair), s->stream) == LADE_OK && good;
    good = lade_stream_destroy(s->runtime, s->stream) == LADE_OK && good;
  }
  staging_recorded_drop(s);
  good = staging_by_hand_close(s) && good;
  good = staging_copyless_close(s) && good;
  good = lade_pair_destroy(s->pair, true) == LADE_OK && good;
  good = lade_runtime_close(s->runtime) == LADE_OK && good;
  if (!good) staging_lade_error("closing");
  if (s->sink_fd >= 0) close(s->sink_fd);
  if (s->sink_direct_fd >= 0) close(s->sink_direct_fd);
  staging_inputs_close(&s->inputs);
  free(s->settings.inputs);
  return good;
}

/* Ranks meet first, so that the others hear of one that cannot open its inputs. */
static bool everything_do(staging *s) {
  bool met = s->ranks.count == 0 ? staging_inputs_open(s) && runtime_open(s)
                                 : runtime_open(s) && staging_ranks_join(s) && staging_inputs_open(s);
  return met && device_open(s) && window_open(s) && measure_all(s) && report_all(s);
}

int main(int argc, char **argv) {
  static staging s = {
      .settings = {.directions = {true, true},
                   .device = DEVICE_NOT_GIVEN,
                   .passes = 5,
                   .verify = true,
                   .window_bytes = UINT64_C(256) << 20,
                   .rank_timeout_s = 120},
      .sink_fd = -1,
      .sink_direct_fd = -1,
  };
  const struct argp argp = {option_table, option_parse, NULL, documentation, NULL, NULL, NULL};
  static char name[] = "staging_throughput"; /* as typed: Bazel's file is called _bin */
  argv[0] = name;
  argp_err_exit_status = EXIT_USAGE;
  argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &s.settings); /* in order: the N of "--ranks N" */
  if (!staging_ranks_begin(&s)) return EXIT_FAILED;
  staging_interrupts_catch();
  if (s.ranks.count == 0) ratios_explain();
  bool good = everything_do(&s);
  staging_progress_end(&s.progress);
  if (!good) staging_ranks_fail(&s);
  good = all_close(&s) && good;
  if (staging_interrupted) {
    staging_error("interrupted");
    return EXIT_INTERRUPTED;
  }
  return good ? 0 : EXIT_FAILED;
}
