/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing what is measured: see subjects.h. */
#include "benchmarks/micro/subjects.h"

#include "benchmarks/messages.h"

lade_pinned_options subjects_pool_options(void) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.sources = LADE_PINNED_SOURCE_DRIVER;
  options.max_bytes = (uint64_t)1 << 45;
  return options;
}

bool subjects_open(subjects *s, const lade_pinned_options *options) {
  lade_pinned_options standard = subjects_pool_options();
  *s = (subjects){0};
  s->driver = mimalloc_open() ? model_open(false) : NULL;
  if (s->driver == NULL) return false;
  lade_runtime *runtime = model_runtime(s->driver);
  if (lade_pinned_pool_create(runtime, options == NULL ? &standard : options, &s->pool) != LADE_OK)
    bench_lade_error("pinned pool");
  else
    s->reference = reference_create(runtime);
  if (s->reference == NULL) {
    subjects_close(s);
    return false;
  }
  return true;
}

bool subjects_close(subjects *s) {
  bool destroyed = s->pool == NULL || lade_pinned_pool_destroy(s->pool, true) == LADE_OK;
  if (!destroyed) bench_lade_error("pinned pool");
  reference_destroy(s->reference);
  model_close(s->driver);
  *s = (subjects){0};
  return destroyed;
}
