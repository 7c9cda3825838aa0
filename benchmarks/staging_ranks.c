/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes measure together: one for each device, mostly.
 *
 *   begin: which rank?    variables of the launcher, or copies of this process (staging_spawn.c)
 *   join                  a group: of this host ("local"), or of all hosts of the job (MPI); do all want the same?
 *   start, pass, note     all passes of a variant begin together, after a barrier; their times go to all
 *   gather                what each rank is and has measured, for the table (staging_ranks_report.c)
 *
 * The sum is the bytes of all by the time from the first start to the last end. Clocks of different hosts are not compared:
 * each host has its own such time, and the longest counts; the barrier keeps their starts together.
 *
 * K1  All ranks run the same variants in the same order: what decides that is compared before the first pass.
 * K2  A rank that cannot go on tells the group; so the others end at their next barrier, with its words.
 * K3  No wait for another rank is longer than --rank-timeout.
 */
#include "benchmarks/staging_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/local_ranks.h"
#include "benchmarks/staging_messages.h"
#include "benchmarks/staging_spawn.h"

enum { MOST_SPAWNED = 128 };

/* --- this process's rank ------------------------------------------------------------------------------------------- */

static bool variables_read(ladei_local_ranks *out) {
  if (ladei_local_ranks_read(getenv, out) == LADE_OK) return true;
  staging_lade_error("--ranks");
  return false;
}

/* The number of --ranks is that of the launcher, where there is one. */
static bool count_check(const staging_settings *given, const ladei_local_ranks *found, uint32_t count) {
  if (given->rank_count == 0 || given->rank_count == count) return true;
  staging_error("--ranks is %u, and %s started %u; leave the number out", given->rank_count, found->launcher, count);
  return false;
}

bool staging_ranks_begin(staging *s) {
  ladei_local_ranks found;
  if (!s->settings.ranked) return true;
  if (!variables_read(&found)) return false;
  if (found.launcher == NULL) {
    if (s->settings.rank_count == 0) {
      staging_error(
          "--ranks: no launcher (torchrun, mpirun, srun) has set its variables; expected a number of ranks, 1 "
          "to %d, to be started on this host",
          MOST_SPAWNED);
      return false;
    }
    staging_spawn(s->settings.rank_count);
    found.launcher = NULL;
    if (!variables_read(&found)) return false;
    found.launcher = "staging_throughput";
  }
  bool world = found.world_count != 0;
  s->ranks.launcher = found.launcher;
  s->ranks.local_rank = found.rank;
  s->ranks.local_count = found.count;
  s->ranks.rank = world ? found.world_rank : found.rank;
  s->ranks.count = world ? found.world_count : found.count;
  staging_messages_rank(s->ranks.rank);
  return count_check(&s->settings, &found, s->ranks.count);
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

static const char *variable(const char *name) {
  const char *text = getenv(name);
  return text != NULL ? text : "";
}

/* A name that the ranks of one job on one host have in common, and no other job has. */
static void name_make(const staging_ranks *ranks, char *out, size_t room) {
  const char *job = "", *step = "";
  if (strcmp(ranks->launcher, "Slurm") == 0) {
    job = variable("SLURM_JOB_ID");
    step = variable("SLURM_STEP_ID");
  } else if (strcmp(ranks->launcher, "Open MPI") == 0) {
    job = variable("PMIX_NAMESPACE");
  } else if (strcmp(ranks->launcher, "MPICH") != 0) {
    job = variable("TORCHELASTIC_RUN_ID");
    step = variable("MASTER_PORT");
  }
  if (job[0] != '\0')
    snprintf(out, room, "staging-%.40s-%.20s", job, step);
  else
    snprintf(out, room, "staging-parent-%d", (int)getppid());
}

static uint64_t timeout_ns(const staging *s) { return (uint64_t)s->settings.rank_timeout_s * UINT64_C(1000000000); }

/* Ranks of several hosts. MPI numbers them, and is what knows how many there are. */
static bool mpi_open(staging *s) {
  staging_ranks *ranks = &s->ranks;
  lade_group_mpi_options options;
  lade_group_mpi_options_init(&options);
  options.device = s->settings.device;
  options.transport = LADE_GROUP_TRANSPORT_HOST;
  options.initialize = 1;
  options.slot_bytes = 4096; /* nothing but records goes through it */
  options.timeout_ns = timeout_ns(s);
  if (lade_group_create_mpi(s->runtime, &options, &ranks->group) != LADE_OK) {
    staging_lade_error("ranks on several hosts meet by MPI");
    return false;
  }
  if (lade_group_size(ranks->group) == ranks->count && lade_group_rank(ranks->group) == ranks->rank) return true;
  staging_error("--ranks: MPI says rank %u of %u, and %s rank %u of %u", lade_group_rank(ranks->group),
                lade_group_size(ranks->group), ranks->launcher, ranks->rank, ranks->count);
  return false;
}

static bool group_open(staging *s) {
  staging_ranks *ranks = &s->ranks;
  char name[81];
  lade_group_local_options options;
  if (ranks->count != ranks->local_count) return mpi_open(s);
  name_make(ranks, name, sizeof name);
  lade_group_local_options_init(&options);
  options.name = name;
  options.rank = ranks->rank;
  options.size = ranks->count;
  options.device = s->settings.device;
  options.transport = LADE_GROUP_TRANSPORT_HOST;
  options.timeout_ns = timeout_ns(s);
  if (lade_group_create_local(s->runtime, &options, &ranks->group) == LADE_OK) return true;
  staging_lade_error("joining the other ranks");
  return false;
}

/* K1. Settings that all ranks have to agree about. */
typedef struct agreement {
  const char *what;
  uint64_t value;
} agreement;
enum { AGREEMENTS = 9 };

static uint64_t text_hash(const char *text) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return hash;
}

