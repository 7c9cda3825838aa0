/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory from an allocator of the program's own, under lade's calls: slots of one size in a block that was
 * taken once. lade counts, waits for other streams before a slot comes back, and refuses wrong pointers.
 *
 * usage: own_device_backend [RUNTIME]     cuda, cpu, sim; default: the best one found
 */
#include <stdio.h>
#include <stdlib.h>

#include <lade/device.h>
#include <lade/runtime.h>

#define LADE(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call) != LADE_OK) fail(#call, lade_last_error()->text);                                                       \
  } while (0)

enum { SLOTS = 8, SLOT_BYTES = 1 << 20, ROUNDS = 100 };

static _Noreturn void fail(const char *call, const char *reason) {
  fprintf(stderr, "%s: %s\n", call, reason);
  exit(1);
}

/* One thread uses it here; with more, it needs a lock of its own. */
typedef struct slots {
  char *base;
  int free_list[SLOTS];
  int free_count;
} slots;

static lade_status slot_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  slots *s = user;
  (void)device;
  (void)stream; /* all blocks here are of one stream, whose order keeps the uses of a slot apart */
  if (bytes > SLOT_BYTES || s->free_count == 0) return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  *out = s->base + (size_t)s->free_list[--s->free_count] * SLOT_BYTES;
  return LADE_OK;
}

/* Other streams are done with the slot; work queued on its own stream may still use it. */
static lade_status slot_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  slots *s = user;
  (void)bytes;
  (void)device;
  (void)stream;
  s->free_list[s->free_count++] = (int)(((char *)pointer - s->base) / SLOT_BYTES);
  return LADE_OK;
}

static void slots_fill(slots *s, void *base) {
  s->base = base;
  s->free_count = SLOTS;
  for (int i = 0; i < SLOTS; i++) s->free_list[i] = SLOTS - 1 - i;
}

static void rounds_run(lade_runtime *runtime, lade_device_allocator *allocator, lade_stream compute, lade_stream copy) {
  static unsigned char input[4096], output[4096]; /* the last copy out may still run while the next one reads */
  for (int i = 0; i < ROUNDS; i++) {
    void *block;
    LADE(lade_device_alloc(allocator, SLOT_BYTES, compute, &block));
    LADE(lade_copy_async(runtime, block, input, sizeof input, compute)); /* in place of a kernel */
    LADE(lade_stream_synchronize(runtime, compute));
    LADE(lade_copy_async(runtime, output, block, sizeof output, copy));
    LADE(lade_device_record_stream(allocator, block, copy)); /* the slot comes back after the copy */
    LADE(lade_device_free(allocator, block));
  }
}

int main(int argc, char **argv) {
  lade_runtime *runtime;
  lade_device_allocator *native, *own;
  lade_stream compute, copy;
  void *base;
  slots s;
  LADE(lade_runtime_open(argc > 1 ? argv[1] : NULL, NULL, &runtime));
  LADE(lade_stream_create(runtime, 0, &compute));
  LADE(lade_stream_create(runtime, 0, &copy));
  LADE(lade_device_allocator_create(runtime, 0, NULL, &native));
  LADE(lade_device_alloc(native, (size_t)SLOTS * SLOT_BYTES, compute, &base));
  slots_fill(&s, base);

  lade_device_plugin plugin;
  lade_device_plugin_init(&plugin);
  plugin.user = &s;
  plugin.alloc = slot_alloc;
  plugin.free = slot_free;
  lade_device_options options;
  lade_device_options_init(&options);
  options.plugin = &plugin;
  LADE(lade_device_allocator_create(runtime, 0, &options, &own));
  rounds_run(runtime, own, compute, copy);
  LADE(lade_device_empty_cache(own)); /* waits for the last copies */

  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE(lade_device_stats_get(own, &stats));
  printf("own backend: %llu blocks, at most %llu at a time, %llu waited for memory\n",
         (unsigned long long)stats.allocation.all.allocated, (unsigned long long)stats.active.all.peak,
         (unsigned long long)stats.alloc_retries);
  if (s.free_count != SLOTS) fail("slots", "some did not come back");

  LADE(lade_device_stream_retire(own, copy)); /* before the streams are destroyed */
  LADE(lade_device_stream_retire(own, compute));
  LADE(lade_device_allocator_destroy(own, true));
  LADE(lade_device_free(native, base));
  LADE(lade_device_stream_retire(native, compute));
  LADE(lade_device_allocator_destroy(native, true));
  LADE(lade_stream_destroy(runtime, copy));
  LADE(lade_stream_destroy(runtime, compute));
  LADE(lade_runtime_close(runtime));
  return 0;
}
