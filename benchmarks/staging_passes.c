/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timed, by the runtime's clock (virtual on "sim"), over all inputs and chunk by chunk alike:
 *
 *   lade       the pipeline: pieces of the window submitted ahead, all tickets waited for
 *   ceiling    (a) nothing but pinned copies of 32 MiB, back to back
 *   reads      (d) the pipeline with the copies left out: the same reads into the same pinned blocks
 *   by hand    (e) what an expert writes: threads with streams and pinned buffers of their own (staging_by_hand.c)
 *   naive      (b) what people write first: one malloc buffer, read, synchronous copy
 *   uncached   (c) per chunk: pinned allocation from the driver, read, asynchronous copy, wait, free
 *   loop       one thread that reads chunk after chunk into one buffer: the processor time that reads take by themselves
 *   pinned     (p) of ranks: the pipeline with pinned memory in place of the files
 *   alone      (a1) of ranks: the ceiling of one rank after the other, while the rest waits
 *
 * (b), (c) and the loop leave processors and memory slow for a while: a machine that had little to do for a second needs a tenth of
 * one to come to its full speed again. So they are measured in rounds of their own, after the others.
 *
 * No way of staging is faster than the lower of (a) and (d). To the host, the reads are writes into a file without a
 * name and the copies go the other way. With --direct, all reads and writes of files go past the page cache.
 *
 * I1  Every variant moves every byte of the inputs once per pass, through the same window.
 * I2  The window is written again only after the copies into it before are queued earlier on the same stream.
 */
#include "benchmarks/staging_passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "benchmarks/staging_by_hand.h"
#include "benchmarks/staging_copyless.h"
#include "benchmarks/staging_host_io.h"
#include "benchmarks/staging_messages.h"
#include "benchmarks/staging_ranks.h"

enum { AHEAD = 16, EVENTS = 1 << 20 };
static const size_t ceiling_bytes = (size_t)32 << 20;
static const uint64_t slice_ns = UINT64_C(20000000); /* how soon an interrupt is noticed */

static const char *const variant_names[] = {"lade",     "ceiling", "by hand", "reads", "naive",
                                            "uncached", "loop",    "pinned",  "alone"};

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* --- lade --------------------------------------------------------------------------------------------------------- */

/* Sources or sinks of the pipeline of a pass. */
typedef struct host_side {
  lade_pipeline *pipeline;
  char *pinned; /* of pinned_bytes, at the same place for all pieces; NULL: files */
} host_side;

static lade_endpoint host_endpoint(const staging *s, const host_side *side, int direction, const staging_piece *piece) {
  if (side->pinned != NULL) return lade_endpoint_memory(side->pinned);
  if (direction == STAGING_H2D && piece->file->is_url) return lade_endpoint_url(piece->file->path, piece->offset);
  lade_endpoint file = direction == STAGING_H2D ? lade_endpoint_file(piece->file->fd, piece->offset, piece->file->path)
                                                : lade_endpoint_file(s->sink_fd, piece->place, "temporary output file");
  file.flags = s->settings.direct ? LADE_FILE_DIRECT : 0;
  return file;
}

static bool piece_submit(staging *s, const host_side *side, int direction, const staging_piece *piece,
                         lade_ticket **out) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = direction == STAGING_H2D ? LADE_TO_DEVICE : LADE_TO_HOST;
  transfer.host = host_endpoint(s, side, direction, piece);
  transfer.device_memory = s->window + piece->place;
  transfer.bytes = piece->bytes;
  if (lade_pipeline_submit(side->pipeline, &transfer, out) != LADE_OK) {
    staging_lade_error("submit");
    return false;
  }
  return true;
}

/* Waits, and gives the ticket back. */
static bool ticket_finish(lade_ticket *ticket) {
  lade_status status;
  while ((status = lade_ticket_wait(ticket, slice_ns)) == LADE_ERR_TIMEOUT)
    if (staging_interrupted) (void)lade_ticket_cancel(ticket);
  if (status != LADE_OK && status != LADE_ERR_CANCELLED) staging_lade_error("staging");
  lade_ticket_release(ticket);
  return status == LADE_OK;
}

