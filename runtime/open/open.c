/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing a runtime by name. The one place that knows both implementations of the table.
 *
 * Locks: none.
 */
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "runtime/ops.h"
#include "runtime/soft/soft.h"
#ifdef LADE_HAVE_CUDA_HEADERS
#include "runtime/cuda/cuda.h"
#endif

static lade_status open_cuda(lade_runtime **out) {
#ifdef LADE_HAVE_CUDA_HEADERS
  const lade_runtime_ops *ops;
  void *self;
  lade_status status = ladei_cuda_open(&ops, &self);
  if (status != LADE_OK) return status;
  status = ladei_runtime_adopt(ops, self, NULL, out);
  if (status != LADE_OK) ops->close(self);
  return status;
#else
  (void)out;
  return ladei_error(LADE_ERR_NO_DEVICE, 0, "runtime \"cuda\": this library was built without the CUDA headers");
#endif
}

static lade_status open_soft(bool virtual_time, const struct lade_soft_options *options, lade_runtime **out) {
  const lade_runtime_ops *ops;
  void *self;
  lade_status status = ladei_soft_open(virtual_time, options, &ops, &self);
  if (status != LADE_OK) return status;
  status = ladei_runtime_adopt(ops, self, self, out);
  if (status != LADE_OK) ops->close(self);
  return status;
}

/* NULL as name: a GPU where one is usable; else a software device, unless the driver is there and fails. */
static lade_status open_best(const struct lade_soft_options *soft, lade_runtime **out) {
  lade_status status = open_cuda(out);
  return status == LADE_ERR_NO_DEVICE ? open_soft(false, soft, out) : status;
}

lade_status lade_runtime_open(const char *name, const lade_runtime_options *options, lade_runtime **out) {
  if (out == NULL) return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_runtime_open: out is NULL");
  lade_runtime_options own;
  lade_status status = ladei_options_read("lade_runtime_options", options, &own, sizeof own);
  if (status != LADE_OK) return status;
  if (name == NULL) return open_best(own.soft, out);
  if (strcmp(name, "cuda") == 0) return open_cuda(out);
  if (strcmp(name, "cpu") == 0 || strcmp(name, "sim") == 0) return open_soft(strcmp(name, "sim") == 0, own.soft, out);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_runtime_open: \"%s\" is none of cuda, cpu, sim", name);
}
