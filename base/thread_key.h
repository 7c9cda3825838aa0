/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of threads, and code that stays.
 *
 * A thread that used the library calls it once more when it ends. By then a plugin that the library is linked into may
 * have been closed with dlclose(). So the library's file stays loaded from the first key or thread on (docs/design.md,
 * "Unloading").
 */
#ifndef LADE_BASE_THREAD_KEY_H
#define LADE_BASE_THREAD_KEY_H

#include <pthread.h>

/* As pthread_key_create, whose result it returns; `at_exit` can be called as long as the process lives. */
int ladei_thread_key_create(pthread_key_t *out, void (*at_exit)(void *value));

/* From now on dlclose() leaves the library's code where it is. */
void ladei_stay_loaded(void);

#endif /* LADE_BASE_THREAD_KEY_H */
