/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does it cost that several ranks read a checkpoint once?
 *
 * A model of two layers (--quick) or six, on GPUs 16 (1 GB) or 64 (4 GB), in bfloat16: column- and row-parallel weights, norms, an
 * embedding. Ranks are processes with a device each. "lade" loads with a group. Baselines: "one rank" alone, with all of the storage's rate, and "each reads all", every
 * rank by itself at the same time. A value is the time of the slowest rank from a common start. The row's storage_bytes are
 * what all ranks together have read, by their pipelines, in multiples of the checkpoint.
 *
 * replicated_N, sliced_N   N ranks on "sim", by its clock: a link of 55 GB/s each, and one storage of 12 GB/s for all ranks
 *                          together. Host time does not count; the same values in each repeat, which is checked
 * gpu_replicated, gpu_sliced   as many ranks as GPUs, up to 8, by the wall clock, files in the page cache: the second load of each
 *                          process. Refused below two GPUs
 * nccl_replicated, nccl_sliced   the same with a group over NCCL. Refused where libnccl.so.2 is not found
 * ..._first                the first load of each process: pinned memory is made in it, mappings of other ranks' memory, NCCL's
 *                          channels. The groups are there before
 *
 * Every byte on every rank is compared with the file in each run. Warm-up: each variant once (frame.h). Statistic: median over repeats.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"

enum { RANKS_MOST = 8, HIDDEN = 2048, INNER = 5632, VOCABULARY = 8192, MIB = 1 << 20 };
#define STORAGE_BYTES_PER_S UINT64_C(12000000000)

typedef enum way { BY_GROUP, ONE_RANK, EACH_ALL } way;

typedef struct setting {
  char path[512];
  bool gpu, sliced, nccl;
  unsigned loads; /* of each process; the last one counts */
  uint32_t ranks;
  uint64_t bytes;      /* of all tensors */
  double multiples[3]; /* by way: of the checkpoint, read by all ranks together */
  double values[3];    /* by way: the last; on "sim" all are the same */
} setting;

typedef struct variant {
  setting *s;
  way how;
} variant;

/* A rank's report. */
typedef struct outcome {
  uint64_t ns, read_bytes;
  bool fine;
} outcome;

/* --- the checkpoint ----------------------------------------------------------------------------------------------- */

static bool checkpoint_write(setting *s, unsigned layers) {
  static const struct {
    const char *name;
    unsigned rows, columns;
  } weights[] = {{"q", HIDDEN, HIDDEN},
                 {"o", HIDDEN, HIDDEN},
                 {"up", INNER, HIDDEN},
                 {"down", HIDDEN, INNER},
                 {"norm", 1, HIDDEN}};
  char *header = calloc(1, 128 * 1024);
  size_t length = 1, at = 0;
  if (header == NULL) return false;
  header[0] = '{';
  for (unsigned layer = 0; layer < layers; layer++) {
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
      size_t bytes = (size_t)weights[i].rows * weights[i].columns * 2;
      length += (size_t)sprintf(header + length,
                                "\"layers.%u.%s\":{\"dtype\":\"BF16\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]},",
                                layer, weights[i].name, weights[i].rows, weights[i].columns, at, at + bytes);
      at += bytes;
    }
  }
  size_t last = (size_t)VOCABULARY * HIDDEN * 2;
  length += (size_t)sprintf(header + length,
                            "\"embedding\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]}}",
                            VOCABULARY, HIDDEN, at, at + last);
  s->bytes = at + last;
  while ((8 + length) % 4096 != 0) header[length++] = ' ';
  FILE *file = fopen(s->path, "wb");
  bool fine = file != NULL && fwrite(&length, 8, 1, file) == 1 && fwrite(header, length, 1, file) == 1;
  uint64_t *block = malloc(MIB), state = 1;
  for (uint64_t done = 0; fine && block != NULL && done < s->bytes; done += MIB) {
    for (size_t i = 0; i < MIB / 8; i++) block[i] = state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    fine = fwrite(block, s->bytes - done < MIB ? s->bytes - done : MIB, 1, file) == 1;
  }
  fine = fine && block != NULL;
  free(block);
  free(header);
  if (file != NULL && fclose(file) != 0) fine = false;
  if (!fine) bench_error("cannot write %s", s->path);
  return fine;
}

/* --- one rank ----------------------------------------------------------------------------------------------------- */

static const lade_load_rule rules[] = {
    {.pattern = "*.q", .spread = LADE_SPREAD_SLICE, .dim = 0},
    {.pattern = "*.up", .spread = LADE_SPREAD_SLICE, .dim = 0},
    {.pattern = "*.o", .spread = LADE_SPREAD_SLICE, .dim = 1},
    {.pattern = "*.down", .spread = LADE_SPREAD_SLICE, .dim = 1},
    {.pattern = "embedding", .spread = LADE_SPREAD_SLICE, .dim = 0},
};

