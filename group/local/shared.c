/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the ranks of a local group share.
 *
 *   | cell of rank 0 | cell of rank 1 | ... | slot 0 | slot 1 | ... |
 *
 *   A rank writes its own cell and, as root, the slots; others read. To wake a rank, others ring its bell, the only
 *   word of a cell that not only its owner writes.
 *
 * S1  The counters of a cell grow. Data that a counter announces (record, bytes of a slot, time) is written before it.
 * S2  A rank raises the counter of a call before it announces its next call. So a rank that is in a later call than
 *     this rank, with a counter that is still too low, made another call than this one. The signature of a record or
 *     piece shows the same.
 * S3  Each rank posts a failure once, with the text of the first one that it saw: so all ranks give the same reason.
 * S4  No wait is longer than its deadline, and no sleep within it longer than LOOK_NS: a peer that dies rings no bell.
 * S5  The memory cannot shrink (it is sealed), and its readers use nothing in it as an index, a size or an address.
 * Locks: none.
 */
#include "group/local/shared.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "group/frame.h"

enum {
  LOOK_NS = 20 * 1000 * 1000, /* the delay after which a process's death is seen */
  SPINS = 200,                /* some microseconds: the time in which a working peer answers */
};

size_t ladei_group_shared_slots_at(uint32_t size) { return (size_t)size * LADEI_GROUP_LOCAL_CELL; }

size_t ladei_group_shared_bytes(uint32_t size, uint32_t slots, uint64_t slot_bytes) {
  return ladei_group_shared_slots_at(size) + (size_t)slots * slot_bytes;
}

ladei_group_cell *ladei_group_shared_cell(const ladei_group_shared *shared, uint32_t rank) {
  assert(rank < shared->size && shared->base != NULL); /* S5: never a rank that a peer wrote */
  return (ladei_group_cell *)(void *)(shared->base + (size_t)rank * LADEI_GROUP_LOCAL_CELL);
}

/* --- mapping ------------------------------------------------------------------------------------------------------ */

lade_status ladei_group_shared_map(ladei_group_shared *shared, int fd) {
  struct stat stat;
  size_t bytes = ladei_group_shared_bytes(shared->size, shared->slots, shared->slot_bytes);
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &stat) != 0 || (uint64_t)stat.st_size != bytes)
    return ladei_error(LADE_ERR_PEER, 0,
                       "group \"%s\": the memory of rank 0 is not the one expected: %zu bytes, sealed", shared->name,
                       bytes);
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, errno, "group \"%s\": mmap of %zu shared bytes: %s", shared->name,
                       bytes, strerror(errno));
  (void)madvise(base, bytes, MADV_DONTFORK); /* a child does not use it; a failure does no harm */
  shared->base = base;
  shared->bytes = bytes;
  return LADE_OK;
}

/* --- telling others ----------------------------------------------------------------------------------------------- */