bool staging_transfer_piece(staging *s, int direction, const staging_piece *piece) {
  lade_ticket *ticket;
  const host_side files = {lade_pair_pipeline(s->pair), NULL};
  return piece_submit(s, &files, direction, piece, &ticket) && ticket_finish(ticket);
}

static bool pipeline_pass(staging *s, const host_side *side, int direction) {
  lade_ticket *tickets[AHEAD];
  uint64_t bytes[AHEAD];
  staging_cursor cursor = {0};
  staging_piece piece;
  size_t submitted = 0;
  size_t finished = 0;
  bool good = true;
  while (good && !staging_interrupted && staging_piece_next(s, &cursor, &piece)) {
    if (submitted - finished == AHEAD) {
      good = ticket_finish(tickets[finished % AHEAD]);
      staging_progress_add(&s->progress, bytes[finished++ % AHEAD]);
    }
    if (good) {
      good = piece_submit(s, side, direction, &piece, &tickets[submitted % AHEAD]);
      bytes[submitted % AHEAD] = piece.bytes;
      submitted += good ? 1 : 0;
    }
  }
  for (; finished < submitted; finished++) {
    if (!good || staging_interrupted) (void)lade_ticket_cancel(tickets[finished % AHEAD]);
    good = ticket_finish(tickets[finished % AHEAD]) && good;
    staging_progress_add(&s->progress, bytes[finished % AHEAD]);
  }
  return good;
}

static bool files_pass(staging *s, lade_pipeline *pipeline, int direction) {
  const host_side files = {pipeline, NULL};
  return pipeline_pass(s, &files, direction);
}

static bool pinned_pass(staging *s, int direction, char *buffer) {
  const host_side pinned = {lade_pair_pipeline(s->pair), buffer};
  return pipeline_pass(s, &pinned, direction);
}

bool staging_pass(staging *s, int direction) { return files_pass(s, lade_pair_pipeline(s->pair), direction); }

/* --- baselines ---------------------------------------------------------------------------------------------------- */

static bool naive_chunk(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                        size_t bytes) {
  const lade_runtime_ops *ops = s->runtime->ops;
  char *device = s->window + piece->place + offset;
  if (direction == STAGING_H2D) {
    return staging_host_move(s, direction, piece, offset, buffer, bytes) &&
           ops->copy_sync(s->runtime->self, s->settings.device, LADEI_COPY_H2D, device, buffer, bytes) == LADE_OK;
  }
  return ops->copy_sync(s->runtime->self, s->settings.device, LADEI_COPY_D2H, buffer, device, bytes) == LADE_OK &&
         staging_host_move(s, direction, piece, offset, buffer, bytes);
}

static bool pinned_chunk(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                         size_t bytes) {
  const lade_runtime_ops *ops = s->runtime->ops;
  char *device = s->window + piece->place + offset;
  if (direction == STAGING_H2D) {
    return staging_host_move(s, direction, piece, offset, buffer, bytes) &&
           ops->copy(s->runtime->self, LADEI_COPY_H2D, device, buffer, bytes, &s->resolved) == LADE_OK &&
           ops->stream_synchronize(s->runtime->self, &s->resolved) == LADE_OK;
  }
  return ops->copy(s->runtime->self, LADEI_COPY_D2H, buffer, device, bytes, &s->resolved) == LADE_OK &&
         ops->stream_synchronize(s->runtime->self, &s->resolved) == LADE_OK &&
         staging_host_move(s, direction, piece, offset, buffer, bytes);
}

static bool uncached_chunk(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *unused,
                           size_t bytes) {
  const lade_runtime_ops *ops = s->runtime->ops;
  void *buffer;
  (void)unused;
  if (ops->host_alloc(s->runtime->self, s->settings.device, staging_direct_round_up(bytes), 0, &buffer) != LADE_OK)
    return false;
  bool good = pinned_chunk(s, direction, piece, offset, buffer, bytes);
  return ops->host_free(s->runtime->self, buffer) == LADE_OK && good;
}

typedef bool (*chunk_function)(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                               size_t bytes);

