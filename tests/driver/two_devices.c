/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions on two devices: access, copies, pinned memory, contexts, streams, memory of another process, graphs.
 *
 * C, S: the two primary contexts, a stream of each. Device 0's context is current where a question does not change it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/driver/ask.h"
#include "tests/driver/probe.h"

#define ANSWER(number, ...)       probe_answer(ASK_TWO_DEVICES " " number, __VA_ARGS__)
#define ANSWER_CODE(number, call) ANSWER(number, "%s", probe_name(call))
#define ANSWER_YES(number, truth) ANSWER(number, "%s", probe_yes(truth))
#define BYTES                     (2 * PROBE_MIB)
#define ACCESS_NONE               CU_MEM_ACCESS_FLAGS_PROT_NONE
#define ACCESS_BOTH               CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static CUdevice device[2];
static CUcontext C[2];
static CUstream S[2];

static void under(int i) { PROBE_MUST(D.cuCtxSetCurrent(i < 0 ? NULL : C[i])); }

static void open_device(int i) {
  PROBE_MUST(D.cuDeviceGet(&device[i], i));
  PROBE_MUST(D.cuDevicePrimaryCtxRetain(&C[i], device[i]));
  under(i);
  S[i] = probe_stream(CU_STREAM_NON_BLOCKING);
}

/* Both devices; a question ends here where there is one. */
static void begin(void) {
  int count = 0;
  probe_begin();
  PROBE_MUST(D.cuDeviceGetCount(&count));
  if (count < 2) {
    probe_answer(ASK_TWO_DEVICES, "%d", count);
    exit(0);
  }
  open_device(1);
  open_device(0);
}

static void peers_enable(void) {
  for (int i = 1; i >= 0; i--) {
    under(i);
    PROBE_MUST(D.cuCtxEnablePeerAccess(C[1 - i], 0));
  }
}

static void set(int i, CUdeviceptr memory, int value) {
  under(i);
  PROBE_MUST(D.cuMemsetD8Async(memory, (unsigned char)value, BYTES, S[i]));
  PROBE_MUST(D.cuStreamSynchronize(S[i]));
  under(0);
}

/* Its first and its last byte. */
static bool holds(int i, CUdeviceptr memory, int value) {
  unsigned char first = 0, last = 0;
  under(i);
  PROBE_MUST(D.cuMemcpyDtoH(&first, memory, 1));
  PROBE_MUST(D.cuMemcpyDtoH(&last, memory + BYTES - 1, 1));
  under(0);
  return first == value && last == value;
}

static CUdeviceptr memory_on(int i, int value) {
  under(i);
  CUdeviceptr memory = probe_memory(BYTES);
  set(i, memory, value);
  return memory;
}

/* What came of a copy to `memory` of device i, whose bytes were other ones. */
static const char *arrived(CUresult code, CUstream stream, int i, CUdeviceptr memory, int value) {
  static char text[64];
  CUresult end = code == CUDA_SUCCESS ? D.cuStreamSynchronize(stream) : code;
  snprintf(text, sizeof text, "%s%s", probe_name(end),
           end != CUDA_SUCCESS       ? ""
           : holds(i, memory, value) ? ", right"
                                     : ", wrong");
  if (end == CUDA_SUCCESS) set(i, memory, 0);
  return text;
}

/* The status of a call that queues, and of what it queued. */
static CUresult through(CUresult code, CUstream stream) {
  return code == CUDA_SUCCESS ? D.cuStreamSynchronize(stream) : code;
}

static CUdeviceptr mapped_on(int i, CUmemGenericAllocationHandle *out_handle, bool exportable) {
  CUdeviceptr address = 0;
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device[i]}};
  if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  PROBE_MUST(D.cuMemAddressReserve(&address, BYTES, 0, 0, 0));
  PROBE_MUST(D.cuMemCreate(out_handle, BYTES, &properties, 0));
  PROBE_MUST(D.cuMemMap(address, BYTES, 0, *out_handle, 0));
  return address;
}

static CUmemAccessDesc access_of(int i, CUmemAccess_flags flags) {
  return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device[i]}, .flags = flags};
}

