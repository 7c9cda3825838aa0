/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose memory can be watched from outside: `lade top`, `lade stats PID` and `lade stats PID --prometheus` read the
 * counters that it publishes, and `lade snapshot PID -o memory.html` has it take a snapshot. It allocates and frees until its time is over.
 *
 * usage: live_counters RUNTIME [SECONDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lade/lade.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

static _Noreturn void fail(const char *what, const char *reason) {
  fprintf(stderr, "%s: %s\n", what, reason);
  exit(1);
}

static void work(lade_pair *pair, lade_stream stream) {
  enum { BLOCKS = 32 };
  void *pinned[BLOCKS], *device[BLOCKS];
  for (size_t i = 0; i < BLOCKS; i++) {
    LADE(lade_pinned_alloc(lade_pair_pinned_pool(pair), (i + 1) << 16, &pinned[i]));
    LADE(lade_device_alloc(lade_pair_device_allocator(pair), (i + 1) << 18, stream, &device[i]));
  }
  for (size_t i = 0; i < BLOCKS; i++) {
    LADE(lade_device_free(lade_pair_device_allocator(pair), device[i]));
    LADE(lade_pinned_free(lade_pair_pinned_pool(pair), pinned[i]));
  }
}

int main(int argc, char **argv) {
  if (argc < 2) fail(argv[0], "usage: RUNTIME [SECONDS]");
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_publisher *publisher;
  LADE(lade_runtime_open(argv[1], NULL, &runtime));
  LADE(lade_pair_create(runtime, 0, NULL, &pair));
  LADE(lade_stream_create(runtime, 0, &stream));

  lade_part parts[] = {lade_part_device(lade_pair_device_allocator(pair)),
                       lade_part_pinned(lade_pair_pinned_pool(pair)), lade_part_pipeline(lade_pair_pipeline(pair))};
  parts[0].name = "activations";
  parts[1].name = "batches";
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.flags = LADE_PUBLISH_CONTROL; /* `lade snapshot PID` is answered, of this user and of root */
  LADE(lade_publish(parts, 3, &options, &publisher));
  printf("watch it: lade top %ld\n", (long)getpid());
  fflush(stdout);

  long rounds = argc > 2 ? atol(argv[2]) * 10 : 1;
  for (long i = 0; i < rounds; i++) {
    work(pair, stream);
    /* Its thread does so every second, and may be at it just now: the numbers are as fresh then. */
    lade_status refreshed = lade_publish_update(publisher);
    if (refreshed != LADE_ERR_BUSY) LADE(refreshed);
    if (rounds > 1) usleep(100000);
  }
  lade_publisher_destroy(publisher);
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_pair_destroy(pair, false));
  LADE(lade_runtime_close(runtime));
  return 0;
}
