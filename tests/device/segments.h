/* SPDX-License-Identifier: Apache-2.0 */
/* A provider of segments for tests: addresses one after the other, and what it was asked. For software devices without
 * bytes. */
#ifndef LADE_TESTS_DEVICE_SEGMENTS_H
#define LADE_TESTS_DEVICE_SEGMENTS_H

#include "lade/device.h"

typedef struct device_segments {
  char *memory; /* addresses without memory */
  char *next;   /* that the next alloc gives */
  int allocs;
  int frees;
  lade_status give; /* what alloc and free answer */
  lade_status take;
  lade_stream alloc_stream;
  void *freed;
  size_t freed_bytes;
  int freed_device;
  lade_stream freed_stream;
} device_segments;

/* The callbacks; `user` is `segments`. */
lade_device_plugin device_segments_open(device_segments *segments);
/* Whether it gave the address. */
bool device_segments_has(const device_segments *segments, const void *pointer);

#endif /* LADE_TESTS_DEVICE_SEGMENTS_H */
