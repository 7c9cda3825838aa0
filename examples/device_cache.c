/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training-like loop on lade's device cache: blocks of varying sizes on one stream, some handed to a second stream for
 * a copy back. After the first rounds no driver allocation is made any more. Settings come from the environment, as in
 * LADE_ALLOC_CONF=expandable_segments:True. While the frees of the driver are held, as around collective calls, the cache keeps all.
 *
 * usage: device_cache [RUNTIME]     cuda, cpu, sim; default: the best one found
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lade/config.h>
#include <lade/device.h>
#include <lade/runtime.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

enum { ROUNDS = 50, LAYERS = 6 };

static _Noreturn void fail(const char *call, const char *reason) {
  fprintf(stderr, "%s: %s\n", call, reason);
  exit(1);
}

typedef struct loop {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream compute, copy;
  lade_event computed;
  unsigned char host[4096];
} loop;

/* One round: activations of every layer, the last one copied back by the other stream. */
static void round_run(loop *l, int number) {
  void *layers[LAYERS];
  for (int i = 0; i < LAYERS; i++) {
    size_t bytes = ((size_t)1 << (16 + i)) + (size_t)(number % 7) * 4096;
    LADE(lade_device_alloc(l->allocator, bytes, l->compute, &layers[i]));
    LADE(lade_copy_async(l->runtime, layers[i], l->host, sizeof l->host, l->compute)); /* in place of a kernel */
  }
  LADE(lade_event_record(l->runtime, l->computed, l->compute));
  LADE(lade_stream_wait_event(l->runtime, l->copy, l->computed));
  LADE(lade_copy_async(l->runtime, l->host, layers[LAYERS - 1], sizeof l->host, l->copy));
  LADE(lade_device_record_stream(l->allocator, layers[LAYERS - 1], l->copy)); /* reuse waits for the copy */
  for (int i = 0; i < LAYERS; i++) LADE(lade_device_free(l->allocator, layers[i]));
}

static lade_status latency_print(const char *key, int64_t value, void *user) {
  (void)user;
  if (strstr(key, ".max") != NULL) printf("%s: %lld ns\n", key, (long long)value);
  return LADE_OK;
}

static lade_device_stats stats_of(const loop *l) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE(lade_device_stats_get(l->allocator, &stats));
  return stats;
}

/* As around calls that cannot bear a free of the driver's beside them: what would go back stays, and goes at the end. */
static void hold_run(const loop *l) {
  lade_status status = lade_device_frees_hold(l->allocator, true);
  if (status == LADE_ERR_UNSUPPORTED) return; /* another backend, by LADE_ALLOC_CONF */
  LADE(status);
  uint64_t frees = stats_of(l).device_frees;
  LADE(lade_device_empty_cache(l->allocator));
  if (stats_of(l).device_frees != frees) fail("a hold", "memory went back to the driver");
  LADE(lade_device_frees_hold(l->allocator, false));
}

int main(int argc, char **argv) {
  loop l = {.runtime = NULL};
  lade_device_options options;
  lade_device_options_init(&options);
  lade_config config;
  lade_config_init(&config);
  config.device = &options;
  LADE(lade_config_from_env(&config));
  LADE(lade_runtime_open(argc > 1 ? argv[1] : NULL, NULL, &l.runtime));
  LADE(lade_device_allocator_create(l.runtime, 0, &options, &l.allocator));
  LADE(lade_device_latency_set(l.allocator, true));
  LADE(lade_stream_create(l.runtime, 0, &l.compute));
  LADE(lade_stream_create(l.runtime, 0, &l.copy));
  LADE(lade_event_create(l.runtime, 0, &l.computed));

  for (int i = 0; i < ROUNDS; i++) {
    round_run(&l, i);
    LADE(lade_stream_synchronize(l.runtime, l.copy));
  }
  lade_device_stats stats = stats_of(&l);
  printf("runtime %s: %llu allocations, %llu of the driver, %.1f MiB reserved, %.1f MiB in use at most\n",
         lade_runtime_name(l.runtime), (unsigned long long)stats.allocation.all.allocated,
         (unsigned long long)stats.device_allocs, (double)stats.reserved_bytes.all.peak / 1048576.0,
         (double)stats.allocated_bytes.all.peak / 1048576.0);
  LADE(lade_device_latency_each(l.allocator, latency_print, NULL));
  if (stats.device_allocs > ROUNDS) fail("cache", "the driver was asked in every round");
  hold_run(&l);

  LADE(lade_event_destroy(l.runtime, l.computed));
  LADE(lade_device_stream_retire(l.allocator, l.copy)); /* before the streams are destroyed */
  LADE(lade_device_stream_retire(l.allocator, l.compute));
  LADE(lade_stream_destroy(l.runtime, l.copy));
  LADE(lade_stream_destroy(l.runtime, l.compute));
  LADE(lade_device_allocator_destroy(l.allocator, true));
  LADE(lade_runtime_close(l.runtime));
  return 0;
}
