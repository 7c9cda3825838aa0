/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of pools as objects and scopes. (Those of captures and checkpoints: device.c; of suspending:
 * graph/single/suspend.c.)
 *
 * Locks: none held over a backend's function.
 */
#include <string.h>

#include "base/options.h"
#include "device/api/call.h"
#include "device/api/device.h"

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

lade_status lade_device_pool_create(lade_device_allocator *allocator, const lade_device_pool_options *options,
                                    lade_device_pool_id *out_id) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (out_id == NULL) return ladei_error_null(__func__, "out_id");
  lade_device_pool_options own;
  LADEI_TRY(ladei_options_read("lade_device_pool_options", options, &own, sizeof own));
  LADEI_TRY(ladei_options_reserved(__func__, "options.reserved", own.reserved));
  return LADEI_HELD(LADEI_DEVICE_NATIVE(pool_create, allocator, &own, out_id));
}

lade_status lade_device_pool_retain(lade_device_allocator *allocator, lade_device_pool_id id) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  return LADEI_HELD(LADEI_DEVICE_NATIVE(pool_retain, allocator, id));
}

lade_status lade_device_pool_flags_set(lade_device_allocator *allocator, lade_device_pool_id id, uint32_t flags) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  return LADEI_HELD(LADEI_DEVICE_NATIVE(pool_flags_set, allocator, id, flags));
}

lade_status lade_device_pool_info_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                      lade_device_pool_info *info) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (info == NULL) return ladei_error_null(__func__, "info");
  lade_device_pool_info own = {.struct_size = sizeof own};
  LADEI_TRY(LADEI_HELD(LADEI_DEVICE_NATIVE(pool_info_get, allocator, id, &own)));
  return ladei_stats_write("lade_device_pool_info", &own, sizeof own, info);
}

lade_status lade_device_pool_trim(lade_device_allocator *allocator, lade_device_pool_id id,
                                  const lade_device_range *keep, size_t keep_count, uint64_t *out_bytes) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (keep_count > 0 && keep == NULL) return ladei_error_null(__func__, "keep");
  LADEI_DEVICE_OPERATION(LADE_CONTEXT_ALL, LADEI_DEVICE_NATIVE(pool_trim, allocator, id, keep, keep_count, out_bytes));
}

lade_status ladei_device_pool_suspend(lade_device_allocator *allocator, lade_device_pool_id id,
                                      const lade_device_suspend_options *options,
                                      const ladei_device_backup_calls *calls, uint64_t *out_bytes) {
  static const char call[] = "lade_device_pool_suspend";
  LADEI_TRY(ladei_device_check_call(allocator, call));
  lade_device_suspend_options own;
  lade_status status = ladei_options_read("lade_device_suspend_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_options_reserved(call, "options.reserved", own.reserved);
  if (status == LADE_OK) status = LADEI_HELD(LADEI_DEVICE_NATIVE(pool_suspend, allocator, id, &own, calls, out_bytes));
  return ladei_device_recounted(allocator, ladei_error_out_of_memory(status));
}

lade_status lade_device_pool_resume(lade_device_allocator *allocator, lade_device_pool_id id) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status == LADE_OK) status = LADEI_HELD(LADEI_DEVICE_NATIVE(pool_resume, allocator, id));
  return status == LADE_OK ? ladei_device_recounted(allocator, status) : ladei_error_out_of_memory(status);
}

/* ---- Scopes ------------------------------------------------------------------------------------------------------ */

lade_status lade_device_scope_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                    const lade_stream *streams, size_t stream_count, uint64_t *out_scope) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  bool of_thread = stream_count == LADE_DEVICE_SCOPE_THREAD;
  if (status != LADE_OK) return status;
  if (out_scope == NULL) return ladei_error_null(__func__, "out_scope");
  if (stream_count > 0 && !of_thread && streams == NULL) return ladei_error_null(__func__, "streams");
  status = LADEI_HELD(LADEI_DEVICE_NATIVE(scope_begin, allocator, id, streams, stream_count, out_scope));
  return ladei_device_recounted(allocator, status);
}

lade_status lade_device_scope_end(lade_device_allocator *allocator, uint64_t scope) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status == LADE_OK) status = LADEI_HELD(LADEI_DEVICE_NATIVE(scope_end, allocator, scope));
  return status == LADE_OK ? ladei_device_recounted(allocator, status) : status;
}

/* ---- Between the cache and the driver ---------------------------------------------------------------------------- */

lade_status lade_device_frees_hold(lade_device_allocator *allocator, bool hold) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (!hold) LADEI_DEVICE_OPERATION(LADE_CONTEXT_ALL, LADEI_DEVICE_NATIVE(frees_resume, allocator));
  return LADEI_HELD(LADEI_DEVICE_NATIVE(frees_hold, allocator));
}
