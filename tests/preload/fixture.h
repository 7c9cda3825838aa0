/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program over the loopback driver, which resolves the driver as the static CUDA runtime does, and calls what it found.
 *
 * Tests of it are built twice: with the hooks linked in (TEST_LINKED; the sanitisers take part), and as a plain program that runs
 * itself again with liblade_preload.so preloaded. The driver's software devices see a block that is reused too early. Modes and
 * the driver's version come from the target's environment.
 */
#ifndef LADE_TESTS_PRELOAD_FIXTURE_H
#define LADE_TESTS_PRELOAD_FIXTURE_H

#include <semaphore.h>
#include <stdatomic.h>

#include "tests/loopback/hooks.h"
#include "tests/preload/program.h"
#include "tests/shim/lade_test.h"

#define MIB ((size_t)1 << 20)
enum { SMALL = 4096 };

extern const loopback_hooks *hooks;
extern program cuda, cuda_ptsz; /* built with either default stream */

int driver_version(void);
program_look_up *first_look_up(void);
lade_soft_report soft_report(void);
void start_without_context(void);
void start(void);
/* The program's last reference goes, and with it all that lade has on the device. */
void finish(void);
/* The same where streams ended unseen: the driver was asked about handles that were gone. */
void finish_after_lost_streams(void);
/* One that does not wait for the legacy default stream. */
CUstream stream_make(void);

#define LADE_CU(call) LADE_EXPECT_EQ_INT((int)(call), CUDA_SUCCESS)
#define START()                                                                                                        \
  do {                                                                                                                 \
    start();                                                                                                           \
    if (lade_test_has_failed()) return;                                                                                \
  } while (0)

/* ---- Holding a stream -------------------------------------------------------------------------------------------- */

typedef struct hold {
  sem_t released;
  atomic_bool is_released;
} hold;

/* Work queued on the stream from now on waits for hold_end(). */
void hold_begin(hold *own, const program *as, CUstream stream);
void hold_end(hold *own);
/* For a thread: after a moment. */
void *hold_end_later(void *user);

#endif /* LADE_TESTS_PRELOAD_FIXTURE_H */
