/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of one host: the table of operations over the shared memory.
 *
 *   options --rendezvous--> shared memory, lives of all --carrier: prepared, agreed--> group
 *
 * L1  A rank that fails after the rendezvous posts its error before it gives up: the others fail with the same text.
 * L2  An operation returns with none of its copies in flight.
 * Locks: none. One thread at a time, except `abort`, which only posts.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "group/frame.h"
#include "group/local/carry.h"
#include "group/local/rendezvous.h"

static const char create_call[] = "lade_group_create_local";

enum {
  DEFAULT_SLOTS = 8,
  MIN_SLOTS = 3, /* C3 in carry.c */
  DEFAULT_SLOT_BYTES = 4 << 20,
  MIN_SLOT_BYTES = 4 << 10,
  MAX_SLOT_BYTES = 64 << 20,
};

typedef struct local_group {
  ladei_group_shared shared;
  ladei_group_carrier carrier;
} local_group;

/* --- operations --------------------------------------------------------------------------------------------------- */

static uint32_t local_rank(void *self) { return ((local_group *)self)->shared.rank; }
static uint32_t local_size(void *self) { return ((local_group *)self)->shared.size; }

static lade_status stream_take(const local_group *local, lade_stream stream, ladei_stream *out) {
  lade_runtime *runtime = local->carrier.runtime;
  LADEI_TRY(runtime->ops->stream_resolve(runtime->self, stream, out));
  return ladei_stream_uncaptured(runtime, out, "lade_group");
}

static lade_status local_broadcast(void *self, void *memory, uint64_t bytes, uint32_t root, lade_stream stream,
                                   lade_error *error) {
  local_group *local = self;
  ladei_stream resolved;
  ladei_group_load load = {
      .root = root, .bytes = bytes, .from = memory, .gap_at = bytes, .to = memory, .to_begin = 0, .to_end = bytes};
  lade_status status = stream_take(local, stream, &resolved);
  if (status != LADE_OK) return ladei_group_outcome(status, error);
  ladei_group_shared_begin(&local->shared, LADEI_GROUP_BROADCAST, root, bytes);
  if (local->shared.size > 1) status = ladei_group_carry(&local->carrier, &load, &resolved);
  return ladei_group_outcome(status, error);
}

/* The root's own part goes first: when the copies that follow on the same stream have ended, it has ended, too (L2). */
static lade_status root_send(local_group *local, const ladei_group_load *load, const char *part, void *to,
                             uint64_t bytes, const ladei_stream *stream) {
  const lade_runtime *runtime = local->carrier.runtime;
  bool copies = bytes > 0 && part != to;
  lade_status status = copies ? ladei_group_own_part_copy(runtime, part, to, bytes, stream) : LADE_OK;
  if (status == LADE_OK && load->bytes > 0) return ladei_group_carry(&local->carrier, load, stream);
  return status == LADE_OK && copies ? runtime->ops->stream_synchronize(runtime->self, stream) : status;
}

static lade_status local_scatter(void *self, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                                 lade_stream stream, lade_error *error) {
  local_group *local = self;
  uint32_t rank = local->shared.rank;
  assert(root < local->shared.size);
  uint64_t total = 0, before = 0, before_root = 0;
  for (uint32_t i = 0; i < local->shared.size; i++) {
    if (i == root) before_root = total;
    if (i == rank) before = total;
    if (i != root) total += bytes[i];
  }
  ladei_group_load load = {.root = root, .bytes = total, .from = from, .gap_at = before_root, .gap_bytes = bytes[root]};
  load.to = to, load.to_begin = before, load.to_end = before + bytes[rank];
  ladei_stream resolved;
  lade_status status = stream_take(local, stream, &resolved);
  if (status != LADE_OK) return ladei_group_outcome(status, error);
  ladei_group_shared_begin(&local->shared, LADEI_GROUP_SCATTER, root,
                           ladei_group_parts_hash(bytes, local->shared.size));
  if (rank == root)
    status = root_send(local, &load, (const char *)from + before_root, to, bytes[root], &resolved);
  else if (total > 0)
    status = ladei_group_carry(&local->carrier, &load, &resolved);
  return ladei_group_outcome(status, error);
}

static lade_status local_barrier(void *self, lade_error *error) {
  local_group *local = self;
  return ladei_group_outcome(
      ladei_group_exchange(&local->shared, local->carrier.runtime, LADEI_GROUP_BARRIER, NULL, 0, NULL), error);
}

static lade_status local_gather(void *self, const void *record, uint64_t bytes, void *out_records, lade_error *error) {
  local_group *local = self;
  return ladei_group_outcome(
      ladei_group_exchange(&local->shared, local->carrier.runtime, LADEI_GROUP_GATHER, record, bytes, out_records),
      error);
}

/* The text of a failed peer names it already; only the first text posted counts. */
static void local_abort(void *self, const lade_error *why) {
  local_group *local = self;
  char text[sizeof why->text];
  (void)snprintf(text, sizeof text, "group \"%s\", rank %u: %.390s", local->shared.name, (unsigned)local->shared.rank,
                 why->text);
  ladei_group_shared_fail(&local->shared, why->status, text);
}

static void local_destroy(void *self) {
  local_group *local = self;
  ladei_group_carrier_dispose(&local->carrier);
  ladei_group_shared_leave(&local->shared);
  ladei_runtime_release(local->carrier.runtime);
  free(local);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static lade_status number_check(const char *field, uint64_t value, uint64_t least, uint64_t most) {
  char expected[64];
  if (value >= least && value <= most) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "from %llu to %llu", (unsigned long long)least, (unsigned long long)most);
  return ladei_error_argument(create_call, field, expected, "%llu", (unsigned long long)value);
}

