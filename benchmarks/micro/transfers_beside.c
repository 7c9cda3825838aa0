/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Effect of transfers on each other: small ones beside a bulk transfer, one direction beside the other, and two pipelines on one
 * device. Sources are pages of a file in memory; sinks are memory of the program. After a pass that does not count.
 *
 *   small_median, small_p99   64 KiB of one submitter, one after the other, beside the bulk of another; urgent ones; alone.
 *   foreign_median, foreign_p99, foreign_rate   64 KiB copies of the program's own, one every 2 ms, beside eight bulks from a file
 *                             (of background priority, too) or pinned memory, or beside plain copies of 32 MiB, all queued on one stream; alone. Microseconds; and
 *                             GB/s of the bulk meanwhile, which "undisturbed" has without the small ones
 *   both_ways                 bulk to the device and to the host at once, staged, and from and to pinned memory, against pinned
 *                             copies of 32 MiB both ways at once by the driver alone; GB/s of both together
 *   two_pipelines             what the slower has done when the faster is through, as a part; against two submitters of one
 *                             pipeline
 *   windows, windows_512m     one transfer to the device by pipelines of different window_bytes, against pinned copies; GB/s
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { SMALL_BYTES = 64 << 10, MOST_SMALL = 1 << 16, COPY_BYTES = 32 << 20, WINDOWS = 6 };

/* MiB; the first is the default. */
static const uint64_t windows[WINDOWS] = {0, 64, 80, 128, 160, 256};

static struct {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_pipeline *beside;            /* another one on the pair's pool */
  lade_pipeline *windowed[WINDOWS]; /* and one for each size */
  int fd;                           /* of `bytes` in memory */
  uint64_t bytes;                   /* of a bulk */
  char *device;                     /* of two bulks and a small one */
  char *host;                       /* pageable, of a bulk */
  char *pinned[2];                  /* of COPY_BYTES each */
  lade_stream streams[2];
  ladei_stream resolved[2];
  char small[SMALL_BYTES];
  double latencies[MOST_SMALL];
} world;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) fprintf(stderr, "%s\n", lade_last_error()->text);
  return status == LADE_OK;
}

static bool file_make(void) {
  world.fd = memfd_create("transfers_beside", MFD_CLOEXEC);
  bool good = world.fd >= 0 && ftruncate(world.fd, (off_t)world.bytes) == 0;
  void *pages = good ? mmap(NULL, world.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, world.fd, 0) : MAP_FAILED;
  if (pages == MAP_FAILED) {
    perror("a file in memory");
    return false;
  }
  memset(pages, 1, world.bytes);
  return munmap(pages, world.bytes) == 0;
}

static bool streams_open(void) {
  const lade_runtime_ops *ops = world.runtime->ops;
  bool good = true;
  for (int i = 0; i < 2 && good; i++) {
    good = succeeded(lade_stream_create(world.runtime, 0, &world.streams[i])) &&
           succeeded(ops->stream_resolve(world.runtime->self, world.streams[i], &world.resolved[i])) &&
           succeeded(ops->host_alloc(world.runtime->self, 0, COPY_BYTES, 0, (void **)&world.pinned[i]));
    if (good) memset(world.pinned[i], 1, COPY_BYTES);
  }
  return good;
}

static bool world_open(const bench *b) {
  if (world.device != NULL) return true;
  if (!succeeded(lade_runtime_open(NULL, NULL, &world.runtime))) return false;
  bool gpu = strcmp(lade_runtime_name(world.runtime), "cuda") == 0;
  world.bytes = UINT64_C(1) << (gpu ? (bench_is_quick(b) ? 30 : 32) : (bench_is_quick(b) ? 25 : 27));
  world.host = malloc(world.bytes);
  if (world.host == NULL || !file_make()) return false;
  memset(world.host, 1, world.bytes);
  return succeeded(lade_pair_create(world.runtime, 0, NULL, &world.pair)) &&
         succeeded(lade_pipeline_create(world.runtime, lade_pair_pinned_pool(world.pair), NULL, &world.beside)) &&
         streams_open() &&
         succeeded(world.runtime->ops->device_alloc(world.runtime->self, 0, 2 * world.bytes + SMALL_BYTES,
                                                    (void **)&world.device));
}