static CUresult map_access(CUdeviceptr address, int i, CUmemAccess_flags flags) {
  CUmemAccessDesc access = access_of(i, flags);
  return D.cuMemSetAccess(address, BYTES, &access, 1);
}

static CUresult pool_access(CUmemoryPool pool, int i, CUmemAccess_flags flags) {
  CUmemAccessDesc access = access_of(i, flags);
  return D.cuMemPoolSetAccess(pool, &access, 1);
}

static CUdeviceptr pool_memory_on(int i, int value) {
  CUdeviceptr memory = 0;
  under(i);
  PROBE_MUST(D.cuMemAllocAsync(&memory, BYTES, S[i]));
  PROBE_MUST(D.cuStreamSynchronize(S[i]));
  set(i, memory, value);
  return memory;
}

static int ordinal(CUdeviceptr memory) {
  int found = -1;
  CUresult code = D.cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory);
  return code == CUDA_SUCCESS ? found : -1;
}

static const char *context_of(CUdeviceptr memory) {
  CUcontext found = NULL;
  if (D.cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, memory) != CUDA_SUCCESS) return "unknown";
  return found == NULL ? "none" : found == C[0] ? "0" : found == C[1] ? "1" : "another";
}

/* Whether a call waits for what the stream of device i does; the call is an expression. */
static void busy(int i) {
  under(i);
  probe_gate_close(S[i]);
  under(0);
}
#define WAITS(number, i, call)                                                                                         \
  do {                                                                                                                 \
    busy(i);                                                                                                           \
    PROBE_MUST(call);                                                                                                  \
    ANSWER_YES(number, probe_gate_open());                                                                             \
    PROBE_MUST(D.cuStreamSynchronize(S[i]));                                                                           \
  } while (0)

/* ---- access, and copies by kind of memory -------------------------------------------------------------------------- */

static void access_between(void) {
  int can = -1;
  begin();
  PROBE_MUST(D.cuDeviceCanAccessPeer(&can, device[0], device[1]));
  ANSWER("1 (a)", "%d", can);
  PROBE_MUST(D.cuDeviceCanAccessPeer(&can, device[0], device[0]));
  ANSWER("1 (b)", "%d", can);
  ANSWER_CODE("1 (c)", D.cuCtxEnablePeerAccess(C[0], 0));
  under(1);
  PROBE_MUST(D.cuCtxEnablePeerAccess(C[0], 0));
  under(0);
  ANSWER_CODE("1 (d)", D.cuCtxDisablePeerAccess(C[1]));
  ANSWER_CODE("1 (e)", D.cuCtxEnablePeerAccess(C[1], 0));
  ANSWER_CODE("1 (f)", D.cuCtxEnablePeerAccess(C[1], 0));
  PROBE_MUST(D.cuCtxDisablePeerAccess(C[1]));
  WAITS("1 (g)", 0, D.cuCtxEnablePeerAccess(C[1], 0));
  WAITS("1 (h)", 1, D.cuCtxDisablePeerAccess(C[1]));
}

