/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous of a local group: rank 0 listens at a socket, the others connect and say which rank they are.
 *
 *   rank 0:  listen --hello of all--> answer to all --> gone
 *              '--a wrong hello, a rank that hangs up, the time limit--> the reason to all that have come
 *   others:  connect (again and again) --> hello --> the answer, or rank 0 hangs up, or the time limit
 *
 * V1  A process that connects has a second to say hello; meanwhile rank 0 hears others, and hangs up on a process that
 *     sends something else, or is of another user. While too many have said nothing yet, the next one waits: it may be
 *     a rank. A hello is heard, or cannot be sent: a rank that was stopped for longer than a second connects again.
 * V2  A hello that does not fit (size, options, a rank that came before) ends the group for all: it is an error of
 *     setup.
 * V3  All ranks that have come get the same reason.
 * V4  No descriptor is left: on success except those of `shared`, on failure without exception.
 * V5  If rank 0 itself lacks something it tells all ranks: it waits for them first.
 * V6  One rank 0 at a time takes a path, from the check of the existing file to listen(), and gives it up: under a lock
 *     on its folder. So a socket there that refuses connections is a dead process's, and rank 0 removes only its own.
 * Locks: the folder's (flock), if the file system has such locks. One thread.
 *
 * Note [Descriptors under way]
 *   The kernel counts the descriptors that are sent and not yet received per user, over all processes. An ordinary user
 *   may not exceed the sender's limit of open files (ETOOMANYREFS). With 33 ranks each answer has 34 descriptors,
 *   together more than the usual 1024. The count falls as the other ranks receive: so the sender tries again.
 */
#include "group/local/rendezvous.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_limit.h"
#include "group/frame.h"
#include "group/local/messages.h"

#define MS_NS UINT64_C(1000000)
enum {
  STRANGERS = 16,  /* connections that have not said hello yet */
  RETRY_MS = 5,    /* between attempts to connect, accept, send */
  HEAR_MS = 1000,  /* how much longer ranks other than 0 wait, for its reason */
  HELLO_MS = 1000, /* V1 */
};
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same on all processors */
#endif

/* For poll(): rounded up, so that a wait is never a spin. */
static int left_ms(uint64_t deadline_ns) {
  uint64_t now_ns = ladei_clock_ns(CLOCK_MONOTONIC);
  return now_ns >= deadline_ns ? 0 : (int)((deadline_ns - now_ns + MS_NS - 1) / MS_NS);
}

static lade_status system_error(const ladei_group_shared *shared, const char *call) {
  int error = errno;
  lade_status status = error == ENOMEM || error == ENOSPC ? LADE_ERR_OUT_OF_HOST_MEMORY : LADE_ERR_IO;
  return ladei_error(status, error, "group \"%s\": %s: %s", shared->name, call, strerror(error));
}

static void fd_close(int *fd) {
  if (*fd >= 0) (void)close(*fd);
  *fd = -1;
}

/* --- the place ---------------------------------------------------------------------------------------------------- */

typedef struct place {
  struct sockaddr_un address;
  socklen_t length;
  bool is_path;
} place;

/* A name of this user in the abstract namespace, or a path. */
static place place_of(const char *name) {
  place p = {.address = {.sun_family = AF_UNIX}, .is_path = name[0] == '/'};
  char *text = p.address.sun_path;
  size_t room = sizeof p.address.sun_path;
  int length = p.is_path ? snprintf(text, room, "%s", name)
                         : snprintf(text + 1, room - 1, "lade-group/%u/%s", (unsigned)geteuid(), name) + 1;
  p.length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length + (p.is_path ? 1 : 0));
  return p;
}

/* Whether the process at the other end is this user's; its id as seen from here. */
static bool peer_is_own(int socket, int32_t *out_process) {
  struct ucred who;
  socklen_t length = sizeof who;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || who.uid != geteuid()) return false;
  *out_process = who.pid;
  return true;
}

static void pause_before_retry(void) {
  const struct timespec pause = {.tv_nsec = RETRY_MS * (long)MS_NS};
  (void)nanosleep(&pause, NULL);
}

static int life_open(void) { return (int)syscall(SYS_pidfd_open, getpid(), 0); } /* close-on-exec by itself */

