/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control: the publisher's side. One thread accepts, reads requests, has each done in turn, and replies.
 *
 *   listener --accept--> connection --request--> job --(manual: ladei_control_serve)--> reply, close
 *                            |
 *                            '-- nothing came for REQUEST_MS, or another one needs its place: close
 *
 * CT1 Only a peer of the publisher's user, or root, is heard. The kernel tells the user (SO_PEERCRED).
 * CT2 A request is one packet, checked whole before anything is done. A connection has one request.
 * CT3 The thread never waits for a client: sockets do not block, and a snapshot goes into a regular file alone, which
 *     takes bytes or fails as its file system does. No behaviour of a client holds up the publisher or other clients;
 *     only a file system that hangs does, which the same user chose.
 * CT4 The library opens no path that a client names. A descriptor that came is closed in every case; only the thread
 *     writes to it, with signals blocked: a file that has grown too large or has no reader is an error.
 * CT5 After a fork the child has no thread and answers no peer. Its copies of the descriptors are closed when it
 *     destroys its publisher, or execs.
 * CT6 A job belongs to the thread, except while it is RUNNING, when it belongs to the caller of ladei_control_serve().
 * Locks: control->lock (a leaf) guards `job` and the state of its target; no call is made under it.
 *
 * Note [Stacks that clients ask for]. Threads that allocate capture them, and some may do so while the publisher is
 * destroyed. So these sets are the process's, at most one for each number of frames, and stay.
 */
#include "inspect/live/control.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/thread.h"
#include "inspect/part.h"
#include "lade/stacks.h"

enum {
  MOST_CONNECTIONS = 64,
  BACKLOG = 128,
  REQUEST_MS = 5000,        /* from the connection to its request */
  SHORT_OF_FILES_MS = 100,  /* until a connection is accepted again after the process had no descriptor for one */
  DEFAULT_BYTES = 64 << 20, /* of a history without a size */
  MOST_DESCRIPTORS = 16,    /* that are looked at; the kernel closes further ones */
  STACK_SETS = 65,
};

typedef enum job_state { JOB_WAITING, JOB_RUNNING, JOB_DONE } job_state;

typedef struct control_job {
  ladei_control_request request;
  job_state state;
  lade_snapshot *snapshot; /* of LADEI_CONTROL_SNAPSHOT */
  uint32_t parts;          /* of LADEI_CONTROL_HISTORY */
  lade_status status;
  lade_error error; /* where it failed */
} control_job;

typedef struct control_connection {
  int fd; /* -1: a free place */
  uint64_t deadline_ms;
} control_connection;

struct ladei_control {
  const lade_part *parts;
  size_t part_count;
  bool manual;
  int listener;
  int stop_fd;
  char name[LADEI_PUBLISHED_CONTROL_BYTES];
  pthread_t thread;
  bool has_thread;
  _Atomic(bool) stop;
  uint64_t accept_after_ms; /* the thread's, as are connections */
  control_connection connections[MOST_CONNECTIONS];
  ladei_lock lock;
  ladei_condition changed; /* of `job`, its state, or `stop` */
  control_job *job;        /* NULL, or one that WAITS or is RUNNING */
};

static uint64_t now_ms(void) { return ladei_clock_ns(CLOCK_MONOTONIC) / 1000000; }

/* --- what is done ------------------------------------------------------------------------------------------------- */

/* Note [Stacks that clients ask for] */
static lade_status stacks_find(uint32_t max_frames, lade_stacks **out) {
  static _Atomic(lade_stacks *) sets[STACK_SETS];
  assert(max_frames < STACK_SETS); /* request_check() */
  *out = atomic_load_explicit(&sets[max_frames], memory_order_acquire);
  if (*out != NULL) return LADE_OK;
  lade_stacks_options options;
  lade_stacks_options_init(&options);
  options.max_frames = max_frames;
  lade_stacks *made, *other = NULL;
  LADEI_TRY(lade_stacks_create(&options, &made));
  if (atomic_compare_exchange_strong_explicit(&sets[max_frames], &other, made, memory_order_acq_rel,
                                              memory_order_acquire)) {
    *out = made;
    return LADE_OK;
  }
  *out = other;
  return lade_stacks_destroy(made);
}

