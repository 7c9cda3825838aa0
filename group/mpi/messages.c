/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of a group over MPI.
 *
 *   exchange    others --call, record--> rank 0: the same call?  --all records, or the difference--> others
 *   notice      a rank that fails --status, text--> each other rank, which looks for notices while it waits
 *
 * Rank 0 collects the records, so that it knows, and can report, which rank is missing.
 *
 * N1  No function here waits in MPI: requests are begun and polled, with a time limit.
 * N2  A receive that is not done when a call fails is cancelled. Another request has a moment to end, and is abandoned
 *     then, with the memory that it may touch: MPI has no safe way to cancel it.
 * N3  The communicator of a failed group is never freed: messages may be under way in it, and MPI reuses its number.
 * N4  A failure that another rank reported is not reported again.
 * Locks: none. One thread at a time, the one that has the turn.
 */
#include "group/mpi/messages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "group/frame.h"

/* Rank 0 sends it before the records, which follow only if all make the same call: otherwise their lengths differ. */
typedef struct verdict {
  uint32_t differs; /* a rank that makes another call; 0: none does */
  uint32_t reserved;
  uint64_t latest_ns;
  ladei_mpi_call its, first; /* that call, and rank 0's */
} verdict;

/* The time that MPI has to end a request whose call has failed, or to send a notice. */
#define MOMENT_NS UINT64_C(300000000)

static size_t record_room(size_t bytes) { return sizeof(ladei_mpi_call) + bytes; }

lade_status ladei_mpi_result(const ladei_mpi_messages *m, const char *what, int code) {
  char text[256];
  if (code == 0) return LADE_OK;
  m->plugin->text(code, text, sizeof text);
  return ladei_error(LADE_ERR_IO, code, "MPI: %s: %s", what, text);
}

/* N2 */
void ladei_mpi_settle(ladei_mpi_messages *m, ladei_mpi_request *request, bool is_receive) {
  ladei_backoff backoff = {0};
  uint64_t deadline_ns = ladei_clock_ns(CLOCK_MONOTONIC) + MOMENT_NS;
  int done = 0;
  if (*request == 0) return;
  ladei_lock_assert_none_held();
  if (is_receive) {
    m->abandoned = m->plugin->cancel(request) != 0 || m->abandoned;
    return;
  }
  while (!done && ladei_clock_ns(CLOCK_MONOTONIC) < deadline_ns) {
    if (m->plugin->test(request, &done) != 0) done = 1;
    if (!done) ladei_backoff_wait(&backoff);
  }
  if (done)
    *request = 0;
  else
    m->abandoned = true;
}

/* --- notices ------------------------------------------------------------------------------------------------------ */

/* `notice` stays in place (N2). */
void ladei_mpi_tell(ladei_mpi_messages *m) {
  if (m->heard) return; /* N4 */
  m->heard = true;
  for (uint32_t i = 0; i < m->size; i++) {
    m->requests[i] = 0;
    if (i != m->rank)
      (void)m->plugin->send(m->communicator, &m->notice, sizeof m->notice, i, LADEI_MPI_TAG_NOTICE, &m->requests[i]);
  }
  for (uint32_t i = 0; i < m->size && !m->abandoned; i++) ladei_mpi_settle(m, &m->requests[i], false);
}

static lade_status notice_error(const ladei_mpi_notice *notice, const char *whose) {
  lade_status status = (lade_status)notice->status;
  bool is_error = status != LADE_OK && status != LADE_NOT_READY;
  return ladei_error(is_error ? status : LADE_ERR_PEER, notice->native_code, "%s: %.*s", whose,
                     (int)sizeof notice->text - 1, notice->text);
}

