/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL that is made of threads.
 *
 * A transfer is posted by who has the bytes and taken by who wants them, when that one is asked for its state; a broadcast is a
 * transfer to each. A communicator is in progress until what it posted was taken, and what it wants has come.
 *
 * Locks: `lock`, of everything.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/nccl/library.h"
#include "tests/group/nccl_fake.h"

enum { MOST = 64, FAILED = 2, INVALID = 4, WANTS = 64 };

typedef struct transfer {
  struct transfer *next;
  uint64_t world;
  int from, to;
  const void *memory;
  size_t bytes;
} transfer;

typedef struct want {
  int from;
  void *memory;
  size_t bytes;
} want;

struct ladei_nccl_communicator {
  uint64_t world;
  int rank, size;
  bool hangs;
  want wants[WANTS];
  int want_count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static transfer *posted, **posted_end = &posted;
static uint64_t worlds;
static struct {
  uint64_t world;
  int joined;
} meetings[1024];
static int living_count;

static _Thread_local struct {
  uint32_t calls, fail_in;
  bool hangs;
} own;

static void fail(uint32_t nth) { own.fail_in = nth; }
static void hang(void) { own.hangs = true; }
static uint32_t calls(void) { return own.calls; }
static int living(void) {
  pthread_mutex_lock(&lock);
  int count = living_count;
  pthread_mutex_unlock(&lock);
  return count;
}

__attribute__((visibility("default"))) nccl_fake lade_nccl_fake = {fail, hang, calls, living};

static int is_failing(void) {
  own.calls++;
  return own.fail_in > 0 && --own.fail_in == 0 ? FAILED : 0;
}

/* --- the library -------------------------------------------------------------------------------------------------- */

#define NCCL __attribute__((visibility("default")))
typedef ladei_nccl_communicator communicator;

NCCL int ncclGetUniqueId(ladei_nccl_id *out);
NCCL int ncclCommInitRankConfig(communicator **out, int size, ladei_nccl_id id, int rank, ladei_nccl_config *config);
NCCL int ncclCommGetAsyncError(communicator *c, int *out_code);
NCCL int ncclCommAbort(communicator *c);
NCCL int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, communicator *c, void *stream);
NCCL int ncclSend(const void *from, size_t count, int type, int peer, communicator *c, void *stream);
NCCL int ncclRecv(void *to, size_t count, int type, int peer, communicator *c, void *stream);
NCCL int ncclGroupStart(void);
NCCL int ncclGroupEnd(void);
NCCL const char *ncclGetErrorString(int code);

int ncclGetUniqueId(ladei_nccl_id *out) {
  int code = is_failing();
  if (code != 0) return code;
  memset(out, 0, sizeof *out);
  pthread_mutex_lock(&lock);
  uint64_t world = ++worlds;
  pthread_mutex_unlock(&lock);
  memcpy(out->bytes, &world, sizeof world);
  return 0;
}

int ncclCommInitRankConfig(communicator **out, int size, ladei_nccl_id id, int rank, ladei_nccl_config *config) {
  int code = is_failing();
  if (code != 0) return code;
  if (config->magic != LADEI_NCCL_CONFIG_MAGIC || config->blocking != 0 || config->size != sizeof *config)
    return INVALID;
  communicator *c = calloc(1, sizeof *c);
  memcpy(&c->world, id.bytes, sizeof c->world);
  c->rank = rank;
  c->size = size;
  c->hangs = own.hangs;
  pthread_mutex_lock(&lock);
  if (!c->hangs) {
    meetings[c->world % 1024].joined =
        meetings[c->world % 1024].world == c->world ? meetings[c->world % 1024].joined + 1 : 1;
    meetings[c->world % 1024].world = c->world;
  }
  living_count++;
  pthread_mutex_unlock(&lock);
  *out = c;
  return LADEI_NCCL_IN_PROGRESS;
}

