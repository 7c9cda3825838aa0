/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime "cuda": the ops table over NVIDIA's driver, libcuda.so.1, opened at run time.
 *
 * Built only where the CUDA headers were found; then, and only then, LADE_HAVE_CUDA_HEADERS is defined.
 */
#ifndef LADE_RUNTIME_CUDA_CUDA_H
#define LADE_RUNTIME_CUDA_CUDA_H

#include "runtime/ops.h"

/*
 * Loads the driver (CUDA 12.0 or newer) and initialises it; creates no context on any device.
 *
 * The table belongs to *out_self and goes with it, in the table's close. LADE_ERR_NO_DEVICE: no driver, or none of its
 * devices can be used. LADE_ERR_UNSUPPORTED: the driver is too old; the text names the entry point that it lacks.
 */
lade_status ladei_cuda_open(const lade_runtime_ops **out_ops, void **out_self);

/* The same with another driver library: a name for dlopen(). For tests. */
lade_status ladei_cuda_open_library(const char *library, const lade_runtime_ops **out_ops, void **out_self);

#endif /* LADE_RUNTIME_CUDA_CUDA_H */
