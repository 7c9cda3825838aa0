/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pinned pool on a runtime that counts calls, with two streams and some device memory to copy to.
 *
 *   pinned_fixture own;
 *   lade_pinned_options options = pinned_fixture_options();
 *   if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
 *   char *block = pinned_fixture_alloc(&own, 4096);
 *   pinned_fixture_use(&own, block, 0);
 *   pinned_fixture_free(&own, block);
 *   pinned_fixture_close(&own);
 *
 * alloc and free check the pool's invariants after them, so no other thread may be inside meanwhile.
 */
#ifndef LADE_TESTS_HOST_FIXTURE_H
#define LADE_TESTS_HOST_FIXTURE_H

#include "host/api/pool.h"
#include "lade/pinned.h"

enum {
  PINNED_FIXTURE_STREAMS = 2,
  PINNED_FIXTURE_DEVICE_BYTES = 4 << 20,
  PINNED_FIXTURE_SEGMENT_BYTES = 2 << 20,
};

typedef struct pinned_fixture {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream streams[PINNED_FIXTURE_STREAMS];
  char *device; /* PINNED_FIXTURE_DEVICE_BYTES */
} pinned_fixture;

/* Segments of PINNED_FIXTURE_SEGMENT_BYTES, a cap of 64 MiB. */
lade_pinned_options pinned_fixture_options(void);

/* Takes the runtime; NULL, from a runtime that did not open, makes no fixture. */
bool pinned_fixture_open(pinned_fixture *own, lade_runtime *runtime, const lade_pinned_options *options);
/* The same on another machine than this one. */
bool pinned_fixture_open_on(pinned_fixture *own, lade_runtime *runtime, const lade_pinned_options *options,
                            const ladei_pinned_hooks *machine);
extern const ladei_pinned_hooks pinned_fixture_two_nodes;
/* Nothing may be left that the pool made. A stream that the test destroyed is NULL. */
void pinned_fixture_close(pinned_fixture *own);

void *pinned_fixture_alloc(const pinned_fixture *own, size_t bytes);
void pinned_fixture_free(const pinned_fixture *own, void *block);
/* A mistake of the program's, which its sanitiser does not see. */
void pinned_fixture_wrong_write(char *at);
/* A copy from the block, queued on a stream and recorded. */
void pinned_fixture_use(const pinned_fixture *own, void *block, int stream);

lade_pinned_stats pinned_fixture_stats(const pinned_fixture *own);
lade_pinned_info pinned_fixture_info(const pinned_fixture *own, const void *pointer);

#endif /* LADE_TESTS_HOST_FIXTURE_H */
