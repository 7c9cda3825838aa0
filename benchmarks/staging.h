/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of staging_throughput share.
 *
 *   staging_throughput.c  command line, order of events      staging_passes.c   what is timed: lade and its baselines
 *   staging_inputs.c      files to stage                     staging_verify.c   checksums of what lies on the device
 *   staging_report.c      table, JSON, plot                  staging_progress.c bar on a terminal
 *   staging_copyless.c    the runtime with the copies left out
 *   staging_by_hand.c     what an expert writes instead: the baseline (e)
 *   staging_timeline.c    what each thread and the link do in a pass: picture, Chrome trace
 */
#ifndef LADE_BENCHMARKS_STAGING_H
#define LADE_BENCHMARKS_STAGING_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "benchmarks/frame.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { STAGING_H2D = 0, STAGING_D2H = 1, STAGING_DIRECTIONS = 2 };

/* lade, and what it is compared with (staging_passes.c). Those from STAGING_NAIVE on slow down what runs after them: they
 * are measured apart. */
typedef enum staging_variant {
  STAGING_LADE,
  STAGING_CEILING,
  STAGING_BY_HAND,
  STAGING_READS,
  STAGING_NAIVE,
  STAGING_UNCACHED,
  STAGING_LOOP,
  STAGING_VARIANTS
} staging_variant;

/* What was found best for (e). */
typedef struct staging_by_hand {
  unsigned threads;
  unsigned buffers; /* of each thread */
  uint64_t bytes;   /* of a buffer */
} staging_by_hand;

/* The command line. 0 and NULL: not given. */
typedef struct staging_settings {
  char **inputs;
  size_t input_count;
  const char *runtime;
  int device;
  bool directions[STAGING_DIRECTIONS];
  uint64_t chunk_bytes;
  uint32_t depth;
  uint32_t readers;
  uint32_t passes;
  bool verify;
  bool direct;
  uint32_t storage; /* lade_storage */
  uint64_t window_bytes;
  const char *json_path;
  const char *plot_path;
  const char *timeline_path;
} staging_settings;

typedef struct staging_file {
  char *path;
  int fd;
  int direct_fd; /* --direct: the same with O_DIRECT; else -1 */
  uint64_t bytes;
} staging_file;

typedef struct staging_inputs {
  staging_file *files;
  size_t count;
  uint64_t bytes; /* of all together */
  bool generated;
} staging_inputs;

typedef struct staging_progress {
  bool shown; /* a terminal */
  uint64_t total_bytes;
  uint64_t done_bytes;
  double begun;   /* seconds */
  double printed; /* the last time */
} staging_progress;

typedef struct staging {
  staging_settings settings;
  staging_inputs inputs;
  staging_progress progress;
  lade_runtime *runtime;
  lade_runtime *copyless;     /* the same with copies that move nothing */
  void *copyless_table;       /* its table */
  lade_pipeline *reads_alone; /* on it, with the pair's pool */
  lade_pair *pair;
  lade_stream stream;    /* for baselines and the ceiling */
  ladei_stream resolved; /* the same */
  char *window;          /* device memory */
  uint64_t window_bytes;
  uint64_t piece_bytes; /* the window is used in pieces of so many bytes */
  int sink_fd;          /* D2H: a file without name, as long as the window; -1: not needed */
  int sink_direct_fd;   /* --direct: the same with O_DIRECT; else -1 */
  struct crew *crew;    /* threads of (e) */
  staging_by_hand by_hand[STAGING_DIRECTIONS];
  lade_pipeline_info info; /* chosen settings */
  bool verified;
  bench_samples samples[STAGING_DIRECTIONS][STAGING_VARIANTS]; /* GB/s */
  bench_samples cpu[STAGING_DIRECTIONS][STAGING_VARIANTS];     /* core-seconds of a pass */
} staging;

/* Set by SIGINT and SIGTERM. Everything that takes long looks at it. */
extern volatile sig_atomic_t staging_interrupted;

/* Prints "staging_throughput: ..." on stderr, with a line of its own on a terminal. */
void staging_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with lade's last error appended. */
void staging_lade_error(const char *what);

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* Opens the files named, and those in the folders named, or makes a file of random data without a name in $TMPDIR.
 * False: said why on stderr. */
bool staging_inputs_open(staging *s);
void staging_inputs_close(staging_inputs *inputs);
/* A file without a name in $TMPDIR, so that nothing can be left behind; -1: said why. */
int staging_temporary_file(void);
/* The same file with O_DIRECT; -1: said why. */
int staging_reopen_direct(int fd, int flags, const char *path);

/* A piece of a file and its place in the window. */
typedef struct staging_piece {
  const staging_file *file;
  uint64_t offset; /* in the file */
  uint64_t bytes;
  uint64_t place;  /* in the window */
  bool last_place; /* no further piece fits into this window: the next one begins at its start again */
} staging_piece;

typedef struct staging_cursor {
  size_t file;
  uint64_t offset;
  uint64_t place;
} staging_cursor;

/* All inputs in order; a cursor of zeros begins. False at the end. */
bool staging_piece_next(const staging *s, staging_cursor *cursor, staging_piece *out);

/* --- passes ------------------------------------------------------------------------------------------------------- */

/* Fills the samples of a direction. False: interrupted, or said why. */
bool staging_measure(staging *s, int direction);
/* Stages everything once through lade. False: interrupted, or said why. */
bool staging_pass(staging *s, int direction);
/* Stages one piece through lade and waits for it. */
bool staging_transfer_piece(staging *s, int direction, const staging_piece *piece);

/* Reads or writes a buffer whole, at `offset` of a piece. False: said why. */
bool staging_host_move(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                       size_t bytes);
/* Whether (e) is measured: it needs threads of its own, which "sim" does not allow. */
static inline bool staging_has_by_hand(const staging *s) { return s->runtime->ops->step == NULL; }
/* Finds the best settings of (e) for a direction and makes its threads. False: said why. */
bool staging_by_hand_open(staging *s, int direction);
bool staging_by_hand_pass(staging *s);
bool staging_by_hand_close(staging *s);

/* --- verification ------------------------------------------------------------------------------------------------- */

/* Stages everything once more, window by window, and compares checksums of source, device and (D2H) sink. */
bool staging_verify(staging *s);

/* --- copies left out ---------------------------------------------------------------------------------------------- */

/* False: said why. */
bool staging_copyless_open(staging *s);
/* The pipeline on it, at its first use. False: said why. */
bool staging_reads_alone_open(staging *s);
/* Both. */
bool staging_copyless_close(staging *s);

/* --- timeline ----------------------------------------------------------------------------------------------------- */

/* --timeline FILE ends in .svg or .json. */
bool staging_timeline_name_is_good(const char *path);
/* Events that the pipeline shall keep for it. */
uint64_t staging_timeline_events(const staging_settings *settings);
/* One more pass in each direction; writes what was done when, and prints a line. False: said why. */
bool staging_timeline_write(staging *s);

/* --- output ------------------------------------------------------------------------------------------------------- */

void staging_progress_start(staging_progress *progress, uint64_t total_bytes);
void staging_progress_add(staging_progress *progress, uint64_t bytes);
void staging_progress_end(staging_progress *progress);

void staging_report_print(const staging *s);
bool staging_report_json(const staging *s);
bool staging_report_plot(const staging *s);

#endif /* LADE_BENCHMARKS_STAGING_H */
