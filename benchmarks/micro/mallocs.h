/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mimalloc and jemalloc beside each other and beside the C library's malloc, which the program itself goes on using.
 *
 * mimalloc is opened at run time, with its symbols kept local. jemalloc cannot be: it wants more static thread-local
 * memory than a running program has left. It is linked as an archive, its functions renamed (third_party/jemalloc).
 */
#ifndef LADE_BENCHMARKS_MICRO_MALLOCS_H
#define LADE_BENCHMARKS_MICRO_MALLOCS_H

#include <stdbool.h>
#include <stddef.h>

/* False, having said why, where it cannot be opened. At most once in a process is anything done. */
bool mimalloc_open(void);

/* After mimalloc_open(). */
extern void *(*mimalloc_alloc)(size_t bytes);
extern void (*mimalloc_free)(void *pointer);

/* jemalloc's own, as the archive names them. */
void *je_malloc(size_t bytes);
void je_free(void *pointer);

#endif /* LADE_BENCHMARKS_MICRO_MALLOCS_H */
