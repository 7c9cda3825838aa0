/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subjects of pinned_cache, under one interface: lade, mimalloc, jemalloc, the model of PyTorch's pinned cache.
 *
 * The calls are inline functions in constant tables, and the loops that take such a table are inlined too, so no call
 * through a pointer is measured that a program would not make.
 */
#ifndef LADE_BENCHMARKS_MICRO_SUBJECTS_H
#define LADE_BENCHMARKS_MICRO_SUBJECTS_H

#include "benchmarks/micro/mallocs.h"
#include "benchmarks/micro/model_driver.h"
#include "benchmarks/reference/pinned_cache.h"
#include "lade/pinned.h"

/* One of each, on a driver that costs nothing. */
typedef struct subjects {
  model_driver *driver;
  lade_pinned_pool *pool;
  reference_cache *reference;
} subjects;

/* Options of a pool that takes memory from the model driver and has no cap that matters. */
lade_pinned_options subjects_pool_options(void);

/* NULL options: those above. False, having said why. */
bool subjects_open(subjects *s, const lade_pinned_options *options);
/* Finishes all work first; works on half-opened subjects, too. False, having said why, when blocks are lost. */
bool subjects_close(subjects *s);

/* A block of any subject; context is the handle that the model of PyTorch's cache gives it. */
typedef struct subject_block {
  void *pointer;
  reference_block *context;
} subject_block;

typedef struct subject_calls {
  bool (*alloc)(subjects *s, size_t bytes, subject_block *out);
  bool (*free)(subjects *s, subject_block *block);
  bool (*record)(subjects *s, subject_block *block, lade_stream stream); /* NULL: knows no streams */
} subject_calls;

static inline bool lade_subject_alloc(subjects *s, size_t bytes, subject_block *out) {
  return lade_pinned_alloc(s->pool, bytes, &out->pointer) == LADE_OK;
}
static inline bool lade_subject_free(subjects *s, subject_block *block) {
  return lade_pinned_free(s->pool, block->pointer) == LADE_OK;
}
static inline bool lade_subject_record(subjects *s, subject_block *block, lade_stream stream) {
  return lade_pinned_record_event(s->pool, block->pointer, stream) == LADE_OK;
}

static inline bool mimalloc_subject_alloc(subjects *s, size_t bytes, subject_block *out) {
  (void)s;
  out->pointer = mimalloc_alloc(bytes);
  return out->pointer != NULL;
}
static inline bool mimalloc_subject_free(subjects *s, subject_block *block) {
  (void)s;
  mimalloc_free(block->pointer);
  return true;
}

static inline bool jemalloc_subject_alloc(subjects *s, size_t bytes, subject_block *out) {
  (void)s;
  out->pointer = je_malloc(bytes);
  return out->pointer != NULL;
}
static inline bool jemalloc_subject_free(subjects *s, subject_block *block) {
  (void)s;
  je_free(block->pointer);
  return true;
}

static inline bool reference_subject_alloc(subjects *s, size_t bytes, subject_block *out) {
  out->pointer = reference_alloc(s->reference, bytes, &out->context);
  return out->pointer != NULL;
}
static inline bool reference_subject_free(subjects *s, subject_block *block) {
  return reference_free(s->reference, block->context);
}
static inline bool reference_subject_record(subjects *s, subject_block *block, lade_stream stream) {
  return reference_record(s->reference, block->pointer, block->context, stream);
}

static const subject_calls lade_calls = {lade_subject_alloc, lade_subject_free, lade_subject_record};
static const subject_calls mimalloc_calls = {mimalloc_subject_alloc, mimalloc_subject_free, NULL};
static const subject_calls jemalloc_calls = {jemalloc_subject_alloc, jemalloc_subject_free, NULL};
static const subject_calls reference_calls = {reference_subject_alloc, reference_subject_free,
                                              reference_subject_record};

/* Defines for each subject SUBJECT_run(user): `loop`, an always_inline function, on that subject's calls. */
#define SUBJECT_RUN(subject, suffix, loop)                                                                             \
  static double subject##_##suffix(void *user) { return loop(&subject##_calls, user); }

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#endif /* LADE_BENCHMARKS_MICRO_SUBJECTS_H */
