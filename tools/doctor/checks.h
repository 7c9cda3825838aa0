/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `lade doctor`: each reports its finding and, if that slows lade down, the remedy. */
#ifndef LADE_TOOLS_DOCTOR_CHECKS_H
#define LADE_TOOLS_DOCTOR_CHECKS_H

#include <stddef.h>

typedef enum finding_state {
  FINDING_GOOD,
  FINDING_OPTIONAL, /* missing, and only few programs need it */
  FINDING_TO_DO     /* missing, or slower than it could be */
} finding_state;

enum { FINDING_TEXT_BYTES = 400 };

typedef struct finding {
  finding_state state;
  char found[FINDING_TEXT_BYTES];
  char advice[FINDING_TEXT_BYTES]; /* empty where there is nothing to do */
} finding;

typedef struct check {
  const char *name;
  void (*look)(finding *out);
} check;

extern const check checks[];
extern const size_t check_count;

#endif /* LADE_TOOLS_DOCTOR_CHECKS_H */