static void bell_ring(const ladei_group_shared *shared, uint32_t rank) {
  _Atomic(uint32_t) *bell = &ladei_group_shared_cell(shared, rank)->bell;
  atomic_fetch_add_explicit(bell, 1, memory_order_release);
  (void)syscall(SYS_futex, (void *)bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void bells_ring(const ladei_group_shared *shared) {
  for (uint32_t i = 0; i < shared->size; i++) bell_ring(shared, i);
}

void ladei_group_shared_begin(ladei_group_shared *shared, ladei_group_call call, uint32_t root, uint64_t bytes) {
  ladei_group_cell *own = ladei_group_shared_cell(shared, shared->rank);
  assert(atomic_load_explicit(&own->call_number, memory_order_relaxed) ==
         shared->call_number); /* this rank alone writes it */
  uint64_t number = ++shared->call_number;
  uint64_t kind = (uint64_t)root << 32 | (uint64_t)call;
  shared->call = call;
  shared->signature = ladei_group_parts_hash((const uint64_t[]){number, kind, bytes}, 3);
  atomic_store_explicit(&own->call_kind[number % 2], kind, memory_order_release);
  atomic_store_explicit(&own->call_bytes[number % 2], bytes, memory_order_release);
  atomic_store_explicit(&own->call_number, number, memory_order_release);
}

void ladei_group_shared_post(ladei_group_shared *shared, ladei_group_counter counter, uint64_t value, uint32_t whom) {
  _Atomic(uint64_t) *own = &ladei_group_shared_cell(shared, shared->rank)->counters[counter];
  assert(atomic_load_explicit(own, memory_order_relaxed) <= value);
  atomic_store_explicit(own, value, memory_order_release); /* S1 */
  if (whom == LADEI_GROUP_ALL)
    bells_ring(shared);
  else
    bell_ring(shared, whom);
}

void ladei_group_shared_fail(ladei_group_shared *shared, lade_status status, const char *text) {
  ladei_group_cell *own = ladei_group_shared_cell(shared, shared->rank);
  assert(ladei_status_is_error((int32_t)status));
  if (atomic_flag_test_and_set(&shared->posted)) return; /* S3 */
  own->failed_status = (int32_t)status;
  (void)snprintf(own->failed_text, sizeof own->failed_text, "%s", text);
  atomic_store_explicit(&own->state, LADEI_GROUP_FAILED, memory_order_release);
  bells_ring(shared);
}

void ladei_group_shared_leave(ladei_group_shared *shared) {
  if (shared->base != NULL) {
    ladei_group_cell *own = ladei_group_shared_cell(shared, shared->rank);
    if (!atomic_flag_test_and_set(&shared->posted)) {
      atomic_store_explicit(&own->state, LADEI_GROUP_LEFT, memory_order_release);
      bells_ring(shared);
    }
    (void)munmap(shared->base, shared->bytes);
  }
  shared->base = NULL;
  for (uint32_t i = 0; i < shared->size; i++) {
    if (shared->life[i] >= 0) (void)close(shared->life[i]);
    shared->life[i] = -1;
  }
}

/* --- failures of other ranks -------------------------------------------------------------------------------------- */

static const char *call_text(uint64_t kind) {
  static const char *const texts[] = {"no call", "broadcast", "scatter", "barrier", "gather"};
  uint32_t call = (uint32_t)kind;
  return call < sizeof texts / sizeof *texts ? texts[call] : "an unknown call";
}

/* Posts the failure that ends this rank's part, and returns it. */
static lade_status wait_fail(ladei_group_shared *shared, lade_status status, const char *text) {
  ladei_group_shared_fail(shared, status, text);
  return ladei_error(status, 0, "%s", text);
}

typedef struct failure {
  lade_status status; /* LADE_OK: none */
  char text[sizeof((lade_error *)0)->text];
} failure;

static const char *process_text(const ladei_group_shared *shared, uint32_t peer, char *buffer, size_t bytes) {
  buffer[0] = '\0';
  if (shared->pid[peer] > 0) (void)snprintf(buffer, bytes, " (process %d)", (int)shared->pid[peer]);
  return buffer;
}

static void failure_of_peer(const ladei_group_shared *shared, uint32_t peer, uint32_t state, failure *out) {
  const ladei_group_cell *cell = ladei_group_shared_cell(shared, peer);
  if (state == LADEI_GROUP_FAILED) {
    int32_t status = cell->failed_status;
    memcpy(out->text, cell->failed_text, sizeof out->text);
    out->text[sizeof out->text - 1] = '\0';
    ladei_text_tame(out->text);
    out->status = ladei_status_is_error(status) ? (lade_status)status : LADE_ERR_PEER;
    return;
  }
  char process[32];
  out->status = LADE_ERR_PEER;
  (void)snprintf(out->text, sizeof out->text, "group \"%s\": rank %u%s %s", shared->name, (unsigned)peer,
                 process_text(shared, peer, process, sizeof process),
                 state == LADEI_GROUP_LEFT ? "has left the group" : "wrote an unknown state");
}

/* Whether a wait for `waited` cannot succeed without `peer`, which is gone. A peer that came as far as this rank has
 * done its part, or other ranks needed it, whose failure this rank will see. */
static bool peer_is_missed(const ladei_group_shared *shared, uint32_t peer, uint32_t waited) {
  const ladei_group_cell *cell = ladei_group_shared_cell(shared, peer);
  return peer == waited || atomic_load_explicit(&cell->call_number, memory_order_acquire) < shared->call_number;
}

/* The posted failure of the lowest rank that has one; this rank's own comes from another thread's abort. A rank that
 * left because of a failure left after that was posted: the posted one is the reason. */
static void failures_look(const ladei_group_shared *shared, uint32_t waited, failure *out) {
  uint32_t left = shared->size, left_state = 0;
  out->status = LADE_OK;
  for (uint32_t i = 0; i < shared->size; i++) {
    uint32_t state = atomic_load_explicit(&ladei_group_shared_cell(shared, i)->state, memory_order_acquire);
    if (state == LADEI_GROUP_WORKS) continue;
    if (state == LADEI_GROUP_FAILED) {
      failure_of_peer(shared, i, state, out);
      return;
    }
    if (left == shared->size && peer_is_missed(shared, i, waited)) left = i, left_state = state;
  }
  if (left < shared->size) failure_of_peer(shared, left, left_state, out);
}

/* The lowest rank whose process has ended, if this wait needs it. */
static void deaths_look(const ladei_group_shared *shared, uint32_t waited, failure *out) {
  struct pollfd polls[LADEI_GROUP_LOCAL_RANKS];
  char process[32];
  for (uint32_t i = 0; i < shared->size; i++) polls[i] = (struct pollfd){.fd = shared->life[i], .events = POLLIN};
  if (poll(polls, shared->size, 0) <= 0) return;
  for (uint32_t i = 0; i < shared->size; i++) {
    if ((polls[i].revents & POLLIN) == 0 || !peer_is_missed(shared, i, waited)) continue;
    out->status = LADE_ERR_PEER;
    (void)snprintf(out->text, sizeof out->text, "group \"%s\": rank %u%s has died; rank %u was in call %llu, %s",
                   shared->name, (unsigned)i, process_text(shared, i, process, sizeof process), (unsigned)shared->rank,
                   (unsigned long long)shared->call_number, call_text(shared->call));
    return;
  }
}

/* Whether a peer whose counter is too low makes another call than this rank (S2). */
static bool call_differs(const ladei_group_shared *shared, uint32_t peer, ladei_group_counter counter, uint64_t value,
                         failure *out) {
  const ladei_group_cell *cell = ladei_group_shared_cell(shared, peer);
  const ladei_group_cell *own = ladei_group_shared_cell(shared, shared->rank);
  uint64_t number = atomic_load_explicit(&cell->call_number, memory_order_acquire);
  uint64_t mine = shared->call_number, place = mine % 2;
  uint64_t kind = atomic_load_explicit(&cell->call_kind[place], memory_order_acquire);
  uint64_t bytes = atomic_load_explicit(&cell->call_bytes[place], memory_order_acquire);
  uint64_t own_kind = atomic_load_explicit(&own->call_kind[place], memory_order_relaxed);
  uint64_t own_bytes = atomic_load_explicit(&own->call_bytes[place], memory_order_relaxed);
  bool same = kind == own_kind && bytes == own_bytes;
  assert(own_kind >> 32 < shared->size && (uint32_t)own_kind == (uint32_t)shared->call);
  if (number < mine || (number == mine && same)) return false;
  if (atomic_load_explicit(&cell->counters[counter], memory_order_acquire) >= value) return false;
  if (atomic_load_explicit(&cell->call_number, memory_order_acquire) != number) return false; /* checked again soon */
  out->status = LADE_ERR_PEER;
  if (number == mine) {
    (void)snprintf(
        out->text, sizeof out->text,
        "group \"%s\": ranks disagree about call %llu: %s of %llu, root %u, on rank %u; %s of %llu, root %u, on "
        "rank %u (sizes or their checksum)",
        shared->name, (unsigned long long)mine, call_text(own_kind), (unsigned long long)own_bytes,
        (unsigned)(own_kind >> 32), (unsigned)shared->rank, call_text(kind), (unsigned long long)bytes,
        (unsigned)(kind >> 32), (unsigned)peer);
  } else {
    (void)snprintf(
        out->text, sizeof out->text,
        "group \"%s\": ranks disagree about call %llu: rank %u is in %s, rank %u passed it with another call",
        shared->name, (unsigned long long)mine, (unsigned)shared->rank, call_text(own_kind), (unsigned)peer);
  }
  return true;
}

lade_status ladei_group_shared_same(ladei_group_shared *shared, uint32_t peer, const _Atomic(uint64_t) *signature) {
  const ladei_group_cell *cell = ladei_group_shared_cell(shared, peer);
  char text[sizeof((lade_error *)0)->text];
  if (atomic_load_explicit(signature, memory_order_relaxed) == shared->signature) return LADE_OK;
  uint64_t number = atomic_load_explicit(&cell->call_number, memory_order_acquire);
  uint64_t kind = atomic_load_explicit(&cell->call_kind[number % 2], memory_order_acquire);
  (void)snprintf(text, sizeof text,
                 "group \"%s\": ranks disagree about call %llu, which is %s on rank %u: rank %u, now in call %llu, %s, "
                 "made another "
                 "one, or with another size or root",
                 shared->name, (unsigned long long)shared->call_number, call_text(shared->call), (unsigned)shared->rank,
                 (unsigned)peer, (unsigned long long)number, call_text(kind));
  return wait_fail(shared, LADE_ERR_PEER, text);
}

static void lateness_tell(const ladei_group_shared *shared, uint32_t peer, failure *out) {
  const ladei_group_cell *cell = ladei_group_shared_cell(shared, peer);
  uint64_t number = atomic_load_explicit(&cell->call_number, memory_order_acquire);
  char process[32];
  out->status = LADE_ERR_TIMEOUT;
  (void)snprintf(out->text, sizeof out->text,
                 "group \"%s\": rank %u%s %s call %llu, %s, for %.3g s; the last call that it made is %llu",
                 shared->name, (unsigned)peer, process_text(shared, peer, process, sizeof process),
                 number < shared->call_number ? "did not come to" : "did not go on in",
                 (unsigned long long)shared->call_number, call_text(shared->call), (double)shared->timeout_ns / 1e9,
                 (unsigned long long)number);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

uint64_t ladei_group_shared_deadline(const ladei_group_shared *shared) {
  return ladei_clock_ns(CLOCK_MONOTONIC) + shared->timeout_ns;
}

/* Sleeps until the bell differs from `heard`, or for LOOK_NS. */
static void bell_await(const ladei_group_shared *shared, uint32_t heard, uint64_t left_ns) {
  const struct timespec most = {.tv_nsec = (long)(left_ns < LOOK_NS ? left_ns : LOOK_NS)};
  assert(most.tv_nsec <= LOOK_NS); /* S4 */
  _Atomic(uint32_t) *bell = &ladei_group_shared_cell(shared, shared->rank)->bell;
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(bell, memory_order_acquire) != heard) return;
    ladei_spin_pause();
  }
  (void)syscall(SYS_futex, (void *)bell, FUTEX_WAIT, heard, &most, NULL, 0);
}

lade_status ladei_group_shared_wait(ladei_group_shared *shared, uint32_t peer, ladei_group_counter counter,
                                    uint64_t value, uint64_t deadline_ns) {
  const _Atomic(uint32_t) *bell = &ladei_group_shared_cell(shared, shared->rank)->bell;
  const _Atomic(uint64_t) *reached = &ladei_group_shared_cell(shared, peer)->counters[counter];
  uint64_t looked_ns = 0;
  ladei_lock_assert_none_held();
  for (;;) {
    failure found = {.status = LADE_OK};
    uint32_t heard = atomic_load_explicit(bell, memory_order_acquire);
    uint64_t now_ns = ladei_clock_ns(CLOCK_MONOTONIC);
    /* Reads failures before the counter: a rank that raised the counter before it left has done its part. */
    failures_look(shared, peer, &found);
    if (found.status == LADE_OK && now_ns - looked_ns >= LOOK_NS && looked_ns != 0) deaths_look(shared, peer, &found);
    if (looked_ns == 0 || now_ns - looked_ns >= LOOK_NS) looked_ns = now_ns;
    if (atomic_load_explicit(reached, memory_order_acquire) >= value) return LADE_OK;
    if (found.status == LADE_OK) (void)call_differs(shared, peer, counter, value, &found);
    if (found.status == LADE_OK && now_ns >= deadline_ns) lateness_tell(shared, peer, &found);
    if (found.status != LADE_OK) return wait_fail(shared, found.status, found.text);
    bell_await(shared, heard, deadline_ns - now_ns); /* S4 */
  }
}