/* Under the lock. */
static bool want_take(communicator *c, const want *w) {
  transfer **at = &posted;
  while (*at != NULL && ((*at)->world != c->world || (*at)->from != w->from || (*at)->to != c->rank)) at = &(*at)->next;
  transfer *t = *at;
  if (t == NULL) return false;
  memcpy(w->memory, t->memory, w->bytes < t->bytes ? w->bytes : t->bytes);
  *at = t->next;
  if (posted_end == &t->next) posted_end = at;
  free(t);
  return true;
}

static bool has_posted(const communicator *c) {
  for (const transfer *t = posted; t != NULL; t = t->next)
    if (t->world == c->world && t->from == c->rank) return true;
  return false;
}

static void progress(communicator *c) {
  int kept = 0;
  for (int i = 0; i < c->want_count; i++)
    if (kept > 0 || !want_take(c, &c->wants[i])) c->wants[kept++] = c->wants[i]; /* in order */
  c->want_count = kept;
}

int ncclCommGetAsyncError(communicator *c, int *out_code) {
  int code = own.hangs ? 0 : is_failing();
  if (code != 0) return code;
  pthread_mutex_lock(&lock);
  if (!c->hangs && !own.hangs) progress(c);
  bool all = meetings[c->world % 1024].joined == c->size;
  bool busy = c->hangs || own.hangs || !all || c->want_count > 0 || has_posted(c);
  pthread_mutex_unlock(&lock);
  *out_code = busy ? LADEI_NCCL_IN_PROGRESS : LADEI_NCCL_SUCCESS;
  return 0;
}

int ncclCommAbort(communicator *c) {
  pthread_mutex_lock(&lock);
  for (transfer **at = &posted; *at != NULL;) {
    transfer *t = *at;
    if (t->world != c->world || t->from != c->rank) {
      at = &t->next;
      continue;
    }
    *at = t->next;
    free(t);
  }
  posted_end = &posted;
  while (*posted_end != NULL) posted_end = &(*posted_end)->next;
  living_count--;
  pthread_mutex_unlock(&lock);
  free(c);
  return 0;
}

static void post(communicator *c, const void *memory, size_t bytes, int to) {
  transfer *t = malloc(sizeof *t);
  *t = (transfer){NULL, c->world, c->rank, to, memory, bytes};
  pthread_mutex_lock(&lock);
  *posted_end = t;
  posted_end = &t->next;
  pthread_mutex_unlock(&lock);
}

static void want_add(communicator *c, void *memory, size_t bytes, int from) {
  if (c->want_count < WANTS) c->wants[c->want_count++] = (want){from, memory, bytes};
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, communicator *c, void *stream) {
  int code = is_failing();
  (void)stream;
  if (code != 0) return code;
  if (type != LADEI_NCCL_BYTES || root >= c->size) return INVALID;
  for (int i = 0; i < c->size && c->rank == root; i++)
    if (i != root) post(c, from, count, i);
  if (c->rank != root) want_add(c, to, count, root);
  return LADEI_NCCL_IN_PROGRESS;
}

int ncclSend(const void *from, size_t count, int type, int peer, communicator *c, void *stream) {
  int code = is_failing();
  (void)stream;
  if (code != 0) return code;
  if (type != LADEI_NCCL_BYTES) return INVALID;
  post(c, from, count, peer);
  return LADEI_NCCL_SUCCESS;
}

int ncclRecv(void *to, size_t count, int type, int peer, communicator *c, void *stream) {
  int code = is_failing();
  (void)stream;
  if (code != 0) return code;
  if (type != LADEI_NCCL_BYTES) return INVALID;
  want_add(c, to, count, peer);
  return LADEI_NCCL_SUCCESS;
}

int ncclGroupStart(void) { return is_failing(); }
int ncclGroupEnd(void) { return is_failing() != 0 ? FAILED : LADEI_NCCL_IN_PROGRESS; }
const char *ncclGetErrorString(int code) { return code == FAILED ? "an error of the test" : "invalid argument"; }
