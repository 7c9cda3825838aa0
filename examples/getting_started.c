/* SPDX-License-Identifier: Apache-2.0 */
/* The program of docs/getting-started.md. usage: getting_started [RUNTIME] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lade/lade.h>

enum { BYTES = 1 << 20, STEPS = 1000 };

static void check(lade_status status) {
  if (status == LADE_OK) return;
  fprintf(stderr, "%s\n", lade_last_error()->text);
  exit(1);
}

int main(int argc, char **argv) {
  lade_runtime *runtime;
  lade_pair *pair; /* a pinned pool, a device allocator and a pipeline */
  lade_stream stream;
  void *host, *device;
  check(lade_runtime_open(argc > 1 ? argv[1] : "cpu", NULL, &runtime));
  check(lade_pair_create(runtime, 0, NULL, &pair));
  check(lade_stream_create(runtime, 0, &stream));
  lade_pinned_pool *pool = lade_pair_pinned_pool(pair);
  lade_device_allocator *allocator = lade_pair_device_allocator(pair);

  for (int step = 0; step < STEPS; step++) {
    check(lade_pinned_alloc(pool, BYTES, &host));
    memset(host, step, BYTES);
    check(lade_device_alloc(allocator, BYTES, stream, &device));
    check(lade_copy_async(runtime, device, host, BYTES, stream));
    check(lade_pinned_record_event(pool, host, stream)); /* the stream uses the block */
    check(lade_pinned_free(pool, host));                 /* returns at once, with the copy in flight */
    check(lade_device_free(allocator, device));          /* reused in the order of the stream */
  }

  check(lade_pinned_stream_retire(pool, stream)); /* before the stream is destroyed */
  check(lade_device_stream_retire(allocator, stream));
  check(lade_stream_destroy(runtime, stream));
  check(lade_pair_destroy(pair, false));
  check(lade_runtime_close(runtime));
  printf("%d MiB staged\n", STEPS);
  return 0;
}
