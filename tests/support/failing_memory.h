/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "The k-th allocation of host memory fails."
 *
 *   support_memory_fail(k, SUPPORT_MEMORY_OF_ALL);   // 0: none, they are only counted
 *   ...
 *   uint64_t count = support_memory_whole();         // allocations since
 *
 * Allocations are the linker's to fail (--wrap): those of all code that is linked into the program (the library, the software
 * device, the test itself), not those of shared libraries.
 */
#ifndef LADE_TESTS_SUPPORT_FAILING_MEMORY_H
#define LADE_TESTS_SUPPORT_FAILING_MEMORY_H

#include <stdint.h>

typedef enum support_memory_whose {
  SUPPORT_MEMORY_OF_ALL,
  SUPPORT_MEMORY_OF_THREAD, /* of the calling thread; one at a time */
} support_memory_whose;

/* From one k to the next; with the thread sanitiser, which takes ten times as long, not each is tried. */
#if defined(__SANITIZE_THREAD__)
enum { SUPPORT_MEMORY_STEP = 5 };
#else
enum { SUPPORT_MEMORY_STEP = 1 };
#endif

void support_memory_fail(uint64_t k, support_memory_whose whose);
uint64_t support_memory_whole(void);

#endif /* LADE_TESTS_SUPPORT_FAILING_MEMORY_H */
