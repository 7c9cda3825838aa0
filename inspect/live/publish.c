/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing counters. Keys are fixed at the begin; a refresh visits the counters of all parts into memory of its own,
 * under no lock, and copies them between two steps of the sequence.
 *
 * P1  One thread refreshes at a time: `refreshing` says so. A call that comes meanwhile gets LADE_ERR_BUSY; the
 *     publisher's thread skips that turn.
 * P2  After a fork the child's copy has no thread, and makes no call on the parts.
 * Locks: publisher->lock (a leaf) for `stop`; held for no call.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cancellation.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file_limit.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/thread.h"
#include "inspect/live/control.h"
#include "inspect/part.h"
#include "runtime/ops.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { DEFAULT_INTERVAL_MS = 1000, LEAST_INTERVAL_MS = 10 };

struct lade_publisher {
  lade_part *parts;
  size_t part_count;
  const char **keys; /* of each value; static */
  int64_t *values;   /* of a refresh */
  size_t value_count;
  size_t filled; /* values that the refresh has */
  ladei_published_header *header;
  size_t bytes;
  int fd;
  uint64_t process_id;
  uint32_t interval_ms;
  ladei_control *control; /* NULL: no client is heard */
  atomic_flag refreshing;
  bool has_thread;
  pthread_t thread;
  ladei_lock lock;
  ladei_condition wake;
  bool stop;
};

/* --- refreshing --------------------------------------------------------------------------------------------------- */

/* A key that was not there at the begin, or is in another place, has none here. */
static lade_status value_take(const char *key, int64_t value, void *user) {
  lade_publisher *p = user;
  assert(p->filled <= p->value_count);
  if (p->filled < p->value_count && p->keys[p->filled] == key) p->values[p->filled++] = value;
  return LADE_OK;
}

static void values_store(lade_publisher *p) {
  ladei_published_header *header = p->header;
  _Atomic(int64_t) *values = (_Atomic(int64_t) *)(void *)((char *)header + header->values_at);
  uint64_t sequence = atomic_load_explicit(&header->sequence, memory_order_relaxed);
  assert(sequence % 2 == 0 && header->value_count == p->value_count); /* P1, L2 */
  atomic_store_explicit(&header->sequence, sequence + 1, memory_order_relaxed);
  /* L2: each is a release, so that a reader that sees one of them sees the odd number, too. */
  for (size_t i = 0; i < p->value_count; i++) atomic_store_explicit(&values[i], p->values[i], memory_order_release);
  atomic_store_explicit(&header->refreshed_ns, ladei_clock_ns(CLOCK_REALTIME), memory_order_release);
  atomic_store_explicit(&header->sequence, sequence + 2, memory_order_release);
}

static lade_status values_refresh(lade_publisher *p) {
  ladei_lock_assert_none_held();
  if (atomic_flag_test_and_set_explicit(&p->refreshing, memory_order_acquire)) /* P1 */
    return ladei_error(LADE_ERR_BUSY, 0, "lade_publish_update: another thread refreshes the counters");
  lade_status status = LADE_OK;
  const ladei_published_part *rows = (const void *)((char *)p->header + p->header->parts_at);
  for (size_t i = 0; i < p->part_count && status == LADE_OK; i++) {
    p->filled = rows[i].first_value;
    status = ladei_inspect_part_ops_of(p->parts[i].kind)->counters(p->parts[i].object, value_take, p);
  }
  if (status == LADE_OK) values_store(p);
  atomic_flag_clear_explicit(&p->refreshing, memory_order_release);
  return status;
}

static lade_status process_check(const lade_publisher *p) {
  if (p->process_id == (uint64_t)getpid()) return LADE_OK;
  return ladei_error(LADE_ERR_FORKED, 0, "publisher: made in process %llu; this is %ld",
                     (unsigned long long)p->process_id, (long)getpid());
}

