/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The group as its user holds it: checks, one call at a time, and the effect of a failure on all later calls.
 *
 *   WORKING --an operation fails, or abort--> BROKEN --destroy--> gone
 *
 * G1  A collective call reaches the table only if its arguments are right, no other one is under way in this rank, and
 *     the group works.
 * G2  A group breaks once. `first` is set before `broken` is, and constant from then on.
 * G3  The other ranks are told (ops.abort) once, by the thread that broke the group.
 * Locks: group->lock (leaf) guards `broken` and `first`; no operation is called under it. `busy` is the turn of
 * collective calls.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/process.h"
#include "lade/group.h"

enum { NAME_BYTES = 64 };

struct lade_group {
  lade_group_ops ops;
  void *self;
  uint32_t rank, size;
  char name[NAME_BYTES];
  ladei_process owner;
  atomic_bool busy; /* a collective call is under way */
  ladei_lock lock;
  bool broken;
  lade_error first; /* G2 */
};

/* --- failures ----------------------------------------------------------------------------------------------------- */

static lade_status broken_error(lade_group *group) {
  ladei_lock_acquire(&group->lock);
  bool broken = group->broken;
  ladei_lock_release(&group->lock);
  if (!broken) return LADE_OK;
  assert(group->first.status != LADE_OK); /* G2: it was set before, and is constant */
  return ladei_error(group->first.status, group->first.native_code, "group %s is broken: %.440s", group->name,
                     group->first.text);
}

/* Breaks the group unless it is; the thread that did tells the others. */
static void group_break(lade_group *group, const lade_error *why) {
  assert(ladei_status_is_error((int32_t)why->status));
  ladei_lock_assert_none_held(); /* for ops.abort() */
  ladei_lock_acquire(&group->lock);
  bool first = !group->broken;
  if (first) {
    group->first = *why;
    group->broken = true;
  }
  ladei_lock_release(&group->lock);
  if (first && group->ops.abort != NULL) group->ops.abort(group->self, why);
}

/* An operation has returned. The error of a table of the program's is cut to fit the record. */
static lade_status group_outcome(lade_group *group, const char *call, lade_status status, lade_error *error) {
  if (status == LADE_OK) return LADE_OK;
  bool known = ladei_status_is_error((int32_t)status);
  error->status = known ? status : LADE_ERR_CALLBACK;
  error->text[sizeof error->text - 1] = '\0';
  ladei_text_tame(error->text);
  if (!known)
    (void)snprintf(error->text, sizeof error->text, "the operation returned %d, which is no error", (int)status);
  if (error->text[0] == '\0') (void)snprintf(error->text, sizeof error->text, "%s", lade_status_text(error->status));
  group_break(group, error);
  return ladei_error(error->status, error->native_code, "%s (%s, rank %u of %u): %.400s", call, group->name,
                     (unsigned)group->rank, (unsigned)group->size, error->text);
}

/* --- a collective call -------------------------------------------------------------------------------------------- */

typedef struct turn {
  lade_error error;
  int cancellation;
} turn;

static lade_status group_enter(const char *call, lade_group *group) {
  if (group == NULL) return ladei_error_null(call, "group");
  if (!ladei_process_is_own(&group->owner))
    return ladei_error(LADE_ERR_FORKED, 0, "%s: the group was made before fork(); only the parent may use it", call);
  return LADE_OK;
}

static lade_status turn_take(lade_group *group, const char *call, turn *t) {
  if (atomic_exchange_explicit(&group->busy, true, memory_order_acquire))
    return ladei_error(LADE_ERR_BUSY, 0, "%s: another thread is in a collective call of this group", call);
  lade_status status = broken_error(group);
  if (status != LADE_OK) {
    atomic_store_explicit(&group->busy, false, memory_order_release);
    return status;
  }
  ladei_lock_assert_none_held();
  t->cancellation = ladei_cancellation_hold();
  memset(&t->error, 0, sizeof t->error);
  return LADE_OK;
}

