/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a run of staging_throughput, which all of its files see. Includes of their headers point up:
 *
 *   staging_throughput.c  command line, order of events
 *   staging_report.c      table, JSON
 *   staging_timeline.c    what each thread and the link do in a pass: picture, Chrome trace
 *   staging_verify.c      checksums of what lies on the device
 *   staging_passes.c      what is timed: lade and its baselines
 *   staging_by_hand.c     what an expert writes instead: the baseline (e)
 *   staging_copyless.c    the runtime with the copies left out
 *   staging_host_io.c     reads and writes of files as the baselines make them
 *   staging_inputs.c      files to stage, and their pieces
 *   staging_ranks.c       --ranks: several processes that measure together
 *   staging_ranks_report.c  their table
 *   staging_spawn.c       ranks without a launcher
 *   staging_progress.c    bar on a terminal
 *   staging_messages.c    what goes to stderr; SIGINT and SIGTERM
 */
#ifndef LADE_BENCHMARKS_STAGING_H
#define LADE_BENCHMARKS_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "benchmarks/frame.h"
#include "benchmarks/staging_progress.h"
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
  /* Of ranks only. */
  STAGING_PINNED, /* lade, out of pinned memory */
  STAGING_ALONE,  /* the ceiling of each rank while the others wait */
  STAGING_VARIANTS
} staging_variant;

/* The best found for (e). */
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
  uint64_t under_way_bytes;
  uint32_t readers;
  uint32_t passes;
  uint32_t slow_passes; /* of (b), (c) and the loop of reads; 0: as many */
  bool verify;
  bool direct;
  uint32_t storage; /* lade_storage */
  uint64_t window_bytes;
  const char *json_path;
  const char *timeline_path;
  bool timeline_first; /* of the first pass, not of one more */
  bool ranked;         /* --ranks */
  uint32_t rank_count; /* its number; 0: the launcher says it */
  uint32_t rank_timeout_s;
} staging_settings;

/* A rank's record for rank 0, by lade_group_gather(). */
typedef struct staging_rank_row {
  char host[64], device_name[64];
  int32_t device, numa_node;
  uint64_t bytes;                                              /* of its share */
  double gbps[STAGING_DIRECTIONS][STAGING_VARIANTS];           /* median; 0: not measured */
  double core_s_per_gib[STAGING_DIRECTIONS][STAGING_VARIANTS]; /* the same */
  double first_gbps[STAGING_DIRECTIONS];
  uint32_t readers, verified;
} staging_rank_row;

/* The passes of a variant in all ranks. */
typedef struct staging_rank_samples {
  bench_samples sum;       /* GB/s: bytes of all / time from the first start to the last end */
  bench_samples slowest;   /* GB/s of the rank that took longest for its share */
  bench_samples imbalance; /* the longest time / the mean time */
} staging_rank_samples;

typedef struct staging_ranks {
  uint32_t rank, count; /* count 0: this process is alone */
  uint32_t local_rank, local_count;
  const char *launcher;
  lade_group *group;
  staging_rank_row *rows; /* of all ranks, after staging_ranks_gather() */
  staging_rank_samples samples[STAGING_DIRECTIONS][STAGING_VARIANTS];
} staging_ranks;

typedef struct staging_file {
  char *path;  /* or the URL */
  bool is_url; /* `fd` is of a copy, which the baselines read */
  int fd;
  int direct_fd;  /* --direct: the same with O_DIRECT; else -1 */
  uint64_t first; /* where the part begins that this process stages: 0 except for ranks */
  uint64_t bytes; /* of the part */
} staging_file;

typedef struct staging_inputs {
  staging_file *files;
  size_t count;
  uint64_t bytes; /* of all together */
  bool generated;
} staging_inputs;

typedef struct staging {
  staging_settings settings;
  staging_inputs inputs;
  staging_ranks ranks;
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
  struct crew *crew;    /* threads of (e), of staging_by_hand.c */
  staging_by_hand by_hand[STAGING_DIRECTIONS];
  lade_pipeline_info info;                                   /* chosen settings */
  struct staging_recorded *first_passes[STAGING_DIRECTIONS]; /* of staging_passes.c; NULL: none kept */
  double first_gbps[STAGING_DIRECTIONS];                     /* of the process's first pass */
  bool verified;
  bench_samples samples[STAGING_DIRECTIONS][STAGING_VARIANTS]; /* GB/s */
  bench_samples cpu[STAGING_DIRECTIONS][STAGING_VARIANTS];     /* core-seconds of a pass */
} staging;

#endif /* LADE_BENCHMARKS_STAGING_H */
