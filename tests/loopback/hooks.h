/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Controls of the loopback driver, for tests: faults, older drivers, what was called.
 *
 *   const loopback_hooks *hooks = loopback_hooks_get();
 *   LADE_ASSERT(hooks != NULL);
 *   LADE_ASSERT_OK(hooks->reset());
 *   hooks->fail("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
 *   ... ladei_cuda_open(), ops ...
 *   LADE_EXPECT_EQ_STR(hooks->violations(), "");
 *
 * The driver is one per process. Between tests, reset() takes everything back to the beginning.
 */
#ifndef LADE_TESTS_LOOPBACK_HOOKS_H
#define LADE_TESTS_LOOPBACK_HOOKS_H

#include <cuda.h>
#include <stdint.h>

#include "lade/soft.h"

typedef struct loopback_hooks {
  /* Forgets all settings, counts and violations, and closes the software devices: LADE_ERR_BUSY, naming them, while
   * objects are alive there. Empties the calling thread's context stack; no other thread may be at work. */
  lade_status (*reset)(void);

  /* Number of devices, at most 8; default 2. Before the driver is initialised. */
  void (*set_devices)(int count);
  /* Version that the driver says it has, 1000 * major + 10 * minor; entry points that came later are not there. */
  void (*set_version)(int version);
  /* cuGetProcAddress does not find the symbol from now on. */
  void (*hide)(const char *symbol);

  /* The nth call of the symbol from now on returns `code` and does nothing else; 0: every call. */
  void (*fail)(const char *symbol, uint64_t nth, CUresult code);
  /* Every call on a context returns `code` from now on, as after a fault of the device; with CUDA_ERROR_DEINITIALIZED
   * every call but those on texts and versions, as at the end of the process. */
  void (*break_all)(CUresult code);
  /* Takes fail and break_all back. */
  void (*fail_clear)(void);
  /* Pinned memory of fewer bytes begins 512 bytes into a page from now on, as where a driver packs small requests. */
  void (*misalign)(size_t below_bytes);
  /* From now on `handle`, of a stream that was destroyed, names the stream `made`: as where a driver uses handles again. */
  void (*recycle)(CUstream handle, CUstream made);
  /* What the driver says of memory that graphs allocate: by attribute, used, its high, reserved, its high. A trim lets
   * what is reserved fall to what is used. */
  void (*set_graph_memory)(const uint64_t *values);
  /* The driver says `value` of an attribute of its devices from now on: 0 and 1, as of an integrated one. One attribute at a time. */
  void (*set_attribute)(int attribute, int value);
  /* Runs `function` inside the next call of the symbol, before that does anything: what another thread might do then.
   */
  void (*interrupt)(const char *symbol, void (*function)(void *user), void *user);
  /* As cudaDeviceReset(): calls on the device's primary context find it destroyed. */
  void (*reset_device)(int device);
  /* The stream is destroyed, as by a call that nobody beside the driver sees. */
  void (*end_stream)(CUstream stream);

  /* From now on a test plays a program beside lade: look-ups may ask for any flavour of streams, and memory may be pinned for
   * one context. */
  void (*play_program)(void);

  /* Calls of the symbol since reset, failed ones included; of all symbols together for NULL. */
  uint64_t (*calls)(const char *symbol);
  /* Lowest version, of at_least or more, that cuGetProcAddress was asked for the symbol at; 0: never. */
  int (*asked_version)(const char *symbol, int at_least);
  /* References that the program holds to the device's primary context, and how often that came to life. */
  unsigned (*retained)(int device);
  unsigned (*contexts_created)(int device);
  /* Depth of the calling thread's context stack. */
  int (*stack_depth)(void);
  /* Threads that wait in a call for work of a stream. */
  unsigned (*waiting)(void);
  /* What the program did that a real driver need not survive, or that runtime/cuda promises not to do; "" for nothing.
   * Valid until reset. */
  const char *(*violations)(void);
  /* What is alive on the software devices. */
  lade_status (*report)(lade_soft_report *out);

  /* An entry point of the driver at a version, for a test that plays a program beside lade. NULL: not there. */
  void *(*entry_point)(const char *symbol, int version);
} loopback_hooks;

/* The fields that the library exports, as lade_loopback_<name>. */
#define LOOPBACK_HOOKS(X)                                                                                              \
  X(reset)                                                                                                             \
  X(set_devices)                                                                                                       \
  X(set_version)                                                                                                       \
  X(hide)                                                                                                              \
  X(fail)                                                                                                              \
  X(break_all)                                                                                                         \
  X(fail_clear)                                                                                                        \
  X(interrupt)                                                                                                         \
  X(misalign)                                                                                                          \
  X(recycle)                                                                                                           \
  X(play_program)                                                                                                      \
  X(set_graph_memory)                                                                                                  \
  X(set_attribute)                                                                                                     \
  X(reset_device)                                                                                                      \
  X(end_stream)                                                                                                        \
  X(calls)                                                                                                             \
  X(asked_version)                                                                                                     \
  X(retained)                                                                                                          \
  X(contexts_created)                                                                                                  \
  X(stack_depth)                                                                                                       \
  X(waiting)                                                                                                           \
  X(violations)                                                                                                        \
  X(report)

/* NULL where libcuda.so.1 is not the loopback, or is not there. */
const loopback_hooks *loopback_hooks_get(void);

#endif /* LADE_TESTS_LOOPBACK_HOOKS_H */
