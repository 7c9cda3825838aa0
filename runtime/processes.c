/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that use a device: the public calls over runtime/nvml.
 *
 * Locks: none.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "runtime/nvml.h"
#include "runtime/ops.h"

static lade_status processes_make(const ladei_nvml_answer *answer, const char *pci_bus_id, int device,
                                  lade_device_processes **out) {
  lade_device_processes *processes = calloc(1, sizeof *processes);
  lade_device_process *list = calloc(answer->count + 1, sizeof *list);
  if (processes == NULL || list == NULL) {
    free(processes);
    free(list);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_processes_get: no memory for %zu processes",
                       answer->count);
  }
  for (size_t i = 0; i < answer->count; i++) {
    const ladei_process_use *use = &answer->list[i];
    list[i] = (lade_device_process){.pid = use->pid,
                                    .kinds = (use->computes ? (uint32_t)LADE_PROCESS_COMPUTES : 0) |
                                             (use->draws ? (uint32_t)LADE_PROCESS_DRAWS : 0),
                                    .bytes = use->bytes,
                                    .bytes_known = use->bytes_known};
  }
  processes->list = list;
  processes->count = answer->count;
  processes->device = device;
  processes->management_index = answer->index;
  snprintf(processes->pci_bus_id, sizeof processes->pci_bus_id, "%s", pci_bus_id);
  *out = processes;
  return LADE_OK;
}

static lade_status processes_ask(lade_runtime *runtime, int device, lade_device_processes **out) {
  ladei_device_properties properties;
  ladei_nvml_answer answer;
  lade_status status = runtime->ops->device_properties(runtime->self, device, &properties);
  if (status != LADE_OK) return status;
  if (runtime->software_device != NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "lade_device_processes_get: a software device is of this process alone");
  status = ladei_nvml_processes(LADEI_NVML_LIBRARY, properties.pci_bus_id, &answer);
  if (status != LADE_OK) return ladei_error_prefix(status, "lade_device_processes_get: device %d: ", device);
  status = processes_make(&answer, properties.pci_bus_id, device, out);
  free(answer.list);
  return status;
}

lade_status lade_device_processes_get(lade_runtime *runtime, int device, lade_device_processes **out) {
  if (runtime == NULL || out == NULL) return ladei_error_null(__func__, runtime == NULL ? "runtime" : "out");
  lade_status status = ladei_runtime_check_process(runtime);
  if (status != LADE_OK) return status;
  int cancellation = ladei_cancellation_hold();
  status = processes_ask(runtime, device, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

void lade_device_processes_destroy(lade_device_processes *processes) {
  if (processes == NULL) return;
  free((void *)(uintptr_t)processes->list);
  free(processes);
}
