/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of expandable segments between two processes: descriptors and figures go over a socket, bytes over the memory. */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

enum { FDS_MAX = 4, BLOCK_BYTES = 30 << 20 };

/* ---- The socket -------------------------------------------------------------------------------------------------- */

static bool shared_send(int socket, const lade_device_shared *shared) {
  uint64_t figures[] = {shared->fd_count, shared->piece_bytes, shared->offset};
  size_t bytes = (size_t)shared->fd_count * sizeof(int);
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_MAX * sizeof(int))] = {0};
  struct iovec part = {figures, sizeof figures};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(bytes)};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(head), shared->fds, bytes);
  return sendmsg(socket, &message, 0) == (ssize_t)sizeof figures;
}

static bool shared_receive(int socket, lade_device_shared *out, int fds[FDS_MAX]) {
  uint64_t figures[3];
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_MAX * sizeof(int))];
  struct iovec part = {figures, sizeof figures};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(socket, &message, 0) != (ssize_t)sizeof figures || figures[0] > FDS_MAX) return false;
  const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  if (head == NULL || head->cmsg_len != CMSG_LEN(figures[0] * sizeof(int))) return false;
  memcpy(fds, CMSG_DATA(head), figures[0] * sizeof(int));
  lade_device_shared_init(out);
  out->fds = fds;
  out->fd_count = figures[0];
  out->piece_bytes = figures[1];
  out->offset = figures[2];
  return true;
}

/* One side has come so far, and the other goes on. */
static bool turn_give(int socket) { return write(socket, "", 1) == 1; }
static bool turn_take(int socket) {
  char byte;
  return read(socket, &byte, 1) == 1;
}

/* ---- The other process ------------------------------------------------------------------------------------------- */

static bool open_shared(device_fixture *f) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_IPC;
  return device_fixture_open(f, "cpu", 256 * MIB, &options);
}

static bool byte_is(const device_fixture *f, const void *address, unsigned char value) {
  unsigned char byte = (unsigned char)(value + 1);
  lade_status status = f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, &byte, address, 1);
  return status == LADE_OK && byte == value;
}

/* 0, or the number of the step that went wrong. */
static int receiver(int socket) {
  device_fixture f;
  lade_device_shared shared;
  int fds[FDS_MAX];
  void *there = NULL;
  if (!open_shared(&f)) return 1;
  if (!shared_receive(socket, &shared, fds)) return 2;
  if (lade_device_shared_open(f.allocator, &shared, &there) != LADE_OK) return 3;
  for (uint64_t i = 0; i < shared.fd_count; i++) close(fds[i]);
  if (!byte_is(&f, there, 7) || !byte_is(&f, (char *)there + BLOCK_BYTES - 1, 7)) return 4;
  device_fixture_fill(&f, there, 9, 1000, 0);
  if (lade_stream_synchronize(f.runtime, f.streams[0]) != LADE_OK || !turn_give(socket)) return 5;
  if (!turn_take(socket)) return 6; /* the sender has given the memory back */
  if (!byte_is(&f, there, 9) || !byte_is(&f, (char *)there + BLOCK_BYTES - 1, 7)) return 7;
  if (lade_device_shared_close(f.allocator, there) != LADE_OK) return 8;
  device_fixture_close(&f);
  return 0;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

static void sender(int socket) {
  device_fixture f;
  if (!open_shared(&f)) return;
  char *first = device_fixture_alloc(&f, 5 * MIB, 0); /* so that the block lies over two granules, inside both */
  char *block = device_fixture_alloc(&f, BLOCK_BYTES, 0);
  device_fixture_fill(&f, block, 7, BLOCK_BYTES, 0);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  LADE_ASSERT_OK(lade_device_shared_export(f.allocator, block, &shared));
  LADE_EXPECT_EQ_UINT(shared.fd_count, 2);
  LADE_EXPECT(shared_send(socket, &shared));
  lade_device_shared_release(&shared);
  LADE_EXPECT(turn_take(socket));
  LADE_EXPECT(byte_is(&f, block, 9));
  LADE_EXPECT(byte_is(&f, block + 1000, 7));
  device_fixture_free(&f, first);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
  LADE_EXPECT(turn_give(socket));
}

LADE_TEST(ExpandableIpc, AnotherProcessHasTheSameMemory) {
  int sockets[2];
  LADE_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  pid_t child = fork(); /* before either opens a runtime */
  LADE_ASSERT(child >= 0);
  if (child == 0) {
    close(sockets[0]);
    _exit(receiver(sockets[1]));
  }
  close(sockets[1]);
  sender(sockets[0]);
  close(sockets[0]);
  int status = -1;
  LADE_ASSERT(waitpid(child, &status, 0) == child);
  LADE_EXPECT(WIFEXITED(status));
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}
