/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few NVML calls that list processes, with prototypes of our own: the library's header belongs to the toolkit, and
 * its types differ between releases. These are version 3 of the call (driver 510 and newer).
 *
 *   dlopen -> nvmlInit -> device by PCI address -> its index -> processes, until they fit -> nvmlShutdown
 *
 * The device is found by its PCI address: the library and the runtime number devices differently where some are masked.
 *
 * I1  Each start is matched by a shutdown; the library counts them, so its other users in the process are unaffected.
 * I2  The library is never unloaded: its threads and its clean-up at exit must find their code.
 * Locks: none.
 */
#include "runtime/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/library_functions.h"

/* Of nvml.h: return codes, and the value for "not available". */
enum { NVML_SUCCESS = 0, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9 };
#define NVML_BYTES_UNKNOWN UINT64_MAX

typedef struct nvml_device *nvml_device;

typedef struct nvml_process_info {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance;
  unsigned int compute_instance;
} nvml_process_info;

typedef int (*nvml_processes)(nvml_device device, unsigned int *count, nvml_process_info *infos);

typedef struct nvml_api {
  int (*init)(void);
  int (*shutdown)(void);
  int (*device_by_pci)(const char *pci_bus_id, nvml_device *out);
  nvml_processes compute;
  nvml_processes graphics;                               /* NULL: the library has no such call */
  int (*index)(nvml_device device, unsigned int *index); /* NULL: as above */
} nvml_api;

/* Room for the first question; the library answers with the room that it needs. */
enum { PROCESSES_FIRST = 8, PROCESSES_MAX = 65536 };

static const ladei_library_function functions[] = {
    LADEI_LIBRARY_FUNCTION(nvml_api, init, nvmlInit_v2), LADEI_LIBRARY_FUNCTION(nvml_api, shutdown, nvmlShutdown),
    LADEI_LIBRARY_FUNCTION(nvml_api, device_by_pci, nvmlDeviceGetHandleByPciBusId_v2),
    LADEI_LIBRARY_FUNCTION(nvml_api, compute, nvmlDeviceGetComputeRunningProcesses_v3)};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static lade_status api_load(const char *name, nvml_api *out) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "NVML: %s cannot be opened", name);
  bool whole = ladei_library_functions_find(library, functions, FUNCTIONS, out) == NULL;
  (void)ladei_library_function_find(library, "nvmlDeviceGetGraphicsRunningProcesses_v3", &out->graphics);
  (void)ladei_library_function_find(library, "nvmlDeviceGetIndex", &out->index);
  dlclose(library); /* RTLD_NODELETE keeps it in place */
  return whole ? LADE_OK
               : ladei_error(LADE_ERR_UNSUPPORTED, 0, "NVML: %s has no list of processes: it is too old", name);
}

static lade_status refusal(const char *what, int code) {
  bool absent = code == NVML_DRIVER_NOT_LOADED || code == NVML_NOT_FOUND;
  return ladei_error(absent ? LADE_ERR_NO_DEVICE : LADE_ERR_DRIVER, code, "NVML: %s: code %d", what, code);
}

/* Room for one list; `count` is its length. */
typedef struct info_list {
  nvml_process_info *infos;
  unsigned int count;
} info_list;

/* Processes may start between two questions: asks again until they fit. */
static lade_status infos_read(nvml_processes processes, nvml_device device, info_list *out) {
  for (unsigned int room = PROCESSES_FIRST; room <= PROCESSES_MAX;) {
    nvml_process_info *infos = calloc(room, sizeof *infos);
    if (infos == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "NVML: no memory for %u processes", room);
    unsigned int count = room;
    int code = processes(device, &count, infos);
    if (code == NVML_SUCCESS && count <= room) {
      *out = (info_list){infos, count};
      return LADE_OK;
    }
    free(infos);
    if (code != NVML_INSUFFICIENT_SIZE) return refusal("processes", code);
    room = count > room ? count : 2 * room;
  }
  return ladei_error(LADE_ERR_DRIVER, 0, "NVML: more than %d processes", PROCESSES_MAX);
}

/* A process that both computes and draws counts once, with the larger figure. */
static void use_add(ladei_nvml_answer *answer, const nvml_process_info *info, bool draws) {
  size_t at = 0;
  while (at < answer->count && answer->list[at].pid != info->pid) at++;
  if (at == answer->count) answer->list[answer->count++] = (ladei_process_use){.pid = info->pid};
  ladei_process_use *use = &answer->list[at];
  use->computes = use->computes || !draws;
  use->draws = use->draws || draws;
  if (info->used_bytes == NVML_BYTES_UNKNOWN) return;
  use->bytes = !use->bytes_known || info->used_bytes > use->bytes ? info->used_bytes : use->bytes;
  use->bytes_known = true;
}

static lade_status answer_make(const info_list *compute, const info_list *graphics, ladei_nvml_answer *answer) {
  answer->list = calloc((size_t)compute->count + graphics->count + 1, sizeof *answer->list);
  if (answer->list == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "NVML: no memory for the processes");
  for (unsigned int i = 0; i < compute->count; i++) use_add(answer, &compute->infos[i], false);
  for (unsigned int i = 0; i < graphics->count; i++) use_add(answer, &graphics->infos[i], true);
  return LADE_OK;
}

static lade_status device_read(const nvml_api *api, nvml_device device, ladei_nvml_answer *answer) {
  info_list compute = {NULL, 0}, graphics = {NULL, 0};
  unsigned int index = 0;
  lade_status status = infos_read(api->compute, device, &compute);
  if (status == LADE_OK && api->graphics != NULL) {
    lade_error before;
    ladei_error_save(&before);
    status = infos_read(api->graphics, device, &graphics);
    if (status == LADE_ERR_DRIVER) { /* a device without graphics */
      ladei_error_restore(&before);
      status = LADE_OK;
    }
  }
  if (status == LADE_OK) status = answer_make(&compute, &graphics, answer);
  answer->index = api->index != NULL && api->index(device, &index) == NVML_SUCCESS ? (int32_t)index : -1;
  free(compute.infos);
  free(graphics.infos);
  return status;
}

lade_status ladei_nvml_processes(const char *library, const char *pci_bus_id, ladei_nvml_answer *out) {
  nvml_api api = {0};
  nvml_device device = NULL;
  ladei_nvml_answer answer = {NULL, 0, -1};
  LADEI_TRY(api_load(library, &api));
  int code = api.init();
  if (code != NVML_SUCCESS) return refusal("start", code);
  code = api.device_by_pci(pci_bus_id, &device);
  lade_status status = code == NVML_SUCCESS ? device_read(&api, device, &answer) : refusal(pci_bus_id, code);
  (void)api.shutdown();
  if (status == LADE_OK) *out = answer;
  return status;
}
