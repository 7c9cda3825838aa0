/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that use a device: the public call over runtime/nvml.
 *
 * Locks: none.
 */
#include <stdlib.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "runtime/nvml.h"
#include "runtime/ops.h"

static lade_status answer_show(const ladei_nvml_answer *answer, lade_device_process_visit visit, void *user) {
  lade_status status = LADE_OK;
  for (size_t i = 0; status == LADE_OK && i < answer->count; i++) {
    const ladei_process_use *use = &answer->list[i];
    const lade_device_process process = {.pid = use->pid,
                                         .kinds = (use->computes ? (uint32_t)LADE_PROCESS_COMPUTES : 0) |
                                                  (use->draws ? (uint32_t)LADE_PROCESS_DRAWS : 0),
                                         .bytes = use->bytes,
                                         .bytes_known = use->bytes_known,
                                         .management_index = answer->index};
    status = visit(&process, user);
  }
  return status;
}

static lade_status processes_ask(lade_runtime *runtime, int device, lade_device_process_visit visit, void *user) {
  static const char call[] = "lade_device_processes_each";
  ladei_device_properties properties;
  ladei_nvml_answer answer;
  LADEI_TRY(runtime->ops->device_properties(runtime->self, device, &properties));
  if (runtime->software_device != NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: a software device is of this process alone", call);
  lade_status status = ladei_nvml_processes(LADEI_NVML_LIBRARY, properties.pci_bus_id, &answer);
  if (status != LADE_OK) return ladei_error_prefix(status, "%s: device %d: ", call, device);
  status = answer_show(&answer, visit, user);
  free(answer.list);
  return status;
}

lade_status lade_device_processes_each(lade_runtime *runtime, int device, lade_device_process_visit visit, void *user) {
  if (runtime == NULL || visit == NULL) return ladei_error_null(__func__, runtime == NULL ? "runtime" : "visit");
  LADEI_TRY(ladei_runtime_check_process(runtime));
  return LADEI_UNCANCELLED(processes_ask(runtime, device, visit, user));
}
