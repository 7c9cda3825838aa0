/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the driver, things to ask with, the gate.
 *
 *   gate:  word = 0; the stream waits for the word; a thread watches      word = 1 when the question's call has returned,
 *          the question's thread is in a call                             or when it is seen to wait
 *
 * Locks: none; the watching thread and the question's share atomics.
 */
#include "tests/driver/probe.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/driver/ask.h"

probe_calls D;
CUdevice probe_device;
CUcontext probe_context;

/* Of a driver that is the loopback: how many threads wait in it. Else NULL. */
static unsigned (*threads_waiting)(void);

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static void symbol_load(void *library, const char *symbol, void *out) {
  void *address = dlsym(library, symbol);
  memcpy(out, &address, sizeof address);
}

static void calls_load(void) {
  PFN_cuGetProcAddress_v12000 find = NULL;
  void (*play_program)(void) = NULL;
  CUdriverProcAddressQueryResult found;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    probe_answer("no driver", "%s", dlerror());
    exit(1);
  }
  symbol_load(library, "cuGetProcAddress_v2", &find);
  symbol_load(library, "lade_loopback_play_program", &play_program);
  symbol_load(library, "lade_loopback_waiting", &threads_waiting);
  if (play_program != NULL) play_program();
#define PROBE_LOAD(symbol, version)                                                                                    \
  if (find(#symbol, (void **)&D.symbol, version, 0, &found) != CUDA_SUCCESS || D.symbol == NULL) {                     \
    probe_answer("no call", "%s", #symbol);                                                                            \
    exit(1);                                                                                                           \
  }
  PROBE_CALLS(PROBE_LOAD)
#undef PROBE_LOAD
}

void probe_open(void) {
  calls_load();
  PROBE_MUST(D.cuInit(0));
}

void probe_begin(void) {
  probe_open();
  PROBE_MUST(D.cuDeviceGet(&probe_device, 0));
  PROBE_MUST(D.cuDevicePrimaryCtxRetain(&probe_context, probe_device));
  PROBE_MUST(D.cuCtxSetCurrent(probe_context));
}

/* ---- words -------------------------------------------------------------------------------------------------------- */

void probe_answer(const char *number, const char *format, ...) {
  char text[ASK_ANSWER_ROOM];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  ask_send(number, text);
}

const char *probe_name(CUresult code) {
  const char *name = NULL;
  if (D.cuGetErrorName(code, &name) != CUDA_SUCCESS || name == NULL) return "a code without a name";
  static const char *const prefixes[] = {"CUDA_ERROR_", "CUDA_"};
  for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return name + strlen(prefixes[i]);
  return name;
}

const char *probe_yes(bool truth) { return truth ? "yes" : "no"; }

void probe_must(CUresult code, const char *call) {
  if (code == CUDA_SUCCESS) return;
  char number[ASK_ANSWER_ROOM];
  snprintf(number, sizeof number, "failed: %s", call);
  ask_send(number, probe_name(code));
  exit(1);
}

/* ---- things ------------------------------------------------------------------------------------------------------- */

CUstream probe_stream(unsigned flags) {
  CUstream stream = NULL;
  PROBE_MUST(D.cuStreamCreate(&stream, flags));
  return stream;
}

CUevent probe_event(unsigned flags) {
  CUevent event = NULL;
  PROBE_MUST(D.cuEventCreate(&event, flags));
  return event;
}

CUdeviceptr probe_memory(size_t bytes) {
  CUdeviceptr memory = 0;
  PROBE_MUST(D.cuMemAlloc(&memory, bytes));
  return memory;
}

char *probe_pinned(size_t bytes) {
  void *memory = NULL;
  PROBE_MUST(D.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE));
  return memory;
}

char *probe_pageable(size_t bytes) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) exit(1);
  memset(memory, 1, bytes);
  return memory;
}

CUdeviceptr probe_address(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

CUdeviceptr probe_pool_memory(size_t bytes) {
  CUdeviceptr memory = 0;
  CUstream stream = probe_stream(CU_STREAM_NON_BLOCKING);
  PROBE_MUST(D.cuMemAllocAsync(&memory, bytes, stream));
  PROBE_MUST(D.cuStreamSynchronize(stream));
  return memory;
}

CUdeviceptr probe_mapped_memory(size_t bytes) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe_device}};
  CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  PROBE_MUST(D.cuMemAddressReserve(&address, bytes, 0, 0, 0));
  PROBE_MUST(D.cuMemCreate(&handle, bytes, &properties, 0));
  PROBE_MUST(D.cuMemMap(address, bytes, 0, handle, 0));
  PROBE_MUST(D.cuMemSetAccess(address, bytes, &access, 1));
  return address;
}

bool probe_known(CUdeviceptr address) {
  unsigned type = 0;
  return D.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

uint64_t probe_pointer_u64(CUpointer_attribute attribute, CUdeviceptr address) {
  uint64_t value = 0;
  PROBE_MUST(D.cuPointerGetAttribute(&value, attribute, address));
  return value;
}

/* ---- the gate ----------------------------------------------------------------------------------------------------- */

enum { WAITS_AFTER_MS = 1000, LOOK_NS = 200000 };

static struct {
  _Atomic(uint32_t) *word; /* in pinned memory: 1 lets the stream go on */
  pthread_t watcher;
  atomic_bool returned; /* the call that is asked about */
  bool waited;          /* read when the watcher has ended */
} gate;

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static bool call_waits(double since_ms) {
  return threads_waiting != NULL ? threads_waiting() > 0 : now_ms() - since_ms > WAITS_AFTER_MS;
}

static void *gate_watch(void *unused) {
  (void)unused;
  double since_ms = now_ms();
  gate.waited = false;
  while (!atomic_load(&gate.returned) && !gate.waited) {
    nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    gate.waited = call_waits(since_ms);
  }
  atomic_store(gate.word, 1);
  return NULL;
}

void probe_gate_close(CUstream stream) {
  if (gate.word == NULL) gate.word = (_Atomic(uint32_t) *)(void *)probe_pinned(PROBE_MIB);
  atomic_store(gate.word, 0);
  atomic_store(&gate.returned, false);
  PROBE_MUST(
      D.cuStreamWaitValue32(stream, probe_address((const void *)(uintptr_t)gate.word), 1, CU_STREAM_WAIT_VALUE_GEQ));
  if (pthread_create(&gate.watcher, NULL, gate_watch, NULL) != 0) exit(1);
}

bool probe_gate_open(void) {
  atomic_store(&gate.returned, true);
  pthread_join(gate.watcher, NULL);
  PROBE_MUST(D.cuCtxSynchronize());
  return gate.waited;
}
