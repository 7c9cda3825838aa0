/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the process has had one thread alone until now. "No" where the C library does not say: glibc does since 2.32.
 */
#ifndef LADE_BASE_SINGLE_THREAD_H
#define LADE_BASE_SINGLE_THREAD_H

#include <stdbool.h>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
static inline bool ladei_is_single_thread(void) { return __libc_single_threaded; }
#else
static inline bool ladei_is_single_thread(void) { return false; }
#endif

#endif /* LADE_BASE_SINGLE_THREAD_H */