static lade_status turn_give(lade_group *group, const char *call, turn *t, lade_status status) {
  assert(atomic_load(&group->busy)); /* the turn is this call's: G1 */
  status = group_outcome(group, call, status, &t->error);
  atomic_store_explicit(&group->busy, false, memory_order_release);
  ladei_cancellation_resume(t->cancellation);
  return status;
}

static lade_status root_check(const lade_group *group, const char *call, uint32_t root) {
  char expected[64];
  if (root < group->size) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "below %u, the number of ranks", (unsigned)group->size);
  return ladei_error_argument(call, "root", expected, "%u", (unsigned)root);
}

lade_status lade_group_broadcast(lade_group *group, void *memory, uint64_t bytes, uint32_t root, lade_stream stream) {
  static const char call[] = "lade_group_broadcast";
  turn t;
  LADEI_TRY(group_enter(call, group));
  LADEI_TRY(root_check(group, call, root));
  if (memory == NULL && bytes > 0) return ladei_error_null(call, "memory");
  LADEI_TRY(turn_take(group, call, &t));
  lade_status status = bytes == 0 ? LADE_OK : group->ops.broadcast(group->self, memory, bytes, root, stream, &t.error);
  return turn_give(group, call, &t, status);
}

/* Sum of the parts, which must not overflow. */
static lade_status parts_check(const lade_group *group, const char *call, const uint64_t *bytes, uint64_t *out_total) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < group->size; i++)
    if (__builtin_add_overflow(total, bytes[i], &total))
      return ladei_error_argument(call, "bytes", "parts whose sum is below 2^64", "%llu", (unsigned long long)bytes[i]);
  *out_total = total;
  return LADE_OK;
}

lade_status lade_group_scatter(lade_group *group, const void *from, const uint64_t *bytes, void *to, uint32_t root,
                               lade_stream stream) {
  static const char call[] = "lade_group_scatter";
  uint64_t total = 0;
  turn t;
  LADEI_TRY(group_enter(call, group));
  LADEI_TRY(root_check(group, call, root));
  if (bytes == NULL) return ladei_error_null(call, "bytes");
  LADEI_TRY(parts_check(group, call, bytes, &total));
  if (from == NULL && group->rank == root && total > 0) return ladei_error_null(call, "from");
  if (to == NULL && bytes[group->rank] > 0) return ladei_error_null(call, "to");
  LADEI_TRY(turn_take(group, call, &t));
  const void *source = group->rank == root ? from : NULL;
  lade_status status =
      total == 0 ? LADE_OK : group->ops.scatter(group->self, source, bytes, to, root, stream, &t.error);
  return turn_give(group, call, &t, status);
}

lade_status lade_group_barrier(lade_group *group) {
  static const char call[] = "lade_group_barrier";
  turn t;
  LADEI_TRY(group_enter(call, group));
  LADEI_TRY(turn_take(group, call, &t));
  return turn_give(group, call, &t, group->ops.barrier(group->self, &t.error));
}

lade_status lade_group_gather(lade_group *group, const void *record, uint64_t bytes, void *out_records) {
  static const char call[] = "lade_group_gather";
  turn t;
  LADEI_TRY(group_enter(call, group));
  if (record == NULL) return ladei_error_null(call, "record");
  if (out_records == NULL) return ladei_error_null(call, "out_records");
  if (bytes == 0 || bytes > LADE_GROUP_RECORD_BYTES) {
    char expected[64];
    (void)snprintf(expected, sizeof expected, "from 1 to %d", LADE_GROUP_RECORD_BYTES);
    return ladei_error_argument(call, "bytes", expected, "%llu", (unsigned long long)bytes);
  }
  LADEI_TRY(turn_take(group, call, &t));
  return turn_give(group, call, &t, group->ops.gather(group->self, record, bytes, out_records, &t.error));
}

/* --- asking, giving up -------------------------------------------------------------------------------------------- */

