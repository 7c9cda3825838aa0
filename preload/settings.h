/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of the preload library: the variables LADE_PRELOAD_... of the environment (docs/preload.md).
 */
#ifndef LADE_PRELOAD_SETTINGS_H
#define LADE_PRELOAD_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum preload_mode {
  PRELOAD_SAFE = 0, /* a freed block waits for all streams */
  PRELOAD_FAST = 1, /* ... for the streams that copied */
  PRELOAD_OFF = 2,  /* every call is the driver's */
} preload_mode;

typedef enum preload_device_calls {
  PRELOAD_DEVICE_OFF = 0,    /* device memory is the driver's */
  PRELOAD_DEVICE_MALLOC = 1, /* cuMemAlloc */
  PRELOAD_DEVICE_ALL = 2,    /* cuMemAllocAsync, too */
} preload_device_calls;

typedef struct preload_settings {
  preload_mode mode;
  preload_device_calls device; /* which allocations of device memory lade serves; PRELOAD_DEVICE_OFF in mode off */
  const char *report;          /* NULL: none */
  const char *library;         /* NULL: beside this library, otherwise the one that the loader finds */
  uint64_t max_bytes, segment_bytes; /* of each device's pool; 0: the pool's own default */
  uint64_t pending_bytes;            /* freed blocks that streams may still use, before a free waits */
  char wrong[256];                   /* the error in a variable, and the mode is off; "": there is none */
} preload_settings;

/* Read once, when the process first looks at the driver. Any thread. */
const preload_settings *ladei_preload_settings(void);
/* Writes `wrong` to stderr, the first time. */
void ladei_preload_settings_complain(void);

#endif /* LADE_PRELOAD_SETTINGS_H */
