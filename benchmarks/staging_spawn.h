/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks without a launcher: processes of this program on this host. */
#ifndef LADE_BENCHMARKS_STAGING_SPAWN_H
#define LADE_BENCHMARKS_STAGING_SPAWN_H

#include <stdint.h>

/*
 * Starts `count` copies of the calling process, which has one thread, and returns in each of them, with the variables of a
 * launcher set as torchrun sets them. The calling process itself waits for them, and ends with their exit status: 0 if all
 * are 0. A rank that ends otherwise is named, and the others are ended.
 */
void staging_spawn(uint32_t count);

#endif /* LADE_BENCHMARKS_STAGING_SPAWN_H */
