/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfers of one job as one.
 *
 * I1  Every ticket of the list is unreleased; none is added after ladei_loader_ticket_list_end has begun.
 * Locks: none. A list is built by one thread; waiting and asking only read it.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "loaders/checkpoint.h"
#include "pipeline/api/ticket.h"

lade_status ladei_loader_ticket_list_submit(ladei_loader_ticket_list *list, lade_pipeline *pipeline,
                                            const lade_transfer *transfer) {
  if (!LADEI_ARRAY_ROOM(list->tickets, list->capacity, list->count + 1))
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu tickets", list->count + 1);
  lade_ticket **place = &list->tickets[list->count];
  lade_status status = lade_pipeline_submit(pipeline, transfer, place);
  for (size_t i = 0; status == LADE_NOT_READY && i < list->count; i++) {
    status = lade_ticket_wait(list->tickets[i], LADE_WAIT_FOREVER);
    if (status == LADE_OK) status = lade_pipeline_submit(pipeline, transfer, place);
  }
  if (status == LADE_OK) list->count++;
  return status;
}

static uint64_t time_left(uint64_t began_ns, uint64_t now_ns, uint64_t timeout_ns) {
  assert(now_ns >= began_ns); /* the runtime's clock does not go back */
  uint64_t spent = now_ns - began_ns;
  return timeout_ns == LADE_WAIT_FOREVER ? timeout_ns : spent < timeout_ns ? timeout_ns - spent : 0;
}

static lade_status list_wait(const ladei_loader_ticket_list *list, size_t first, size_t end, lade_runtime *runtime,
                             uint64_t timeout_ns, lade_status (*wait)(lade_ticket *ticket, uint64_t timeout_ns)) {
  assert(first <= end && end <= list->count);
  lade_status status = LADE_OK;
  bool timed = timeout_ns != LADE_WAIT_FOREVER && timeout_ns != 0;
  uint64_t began_ns = timed ? lade_runtime_now_ns(runtime) : 0;
  for (size_t i = first; i < end && status == LADE_OK; i++) {
    uint64_t left = timed ? time_left(began_ns, lade_runtime_now_ns(runtime), timeout_ns) : timeout_ns;
    status = wait(list->tickets[i], left);
  }
  return status;
}

lade_status ladei_loader_ticket_list_wait(const ladei_loader_ticket_list *list, size_t first, size_t end,
                                          lade_runtime *runtime, uint64_t timeout_ns) {
  return list_wait(list, first, end, runtime, timeout_ns, lade_ticket_wait);
}

lade_status ladei_loader_ticket_list_wait_copied(const ladei_loader_ticket_list *list, lade_runtime *runtime,
                                                 uint64_t timeout_ns) {
  return list_wait(list, 0, list->count, runtime, timeout_ns, ladei_pipe_ticket_wait_copied);
}

lade_status ladei_loader_ticket_list_query(const ladei_loader_ticket_list *list, uint64_t *out_bytes_done) {
  lade_status first = LADE_OK;
  lade_error error;
  bool under_way = false;
  *out_bytes_done = 0;
  for (size_t i = 0; i < list->count; i++) {
    lade_ticket_info info;
    lade_ticket_info_init(&info);
    lade_status status = lade_ticket_query(list->tickets[i], &info);
    *out_bytes_done += info.bytes_done;
    under_way = under_way || status == LADE_NOT_READY;
    if (first == LADE_OK && status != LADE_OK && status != LADE_NOT_READY) {
      first = status;
      ladei_error_save(&error);
    }
  }
  if (under_way) return LADE_NOT_READY;
  if (first != LADE_OK) ladei_error_restore(&error);
  return first;
}

lade_status ladei_loader_ticket_list_end(ladei_loader_ticket_list *list) {
  lade_error before;
  ladei_error_save(&before); /* outcomes of cancelled tickets do not matter here */
  for (size_t i = 0; i < list->count; i++) {
    lade_status status = lade_ticket_cancel(list->tickets[i]);
    if (status != LADE_OK) return status;
  }
  for (size_t i = 0; i < list->count; i++) {
    lade_status status = lade_ticket_wait(list->tickets[i], LADE_WAIT_FOREVER);
    if (status == LADE_ERR_TIMEOUT || status == LADE_ERR_FORKED) return status;
  }
  for (size_t i = 0; i < list->count; i++) lade_ticket_release(list->tickets[i]);
  free(list->tickets);
  *list = (ladei_loader_ticket_list){0};
  ladei_error_restore(&before);
  return LADE_OK;
}
