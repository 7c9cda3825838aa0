/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transfer costs beside its bytes: small ones from memory to the device, one after the other and many ahead,
 * against a synchronous copy of the same bytes.
 */
#include <math.h>
#include <stdio.h>

#include "benchmarks/frame.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { BYTES = 4096, TRANSFERS = 4000, AHEAD = 32 };

static struct {
  lade_runtime *runtime;
  lade_pair *pair;
  void *device;
  char host[BYTES];
} world;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) {
    fprintf(stderr, "%s\n", lade_last_error()->text);
  }
  return status == LADE_OK;
}

static bool world_open(void) {
  return world.device != NULL ||
         (succeeded(lade_runtime_open(NULL, NULL, &world.runtime)) &&
          succeeded(lade_pair_create(world.runtime, 0, NULL, &world.pair)) &&
          succeeded(world.runtime->ops->device_alloc(world.runtime->self, 0, BYTES, &world.device)));
}

static bool world_close(void) {
  bool good = world.device == NULL || succeeded(world.runtime->ops->device_free(world.runtime->self, 0, world.device));
  good = succeeded(lade_pair_destroy(world.pair, true)) && good;
  return succeeded(lade_runtime_close(world.runtime)) && good;
}

/* Nanoseconds per transfer with up to `ahead` under way. */
static double transfers_run(unsigned ahead) {
  lade_ticket *tickets[AHEAD];
  lade_transfer transfer;
  bool good = true;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(world.host);
  transfer.device_memory = world.device;
  transfer.bytes = BYTES;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < TRANSFERS + ahead; i++) {
    if (i >= ahead) {
      good = succeeded(lade_ticket_wait(tickets[i % ahead], LADE_WAIT_FOREVER));
      lade_ticket_release(tickets[i % ahead]);
    }
    if (good && i < TRANSFERS) {
      good = succeeded(lade_pipeline_submit(lade_pair_pipeline(world.pair), &transfer, &tickets[i % ahead]));
    }
  }
  return good ? (bench_seconds() - begun) / TRANSFERS * 1e9 : (double)NAN;
}

static double one_run(void *user) {
  (void)user;
  return transfers_run(1);
}

static double ahead_run(void *user) {
  (void)user;
  return transfers_run(AHEAD);
}

static double copy_run(void *user) {
  bool good = true;
  (void)user;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < TRANSFERS; i++) {
    good = succeeded(
        world.runtime->ops->copy_sync(world.runtime->self, 0, LADEI_COPY_H2D, world.device, world.host, BYTES));
  }
  return good ? (bench_seconds() - begun) / TRANSFERS * 1e9 : (double)NAN;
}

static bool one_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {{"lade", one_run, NULL}, {"copy_sync", copy_run, NULL}};
  return world_open() && bench_measure(b, self->name, json_pack("{s:i}", "bytes", BYTES), "ns", variants, 2);
}

static bool ahead_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {{"lade", ahead_run, NULL}, {"copy_sync", copy_run, NULL}};
  return world_open() &&
         bench_measure(b, self->name, json_pack("{s:i, s:i}", "bytes", BYTES, "ahead", AHEAD), "ns", variants, 2);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"one_by_one", "each transfer waited for before the next is submitted", one_case, NULL},
      {"ahead", "32 transfers under way", ahead_case, NULL},
  };
  int exit_status = bench_main(argc, argv, "What does a transfer of 4 KiB cost beside its bytes?", cases, 2);
  return world_close() ? exit_status : 1;
}
