/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz targets: one C function that takes bytes, built in two ways by the rule lade_fuzz_test (fuzz.bzl).
 *
 *   default         a regular test: replays the stored inputs, then some hundred seeded random ones
 *   --config=fuzz   a libFuzzer program, with the address and undefined-behaviour sanitisers
 *
 * The function must be deterministic in its bytes and leave nothing behind, so that an input can be replayed and
 * shrunk. It takes its bytes through a fuzz_reader, which gives zeros past the end.
 */
#ifndef LADE_TESTS_FUZZ_FUZZ_H
#define LADE_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a target defines; libFuzzer's name and signature. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reports that the input broke what the target checks. In a libFuzzer program this ends the process. */
void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails, naming the condition, unless it holds. */
#define FUZZ_CHECK(condition)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) fuzz_fail("%s:%d: %s", __FILE__, __LINE__, #condition);                                          \
  } while (0)

typedef struct fuzz_reader {
  const uint8_t *at, *end;
} fuzz_reader;

static inline bool fuzz_done(const fuzz_reader *reader) { return reader->at == reader->end; }

static inline uint8_t fuzz_byte(fuzz_reader *reader) { return fuzz_done(reader) ? 0 : *reader->at++; }

/* 0 .. limit-1, of one byte. */
static inline unsigned fuzz_below(fuzz_reader *reader, unsigned limit) { return fuzz_byte(reader) % limit; }

/* Of two bytes, so 0 .. 65535 at most. */
static inline size_t fuzz_size(fuzz_reader *reader, size_t high) {
  size_t low_byte = fuzz_byte(reader), value = low_byte | (size_t)fuzz_byte(reader) << 8;
  return 1 + value % high;
}

#endif /* LADE_TESTS_FUZZ_FUZZ_H */