/* A loop over all chunks. */
static bool chunks_pass(staging *s, int direction, chunk_function move, void *buffer) {
  staging_cursor cursor = {0};
  staging_piece piece;
  lade_error before = *lade_last_error();
  while (staging_piece_next(s, &cursor, &piece)) {
    for (uint64_t offset = 0; offset < piece.bytes; offset += s->info.chunk_bytes) {
      uint64_t left = piece.bytes - offset;
      size_t bytes = (size_t)(left < s->info.chunk_bytes ? left : s->info.chunk_bytes);
      if (staging_interrupted) return false;
      if (!move(s, direction, &piece, offset, buffer, bytes)) {
        if (memcmp(&before, lade_last_error(), sizeof before) != 0) staging_lade_error("baseline");
        return false;
      }
      staging_progress_add(&s->progress, bytes);
    }
  }
  return true;
}

/* Reading or writing alone. */
static bool loop_chunk(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                       size_t bytes) {
  return staging_host_move(s, direction, piece, offset, buffer, bytes);
}

/* One buffer of ordinary memory for all chunks. */
static bool buffer_pass(staging *s, int direction, chunk_function move) {
  void *buffer = NULL;
  if (posix_memalign(&buffer, STAGING_DIRECT_ALIGN, staging_direct_round_up((size_t)s->info.chunk_bytes)) != 0) {
    staging_error("no memory for a buffer of %llu bytes", (unsigned long long)s->info.chunk_bytes);
    return false;
  }
  bool good = chunks_pass(s, direction, move, buffer);
  free(buffer);
  return good;
}

/* The pinned buffer of the ceiling, or of (p), which stages whole pieces; outside of what is timed. */
static bool needs_buffer(staging_variant variant) {
  return variant == STAGING_CEILING || variant == STAGING_PINNED || variant == STAGING_ALONE;
}

static void *buffer_make(staging *s, staging_variant variant) {
  void *buffer;
  size_t bytes = variant == STAGING_PINNED ? (size_t)s->piece_bytes : ceiling_bytes;
  if (s->runtime->ops->host_alloc(s->runtime->self, s->settings.device, bytes, 0, &buffer) != LADE_OK) {
    staging_lade_error("pinned buffer");
    return NULL;
  }
  memset(buffer, 1, bytes);
  return buffer;
}

static bool ceiling_pass(staging *s, int direction, char *buffer) {
  const lade_runtime_ops *ops = s->runtime->ops;
  uint64_t step = s->window_bytes < ceiling_bytes ? s->window_bytes : ceiling_bytes;
  uint64_t place = 0;
  uint64_t bytes;
  for (uint64_t done = 0; done < s->inputs.bytes && !staging_interrupted; done += bytes) {
    bytes = s->inputs.bytes - done < step ? s->inputs.bytes - done : step;
    place = place + bytes > s->window_bytes ? 0 : place;
    char *device = s->window + place;
    lade_status status = direction == STAGING_H2D
                             ? ops->copy(s->runtime->self, LADEI_COPY_H2D, device, buffer, (size_t)bytes, &s->resolved)
                             : ops->copy(s->runtime->self, LADEI_COPY_D2H, buffer, device, (size_t)bytes, &s->resolved);
    if (status != LADE_OK) {
      staging_lade_error("copy of the ceiling");
      return false;
    }
    place += bytes;
  }
  if (ops->stream_synchronize(s->runtime->self, &s->resolved) != LADE_OK) {
    staging_lade_error("copies of the ceiling");
    return false;
  }
  staging_progress_add(&s->progress, s->inputs.bytes);
  return !staging_interrupted;
}

/* --- what is kept of a pass --------------------------------------------------------------------------------------- */

uint64_t staging_recorded_most(const staging_settings *settings) {
  return settings->timeline_path != NULL ? EVENTS : 0;
}

