/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control: the client's side. Each call makes a connection of its own, for one request.
 *
 * Note [Network namespaces]. An abstract socket belongs to the network namespace that it was made in, and a container
 * has its own. A socket stays in the namespace where it was opened, for any user. So if the process is in
 * another one, a thread enters that, opens the socket and ends. The kernel lets root do so.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/thread.h"
#include "inspect/live/control_packet.h"

enum { DEFAULT_WAIT_MS = 10000 };

typedef struct control_call {
  const char *name; /* of the public function */
  uint64_t process_id;
  uint64_t deadline_ms;
  int socket;
} control_call;

static uint64_t clock_ms(void) { return ladei_clock_ns(CLOCK_MONOTONIC) / 1000000; }

static lade_status call_error(const control_call *call, const char *what) {
  int code = errno;
  bool late = code == EAGAIN || code == ETIMEDOUT;
  return ladei_error(late ? LADE_ERR_TIMEOUT : LADE_ERR_IO, code, "process %llu: control: cannot %s: %s",
                     (unsigned long long)call->process_id, what, strerror(code));
}

/* --- the connection ----------------------------------------------------------------------------------------------- */

/* Note [Network namespaces] */
typedef struct namespace_visit {
  int at; /* of the namespace */
  int socket;
  int code; /* errno, where `socket` is -1 */
} namespace_visit;

static int socket_open(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

static void *namespace_visit_main(void *user) {
  namespace_visit *visit = user;
  visit->socket = setns(visit->at, CLONE_NEWNET) == 0 ? socket_open() : -1;
  visit->code = errno;
  return NULL;
}

static int namespace_open(uint64_t process_id, struct stat *out) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%llu/ns/net", (unsigned long long)process_id);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, out) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static lade_status socket_open_there(control_call *call, int there) {
  namespace_visit visit = {there, -1, 0};
  pthread_t thread;
  if (ladei_thread_start(&thread, namespace_visit_main, &visit) != 0)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no thread to enter a network namespace", call->name);
  pthread_join(thread, NULL);
  call->socket = visit.socket;
  if (visit.socket >= 0) return LADE_OK;
  return ladei_error(LADE_ERR_IO, visit.code,
                     "process %llu: control: it is in another network namespace, which cannot be entered: %s",
                     (unsigned long long)call->process_id, strerror(visit.code));
}

static lade_status socket_create(control_call *call) {
  struct stat own, other;
  int there = namespace_open(call->process_id, &other);
  bool elsewhere =
      there >= 0 && stat("/proc/self/ns/net", &own) == 0 && (own.st_ino != other.st_ino || own.st_dev != other.st_dev);
  lade_status status = LADE_OK;
  if (elsewhere)
    status = socket_open_there(call, there);
  else if ((call->socket = socket_open()) < 0)
    status = call_error(call, "open a socket");
  if (there >= 0) close(there);
  return status;
}

