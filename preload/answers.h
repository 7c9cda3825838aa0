/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the block that an address lies in, for hooks that answer questions about memory.
 */
#ifndef LADE_PRELOAD_ANSWERS_H
#define LADE_PRELOAD_ANSWERS_H

#include <stdbool.h>

#include "preload/blocks.h"

/* The owner of an address. */
typedef enum preload_owner {
  PRELOAD_OF_OTHERS, /* not lade's: the driver may know it */
  PRELOAD_OF_NONE,   /* in lade's memory, but not the program's: it was freed, or lies after the requested bytes */
  PRELOAD_OF_BLOCK,  /* in a block that the program holds */
} preload_owner;

/* Looks the address up in pinned memory, or in device memory. Fills in its block. */
preload_owner ladei_preload_pinned_owner(const void *address, preload_block *out);
preload_owner ladei_preload_device_owner(const void *address, preload_block *out);

#endif /* LADE_PRELOAD_ANSWERS_H */
