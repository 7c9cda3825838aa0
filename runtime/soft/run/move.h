/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves bytes to device memory.
 */
#ifndef LADE_RUNTIME_SOFT_RUN_MOVE_H
#define LADE_RUNTIME_SOFT_RUN_MOVE_H

#include <stddef.h>

/* memmove for a destination that no processor reads soon. */
void ladei_soft_stream_bytes(void *dst, const void *src, size_t bytes);

#endif /* LADE_RUNTIME_SOFT_RUN_MOVE_H */
