/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that use a device's memory, and how much, from NVIDIA's management library. A question opens the
 * library, as the driver is opened, and closes its session before the answer is returned.
 *
 * Threads: any. Waits: for the library's start, sometimes tens of milliseconds: for reports and people only.
 */
#ifndef LADE_RUNTIME_NVML_H
#define LADE_RUNTIME_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

typedef struct ladei_process_use {
  uint32_t pid;
  bool bytes_known; /* false: the library does not know, as in some virtual machines */
  bool computes, draws;
  uint64_t bytes;
} ladei_process_use;

typedef struct ladei_nvml_answer {
  ladei_process_use *list; /* to be freed by the caller */
  size_t count;
  int32_t index; /* of the device, in the library's order; -1: unknown */
} ladei_nvml_answer;

/*
 * Lists the processes on the device at a PCI address ("0000:41:00.0"): those that compute in the library's order, then
 * those that only draw.
 *
 * @param library  Name of the library; LADEI_NVML_LIBRARY except in tests.
 * @param out      [out] Untouched on error.
 *
 * Errors: LADE_ERR_UNSUPPORTED if the library is missing or too old; LADE_ERR_NO_DEVICE if its driver is not loaded, or
 * it does not know the device; LADE_ERR_DRIVER, with the library's code, for others; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_nvml_processes(const char *library, const char *pci_bus_id, ladei_nvml_answer *out);

#define LADEI_NVML_LIBRARY "libnvidia-ml.so.1"

#endif /* LADE_RUNTIME_NVML_H */