static bool windows_open(void) {
  bool good = true;
  for (size_t i = 0; i < WINDOWS && good && world.windowed[i] == NULL; i++) {
    lade_pipeline_options options;
    lade_pipeline_options_init(&options);
    options.window_bytes = windows[i] << 20;
    good =
        succeeded(lade_pipeline_create(world.runtime, lade_pair_pinned_pool(world.pair), &options, &world.windowed[i]));
  }
  return good;
}

static bool world_close(void) {
  bool good = true;
  if (world.runtime == NULL) return true;
  const lade_runtime_ops *ops = world.runtime->ops;
  if (world.device != NULL) good = succeeded(ops->device_free(world.runtime->self, 0, world.device));
  for (int i = 0; i < 2; i++) {
    if (world.pinned[i] != NULL) good = succeeded(ops->host_free(world.runtime->self, world.pinned[i])) && good;
    if (world.streams[i] != NULL) good = succeeded(lade_stream_destroy(world.runtime, world.streams[i])) && good;
  }
  for (size_t i = 0; i < WINDOWS; i++) good = succeeded(lade_pipeline_destroy(world.windowed[i], true)) && good;
  good = succeeded(lade_pipeline_destroy(world.beside, true)) && good;
  good = succeeded(lade_pair_destroy(world.pair, true)) && good;
  good = succeeded(lade_runtime_close(world.runtime)) && good;
  free(world.host);
  if (world.fd > 0) close(world.fd);
  return good;
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/* NULL: failed, and said why. */
static lade_ticket *bulk_submit(lade_pipeline *pipeline, lade_direction direction, lade_endpoint host, char *device,
                                uint64_t submitter, int32_t priority) {
  lade_transfer transfer;
  lade_ticket *ticket = NULL;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.priority = priority;
  transfer.host = host;
  transfer.device_memory = device;
  transfer.bytes = world.bytes;
  transfer.submitter = submitter;
  return succeeded(lade_pipeline_submit(pipeline, &transfer, &ticket)) ? ticket : NULL;
}

static bool finish(lade_ticket *ticket) {
  if (ticket == NULL) return false;
  bool good = succeeded(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  return good;
}

static lade_endpoint file_endpoint(void) { return lade_endpoint_file(world.fd, 0, "file in memory"); }

/* --- small ones --------------------------------------------------------------------------------------------------- */

typedef struct small_run {
  bool bulk;
  int32_t priority;
  double part; /* of the latencies, in order: 0.5 or 0.99 */
} small_run;

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Microseconds of one of 64 KiB; NAN: failed. */
static double small_latency(int32_t priority) {
  lade_transfer transfer;
  lade_ticket *ticket = NULL;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(world.small);
  transfer.device_memory = world.device + 2 * world.bytes;
  transfer.bytes = SMALL_BYTES;
  transfer.submitter = 2;
  transfer.priority = priority;
  double begun = bench_seconds();
  if (!succeeded(lade_pipeline_submit(lade_pair_pipeline(world.pair), &transfer, &ticket)) || !finish(ticket))
    return (double)NAN;
  return (bench_seconds() - begun) * 1e6;
}

/* As long as a bulk takes, or 100 of them alone. */
static double small_value(void *user) {
  const small_run *run = user;
  lade_pipeline *pipeline = lade_pair_pipeline(world.pair);
  lade_ticket *bulk =
      run->bulk ? bulk_submit(pipeline, LADE_TO_DEVICE, file_endpoint(), world.device, 1, LADE_PRIORITY_NORMAL)
                : (lade_ticket *)NULL;
  if (run->bulk && bulk == NULL) return (double)NAN;
  size_t count = 0;
  bool good = true;
  while (good && count < MOST_SMALL &&
         (run->bulk ? lade_ticket_wait(bulk, 0) == LADE_ERR_TIMEOUT || count == 0 : count < 100)) {
    world.latencies[count] = small_latency(run->priority);
    good = !isnan(world.latencies[count]);
    count++;
  }
  if (run->bulk) good = finish(bulk) && good;
  qsort(world.latencies, count, sizeof world.latencies[0], ascending);
  return good ? world.latencies[(size_t)((double)(count - 1) * run->part)] : (double)NAN;
}

static bool small_case(bench *b, const bench_case *self) {
  double part = *(const double *)self->user;
  small_run beside = {true, LADE_PRIORITY_NORMAL, part};
  small_run urgent = {true, LADE_PRIORITY_URGENT, part};
  small_run alone = {false, LADE_PRIORITY_NORMAL, part};
  const bench_variant variants[] = {
      {"lade", small_value, &beside}, {"urgent", small_value, &urgent}, {"alone", small_value, &alone}};
  return world_open(b) && bench_measure(b, self->name, json_pack("{s:i}", "bytes", SMALL_BYTES), "us", variants, 3);
}

/* --- both ways ---------------------------------------------------------------------------------------------------- */

static double both_rate(lade_ticket *down, lade_ticket *up, double begun) {
  bool good = finish(down);
  good = finish(up) && good;
  return good ? 2 * (double)world.bytes / (bench_seconds() - begun) * 1e-9 : (double)NAN;
}

static double both_staged(void *user) {
  (void)user;
  lade_pipeline *pipeline = lade_pair_pipeline(world.pair);
  double begun = bench_seconds();
  lade_ticket *down = bulk_submit(pipeline, LADE_TO_DEVICE, file_endpoint(), world.device, 1, LADE_PRIORITY_NORMAL);
  lade_ticket *up = bulk_submit(pipeline, LADE_TO_HOST, lade_endpoint_memory(world.host), world.device + world.bytes, 1,
                                LADE_PRIORITY_NORMAL);
  return both_rate(down, up, begun);
}

/* One way alone: twice its rate would be no loss. */
static double staged_down(void *user) {
  (void)user;
  double begun = bench_seconds();
  bool good = finish(bulk_submit(lade_pair_pipeline(world.pair), LADE_TO_DEVICE, file_endpoint(), world.device, 1,
                                 LADE_PRIORITY_NORMAL));
  return good ? (double)world.bytes / (bench_seconds() - begun) * 1e-9 : (double)NAN;
}

/* Pieces of COPY_BYTES from or to the same pinned memory. */
static lade_ticket *pinned_submit(lade_direction direction, char *pinned, char *device) {
  size_t count = (size_t)(world.bytes / COPY_BYTES);
  lade_piece *pieces = calloc(count, sizeof *pieces);
  lade_transfer transfer;
  lade_ticket *ticket = NULL;
  if (pieces == NULL) return NULL;
  for (size_t i = 0; i < count; i++)
    pieces[i] = (lade_piece){lade_endpoint_memory(pinned), device + i * COPY_BYTES, COPY_BYTES};
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.pieces = pieces;
  transfer.piece_count = count;
  transfer.bytes = world.bytes;
  (void)succeeded(lade_pipeline_submit(lade_pair_pipeline(world.pair), &transfer, &ticket));
  free(pieces);
  return ticket;
}

static double both_pinned(void *user) {
  (void)user;
  double begun = bench_seconds();
  lade_ticket *down = pinned_submit(LADE_TO_DEVICE, world.pinned[0], world.device);
  lade_ticket *up = pinned_submit(LADE_TO_HOST, world.pinned[1], world.device + world.bytes);
  return both_rate(down, up, begun);
}

static double both_copies(void *user) {
  const lade_runtime_ops *ops = world.runtime->ops;
  void *self = world.runtime->self;
  bool good = true;
  (void)user;
  double begun = bench_seconds();
  for (uint64_t at = 0; at < world.bytes && good; at += COPY_BYTES) {
    char *down = world.device + at, *up = world.device + world.bytes + at;
    good = succeeded(ops->copy(self, LADEI_COPY_H2D, down, world.pinned[0], COPY_BYTES, &world.resolved[0])) &&
           succeeded(ops->copy(self, LADEI_COPY_D2H, world.pinned[1], up, COPY_BYTES, &world.resolved[1]));
  }
  for (int i = 0; i < 2; i++) good = succeeded(ops->stream_synchronize(self, &world.resolved[i])) && good;
  return good ? 2 * (double)world.bytes / (bench_seconds() - begun) * 1e-9 : (double)NAN;
}

static bool both_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {{"lade", both_staged, NULL},
                                    {"lade_pinned", both_pinned, NULL},
                                    {"copies", both_copies, NULL},
                                    {"one_way", staged_down, NULL}};
  return world_open(b) &&
         bench_measure(b, self->name, json_pack("{s:I}", "bytes", (json_int_t)world.bytes), "GB/s", variants, 4);
}

/* --- copies of the program's own ---------------------------------------------------------------------------------- */

/* Each of the five variants moves FOREIGN_BULKS bulks of 4 GiB in a round: 3 s at the speed of a link, so 15 rounds are
 * more than a minute. */
enum { FOREIGN_BULKS = 8, FOREIGN_EVERY_NS = 2000000, FOREIGN_ALONE = 200, FOREIGN_REPEATS = 5 };

typedef enum foreign_bulk { FOREIGN_NONE, FOREIGN_STAGED, FOREIGN_PINNED, FOREIGN_COPIES } foreign_bulk;

typedef struct foreign_run {
  foreign_bulk bulk;
  bool undisturbed; /* no small copies */
  double part;      /* of the latencies, in order; 0: GB/s of the bulk */
  int32_t priority; /* of what is staged */
} foreign_run;

static bool foreign_copy(double *out_us) {
  const lade_runtime_ops *ops = world.runtime->ops;
  void *self = world.runtime->self;
  double begun = bench_seconds();
  bool good = succeeded(ops->copy(self, LADEI_COPY_H2D, world.device + 2 * world.bytes, world.pinned[1], SMALL_BYTES,
                                  &world.resolved[1])) &&
              succeeded(ops->stream_synchronize(self, &world.resolved[1]));
  *out_us = (bench_seconds() - begun) * 1e6;
  return good;
}

static bool copies_queue(void) {
  const lade_runtime_ops *ops = world.runtime->ops;
  bool good = true;
  for (uint64_t at = 0; at < world.bytes && good; at += COPY_BYTES) {
    good = succeeded(ops->copy(world.runtime->self, LADEI_COPY_H2D, world.device + at, world.pinned[0], COPY_BYTES,
                               &world.resolved[0]));
  }
  return good;
}

/* Whether the bulk is over; `ticket` NULL: plain copies. */
static bool foreign_is_over(lade_ticket *ticket) {
  if (ticket != NULL) return lade_ticket_wait(ticket, 0) != LADE_ERR_TIMEOUT;
  return world.runtime->ops->stream_query(world.runtime->self, &world.resolved[0]) != LADE_NOT_READY;
}

/* One bulk, and small copies at every tick until it is over. */
static bool foreign_beside(const foreign_run *run, size_t *count) {
  lade_ticket *ticket = NULL;
  if (run->bulk == FOREIGN_STAGED)
    ticket =
        bulk_submit(lade_pair_pipeline(world.pair), LADE_TO_DEVICE, file_endpoint(), world.device, 1, run->priority);
  else if (run->bulk == FOREIGN_PINNED)
    ticket = pinned_submit(LADE_TO_DEVICE, world.pinned[0], world.device);
  bool good = run->bulk == FOREIGN_COPIES ? copies_queue() : ticket != NULL;
  double tick = bench_seconds();
  while (good && !run->undisturbed && *count < MOST_SMALL && !foreign_is_over(ticket)) {
    good = foreign_copy(&world.latencies[(*count)++]);
    tick += FOREIGN_EVERY_NS * 1e-9;
    double left = tick - bench_seconds();
    if (left > 0)
      (void)usleep((useconds_t)(left * 1e6));
    else
      tick = bench_seconds();
  }
  if (ticket != NULL) return finish(ticket) && good;
  return succeeded(world.runtime->ops->stream_synchronize(world.runtime->self, &world.resolved[0])) && good;
}

static double foreign_value(void *user) {
  const foreign_run *run = user;
  size_t count = 0;
  bool good = true;
  double begun = bench_seconds();
  for (int i = 0; i < FOREIGN_BULKS && good && run->bulk != FOREIGN_NONE; i++) good = foreign_beside(run, &count);
  double seconds = bench_seconds() - begun;
  while (good && run->bulk == FOREIGN_NONE && count < FOREIGN_ALONE) {
    good = foreign_copy(&world.latencies[count++]);
    (void)usleep(FOREIGN_EVERY_NS / 1000);
  }
  if (!good) return (double)NAN;
  if (run->part == 0) return FOREIGN_BULKS * (double)world.bytes / seconds * 1e-9;
  if (count == 0) return (double)NAN;
  qsort(world.latencies, count, sizeof world.latencies[0], ascending);
  return world.latencies[(size_t)((double)(count - 1) * run->part)];
}

static bool foreign_case(bench *b, const bench_case *self) {
  double part = *(const double *)self->user;
  bool rate = part == 0;
  foreign_run staged = {.bulk = FOREIGN_STAGED, .part = part}, pinned = {.bulk = FOREIGN_PINNED, .part = part};
  foreign_run copies = {.bulk = FOREIGN_COPIES, .part = part}, alone = {.bulk = FOREIGN_NONE, .part = part};
  foreign_run undisturbed = {.bulk = FOREIGN_STAGED, .undisturbed = true, .part = part};
  foreign_run background = {.bulk = FOREIGN_STAGED, .part = part, .priority = LADE_PRIORITY_BACKGROUND};
  const bench_variant variants[] = {{"lade", foreign_value, &staged},
                                    {"lade_background", foreign_value, &background},
                                    {"lade_pinned", foreign_value, &pinned},
                                    {"copies", foreign_value, &copies},
                                    rate ? (bench_variant){"undisturbed", foreign_value, &undisturbed}
                                         : (bench_variant){"alone", foreign_value, &alone}};
  return world_open(b) &&
         bench_measure_repeats(b, bench_is_quick(b) ? 3 : FOREIGN_REPEATS, self->name,
                               json_pack("{s:I}", "bytes", (json_int_t)world.bytes), rate ? "GB/s" : "us", variants, 5);
}

/* --- two pipelines ------------------------------------------------------------------------------------------------ */

static uint64_t bytes_done(lade_ticket *ticket) {
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  (void)lade_ticket_query(ticket, &info);
  return info.bytes_done;
}

static double share_value(void *two) {
  lade_pipeline *second = *(const bool *)two ? world.beside : lade_pair_pipeline(world.pair);
  lade_ticket *tickets[] = {
      bulk_submit(lade_pair_pipeline(world.pair), LADE_TO_DEVICE, file_endpoint(), world.device, 1,
                  LADE_PRIORITY_NORMAL),
      bulk_submit(second, LADE_TO_DEVICE, file_endpoint(), world.device + world.bytes, 3, LADE_PRIORITY_NORMAL)};
  uint64_t slower = 0;
  bool over = tickets[0] == NULL || tickets[1] == NULL;
  while (!over) {
    for (int i = 0; i < 2 && !over; i++) {
      over = lade_ticket_wait(tickets[i], UINT64_C(200000)) != LADE_ERR_TIMEOUT;
      if (over) slower = bytes_done(tickets[1 - i]);
    }
  }
  bool good = finish(tickets[0]);
  good = finish(tickets[1]) && good;
  return good ? (double)slower / (double)world.bytes : (double)NAN;
}

static bool share_case(bench *b, const bench_case *self) {
  bool two = true, one = false;
  const bench_variant variants[] = {{"lade", share_value, &two}, {"one_pipeline", share_value, &one}};
  return world_open(b) &&
         bench_measure(b, self->name, json_pack("{s:I}", "bytes", (json_int_t)world.bytes), "part", variants, 2);
}

/* --- windows ------------------------------------------------------------------------------------------------------ */

typedef struct window_run {
  size_t window; /* WINDOWS: pinned copies instead */
  uint64_t bytes;
} window_run;

static bool window_transfer(const window_run *run) {
  lade_transfer transfer;
  lade_ticket *ticket = NULL;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = file_endpoint();
  transfer.device_memory = world.device;
  transfer.bytes = run->bytes;
  return succeeded(lade_pipeline_submit(world.windowed[run->window], &transfer, &ticket)) && finish(ticket);
}

static bool window_copies(uint64_t bytes) {
  const lade_runtime_ops *ops = world.runtime->ops;
  bool good = true;
  for (uint64_t at = 0; at < bytes && good; at += COPY_BYTES) {
    good = succeeded(ops->copy(world.runtime->self, LADEI_COPY_H2D, world.device + at, world.pinned[0], COPY_BYTES,
                               &world.resolved[0]));
  }
  return succeeded(ops->stream_synchronize(world.runtime->self, &world.resolved[0])) && good;
}

static double window_value(void *user) {
  const window_run *run = user;
  double begun = bench_seconds();
  bool good = run->window < WINDOWS ? window_transfer(run) : window_copies(run->bytes);
  return good ? (double)run->bytes / (bench_seconds() - begun) * 1e-9 : (double)NAN;
}

static bool window_case(bench *b, const bench_case *self) {
  static const char *const names[] = {"lade", "64M", "80M", "128M", "160M", "256M", "copies"};
  window_run runs[WINDOWS + 1];
  bench_variant variants[WINDOWS + 1];
  if (!world_open(b) || !windows_open()) return false;
  uint64_t limit = self->user != NULL ? *(const uint64_t *)self->user : world.bytes;
  uint64_t bytes = limit < world.bytes ? limit : world.bytes;
  for (size_t i = 0; i <= WINDOWS; i++) {
    runs[i] = (window_run){i, bytes};
    variants[i] = (bench_variant){names[i], window_value, &runs[i]};
  }
  return bench_measure_repeats(b, bench_is_quick(b) ? 3 : 9, self->name, json_pack("{s:I}", "bytes", (json_int_t)bytes),
                               "GB/s", variants, WINDOWS + 1);
}

int main(int argc, char **argv) {
  static const double median = 0.5, p99 = 0.99, rate = 0;
  static const uint64_t short_bytes = UINT64_C(512) << 20;
  static const bench_case cases[] = {
      {"small_median", "64 KiB beside a bulk transfer, median", small_case, &median},
      {"small_p99", "64 KiB beside a bulk transfer, 99th percentile", small_case, &p99},
      {"foreign_median", "64 KiB of the program's own beside a bulk transfer, median", foreign_case, &median},
      {"foreign_p99", "the same, 99th percentile", foreign_case, &p99},
      {"foreign_rate", "the bulk transfer meanwhile", foreign_case, &rate},
      {"both_ways", "to the device and to the host at once", both_case, NULL},
      {"two_pipelines", "what the slower of two has done when the faster is through", share_case, NULL},
      {"windows", "blocks under way: the default, and other sizes", window_case, NULL},
      {"windows_512m", "the same, 512 MiB", window_case, &short_bytes},
  };
  int exit_status =
      bench_main(argc, argv, "What do transfers do to each other?", cases, sizeof cases / sizeof cases[0]);
  return world_close() ? exit_status : 1;
}