static lade_status history_options_make(const ladei_control_request *request, lade_history_options *out) {
  lade_history_options_init(out);
  out->enabled = request->enabled;
  if (request->enabled == 0) return LADE_OK;
  out->level = request->level;
  out->max_entries = request->max_entries;
  out->max_bytes = request->max_bytes == 0 && request->max_entries == 0 ? DEFAULT_BYTES : request->max_bytes;
  out->skip_actions = request->skip_actions;
  if (request->level == LADE_CONTEXT_NEVER) return LADE_OK;
  lade_stacks *stacks;
  LADEI_TRY(stacks_find(request->max_frames, &stacks));
  lade_stacks_use(stacks, out);
  return LADE_OK;
}

/* A part's history before: `options` if it was `enabled`, otherwise off. */
typedef struct history_before {
  lade_history_options options;
  bool changed;
} history_before;

static void histories_restore(const ladei_control *control, const history_before *before, size_t count) {
  lade_error saved;
  ladei_error_save(&saved);
  for (size_t i = 0; i < count; i++)
    if (before[i].changed)
      (void)ladei_inspect_part_ops_of(control->parts[i].kind)
          ->history_set(control->parts[i].object, &before[i].options);
  ladei_error_restore(&saved);
}

/* Of one part. A part that has no history is left out. */
static lade_status history_set(const lade_part *part, const lade_history_options *options, history_before *before) {
  const ladei_inspect_part_ops *ops = ladei_inspect_part_ops_of(part->kind);
  if (ops->history_set == NULL) return LADE_OK;
  const lade_history_options *old = ops->history_options(part->object);
  lade_history_options_init(&before->options);
  if (old != NULL) before->options = *old;
  lade_status status = ops->history_set(part->object, options);
  before->changed = status == LADE_OK;
  return status == LADE_ERR_UNSUPPORTED ? LADE_OK : status;
}

/* All of them, or none. */
static lade_status histories_set(const ladei_control *control, control_job *job) {
  lade_history_options options;
  LADEI_TRY(history_options_make(&job->request, &options));
  history_before *before = calloc(control->part_count + 1, sizeof *before);
  if (before == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "control: no memory for %zu parts", control->part_count);
  lade_status status = LADE_OK;
  uint32_t changed = 0;
  for (size_t i = 0; i < control->part_count && status == LADE_OK; i++) {
    status = history_set(&control->parts[i], &options, &before[i]);
    changed += before[i].changed;
    if (status != LADE_OK) histories_restore(control, before, i);
  }
  free(before);
  LADEI_TRY(status);
  job->parts = changed;
  if (changed > 0) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "control: no part has a history");
}

static lade_status snapshot_take(const ladei_control *control, control_job *job) {
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = job->request.flags;
  options.device = job->request.device;
  options.pool = (lade_device_pool_id){job->request.pool_first, job->request.pool_second};
  return lade_snapshot_take(control->parts, control->part_count, &options, &job->snapshot);
}

static void job_do(const ladei_control *control, control_job *job) {
  job->status =
      job->request.command == LADEI_CONTROL_SNAPSHOT ? snapshot_take(control, job) : histories_set(control, job);
  if (job->status != LADE_OK) ladei_error_save(&job->error);
}

void ladei_control_serve(ladei_control *control) {
  ladei_lock_acquire(&control->lock);
  control_job *job = control->job != NULL && control->job->state == JOB_WAITING ? control->job : NULL;
  if (job != NULL) job->state = JOB_RUNNING;
  ladei_lock_release(&control->lock);
  if (job == NULL) return;
  job_do(control, job);
  ladei_lock_acquire(&control->lock);
  assert(job->state == JOB_RUNNING && control->job == job); /* CT6 */
  job->state = JOB_DONE;
  ladei_condition_broadcast(&control->changed);
  ladei_lock_release(&control->lock);
}

/* CT6: until it is served, or is no longer waited for. */
static lade_status job_hand_over(ladei_control *control, control_job *job) {
  uint64_t deadline_ms = now_ms() + job->request.wait_ms;
  ladei_lock_acquire(&control->lock);
  assert(control->job == NULL && job->state == JOB_WAITING); /* one after the other */
  control->job = job;
  while (job->state != JOB_DONE) {
    uint64_t now = now_ms();
    bool over = atomic_load(&control->stop) || now >= deadline_ms;
    if (job->state == JOB_WAITING && over) break;
    uint64_t pause_ms = over ? 1000 : deadline_ms - now;
    (void)ladei_condition_wait_for(&control->changed, &control->lock, pause_ms * 1000000);
  }
  assert(job->state != JOB_RUNNING); /* CT6: it is the thread's again */
  control->job = NULL;
  bool done = job->state == JOB_DONE;
  ladei_lock_release(&control->lock);
  if (done) return LADE_OK;
  if (atomic_load(&control->stop))
    return ladei_error(LADE_ERR_CANCELLED, 0, "control: the publisher is being destroyed");
  return ladei_error(LADE_ERR_TIMEOUT, 0, "control: the program did not call lade_publish_update() in %u ms",
                     job->request.wait_ms);
}

