/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for another thread that is inside a short operation and does not signal its end.
 *
 *   ladei_backoff wait = {0};
 *   while (atomic_load(&busy)) ladei_backoff_wait(&wait);
 *
 * The first rounds spin, since the other thread is mostly running on another processor. Then the waiter sleeps, a
 * little longer each time: the other thread was preempted, and a waiter of higher priority that only yields would keep
 * it off the processor for as long as the scheduler lets it.
 */
#ifndef LADE_BASE_BACKOFF_H
#define LADE_BASE_BACKOFF_H

typedef struct ladei_backoff {
  unsigned rounds;
} ladei_backoff;

/* Lets some time pass: nanoseconds at first, at most a millisecond. */
void ladei_backoff_wait(ladei_backoff *backoff);

/* Tells the processor that this is a wait loop. */
static inline void ladei_spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif /* LADE_BASE_BACKOFF_H */