/* Whether a tensor of the load is what the file says: rows of a slice one by one. */
static bool tensor_is_right(lade_runtime *runtime, lade_stream stream, const unsigned char *file,
                            const lade_safetensors *opened, const lade_tensor_load *load, uint64_t index,
                            unsigned char *copy) {
  lade_tensor_info info;
  lade_load_slice slice;
  void *memory;
  lade_tensor_info_init(&info);
  lade_load_slice_init(&slice);
  if (lade_safetensors_tensor(opened, index, &info) != LADE_OK ||
      lade_tensor_load_slice(load, index, &slice) != LADE_OK ||
      lade_tensor_load_address(load, index, &memory, NULL) != LADE_OK ||
      lade_copy_async(runtime, copy, memory, slice.bytes, stream) != LADE_OK ||
      lade_stream_synchronize(runtime, stream) != LADE_OK)
    return false;
  const unsigned char *whole = file + info.offset;
  if (slice.spread != LADE_SPREAD_SLICE) return memcmp(copy, whole, info.bytes) == 0;
  uint64_t row = info.shape[1] * 2, run = (slice.end - slice.begin) * 2;
  if (slice.dim == 0) return memcmp(copy, whole + slice.begin * row, slice.bytes) == 0;
  for (uint64_t i = 0; i < info.shape[0]; i++)
    if (memcmp(copy + i * run, whole + i * row + slice.begin * 2, run) != 0) return false;
  return true;
}

static bool load_is_right(const setting *s, lade_runtime *runtime, lade_stream stream, const lade_safetensors *opened,
                          const lade_tensor_load *load) {
  int fd = open(s->path, O_RDONLY);
  off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
  void *file = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  unsigned char *copy = malloc((size_t)VOCABULARY * HIDDEN * 2);
  bool right = file != MAP_FAILED && copy != NULL;
  for (uint64_t i = 0; right && i < lade_safetensors_count(opened); i++)
    right = tensor_is_right(runtime, stream, file, opened, load, i, copy);
  free(copy);
  if (file != MAP_FAILED) (void)munmap(file, (size_t)bytes);
  if (fd >= 0) (void)close(fd);
  if (!right) bench_error("what was loaded is not what the file says");
  return right;
}

/* The objects that a rank loads with. */
typedef struct rank_scene {
  const setting *s;
  way how;
  lade_group *group;
  lade_runtime *runtime;
  lade_safetensors *file;
  lade_pair *pair;
  lade_stream stream;
  bool takes_part;
} rank_scene;

static lade_status rank_open(rank_scene *r, int device) {
  lade_pipeline_options pipeline;
  lade_pair_options options;
  lade_pipeline_options_init(&pipeline);
  lade_pair_options_init(&options);
  pipeline.device = device;
  pipeline.local_ranks = r->how == ONE_RANK ? 1 : r->s->ranks; /* as lade_config_from_env() finds it under a launcher */
  pipeline.storage_total_bytes_per_s = r->s->gpu            ? 0
                                       : r->how == ONE_RANK ? STORAGE_BYTES_PER_S
                                                            : STORAGE_BYTES_PER_S / r->s->ranks;
  options.pipeline = &pipeline;
  lade_status status = lade_pair_create(r->runtime, device, &options, &r->pair);
  if (status == LADE_OK) status = lade_stream_create(r->runtime, device, &r->stream);
  return status == LADE_OK ? lade_safetensors_open(r->s->path, &r->file) : status;
}

static uint64_t bytes_read(const rank_scene *r) {
  lade_pipeline_info moved;
  lade_pipeline_info_init(&moved);
  return lade_pipeline_info_get(lade_pair_pipeline(r->pair), &moved) == LADE_OK ? moved.bytes_completed : 0;
}

static lade_status load_once(const rank_scene *r, outcome *out) {
  lade_load_options options;
  lade_tensor_load *load = NULL;
  lade_load_options_init(&options);
  options.group = r->how == BY_GROUP ? r->group : NULL;
  options.rules = rules;
  options.rule_count = r->how == BY_GROUP && r->s->sliced ? sizeof rules / sizeof *rules : 0;
  lade_load_target target = lade_load_target_pair(r->pair, r->stream);
  uint64_t before = bytes_read(r);
  lade_status status = lade_group_barrier(r->group);
  if (status != LADE_OK) return status;
  uint64_t began_ns = lade_runtime_now_ns(r->runtime);
  if (r->takes_part) status = lade_safetensors_load(r->file, &target, 1, &options, &load);
  if (r->takes_part && status == LADE_OK) status = lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
  out->ns = lade_runtime_now_ns(r->runtime) - began_ns;
  if (status != LADE_OK) return status;
  out->read_bytes = bytes_read(r) - before;
  out->fine = !r->takes_part || load_is_right(r->s, r->runtime, r->stream, r->file, load);
  return r->takes_part ? lade_tensor_load_destroy(load, false) : LADE_OK;
}

