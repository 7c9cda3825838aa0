/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a runtime by name. Only this file knows the implementations of the table; a new one is a line in
 * `implementations`.
 *
 * Locks: none.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "runtime/ops.h"
#include "runtime/soft/soft.h"
#ifdef LADE_HAVE_CUDA_HEADERS
#include "runtime/cuda/cuda.h"
#endif

static lade_status open_cuda(const lade_runtime_options *options, lade_runtime **out) {
  (void)options;
#ifdef LADE_HAVE_CUDA_HEADERS
  const lade_runtime_ops *ops;
  void *self;
  LADEI_TRY(ladei_cuda_open(&ops, &self));
  lade_status status = ladei_runtime_adopt(ops, self, NULL, out);
  if (status != LADE_OK) ops->close(self);
  return status;
#else
  (void)out;
  return ladei_error(LADE_ERR_NO_DEVICE, 0, "runtime \"cuda\": this library was built without the CUDA headers");
#endif
}

static lade_status open_soft(bool virtual_time, const lade_runtime_options *options, lade_runtime **out) {
  const lade_runtime_ops *ops;
  void *self;
  LADEI_TRY(ladei_soft_open(virtual_time, options->soft, &ops, &self));
  lade_status status = ladei_runtime_adopt(ops, self, self, out);
  if (status != LADE_OK) ops->close(self);
  return status;
}

static lade_status open_cpu(const lade_runtime_options *options, lade_runtime **out) {
  return open_soft(false, options, out);
}

static lade_status open_sim(const lade_runtime_options *options, lade_runtime **out) {
  return open_soft(true, options, out);
}

/* In the order in which they are tried if the program names none. */
static const struct implementation {
  const char *name;
  lade_status (*open)(const lade_runtime_options *options, lade_runtime **out);
} implementations[] = {
    {"cuda", open_cuda},
    {"cpu", open_cpu},
    {"sim", open_sim},
};

enum { IMPLEMENTATIONS = sizeof implementations / sizeof implementations[0] };

/* The first one that has a device. If that one fails, so does this: a slow device must not replace it. */
static lade_status open_best(const lade_runtime_options *options, lade_runtime **out) {
  lade_status status = LADE_ERR_NO_DEVICE;
  for (size_t i = 0; i < IMPLEMENTATIONS && status == LADE_ERR_NO_DEVICE; i++)
    status = implementations[i].open(options, out);
  return status;
}

static lade_status bad_name(const char *name) {
  char known[128] = "";
  size_t used = 0;
  for (size_t i = 0; i < IMPLEMENTATIONS && used < sizeof known; i++) {
    used += (size_t)snprintf(known + used, sizeof known - used, "%s\"%s\"", i == 0 ? "one of " : ", ",
                             implementations[i].name);
  }
  return ladei_error_argument("lade_runtime_open", "name", known, "\"%s\"", name);
}

lade_status lade_runtime_open(const char *name, const lade_runtime_options *options, lade_runtime **out) {
  if (out == NULL) return ladei_error_null("lade_runtime_open", "out");
  lade_runtime_options own;
  LADEI_TRY(ladei_options_read("lade_runtime_options", options, &own, sizeof own));
  if (name == NULL) return open_best(&own, out);
  for (size_t i = 0; i < IMPLEMENTATIONS; i++)
    if (strcmp(name, implementations[i].name) == 0) return implementations[i].open(&own, out);
  return bad_name(name);
}
