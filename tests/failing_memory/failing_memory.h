/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "The k-th allocation of host memory fails."
 *
 *   failing_memory_fail(k, FAILING_MEMORY_OF_ALL);   // 0: none, they are only counted
 *   ...
 *   uint64_t count = failing_memory_whole();         // allocations since
 *
 * Allocations are the linker's to fail (--wrap): those of all code that is linked into the program (the library, the software
 * device, the test itself), not those of shared libraries.
 */
#ifndef LADE_TESTS_FAILING_MEMORY_FAILING_MEMORY_H
#define LADE_TESTS_FAILING_MEMORY_FAILING_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum failing_memory_whose {
  FAILING_MEMORY_OF_ALL,
  FAILING_MEMORY_OF_THREAD, /* of the calling thread; one at a time */
} failing_memory_whose;

/* From one k to the next; with the thread sanitiser, which takes ten times as long, not each is tried. */
#if defined(__SANITIZE_THREAD__)
enum { FAILING_MEMORY_STEP = 5 };
#else
enum { FAILING_MEMORY_STEP = 1 };
#endif

void failing_memory_fail(uint64_t k, failing_memory_whose whose);
/* While the test looks at an outcome: nothing is counted, and nothing fails. */
void failing_memory_rest(bool rests);
uint64_t failing_memory_whole(void);

#endif /* LADE_TESTS_FAILING_MEMORY_FAILING_MEMORY_H */
