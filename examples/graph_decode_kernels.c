/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_decode_kernels.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <lade/soft.h>

_Static_assert(sizeof(decode_work) == 56, "the offsets in the PTX are those of 8-byte pointers");

static void attend(const void *arguments) {
  const decode_work *w = arguments;
  for (uint32_t row = 0; row < w->rows; row++) {
    const uint32_t *in = w->in + row * (w->count + 1);
    uint32_t *line = w->cache + row * w->context, score = 0;
    for (uint32_t i = 0; i < w->count; i++) line[in[0] + i] = w->table[in[1 + i]];
    for (uint32_t i = 0; i < in[0] + w->count; i++) score = score * 31 + line[i];
    w->scores[row] = score;
  }
}

static void choose(const void *arguments) {
  const decode_work *w = arguments;
  for (uint32_t row = 0; row < w->rows; row++) {
    w->out[2 * row] = w->in[row * (w->count + 1)] + w->count;
    w->out[2 * row + 1] = w->scores[row] % w->vocabulary;
  }
}

static const char ptx[] = /* the two, a thread for each row; their parameter is a decode_work */
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry attend(.param .align 8 .b8 w[56]) {\n"
    ".reg .pred p; .reg .b32 row, n, at, end, x, score; .reg .b64 in, table, line, to, out;\n"
    "mov.u32 row, %tid.x; ld.param.u32 n, [w+44]; ld.param.u32 x, [w+48]; mul.lo.u32 x, x, row;\n"
    "ld.param.u64 line, [w+16]; mad.wide.u32 line, x, 4, line; mad.lo.u32 x, row, n, row;\n"
    "ld.param.u64 in, [w]; mad.wide.u32 in, x, 4, in; ld.param.u64 table, [w+8];\n"
    "ld.u32 at, [in]; add.u32 end, at, n; mad.wide.u32 to, at, 4, line;\n"
    "put: add.u64 in, in, 4; ld.u32 x, [in]; mad.wide.u32 out, x, 4, table; ld.u32 x, [out]; st.u32 [to], x;\n"
    "add.u64 to, to, 4; add.u32 at, at, 1; setp.lt.u32 p, at, end; @p bra put; mov.u32 score, 0;\n"
    "hash: ld.u32 x, [line]; mad.lo.u32 score, score, 31, x; add.u64 line, line, 4;\n"
    "sub.u32 end, end, 1; setp.ne.u32 p, end, 0; @p bra hash;\n"
    "ld.param.u64 out, [w+24]; mad.wide.u32 out, row, 4, out; st.u32 [out], score; ret; }\n"
    ".visible .entry choose(.param .align 8 .b8 w[56]) {\n"
    ".reg .b32 row, n, x, v; .reg .b64 in, scores, out;\n"
    "mov.u32 row, %tid.x; ld.param.u32 n, [w+44]; mad.lo.u32 x, row, n, row;\n"
    "ld.param.u64 in, [w]; mad.wide.u32 in, x, 4, in; ld.u32 x, [in]; add.u32 x, x, n;\n"
    "ld.param.u64 out, [w+32]; mad.wide.u32 out, row, 8, out; st.u32 [out], x;\n"
    "ld.param.u64 scores, [w+24]; mad.wide.u32 scores, row, 4, scores; ld.u32 x, [scores];\n"
    "ld.param.u32 v, [w+52]; rem.u32 x, x, v; st.u32 [out+4], x; ret; }\n";

/* ---- The driver's calls, in the library that the runtime has loaded ---------------------------------------------- */

static bool driver_find(const char *name, void *out, size_t bytes) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol = library != NULL ? dlsym(library, name) : NULL;
  memcpy(out, &symbol, bytes);
  if (symbol == NULL) fprintf(stderr, "libcuda.so.1 lacks %s\n", name);
  return symbol != NULL;
}

static lade_status driver_status(const char *name, int code) {
  if (code != 0) fprintf(stderr, "%s: CUresult %d\n", name, code);
  return code == 0 ? LADE_OK : LADE_ERR_DRIVER;
}

#define DRIVER(name, types, arguments)                                                                                 \
  do {                                                                                                                 \
    int(*function) types;                                                                                              \
    if (!driver_find(name, &function, sizeof function)) return LADE_ERR_UNSUPPORTED;                                   \
    if (driver_status(name, function arguments) != LADE_OK) return LADE_ERR_DRIVER;                                    \
  } while (0)

lade_status decode_kernels_open(lade_runtime *runtime, decode_kernels *out) {
  void *context;
  int device;
  *out = (decode_kernels){.runtime = runtime};
  if (strcmp(lade_runtime_name(runtime), "cuda") != 0) return LADE_OK;
  DRIVER("cuDeviceGet", (int *, int), (&device, 0));
  DRIVER("cuDevicePrimaryCtxRetain", (void **, int), (&context, device));
  DRIVER("cuCtxSetCurrent", (void *), (context));
  DRIVER("cuModuleLoadData", (void **, const void *), (&out->module, ptx));
  DRIVER("cuModuleGetFunction", (void **, void *, const char *), (&out->attend, out->module, "attend"));
  DRIVER("cuModuleGetFunction", (void **, void *, const char *), (&out->choose, out->module, "choose"));
  return LADE_OK;
}

lade_status decode_kernels_close(decode_kernels *kernels) {
  int device;
  if (kernels->module == NULL) return LADE_OK;
  DRIVER("cuModuleUnload", (void *), (kernels->module));
  DRIVER("cuDeviceGet", (int *, int), (&device, 0));
  DRIVER("cuDevicePrimaryCtxRelease_v2", (int), (device));
  return LADE_OK;
}

static lade_status kernel_launch(void *kernel, lade_stream stream, decode_work work) {
  void *parameters[] = {&work}; /* copied by the call */
  DRIVER("cuLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, lade_stream, void **, void **),
         (kernel, 1, 1, 1, work.rows, 1, 1, 0, stream, parameters, NULL));
  return LADE_OK;
}

lade_status decode_kernels_queue(const decode_kernels *kernels, lade_stream stream, const decode_work *work) {
  if (kernels->module != NULL) {
    lade_status status = kernel_launch(kernels->attend, stream, *work);
    return status != LADE_OK ? status : kernel_launch(kernels->choose, stream, *work);
  }
  size_t in_bytes = sizeof(uint32_t) * work->rows * (work->count + 1);
  size_t row_bytes = sizeof(uint32_t) * work->rows; /* a number of each row */
  lade_soft_range attends[] = {{work->in, in_bytes, LADE_SOFT_READ, 0},
                               {work->table, sizeof(uint32_t) * work->vocabulary, LADE_SOFT_READ, 0},
                               {work->cache, row_bytes * work->context, LADE_SOFT_READ | LADE_SOFT_WRITE, 0},
                               {work->scores, row_bytes, LADE_SOFT_WRITE, 0}};
  lade_soft_range chooses[] = {{work->in, in_bytes, LADE_SOFT_READ, 0},
                               {work->scores, row_bytes, LADE_SOFT_READ, 0},
                               {work->out, 2 * row_bytes, LADE_SOFT_WRITE, 0}};
  lade_status status = lade_soft_kernel(kernels->runtime, stream, attend, work, sizeof *work, attends, 4);
  return status != LADE_OK ? status
                           : lade_soft_kernel(kernels->runtime, stream, choose, work, sizeof *work, chooses, 3);
}
