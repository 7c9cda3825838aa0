/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plug-in for MPI that is made of threads.
 *
 * A world has a list of messages that were sent, and its threads take those that are theirs. A send ends at once; a broadcast is a
 * send to each, with a tag that counts broadcasts. A world is forgotten when its last thread leaves.
 *
 * Locks: `lock`, of everything.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/mpi/plugin.h"
#include "tests/group/mpi_standin.h"

enum { CODE_INJECTED = 17, CODE_TRUNCATED = 15, ANY_RANK = 1 << 30, TAG_BROADCAST = 1 << 20, COMMUNICATORS = 64 };

typedef struct message {
  struct message *next;
  int communicator, tag;
  uint32_t from, to;
  size_t bytes;
  char data[];
} message;

typedef struct world world;

typedef struct request {
  struct request *next;       /* of its world: those left behind go with that */
  bool hangs, is_copy, waits; /* waits: for a message */
  world *w;
  int communicator, tag;
  uint32_t from, to;
  void *memory;
  size_t room;
} request;

struct world {
  struct world *next;
  char name[96];
  uint32_t joined, size;
  uint32_t copies[COMMUNICATORS]; /* ranks that have made this communicator */
  message *first, **last;
  request *requests;
};

struct ladei_mpi_communicator {
  world *w;
  int number;
  int broadcasts; /* so far */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static world *worlds;
static void **left_behind;

static _Thread_local struct {
  world *w;
  uint32_t rank, calls, fail_in;
  int copies;
  bool hangs;
} own;

/* --- control ------------------------------------------------------------------------------------------------------ */

static void join(const char *name, uint32_t rank, uint32_t size) {
  pthread_mutex_lock(&lock);
  world *w = worlds;
  while (w != NULL && strcmp(w->name, name) != 0) w = w->next;
  if (w == NULL) {
    w = calloc(1, sizeof *w);
    snprintf(w->name, sizeof w->name, "%s", name);
    w->size = size;
    w->last = &w->first;
    w->next = worlds;
    worlds = w;
  }
  w->joined++;
  pthread_mutex_unlock(&lock);
  memset(&own, 0, sizeof own);
  own.w = w;
  own.rank = rank;
}

static void world_free(world *w) {
  world **at = &worlds;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  for (message *m = w->first; m != NULL;) {
    message *next = m->next;
    free(m);
    m = next;
  }
  for (request *r = w->requests; r != NULL;) {
    request *next = r->next;
    free(r);
    r = next;
  }
  free(w);
}

static void leave(void) {
  pthread_mutex_lock(&lock);
  if (--own.w->joined == 0) world_free(own.w);
  pthread_mutex_unlock(&lock);
  own.w = NULL;
}

static void fail(uint32_t nth) { own.fail_in = nth; }
static void hang(void) { own.hangs = true; }
static uint32_t calls(void) { return own.calls; }

__attribute__((visibility("default")))
mpi_standin lade_mpi_standin = {.join = join, .leave = leave, .fail = fail, .hang = hang, .calls = calls, .runs = 1};

/* --- the plug-in -------------------------------------------------------------------------------------------------- */

static int begin(int may_initialize, char *text, size_t text_bytes) {
  if (lade_mpi_standin.runs || may_initialize) return 0;
  snprintf(text, text_bytes, "MPI does not run");
  return 1;
}

static int is_failing(void) {
  own.calls++;
  return own.fail_in > 0 && --own.fail_in == 0 ? CODE_INJECTED : 0;
}

static ladei_mpi_request keep(request r) {
  request *kept = malloc(sizeof *kept);
  *kept = r;
  kept->hangs = own.hangs;
  pthread_mutex_lock(&lock);
  kept->next = kept->w->requests;
  kept->w->requests = kept;
  pthread_mutex_unlock(&lock);
  return (ladei_mpi_request)(uintptr_t)kept;
}

static void request_free(request *r) {
  pthread_mutex_lock(&lock);
  request **at = &r->w->requests;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  pthread_mutex_unlock(&lock);
  free(r);
}

static int communicator_copy(int is_given, int32_t given, ladei_mpi_communicator **out,
                             ladei_mpi_request *out_request) {
  int code = is_failing();
  if (code != 0) return code;
  if (is_given && given != 7) return CODE_INJECTED;
  ladei_mpi_communicator *made = calloc(1, sizeof *made);
  made->w = own.w;
  made->number = own.copies++ % COMMUNICATORS;
  pthread_mutex_lock(&lock);
  own.w->copies[made->number]++;
  pthread_mutex_unlock(&lock);
  *out = made;
  *out_request = keep((request){.is_copy = true, .w = own.w, .communicator = made->number});
  return 0;
}

static int rank_get(ladei_mpi_communicator *communicator, uint32_t *out_rank, uint32_t *out_size) {
  *out_rank = own.rank;
  *out_size = communicator->w->size;
  return 0;
}

static void communicator_free(ladei_mpi_communicator *communicator, int is_clean) {
  (void)is_clean;
  free(communicator);
}

static void message_post(world *w, int communicator, const void *memory, size_t bytes, uint32_t to, int tag) {
  message *m = malloc(sizeof *m + bytes);
  *m = (message){.communicator = communicator, .tag = tag, .from = own.rank, .to = to, .bytes = bytes};
  memcpy(m->data, memory, bytes);
  pthread_mutex_lock(&lock);
  *w->last = m;
  w->last = &m->next;
  pthread_mutex_unlock(&lock);
}

static int send_begin(ladei_mpi_communicator *communicator, const void *memory, size_t bytes, uint32_t to, int tag,
                      ladei_mpi_request *out_request) {
  int code = is_failing();
  if (code != 0) return code;
  if (!own.hangs) message_post(communicator->w, communicator->number, memory, bytes, to, tag);
  *out_request = keep((request){.w = communicator->w});
  return 0;
}

static int receive_begin(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t from, int tag,
                         ladei_mpi_request *out_request) {
  int code = is_failing();
  if (code != 0) return code;
  *out_request = keep((request){.waits = true,
                                .w = communicator->w,
                                .communicator = communicator->number,
                                .tag = tag,
                                .from = from,
                                .to = own.rank,
                                .memory = memory,
                                .room = bytes});
  return 0;
}

static int broadcast_begin(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t root,
                           ladei_mpi_request *out_request) {
  int tag = TAG_BROADCAST + communicator->broadcasts++;
  if (own.rank != root) return receive_begin(communicator, memory, bytes, root, tag, out_request);
  int code = is_failing();
  if (code != 0) return code;
  for (uint32_t to = 0; to < communicator->w->size; to++)
    if (to != root && !own.hangs) message_post(communicator->w, communicator->number, memory, bytes, to, tag);
  *out_request = keep((request){.w = communicator->w});
  return 0;
}

/* Under the lock. The place of the first message that fits; its place is NULL where there is none. */
static message **message_find(world *w, int communicator, uint32_t from, uint32_t to, int tag) {
  message **at = &w->first;
  while (*at != NULL && ((*at)->communicator != communicator || (*at)->to != to || (*at)->tag != tag ||
                         (from != ANY_RANK && (*at)->from != from)))
    at = &(*at)->next;
  return at;
}

static message *message_take(world *w, message **at) {
  message *m = *at;
  *at = m->next;
  if (w->last == &m->next) w->last = at;
  return m;
}

static int receive_end(request *r, int *out_done) {
  pthread_mutex_lock(&lock);
  message **at = message_find(r->w, r->communicator, r->from, r->to, r->tag);
  message *m = *at != NULL ? message_take(r->w, at) : NULL;
  pthread_mutex_unlock(&lock);
  *out_done = m != NULL;
  if (m == NULL) return 0;
  int code = m->bytes > r->room ? CODE_TRUNCATED : 0;
  if (code == 0) memcpy(r->memory, m->data, m->bytes);
  free(m);
  return code;
}

static int copy_end(const request *r, int *out_done) {
  pthread_mutex_lock(&lock);
  *out_done = r->w->copies[r->communicator] >= r->w->size;
  pthread_mutex_unlock(&lock);
  return 0;
}

static int request_test(ladei_mpi_request *kept, int *out_done) {
  request *r = (request *)(uintptr_t)*kept;
  int code = 0;
  *out_done = !r->hangs;
  if (!r->hangs && r->waits) code = receive_end(r, out_done);
  if (!r->hangs && r->is_copy) code = copy_end(r, out_done);
  if (!*out_done && code == 0) return 0;
  request_free(r);
  *kept = 0;
  return code;
}

static int receive_cancel(ladei_mpi_request *kept) {
  request_free((request *)(uintptr_t)*kept);
  *kept = 0;
  return 0;
}

static int probe(ladei_mpi_communicator *communicator, int tag, int *out_found, uint32_t *out_from) {
  pthread_mutex_lock(&lock);
  message **at = message_find(communicator->w, communicator->number, ANY_RANK, own.rank, tag);
  *out_found = *at != NULL && !own.hangs;
  if (*at != NULL) *out_from = (*at)->from;
  pthread_mutex_unlock(&lock);
  return 0;
}

static void leave_behind(void **link) {
  pthread_mutex_lock(&lock);
  *link = left_behind;
  left_behind = link;
  pthread_mutex_unlock(&lock);
}

static int takes_device_memory(void) { return lade_mpi_standin.takes_device; }

static void text(int code, char *out, size_t out_bytes) {
  snprintf(out, out_bytes, "%s", code == CODE_INJECTED ? "an error of the test" : "message too long");
}

__attribute__((visibility("default"))) const ladei_mpi_plugin *ladei_mpi_plugin_get(void);

const ladei_mpi_plugin *ladei_mpi_plugin_get(void) {
  static ladei_mpi_plugin plugin = {
      .version = LADEI_MPI_PLUGIN_VERSION,
      .begin = begin,
      .communicator_copy = communicator_copy,
      .rank = rank_get,
      .communicator_free = communicator_free,
      .send = send_begin,
      .receive = receive_begin,
      .broadcast = broadcast_begin,
      .test = request_test,
      .cancel = receive_cancel,
      .probe = probe,
      .leave_behind = leave_behind,
      .takes_device_memory = takes_device_memory,
      .text = text,
  };
  pthread_mutex_lock(&lock);
  uint32_t version = lade_mpi_standin.version != 0 ? (uint32_t)lade_mpi_standin.version : LADEI_MPI_PLUGIN_VERSION;
  if (plugin.version != version) plugin.version = version; /* threads that are ranks read it without the lock */
  pthread_mutex_unlock(&lock);
  return &plugin;
}
