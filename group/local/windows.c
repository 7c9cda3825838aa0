/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of a local group: the shared slots, pinned, or windows of device memory that each rank opens for all.
 *
 *   prepare: events
 *   agree:   each rank allocates a window and exports it --all could?--> each opens all others' --all could?--> device
 *                                        '--no------------------------------'--no--> windows go, slots are pinned: host
 *
 * W1  All ranks come to the same answer, from the records of all.
 * W2  A window is freed after every other rank has closed it, has left or has died, or after a short time: the driver
 *     keeps memory that others have open, so the risk is only their copy of it, and no other memory.
 * Locks: none.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "group/local/carry.h"

#define CLOSE_NS UINT64_C(2000000000) /* W2: ranks that end together need less */

/* A rank's record about its window. */
typedef struct window_record {
  uint32_t can;
  uint32_t reserved;
  ladei_ipc_handle handle;
  char why[160]; /* the reason, if it cannot */
} window_record;
_Static_assert(sizeof(window_record) <= LADE_GROUP_RECORD_BYTES, "a record is a record");

static uint64_t slots_bytes(const ladei_group_carrier *c) { return c->shared->slots * c->shared->slot_bytes; }

lade_status ladei_group_carrier_prepare(ladei_group_carrier *c) {
  const lade_runtime_ops *ops = c->runtime->ops;
  uint64_t context;
  LADEI_TRY(ops->device_context(c->runtime->self, c->device, &context));
  for (; c->event_count < c->shared->slots; c->event_count++)
    LADEI_TRY(ops->event_create(c->runtime->self, context, 0, &c->events[c->event_count]));
  return LADE_OK;
}

static lade_status window_open(ladei_group_carrier *c, window_record *record) {
  const lade_runtime_ops *ops = c->runtime->ops;
  if (ops->ipc_export == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "runtime \"%s\" shares no memory between processes", ops->name);
  ladei_capture_mode mode = ladei_capture_mode_relax(c->runtime);
  lade_status status = ops->device_alloc(c->runtime->self, c->device, slots_bytes(c), &c->window);
  ladei_capture_mode_restore(c->runtime, mode);
  if (status != LADE_OK) return status;
  return ops->ipc_export(c->runtime->self, c->window, &record->handle);
}

static void windows_close(ladei_group_carrier *c) {
  const lade_runtime_ops *ops = c->runtime->ops;
  for (uint32_t i = 0; i < c->shared->size; i++) {
    if (c->windows[i] != NULL) (void)ops->ipc_close(c->runtime->self, c->windows[i]);
    c->windows[i] = NULL;
  }
}

static void window_free(ladei_group_carrier *c) {
  ladei_lock_assert_none_held();
  ladei_capture_mode mode = ladei_capture_mode_relax(c->runtime);
  if (c->window != NULL) (void)c->runtime->ops->device_free(c->runtime->self, c->device, c->window);
  ladei_capture_mode_restore(c->runtime, mode);
  c->window = NULL;
}

/* Opens the windows of all other ranks; the driver checks the handles of peers. */
static lade_status windows_open(ladei_group_carrier *c, const window_record *records) {
  for (uint32_t i = 0; i < c->shared->size; i++) {
    if (i == c->shared->rank) continue;
    lade_status status = c->runtime->ops->ipc_open(c->runtime->self, c->device, &records[i].handle, &c->windows[i]);
    if (status != LADE_OK) return ladei_error_prefix(status, "memory of rank %u: ", (unsigned)i);
  }
  return LADE_OK;
}

/* Tells all ranks whether this rank succeeded; *out_failed: the first rank that did not, or the size. */
static lade_status could(ladei_group_carrier *c, lade_status own, window_record *record, window_record *records,
                         uint32_t *out_failed) {
  record->can = own == LADE_OK;
  if (own != LADE_OK) (void)snprintf(record->why, sizeof record->why, "%.150s", lade_last_error()->text);
  LADEI_TRY(ladei_group_exchange(c->shared, c->runtime, LADEI_GROUP_GATHER, record, sizeof *record, records));
  uint32_t i = 0;
  while (i < c->shared->size && records[i].can == 1) i++;
  *out_failed = i;
  return LADE_OK;
}

