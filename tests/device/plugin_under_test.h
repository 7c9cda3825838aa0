/* SPDX-License-Identifier: Apache-2.0 */
/* What the library under test was asked. */
#ifndef LADE_TESTS_DEVICE_PLUGIN_UNDER_TEST_H
#define LADE_TESTS_DEVICE_PLUGIN_UNDER_TEST_H

#include <sys/types.h>

enum { PLUGIN_UNDER_TEST_MOST = 64 << 20 }; /* it refuses more */

typedef struct plugin_under_test_call {
  void *pointer;
  ssize_t size;
  int device;
  void *stream;
} plugin_under_test_call;

typedef struct plugin_under_test_calls {
  int allocs;
  int frees;
  plugin_under_test_call alloc; /* the last ones */
  plugin_under_test_call free;
} plugin_under_test_calls;

#endif /* LADE_TESTS_DEVICE_PLUGIN_UNDER_TEST_H */
