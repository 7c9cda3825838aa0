/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes use a device's memory, and how much, as NVIDIA's management library knows it. The library is opened
 * when asked, as the driver is, and its session is closed before the answer is given.
 *
 * Threads: any. Waits: for the library's own start, tens of milliseconds at times: for reports and people only.
 */
#ifndef LADE_RUNTIME_NVML_H
#define LADE_RUNTIME_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_process_use {
  uint32_t pid;
  bool bytes_known; /* false: the library cannot tell them, as in some virtual machines */
  bool computes, draws;
  uint64_t bytes;
} ladei_process_use;

typedef struct ladei_nvml_answer {
  ladei_process_use *list; /* to be freed by the caller */
  size_t count;
  int32_t index; /* of the device, in the library's order; -1: not told */
} ladei_nvml_answer;

/*
 * Lists the processes on the device at a PCI address ("0000:41:00.0"): those that compute in the library's order, then those that
 * draw and do not compute.
 *
 * @param library  Name of the library; LADEI_NVML_LIBRARY but for tests.
 * @param out      [out] Untouched on error.
 *
 * Errors: LADE_ERR_UNSUPPORTED where the library is missing or too old; LADE_ERR_NO_DEVICE where its driver is not loaded, or
 * it does not know the device; LADE_ERR_DRIVER, with the library's code, for other refusals; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_nvml_processes(const char *library, const char *pci_bus_id, ladei_nvml_answer *out);

#define LADEI_NVML_LIBRARY "libnvidia-ml.so.1"

#endif /* LADE_RUNTIME_NVML_H */
