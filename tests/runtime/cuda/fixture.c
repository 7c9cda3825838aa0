/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, filling and emptying the fixture.
 *
 * I1  What is owned is freed in the reverse order of its making.
 * Locks: none; one thread.
 */
#include "tests/runtime/cuda/fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cuda/cuda.h"

bool cuda_fixture_reset(cuda_fixture *f) {
  memset(f, 0, sizeof *f);
  f->fd = -1;
  f->hooks = loopback_hooks_get();
  if (f->hooks == NULL) {
    LADE_FAIL("libcuda.so.1 is not the loopback: lade_cc_test(loopback = True) puts it in place");
    return false;
  }
  lade_status status = f->hooks->reset();
  if (status != LADE_OK) LADE_FAIL("loopback: %s", lade_status_name(status));
  return status == LADE_OK;
}

lade_status cuda_fixture_open_runtime(cuda_fixture *f) {
  lade_status status = ladei_cuda_open(&f->ops, &f->self);
  f->open = status == LADE_OK;
  return status;
}

bool cuda_fixture_open(cuda_fixture *f) {
  if (!cuda_fixture_reset(f)) return false;
  LADE_EXPECT_OK(cuda_fixture_open_runtime(f));
  return f->open;
}

/* ---- Ownership --------------------------------------------------------------------------------------------------- */

void cuda_own(cuda_fixture *f, cuda_owned_kind kind, uintptr_t value) {
  if (f->owned_count == CUDA_FIXTURE_OWNED) {
    LADE_FAIL("the fixture owns too much");
    return;
  }
  f->owned[f->owned_count++] = (cuda_owned){kind, value};
}

void cuda_disown(cuda_fixture *f, cuda_owned_kind kind, uintptr_t value) {
  for (size_t i = f->owned_count; i-- > 0;) {
    if (f->owned[i].kind == kind && f->owned[i].value == value) {
      memmove(&f->owned[i], &f->owned[i + 1], (f->owned_count - i - 1) * sizeof f->owned[0]);
      f->owned_count--;
      return;
    }
  }
  LADE_FAIL("the fixture does not own %#llx of kind %d", (unsigned long long)value, (int)kind);
}

static lade_status owned_free(cuda_fixture *f, const cuda_owned *owned) {
  const lade_runtime_ops *ops = f->ops;
  void *pointer = (void *)owned->value;
  switch (owned->kind) {
  case CUDA_OWN_DEVICE: return ops->device_free(f->self, 0, pointer);
  case CUDA_OWN_HOST: return ops->host_free(f->self, pointer);
  case CUDA_OWN_REGISTERED: return ops->host_unregister(f->self, pointer);
  case CUDA_OWN_STREAM: return ops->stream_destroy(f->self, pointer);
  case CUDA_OWN_EVENT: return ops->event_destroy(f->self, pointer);
  case CUDA_OWN_GRAPH: return ops->graph_destroy(f->self, pointer);
  case CUDA_OWN_EXEC: return ops->graph_exec_destroy(f->self, pointer);
  case CUDA_OWN_OBJECT: return ops->user_object_release(f->self, pointer);
  case CUDA_OWN_POOL: return ops->pool_destroy(f->self, pointer);
  case CUDA_OWN_POOL_MEMORY: return ops->pool_free(f->self, pointer, &f->stream);
  case CUDA_OWN_VM_RANGE: return ops->vm_address_free(f->self, pointer, f->granularity);
  case CUDA_OWN_VM_HANDLE: return ops->vm_release(f->self, owned->value);
  case CUDA_OWN_VM_MAPPING: return ops->vm_unmap(f->self, pointer, f->granularity);
  case CUDA_OWN_IPC: return ops->ipc_close(f->self, pointer);
  case CUDA_OWN_FD: close((int)owned->value); return LADE_OK;
  }
  return LADE_ERR_INTERNAL;
}