static lade_status rank_load(const setting *s, way how, uint32_t rank, lade_group *group, lade_runtime *runtime,
                             outcome *out) {
  rank_scene r = {.s = s, .how = how, .group = group, .runtime = runtime, .takes_part = how != ONE_RANK || rank == 0};
  lade_status status = rank_open(&r, s->gpu ? (int)rank : 0);
  out->fine = true;
  for (unsigned i = 0; i < s->loads && status == LADE_OK && out->fine; i++) status = load_once(&r, out);
  return status != LADE_OK ? status : lade_group_barrier(group);
}

/* Of NCCL's id, and for what else it does not carry, the ranks have the local group, too. */
static lade_status group_make(const setting *s, uint32_t rank, lade_runtime *runtime, lade_group *local,
                              lade_group **out) {
  lade_group_nccl_options options;
  *out = local;
  if (!s->nccl) return LADE_OK;
  lade_group_nccl_options_init(&options);
  options.device = (int32_t)rank;
  return lade_group_create_nccl(runtime, local, &options, out);
}

/* A process of its own, which ends with all that it made. */
static void rank_main(const setting *s, way how, uint32_t rank, const char *name, int tell) {
  lade_group_local_options options;
  lade_soft_options soft;
  lade_runtime_options runtime_options;
  lade_runtime *runtime;
  lade_group *local, *group;
  outcome out = {0};
  lade_soft_options_init(&soft);
  lade_runtime_options_init(&runtime_options);
  runtime_options.soft = &soft;
  lade_group_local_options_init(&options);
  options.name = name;
  options.rank = rank;
  options.size = s->ranks;
  options.device = s->gpu ? (int32_t)rank : 0;
  lade_status status = lade_runtime_open(s->gpu ? "cuda" : "sim", &runtime_options, &runtime);
  if (status == LADE_OK) status = lade_group_create_local(runtime, &options, &local);
  if (status == LADE_OK) status = group_make(s, rank, runtime, local, &group);
  if (status == LADE_OK) status = rank_load(s, how, rank, group, runtime, &out);
  if (status != LADE_OK) bench_error("rank %u: %s", (unsigned)rank, lade_last_error()->text);
  out.fine = out.fine && status == LADE_OK;
  _exit(write(tell, &out, sizeof out) == (ssize_t)sizeof out ? 0 : 1);
}

/* --- all ranks ---------------------------------------------------------------------------------------------------- */

static double ranks_run(void *user) {
  const variant *v = user;
  setting *s = v->s;
  char name[64];
  int pipes[RANKS_MOST][2];
  pid_t pids[RANKS_MOST];
  uint64_t slowest_ns = 0, read_bytes = 0;
  bool fine = true;
  (void)snprintf(name, sizeof name, "bench-%d-%.9f", (int)getpid(), bench_seconds());
  for (uint32_t i = 0; i < s->ranks; i++) {
    if (pipe(pipes[i]) != 0) return NAN;
    pids[i] = fork();
    if (pids[i] == 0) rank_main(s, v->how, i, name, pipes[i][1]);
    (void)close(pipes[i][1]);
  }
  for (uint32_t i = 0; i < s->ranks; i++) {
    outcome out = {0};
    fine = read(pipes[i][0], &out, sizeof out) == (ssize_t)sizeof out && out.fine && fine;
    (void)close(pipes[i][0]);
    (void)waitpid(pids[i], NULL, 0);
    slowest_ns = out.ns > slowest_ns ? out.ns : slowest_ns;
    read_bytes += out.read_bytes;
  }
  double value = (double)slowest_ns / 1e6;
  if (!s->gpu && fine && s->values[v->how] > 0 && s->values[v->how] != value) {
    bench_error("%.6f ms, and %.6f ms the time before: \"sim\" is to repeat itself", value, s->values[v->how]);
    fine = false;
  }
  s->values[v->how] = value;
  s->multiples[v->how] = (double)read_bytes / (double)s->bytes;
  return fine ? value : NAN;
}

