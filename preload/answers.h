/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that addresses lie in, for hooks that answer questions about memory.
 */
#ifndef LADE_PRELOAD_ANSWERS_H
#define LADE_PRELOAD_ANSWERS_H

#include <stdbool.h>

#include "preload/blocks.h"

/* Whose an address is. */
typedef enum preload_owner {
  PRELOAD_OF_OTHERS, /* not lade's: at most the driver's */
  PRELOAD_OF_NONE,   /* in lade's memory, and not the program's: it was freed, or lies after the bytes asked for */
  PRELOAD_OF_BLOCK,  /* in a block that the program holds */
} preload_owner;

/* Looks for it in pinned memory, or in device memory. Fills in the block that it lies in. */
preload_owner ladei_preload_pinned_owner(const void *address, preload_block *out);
preload_owner ladei_preload_device_owner(const void *address, preload_block *out);

#endif /* LADE_PRELOAD_ANSWERS_H */