static lade_status job_run(ladei_control *control, control_job *job) {
  if (control->manual) LADEI_TRY(job_hand_over(control, job));
  if (!control->manual) job_do(control, job);
  if (job->status != LADE_OK) ladei_error_restore(&job->error);
  return job->status;
}

/* --- the client's descriptor -------------------------------------------------------------------------------------- */

typedef struct client_file {
  const ladei_control *control;
  int fd;
  uint64_t written;
} client_file;

/* CT3 */
static lade_status descriptor_check(int fd) {
  struct stat stat;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &stat) != 0)
    return ladei_error(LADE_ERR_IO, errno, "control: the descriptor cannot be looked at: %s", strerror(errno));
  if (!S_ISREG(stat.st_mode))
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                       "control: the descriptor is a file of type %o; expected a regular one (%o), such as a memfd",
                       stat.st_mode & S_IFMT, S_IFREG);
  if ((flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_RDONLY)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "control: the descriptor is not open for writing");
  return LADE_OK;
}

/* A lade_writer. */
static lade_status client_file_write(void *user, const void *data, size_t bytes) {
  client_file *file = user;
  const char *at = data;
  while (bytes > 0) {
    if (atomic_load_explicit(&file->control->stop, memory_order_relaxed))
      return ladei_error(LADE_ERR_CANCELLED, 0, "control: the publisher is being destroyed");
    ssize_t count = write(file->fd, at, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      int code = errno;
      return ladei_error(LADE_ERR_IO, code, "control: cannot write to the descriptor: %s", strerror(code));
    }
    at += count;
    bytes -= (size_t)count;
    file->written += (uint64_t)count;
  }
  return LADE_OK;
}

/* --- one request -------------------------------------------------------------------------------------------------- */

/* A packet with its descriptors. */
typedef struct control_packet {
  char data[LADEI_CONTROL_MOST_BYTES];
  size_t bytes;
  int fds[MOST_DESCRIPTORS];
  size_t fd_count;
  bool cut; /* the packet or its descriptors were more than there is room for */
} control_packet;

static void packet_close(control_packet *packet) {
  for (size_t i = 0; i < packet->fd_count; i++) close(packet->fds[i]);
  packet->fd_count = 0;
}

static void descriptors_collect(struct msghdr *message, control_packet *packet) {
  for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL; head = CMSG_NXTHDR(message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count && packet->fd_count < MOST_DESCRIPTORS; i++)
      memcpy(&packet->fds[packet->fd_count++], CMSG_DATA(head) + i * sizeof(int), sizeof(int));
  }
}

/* False: nothing came, or the other side has gone (`*out_gone`). */
static bool packet_receive(int fd, control_packet *packet, bool *out_gone) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
  } control;
  struct iovec iov = {packet->data, sizeof packet->data};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t bytes;
  packet->fd_count = 0;
  do bytes = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (bytes < 0 && errno == EINTR);
  *out_gone = bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  if (bytes < 0) return false;
  descriptors_collect(&message, packet);
  if (bytes == 0) packet_close(packet);
  packet->bytes = (size_t)bytes;
  packet->cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return bytes > 0;
}

/* Checks that the packet came whole, and that its descriptors fit its command. */
static lade_status packet_check(const control_packet *packet, ladei_control_request *out) {
  if (packet->cut)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                       "control: more than %d bytes or %d descriptors came, or the process has no room for descriptors",
                       LADEI_CONTROL_MOST_BYTES, MOST_DESCRIPTORS);
  LADEI_TRY(ladei_control_request_read(packet->data, packet->bytes, out));
  size_t wanted = out->command == LADEI_CONTROL_SNAPSHOT ? 1 : 0;
  if (packet->fd_count != wanted)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "control: %zu descriptors came; expected %zu", packet->fd_count,
                       wanted);
  return wanted == 1 ? descriptor_check(packet->fds[0]) : LADE_OK;
}