/* The kernel tells whose the other end is: so no other process can be taken for it. */
static lade_status peer_check(const control_call *call) {
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  if (getsockopt(call->socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return call_error(call, "ask for the peer");
  if ((uint64_t)peer.pid == call->process_id) return LADE_OK;
  return ladei_error(LADE_ERR_IO, 0, "process %llu: control: its socket is answered by process %ld",
                     (unsigned long long)call->process_id, (long)peer.pid);
}

static struct timeval time_left(const control_call *call) {
  uint64_t now = clock_ms(), left = call->deadline_ms > now ? call->deadline_ms - now : 1;
  return (struct timeval){.tv_sec = (time_t)(left / 1000), .tv_usec = (suseconds_t)(left % 1000 * 1000)};
}

static lade_status control_connect(control_call *call, const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t bytes = strnlen(name, LADEI_PUBLISHED_CONTROL_BYTES - 1);
  _Static_assert(LADEI_PUBLISHED_CONTROL_BYTES <= sizeof address.sun_path, "a name and the NUL before it");
  memcpy(address.sun_path + 1, name, bytes);
  LADEI_TRY(socket_create(call));
  assert(call->socket >= 0);
  struct timeval left = time_left(call); /* also of a connect, which waits while many others do */
  if (setsockopt(call->socket, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left) != 0) return call_error(call, "set a time");
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
  int failed;
  do failed = connect(call->socket, (const struct sockaddr *)&address, length);
  while (failed != 0 && errno == EINTR && clock_ms() < call->deadline_ms);
  if (failed != 0) return call_error(call, "connect");
  return peer_check(call);
}

/* --- one request -------------------------------------------------------------------------------------------------- */

static lade_status request_send(const control_call *call, const ladei_control_request *request, int descriptor) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec iov = {(void *)(uintptr_t)request, sizeof *request};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  if (descriptor >= 0) {
    memset(&control, 0, sizeof control);
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  ssize_t sent;
  do sent = sendmsg(call->socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR && clock_ms() < call->deadline_ms);
  return sent < 0 ? call_error(call, "send the request") : LADE_OK;
}

static lade_status reply_await(const control_call *call) {
  struct pollfd at = {.fd = call->socket, .events = POLLIN};
  for (;;) {
    uint64_t now = clock_ms();
    int ready = now < call->deadline_ms ? poll(&at, 1, (int)(call->deadline_ms - now)) : 0;
    if (ready > 0) return LADE_OK;
    if (ready == 0)
      return ladei_error(LADE_ERR_TIMEOUT, 0, "process %llu: control: no answer in time",
                         (unsigned long long)call->process_id);
    if (errno != EINTR) return call_error(call, "wait for the answer");
  }
}

static lade_status reply_receive(const control_call *call, ladei_control_reply *out) {
  char data[LADEI_CONTROL_MOST_BYTES];
  LADEI_TRY(reply_await(call));
  ssize_t bytes = recv(call->socket, data, sizeof data, 0);
  if (bytes < 0) return call_error(call, "receive the answer");
  if (bytes == 0)
    return ladei_error(LADE_ERR_IO, 0, "process %llu: control: the connection ended without an answer",
                       (unsigned long long)call->process_id);
  lade_status status = ladei_control_reply_read(data, (size_t)bytes, out);
  if (status == LADE_OK && out->status != LADE_OK)
    status = ladei_error((lade_status)out->status, out->native_code, "%s", out->text);
  return status == LADE_OK ? LADE_OK
                           : ladei_error_prefix(status, "process %llu: ", (unsigned long long)call->process_id);
}

static lade_status name_find(const control_call *call, uint32_t index, ladei_published_about *out) {
  lade_snapshot *snapshot;
  LADEI_TRY(ladei_published_find(call->process_id, index, out, &snapshot));
  lade_snapshot_destroy(snapshot);
  if (out->control[0] != '\0') return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                     "process %llu: publishes counters alone; control needs LADE_PUBLISH_CONTROL in its "
                     "lade_publish_options.flags",
                     (unsigned long long)call->process_id);
}

static lade_status request_make(control_call *call, uint32_t index, uint32_t wait_ms, ladei_control_request *request,
                                int descriptor, ladei_control_reply *reply) {
  ladei_published_about about;
  if (wait_ms > LADEI_CONTROL_MOST_WAIT_MS)
    return ladei_error_argument(call->name, "wait_ms", "at most 600,000", "%u", wait_ms);
  request->wait_ms = wait_ms == 0 ? DEFAULT_WAIT_MS : wait_ms;
  call->deadline_ms = clock_ms() + request->wait_ms;
  call->socket = -1;
  lade_status status = name_find(call, index, &about);
  if (status == LADE_OK) status = control_connect(call, about.control);
  if (status == LADE_OK) status = request_send(call, request, descriptor);
  if (status == LADE_OK) status = reply_receive(call, reply);
  if (call->socket >= 0) close(call->socket);
  return status;
}

/* --- snapshots ---------------------------------------------------------------------------------------------------- */

/* Copied before it is read: another holder of the descriptor may change it meanwhile. */
static lade_status memory_read(const control_call *call, int fd, uint64_t bytes, lade_snapshot **out) {
  char *data = bytes > SIZE_MAX - 1 ? NULL : malloc(bytes + 1);
  if (data == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %llu bytes", call->name,
                       (unsigned long long)bytes);
  lade_status status = LADE_OK;
  for (uint64_t at = 0; at < bytes && status == LADE_OK;) {
    ssize_t count = pread(fd, data + at, bytes - at, (off_t)at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      status = ladei_error(LADE_ERR_IO, count < 0 ? errno : 0, "%s: the snapshot is shorter than process %llu says",
                           call->name, (unsigned long long)call->process_id);
    at += count > 0 ? (uint64_t)count : 0;
  }
  char name[64];
  snprintf(name, sizeof name, "process %llu", (unsigned long long)call->process_id);
  if (status == LADE_OK) status = lade_snapshot_read(data, bytes, name, out);
  free(data);
  return status;
}

static lade_status snapshot_fetch(control_call *call, uint32_t index, const lade_snapshot_options *options,
                                  uint32_t wait_ms, lade_snapshot **out) {
  ladei_control_request request;
  ladei_control_reply reply;
  ladei_control_request_init(&request, LADEI_CONTROL_SNAPSHOT);
  request.flags = options->flags;
  request.device = options->device;
  request.pool_first = options->pool.first;
  request.pool_second = options->pool.second;
  int fd = memfd_create("lade-snapshot", MFD_CLOEXEC);
  if (fd < 0) return call_error(call, "create memory for the snapshot");
  lade_status status = request_make(call, index, wait_ms, &request, fd, &reply);
  if (status == LADE_OK) status = memory_read(call, fd, reply.written, out);
  close(fd);
  if (status == LADE_OK) (*out)->process_id = call->process_id;
  return status;
}

lade_status lade_published_snapshot_take(uint64_t process_id, uint32_t index, const lade_snapshot_options *options,
                                         uint32_t wait_ms, lade_snapshot **out) {
  control_call call = {.name = __func__, .process_id = process_id};
  lade_snapshot_options own;
  if (out == NULL) return ladei_error_null(__func__, "out");
  LADEI_TRY(ladei_options_read("lade_snapshot_options", options, &own, sizeof own));
  if (own.describe != NULL)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                       "%s: options.describe is not NULL; expected NULL: the process names its frames itself",
                       __func__);
  return LADEI_UNCANCELLED(snapshot_fetch(&call, index, &own, wait_ms, out));
}

/* --- histories ---------------------------------------------------------------------------------------------------- */

lade_status lade_published_history_set(uint64_t process_id, uint32_t index,
                                       const lade_published_history_options *options, uint32_t wait_ms) {
  control_call call = {.name = __func__, .process_id = process_id};
  lade_published_history_options own;
  ladei_control_request request;
  ladei_control_reply reply;
  LADEI_TRY(ladei_options_read("lade_published_history_options", options, &own, sizeof own));
  ladei_control_request_init(&request, LADEI_CONTROL_HISTORY);
  request.enabled = own.enabled;
  request.level = own.level;
  request.max_entries = own.max_entries;
  request.max_bytes = own.max_bytes;
  request.max_frames = own.max_frames;
  request.skip_actions = own.skip_actions;
  return LADEI_UNCANCELLED(request_make(&call, index, wait_ms, &request, -1, &reply));
}
