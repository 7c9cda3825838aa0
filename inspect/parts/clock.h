/* SPDX-License-Identifier: Apache-2.0 */
/* Wall clock of events: that of the system, but on `sim`, where the same program gives the same files, its own. */
#ifndef LADE_INSPECT_PARTS_CLOCK_H
#define LADE_INSPECT_PARTS_CLOCK_H

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/ops.h"

static inline bool ladei_inspect_is_simulated(lade_runtime *runtime) { return strcmp(runtime->ops->name, "sim") == 0; }

/* The offset to add to the runtime's clock. */
static inline uint64_t ladei_inspect_clock_offset_ns(lade_runtime *runtime) {
  if (ladei_inspect_is_simulated(runtime)) return 0;
  return ladei_clock_ns(CLOCK_REALTIME) - runtime->ops->now_ns(runtime->self);
}

static inline uint64_t ladei_inspect_now_ns(lade_runtime *runtime) {
  return runtime->ops->now_ns(runtime->self) + ladei_inspect_clock_offset_ns(runtime);
}

#endif /* LADE_INSPECT_PARTS_CLOCK_H */