/* The client has closed its side: no reply would be read. */
static bool peer_has_gone(int fd) {
  struct pollfd at = {.fd = fd};
  return poll(&at, 1, 0) > 0 && (at.revents & (POLLHUP | POLLERR)) != 0;
}

static lade_status request_do(ladei_control *control, const control_packet *packet, ladei_control_reply *reply) {
  control_job job = {.state = JOB_WAITING};
  LADEI_TRY(packet_check(packet, &job.request));
  lade_status status = job_run(control, &job);
  reply->parts = job.parts;
  if (status == LADE_OK && job.snapshot != NULL) {
    client_file file = {control, packet->fds[0], 0};
    status = lade_snapshot_write(job.snapshot, LADE_SNAPSHOT_JSON, NULL, client_file_write, &file);
    reply->written = file.written;
  }
  lade_snapshot_destroy(job.snapshot);
  return status;
}

static void reply_send(int fd, ladei_control_reply *reply, lade_status status) {
  reply->status = (int32_t)status;
  if (status != LADE_OK) {
    const lade_error *error = lade_last_error();
    reply->native_code = error->native_code;
    snprintf(reply->text, sizeof reply->text, "%s", error->text);
  }
  (void)!send(fd, reply, sizeof *reply, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void connection_close(control_connection *connection) {
  if (connection->fd >= 0) close(connection->fd);
  connection->fd = -1;
}

static void connection_serve(ladei_control *control, control_connection *connection) {
  control_packet packet;
  ladei_control_reply reply;
  bool gone;
  if (!packet_receive(connection->fd, &packet, &gone)) {
    if (gone) connection_close(connection);
    return;
  }
  ladei_control_reply_init(&reply);
  bool heard = !peer_has_gone(connection->fd);
  lade_status status = heard ? request_do(control, &packet, &reply) : LADE_OK;
  packet_close(&packet);
  assert(packet.fd_count == 0); /* CT4 */
  if (heard) reply_send(connection->fd, &reply, status);
  connection_close(connection);
}

/* --- connections -------------------------------------------------------------------------------------------------- */

/* A free place; NULL: there is none. */
static control_connection *place_find(ladei_control *control) {
  for (size_t i = 0; i < MOST_CONNECTIONS; i++)
    if (control->connections[i].fd < 0) return &control->connections[i];
  return NULL;
}

/* Frees the place of the connection that has been silent longest. */
static void place_make(ladei_control *control) {
  control_connection *oldest = &control->connections[0];
  for (size_t i = 1; i < MOST_CONNECTIONS; i++)
    if (control->connections[i].deadline_ms < oldest->deadline_ms) oldest = &control->connections[i];
  connection_close(oldest);
}

/* CT1: the user of this moment, since a program may drop its rights after it published. */
static bool peer_check(int fd) {
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || bytes != sizeof peer) return false;
  return ladei_control_peer_may(peer.uid, geteuid());
}

static void peer_refuse(int fd) {
  ladei_control_reply reply;
  ladei_control_reply_init(&reply);
  reply_send(fd, &reply,
             ladei_error(LADE_ERR_IO, EACCES, "control: only the same user and root may control a process"));
  close(fd);
}

/* One connection; false: there is none, or no place or descriptor for it. */
static bool connection_accept(ladei_control *control) {
  ladei_lock_assert_none_held();
  control_connection *place = place_find(control);
  if (place == NULL) return false;
  int fd = accept4(control->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    bool short_of_files = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (short_of_files) control->accept_after_ms = now_ms() + SHORT_OF_FILES_MS;
    return false;
  }
  if (peer_check(fd))
    *place = (control_connection){fd, now_ms() + REQUEST_MS};
  else
    peer_refuse(fd);
  return true;
}

enum { AT_STOP = 0, AT_LISTENER = 1, AT_CONNECTIONS = 2 };

static int wait_ms(const ladei_control *control) {
  uint64_t now = now_ms(), first = UINT64_MAX;
  if (control->accept_after_ms > now) first = control->accept_after_ms;
  for (size_t i = 0; i < MOST_CONNECTIONS; i++)
    if (control->connections[i].fd >= 0 && control->connections[i].deadline_ms < first)
      first = control->connections[i].deadline_ms;
  if (first == UINT64_MAX) return -1;
  return first <= now ? 0 : (int)(first - now);
}

/* Requests first, so that peers that have spoken are served before places are taken from silent ones. */
static void round_serve(ladei_control *control, const struct pollfd *ready) {
  for (size_t i = 0; i < MOST_CONNECTIONS && !atomic_load(&control->stop); i++)
    if (control->connections[i].fd >= 0 && ready[AT_CONNECTIONS + i].revents != 0)
      connection_serve(control, &control->connections[i]);
  uint64_t now = now_ms();
  for (size_t i = 0; i < MOST_CONNECTIONS; i++)
    if (control->connections[i].fd >= 0 && control->connections[i].deadline_ms <= now)
      connection_close(&control->connections[i]);
  if (ready[AT_LISTENER].revents == 0) return;
  if (place_find(control) == NULL) place_make(control);
  for (int i = 0; i < MOST_CONNECTIONS && connection_accept(control); i++) {
  }
}

static void *control_main(void *user) {
  ladei_control *control = user;
  struct pollfd ready[AT_CONNECTIONS + MOST_CONNECTIONS];
  while (!atomic_load(&control->stop)) {
    ready[AT_STOP] = (struct pollfd){.fd = control->stop_fd, .events = POLLIN};
    bool accepts = control->accept_after_ms <= now_ms();
    ready[AT_LISTENER] = (struct pollfd){.fd = accepts ? control->listener : -1, .events = POLLIN};
    for (size_t i = 0; i < MOST_CONNECTIONS; i++)
      ready[AT_CONNECTIONS + i] = (struct pollfd){.fd = control->connections[i].fd, .events = POLLIN};
    if (poll(ready, sizeof ready / sizeof *ready, wait_ms(control)) >= 0) round_serve(control, ready);
  }
  return NULL;
}

/* --- create and destroy ------------------------------------------------------------------------------------------- */

static lade_status system_error(const char *what) {
  int code = errno;
  bool no_memory = code == ENOMEM || code == ENOBUFS;
  return ladei_error(no_memory ? LADE_ERR_OUT_OF_HOST_MEMORY : LADE_ERR_IO, code,
                     "lade_publish: control: cannot %s: %s", what, strerror(code));
}

static lade_status listener_open(ladei_control *control) {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random) return system_error("get a random name");
  snprintf(control->name, sizeof control->name, "lade-control-%ld-%016llx", (long)getpid(), (unsigned long long)random);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t bytes = strlen(control->name);
  memcpy(address.sun_path + 1, control->name, bytes); /* its first byte is 0: abstract */
  control->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (control->listener < 0) return system_error("open a socket");
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
  if (bind(control->listener, (const struct sockaddr *)&address, length) != 0) return system_error("name a socket");
  if (listen(control->listener, BACKLOG) != 0) return system_error("listen at a socket");
  control->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return control->stop_fd < 0 ? system_error("make an event") : LADE_OK;
}

