/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator's memory as others may use it: access by other devices, copies between devices.
 *
 * Q1  A device among the peers has access to all mapped memory of expandable segments, except mappings in flight, whose
 *     threads see the new count of peers before they commit; and, through the driver, to all plain segments.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/share/peer.h"

#include "base/error.h"
#include "device/native/expandable.h"
#include "device/state/checks.h"

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

static bool peer_known(const lade_device_allocator *allocator, int peer) {
  size_t count = atomic_load(&allocator->peers.count);
  for (size_t i = 0; i < count; i++)
    if (allocator->peers.list[i] == peer) return true;
  return false;
}

/* Lock held. */
static lade_status peer_append(lade_device_allocator *allocator, int peer) {
  ladei_lock_assert_held(&allocator->lock);
  size_t count = atomic_load(&allocator->peers.count);
  if (peer_known(allocator, peer)) return LADE_OK;
  if (count == LADEI_DEVICE_PEERS_MAX) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_device_peer_add: there are %d peers, the most there can be",
                       LADEI_DEVICE_PEERS_MAX);
  }
  allocator->peers.list[count] = peer;
  atomic_store(&allocator->peers.count, count + 1);
  return LADE_OK;
}

/* Mapped memory first: a refusal leaves the peer out. */
lade_status ladei_device_native_peer_add(lade_device_allocator *allocator, int peer) {
  lade_status status = allocator->runtime->ops->peer_enable(allocator->runtime->self, peer, allocator->device);
  return status == LADE_OK ? ladei_device_expandable_grant(allocator, peer, peer_append) : status;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static lade_status addresses_check(const char *call, const void *destination, const void *source) {
  if (destination == NULL) return ladei_error_null(call, "destination");
  return source == NULL ? ladei_error_null(call, "source") : LADE_OK;
}

static lade_status allocators_check(const char *call, const lade_device_allocator *to,
                                    const lade_device_allocator *from) {
  if (to == NULL || from == NULL)
    return ladei_error_null(call, to == NULL ? "destination_allocator" : "source_allocator");
  lade_status status = ladei_device_check_call(to, call);
  if (status == LADE_OK) status = ladei_device_check_call(from, call);
  if (status != LADE_OK || to->runtime == from->runtime) return status;
  return ladei_error_argument(call, "source_allocator", "one of the same runtime as destination_allocator",
                              "of another runtime");
}

lade_status lade_device_copy_async(lade_device_allocator *destination_allocator, void *destination,
                                   lade_device_allocator *source_allocator, const void *source, size_t bytes,
                                   lade_stream stream) {
  const lade_device_allocator *to = destination_allocator;
  const lade_device_allocator *from = source_allocator;
  lade_status status = allocators_check(__func__, to, from);
  if (status == LADE_OK) status = addresses_check(__func__, destination, source);
  if (status != LADE_OK || bytes == 0) return status;
  ladei_stream resolved;
  status = to->runtime->ops->stream_resolve(to->runtime->self, stream, &resolved);
  if (status != LADE_OK) return status;
  return ladei_copy_between(to->runtime, destination, to->device, source, from->device, bytes, &resolved);
}