void cuda_fixture_drop(cuda_fixture *f) {
  if (f->capturing) {
    ladei_graph graph = NULL;
    if (f->ops->capture_end(f->self, &f->stream, &graph) == LADE_OK)
      LADE_EXPECT_OK(f->ops->graph_destroy(f->self, graph));
    f->capturing = false;
  }
  if (f->stream.handle != NULL) (void)f->ops->stream_synchronize(f->self, &f->stream);
  while (f->owned_count > 0) {
    const cuda_owned *owned = &f->owned[--f->owned_count];
    lade_status status = owned_free(f, owned);
    if (status != LADE_OK) {
      LADE_FAIL("freeing an object of kind %d: %s: %s", (int)owned->kind, lade_status_name(status),
                lade_last_error()->text);
    }
    if (owned->kind == CUDA_OWN_POOL_MEMORY) (void)f->ops->stream_synchronize(f->self, &f->stream);
  }
  free(f->pages);
  f->pages = NULL;
}

void cuda_fixture_close(cuda_fixture *f) {
  if (f->open) {
    cuda_fixture_drop(f);
    LADE_EXPECT_OK(f->ops->close(f->self));
    f->open = false;
  }
  LADE_EXPECT_EQ_STR(f->hooks->violations(), "");
  LADE_EXPECT_EQ_INT(f->hooks->stack_depth(), 0);
  for (int device = 0; device < 2; device++) LADE_EXPECT_EQ_UINT(f->hooks->retained(device), 0u);
  LADE_EXPECT_OK(f->hooks->reset());
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static lade_status fill_stream(cuda_fixture *f) {
  lade_stream handle = NULL;
  lade_status status = f->ops->stream_create(f->self, 0, 0, LADEI_STREAM_NON_BLOCKING, &handle);
  if (status == LADE_OK) {
    cuda_own(f, CUDA_OWN_STREAM, (uintptr_t)handle);
    status = f->ops->stream_resolve(f->self, handle, &f->stream);
  }
  return status;
}

static lade_status fill_event(cuda_fixture *f, unsigned flags, lade_event *out) {
  lade_status status = f->ops->event_create(f->self, f->stream.context, flags, out);
  if (status == LADE_OK) {
    cuda_own(f, CUDA_OWN_EVENT, (uintptr_t)*out);
    status = f->ops->event_record(f->self, *out, &f->stream);
  }
  return status == LADE_OK ? f->ops->event_synchronize(f->self, *out) : status;
}

static lade_status fill_memory(cuda_fixture *f) {
  size_t recommended = 0;
  lade_status status = f->ops->vm_granularity(f->self, 0, &f->granularity, &recommended);
  f->pages = aligned_alloc(4096, CUDA_FIXTURE_BYTES);
  if (f->pages == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  memset(f->pages, 0, CUDA_FIXTURE_BYTES);
  if (status == LADE_OK) status = f->ops->device_alloc(f->self, 0, CUDA_FIXTURE_BYTES, &f->device);
  if (status == LADE_OK) {
    cuda_own(f, CUDA_OWN_DEVICE, (uintptr_t)f->device);
    status = f->ops->host_alloc(f->self, 0, CUDA_FIXTURE_BYTES, 0, &f->pinned);
  }
  if (status == LADE_OK) {
    cuda_own(f, CUDA_OWN_HOST, (uintptr_t)f->pinned);
    memset(f->pinned, 0, CUDA_FIXTURE_BYTES);
  }
  return status;
}

bool cuda_fixture_fill(cuda_fixture *f) {
  lade_status status = fill_stream(f);
  if (status == LADE_OK) status = fill_event(f, 0, &f->event);
  if (status == LADE_OK) status = fill_event(f, LADEI_EVENT_TIMING, &f->timing[0]);
  if (status == LADE_OK) status = fill_event(f, LADEI_EVENT_TIMING, &f->timing[1]);
  if (status == LADE_OK) status = fill_memory(f);
  LADE_EXPECT_OK(status);
  return status == LADE_OK;
}
