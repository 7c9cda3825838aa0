/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime "cuda" over the loopback driver, and one call of every op on it.
 *
 *   cuda_fixture f;
 *   if (!cuda_fixture_open(&f)) return;       // failed
 *   ... f.ops->device_alloc(f.self, 0, 4096, &p), cuda_own(&f, CUDA_OWN_DEVICE, p) ...
 *   cuda_fixture_close(&f);                   // frees what is owned; no context, violation or object may be left
 */
#ifndef LADE_TESTS_RUNTIME_CUDA_FIXTURE_H
#define LADE_TESTS_RUNTIME_CUDA_FIXTURE_H

#include <stdbool.h>

#include "runtime/ops.h"
#include "tests/loopback/hooks.h"
#include "tests/shim/lade_test.h"

typedef enum cuda_owned_kind {
  CUDA_OWN_DEVICE,
  CUDA_OWN_HOST,
  CUDA_OWN_REGISTERED,
  CUDA_OWN_STREAM,
  CUDA_OWN_EVENT,
  CUDA_OWN_GRAPH,
  CUDA_OWN_EXEC,
  CUDA_OWN_OBJECT,
  CUDA_OWN_POOL,
  CUDA_OWN_POOL_MEMORY,
  CUDA_OWN_VM_RANGE,
  CUDA_OWN_VM_HANDLE,
  CUDA_OWN_VM_MAPPING,
  CUDA_OWN_IPC,
  CUDA_OWN_FD,
} cuda_owned_kind;

typedef struct cuda_owned {
  cuda_owned_kind kind;
  uintptr_t value;
} cuda_owned;

enum { CUDA_FIXTURE_BYTES = 1 << 16, CUDA_FIXTURE_OWNED = 64 };

typedef struct cuda_fixture {
  const loopback_hooks *hooks;
  const lade_runtime_ops *ops;
  void *self;
  bool open;

  /* Made by cuda_fixture_fill(). */
  ladei_stream stream;  /* non-blocking, on device 0 */
  lade_event event;     /* recorded and done */
  lade_event timing[2]; /* recorded and done, of the timing kind */
  void *device;         /* CUDA_FIXTURE_BYTES on device 0 */
  void *pinned;         /* CUDA_FIXTURE_BYTES */
  void *pages;          /* CUDA_FIXTURE_BYTES of ordinary memory, page-aligned */
  size_t granularity;
  bool capturing; /* `stream` is */

  /* What the case's preparation made for its run. */
  uintptr_t made;
  uintptr_t made_too;
  int fd;
  ladei_ipc_handle ipc;

  cuda_owned owned[CUDA_FIXTURE_OWNED];
  size_t owned_count;
} cuda_fixture;

/* Resets the loopback and opens the runtime on it. False where there is no loopback or opening failed. */
bool cuda_fixture_open(cuda_fixture *f);
/* The same in two steps, for settings of the driver in between. */
bool cuda_fixture_reset(cuda_fixture *f);
lade_status cuda_fixture_open_runtime(cuda_fixture *f);
/* Makes the objects above. False with the test failed. */
bool cuda_fixture_fill(cuda_fixture *f);
/* Frees what is owned. */
void cuda_fixture_drop(cuda_fixture *f);
void cuda_fixture_close(cuda_fixture *f);

void cuda_own(cuda_fixture *f, cuda_owned_kind kind, uintptr_t value);
void cuda_disown(cuda_fixture *f, cuda_owned_kind kind, uintptr_t value);

/* One call of an op. */
typedef struct cuda_case {
  const char *op;
  const char *variant;                 /* "" or what tells it from others of the op */
  bool (*prepare)(cuda_fixture *f);    /* NULL: nothing to prepare */
  lade_status (*run)(cuda_fixture *f); /* calls the op once; owns what that makes */
  bool releases;                       /* R7: succeeds also on a lost device */
  bool sets_current;                   /* changes the current device or capture mode by its contract */
} cuda_case;

const cuda_case *cuda_cases(size_t *out_count);

#endif /* LADE_TESTS_RUNTIME_CUDA_FIXTURE_H */
