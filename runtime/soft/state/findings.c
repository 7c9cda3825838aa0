/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings and refusals.
 *
 * Locks: rt->lock for the findings.
 */
#include "runtime/soft/state/findings.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const op_names[SOFT_OP_COUNT] = {
#define OP_NAME(name, group) #name,
    LADEI_OPS_LIST(OP_NAME)
#undef OP_NAME
};

const char *ladei_soft_op_name(soft_op op) { return op_names[op]; }

void ladei_soft_finding(soft_runtime *rt, uint64_t *counter, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(rt->findings.text, sizeof rt->findings.text, format, args);
  va_end(args);
  ++*counter;
}

lade_status ladei_soft_stale(soft_runtime *rt, soft_op op, lade_status status, const char *what, uint64_t handle) {
  static const char *const words = "was destroyed before, or never made";
  ladei_soft_finding(rt, &rt->findings.stale_handles, "%s: %s %#llx %s", ladei_soft_op_name(op), what,
                     (unsigned long long)handle, words);
  return ladei_error(status, LADEI_SOFT_NATIVE_INVALID_HANDLE, "%s: %s %#llx %s", ladei_soft_op_name(op), what,
                     (unsigned long long)handle, words);
}

lade_status ladei_soft_lost(soft_op op, int device) {
  return ladei_error(LADE_ERR_DEVICE_LOST, LADEI_SOFT_NATIVE_LAUNCH_FAILED, "%s: software device %d is lost",
                     op_names[op], device);
}

lade_status ladei_soft_refuse(soft_op op, int native, const char *field, const char *expected, const char *value_format,
                              ...) {
  char value[128];
  va_list args;
  va_start(args, value_format);
  vsnprintf(value, sizeof value, value_format, args);
  va_end(args);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, native, "%s: %s is %s; expected %s", op_names[op], field, value,
                     expected);
}

lade_status ladei_soft_flags(soft_op op, unsigned flags, unsigned known) {
  if ((flags & ~known) == 0) return LADE_OK;
  char expected[32];
  snprintf(expected, sizeof expected, "bits of %#x", known);
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "flags", expected, "%#x", flags);
}
