/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A management library that tells what a test wants: libnvidia-ml.so.1 with the calls that runtime/nvml.c makes.
 *
 *   nvml_fake *fake = nvml_fake_get();        // of the library that lade opens too
 *   fake->pci_bus_id = "0000:01:00.0";
 *   fake->processes = ...;
 */
#ifndef LADE_TESTS_NVML_FAKE_H
#define LADE_TESTS_NVML_FAKE_H

#include <stddef.h>

typedef struct nvml_fake_process {
  unsigned int pid;
  unsigned long long bytes;
} nvml_fake_process;

typedef struct nvml_fake {
  const char *pci_bus_id; /* of the one device that it knows */
  const nvml_fake_process *processes;
  size_t count;
  const nvml_fake_process *drawing; /* those that draw */
  size_t drawing_count;
  int drawing_code;   /* what that list answers, 0: as the room allows */
  int index;          /* of the device in the library's order */
  size_t appearing;   /* so many more come after the next question that is refused for lack of room */
  int init_code;      /* what nvmlInit_v2 and the list answer, 0: success */
  int processes_code; /* 0: as the room allows */
  int running;        /* starts less shutdowns */
  int questions;      /* lists asked for */
} nvml_fake;

/* NULL where another library was found. */
nvml_fake *nvml_fake_get(void);

#endif /* LADE_TESTS_NVML_FAKE_H */
