/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mistakes of the library's own code that builds without NDEBUG stop the program for.
 *
 *   static void without_the_lock(void *user) { ladei_lock_assert_held(user); }
 *   LADE_EXPECT(support_stopped(without_the_lock, &lock));
 *
 * Builds with NDEBUG check nothing: there a test of this kind says LADE_SKIP.
 */
#ifndef LADE_TESTS_SUPPORT_STOPPED_H
#define LADE_TESTS_SUPPORT_STOPPED_H

#include <stdbool.h>

/* Runs a body in a child process, without its words, and tells whether it was aborted. */
bool support_stopped(void (*body)(void *user), void *user);

#endif /* LADE_TESTS_SUPPORT_STOPPED_H */