/* 0, or an errno. Note [Descriptors under way] */
static int message_send(int socket, const void *message, size_t bytes, const int *fds, size_t count,
                        uint64_t deadline_ns) {
  int error;
  while ((error = ladei_group_message_send(socket, message, bytes, fds, count)) == ETOOMANYREFS &&
         ladei_clock_ns(CLOCK_MONOTONIC) < deadline_ns)
    pause_before_retry();
  return error;
}

/* --- rank 0 ------------------------------------------------------------------------------------------------------- */

typedef struct stranger {
  int socket; /* -1: a free place */
  uint64_t until_ns;
} stranger;

typedef struct host {
  ladei_group_shared *shared;
  int32_t transport;
  place where;
  int listener, memory;
  bool bound;         /* the path is to be removed, if it is still ... */
  dev_t bound_device; /* ... this */
  ino_t bound_inode;
  int sockets[LADEI_GROUP_LOCAL_RANKS]; /* of the ranks that have come; -1 */
  uint32_t come;                        /* number of ranks that have come, this one included */
  int lack;                             /* errno of the last accept() that lacked a resource; 0: none did */
  stranger strangers[STRANGERS];
  ladei_group_answer answer;
} host;

/* V6. A descriptor for folder_unlock(); -1: the folder cannot be locked; -2: another process keeps it locked. */
static int folder_lock(const place *where, uint64_t deadline_ns) {
  char folder[sizeof where->address.sun_path];
  memcpy(folder, where->address.sun_path, sizeof folder);
  char *slash = strrchr(folder, '/');
  slash[slash == folder ? 1 : 0] = '\0';
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    bool later = errno == EWOULDBLOCK || errno == EINTR;
    if (!later || ladei_clock_ns(CLOCK_MONOTONIC) >= deadline_ns) {
      (void)close(fd);
      return later ? -2 : -1;
    }
    pause_before_retry();
  }
  return fd;
}

/* Unlocks explicitly, not by close() alone: a child of fork() has the descriptor, too. */
static void folder_unlock(int fd) {
  if (fd < 0) return;
  (void)flock(fd, LOCK_UN);
  (void)close(fd);
}

/* Whether no process listens at a path: a killed process left its socket. */
static bool place_is_stale(const place *where) {
  struct stat stat;
  if (lstat(where->address.sun_path, &stat) != 0 || !S_ISSOCK(stat.st_mode)) return false;
  int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  bool refused = connect(probe, (const struct sockaddr *)&where->address, where->length) != 0 && errno == ECONNREFUSED;
  (void)close(probe);
  return refused;
}

static lade_status host_bind(host *h) {
  const struct sockaddr *address = (const struct sockaddr *)&h->where.address;
  int bound = bind(h->listener, address, h->where.length);
  if (bound != 0 && errno == EADDRINUSE && h->where.is_path && place_is_stale(&h->where)) {
    (void)unlink(h->where.address.sun_path);
    bound = bind(h->listener, address, h->where.length);
  }
  if (bound != 0 && errno == EADDRINUSE) {
    return ladei_error(LADE_ERR_BUSY, EADDRINUSE, "group \"%s\": another rank 0 waits under this name",
                       h->shared->name);
  }
  if (bound != 0) return system_error(h->shared, "bind");
  struct stat stat;
  h->bound = h->where.is_path && lstat(h->where.address.sun_path, &stat) == 0;
  if (h->bound) {
    h->bound_device = stat.st_dev;
    h->bound_inode = stat.st_ino;
  }
  return listen(h->listener, LADEI_GROUP_LOCAL_RANKS) == 0 ? LADE_OK : system_error(h->shared, "listen");
}

static lade_status host_listen(host *h, uint64_t deadline_ns) {
  h->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (h->listener < 0) return system_error(h->shared, "socket");
  int folder = h->where.is_path ? folder_lock(&h->where, deadline_ns) : -1;
  if (folder == -2) {
    return ladei_error(LADE_ERR_BUSY, EWOULDBLOCK,
                       "group \"%s\": another process keeps the folder of this socket locked", h->shared->name);
  }
  lade_status status = host_bind(h);
  folder_unlock(folder);
  return status;
}

