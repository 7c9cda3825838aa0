/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain CUDA program. usage: stand_in COUNT [keep | busy | probe | retitle | locale | plugin PATH]
 *
 * Allocates and frees pinned memory and device memory COUNT times, once write-combined, and prints what it saw. With "keep" it frees
 * the last blocks in a function that runs at exit, as objects with static storage do. With "busy" it lets go of the device while work
 * runs there that never ends. With "probe" it first looks whether there is a driver, closes it, and finds it elsewhere later.
 * With "retitle" it writes over its environment, as programs do that give themselves another name in ps. With "locale" it sets that of its
 * environment. With "plugin" it only loads that library, and waits for its threads. Built twice: it opens the driver as the static
 * runtime does, or is linked with it (STAND_IN_LINKED).
 */
#include <dlfcn.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/preload/program.h"

static program cuda;
static void *kept;
static CUdeviceptr kept_on_device;

static void fail(const char *what, int code) {
  printf("%s: %d\n", what, code);
  exit(1);
}

static void must(CUresult code, const char *what) {
  if (code != CUDA_SUCCESS) fail(what, (int)code);
}

#ifdef STAND_IN_LINKED
CUresult linked_init(unsigned flags) __asm__("cuInit");
CUresult linked_retain(CUcontext *out, CUdevice device) __asm__("cuDevicePrimaryCtxRetain");
CUresult linked_set_current(CUcontext context) __asm__("cuCtxSetCurrent");
CUresult linked_alloc(void **out, size_t bytes, unsigned flags) __asm__("cuMemHostAlloc");
CUresult linked_free(void *pointer) __asm__("cuMemFreeHost");
CUresult linked_device_alloc(CUdeviceptr *out, size_t bytes) __asm__("cuMemAlloc_v2");
CUresult linked_device_free(CUdeviceptr address) __asm__("cuMemFree_v2");

static void resolve(void) {
  cuda.init = linked_init;
  cuda.primary_retain = linked_retain;
  cuda.ctx_set_current = linked_set_current;
  cuda.host_alloc = linked_alloc;
  cuda.free_host = linked_free;
  cuda.mem_alloc = linked_device_alloc;
  cuda.mem_free = linked_device_free;
}
#else
static void resolve(void) {
  program_look_up *look_up = program_first_look_up();
  const char *missing = look_up == NULL ? "libcuda.so.1" : program_resolve(&cuda, look_up, 12000, 0);
  if (missing != NULL) fail(missing, -1);
}
#endif

#ifndef STAND_IN_LINKED
/* As a library does that asks whether CUDA is there before it loads what needs it. */
static void probe(void) {
  Dl_info object;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *raw = library == NULL ? NULL : dlsym(library, "lade_loopback_play_program");
  if (library == NULL || dlsym(library, "cuInit") == NULL || dlsym(library, "cuGetProcAddress_v2") == NULL ||
      dladdr(raw, &object) == 0)
    fail("probe", -1);
  dlclose(library);
  /* Where it was there is something else now, unless it stays. */
  (void)mmap(object.dli_fbase, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}
#endif

/* The loopback's own controls, where it is the driver. */
static void play_program(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *symbol = library == NULL ? NULL : dlsym(library, "lade_loopback_play_program");
  void (*play)(void);
  memcpy(&play, &symbol, sizeof symbol);
  if (symbol != NULL) play();
}

static void free_kept(void) {
  must(cuda.free_host(kept), "cuMemFreeHost at exit");
  must(cuda.mem_free(kept_on_device), "cuMemFree at exit");
}

#ifndef STAND_IN_LINKED
static void never_end(void *user) {
  (void)user;
  for (;;) pause();
}

static void leave_busy(void) {
  CUstream stream;
  void *pointer = NULL;
  CUdeviceptr address = 0;
  must(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(cuda.host_alloc(&pointer, 100000, 0), "cuMemHostAlloc");
  must(cuda.host_function(stream, never_end, NULL), "cuLaunchHostFunc");
  must(cuda.free_host(pointer), "cuMemFreeHost");
  must(cuda.mem_alloc(&address, 100000), "cuMemAlloc"); /* ends with the device */
  must(cuda.primary_release(0), "cuDevicePrimaryCtxRelease");
}
#endif

static void retitle(void) {
  for (char **entry = environ; *entry != NULL; entry++) memset(*entry, '-', strlen(*entry));
}

static int plugin_run(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  void *symbol = library == NULL ? NULL : dlsym(library, "plugin_end");
  void (*end)(void);
  memcpy(&end, &symbol, sizeof symbol);
  if (symbol == NULL) fail(path, -1);
  end();
  puts("plugin");
  return 0;
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 1;
  CUcontext context;
  void *pointer = NULL;
  CUdeviceptr address = 0;
  if (argc > 3 && strcmp(argv[2], "plugin") == 0) return plugin_run(argv[3]);
#ifndef STAND_IN_LINKED
  if (argc > 2 && strcmp(argv[2], "probe") == 0) probe();
#endif
  play_program();
  resolve();
  must(cuda.init(0), "cuInit");
  if (argc > 2 && strcmp(argv[2], "retitle") == 0) retitle();
  if (argc > 2 && strcmp(argv[2], "locale") == 0 && setlocale(LC_ALL, "") == NULL) fail("setlocale", 0);
  must(cuda.primary_retain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuda.ctx_set_current(context), "cuCtxSetCurrent");
  must(cuda.host_alloc(&pointer, 4096, CU_MEMHOSTALLOC_WRITECOMBINED), "cuMemHostAlloc, write-combined");
  must(cuda.free_host(pointer), "cuMemFreeHost, write-combined");
  for (int i = 0; i < count; i++) {
    must(cuda.host_alloc(&pointer, 100000, 0), "cuMemHostAlloc");
    must(cuda.mem_alloc(&address, 100000), "cuMemAlloc");
    memset(pointer, i, 100000);
    if (i == count - 1 && argc > 2 && strcmp(argv[2], "keep") == 0) {
      kept = pointer;
      kept_on_device = address;
      atexit(free_kept);
    } else {
      must(cuda.mem_free(address), "cuMemFree");
      must(cuda.free_host(pointer), "cuMemFreeHost");
    }
  }
#ifndef STAND_IN_LINKED
  if (argc > 2 && strcmp(argv[2], "busy") == 0) leave_busy();
#endif
  printf("%d blocks\n", count);
  return 0;
}
