/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that addresses lie in, for hooks that answer questions about memory.
 */
#ifndef LADE_PRELOAD_ANSWERS_H
#define LADE_PRELOAD_ANSWERS_H

#include <stdbool.h>

#include "preload/blocks.h"

/* The block in use that an address lies in, of pinned memory, or of device memory. False: none of lade's. */
bool ladei_preload_pinned_around(const void *address, preload_block *out);
bool ladei_preload_device_around(const void *address, preload_block *out);

#endif /* LADE_PRELOAD_ANSWERS_H */