lade_status lade_publish_update(lade_publisher *publisher) {
  if (publisher == NULL) return ladei_error_null("lade_publish_update", "publisher");
  LADEI_TRY(process_check(publisher));
  int cancellation = ladei_cancellation_hold();
  lade_status status = values_refresh(publisher);
  if (publisher->control != NULL) ladei_control_serve(publisher->control);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* False: the thread is to end. */
static bool turn_wait(lade_publisher *p) {
  ladei_lock_acquire(&p->lock);
  if (!p->stop) (void)ladei_condition_wait_for(&p->wake, &p->lock, (uint64_t)p->interval_ms * 1000000);
  bool stop = p->stop;
  ladei_lock_release(&p->lock);
  return !stop;
}

/* Unreadable counters, as after a loss of the device, stay as they were: the time of the last refresh shows it. */
static void *refresh_again_and_again(void *user) {
  while (turn_wait(user)) (void)values_refresh(user);
  return NULL;
}

/* --- the layout --------------------------------------------------------------------------------------------------- */

/* The keys found in the first visit of the counters. */
typedef struct key_list {
  const char **keys;
  size_t count, room;
  uint64_t texts_bytes;
} key_list;

static lade_status key_add(const char *key, int64_t value, void *user) {
  key_list *list = user;
  (void)value;
  if (!LADEI_ARRAY_ROOM(list->keys, list->room, list->count + 1))
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no memory for %zu keys", list->count + 1);
  list->keys[list->count++] = key;
  list->texts_bytes += strlen(key) + 1;
  return LADE_OK;
}

static uint64_t aligned(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

static ladei_published_header header_plan(const lade_publisher *p, uint64_t texts_bytes) {
  ladei_published_header h = {.version = LADEI_PUBLISHED_VERSION,
                              .header_bytes = sizeof h,
                              .process_id = p->process_id,
                              .started_ns = ladei_clock_ns(CLOCK_REALTIME),
                              .interval_ms = p->interval_ms,
                              .part_count = (uint32_t)p->part_count,
                              .value_count = p->value_count,
                              .texts_bytes = texts_bytes};
  memcpy(h.magic, "LADEPUB\n", sizeof h.magic);
  if (p->control != NULL) snprintf(h.control, sizeof h.control, "%s", ladei_control_name(p->control));
  h.parts_at = aligned(sizeof h);
  h.keys_at = h.parts_at + p->part_count * sizeof(ladei_published_part);
  h.texts_at = aligned(h.keys_at + p->value_count * sizeof(uint32_t));
  h.values_at = aligned(h.texts_at + texts_bytes);
  h.bytes = h.values_at + p->value_count * sizeof(int64_t);
  return h;
}

static uint32_t text_put(const lade_publisher *p, uint64_t *used, const char *text) {
  char *texts = (char *)p->header + p->header->texts_at;
  uint32_t at = (uint32_t)*used;
  assert(*used + strlen(text) + 1 <= p->header->texts_bytes); /* L1 */
  memcpy(texts + at, text, strlen(text) + 1);
  *used += strlen(text) + 1;
  return at;
}

/* L1. `counts` says how many values each part has. */
static void layout_write(const lade_publisher *p, const size_t *counts) {
  ladei_published_part *parts = (void *)((char *)p->header + p->header->parts_at);
  uint32_t *keys = (void *)((char *)p->header + p->header->keys_at);
  uint64_t used = 0, value = 0;
  for (size_t i = 0; i < p->part_count; i++) {
    char room[64];
    parts[i] = (ladei_published_part){.kind = p->parts[i].kind,
                                      .device = ladei_inspect_part_ops_of(p->parts[i].kind)->device(p->parts[i].object),
                                      .name = text_put(p, &used, ladei_inspect_part_name(&p->parts[i], i, room)),
                                      .first_value = value,
                                      .value_count = counts[i]};
    value += counts[i];
  }
  for (size_t i = 0; i < p->value_count; i++) keys[i] = text_put(p, &used, p->keys[i]);
  assert(value == p->value_count && used == p->header->texts_bytes); /* L1 */
}

static lade_status system_error(const char *what) {
  int code = errno;
  lade_status status = code == ENOMEM                     ? LADE_ERR_OUT_OF_HOST_MEMORY
                       : code == EINVAL || code == ENOSYS ? LADE_ERR_UNSUPPORTED
                                                          : LADE_ERR_IO;
  return ladei_error(status, code, "lade_publish: cannot %s: %s", what, strerror(code));
}

/* L3: mapped for writing first, and sealed before anybody can find a half of it: the sequence begins odd. */
static lade_status memory_create(lade_publisher *p, const ladei_published_header *plan) {
  p->fd = memfd_create(LADEI_PUBLISHED_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (p->fd < 0) return system_error("create memory to share");
  if (!ladei_file_may_have(plan->bytes) || ftruncate(p->fd, (off_t)plan->bytes) != 0)
    return system_error("size memory to share");
  void *memory = mmap(NULL, plan->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
  if (memory == MAP_FAILED) return system_error("map memory to share");
  p->header = memory;
  p->bytes = plan->bytes;
  if (fcntl(p->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return system_error("seal memory to share");
  if (fcntl(p->fd, F_ADD_SEALS, F_SEAL_SEAL) != 0) return system_error("seal memory to share");
  return LADE_OK;
}

static lade_status layout_create(lade_publisher *p) {
  key_list list = {.count = 0};
  size_t *counts = calloc(p->part_count + 1, sizeof *counts);
  lade_status status =
      counts == NULL ? ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no memory") : LADE_OK;
  for (size_t i = 0; i < p->part_count && status == LADE_OK; i++) {
    char room[64];
    size_t before = list.count;
    list.texts_bytes += strlen(ladei_inspect_part_name(&p->parts[i], i, room)) + 1;
    status = ladei_inspect_part_ops_of(p->parts[i].kind)->counters(p->parts[i].object, key_add, &list);
    counts[i] = list.count - before;
  }
  p->keys = list.keys;
  p->value_count = list.count;
  if (status == LADE_OK && (p->values = calloc(list.count + 1, sizeof *p->values)) == NULL)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no memory for %zu values", list.count);
  if (status == LADE_OK && list.texts_bytes > LADEI_PUBLISHED_MOST_TEXTS) /* L4 */
    status = ladei_error(LADE_ERR_LIMIT, 0, "lade_publish: names and keys have %llu bytes; expected at most %d",
                         (unsigned long long)list.texts_bytes, LADEI_PUBLISHED_MOST_TEXTS);
  if (status == LADE_OK) {
    const ladei_published_header plan = header_plan(p, list.texts_bytes);
    status = memory_create(p, &plan);
    if (status == LADE_OK) {
      memcpy(p->header, &plan, sizeof plan);
      layout_write(p, counts);
    }
  }
  free(counts);
  return status;
}

/* --- create and destroy ------------------------------------------------------------------------------------------- */

static void publisher_free(lade_publisher *p) {
  ladei_control_destroy(p->control, p->process_id != (uint64_t)getpid());
  if (p->header != NULL) munmap(p->header, p->bytes);
  if (p->fd >= 0) close(p->fd);
  free(p->parts);
  free(p->keys);
  free(p->values);
  free(p);
}

void lade_publisher_destroy(lade_publisher *publisher) {
  if (publisher == NULL) return;
  int cancellation = ladei_cancellation_hold();
  if (publisher->has_thread && publisher->process_id == (uint64_t)getpid()) { /* P2 */
    ladei_lock_acquire(&publisher->lock);
    publisher->stop = true;
    ladei_condition_broadcast(&publisher->wake);
    ladei_lock_release(&publisher->lock);
    pthread_join(publisher->thread, NULL);
  }
  publisher_free(publisher);
  ladei_cancellation_resume(cancellation);
}

static lade_status publisher_start(lade_publisher *p, bool manual, bool control) {
  if (control) LADEI_TRY(ladei_control_create(p->parts, p->part_count, manual, &p->control));
  LADEI_TRY(layout_create(p));
  LADEI_TRY(values_refresh(p));
  if (manual) return LADE_OK;
  if (ladei_thread_start(&p->thread, refresh_again_and_again, p) != 0)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no thread to refresh the counters");
  p->has_thread = true;
  return LADE_OK;
}

static bool any_is_simulated(const lade_part *parts, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const lade_runtime *runtime = ladei_inspect_part_ops_of(parts[i].kind)->runtime(parts[i].object);
    if (strcmp(runtime->ops->name, "sim") == 0) return true;
  }
  return false;
}

/* Names are copied: parts are the caller's for the call only. */
static lade_status publisher_create(const lade_part *parts, size_t count, const lade_publish_options *options,
                                    lade_publisher **out) {
  bool manual = (options->flags & LADE_PUBLISH_MANUAL) != 0 || any_is_simulated(parts, count);
  lade_publisher *p = calloc(1, sizeof *p);
  if (p == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no memory");
  p->fd = -1;
  p->process_id = (uint64_t)getpid();
  p->interval_ms = manual ? 0 : options->interval_ms == 0 ? DEFAULT_INTERVAL_MS : options->interval_ms;
  p->part_count = count;
  atomic_flag_clear(&p->refreshing);
  ladei_lock_init(&p->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&p->wake);
  p->parts = malloc((count + 1) * sizeof *p->parts);
  lade_status status = LADE_OK;
  if (p->parts == NULL)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no memory for %zu parts", count);
  else if (count > 0) /* without parts there may be no array */
    memcpy(p->parts, parts, count * sizeof *parts);
  if (status == LADE_OK) status = publisher_start(p, manual, (options->flags & LADE_PUBLISH_CONTROL) != 0);
  if (status == LADE_OK)
    *out = p;
  else
    publisher_free(p);
  return status;
}

static lade_status options_check(const lade_publish_options *options) {
  if ((options->flags & ~(uint32_t)(LADE_PUBLISH_MANUAL | LADE_PUBLISH_CONTROL)) != 0)
    return ladei_error_argument("lade_publish", "options.flags", "a set of lade_publish_flag", "0x%x", options->flags);
  if (options->interval_ms == 0 || options->interval_ms >= LEAST_INTERVAL_MS) return LADE_OK;
  return ladei_error_argument("lade_publish", "options.interval_ms", "0 (1,000) or at least 10", "%u",
                              options->interval_ms);
}

lade_status lade_publish(const lade_part *parts, size_t count, const lade_publish_options *options,
                         lade_publisher **out) {
  lade_publish_options own;
  if (parts == NULL && count > 0) return ladei_error_null("lade_publish", "parts");
  if (out == NULL) return ladei_error_null("lade_publish", "out");
  if (count > LADEI_PUBLISHED_MOST_PARTS)
    return ladei_error_argument("lade_publish", "count", "at most 1,000", "%zu", count);
  LADEI_TRY(ladei_options_read("lade_publish_options", options, &own, sizeof own));
  LADEI_TRY(options_check(&own));
  for (size_t i = 0; i < count; i++) LADEI_TRY(ladei_inspect_part_check("lade_publish", i, &parts[i]));
  return LADEI_UNCANCELLED(publisher_create(parts, count, &own, out));
}