/* Devices of "cuda", asked in a process of its own: a driver that was begun does not live through fork(). */
static uint32_t gpus_count(void) {
  pid_t pid = fork();
  int status = 0;
  if (pid == 0) {
    lade_runtime *runtime;
    int count = 0;
    if (lade_runtime_open("cuda", NULL, &runtime) == LADE_OK) (void)lade_runtime_device_count(runtime, &count);
    _exit(count < RANKS_MOST ? count : RANKS_MOST);
  }
  (void)waitpid(pid, &status, 0);
  return WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : 0;
}

typedef struct plan {
  uint32_t ranks; /* 0: as many as GPUs */
  bool sliced, nccl, first;
} plan;

static bool load_case(bench *b, const bench_case *self) {
  const plan *p = self->user;
  setting s = {.gpu = p->ranks == 0,
               .sliced = p->sliced,
               .nccl = p->nccl,
               .loads = p->ranks == 0 && !p->first ? 2 : 1,
               .ranks = p->ranks != 0 ? p->ranks : gpus_count()};
  variant ways[] = {{&s, BY_GROUP}, {&s, ONE_RANK}, {&s, EACH_ALL}};
  const bench_variant variants[] = {
      {"lade", ranks_run, &ways[0]}, {"one rank", ranks_run, &ways[1]}, {"each reads all", ranks_run, &ways[2]}};
  if (s.ranks < 2) {
    bench_error("%s: fewer than two GPUs", self->name);
    return true;
  }
  if (s.nccl && dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == NULL) {
    bench_error("%s: %s", self->name, dlerror());
    return true;
  }
  (void)snprintf(s.path, sizeof s.path, "%s/lade-group-load-%d.safetensors", bench_temporary_folder(), (int)getpid());
  unsigned layers = s.gpu ? (bench_is_quick(b) ? 16 : 64) : (bench_is_quick(b) ? 2 : 6);
  bool fine = checkpoint_write(&s, layers);
  /* Bytes are known before the run is: the plan reads each once, whatever the timing. */
  json_t *params =
      json_pack("{s:i, s:b, s:I}", "ranks", (int)s.ranks, "sliced", (int)s.sliced, "bytes", (json_int_t)s.bytes);
  fine = fine && bench_measure_repeats(b, s.gpu ? 7 : 2, self->name, params, "ms", variants, 3);
  (void)unlink(s.path);
  if (!fine) return false;
  printf("    read from storage: %.3f of the checkpoint, one rank %.3f, each reads all %.3f; time %.3f of one rank's\n",
         s.multiples[BY_GROUP], s.multiples[ONE_RANK], s.multiples[EACH_ALL], s.values[BY_GROUP] / s.values[ONE_RANK]);
  if (s.multiples[BY_GROUP] == 1.0) return true;
  bench_error("%s: the group read %.6f of the checkpoint", self->name, s.multiples[BY_GROUP]);
  return false;
}

int main(int argc, char **argv) {
  static const plan plans[] = {{.ranks = 2},
                               {.ranks = 4},
                               {.ranks = 8},
                               {.ranks = 2, .sliced = true},
                               {.ranks = 4, .sliced = true},
                               {.ranks = 8, .sliced = true},
                               {.ranks = 0},
                               {.sliced = true},
                               {.nccl = true},
                               {.nccl = true, .sliced = true},
                               {.first = true},
                               {.first = true, .sliced = true},
                               {.first = true, .nccl = true},
                               {.first = true, .nccl = true, .sliced = true}};
  static const bench_case cases[] = {
      {"replicated_2", "all on both ranks", load_case, &plans[0]},
      {"replicated_4", "all on four ranks", load_case, &plans[1]},
      {"replicated_8", "all on eight ranks", load_case, &plans[2]},
      {"sliced_2", "slices for two ranks", load_case, &plans[3]},
      {"sliced_4", "slices for four ranks", load_case, &plans[4]},
      {"sliced_8", "slices for eight ranks", load_case, &plans[5]},
      {"gpu_replicated", "all on each GPU", load_case, &plans[6]},
      {"gpu_sliced", "slices for each GPU", load_case, &plans[7]},
      {"nccl_replicated", "all on each GPU, by NCCL", load_case, &plans[8]},
      {"nccl_sliced", "slices for each GPU, by NCCL", load_case, &plans[9]},
      {"gpu_replicated_first", "all on each GPU, first load", load_case, &plans[10]},
      {"gpu_sliced_first", "slices for each GPU, first load", load_case, &plans[11]},
      {"nccl_replicated_first", "all on each GPU, by NCCL, first load", load_case, &plans[12]},
      {"nccl_sliced_first", "slices for each GPU, by NCCL, first load", load_case, &plans[13]},
  };
  return bench_main(argc, argv, "What does it cost that several ranks read a checkpoint once?", cases,
                    sizeof cases / sizeof *cases);
}
