/* SPDX-License-Identifier: Apache-2.0 */
/* A library with an allocator as PyTorch's users write them; plugin_library_test.c loads it. */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/device/plugin_under_test.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT plugin_under_test_calls plugin_calls;
EXPORT void *plugin_alloc(ssize_t size, int device, void *stream);
EXPORT void plugin_free(void *pointer, ssize_t size, int device, void *stream);

static uintptr_t next = (uintptr_t)1 << 52; /* where no software device has its addresses */

void *plugin_alloc(ssize_t size, int device, void *stream) {
  if (size > PLUGIN_UNDER_TEST_MOST) return NULL;
  void *pointer = (void *)next;
  next += ((uintptr_t)size + 511) / 512 * 512;
  plugin_calls.allocs++;
  plugin_calls.alloc = (plugin_under_test_call){pointer, size, device, stream};
  return pointer;
}

void plugin_free(void *pointer, ssize_t size, int device, void *stream) {
  plugin_calls.frees++;
  plugin_calls.free = (plugin_under_test_call){pointer, size, device, stream};
}
