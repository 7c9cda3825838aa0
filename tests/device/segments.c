/* SPDX-License-Identifier: Apache-2.0 */
/* A provider of segments for tests; see segments.h. */
#include "tests/device/segments.h"

#include <string.h>

/* Where no software device has its addresses. */
static const uintptr_t FIRST = (uintptr_t)1 << 52, LAST = (uintptr_t)1 << 53;

static lade_status segments_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  device_segments *own = user;
  (void)device;
  own->alloc_stream = stream;
  if (own->give != LADE_OK) return own->give;
  own->allocs++;
  *out = own->next;
  own->next += bytes;
  return LADE_OK;
}

static lade_status segments_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  device_segments *own = user;
  if (own->take != LADE_OK) return own->take;
  own->frees++;
  own->freed = pointer;
  own->freed_bytes = bytes;
  own->freed_device = device;
  own->freed_stream = stream;
  return LADE_OK;
}

lade_device_plugin device_segments_open(device_segments *segments) {
  lade_device_plugin plugin;
  memset(segments, 0, sizeof *segments);
  segments->memory = segments->next = (char *)FIRST;
  lade_device_plugin_init(&plugin);
  plugin.user = segments;
  plugin.alloc = segments_alloc;
  plugin.free = segments_free;
  return plugin;
}

bool device_segments_has(const device_segments *segments, const void *pointer) {
  uintptr_t address = (uintptr_t)pointer;
  (void)segments;
  return address >= FIRST && address < LAST;
}
