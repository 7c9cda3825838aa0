/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for another thread that is in the midst of something short and gives no signal when it is done.
 *
 *   ladei_backoff wait = {0};
 *   while (atomic_load(&busy)) ladei_backoff_wait(&wait);
 *
 * The first rounds spin, as the other one is mostly at work on another processor. Then the waiter sleeps, a little longer
 * each time: the other one was taken off its processor, and a waiter of higher priority that only yields would keep it
 * off for as long as the scheduler lets it.
 */
#ifndef LADE_BASE_BACKOFF_H
#define LADE_BASE_BACKOFF_H

typedef struct ladei_backoff {
  unsigned rounds;
} ladei_backoff;

/* Lets some time pass: nanoseconds at first, at most a millisecond. */
void ladei_backoff_wait(ladei_backoff *backoff);

/* The processor's hint that this is a loop of waiting. */
static inline void ladei_spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif /* LADE_BASE_BACKOFF_H */