static void agreements_list(const staging *s, agreement *out) {
  const staging_settings *given = &s->settings;
  const agreement all[AGREEMENTS] = {
      {"the number of ranks", s->ranks.count},
      {"--runtime", text_hash(lade_runtime_name(s->runtime))},
      {"--direction", (uint64_t)given->directions[STAGING_H2D] | (uint64_t)given->directions[STAGING_D2H] << 1},
      {"--passes", given->passes},
      {"--no-verify", given->verify},
      {"--chunk", given->chunk_bytes},
      {"--window", given->window_bytes},
      {"--direct", given->direct},
      {"--input", given->input_count},
  };
  memcpy(out, all, sizeof all);
}

static bool agreements_compare(const staging *s) {
  agreement own[AGREEMENTS];
  uint64_t record[AGREEMENTS];
  uint64_t *all = calloc(s->ranks.count, sizeof record);
  agreements_list(s, own);
  for (int i = 0; i < AGREEMENTS; i++) record[i] = own[i].value;
  bool good = all != NULL && lade_group_gather(s->ranks.group, record, sizeof record, all) == LADE_OK;
  if (!good) staging_lade_error("comparing options");
  for (uint32_t at = 0; good && at < s->ranks.count * AGREEMENTS; at++) {
    good = all[at] == all[at % AGREEMENTS];
    if (!good)
      staging_error("%s: rank %u was given something else than rank 0", own[at % AGREEMENTS].what, at / AGREEMENTS);
  }
  free(all);
  return good;
}

/* Ranks beyond the devices share them. */
static bool device_take(staging *s) {
  int devices = 0;
  if (lade_runtime_device_count(s->runtime, &devices) != LADE_OK || devices < 1) {
    staging_lade_error("devices");
    return false;
  }
  s->settings.device = (int)(s->ranks.local_rank % (uint32_t)devices);
  return true;
}

bool staging_ranks_join(staging *s) {
  if (s->ranks.count == 0) return true;
  return device_take(s) && group_open(s) && agreements_compare(s);
}

