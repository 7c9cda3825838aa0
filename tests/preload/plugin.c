/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library whose constructor uses the driver while another thread does. Whoever runs a constructor has the loader's lock until it
 * returns: it must not wait for a thread that needs that lock. PLUGIN_CASE says what the two do:
 *
 *   reset    the other thread asks for the first memory; the constructor resets the device
 *   destroy  the other thread frees a block that is worth an event of its own, the first one; the constructor destroys a stream
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/program.h"

enum { LARGE = 4 << 20, MOMENT_US = 200000 }; /* for long enough that the other thread waits where it does */

static program cuda;
static CUcontext context;
static pthread_t other;
static void *block;

static void must(CUresult code, const char *what) {
  if (code == CUDA_SUCCESS) return;
  printf("plugin: %s: %d\n", what, (int)code);
  exit(1);
}

static void *alloc_first(void *user) {
  (void)user;
  must(cuda.ctx_set_current(context), "cuCtxSetCurrent");
  (void)cuda.host_alloc(&block, LARGE, 0); /* before the reset, or behind it */
  return NULL;
}

static void *free_first(void *user) {
  (void)user;
  must(cuda.ctx_set_current(context), "cuCtxSetCurrent");
  must(cuda.free_host(block), "cuMemFreeHost");
  return NULL;
}

/* From before cuCtxRecordEvent, so that there is a function to be looked for that is not there. */
static void driver_prepare(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *symbol = library == NULL ? NULL : dlsym(library, "lade_loopback_set_version");
  void (*set_version)(int);
  memcpy(&set_version, &symbol, sizeof symbol);
  if (symbol != NULL) set_version(12000);
}

__attribute__((constructor)) static void plugin_begin(void) {
  const char *wanted = getenv("PLUGIN_CASE");
  CUstream stream;
  driver_prepare();
  program_look_up *look_up = program_first_look_up();
  if (look_up == NULL || program_resolve(&cuda, look_up, 12000, 0) != NULL) must(CUDA_ERROR_NOT_FOUND, "the driver");
  must(cuda.init(0), "cuInit");
  must(cuda.primary_retain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuda.ctx_set_current(context), "cuCtxSetCurrent");
  if (wanted != NULL && strcmp(wanted, "reset") == 0) {
    pthread_create(&other, NULL, alloc_first, NULL);
    usleep(MOMENT_US);
    must(cuda.primary_reset(0), "cuDevicePrimaryCtxReset");
  } else {
    must(cuda.host_alloc(&block, LARGE, 0), "cuMemHostAlloc");
    must(cuda.stream_create(&stream, 0), "cuStreamCreate");
    pthread_create(&other, NULL, free_first, NULL);
    usleep(MOMENT_US);
    must(cuda.stream_destroy(stream), "cuStreamDestroy");
  }
}

/* When it is loaded. */
__attribute__((visibility("default"))) void plugin_end(void);
void plugin_end(void) { pthread_join(other, NULL); }