static lade_status notice_receive(ladei_mpi_messages *m, uint32_t from) {
  enum { ROUNDS = 1000 };
  ladei_mpi_request request = 0;
  ladei_backoff backoff = {0};
  char whose[32];
  int done = 0;
  assert(from < m->size && from != m->rank && !m->heard);
  m->heard = true; /* N4 */
  (void)snprintf(whose, sizeof whose, "rank %u", from);
  int code =
      m->plugin->receive(m->communicator, &m->incoming, sizeof m->incoming, from, LADEI_MPI_TAG_NOTICE, &request);
  /* The notice is small, and the probe has seen it. */
  for (uint32_t round = 0; code == 0 && !done && round < ROUNDS; round++) {
    code = m->plugin->test(&request, &done);
    if (!done) ladei_backoff_wait(&backoff);
  }
  if (!done) m->abandoned = true;
  LADEI_TRY(ladei_mpi_result(m, "receiving a notice", code));
  return done ? notice_error(&m->incoming, whose) : ladei_error(LADE_ERR_PEER, 0, "%s has failed", whose);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

void ladei_mpi_wait_begin(const ladei_mpi_messages *m, ladei_mpi_wait *wait) {
  uint64_t grace_ns = m->rank == 0 ? 0 : m->timeout_ns / 8;
  *wait = (ladei_mpi_wait){ladei_clock_ns(CLOCK_MONOTONIC) + m->timeout_ns + grace_ns, 0};
}

lade_status ladei_mpi_wait_on(ladei_mpi_messages *m, ladei_mpi_wait *wait, uint32_t whom) {
  int found = 0;
  uint32_t from = 0;
  if (atomic_load_explicit(&m->failing, memory_order_acquire)) return notice_error(&m->notice, "given up");
  LADEI_TRY(ladei_mpi_result(m, "looking for notices",
                             m->plugin->probe(m->communicator, LADEI_MPI_TAG_NOTICE, &found, &from)));
  if (found) return notice_receive(m, from);
  if (ladei_clock_ns(CLOCK_MONOTONIC) >= wait->deadline_ns)
    return ladei_error(LADE_ERR_TIMEOUT, 0, "rank %u has not come within %.3g s", whom, (double)m->timeout_ns * 1e-9);
  ladei_backoff backoff = {wait->rounds++};
  ladei_backoff_wait(&backoff);
  return LADE_OK;
}

lade_status ladei_mpi_test(ladei_mpi_messages *m, ladei_mpi_request *request) {
  int done = 0;
  int code = m->plugin->test(request, &done);
  if (code != 0 || done) *request = 0;
  LADEI_TRY(ladei_mpi_result(m, "a transfer", code));
  return done ? LADE_OK : LADE_NOT_READY;
}

static lade_status request_finish(ladei_mpi_messages *m, ladei_mpi_request *request, uint32_t whom,
                                  ladei_mpi_wait *wait) {
  lade_status status;
  while ((status = ladei_mpi_test(m, request)) == LADE_NOT_READY) {
    status = ladei_mpi_wait_on(m, wait, whom);
    if (status != LADE_OK) break;
  }
  return status;
}

/* The same for a request that cannot be cancelled. */
static lade_status request_finish_or_leave(ladei_mpi_messages *m, ladei_mpi_request *request, uint32_t whom,
                                           ladei_mpi_wait *wait) {
  lade_status status = request_finish(m, request, whom, wait);
  if (status != LADE_OK) ladei_mpi_settle(m, request, false);
  return status;
}

/* --- records ------------------------------------------------------------------------------------------------------ */

const void *ladei_mpi_record(const ladei_mpi_messages *m, uint32_t rank, size_t bytes) {
  assert(rank < m->size && bytes <= LADE_GROUP_RECORD_BYTES);
  return m->records + rank * record_room(bytes) + sizeof(ladei_mpi_call);
}

/* Rank 0: one record of each rank, each with the room of the largest, since another call may have another length. */
static lade_status records_collect(ladei_mpi_messages *m, ladei_mpi_wait *wait) {
  const size_t most = record_room(LADE_GROUP_RECORD_BYTES);
  lade_status status = LADE_OK;
  uint32_t begun = 1, done = 1;
  for (; begun < m->size && status == LADE_OK; begun += status == LADE_OK)
    status = ladei_mpi_result(m, "receiving a record",
                              m->plugin->receive(m->communicator, m->records + begun * most, most, begun,
                                                 LADEI_MPI_TAG_RECORD, &m->requests[begun]));
  for (; done < m->size && status == LADE_OK; done += status == LADE_OK)
    status = request_finish(m, &m->requests[done], done, wait);
  for (; done < begun; done++) ladei_mpi_settle(m, &m->requests[done], true);
  return status;
}

/* ... then moves them together. */
static void records_close_up(ladei_mpi_messages *m, size_t room) {
  memcpy(m->records, m->own, room);
  for (uint32_t i = 1; i < m->size; i++)
    memmove(m->records + i * room, m->records + i * record_room(LADE_GROUP_RECORD_BYTES), room);
}

static bool call_is(const ladei_mpi_call *a, const ladei_mpi_call *b) {
  return a->number == b->number && a->kind == b->kind && a->root == b->root && a->bytes == b->bytes &&
         a->parts == b->parts;
}

/* Finds a collected call that differs, and the latest time. */
static void verdict_make(const ladei_mpi_messages *m, verdict *out) {
  ladei_mpi_call call;
  memcpy(&out->first, m->own, sizeof out->first);
  out->latest_ns = out->first.now_ns;
  for (uint32_t i = 1; i < m->size; i++) {
    memcpy(&call, m->records + i * record_room(LADE_GROUP_RECORD_BYTES), sizeof call);
    out->latest_ns = call.now_ns > out->latest_ns ? call.now_ns : out->latest_ns;
    if (out->differs != 0 || call_is(&call, &out->first)) continue;
    out->differs = i;
    out->its = call;
  }
}

static const char *call_text(const ladei_mpi_call *call, char *text, size_t room) {
  static const char *const names[] = {"a barrier", "a gather", "a broadcast", "a scatter"};
  const char *name = call->kind < sizeof names / sizeof names[0] ? names[call->kind] : "an unknown call";
  if (call->kind == LADEI_MPI_BARRIER)
    (void)snprintf(text, room, "%s", name);
  else
    (void)snprintf(text, room, "%s of %llu bytes, root %u", name, (unsigned long long)call->bytes, call->root);
  return text;
}

static lade_status difference_error(const verdict *v) {
  char a[80], b[80];
  return ladei_error(LADE_ERR_PEER, 0, "rank %u makes another call than rank 0: %s, there %s%s", v->differs,
                     call_text(&v->its, a, sizeof a), call_text(&v->first, b, sizeof b),
                     v->its.parts != v->first.parts ? "; the parts differ" : "");
}

static lade_status shared_from_first(ladei_mpi_messages *m, void *memory, size_t bytes, ladei_mpi_wait *wait) {
  ladei_mpi_request request = 0;
  LADEI_TRY(ladei_mpi_result(m, "sharing records", m->plugin->broadcast(m->communicator, memory, bytes, 0, &request)));
  return request_finish_or_leave(m, &request, 0, wait);
}

/* Sends to each rank, not by a broadcast: a rank that waits for the verdict can cancel its receive. */
static lade_status verdict_share(ladei_mpi_messages *m, const verdict *v, ladei_mpi_wait *wait) {
  lade_status status = LADE_OK;
  for (uint32_t i = 1; i < m->size && status == LADE_OK; i++) {
    ladei_mpi_request request = 0;
    status = ladei_mpi_result(m, "sending a verdict",
                              m->plugin->send(m->communicator, v, sizeof *v, i, LADEI_MPI_TAG_VERDICT, &request));
    if (status == LADE_OK) status = request_finish_or_leave(m, &request, i, wait);
  }
  return status;
}

static lade_status verdict_hear(ladei_mpi_messages *m, verdict *v, ladei_mpi_wait *wait) {
  ladei_mpi_request request = 0;
  LADEI_TRY(ladei_mpi_result(m, "receiving a verdict",
                             m->plugin->receive(m->communicator, v, sizeof *v, 0, LADEI_MPI_TAG_VERDICT, &request)));
  lade_status status = request_finish(m, &request, 0, wait);
  ladei_mpi_settle(m, &request, true);
  return status;
}

static lade_status records_bring(ladei_mpi_messages *m, size_t room, ladei_mpi_wait *wait) {
  ladei_mpi_request request = 0;
  if (m->rank == 0) return records_collect(m, wait);
  LADEI_TRY(ladei_mpi_result(m, "sending a record",
                             m->plugin->send(m->communicator, m->own, room, 0, LADEI_MPI_TAG_RECORD, &request)));
  return request_finish_or_leave(m, &request, 0, wait);
}

lade_status ladei_mpi_exchange(ladei_mpi_messages *m, const ladei_mpi_call *call, const void *record, size_t bytes) {
  assert(bytes <= LADE_GROUP_RECORD_BYTES && call->root < m->size &&
         !m->abandoned); /* N2: a request that was abandoned ends the group */
  size_t room = record_room(bytes);
  ladei_mpi_call own = *call;
  ladei_mpi_wait wait;
  verdict *v = (verdict *)m->verdict; /* N2: not on the stack */
  _Static_assert(sizeof *v == sizeof m->verdict, "the room of a verdict");
  own.number = ++m->calls;
  memcpy(m->own, &own, sizeof own);
  if (bytes > 0) memcpy(m->own + sizeof own, record, bytes);
  ladei_mpi_wait_begin(m, &wait);
  LADEI_TRY(records_bring(m, room, &wait));
  memset(v, 0, sizeof *v);
  if (m->rank == 0) verdict_make(m, v);
  LADEI_TRY(m->rank == 0 ? verdict_share(m, v, &wait) : verdict_hear(m, v, &wait));
  m->latest_ns = v->latest_ns;
  if (v->differs != 0) {
    m->heard = true; /* N4: all know */
    return difference_error(v);
  }
  if (m->rank == 0) records_close_up(m, room);
  return bytes == 0 ? LADE_OK : shared_from_first(m, m->records, m->size * room, &wait);
}

/* --- opening, closing --------------------------------------------------------------------------------------------- */

static lade_status memory_alloc(ladei_mpi_messages *m) {
  size_t room = record_room(LADE_GROUP_RECORD_BYTES);
  m->records = calloc(m->size, room);
  m->own = calloc(1, room);
  m->requests = calloc(m->size, sizeof *m->requests);
  if (m->records != NULL && m->own != NULL && m->requests != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the records of %u ranks", m->size);
}

static lade_status communicator_open(ladei_mpi_messages *m, bool is_given, int32_t given) {
  ladei_mpi_request request = 0;
  uint64_t deadline_ns = ladei_clock_ns(CLOCK_MONOTONIC) + m->timeout_ns;
  ladei_backoff backoff = {0};
  LADEI_TRY(
      ladei_mpi_result(m, "a communicator", m->plugin->communicator_copy(is_given, given, &m->communicator, &request)));
  lade_status status;
  while ((status = ladei_mpi_test(m, &request)) == LADE_NOT_READY) {
    if (ladei_clock_ns(CLOCK_MONOTONIC) >= deadline_ns) {
      m->abandoned = true;
      return ladei_error(LADE_ERR_TIMEOUT, 0, "a rank of the communicator has not come within %.3g s",
                         (double)m->timeout_ns * 1e-9);
    }
    ladei_backoff_wait(&backoff);
  }
  LADEI_TRY(status);
  LADEI_TRY(ladei_mpi_result(m, "rank and size", m->plugin->rank(m->communicator, &m->rank, &m->size)));
  if (m->size <= LADE_GROUP_RANKS) return LADE_OK;
  return ladei_error(LADE_ERR_LIMIT, 0, "the communicator has %u ranks; expected %d at most", m->size,
                     LADE_GROUP_RANKS);
}

lade_status ladei_mpi_messages_open(ladei_mpi_messages *m, const ladei_mpi_plugin *plugin, bool is_given, int32_t given,
                                    uint64_t timeout_ns) {
  *m = (ladei_mpi_messages){.plugin = plugin, .timeout_ns = timeout_ns};
  LADEI_TRY(communicator_open(m, is_given, given));
  return memory_alloc(m);
}

void ladei_mpi_messages_close(ladei_mpi_messages *m) {
  if (m->abandoned) {
    m->plugin->leave_behind(&m->link);
    return; /* N2 */
  }
  assert(!m->abandoned); /* N2, N3 */
  bool clean = !m->heard && !atomic_load_explicit(&m->failing, memory_order_acquire);
  if (m->communicator != NULL) m->plugin->communicator_free(m->communicator, clean);
  free(m->records);
  free(m->own);
  free(m->requests);
}
