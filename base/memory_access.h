/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory a program may touch, for the tools that watch it: valgrind, and the address sanitiser of a program that was built with it,
 * though lade was not. Without them a call costs a few instructions. The sanitiser knows multiples of 8 bytes: a forbidden range that
 * begins between two begins at the next one.
 */
#ifndef LADE_BASE_MEMORY_ACCESS_H
#define LADE_BASE_MEMORY_ACCESS_H

#include <stddef.h>

#if defined(__has_include)
#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#endif
#endif
#ifndef VALGRIND_MAKE_MEM_NOACCESS
#define VALGRIND_MAKE_MEM_NOACCESS(memory, bytes)  0
#define VALGRIND_MAKE_MEM_DEFINED(memory, bytes)   0
#define VALGRIND_MAKE_MEM_UNDEFINED(memory, bytes) 0
#endif

/* NULL in a program without the sanitiser. */
void __asan_poison_memory_region(const volatile void *memory, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *memory, size_t bytes) __attribute__((weak));

/* A read or a write there is a mistake of the program's. */
static inline void ladei_memory_forbid(const void *memory, size_t bytes) {
  if (__asan_poison_memory_region != NULL) __asan_poison_memory_region(memory, bytes);
  (void)VALGRIND_MAKE_MEM_NOACCESS(memory, bytes);
}

/* It may be read and written. */
static inline void ladei_memory_allow(const void *memory, size_t bytes) {
  if (__asan_unpoison_memory_region != NULL) __asan_unpoison_memory_region(memory, bytes);
  (void)VALGRIND_MAKE_MEM_DEFINED(memory, bytes);
}

/* It may be written; what is read before is a mistake, of which valgrind tells. */
static inline void ladei_memory_allow_writes(const void *memory, size_t bytes) {
  if (__asan_unpoison_memory_region != NULL) __asan_unpoison_memory_region(memory, bytes);
  (void)VALGRIND_MAKE_MEM_UNDEFINED(memory, bytes);
}

#endif /* LADE_BASE_MEMORY_ACCESS_H */