/* Goes on if the folder stays locked: then another rank 0 may replace the socket between the check and the removal. */
static void host_leave(const host *h) {
  if (!h->bound) return;
  struct stat stat;
  int folder = folder_lock(&h->where, ladei_clock_ns(CLOCK_MONOTONIC) + HEAR_MS * MS_NS);
  if (lstat(h->where.address.sun_path, &stat) == 0 && stat.st_dev == h->bound_device && stat.st_ino == h->bound_inode)
    (void)unlink(h->where.address.sun_path);
  folder_unlock(folder);
}

/* Piece by piece: some kernels undo the whole call when a signal comes, and a timer's signals come again and again. */
static int memory_fill(int memory, size_t bytes) {
  const size_t piece = 1 << 20;
  size_t at = 0;
  int error = 0;
  while (at < bytes && (error == 0 || error == EINTR)) {
    error = posix_fallocate(memory, (off_t)at, (off_t)(bytes - at < piece ? bytes - at : piece));
    if (error == 0) at += piece;
  }
  return error;
}

static lade_status host_memory(host *h) {
  const ladei_group_shared *shared = h->shared;
  size_t bytes = ladei_group_shared_bytes(shared->size, shared->slots, shared->slot_bytes);
  h->memory = memfd_create("lade-group", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (h->memory < 0) return system_error(shared, "memfd_create");
  if (!ladei_file_may_have(bytes) || ftruncate(h->memory, (off_t)bytes) != 0) return system_error(shared, "ftruncate");
  if (fcntl(h->memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error(shared, "seals");
  /* Now, when a lack of memory is an error: at the first write it would be a signal. */
  errno = memory_fill(h->memory, bytes);
  return errno == 0 ? LADE_OK : system_error(shared, "posix_fallocate");
}

/* Sends the answer to all ranks that have come; the answer of a failure has no descriptors, and does not wait. */
static lade_status host_answer(host *h, uint64_t deadline_ns) {
  int fds[LADEI_GROUP_FDS];
  size_t count = 0;
  bool good = h->answer.status == LADE_OK;
  memcpy(h->answer.magic, LADEI_GROUP_MAGIC, sizeof h->answer.magic);
  if (good) fds[count++] = h->memory;
  for (uint32_t i = 0; good && h->answer.lives && i < h->shared->size; i++) fds[count++] = h->shared->life[i];
  for (uint32_t i = 1; i < h->shared->size; i++) {
    if (h->sockets[i] < 0) continue;
    int error = message_send(h->sockets[i], &h->answer, sizeof h->answer, fds, count, deadline_ns);
    if (error == ETOOMANYREFS && good) {
      errno = error;
      return system_error(h->shared, "sendmsg to the other ranks");
    }
    if (error != 0 && good) {
      return ladei_error(LADE_ERR_PEER, error, "group \"%s\": rank %u (process %d) ended before the group was complete",
                         h->shared->name, (unsigned)i, (int)h->shared->pid[i]);
    }
  }
  return LADE_OK;
}

/* The connection stays, and poll() would report it at once, so rank 0 pauses: it may get the resource later, or names
 * it at the end (V5). */
static void accept_failed(host *h) {
  if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) return;
  h->lack = errno;
  pause_before_retry();
}

/* V1 */
static void stranger_accept(host *h) {
  int socket = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  int32_t process;
  if (socket < 0) {
    accept_failed(h);
    return;
  }
  if (peer_is_own(socket, &process)) {
    for (int i = 0; i < STRANGERS; i++) {
      if (h->strangers[i].socket >= 0) continue;
      h->strangers[i] = (stranger){socket, ladei_clock_ns(CLOCK_MONOTONIC) + HELLO_MS * MS_NS};
      return;
    }
  }
  (void)close(socket);
}

/* V2. Takes the socket, also of a rank that it refuses: it sends that one the reason. */
static lade_status rank_admit(host *h, int socket, const ladei_group_hello *hello, int life) {
  ladei_group_shared *shared = h->shared;
  int32_t process = 0;
  (void)peer_is_own(socket, &process);
  lade_status status = ladei_group_hello_check(hello, shared, h->transport, process);
  if (status == LADE_OK && h->sockets[hello->rank] >= 0) {
    status = ladei_error(LADE_ERR_PEER, 0, "group \"%s\": rank %u came twice: processes %d and %d", shared->name,
                         (unsigned)hello->rank, (int)shared->pid[hello->rank], (int)process);
  }
  if (status != LADE_OK) {
    ladei_group_answer why = {.status = (int32_t)status};
    memcpy(why.magic, LADEI_GROUP_MAGIC, sizeof why.magic);
    (void)snprintf(why.text, sizeof why.text, "%s", lade_last_error()->text);
    (void)ladei_group_message_send(socket, &why, sizeof why, NULL, 0);
    (void)close(socket);
    if (life >= 0) (void)close(life);
    return status;
  }
  assert(hello->rank > 0 && hello->rank < shared->size && h->come < shared->size); /* V2, M2 */
  h->sockets[hello->rank] = socket;
  shared->pid[hello->rank] = process;
  shared->life[hello->rank] = life;
  h->come++;
  return LADE_OK;
}

/* Reads a message from a stranger. */
static lade_status stranger_hear(host *h, stranger *s) {
  ladei_group_hello hello;
  int life = -1;
  size_t count = 0;
  int error = ladei_group_message_receive(s->socket, &hello, sizeof hello, &life, 1, &count);
  if (error == EAGAIN) return LADE_OK;
  int socket = s->socket;
  s->socket = -1;
  if (error == 0 && memcmp(hello.magic, LADEI_GROUP_MAGIC, sizeof hello.magic) == 0)
    return rank_admit(h, socket, &hello, life);
  fd_close(&life);
  (void)close(socket);
  return LADE_OK;
}

/* A rank that has come sends nothing more: its socket is readable only at its end. */
static lade_status rank_hear(const host *h, uint32_t rank) {
  return ladei_error(LADE_ERR_PEER, 0, "group \"%s\": rank %u (process %d) ended before the group was complete",
                     h->shared->name, (unsigned)rank, (int)h->shared->pid[rank]);
}

static lade_status missing_error(const host *h) {
  char ranks[128] = "";
  size_t length = 0;
  for (uint32_t i = 1; i < h->shared->size && length < sizeof ranks - 16; i++) {
    if (h->sockets[i] >= 0) continue;
    length += (size_t)snprintf(ranks + length, sizeof ranks - length, "%s%u", length == 0 ? "" : ", ", (unsigned)i);
  }
  if (length >= sizeof ranks - 16) (void)snprintf(ranks + length, sizeof ranks - length, ", ...");
  return ladei_error(LADE_ERR_TIMEOUT, h->lack, "group \"%s\": %u of %u ranks came within %.3g s; missing: rank %s%s%s",
                     h->shared->name, (unsigned)h->come, (unsigned)h->shared->size, (double)h->shared->timeout_ns / 1e9,
                     ranks, h->lack != 0 ? "; accept: " : "", h->lack != 0 ? strerror(h->lack) : "");
}

/* Polled: the listener, then the strangers, then the ranks; the kernel skips places without a socket. */
enum { POLLS = 1 + STRANGERS + LADEI_GROUP_LOCAL_RANKS };

/* V1: the kernel refuses messages from now on, and gives the ones that came before. */
static lade_status stranger_expire(host *h, stranger *s) {
  (void)shutdown(s->socket, SHUT_RD);
  lade_status status = stranger_hear(h, s);
  fd_close(&s->socket);
  return status;
}

/* `until_ns`: lowered to the time at which the next stranger expires. */
static lade_status strangers_expire(host *h, uint64_t *until_ns) {
  uint64_t now_ns = ladei_clock_ns(CLOCK_MONOTONIC);
  for (int i = 0; i < STRANGERS; i++) {
    stranger *s = &h->strangers[i];
    if (s->socket < 0) continue;
    if (now_ns >= s->until_ns)
      LADEI_TRY(stranger_expire(h, s));
    else if (s->until_ns < *until_ns)
      *until_ns = s->until_ns;
  }
  return LADE_OK;
}

static bool strangers_have_room(const host *h) {
  int i = 0;
  while (i < STRANGERS && h->strangers[i].socket >= 0) i++;
  return i < STRANGERS;
}

static lade_status host_round(host *h, uint64_t deadline_ns) {
  struct pollfd polls[POLLS];
  uint64_t until_ns = deadline_ns;
  LADEI_TRY(strangers_expire(h, &until_ns));
  if (h->come == h->shared->size) return LADE_OK; /* the last rank's hello had come */
  polls[0] = (struct pollfd){.fd = strangers_have_room(h) ? h->listener : -1, .events = POLLIN};
  for (int i = 0; i < STRANGERS; i++) polls[1 + i] = (struct pollfd){.fd = h->strangers[i].socket, .events = POLLIN};
  for (uint32_t i = 0; i < LADEI_GROUP_LOCAL_RANKS; i++)
    polls[1 + STRANGERS + i] = (struct pollfd){.fd = h->sockets[i], .events = POLLIN};
  int ready = poll(polls, POLLS, left_ms(until_ns));
  if (ready < 0 && errno != EINTR) return system_error(h->shared, "poll");
  if (ready <= 0) return LADE_OK;
  for (uint32_t i = 0; i < LADEI_GROUP_LOCAL_RANKS; i++)
    if (polls[1 + STRANGERS + i].revents != 0) return rank_hear(h, i);
  for (int i = 0; i < STRANGERS; i++)
    if (polls[1 + i].revents != 0) LADEI_TRY(stranger_hear(h, &h->strangers[i]));
  if (polls[0].revents != 0) stranger_accept(h);
  return LADE_OK;
}

static lade_status ranks_await(host *h, uint64_t deadline_ns) {
  if (h->shared->size > 1) LADEI_TRY(host_listen(h, deadline_ns));
  while (h->come < h->shared->size) {
    if (ladei_clock_ns(CLOCK_MONOTONIC) >= deadline_ns) return missing_error(h);
    LADEI_TRY(host_round(h, deadline_ns));
  }
  return LADE_OK;
}

static lade_status host_meet(host *h) {
  uint64_t deadline_ns = ladei_group_shared_deadline(h->shared);
  lade_error why;
  lade_status status = host_memory(h);
  ladei_error_save(&why);
  lade_status met = ranks_await(h, deadline_ns);
  if (status != LADE_OK) ladei_error_restore(&why); /* V5 */
  LADEI_TRY(status != LADE_OK ? status : met);
  h->shared->life[0] = life_open();
  h->shared->pid[0] = getpid();
  h->answer.lives = 1;
  for (uint32_t i = 0; i < h->shared->size; i++) {
    if (h->shared->life[i] < 0) h->answer.lives = 0;
    h->answer.pid[i] = h->shared->pid[i];
  }
  assert(h->come == h->shared->size);
  LADEI_TRY(ladei_group_shared_map(h->shared, h->memory));
  return host_answer(h, deadline_ns);
}

static lade_status rendezvous_host(ladei_group_shared *shared, int32_t transport) {
  host h = {.shared = shared, .transport = transport, .where = place_of(shared->name), .listener = -1, .memory = -1};
  h.come = 1;
  for (int i = 0; i < LADEI_GROUP_LOCAL_RANKS; i++) h.sockets[i] = -1;
  for (int i = 0; i < STRANGERS; i++) h.strangers[i].socket = -1;
  lade_status status = host_meet(&h);
  if (status != LADE_OK) {
    h.answer.status = (int32_t)status;
    (void)snprintf(h.answer.text, sizeof h.answer.text, "%s", lade_last_error()->text);
    (void)host_answer(&h, 0); /* V3; without descriptors it does not fail */
  }
  host_leave(&h);
  fd_close(&h.listener); /* V4 */
  fd_close(&h.memory);
  for (int i = 0; i < LADEI_GROUP_LOCAL_RANKS; i++) fd_close(&h.sockets[i]);
  for (int i = 0; i < STRANGERS; i++) fd_close(&h.strangers[i].socket);
  return status;
}

/* --- the others --------------------------------------------------------------------------------------------------- */

static lade_status guest_connect(const ladei_group_shared *shared, int socket, uint64_t deadline_ns) {
  place where = place_of(shared->name);
  int32_t process;
  while (connect(socket, (const struct sockaddr *)&where.address, where.length) != 0) {
    bool later = errno == ECONNREFUSED || errno == ENOENT || errno == EAGAIN || errno == EINTR;
    if (!later) return system_error(shared, "connect");
    if (ladei_clock_ns(CLOCK_MONOTONIC) >= deadline_ns) {
      return ladei_error(LADE_ERR_TIMEOUT, 0, "group \"%s\": rank 0 did not come within %.3g s", shared->name,
                         (double)shared->timeout_ns / 1e9);
    }
    pause_before_retry();
  }
  if (peer_is_own(socket, &process)) return LADE_OK;
  return ladei_error(LADE_ERR_PEER, 0, "group \"%s\": another user waits under this name", shared->name);
}

/* 0, or an errno. */
static int guest_hello(const ladei_group_shared *shared, int32_t transport, int socket, uint64_t deadline_ns) {
  ladei_group_hello hello = {.rank = shared->rank,
                             .size = shared->size,
                             .slots = shared->slots,
                             .transport = transport,
                             .slot_bytes = shared->slot_bytes};
  memcpy(hello.magic, LADEI_GROUP_MAGIC, sizeof hello.magic);
  int life = life_open();
  int error = message_send(socket, &hello, sizeof hello, &life, life >= 0 ? 1 : 0, deadline_ns);
  fd_close(&life);
  return error;
}

/* Connects and says hello, again if rank 0 has hung up before (V1). */
static lade_status guest_come(const ladei_group_shared *shared, int32_t transport, int *guest, uint64_t deadline_ns) {
  int error;
  do {
    fd_close(guest);
    *guest = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* connect() never waits */
    if (*guest < 0) return system_error(shared, "socket");
    LADEI_TRY(guest_connect(shared, *guest, deadline_ns));
    error = guest_hello(shared, transport, *guest, deadline_ns);
  } while (error == EPIPE && ladei_clock_ns(CLOCK_MONOTONIC) < deadline_ns);
  errno = error;
  return error == 0 ? LADE_OK : system_error(shared, "sendmsg to rank 0");
}

static lade_status guest_hear(const ladei_group_shared *shared, int socket, uint64_t deadline_ns,
                              ladei_group_answer *answer, int *fds, size_t *out_count) {
  struct pollfd poll_socket = {.fd = socket, .events = POLLIN};
  int ready;
  do ready = poll(&poll_socket, 1, left_ms(deadline_ns + HEAR_MS * MS_NS));
  while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return ladei_error(LADE_ERR_TIMEOUT, 0, "group \"%s\": rank 0 waits for other ranks for longer than %.3g s",
                       shared->name, (double)shared->timeout_ns / 1e9);
  }
  int error = ladei_group_message_receive(socket, answer, sizeof *answer, fds, LADEI_GROUP_FDS, out_count);
  if (error == 0) return LADE_OK;
  return ladei_error(LADE_ERR_PEER, error, "group \"%s\": rank 0 ended before the group was complete (%s)",
                     shared->name, strerror(error));
}

/* Takes the descriptors of a good answer: the memory, and the ranks' pidfds. */
static lade_status guest_take(ladei_group_shared *shared, const ladei_group_answer *answer, int *fds) {
  assert(shared->rank > 0 && answer->status == LADE_OK);
  LADEI_TRY(ladei_group_shared_map(shared, fds[0]));
  for (uint32_t i = 0; i < shared->size; i++) {
    shared->pid[i] = answer->pid[i];
    if (answer->lives == 0) continue;
    shared->life[i] = fds[1 + i];
    fds[1 + i] = -1;
  }
  return LADE_OK;
}

static lade_status rendezvous_guest(ladei_group_shared *shared, int32_t transport) {
  ladei_group_answer answer;
  int fds[LADEI_GROUP_FDS];
  size_t count = 0;
  uint64_t deadline_ns = ladei_group_shared_deadline(shared);
  int guest = -1;
  lade_status status = guest_come(shared, transport, &guest, deadline_ns);
  if (status == LADE_OK) status = guest_hear(shared, guest, deadline_ns, &answer, fds, &count);
  if (status == LADE_OK) status = ladei_group_answer_check(&answer, count, shared);
  if (status == LADE_OK) status = guest_take(shared, &answer, fds);
  for (size_t i = 0; i < count; i++) fd_close(&fds[i]);
  fd_close(&guest);
  return status;
}

lade_status ladei_group_rendezvous(ladei_group_shared *shared, int32_t transport) {
  for (int i = 0; i < LADEI_GROUP_LOCAL_RANKS; i++) shared->life[i] = -1;
  lade_status status = shared->rank == 0 ? rendezvous_host(shared, transport) : rendezvous_guest(shared, transport);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    if (shared->base != NULL)
      ladei_group_shared_fail(shared, first.status, first.text); /* others have mapped it, too */
    ladei_group_shared_leave(shared);
    ladei_error_restore(&first);
  }
  return status;
}
