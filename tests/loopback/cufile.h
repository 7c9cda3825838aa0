/* SPDX-License-Identifier: Apache-2.0 */
/* How tests steer the library that stands in for NVIDIA's cuFile. */
#ifndef LADE_TESTS_LOOPBACK_CUFILE_H
#define LADE_TESTS_LOOPBACK_CUFILE_H

#include <stdint.h>

/* What calls answer; 0: success. */
typedef struct loop_cufile_plan {
  int driver_code;   /* cuFileDriverOpen */
  int register_code; /* cuFileHandleRegister */
  int move_code;     /* cuFileRead, cuFileWrite: -1 with `move_errno`, or cuFile's own code */
  int move_errno;
  int short_moves; /* not 0: at most so many bytes at once */
} loop_cufile_plan;

typedef struct loop_cufile_counts {
  uint64_t reads;
  uint64_t writes;
  int64_t handles; /* registered now */
} loop_cufile_counts;

/* Starts counting anew, but for the handles. */
void loop_cufile_set(const loop_cufile_plan *plan);
void loop_cufile_get(loop_cufile_counts *out);

#endif /* LADE_TESTS_LOOPBACK_CUFILE_H */
