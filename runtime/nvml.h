/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processes use a device's memory, and how much, as NVIDIA's management library knows it. The library is opened
 * when asked, as the driver is; where it is missing, or does not know the device, the answer is that nothing is known.
 *
 * Threads: any. Waits: for the library's own start, tens of milliseconds at times: for reports of failures only.
 */
#ifndef LADE_RUNTIME_NVML_H
#define LADE_RUNTIME_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ladei_process_use {
  uint32_t pid;
  bool bytes_known; /* false: the library cannot tell them, as in some virtual machines */
  uint64_t bytes;
} ladei_process_use;

/*
 * Lists the processes that compute on the device at a PCI address ("0000:41:00.0"), in the library's order.
 *
 * @param library   Name of the library; LADEI_NVML_LIBRARY but for tests.
 * @param out_list  [out] To be freed by the caller; untouched where the result is false.
 * @return false: not known.
 */
bool ladei_nvml_processes(const char *library, const char *pci_bus_id, ladei_process_use **out_list, size_t *out_count);

#define LADEI_NVML_LIBRARY "libnvidia-ml.so.1"

#endif /* LADE_RUNTIME_NVML_H */