static lade_status options_check(lade_group_local_options *o, int device_count) {
  if (o->name == NULL) return ladei_error_null(create_call, "options.name");
  size_t length = strnlen(o->name, LADEI_GROUP_LOCAL_NAME + 1);
  if (length == 0 || length > LADEI_GROUP_LOCAL_NAME)
    return ladei_error_argument(create_call, "options.name", "1 to 80 bytes", "\"%.81s\"", o->name);
  if (o->timeout_ns == 0) o->timeout_ns = LADEI_GROUP_TIMEOUT_NS;
  if (o->slots == 0) o->slots = DEFAULT_SLOTS;
  if (o->slot_bytes == 0) o->slot_bytes = DEFAULT_SLOT_BYTES;
  LADEI_TRY(number_check("options.size", o->size, 1, LADEI_GROUP_LOCAL_RANKS));
  LADEI_TRY(number_check("options.rank", o->rank, 0, o->size - 1u));
  LADEI_TRY(number_check("options.timeout_ns", o->timeout_ns, 1, LADEI_GROUP_MOST_TIMEOUT_NS));
  LADEI_TRY(number_check("options.slots", o->slots, MIN_SLOTS, LADEI_GROUP_LOCAL_SLOTS));
  LADEI_TRY(number_check("options.slot_bytes", o->slot_bytes, MIN_SLOT_BYTES, MAX_SLOT_BYTES));
  if (!ladei_is_power_of_two(o->slot_bytes))
    return ladei_error_argument(create_call, "options.slot_bytes", "a power of two", "%llu",
                                (unsigned long long)o->slot_bytes);
  if (o->transport < LADE_GROUP_TRANSPORT_AUTO || o->transport > LADE_GROUP_TRANSPORT_DEVICE)
    return ladei_error_argument(create_call, "options.transport", "a lade_group_transport", "%d", (int)o->transport);
  if (o->device < 0 || o->device >= device_count)
    return ladei_error(LADE_ERR_NO_DEVICE, 0, "%s: options.device is %d; expected below %d, the number of devices",
                       create_call, (int)o->device, device_count);
  return LADE_OK;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void ops_fill(lade_group_ops *ops) {
  lade_group_ops_init(ops);
  ops->name = "local";
  ops->rank = local_rank;
  ops->size = local_size;
  ops->broadcast = local_broadcast;
  ops->scatter = local_scatter;
  ops->barrier = local_barrier;
  ops->gather = local_gather;
  ops->abort = local_abort;
  ops->destroy = local_destroy;
}

/* Posts this rank's error (L1), and destroys its part: through `group`, which holds `local`, if there is one. */
static lade_status settle_fail(local_group *local, lade_group *group, lade_status status) {
  lade_error why;
  ladei_error_save(&why);
  local_abort(local, &why);
  if (group != NULL)
    (void)lade_group_destroy(group);
  else
    local_destroy(local);
  ladei_error_restore(&why);
  return status;
}

/* After the rendezvous. Takes `local`, also on failure. */
static lade_status local_settle(local_group *local, int32_t transport, lade_group **out) {
  lade_group_ops ops;
  lade_group *group = NULL;
  ops_fill(&ops);
  lade_status status = ladei_group_carrier_prepare(&local->carrier);
  if (status == LADE_OK) status = ladei_group_carrier_agree(&local->carrier, (lade_group_transport)transport);
  if (status == LADE_OK) status = lade_group_create(&ops, local, &group);
  /* Either all ranks get their group, or none. */
  if (status == LADE_OK)
    status = ladei_group_exchange(&local->shared, local->carrier.runtime, LADEI_GROUP_BARRIER, NULL, 0, NULL);
  if (status != LADE_OK) return settle_fail(local, group, status);
  *out = group;
  return LADE_OK;
}

static lade_status local_make(lade_runtime *runtime, const lade_group_local_options *o, lade_group **out) {
  local_group *local = calloc(1, sizeof *local);
  if (local == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the group", create_call);
  lade_status status = ladei_runtime_acquire(runtime);
  if (status != LADE_OK) {
    free(local);
    return status;
  }
  ladei_group_shared *shared = &local->shared;
  (void)snprintf(shared->name, sizeof shared->name, "%s", o->name);
  shared->rank = o->rank;
  shared->size = o->size;
  shared->slots = (uint32_t)o->slots;
  shared->slot_bytes = o->slot_bytes;
  shared->timeout_ns = o->timeout_ns;
  atomic_flag_clear(&shared->posted);
  local->carrier.shared = shared;
  local->carrier.runtime = runtime;
  local->carrier.device = o->device;
  status = ladei_group_rendezvous(shared, o->transport);
  if (status == LADE_OK) return local_settle(local, o->transport, out);
  ladei_runtime_release(runtime);
  free(local);
  return status;
}

lade_status lade_group_create_local(lade_runtime *runtime, const lade_group_local_options *options, lade_group **out) {
  lade_group_local_options own;
  int device_count = 0;
  if (runtime == NULL) return ladei_error_null(create_call, "runtime");
  if (options == NULL) return ladei_error_null(create_call, "options");
  if (out == NULL) return ladei_error_null(create_call, "out");
  LADEI_TRY(ladei_runtime_check_process(runtime));
  LADEI_TRY(ladei_options_read("lade_group_local_options", options, &own, sizeof own));
  LADEI_TRY(lade_runtime_device_count(runtime, &device_count));
  LADEI_TRY(options_check(&own, device_count));
  return LADEI_UNCANCELLED(local_make(runtime, &own, out));
}
