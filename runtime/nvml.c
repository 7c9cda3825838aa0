/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few calls of NVML that a list of processes takes, with prototypes of our own: the library's header belongs to the
 * toolkit, and its types differ between releases. Those used here are of version 3 of the call (driver 510 and newer).
 *
 *   dlopen -> nvmlInit -> device by PCI address -> processes, in a larger array until they fit -> nvmlShutdown
 *
 * I1  Each start is matched by a shutdown; the library counts them, so other users of it in the process are untouched.
 * I2  The library is never unloaded: its threads and its clean-up at exit must find their code.
 * Locks: none.
 */
#include "runtime/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Of nvml.h: return codes, and the value for "not available". */
enum { NVML_SUCCESS = 0, NVML_INSUFFICIENT_SIZE = 7 };
#define NVML_BYTES_UNKNOWN UINT64_MAX

typedef struct nvml_device *nvml_device;

typedef struct nvml_process_info {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance;
  unsigned int compute_instance;
} nvml_process_info;

typedef struct nvml_api {
  int (*init)(void);
  int (*shutdown)(void);
  int (*device_by_pci)(const char *pci_bus_id, nvml_device *out);
  int (*processes)(nvml_device device, unsigned int *count, nvml_process_info *infos);
} nvml_api;

/* Room for the first question; the library says how much it would have taken. */
enum { PROCESSES_FIRST = 8, PROCESSES_MAX = 65536 };

static bool symbol_load(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static bool api_load(const char *name, nvml_api *out) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return false;
  bool whole = symbol_load(library, "nvmlInit_v2", &out->init) &&
               symbol_load(library, "nvmlShutdown", &out->shutdown) &&
               symbol_load(library, "nvmlDeviceGetHandleByPciBusId_v2", &out->device_by_pci) &&
               symbol_load(library, "nvmlDeviceGetComputeRunningProcesses_v3", &out->processes);
  dlclose(library); /* RTLD_NODELETE keeps it in place */
  return whole;
}

static ladei_process_use *infos_convert(const nvml_process_info *infos, size_t count) {
  ladei_process_use *list = calloc(count + 1, sizeof *list);
  for (size_t i = 0; list != NULL && i < count; i++) {
    bool known = infos[i].used_bytes != NVML_BYTES_UNKNOWN;
    list[i] = (ladei_process_use){infos[i].pid, known, known ? infos[i].used_bytes : 0};
  }
  return list;
}

/* Processes may come between two questions: asked again as long as they do not fit. */
static bool processes_read(const nvml_api *api, nvml_device device, ladei_process_use **out_list, size_t *out_count) {
  ladei_process_use *list = NULL;
  for (unsigned int room = PROCESSES_FIRST; room <= PROCESSES_MAX;) {
    nvml_process_info *infos = calloc(room, sizeof *infos);
    if (infos == NULL) return false;
    unsigned int count = room;
    int code = api->processes(device, &count, infos);
    bool fits = code == NVML_SUCCESS && count <= room;
    if (fits) list = infos_convert(infos, count);
    free(infos);
    if (fits) {
      *out_count = count;
      break;
    }
    if (code != NVML_INSUFFICIENT_SIZE) return false;
    room = count > room ? count : 2 * room;
  }
  if (list == NULL) return false;
  *out_list = list;
  return true;
}

bool ladei_nvml_processes(const char *library, const char *pci_bus_id, ladei_process_use **out_list,
                          size_t *out_count) {
  nvml_api api;
  nvml_device device = NULL;
  if (!api_load(library, &api) || api.init() != NVML_SUCCESS) return false;
  bool known = api.device_by_pci(pci_bus_id, &device) == NVML_SUCCESS;
  known = known && processes_read(&api, device, out_list, out_count);
  (void)api.shutdown();
  return known;
}