/* Keeps what overlaps the pass, shortened to it. */
static void events_clip(staging_recorded *pass) {
  size_t kept = 0;
  for (size_t i = 0; i < pass->count; i++) {
    lade_timeline_event event = pass->events[i];
    if (event.end_ns <= pass->begin_ns || event.begin_ns >= pass->end_ns) continue;
    event.begin_ns = event.begin_ns > pass->begin_ns ? event.begin_ns : pass->begin_ns;
    event.end_ns = event.end_ns < pass->end_ns ? event.end_ns : pass->end_ns;
    pass->threads = event.thread > pass->threads ? event.thread : pass->threads;
    pass->events[kept++] = event;
  }
  pass->count = kept;
}

bool staging_recorded_read(staging *s, staging_recorded *pass) {
  pass->events = malloc(EVENTS * sizeof *pass->events);
  if (pass->events == NULL) {
    staging_error("no memory for a timeline");
    return false;
  }
  if (lade_pipeline_timeline_read(lade_pair_pipeline(s->pair), pass->events, EVENTS, &pass->count, NULL) != LADE_OK) {
    staging_lade_error("timeline");
    return false;
  }
  events_clip(pass);
  return true;
}

/* Of the pass that ended just now. */
static bool recorded_keep(staging *s, int direction, uint64_t begin_ns, uint64_t end_ns) {
  staging_recorded *pass = calloc(1, sizeof *pass);
  if (pass == NULL) {
    staging_error("no memory for a timeline");
    return false;
  }
  *pass = (staging_recorded){.direction = direction, .begin_ns = begin_ns, .end_ns = end_ns};
  s->first_passes[direction] = pass;
  return staging_recorded_read(s, pass);
}

void staging_recorded_drop(staging *s) {
  for (int direction = 0; direction < STAGING_DIRECTIONS; direction++) {
    if (s->first_passes[direction] != NULL) free(s->first_passes[direction]->events);
    free(s->first_passes[direction]);
    s->first_passes[direction] = NULL;
  }
}

/* --- one timed pass ----------------------------------------------------------------------------------------------- */

typedef struct pass {
  staging *s;
  int direction;
  staging_variant variant;
  unsigned runs;
} pass;

/* The first run of each variant does not count. */
static void cpu_note(pass *p, double seconds) {
  bench_samples *samples = &p->s->cpu[p->direction][p->variant];
  if (p->runs++ > 0 && samples->count < BENCH_MAX_REPEATS) samples->values[samples->count++] = seconds;
}

static bool pass_run(pass *p, void *buffer) {
  switch (p->variant) {
  case STAGING_LADE: return files_pass(p->s, lade_pair_pipeline(p->s->pair), p->direction);
  case STAGING_CEILING:
  case STAGING_ALONE: return ceiling_pass(p->s, p->direction, buffer);
  case STAGING_PINNED: return pinned_pass(p->s, p->direction, buffer);
  case STAGING_READS: return files_pass(p->s, p->s->reads_alone, p->direction);
  case STAGING_BY_HAND: return staging_by_hand_pass(p->s);
  case STAGING_NAIVE: return buffer_pass(p->s, p->direction, naive_chunk);
  case STAGING_LOOP: return buffer_pass(p->s, p->direction, loop_chunk);
  default: return chunks_pass(p->s, p->direction, uncached_chunk, NULL);
  }
}

static double gbps_of(const staging *s, uint64_t taken_ns) {
  return (double)s->inputs.bytes / (double)(taken_ns > 0 ? taken_ns : 1);
}

/* The first pass of the process in this direction: blocks are pinned while it runs. */
static bool first_note(staging *s, int direction, uint64_t begin_ns, uint64_t end_ns) {
  s->first_gbps[direction] = gbps_of(s, end_ns - begin_ns);
  return !s->settings.timeline_first || recorded_keep(s, direction, begin_ns, end_ns);
}

/* Work that takes time and is none of the pass's. */
static bool pass_prepare(pass *p, void **out_buffer) {
  *out_buffer = needs_buffer(p->variant) ? buffer_make(p->s, p->variant) : NULL;
  if (needs_buffer(p->variant)) return *out_buffer != NULL;
  if (p->variant == STAGING_READS) return staging_reads_alone_open(p->s);
  return p->variant != STAGING_BY_HAND || staging_by_hand_open(p->s, p->direction);
}

