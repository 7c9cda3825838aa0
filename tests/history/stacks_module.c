/* SPDX-License-Identifier: Apache-2.0 */
/* A library that calls back out of functions that are inlined; the test of stacks loads and unloads it. */
typedef void *(*callback)(void *user);

void *stacks_module_call(callback function, void *user);

static inline __attribute__((always_inline)) void *inlined_inner(callback function, void *user) {
  void *volatile result = function(user);
  return result;
}

static inline __attribute__((always_inline)) void *inlined_outer(callback function, void *user) {
  void *volatile result = inlined_inner(function, user);
  return result;
}

static __attribute__((noinline)) void *not_exported(callback function, void *user) {
  void *volatile result = inlined_outer(function, user);
  return result;
}

void *stacks_module_call(callback function, void *user) {
  void *volatile result = not_exported(function, user);
  return result;
}