static void copies_of_plain(void) {
  begin();
  CUdeviceptr x0 = memory_on(0, 0), x1 = memory_on(1, 7), y1 = memory_on(1, 0);
  char *h = probe_pinned(BYTES);
  memset(h, 9, BYTES);
  ANSWER("2 (a)", "%s", arrived(D.cuMemcpyAsync(x0, x1, BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER("2 (b)", "%s", arrived(D.cuMemcpyPeerAsync(x0, C[0], x1, C[1], BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER("2 (c)", "%s", arrived(D.cuMemcpyPeerAsync(x0, C[1], x1, C[0], BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER("2 (d)", "%s", arrived(D.cuMemcpyPeerAsync(x0, C[0], x1, C[0], BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER("2 (e)", "%s", arrived(D.cuMemcpyAsync(y1, x1, BYTES, S[0]), S[0], 1, y1, 7));
  ANSWER("2 (f)", "%s", arrived(D.cuMemcpyHtoDAsync(y1, h, BYTES, S[0]), S[0], 1, y1, 9));
  ANSWER_CODE("2 (g)", through(D.cuMemcpyDtoHAsync(h, x1, BYTES, S[0]), S[0]));
  ANSWER_CODE("2 (h)", through(D.cuMemsetD8Async(y1, 7, BYTES, S[0]), S[0]));
  WAITS("2 (i)", 0, D.cuMemcpyAsync(x0, x1, BYTES, S[0]));
  WAITS("2 (j)", 1, D.cuMemcpyAsync(x0, x1, BYTES, S[0]));
}

static void copies_of_mapped(void) {
  CUmemGenericAllocationHandle handle;
  begin();
  CUdeviceptr x0 = memory_on(0, 0), v1 = mapped_on(1, &handle, false), w1 = mapped_on(1, &handle, false);
  char *h = probe_pinned(BYTES);
  PROBE_MUST(map_access(v1, 1, ACCESS_BOTH));
  set(1, v1, 7);
  ANSWER("3 (a)", "%s", arrived(D.cuMemcpyAsync(x0, v1, BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER("3 (b)", "%s", arrived(D.cuMemcpyPeerAsync(x0, C[0], v1, C[1], BYTES, S[0]), S[0], 0, x0, 7));
  under(1);
  ANSWER("3 (c)", "%s", arrived(D.cuMemcpyAsync(x0, v1, BYTES, S[1]), S[1], 0, x0, 7));
  ANSWER_CODE("3 (d)", through(D.cuMemcpyAsync(x0, v1, BYTES, S[1]), S[1]));
  ANSWER_CODE("3 (e)", through(D.cuMemcpyHtoDAsync(v1, h, BYTES, S[0]), S[0]));
  PROBE_MUST(D.cuCtxEnablePeerAccess(C[1], 0));
  ANSWER_CODE("3 (f)", through(D.cuMemcpyAsync(x0, v1, BYTES, S[0]), S[0]));
  PROBE_MUST(D.cuCtxDisablePeerAccess(C[1]));
  PROBE_MUST(map_access(v1, 0, ACCESS_BOTH));
  ANSWER("3 (g)", "%s", arrived(D.cuMemcpyAsync(x0, v1, BYTES, S[0]), S[0], 0, x0, 7));
  PROBE_MUST(map_access(w1, 0, ACCESS_BOTH));
  ANSWER_CODE("3 (h)", through(D.cuMemcpyDtoHAsync(h, w1, BYTES, S[0]), S[0]));
  under(1);
  ANSWER_CODE("3 (i)", through(D.cuMemcpyDtoHAsync(h, w1, BYTES, S[1]), S[1]));
  under(0);
  ANSWER_CODE("3 (j)", through(D.cuMemcpyPeerAsync(x0, C[0], w1, C[1], BYTES, S[0]), S[0]));
}

static void copies_of_pools(void) {
  CUmemoryPool pool = NULL;
  begin();
  CUdeviceptr x0 = memory_on(0, 0), p1 = pool_memory_on(1, 7);
  char *h = probe_pinned(BYTES);
  PROBE_MUST(D.cuDeviceGetDefaultMemPool(&pool, device[1]));
  ANSWER_CODE("4 (a)", through(D.cuMemcpyAsync(x0, p1, BYTES, S[0]), S[0]));
  ANSWER("4 (b)", "%s", arrived(D.cuMemcpyPeerAsync(x0, C[0], p1, C[1], BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER_CODE("4 (c)", through(D.cuMemcpyDtoHAsync(h, p1, BYTES, S[0]), S[0]));
  PROBE_MUST(D.cuCtxEnablePeerAccess(C[1], 0));
  ANSWER_CODE("4 (d)", through(D.cuMemcpyAsync(x0, p1, BYTES, S[0]), S[0]));
  PROBE_MUST(D.cuCtxDisablePeerAccess(C[1]));
  PROBE_MUST(pool_access(pool, 0, ACCESS_BOTH));
  ANSWER("4 (e)", "%s", arrived(D.cuMemcpyAsync(x0, p1, BYTES, S[0]), S[0], 0, x0, 7));
  ANSWER_CODE("4 (f)", pool_access(pool, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
  ANSWER_CODE("4 (g)", pool_access(pool, 1, ACCESS_NONE));
  ANSWER_CODE("4 (h)", pool_access(pool, 0, ACCESS_NONE));
  ANSWER_CODE("4 (i)", through(D.cuMemcpyAsync(x0, p1, BYTES, S[0]), S[0]));
}

/* A batch of one, or of two. */
static CUresult batch(CUdeviceptr *to, CUdeviceptr *from, size_t count, CUstream stream, int from_hint, int to_hint) {
  CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t sizes[2] = {BYTES, BYTES}, first = 0;
  if (from_hint >= 0) {
    attributes.srcLocHint = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device[from_hint]};
    attributes.dstLocHint = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device[to_hint]};
  }
  return D.cuMemcpyBatchAsync(to, from, sizes, count, &attributes, &first, 1, stream);
}

static void batches(void) {
  CUmemGenericAllocationHandle handle;
  begin();
  CUdeviceptr x0 = memory_on(0, 0), x1 = memory_on(1, 0), y0 = memory_on(0, 0), y1 = memory_on(1, 0);
  CUdeviceptr v1 = mapped_on(1, &handle, false), p1 = pool_memory_on(1, 7);
  char *memory = probe_pinned(BYTES);
  CUdeviceptr h = probe_address(memory);
  memset(memory, 9, BYTES);
  PROBE_MUST(map_access(v1, 1, ACCESS_BOTH));
  CUdeviceptr up[] = {x0, x1}, both[] = {h, h}, within[] = {y0, y1};
  CUresult code = through(batch(up, both, 2, S[0], -1, -1), S[0]);
  ANSWER("5 (a)", "%s%s", probe_name(code), holds(0, x0, 9) && holds(1, x1, 9) ? ", right" : "");
  set(0, x0, 0), set(1, x1, 7);
  ANSWER("5 (b)", "%s", arrived(batch(&x0, &x1, 1, S[0], -1, -1), S[0], 0, x0, 7));
  ANSWER("5 (c)", "%s", arrived(batch(&x0, &x1, 1, S[0], 1, 0), S[0], 0, x0, 7));
  ANSWER("5 (d)", "%s", arrived(batch(&x0, &x1, 1, S[0], 0, 1), S[0], 0, x0, 7));
  ANSWER_CODE("5 (e)", through(batch(&x0, &v1, 1, S[0], -1, -1), S[0]));
  set(0, x0, 7);
  code = through(batch(within, up, 2, S[0], -1, -1), S[0]);
  ANSWER("5 (f)", "%s%s", probe_name(code), holds(0, y0, 7) && holds(1, y1, 7) ? ", right" : "");
  ANSWER_CODE("5 (g)", through(batch(&x1, &h, 1, S[1], -1, -1), S[1]));
  ANSWER_CODE("5 (h)", through(batch(&x0, &p1, 1, S[0], -1, -1), S[0]));
  ANSWER_CODE("5 (i)", through(batch(&x0, &p1, 1, S[0], 1, 0), S[0]));
}

static void places(void) {
  CUmemoryPool pool = NULL, made = NULL;
  CUdeviceptr memory = 0;
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  begin();
  properties.location.id = device[1];
  PROBE_MUST(D.cuDeviceGetDefaultMemPool(&pool, device[1]));
  PROBE_MUST(D.cuMemAllocFromPoolAsync(&memory, BYTES, pool, S[0]));
  ANSWER("6 (a)", "%d", ordinal(memory));
  PROBE_MUST(D.cuMemAllocAsync(&memory, BYTES, S[1]));
  ANSWER("6 (b)", "%d", ordinal(memory));
  ANSWER_CODE("6 (c)", through(D.cuMemFreeAsync(memory, S[0]), S[0]));
  PROBE_MUST(D.cuMemPoolCreate(&made, &properties));
  ANSWER_CODE("6 (d)", D.cuDeviceSetMemPool(device[0], made));
  under(1);
  PROBE_MUST(D.cuMemAllocAsync(&memory, BYTES, NULL));
  under(0);
  ANSWER("6 (e)", "%d", ordinal(memory));
  CUdeviceptr x1 = memory_on(1, 0), y1 = memory_on(1, 0);
  ANSWER_CODE("6 (f)", D.cuMemFree(x1));
  WAITS("6 (g)", 1, D.cuMemFree(y1));
}

/* ---- pinned memory and contexts ------------------------------------------------------------------------------------- */

static void pinned_of_one_context(void) {
  void *n = NULL;
  CUdeviceptr alias = 0;
  unsigned flags = 0;
  begin();
  char *h = probe_pinned(BYTES), *r = probe_pageable(BYTES), *portable = probe_pageable(BYTES);
  CUdeviceptr x1 = memory_on(1, 0);
  PROBE_MUST(D.cuMemHostAlloc(&n, BYTES, 0));
  PROBE_MUST(D.cuMemHostRegister(r, BYTES, 0));
  PROBE_MUST(D.cuMemHostRegister(portable, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
  under(1);
  ANSWER("7 (a)", "%s, %d, %s", probe_known(probe_address(n)) ? "known" : "unknown", ordinal(probe_address(n)),
         context_of(probe_address(n)));
  ANSWER("7 (b)", "%s, %d, %s", probe_known(probe_address(h)) ? "known" : "unknown", ordinal(probe_address(h)),
         context_of(probe_address(h)));
  CUresult code = D.cuMemHostGetDevicePointer(&alias, n, 0);
  ANSWER("7 (c)", "%s%s", probe_name(code), alias == probe_address(n) ? ", equal" : "");
  code = D.cuMemHostGetFlags(&flags, n);
  ANSWER("7 (d)", "%s, %#x", probe_name(code), flags);
  WAITS("7 (e)", 1, D.cuMemcpyHtoDAsync(x1, n, BYTES, S[1]));
  under(1);
  ANSWER_YES("7 (f)", probe_known(probe_address(r)));
  code = D.cuMemHostGetFlags(&flags, r);
  ANSWER("7 (g)", "%s, %#x", probe_name(code), flags);
  WAITS("7 (h)", 1, D.cuMemcpyHtoDAsync(x1, r, BYTES, S[1]));
  under(1);
  ANSWER_CODE("7 (i)", D.cuMemHostRegister(r, BYTES, 0));
  ANSWER_CODE("7 (j)", D.cuMemHostUnregister(r));
  under(0);
  ANSWER_YES("7 (k)", probe_known(probe_address(r)));
}

static void context_gone(void) {
  begin();
  CUcontext old = C[0];
  char *h = probe_pinned(BYTES), *r = probe_pageable(BYTES);
  CUdeviceptr x1 = memory_on(1, 7);
  PROBE_MUST(D.cuMemHostRegister(r, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
  peers_enable();
  under(1);
  PROBE_MUST(D.cuDevicePrimaryCtxRelease(device[0])); /* probe_begin's */
  PROBE_MUST(D.cuDevicePrimaryCtxRelease(device[0]));
  ANSWER_YES("8 (a)", probe_known(probe_address(h)));
  ANSWER_YES("8 (b)", probe_known(probe_address(r)));
  ANSWER_CODE("8 (c)", D.cuMemHostRegister(r, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
  ANSWER_YES("8 (d)", probe_known(x1));
  PROBE_MUST(D.cuDevicePrimaryCtxRetain(&C[0], device[0]));
  ANSWER_YES("8 (e)", C[0] == old);
  ANSWER_CODE("8 (f)", D.cuCtxEnablePeerAccess(C[0], 0));
}

static void waits_of_the_other(void) {
  CUdeviceptr memory = 0;
  begin();
  char *h = probe_pinned(BYTES), *portable = probe_pageable(BYTES), *r = probe_pageable(BYTES);
  CUdeviceptr x0 = memory_on(0, 0), y0 = memory_on(0, 0);
  PROBE_MUST(D.cuMemHostRegister(portable, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
  PROBE_MUST(D.cuMemHostRegister(r, BYTES, 0));
  WAITS("9 (a)", 1, D.cuMemFreeHost(h));
  WAITS("9 (b)", 1, D.cuMemHostUnregister(portable));
  WAITS("9 (c)", 1, D.cuMemHostUnregister(r));
  WAITS("9 (d)", 1, D.cuMemFree(x0));
  peers_enable();
  WAITS("9 (e)", 1, D.cuMemFree(y0));
  WAITS("9 (f)", 1, D.cuMemAlloc(&memory, 16 * PROBE_MIB));
  WAITS("9 (g)", 1, D.cuCtxDisablePeerAccess(C[1]));
  WAITS("9 (h)", 1, D.cuCtxSynchronize());
}

/* ---- streams and events --------------------------------------------------------------------------------------------- */

static void CUDA_CB nothing(void *unused) { (void)unused; }

static void streams(void) {
  float ms = 0;
  begin();
  char *h = probe_pinned(BYTES);
  CUdeviceptr x1 = memory_on(1, 0);
  CUevent e0 = probe_event(CU_EVENT_DISABLE_TIMING), t0 = probe_event(CU_EVENT_DEFAULT);
  under(1);
  CUevent e1 = probe_event(CU_EVENT_DISABLE_TIMING), t1 = probe_event(CU_EVENT_DEFAULT);
  under(0);
  ANSWER_CODE("10 (a)", D.cuStreamSynchronize(S[1]));
  ANSWER_CODE("10 (b)", through(D.cuMemcpyHtoDAsync(x1, h, BYTES, S[1]), S[1]));
  ANSWER_CODE("10 (c)", through(D.cuMemsetD8Async(x1, 3, BYTES, S[1]), S[1]));
  ANSWER_CODE("10 (d)", through(D.cuLaunchHostFunc(S[1], nothing, NULL), S[1]));
  ANSWER_CODE("10 (e)", D.cuEventRecord(e0, S[1]));
  ANSWER_CODE("10 (f)", D.cuEventRecord(e1, S[1]));
  ANSWER_CODE("10 (g)", D.cuStreamWaitEvent(S[0], e1, 0));
  PROBE_MUST(D.cuStreamSynchronize(S[1]));
  ANSWER_CODE("10 (h)", D.cuEventQuery(e1));
  PROBE_MUST(D.cuEventRecord(t0, S[0]));
  PROBE_MUST(D.cuEventRecord(t1, S[1]));
  PROBE_MUST(D.cuStreamSynchronize(S[0]));
  PROBE_MUST(D.cuStreamSynchronize(S[1]));
  ANSWER_CODE("10 (i)", D.cuEventElapsedTime(&ms, t0, t1));
  under(1);
  ANSWER_CODE("10 (j)", D.cuStreamWaitEvent(S[0], e1, 0));
  under(-1);
  ANSWER_CODE("11 (a)", D.cuEventQuery(e1));
  ANSWER_CODE("11 (b)", D.cuStreamWaitEvent(S[0], e1, 0));
  ANSWER_CODE("11 (c)", D.cuEventRecord(e1, S[1]));
  ANSWER_CODE("11 (d)", D.cuMemcpyHtoDAsync(x1, h, BYTES, S[1]));
  ANSWER_YES("11 (e)", probe_known(x1));
  ANSWER_CODE("11 (f)", D.cuStreamSynchronize(S[1]));
  ANSWER_CODE("11 (g)", D.cuEventSynchronize(e1));
  ANSWER_CODE("11 (h)", D.cuMemFreeHost(h));
  ANSWER_CODE("11 (i)", D.cuMemFree(x1));
  ANSWER_CODE("11 (j)", D.cuEventDestroy(e1));
  ANSWER_CODE("11 (k)", D.cuStreamDestroy(S[1]));
  ANSWER_CODE("11 (l)", D.cuStreamCreate(&S[1], CU_STREAM_NON_BLOCKING));
}

/* ---- memory of another process -------------------------------------------------------------------------------------- */

static void fd_send(int socket, int fd) {
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {0};
  char byte = 0;
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(head), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1) exit(1);
}

static int fd_receive(int socket) {
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  int fd = -1;
  char byte;
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(socket, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == NULL) exit(1);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

/* Has a context on device 1 alone. */
static void importer(int socket) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  unsigned flags = 0;
  int active = -1, fd = fd_receive(socket);
  probe_open();
  open_device(1);
  PROBE_MUST(D.cuDeviceGet(&device[0], 0));
  CUdeviceptr x1 = probe_memory(BYTES);
  ANSWER_CODE("12 (a)", D.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  PROBE_MUST(D.cuMemAddressReserve(&address, BYTES, 0, 0, 0));
  PROBE_MUST(D.cuMemMap(address, BYTES, 0, handle, 0));
  ANSWER_CODE("12 (b)", map_access(address, 1, ACCESS_BOTH));
  unsigned char byte = 0;
  CUresult code = through(D.cuMemcpyAsync(x1, address, BYTES, S[1]), S[1]);
  PROBE_MUST(D.cuMemcpyDtoH(&byte, x1 + BYTES - 1, 1));
  ANSWER("12 (c)", "%s%s", probe_name(code), byte == 7 ? ", right" : "");
  ANSWER("12 (d)", "%d, %s", ordinal(address), context_of(address));
  PROBE_MUST(D.cuDevicePrimaryCtxGetState(device[0], &flags, &active));
  ANSWER("12 (e)", "%d", active);
}

static void memory_of_another_process(void) {
  CUmemGenericAllocationHandle handle;
  int sockets[2], fd = -1;
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) exit(1);
  pid_t child = fork(); /* before either has a driver */
  if (child == 0) {
    close(sockets[0]);
    importer(sockets[1]);
    _exit(0);
  }
  close(sockets[1]);
  begin();
  CUdeviceptr v0 = mapped_on(0, &handle, true);
  PROBE_MUST(map_access(v0, 0, ACCESS_BOTH));
  set(0, v0, 7);
  PROBE_MUST(D.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  fd_send(sockets[0], fd);
  (void)!read(sockets[0], &byte, 1); /* until the other process ends */
  waitpid(child, NULL, 0);
}

/* ---- graphs --------------------------------------------------------------------------------------------------------- */

static CUresult copy_any(CUdeviceptr to, CUdeviceptr from, CUstream stream) {
  return D.cuMemcpyAsync(to, from, BYTES, stream);
}

static CUresult fill_any(CUdeviceptr to, CUdeviceptr unused, CUstream stream) {
  (void)unused;
  return D.cuMemsetD8Async(to, 1, BYTES, stream);
}

/* A graph of one node, captured on a stream of device i, under the context of device `current`. */
static CUgraph graph_of(CUresult (*call)(CUdeviceptr, CUdeviceptr, CUstream), CUdeviceptr to, CUdeviceptr from, int i,
                        int current) {
  CUgraph graph = NULL;
  under(current);
  PROBE_MUST(D.cuStreamBeginCapture(S[i], CU_STREAM_CAPTURE_MODE_RELAXED));
  PROBE_MUST(call(to, from, S[i]));
  PROBE_MUST(D.cuStreamEndCapture(S[i], &graph));
  under(0);
  return graph;
}

static CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec = NULL;
  PROBE_MUST(D.cuGraphInstantiateWithFlags(&exec, graph, 0));
  return exec;
}

static void peer_call_captured(const char *number, CUdeviceptr to, int to_device, CUdeviceptr from, int from_device) {
  CUgraph graph = NULL;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  PROBE_MUST(D.cuStreamBeginCapture(S[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  CUresult code = D.cuMemcpyPeerAsync(to, C[to_device], from, C[from_device], BYTES, S[0]);
  PROBE_MUST(D.cuStreamIsCapturing(S[0], &status));
  (void)D.cuStreamEndCapture(S[0], &graph);
  probe_answer(number, "%s, %s", probe_name(code),
               status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? "INVALIDATED" : "ACTIVE");
}

static void captures(void) {
  CUgraph graph = NULL;
  size_t nodes = 0;
  CUmemGenericAllocationHandle handle;
  begin();
  CUdeviceptr x0 = memory_on(0, 0), y0 = memory_on(0, 0), x1 = memory_on(1, 0), v1 = mapped_on(1, &handle, false);
  PROBE_MUST(map_access(v1, 1, ACCESS_BOTH));
  CUevent e0 = probe_event(CU_EVENT_DISABLE_TIMING);
  under(1);
  CUevent e1 = probe_event(CU_EVENT_DISABLE_TIMING);
  under(0);
  PROBE_MUST(D.cuStreamBeginCapture(S[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  PROBE_MUST(D.cuEventRecord(e0, S[0]));
  PROBE_MUST(D.cuStreamWaitEvent(S[1], e0, 0));
  PROBE_MUST(D.cuMemsetD8Async(x1, 7, BYTES, S[1]));
  PROBE_MUST(D.cuEventRecord(e1, S[1]));
  PROBE_MUST(D.cuStreamWaitEvent(S[0], e1, 0));
  PROBE_MUST(D.cuMemcpyAsync(x0, x1, BYTES, S[0]));
  ANSWER_CODE("13 (a)", D.cuStreamEndCapture(S[0], &graph));
  PROBE_MUST(D.cuGraphGetNodes(graph, NULL, &nodes));
  ANSWER("13 (b)", "%zu", nodes);
  CUgraphExec exec = instantiate(graph);
  ANSWER("13 (c)", "%s", arrived(D.cuGraphLaunch(exec, S[0]), S[0], 0, x0, 7));
  ANSWER("13 (d)", "%s", arrived(D.cuGraphLaunch(exec, S[1]), S[1], 0, x0, 7));
  peer_call_captured(ASK_TWO_DEVICES " 13 (e)", x0, 0, x1, 1);
  peer_call_captured(ASK_TWO_DEVICES " 13 (f)", y0, 0, x0, 0);
  peer_call_captured(ASK_TWO_DEVICES " 13 (g)", x0, 0, v1, 1);
  peers_enable();
  peer_call_captured(ASK_TWO_DEVICES " 13 (h)", x0, 0, x1, 1);
  ANSWER_CODE("13 (i)", D.cuStreamBeginCapture(S[1], CU_STREAM_CAPTURE_MODE_RELAXED));
}

static void update_answer(const char *number, CUgraph from, CUgraph to) {
  CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  (void)D.cuGraphExecUpdate(instantiate(from), to, &info);
  probe_answer(number, "%s",
               info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS                    ? "SUCCESS"
               : info.result == CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED ? "PARAMETERS_CHANGED"
                                                                              : "another");
}

static void updates(void) {
  begin();
  CUdeviceptr x0 = memory_on(0, 0), y0 = memory_on(0, 0), x1 = memory_on(1, 0), y1 = memory_on(1, 0);
  CUdeviceptr h = probe_address(probe_pinned(BYTES));
#define COPY(to, from, i) graph_of(copy_any, to, from, i, i)
#define FILL(to, i)       graph_of(fill_any, to, 0, i, i)
  update_answer(ASK_TWO_DEVICES " 14 (a)", COPY(x0, x1, 0), COPY(x0, y1, 0));
  update_answer(ASK_TWO_DEVICES " 14 (b)", COPY(x0, x1, 0), COPY(x0, y0, 0));
  update_answer(ASK_TWO_DEVICES " 14 (c)", COPY(x0, x1, 0), COPY(x1, x0, 0));
  update_answer(ASK_TWO_DEVICES " 14 (d)", COPY(x0, x1, 0), COPY(y1, x1, 0));
  update_answer(ASK_TWO_DEVICES " 14 (e)", COPY(x0, x1, 0), graph_of(copy_any, x0, x1, 1, 0));
  update_answer(ASK_TWO_DEVICES " 14 (f)", COPY(x0, y0, 0), COPY(x1, y1, 0));
  update_answer(ASK_TWO_DEVICES " 14 (g)", COPY(x0, h, 0), COPY(x1, h, 0));
  update_answer(ASK_TWO_DEVICES " 14 (h)", COPY(x0, h, 0), COPY(x1, h, 1));
  update_answer(ASK_TWO_DEVICES " 14 (i)", COPY(x0, h, 0), COPY(x0, h, 1));
  update_answer(ASK_TWO_DEVICES " 14 (j)", FILL(x0, 0), FILL(x1, 1));
  update_answer(ASK_TWO_DEVICES " 14 (k)", FILL(x0, 0), FILL(x0, 1));
#undef COPY
#undef FILL
}

const probe_question probe_two_device_questions[] = {{"access_between", access_between},
                                                     {"copies_of_plain", copies_of_plain},
                                                     {"copies_of_mapped", copies_of_mapped},
                                                     {"copies_of_pools", copies_of_pools},
                                                     {"batches", batches},
                                                     {"places", places},
                                                     {"pinned_of_one_context", pinned_of_one_context},
                                                     {"context_gone", context_gone},
                                                     {"waits_of_the_other", waits_of_the_other},
                                                     {"streams", streams},
                                                     {"memory_of_another_process", memory_of_another_process},
                                                     {"captures", captures},
                                                     {"updates", updates},
                                                     {NULL, NULL}};