uint32_t lade_group_rank(const lade_group *group) { return group != NULL ? group->rank : 0; }
uint32_t lade_group_size(const lade_group *group) { return group != NULL ? group->size : 0; }

lade_status lade_group_check(lade_group *group) {
  LADEI_TRY(group_enter("lade_group_check", group));
  return broken_error(group);
}

lade_status lade_group_abort(lade_group *group, lade_status status, const char *text) {
  static const char call[] = "lade_group_abort";
  lade_error why = {.status = status};
  LADEI_TRY(group_enter(call, group));
  if (!ladei_status_is_error((int32_t)status))
    return ladei_error_argument(call, "status", "an error", "%d", (int)status);
  (void)snprintf(why.text, sizeof why.text, "rank %u gave up: %.400s", (unsigned)group->rank,
                 text != NULL ? text : lade_status_text(status));
  ladei_text_tame(why.text);
  group_break(group, &why);
  return LADE_OK;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static lade_status ops_check(const lade_group_ops *ops) {
  const struct {
    const char *name;
    bool there;
  } required[] = {
      {"ops.name", ops->name != NULL},       {"ops.rank", ops->rank != NULL},
      {"ops.size", ops->size != NULL},       {"ops.broadcast", ops->broadcast != NULL},
      {"ops.scatter", ops->scatter != NULL}, {"ops.barrier", ops->barrier != NULL},
      {"ops.gather", ops->gather != NULL},   {"ops.destroy", ops->destroy != NULL},
  };
  for (size_t i = 0; i < sizeof required / sizeof *required; i++)
    if (!required[i].there) return ladei_error_null("lade_group_create", required[i].name);
  return LADE_OK;
}

static lade_status numbers_check(const lade_group *group) {
  static const char call[] = "lade_group_create";
  char expected[64];
  if (group->size == 0 || group->size > LADE_GROUP_RANKS) {
    (void)snprintf(expected, sizeof expected, "from 1 to %d", LADE_GROUP_RANKS);
    return ladei_error_argument(call, "ops.size()", expected, "%u", (unsigned)group->size);
  }
  if (group->rank < group->size) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "below %u, the number of ranks", (unsigned)group->size);
  return ladei_error_argument(call, "ops.rank()", expected, "%u", (unsigned)group->rank);
}

lade_status lade_group_create(const lade_group_ops *ops, void *self, lade_group **out) {
  if (ops == NULL) return ladei_error_null("lade_group_create", "ops");
  if (out == NULL) return ladei_error_null("lade_group_create", "out");
  lade_group_ops own;
  LADEI_TRY(ladei_options_read("lade_group_ops", ops, &own, sizeof own));
  LADEI_TRY(ops_check(&own));
  lade_group *group = calloc(1, sizeof *group);
  if (group == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_group_create: no memory for the group");
  group->ops = own;
  group->self = self;
  group->rank = own.rank(self);
  group->size = own.size(self);
  lade_status status = numbers_check(group);
  if (status != LADE_OK) {
    free(group);
    return status;
  }
  (void)snprintf(group->name, sizeof group->name, "%s", own.name);
  ladei_text_tame(group->name);
  ladei_lock_init(&group->lock, LADEI_RANK_LEAF);
  ladei_process_take(&group->owner);
  *out = group;
  return LADE_OK;
}

lade_status lade_group_destroy(lade_group *group) {
  if (group == NULL) return LADE_OK;
  LADEI_TRY(group_enter("lade_group_destroy", group));
  if (atomic_exchange_explicit(&group->busy, true, memory_order_acquire))
    return ladei_error(LADE_ERR_BUSY, 0, "lade_group_destroy: another thread is in a collective call of this group");
  ladei_lock_assert_none_held();
  int cancellation = ladei_cancellation_hold();
  group->ops.destroy(group->self);
  ladei_process_release(&group->owner);
  ladei_lock_destroy(&group->lock);
  free(group);
  ladei_cancellation_resume(cancellation);
  return LADE_OK;
}