void ladei_control_destroy(ladei_control *control, bool forked) {
  if (control == NULL) return;
  if (control->has_thread && !forked) { /* CT5 */
    const uint64_t one = 1;
    ladei_lock_acquire(&control->lock);
    atomic_store(&control->stop, true);
    ladei_condition_broadcast(&control->changed);
    ladei_lock_release(&control->lock);
    (void)!write(control->stop_fd, &one, sizeof one);
    pthread_join(control->thread, NULL);
  }
  for (size_t i = 0; i < MOST_CONNECTIONS; i++) connection_close(&control->connections[i]);
  if (control->listener >= 0) close(control->listener);
  if (control->stop_fd >= 0) close(control->stop_fd);
  free(control);
}

lade_status ladei_control_create(const lade_part *parts, size_t count, bool manual, ladei_control **out) {
  ladei_control *control = calloc(1, sizeof *control);
  if (control == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no memory for control");
  control->parts = parts;
  control->part_count = count;
  control->manual = manual;
  control->listener = control->stop_fd = -1;
  for (size_t i = 0; i < MOST_CONNECTIONS; i++) control->connections[i].fd = -1;
  ladei_lock_init(&control->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&control->changed);
  lade_status status = listener_open(control);
  if (status == LADE_OK && ladei_thread_start(&control->thread, control_main, control) != 0)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_publish: no thread for control");
  control->has_thread = status == LADE_OK;
  if (status == LADE_OK)
    *out = control;
  else
    ladei_control_destroy(control, false);
  return status;
}

const char *ladei_control_name(const ladei_control *control) { return control->name; }