/* Times of a pass: on the runtime's clock for its rate, on the machine's for the sum of the ranks. */
typedef struct pass_times {
  uint64_t begun_ns, end_ns;
  double begun, end;
  double cpu_s; /* processor time of the process */
} pass_times;

/* On virtual time the ranks' clocks are as good as one, that begins with the pass. */
static bool pass_time_run(pass *p, void *buffer, pass_times *out) {
  staging *s = p->s;
  bool is_virtual = s->runtime->ops->step != NULL;
  double cpu_before = cpu_seconds();
  out->begun_ns = lade_runtime_now_ns(s->runtime);
  out->begun = is_virtual ? 0 : bench_seconds();
  bool good = pass_run(p, buffer);
  out->end_ns = lade_runtime_now_ns(s->runtime);
  out->end = is_virtual ? (double)(out->end_ns - out->begun_ns) * 1e-9 : bench_seconds();
  out->cpu_s = cpu_seconds() - cpu_before;
  return good;
}

/* With all ranks at once, or for (a1) when it is this one's turn. */
static bool pass_together(pass *p, void *buffer, pass_times *out) {
  uint32_t turns = p->variant == STAGING_ALONE ? staging_ranks_count(p->s) : 1;
  bool good = true;
  for (uint32_t turn = 0; good && turn < turns; turn++)
    good = staging_ranks_start(p->s) && (turns > 1 && turn != p->s->ranks.rank ? true : pass_time_run(p, buffer, out));
  return good && staging_ranks_note(p->s, p->direction, p->variant, p->runs > 0, out->begun, out->end);
}

/* GB/s of one pass; NAN where it failed. */
static double pass_time(void *user) {
  pass *p = user;
  staging *s = p->s;
  void *buffer;
  pass_times times = {0};
  if (!pass_prepare(p, &buffer)) return (double)NAN;
  bool good = pass_together(p, buffer, &times);
  if (good && p->variant == STAGING_LADE && p->runs == 0)
    good = first_note(s, p->direction, times.begun_ns, times.end_ns);
  cpu_note(p, times.cpu_s);
  if (buffer != NULL) good = s->runtime->ops->host_free(s->runtime->self, buffer) == LADE_OK && good;
  return good ? gbps_of(s, times.end_ns - times.begun_ns) : (double)NAN;
}

/* Some variants, interleaved with each other. */
static bool variants_measure(staging *s, int direction, const staging_variant *wanted, size_t wanted_count,
                             uint32_t passes_each) {
  pass passes[STAGING_VARIANTS];
  bench_variant variants[STAGING_VARIANTS] = {{0}};
  bench_samples samples[STAGING_VARIANTS];
  size_t count = 0;
  for (size_t i = 0; i < wanted_count; i++) {
    if (wanted[i] == STAGING_BY_HAND && !staging_has_by_hand(s)) continue;
    passes[count] = (pass){s, direction, wanted[i], 0};
    variants[count] = (bench_variant){variant_names[wanted[i]], pass_time, &passes[count]};
    count++;
  }
  if (!bench_interleave(variants, count, passes_each, samples)) return false;
  for (size_t i = 0; i < count; i++) s->samples[direction][passes[i].variant] = samples[i];
  return true;
}

#define MEASURE(list, passes) variants_measure(s, direction, list, sizeof list / sizeof list[0], passes)

bool staging_measure(staging *s, int direction) {
  static const staging_variant fast[] = {STAGING_LADE, STAGING_CEILING, STAGING_BY_HAND, STAGING_READS};
  static const staging_variant disturbing[] = {STAGING_NAIVE, STAGING_UNCACHED, STAGING_LOOP};
  static const staging_variant of_ranks[] = {STAGING_LADE, STAGING_PINNED, STAGING_BY_HAND, STAGING_CEILING,
                                             STAGING_ALONE};
  uint32_t passes = s->settings.passes, slow = s->settings.slow_passes != 0 ? s->settings.slow_passes : passes;
  if (s->ranks.count > 0) return MEASURE(of_ranks, passes);
  return MEASURE(fast, passes) && MEASURE(disturbing, slow);
}