void staging_ranks_fail(staging *s) {
  if (s->ranks.group == NULL || lade_group_check(s->ranks.group) != LADE_OK) return;
  (void)lade_group_abort(s->ranks.group, LADE_ERR_CANCELLED,
                         staging_interrupted ? "it was interrupted" : staging_last_message());
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

bool staging_ranks_start(staging *s) {
  if (s->ranks.group == NULL || lade_group_barrier(s->ranks.group) == LADE_OK) return true;
  staging_lade_error("waiting for the other ranks");
  return false;
}

/* One rank's part in a pass, by the clock of its host. */
typedef struct rank_pass {
  double begin, end;
  uint64_t bytes;
  uint64_t clock; /* equal where the clocks are */
} rank_pass;

/* Processes of one boot of one machine, in whatever container, have one clock. On virtual time each rank has its own. */
static uint64_t clock_identity(const staging *s) {
  char text[64] = "";
  FILE *file = s->runtime->ops->step == NULL ? fopen("/proc/sys/kernel/random/boot_id", "re") : NULL;
  if (file == NULL) return text_hash("rank") + s->ranks.rank;
  if (fgets(text, sizeof text, file) == NULL) text[0] = '\0';
  fclose(file);
  return text_hash(text);
}

/* From the first start to the last end among the ranks that have the clock of rank `first`. */
static double clock_span(const rank_pass *passes, uint32_t count, uint32_t first) {
  double begin = passes[first].begin, end = passes[first].end;
  for (uint32_t i = first + 1; i < count; i++) {
    if (passes[i].clock != passes[first].clock) continue;
    begin = passes[i].begin < begin ? passes[i].begin : begin;
    end = passes[i].end > end ? passes[i].end : end;
  }
  return end - begin;
}

static double gbps(uint64_t bytes, double seconds) { return (double)bytes / (seconds > 1e-9 ? seconds : 1e-9) * 1e-9; }

static void sample_add(bench_samples *samples, double value) {
  if (samples->count < BENCH_MAX_REPEATS) samples->values[samples->count++] = value;
}

static void passes_sum(staging_rank_samples *out, const rank_pass *passes, uint32_t count, bool one_by_one) {
  double longest = 0, all_times = 0, span = 0, slowest = 0, alone = 0;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) {
    double time = passes[i].end - passes[i].begin, rate = gbps(passes[i].bytes, time);
    double host = clock_span(passes, count, i);
    span = host > span ? host : span;
    all_times += time;
    alone += rate;
    bytes += passes[i].bytes;
    if (time > longest) slowest = rate;
    longest = time > longest ? time : longest;
  }
  sample_add(&out->sum, one_by_one ? alone : gbps(bytes, span));
  sample_add(&out->slowest, slowest);
  sample_add(&out->imbalance, all_times > 0 ? longest * count / all_times : 1);
}

bool staging_ranks_note(staging *s, int direction, staging_variant variant, bool counts, double begin, double end) {
  if (s->ranks.group == NULL) return true;
  rank_pass own = {begin, end, s->inputs.bytes, clock_identity(s)};
  rank_pass *all = calloc(s->ranks.count, sizeof *all);
  bool good = all != NULL && lade_group_gather(s->ranks.group, &own, sizeof own, all) == LADE_OK;
  if (!good)
    staging_lade_error("times of the other ranks");
  else if (counts)
    passes_sum(&s->ranks.samples[direction][variant], all, s->ranks.count, variant == STAGING_ALONE);
  free(all);
  return good;
}

/* --- what rank 0 learns ------------------------------------------------------------------------------------------- */

static void row_fill(const staging *s, staging_rank_row *row) {
  lade_device_info info;
  lade_device_info_init(&info);
  (void)lade_runtime_device_info(s->runtime, s->settings.device, &info);
  *row = (staging_rank_row){.device = s->settings.device,
                            .numa_node = info.numa_node,
                            .bytes = s->inputs.bytes,
                            .readers = s->info.readers,
                            .verified = s->verified};
  if (gethostname(row->host, sizeof row->host - 1) != 0) row->host[0] = '\0';
  snprintf(row->device_name, sizeof row->device_name, "%.63s", info.name);
  double gib = (double)s->inputs.bytes / (double)(UINT64_C(1) << 30);
  for (int d = 0; d < STAGING_DIRECTIONS; d++) {
    row->first_gbps[d] = s->first_gbps[d];
    for (int v = 0; v < STAGING_VARIANTS; v++) {
      if (s->samples[d][v].count > 0) row->gbps[d][v] = bench_median(&s->samples[d][v]);
      if (s->cpu[d][v].count > 0) row->core_s_per_gib[d][v] = bench_median(&s->cpu[d][v]) / gib;
    }
  }
}

bool staging_ranks_gather(staging *s) {
  staging_rank_row own;
  _Static_assert(sizeof own <= LADE_GROUP_RECORD_BYTES, "a row is gathered at once");
  if (s->ranks.group == NULL) return true;
  row_fill(s, &own);
  s->ranks.rows = calloc(s->ranks.count, sizeof *s->ranks.rows);
  if (s->ranks.rows != NULL && lade_group_gather(s->ranks.group, &own, sizeof own, s->ranks.rows) == LADE_OK)
    return true;
  staging_lade_error("results of the other ranks");
  return false;
}

void staging_ranks_close(staging *s) {
  (void)lade_group_destroy(s->ranks.group);
  s->ranks.group = NULL;
  free(s->ranks.rows);
  s->ranks.rows = NULL;
}