/* Pins the shared slots. A driver that does not pin them still copies, slowly. */
static lade_status slots_pin(ladei_group_carrier *c) {
  assert(!c->registered && slots_bytes(c) + ladei_group_shared_slots_at(c->shared->size) == c->shared->bytes);
  unsigned char *slots = c->shared->base + ladei_group_shared_slots_at(c->shared->size);
  lade_status status = c->runtime->ops->host_register(c->runtime->self, c->device, slots, slots_bytes(c), 0);
  c->registered = status == LADE_OK;
  return status == LADE_ERR_DEVICE_LOST ? status : LADE_OK;
}

static lade_status device_error(const ladei_group_carrier *c, window_record *record, uint32_t rank) {
  record->why[sizeof record->why - 1] = '\0';
  ladei_text_tame(record->why);
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "group \"%s\": LADE_GROUP_TRANSPORT_DEVICE, but rank %u cannot: %s",
                     c->shared->name, (unsigned)rank, record->why);
}

/* Chooses windows if all ranks can use them: then *out_failed is the size. */
static lade_status device_agree(ladei_group_carrier *c, window_record *records, uint32_t *out_failed) {
  window_record own;
  memset(&own, 0, sizeof own); /* padding is sent, too */
  lade_status status = window_open(c, &own);
  LADEI_TRY(could(c, status, &own, records, out_failed));
  if (*out_failed < c->shared->size) return LADE_OK;
  status = windows_open(c, records);
  LADEI_TRY(could(c, status, &own, records, out_failed));
  assert(*out_failed <= c->shared->size);
  c->by_device = *out_failed == c->shared->size; /* W1 */
  return LADE_OK;
}

lade_status ladei_group_carrier_agree(ladei_group_carrier *c, lade_group_transport transport) {
  static const char here[1];
  window_record records[LADEI_GROUP_LOCAL_RANKS];
  uint32_t failed = 0;
  char all[LADEI_GROUP_LOCAL_RANKS];
  /* All ranks have prepared: a rank that could not has posted its failure. */
  LADEI_TRY(ladei_group_exchange(c->shared, c->runtime, LADEI_GROUP_GATHER, here, sizeof here, all));
  bool by_device = transport == LADE_GROUP_TRANSPORT_DEVICE;
  /* Software devices know each other's memory only within one runtime. */
  by_device = by_device || (transport == LADE_GROUP_TRANSPORT_AUTO && c->runtime->software_device == NULL);
  char some_software = !by_device;
  LADEI_TRY(ladei_group_exchange(c->shared, c->runtime, LADEI_GROUP_GATHER, &some_software, 1, all));
  for (uint32_t i = 0; i < c->shared->size; i++) by_device = by_device && all[i] == 0;
  if (by_device) LADEI_TRY(device_agree(c, records, &failed)); /* W1 */
  if (c->by_device) return LADE_OK;
  windows_close(c);
  /* A window goes when no rank has it open any more (W2). */
  if (by_device) LADEI_TRY(ladei_group_exchange(c->shared, c->runtime, LADEI_GROUP_BARRIER, NULL, 0, NULL));
  window_free(c);
  assert(!c->by_device && c->window == NULL);
  if (transport == LADE_GROUP_TRANSPORT_DEVICE) return device_error(c, &records[failed], failed);
  return slots_pin(c);
}

/* W2 */
static void windows_await_closed(ladei_group_carrier *c) {
  uint64_t deadline_ns = ladei_group_shared_deadline(c->shared) - c->shared->timeout_ns + CLOSE_NS;
  for (uint32_t i = 0; i < c->shared->size; i++)
    if (ladei_group_shared_wait(c->shared, i, LADEI_GROUP_CLOSED, 1, deadline_ns) != LADE_OK) return;
}

void ladei_group_carrier_dispose(ladei_group_carrier *c) {
  const lade_runtime_ops *ops = c->runtime->ops;
  lade_error before;
  ladei_error_save(&before); /* the caller can do nothing about errors here */
  windows_close(c);
  if (c->window != NULL && c->shared->base != NULL) {
    ladei_group_shared_post(c->shared, LADEI_GROUP_CLOSED, 1, LADEI_GROUP_ALL);
    if (c->by_device) windows_await_closed(c);
  }
  window_free(c);
  if (c->registered) {
    unsigned char *slots = c->shared->base + ladei_group_shared_slots_at(c->shared->size);
    (void)ops->host_unregister(c->runtime->self, slots);
  }
  c->registered = false;
  while (c->event_count > 0) (void)ops->event_destroy(c->runtime->self, c->events[--c->event_count]);
  ladei_error_restore(&before);
}
