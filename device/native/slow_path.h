/* SPDX-License-Identifier: Apache-2.0 */
/* Which threads grow and give back at once; model in slow_path.c. */
#ifndef LADE_DEVICE_NATIVE_SLOW_PATH_H
#define LADE_DEVICE_NATIVE_SLOW_PATH_H

#include "device/state/allocator.h"

/* The state as a thread saw it when it entered. */
typedef struct ladei_device_slow_path {
  bool beside; /* others were in it */
  uint64_t slow_paths;
} ladei_device_slow_path;

/* Around what grows or gives back in a call. Lock held; begin may wait. end: whether others did the same at
 * any moment in between, so that what was found missing may be there. */
void ladei_device_slow_path_begin(lade_device_allocator *allocator, ladei_device_slow_path *out);
bool ladei_device_slow_path_end(lade_device_allocator *allocator, const ladei_device_slow_path *entry);
/* The same with no other thread in it: begin waits for all that are. */
void ladei_device_slow_path_begin_alone(lade_device_allocator *allocator);
void ladei_device_slow_path_end_alone(lade_device_allocator *allocator);

#endif /* LADE_DEVICE_NATIVE_SLOW_PATH_H */
