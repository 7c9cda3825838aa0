/* SPDX-License-Identifier: Apache-2.0 */
/* The fake library's side; its state is found by name (nvml_fake_get.c). */
#include "tests/nvml/nvml_fake.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

/* As the library's users know it. */
typedef struct process_info {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance;
  unsigned int compute_instance;
} process_info;

EXPORT nvml_fake lade_nvml_fake;

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci_bus_id, void **out);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_info *infos);
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *count, process_info *infos);
EXPORT int nvmlDeviceGetIndex(void *device, unsigned int *index);

int nvmlInit_v2(void) {
  if (lade_nvml_fake.init_code == SUCCESS) lade_nvml_fake.running++;
  return lade_nvml_fake.init_code;
}

int nvmlShutdown(void) {
  lade_nvml_fake.running--;
  return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci_bus_id, void **out) {
  if (lade_nvml_fake.pci_bus_id == NULL || strcmp(pci_bus_id, lade_nvml_fake.pci_bus_id) != 0) return NOT_FOUND;
  *out = &lade_nvml_fake;
  return SUCCESS;
}

int nvmlDeviceGetIndex(void *device, unsigned int *index) {
  *index = (unsigned int)((nvml_fake *)device)->index;
  return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *count, process_info *infos) {
  const nvml_fake *fake = device;
  unsigned int room = *count;
  if (fake->drawing_code != SUCCESS) return fake->drawing_code;
  *count = (unsigned int)fake->drawing_count;
  if (fake->drawing_count > room) return INSUFFICIENT_SIZE;
  for (size_t i = 0; i < fake->drawing_count; i++)
    infos[i] = (process_info){fake->drawing[i].pid, fake->drawing[i].bytes, 0, 0};
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_info *infos) {
  nvml_fake *fake = device;
  unsigned int room = *count;
  fake->questions++;
  if (fake->processes_code != SUCCESS) return fake->processes_code;
  *count = (unsigned int)fake->count;
  if (fake->count > room) {
    fake->count += fake->appearing;
    fake->appearing = 0;
    return INSUFFICIENT_SIZE;
  }
  for (size_t i = 0; i < fake->count; i++)
    infos[i] = (process_info){fake->processes[i].pid, fake->processes[i].bytes, 0, 0};
  return SUCCESS;
}
