/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tests that change their process for good: limits, sandboxes, mounts. */
#ifndef LADE_TESTS_PIPELINE_STORAGE_CHILD_H
#define LADE_TESTS_PIPELINE_STORAGE_CHILD_H

/* Runs `body` in a forked child; the test fails if the body fails there, or ends in any other way than by returning. */
void storage_child_run(void (*body)(void *user), void *user);

/* In a body: the test counts as skipped unless it fails. The body goes on. */
void storage_child_skip(const char *reason);

/* From now on the system call fails with `code` in all threads of this process. Not 0: it cannot be had here. */
int storage_child_forbid(int system_call, int code);

/* From now on this process may lock no memory at all. Not 0: it cannot be had here. */
int storage_child_lock_nothing(void);

#endif /* LADE_TESTS_PIPELINE_STORAGE_CHILD_H */
